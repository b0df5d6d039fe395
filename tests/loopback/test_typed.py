"""Dataclasses end to end: many in a batch, by tell and by ask, each as it was sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from shardbus import Entity, SchemaError, ShardBus, handler
from tests.loopback.nodes import Nodes
from tests.waiting import until

IDS = [f"sensor-{i}" for i in range(60)]


@dataclass
class Reading:
    at: float
    value: int
    tags: list[str] = field(default_factory=list)


def application() -> tuple[ShardBus, Any]:
    bus = ShardBus("plant")

    @bus.entity("sensor", shards=12)
    class Sensor(Entity):
        log: ClassVar[list[tuple[str, Reading]]] = []

        @handler
        def note(self, reading: Reading) -> int:
            self.log.append((self.context.entity_id, reading))
            return reading.value

        @handler
        async def later(self, reading: Reading) -> int:
            await asyncio.sleep(0)
            return self.note(reading)

        def receive(self, message: Reading) -> int:
            return self.note(message)

    return bus, Sensor


def reading(n: int) -> Reading:
    return Reading(n / 2, n, [str(n)])


EXPECTED = [(entity_id, reading(n)) for n, entity_id in enumerate(IDS)]


@pytest.mark.parametrize("how", ["note", "later", "tell"])
async def test_many_tells_in_a_batch(nodes: Nodes, how: str) -> None:
    bus, sensor = application()
    await nodes.cluster(bus, 1)
    client = await nodes.client()
    for n, entity_id in enumerate(IDS):
        ref = client.ref(sensor, entity_id)
        await (ref.tell(reading(n)) if how == "tell" else getattr(ref, how).tell(reading(n)))
    await until(lambda: len(sensor.log) == len(IDS), "every message")
    assert sorted(sensor.log, key=lambda entry: entry[1].value) == EXPECTED


@pytest.mark.parametrize("how", ["note", "later", "ask"])
async def test_many_asks_in_a_batch(nodes: Nodes, how: str) -> None:
    bus, sensor = application()
    await nodes.cluster(bus, 1)
    client = await nodes.client()
    refs = [client.ref(sensor, entity_id) for entity_id in IDS]
    assert await asyncio.gather(
        *(getattr(ref, how)(reading(n)) for n, ref in enumerate(refs))
    ) == list(range(len(IDS)))
    assert sorted(sensor.log, key=lambda entry: entry[1].value) == EXPECTED


async def test_one_in_a_batch_that_does_not_fit(nodes: Nodes) -> None:
    bus, _ = application()
    await nodes.cluster(bus, 1)
    client = await nodes.client()
    sent = [{"at": 1} if n == 7 else reading(n) for n in range(len(IDS))]
    answers = await asyncio.gather(
        *(client.call("sensor", i, "note", m) for i, m in zip(IDS, sent, strict=True)),
        return_exceptions=True,
    )
    assert isinstance(answers[7], SchemaError)
    assert "required field `value`" in str(answers[7])
    assert [a for n, a in enumerate(answers) if n != 7] == [n for n in range(len(IDS)) if n != 7]
