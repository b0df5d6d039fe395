"""Instances on real nodes: each answers, a killed one is named, another takes its place."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from shardbus import Client, NodeLost
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import PATIENCE_S, until


async def told(lab: Processes, count: int) -> None:
    """Wait until every node knows that there are this many instances."""

    async def known() -> bool:
        pages = await asyncio.gather(*(node.page("/v1/types") for node in lab.live))
        rows = [row for page in pages if page for row in page["types"]]
        counts = [row["instances"] for row in rows if row["type"] == "quote"]
        return counts == [count] * len(lab.live)

    await until(known, f"{count} instances on {len(lab.live)} nodes")


def addresses(answers: dict[str, Any]) -> set[str]:
    return {node.partition("#")[0] for node in answers}


@pytest.mark.long
async def test_all_answers_for_every_node_and_names_the_one_that_is_killed(lab: Processes) -> None:
    nodes = await lab.cluster(3, APP_QUOTES="1")
    await told(lab, 3)
    gate = lab.folder / "gate"
    async with lab.client(*nodes[:2]) as client:
        answers = await client.to("all").call("quote", "x", "who")
        assert addresses(answers) == {node.address for node in nodes}
        assert all(answer[2] == node for node, answer in answers.items())
        ask = asyncio.ensure_future(client.to("all").call("quote", "x", "wait_for", str(gate)))
        waited_for = [lab.folder / f"gate-{k}" for k in (1, 2, 3)]
        await until(lambda: all(path.exists() for path in waited_for), "three instances that wait")
        dead = nodes[2]
        dead.kill()
        gate.touch()
        answers = await ask
        assert addresses(answers) == {node.address for node in nodes}
        [lost] = [e for node, e in answers.items() if node.startswith(f"{dead.address}#")]
        assert isinstance(lost, NodeLost)
        assert sum(isinstance(answer, int) for answer in answers.values()) == 2
        await told(lab, 2)
        await until(lambda: whole(client, nodes[:2]), "an answer of the two that are left")
        new = await lab.start(APP_QUOTES="1")
        await told(lab, 3)
        await until(lambda: whole(client, [*nodes[:2], new]), "an answer of three again")


async def whole(client: Any, nodes: list[NodeProcess]) -> bool:
    """True if all of these nodes, and no other, answer."""
    answers = await client.to("all").call("quote", "x", "who")
    good = not any(isinstance(answer, Exception) for answer in answers.values())
    return good and addresses(answers) == {node.address for node in nodes}


async def test_threads_and_the_command_line_choose_a_router(lab: Processes) -> None:
    nodes = await lab.cluster(3, APP_QUOTES="1")
    await told(lab, 3)

    def blocking() -> list[Any]:
        with Client(
            f"tcp://{nodes[0].address}",
            cluster="lab",
            timeout=PATIENCE_S,
            connect_timeout=PATIENCE_S,
        ) as client:
            name = client.to("all").call("quote", "x", "who")
            nearest = client.call("quote", "x", "who")
            many = client.to("round-robin").ask_many("quote", [])
            return [name, nearest, many]

    name, nearest, many = await asyncio.to_thread(blocking)
    assert addresses(name) == {node.address for node in nodes}
    assert nearest in name.values()
    assert many == []
    url = f"http://127.0.0.1:{nodes[0].http_port}"
    command = lab.run("ask", "quote", "x", "who", "--to", "all", "--node", url)
    assert await command.ended() == 0, command.err.read_text()
    assert json.loads(command.out.read_text()) == name


async def spread(node: NodeProcess, hosts: int) -> dict[str, int] | None:
    """The number of instances that each node has, once every shard has three on distinct nodes;
    None before."""
    page = await node.page("/v1/partitions/quote")
    counts: Counter[str] = Counter()
    for partition in page["partitions"] if page else ():
        at = [row["node"] for row in partition["instances"] if row["state"] == "running"]
        if len(at) != 3 or len(set(at)) != 3:
            return None
        counts.update(at)
    return dict(counts) if len(counts) == hosts else None


@pytest.mark.long
@pytest.mark.parametrize("homes", ["ask", "gossip"])
async def test_S3_47_three_instances_on_five_nodes_survive_two_kills(
    lab: Processes, homes: str
) -> None:
    learns = (f"sharding.homes={homes}",)
    nodes = await lab.cluster(5, settings=learns, APP_QUOTES="1")
    await told(lab, 3)
    ids = [f"q{number}" for number in range(150)]
    async with lab.client(*nodes[:3]) as client:
        quote = client.to("round-robin")
        await asyncio.gather(*(quote.call("quote", i, "who") for i in ids))
        counts = await until(lambda: spread(nodes[0], 5), "three of each shard on five nodes")
        for victim in nodes[3:]:
            victim.kill()
        answers = await asyncio.gather(
            *(quote.call("quote", i, "who") for i in ids), return_exceptions=True
        )
        assert {type(answer) for answer in answers if isinstance(answer, Exception)} <= {NodeLost}
        after = await until(lambda: spread(nodes[0], 3), "three of each shard on three nodes")
        assert len(set(after.values())) == 1, "each shard has one on each node"
        assert sum(after.values()) == sum(counts.values())
        await asyncio.gather(*(quote.call("quote", i, "who") for i in ids))
