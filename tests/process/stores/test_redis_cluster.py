"""A Redis Cluster, and a master with Sentinels, under real nodes whose entities save all the time:
a master is killed, slots move. With `?replicas=1` every acknowledged save is there afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shardbus.ids import shard_of
from shardbus.store.opening import open_store
from shardbus.store.redis_keys import slot_of
from tests.process.app import Account
from tests.process.nodes import Processes
from tests.process.stores.saving import Savers, judge, stored_totals
from tests.process.stores.test_failover import Sentinels
from tests.process.stores.troubles import QUICK_STORE
from tests.proxy import Proxy
from tests.redis_cluster import SLOTS, RedisClusterServers
from tests.redis_server import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.long

KEPT = "?replicas=1"


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[RedisClusterServers]:
    with RedisClusterServers(tmp_path / "redis", replicas=1) as servers:
        await servers.form()
        yield servers


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    with contextlib.ExitStack() as stack:
        yield Sentinels(tmp_path / "redis", stack)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    if "own_redis" in request.fixturenames:
        return str(request.getfixturevalue("own_redis").url())
    if "sentinels" in request.fixturenames:
        return f"{request.getfixturevalue('sentinels').url}&replicas=1"
    return f"{request.getfixturevalue('servers').url}{KEPT}"


async def test_a_master_of_a_cluster_dies_and_no_acknowledged_save_is_lost(
    lab: Processes, servers: RedisClusterServers, store: str
) -> None:
    nodes = await lab.cluster(2, settings=QUICK_STORE)
    async with lab.client(*nodes) as client, Savers(client) as savers:
        await savers.proceed("saves at three masters", 10)
        await asyncio.to_thread(servers.masters[1].kill)
        await until(lambda: servers.is_master(servers.replicas[1]), "the replica's promotion")
        servers.masters[1].restart()  # It becomes the replica that each write waits for.
        await savers.proceed("saves after that", 20)
        last = savers.last()
        for name, total in last.items():
            assert await client.ref(Account, name).get() >= total
    for node in nodes:
        assert await node.terminate() == 0
    assert judge(savers, await stored_totals(store, list(savers.ledgers))) == []


async def test_slots_move_between_masters_and_no_acknowledged_save_is_lost(
    lab: Processes, servers: RedisClusterServers, store: str
) -> None:
    nodes = await lab.cluster(2, settings=QUICK_STORE)
    async with lab.client(*nodes) as client, Savers(client) as savers:
        await savers.proceed("saves at three masters", 5)
        prefix = "shardbus:lab:{account/"
        shards = {shard_of(name, 100) for name in savers.ledgers}
        slots = {slot_of(f"{prefix}{shard}}}:") for shard in shards}
        third = SLOTS // 3
        for slot in sorted(slots):
            source, target = (min(slot // third, 2) + n for n in (0, 1))
            places = servers.masters[source], servers.masters[target % 3]
            await asyncio.to_thread(servers.move_slot, slot, *places)
        await savers.proceed("saves after that", 10)
    for node in nodes:
        assert await node.terminate() == 0
    assert judge(savers, await stored_totals(store, list(savers.ledgers))) == []


async def test_a_master_with_sentinels_dies_and_no_acknowledged_save_is_lost(
    lab: Processes, sentinels: Sentinels, store: str
) -> None:
    await sentinels.complete()
    nodes = await lab.cluster(2, settings=QUICK_STORE)
    async with lab.client(*nodes) as client, Savers(client) as savers:
        await savers.proceed("saves at the first master", 10)
        await asyncio.to_thread(sentinels.master.kill)
        await sentinels.promoted()
        sentinels.master.restart()  # Sentinel makes it the replica that each write waits for.
        await savers.proceed("saves at the new master", 20)
    for node in nodes:
        assert await node.terminate() == 0
    assert judge(savers, await stored_totals(store, list(savers.ledgers))) == []


async def test_a_migration_that_is_killed_goes_on_and_loses_nothing(
    lab: Processes, own_redis: RedisServer
) -> None:
    """As an earlier release has left 15,000 accounts, all under one hash tag."""
    names = [f"a-{n}" for n in range(15_000)]
    v = b"%019d" % 7 + b"a" * 10 + b"0" * 15
    with own_redis.client() as client, client.pipeline(transaction=False) as pipeline:
        pipeline.hset("shardbus:lab:probe", "mark", "0123")
        pipeline.hset("shardbus:lab:{account}:table", mapping={"epoch": 1, "layout": "crc32/100"})
        for name in names:
            key = f"shardbus:lab:{{account}}:entity:{name}"
            pipeline.hset(key, mapping={"v": v, "data": name.encode()})
        pipeline.execute()
    # Moved keys pass this process, so none goes on to its end unseen.
    proxy = Proxy(own_redis.port)
    await proxy.start()
    passed = f"redis://127.0.0.1:{proxy.port}/0"
    words = ("data", "migrate", "--store", passed, "--cluster", "lab")

    def left() -> int:
        with own_redis.client() as client:
            return sum(1 for _ in client.scan_iter("shardbus:lab:{account}:entity:*", count=5000))

    for share in (0.8, 0.4):
        command = lab.run(*words)
        await until(lambda share=share: left() < share * len(names), "some that have moved")  # type: ignore[misc]
        command.process.kill()
        await asyncio.to_thread(command.process.wait)
        refused = lab.run("state", "list", "account", "--store", lab.store, "--cluster", "lab")
        assert await refused.ended() != 0
        assert "data migrate" in refused.err.read_text()
    assert await lab.run(*words).ended() == 0
    await proxy.close()
    store = open_store(lab.store, cluster="lab", timeout=60.0)
    await store.start()
    states = await store.read_states("account", names)
    assert states == [name.encode() for name in names]
    await store.close()
    assert left() == 0
