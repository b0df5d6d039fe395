"""Stored states are read page by page: every store of shardbus, real servers among them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from shardbus.errors import StoreError
from shardbus.store import listing, redis_scan
from shardbus.store.listing import stored_pages
from shardbus.store.memory import MemoryStore
from shardbus.store.postgres import PostgresStore
from shardbus.store.protocol import Save, StateStore
from shardbus.store.redis import RedisStore
from shardbus.store.sqlite import SqliteStore
from tests.unit.store.store_suite import LONG_S

STATES = {f"e{n}": b"state %d" % n for n in range(30)} | {"a:b%2F{}*?": b"\x00", "empty": b""}


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    made: StateStore = {
        "memory": MemoryStore,
        "sqlite": lambda: SqliteStore(tmp_path / "bus.db", timeout=LONG_S),
        "redis": lambda: RedisStore(request.getfixturevalue("redis_url"), timeout=LONG_S),
        "postgres": lambda: PostgresStore(request.getfixturevalue("postgres_url"), timeout=LONG_S),
    }[request.param]()
    await made.start()
    saves = [Save("cart", "7", key, 5, data, n) for n, (key, data) in enumerate(STATES.items(), 1)]
    saves += [
        Save("cart", "7", "removed", 5, b"gone", 90),
        Save("other", "7", "e1", 5, b"other", 91),
    ]
    assert set(await made.save_states(saves)) == {None}
    assert await made.save_states([Save("cart", "7", "removed", 5, None, 92)]) == [None]
    assert await made.load_state("cart", "7", "never saved", 5) is None
    yield made
    await made.close()


async def test_every_state_of_a_type_is_read_in_pages(store: Any) -> None:
    pages = [page async for page in stored_pages(store, "cart", limit=7)]
    rows = [row for page in pages for row in page.states]
    assert dict(rows) == STATES
    assert all(len(page.states) <= 7 for page in pages)
    assert pages[0].cursor is None
    assert [p.states async for p in stored_pages(store, "nothing")] in ([], [[]])
    some = [p.states async for p in stored_pages(store, "cart", "e1")]
    assert {key for page in some for key, _ in page} == {key for key in STATES if key[:2] == "e1"}


async def test_reading_goes_on_from_any_page(store: Any) -> None:
    pages = [page async for page in stored_pages(store, "cart", limit=7)]
    for page in pages:
        rest = [p.states async for p in stored_pages(store, "cart", "", page.cursor, 7)]
        behind = {key for later in pages[pages.index(page) :] for key, _ in later.states}
        assert behind <= {key for part in rest for key, _ in part}


async def test_long_states_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by bytes, not only by the number of states."""
    monkeypatch.setattr(listing, "READ_BYTES", 10_000)
    store = MemoryStore()
    await store.start()
    saves = [
        Save("cart", "7", f"e{n:03}", 5, b"x" * (4000 if n < 60 else 40), n) for n in range(1, 300)
    ]
    assert set(await store.save_states(saves)) == {None}
    pages = [page.states async for page in stored_pages(store, "cart", limit=100)]
    assert sorted(key for page in pages for key, _ in page) == [save.entity_id for save in saves]
    assert len(pages[0]) == listing.FIRST_READ
    assert {len(page) for page in pages[1:20]} == {2}
    assert max(map(len, pages)) == 100


async def test_a_cursor_of_another_server_is_refused(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_scan, "SCAN_KEYS", 10)
    monkeypatch.setattr(redis_scan, "SCANS_MAX", 1)
    store = RedisStore(redis_url, timeout=LONG_S)
    await store.start()
    saves = [Save("cart", "7", f"e{n}", 5, b"x", n) for n in range(1, 200)]
    assert set(await store.save_states(saves)) == {None}
    _, cursor = await store.page_stored("cart", "", None, 10)
    assert cursor is not None
    name, run_id, place = cursor.split(" ")
    assert len(run_id) == 12
    for wrong, why in (
        (f"{name} {'0' * 12} {place}", "another server than when the list began"),
        (f"elsewhere {run_id} {place}", "another server than when the list began"),
        ("7", "no cursor of this store"),
    ):
        with pytest.raises(StoreError, match=why):
            await store.page_stored("cart", "", wrong, 10)
    await store.close()


async def test_a_list_survives_a_lost_connection(redis_url: str) -> None:
    store = RedisStore(redis_url, timeout=LONG_S)
    await store.start()
    await store.save_states([Save("cart", "7", "a", 5, b"x", 1)])
    assert await store.page_stored("cart", "", None, 10) == (["a"], None)
    client: Any = Redis.from_url(redis_url)
    await client.client_kill_filter(_type="normal", skipme=True)
    for _ in range(2):  # the client library may notice with the first call only
        try:
            page = await store.page_stored("cart", "", None, 10)
        except StoreError:
            continue
        break
    assert page == (["a"], None)
    await client.aclose()
    await store.close()
