"""The world of one phase of leaving: the node's own work in it, and a task of the application.

    own ends, own raises     the node's own work
    task ends, task raises   the application's
    cancel                   whoever waits for the phase gives up
    second, late             time passes; more than the phase has

Laws: the phase is done in time if and only if the own work ended well in time; an error of that
work is not lost; a task of the application stops nothing. At rest nothing runs on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from typing import Any

from shardbus.config.settings import ShutdownSettings
from shardbus.node.shutdown_phases import Phases
from tests.explore.on_a_loop import LoopOfWorld

PHASE, SECONDS = "service-stop", 5.0


class PhaseWorld:
    """One phase that has begun."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.world = LoopOfWorld()
        self.phases = Phases(ShutdownSettings())
        self.work: dict[str, asyncio.Future[None]] = {
            name: self.world.loop.create_future() for name in ("own", "task")
        }
        self.runs = {"own": True, "task": True}
        self.expected: bool | type[BaseException] | None = None
        self.phases.add(PHASE, lambda: self._wait("task"))
        run = self.phases.run(PHASE, SECONDS, lambda text: None, self._wait("own"))
        self.run: Any = self.world.spawn(run)

    async def _wait(self, name: str) -> None:
        try:
            await self.work[name]
        finally:
            self.runs[name] = False

    def events(self) -> Iterable[str]:
        verbs = ["second", "late"]
        verbs += [
            f"{name} {how}"
            for name, future in self.work.items()
            if not future.done()
            for how in ("ends", "raises")
        ]
        return verbs if self.run.done() else [*verbs, "cancel"]

    def do(self, event: str) -> None:
        open_before = not self.run.done()
        match event.split():
            case [name, "ends"]:
                self.world.run(self.work[name].set_result, None)
                if name == "own" and open_before:
                    self.expected = True
            case [name, "raises"]:
                self.world.run(self.work[name].set_exception, ValueError(name))
                if name == "own" and open_before:
                    self.expected = ValueError
            case ["cancel"]:
                self.world.run(self.run.cancel)
                self.expected = asyncio.CancelledError
            case ["second"]:
                self.world.wait(1.0)
            case ["late"]:
                self.world.wait(SECONDS + 1)
        if self.run.done() and self.expected is None:
            self.expected = False
        self._check()

    def _check(self) -> None:
        if not self.run.done():
            return
        if self.run.cancelled():
            assert self.expected is asyncio.CancelledError
        elif (error := self.run.exception()) is not None:
            assert type(error) is self.expected, f"the phase raises {error!r}"
        else:
            assert self.run.result() == self.expected, f"the phase returns {self.run.result()}"

    def key(self) -> Hashable:
        done = tuple(
            (future.done(), future.done() and not future.cancelled() and bool(future.exception()))
            for future in self.work.values()
        )
        left = max(0, round(SECONDS - self.world.loop.time()))
        return done, self.run.done(), self.expected, left

    def rest(self) -> None:
        self.do("late")
        assert self.run.done()
        assert not any(self.runs.values()), f"{self.runs} run on"

    def close(self) -> None:
        if self.run.done() and not self.run.cancelled():
            self.run.exception()
        self.world.close()
