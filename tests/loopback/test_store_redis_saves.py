"""Saves that go to a real Redis without a task (`batches.BeginsSaves`), under faults of the
server and the network."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shardbus.errors import StaleFence, StoreUnavailable
from shardbus.store.entity_state import EntityStates
from shardbus.store.opening import open_store
from shardbus.store.protocol import StateStore
from tests.certificates import Certificates, tls_front
from tests.loopback.redis_proxy import RedisProxy
from tests.redis_server import RedisServer
from tests.unit.store.store_suite import LONG_S, SHORT_S, insist


@contextlib.asynccontextmanager
async def saving(
    url: str, timeout: float = LONG_S
) -> AsyncIterator[tuple[StateStore, EntityStates]]:
    """A store and the states in it, after the first save: it is connected, and the server has the
    script."""
    store = open_store(url, cluster="shop", timeout=timeout)
    await insist(store.start)
    states = EntityStates(store, uid=1)
    await insist(lambda: states.save("counter", "7", "first", 1, b"0"))
    await asyncio.sleep(0)
    yield store, states
    await store.close()


async def begin(states: EntityStates, entity_id: str, data: bytes) -> asyncio.Future[None]:
    """Save, and check that no task writes. The store's own probe may be under way once."""
    for _ in range(5):
        answer = states.save("counter", "7", entity_id, 1, data)
        await asyncio.sleep(0)
        names = {task.get_name() for task in asyncio.all_tasks()}
        if not names & {"shardbus-redis", "shardbus-saves"}:
            return answer
        await asyncio.wait([answer])
    raise AssertionError(f"tasks write: {names}")


async def test_a_save_needs_no_task(redis_url: str) -> None:
    """Fails if the client library hides its connections: then every save takes the longer way."""
    async with saving(redis_url) as (store, states):
        await (await begin(states, "a", b"x"))
        assert await store.load_state("counter", "7", "a", 1) == b"x"
        await (await begin(states, "a", b"y"))


async def test_a_save_over_tls_needs_no_task(
    redis_server: RedisServer, redis_url: str, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path / "tls")
    async with tls_front(redis_server.port, certificates) as front:
        database = redis_url.rpartition("/")[2]
        url = f"rediss://{front}/{database}?ssl_ca_certs={certificates.authority}"
        async with saving(url) as (store, states):
            await (await begin(states, "a", b"x" * 100_000))
            assert await store.load_state("counter", "7", "a", 1) == b"x" * 100_000


async def test_a_stale_save_of_a_batch_fails_alone(redis_url: str) -> None:
    async with saving(redis_url) as (store, states):
        await store.load_state("counter", "7", "b", 9)
        answers = [states.save("counter", "7", entity_id, 1, b"x") for entity_id in "abc"]
        outcomes = await asyncio.gather(*answers, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), StaleFence, type(None)]
        assert await store.load_state("counter", "7", "b", 9) is None
        await (await begin(states, "d", b"x"))


async def test_a_server_that_forgot_the_script_gets_it_again(
    own_redis: RedisServer,
) -> None:
    async with saving(own_redis.url()) as (store, states):
        with own_redis.client() as client:
            client.script_flush()
        await (await begin(states, "a", b"x"))
        assert await store.load_state("counter", "7", "a", 1) == b"x"
        await (await begin(states, "b", b"x"))


async def test_a_save_whose_answer_was_lost_counts_once(proxy: RedisProxy, redis_url: str) -> None:
    async with saving(proxy.url(redis_url)) as (store, states):
        before = proxy.connections
        proxy.lose_answers = 1
        await (await begin(states, "a", b"x"))
        assert proxy.connections > before
        assert await store.load_state("counter", "7", "a", 1) == b"x"


async def test_a_save_at_a_silent_server_fails_in_time_and_is_in_doubt(
    own_redis: RedisServer,
) -> None:
    async with saving(own_redis.url(), SHORT_S) as (_, states):
        own_redis.pause()
        answer = await begin(states, "a", b"x")
        with pytest.raises(StoreUnavailable) as error:
            await answer
        assert not error.value.definite
        own_redis.resume()
        await insist(lambda: states.save("counter", "7", "a", 1, b"y"))


async def test_a_full_server_refuses_at_once(own_redis: RedisServer) -> None:
    async with saving(own_redis.url()) as (store, states):
        with own_redis.client() as client:
            client.config_set("maxmemory", "1")
            with pytest.raises(StoreUnavailable, match="is full") as error:
                await (await begin(states, "a", b"x"))
            assert error.value.definite
            client.config_set("maxmemory", "0")
        assert await store.load_state("counter", "7", "a", 1) is None


async def test_what_was_acknowledged_is_stored_while_connections_break(
    proxy: RedisProxy, redis_url: str
) -> None:
    dice = random.Random(7)
    acknowledged: dict[str, int] = {}
    async with saving(proxy.url(redis_url)) as (store, states):

        async def save(entity_id: str, value: int) -> None:
            with contextlib.suppress(StoreUnavailable):
                await states.save("counter", "7", entity_id, 1, b"%d" % value)
                acknowledged[entity_id] = value

        for turn in range(40):
            proxy.lose_answers = int(turn % 3 == 0)
            names = dice.sample([f"e-{n}" for n in range(400)], dice.choice([1, 5, 150, 300]))
            saves = [asyncio.create_task(save(name, turn)) for name in names]
            for _ in range(dice.randint(0, 8)):
                await asyncio.sleep(0)
            loads = [store.load_state("counter", "7", name, 1) for name in names[:3]]
            await asyncio.gather(*saves, *loads)
        proxy.lose_answers = 0
        assert acknowledged
        for entity_id, value in acknowledged.items():
            state = await store.load_state("counter", "7", entity_id, 1)
            assert state is not None
            assert int(state) >= value
