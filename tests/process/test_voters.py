"""A split of real nodes whose store is inside the cluster, with real walls between: the side whose
store answers stays, though it has fewer nodes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.process.nodes import NodeProcess, Processes
from tests.process.test_walls import cluster, decisions, gone, rules, split
from tests.waiting import until

pytestmark = pytest.mark.long


@pytest.fixture
def store() -> str:
    return "cluster://"


async def vote(nodes: Sequence[NodeProcess], replicas: Sequence[NodeProcess]) -> None:
    """Wait until all nodes see that these nodes' replicas vote."""
    expected = [f"{node.host}:7357" for node in replicas]

    def agreed(node: NodeProcess) -> bool:
        voters = cluster(node).get("voters") or {}
        shown = [row["address"] for row in voters.get("replicas", ()) if row["nodes"]]
        return shown == expected and not voters["changing"]

    for node in nodes:
        await until(lambda node=node: agreed(node), f"the voters at {node.name}")


async def test_two_nodes_with_two_of_three_replicas_stay_against_three(walled: Processes) -> None:
    assert walled.network is not None
    machines = [walled.network.machine() for _ in range(5)]
    seeds = [f"{machine.address}:7355" for machine in machines[:3]]
    nodes = [
        walled.begin(
            machine=machine,
            seeds=seeds,
            settings=(*rules(), f"store.path={walled.folder}/replica-{number}"),
        )
        for number, machine in enumerate(machines)
    ]
    await walled.agree(*nodes)
    await vote(nodes, nodes[:3])
    few, many = nodes[:2], nodes[2:]
    split(walled, few, many)
    await gone(*many)
    await walled.agree(*few)
    assert any("majority of the store: 2 of 3 replicas here" in text for text in decisions(*few))
    ask = walled.run("ask", "account", "a-1", "add", "1", machine=few[0].machine)
    assert await ask.ended() == 0, ask.err.read_text()
    assert ask.out.read_text().strip() == "1"
