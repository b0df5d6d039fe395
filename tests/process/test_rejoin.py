"""A downed node that lives joins again by itself, with real processes: it slept, a handler blocked
it, a wall stood. So does one that an application embeds. One that an operator downed ends, and one
that no member takes in any more."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.process.namespaces import redis_on
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import until

REJOINS = (
    "cluster.failure_detector.heartbeat_interval=200ms",
    "cluster.failure_detector.acceptable_heartbeat_pause=1500ms",
    "cluster.downing.stable_after=2s",
    "cluster.downing.down_all_when_unstable=false",  # a starved machine is no reason here
    "cluster.rejoin_after_down=true",
)


TOKEN = "secret-secret-16"


async def hits(lab: Processes, node: NodeProcess, seq: int) -> None:
    """Every entity answers to a client of this node."""
    async with lab.client(node) as client:
        for page in range(30):
            assert await client.call("page", f"page-{page}", "hit", 1, seq) == seq


def uid(node: NodeProcess) -> str:
    page = node.get("/v1/nodes")
    return next(row["node"] for row in page["nodes"] if row["address"] == node.address)


async def rejoined(lab: Processes, node: NodeProcess, before: str) -> None:
    """It is Up again, in the same process, as another incarnation."""
    lives = "this node was downed, and rejoins through "
    await until(lambda: lives in node.err.read_text(), f"a new start of {node.name}")
    await until(lambda: node.out.read_text().count("ready: ") == 2, f"{node.name} ready again")
    await lab.agree()
    assert node.running
    assert uid(node) != before


@pytest.mark.long
async def test_a_node_that_was_downed_in_its_sleep_rejoins(lab: Processes) -> None:
    first, second, third = await lab.cluster(3, settings=REJOINS)
    await hits(lab, first, 1)
    before = uid(third)
    third.signal(signal.SIGSTOP)
    await lab.agree(first, second)
    await hits(lab, first, 2)
    third.signal(signal.SIGCONT)
    await rejoined(lab, third, before)
    await hits(lab, third, 3)
    assert await third.terminate() == 0
    await lab.agree(first, second)


@pytest.mark.long
async def test_a_node_whose_loop_is_blocked_rejoins(lab: Processes) -> None:
    """The thread that would end the process starts it anew: no port stays in use."""
    blocks = (*REJOINS, "cluster.app_stall_timeout=4s")
    first, _, third = await lab.cluster(3, settings=blocks)
    before = uid(third)
    async with lab.client(first) as client:
        for page in range(60):
            if (await client.call("page", f"page-{page}", "where")).startswith(third.address):
                await client.cast("page", f"page-{page}", "block", 600.0)
                break
        await rejoined(lab, third, before)
    await hits(lab, third, 1)


@pytest.mark.long
async def test_a_node_that_an_operator_downed_ends(lab: Processes) -> None:
    writes = ("cluster.downing.stable_after=600s", "http.write=true", f"http.token={TOKEN}")
    first, second, third = await lab.cluster(3, settings=(*REJOINS, *writes))
    third.signal(signal.SIGSTOP)
    url = f"http://127.0.0.1:{first.http_port}"
    command = ("node", "down", third.address, "--node", url)
    assert await lab.run(*command, SHARDBUS_NODE_TOKEN=TOKEN).ended() == 0
    await lab.agree(first, second)
    third.signal(signal.SIGCONT)
    assert await third.ended() == 1
    assert "this node stops: downed by an operator" in third.err.read_text()


@pytest.mark.long
async def test_a_node_that_was_told_to_stop_does_not_rejoin(lab: Processes) -> None:
    first, second, third = await lab.cluster(3, settings=REJOINS)
    third.signal(signal.SIGSTOP)
    await lab.agree(first, second)
    third.signal(signal.SIGTERM)
    third.signal(signal.SIGCONT)
    assert await third.ended() in (0, 1)
    assert third.out.read_text().count("ready: ") == 1


@pytest.mark.long
async def test_an_embedded_node_that_was_downed_in_its_sleep_rejoins(lab: Processes) -> None:
    """In the same process and loop: its application goes on."""
    first, second = await lab.cluster(2, settings=REJOINS)
    third = lab.embed(REJOINS)
    await lab.agree()
    await hits(lab, first, 1)
    before = uid(third)
    third.signal(signal.SIGSTOP)
    await lab.agree(first, second)
    third.signal(signal.SIGCONT)
    await rejoined(lab, third, before)
    await hits(lab, third, 2)
    assert await third.terminate() == 0
    assert "ended: left" in third.out.read_text()
    await lab.agree(first, second)


@pytest.mark.long
async def test_S3_42_if_those_that_stayed_are_lost_for_good_it_ends(lab: Processes) -> None:
    """A supervisor starts it again, and its seeds decide who founds a cluster."""
    first, second, third = await lab.cluster(3, settings=(*REJOINS, "cluster.rejoin_within=2s"))
    third.signal(signal.SIGSTOP)
    await lab.agree(first, second)
    first.kill()
    second.kill()
    third.signal(signal.SIGCONT)
    assert await third.ended() == 4
    said = third.err.read_text()
    assert "this node was downed, and rejoins through" in said
    assert "no member that it knew has taken this node in within 2 s; tried " in said


@pytest.mark.long
async def test_behind_a_wall_with_its_store_on_the_other_side_it_waits_and_rejoins(
    walled: Processes, tmp_path: Path
) -> None:
    """The process, and an embedded node: both wait for the store first, then for the members."""
    network = walled.network
    assert network is not None
    safe = network.machine()
    with redis_on(safe, tmp_path / "redis") as walled.store:
        stay = await walled.cluster(3, settings=REJOINS)
        process = await walled.start(settings=REJOINS)
        embedded = walled.embed(REJOINS)
        await walled.agree()
        outside = {node: uid(node) for node in (process, embedded)}
        network.split(
            [safe, *(node.machine for node in stay if node.machine)],
            [node.machine for node in outside if node.machine],
        )
        await walled.agree(*stay)
        waits = "this node was downed, and rejoins once its store answers"
        for node in outside:
            said = node.err.read_text
            await until(lambda said=said: waits in said(), f"{node.name} without its store")
        network.heal()
        for node, before in outside.items():
            await rejoined(walled, node, before)
