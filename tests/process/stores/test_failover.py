"""A failover by Sentinel, an empty Redis, and one that was restored from an older copy, under real
nodes whose entities save all the time.

None of them keeps every acknowledged save: that is how Redis replicates and restores. Entities must
go on by themselves, and that from then on the store refuses former owners as if it had lost
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from shardbus.store.node_registry import registered
from shardbus.store.opening import open_store
from tests.process.app import Account
from tests.process.nodes import NodeProcess, Processes
from tests.process.stores.saving import Savers, judge, stored_totals
from tests.process.stores.troubles import QUICK_STORE
from tests.redis_server import RedisServer
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.long

DETECT_QUICKLY = (
    *QUICK_STORE,
    "cluster.failure_detector.heartbeat_interval=200ms",
    "cluster.failure_detector.acceptable_heartbeat_pause=1500ms",
    "cluster.downing.stable_after=2s",
)
NOTICED = "the store has another server"


class Sentinels:
    """A master, a replica of it, and a Sentinel that watches both."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.master = stack.enter_context(RedisServer(folder / "master"))
        follows = ("--replicaof", f"127.0.0.1 {self.master.port}")
        self.replica = stack.enter_context(RedisServer(folder / "replica", *follows))
        config = folder / "sentinel.conf"
        config.write_text(
            f"sentinel monitor lab 127.0.0.1 {self.master.port} 1\n"
            "sentinel down-after-milliseconds lab 3000\n"
            "sentinel failover-timeout lab 10000\n"
        )
        sentinel = RedisServer(folder / "sentinel", sentinel=config)
        self.sentinel = stack.enter_context(sentinel)
        self.url = f"redis+sentinel://127.0.0.1:{self.sentinel.port}/0?master=lab"

    async def complete(self) -> None:
        """Wait until the Sentinel knows the replica, and the replica follows."""

        async def replica_known() -> bool:
            with self.sentinel.client() as client, self.replica.client() as replica:
                follows = replica.info("replication")["master_link_status"] == "up"
                return follows and bool(client.sentinel_slaves("lab"))

        await until(replica_known, "a replica that the Sentinel knows")

    def stop_replication(self) -> None:
        """Have the replica get no further write."""
        with self.master.client() as client:
            client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")

    async def promoted(self) -> None:
        async def master() -> bool:
            with self.replica.client() as client:
                try:
                    return bool(client.info("replication")["role"] == "master")
                except redis.ConnectionError:  # It closes its connections when it is promoted.
                    return False

        await until(master, "the failover")


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    with contextlib.ExitStack() as stack:
        yield Sentinels(tmp_path / "redis", stack)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    name = "sentinels" if "sentinels" in request.fixturenames else "own_redis"
    server = request.getfixturevalue(name)
    return str(server.url if name == "sentinels" else server.url())


def noticed(*nodes: NodeProcess) -> bool:
    return all(NOTICED in node.err.read_text() for node in nodes)


def totals_since(savers: Savers) -> None:
    """Forget the answers so far: the store may have lost those saves."""
    for ledger in savers.ledgers.values():
        del ledger.totals[:-1]


def judge_recovered(savers: Savers, stored: dict[str, int]) -> list[str]:
    """Return the broken rules. How often was saved before the recovery is unknown here."""
    return [rule for rule in judge(savers, stored) if "is stored after" not in rule]


async def all_registered(url: str, nodes: list[NodeProcess]) -> bool:
    """True if the store's registry has these nodes: `data remove` refuses while they run."""
    store = open_store(url, cluster="lab", timeout=10.0)
    await store.start()
    try:
        return {str(address) for address in await registered(store)} >= {n.address for n in nodes}
    finally:
        await store.close()


async def test_entities_go_on_after_a_failover(lab: Processes, sentinels: Sentinels) -> None:
    await sentinels.complete()
    nodes = await lab.cluster(2, settings=QUICK_STORE)
    async with lab.client(*nodes) as client, Savers(client) as savers:
        await asyncio.to_thread(sentinels.master.kill)
        await sentinels.promoted()
        await savers.proceed("saves at the new master")
        await until(lambda: noticed(*nodes), "the new server in the logs")
        totals_since(savers)
        await savers.proceed("saves after that", 20)
    for node in nodes:
        assert await node.terminate() == 0
        assert "Traceback" not in node.err.read_text()
    stored = await stored_totals(sentinels.url, list(savers.ledgers))
    assert judge_recovered(savers, stored) == []


