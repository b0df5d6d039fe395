"""The operator's view of real nodes: nothing while all is well, and each fault by its name, the
same in the page's data, in `doctor` and in `top`."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shardbus import AsyncClient, EntityFailed
from tests.process.app import Account
from tests.process.failing_app import Customer, Order
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import until

STARVED = {"late", "lagging"}
"""Findings that depend on how busy the machine is."""
EVERY_S = 0.2
FAILING = "tests.process.failing_app:bus"


class Watch:
    """Asks every node that runs for findings again and again, from its first answer on."""

    def __init__(self, lab: Processes) -> None:
        self._lab = lab
        self.findings: dict[str, str] = {}
        """Confirmed findings of any node at any moment, by check, each with the first text."""
        self.answers = 0

    async def ask(self, node: NodeProcess) -> dict[str, Any]:
        """The answer of a node, whose findings are noted; empty without one."""
        answer = await node.page("/v1/findings")
        for group in (answer or {}).get("findings", ()):
            if group["confirmed"] and group["check"] not in STARVED:
                self.findings.setdefault(group["check"], f"{node.name}: {group}")
        self.answers += answer is not None
        return answer or {}

    async def forever(self) -> None:
        while True:
            await asyncio.gather(*(self.ask(node) for node in self._lab.live if node.http_port))
            await asyncio.sleep(EVERY_S)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Watch]:
        watching = asyncio.ensure_future(self.forever())
        try:
            yield self
        finally:
            watching.cancel()


async def command(lab: Processes, node: NodeProcess, *words: str) -> tuple[int, str]:
    """Run a command that asks this node; returns its exit code and its output."""
    run = lab.run(*words, "--node", f"http://127.0.0.1:{node.http_port}")
    code = await run.ended()
    lab.all.remove(run)
    return code, run.out.read_text()


async def doctor(lab: Processes, node: NodeProcess, *words: str) -> dict[str, Any]:
    """The findings that the command prints, by check."""
    _, text = await command(lab, node, "doctor", "--json", *words)
    groups = json.loads(text)["findings"] if text else []
    return {group["check"]: group for group in groups if group["check"] not in STARVED}


async def asks_on(client: AsyncClient, done: asyncio.Event) -> None:
    """Ask accounts, one after the other, until the end."""
    n = 0
    while not done.is_set():
        n += 1
        await client.ref(Account, f"account-{n % 50}").add(1)
        await asyncio.sleep(0.005)


@pytest.mark.long
async def test_a_start_a_join_and_an_orderly_leave_are_no_findings(lab: Processes) -> None:
    first = lab.begin()
    async with Watch(lab).running() as watch:
        nodes = [first, *(lab.begin(seeds=[first.address]) for _ in range(2))]

        async def answers() -> bool:
            return bool(await watch.ask(first))

        await until(answers, "the first answer of a node that starts")
        assert await doctor(lab, first) == {}, "in the first second"
        await lab.agree(*nodes)
        done = asyncio.Event()
        async with lab.client(*nodes[1:]) as client:
            asking = asyncio.ensure_future(asks_on(client, done))
            fourth = lab.begin()
            assert await doctor(lab, nodes[1]) == {}, "while a node joins"
            await until(fourth.ready, "the fourth node")
            await lab.agree(*nodes, fourth)
            first.signal(signal.SIGTERM)
            assert await doctor(lab, nodes[1]) == {}, "while the oldest leaves"
            assert await first.ended() == 0
            await lab.agree(*nodes[1:], fourth)
            assert await doctor(lab, fourth) == {}
            done.set()
            await asking
    assert watch.findings == {}
    assert watch.answers > 10
    assert (await fourth.page("/v1/findings"))["lost"] == [], "a node that leaves is not lost"


@pytest.mark.long
async def test_what_fails_is_named_with_its_cause_wherever_an_operator_looks(
    lab: Processes,
) -> None:
    first, second = await lab.cluster(2, app=FAILING)
    async with lab.client(timeout=5.0) as client:
        for n in range(3):
            with pytest.raises(EntityFailed, match="no money for"):
                await client.ref(Order, "o-1").pay(n)
        with pytest.raises(EntityFailed, match="cannot be encoded"):
            await client.ref(Order, "o-2").ship()
        with pytest.raises(EntityFailed, match="it does not start: no row for c-1") as failed:
            await client.ref(Customer, "c-1").hit()
        assert failed.value.type == "LookupError"
    for node in (first, second):
        code, text = await command(lab, node, "doctor", "--wait", "0")
        assert code == 5
        assert (
            "failing-handler: order pay has 3 failures, the last one ValueError: no money" in text
        )
        assert "failing-handler: order ship has 1 failure" in text
        assert "its answer cannot be sent" in text
        assert "failing-start: customer c-1 has not started" in text
        assert "LookupError: no row for c-1" in text
        page = await node.page("/v1/findings")
        assert {group["check"] for group in page["findings"]} - STARVED == {
            "failing-handler",
            "failing-start",
        }
        assert {group["check"] for group in page["findings"] if group["confirmed"]} >= {
            "failing-handler",
            "failing-start",
        }
        [failing] = [row for row in page["failures"] if row["method"] == "pay"]
        assert failing["count"] == 3
        assert {failure["entity"] for failure in failing["last"]} == {"o-1"}
        assert "in pay" in failing["last"][-1]["stack"]
        _, picture = await command(lab, node, "top")
        assert "warning: failing-handler: order pay has 3 failures" in picture
        assert "warning: failing-start: customer c-1 has not started" in picture
    _, explained = await command(lab, second, "explain", "customer", "c-1")
    assert "LookupError: no row for c-1" in explained


@pytest.mark.long
async def test_a_node_that_was_lost_is_named_with_its_shards_and_who_decided(
    lab: Processes,
) -> None:
    nodes = await lab.cluster(3)
    async with lab.client() as client:
        await asyncio.gather(*(client.ref(Account, f"account-{n}").add(1) for n in range(50)))
    shards = (await nodes[1].page("/v1/nodes"))["nodes"]
    had = {row["address"]: row["shards"].get("account", 0) for row in shards}
    nodes[2].kill()
    await lab.agree(*nodes[:2])

    async def lost() -> bool:
        rows = (await nodes[0].page("/v1/findings"))["lost"]
        counts = rows[0]["shards"].get("account", {}) if rows else {}
        return bool(counts) and counts["homed"] == counts["freed"]

    await until(lost, "new homes of the shards of the lost node")
    [row] = (await nodes[1].page("/v1/findings"))["lost"]
    assert row["node"].startswith(nodes[2].address)
    assert row["by"].startswith((nodes[0].address, nodes[1].address))
    assert row["why"].startswith("keep-majority: ")
    assert row["shards"]["account"]["freed"] == had[nodes[2].address]
    code, text = await command(lab, nodes[1], "doctor", "--wait", "1")
    assert f"lost: {row['node']}" in text
    assert code == 0 or any(check in text for check in STARVED)


@pytest.mark.long
async def test_what_lasts_is_found(lab: Processes) -> None:
    """A type that no member coordinates, and a member that waits for others."""
    nobody = ("sharding.types.uncoordinated.coordinator_role=nobody",)
    alone = lab.begin(settings=nobody, app=FAILING)

    async def missing() -> bool:
        findings = await doctor(lab, alone, "--wait", "0")
        return {check: group["of"] for check, group in findings.items()} == {
            "no-coordinator": "uncoordinated"
        }

    await until(missing, "a type without a coordinator")
    alone.kill()
    waiting = lab.begin(settings=("cluster.min_members=3",), app=FAILING)

    async def joining() -> bool:
        return list(await doctor(lab, waiting, "--wait", "0")) == ["not-up"]

    await until(joining, "a member that has not joined")
