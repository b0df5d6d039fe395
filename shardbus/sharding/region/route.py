"""What a region knows of one shard's way: where messages for it go, and those that must wait.

               home told              other home told, or BeginHandOff
    UNKNOWN ──────────────> KNOWN(home) ──────────────────────────────> FLUSHING(old home)
     ^   ^                   │     ^                                     │            │
     │   └───────────────────┘     └─────────────────────────────────────┘            │
     │         home died             Flush echoed, or old home died: next home known  │
     └────────────────────────────────────────────────────────────────────────────────┘
                                     Flush echoed, or old home died: next home unknown

- UNKNOWN: messages wait; the coordinator is asked while any do.
- KNOWN: messages go straight to the home. The machine sees none of them.
- FLUSHING: a Flush runs after everything that was sent to the old home. Until its echo, messages
  wait, even if the next home is known: those on the way to the old home must arrive first.

`floor` is the lowest fence that a home may have to be believed. It rises with every home, with
BeginHandOff above the home that is left, and with the death of a home. A coordinator that takes
over may put a shard back to the home it was about to leave: then the fence just below the floor
counts again, if the new epoch is above the one of BeginHandOff.

Messages that come back from the old home while this region flushes towards it have been sent before
the Flush. They are `returned`, and are let through to the next home ahead of those `waiting`. So is
what comes from a process that had sent nothing to the old home this way (`ForwardedFrom`): nothing
older
of it can come back. If that waited too, two homes in a row that each flush towards the one before
could wait for each other: the Flush of one lies behind what the other keeps. Only behind mail that
the old home passes on (`ways`) does everybody wait.

`RouteBuffers` counts all that waits in the region, in messages and in bytes. Asks that expire
are still counted, until their room is wanted or the home comes.

Source: S0.12, S0.13, S0.21, S2.65; docs/architecture.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from shardbus.ids import NodeId
from shardbus.sharding.messages import Home
from shardbus.sharding.region.buffered import BufferedMessage

PASSED_MAX = 100
"""So many processes are told apart, of those whose messages went to a home."""


class RouteState(Enum):
    """The state of a route."""

    UNKNOWN = "unknown"
    KNOWN = "known"
    FLUSHING = "flushing"


class ForwardedFrom:
    """Whose messages went on to a home. One that has been forwarded before it came may be
    anybody's, and so may any of very many."""

    __slots__ = ("_anybody", "_nodes")

    def __init__(self) -> None:
        self._nodes: dict[NodeId, None] = {}
        self._anybody = False

    def note(self, via: NodeId | None, hops: int) -> None:
        """A message goes on that came from there, forwarded so often before."""
        if hops or len(self._nodes) >= PASSED_MAX:
            self._anybody = True
        elif via is not None:
            self._nodes[via] = None

    def join(self, other: ForwardedFrom) -> None:
        """Those too."""
        self._nodes |= other._nodes
        self._anybody = self._anybody or other._anybody or len(self._nodes) > PASSED_MAX

    def may_include(self, via: NodeId) -> bool:
        """Whether something that this process sent may be among them."""
        return self._anybody or via in self._nodes


@dataclass(slots=True)
class Route:
    """The way to one shard."""

    shard: str
    way: RouteState = RouteState.UNKNOWN
    home: Home | None = None
    """KNOWN: the home; FLUSHING: the old home."""
    next: Home | None = None
    """Where messages will go, known but not open yet."""
    floor: int = 0
    left: tuple[int, int] | None = None
    """Fence and epoch of the BeginHandOff that raised the floor above that fence."""
    flush_id: int = 0
    flushing_since: float = 0.0
    owed: Home | None = None
    """The BeginHandOff to acknowledge when the Flush is done."""
    dead: Home | None = None
    """The home whose death raised the floor above its fence."""
    asked: bool = False
    """Somebody else wants to know the home, so it is asked for without messages too."""
    mail: list[BufferedMessage] = field(default_factory=list)
    """What the entities that ran here have not handled; it goes before everything else."""
    kept_by: int = 0
    """The epoch of the coordinator under which that was."""
    behind: bool = False
    """FLUSHING: the old home passes on such mail."""
    heir: Home | None = None
    """The home that has asked for the mail: it lets in nothing else before."""
    held: tuple[Home, float] | None = None
    """A home that has not asked yet, and until when that is waited for."""
    waiting: list[BufferedMessage] = field(default_factory=list)
    returned: list[BufferedMessage] = field(default_factory=list)
    passed: ForwardedFrom = field(default_factory=ForwardedFrom)
    """What went to the home."""
    ahead: ForwardedFrom = field(default_factory=ForwardedFrom)
    """What went, or will go, to the next home."""

    def believes(self, home: Home, epoch: int) -> bool:
        """Whether this home is news, or at least not old."""
        known = self.next or self.home
        if known is not None and known.fence == home.fence and known.node != home.node:
            return False
        if home.fence >= self.floor:
            return True
        return self.left is not None and home.fence == self.left[0] and epoch > self.left[1]

    def leave(self, home: Home, epoch: int) -> None:
        """The shard is about to leave this home."""
        if home.fence >= self.floor:
            self.floor = home.fence + 1
            self.left = (home.fence, epoch)
        elif self.left is not None and self.left[0] == home.fence:
            self.left = (home.fence, max(epoch, self.left[1]))

    def bury(self, home: Home) -> None:
        """The home is dead: whoever names it is behind."""
        self.floor, self.left, self.dead = home.fence + 1, None, home

    def revive(self, node: NodeId) -> None:
        """The node of the dead home lives after all."""
        dead, self.dead = self.dead, None
        if dead is not None and dead.node == node and self.floor == dead.fence + 1:
            self.floor = dead.fence

    def point(self, home: Home) -> None:
        """Messages will go to this home."""
        self.next = home
        self.floor = home.fence
        self.left = None

    def is_free(self, via: NodeId | None) -> bool:
        """Whether what comes from there need not wait for the echo."""
        if self.way is not RouteState.FLUSHING or self.home is None or via is None:
            return False
        known = via == self.home.node
        return known or not (self.behind or self.passed.may_include(via))

    @property
    def needs_home(self) -> bool:
        """Whether the coordinator should be asked."""
        if self.way is RouteState.KNOWN or self.next is not None:
            return False
        return bool(self.mail or self.waiting or self.returned or self.asked)


class RouteBuffers:
    """The room that all routes of a region share."""

    __slots__ = ("_bytes_max", "_messages_max", "_tenth", "bytes", "messages")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages = 0
        self.bytes = 0
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._tenth = 0

    def take(self, envelope: BufferedMessage) -> bool:
        """Count one in, if there is room."""
        size = envelope.size
        if self.messages >= self._messages_max or self.bytes + size > self._bytes_max:
            return False
        self.messages += 1
        self.bytes += size
        return True

    def give(self, envelopes: list[BufferedMessage]) -> None:
        """Count these out."""
        self.messages -= len(envelopes)
        self.bytes -= sum(envelope.size for envelope in envelopes)

    def crossed(self) -> int | None:
        """The percentage of use, in tens, if it rose to another ten since the last call."""
        use = max(self.messages / self._messages_max, self.bytes / self._bytes_max)
        before, self._tenth = self._tenth, int(use * 10)
        return self._tenth * 10 if self._tenth > before else None
