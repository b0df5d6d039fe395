"""Deliveries take effect once although processes die: three nodes on Redis, by the command line."""

from __future__ import annotations

import asyncio
import json
from itertools import count

import pytest

from shardbus import AsyncClient
from shardbus.store.outboxes import OutboxMessage, encode_message
from shardbus.wire.schema import encode_value
from tests.process.deliveries_app import Account, Balance, Till
from tests.process.nodes import Processes
from tests.waiting import PATIENCE_S, until

APP = "tests.process.deliveries_app:bus"
ACCOUNTS = 12


class Payer:
    """Delivers numbered deposits to all accounts in turn, up to ten at once."""

    def __init__(self, client: AsyncClient) -> None:
        self.refs = [client.ref(Account, f"account-{n}") for n in range(ACCOUNTS)]
        self.sent = 0
        self.closing = False

    async def run(self) -> None:
        under_way: set[asyncio.Future[None]] = set()
        for number in count(1):
            if self.closing:
                break
            payee = f"account-{(number * 7 + 1) % ACCOUNTS}"
            ref = self.refs[number % ACCOUNTS]
            under_way.add(asyncio.ensure_future(ref.deposit.deliver(number, payee)))
            self.sent = number
            if len(under_way) >= 10:
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for confirmed in done:
                    confirmed.result()
            await asyncio.sleep(0.002)
        await asyncio.gather(*under_way)

    async def until_more(self, deposits: int) -> None:
        goal = self.sent + deposits
        await until(lambda: self.sent >= goal, f"{deposits} more deposits")


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.long)])
async def test_each_deposit_and_each_payment_counts_once_under_kills(
    lab: Processes, redis_url: str, kills: int
) -> None:
    lab.store = redis_url
    await lab.cluster(3, app=APP)
    async with lab.client() as client:
        payer = Payer(client)
        work = asyncio.ensure_future(payer.run())
        await payer.until_more(50)
        for _ in range(kills):
            lab.live[0].kill()
            await lab.start(app=APP)
            await payer.until_more(50)
        payer.closing = True
        async with asyncio.timeout(PATIENCE_S):
            await work

        async def balances() -> list[Balance]:
            return [await ref.balance() for ref in payer.refs]

        async def settled() -> bool:
            return sum(page.got for page in await balances()) >= payer.sent

        await until(settled, "every payment")
        rows = await balances()
    for n, row in enumerate(rows):
        mine = [number for number in range(1, payer.sent + 1) if number % ACCOUNTS == n]
        assert row.deposits == mine
        assert row.paid == len(mine)
    assert sum(row.got for row in rows) == payer.sent
    assert sum(row.cents for row in rows) == 100 * payer.sent


async def test_a_move_repeats_no_delivery_to_an_entity_without_state(
    lab: Processes, redis_url: str
) -> None:
    """A node leaves: its entities lose their memory, and handled messages are not sent again."""
    lab.store = redis_url
    nodes = await lab.cluster(2, app=APP)
    async with lab.client() as client:
        tills = [client.ref(Till, f"till-{n}") for n in range(8)]
        first = [till.take.deliver(n) for till in tills for n in range(20)]
        await asyncio.gather(*first)
        assert [await till.report() for till in tills] == [list(range(20))] * len(tills)
        leaving = asyncio.ensure_future(nodes[0].terminate())
        second = [till.take.deliver(n) for n in range(20, 120) for till in tills]
        await asyncio.gather(*second)
        assert await leaving == 0
        for till in tills:
            await till.take.deliver(120)
            taken = await till.report()
            assert taken == list(range(taken[0], 121))


@pytest.mark.long
async def test_an_outbox_delivers_once_what_it_took_although_its_process_died(
    lab: Processes, redis_url: str
) -> None:
    lab.store = redis_url
    await lab.cluster(3, app=APP)
    async with lab.client() as first, lab.client() as second:
        old = await first.outbox("deposits").__aenter__()
        refs = [first.ref(Account, f"account-{n}") for n in range(ACCOUNTS)]
        for number in range(1, 61):
            await old.send(refs[number % ACCOUNTS].deposit, number, "account-0")
            if number == 30:
                lab.live[0].kill()
                await lab.start(app=APP)
        old._tasks.cancel()  # as if its process had died: nothing is renewed, trimmed or sent
        old._sender.abandon()
        refs = [second.ref(Account, f"account-{n}") for n in range(ACCOUNTS)]
        async with second.outbox("deposits") as new:
            for number in range(61, 121):
                await new.send(refs[number % ACCOUNTS].deposit, number, "account-0")
        assert new.unconfirmed == 0
        assert not new.failed

        async def settled() -> bool:
            return (await refs[0].balance()).got >= 120

        await until(settled, "every payment")
        rows = [await ref.balance() for ref in refs]
        for n, row in enumerate(rows):
            assert row.deposits == [seq for seq in range(1, 121) if seq % ACCOUNTS == n]
        assert sum(row.cents for row in rows) == 100 * 120


TOKEN = "sesame-sesame-16"


@pytest.mark.long
async def test_an_operator_gives_up_a_message_that_a_dead_process_left(
    lab: Processes, redis_url: str
) -> None:
    lab.store = redis_url
    [node] = await lab.cluster(1, app=APP, settings=("http.write=true", f"http.token={TOKEN}"))
    url = ("--node", f"http://127.0.0.1:{node.http_port}")

    async def shardbus(*words: str, code: int = 0, **environment: str) -> str:
        command = lab.run(*words, *url, **environment)
        assert await command.ended() == code, command.err.read_text()
        return command.out.read_text() + command.err.read_text()

    async with lab.client() as client:
        old = await client.outbox("deposits").__aenter__()
        old._tasks.cancel()  # as if its process had died
        old._sender.abandon()
        rows = [("account-1", 1), ("account-1", 2), ("account-1", 3)]
        entries = [
            encode_message(
                OutboxMessage("account", letter, "deposit", encode_value((n, "account-0")))
            )
            for letter, n in rows
        ]
        await old._step("append", entries=tuple(entries), op_id=1)
        [row] = json.loads(await shardbus("outbox", "list", "--json"))["outboxes"]
        assert (row["name"], row["pending"], row["open"]) == ("deposits", 3, True)
        drop = ("outbox", "drop", "deposits", "2")
        text = await shardbus(*drop, "--yes", code=6, SHARDBUS_NODE_TOKEN=TOKEN)
        assert "is open in a process" in text
        await old._step("close")
        text = await shardbus(*drop, "--yes", SHARDBUS_NODE_TOKEN=TOKEN)
        assert "1 message given up, 2 left" in text
        stored = await shardbus("outbox", "show", "deposits", "--store", redis_url)
        assert [line.split()[0] for line in stored.splitlines()[1:3]] == ["1", "3"]
        page = await node.page("/v1/dead-letters")
        assert [letter["reason"] for letter in page["letters"]] == ["dropped_by_operator"]
        async with client.outbox("deposits") as new:
            await new.send(client.ref(Account, "account-1").deposit, 4, "account-0")
        assert not new.failed
        assert (await client.ref(Account, "account-1").balance()).deposits == [1, 3, 4]
        assert (await node.page("/v1/outboxes"))["outboxes"] == []
