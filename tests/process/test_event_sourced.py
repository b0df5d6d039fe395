"""Event-sourced accounts on nodes that are killed: answered events are in the journal, in order and
once, and the state after a replay is exact. A journal goes to another store by the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from examples.ledger import Balance
from shardbus import AsyncClient, RequestError
from shardbus.store.journal_protocol import journals_of
from shardbus.store.opening import open_store
from shardbus.wire.stored_events import stored_event
from tests.markers import long_only
from tests.process.nodes import Processes
from tests.waiting import PATIENCE_S

ACCOUNTS, ROUNDS = 30, 12


async def amounts(store_url: str, names: Iterable[str]) -> dict[str, list[int]]:
    """Return the amounts of the stored events, by account."""
    store = open_store(store_url, cluster="ledger", timeout=PATIENCE_S)
    await store.start()
    journals = journals_of(store)
    assert journals is not None
    shards: dict[str, str] = {}
    cursor, first = None, True
    while first or cursor is not None:
        page, cursor = await journals.page("account", cursor, 100)
        shards |= {name: shard for shard, name in page}
        first = False
    totals = {}
    for name in names:
        entries = (await journals.read("account", shards[name], name, 0, 1000)).entries
        totals[name] = [stored_event(entry).value["amount"] for entry in entries]
    await store.close()
    return totals


async def shardbus(lab: Processes, *command: str) -> str:
    """Return the output of a command."""
    done = lab.run(*command)
    assert await done.ended() == 0, done.err.read_text()
    return done.out.read_text()


@pytest.mark.parametrize("kind", ["redis", *long_only("sqlite")])
async def test_accounts_are_exact_after_nodes_were_killed(
    kind: str, tmp_path: Path, redis_url: str
) -> None:
    store_url = redis_url if kind == "redis" else f"sqlite:///{tmp_path}/store.db"
    lab = Processes(tmp_path, store_url)
    try:
        nodes = await lab.cluster(3, app="examples.ledger:bus")
        contacts = [f"tcp://{node.address}" for node in nodes]
        answered: dict[str, list[int]] = {f"account-{n}": [] for n in range(ACCOUNTS)}
        tried: dict[str, list[int]] = {name: [] for name in answered}
        async with AsyncClient(*contacts, cluster="ledger") as client:

            async def deposit(name: str, amount: int) -> None:
                tried[name].append(amount)
                try:
                    await client.call("account", name, "deposit", amount, timeout=PATIENCE_S)
                    answered[name].append(amount)
                except RequestError:
                    """It may be stored or not."""

            for turn in range(1, ROUNDS + 1):
                deposits = [asyncio.create_task(deposit(name, turn)) for name in answered]
                if turn in (4, 8):
                    await asyncio.sleep(0)
                    nodes[turn // 4].kill()
                await asyncio.gather(*deposits)
            totals = await amounts(store_url, answered)
            for name, stored in totals.items():
                assert stored == sorted(set(stored)), "an event is twice, or out of order"
                assert set(answered[name]) <= set(stored) <= set(tried[name])
                balance = await client.call("account", name, "balance", timeout=PATIENCE_S)
                assert balance in (
                    Balance(sum(stored), len(stored)),
                    {"amount": sum(stored), "entries": len(stored)},
                )
        await nodes[0].terminate()
        copy = f"sqlite:///{tmp_path}/copy.db"
        app = ("--app", "examples.ledger:bus")
        lines = await shardbus(
            lab, "journal", "export", "account", "account-3", "--store", store_url, *app
        )
        (tmp_path / "lines").write_text(lines)
        await shardbus(lab, "journal", "import", str(tmp_path / "lines"), "--store", copy, *app)
        text = await shardbus(
            lab, "journal", "show", "account", "account-3", "--store", copy, "--json", *app
        )
        shown = [event["value"]["amount"] for event in json.loads(text)["events"]]
        assert shown == totals["account-3"]
    finally:
        lab.close()
