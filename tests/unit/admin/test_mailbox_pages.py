"""The pages about durable mailboxes: messages, failures, the orders of operators, the finding, and
metrics."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from shardbus import ConfigError, Entity, ShardBus, handler
from shardbus.admin.metrics import render
from shardbus.admin.pages import checkup
from shardbus.admin.pages import mailboxes as pages
from shardbus.errors import Refused
from shardbus.testing import TestCluster

bus = ShardBus("mailbox-pages")


@dataclass
class Numbers:
    taken: list[int] = field(default_factory=list)


@bus.entity(name="stored", shards=6, durable_mailbox=True)
class Stored(Entity):
    state: Numbers

    @handler
    def add(self, number: int) -> None:
        if number == 1:
            raise ValueError("one fails")
        self.state.taken.append(number)

    @handler
    def get(self) -> list[int]:
        return self.state.taken


@bus.entity(name="plain", shards=6)
class Plain(Entity):
    @handler
    def hit(self) -> None: ...


async def on_node(cluster: TestCluster, work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in the loop of the first node, and return its result."""
    task = cluster.nodes[0]._process.loop.create_task(work)
    await cluster.advance(8)
    return task.result()


async def test_an_operator_sees_and_mends_a_stuck_mailbox() -> None:
    settings = {"delivery.on_poison": "stop"}
    async with TestCluster(bus, nodes=2, settings=settings) as cluster:
        ref, admin = cluster.client().ref(Stored, "a"), cluster.nodes[0]._process.admin
        for number in (0, 1, 2):
            await ref.add.deliver(number)
        await cluster.advance(200)
        shown = await on_node(cluster, pages.mailboxes(admin, "stored"))
        assert [row["waiting"] for row in shown["nodes"]].count(2) == 1
        [stuck] = shown["stuck"]
        assert (stuck["id"], stuck["method"], stuck["attempts"] >= 10) == ("a", "add", True)
        assert stuck["error"] == "ValueError: one fails"
        box = await on_node(cluster, pages.mailbox(admin, "stored", "a"))
        assert (box["waiting"], box["node"]) == (2, stuck["node"])
        numbers = [message["number"] for message in box["messages"]]
        assert numbers == [stuck["number"], stuck["number"] + 1]
        report = await on_node(cluster, checkup.checkup(admin))
        rows = (member["mailboxes_stuck"] for member in report["members"])
        [row] = [row for row in rows if row]
        assert row["stored"][:2] == [1, "a"]
        assert row["stored"][2] > 150
        with pytest.raises(Refused):
            await on_node(cluster, pages.skip_mail(admin, "stored", "op", "a", numbers[1]))
        retried = await on_node(cluster, pages.retry_mailboxes(admin, "stored", "op"))
        assert retried["retried"] == 1
        await on_node(cluster, pages.skip_mail(admin, "stored", "op", "a", numbers[0]))
        assert await ref.get() == [0, 2]
        shown = await on_node(cluster, pages.mailboxes(admin, "stored"))
        assert (shown["stuck"], sum(row["given_up"] for row in shown["nodes"])) == ([], 1)
        texts = [render(node._process.node).decode() for node in cluster.nodes]
        labels = '{entity_type="stored",outcome="given_up"}'
        line = f"shardbus_durable_mailbox_messages_total{labels} 1.0"
        assert sum(line in text for text in texts) == 1
        with pytest.raises(ConfigError, match="durable_mailbox=True"):
            await on_node(cluster, pages.mailbox(admin, "plain", "a"))
