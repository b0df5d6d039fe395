"""How long messages wait and handlers take, on a clock that the handlers advance."""

from __future__ import annotations

import asyncio

import pytest

from shardbus.entities.message_times import MARKS, RECENT_MAX, MessageTimes


class Watch:
    def __init__(self) -> None:
        self.now = 0.0
        self.times = MessageTimes(lambda: self.now)

    @property
    def noted(self) -> tuple[int, float, int, float]:
        """Return the counts and sums of both histograms. Each time of a handler counts for its
        method, too."""
        waited, handled = self.times.waited, self.times.handled
        methods = self.times.methods.values()
        assert sum(method.count for method in methods) == handled.count
        assert sum(method.sum for method in methods) == handled.sum
        return waited.count, waited.sum, handled.count, handled.sum


def test_B150_a_message_waits_until_its_handler_is_called() -> None:
    watch = Watch()

    def work(entity: object, seconds: float) -> str:
        watch.now += seconds
        return "done"

    timed = watch.times.timed(work, 10, is_async=False)
    watch.now += 2.0
    assert timed(None, 0.5) == "done"
    assert watch.noted == (10, 20.0, 10, 5.0)


def test_a_handler_that_raises_is_timed_too() -> None:
    watch = Watch()

    def fails(entity: object) -> None:
        watch.now += 1.0
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        watch.times.timed(fails, 1, is_async=False)(None)
    assert watch.noted == (1, 0.0, 1, 1.0)


async def test_what_a_coroutine_awaits_counts_until_it_ends_or_is_cancelled() -> None:
    watch, opened = Watch(), asyncio.Event()

    async def waits(entity: object) -> str:
        await opened.wait()
        return "done"

    timed = watch.times.timed(waits, 3, is_async=True)
    first, second = (asyncio.ensure_future(timed(None)) for _ in range(2))
    await asyncio.sleep(0)
    watch.now += 4.0
    second.cancel()
    await asyncio.wait([second])
    watch.now += 1.0
    opened.set()
    assert await first == "done"
    assert watch.noted == (6, 0.0, 6, 3 * 4.0 + 3 * 5.0)


def test_N21_the_last_samples_are_kept_with_their_entities() -> None:
    watch = Watch()

    def work(entity: object) -> None:
        watch.now += 0.5

    for number in range(RECENT_MAX + 1):
        timed = watch.times.timed(work, 4, is_async=False, entity_id=f"e{number}", method="work")
    arrived = watch.now
    watch.now += 2.0
    timed(None)
    watch.times.timed(work, 1, is_async=False)(None)
    recent = watch.times.recent
    assert len(recent) == RECENT_MAX, "without an entity a sample is in the histograms alone"
    assert (recent[0].entity_id, recent[0].waited, recent[0].took) == ("e1", None, None)
    last = recent[-1]
    assert (last.entity_id, last.method, last.weight) == (f"e{RECENT_MAX}", "work", 4)
    assert (last.arrived, last.waited, last.took) == (arrived, 2.0, 0.5)


def test_B150_times_are_kept_by_method_and_are_recent_for_some_marks() -> None:
    watch = Watch()

    def work(entity: object, seconds: float) -> None:
        watch.now += seconds

    def times(method: str) -> tuple[int, int, float]:
        recent, seconds = watch.times.recent_of(method)
        return watch.times.methods[method].count, recent.count, seconds

    watch.times.timed(work, 10, is_async=False, method="add")(None, 0.5)
    watch.times.timed(work, 2, is_async=False, method="")(None, 1.5)
    assert times("add") == (10, 10, 2.0)
    assert times("") == (2, 2, 2.0)
    assert watch.times.recent_of("none")[0].count == 0
    for _ in range(MARKS - 1):
        watch.now += 60.0
        watch.times.mark()
    assert times("add") == (10, 10, 2.0 + 60.0 * (MARKS - 1))
    watch.now += 60.0
    watch.times.mark()
    assert times("add") == (10, 0, 60.0 * (MARKS - 1))


def test_N21_the_samples_reach_back_to_the_start_until_there_are_too_many() -> None:
    watch = Watch()
    watch.now = 3.0
    assert watch.times.reach_back_to == 0.0
    for number in range(RECENT_MAX):
        watch.now = 3.0 + number
        watch.times.timed(lambda entity: None, 1, is_async=False, entity_id="e", method="work")
    assert watch.times.reach_back_to == 3.0
