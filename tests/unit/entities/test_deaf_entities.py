"""Entities that are busy although nothing of theirs runs: they are found, logged once and named."""

from __future__ import annotations

import asyncio

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.entities.activation import Activation
from shardbus.entities.deaf_entities import LOOKS
from tests.unit.entities.entity_kit import Bench
from tests.waiting import turns

SECOND = 20


class Gate:
    def __init__(self) -> None:
        self.open = asyncio.Event()


def bench(gate: Gate) -> Bench:
    bus = ShardBus("shop")

    @bus.entity("page", passivate_after=0)
    class Page(Entity):
        @handler
        def hit(self) -> int:
            return 1

        @handler
        async def wait(self) -> int:
            await gate.open.wait()
            return 2

    return Bench(bus)


async def planted(on: Bench) -> Activation:
    """An entity that a defect has left busy, and a message for it."""
    assert await on.ask("7", "hit") == 1
    activation = on.activation("7")
    assert activation is not None
    activation.busy = True
    on.tell("7", "hit")
    return activation


async def look(on: Bench, times: int) -> None:
    for _ in range(times):
        on.pass_ticks(SECOND)
        await turns(3)


async def test_an_entity_that_is_busy_without_a_task_is_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    on = bench(Gate())
    activation = await planted(on)
    await look(on, LOOKS - 1)
    assert (on.host.deaf.count, on.host.deaf.named()) == (0, [])
    await look(on, 5)
    assert (on.host.deaf.count, on.host.deaf.named()) == (1, ["7"])
    [line] = [r for r in caplog.records if "without a task" in r.getMessage()]
    assert line.getMessage() == "page '7' is busy without a task since 3 s: it takes no message"
    on.host.runner.settle(activation)  # as if it went on
    await look(on, 1)
    assert (on.host.deaf.count, activation.busy) == (0, False)


async def test_a_handler_that_waits_is_not_deaf_however_long() -> None:
    gate = Gate()
    on = bench(gate)
    waits, hits = on.ask("7", "wait"), on.ask("7", "hit")
    await look(on, 3 * LOOKS)
    assert on.host.deaf.count == 0
    gate.open.set()
    assert (await waits, await hits) == (2, 1)


async def test_a_task_that_has_ended_does_not_count() -> None:
    gate = Gate()
    on = bench(gate)
    waits = on.ask("7", "wait")
    activation = on.activation("7")
    assert activation is not None
    task = activation.task
    assert task is not None
    on.tell("7", "hit")
    task.on_end = None  # the end goes unnoticed
    gate.open.set()
    await look(on, LOOKS + 1)
    assert on.host.deaf.named() == ["7"]
    waits.cancel()


async def test_nothing_is_deaf_while_the_node_is_suspended() -> None:
    on = bench(Gate())
    assert await on.ask("7", "hit") == 1
    on.gate.confirmed(on.now)
    held = on.ask("7", "hit")
    await look(on, 2 * LOOKS)
    for tick in range(2 * LOOKS):  # also if the looks went on
        on.host.deaf.sweep(tick)
    assert on.host.deaf.count == 0
    on.gate.confirmed(on.now + 10.0)
    on.gate.poll()
    assert await held == 1
