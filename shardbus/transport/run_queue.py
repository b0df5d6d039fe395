"""Messages for one entity that wait in their order, as runs.

Neighbouring tells of one method share a run, as in a batch, so that a message takes little more
than its payload. A run stays small enough to be a part of a batch. Asks keep their deadline: a run
of asks leaves with the time that it has waited taken off.

Source: docs/architecture.md.
"""

from __future__ import annotations

from collections import deque

from shardbus.transport.asks import CoarseClock
from shardbus.wire.batch import AskRun, TellRun

MESSAGE_WEIGHT = 64
"""Weight of a message besides its payload."""
RUN_WEIGHT = 256
"""Weight of a run besides its messages."""
RUN_MESSAGES_MAX = 256
RUN_WEIGHT_MAX = 64 * 1024
"""Bounds of a run that takes further messages."""

EntityRun = TellRun | AskRun
"""A run of messages for one entity."""


def weight_of(run: EntityRun) -> int:
    """Return the weight of a run."""
    return RUN_WEIGHT + sum(len(payload) + MESSAGE_WEIGHT for payload in run.payloads)


class RunQueue:
    """The queue of one entity. `added` and `left` count messages."""

    __slots__ = ("_runs", "_weights", "added", "left", "weight")

    def __init__(self) -> None:
        self._runs: deque[tuple[EntityRun, int]] = deque()
        """Each with the tick of its arrival."""
        self._weights: deque[int] = deque()
        self.weight = 0
        self.added = self.left = 0

    def __bool__(self) -> bool:
        return bool(self._runs)

    def put(self, run: EntityRun, tick: int) -> int:
        """Append a run, which the queue owns from now on. Returns the weight that it adds."""
        self.added += len(run.payloads)
        weight = weight_of(run)
        if self._joins_last(run, weight):
            last, weight = self._runs[-1][0], weight - RUN_WEIGHT
            last.ids += run.ids
            last.payloads += run.payloads
            self._weights[-1] += weight
        else:
            self._runs.append((run, tick))
            self._weights.append(weight)
        self.weight += weight
        return weight

    def _joins_last(self, run: EntityRun, weight: int) -> bool:
        last = self._runs[-1][0] if self._runs else None
        return (
            isinstance(run, TellRun)
            and isinstance(last, TellRun)
            and last.method == run.method
            and not (run.trace or last.trace)
            and len(last.ids) + len(run.ids) <= RUN_MESSAGES_MAX
            and self._weights[-1] + weight <= RUN_WEIGHT_MAX
        )

    def take(self, tick: int) -> EntityRun:
        """Remove the first run and return it."""
        run, since = self._runs.popleft()
        self.weight -= self._weights.popleft()
        self.left += len(run.payloads)
        if isinstance(run, AskRun):
            run.timeout_ms = max(0, run.timeout_ms - (tick - since) * CoarseClock.TICK_MS)
        return run

    def take_all(self, tick: int) -> list[EntityRun]:
        """Remove all runs and return them."""
        return [self.take(tick) for _ in range(len(self._runs))]

    @property
    def runs(self) -> list[EntityRun]:
        """The runs that wait."""
        return [run for run, _ in self._runs]

    def check(self) -> None:
        """Compare the counts with the runs."""
        assert len(self._runs) == len(self._weights)
        assert self.weight == sum(self._weights) == sum(weight_of(run) for run in self.runs)
        assert self.added - self.left == sum(len(run.payloads) for run in self.runs)
