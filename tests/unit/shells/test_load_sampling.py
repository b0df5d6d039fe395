"""Sampling: each shard gets its part, however messages come, and few of them are looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Event
from typing import Any

import pytest

from shardbus.entities.entity_type import Invoker, in_thread
from shardbus.entities.message_times import MessageTimes
from shardbus.errors import ConfigError
from shardbus.sample_marks import NEVER
from shardbus.shells import load_sampling
from shardbus.shells.load_sampling import SAMPLES_S, TIMES_MAX, LoadSampling


class Feed:
    """Runs of messages, as a node's type counts them; an entity is named by its shard."""

    def __init__(self) -> None:
        self.looks = self.count = 0
        self.now = 0.0
        self.sampling = LoadSampling(self._shard_of, lambda: self.now)
        self.sampling.switch(on=True)

    def _shard_of(self, entity_id: str) -> str:
        self.looks += 1
        return entity_id[0]

    def run(self, ids: str, seconds: float = 0.0) -> None:
        self.now += seconds
        self.count += len(ids)
        if self.count >= self.sampling.marks.mark:
            self.sampling.sample(self.count, ids)

    def read(self, now: float) -> dict[str, float] | None:
        self.now = now
        self.sampling.pace(self.count)
        return rates(self.sampling.read(now))


def rates(read: dict[str, tuple[float, float]] | None) -> dict[str, float] | None:
    """The messages of each shard, without their times."""
    return None if read is None else {shard: messages for shard, (messages, _) in read.items()}


def test_N9_with_few_messages_every_run_counts() -> None:
    feed = Feed()
    assert feed.read(10.0) is None
    for shard in "aabbbc":
        feed.run(shard)
    assert feed.read(12.0) == {"a": 1.0, "b": 1.5, "c": 0.5}
    assert feed.read(13.0) == {}
    assert feed.read(13.0) is None


