"""The application of the process tests, whose nodes also write down how many tasks they have."""

from __future__ import annotations

import asyncio
import os

from tests.process.app import FOLDER, bus

__all__ = ["bus"]

INTERVAL_S = 2.0
_kept: list[asyncio.Task[None]] = []


@bus.on_member_up
def begin() -> None:
    """Write the number of tasks from now on."""
    _kept.append(asyncio.ensure_future(count()))


async def count() -> None:
    """Write the number of tasks, again and again."""
    path = FOLDER / f"tasks-{os.getpid()}"
    while True:
        path.write_text(str(len(asyncio.all_tasks())))
        await asyncio.sleep(INTERVAL_S)
