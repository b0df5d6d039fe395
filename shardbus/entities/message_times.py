"""How long messages wait on a node before their handlers run, and how long the handlers take.

Two histograms of one entity type, and one for each of its methods. To time every message would cost
more than many handlers, so the sampler of the type (`shells.load_sampling`) picks one message of
some runs, and hands it over with an invoker whose function notes both times. It does so wherever
the message runs at last: at once, from the mailbox, or in a worker thread. The times count for all
messages that the sample stands for.

    arrives ──────── waits ────────> handler begins ──── takes ────> it returns or raises
             in its batch, in the                    with all that it
             mailbox, for a start                    awaits

The last samples are kept one by one, too (`recent`), with their entities: they say which entity a
node works for, and how long its handlers take, without a figure per entity.

A message that no handler gets, because its mailbox is full or its deadline passes, is in neither
histogram: `messages_dropped` counts it.

Source: docs/reference/metrics.md; B.150.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from shardbus.histograms import Histogram, HistogramWindow

RECENT_MAX = 1000
"""Samples that are kept one by one: of the last ten seconds or more."""
MARK_S, MARKS = 60, 5
"""Seconds between two marks, and marks: the times of methods are recent for five minutes."""


class SampledMessage:
    """A message that stands for `weight` messages. `shard` is empty if its id is invalid; `waited`
    and `took` are seconds, None until its handler begins and ends."""

    __slots__ = ("arrived", "entity_id", "method", "shard", "took", "waited", "weight")

    def __init__(
        self, arrived: float, entity_id: str, shard: str, method: str, weight: int
    ) -> None:
        self.arrived, self.entity_id, self.shard = arrived, entity_id, shard
        self.method, self.weight = method, weight
        self.waited: float | None = None
        self.took: float | None = None


class MessageTimes:
    """The histograms of one type. `clock` is the loop's."""

    __slots__ = ("_began", "_clock", "_marked", "_window", "handled", "methods", "recent", "waited")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.waited, self.handled = Histogram(), Histogram()
        self.methods: dict[str, Histogram] = {}
        """How long handlers take, by their names in messages: those that the type declares."""
        self._window = HistogramWindow[str](MARKS)
        self._marked: deque[float] = deque(maxlen=MARKS)
        self.recent: deque[SampledMessage] = deque(maxlen=RECENT_MAX)
        """The last samples by their arrival, oldest first."""
        self._clock, self._began = clock, clock()
        self.mark()

    def mark(self) -> None:
        """Let measurements of up to `MARKS` marks ago be recent no more."""
        self._window.mark(self.methods)
        self._marked.append(self._clock())

    def recent_of(self, method: str) -> tuple[Histogram, float]:
        """Return how long the handlers of a method took of late, and for how many seconds."""
        recent = self._window.recent(method, self.methods.get(method) or Histogram())
        return recent, max(1.0, self._clock() - self._marked[0])

    @property
    def reach_back_to(self) -> float:
        """The time since which the samples in `recent` are complete."""
        full = len(self.recent) == RECENT_MAX
        return self.recent[0].arrived if full else self._began

    def timed(
        self,
        function: Callable[..., Any],
        weight: int,
        *,
        is_async: bool,
        entity_id: str = "",
        shard: str = "",
        method: str = "",
    ) -> Callable[..., Any]:
        """Return a handler's function for a message that arrives now and stands for `weight`."""
        clock, waited, handled = self._clock, self.waited, self.handled
        of_method = self.methods.get(method) or self.methods.setdefault(method, Histogram())
        arrived = clock()
        sample = SampledMessage(arrived, entity_id, shard, method, weight)
        if entity_id:
            self.recent.append(sample)

        if is_async:

            async def call_async(entity: Any, *args: Any) -> Any:
                began = clock()
                sample.waited = began - arrived
                waited.observe(sample.waited, weight)
                try:
                    return await function(entity, *args)
                finally:
                    sample.took = clock() - began
                    handled.observe(sample.took, weight)
                    of_method.observe(sample.took, weight)

            return call_async

        def call(entity: Any, *args: Any) -> Any:
            began = clock()
            sample.waited = began - arrived
            waited.observe(sample.waited, weight)
            try:
                return function(entity, *args)
            finally:
                sample.took = clock() - began
                handled.observe(sample.took, weight)
                of_method.observe(sample.took, weight)

        return call
