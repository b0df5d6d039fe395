"""Where the tasks of a node wait: the stacks of its asyncio tasks, of the handlers that wait, which
have no such task, and of its threads.

Thousands of tasks may wait at one place, so tasks with the same stack are one group with a count
and the names of some of them. A stack has places only, no values: a task's data stays out of it.
Files are named from where Python finds them, so that the folders of a machine stay out, too.

    task ──frames──> places, innermost last ──┐
    task ──waits for──> Future, Task ...      ├──> group: count, names, stack
    task ──state──> ready, waiting ...        ┘

Bounds: `TASKS_MAX` tasks are looked at, `SLICE` between two turns of the loop; a stack has its
innermost `FRAMES_MAX` places, a group `NAMES_MAX` names, the answer the `GROUPS_MAX` largest
groups.

Source: docs/reference/http.md; N.21.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterable, Iterator
from heapq import nlargest
from pathlib import Path
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any, NamedTuple

from shardbus.entities.slow_handlers import frames_of
from shardbus.http.page import Json
from shardbus.shells.region import RegionShell
from shardbus.tasks.eager import EagerTask
from shardbus.tasks.internals import awaited_by

TASKS_MAX = 20_000
SLICE = 256
FRAMES_MAX = 40
GROUPS_MAX = 200
NAMES_MAX = 5
NAME_CHARS = 120
THREADS_MAX = 100

Stack = tuple[tuple[CodeType, int], ...]


class Seen(NamedTuple):
    """The common features of the tasks of one group."""

    state: str
    waits_for: str
    stack: Stack


class TaskGroups:
    """Tasks by their common features, with their number and the names of the first."""

    def __init__(self) -> None:
        self.counts: dict[Seen, int] = {}
        self.names: dict[Seen, list[str]] = {}

    def add(self, seen: Seen, name: str) -> None:
        self.counts[seen] = self.counts.get(seen, 0) + 1
        names = self.names.setdefault(seen, [])
        if len(names) < NAMES_MAX:
            names.append(name[:NAME_CHARS])

    def rows(self, places: Places) -> list[Json]:
        """Return the largest groups as JSON, the largest first."""
        largest = nlargest(GROUPS_MAX, self.counts, key=self.counts.__getitem__)
        return [
            {
                "count": self.counts[seen],
                "state": seen.state,
                "waits_for": seen.waits_for,
                "names": self.names[seen],
                "stack": [places.text(code, line) for code, line in seen.stack],
            }
            for seen in largest
        ]


class Places:
    """Writes places of code as text: the file as Python finds it, the line, and the function."""

    def __init__(self, path: Iterable[str]) -> None:
        folders = {str(Path(folder or ".").resolve()) for folder in path}
        self._folders = sorted(folders, key=len, reverse=True)

    def text(self, code: CodeType, line: int) -> str:
        return f"{self._short(code.co_filename)}:{line} in {code.co_qualname}"

    def _short(self, file: str) -> str:
        for folder in self._folders:
            if file.startswith(f"{folder}/"):
                return file[len(folder) + 1 :]
        return "/".join(Path(file).parts[-2:])


def stack_of(frames: Iterable[tuple[FrameType, int]]) -> Stack:
    """Return the innermost places of frames whose innermost stands last."""
    return tuple((frame.f_code, line) for frame, line in frames)[-FRAMES_MAX:]


def seen_of(task: Any, current: Any) -> Seen:
    """Return the state and the stack of a task, of asyncio or of a handler."""
    waits = task.awaits if isinstance(task, EagerTask) else awaited_by(task)
    if task is current:
        state = "running"
    elif task.cancelling():
        state = "ending"
    else:
        state = "ready" if waits is None else "waiting"
    waits_for = "" if waits is None else type(waits).__name__.lstrip("_")
    return Seen(state, waits_for, stack_of(frames_of(task.get_coro())))


async def task_stacks(loop: asyncio.AbstractEventLoop, regions: Iterable[RegionShell]) -> Json:
    """Return the groups of the tasks of a loop and of the handlers that wait in it, and the stacks
    of the threads. Called in that loop."""
    current = asyncio.current_task(loop)
    every = [*_named_tasks(loop), *_handlers(regions)]
    groups = TaskGroups()
    for n, (task, name) in enumerate(every[:TASKS_MAX], 1):
        if not task.done() and task.get_coro() is not None:
            groups.add(seen_of(task, current), name)
        if n % SLICE == 0:
            await asyncio.sleep(0)
    places = Places(sys.path)
    rows = groups.rows(places)
    grouped = sum(groups.counts.values())
    return {
        "tasks": len(every),
        "left_out": max(0, len(every) - TASKS_MAX) + grouped - sum(map(_count, rows)),
        "groups": rows,
        "threads": _threads(places),
    }


def _count(row: Json) -> int:
    count = row["count"]
    assert isinstance(count, int)
    return count


def _named_tasks(loop: asyncio.AbstractEventLoop) -> Iterator[tuple[Any, str]]:
    tasks: set[Any] = set(asyncio.all_tasks(loop))
    for task in tasks:
        if not isinstance(task, EagerTask):  # one that is being cancelled: a handler
            yield task, task.get_name()


def _handlers(regions: Iterable[RegionShell]) -> Iterator[tuple[Any, str]]:
    for region in regions:
        running = region.host.runner.running_handlers
        for task in running.tasks.values():
            yield task, str(running.running(task) or region.name)


def _threads(places: Places) -> list[Json]:
    """Return the name and the stack of each thread but the asking one, innermost last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    me = threading.get_ident()
    others = [(thread, frame) for thread, frame in sys._current_frames().items() if thread != me]
    rows: list[Json] = []
    for ident, frame in others[:THREADS_MAX]:
        stack = stack_of(list(walk_stack(frame))[::-1])
        name = names.get(ident, "a thread that Python did not start")[:NAME_CHARS]
        rows.append({"name": name, "stack": [places.text(code, line) for code, line in stack]})
    return rows
