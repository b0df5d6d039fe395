"""Estimates what each shard of a node gets and takes, without counting or timing every message.

A node that handles a million messages a second cannot look up the shard of each. So it samples:
when the count of all messages passes a mark, one message of the run that passed it stands for all
messages since the last mark. A long run passes more marks than a short one, and any message of a
run may be the sample, so each shard gets its proportion on average.

The distance of the marks adapts so that some `SAMPLES_S` messages a second are sampled, however
many arrive; below that rate every run is.

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
from dataclasses import replace
from functools import partial, wraps
from time import perf_counter
from types import coroutine as generator_coroutine
from typing import Any

from shardbus.entities.entity_type import Invoker, run_in_thread
from shardbus.errors import ConfigError

SAMPLES_S = 500
"""Samples a second, about."""

STRIDE = 7919
"""Advances the index of the sampled message within a run; a prime, so that every index occurs."""

NEVER = 2**62

TIMES_MAX = 20_000
"""Times that are kept between two readings; of a node that is not read, the latest."""


class LoadSampling:
    """The loads of one type's shards on this node; off at first. `mark`: the count of messages from
    which `sample` must be called; while sampling is off no count reaches it."""

    __slots__ = (
        "_counts", "_handled", "_last", "_samples", "_shard_of", "_since", "_step", "_times",
        "mark", "on", "timed",
    )  # fmt: skip

    def __init__(self, shard_of: Callable[[str], str]) -> None:
        self.on = self.timed = False
        self.mark = NEVER
        self._handled = 0.0
        """Seconds of handlers until the last reading."""
        self._shard_of = shard_of
        self._counts: dict[str, int] = {}
        self._times: deque[tuple[str, float]] = deque(maxlen=TIMES_MAX)
        """Seconds of handlers by shard. Worker threads append."""
        self._last = self._samples = 0
        self._step = 1
        self._since: float | None = None

    @property
    def handled(self) -> float:
        """Seconds of handlers since the start. Costs a pass over the samples of some seconds."""
        return self._handled + sum(seconds for _, seconds in self._times.copy())

    def switch(self, *, on: bool, timed: bool = False) -> None:
        """Switch sampling on or off, with the times of handlers or without."""
        self.on, self.timed, self.mark = on, on and timed, 0 if on else NEVER

    def sample(
        self, count: int, ids: Sequence[str], invoker: Invoker | None = None
    ) -> tuple[int, Invoker | None]:
        """Sample one of `ids`, the entities of a run that is about to be handled. Returns its index
        and the invoker that times it, or None if it is not timed.

        Args:
            count: all messages so far, those of the run included.
            invoker: of the run.
        """
        since, self._last = count - self._last, count
        self._samples, self.mark = self._samples + 1, count + self._step
        at = self._samples * STRIDE % len(ids)
        with suppress(ConfigError):  # an invalid id: the message will be refused
            shard = self._shard_of(ids[at])
            self._counts[shard] = self._counts.get(shard, 0) + since
            if self.timed and invoker is not None:
                times = self._times

                def note(seconds: float) -> None:
                    times.append((shard, seconds * since))

                return at, replace(invoker, function=timed(invoker, note))
        return at, None

    def read(self, count: int, now: float) -> dict[str, tuple[float, float]] | None:
        """Messages and seconds of handlers, per second, of each shard since the last reading; None
        the first time. `count`: all messages so far."""
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
        self._step = max(1, round(sum(counts.values()) / passed / SAMPLES_S))
        self.mark = min(self.mark, count + self._step) if self.on else NEVER
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

    @wraps(function)
    async def call(entity: Any, *args: Any) -> Any:
        return await _timed_steps(function(entity, *args), note)

    return call


def _timed_function(
    function: Callable[..., Any], note: Callable[[float], None]
) -> Callable[..., Any]:
    @wraps(function)
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
