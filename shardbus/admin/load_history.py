"""The load of a cluster in the last hour, for operators who come after it.

Each node keeps its own hour: one sample in `STEP_S`, made of its usual counters. The node that an
operator asks adds the samples of all members up, step by step, and keeps the sums, so that it
requests each sample once.

    LoadHistory    on each node: a ring of `SAMPLES_MAX` samples, numbered by the clock of its loop
    ClusterHour    on the node that is asked: the sums of the nodes' samples, by its own clock

Rates of counters are added; of the measures of strain (busy, lag, latencies) the highest counts.
The difference between the clocks of two nodes is fixed when a node is asked first, so that each of
its samples stands in one step. A step is shown once every member has sampled it.

**A node that is gone.** Its own hour is lost with it, and the sums keep its part. So that this does
not depend on a page that happened to be open, the three oldest members (`KEEPERS`) add new samples
in each step. Any other node adds them when it is asked, and takes the sums of a keeper first,
unless its own are at most `FRESH_STEPS` old. So a killed node is missing only with its last two
steps, and the sums outlive a rolling restart. `ended` names the nodes in the sums that are members
no more.

Nothing here runs per message: a sample costs some 75 microseconds.

Source: docs/how-to/dashboard.md; B.149.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from shardbus.histograms import Histogram
from shardbus.ids import NodeId

STEP_S = 10
SAMPLES_MAX = 360
"""Samples that a node keeps: an hour, in some 80 KiB."""
PART = 0.99
"""The part of the messages whose longest time is a sample's."""
RATES = ("received", "failures", "dropped", "late", "store_calls", "store_seconds")
"""Per second; the members' are added."""
AMOUNTS = ("waiting", "entities")
"""At the end of a step; the members' are added."""
HIGHEST = ("busy", "lag", "handled", "waited")
"""Of these the highest of all members counts; times are in seconds, 0 if none was measured."""
COLUMNS = (*RATES, *AMOUNTS, *HIGHEST)
ADDED = len(RATES) + len(AMOUNTS)
KEEPERS = 3
"""Members that add the samples of all in each step: the oldest, and two that outlive it."""
FRESH_STEPS = 2.5
"""Steps for which a node's sums have the samples of every node that has ended meanwhile."""
SETTLED = 0.65
"""Steps after which every member has sampled a step: half a one by which clocks may be apart, and
the second in which a sample is due."""


class LoadReading(NamedTuple):
    """A node's counts since its start, in the order of `RATES`, with the times of its messages; and
    its load now, in the order of `AMOUNTS`, then busy and lag."""

    totals: tuple[float, ...]
    handled: Histogram
    waited: Histogram
    now: tuple[float, ...]


