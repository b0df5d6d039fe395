"""Replicated values of three real nodes with `cluster://`: entities on all of them write, operators
use commands, and one node is killed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from shardbus.data import Counter as Counted
from tests.ports import free_block
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import until

pytestmark = pytest.mark.long

APP = "tests.process.values_app:bus"
TOKEN = "sesame-sesame-16"
WRITERS = [f"writer-{n}" for n in range(12)]


@pytest.fixture
def store() -> str:
    return "cluster://"


async def start(lab: Processes) -> list[NodeProcess]:
    """Start three nodes, each with a replica."""
    ports = [free_block(4) for _ in range(3)]
    nodes = [
        lab.begin(
            app=APP,
            port=port,
            seeds=[f"127.0.0.1:{each}" for each in ports],
            settings=(
                f"node.gossip_port={port + 1}",
                f"store.path={lab.folder}/replica-{port}",
                "store.timeout=5s",
                "http.write=true",
                f"http.token={TOKEN}",
            ),
        )
        for port in ports
    ]
    await lab.agree(*nodes)
    return nodes


async def command(lab: Processes, node: NodeProcess, *words: str, code: int = 0) -> str:
    """Run a command that a node carries out. Returns its output."""
    url = f"http://127.0.0.1:{node.http_port}"
    run = lab.run("values", *words, "--node", url, SHARDBUS_NODE_TOKEN=TOKEN)
    assert await run.ended() == code, run.err.read_text()
    return run.out.read_text().strip()


async def add(lab: Processes, counts: Counter[str], times: int) -> None:
    """Let every writer add."""
    async with lab.client(timeout=60.0) as client:
        answers = await asyncio.gather(*(client.call("writer", w, "add", times) for w in WRITERS))
    for answer in answers:
        counts.update(answer)


async def test_what_a_majority_has_outlives_a_killed_node(lab: Processes) -> None:
    one, other, third = await start(lab)
    put = json.loads(await command(lab, one, "put", "rate:usd", "1.09"))
    assert (put["value"], put["kind"], len(put["replicas"])) == (1.09, "register", 3)
    async with (
        lab.client(one, other, timeout=60.0) as client,
        lab.client(third, other, timeout=60.0) as outside,
    ):
        first = await outside.data.update("outside", Counted, lambda count: count.add())
        watching = asyncio.ensure_future(client.call("writer", "w", "next_rate", 1.09))
        counts = Counter[str]()
        await add(lab, counts, 10)
        assert counts == {"acked": 10 * len(WRITERS), "doubtful": 0}
        assert await command(lab, third, "get", "hits", "--r", "all") == str(counts["acked"])
        third.kill()
        await command(lab, other, "put", "rate:usd", "1.1", "--w", "majority")
        await until(watching.done, "the rate that was put")
        assert watching.result() == 1.1
        assert await outside.data.get("outside") == first, "by the next contact"
        rate = await outside.data.get("rate:usd")
        assert rate is not None
        assert rate.data == 1.1
        assert await outside.data.delete("outside")
    await until(lambda: len(lab.live) >= 2, "two nodes")
    assert await command(lab, other, "get", "rate:usd") == "1.1"
    await add(lab, counts, 5)
    hits = int(await command(lab, one, "get", "hits"))
    assert counts["acked"] <= hits <= counts.total()
    assert counts["acked"] > 10 * len(WRITERS)
    assert await command(lab, one, "list") == "hits\nrate:usd"
    ring = (await command(lab, one, "ring", "hits")).splitlines()
    assert len(ring) == 3
    await command(lab, one, "put", "hits", "1", code=6)
    await command(lab, one, "remove", "hits")
    await command(lab, one, "get", "hits", code=1)
