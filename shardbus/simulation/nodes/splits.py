"""Splits: the network falls into sides, with nodes and clients on each, in one of these shapes.

    two       nothing passes between two sides
    one-way   the first side's messages do not arrive at the second
    three     three sides
    alone     one node reaches no other node; a client is with it
    bridged   two sides, and one node that reaches both
    flapping  two sides; the wall falls and rises again
    creeping  two sides; their links break one by one, and return one by one

Half of the time the sides differ by one node at most. Walls swallow the messages that they stop.

Source: docs/simulation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from random import Random

from shardbus.simulation.membership.network import CutLink, Wall, partition
from shardbus.simulation.nodes.options import NodeOptions
from shardbus.simulation.nodes.world import NodeWorld

SHAPES = ("two", "one-way", "three", "alone", "bridged", "flapping", "creeping")
FLAP_S = (0.5, 12.0)
"""Seconds, drawn from this range, for which a flapping wall stands, or is down."""
CREEP_S = 4.0
"""Seconds within which the links of a creeping split break, and within which they return."""
BREAKING = 0.5
"""The part of the connections through a wall that break at once."""


class Splits:
    """Brings splits into the world. `happen(action)` runs an action unless the faults are over."""

    def __init__(
        self, world: NodeWorld, load: NodeOptions, happen: Callable[[Callable[[], None]], None]
    ) -> None:
        self.world, self.load = world, load
        self._happen = happen
        self._dice = Random(f"shapes {load.seed}")

    def begin(self) -> None:
        """Split the network, in a drawn shape and for a drawn time."""
        dice, shape = self._dice, self._dice.choice(SHAPES)
        nodes, clients = sorted(self.world.nodes), sorted(self.world.clients)
        if len(nodes) < 2:
            return
        dice.shuffle(nodes)
        bridge = [nodes.pop()] if shape == "bridged" and len(nodes) > 2 else []
        sides = self._sides(shape, nodes, clients)
        lasts = dice.uniform(0.1, 1.0) * self.load.split_s
        words = " | ".join(",".join(side) for side in sides)
        self._mark(f"split ({shape}) for {lasts:.3f} s: {words}{' + '.join(['', *bridge])}")
        if shape == "flapping":
            self._flap(partition(*sides), self.world.now + lasts)
        elif shape == "creeping":
            for link in links_between(sides):
                self._break(link, lasts)
        elif shape == "bridged":
            for link in links_between(sides):
                self._raise(link, lasts)
        else:
            self._raise(partition(*sides, one_way=shape == "one-way"), lasts)

    def _sides(self, shape: str, nodes: list[str], clients: list[str]) -> list[list[str]]:
        """Divide nodes and clients. Each side has a node, and a client if there are enough."""
        dice = self._dice
        middle = (len(nodes) + dice.randint(0, 1)) // 2
        at = middle if dice.random() < 0.5 else dice.randint(1, len(nodes) - 1)
        cuts = [0, 1 if shape == "alone" else at, len(nodes)]
        if shape == "three" and len(nodes) > 2:
            cuts = [0, *sorted(dice.sample(range(1, len(nodes)), 2)), len(nodes)]
        sides = [sorted(nodes[a:b]) for a, b in pairwise(cuts)]
        first = dice.randrange(len(sides))
        for number, client in enumerate(clients):
            sides[(first + number) % len(sides)].append(client)
        return sides

    def _break(self, link: Wall, lasts: float) -> None:
        """Break a link soon, for about that time."""
        returns = lasts + self._dice.uniform(0.0, CREEP_S)
        self._later(self._dice.uniform(0.0, CREEP_S), lambda: self._raise(link, returns))

    def _flap(self, wall: Wall, until: float) -> None:
        """Raise the wall and let it fall, again and again."""
        now, stands = self.world.now, self._dice.uniform(*FLAP_S)
        if now < until:
            self._raise(wall, min(stands, until - now))
            self._later(stands + self._dice.uniform(*FLAP_S), lambda: self._flap(wall, until))

    def _raise(self, wall: Wall, lasts: float) -> None:
        self.world.wall_up(wall, BREAKING)

        def down() -> None:
            self._mark("a wall of the split falls")
            self.world.wall_down(wall)

        self._later(lasts, down)

    def _later(self, delay: float, action: Callable[[], None]) -> None:
        self.world.later(delay, lambda: self._happen(action))

    def _mark(self, what: str) -> None:
        self.world.trace.mark(self.world.now, "", what)


def links_between(sides: Sequence[Sequence[str]]) -> list[Wall]:
    """Return a wall for each pair of processes on different sides."""
    pairs = ((a, b) for side, other in combinations(sides, 2) for a in side for b in other)
    return [CutLink(frozenset(pair)) for pair in pairs]
