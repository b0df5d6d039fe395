"""How a batch of writes goes to a store: one call begins it, and one callback ends it.

    begin_saves(writes, ended) ──> the store ──> ended(the outcome of each write)

Every group of writes uses this way alone (`group_commit`). Nothing else bounds the time of a
batch, so a store keeps its own deadlines: it calls `ended` once for each batch, also when it is
closed. It does so in a callback of the loop, outside of any task and never inside `begin_saves`:
the callers of the batch go on in that callback.

A store that can send without a task has `begin_saves`. Any other one, as a plug-in, has coroutines
only, and `BatchTasks` makes them into this ability with a task for each batch. The coroutines of
the first kind are adaptors, or the way of batches that one message to the server cannot have.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from shardbus.errors import StoreUnavailable
from shardbus.quantities import counted
from shardbus.task_set import TaskSet

Outcomes = Sequence[Exception | None]
"""Of each write of a batch: its error, None if the store has it. StoreUnavailable if there was no
answer; unless `definite`, the store may have the write."""
BatchEnded = Callable[[Outcomes], None]


@runtime_checkable
class BeginsSaves(Protocol):
    """A store, or the journals of one, that takes a batch without a coroutine."""

    @property
    def quick(self) -> bool:
        """True if small batches are as good as large ones: a batch costs no task here, and no disk
        there."""
        ...

    def begin_saves(self, saves: Sequence[Any], ended: BatchEnded, /) -> object:
        """Begin to write a batch of different entities. May raise; then nothing was sent, and
        `ended` is not called."""
        ...


class BatchTasks:
    """Begins batches by a coroutine, which returns the outcomes or raises."""

    quick = False

    def __init__(self, write: Callable[[Sequence[Any]], Awaitable[Outcomes]]) -> None:
        self._write, self._tasks = write, TaskSet()

    def begin_saves(self, saves: Sequence[Any], ended: BatchEnded) -> None:
        """Write a batch in a task."""
        outcomes: list[Exception | None] = []

        def end(task: object) -> None:
            if len(outcomes) < len(saves):  # the coroutine was cancelled, or ends the process
                outcomes[:] = failures(StoreUnavailable("the call was cut off"), len(saves))
            ended(outcomes)

        self._tasks.spawn(self._run(saves, outcomes), name="shardbus-saves").add_done_callback(end)

    async def _run(self, saves: Sequence[Any], outcomes: list[Exception | None]) -> None:
        try:
            outcomes += (await self._write(saves))[: len(saves)]
            if missing := len(saves) - len(outcomes):  # a defect of the store
                text = f"the store answered {len(outcomes)} of {counted(len(saves), 'save')}"
                outcomes += [ValueError(text)] * missing
        except Exception as e:
            outcomes[:] = failures(e, len(saves))


def batches_of(
    target: object, write: Callable[[Sequence[Any]], Awaitable[Outcomes]]
) -> BeginsSaves:
    """Return the ability of a store or of its journals. `write` is its coroutine."""
    return target if isinstance(target, BeginsSaves) else BatchTasks(write)


Begin = Callable[[Sequence[Any], BatchEnded], Sequence[asyncio.Future[Any]] | None]
"""Begins a batch. May return the futures of its calls: those that are cancelled are not sent any
more, and then nothing ends the batch."""


async def written(begin: Begin, writes: Sequence[Any]) -> list[Any]:
    """Return the outcomes of a batch that is begun so.

    Raises:
        StoreUnavailable: no write of it has an answer.
    """
    if not writes:
        return []
    answer: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
    calls = begin(writes, lambda outcomes: None if answer.done() else answer.set_result(outcomes))
    try:
        outcomes = await answer
    except asyncio.CancelledError:
        for call in calls or ():
            call.cancel()
        raise
    silent = [outcome for outcome in outcomes if isinstance(outcome, StoreUnavailable)]
    if silent and len(silent) == len(outcomes):
        silent[0].definite = all(outcome.definite for outcome in silent)
        raise silent[0]
    return list(outcomes)


def failures(error: Exception, count: int) -> list[Exception | None]:
    """Return the outcomes of writes that failed together."""
    if isinstance(error, StoreUnavailable):
        return [
            StoreUnavailable(error.message, hint=error.hint, definite=error.definite)
            for _ in range(count)
        ]
    return [error] * count
