"""A save that its handler gives up, as by `asyncio.timeout`, is in the state that the next
activation loads, or is never applied: on real stores, at whatever moment it is given up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shardbus.errors import StaleActivation
from shardbus.store.entity_state import EntityStates
from shardbus.store.opening import open_store
from tests.unit.store.store_suite import LONG_S

ROUNDS = 60
LONG = bytes(range(256)) * 512


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path}/bus.db?durability=cache"
        case kind:
            return str(request.getfixturevalue(f"{kind}_url"))


async def test_what_is_loaded_after_a_save_was_given_up_stays(store_url: str) -> None:
    store = open_store(store_url, cluster="shop", timeout=LONG_S)
    await store.start()
    states = EntityStates(store, uid=1)
    loaded: dict[str, bytes | None] = {}
    refused = 0
    for n in range(ROUNDS):
        entity = ("counter", "7", f"e-{n}")
        await states.save(*entity, 1, b"old")
        sent, in_line = states.save(*entity, 1, LONG), states.save(*entity, 1, b"in line")
        for _ in range(n % 20):
            await asyncio.sleep(0)
        sent.cancel()
        states.refuse_unsent(*entity)
        loaded[entity[2]] = await states.load(*entity, 1)
        [outcome] = await asyncio.gather(in_line, return_exceptions=True)
        refused += isinstance(outcome, StaleActivation)
        assert loaded[entity[2]] == b"in line" or outcome is not None
    assert set(loaded.values()) <= {b"old", LONG, b"in line"}
    assert refused
    for _ in range(4):  # behind all that was sent, on whatever connection
        others = (store.load_state("counter", "7", f"other-{n}", 1) for n in range(40))
        assert set(await asyncio.gather(*others)) == {None}
        assert await store.read_states("counter", list(loaded)) == list(loaded.values())
    await store.close()
