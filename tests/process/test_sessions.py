"""Sessions in memory are carried through a rolling upgrade of three real nodes."""

from __future__ import annotations

from collections import Counter

import pytest

from shardbus import AsyncClient
from tests.process.nodes import Processes
from tests.waiting import PATIENCE_S, until

APP = "examples.sessions:bus"
SESSIONS = [f"visitor-{n}" for n in range(60)]
SETTINGS = ("sharding.rebalance_interval=300",)


def client_of(lab: Processes) -> AsyncClient:
    addresses = [f"tcp://{node.address}" for node in lab.live]
    return AsyncClient(*addresses, cluster="sessions", timeout=PATIENCE_S)


async def settled(lab: Processes) -> None:
    """Wait until the shards are spread evenly and none moves: the next move of each is then one
    that no earlier move gets in the way of, so it carries."""

    async def quiet() -> bool:
        page = await lab.live[0].page("/v1/shards/session")
        rows = page["shards"] if page else []
        counts = Counter(row["node"].partition("#")[0] for row in rows)
        even = max(counts.values(), default=0) - min(counts[n.address] for n in lab.live) <= 1
        return even and all(row["state"] == "running" for row in rows)

    await until(quiet, "shards that stay where they are")


@pytest.mark.long
async def test_a_rolling_upgrade_keeps_every_session(lab: Processes) -> None:
    await lab.cluster(3, app=APP, settings=SETTINGS)
    async with client_of(lab) as client:
        for visitor in SESSIONS:
            assert await client.call("session", visitor, "put", "tea") == 1
    for count in range(1, 4):
        await lab.start(app=APP, settings=SETTINGS)
        await lab.agree()
        await settled(lab)
        assert await lab.live[0].terminate() == 0
        await lab.agree()
        async with client_of(lab) as client:
            for visitor in SESSIONS:
                assert await client.call("session", visitor, "put", f"cake {count}") == 1 + count
    async with client_of(lab) as client:
        await check_baskets(client)


async def check_baskets(client: AsyncClient) -> None:
    """Every basket has all of its items, and moved with its shard."""
    moves = 0
    for visitor in SESSIONS:
        shown = await client.call("session", visitor, "show")
        assert shown["basket"] == ["tea", "cake 1", "cake 2", "cake 3"]
        moves += shown["moves"]
    assert moves >= len(SESSIONS), "each node has ended, so each session moved"
