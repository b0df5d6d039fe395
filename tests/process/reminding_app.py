"""The application of the process tests of reminders: each firing is a line in a file."""

from __future__ import annotations

import os
from pathlib import Path

from shardbus import Entity, ShardBus, handler

FOLDER = Path(os.environ.get("APP_FOLDER", "."))

bus = ShardBus("lab")


@bus.entity("alarm", shards=24)
class Alarm(Entity):
    """Leaves memory once it has set a reminder."""

    @handler
    async def set(self, seconds: float) -> None:
        await self.context.remind("ring", after=seconds, data=seconds)
        self.context.passivate()

    @handler
    def ring(self, seconds: float) -> None:
        reminder = self.context.reminder
        assert reminder is not None
        line = f"{self.context.entity_id} {reminder.delivery} {os.getpid()}\n"
        with (FOLDER / "rung").open("a") as file:
            file.write(line)