@pytest.mark.parametrize("length", [1, 7, 200])
def test_N9_with_many_messages_few_are_looked_at_and_each_shard_gets_its_part(length: int) -> None:
    feed, dice = Feed(), Random(length)
    feed.read(0.0)
    for second in range(1, 6):
        feed.looks = 0
        for _ in range(200_000 // length):
            feed.run("".join(dice.choices("abc", (70, 20, 10), k=length)), length / 200_000)
        loads = feed.read(float(second))
    assert feed.looks <= 2 * SAMPLES_S
    assert loads is not None
    assert sum(loads.values()) == pytest.approx(200_000, rel=0.05)
    assert loads["a"] == pytest.approx(140_000, rel=0.15)
    assert loads["b"] > loads["c"] > 0


def test_N9_the_entities_with_the_most_messages_are_known_without_a_balance_by_load() -> None:
    count, dice = 0, Random(7)
    times = MessageTimes(float)
    sampling = LoadSampling(lambda entity_id: entity_id[0], lambda: count / 100_000, times)
    for _ in range(20_000):
        ids = dice.choices(("a1", "a2", "b1"), (60, 10, 30), k=10)
        count += len(ids)
        if count >= sampling.marks.mark:
            sampling.sample(count, ids)
    row = sampling.hot_spots.row()
    assert row["messages"] == pytest.approx(count, rel=0.1)
    assert row["shards"][0] == ["a", pytest.approx(0.7, abs=0.1)]
    assert row["entities"][0] == ["a", "a1", pytest.approx(0.6, abs=0.1)]


def test_when_the_rush_is_over_every_run_counts_again() -> None:
    feed = Feed()
    feed.read(0.0)
    for _ in range(100):
        feed.run("a" * 10_000)
    feed.read(1.0)
    feed.read(2.0)
    feed.run("b")
    feed.run("c")
    assert feed.read(3.0) == {"b": 1.0, "c": 1.0}


def test_what_is_no_id_is_nobodys() -> None:
    def refuses(entity_id: str) -> str:
        raise ConfigError("no id")

    sampling = LoadSampling(refuses, float)
    sampling.switch(on=True)
    sampling.read(0.0)
    sampling.sample(1, ("",))
    assert sampling.read(1.0) == {}


def test_it_is_off_until_somebody_wants_to_know() -> None:
    assert LoadSampling(str, float).marks.mark == NEVER


# The times of handlers


class Watch:
    """A clock that handlers advance themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(load_sampling, "perf_counter", lambda: self.now)

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


@pytest.fixture
def sampling() -> LoadSampling:
    made = LoadSampling(lambda entity_id: entity_id[0], float)
    made.switch(on=True, timed=True)
    made.read(0.0)
    return made


def invoker(function: Callable[..., Any], *, is_async: bool = False) -> Invoker:
    return Invoker("handle", function, is_async, {})


def test_S3_20_a_sampled_handler_is_timed_for_all_messages_it_stands_for(
    watch: Watch, sampling: LoadSampling
) -> None:
    plain = invoker(lambda entity, seconds: watch.work(seconds))
    at, timed = sampling.sample(4, "aaaa", plain)
    assert (0 <= at < 4, timed is plain) == (True, False)
    assert timed is not None
    timed.function(None, 0.25)
    assert sampling.handled == 1.0
    assert sampling.read(2.0) == {"a": (2.0, 0.5)}
    assert sampling.handled == 1.0, "a reading does not change what was handled in all"


def test_a_handler_that_raises_takes_time_too(watch: Watch, sampling: LoadSampling) -> None:
    def fails(entity: object) -> None:
        watch.work(0.5)
        raise ValueError("no")

    _, timed = sampling.sample(1, "a", invoker(fails))
    assert timed is not None
    with pytest.raises(ValueError, match="no"):
        timed.function(None)
    assert sampling.read(1.0) == {"a": (1.0, 0.5)}


async def test_the_time_for_which_a_coroutine_waits_does_not_count(
    watch: Watch, sampling: LoadSampling
) -> None:
    opened = asyncio.Event()

    async def waits(entity: object) -> str:
        watch.work(0.25)
        await opened.wait()
        watch.work(0.5)
        return "done"

    _, timed = sampling.sample(1, "a", invoker(waits, is_async=True))
    assert timed is not None
    running = asyncio.ensure_future(timed.function(None))
    await asyncio.sleep(0)
    watch.work(100.0)
    opened.set()
    assert await running == "done"
    assert sampling.read(1.0) == {"a": (1.0, 0.75)}


async def test_a_timed_coroutine_is_cancelled_and_fails_as_any_other(
    watch: Watch, sampling: LoadSampling
) -> None:
    seen: list[str] = []

    async def waits(entity: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    _, timed = sampling.sample(1, "a", invoker(waits, is_async=True))
    assert timed is not None
    running = asyncio.ensure_future(timed.function(None))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert (seen, running.cancelled()) == (["cancelled"], True)
    unfinished = timed.function(None)
    unfinished.send(None)
    unfinished.close()
    assert seen == ["cancelled"], "the end of the loop is no cancellation"


async def test_a_blocking_handler_is_timed_in_its_thread_without_the_queue_before_it(
    watch: Watch, sampling: LoadSampling
) -> None:
    with ThreadPoolExecutor(1) as pool:
        release = Event()
        queued = asyncio.get_running_loop().run_in_executor(pool, release.wait, 60.0)
        blocking = in_thread(lambda entity: watch.work(0.5), pool)
        _, timed = sampling.sample(1, "a", invoker(blocking, is_async=True))
        assert timed is not None
        running = asyncio.ensure_future(timed.function(None))
        await asyncio.sleep(0)
        watch.work(100.0)
        release.set()
        await asyncio.gather(running, queued)
    assert sampling.read(1.0) == {"a": (1.0, 0.5)}


def test_without_times_the_invoker_stays_and_without_readings_memory_is_bounded(
    watch: Watch, sampling: LoadSampling
) -> None:
    plain = invoker(lambda entity: watch.work(1.0))
    untimed = LoadSampling(str, float)
    untimed.switch(on=True)
    assert untimed.sample(1, "a", plain) == (0, None)
    _, timed = sampling.sample(1, "a", plain)
    assert timed is not None
    for _ in range(TIMES_MAX + 10):
        timed.function(None)
    assert sampling.handled == TIMES_MAX


def test_B150_latencies_are_sampled_without_bias_whatever_the_period_of_slow_messages() -> None:
    """Every tenth run is slow. Each run is handled at once; its weight goes to its kind."""
    weights: dict[bool, int] = {True: 0, False: 0}

    class Weights(MessageTimes):
        def timed(self, function: Any, weight: int, **about: Any) -> Any:
            weights[function is slow] += weight
            return super().timed(function, weight, **about)

    def slow(entity: object) -> None: ...
    def fast(entity: object) -> None: ...

    count = 0
    sampling = LoadSampling(str, lambda: count / 10_000, Weights(lambda: 0.0))
    for _ in range(40):
        for n in range(1000):
            count += 10
            if count >= sampling.marks.mark:
                sampling.sample(count, "a" * 10, invoker(slow if n % 10 == 0 else fast))
        sampling.pace(count)
    assert sum(weights.values()) == pytest.approx(count, rel=0.02)
    assert weights[True] / count == pytest.approx(0.1, abs=0.02)
    assert not sampling.on


def test_B150_a_message_that_waited_on_its_node_is_timed_by_itself() -> None:
    times = MessageTimes(lambda: 0.0)
    timed = LoadSampling(str, float, times).timed_alone(invoker(lambda entity: "done"))
    assert timed.function(None) == "done"
    assert (times.waited.count, times.handled.count) == (1, 1)
    assert times.methods["handle"].count == 1


def test_N21_a_sample_is_kept_with_its_entity_and_its_handler() -> None:
    times = MessageTimes(lambda: 0.0)
    LoadSampling(str, float, times).sample(1, ("page-7",), invoker(lambda entity: None))
    [kept] = times.recent
    assert (kept.entity_id, kept.method, kept.weight) == ("page-7", "handle", 1)
    assert kept.shard == "page-7"
