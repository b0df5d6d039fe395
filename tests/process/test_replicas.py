"""A store inside the cluster, as an operator starts it: three nodes with `cluster://`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from contextlib import suppress

import pytest

from examples.ledger import Account
from shardbus import ShardBusError
from tests.ports import free_block
from tests.process.nodes import NodeProcess, Processes
from tests.process.served_replicas import replica_processes
from tests.process.test_reminders import rung
from tests.waiting import until

pytestmark = pytest.mark.long

ACCOUNTS = [f"account-{n}" for n in range(20)]


@pytest.fixture
def store() -> str:
    return "cluster://"


class Trio:
    """Three nodes by default, each with a replica, at places that stay the same."""

    def __init__(self, lab: Processes, count: int = 3) -> None:
        self.lab, self.ports = lab, [free_block(4) for _ in range(count)]
        self.nodes: dict[int, NodeProcess] = {}

    def begin(
        self, *numbers: int, app: str = "tests.process.app:bus", settings: tuple[str, ...] = ()
    ) -> None:
        """Start these nodes, all by default; does not wait."""
        for number in numbers or range(len(self.ports)):
            port = self.ports[number]
            self.nodes[number] = self.lab.begin(
                port=port,
                app=app,
                seeds=[f"127.0.0.1:{each}" for each in self.ports],
                settings=(
                    f"node.gossip_port={port + 1}",
                    f"store.path={self.lab.folder}/replica-{number}",
                    "store.timeout=5s",
                    *settings,
                ),
            )

    async def agree(self) -> None:
        """Wait until all that run see each other Up."""
        await self.lab.agree(*(node for node in self.nodes.values() if node.running))

    async def totals(self) -> dict[str, int]:
        """The total of each account, as a client reads it."""
        async with self.lab.client(*self.running) as client:
            values = await asyncio.gather(*(client.call("account", a, "get") for a in ACCOUNTS))
        return dict(zip(ACCOUNTS, values, strict=True))

    @property
    def running(self) -> list[NodeProcess]:
        return [node for node in self.nodes.values() if node.running]


@pytest.fixture
def trio(lab: Processes) -> Trio:
    return Trio(lab)


async def add(trio: Trio, entity: str, acked: Counter[str], sent: Counter[str], times: int) -> None:
    """Add 1 to an account, many times in a row. Counts sent and answered messages."""
    async with trio.lab.client(*trio.running, timeout=30.0) as client:
        for _ in range(times):
            sent[entity] += 1
            with suppress(ShardBusError, TimeoutError):
                await client.call("account", entity, "add", 1)
                acked[entity] += 1


@pytest.mark.parametrize("store", ["cluster://", "cluster://?durability=memory"])
async def test_no_acknowledged_save_is_lost_when_a_node_is_killed(trio: Trio) -> None:
    trio.begin()
    await trio.agree()
    acked, sent = Counter[str](), Counter[str]()
    adding = asyncio.gather(*(add(trio, entity, acked, sent, 30) for entity in ACCOUNTS))
    await until(lambda: acked.total() > 100, "the first answers")
    trio.nodes[2].kill()
    await adding
    totals = await trio.totals()
    assert acked.total() > 300
    for entity in ACCOUNTS:
        assert acked[entity] <= totals[entity] <= sent[entity], entity


async def test_a_full_stop_and_start_keeps_all(trio: Trio) -> None:
    trio.begin()
    await trio.agree()
    acked, sent = Counter[str](), Counter[str]()
    await asyncio.gather(*(add(trio, entity, acked, sent, 3) for entity in ACCOUNTS))
    before = await trio.totals()
    assert before == dict.fromkeys(ACCOUNTS, 3)
    assert await asyncio.gather(*(node.terminate() for node in trio.running)) == [0, 0, 0]
    assert replica_processes(trio.lab.folder) == []
    trio.begin()
    await trio.agree()
    assert await trio.totals() == before


async def test_events_and_outboxes_outlive_a_killed_node_and_a_full_stop(trio: Trio) -> None:
    app = "examples.ledger:bus"
    trio.begin(app=app)
    await trio.agree()
    answered, rounds = Counter[str](), 60
    async with trio.lab.client(*trio.running, cluster="ledger", timeout=30.0) as client:

        async def deposit(account: str) -> None:
            for _ in range(rounds):
                with suppress(ShardBusError, TimeoutError):
                    await client.call("account", account, "deposit", 1)
                    answered[account] += 1

        async with client.outbox("payer") as outbox:
            depositing = asyncio.gather(*map(deposit, ACCOUNTS))
            sent = [await outbox.send(client.ref(Account, "payee").deposit, 1) for _ in range(40)]
            await until(lambda: answered.total() > 200, "the first answers")
            trio.nodes[2].kill()
            sent += [await outbox.send(client.ref(Account, "payee").deposit, 1) for _ in range(40)]
            await depositing
            await until(lambda: not outbox.unconfirmed, "the end of the outbox")

    async def balances() -> dict[str, int]:
        async with trio.lab.client(*trio.running, cluster="ledger", timeout=30.0) as client:
            asks = (client.call("account", name, "balance") for name in [*ACCOUNTS, "payee"])
            amounts = [balance["amount"] for balance in await asyncio.gather(*asks)]
        return dict(zip([*ACCOUNTS, "payee"], amounts, strict=True))

    before = await balances()
    # A node that dies between an event and the number of its delivery lets that one come again.
    assert len(sent) <= before["payee"] <= len(sent) + 1
    for account in ACCOUNTS:
        assert answered[account] <= before[account] <= rounds
    assert await asyncio.gather(*(node.terminate() for node in trio.running)) == [0, 0]
    trio.begin(app=app)
    await trio.agree()
    assert await balances() == before


async def test_reminders_outlive_a_killed_node_and_a_full_stop(trio: Trio) -> None:
    app, lab, token = "tests.process.reminding_app:bus", trio.lab, "sesame-sesame-16"
    settings = ("http.write=true", f"http.token={token}")
    trio.begin(app=app, settings=settings)
    await trio.agree()
    first, later = [f"a{n}" for n in range(30)], [f"b{n}" for n in range(30)]

    async def remind(ids: list[str], seconds: float) -> None:
        async with lab.client(*trio.running, timeout=30.0) as client:
            for entity_id in ids:
                await client.call("alarm", entity_id, "set", seconds)

    async def command(*words: str, **environment: str) -> str:
        process = lab.run(*words, **environment)
        assert await process.ended() == 0, process.err.read_text()
        return process.out.read_text() + process.err.read_text()

    await remind(first, 4.0)
    trio.nodes[2].kill()
    await until(lambda: set(rung(lab)) == set(first), "each reminder to fire")
    assert {len(times) for times in rung(lab).values()} == {1}
    await remind(later, 3.0)
    await remind(["far"], 86_400.0)
    assert await asyncio.gather(*(node.terminate() for node in trio.running)) == [0, 0]
    trio.begin(app=app, settings=settings)
    await trio.agree()
    await until(lambda: set(later) <= set(rung(lab)), "each reminder to fire after the restart")
    assert {len(times) for times in rung(lab).values()} == {1}

    at = ("--node", f"http://127.0.0.1:{trio.nodes[0].http_port}")
    listed = await command("reminders", "list", "alarm", *at, "--json")
    assert [row["id"] for row in json.loads(listed)["reminders"]] == ["far"]
    assert "ring" in await command("reminders", "show", "alarm", "far", *at)
    url = "cluster://" + ",".join(f"127.0.0.1:{port + 2}" for port in trio.ports)
    of_store = ("--cluster", "lab", "--store", url)
    exported = lab.folder / "exported"
    exported.write_text(await command("state", "export", "alarm", *of_store))
    assert '"id":"far"' in exported.read_text()
    cancelling = ("reminders", "cancel", "alarm", "far", *at)
    assert "1 cancelled: ring" in await command(*cancelling, SHARDBUS_NODE_TOKEN=token)
    listed = await command("reminders", "list", "alarm", *at, "--json")
    assert json.loads(listed)["reminders"] == []


async def test_a_replica_ends_with_its_node_and_comes_back_by_itself(trio: Trio) -> None:
    trio.begin()
    await trio.agree()
    disk = trio.lab.folder / "replica-0"
    [replica] = replica_processes(disk)
    os.kill(replica, signal.SIGKILL)

    def another() -> bool:
        return replica_processes(disk) not in ([], [replica])

    await until(another, "another process of the replica")
    trio.nodes[0].kill()
    await until(lambda: replica_processes(disk) == [], "the end of the replica")
    acked, sent = Counter[str](), Counter[str]()
    await add(trio, "account-1", acked, sent, 3)
    assert acked["account-1"] == 3


async def test_a_node_shows_its_replicas(trio: Trio) -> None:
    trio.begin()
    await trio.agree()

    async def all_serve() -> bool:
        page = await trio.nodes[0].page("/v1/store")
        return bool(page) and [row["serves"] for row in page["replicas"]] == [True] * 3

    await until(all_serve, "every replica")

    async def repaired() -> bool:
        text = await asyncio.to_thread(trio.nodes[0].read, "/metrics")
        return "\nshardbus_replica_repair_age_seconds " in (text or "")

    await until(repaired, "the repairs of its replica")
    trio.nodes[1].kill()

    async def seen() -> bool:
        page = await trio.nodes[0].page("/v1/store")
        return bool(page) and [row["serves"] for row in page["replicas"]].count(False) == 1

    await until(seen, "a replica out of reach")
    page = await trio.nodes[0].page("/v1/store")
    assert page["problems"] == [
        f"a replica does not serve: 127.0.0.1:{trio.ports[1] + 2}: it is out of reach"
    ]


async def test_a_node_says_for_which_replicas_it_waits(trio: Trio) -> None:
    trio.begin(0, 1)
    third = f"127.0.0.1:{trio.ports[2] + 2}: it is not in sight"
    await trio.nodes[1].says(third)
    assert "ready: " not in trio.nodes[1].out.read_text()
    trio.begin(2)
    await trio.agree()


async def operate(trio: Trio, *words: str) -> None:
    """Run a command of `shardbus store` as an operator of the first replica."""
    ports = [port + 2 for port in trio.ports]
    url = "cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    code = "from shardbus_cli.main import main; main()"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, "store", *words, "--cluster", "lab", "--store", url,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()


async def test_nodes_that_run_go_on_with_a_store_that_is_founded_anew(trio: Trio) -> None:
    """Two of three disks are lost under running nodes; the third one's node is stopped for it."""
    trio.begin()
    await trio.agree()
    acked, sent = Counter[str](), Counter[str]()
    await asyncio.gather(*(add(trio, entity, acked, sent, 3) for entity in ACCOUNTS))
    for number in (1, 2):
        disk = trio.lab.folder / f"replica-{number}"
        disk.rename(trio.lab.folder / f"lost-{number}")
        for replica in replica_processes(disk):
            os.kill(replica, signal.SIGKILL)
    trio.nodes[0].kill()
    disk = trio.lab.folder / "replica-0"
    await until(lambda: replica_processes(disk) == [], "the end of the replica")
    port = str(trio.ports[0] + 2)
    await operate(trio, "recover", "--path", str(disk), "--port", port, "--accept-loss")
    trio.begin(0)
    for each in trio.ports[1:]:
        await operate(trio, "add", f"127.0.0.1:{each + 2}", "--wait", "2m")
    await trio.agree()
    await asyncio.gather(*(add(trio, entity, acked, sent, 3) for entity in ACCOUNTS))
    totals = await trio.totals()
    for entity in ACCOUNTS:
        assert acked[entity] <= totals[entity] <= sent[entity], entity
    assert all(node.running for node in trio.nodes.values())
