"""The load of a cluster in the last hour, for operators who come after it.

Each node keeps its own hour: one sample in `STEP_S`, made of its usual counters. The node that an
operator asks adds the samples of all members up, step by step, and keeps the sums, so that it
requests each sample once.

    LoadHistory    on each node: a ring of `SAMPLES_MAX` samples, numbered by the clock of its loop
    ClusterHour    on the node that is asked: the sums of the members' samples, by its own clock

Rates of counters are added; of the measures of strain (busy, lag, latencies) the highest counts.
The difference between the clocks of two nodes is fixed when a node is asked first, so that each of
its samples stands in one step. A step is shown once every member has sampled it. A node that is
gone takes its hour along.

Nothing here runs per message: a sample costs some 75 microseconds.

Source: docs/how-to/dashboard.md; B.149.
"""

from __future__ import annotations

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
        if self._before is None:
            self._before = now, self._read()
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


class ClusterHour:
    """The sums of all members, by steps of the clock of the node that is asked."""

    def __init__(self) -> None:
        self._offsets: dict[NodeId, int] = {}
        """The offset between the number of a member's sample and its step here."""
        self._last: dict[NodeId, int] = {}
        """The number of the last sample that was added, by member."""
        self._steps: dict[int, list[float]] = {}
        """The number of members in a step, and the sums."""

    def asks(self, members: Collection[NodeId]) -> dict[NodeId, int]:
        """Return the number after which each member is to send its samples. If one that was asked
        before is no member any more, all send all of theirs."""
        if not self._offsets.keys() <= set(members):
            self._offsets, self._last, self._steps = {}, {}, {}
        return {node: self._last.get(node, -1) for node in members}

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
        offset = self._offsets.setdefault(node, round(now - sent))
        places = [(names.index(one) + 1, at) for at, one in enumerate(COLUMNS, 1) if one in names]
        for row in rows:
            number = int(row[0])
            if number <= self._last.get(node, -1):
                continue
            self._last[node] = number
            sums = self._steps.setdefault(number + offset, [0.0] * (1 + len(COLUMNS)))
            sums[0] += 1
            for place, at in places:
                value = row[place]
                sums[at] = sums[at] + value if at <= ADDED else max(sums[at], value)

    def rows(self, now: float) -> list[list[float]]:
        """Return the complete steps of the last hour, oldest first: the steps since its end, the
        number of members in it, and the sums. Forgets older ones."""
        for step in [step for step in self._steps if step < now - SAMPLES_MAX]:
            del self._steps[step]
        complete = sorted(step for step in self._steps if step + 1 + SETTLED <= now)
        return [[now - step - 1, *self._steps[step]] for step in complete]
