"""Virtual time in a test's own loop: when the test continues, and the things outside it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

from shardbus.simulation.timeline import Timeline
from shardbus.simulation.virtual_loop import VirtualLoop
from shardbus.testing import virtual_time
from shardbus.testing.virtual_time import Pending, VirtualTime


@pytest.fixture
def timeline() -> Timeline:
    return Timeline()


@pytest.fixture
def time(timeline: Timeline) -> VirtualTime:
    return VirtualTime(timeline)


async def test_a_test_continues_at_the_moment_at_which_its_future_is_done(
    time: VirtualTime, timeline: Timeline
) -> None:
    for number in range(1000):
        timeline.at(number * 0.01, lambda: None)
    seen: list[tuple[str, float]] = []

    async def wait(name: str, seconds: float) -> None:
        for _ in range(3):
            await Pending(time, time.begin(asyncio.sleep(seconds)))
            for _ in range(5):  # its own work takes some turns of its loop
                await asyncio.sleep(0)
            seen.append((name, timeline.now))

    await asyncio.gather(wait("a", 1.0), wait("b", 0.7))
    assert [name for name, _ in seen] == ["b", "a", "b", "a", "b", "a"]
    assert [at for _, at in seen] == pytest.approx([0.7, 1.0, 1.4, 2.0, 2.1, 3.0], abs=0.001)


async def test_a_result_and_an_error_arrive(time: VirtualTime) -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise KeyError("x")

    async def succeed() -> int:
        await asyncio.sleep(1)
        return 3

    with pytest.raises(KeyError):
        await Pending(time, time.begin(fail()))
    done = Pending(time, time.begin(succeed()))
    assert await done == 3 == await done
    assert done.error is None


async def test_the_loop_and_the_task_of_the_test_are_as_before(time: VirtualTime) -> None:
    async def generator() -> AsyncIterator[int]:
        yield 1

    async def within() -> object:
        async for _ in generator():
            pass
        return asyncio.get_running_loop(), asyncio.current_task()

    task, loop, hooks = asyncio.current_task(), asyncio.get_running_loop(), sys.get_asyncgen_hooks()
    inner, inner_task = time.run(within())  # type: ignore[misc]
    assert inner is time.loop
    assert inner_task is not task
    assert asyncio.current_task() is task
    assert asyncio.get_running_loop() is loop
    assert sys.get_asyncgen_hooks() == hooks
    async with asyncio.timeout(60):
        await asyncio.sleep(0)


async def test_a_cancelled_wait_cancels_its_work(time: VirtualTime) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("work")

    waiting = asyncio.create_task(time.wait(time.begin(work())))
    await time.advance(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await time.advance(1)
    assert ended == ["work"]


async def test_an_error_of_the_timeline_reaches_the_test(
    time: VirtualTime, timeline: Timeline
) -> None:
    timeline.later(1, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await time.advance(5)
    await time.advance(5)


async def test_a_wait_has_an_end(
    time: VirtualTime, timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second in range(5000):
        timeline.at(second, lambda: None)
    never = time.loop.create_future()
    with pytest.raises(TimeoutError, match="virtual time"):
        await time.wait(never)
    monkeypatch.setattr(virtual_time, "RUN_MAX_S", 50.0)
    with pytest.raises(TimeoutError, match="50 s of virtual time"):
        time.run(never)


async def test_nothing_scheduled_is_an_error_and_no_hang(time: VirtualTime) -> None:
    with pytest.raises(RuntimeError, match="nothing is scheduled"):
        await time.wait(time.loop.create_future())
    with pytest.raises(RuntimeError, match="nothing is scheduled"):
        time.run(time.loop.create_future())


async def test_virtual_time_does_not_nest(time: VirtualTime) -> None:
    async def nested() -> None:
        time.run(asyncio.sleep(1))

    with pytest.raises(RuntimeError, match="await it instead"):
        await Pending(time, time.begin(nested()))


async def test_another_virtual_loop_waits_too(time: VirtualTime, timeline: Timeline) -> None:
    other = VirtualLoop(timeline, virtual_time.log_failure)  # type: ignore[abstract]

    async def wait() -> float:
        await time.wait(time.begin(asyncio.sleep(2)))
        return timeline.now

    waiting = await Pending(time, time.begin(wait(), other))
    assert waiting == pytest.approx(2, abs=0.001)


async def test_what_waits_at_the_end_fails(time: VirtualTime, timeline: Timeline) -> None:
    for second in range(100):
        timeline.at(second, lambda: None)
    waiting = asyncio.create_task(time.wait(time.loop.create_future()))
    await time.advance(3)
    time.close()
    with pytest.raises(RuntimeError, match="has ended"):
        await waiting


async def test_a_busy_loop_of_the_test_does_not_stop_time(time: VirtualTime) -> None:
    stop = False

    async def spin() -> None:
        while not stop:
            await asyncio.sleep(0)

    spinning = asyncio.create_task(spin())
    for _ in range(5):
        await time.advance(1)
    stop = True
    await spinning


async def test_a_loop_that_does_not_show_its_work(
    time: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual_time, "READY", "_not_there")
    for _ in range(3):
        await time.advance(1)
    assert time.timeline.now == pytest.approx(3)
