"""The Redis store against a real cluster of three masters: the whole suite, the spread of states,
slots that move, and a master that is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from shardbus.errors import ConfigError, StoreUnavailable
from shardbus.ids import shard_of
from shardbus.store.entity_state import EntityStates
from shardbus.store.opening import open_store
from shardbus.store.protocol import Save, StateStore, on_new_server, problems_of
from shardbus.store.redis import RedisStore
from shardbus.store.redis_keys import slot_of
from shardbus.testing.store_suite import StoreFactory
from tests.certificates import Certificates
from tests.redis_cluster import SLOTS, RedisClusterServers
from tests.unit.store.store_suite import LONG_S, by_hand
from tests.unit.store.test_conformance import StoreConformance
from tests.waiting import until

pytestmark = pytest.mark.long

SHARDS = 100
STATES = [f"e-{n}" for n in range(3000)]


@pytest.fixture
async def store(empty_cluster: RedisClusterServers) -> AsyncIterator[StateStore]:
    store = open_store(empty_cluster.url, cluster="shop", timeout=LONG_S)
    await store.start()
    yield store
    await store.close()


def states(op_id: int = 0, data: bytes = b"x") -> list[Save]:
    return [
        Save("cart", shard_of(name, SHARDS), name, 1, data, op_id + n)
        for n, name in enumerate(STATES, 1)
    ]


class TestRedisCluster(StoreConformance):
    @pytest.fixture
    def pass_time(self) -> Callable[[float], None]:
        return lambda seconds: None

    @pytest.fixture
    def store_factory(self, empty_cluster: RedisClusterServers) -> StoreFactory:
        return lambda: open_store(empty_cluster.url, cluster="shop", timeout=LONG_S)

    @pytest.fixture
    def spoil(self) -> Any:
        return by_hand


async def test_each_of_three_masters_has_its_share_of_the_states(
    empty_cluster: RedisClusterServers, store: StateStore
) -> None:
    assert set(await store.save_states(states())) == {None}
    shares = [
        empty_cluster.keys(master, "*:entity:*") / len(STATES) for master in empty_cluster.masters
    ]
    assert sum(shares) == 1
    assert all(0.25 <= share <= 0.42 for share in shares), shares


async def test_states_are_read_by_id_whatever_their_shards_are(store: RedisStore) -> None:
    """By the recorded layout, and without one, by a look at all keys."""
    await store.save_states(states())
    for layout in ("", f"crc32/{SHARDS}"):
        if layout:
            assert await store.placed("cart", layout) != "", "it is recorded"
        read = await store.read_states("cart", [*STATES[:300], "unknown"])
        assert read == [*[b"x"] * 300, None]


async def test_slots_move_under_load_and_nothing_is_lost(
    empty_cluster: RedisClusterServers, store: StateStore
) -> None:
    """A slot on its way has some keys here and some there: MOVED, ASK and TRYAGAIN."""
    kept = EntityStates(store, 7)
    slots = {slot_of(f"shardbus:shop:{{cart/{shard}}}:") for shard in range(SHARDS)}
    last: dict[str, bytes] = {}
    moving = True

    async def save(names: list[str]) -> None:
        turn = 0
        while moving or turn < 3:
            turn += 1
            for name in names:
                data = b"%d" % turn
                await kept.save("cart", shard_of(name, SHARDS), name, 1, data)
                last[name] = data

    groups = [asyncio.create_task(save(STATES[n:900:90])) for n in range(90)]
    await until(lambda: len(last) == 900, "a first save of each")
    a, b, _ = empty_cluster.masters
    share = SLOTS // 3
    here = sorted(slot for slot in slots if slot < share)
    assert len(here) > 10
    moved = 0
    for slot in here[:12]:
        moved += await asyncio.to_thread(empty_cluster.move_slot, slot, a, b)
    moving = False
    await asyncio.gather(*groups)
    assert moved > 50
    states = await store.read_states("cart", list(last))
    assert states == list(last.values())
    for slot in here[:12]:
        await asyncio.to_thread(empty_cluster.move_slot, slot, b, a)
    assert await store.read_states("cart", list(last)) == list(last.values())


async def test_a_slot_half_way_serves_its_keys_and_takes_new_ones(
    empty_cluster: RedisClusterServers, store: StateStore
) -> None:
    shard = next(s for s in map(str, range(SHARDS)) if _slot(s) < SLOTS // 3)
    names = [f"k-{n}" for n in range(20)]
    saves = [Save("cart", shard, name, 1, b"old", n) for n, name in enumerate(names, 1)]
    assert set(await store.save_states(saves)) == {None}
    a, b, _ = empty_cluster.masters
    slot, ids = _slot(shard), [empty_cluster.node_id(server) for server in (a, b)]
    with empty_cluster.client(a) as source, empty_cluster.client(b) as target:
        target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        for key in source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10):
            source.execute_command("MIGRATE", "127.0.0.1", b.port, key, 0, 30_000)
        names.append("new")
        saves = [Save("cart", shard, name, 1, b"new", 90 + n) for n, name in enumerate(names, 1)]
        assert set(await store.save_states(saves)) == {None}
        loads = (store.load_state("cart", shard, name, 2) for name in names)
        assert await asyncio.gather(*loads) == [b"new"] * 21
        for key in source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.execute_command("MIGRATE", "127.0.0.1", b.port, key, 0, 30_000)
        for server in (target, source):
            server.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
    assert await store.read_states("cart", names) == [b"new"] * 21
    await asyncio.to_thread(empty_cluster.move_slot, slot, b, a)


async def test_a_master_that_lost_its_data_is_noticed(
    empty_cluster: RedisClusterServers, store: StateStore
) -> None:
    noticed = asyncio.Event()
    on_new_server(store, noticed.set)
    with empty_cluster.client(empty_cluster.masters[2]) as client:
        client.flushall()
    async with asyncio.timeout(LONG_S):
        await noticed.wait()


async def test_the_settings_of_every_master_are_checked(empty_cluster: RedisClusterServers) -> None:
    master = empty_cluster.masters[1]
    store = RedisStore(empty_cluster.url, "shardbus:shop", timeout=LONG_S, check_every=0.05)
    await store.start()
    with empty_cluster.client(master) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            await until(lambda: bool(problems_of(store)), "a problem")
            [problem] = problems_of(store)
            assert f"127.0.0.1:{master.port} of redis+cluster://" in problem
            assert "maxmemory-policy" in problem
            with pytest.raises(ConfigError, match="may evict stored data"):
                await open_store(empty_cluster.url, cluster="shop", timeout=LONG_S).start()
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    await until(lambda: not problems_of(store), "no problem")
    await store.close()


async def test_a_master_that_is_away_holds_up_only_its_own_slots(
    empty_cluster: RedisClusterServers,
) -> None:
    store = open_store(empty_cluster.url, cluster="shop", timeout=8.0)
    await store.start()
    kept = EntityStates(store, 7, within=0.0)
    assert set(await store.save_states(states())) == {None}
    away = empty_cluster.masters[2]
    away.pause()
    try:
        names = {name: shard_of(name, SHARDS) for name in STATES[:300]}
        answers = await asyncio.gather(
            *(kept.save("cart", shard, name, 1, b"new") for name, shard in names.items()),
            return_exceptions=True,
        )
        for (name, shard), answer in zip(names.items(), answers, strict=True):
            if _slot(shard) >= SLOTS * 2 // 3 + 1:
                assert isinstance(answer, StoreUnavailable), (name, shard)
            else:
                assert answer is None, (name, shard, answer)
    finally:
        away.resume()
        await store.close()
    await until(lambda: all(map(empty_cluster.is_master, empty_cluster.masters)), "all three")


async def test_a_password_opens_every_server(tmp_path: Path) -> None:
    with RedisClusterServers(tmp_path / "closed", password="hush") as closed:
        await closed.form()
        store = open_store(closed.url, cluster="shop", timeout=LONG_S)
        await store.start()
        assert set(await store.save_states(states()[:300])) == {None}
        assert len((await store.page_stored("cart", "e-1", None, 1000))[0]) > 10
        await store.close()
        wrong = open_store(closed.url.replace("hush", "hash"), cluster="shop", timeout=1.0)
        with pytest.raises(ConfigError) as refused:
            await wrong.start()
        assert "hash" not in str(refused.value)
        assert "user" in str(refused.value)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "ours")


async def test_a_cluster_is_used_through_tls_while_slots_move(
    empty_cluster: RedisClusterServers, certificates: Certificates
) -> None:
    """Redirects lead to other masters, whose certificates are checked, too."""
    async with empty_cluster.behind_tls(certificates) as url:
        store = open_store(url, cluster="shop", timeout=LONG_S)
        await store.start()
        assert set(await store.save_states(states())) == {None}
        assert len((await store.page_stored("cart", "e-1", None, 1000))[0]) > 10
        a, b, _ = empty_cluster.masters
        slots = sorted(slot for slot in map(_slot, map(str, range(SHARDS))) if slot < SLOTS // 3)
        assert await asyncio.to_thread(empty_cluster.move_slot, slots[0], a, b) > 0
        assert set(await store.save_states(states(len(STATES), b"new"))) == {None}
        assert await store.read_states("cart", STATES) == [b"new"] * len(STATES)
        await store.close()
        await asyncio.to_thread(empty_cluster.move_slot, slots[0], b, a)


@pytest.mark.parametrize("authority", ["another", "none", "of another host"])
async def test_a_cluster_that_is_not_trusted_is_refused_with_the_remedy(
    empty_cluster: RedisClusterServers, certificates: Certificates, tmp_path: Path, authority: str
) -> None:
    async with empty_cluster.behind_tls(certificates) as url:
        match authority:
            case "another":
                theirs = Certificates(tmp_path / "theirs")
                url = url.replace(str(certificates.authority), str(theirs.authority))
            case "none":
                url = url.partition("?")[0]
            case _:
                url = url.replace("127.0.0.1", "localhost")
        store = open_store(url, cluster="shop", timeout=LONG_S)
        says = r"certificate verify failed.*; check ssl_ca_certs, and the host name"
        with pytest.raises(StoreUnavailable, match=says):
            await store.start()


def _slot(shard: str) -> int:
    return slot_of(f"shardbus:shop:{{cart/{shard}}}:")
