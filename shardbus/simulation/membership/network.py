"""The simulated network of membership: the fate of each message, and which nodes reach each other.

Published messages may be lost, repeated, or so late that others overtake them. Messages over links
are only delayed. Walls stop both. A partition separates sides, in both directions or in one; a cut
link separates two nodes. A rejecting wall refuses connections, as if no process listened; other
walls swallow them.

Between two nodes are three **channels**, and an unfair wall stops some of them only, in one
direction:

    channel   who connects               who sends
    messages  the node that has a        both
              message; both may
    gossip    the node that receives     the node that it connected to
    probes    the node that probes       both

An unfair wall of the kind `data` stops the messages of its sources to its targets: connections
stand, and can be made. One of the kind `connections` stops the connections that its sources open to
its targets, in both directions: a firewall that has a rule for one port of one host, and an address
that is right for one side only, look like that.

A node is identified by its name here: a new process at an old address is behind the same walls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random

SHORTEST_DELAY = 0.0005


class Channel(Enum):
    """A kind of connection between two nodes."""

    MESSAGES = "messages"
    GOSSIP = "gossip"
    PROBES = "probes"


ALL_CHANNELS = tuple(Channel)


@dataclass(frozen=True, slots=True)
class Partition:
    """A wall between sides. Nodes of no side are a side of their own. `one_way`: only messages to a
    later side are stopped."""

    sides: Mapping[str, int]
    one_way: bool = False
    rejecting: bool = False

    def severs(self, opener: str, other: str, channel: Channel) -> bool:
        """True if no connection that `opener` opens to the other can stand: that needs both
        directions."""
        return self.blocks(opener, other, channel, opener) or self.blocks(
            other, opener, channel, opener
        )

    def blocks(self, a: str, b: str, channel: Channel, opener: str) -> bool:
        """True if nothing gets from a to b on this channel, over a connection of `opener`."""
        here, there = self.sides.get(a, -1), self.sides.get(b, -1)
        return here < there if self.one_way else here != there


@dataclass(frozen=True, slots=True)
class CutLink:
    """A wall between two nodes. Both reach all others."""

    ends: frozenset[str]
    rejecting: bool = False

    def severs(self, opener: str, other: str, channel: Channel) -> bool:
        """True if no connection that `opener` opens to the other can stand."""
        return self.blocks(opener, other, channel, opener)

    def blocks(self, a: str, b: str, channel: Channel, opener: str) -> bool:
        """True if nothing gets from a to b on this channel, over a connection of `opener`."""
        return a in self.ends and b in self.ends and a != b


class UnfairKind(Enum):
    """The kinds of an unfair wall, by the traffic that it stops."""

    DATA = "data"
    CONNECTIONS = "connections"


@dataclass(frozen=True, slots=True)
class UnfairWall:
    """A wall from some nodes to others, on some channels. A rejecting one, of the kind
    `connections`, refuses them."""

    kind: UnfairKind
    sources: frozenset[str]
    targets: frozenset[str]
    channels: frozenset[Channel]
    rejecting: bool = False

    def severs(self, opener: str, other: str, channel: Channel) -> bool:
        """True if no connection that `opener` opens to the other can stand. A probe is nothing but
        a connection: it needs both directions."""
        if self.kind is UnfairKind.CONNECTIONS:
            return self._stops(opener, other, channel)
        probes = channel is Channel.PROBES
        return probes and (
            self._stops(opener, other, channel) or self._stops(other, opener, channel)
        )

    def blocks(self, a: str, b: str, channel: Channel, opener: str) -> bool:
        """True if nothing gets from a to b on this channel, over a connection of `opener`."""
        if self.kind is UnfairKind.CONNECTIONS:
            return self._stops(opener, b if opener == a else a, channel)
        return self._stops(a, b, channel)

    def _stops(self, a: str, b: str, channel: Channel) -> bool:
        return a != b and channel in self.channels and a in self.sources and b in self.targets


Wall = Partition | CutLink | UnfairWall


def partition(*sides: Iterable[str], one_way: bool = False, rejecting: bool = False) -> Partition:
    """Return a wall between these sides."""
    places = {name: place for place, side in enumerate(sides) for name in side}
    return Partition(places, one_way, rejecting)


class SimPubSub:
    """The network between all processes. Its attributes may be changed at any time."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.loss = 0.0
        self.duplication = 0.0
        self.reordering = 0.0
        self.delay_s = 0.005
        self.late_s = 1.0
        self.walls: list[Wall] = []
        self.parted = False
        """True if there ever was a wall: each side may have admitted a process at one address."""
        self.rejected = False
        """True if there ever was a rejecting wall: refused connections prove nothing then."""

    def calm(self) -> None:
        """Stop all loss, duplication and reordering, and remove all walls."""
        self.loss = self.duplication = self.reordering = 0.0
        self.walls.clear()

    def delay(self) -> float:
        """Draw the delay of a message."""
        return self.rng.uniform(SHORTEST_DELAY, self.delay_s)

    def copies(self) -> list[float]:
        """Return the delay of each copy of a published message, in seconds. An empty list: it is
        lost."""
        if self.rng.random() < self.loss:
            return []
        copies = 2 if self.duplication and self.rng.random() < self.duplication else 1
        return [self.delay() + self._lateness() for _ in range(copies)]

    def _lateness(self) -> float:
        if self.reordering and self.rng.random() < self.reordering:
            return self.rng.uniform(0.0, self.late_s)
        return 0.0

    def walled(self, a: str, b: str, channel: Channel = Channel.MESSAGES, opener: str = "") -> bool:
        """True if nothing gets from a to b, over a connection of `opener`; without one, of a."""
        return any(wall.blocks(a, b, channel, opener or a) for wall in self.walls)

    def severed(self, opener: str, other: str, channel: Channel = Channel.MESSAGES) -> bool:
        """True if no connection that `opener` opens to the other can stand."""
        return any(wall.severs(opener, other, channel) for wall in self.walls)

    def rejects(self, opener: str, other: str, channel: Channel = Channel.MESSAGES) -> bool:
        """True if a wall refuses a connection that `opener` opens to the other."""
        return any(wall.rejecting and wall.severs(opener, other, channel) for wall in self.walls)
