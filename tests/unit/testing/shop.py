"""The application of these tests: counters, orders that ask a stock, and alarms."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

from shardbus import Entity, Rejection, ShardBus, StopReason, handler

bus = ShardBus("shop")
heard: list[str] = []
"""The reports of callbacks and entities; a test clears it."""


@dataclass
class Total:
    value: int = 0


@bus.message
@dataclass
class OutOfStock(Rejection):
    left: int = 0


@bus.entity("counter", shards=12)
class Counter(Entity):
    state: Total

    @handler
    async def add(self, amount: int = 1) -> int:
        self.state.value += amount
        await self.save()
        return self.state.value

    @handler
    async def add_slowly(self, amount: int, seconds: float) -> int:
        self.state.value += amount
        await asyncio.sleep(seconds)
        await self.save()
        return self.state.value

    @handler
    def total(self) -> int:
        return self.state.value

    @handler(thread=True)
    def in_thread(self) -> bool:
        return threading.current_thread() is not threading.main_thread()

    @handler(thread=True)
    def fails_in_thread(self) -> bool:
        raise ValueError("no")

    @handler
    def here(self) -> str:
        return str(bus.cluster.node.host)

    @handler
    async def copy_to(self, other: str) -> int:
        return await bus.ref(Counter, other).add(self.state.value)

    async def on_stop(self, reason: StopReason) -> None:
        heard.append(f"{self.context.entity_id} stops: {reason.value}")


@bus.entity("stock")
class Stock(Entity):
    @handler
    def take(self, count: int) -> int:
        return 100 - count


@bus.entity("order")
class Order(Entity):
    @handler
    async def place(self, count: int) -> int:
        return await self.context.ref(Stock, "main").take(count)


class EmptyStock(Entity):
    """Stands for the stock in a test."""

    @handler
    def take(self, count: int) -> int:
        raise OutOfStock(left=3)


@bus.entity("alarm")
class Alarm(Entity):
    rung: list[float]

    async def on_start(self) -> None:
        self.rung = []
        self.context.schedule(10.0, "ring")

    @handler
    def ring(self) -> None:
        self.rung.append(asyncio.get_running_loop().time())

    @handler
    def count(self) -> int:
        return len(self.rung)


@dataclass
class Log:
    lines: list[str] = field(default_factory=list)


class Undeclared(Entity):
    """An entity that no application has declared."""

    state: Log

    @handler
    async def write(self, line: str) -> int:
        self.state.lines.append(line)
        await self.save()
        return len(self.state.lines)


@bus.on_member_up
def up() -> None:
    heard.append(f"{bus.cluster.node.host} is up")


@bus.on_member_removed
async def removed() -> None:
    heard.append(f"{bus.cluster.node.host} is removed")


@bus.on_shutdown("before-service-unbind")
async def leaving() -> None:
    await asyncio.sleep(0.1)
    heard.append(f"{bus.cluster.node.host} leaves")
