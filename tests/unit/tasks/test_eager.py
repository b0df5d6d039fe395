"""Handlers without a task: code inside must not notice, whether it waits or not."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from typing import Any

import anyio
import anyio.to_thread
import pytest

from shardbus.tasks.batch_answer import BatchAnswer, settle_soon
from shardbus.tasks.eager import OWNER, EagerRunner
from tests.unit.tasks.eager_kit import Work, drive
from tests.waiting import PATIENCE_S, turns


@pytest.fixture
async def running() -> EagerRunner:
    return EagerRunner(asyncio.get_running_loop())


async def at_once() -> None:
    """Nothing to wait for."""


async def a_turn() -> None:
    """Something to wait for."""
    await asyncio.sleep(0)


waits = pytest.mark.parametrize("pause", [at_once, a_turn])


@waits
async def test_a_result_comes_back(running: EagerRunner, pause: Work) -> None:
    async def work() -> int:
        await pause()
        return 7

    assert await drive(running, work) == 7


@waits
async def test_an_exception_comes_back(running: EagerRunner, pause: Work) -> None:
    async def work() -> None:
        await pause()
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await drive(running, work)


async def test_work_that_does_not_wait_is_done_in_its_first_step(running: EagerRunner) -> None:
    async def work() -> int:
        await at_once()
        return 1

    assert drive(running, work).done()


@waits
async def test_the_current_task_is_one_and_the_same(running: EagerRunner, pause: Work) -> None:
    outer = asyncio.current_task()

    async def work() -> list[object]:
        seen = [asyncio.current_task()]
        for _ in range(3):
            await pause()
            seen.append(asyncio.current_task())
        return seen

    seen = await drive(running, work)
    assert seen[0] is not None
    assert seen[0] is not outer
    assert len(set(map(id, seen))) == 1
    assert asyncio.current_task() is outer


async def test_two_that_wait_are_two_tasks(running: EagerRunner) -> None:
    async def work() -> object:
        first = asyncio.current_task()
        await a_turn()
        assert asyncio.current_task() is first
        return first

    left, two = drive(running, work), drive(running, work)
    assert len({id(await left), id(await two)}) == 2


@waits
async def test_a_timeout_that_is_not_reached(running: EagerRunner, pause: Work) -> None:
    async def work() -> str:
        async with asyncio.timeout(PATIENCE_S):
            await pause()
        return "in time"

    assert await drive(running, work) == "in time"


async def test_a_timeout_that_is_reached(running: EagerRunner) -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            await a_turn()
            return "late"
        return "in time"

    task = drive(running, work)
    assert await task == "late"


async def test_wait_for_in_a_first_step(running: EagerRunner) -> None:
    async def work() -> None:
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)

    with pytest.raises(TimeoutError):
        await drive(running, work)


@waits
async def test_a_task_group(running: EagerRunner, pause: Work) -> None:
    async def child(value: int) -> int:
        await pause()
        return value

    async def work() -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(child(i)) for i in range(3)]
            await pause()
        return [task.result() for task in tasks]

    assert await drive(running, work) == [0, 1, 2]


async def test_a_task_group_whose_child_fails(running: EagerRunner) -> None:
    async def fail() -> None:
        raise ValueError("child")

    async def work() -> str:
        caught: list[Exception] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.Event().wait()
        except* ValueError as failed:
            caught += failed.exceptions
        await a_turn()
        return str(caught)

    assert await drive(running, work) == "[ValueError('child')]"


@waits
async def test_work_that_is_cancelled_may_clean_up(running: EagerRunner, pause: Work) -> None:
    cleaned = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await pause()
            cleaned.append(True)

    task = drive(running, work)
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == [True]


async def test_the_current_task_can_be_cancelled_from_inside(running: EagerRunner) -> None:
    async def work() -> None:
        me = asyncio.current_task()
        await a_turn()
        assert me is not None
        me.cancel()
        assert me.cancelling() == 1
        await a_turn()

    with pytest.raises(asyncio.CancelledError):
        await drive(running, work)


async def test_work_inside_work(running: EagerRunner) -> None:
    seen: list[object] = []

    async def inner() -> None:
        seen.append(asyncio.current_task())

    async def work() -> None:
        before = asyncio.current_task()
        drive(running, inner)
        assert asyncio.current_task() is before
        await a_turn()
        drive(running, inner)
        assert asyncio.current_task() is before

    await drive(running, work)
    assert len(seen) == 2


async def test_many_first_steps_between_one_enter_and_leave(running: EagerRunner) -> None:
    outer = asyncio.current_task()
    kept: list[asyncio.Task[Any]] = []
    seen: list[object] = []

    async def work(pause: Work) -> None:
        seen.append(asyncio.current_task())
        await pause()
        seen.append(asyncio.current_task())

    entered = running.enter()
    try:
        for pause in (at_once, a_turn, at_once, a_turn):
            coroutine, context = work(pause), running.base.copy()
            try:
                waits_for = running.begin(coroutine, context)
            except StopIteration:
                continue
            kept.append(running.take_over(coroutine, waits_for, context))
    finally:
        running.leave(entered)
    assert asyncio.current_task() is outer
    await asyncio.gather(*kept)
    assert len({id(task) for task in seen}) == 4, "each handler has its own: `seen` keeps them"
    assert len(seen) == 8


async def test_a_call_soon_callback_may_drive_too(running: EagerRunner) -> None:
    async def work() -> object:
        await a_turn()
        return asyncio.current_task()

    tasks: list[asyncio.Future[Any]] = []
    asyncio.get_running_loop().call_soon(lambda: tasks.append(drive(running, work)))
    await turns(1)
    assert await tasks[0] is not None


async def test_a_cancellation_waits_for_the_next_step(running: EagerRunner) -> None:
    """The work waits for a turn of the loop, and for no future that could be cancelled."""
    seen: list[str] = []

    async def work() -> str:
        try:
            await a_turn()
        except asyncio.CancelledError as cancelled:
            seen.append(str(cancelled))
        await a_turn()
        return "went on"

    task = drive(running, work)
    assert task.cancel("enough")
    assert await task == "went on"
    assert seen == ["enough"]
    assert not task.cancel(), "it is over"


async def test_a_request_that_is_taken_back_in_time_is_none(running: EagerRunner) -> None:
    async def work() -> str:
        await a_turn()
        return "went on"

    task: Any = drive(running, work)
    assert task.cancel()
    assert (task.cancelling(), task.uncancel(), task.uncancel()) == (1, 0, 0)
    assert await task == "went on"


def test_a_loop_that_ends_cancels_clean_up_and_waits_for_it() -> None:
    """As `asyncio.run` does with every task. A coroutine that it does not know of is closed."""
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                await asyncio.sleep(60)
            except BaseException as error:
                seen.append(type(error).__name__)

    async def main() -> None:
        drive(EagerRunner(asyncio.get_running_loop()), work).cancel()

    asyncio.run(main())
    gc.collect()
    assert seen == ["CancelledError"]


async def test_waiting_for_what_is_no_future_of_the_loop_raises(running: EagerRunner) -> None:
    class Odd:
        def __await__(self) -> Any:
            yield "a word"

    async def work() -> None:
        await Odd()

    with pytest.raises(RuntimeError, match="a word"):
        await drive(running, work)

    async def forever() -> None:
        await asyncio.current_task()  # type: ignore[misc]

    itself = drive(running, forever)
    await turns()
    assert "no task can wait" in str(itself.exception())

    other = asyncio.new_event_loop()
    foreign = other.create_future()
    other.close()

    async def of_another_loop() -> None:
        await foreign

    with pytest.raises(RuntimeError, match="no task can wait"):
        await drive(running, of_another_loop)


@waits
async def test_libraries_on_anyio(running: EagerRunner, pause: Work) -> None:
    seen: list[str] = []

    async def child(name: str) -> None:
        await pause()
        seen.append(name)

    async def work() -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(child, "a")
            group.start_soon(child, "b")
        with anyio.move_on_after(0.01) as scope:
            await anyio.sleep_forever()
        await pause()
        return f"{scope.cancelled_caught} {await anyio.to_thread.run_sync(str, 7)}"

    task: Any = drive(running, work)
    assert await task == "True 7"
    assert sorted(seen) == ["a", "b"]


async def test_it_describes_itself_as_a_task_does(running: EagerRunner) -> None:
    """For debuggers and for libraries that look at the current task."""
    seen: list[object] = []

    async def work() -> None:
        await a_turn()
        me: Any = asyncio.current_task()
        me.set_name("other")
        seen.extend([me.get_name(), me.get_context()[OWNER], me.get_loop(), me.done()])
        await a_turn()

    task: Any = drive(running, work)
    assert task.get_coro().cr_frame is task.get_stack()[0]
    await task
    name, owner, loop, done = seen
    assert name == "other"
    assert (owner, loop, done) == (None, asyncio.get_running_loop(), False)
    assert (task.get_stack(), task.done(), task.get_coro()) == ([], True, None)


def test_work_that_outlives_its_loop_is_closed_in_silence() -> None:
    cleaned = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async def main() -> None:
        drive(EagerRunner(asyncio.get_running_loop()), work)
        await turns()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    gc.collect()
    assert cleaned == [True]


color: contextvars.ContextVar[str] = contextvars.ContextVar("color", default="none")


@waits
async def test_context_variables_are_reset_by_their_token(
    running: EagerRunner, pause: Work
) -> None:
    async def work() -> str:
        token = color.set("red")
        await pause()
        color.reset(token)
        return color.get()

    assert await drive(running, work) == "none"


@waits
async def test_what_one_sets_the_next_does_not_see(running: EagerRunner, pause: Work) -> None:
    async def work() -> str:
        before = color.get()
        color.set("red")
        await pause()
        return before

    assert [await drive(running, work) for _ in range(2)] == ["none", "none"]
    assert color.get() == "none"


@waits
async def test_what_a_sender_has_set_the_handler_does_not_see(
    running: EagerRunner, pause: Work
) -> None:
    async def work() -> str:
        await pause()
        return color.get()

    color.set("blue")
    assert await drive(running, work) == "none"


@waits
async def test_what_follows_the_end_does_not_see_what_was_set(
    running: EagerRunner, pause: Work
) -> None:
    """`on_end` handles the messages that have waited."""
    seen: list[str] = []

    async def work() -> None:
        await a_turn()
        color.set("red")
        await pause()
        await asyncio.sleep(0.001)

    running.task.on_end = lambda _: seen.append(color.get())
    await drive(running, work)
    assert seen == ["none"]


@waits
async def test_tasks_that_work_makes_know_whose_they_are(pause: Work) -> None:
    async def child() -> object:
        return OWNER.get()

    async def work() -> list[object]:
        first = await asyncio.create_task(child())
        await pause()
        return [OWNER.get(), first, await asyncio.create_task(child())]

    driver = EagerRunner(asyncio.get_running_loop(), "me")
    assert await drive(driver, work) == ["me", "me", "me"]
    assert OWNER.get() is None


@pytest.mark.parametrize("before", [0, 1], ids=["at first", "later"])
@pytest.mark.parametrize("error", [None, ValueError("stale"), asyncio.CancelledError()])
async def test_the_answer_to_a_save_comes_back(
    running: EagerRunner, before: int, error: BaseException | None
) -> None:
    loop, seen = asyncio.get_running_loop(), list[Any]()
    answer = BatchAnswer.of(loop)

    async def work() -> None:
        for _ in range(before):
            await asyncio.sleep(0)
        try:
            await answer
        except (ValueError, asyncio.CancelledError) as e:
            seen.append(e)
        else:
            seen.append(None)

    outcome = drive(running, work)
    await turns(before + 1)
    if isinstance(error, asyncio.CancelledError):
        answer.cancel()
    else:
        settle_soon(loop, [answer], [error])  # type: ignore[list-item]
    await outcome
    assert [type(each) for each in seen] == [type(error)]


async def test_a_save_that_another_task_awaits_too(running: EagerRunner) -> None:
    loop, answer = asyncio.get_running_loop(), BatchAnswer.of(asyncio.get_running_loop())
    other = asyncio.create_task(awaited(answer))
    await turns(1)
    outcome = drive(running, lambda: awaited(answer))
    settle_soon(loop, [answer], [None])
    await asyncio.gather(other, outcome)


async def awaited(answer: BatchAnswer) -> None:
    await answer


@waits
async def test_code_may_set_attributes_of_its_task(running: EagerRunner, pause: Work) -> None:
    async def work() -> str:
        asyncio.current_task().note = "mine"  # type: ignore[union-attr]
        await pause()
        return asyncio.current_task().note  # type: ignore[union-attr, no-any-return]

    assert await drive(running, work) == "mine"
