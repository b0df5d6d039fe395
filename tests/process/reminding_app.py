"""The application of the process tests of reminders: each firing is a line in a file, or an event
of a chime."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from shardbus import Entity, EventSourced, ShardBus, event, handler

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


@dataclass(frozen=True)
class Rang:
    number: int


@dataclass
class Rung:
    numbers: list[int] = field(default_factory=list)


@bus.entity("chime", shards=24, snapshot_after=3)
class Chime(EventSourced):
    """Rings each second, until it has rung `TIMES` times."""

    TIMES = 8
    state: Rung

    @event
    def rang(self, event: Rang) -> None:
        self.state.numbers.append(event.number)

    @handler
    async def begin(self) -> None:
        await self.context.remind("ring", after=1, every=1, late="all")
        await self.persist(Rang(0))

    @handler
    async def ring(self) -> None:
        reminder = self.context.reminder
        assert reminder is not None
        if reminder.number == self.TIMES:
            await self.context.forget("ring")
        await self.persist(Rang(reminder.number))

    @handler
    def numbers(self) -> list[int]:
        return self.state.numbers