class LoadHistory:
    """The samples of one node.

    Args:
        clock: the loop's.
        read: reads its load.
    """

    def __init__(self, clock: Callable[[], float], read: Callable[[], LoadReading]) -> None:
        self._clock, self._read = clock, read
        self._samples: deque[tuple[int, array[float]]] = deque(maxlen=SAMPLES_MAX)
        self._before: tuple[float, LoadReading] | None = None

    def sample(self) -> None:
        """Take a sample if a step has ended. Called about once a second."""
        now = self._clock()
        if self._before is None:  # the first step has all messages since the start of the node
            first = self._read()
            empty = Histogram(first.handled.bounds), Histogram(first.waited.bounds)
            self._before = now, LoadReading((0,) * len(RATES), *empty, first.now)
            return
        began, before = self._before
        number = int(now // STEP_S) - 1
        if number < began // STEP_S:
            return
        read = self._read()
        self._before = now, read
        grown = (max(0.0, new - old) for new, old in zip(read.totals, before.totals, strict=True))
        times = _highest(read.handled, before.handled), _highest(read.waited, before.waited)
        values = array("d", [*(count / (now - began) for count in grown), *read.now, *times])
        self._samples.append((number, values))

    def after(self, number: int) -> tuple[float, Sequence[str], list[list[float]]]:
        """Return the time of the loop in steps, the names of the values, and the samples with
        higher numbers, oldest first, each behind its number."""
        rows = [[at, *values] for at, values in self._samples if at > number]
        return self._clock() / STEP_S, COLUMNS, rows


def _highest(now: Histogram, before: Histogram) -> float:
    """Return the time that `PART` of the messages between two readings did not exceed; 0 without
    any."""
    recent = Histogram(now.bounds)
    recent.counts = [new - old for new, old in zip(now.counts, before.counts, strict=True)]
    return recent.quantile(PART)


class NodeSums(NamedTuple):
    """A node whose samples are in the sums. `offset`: between the number of a sample and its step.
    `last`: the number of the last sample that was added."""

    node: str
    offset: int
    last: int


class SavedHour(NamedTuple):
    """The sums of one node, for another.

    Shape: `now` is the time of its loop in steps; a row has a step, the number of nodes in it, and
    the values of `names`.
    """

    now: float
    names: Sequence[str]
    rows: list[list[float]]
    nodes: list[NodeSums]


class ClusterHour:
    """The sums of all nodes of the last hour, by steps of the clock of the node that is asked."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, NodeSums] = {}
        self._steps: dict[int, list[float]] = {}
        """The number of nodes in a step, and the sums."""
        self._added_at = -math.inf
        """The time in steps at which samples were added last."""

    def is_fresh(self, now: float) -> bool:
        """True if no node can have ended unseen since samples were added last."""
        return now - self._added_at <= FRESH_STEPS

    def asks(self, members: Collection[NodeId]) -> dict[NodeId, int]:
        """Return the number after which each member must send its samples."""
        return {node: self._nodes[node].last if node in self._nodes else -1 for node in members}

    def add(
        self,
        node: NodeId,
        now: float,
        sent: float,
        names: Sequence[str],
        rows: Iterable[Sequence[float]],
    ) -> None:
        """Add the samples of a member. `now` is the time of this loop in steps, `sent` the member's
        when it answered. `names`: of its values, which another release may have others of."""
        sums = self._nodes.get(node) or NodeSums(str(node), round(now - sent), -1)
        places = _places(names)
        for first, *sample in rows:
            number = int(first)
            if number <= sums.last:
                continue
            sums = sums._replace(last=number)
            values = self._steps.setdefault(number + sums.offset, _nothing())
            values[0] += 1
            for place, at in places:
                value = sample[place]
                values[at] = values[at] + value if at <= ADDED else max(values[at], value)
        self._nodes[node], self._added_at = sums, now

    def rows(self, now: float) -> list[list[float]]:
        """Return the complete steps of the last hour, oldest first: the steps since its end, the
        number of nodes in it, and the sums. Forgets older ones."""
        self._forget(now)
        complete = sorted(step for step in self._steps if step + 1 + SETTLED <= now)
        return [[now - step - 1, *self._steps[step]] for step in complete]

    def ended(self, now: float, members: Collection[NodeId]) -> list[tuple[str, float]]:
        """Return the nodes in the sums that are no members, in the order in which they ended, with
        the steps since the end of the last sample of each."""
        self._forget(now)
        gone = (sums for node, sums in self._nodes.items() if node not in members)
        ends = [(sums.node, now - sums.offset - sums.last - 1) for sums in gone]
        return sorted(ends, key=lambda end: -end[1])

    def saved(self, now: float) -> SavedHour:
        """Return the sums, for another node."""
        self._forget(now)
        rows = [[step, *values] for step, values in self._steps.items()]
        return SavedHour(now, COLUMNS, rows, list(self._nodes.values()))

    def take(self, now: float, saved: SavedHour) -> None:
        """Replace these sums by another node's. `now`: the time of this loop in steps."""
        shift, places = round(now - saved.now), _places(saved.names)
        self._nodes = {
            NodeId.parse(row.node): row._replace(offset=row.offset + shift) for row in saved.nodes
        }
        self._steps = {}
        for step, count, *sums in saved.rows:
            values = self._steps[int(step) + shift] = _nothing()
            values[0] = count
            for place, at in places:
                values[at] = sums[place]

    def _forget(self, now: float) -> None:
        """Forget steps of more than an hour ago, and nodes that have none later."""
        oldest = now - SAMPLES_MAX
        self._steps = {at: values for at, values in self._steps.items() if at >= oldest}
        self._nodes = {
            node: sums for node, sums in self._nodes.items() if sums.last + sums.offset >= oldest
        }


def _nothing() -> list[float]:
    return [0.0] * (1 + len(COLUMNS))


def _places(names: Sequence[str]) -> list[tuple[int, int]]:
    """Return the place of each value among `names`, and in these sums."""
    return [(names.index(name), at) for at, name in enumerate(COLUMNS, 1) if name in names]
