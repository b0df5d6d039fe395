"""One handler, one task, one context: code in handlers beside the same code in tasks of asyncio."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, ClassVar
from weakref import ReferenceType, WeakKeyDictionary, ref

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.errors import EntityFailed
from shardbus.tasks.eager import EagerRunner
from tests.unit.entities.entity_kit import Bench
from tests.unit.tasks.eager_kit import Work, drive
from tests.waiting import turns, until

color: contextvars.ContextVar[Any] = contextvars.ContextVar("color", default="none")
Act = Callable[[Any], object]
"""Code of a handler that gets `current_task()`."""


async def at_once() -> None:
    """Nothing to wait for."""


async def a_turn() -> None:
    await asyncio.sleep(0)


# ---- one task beside asyncio's


def described(task: Any) -> str:
    """Return the outcome of a task that is done."""
    if task.cancelled():
        return "cancelled"
    return repr(task.exception() or task.result())


def cancel(task: Any) -> None:
    task.cancel("why")


def nothing(task: Any) -> None:
    pass


def fail(task: Any) -> None:
    raise ValueError("bad")


@pytest.mark.parametrize("pause", [at_once, a_turn])
@pytest.mark.parametrize("act", [nothing, cancel, fail])
async def test_a_first_step_ends_as_a_task_of_asyncio(pause: Work, act: Act) -> None:
    """Whoever keeps the task finds the outcome, and is called back once."""

    async def outcome(run: Callable[[Work], Any]) -> tuple[str, list[str], int, object]:
        kept: list[Any] = []
        called: list[str] = []

        async def work() -> int:
            task = asyncio.current_task()
            assert task is not None
            kept.append(task)
            task.add_done_callback(lambda done: called.append(described(done)))
            act(task)
            await pause()
            return 7

        run(work)
        await until(lambda: kept and kept[0].done() and called, "it has ended")
        await turns()
        return described(kept[0]), called, kept[0].cancelling(), kept[0].cancel()

    driver = EagerRunner(asyncio.get_running_loop())
    ours = await outcome(lambda work: drive(driver, work))
    assert ours == await outcome(lambda work: asyncio.ensure_future(work()))


# ---- handlers of a run


class Tasks(Entity):
    """Handlers that keep their task, or leave a trace, in each way."""

    kept: list[Any]
    watched: WeakKeyDictionary[Any, str]

    def keep(self, how: str) -> object:
        task: Any = asyncio.current_task()
        is_watched = any(
            key() is task for key in self.watched.keyrefs()
        )  # `in` would leave a trace
        before = [color.get(), is_watched, task.get_name(), getattr(task, "note", "")]
        match how:
            case "list":
                self.kept.append(task)
            case "weak":
                self.watched[task] = self.context.entity_id
            case "attribute":
                task.note = "mine"
            case "name":
                task.set_name("mine")
            case "callback":
                task.add_done_callback(lambda _: self.kept.append("called"))
            case "cancel":
                task.cancel()
            case "variable":
                color.set(self.context.entity_id)
            case "array":
                color.set(NoTruth())
            case "raise":
                self.kept.append(task)
                raise ValueError("bad")
        return before

    @handler
    def plain(self, how: str) -> Any:
        return self.keep(how)

    @handler
    async def at_once(self, how: str) -> Any:
        return self.keep(how)

    @handler
    async def waits(self, how: str) -> Any:
        before = self.keep(how)
        await asyncio.sleep(0)
        return before

    @handler(thread=True)
    def thread(self, how: str) -> Any:
        before = color.get()
        color.set(self.context.entity_id)
        return [before, False, "", ""]


class NoTruth:
    """Compares as arrays do."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


WAYS = ["list", "weak", "attribute", "name", "callback", "cancel", "variable", "array", "raise"]
METHODS = ["plain", "at_once", "waits", "thread"]


@pytest.fixture
async def bench() -> Bench:
    bus = ShardBus("test")
    bus.entity(name="kept")(type("Kept", (Tasks,), {"kept": [], "watched": WeakKeyDictionary()}))
    return Bench(bus)


def clean(answer: Any) -> bool:
    """True if a handler has found nothing of another one."""
    if isinstance(answer, EntityFailed):
        return True
    value, is_known, name, note = answer
    return value == "none" and not is_known and not note and name != "mine"


@pytest.mark.parametrize("before", [False, True], ids=["starting", "running"])
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("method", METHODS)
async def test_no_handler_finds_what_another_one_has_left(
    bench: Bench, method: str, how: str, before: bool
) -> None:
    if before:
        await asyncio.gather(*bench.ask_many("plain", *((f"e{i}", ("",)) for i in range(6))))
    hows = ["", how, "", how, how, ""]
    asks = bench.ask_many(method, *((f"e{i}", (mark,)) for i, mark in enumerate(hows)))
    for other in ("plain", "at_once", "waits", "thread"):
        asks += bench.ask_many(other, ("e9", ("",)), ("e1", ("",)))
    for got in await asyncio.gather(*asks, return_exceptions=True):
        assert clean(got), got
    kept = [id(mark) for mark in bench.kind.cls.kept if mark != "called"]  # type: ignore[attr-defined]
    assert len(set(kept)) == len(kept), "no two handlers had one task"


@pytest.mark.parametrize("method", ["plain", "at_once", "waits"])
async def test_a_request_to_cancel_reaches_no_later_handler(bench: Bench, method: str) -> None:
    [first] = bench.ask_many(method, ("a", ("list",)))
    await first
    [task] = bench.kind.cls.kept  # type: ignore[attr-defined]
    others = bench.ask_many("waits", ("b", ("",)), ("c", ("",)))
    assert task.done()
    assert not task.cancel()
    for got in await asyncio.gather(*others):
        assert clean(got)


@pytest.mark.parametrize("method", ["plain", "at_once", "waits"])
async def test_a_handler_that_cancels_itself_fails_its_message(bench: Bench, method: str) -> None:
    asks = bench.ask_many(method, ("a", ("cancel",)), ("b", ("",)))
    got = await asyncio.gather(*asks, return_exceptions=True)
    assert isinstance(got[0], EntityFailed)
    assert got[0].type == "CancelledError"
    assert clean(got[1])


class Quiet(Entity):
    """Handlers that look at their task and leave no trace, or only a weak reference."""

    seen: ClassVar[list[ReferenceType[Any]]] = []

    @handler
    def weakly(self) -> bool:
        task = asyncio.current_task()
        is_seen = any(reference() is task for reference in self.seen)
        self.seen.append(ref(task))
        return is_seen

    @handler
    def plain(self) -> int:
        return id(asyncio.current_task())

    @handler
    async def at_once(self) -> int:
        return id(asyncio.current_task())


@pytest.mark.parametrize("method", ["plain", "at_once"])
async def test_handlers_without_traces_share_a_task(method: str) -> None:
    bus = ShardBus("test")
    bus.entity(name="quiet")(Quiet)
    bench = Bench(bus)
    rows = [(f"e{i}", ()) for i in range(50)]
    for _ in range(3):
        assert len(set(await asyncio.gather(*bench.ask_many(method, *rows)))) == 1


async def test_a_task_with_a_weak_reference_serves_no_later_run() -> None:
    bus = ShardBus("test")
    bus.entity(name="quiet")(Quiet)
    bench = Bench(bus)
    Quiet.seen.clear()
    assert [await bench.ask("a", "weakly") for _ in range(3)] == [False] * 3
    assert all(reference() is None or reference().done() for reference in Quiet.seen)
