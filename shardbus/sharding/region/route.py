"""The route of one shard in a region: where its messages go, and the waiting ones.

               home learned             other home learned, or BeginHandOff
    UNKNOWN ──────────────> KNOWN(home) ──────────────────────────────> FLUSHING(old home)
     ^   ^                   │     ^                                     │            │
     │   └───────────────────┘     └─────────────────────────────────────┘            │
     │         home died             Flush echoed, or old home died: next home known  │
     └────────────────────────────────────────────────────────────────────────────────┘
                                     Flush echoed, or old home died: next home unknown

- UNKNOWN: messages wait. While any do, the region asks the coordinator for the home.
- KNOWN: messages go straight to the home. The machine sees none of them.
- FLUSHING: a Flush travels behind everything that was sent to the old home. Until its echo,
  messages wait, even if the next home is known: those on the way to the old home must arrive first.

    state      `home`     `flush`   `next_home`       messages   leftovers
    UNKNOWN    none       none      not open yet      may wait   NONE, KEPT
    KNOWN      the home   none      none              none       NONE
    FLUSHING   old home   open      known, or not     may wait   NONE, KEPT, AWAITED

**Leftovers** are messages that the shard's entities have not handled where it stopped. They go
before everything else (`routing` says how):

    NONE       nothing is left over
    KEPT       the shard stopped here: the next home must request the `messages`
    AWAITED    the shard will run here: the old home passes its leftovers on

**The floor** is the lowest fence that a home may have to be accepted:

    event                       `fence`            `handed_off`      `dead`    `leaving`
    no home was known           0                  none              none      none
    a home is known             its fence          none              none      none
    the home's node has left    above the home's   none              none      none
    the shard stops here        above the home's   none              none      the home if known
    BeginHandOff for the home   above the home's   its fence, epoch  none      the home if known
    the home died               above the home's   none              the home  none
    its node lives after all    the home's again   none              none      none

A new coordinator may put a shard back to the home it was about to leave: then the fence just below
the floor is accepted again, if the new epoch is above the epoch of the BeginHandOff.

`LEGAL` has the first table as data; `Route.check` compares a route with all three.

Messages that come back from the old home while this region flushes towards it were sent before the
Flush. They are `returned`, and go to the next home ahead of those `waiting`. The same holds for
messages from a process that sent nothing to the old home by this region (`ForwardedFrom`): nothing
older of it can come back. If those waited too, two homes in a row that each flush towards the one
before could wait for each other, since the Flush of one lies behind the other's kept messages. Only
behind leftovers that the old home passes on (`routing`) does every sender wait.

`RouteBuffers` counts everything that waits in the region, in messages and in bytes. Asks that
expire stay counted until their room is needed or the home is known.

Source: S0.12, S0.13, S0.21, S2.65, B.55, B.108; docs/architecture.md.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import msgspec

from shardbus.ids import NodeId
from shardbus.sharding.messages import Home

FORWARDED_MAX = 100
"""Processes that one `ForwardedFrom` distinguishes."""

LEFT_MAX = 16
"""Old homes that a route remembers."""

REJECT_BUFFER_FULL = "buffer_full"
REJECT_DROPPED_IN_MOVE = "dropped_in_move"
REJECT_EXPIRED = "expired"
REJECT_HOP_LIMIT = "hop_limit"
REJECT_REFUSED = "refused"
REJECT_STOPPED = "stopped"
REJECT_NO_INSTANCE = "no_instance"
"""The row is above the number of instances, so there is no such instance any more; or it has no
home, while another row of its shard has one."""


class BufferedMessage(Protocol):
    """A message that waits in a region, which keeps it in order and never opens it.

    `size` is the number of bytes it counts for in a buffer. `expired`: it is an ask whose deadline
    has passed, and its sender has the error. `is_marker`: it is a Flush, and no message.
    `any_instance`: of a type with instances, another one may handle it as well. `hops`: how often
    it was forwarded; 0 if it is of this process.
    """

    @property
    def size(self) -> int: ...
    @property
    def expired(self) -> bool: ...
    @property
    def is_marker(self) -> bool: ...
    @property
    def any_instance(self) -> bool: ...
    @property
    def hops(self) -> int: ...


Returned = tuple[tuple[str, BufferedMessage], ...]
"""Messages with their shards, in order."""


class RouteState(Enum):
    """The state of a route."""

    UNKNOWN = "unknown"
    KNOWN = "known"
    FLUSHING = "flushing"


class Absence(Enum):
    """Why a shard has no home that takes messages now."""

    NEVER = "never"
    """None was known here."""
    DEAD = "dead"
    """Its home died, and there is no other yet."""
    MOVING = "moving"
    """It moves, or starts on this node."""


class ForwardedFrom:
    """The processes whose messages were forwarded to one home.

    A message that was forwarded before it came here may be any process's. So may any message once
    more than `FORWARDED_MAX` processes have sent.
    """

    __slots__ = ("_any", "_nodes")

    def __init__(self) -> None:
        self._nodes: dict[NodeId, None] = {}
        self._any = False

    def add(self, via: NodeId | None, hops: int) -> None:
        """Record a message that came from `via` after `hops` earlier forwards."""
        if hops or len(self._nodes) >= FORWARDED_MAX:
            self._any = True
        elif via is not None:
            self._nodes[via] = None

    def merge(self, other: ForwardedFrom) -> None:
        """Add the processes of `other`."""
        self._nodes |= other._nodes
        self._any = self._any or other._any or len(self._nodes) > FORWARDED_MAX

    def may_include(self, via: NodeId) -> bool:
        """True if a message that this process sent may be among those forwarded."""
        return self._any or via in self._nodes


class LeftoversState(Enum):
    """Whether a shard's entities have left messages unhandled."""

    NONE = "none"
    KEPT = "kept"
    AWAITED = "awaited"


