"""A process that slept handles nothing before membership has confirmed it, and a node without its
quorum handles nothing until it has it again: real nodes, SIGSTOP and SIGCONT, under load."""

from __future__ import annotations

import signal
import time

import pytest

from shardbus.entities.runs import RUN_SLICE
from tests.process.app import RECORD
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import until

QUICK = (
    "cluster.failure_detector.heartbeat_interval=200ms",
    "cluster.failure_detector.acceptable_heartbeat_pause=1500ms",
)
PAGES = [f"page-{n}" for n in range(48)]
WAITING = 40
"""Tells for each page of the stopped node."""


def handled_by(node: NodeProcess) -> list[int]:
    """The times at which this node handled a message."""
    ledger = node.folder / f"ledger-{node.process.pid}"
    rows = RECORD.iter_unpack(ledger.read_bytes()) if ledger.exists() else ()
    return [at for _, producer, _, _, at in rows if producer]


async def homes(node: NodeProcess) -> dict[str, str]:
    """Each page's node, by name."""
    by_home = {}
    for page in PAGES:
        answer = await node.page(f"/v1/where/page/{page}")
        by_home[page] = str(answer["node"]).partition("#")[0] if answer else ""
    return by_home


@pytest.mark.long
async def test_a_process_that_slept_handles_nothing_before_it_is_confirmed(lab: Processes) -> None:
    rules = (*QUICK, "cluster.downing.stable_after=2s")
    first, second, victim = nodes = await lab.cluster(3, settings=rules)
    async with lab.client(*nodes) as client:
        for page in PAGES:
            await client.call("page", page, "hit", 1, 1)
        mine = [p for p, home in (await homes(first)).items() if home == victim.address]
        assert mine
        victim.signal(signal.SIGSTOP)
        for seq in range(WAITING):
            for page in mine:
                await client.cast("page", page, "hit", 2, seq + 1)
        await lab.agree(first, second)

        async def moved() -> bool:
            return victim.address not in (await homes(first)).values()

        await until(moved, "new homes of the stopped node's pages")
        async with lab.client(first, second) as fresh:
            for page in mine:
                await fresh.call("page", page, "hit", 3, 1)
        woken = time.monotonic_ns()
        victim.signal(signal.SIGCONT)
        assert await victim.ended() in (1, 6)
    late = [at for at in handled_by(victim) if at > woken]
    assert len(late) < RUN_SLICE < WAITING * len(mine), "at most the rest of a slice of a run"
    assert "suspended, because no consent of" in victim.err.read_text()


@pytest.mark.long
async def test_a_node_without_its_quorum_waits_and_goes_on_after_the_heal(lab: Processes) -> None:
    rules = (*QUICK, "cluster.downing.stable_after=60s", "cluster.suspend_after=1s")
    first, *others = nodes = await lab.cluster(3, settings=rules)
    async with lab.client(*nodes) as client:
        for page in PAGES:
            await client.call("page", page, "hit", 1, 1)
        mine = [p for p, home in (await homes(first)).items() if home == first.address]
        assert mine
        for node in others:
            node.signal(signal.SIGSTOP)

        async def suspended() -> bool:
            page = await first.page("/v1/cluster")
            return bool(page and page["suspended"])

        await until(suspended, "the suspension")
        assert first.get("/readyz") is None
        before = len(handled_by(first))
        async with lab.client(first) as local:
            for page in mine:
                await local.cast("page", page, "hit", 2, 1)
            await local.flush()
            explained = await first.page(f"/v1/explain/page/{mine[0]}")
            assert "suspended, because no consent of" in explained["why"]
            assert len(handled_by(first)) == before
            for node in others:
                node.signal(signal.SIGCONT)
            await until(
                lambda: len(handled_by(first)) == before + len(mine), "the messages that waited"
            )
        await first.says("resumed after")
        await lab.agree(*nodes)
