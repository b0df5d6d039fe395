"""Sessions in memory are carried through a rolling upgrade of three real nodes.

Carried state may lawfully be lost: a move that was refused is tried in mode `buffer`, and a
session between two homes may break. So baskets are compared with the nodes' own counts. A
session that lost its basket has started by a message, and one that kept it has not. Each session
gets one message at a time, so both are exact, however busy the machine is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import httpx
import pytest

from shardbus import AsyncClient
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import PATIENCE_S, until

APP = "examples.sessions:bus"
SESSIONS = [f"visitor-{n}" for n in range(60)]
SETTINGS = ("sharding.rebalance_interval=300",)
STARTED = 'shardbus_entities_started_total{cause="%s",entity_type="session"}'
RESTORED = 'shardbus_entities_carried_total{entity_type="session",outcome="restored"}'


def client_of(lab: Processes) -> AsyncClient:
    addresses = [f"tcp://{node.address}" for node in lab.live]
    return AsyncClient(
        *addresses, cluster="sessions", timeout=PATIENCE_S, connect_timeout=PATIENCE_S
    )


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


@dataclass
class Counts:
    """The counts of all nodes, ended ones included: such a node starts no session
    after its last look."""

    by_node: dict[str, dict[str, int]] = field(default_factory=dict)

    async def look(self, lab: Processes) -> None:
        for node in lab.live:
            self.by_node[node.name] = await metrics(node)

    def total(self, name: str) -> int:
        return sum(counts.get(name, 0) for counts in self.by_node.values())


async def metrics(node: NodeProcess) -> dict[str, int]:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        page = await http.get(f"http://127.0.0.1:{node.http_port}/metrics")
    rows = (line.rpartition(" ") for line in page.text.splitlines() if "{" in line)
    return {name: int(float(value)) for name, _, value in rows if "session" in name}


@pytest.mark.long
async def test_a_rolling_upgrade_keeps_every_session_that_was_carried(lab: Processes) -> None:
    await lab.cluster(3, app=APP, settings=SETTINGS)
    counts, baskets = Counts(), dict.fromkeys(SESSIONS, 0)
    await put("tea", lab, counts, baskets)
    for count in range(1, 4):
        await lab.start(app=APP, settings=SETTINGS)
        await lab.agree()
        await settled(lab)
        await counts.look(lab)
        assert await lab.live[0].terminate() == 0
        await lab.agree()
        await put(f"cake {count}", lab, counts, baskets)
    await check_moves(lab, counts, baskets)


async def put(item: str, lab: Processes, counts: Counts, baskets: dict[str, int]) -> None:
    """Put an item into each basket: every one has all that was put into it since its session has
    started by a message."""
    empty, before = 0, counts.total(STARTED % "message")
    async with client_of(lab) as client:
        for visitor in SESSIONS:
            size = await client.call("session", visitor, "put", item)
            empty += size == 1
            assert size in (1, baskets[visitor] + 1), visitor
            baskets[visitor] = size
    await counts.look(lab)
    assert counts.total(STARTED % "message") - before == empty


async def check_moves(lab: Processes, counts: Counts, baskets: dict[str, int]) -> None:
    """Each node has ended, so a session that was never lost has moved, and each of its moves is
    one that a node has restored."""
    moves = 0
    async with client_of(lab) as client:
        for visitor in SESSIONS:
            shown = await client.call("session", visitor, "show")
            items = ["tea", "cake 1", "cake 2", "cake 3"][4 - baskets[visitor] :]
            assert shown["basket"] in (items, [])
            moves += shown["moves"]
            assert shown["moves"] >= 1 or len(shown["basket"]) < 4, visitor
    await counts.look(lab)
    restored = counts.total(RESTORED)
    lost = counts.total(STARTED % "message") - len(SESSIONS)
    assert moves == restored if not lost else moves <= restored
