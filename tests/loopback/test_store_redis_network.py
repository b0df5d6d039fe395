"""Faults of a network under the Redis store: lost answers, late commands, a master that moved."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shardbus.errors import StoreUnavailable
from shardbus.ids import NodeId
from shardbus.store.opening import open_store
from shardbus.store.protocol import StateStore
from shardbus.testing.store_suite import remembered, save, until
from tests.loopback.redis_proxy import RedisProxy
from tests.redis_server import RedisServer
from tests.unit.store.store_suite import LONG_S, SHORT_S, insist

A, B = NodeId("10.0.0.1", 7355, 1), NodeId("10.0.0.2", 7355, 2)


@pytest.fixture
async def store(proxy: RedisProxy, redis_url: str) -> AsyncIterator[StateStore]:
    async with through(proxy, redis_url, LONG_S) as store:
        yield store


@pytest.fixture
async def hasty(proxy: RedisProxy, redis_url: str) -> AsyncIterator[StateStore]:
    """A store that gives up soon, for tests in which no answer comes."""
    async with through(proxy, redis_url, SHORT_S) as store:
        yield store


@contextlib.asynccontextmanager
async def through(proxy: RedisProxy, redis_url: str, timeout: float) -> AsyncIterator[StateStore]:
    store = open_store(proxy.url(redis_url), cluster="shop", timeout=timeout)
    await insist(store.start)
    await insist(lambda: store.claim_epoch("counter", 1, "crc32/100"))
    await insist(lambda: store.load_state("counter", "7", "a", 1))
    await insist(lambda: store.add_remembered("counter", "7", [], 1))
    yield store
    await store.close()


async def test_a_step_whose_answer_was_lost_counts_once(
    proxy: RedisProxy, store: StateStore
) -> None:
    for step in (
        lambda: store.claim_epoch("counter", 2, "crc32/100"),
        lambda: store.write_homes("counter", 2, {"7": (A, 1)}, 1),
        lambda: store.save_states([save("a", 1, b"x", 1)]),
        lambda: store.load_state("counter", "7", "a", 1),
        lambda: store.add_remembered("counter", "7", ["e"], 1),
        lambda: store.acquire_lease("sbr", "a", 60.0),
    ):
        before = proxy.connections
        proxy.lose_answers = 1
        answer = await step()
        assert proxy.connections > before
        assert not isinstance(answer, list) or answer == [None]
    lease = await store.acquire_lease("sbr", "a", 60.0)
    assert lease is not None
    assert lease.counter == 1


async def test_a_write_that_arrives_after_its_sender_gave_up_undoes_nothing(
    proxy: RedisProxy, hasty: StateStore
) -> None:
    proxy.holding = True
    lost = await asyncio.gather(
        hasty.write_homes("counter", 1, {"7": (A, 1)}, 1),
        hasty.save_states([save("a", 1, b"old", 2)]),
        hasty.remove_remembered("counter", "7", ["e"], 1),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in lost] == [StoreUnavailable] * 3
    proxy.holding = False
    await insist(lambda: hasty.write_homes("counter", 1, {"7": (B, 1)}, 3))
    await insist(lambda: hasty.save_states([save("a", 1, b"new", 4)]))
    await insist(lambda: hasty.add_remembered("counter", "7", ["e"], 1))
    assert proxy.held
    await proxy.release()
    for _ in range(20):
        table = await insist(lambda: hasty.load_table("counter"))
        assert table is not None
        assert dict(table.homes) == {"7": (B, 1)}
        assert await insist(lambda: remembered(hasty)) == {"e"}
    assert await insist(lambda: hasty.load_state("counter", "7", "a", 1)) == b"new"


async def test_a_load_keeps_earlier_writes_of_its_own_node_out(
    proxy: RedisProxy, hasty: StateStore
) -> None:
    proxy.holding = True
    with pytest.raises(StoreUnavailable):
        await hasty.save_states([save("a", 1, b"late", 1)])
    proxy.holding = False
    assert await insist(lambda: hasty.load_state("counter", "7", "a", 1)) is None
    await proxy.release()
    for _ in range(20):
        assert await insist(lambda: hasty.load_state("counter", "7", "a", 1)) is None


async def test_a_master_that_was_demoted_is_left_for_its_successor(
    proxy: RedisProxy, store: StateStore, redis_server: RedisServer, tmp_path: Path
) -> None:
    with RedisServer(tmp_path / "old") as old:
        bank = open_store(f"redis://127.0.0.1:{proxy.port}/0", cluster="bank", timeout=LONG_S)
        proxy.target = old.port
        await bank.start()
        await bank.claim_epoch("counter", 1, "crc32/100")
        with old.client() as client:
            client.replicaof("127.0.0.1", redis_server.port)
        proxy.target = redis_server.port
        assert (await bank.claim_epoch("counter", 2, "crc32/100")).epoch == 2
        await bank.close()


async def test_answers_are_never_mixed_while_connections_break(
    proxy: RedisProxy, store: StateStore
) -> None:
    dice = random.Random(11)
    await store.save_states([save(f"e-{n}", 1, b"%d" % n, n) for n in range(1, 101)])

    async def load(n: int) -> None:
        assert await store.load_state("counter", "7", f"e-{n}", 1) == b"%d" % n

    for turn in range(100):
        tasks = [asyncio.create_task(load(dice.randint(1, 100))) for _ in range(5)]
        proxy.lose_answers = int(turn % 3 == 0)
        for _ in range(dice.randint(0, 8)):
            await asyncio.sleep(0)
        for task in dice.sample(tasks, 2):
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError)


async def test_a_partition_that_heals_is_forgotten(proxy: RedisProxy, hasty: StateStore) -> None:
    target, proxy.target = proxy.target, 1
    proxy.lose_answers = 1
    with pytest.raises(StoreUnavailable):
        await hasty.load_table("counter")
    proxy.target, proxy.lose_answers = target, 0
    await insist(lambda: hasty.load_table("counter"))


@pytest.mark.long
async def test_after_a_failover_the_sentinels_new_master_is_used(tmp_path: Path) -> None:
    config = tmp_path / "sentinel" / "sentinel.conf"
    config.parent.mkdir()
    with contextlib.ExitStack() as servers:
        master = servers.enter_context(RedisServer(tmp_path / "master"))
        replica = servers.enter_context(
            RedisServer(tmp_path / "replica", "--replicaof", f"127.0.0.1 {master.port}")
        )
        config.write_text(
            f"sentinel monitor shop 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds shop 300\nsentinel failover-timeout shop 3000\n"
        )
        sentinel = servers.enter_context(RedisServer(config.parent, sentinel=config))
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}?master=shop"
        store = open_store(url, cluster="shop", timeout=2.0)
        await insist(store.start)
        await insist(lambda: store.claim_epoch("counter", 1, "crc32/100"))
        with replica.client() as client:

            async def copied() -> bool:
                return bool(client.dbsize())

            await until(copied)
        with sentinel.client() as client:

            async def known() -> bool:
                return bool(client.execute_command("SENTINEL", "REPLICAS", "shop"))

            await until(known)
        master.kill()

        async def claimed() -> bool:
            try:
                return (await store.claim_epoch("counter", 2, "crc32/100")).epoch == 2
            except StoreUnavailable:
                return False

        await until(claimed)
        await store.close()
