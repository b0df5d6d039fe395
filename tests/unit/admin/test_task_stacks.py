"""Where tasks wait: groups with counts, places without values, bounded, and the loop turns."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.admin import task_stacks as module
from shardbus.admin.task_stacks import NAME_CHARS, NAMES_MAX, Places, task_stacks

HERE = "tests/unit/admin/test_task_stacks.py"


async def wait_for(gate: asyncio.Event) -> None:
    password = "the value of a variable"
    await gate.wait()
    assert password


async def steps(gate: asyncio.Event) -> AsyncIterator[int]:
    await wait_for(gate)
    yield 1


async def through_a_generator(gate: asyncio.Event) -> None:
    async for _ in steps(gate):
        pass


async def deep(gate: asyncio.Event, depth: int) -> None:
    await (deep(gate, depth - 1) if depth else gate.wait())


@asynccontextmanager
async def running(*coroutines: Any) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Tasks that have run up to where they wait."""
    names = (f"reader {n}" for n in range(len(coroutines)))
    tasks = [asyncio.create_task(work, name=name) for work, name in zip(coroutines, names)]  # noqa: B905
    await asyncio.sleep(0)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def listed() -> dict[str, Any]:
    return await task_stacks(asyncio.get_running_loop(), ())


def group_of(page: dict[str, Any], function: str) -> dict[str, Any]:
    """Return the only group with this function in its stack."""
    [group] = [g for g in page["groups"] if any(function in place for place in g["stack"])]
    return dict(group)


async def test_tasks_at_one_place_are_one_group_with_some_names() -> None:
    gate = asyncio.Event()
    async with running(*(wait_for(gate) for _ in range(NAMES_MAX + 3))):
        page = await listed()
    group = group_of(page, "wait_for")
    assert (group["count"], group["state"]) == (NAMES_MAX + 3, "waiting")
    assert group["waits_for"] == "Future"
    assert len(group["names"]) == NAMES_MAX
    assert set(group["names"]) <= {f"reader {n}" for n in range(NAMES_MAX + 3)}
    assert [place.rpartition(" in ")[2] for place in group["stack"]] == ["wait_for", "Event.wait"]
    line = wait_for.__code__.co_firstlineno + 2
    assert group["stack"][0] == f"{HERE}:{line} in wait_for"
    assert page["tasks"] == NAMES_MAX + 4, "and the one that asks"
    assert page["left_out"] == 0


async def test_no_value_and_no_folder_of_the_machine_is_in_it() -> None:
    async with running(wait_for(asyncio.Event())):
        text = json.dumps(await listed())
    assert "the value of a variable" not in text
    assert '"/' not in text


async def test_states_and_what_a_task_waits_for() -> None:
    gate = asyncio.Event()

    async def of_another(task: asyncio.Task[Any]) -> None:
        await task

    async def stubborn() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            await gate.wait()

    async with running(wait_for(gate), stubborn()) as [inner, ending]:
        async with running(of_another(inner)):
            ending.cancel()
            await asyncio.sleep(0)
            fresh = asyncio.create_task(wait_for(gate), name="fresh")
            page = await listed()
            fresh.cancel()
        ending.cancel()
    assert group_of(page, "of_another")["waits_for"] == "Task"
    assert group_of(page, "stubborn")["state"] == "ending"
    assert [g["names"] for g in page["groups"] if g["state"] == "ready"] == [["fresh"]]
    [group] = [g for g in page["groups"] if g["state"] == "running"]
    assert "test_states" in group["stack"][0]


async def test_long_stacks_keep_their_innermost_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = asyncio.Event()
    async with running(deep(gate, 100), through_a_generator(gate)):
        page = await listed()
        monkeypatch.setattr(module, "FRAMES_MAX", 3)
        short = await listed()
    assert len(group_of(page, "through_a_generator")["stack"]) == 1, "Python tells no more"
    assert len(group_of(page, "in deep")["stack"]) == 40
    stack = group_of(short, "in deep")["stack"]
    assert [place.rpartition(" in ")[2] for place in stack] == ["deep", "deep", "Event.wait"]


async def test_what_is_beyond_the_bounds_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()
    async with running(*(deep(gate, n % 4) for n in range(40)), wait_for(gate)) as tasks:
        tasks[0].set_name("x" * 1000)
        monkeypatch.setattr(module, "GROUPS_MAX", 2)
        few_groups = await listed()
        monkeypatch.setattr(module, "TASKS_MAX", 5)
        few_tasks = await listed()
    assert [g["count"] for g in few_groups["groups"]] == [10, 10]
    assert few_groups["left_out"] == 22
    assert few_tasks["tasks"] == 42
    assert sum(g["count"] for g in few_tasks["groups"]) + few_tasks["left_out"] == 42
    names = [name for g in (*few_groups["groups"], *few_tasks["groups"]) for name in g["names"]]
    assert max(map(len, names)) <= NAME_CHARS


async def test_the_loop_turns_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 4)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with running(turn(), *(wait_for(asyncio.Event()) for _ in range(40))):
        before = turns
        await listed()
        assert turns - before >= 10


async def test_handlers_that_wait_are_named_by_their_method_and_entity() -> None:
    task = asyncio.create_task(wait_for(asyncio.Event()))
    await asyncio.sleep(0)
    handlers = SimpleNamespace(tasks={id(task): task}, running=lambda one: "add of cart '7'")
    host = SimpleNamespace(runner=SimpleNamespace(running_handlers=handlers))
    region: Any = SimpleNamespace(host=host, name="cart")
    page = await task_stacks(asyncio.get_running_loop(), [region])
    task.cancel()
    assert "add of cart '7'" in group_of(page, "wait_for")["names"]


@pytest.fixture
def thread() -> Iterator[threading.Thread]:
    gate = threading.Event()

    def stands_still() -> None:
        gate.wait()

    thread = threading.Thread(target=stands_still, name="standing")
    thread.start()
    yield thread
    gate.set()
    thread.join()


async def test_threads_have_their_stacks(thread: threading.Thread) -> None:
    rows: Any = (await listed())["threads"]
    [row] = [row for row in rows if row["name"] == "standing"]
    assert any("stands_still" in place for place in row["stack"])
    assert threading.current_thread().name not in [row["name"] for row in rows]


def test_a_file_is_named_from_the_innermost_folder_of_the_path() -> None:
    def here() -> None: ...

    code = here.__code__.replace(co_filename="/opt/app/lib/shop/cart.py")
    assert Places(["/opt/app", "/opt/app/lib"]).text(code, 7).startswith("shop/cart.py:7 in ")
    assert Places([]).text(code, 7).startswith("shop/cart.py:7 in ")
    built_in = code.replace(co_filename="<frozen runpy>")
    assert Places(["/opt"]).text(built_in, 7).startswith("<frozen runpy>:7 in ")
