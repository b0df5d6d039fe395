"""Spares of a store inside the cluster: four nodes in three zones, of which one is killed."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import Any

import pytest

from tests.process.nodes import Processes
from tests.process.test_replicas import ACCOUNTS, Trio, add, operate
from tests.waiting import until

pytestmark = pytest.mark.long

ZONES = "abcb"
SAVES = 500
"""One after the other, they take longer than a replica that nobody needs stays."""


@pytest.fixture
def store() -> str:
    return "cluster://"


async def replicas_at(trio: Trio, number: int) -> dict[int, dict[str, Any]]:
    """The replicas as this node shows them, by the number of their node."""
    page = await trio.nodes[number].page("/v1/store")
    rows = {row["address"]: row for row in (page or {}).get("replicas", ())}
    places = {f"127.0.0.1:{port + 2}": n for n, port in enumerate(trio.ports)}
    return {places[address]: row for address, row in rows.items()}


async def test_the_ring_is_repaired_without_a_hand_and_saves_stay_exact(lab: Processes) -> None:
    quartet = Trio(lab, 4)

    def begin(number: int) -> None:
        zone = f"node.zone={ZONES[number]}"
        quartet.begin(number, settings=(zone, "store.repair_after=5s"))

    for number in range(4):
        begin(number)
    await quartet.agree()

    async def spares() -> list[int]:
        return [n for n, row in (await replicas_at(quartet, 0)).items() if row["spare"]]

    await until(spares, "a spare")
    [spare] = await spares()
    lost = 4 - spare  # the member of its zone

    async def members() -> set[int]:
        rows = await replicas_at(quartet, 0)
        return {n for n, row in rows.items() if row["member"] and row["serves"]}

    async def has(numbers: set[int]) -> bool:
        return await members() == numbers

    await until(lambda: has({0, 2, lost}), "a member in each zone")
    rows = await replicas_at(quartet, 0)
    assert {n: row["zone"] for n, row in rows.items()} == dict(enumerate(ZONES))
    metrics = await asyncio.to_thread(quartet.nodes[0].read, "/metrics")
    assert "\nshardbus_replica_spares 1.0\n" in (metrics or "")

    acked, sent = Counter[str](), Counter[str]()
    adding = [asyncio.create_task(add(quartet, a, acked, sent, 20)) for a in ACCOUNTS]
    await until(lambda: sum(acked.values()) > len(ACCOUNTS), "the first saves")
    quartet.nodes[lost].kill()
    await until(lambda: has({0, 2, spare}), "the spare in its place")
    await asyncio.gather(*adding)
    await add(quartet, ACCOUNTS[0], acked, sent, 3)
    totals = await quartet.totals()
    assert all(acked[a] <= totals[a] <= sent[a] for a in ACCOUNTS)

    begin(lost)

    async def is_spare() -> bool:
        return bool((await replicas_at(quartet, 0))[lost]["spare"])

    await until(is_spare, "the killed one as a spare")
    await operate(quartet, "add", f"127.0.0.1:{quartet.ports[lost] + 2}")
    await until(lambda: has({0, 1, 2, 3}), "four members")
    assert await quartet.totals() == totals


async def test_the_last_nodes_keep_their_store_although_a_spare_runs(lab: Processes) -> None:
    quartet = Trio(lab, 4)
    quartet.begin()
    await quartet.agree()

    async def members() -> list[int]:
        numbers = [n for n, row in (await replicas_at(quartet, 0)).items() if row["member"]]
        return numbers if len(numbers) == 3 else []

    first, second, last = await until(members, "the ring")
    for number in (first, second):
        quartet.nodes[number].signal(signal.SIGTERM)
    leavers = [quartet.nodes[number] for number in (first, second)]
    await until(lambda: all("left the cluster" in n.err.read_text() for n in leavers), "two leave")
    [spare] = {0, 1, 2, 3} - {first, second, last}
    async with lab.client(quartet.nodes[last], quartet.nodes[spare], timeout=30.0) as client:
        await until(lambda: not all(node.running for node in leavers), "the end of one of both")
        for count in range(1, SAVES + 1):
            assert await client.call("account", ACCOUNTS[0], "add", 1) == count
    for number in (spare, last):
        quartet.nodes[number].signal(signal.SIGTERM)
    assert await asyncio.gather(*(node.ended() for node in quartet.nodes.values())) == [0] * 4
