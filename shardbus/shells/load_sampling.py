"""Samples the messages of one type on a node, for the loads of its shards and for the latencies of
its messages, without counting or timing every message.

A node that handles a million messages a second cannot look up the shard of each. So it samples:
when the count of all messages passes a mark (`sample_marks`), one message of the run that passed it
stands for all messages since the last mark. A long run passes more marks than a short one, and any
message of a run may be the sample, so each shard gets its proportion on average.

There are some `SAMPLES_S` samples a second for loads, some `LATENCIES_S` for latencies alone,
however many messages arrive; below that rate every run is sampled.

**Latencies.** Every sampled message notes how long it waited and how long its handler took
(`entities.message_times`), and is counted for its shard and its entity, to find those that get most
of the messages (`shells.hot_spots`). This is always on.

**Time.** Where handlers are timed, the sampled message is handed over with an invoker of its own,
whose function notes how long it ran, wherever it runs at last: at once, from the mailbox, or in a
worker thread. Of a coroutine only the steps count, not the time for which it waits. The time counts
for every message that the sample stands for. All other messages are handled as ever.

Source: N.9, S3.20.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from types import coroutine as generator_coroutine
from typing import Any

from shardbus.entities.entity_type import Invoker, run_in_thread
from shardbus.entities.message_times import MessageTimes
from shardbus.errors import ConfigError
from shardbus.sample_marks import SampleMarks
from shardbus.shells.hot_spots import HotSpots

SAMPLES_S = 500
"""Samples a second, about, for the loads of shards."""

LATENCIES_S = 100
"""Samples a second, about, for latencies alone."""

TIMES_MAX = 20_000
"""Times that are kept between two readings; of a node that is not read, the latest."""


class LoadSampling:
    """The loads of one type's shards on this node, off at first, and with `latencies` the latencies
    of its messages. `marks`: of the messages from which `sample` must be called. `clock` is the
    loop's."""

    __slots__ = (
        "_clock", "_counts", "_handled", "_shard_of", "_since", "_times", "hot_spots", "latencies",
        "marks", "on", "timed",
    )  # fmt: skip

    def __init__(
        self,
        shard_of: Callable[[str], str],
        clock: Callable[[], float],
        latencies: MessageTimes | None = None,
    ) -> None:
        self.on = self.timed = False
        self.latencies, self._clock = latencies, clock
        self.marks = SampleMarks(0 if latencies is None else LATENCIES_S)
        self.hot_spots = HotSpots()
        self._handled = 0.0
        """Seconds of handlers until the last reading."""
        self._shard_of = shard_of
        self._counts: dict[str, int] = {}
        self._times: deque[tuple[str, float]] = deque(maxlen=TIMES_MAX)
        """Seconds of handlers by shard. Worker threads append."""
        self._since: float | None = None

    @property
    def handled(self) -> float:
        """Seconds of handlers since the start. Costs a pass over the samples of some seconds."""
        return self._handled + sum(seconds for _, seconds in self._times.copy())

    def switch(self, *, on: bool, timed: bool = False) -> None:
        """Switch the sampling of loads on or off, with the times of handlers or without."""
        self.on, self.timed = on, on and timed
        latencies = 0 if self.latencies is None else LATENCIES_S
        self.marks.want(SAMPLES_S if on else latencies)

    def sample(
        self, count: int, ids: Sequence[str], invoker: Invoker | None = None
    ) -> tuple[int, Invoker | None]:
        """Sample one of `ids`, the entities of a run that is about to be handled. Returns its index
        and the invoker that times it, or None if nothing is timed.

        Args:
            count: all messages so far, the run's included.
            invoker: of the run.
        """
        since = self.marks.take(count, self._clock())
        at = self.marks.choose(len(ids))
        function, shard = invoker.function if invoker is not None else None, ""
        with suppress(ConfigError):  # an invalid id: the message will be refused
            shard = self._shard_of(ids[at])
            self.hot_spots.add(shard, ids[at], since)
            if self.on:
                function = self._count(shard, since, invoker)
        if invoker is None or function is None:
            return at, None
        if self.latencies is not None:
            function = self.latencies.timed(
                function,
                since,
                is_async=invoker.is_async,
                entity_id=ids[at],
                shard=shard,
                method=invoker.name,
            )
        changed = function is not invoker.function
        return at, invoker.calling(function) if changed else None

    def _count(self, shard: str, weight: int, invoker: Invoker | None) -> Callable[..., Any] | None:
        """Count a sampled message for its shard. Returns the handler's function, timed if times are
        measured."""
        self._counts[shard] = self._counts.get(shard, 0) + weight
        if not self.timed or invoker is None:
            return invoker.function if invoker is not None else None
        times = self._times

        def note(seconds: float) -> None:
            times.append((shard, seconds * weight))

        return timed(invoker, note)

    def timed_alone(self, invoker: Invoker) -> Invoker:
        """Return the invoker of a message that waited here for its home, timed. If such a message
        was the sample when it arrived, no handler has got that, so each stands for itself."""
        if self.latencies is None:
            return invoker
        function = self.latencies.timed(
            invoker.function, 1, is_async=invoker.is_async, method=invoker.name
        )
        return invoker.calling(function)

    def pace(self, count: int) -> None:
        """Adapt the distance of the marks. Called about once a second. `count`: all messages so
        far."""
        self.marks.pace(count)
        self.hot_spots.pace()

    def read(self, now: float) -> dict[str, tuple[float, float]] | None:
        """Messages and seconds of handlers, per second, of each shard since the last reading; None
        the first time."""
        counts, self._counts = self._counts, {}
        since, self._since = self._since, now
        times: dict[str, float] = {}
        for _ in range(len(self._times)):
            shard, seconds = self._times.popleft()
            times[shard] = times.get(shard, 0.0) + seconds
        self._handled += sum(times.values())
        if since is None or now <= since:
            return None
        passed = now - since
        return {
            shard: (counts.get(shard, 0) / passed, times.get(shard, 0.0) / passed)
            for shard in counts | times
        }


def timed(invoker: Invoker, note: Callable[[float], None]) -> Callable[..., Any]:
    """Return the function of an invoker, which notes how long it runs, in seconds."""
    function = invoker.function
    if isinstance(function, partial) and function.func is run_in_thread:
        pool, blocking = function.args
        return partial(run_in_thread, pool, _timed_function(blocking, note))
    if not invoker.is_async:
        return _timed_function(function, note)

    async def call(entity: Any, *args: Any) -> Any:
        return await _timed_steps(function(entity, *args), note)

    return call


def _timed_function(
    function: Callable[..., Any], note: Callable[[float], None]
) -> Callable[..., Any]:
    def call(entity: Any, *args: Any) -> Any:
        began = perf_counter()
        try:
            return function(entity, *args)
        finally:
            note(perf_counter() - began)

    return call


@generator_coroutine
def _timed_steps(
    coroutine: Coroutine[Any, Any, Any], note: Callable[[float], None]
) -> Generator[Any, Any, Any]:
    """Run a coroutine to its end, and note how long each step takes."""
    value, error = None, None
    while True:
        began = perf_counter()
        try:
            waits_for = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            note(perf_counter() - began)
        value, error = None, None
        try:
            value = yield waits_for
        except GeneratorExit:  # the loop has ended
            coroutine.close()
            raise
        except BaseException as e:
            error = e
