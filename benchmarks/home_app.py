"""The entities of `benchmarks.home`, which ask and tell one another on one node, and the same work
without entities."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from shardbus import Entity, ShardBus, handler

bus = ShardBus("home")

CHAIN = 10


@dataclass
class Reading:
    """Hold four fields, as messages of applications do."""

    sensor: str
    at: float
    value: int
    payload: bytes


@bus.entity(name="callee", shards=16, passivate_after=3600.0)
class Callee(Entity):
    """Count the messages that arrive."""

    def __init__(self) -> None:
        self.count = 0
        self.next: Any = None
        """The next entity of a chain."""

    @handler
    async def hit(self, payload: bytes) -> int:
        """Count one message."""
        self.count += 1
        return self.count

    @handler
    async def waiting(self, payload: bytes) -> int:
        """Count one message after a turn of the loop."""
        await asyncio.sleep(0)
        self.count += 1
        return self.count

    @handler
    async def note(self, reading: Reading) -> Reading:
        """Return a reading with another value."""
        self.count += 1
        return Reading(reading.sensor, reading.at, self.count, reading.payload)

    @handler
    async def link(self, name: str, left: int) -> int:
        """Ask the next entity of a chain, `left` more."""
        if not left:
            return 1
        if self.next is None:
            self.next = self.context.ref(Callee, f"{name}-{left}")
        return 1 + int(await self.next.link(name, left - 1))


@bus.entity(name="caller", shards=16, passivate_after=3600.0)
class Caller(Entity):
    """Ask from within a handler."""

    @handler
    async def ask_often(self, times: int, payload: bytes) -> list[float]:
        """Ask one entity one message at a time; return the microseconds that each ask took."""
        call, taken, clock = (
            self.context.ref(Callee, "beside").hit,
            list[float](),
            time.monotonic_ns,
        )
        for _ in range(times):
            began = clock()
            await call(payload)
            taken.append((clock() - began) / 1e3)
        return taken


class Bare:
    """The callee without an entity: a coroutine call with copies of arguments and answer."""

    def __init__(self) -> None:
        self.callee = Callee.__new__(Callee)
        self.callee.count = 0
        self._encode = msgspec.msgpack.Encoder().encode
        self._read_hit = msgspec.msgpack.Decoder(tuple[bytes]).decode
        self._read_note = msgspec.msgpack.Decoder(tuple[Reading]).decode
        self._read_count = msgspec.msgpack.Decoder(int).decode
        self._read_reading = msgspec.msgpack.Decoder(Reading).decode

    async def hit(self, payload: bytes) -> int:
        """As `Callee.hit`."""
        encode, callee = self._encode, self.callee
        return self._read_count(encode(await callee.hit(*self._read_hit(encode((payload,))))))

    async def note(self, reading: Reading) -> Reading:
        """As `Callee.note`."""
        encode, callee = self._encode, self.callee
        return self._read_reading(encode(await callee.note(*self._read_note(encode((reading,))))))
