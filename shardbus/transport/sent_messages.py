"""Counts what a process sends to entities, and times a sample of its asks.

Both happen when a batch leaves (`BatchDeparture`), by run and never by message. Messages that a
node only forwards do not count; a message that is sent again, because a session ended before it
left, counts again.

**The sample.** When the count of all asks passes a mark (`sample_marks`), one ask of the batch that
passed it, each with the same probability, stands for all asks since the last mark, whatever it asks
and however long it takes. Some `SAMPLES_S` asks a second are sampled.

**The time** runs from the ask until its future is done: by the answer, an error, a timeout or a
cancellation. When an ask was added to its batch is not noted; it is taken from its place in the
batch, between the batch's first ask and its departure, within one turn of the loop. An ask that
waited for a home first counts from when it began to wait. One that fails while it waits there is
never part of a batch, and is observed by itself.

Source: docs/reference/metrics.md; B.150.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from shardbus.histograms import Histogram
from shardbus.sample_marks import SampleMarks
from shardbus.wire.batch import AskRun, Run, TellRun

SAMPLES_S = 100
"""Samples a second, about."""


class SentMessages:
    """The counts of one process, for all of its sessions. `dice` draws the samples."""

    __slots__ = ("asks", "counts", "durations", "marks")

    def __init__(self, dice: Random | None = None) -> None:
        self.marks = SampleMarks(SAMPLES_S, dice)
        self.counts: dict[str, int] = {}
        """Messages sent, by entity type."""
        self.durations: dict[str, Histogram] = {}
        """Of asks, by entity type."""
        self.asks = 0

    def pace(self) -> None:
        """Adapt the distance of the samples. Called about once a second."""
        self.marks.pace(self.asks)

    def ended(self, entity_type: str, seconds: float, weight: int = 1) -> None:
        """Observe an ask that has its outcome."""
        histogram = self.durations.get(entity_type)
        if histogram is None:
            histogram = self.durations[entity_type] = Histogram()
        histogram.observe(max(0.0, seconds), weight)

    def sample_alone(
        self, entity_type: str, answer: asyncio.Future[Any], clock: Callable[[], float]
    ) -> None:
        """Time an ask that leaves now in no batch, whose count has passed the mark. `clock` is the
        loop's."""
        began = clock()
        weight = self.marks.take(self.asks, began)
        answer.add_done_callback(lambda _: self.ended(entity_type, clock() - began, weight))


class BatchDeparture:
    """The needs of one session's open batch when it leaves: the times of its asks."""

    __slots__ = ("_loop", "_sent", "delayed", "since")

    def __init__(self, sent: SentMessages, loop: asyncio.AbstractEventLoop) -> None:
        self._sent, self._loop = sent, loop
        self.since = 0.0
        """When the batch got its first ask; 0 if it has none."""
        self.delayed: dict[int, float] = {}
        """When asks of the batch began to wait for a home, by correlation id."""

    def begin_asks(self) -> None:
        """A run of asks begins."""
        if not self.since:
            self.since = self._loop.time()

    def leave(self, runs: Sequence[Run], entries: Mapping[int, Any]) -> None:
        """Count the batch, which leaves now, and begin the next. `entries`: the waiting asks of the
        session, by correlation id."""
        sent, asks = self._sent, 0
        counts = sent.counts
        for run in runs:
            cls = run.__class__
            if cls is TellRun:
                counts[run.type] = counts.get(run.type, 0) + len(run.ids)  # type: ignore[union-attr]
            elif cls is AskRun:
                n = len(run.ids)  # type: ignore[union-attr]
                counts[run.type] = counts.get(run.type, 0) + n  # type: ignore[union-attr]
                asks += n
        if asks:
            sent.asks += asks
            if sent.asks >= sent.marks.mark:
                self._sample(runs, asks, entries)
            self.since = 0.0
            if self.delayed:
                self.delayed = {}

    def _sample(self, runs: Sequence[Run], asks: int, entries: Mapping[int, Any]) -> None:
        sent, loop = self._sent, self._loop
        now = loop.time()
        weight, at = sent.marks.take(sent.asks, now), sent.marks.choose(asks)
        entity_type, corr = _ask_at(runs, at)
        entry = entries.get(corr)
        if entry is None or not asyncio.isfuture(entry[0]):
            return
        began = self.delayed.get(corr) or self.since + (now - self.since) * (at + 0.5) / asks

        def done(_: object) -> None:
            sent.ended(entity_type, loop.time() - began, weight)

        entry[0].add_done_callback(done)


def _ask_at(runs: Sequence[Run], at: int) -> tuple[str, int]:
    """Return the entity type and the correlation id of an ask of a batch."""
    for run in runs:
        if isinstance(run, AskRun):
            if at < len(run.corrs):
                return run.type, run.corrs[at]
            at -= len(run.corrs)
    raise AssertionError("the batch has fewer asks")
