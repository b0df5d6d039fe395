"""The event counter on real nodes: its count outlives its memory and its node."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from examples.event_counter import Counter, Decrement, EntityEnvelope, Get, Increment
from shardbus import AsyncClient, NodeLost, Region
from tests.ports import free_port
from tests.process.nodes import QUICK, NodeProcess, Processes
from tests.waiting import PATIENCE_S, until

NUMBERS = range(20)


def begin(lab: Processes, **environment: str) -> NodeProcess:
    """Start a node of the event counter."""
    port, gossip_port, http_port = free_port(), free_port(), free_port()
    command = ["node", "start", "examples.event_counter:bus", "--store", lab.store]
    command += ["--port", str(port), "--gossip-port", str(gossip_port)]
    command += ["--http-port", str(http_port), "--log-format", "pretty"]
    for assignment in QUICK:
        command += ["--set", assignment]
    for seed in lab.live[:1]:
        command += ["--seed", seed.address]
    node = lab.run(*command, **environment)
    node.port, node.http_port = port, http_port
    return node


async def values(counters: Region) -> list[Any]:
    """The totals of all counters; a question that died with its node is asked again."""

    async def value(number: int) -> Any:
        for _ in range(100):
            with suppress(NodeLost):
                return await counters.ask(Get(number), timeout=PATIENCE_S)
        raise AssertionError(f"no answer about counter {number}")

    return await asyncio.gather(*map(value, NUMBERS))


@pytest.mark.long
async def test_S2_9_counters_survive_passivation_and_a_kill(lab: Processes) -> None:
    first = begin(lab, COUNTER_IDLE="0.5")
    await until(first.ready, "the first node")
    second = begin(lab, COUNTER_IDLE="0.5")
    await lab.agree()
    addresses = [f"tcp://{node.address}" for node in (first, second)]
    async with AsyncClient(
        *addresses, cluster="counters", timeout=PATIENCE_S, connect_timeout=PATIENCE_S
    ) as client:
        counters = client.region(Counter)
        for n in NUMBERS:
            for command in (Increment(), Increment(), Decrement()):
                await counters.tell(EntityEnvelope(n, command))
        assert await values(counters) == [1] * len(NUMBERS)

        async def in_memory() -> int:
            page = await second.page("/v1/nodes")
            return sum(row["entities"]["Counter"] for row in page["nodes"])

        async def nobody() -> bool:
            return await in_memory() == 0

        await until(nobody, "passivation of all")
        assert await values(counters) == [1] * len(NUMBERS)
        shards = (await second.page("/v1/shards/Counter"))["shards"]
        assert {row["node"].partition("#")[0] for row in shards} == {first.address, second.address}
        first.kill()
        assert await values(counters) == [1] * len(NUMBERS)
        await counters.tell(EntityEnvelope(7, Increment()))
        assert await counters.ask(Get(7)) == 2
    await second.terminate()
