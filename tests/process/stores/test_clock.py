"""Leases and saves when the clock of a real Redis jumps an hour ahead."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shardbus.store.opening import open_store
from shardbus.store.protocol import Save, StateStore, clock_offset_of
from tests.process.stores.shims import CLOCK_AHEAD, Shim, no_compiler
from tests.redis_server import RedisServer
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.skipif(
    no_compiler(), reason="needs a C compiler, for a server whose clock can be set"
)

TTL = 120.0


@pytest.fixture
def clock(tmp_path: Path) -> Shim:
    return Shim(tmp_path / "shim", "clock", CLOCK_AHEAD)


@pytest.fixture
def server(tmp_path: Path, clock: Shim) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", **clock.environment) as server:
        yield server


def jump(server: RedisServer, clock: Shim) -> None:
    """Set the server's clock an hour ahead, or back if it is ahead. A server reads the clock anew
    after a millisecond."""
    with server.client() as client:
        before, _ = client.time()
        clock.off() if clock.flag.exists() else clock.on()
        deadline = time.monotonic() + PATIENCE_S
        while abs(client.time()[0] - before) < 3000:
            assert time.monotonic() < deadline, "the clock does not jump"


@asynccontextmanager
async def node_on(server: RedisServer) -> AsyncIterator[StateStore]:
    """The store of one node."""
    store = open_store(server.url(), cluster="shop", timeout=60.0)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def test_a_clock_that_jumps_ahead_ends_no_lease(server: RedisServer, clock: Shim) -> None:
    async with node_on(server) as holder, node_on(server) as other:
        lease = await holder.acquire_lease("shard", "a", TTL)
        assert lease is not None
        jump(server, clock)
        assert await other.acquire_lease("shard", "b", TTL) is None
        assert await holder.renew_lease(lease, TTL)
        assert await other.acquire_lease("shard", "b", TTL) is None
        jump(server, clock)
        assert await other.acquire_lease("shard", "b", TTL) is None
        assert await holder.renew_lease(lease, TTL)
        await holder.release_lease(lease)
        assert await other.acquire_lease("shard", "b", TTL) is not None


async def test_a_node_that_starts_after_the_jump_gets_a_lease_until_it_is_renewed(
    server: RedisServer, clock: Shim
) -> None:
    """The limit that docs/guarantees.md names: the newcomer has not seen the clock before."""
    async with node_on(server) as holder:
        renewed = await holder.acquire_lease("renewed", "a", TTL)
        lost = await holder.acquire_lease("lost", "a", TTL)
        assert renewed is not None
        assert lost is not None
        jump(server, clock)
        assert await holder.renew_lease(renewed, TTL)
        async with node_on(server) as newcomer:
            assert await newcomer.acquire_lease("renewed", "b", TTL) is None
            assert await newcomer.acquire_lease("lost", "b", TTL) is not None
            assert not await holder.renew_lease(lost, TTL)


async def test_saves_stay_fenced_whatever_the_clock_says(server: RedisServer, clock: Shim) -> None:
    """Two owners of one lease cannot both write: fences need no clock."""
    async with node_on(server) as former:
        assert await former.load_state("cart", "7", "c", 1 << 32) is None
        assert await former.save_states([Save("cart", "7", "c", 1 << 32, b"one", 1)]) == [None]
        jump(server, clock)
        async with node_on(server) as successor:
            assert await successor.load_state("cart", "7", "c", 2 << 32) == b"one"
            [refused] = await former.save_states([Save("cart", "7", "c", 1 << 32, b"late", 2)])
            assert refused is not None
            assert await successor.save_states([Save("cart", "7", "c", 2 << 32, b"two", 3)]) == [
                None
            ]
        jump(server, clock)
        [refused] = await former.save_states([Save("cart", "7", "c", 1 << 32, b"later", 4)])
        assert refused is not None
        assert await former.load_state("cart", "7", "c", 3 << 32) == b"two"


async def test_the_store_knows_how_far_its_servers_clock_is_off(
    server: RedisServer, clock: Shim
) -> None:
    async with node_on(server) as store:
        assert abs(clock_offset_of(store) or 0.0) < 60  # the same clock, read at two moments
        jump(server, clock)
        await until(lambda: (clock_offset_of(store) or 0.0) > 3000, "the next look at the clock")