LEGAL = {
    # state: (home, flush, next home, messages, leftovers); None: either
    RouteState.UNKNOWN: (False, False, None, None, {LeftoversState.NONE, LeftoversState.KEPT}),
    RouteState.KNOWN: (True, False, False, False, {LeftoversState.NONE}),
    RouteState.FLUSHING: (True, True, None, None, set(LeftoversState)),
}
"""The parts that a route has in each state."""


class HomeFloor(msgspec.Struct):
    """The lowest fence that a home of one shard may have."""

    fence: int = 0
    handed_off: tuple[int, int] | None = None
    """Fence and epoch of the BeginHandOff that raised the floor above that fence."""
    dead: Home | None = None
    """The home whose death raised the floor above its fence."""
    leaving: Home | None = None
    """The home that the shard leaves, if messages went there until then."""

    def accepts(self, home: Home, epoch: int) -> bool:
        """True if this home is at least as new as the floor."""
        if home.fence >= self.fence:
            return True
        handed_off = self.handed_off
        return handed_off is not None and home.fence == handed_off[0] and epoch > handed_off[1]

    def set(self, fence: int) -> None:
        """Accept no fence below this one, and forget why."""
        self.fence, self.handed_off, self.dead, self.leaving = fence, None, None, None

    def leave(self, home: Home, *, in_use: bool) -> None:
        """Raise the floor above a home that the shard leaves. `in_use`: messages went there until
        now, so none waits that is older than the next."""
        self.set(home.fence + 1)
        self.leaving = home if in_use else None

    def on_begin_handoff(self, home: Home, epoch: int, *, in_use: bool) -> bool:
        """Raise the floor: the shard is about to leave this home. Returns False if the home is an
        earlier one."""
        if home.fence >= self.fence:
            self.leave(home, in_use=in_use)
            self.handed_off = (home.fence, epoch)
        elif self.handed_off is not None and self.handed_off[0] == home.fence:
            self.handed_off = (home.fence, max(epoch, self.handed_off[1]))
        else:
            return False
        return True

    def on_home_dead(self, home: Home) -> None:
        """Raise the floor above a dead home: a sender that still names it is behind."""
        self.set(home.fence + 1)
        self.dead = home

    def on_node_back(self, node: NodeId) -> None:
        """Lower the floor again if the dead home was on this node, which is alive after all."""
        if self.dead is not None and self.dead.node == node:
            self.set(self.dead.fence)

    def check(self) -> None:
        """Compare the floor with its table."""
        assert self.handed_off is None or self.dead is None
        assert self.handed_off is None or self.fence == self.handed_off[0] + 1
        assert self.dead is None or self.fence == self.dead.fence + 1
        assert self.leaving is None or self.fence == self.leaving.fence + 1


