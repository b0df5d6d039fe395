"""What becomes of a message on its way, and who can reach whom.

Published messages may be lost, repeated, or so late that others overtake them; messages over links
take their time and nothing else. Walls stop both. A partition stands between sides, in both
directions or in one; a cut link stands between two nodes. A rejecting wall answers connections as
if nobody listened, other walls swallow them.

Nodes are known by their names here: a new process at an old address is behind the same walls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

SHORTEST_DELAY = 0.0005


@dataclass(frozen=True, slots=True)
class Partition:
    """Nothing crosses from one side to another; nodes of no side are a side of their own.
    `one_way`: only what goes to a later side is stopped."""

    sides: Mapping[str, int]
    one_way: bool = False
    rejecting: bool = False

    def blocks(self, a: str, b: str) -> bool:
        """True if nothing gets from a to b."""
        here, there = self.sides.get(a, -1), self.sides.get(b, -1)
        return here < there if self.one_way else here != there


@dataclass(frozen=True, slots=True)
class CutLink:
    """Two nodes do not reach each other, and reach everybody else."""

    ends: frozenset[str]
    rejecting: bool = False

    def blocks(self, a: str, b: str) -> bool:
        """True if nothing gets from a to b."""
        return a in self.ends and b in self.ends and a != b


Wall = Partition | CutLink


def partition(*sides: Iterable[str], one_way: bool = False, rejecting: bool = False) -> Partition:
    """A wall between these sides."""
    places = {name: place for place, side in enumerate(sides) for name in side}
    return Partition(places, one_way, rejecting)


class SimPubSub:
    """The wires between all processes. The attributes are what may be changed at any time."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.loss = 0.0
        self.duplication = 0.0
        self.reordering = 0.0
        self.delay_s = 0.005
        self.late_s = 1.0
        self.walls: list[Wall] = []
        self.parted = False
        """Whether there ever was a wall: each side may have taken in a process at one address."""
        self.rejected = False
        """Whether there ever was a rejecting wall: refusals prove nothing then."""

    def calm(self) -> None:
        """From now on nothing is lost, repeated or late, and there are no walls."""
        self.loss = self.duplication = self.reordering = 0.0
        self.walls.clear()

    def delay(self) -> float:
        """How long a message takes."""
        return self.rng.uniform(SHORTEST_DELAY, self.delay_s)

    def copies(self) -> list[float]:
        """When each copy of a published message arrives, in seconds from now; none: it is lost."""
        if self.rng.random() < self.loss:
            return []
        copies = 2 if self.duplication and self.rng.random() < self.duplication else 1
        return [self.delay() + self._lateness() for _ in range(copies)]

    def _lateness(self) -> float:
        if self.reordering and self.rng.random() < self.reordering:
            return self.rng.uniform(0.0, self.late_s)
        return 0.0

    def walled(self, a: str, b: str) -> bool:
        """True if nothing gets from a to b."""
        return any(wall.blocks(a, b) for wall in self.walls)

    def severed(self, a: str, b: str) -> bool:
        """True if no connection between the two can be made: that takes both ways."""
        return self.walled(a, b) or self.walled(b, a)

    def rejects(self, a: str, b: str) -> bool:
        """True if a connection from a to b is refused by a wall."""
        return any(
            wall.rejecting and (wall.blocks(a, b) or wall.blocks(b, a)) for wall in self.walls
        )
