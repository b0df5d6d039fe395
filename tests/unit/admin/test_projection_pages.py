"""The pages about projections: lag and failures of all nodes, and the orders of operators."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from examples.ledger import Account, Bank, Statement, bus
from shardbus.admin.metrics import render
from shardbus.admin.pages import checkup
from shardbus.admin.pages import projections as pages
from shardbus.errors import Refused, UnknownEntityType
from shardbus.testing import TestCluster

NAMES = [f"account-{n}" for n in range(6)]


async def on_node(cluster: TestCluster, work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in the loop of the first node, and return its result."""
    task = cluster.nodes[0]._process.loop.create_task(work)
    await cluster.advance(8)
    return task.result()


async def test_lag_failures_and_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Statement._book

    def fails(statement: Any, amount: int) -> None:
        if (statement.source_id, statement.event_number) == (NAMES[2], 2):
            raise ValueError("no such account")
        statement.state.amounts.append(amount)
        statement.deliver(statement.context.ref(Bank, "all").add, amount)

    monkeypatch.setattr(Statement, "_book", fails)
    async with TestCluster(bus, nodes=2, seed=1) as cluster:
        client, admin = cluster.client(), cluster.nodes[0]._process.admin
        for name in NAMES:
            for amount in (1, 2, 3):
                await client.ref(Account, name).deposit(amount)
        await cluster.advance(300)
        answer = await on_node(cluster, pages.projections(admin))
        [row] = answer["projections"]
        assert (row["name"], row["of"], row["behind"], row["stopped"]) == (
            "statement", "account", 1, 1,
        )  # fmt: skip
        assert (row["handled"], row["passed"], row["failed"]) == (5 * 3 + 1, 0, 10)
        assert (row["missing"], row["scanning"], answer["silent"]) == (0, 0, [])
        assert row["lag"] > 250
        shown = await on_node(cluster, pages.projection(admin, "statement"))
        assert len(shown["nodes"]) == 2
        [failing] = shown["failing"]
        assert failing.pop("node") in {row["node"] for row in shown["nodes"]}
        error = "ValueError: no such account"
        expected = {"id": NAMES[2], "state": "stopped", "number": 2, "error": error}
        assert failing == expected | {"attempts": 10}
        part = await on_node(cluster, pages.projection_of(admin, "statement", NAMES[2]))
        assert (part["handled"], part["last"], part["behind"], part["state"]) == (
            1,
            3,
            2,
            "stopped",
        )
        told = [
            checkup.answer_checkup(node._process.admin)["projections"]["statement"][0]
            for node in cluster.nodes
        ]
        assert sorted(told) == [0, 1]
        with pytest.raises(Refused, match="the next event of 'account-2' is 2, not 3"):
            await on_node(cluster, pages.skip_event(admin, "statement", "ann", NAMES[2], 3))
        skipped = await on_node(cluster, pages.skip_event(admin, "statement", "ann", NAMES[2], 2))
        assert skipped["skipped"] == 2
        ref = client.ref(Statement, Statement.id_for(NAMES[2]))
        assert await ref.lines() == [1, 3]
        monkeypatch.setattr(Statement, "_book", book)
        again = await on_node(cluster, pages.rewind_projection(admin, "statement", "ann", NAMES[2]))
        assert (again["rewound"], again["refused"], again["next"]) == ([NAMES[2]], [], None)
        assert await ref.lines() == [1, 2, 3]
        every = await on_node(cluster, pages.rewind_projection(admin, "statement", "ann"))
        assert sorted(every["rewound"]) == NAMES
        assert await ref.lines() == [1, 2, 3]
        retried = await on_node(cluster, pages.retry_projection(admin, "statement", "ann"))
        assert retried["retried"] == 0
        lost = await on_node(cluster, pages.rewind_projection(admin, "statement", "ann", "nobody"))
        assert lost["rewound"] == []
        assert "has no events" in lost["refused"][0]["error"]
        with pytest.raises(UnknownEntityType, match="there is no projection 'account'") as unknown:
            await on_node(cluster, pages.projection(admin, "account"))
        assert unknown.value.hint == "there is statement"
        metrics = render(admin.node).decode()
        assert 'shardbus_projection_lag_seconds{entity_type="statement"} 0.0' in metrics
        assert 'shardbus_projection_events_handled_total{entity_type="statement"}' in metrics