class Leftovers(msgspec.Struct):
    """The messages that the entities of one shard have not handled, and the home that passes them
    on."""

    messages: list[BufferedMessage] = msgspec.field(default_factory=list)
    epoch: int = 0
    """The epoch under which the shard stopped here with leftovers."""
    awaits: bool = False
    """The old home passes on leftovers."""
    requester: Home | None = None
    """The home that has requested the leftovers: it lets in nothing else before them."""
    deadline: tuple[Home, float] | None = None
    """A home that has not requested the leftovers yet, and when it must have."""

    @property
    def state(self) -> LeftoversState:
        """The state of the table."""
        if self.awaits:
            return LeftoversState.AWAITED
        return LeftoversState.KEPT if self.messages else LeftoversState.NONE

    def lets_send_to(self, home: Home, me: NodeId | None) -> bool:
        """True if messages may go to that home now: messages behind leftovers wait with them."""
        behind = self.state is not LeftoversState.NONE and home.node != me
        return not behind or self.requester == home

    def are_late(self, home: Home, epoch: int, me: NodeId | None) -> bool:
        """True if the shard may have run elsewhere since: another home than the awaited one is
        known, or another coordinator brings the shard back here."""
        if self.deadline is not None and self.deadline[0] != home:
            return True
        return bool(self.messages) and home.node == me and epoch != self.epoch


class OpenFlush(msgspec.Struct):
    """A Flush without an echo."""

    number: int
    since: float
    passed: list[Home] = msgspec.field(default_factory=list)
    """Earlier next homes, to which the old one may have forwarded; at most `LEFT_MAX`."""
    unacked: Home | None = None
    """The BeginHandOff to acknowledge when the Flush ends."""
    calls: bool = False
    """Calls of entities went to the old home behind it."""


