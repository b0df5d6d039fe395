"""One node that cannot take part, with real processes on machines of their own: it sends and hears
no other, no other hears it, or its messages do not get through. It goes, and only it, and the
others handle messages all the time.

A port is lost at one machine, in silence: in the connections that it dials, in those that it takes,
or in both. Nodes dial the gossip port of those that they listen to, and the message port of those
that they send to.
"""

from __future__ import annotations

import re

import pytest

from tests.process.nodes import MACHINE_PORTS, NodeProcess, Processes
from tests.process.test_walls import cluster, gone, net, rules
from tests.waiting import until

MESSAGES, GOSSIP, _ = MACHINE_PORTS
CALM = "8s"
"""`stable_after` where no node may be suspended. A starved process is, after 0.8 of that."""
ACCUSES = ("cluster.quarantine_after=3s", "cluster.app_stall_timeout=2s")


def lost(lab: Processes, node: NodeProcess, port: int, *, dialled: bool, taken: bool) -> None:
    assert node.machine is not None
    net(lab).lose(node.machine, port, dialled=dialled, taken=taken)


def suspended(*nodes: NodeProcess) -> list[str]:
    """The suspensions in the logs of these."""
    return [
        line
        for node in nodes
        for line in re.findall(r".*suspended, because.*", node.err.read_text(errors="replace"))
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "dialled", "taken"), [(3, True, False), (5, False, True), (3, True, True)]
)
async def test_a_node_that_hears_no_other_or_is_not_heard_goes_and_suspends_none(
    walled: Processes, count: int, dialled: bool, taken: bool
) -> None:
    """Deaf, mute, or both: the port of gossip."""
    settings = rules(CALM, down_all_when_unstable="true")
    nodes = await walled.together(count, settings=settings)
    odd, others = nodes[0], nodes[1:]
    lost(walled, odd, GOSSIP, dialled=dialled, taken=taken)
    await gone(odd)
    await walled.agree(*others)
    assert suspended(*others) == []


@pytest.mark.long
async def test_two_deaf_nodes_of_six_go_and_no_other(walled: Processes) -> None:
    """With `down_all_when_unstable`, as by default: reports come one by one, and go with their
    observers. That is no flapping."""
    nodes = await walled.together(6, settings=rules(CALM, down_all_when_unstable="true"))
    for deaf in nodes[4:]:
        lost(walled, deaf, GOSSIP, dialled=True, taken=False)
    await gone(*nodes[4:])
    await walled.agree(*nodes[:4])
    assert suspended(*nodes[:4]) == []


@pytest.mark.long
@pytest.mark.parametrize("taken", [False, True], ids=["out", "both-ways"])
async def test_a_node_whose_messages_do_not_get_through_goes_and_suspends_none(
    walled: Processes, taken: bool
) -> None:
    """It accuses all others; with its links dead both ways they accuse it, too."""
    nodes = await walled.together(4, settings=(*rules(CALM), *ACCUSES))
    odd, others = nodes[0], nodes[1:]
    for node in nodes:
        assert cluster(node)
    lost(walled, odd, MESSAGES, dialled=True, taken=taken)

    async def over() -> bool:
        for node in (odd, *others) if taken else (odd,):
            if node.running:
                await node.page("/v1/nodes?timeout=1s")  # asks every node by its links
        return not all(node.running for node in nodes)

    await until(over, "the end of a node")
    await gone(odd)
    await walled.agree(*others)
    assert suspended(*others) == []


@pytest.mark.long
async def test_under_lease_majority_a_deaf_node_does_not_get_the_lease(walled: Processes) -> None:
    nodes = await walled.together(3, settings=rules(strategy="lease-majority"))
    lost(walled, nodes[0], GOSSIP, dialled=True, taken=False)
    await gone(nodes[0])
    await walled.agree(*nodes[1:])
