"""Who is on a chain of asks, and when an ask closes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shardbus.entities.reentrancy import KEPT_MIN, CallChain
from shardbus.tasks.eager import EagerRunner, EagerTask
from shardbus.tasks.waiters import eager_task_waiting_for
from shardbus.wire.batch import CHAIN_MAX
from tests.unit.tasks.eager_kit import drive
from tests.waiting import PATIENCE_S, turns

A, B, C = ("page", "a"), ("page", "b"), ("user", "a")


def future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


# Chains


async def test_an_ask_that_comes_back_closes_the_cycle() -> None:
    a, b = CallChain(A, 1, ()), CallChain(B, 2, [(*A, 1)])
    a.note_ask(B, future())
    b.note_ask(A, future())
    assert a.closed_by(b.chain) == (A, B, A)
    assert b.closed_by(a.chain) is None


async def test_an_entity_that_asks_itself_closes_the_cycle() -> None:
    a = CallChain(A, 1, ())
    a.note_ask(A, future())
    assert a.closed_by(a.chain) == (A, A)


async def test_an_entity_before_the_cycle_is_not_named() -> None:
    a = CallChain(A, 1, [(*C, 9)])
    a.note_ask(B, future())
    b = CallChain(B, 2, a.chain)
    assert a.closed_by(b.chain) == (A, B, A)


async def test_another_run_of_the_same_entity_is_not_on_the_chain() -> None:
    before, now = CallChain(A, 1, ()), CallChain(A, 2, ())
    now.note_ask(B, future())
    assert now.closed_by(CallChain(B, 3, before.chain).chain) is None


async def test_a_handler_with_its_answer_or_timeout_does_not_wait() -> None:
    a = CallChain(A, 1, ())
    chain = CallChain(B, 2, a.chain).chain
    assert a.closed_by(chain) is None  # it never asked B
    answer = future()
    a.note_ask(B, answer)
    a.note_ask(C, future())
    assert a.closed_by(chain) == (A, B, A)
    answer.cancel()
    assert a.closed_by(chain) is None


async def test_a_chain_keeps_the_last_waiting_entities() -> None:
    asking = first = CallChain(("page", "0"), 0, ())
    first.note_ask(("page", "1"), future())
    for n in range(1, CHAIN_MAX):
        asking = CallChain(("page", str(n)), n, asking.chain)
    assert first.closed_by(asking.chain) is not None
    longer = CallChain(B, CHAIN_MAX, asking.chain)
    assert len(longer.chain) == CHAIN_MAX
    assert longer.chain[-1] == (*B, CHAIN_MAX)
    assert first.closed_by(longer.chain) is None


async def test_answered_asks_are_forgotten_in_time() -> None:
    a, waiting = CallChain(A, 1, ()), future()
    a.note_ask(B, waiting)
    for n in range(10 * KEPT_MIN):
        answered = future()
        answered.set_result(n)
        a.note_ask(("page", str(n)), answered)
    assert len(a._asks) <= KEPT_MIN
    assert a.closed_by(CallChain(B, 2, a.chain).chain) == (A, B, A)


# Whose code asks


def run(work: Callable[[], Any]) -> EagerTask:
    """Run a coroutine as a handler is run."""
    driver = EagerRunner(asyncio.get_running_loop())
    task = drive(driver, work)
    assert isinstance(task, EagerTask), "it waits"
    return task


async def awaited(task: asyncio.Task[None]) -> None:
    await task


async def gathered(task: asyncio.Task[None]) -> None:
    await asyncio.gather(asyncio.sleep(0), task)


async def shielded(task: asyncio.Task[None]) -> None:
    await asyncio.shield(task)


async def in_time(task: asyncio.Task[None]) -> None:
    await asyncio.wait_for(task, PATIENCE_S)


async def waited_for(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task, asyncio.create_task(asyncio.sleep(60))])


async def by_another(task: asyncio.Task[None]) -> None:
    await asyncio.create_task(gathered(task))


async def within_a_group(task: asyncio.Task[None]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(awaited(task))
        await asyncio.Event().wait()


async def left_alone(task: asyncio.Task[None]) -> None:
    task.add_done_callback(lambda done: None)
    await asyncio.Event().wait()


async def waited_for_by_a_stranger(task: asyncio.Task[None]) -> None:
    task.stranger = asyncio.create_task(gathered(task))  # type: ignore[attr-defined]
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("way", "at_once", "later"),
    [
        (awaited, True, True),
        (gathered, True, True),
        (shielded, True, True),
        (in_time, True, True),
        (waited_for, True, True),
        (by_another, False, True),  # that other task has not begun to wait at first
        (within_a_group, False, True),
        (left_alone, False, False),
        (waited_for_by_a_stranger, False, False),
    ],
)
async def test_whether_a_handler_waits_for_a_task(
    way: Callable[[asyncio.Task[None]], Awaitable[None]], at_once: bool, later: bool
) -> None:
    seen: list[EagerTask | None] = []
    gate = asyncio.Event()

    async def child() -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.append(eager_task_waiting_for(task))
        await turns(3)
        seen.append(eager_task_waiting_for(task))
        await gate.wait()

    async def handler() -> None:
        await way(asyncio.create_task(child()))

    turn = run(handler)
    await turns(10)
    assert seen == [turn if at_once else None, turn if later else None]
    gate.set()
    turn.cancel()


async def test_a_future_that_hides_its_callbacks_is_waited_for_by_none() -> None:
    """Then a cycle ends by its deadline. Nothing is refused that could have been answered."""
    turn = run(asyncio.Event().wait)
    hidden: Any = object()
    assert eager_task_waiting_for(hidden) is None
    turn.cancel()
    await turns()
