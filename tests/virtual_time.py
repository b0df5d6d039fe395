"""Tests on a loop with virtual time: waits of minutes take no time, and each run is the same."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any

from shardbus.simulation.timeline import Timeline
from shardbus.simulation.virtual_loop import VirtualLoop

LIMIT_S = 3600.0


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a virtual loop; fail if it does not end within an hour of virtual time."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        timeline = Timeline()
        errors: list[dict[str, Any]] = []
        loop = VirtualLoop(timeline, errors.append)  # type: ignore[abstract]
        task = loop.create_task(test(*arguments, **named))
        while not task.done() and not timeline.empty and timeline.now < LIMIT_S:
            timeline.step()
        assert task.done(), "the test waits for something that does not happen"
        task.result()
        loop.kill()
        assert errors == []

    return run
