"""The sending half of a region: routes, what waits for them, and who must be asked.

Order per sender and entity is kept because a router

1. never sends for a shard to two places at once: it leaves an old home with a Flush behind
   everything it sent there, and sends to the new one only after the echo (`routes` has the
   drawing);
2. forwards what arrives for a shard that is not here in the order of arrival, Flushes of others
   among it, so that their echo comes from behind what they had sent;
3. lets in, while the shard runs here already but the Flush towards its old home is still out, only
   what that home sends on, or who had sent nothing there by us: everything else, local senders
   included, waits until the echo shows that nothing older is coming.

A message that comes from the very node that it would be sent to shows that one of the two is
behind: it waits while the coordinator is asked. `hop_limit` ends longer circles.

How a way changes, and what becomes of messages that a shard's entities have not handled, is in
`ways`.

Source: S0.11-S0.13, S0.21, S0.34-S0.36, S2.22, S2.65; B.55; C.1, C.5; N.3.
"""

from __future__ import annotations

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding.messages import Home
from shardbus.sharding.region.buffered import (
    REJECT_BUFFER_FULL,
    REJECT_HOP_LIMIT,
    REJECT_REFUSED,
    BufferedMessage,
    Returned,
)
from shardbus.sharding.region.route import Route, RouteBuffers, RouteState
from shardbus.sharding.region.transitions import RouteTransitions
from shardbus.sharding.timers import Timers

GONE_MAX = 1000
"""Dead nodes remembered, so that a coordinator that is behind cannot point at one."""

SUSPECT_HOPS = 4
"""A message forwarded so often has met a circle: the route it meets is checked."""

FLUSH_PATIENCE = 60.0
"""After so many seconds a home that echoes no Flush is left all the same."""

PATIENCE = 3.0
"""After a Wait the question is repeated so many times more slowly: the answer will come unasked."""


