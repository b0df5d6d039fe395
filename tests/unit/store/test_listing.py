"""Stored states are listed without a node: every store of shardbus, a real Redis among them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shardbus.errors import StoreError
from shardbus.store import memory, redis, sqlite
from shardbus.store.listing import listing
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import Save, StateStore
from shardbus.store.redis import RedisStore
from shardbus.store.sqlite import SqliteStore
from tests.unit.store.store_suite import LONG_S

STATES = {f"e{n}": b"state %d" % n for n in range(30)} | {"a:b%2F{}*?": b"\x00", "empty": b""}


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    for module, name in ((memory, "PAGE"), (sqlite, "LISTED_PAGE"), (redis, "LISTED_KEYS")):
        monkeypatch.setattr(module, name, 7)
    made: StateStore = {
        "memory": MemoryStore,
        "sqlite": lambda: SqliteStore(tmp_path / "bus.db", timeout=LONG_S),
        "redis": lambda: RedisStore(redis_url, timeout=LONG_S),
    }[request.param]()
    await made.start()
    saves = [Save("cart", key, 5, data, n) for n, (key, data) in enumerate(STATES.items(), 1)]
    saves += [Save("cart", "removed", 5, b"gone", 90), Save("other", "e1", 5, b"other", 91)]
    assert set(await made.save_states(saves)) == {None}
    assert await made.save_states([Save("cart", "removed", 5, None, 92)]) == [None]
    assert await made.load_state("cart", "never saved", 5) is None
    yield made
    await made.close()


async def test_every_state_of_a_type_is_listed_in_pages(store: Any) -> None:
    pages = [page async for page in listing(store).stored_states("cart")]
    found = [row for page in pages for row in page]
    assert dict(found) == STATES
    assert len(found) == len(STATES)
    assert len(pages) > 3
    assert all(len(page) <= 7 for page in pages)
    assert [page async for page in listing(store).stored_states("nothing")] in ([], [[]])


async def test_one_state_is_read_and_raises_no_fence(store: Any) -> None:
    kept = listing(store)
    assert await kept.stored_state("cart", "a:b%2F{}*?") == b"\x00"
    assert await kept.stored_state("cart", "empty") == b""
    for missing in ("removed", "never saved", "unknown"):
        assert await kept.stored_state("cart", missing) is None
    assert await store.save_states([Save("cart", "e1", 5, b"new", 99)]) == [None]


def test_a_store_without_a_list_says_so() -> None:
    with pytest.raises(StoreError, match="cannot list its states; it needs stored_states"):
        listing(object())  # type: ignore[arg-type]
