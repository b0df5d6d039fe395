"""The record of the cluster that has the claim, in every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shardbus.ids import Address
from shardbus.membership.claim_record import ClaimRecord
from shardbus.membership.founding import FOUNDING, owner_of
from shardbus.store import claim_registry
from shardbus.store.opening import open_store
from shardbus.store.protocol import Save, StateStore
from tests.waiting import PATIENCE_S

A, B, C = Address("10.0.0.1", 7355), Address("::1", 7357), Address("a.b-c", 1)
RECORD = ClaimRecord(2**62 - 1, 3, 2**62 - 1, (A, B), (C,), complete=False)


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StateStore]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/s.db"}
    url = urls.get(request.param) or str(request.getfixturevalue(f"{request.param}_url"))
    opened = open_store(url, cluster="shop", timeout=PATIENCE_S)
    await opened.start()
    yield opened
    await opened.close()


async def test_the_record_is_what_was_written_last(store: StateStore) -> None:
    assert await claim_registry.read(store) is None
    await claim_registry.write(store, RECORD)
    assert await claim_registry.read(store) == RECORD
    later = ClaimRecord(5, 4, 7, (C,))
    await claim_registry.write(store, later)
    assert await claim_registry.read(store) == later


async def test_the_claim_of_the_record_is_freed_and_a_later_one_is_not(store: StateStore) -> None:
    held = await store.acquire_lease(FOUNDING, owner_of(5), 3600.0)
    assert held is not None
    record = ClaimRecord(5, held.counter, 1, (A,))
    await claim_registry.free(store, record)
    assert await store.acquire_lease(FOUNDING, owner_of(6), 3600.0) is not None
    await claim_registry.free(store, record)
    assert await store.acquire_lease(FOUNDING, owner_of(7), 3600.0) is None


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa6number\x01"])
async def test_a_record_that_cannot_be_read_counts_as_none(store: StateStore, data: bytes) -> None:
    reserved = (claim_registry.RESERVED, claim_registry.SHARD, claim_registry.ID)
    await store.save_states([Save(*reserved, claim_registry.FENCE, data, 1)])
    assert await claim_registry.read(store) is None
