"""Durable mailboxes of real nodes: each confirmed message takes effect once although nodes are
killed, one after the other or all at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from shardbus import AsyncClient
from tests.process.mailboxes_app import Account
from tests.process.nodes import Processes
from tests.process.test_replicas import Trio
from tests.waiting import PATIENCE_S, until

APP = "tests.process.mailboxes_app:bus"
ACCOUNTS = 8
TOKEN = "sesame-sesame-16"


class Sender:
    """Delivers numbered deposits to all accounts, in the order of their numbers."""

    def __init__(self, client: AsyncClient) -> None:
        self.refs = [client.ref(Account, f"account-{n}") for n in range(ACCOUNTS)]
        self.sent = 0

    async def send(self, count: int) -> None:
        """Deliver more, and return once all are confirmed."""
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        refs = self.refs
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(refs[n % ACCOUNTS].deposit.deliver(n) for n in numbers))

    async def until_applied(self) -> None:
        """Wait until every account has its deposits, and compare them."""

        async def rows() -> list[list[int]]:
            return [await ref.numbers() for ref in self.refs]

        async def applied() -> bool:
            return sum(map(len, await rows())) >= self.sent

        await until(applied, "every deposit")
        mine = [[n for n in range(self.sent) if n % ACCOUNTS == own] for own in range(ACCOUNTS)]
        assert await rows() == mine


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.long)])
async def test_each_confirmed_message_counts_once_under_kills(
    lab: Processes, redis_url: str, kills: int
) -> None:
    lab.store = redis_url
    await lab.cluster(3, app=APP)
    async with lab.client() as client:
        sender = Sender(client)
        for _ in range(kills):
            await sender.send(160)
            lab.live[0].kill()  # most of the confirmed ones are not handled yet
            await lab.start(app=APP)
        await sender.send(160)
        await sender.until_applied()


@pytest.mark.parametrize("kind", ["redis", pytest.param("sqlite", marks=pytest.mark.long)])
async def test_confirmed_messages_are_handled_after_a_stop_of_everything(
    lab: Processes, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """No client is there when the nodes are: the entities start for their messages."""
    file = f"sqlite:///{tmp_path}/mail.db"
    lab.store = request.getfixturevalue("redis_url") if kind == "redis" else file
    nodes = await lab.cluster(2, app=APP)
    async with lab.client() as client:
        sender = Sender(client)
        await sender.send(240)
    for node in nodes:
        node.kill()
    settings = ("http.write=true", f"http.token={TOKEN}")
    node = await lab.start(app=APP, settings=settings)

    async def handled() -> bool:
        [row] = (await node.page("/v1/mailboxes/account"))["nodes"]
        return row["waiting"] == 0 and row["recovered"] + row["repeated"] > 0

    await until(handled, "every message is handled")
    command = lab.run(
        "mailbox", "account", "--json", "--node", f"http://127.0.0.1:{node.http_port}"
    )
    assert await command.ended() == 0, command.err.read_text()
    [row] = json.loads(command.out.read_text())["nodes"]
    assert (row["waiting"], row["stuck"], row["given_up"]) == (0, 0, 0)
    async with lab.client() as client:
        after = Sender(client)
        after.sent = sender.sent
        await after.until_applied()


@pytest.mark.long
async def test_confirmed_messages_outlive_the_replicas_of_the_cluster_store(
    lab: Processes,
) -> None:
    lab.store = "cluster://"
    trio = Trio(lab)
    trio.begin(app=APP)
    await trio.agree()
    async with lab.client() as client:
        sender = Sender(client)
        await sender.send(160)
    for node in trio.nodes.values():
        node.kill()
    trio.begin(app=APP)
    await trio.agree()
    async with lab.client() as client:
        after = Sender(client)
        after.sent = sender.sent
        await after.until_applied()
