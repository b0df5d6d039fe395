"""How the way to a shard changes: the arrows of `routes`, and the mail that a shard leaves behind.

Every Release stands before the SetRoute or SetArrivals that lets others follow.

**Mail** is what a shard's entities have not handled when it stops here: an entity was cut off, or
could not start, or had put messages aside. It is older than anything that waits, and the next home
gets it first. But others have kept back later messages since the hand-off began, and send those to
the next home as soon as they know it. So that home must let in nothing else before:

    old home      ShardStopped(left) ─────> coordinator
    coordinator   HostShard(behind) ──────> new home          which then follows the old one:
    new home      Flush, PassOn ──────────> old home
    old home      mail, what waited, Flush ─> new home        which lets in what comes by that link
    new home      echo ──> itself: open for everybody

The old home sends nothing there before it has heard PassOn from the very home that it was told of.
A home that does not ask was not told, because the coordinator changed in between; then others may
send there already, and the mail is refused after `MAIL_PATIENCE`, or as soon as yet another home is
known; so is mail of a shard that another coordinator brings back here, for it may have been away.
Who stops while it follows keeps what comes for the next, which follows it in turn.

Source: S0.12, S0.21, S0.23-S0.25, S2.28, S4.17; C.1, C.5; N.3.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding.messages import Home
from shardbus.sharding.region.buffered import (
    REJECT_BUFFER_FULL,
    REJECT_EXPIRED,
    REJECT_STOPPED,
    BufferedMessage,
)
from shardbus.sharding.region.route import ForwardedFrom, Route, RouteBuffers, RouteState
from shardbus.sharding.timers import Timers

MAIL_PATIENCE = 5.0
"""For so many seconds the next home is waited for to ask for the mail."""


class RouteTransitions:
    """See the module. `gone`: dead nodes; `running`: the fences of the shards that run here;
    `acks`: BeginHandOffs to be acknowledged at the end of the turn; `stale`: where asks wait that
    have expired."""

    __slots__ = (
        "_buffers", "_flushes", "_me", "_out", "_retry", "_timers", "acks", "gone", "running",
        "stale",
    )  # fmt: skip

    def __init__(
        self,
        me: NodeId | None,
        retry: float,
        buffers: RouteBuffers,
        timers: Timers[str],
        out: list[ev.RegionEffect],
    ) -> None:
        self._me, self._retry = me, retry
        self._buffers, self._timers, self._out = buffers, timers, out
        self._flushes = 0
        self.gone: dict[NodeId, None] = {}
        self.running: dict[str, int] = {}
        self.acks: dict[str, Home] = {}
        self.stale: dict[str, Route] = {}

    def ask(self, route: Route, at: float) -> None:
        """Ask for the home then, if it is wanted and not asked for already."""
        if route.needs_home and route.shard not in self._timers:
            self._timers.set(route.shard, at)

    def is_open(self, home: Home) -> bool:
        """Whether that home takes messages; one that is here does once it runs."""
        return home.node != self._me or self.running.get(home.shard) == home.fence

    def open(self, route: Route) -> None:
        """From UNKNOWN to KNOWN, if the home is known and takes messages."""
        home = route.next
        if home is None or not self.goes(route, home):
            return
        released = route.mail + route.returned + route.waiting
        route.mail, route.returned, route.waiting = [], [], []
        route.held = route.heir = None
        self._buffers.give(released)
        route.way, route.home, route.next = RouteState.KNOWN, home, None
        route.passed, route.ahead = route.ahead, ForwardedFrom()
        self._timers.cancel(route.shard)
        if released:
            self._out.append(ev.Release(route.shard, home.node, tuple(released)))
        if home.node == self._me:
            self._out.append(ev.SetArrivals(route.shard, True))
        self._out.append(ev.SetRoute(route.shard, home.node))

    def let_through(self, route: Route) -> None:
        """Still FLUSHING, the next home takes messages: those that came back go first."""
        home = route.next
        if home is None or route.home is None or not self.goes(route, home):
            return
        if route.mail or route.returned:
            returned = route.mail + route.returned
            route.mail, route.returned = [], []
            self._buffers.give(returned)
            self._out.append(ev.Release(route.shard, home.node, tuple(returned)))
        if home.node == self._me:
            self._out.append(ev.SetArrivals(route.shard, True, via=route.home.node))

    def stay(self, route: Route, home: Home) -> None:
        """The home is where messages go or went already: one link, one order, no Flush needed."""
        if route.way is RouteState.KNOWN:
            route.home, route.floor, route.left = home, home.fence, None
            return
        if route.owed is not None:
            self.acks[route.shard] = route.owed
        route.way, route.home, route.owed, route.behind = RouteState.UNKNOWN, None, None, False
        route.ahead.join(route.passed)
        route.point(home)
        self.open(route)

    def leave_home(self, route: Route, now: float) -> None:
        """From KNOWN to FLUSHING; from a home that is here, where mailboxes have it all, to
        UNKNOWN."""
        home = route.home
        if home is None or home.node == self._me or home.node in self.gone:
            self.close(route)
        else:
            self.flush_out(route, now)

    def flush_out(self, route: Route, now: float) -> None:
        """Send a Flush to the old home; until its echo, messages wait."""
        home = route.home
        assert home is not None
        self.close(route)
        route.way, route.home = RouteState.FLUSHING, home
        self._flushes += 1
        route.flush_id, route.flushing_since = self._flushes, now
        self._timers.set(route.shard, now + self._retry)
        self._out.append(ev.SendFlush(route.shard, home.node, route.flush_id))

    def close(self, route: Route) -> None:
        """Nobody sends there directly any more."""
        route.way, route.home, route.behind = RouteState.UNKNOWN, None, False
        self._out.append(ev.SetRoute(route.shard, None))

    def end_flush(self, route: Route, now: float) -> None:
        """Everything sent to the old home has arrived, or will never."""
        if route.owed is not None:
            self.acks[route.shard] = route.owed
        route.way, route.home, route.owed, route.behind = RouteState.UNKNOWN, None, None, False
        self.open(route)
        self.ask(route, now)

    # Room.

    def take(self, envelope: BufferedMessage) -> bool:
        """Count one in. Where there is no room, what has expired makes some; what is found then is
        not looked for again, so that a full buffer costs nothing for each message."""
        if self._buffers.take(envelope):
            return True
        if not self.stale:
            return False
        stale, self.stale = self.stale, {}
        for route in stale.values():
            self._drop_expired(route)
        return self._buffers.take(envelope)

    def _drop_expired(self, route: Route) -> None:
        """Mail that a next home may ask for stays as it is: that home has been told of it."""
        queues = [route.waiting, route.returned]
        if route.next is None:
            queues.append(route.mail)
        for queue in queues:
            late = [one for one in queue if one.expired]
            if late:
                queue[:] = [one for one in queue if not one.expired]
                self.reject(route, late, REJECT_EXPIRED)

    # Mail.

    def keep(self, route: Route, mail: Iterable[BufferedMessage], epoch: int) -> None:
        """The shard stopped here with this left, under that coordinator. If the next home is known
        already, others may send there already, and it comes too late."""
        route.kept_by = epoch
        home = route.next or (route.home if route.way is RouteState.KNOWN else None)
        late = home is not None and home.node != self._me
        for envelope in mail:
            if late:
                self._out.append(ev.Reject(route.shard, envelope, REJECT_STOPPED))
            elif not self.take(envelope):
                self._out.append(ev.Reject(route.shard, envelope, REJECT_BUFFER_FULL))
            else:
                route.mail.append(envelope)
                route.ahead.note(None, 1)

    def follow(self, route: Route, old: Home, now: float) -> bool:
        """The shard will run here, behind an old home that has mail: a Flush goes there, and until
        its echo nothing else is let in. False: nobody is there to pass anything on."""
        other = route.home is not None and route.home.node != old.node
        if old.node == self._me or old.node in self.gone or other:
            return False
        self.drop_mail(route)  # of a time before that home
        route.home = old
        self.flush_out(route, now)
        route.behind = True
        return True

    def pass_on(self, route: Route, heir: Home) -> None:
        """That home lets in nothing before the mail from here."""
        if not (route.mail or route.behind):
            return
        route.heir = heir
        if route.next == heir:
            route.held = None
        self._go(route)

    def _go(self, route: Route) -> None:
        if route.way is RouteState.FLUSHING:
            self.let_through(route)
        else:
            self.open(route)

    def goes(self, route: Route, home: Home) -> bool:
        """Whether messages may go to that home now: what is behind mail waits with it."""
        awaited = (route.mail or route.behind) and home.node != self._me and route.heir != home
        return self.is_open(home) and not awaited

    def hold(self, route: Route, now: float) -> None:
        """The next home may never ask for the mail, for nobody told it to: it is waited for."""
        home = route.next
        if home is None or self.goes(route, home) or not self.is_open(home):
            return
        if route.held is None or route.held[0] != home:
            route.held = (home, now + MAIL_PATIENCE)
            self._timers.set(route.shard, route.held[1])

    def give_up(self, route: Route) -> None:
        """The home does not ask for the mail: others may send there directly by now."""
        self.drop_mail(route)
        self._go(route)

    def hears(self, route: Route, home: Home, epoch: int) -> None:
        """A home is told. If it is not the one that was awaited, or a shard that comes back here is
        told by another coordinator, it may have been elsewhere in between."""
        other = route.held is not None and route.held[0] != home
        if other or (home.node == self._me and epoch != route.kept_by and route.mail):
            self.drop_mail(route)

    def drop_mail(self, route: Route) -> None:
        """Others may have sent what is newer to where it would go: its senders are told."""
        mail = route.mail + (route.returned if route.behind else [])
        route.mail, route.returned = [], [] if route.behind else route.returned
        self.reject(route, mail, REJECT_STOPPED)
        route.behind, route.held = False, None

    def reject(self, route: Route, envelopes: list[BufferedMessage], reason: str) -> None:
        """Nobody will handle these: their senders are told."""
        self._buffers.give(envelopes)
        self._out.extend(ev.Reject(route.shard, one, reason) for one in envelopes)
