"""The simulated network of membership: the fate of each message, and which nodes reach each other.

Published messages may be lost, repeated, or so late that others overtake them. Messages over links
are only delayed. Walls stop both. A partition separates sides, in both directions or in one; a cut
link separates two nodes. A rejecting wall refuses connections, as if no process listened; other
walls swallow them.

A node is identified by its name here: a new process at an old address is behind the same walls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

SHORTEST_DELAY = 0.0005


@dataclass(frozen=True, slots=True)
class Partition:
    """A wall between sides. Nodes of no side are a side of their own. `one_way`: only messages to a
    later side are stopped."""

    sides: Mapping[str, int]
    one_way: bool = False
    rejecting: bool = False

    def blocks(self, a: str, b: str) -> bool:
        """True if no message gets from a to b."""
        here, there = self.sides.get(a, -1), self.sides.get(b, -1)
        return here < there if self.one_way else here != there


@dataclass(frozen=True, slots=True)
class CutLink:
    """A wall between two nodes. Both reach all others."""

    ends: frozenset[str]
    rejecting: bool = False

    def blocks(self, a: str, b: str) -> bool:
        """True if no message gets from a to b."""
        return a in self.ends and b in self.ends and a != b


Wall = Partition | CutLink


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

    def walled(self, a: str, b: str) -> bool:
        """True if no message gets from a to b."""
        return any(wall.blocks(a, b) for wall in self.walls)

    def severed(self, a: str, b: str) -> bool:
        """True if no connection between the two can stand: that needs both directions."""
        return self.walled(a, b) or self.walled(b, a)

    def rejects(self, a: str, b: str) -> bool:
        """True if a wall refuses a connection from a to b."""
        return any(
            wall.rejecting and (wall.blocks(a, b) or wall.blocks(b, a)) for wall in self.walls
        )
