"""The sending half of a region: routes, buffered messages, and requests for homes.

Order per sender and entity is kept because a region

1. never sends for a shard to two places at once: it leaves an old home with a Flush behind
   everything it sent there, and sends to the new home only after the echo (`route` has the
   diagram);
2. forwards messages for a shard that is not here in the order of arrival, the Flushes of other
   senders among them, so that their echo comes from behind those senders' messages;
3. lets in, while the shard runs here already but the Flush towards its old home has no echo, only
   messages forwarded by that home and messages from processes that sent nothing there by this
   region. Everything else, local senders included, waits for the echo: nothing older can come after
   it.

A message that comes from the very node that it would be sent to shows that one of the two nodes is
behind: it waits while the coordinator is asked. `hop_limit` ends longer circles.

A home that echoes no Flush for `FLUSH_PATIENCE_S` is left all the same. From then on order towards
that shard is not guaranteed, and the region notes `flush_given_up` with the name of the shard.

**Leftovers** are messages that a shard's entities have not handled when the shard stops here: an
entity was cut off, or could not start, or had stashed messages. They are older than anything that
waits, so the next home gets them first. But other regions have buffered later messages since the
hand-off began, and send those to the next home as soon as it is known. So that home must let in
nothing else before the leftovers:

    old home      ShardStopped(left) ─────> coordinator
    coordinator   HostShard(behind) ──────> new home          which then awaits the leftovers:
    new home      Flush, PassOn ──────────> old home
    old home      leftovers, waiting, Flush > new home        which lets in messages from there
    new home      echo ──> itself: open for every sender

The old home sends nothing before it has PassOn from the very home that is its next. A home that
does not ask had no `behind`, because the coordinator changed in between. Then other senders may
reach it already, so the leftovers are rejected after `LEFTOVERS_PATIENCE_S`, or as soon as yet
another home is known. So are the leftovers of a shard that another coordinator brings back here,
for it may have run elsewhere. A home that stops while it awaits leftovers keeps later messages for
the next home, which awaits them in turn.

Every Release stands before the SetRoute or SetArrivals that lets others follow.

Source: S0.11-S0.13, S0.21-S0.25, S0.34-S0.36, S2.22, S2.28, S2.65, S3.59, S4.17, B.55,
N.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding.instances import split_row
from shardbus.sharding.messages import Home, ShardMove
from shardbus.sharding.region.requested_homes import RequestedHomes
from shardbus.sharding.region.route import (
    REJECT_BUFFER_FULL,
    REJECT_HOP_LIMIT,
    REJECT_NO_INSTANCE,
    REJECT_REFUSED,
    REJECT_STOPPED,
    Absence,
    BufferedMessage,
    LeftoversState,
    OpenFlush,
    Returned,
    Route,
    RouteBuffers,
    RouteState,
)
from shardbus.sharding.region.waiting_messages import WaitingMessages

DEAD_NODES_MAX = 1000
"""Dead nodes remembered, so that a coordinator that is behind cannot point at one."""

SUSPECT_HOPS = 4
"""Forwards after which a message has met a circle: the route that it meets is checked."""

FLUSH_PATIENCE_S = 60.0
"""Seconds after which a home that echoes no Flush is left all the same."""

LEFTOVERS_PATIENCE_S = 5.0
"""Seconds that an old home waits for the next home to request the leftovers."""


class Routing:
    """The routes of one entity type. Effects are appended to `out`."""

    __slots__ = (
        "_buffers", "_dead", "_flushes", "_gated", "_hop_limit", "_me", "_opened", "_out",
        "_refused", "_retry", "_routes", "_rows", "_rows_opened", "_running", "_timers", "acks",
        "instances", "new_homes", "requests", "unordered", "waiting",
    )  # fmt: skip

    def __init__(
        self, me: NodeId | None, settings: ShardingSettings, out: list[ev.RegionEffect]
    ) -> None:
        self._me = me
        self._out = out
        self._hop_limit = settings.hop_limit
        self._retry = settings.retry_interval
        self._routes: dict[str, Route] = {}
        self._buffers = RouteBuffers(settings.buffer_size, settings.buffer_bytes)
        self.waiting = WaitingMessages(self._buffers, out)
        self.requests = RequestedHomes(settings.retry_interval)
        self._timers = self.requests.timers
        self._flushes = 0
        self._refused = False
        self._opened = False
        """A route has opened since the last refusal."""
        self._dead: dict[NodeId, None] = {}
        self._running: dict[str, int] = {}
        """The fences of the shards that run here."""
        self._gated: dict[str, NodeId] = {}
        """Shards that run here and wait for acknowledgements of senders, by way of that node."""
        self.acks: dict[str, Home] = {}
        """BeginHandOffs to acknowledge at the end of the turn."""
        self.new_homes: dict[str, Home] = {}
        """Homes that were not known before this turn."""
        self.unordered: dict[str, dict[str, ShardMove]] = {}
        """Of these, the homes to which shards moved in a mode without an order, by mode."""
        self._rows: dict[str, list[Route]] = {}
        """The rows by their shard, of a type with instances."""
        self._rows_opened: dict[str, None] = {}
        """Shards of which a row got a home in this turn."""
        self.instances = 0
        """The number of instances of the type; 0: it has none, or the number is not known."""

    def home_of(self, shard: str) -> Home | None:
        """Return the best home known."""
        route = self._routes.get(shard)
        return None if route is None else route.best_home

    def find(self, shard: str) -> Route | None:
        """Return the route of a shard, if the region has one."""
        return self._routes.get(shard)

    def known_shards(self) -> list[str]:
        """Return the shards whose home is known."""
        return [shard for shard in self._routes if self.home_of(shard) is not None]

    def absence_of(self, shard: str) -> tuple[Absence, NodeId | None]:
        """Return why a shard has no home that takes messages, and the home that it had last."""
        route = self._routes.get(shard)
        return (Absence.NEVER, None) if route is None else route.absence

    # Rows.

    def set_instances(self, count: int) -> None:
        """Use this number of instances. Messages for the rows above it are rejected, waiting and
        later ones."""
        self.instances = count
        for shard, route in self._routes.items():
            if self._vanished(shard):
                route.watched = False
                self.waiting.reject(shard, route.take_messages(), REJECT_NO_INSTANCE)

    def pass_to_instances(self) -> None:
        """Reject the messages that wait for a row without a home, where another row of its shard
        has got one in this turn: any instance may handle them. Messages for that instance alone
        wait on."""
        shards, self._rows_opened = self._rows_opened, {}
        for shard in shards:
            rows = self._rows[shard]
            if all(row.state is not RouteState.KNOWN for row in rows):
                continue
            for row in rows:
                if row.state is RouteState.UNKNOWN and row.next_home is None:
                    waiting = [m for m in row.waiting if m.any_instance]
                    row.waiting = [m for m in row.waiting if not m.any_instance]
                    self.waiting.reject(row.shard, waiting, REJECT_NO_INSTANCE)

    def _vanished(self, shard: str) -> bool:
        """True if this is the row of an instance that is no more."""
        return 0 < self.instances < split_row(shard)[1]

    # Messages.

    def deliver(self, event: ev.Deliver, now: float) -> None:
        """Send a message without a route on, or keep it."""
        route = self._route(event.shard)
        if self._vanished(event.shard):
            self._out.append(ev.Reject(event.shard, event.message, REJECT_NO_INSTANCE))
            return
        if self._refused or event.hops >= self._hop_limit:
            reason = REJECT_REFUSED if self._refused else REJECT_HOP_LIMIT
            self._out.append(ev.Reject(event.shard, event.message, reason))
            return
        if route.state is RouteState.KNOWN and route.home is not None:
            if not self._circles(event, route.home):
                route.forwarded.add(event.via, event.hops)
                self._out.append(ev.Release(event.shard, route.home.node, (event.message,)))
                return
            self._check_home(route, now)
        free = route.bypasses_flush(event.via)
        if free and route.next_home is not None and self._may_send_to(route, route.next_home):
            route.forwarded_next.add(event.via, event.hops)
            self._out.append(ev.Release(event.shard, route.next_home.node, (event.message,)))
            return
        if not self.waiting.take(event.message):
            self._out.append(ev.Reject(event.shard, event.message, REJECT_BUFFER_FULL))
            return
        route.forwarded_next.add(event.via, event.hops)
        queue = route.returned if free else route.waiting
        queue.insert(0 if event.older else len(queue), event.message)
        self.requests.want(route, now)
        if (percent := self._buffers.crossed()) is not None:
            self._out.append(ev.Note("buffer_use", f"{percent} %"))

    def mark_expired(self, shards: tuple[str, ...]) -> None:
        """Record that asks have expired among the waiting messages for these shards."""
        self.waiting.mark_expired(self._routes[s] for s in shards if s in self._routes)

    def withdraw(self, messages: Returned) -> None:
        """Remove these messages from the waiting ones."""
        withdrawn = {id(message) for _, message in messages}
        for shard in {shard: None for shard, _ in messages}:
            if (route := self._routes.get(shard)) is None:
                continue
            for queue in route.queues:
                self._buffers.remove([m for m in queue if id(m) in withdrawn])
                queue[:] = [m for m in queue if id(m) not in withdrawn]

    def refuse(self) -> None:
        """Reject waiting and new messages: the coordinator refuses this region. While that holds
        nothing waits, so only routes that have opened since need another look."""
        if self._refused and not self._opened:
            return
        self._refused, self._opened = True, False
        for route in self._routes.values():
            self.waiting.reject(route.shard, route.take_messages(), REJECT_REFUSED)
            if route.state is RouteState.KNOWN:
                self._close(route)

    def admit(self) -> None:
        """Keep messages again: the coordinator accepts this region."""
        self._refused = False

    # Homes.

    def on_home(self, home: Home, epoch: int, now: float) -> None:
        """Use a home that the coordinator sent. One older than the known home is ignored."""
        route = self._route(home.shard)
        if home.node in self._dead or not route.accepts(home, epoch):
            return
        route.watched = False
        self.requests.on_home(home.shard)
        if route.leftovers.are_late(home, epoch, self._me):
            self._drop_leftovers(route)
        if self.home_of(home.shard) != home:
            self.new_homes[home.shard] = home
        if route.state is RouteState.UNKNOWN:
            route.set_next(home)
            self._open(route)
        elif route.home is not None and route.home.node == home.node:
            self._keep_node(route, home)
        elif route.state is RouteState.KNOWN:
            route.set_next(home)
            self._leave_home(route, now)
            if route.home is None:
                self._open(route)
        else:
            route.set_next(home)
            self._let_through(route)
        self._await_requester(route, now)

    def accepts(self, home: Home, epoch: int) -> bool:
        """True if `on_home` would use this home."""
        return home.node not in self._dead and self._route(home.shard).accepts(home, epoch)

    def begin_handoff(self, home: Home, epoch: int, now: float) -> None:
        """Buffer messages for the shard, which leaves this home; acknowledge after the Flush."""
        route = self._route(home.shard)
        if not route.floor.on_begin_handoff(home, epoch, in_use=route.state is RouteState.KNOWN):
            self.acks[home.shard] = home
            return
        next_home = route.next_home
        if next_home and next_home.fence <= home.fence and not route.leftovers.awaits:
            route.next_home = None
        if route.state is RouteState.KNOWN:
            self._leave_home(route, now)
        if route.flush is not None:
            route.flush.unacked = home
        else:
            self.acks[home.shard] = home
        self.requests.expect(route, now)

    def on_flushed(self, shard: str, flush_id: int, now: float) -> None:
        """End the Flush of that number: its echo came."""
        route = self._routes.get(shard)
        if route is None or route.flush is None:
            return
        if route.flush.number != flush_id:
            return
        home, passed = route.home, route.flush.passed
        if not route.flush.calls or home is None or home.node in self._dead:
            self._end_flush(route, now)
            return
        self._forget_old_home(route)
        self._flush(route, home, now, passed)

    def on_call_sent(self, shard: str, now: float) -> None:
        """Let a Flush follow a call that went to the home which the shard leaves."""
        route = self._route(shard)
        if route.flush is not None:
            route.flush.calls = True
        elif (home := route.leaving_home) is not None:
            self._flush(route, home, now)

    def on_node_left(self, node: NodeId, now: float) -> None:
        """Send nothing more to a node that left; messages already sent there arrive."""
        self._dead[node] = None
        for route in self._routes.values():
            if route.next_home is not None and route.next_home.node == node:
                route.next_home = None
            if route.is_at(node) and route.home is not None:
                route.floor.set(route.home.fence + 1)
                self._flush(route, route.home, now)
            self.requests.want(route, now)

    def on_node_gone(self, node: NodeId, returned: Returned, now: float) -> None:
        """Send nothing more to a dead node, and wait for no answer of it. Messages that were never
        sent there go before waiting ones. They are rejected where a direct move that keeps order
        has let later messages go to the next home already."""
        self._dead[node] = None
        for shard, message in returned:
            route = self._route(shard)
            if self._vanished(shard):
                self._out.append(ev.Reject(shard, message, REJECT_NO_INSTANCE))
            elif node in route.unflushed_homes and not message.is_marker:
                self._out.append(ev.Reject(shard, message, REJECT_STOPPED))
            elif self._refused or not self.waiting.take(message):
                reason = REJECT_REFUSED if self._refused else REJECT_BUFFER_FULL
                self._out.append(ev.Reject(shard, message, reason))
            elif route.home is not None and route.home.node == node:
                route.returned.append(message)
            else:
                self._buffers.remove([message])
                self.deliver(ev.Deliver(shard, message), now)
        if len(self._dead) > DEAD_NODES_MAX:
            del self._dead[next(iter(self._dead))]
        for route in self._routes.values():
            if route.next_home is not None and route.next_home.node == node:
                route.floor.on_home_dead(route.next_home)
                route.next_home = None
            if route.home is not None and route.home.node == node:
                if route.state is RouteState.KNOWN:
                    route.floor.on_home_dead(route.home)
                    self._close(route)
                else:
                    self._on_flushed_home_dead(route, now)
            self.requests.want(route, now)

    def is_gone(self, node: NodeId) -> bool:
        """True if the node has died or left."""
        return node in self._dead

    def on_node_back(self, node: NodeId) -> None:
        """Accept homes on a node again that was taken for dead, and answers."""
        self._dead.pop(node, None)
        for route in self._routes.values():
            route.floor.on_node_back(node)

    # The shard on this node.

    def on_shard_running(self, shard: str, fence: int) -> None:
        """Let messages in: the shard runs here now."""
        self._running[shard] = fence
        self._send_on(self._route(shard))

    def on_shard_stopping(self, shard: str, fence: int, now: float) -> None:
        """Let nothing more in: messages for the shard wait for its next home."""
        if self._running.pop(shard, None) is not None:
            self._out.append(ev.SetArrivals(shard, False))
        route = self._route(shard)
        if route.next_home is not None and route.next_home.node == self._me:
            route.next_home = None
        if route.floor.fence <= fence and self._me is not None:
            route.floor.leave(Home(shard, self._me, fence), in_use=route.is_at(self._me))
        if route.is_at(self._me):
            self._close(route)
        self.requests.expect(route, now)

    # Direct moves.

    def on_moved(self, move: ShardMove, epoch: int, now: float, *, ordered: bool) -> None:
        """Use the new home of a direct move. The caller has sent MoveAck to the old one, so no
        Flush is needed: in an `ordered` move the new home waits for that. Local senders of the new
        home itself wait until it has come back."""
        old, new = move
        route = self._route(new.shard)
        if not route.is_at(old.node):
            self.on_home(new, epoch, now)
            return
        if new.node in self._dead or not route.accepts(new, epoch):
            return
        route.watched = False
        self.new_homes[new.shard] = new
        self._close(route)
        route.set_next(new)
        if new.node == self._me and ordered:
            self._begin_flush(route, old, now)
            self._let_through(route)
            return
        if ordered:
            route.leave(old.node)
        route.forwarded_next.merge(route.forwarded)
        self._open(route)

    def note_unordered(self, move: ShardMove, mode: str) -> None:
        """Record that a home of this turn comes from a move without an order."""
        shard = move.new.shard
        if self.new_homes.get(shard) == move.new:
            del self.new_homes[shard]
            self.unordered.setdefault(mode, {})[shard] = move

    def on_own_ack(self, move: ShardMove, now: float) -> None:
        """End the wait of local senders: the acknowledgement of this node has come back from the
        old home."""
        route = self._routes.get(move.new.shard)
        if route is None or route.state is not RouteState.FLUSHING or route.next_home != move.new:
            return
        if route.home is not None and route.home.node == move.old.node:
            self._end_flush(route, now)

    def keeps(self, shard: str) -> bool:
        """True if messages for the shard wait here."""
        route = self._routes.get(shard)
        return route is not None and any(route.queues)

    def is_settled_here(self, shard: str) -> bool:
        """True if nothing that this node sent for the shard is on its way to another home."""
        route = self._routes.get(shard)
        return route is None or route.state is not RouteState.FLUSHING

    def hand_over(self, home: Home, left: Iterable[BufferedMessage], now: float) -> None:
        """Send the leftovers (`left`) of a shard, and behind them everything that waits here, to
        the home to which this node hands the shard directly."""
        route = self._route(home.shard)
        for message in left:
            self._keep(route, message)
        route.leftovers.requester = home
        self.on_home(home, route.leftovers.epoch, now)

    def gate(self, shard: str, via: NodeId) -> None:
        """Let in only that node's messages for the shard, which runs here, until `ungate`."""
        self._gated[shard] = via

    def ungate(self, shard: str) -> None:
        """Let in every message for the shard, if it runs here."""
        self._gated.pop(shard, None)
        if shard in self._running:
            self._out.append(ev.SetArrivals(shard, True))

    def put_back(self, shard: str, messages: list[BufferedMessage], now: float) -> None:
        """Route messages that were kept outside of the routes, and are counted."""
        route = self._route(shard)
        if not messages:
            return
        if self._refused:
            self.waiting.reject(shard, messages, REJECT_REFUSED)
        elif route.state is RouteState.KNOWN and route.home is not None:
            self._buffers.remove(messages)
            route.forwarded.add(None, 1)
            self._out.append(ev.Release(shard, route.home.node, tuple(messages)))
        else:
            route.waiting[:0] = messages
            route.forwarded_next.add(None, 1)
            self.requests.want(route, now)

    # Requests for homes.

    def watch(self, shard: str, now: float) -> None:
        """Request the home of a shard for a client that asks, or for this process without a
        message."""
        route = self._route(shard)
        route.watched = not self._vanished(shard)
        self.requests.want(route, now)

    def due_requests(self, now: float) -> tuple[str, ...]:
        """Return the shards whose home must be requested now.

        A Flush without an echo is sent again: a node that forwarded the first may have died with
        it. After `FLUSH_PATIENCE_S` the region gives it up.
        """
        shards: list[str] = []
        for shard in self._timers.due(now):
            route = self._routes[shard]
            leftovers = route.leftovers
            if leftovers.deadline is not None and now >= leftovers.deadline[1]:
                self._drop_leftovers(route)
                self._send_on(route)
            if route.needs_home or route.watched:
                shards.append(shard)
            elif route.flush is None:
                if leftovers.deadline is not None and route.state is RouteState.UNKNOWN:
                    self._timers.set(shard, leftovers.deadline[1])
                continue
            self._timers.set(shard, now + self._retry)
            if route.flush is not None and route.home is not None:
                end = route.flush.since + FLUSH_PATIENCE_S
                if now >= end:
                    self._give_up_flush(route, route.home, now)
                else:
                    self._timers.set(shard, min(now + self._retry, end))
                    self._out.append(ev.SendFlush(shard, route.home.node, route.flush.number))
        return tuple(shards)

    def request_again(self, now: float, *, everything: bool) -> None:
        """Ask a new coordinator for the needed homes, or for `everything` known. A client requests
        everything: moves do not reach it otherwise."""
        for shard, route in self._routes.items():
            route.watched = route.watched or everything
            if route.needs_home or route.watched:
                self._timers.set(shard, now)

    def on_wait(self, shards: tuple[str, ...], reason: str, now: float) -> None:
        """Request these later: the coordinator has this region's request."""
        routes = self._routes
        unknown = [s for s in shards if s in routes and routes[s].state is RouteState.UNKNOWN]
        self.requests.on_wait(unknown, reason, now)

    def kept(self) -> Iterator[BufferedMessage]:
        """Yield every message that waits in a route."""
        for route in self._routes.values():
            for queue in route.queues:
                yield from queue

    def check(self, kept: Iterable[BufferedMessage] = ()) -> None:
        """Check that counts are exact and that whatever waits has a timer; for tests. `kept`: the
        messages that are kept outside of the routes."""
        self._buffers.check([*self.kept(), *kept])
        for route in self._routes.values():
            route.check()
            route.check_timer(self._me, timed=route.shard in self._timers)

    # Leftovers.

    def keep_leftovers(
        self, shard: str, leftovers: tuple[BufferedMessage, ...], epoch: int, now: float
    ) -> None:
        """Keep the messages that the shard's entities have not handled, for its next home.

        `epoch` is the coordinator's when the shard stopped here. If the next home is known already,
        other senders may reach it already, and the leftovers come too late.
        """
        route = self._route(shard)
        home, reason = route.best_home, ""
        if not self._refused:
            route.leftovers.epoch = epoch
        if self._refused:
            reason = REJECT_REFUSED
        elif self._vanished(shard):
            reason = REJECT_NO_INSTANCE
        elif home is not None and home.node != self._me:
            reason = REJECT_STOPPED
        for message in leftovers:
            if reason:
                self._out.append(ev.Reject(shard, message, reason))
            else:
                self._keep(route, message)
        self.requests.expect(route, now)

    def _keep(self, route: Route, leftover: BufferedMessage) -> None:
        if self.waiting.take(leftover):
            route.leftovers.messages.append(leftover)
            route.forwarded_next.add(None, 1)
        else:
            self._out.append(ev.Reject(route.shard, leftover, REJECT_BUFFER_FULL))

    def has_leftovers(self, shard: str) -> bool:
        """True if the next home must request messages that were not handled here."""
        route = self._routes.get(shard)
        return route is not None and route.leftovers.state is not LeftoversState.NONE

    def await_leftovers(self, old: Home, now: float) -> bool:
        """Flush towards an old home that has leftovers of a shard that will run here; until the
        echo nothing else is let in. Returns False if no live node can pass them on."""
        route = self._route(old.shard)
        other = route.home is not None and route.home.node != old.node
        if old.node == self._me or old.node in self._dead or other:
            return False
        self._drop_leftovers(route)  # they are from before that home
        self._flush(route, old, now)
        route.leftovers.awaits = True
        return True

    def on_pass_on(self, home: Home) -> None:
        """Send the leftovers to that home, once it is known as the next home."""
        route = self._route(home.shard)
        if route.leftovers.state is LeftoversState.NONE:
            return
        route.leftovers.requester = home
        if route.next_home == home:
            route.leftovers.deadline = None
        self._send_on(route)

    def _await_requester(self, route: Route, now: float) -> None:
        """Set a deadline for the next home to request the leftovers: it may never do."""
        home = route.next_home
        if home is None or self._may_send_to(route, home) or not self._is_open(home):
            return
        leftovers = route.leftovers
        if leftovers.deadline is None or leftovers.deadline[0] != home:
            leftovers.deadline = (home, now + LEFTOVERS_PATIENCE_S)
            self._timers.set(route.shard, leftovers.deadline[1])

    def _drop_leftovers(self, route: Route) -> None:
        """Reject the leftovers: later messages may have reached their destination."""
        leftovers = route.leftovers
        late = route.take_older() if leftovers.awaits else leftovers.messages
        leftovers.messages, leftovers.awaits, leftovers.deadline = [], False, None
        self.waiting.reject(route.shard, late, REJECT_STOPPED)

    # Transitions of a route.

    def _route(self, shard: str) -> Route:
        route = self._routes.get(shard)
        if route is None:
            route = self._routes[shard] = Route(shard)
            base, instance = split_row(shard)
            if instance:
                self._rows.setdefault(base, []).append(route)
        return route

    def _circles(self, event: ev.Deliver, home: Home) -> bool:
        if event.via is None or home.node == self._me:
            return False
        return event.via == home.node or event.hops >= SUSPECT_HOPS

    def _check_home(self, route: Route, now: float) -> None:
        """Request the home, which sent back its own messages; send nothing until the answer."""
        self._out.append(ev.Note("circle", route.shard))
        self._leave_home(route, now)
        self._timers.set(route.shard, now)

    def _is_open(self, home: Home) -> bool:
        """True if the home takes messages; one on this node does once the shard runs."""
        return home.node != self._me or self._running.get(home.shard) == home.fence

    def _may_send_to(self, route: Route, home: Home) -> bool:
        """True if messages may go to that home now."""
        return self._is_open(home) and route.leftovers.lets_send_to(home, self._me)

    def _send_on(self, route: Route) -> None:
        """Send the messages that may go to the next home."""
        if route.state is RouteState.FLUSHING:
            self._let_through(route)
        else:
            self._open(route)

    def _open(self, route: Route) -> None:
        """Go from UNKNOWN to KNOWN, if the next home is known and takes messages."""
        home = route.next_home
        if home is None or not self._may_send_to(route, home):
            return
        released = route.open(home)
        self._buffers.remove(released)
        self._opened = True
        self._timers.cancel(route.shard)
        if released:
            self._out.append(ev.Release(route.shard, home.node, tuple(released)))
        if home.node == self._me:
            self._out.append(ev.SetArrivals(route.shard, True, via=self._gated.get(route.shard)))
        self._out.append(ev.SetRoute(route.shard, home.node))
        base, instance = split_row(route.shard)
        if instance:
            self._rows_opened[base] = None

    def _let_through(self, route: Route) -> None:
        """Send returned messages on to the next home while the Flush is still under way."""
        home = route.next_home
        if home is None or route.home is None or not self._may_send_to(route, home):
            return
        if older := route.take_older():
            self._buffers.remove(older)
            self._out.append(ev.Release(route.shard, home.node, tuple(older)))
        if home.node == self._me:
            self._out.append(ev.SetArrivals(route.shard, True, via=route.home.node))

    def _keep_node(self, route: Route, home: Home) -> None:
        """Use a home on the node where messages go or went already: the session keeps the order, so
        no Flush is needed."""
        if route.state is RouteState.KNOWN:
            route.home = home
            route.floor.set(home.fence)
            return
        self._forget_old_home(route)
        route.forwarded_next.merge(route.forwarded)
        route.set_next(home)
        self._open(route)

    def _leave_home(self, route: Route, now: float) -> None:
        """Go from KNOWN to FLUSHING; to UNKNOWN from a home on this node, where mailboxes have
        everything already."""
        home = route.home
        if home is None or home.node == self._me or home.node in self._dead:
            self._close(route)
        else:
            self._flush(route, home, now)

    def _flush(self, route: Route, old: Home, now: float, passed: Iterable[Home] = ()) -> None:
        """Send a Flush to this old home; until its echo, messages wait."""
        unacked = self._close(route)
        flush = self._begin_flush(route, old, now)
        flush.passed, flush.unacked = list(passed), unacked
        self._out.append(ev.SendFlush(route.shard, old.node, flush.number))

    def _begin_flush(self, route: Route, old: Home, now: float) -> OpenFlush:
        self._flushes += 1
        flush = OpenFlush(self._flushes, now)
        route.begin_flush(old, flush)
        self._timers.set(route.shard, now + min(self._retry, FLUSH_PATIENCE_S))
        return flush

    def _close(self, route: Route) -> Home | None:
        """Go to UNKNOWN: local senders do not send there directly any more. Returns the
        BeginHandOff that an open Flush would have acknowledged."""
        self._out.append(ev.SetRoute(route.shard, None))
        return route.forget_home()

    def _end_flush(self, route: Route, now: float) -> None:
        """Go on to the next home: everything sent to the old one has arrived, or never will."""
        self._forget_old_home(route)
        self._open(route)
        if self.requests.by_gossip and route.leftovers.deadline is None:
            self._timers.cancel(route.shard)  # it was for the Flush
        self.requests.want(route, now)

    def _on_flushed_home_dead(self, route: Route, now: float) -> None:
        """Go on to the next home, behind messages that the old one may have forwarded before it
        died: a home in between may still have them."""
        passed = [] if route.flush is None else route.flush.passed
        for at, home in enumerate(passed, 1):
            to_next = route.next_home is not None and home.node == route.next_home.node
            if home.node != self._me and home.node not in self._dead and not to_next:
                self._flush(route, home, now, passed[at:])
                return
        self._end_flush(route, now)

    def _give_up_flush(self, route: Route, home: Home, now: float) -> None:
        """Go on without the echo. Messages that are still on their way to the old home may arrive
        after later ones."""
        detail = f"shard {route.shard}: {home.node} did not echo a Flush in {FLUSH_PATIENCE_S:g} s"
        self._out.append(ev.Note("flush_given_up", f"{detail}, order is not guaranteed"))
        self._end_flush(route, now)

    def _forget_old_home(self, route: Route) -> None:
        if (unacked := route.forget_home()) is not None:
            self.acks[route.shard] = unacked
