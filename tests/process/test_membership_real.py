"""Membership under faults of processes: killed, ended by a signal, stopped and continued, starved,
blocked, started again at once, all started at once."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.process.app import Account, Page
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import until

DETECT_QUICKLY = (
    "cluster.failure_detector.heartbeat_interval=200ms",
    "cluster.failure_detector.acceptable_heartbeat_pause=600ms",
)
BLOCKED_S = 20.0
BURN = """
import os, sys
os.sched_setaffinity(0, [int(sys.argv[1])])
while os.getppid() == int(sys.argv[2]):
    pass
"""


def cluster(node: NodeProcess) -> Any:
    return node.get("/v1/cluster") or {}


async def name_of(node: NodeProcess) -> str:
    """host:port#uid, once it says so."""
    return str(await until(lambda: cluster(node).get("self"), f"the name of {node.name}"))


async def said(node: NodeProcess, what: str) -> int:
    """Where its log first says this, once it does."""

    def found() -> re.Match[str] | None:
        return re.search(what, node.err.read_text(errors="replace"))

    match: re.Match[str] = await until(found, f"{what!r} in the log of {node.name}")
    return match.start()


# Killed


@pytest.mark.long
async def test_TC18_the_last_stays_when_all_others_are_killed(lab: Processes) -> None:
    """One after the other; the last two are an equal split, which the lease decides."""
    nodes = await lab.cluster(4)
    while len(nodes) > 1:
        nodes.pop(len(nodes) // 2).kill()
        await lab.agree(*nodes)


@pytest.mark.long
async def test_TC3_a_killed_node_is_downed_by_command(lab: Processes) -> None:
    write = ("cluster.downing.strategy=none", "http.write=true", "http.token=secret-secret-16")
    first, second, third = await lab.cluster(3, settings=write)
    third.kill()
    for node in (first, second):
        await until(lambda node=node: cluster(node).get("unreachable"), "a suspicion")
        assert not cluster(node)["converged"]
    url = f"http://127.0.0.1:{first.http_port}"
    down = lab.run(
        "node", "down", third.address, "--node", url, SHARDBUS_NODE_TOKEN="secret-secret-16"
    )
    assert await down.ended() == 0, down.err.read_text()
    await lab.agree(first, second)
    for node in (first, second):
        await until(lambda node=node: cluster(node)["converged"], "convergence")


# Ended by a signal


@pytest.mark.long
async def test_TC21_TC31_the_leader_leaves_step_by_step_and_another_leads(lab: Processes) -> None:
    """The next leader may be the last to see it exiting, and then removes it in the same step."""
    nodes = await lab.cluster(
        3, settings=("cluster.failure_detector.acceptable_heartbeat_pause=60s",)
    )
    names = {await name_of(node): node for node in nodes}
    name = cluster(nodes[0])["leader"]
    leader = names.pop(name)
    assert await leader.terminate() == 0
    rest = list(names.values())
    await lab.agree(*rest)
    assert await said(leader, f"{name} is leaving") < await said(leader, f"{name} is exiting")
    for node in rest:
        assert await said(node, f"{name} is leaving") < await said(node, f"{name} is removed")
        assert cluster(node)["leader"] in names
        assert "is unreachable" not in node.err.read_text()


# Stopped and continued, starved, blocked


@pytest.mark.long
async def test_a_node_that_wakes_before_the_decision_stays(lab: Processes) -> None:
    settings = (*DETECT_QUICKLY, "cluster.downing.stable_after=30s")
    nodes = await lab.cluster(3, settings=settings)
    names = [await name_of(node) for node in nodes]
    asleep = nodes[1]
    asleep.signal(signal.SIGSTOP)
    for node in (nodes[0], nodes[2]):
        await until(lambda node=node: cluster(node).get("unreachable"), "a suspicion")
    newcomer = lab.begin(settings=settings, seeds=[nodes[0].address])
    await until(lambda: cluster(nodes[0]).get("members") == 4, "a newcomer meanwhile")
    asleep.signal(signal.SIGCONT)
    await lab.agree(*nodes, newcomer)
    assert [await name_of(node) for node in nodes] == names
    await asleep.says("this node was starved")
    assert not any("downing:" in node.err.read_text() for node in nodes)


@contextmanager
def hogged(node: NodeProcess) -> Iterator[None]:
    """The node has one core, and shares it with two processes that never rest."""
    core = min(os.sched_getaffinity(0))
    for thread in os.listdir(f"/proc/{node.process.pid}/task"):
        os.sched_setaffinity(int(thread), [core])
    command = [sys.executable, "-c", BURN, str(core), str(os.getpid())]
    hogs = [subprocess.Popen(command) for _ in range(2)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


@pytest.mark.long
async def test_neither_a_blocked_handler_nor_a_hogged_core_costs_a_node(lab: Processes) -> None:
    """At the default limits: a node that says nothing is removed after ten seconds, and this one
    handles nothing for twenty."""
    nodes = await lab.cluster(3)
    names = [await name_of(node) for node in nodes]
    async with lab.client(timeout=3 * BLOCKED_S) as client:
        pages = [client.ref(Page, f"page-{i}") for i in range(40)]
        wheres = await asyncio.gather(*(page.where() for page in pages))
        page = next(p for p, w in zip(pages, wheres, strict=True) if w == names[1])
        with hogged(nodes[2]):
            blocked = asyncio.ensure_future(page.block(BLOCKED_S))
            await until(lambda: nodes[1].get("/livez", 1.0) is None, "a loop that does not turn")
            assert await blocked == names[1]
    await lab.agree(*nodes)
    assert [await name_of(node) for node in nodes] == names
    for node in nodes:
        log = node.err.read_text()
        assert "is unreachable" not in log
        assert "downing:" not in log


@pytest.mark.long
async def test_S2_81_the_coordinator_leaves_a_node_whose_loop_is_blocked(
    lab: Processes, tmp_path: Path
) -> None:
    """The oldest node handles nothing; shards without a home get one all the same, from the next
    oldest, and the blocked node serves again afterwards."""
    nodes = await lab.cluster(
        3, settings=("cluster.app_stall_timeout=10m", "cluster.quarantine_after=20m")
    )
    names = [await name_of(node) for node in nodes]
    gate = tmp_path / "gate"
    async with lab.client(*nodes[1:]) as client:
        pages = [client.ref(Page, f"page-{i}") for i in range(40)]
        wheres = await asyncio.gather(*(page.where() for page in pages))
        page = next(p for p, w in zip(pages, wheres, strict=True) if w == names[0])
        blocked = asyncio.ensure_future(page.block_until(str(gate)))
        await until(lambda: cluster(nodes[1]).get("oldest") in names[1:], "another oldest")
        account = client.ref(Account, "the-first")
        assert await account.where() in names
        assert not blocked.done()
        gate.touch()
        assert await blocked == names[0]
        assert await page.where()
    await until(
        lambda: cluster(nodes[0]).get("oldest") in names[1:],
        "another oldest in the blocked one's view",
    )
    await lab.agree(*nodes)


# Started again


@pytest.mark.long
@pytest.mark.parametrize(
    ("times", "confirmed_death"),
    [
        (4, "true"),
        (3, "false"),
        pytest.param(100, "true", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
async def test_TC33_TC36_a_node_restarted_at_once_is_up_each_time(
    lab: Processes, times: int, confirmed_death: str
) -> None:
    """The same ports, as soon as the old process is dead: killed, or drained. Without confirmed
    death it is the newcomer's arrival alone that tells of the old one's end."""
    settings = (f"cluster.confirmed_death={confirmed_death}",)
    first, second = await lab.cluster(2, settings=settings)
    gossip_port = str(free_port())
    node = await lab.start(port=free_port(), settings=settings)
    names = {await name_of(node)}
    for i in range(times):
        if i % 4 == 3:
            assert await node.terminate() == 0
        else:
            node.kill()
        node = lab.begin("--gossip-port", gossip_port, port=node.port, settings=settings)
        await lab.agree(first, second, node)
        names.add(await name_of(node))
    assert len(names) == times + 1


@pytest.mark.long
async def test_TC34_the_first_seed_joins_the_cluster_that_is_there(lab: Processes) -> None:
    ports = [free_port() for _ in range(3)]
    seeds = [f"127.0.0.1:{port}" for port in ports]
    nodes = [lab.begin(port=port, seeds=seeds) for port in ports]
    await lab.agree(*nodes)
    names = [await name_of(node) for node in nodes[1:]]
    nodes[0].kill()
    again = lab.begin(port=ports[0], seeds=seeds)
    await lab.agree(again, *nodes[1:])
    assert [await name_of(node) for node in nodes[1:]] == names


@pytest.mark.long
async def test_TC16_seeds_that_start_at_once_are_one_cluster(lab: Processes) -> None:
    """So do those that know one seed each, while there is no cluster yet."""
    ports = [free_port() for _ in range(3)]
    seeds = [f"127.0.0.1:{port}" for port in ports]
    others = [lab.begin(seeds=[seed]) for seed in seeds]
    nodes = [lab.begin(port=port, seeds=seeds) for port in reversed(ports)]
    await lab.agree(*nodes, *others)
    oldest = {cluster(node)["oldest"] for node in lab.live}
    assert oldest == {await name_of(nodes[-1])}