class Routing:
    """Routes of one entity type. `out` takes the effects."""

    __slots__ = (
        "_buffers", "_hop_limit", "_me", "_out", "_refused", "_retry", "_routes", "_timers",
        "_ways", "news",
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
        self._timers: Timers[str] = Timers()
        self._ways = RouteTransitions(me, settings.retry_interval, self._buffers, self._timers, out)
        self._refused = False
        self.news: dict[str, Home] = {}
        """Homes that were not known before this turn."""

    def take_acks(self) -> dict[str, Home]:
        """BeginHandOffs that are to be acknowledged now."""
        acks, self._ways.acks = self._ways.acks, {}
        return acks

    @property
    def buffered(self) -> tuple[int, int]:
        """Messages and bytes that wait."""
        return self._buffers.messages, self._buffers.bytes

    def deadline(self) -> float | None:
        """When the next question is due."""
        return self._timers.deadline()

    def home_of(self, shard: str) -> Home | None:
        """The best home known."""
        route = self._routes.get(shard)
        if route is None:
            return None
        return route.next or (route.home if route.way is RouteState.KNOWN else None)

    # Messages.

    def deliver(self, event: ev.Deliver, now: float) -> None:
        """A message without a route: send it on, or keep it."""
        route = self._route(event.shard)
        if self._refused or event.hops >= self._hop_limit:
            reason = REJECT_REFUSED if self._refused else REJECT_HOP_LIMIT
            self._out.append(ev.Reject(event.shard, event.envelope, reason))
            return
        if route.way is RouteState.KNOWN and route.home is not None:
            if not self._circles(event, route.home):
                route.passed.note(event.via, event.hops)
                self._out.append(ev.Release(event.shard, route.home.node, (event.envelope,)))
                return
            self._doubt(route, now)
        free = route.is_free(event.via)
        if free and route.next is not None and self._ways.goes(route, route.next):
            route.ahead.note(event.via, event.hops)
            self._out.append(ev.Release(event.shard, route.next.node, (event.envelope,)))
            return
        if not self._ways.take(event.envelope):
            self._out.append(ev.Reject(event.shard, event.envelope, REJECT_BUFFER_FULL))
            return
        route.ahead.note(event.via, event.hops)
        queue = route.returned if free else route.waiting
        queue.insert(0 if event.older else len(queue), event.envelope)
        self._ways.ask(route, now)
        if (percent := self._buffers.crossed()) is not None:
            self._out.append(ev.Note("buffer_use", f"{percent} %"))

    def expired(self, shards: tuple[str, ...]) -> None:
        """Nobody waits any more for some of what waits for these."""
        routes = self._routes
        self._ways.stale.update((s, routes[s]) for s in shards if s in routes)

    def refuse(self) -> None:
        """The coordinator does not take this region: nothing waits any more, nothing is sent."""
        self._refused = True
        for route in self._routes.values():
            self._ways.reject(route, route.mail + route.returned + route.waiting, REJECT_REFUSED)
            route.mail, route.returned, route.waiting = [], [], []
            if route.way is RouteState.KNOWN:
                self._ways.close(route)

    def admit(self) -> None:
        """The coordinator takes this region after all."""
        self._refused = False

    # Homes.

    def told(self, home: Home, epoch: int, now: float) -> None:
        """A home, from somebody who may say so. What is older than what is known is ignored."""
        route = self._route(home.shard)
        if home.node in self._ways.gone or not route.believes(home, epoch):
            return
        route.asked = False
        self._ways.hears(route, home, epoch)
        if self.home_of(home.shard) != home:
            self.news[home.shard] = home
        if route.way is RouteState.UNKNOWN:
            route.point(home)
            self._ways.open(route)
        elif route.home is not None and route.home.node == home.node:
            self._ways.stay(route, home)
        elif route.way is RouteState.KNOWN:
            route.point(home)
            self._ways.leave_home(route, now)
            if route.home is None:
                self._ways.open(route)
        else:
            route.point(home)
            self._ways.let_through(route)
        self._ways.hold(route, now)

    def believes(self, home: Home, epoch: int) -> bool:
        """Whether `told` would take it."""
        return home.node not in self._ways.gone and self._route(home.shard).believes(home, epoch)

    def begin_handoff(self, home: Home, epoch: int, now: float) -> None:
        """The shard leaves this home: keep what is for it, and acknowledge when the way is
        empty."""
        route = self._route(home.shard)
        if home.fence < route.floor and (route.left is None or route.left[0] != home.fence):
            self._ways.acks[home.shard] = home
            return
        route.leave(home, epoch)
        if route.next is not None and route.next.fence <= home.fence and not route.behind:
            route.next = None
        if route.way is RouteState.KNOWN:
            self._ways.leave_home(route, now)
        if route.way is RouteState.FLUSHING:
            route.owed = home
        else:
            self._ways.acks[home.shard] = home
        self._ways.ask(route, now + self._retry)

    def flushed(self, shard: str, flush_id: int, now: float) -> None:
        """The echo came, or its deadline."""
        route = self._routes.get(shard)
        if route is not None and route.way is RouteState.FLUSHING and route.flush_id == flush_id:
            self._ways.end_flush(route, now)

    def left(self, node: NodeId, now: float) -> None:
        """Nothing more must be sent there; what was sent arrives."""
        self._ways.gone[node] = None
        for route in self._routes.values():
            if route.next is not None and route.next.node == node:
                route.next = None
            if route.way is RouteState.KNOWN and route.home is not None and route.home.node == node:
                route.floor, route.left = route.home.fence + 1, None
                self._ways.flush_out(route, now)
            self._ways.ask(route, now)

    def gone(self, node: NodeId, returned: Returned, now: float) -> None:
        """Nothing that was sent there will be answered, nothing must be sent there. What never left
        goes before what waits."""
        self._ways.gone[node] = None
        for shard, envelope in returned:
            route = self._route(shard)
            if self._refused or not self._ways.take(envelope):
                reason = REJECT_REFUSED if self._refused else REJECT_BUFFER_FULL
                self._out.append(ev.Reject(shard, envelope, reason))
            elif route.home is not None and route.home.node == node:
                route.returned.append(envelope)
            else:
                self._buffers.give([envelope])
                self.deliver(ev.Deliver(shard, envelope), now)
        if len(self._ways.gone) > GONE_MAX:
            del self._ways.gone[next(iter(self._ways.gone))]
        for route in self._routes.values():
            if route.next is not None and route.next.node == node:
                route.bury(route.next)
                route.next = None
            if route.home is not None and route.home.node == node:
                if route.way is RouteState.KNOWN:
                    route.bury(route.home)
                    self._ways.close(route)
                else:
                    self._ways.end_flush(route, now)
            self._ways.ask(route, now)

    def back(self, node: NodeId) -> None:
        """It was taken for dead, and answers."""
        self._ways.gone.pop(node, None)
        for route in self._routes.values():
            if route.dead is not None and route.dead.node == node:
                route.revive(node)

    # The shard itself.

    def runs(self, shard: str, fence: int) -> None:
        """The shard runs here now."""
        self._ways.running[shard] = fence
        route = self._route(shard)
        if route.way is RouteState.FLUSHING:
            self._ways.let_through(route)
        else:
            self._ways.open(route)

    def stops(self, shard: str, fence: int, now: float) -> None:
        """The shard does not run here any more; what comes for it waits for the next home."""
        if self._ways.running.pop(shard, None) is not None:
            self._out.append(ev.SetArrivals(shard, False))
        route = self._route(shard)
        if route.next is not None and route.next.node == self._me:
            route.next = None
        if route.floor <= fence:
            route.floor, route.left = fence + 1, None
        if route.way is RouteState.KNOWN and route.home is not None and route.home.node == self._me:
            self._ways.close(route)
        self._ways.ask(route, now + self._retry)

    def keep(self, shard: str, mail: tuple[BufferedMessage, ...], epoch: int, now: float) -> None:
        """What the shard's entities have left, for its next home."""
        route = self._route(shard)
        if self._refused:
            self._out.extend(ev.Reject(shard, one, REJECT_REFUSED) for one in mail)
        else:
            self._ways.keep(route, mail, epoch)
        self._ways.ask(route, now + self._retry)

    def has_mail(self, shard: str) -> bool:
        """Whether the next home must ask for what was not handled here."""
        route = self._routes.get(shard)
        return route is not None and (bool(route.mail) or route.behind)

    def follow(self, old: Home, now: float) -> bool:
        """The shard will run here, behind an old home that has mail for it."""
        return self._ways.follow(self._route(old.shard), old, now)

    def pass_on(self, heir: Home) -> None:
        """That home is ready for the mail."""
        self._ways.pass_on(self._route(heir.shard), heir)

    # Questions.

    def watch(self, shard: str, now: float) -> None:
        """Somebody else wants to know the home."""
        route = self._route(shard)
        route.asked = True
        self._ways.ask(route, now)

    def questions(self, now: float) -> tuple[str, ...]:
        """The shards whose home is to be asked for now. A Flush that is out for so long is sent
        again: a node that forwarded the first may have died with it."""
        shards: list[str] = []
        for shard in self._timers.due(now):
            route = self._routes[shard]
            if route.held is not None and now >= route.held[1]:
                self._ways.give_up(route)
            if route.needs_home or route.asked:
                shards.append(shard)
            elif route.way is not RouteState.FLUSHING:
                if route.held is not None and route.way is RouteState.UNKNOWN:
                    self._timers.set(shard, route.held[1])
                continue
            self._timers.set(shard, now + self._retry)
            if route.way is RouteState.FLUSHING and now - route.flushing_since >= FLUSH_PATIENCE:
                self._ways.end_flush(route, now)
            elif route.way is RouteState.FLUSHING and route.home is not None:
                self._out.append(ev.SendFlush(shard, route.home.node, route.flush_id))
        return tuple(shards)

    def ask_again(self, now: float, *, everything: bool) -> None:
        """There is somebody new to ask; who is not told of moves asks for every shard it knows."""
        for shard, route in self._routes.items():
            route.asked = route.asked or everything
            if route.needs_home or route.asked:
                self._timers.set(shard, now)

    def wait(self, shards: tuple[str, ...], now: float) -> None:
        """The coordinator knows that we want these."""
        for shard in shards:
            if shard in self._timers and self._routes[shard].way is RouteState.UNKNOWN:
                self._timers.set(shard, now + PATIENCE * self._retry)

    def check(self) -> None:
        """Audit: counts are exact, and what waits has a reason."""
        routes = self._routes.values()
        waiting = [one for route in routes for one in route.mail + route.waiting + route.returned]
        assert len(waiting) == self._buffers.messages
        assert sum(one.size for one in waiting) == self._buffers.bytes
        for shard, route in self._routes.items():
            assert (route.way is RouteState.UNKNOWN) == (route.home is None)
            if route.way is RouteState.KNOWN:
                assert not route.waiting
                assert not route.returned
                assert not route.mail
                assert route.next is None
            assert route.way is RouteState.FLUSHING or not route.behind
            if route.mail and route.next is not None and route.next.node != self._me:
                assert shard in self._timers, f"the mail of {shard} waits for nothing"
            if route.needs_home:
                assert shard in self._timers, f"{shard} waits for nothing"

    def _route(self, shard: str) -> Route:
        route = self._routes.get(shard)
        if route is None:
            route = self._routes[shard] = Route(shard)
        return route

    def _circles(self, event: ev.Deliver, home: Home) -> bool:
        if event.via is None or home.node == self._me:
            return False
        return event.via == home.node or event.hops >= SUSPECT_HOPS

    def _doubt(self, route: Route, now: float) -> None:
        """The home sent us what is for itself: ask, and send nothing until the answer."""
        self._out.append(ev.Note("circle", route.shard))
        self._ways.leave_home(route, now)
        self._timers.set(route.shard, now)
