"""The Redis store where it differs from the others: its clock is the server's own, and saves are
cut into scripts."""

from __future__ import annotations

import time
from typing import Any

import fakeredis
import pytest

from shardbus.errors import StaleFence
from shardbus.store.protocol import Save
from shardbus.store.redis import RedisStore

LEASE_MS = 10_000
ROWS = [("a", b"1"), ("b", b"1"), ("a", b"2"), ("a", b"3"), ("b", b"2")]


@pytest.fixture
def server() -> fakeredis.FakeServer:
    return fakeredis.FakeServer()


async def test_a_lease_from_before_the_clock_was_set_back_ends_within_its_length(
    server: fakeredis.FakeServer,
) -> None:
    client: Any = fakeredis.FakeAsyncRedis(server=server)
    store = RedisStore("redis://fake", connect=lambda: fakeredis.FakeAsyncRedis(server=server))
    await store.start()
    assert await store.acquire_lease("sbr", "a", LEASE_MS / 1000) is not None
    [key] = await client.keys("*lease*")
    an_hour_ahead = int(time.time() * 1000) + 3_600_000
    await client.hset(key, "until", an_hour_ahead)
    assert await store.acquire_lease("sbr", "b", LEASE_MS / 1000) is None
    end = int(await client.hget(key, "until"))
    assert end < an_hour_ahead - 3_000_000
    assert await store.acquire_lease("sbr", "b", LEASE_MS / 1000) is None
    assert await client.hget(key, "owner") == b"a"
    await store.close()
    await client.aclose()


async def test_a_lease_that_ran_out_is_not_renewed(server: fakeredis.FakeServer) -> None:
    client: Any = fakeredis.FakeAsyncRedis(server=server)
    store = RedisStore("redis://fake", connect=lambda: fakeredis.FakeAsyncRedis(server=server))
    await store.start()
    lease = await store.acquire_lease("sbr", "a", LEASE_MS / 1000)
    assert lease is not None
    assert await store.renew_lease(lease, LEASE_MS / 1000)
    [key] = await client.keys("*lease*")
    await client.hset(key, "until", int(time.time() * 1000) - 1000)
    assert not await store.renew_lease(lease, LEASE_MS / 1000)
    await store.close()
    await client.aclose()


async def test_saves_of_one_entity_in_one_call_keep_their_order(
    server: fakeredis.FakeServer,
) -> None:
    store = RedisStore("redis://fake", connect=lambda: fakeredis.FakeAsyncRedis(server=server))
    await store.start()
    saves = [Save("counter", "7", name, 1, data, n) for n, (name, data) in enumerate(ROWS)]
    assert await store.save_states(saves) == [None] * len(ROWS)
    assert await store.read_states("counter", ["a", "b"]) == [b"3", b"2"]
    await store.close()


OP = 0x1D
"""The operation of the save in the test below."""


@pytest.mark.parametrize(
    ("fence", "session", "number", "op_id", "stored"),
    [
        (5, "own", 0, OP, b"old"),  # this operation was written before
        (5, "own", 0, OP + 16, b"new"),
        (5, "own", 0, OP + 1, b"new"),
        (4, "own", 9**15, OP + 16, b"new"),  # a later command, under an earlier fence
        (5, "~" * 10, 9**15, OP + 16, b"new"),  # of another store object
        (6, "own", 0, OP + 16, None),  # a newer activation
    ],
)
async def test_a_save_is_written_unless_it_was_before_or_is_stale(
    server: fakeredis.FakeServer,
    fence: int,
    session: str,
    number: int,
    op_id: int,
    stored: bytes | None,
) -> None:
    client: Any = fakeredis.FakeAsyncRedis(server=server)
    store = RedisStore("redis://fake", connect=lambda: fakeredis.FakeAsyncRedis(server=server))
    await store.start()
    redis_session = store._session.session
    v = f"{fence:019}{redis_session if session == 'own' else session}{number:015}{op_id:016x}"
    [key] = store._keys_of([Save("counter", "7", "a", 5, b"", OP)])
    await client.hset(key, mapping={"v": v, "data": b"old"})
    [refused] = await store.save_states([Save("counter", "7", "a", 5, b"new", OP)])
    assert isinstance(refused, StaleFence) is (stored is None)
    assert await client.hget(key, "data") == (stored or b"old")
    await store.close()
    await client.aclose()