class Route(msgspec.Struct):
    """The route to one shard."""

    shard: str
    state: RouteState = RouteState.UNKNOWN
    home: Home | None = None
    """KNOWN: the home. FLUSHING: the old home."""
    flush: OpenFlush | None = None
    next_home: Home | None = None
    """Where messages will go: known, but not open yet."""
    floor: HomeFloor = msgspec.field(default_factory=HomeFloor)
    leftovers: Leftovers = msgspec.field(default_factory=Leftovers)
    waiting: list[BufferedMessage] = msgspec.field(default_factory=list)
    returned: list[BufferedMessage] = msgspec.field(default_factory=list)
    watched: bool = False
    """A client needs the home, so the region requests it without messages too."""
    unflushed_homes: dict[NodeId, None] = msgspec.field(default_factory=dict)
    """Old homes that were left without a Flush, in direct moves that keep order."""
    forwarded: ForwardedFrom = msgspec.field(default_factory=ForwardedFrom)
    """Whose messages went to the home by this region."""
    forwarded_next: ForwardedFrom = msgspec.field(default_factory=ForwardedFrom)
    """Whose messages went, or will go, to the next home."""

    def accepts(self, home: Home, epoch: int) -> bool:
        """True if this home is at least as new as the known one."""
        newest = self.next_home or self.home
        if newest is not None and newest.fence == home.fence and newest.node != home.node:
            return False
        return self.floor.accepts(home, epoch)

    @property
    def best_home(self) -> Home | None:
        """The best home known."""
        return self.next_home or (self.home if self.state is RouteState.KNOWN else None)

    @property
    def leaving_home(self) -> Home | None:
        """The home that the shard leaves, while it still takes calls of entities, if none waits for
        the next one."""
        leaving = self.floor.leaving
        if leaving is None or self.leftovers.messages:
            return None
        return leaving if self.home is None or self.home.node == leaving.node else None

    def keeps_from(self, via: NodeId) -> bool:
        """True if messages from `via` may wait here for the next home."""
        return self.forwarded_next.may_include(via)

    @property
    def absence(self) -> tuple[Absence, NodeId | None]:
        """Why the shard has no home that takes messages, and the home that it had last."""
        if self.state is RouteState.UNKNOWN and not self.floor.fence:
            return Absence.NEVER, None
        dead = self.floor.dead
        if dead is not None and self.state is RouteState.UNKNOWN and self.next_home is None:
            return Absence.DEAD, dead.node
        home = self.home or self.next_home
        return Absence.MOVING, home.node if home is not None else None

    def is_at(self, node: NodeId | None) -> bool:
        """True if the home is known, and is on this node."""
        return self.state is RouteState.KNOWN and self.home is not None and self.home.node == node

    @property
    def queues(self) -> tuple[list[BufferedMessage], ...]:
        """Everything that waits, in the order in which it must leave."""
        return self.leftovers.messages, self.returned, self.waiting

    def take_messages(self) -> list[BufferedMessage]:
        """Remove and return everything that waits."""
        messages = [message for queue in self.queues for message in queue]
        for queue in self.queues:
            queue.clear()
        return messages

    def take_older(self) -> list[BufferedMessage]:
        """Remove and return the messages that the next home must get before all that wait."""
        older = self.leftovers.messages + self.returned
        self.leftovers.messages, self.returned = [], []
        return older

    def leave(self, node: NodeId) -> None:
        """Record that this old home is left without a Flush: messages that come back from it are
        older than messages that may have reached the next one."""
        self.unflushed_homes[node] = None
        if len(self.unflushed_homes) > LEFT_MAX:
            del self.unflushed_homes[next(iter(self.unflushed_homes))]

    def set_next(self, home: Home) -> None:
        """Make this the next home."""
        before, flush = self.next_home, self.flush
        if flush is not None and before is not None and before.node != home.node:
            flush.passed = [*flush.passed[: LEFT_MAX - 1], before]
        self.next_home = home
        self.floor.set(home.fence)

    def begin_flush(self, old: Home, flush: OpenFlush) -> None:
        """Go to FLUSHING, towards this old home."""
        self.state, self.home, self.flush = RouteState.FLUSHING, old, flush

    def forget_home(self) -> Home | None:
        """Go to UNKNOWN. Returns the BeginHandOff to acknowledge."""
        unacked = None if self.flush is None else self.flush.unacked
        self.state, self.home, self.flush = RouteState.UNKNOWN, None, None
        self.leftovers.awaits = False
        return unacked

    def open(self, home: Home) -> list[BufferedMessage]:
        """Go to KNOWN. Returns the waiting messages, for the home."""
        self.leftovers.deadline = self.leftovers.requester = None
        self.state, self.home, self.next_home = RouteState.KNOWN, home, None
        self.forwarded, self.forwarded_next = self.forwarded_next, ForwardedFrom()
        return self.take_messages()

    def bypasses_flush(self, via: NodeId | None) -> bool:
        """True if messages from `via` need not wait for the echo of the Flush."""
        if self.state is not RouteState.FLUSHING or self.home is None or via is None:
            return False
        if via == self.home.node:
            return True
        return not (self.leftovers.awaits or self.forwarded.may_include(via))

    @property
    def needs_home(self) -> bool:
        """True if the region must ask the coordinator for the home."""
        if self.state is RouteState.KNOWN or self.next_home is not None:
            return False
        return self.watched or any(self.queues)

    def check(self) -> None:
        """Compare the route with the tables."""
        home, flush, next_home, messages, leftovers = LEGAL[self.state]
        assert (self.home is not None) is home
        assert (self.flush is not None) is flush
        assert next_home is None or (self.next_home is not None) is next_home
        assert messages is None or any(self.queues) is messages
        assert self.leftovers.state in leftovers
        assert self.next_home is None or self.floor.leaving is None
        self.floor.check()

    def check_timer(self, me: NodeId | None, *, timed: bool) -> None:
        """Check that all that waits has a timer. `timed`: the route has one."""
        awaited = self.next_home is not None and self.next_home.node != me
        assert timed or not (self.leftovers.messages and awaited), "leftovers have no deadline"
        assert timed or not self.needs_home, f"the messages for {self.shard} have no timer"


class RouteBuffers:
    """The bound on messages and bytes that all routes of a region share."""

    __slots__ = ("_bytes_max", "_messages_max", "_tenth", "bytes", "messages")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages = 0
        self.bytes = 0
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._tenth = 0

    def check(self, waiting: list[BufferedMessage]) -> None:
        """Compare the counts with all that waits."""
        assert len(waiting) == self.messages
        assert sum(message.size for message in waiting) == self.bytes

    def add(self, message: BufferedMessage) -> bool:
        """Count the message. Returns False, and counts nothing, if there is no room."""
        size = message.size
        if self.messages >= self._messages_max or self.bytes + size > self._bytes_max:
            return False
        self.messages += 1
        self.bytes += size
        return True

    def remove(self, messages: list[BufferedMessage]) -> None:
        """Count these messages out."""
        self.messages -= len(messages)
        self.bytes -= sum(message.size for message in messages)

    def crossed(self) -> int | None:
        """Return the use in percent, in steps of ten, if it rose a step since the last call."""
        use = max(self.messages / self._messages_max, self.bytes / self._bytes_max)
        before, self._tenth = self._tenth, int(use * 10)
        return self._tenth * 10 if self._tenth > before else None