async def test_an_owner_that_stood_still_saves_nothing_after_a_failover_that_lost_the_fence(
    lab: Processes, sentinels: Sentinels
) -> None:
    """The replica never got the fence of the next owner, and becomes the master. The former owner,
    in the middle of a handler, continues and saves."""
    await sentinels.complete()
    nodes = await lab.cluster(3, settings=DETECT_QUICKLY)
    frozen = nodes[2]
    async with lab.client(*nodes, timeout=PATIENCE_S) as client:
        names = [f"account-{n}" for n in range(64)]
        homes = {name: await client.ref(Account, name).where() for name in names}
        name = next(n for n, home in homes.items() if home.startswith(f"{frozen.address}#"))
        assert await client.ref(Account, name).add(1) == 1
        late = asyncio.ensure_future(client.ref(Account, name).add_late(1000, "gate"))
        await until(lambda: (lab.folder / "gate.waits").exists(), "the handler")
        await asyncio.to_thread(sentinels.stop_replication)
        frozen.signal(signal.SIGSTOP)
        await lab.agree(*nodes[:2])
        async with lab.client(*nodes[:2], timeout=PATIENCE_S) as second:
            account = second.ref(Account, name)
            assert await account.get() == 1
            await asyncio.to_thread(sentinels.master.kill)
            await sentinels.promoted()
            await until(lambda: noticed(*nodes[:2]), "the new server in the logs")
            assert await account.get() == 1
            (lab.folder / "gate").touch()
            frozen.signal(signal.SIGCONT)
            assert await frozen.ended() != 0
            assert not (lab.folder / "gate.saved").exists()
            assert await account.add(10) == 11
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
    for node in nodes[:2]:
        assert await node.terminate() == 0
    assert await stored_totals(sentinels.url, [name]) == {name: 11}


async def test_entities_go_on_after_the_store_was_emptied(
    lab: Processes, own_redis: RedisServer
) -> None:
    """The state in memory is saved again by the next save of each entity."""
    nodes = await lab.cluster(2, settings=QUICK_STORE)
    async with lab.client(*nodes) as client, Savers(client) as savers:
        with own_redis.client() as admin:
            admin.flushall()
        await until(lambda: noticed(*nodes), "the loss in the logs")
        await savers.proceed("saves in the emptied store", 20)
        await until(lambda: all_registered(own_redis.url(), nodes), "both in the registry")
        third = await lab.start(settings=QUICK_STORE)
        await lab.agree()
        await savers.proceed("saves after a join", 20)
    for node in (third, *nodes):
        assert await node.terminate() == 0
        assert "Traceback" not in node.err.read_text()
    assert judge(savers, await stored_totals(own_redis.url(), list(savers.ledgers))) == []


async def test_entities_go_on_after_the_store_was_restored_from_an_older_copy(
    lab: Processes, own_redis: RedisServer, tmp_path: Path
) -> None:
    nodes = await lab.cluster(2, settings=QUICK_STORE)
    live, copy = tmp_path / "redis" / "appendonlydir", tmp_path / "copy"
    async with lab.client(*nodes) as client, Savers(client) as savers:
        await asyncio.to_thread(shutil.copytree, live, copy)
        await savers.proceed("saves that the copy does not have", 20)
        third = await lab.start(settings=QUICK_STORE)
        await lab.agree()
        await asyncio.to_thread(own_redis.kill)
        await asyncio.to_thread(shutil.rmtree, live)
        await asyncio.to_thread(shutil.copytree, copy, live)
        await asyncio.to_thread(own_redis.restart)
        await until(lambda: noticed(third, *nodes), "the older copy in the logs")
        await savers.proceed("saves in the older copy")
        totals_since(savers)
        await savers.proceed("saves after that", 20)
    for node in (third, *nodes):
        assert await node.terminate() == 0
        assert "Traceback" not in node.err.read_text()
    stored = await stored_totals(own_redis.url(), list(savers.ledgers))
    assert judge_recovered(savers, stored) == []
