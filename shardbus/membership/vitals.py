"""Vitals: how busy a node is, and how an operator sees a whole cluster by asking a few nodes.

A node measures itself once a second (`shells.vitals`) and averages: a measurement replaces half of
the average after `HALF_LIFE_S`, so a short burst is not taken for load. The averages travel on the
replies to heartbeats. They are no part of the gossip: they change all the time, and the gossip
would never converge.

    measurement ──Averages──> reply to a heartbeat ──> the nodes that watch this one

So each node has the vitals of the nodes that it watches, at most one heartbeat old. **Chord
sampling** uses this. The asking node picks k = max(3, n / 10) random members, and each of them
answers for itself and for the nodes that it watches. Of 100 nodes, 10 that answer for 10 each show
about two thirds, since a node is unseen only if none of the 10 nodes that watch it is asked:
C(90, 10) / C(100, 10) = 33 %. Five such looks show more than 99.5 %. The cost of a look grows with
k, not with n.

A survey asks no node twice. Of two answers about a node
the younger one is used. Vitals decide nothing about membership: a busy node is alive.

Source: S3.20-S3.22.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from shardbus.ids import NodeId

HALF_LIFE_S = 12.0
"""Seconds after which a measurement has replaced half of the average."""

ASKED_MIN = 3
ASKED_PART = 10
"""One look asks one member of each ten, at least `ASKED_MIN`."""

LOOKS_MAX = 5
"""Looks of one survey, at most."""


class Vitals(NamedTuple):
    """How busy a node is. Each is 0 or more."""

    busy: float = 0.0
    """Processor time of the thread that handles messages, as a part of the time that passed."""
    lag: float = 0.0
    """Seconds by which the timers of its loop are late."""
    rss: float = 0.0
    """Resident memory of the process, in bytes."""
    gc: float = 0.0
    """Time that the garbage collector takes, as a part of the time that passed."""
    mailbox: float = 0.0
    """Messages that wait in mailboxes."""
    rate: float = 0.0
    """Messages per second handed to entities."""


class Averages:
    """The averages of one node's measurements."""

    __slots__ = ("_at", "vitals")

    def __init__(self) -> None:
        self.vitals: Vitals | None = None
        """None before the first measurement."""
        self._at = 0.0

    def add(self, measured: Vitals, now: float) -> Vitals:
        """Add a measurement at `now`; return the averages."""
        before = self.vitals
        if before is None:
            self.vitals = measured
        else:
            part = 1.0 - 0.5 ** (max(0.0, now - self._at) / HALF_LIFE_S)
            pairs = zip(before, measured, strict=True)
            self.vitals = Vitals(*(old + part * (new - old) for old, new in pairs))
        self._at = max(now, self._at)
        return self.vitals


def asked_per_look(nodes: int) -> int:
    """Return how many members one look asks."""
    return min(nodes, max(ASKED_MIN, nodes // ASKED_PART))


class Survey:
    """The results of the looks of one operator's question.

    Args:
        members: the nodes of the cluster.
        rng: picks the nodes to ask.
    """

    __slots__ = ("_asked_nodes", "_members", "_rng", "looks", "vitals")

    def __init__(self, members: Collection[NodeId], rng: random.Random) -> None:
        self._members, self._rng = sorted(members), rng
        self._asked_nodes: set[NodeId] = set()
        self.looks = 0
        self.vitals: dict[NodeId, tuple[Vitals, float]] = {}
        """The vitals of each node, and their age in seconds."""

    def next_look(self) -> list[NodeId]:
        """Return the nodes to ask now; none if every node is known, or after `LOOKS_MAX` looks.
        Nodes that were asked already are not asked again."""
        rest = [node for node in self._members if node not in self._asked_nodes]
        if not self.unseen() or self.looks >= LOOKS_MAX or not rest:
            return []
        self.looks += 1
        chosen = self._rng.sample(rest, min(len(rest), asked_per_look(len(self._members))))
        self._asked_nodes.update(chosen)
        return chosen

    def record(self, answers: Iterable[Mapping[NodeId, tuple[Vitals, float]]]) -> None:
        """Record answers. Their reports of nodes that are no members are ignored."""
        members = frozenset(self._members)
        for answer in answers:
            for node, (vitals, age) in answer.items():
                earlier = self.vitals.get(node)
                if node in members and (earlier is None or age < earlier[1]):
                    self.vitals[node] = (vitals, age)

    def unseen(self) -> list[NodeId]:
        """Return the members that no answer has named."""
        return [node for node in self._members if node not in self.vitals]
