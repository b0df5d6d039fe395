"""Stored numbers that no node can have written: errors in words, until a repair ends them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import fakeredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.bounds import EPOCH_MAX, EPOCH_SHIFT, FENCE_MAX
from shardbus.errors import StaleFence, StoreError, StoreUnavailable
from shardbus.ids import Address, NodeId
from shardbus.store.memory import MemoryStore
from shardbus.store.postgres import PostgresStore
from shardbus.store.protocol import Save, StateStore
from shardbus.store.redis import RedisStore
from shardbus.store.repair import (
    EPOCH_HIGH,
    RawTable,
    examine,
    last_fence,
    repair,
    repairable,
)
from shardbus.store.sqlite import SqliteStore
from tests.unit.store.store_suite import LONG_S, by_hand

A = NodeId("10.0.0.1", 7355, 1)
IDS = [f"e{i}" for i in range(30)] + ["a:b%2F{}*?"]


@pytest.fixture(params=["sqlite", "redis", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    server = fakeredis.FakeServer()
    made: StateStore
    match request.param:
        case "sqlite":
            made = SqliteStore(tmp_path / "bus.db", timeout=LONG_S)
        case "postgres":
            made = PostgresStore(request.getfixturevalue("postgres_url"), timeout=LONG_S)
        case _:
            made = RedisStore(
                "redis://fake",
                timeout=LONG_S,
                connect=lambda: fakeredis.FakeAsyncRedis(server=server),
            )
    await made.start()
    await made.claim_epoch("counter", 5, "crc32/100")
    await made.write_homes("counter", 5, {"7": (A, fence_of(5, 1)), "8": (A, fence_of(5, 2))}, 1)
    for number, entity_id in enumerate(IDS):
        data = entity_id.encode()
        save = Save("counter", "7", entity_id, fence_of(4, number), data, number + 1)
        assert await made.save_states([save]) == [None]
    await made.add_remembered("counter", "7", ["e1", "e2"], fence_of(5, 1))
    await made.save_states([Save("other", "7", "e1", fence_of(9, 1), b"other", 1)])
    yield made
    await made.close()


def fence_of(epoch: int, number: int) -> int:
    return (epoch << EPOCH_SHIFT) + number


async def run_sql(store: Any, text: str, *args: object) -> None:
    """Run a statement past a store in SQL. `@` stands for the schema, `?` for an argument."""
    if isinstance(store, SqliteStore):
        await store._worker.call(lambda steps: steps.db.execute(text.replace("@", ""), args))
        return
    for number in range(1, len(args) + 1):
        text = text.replace("?", f"${number}", 1)
    connection = (await store._connect()).connection
    await connection.fetch(text.replace("@", f"{store._schema}."), *args)
    await connection.close()


async def set_fence(store: Any, entity_id: str, value: object) -> None:
    """Write the fence of an entity past the store."""
    if not isinstance(store, RedisStore):
        text = "UPDATE @entity SET fence = ? WHERE type = 'counter' AND id = ?"
        await run_sql(store, text, value, entity_id)
        return
    client, key = store._servers.connect(), store._keys.entity("counter", "7", entity_id)
    signed = (await client.hget(key, "v"))[19:]
    await client.hset(key, "v", str(value).zfill(19).encode() + signed)


async def set_list_fence(store: Any, shard: str, value: object) -> None:
    if not isinstance(store, RedisStore):
        await run_sql(store, "UPDATE @shard_fence SET fence = ?", value)
        return
    await store._servers.connect().hset(
        store._keys.remembered("counter", shard)[0], "v", str(value).zfill(19) + "x" * 25
    )


async def the_next_cluster_works(store: Any, ids: list[str], epoch: int = 6) -> None:
    """A coordinator claims the next epoch, and the new homes load, remember and save."""
    table = await store.claim_epoch("counter", epoch, "crc32/100")
    assert table.dropped == ()
    await store.write_homes("counter", epoch, {"7": (A, fence_of(epoch, 1))}, 9)
    for number, entity_id in enumerate(ids):
        fence = fence_of(epoch, 1)
        assert await store.load_state("counter", "7", entity_id, fence) == entity_id.encode()
        saved = await store.save_states(
            [Save("counter", "7", entity_id, fence, b"new", 1000 + number)]
        )
        assert saved == [None]
    await store.add_remembered("counter", "7", ["e3"], fence_of(epoch, 1))
    assert (await store.page_remembered("counter", "7", None, 10))[0] == ["e1", "e2", "e3"]


async def test_a_sound_type_is_left_alone(store: Any) -> None:
    before = await store.load_table("counter")
    for write in (False, True):
        assert (await repair(store, "counter", write=write)).lines() == []
        assert (await repair(store, "unknown", write=write)).lines() == []
    assert await store.load_table("counter") == before
    await the_next_cluster_works(store, IDS)


@pytest.mark.parametrize("epoch", [EPOCH_MAX, EPOCH_MAX + 1, 2**62, "soon", "-1", EPOCH_HIGH + 1])
async def test_an_epoch_out_of_bounds_is_replaced_by_the_highest_true_one(
    store: Any, epoch: object
) -> None:
    if not await by_hand(store, "epoch", str(epoch)):
        return
    [line] = (await repair(store, "counter", write=False)).lines()
    assert str(epoch) in line
    assert "5 is the highest true one" in line
    assert (await repair(store, "counter", write=False)).lines() == [line], "nothing was written"
    assert (await repair(store, "counter", write=True)).lines() == [line]
    assert (await repair(store, "counter", write=True)).lines() == []
    table = await store.load_table("counter")
    assert (table.epoch, set(table.homes)) == (5, {"7", "8"})
    await the_next_cluster_works(store, IDS)


async def test_fences_ahead_are_lowered_and_what_was_saved_stays(store: Any) -> None:
    for entity_id in IDS[::2]:
        await set_fence(store, entity_id, fence_of(2**28, 3))
    await set_list_fence(store, "7", FENCE_MAX)
    with pytest.raises(StaleFence):
        await store.load_state("counter", "7", IDS[0], fence_of(6, 1))
    damage = await repair(store, "counter", write=False)
    assert damage.fences == len(IDS[::2]) + 1
    assert len(damage.named) == 5
    assert "list of shard '7'" in damage.lines()[0]
    assert "and 12 more" in damage.lines()[0]
    again = await repair(store, "counter", write=False)
    assert again.lines() == damage.lines(), "nothing was written"
    await repair(store, "counter", write=True)
    assert (await repair(store, "counter", write=True)).lines() == []
    await the_next_cluster_works(store, IDS)
    assert await store.load_state("other", "7", "e1", fence_of(9, 1)) == b"other", "another type"


async def test_a_fence_that_is_no_number_is_one_line_and_then_repaired(store: Any) -> None:
    if isinstance(store, PostgresStore):
        with pytest.raises(asyncpg.DataError):  # Its columns of integers take no text.
            await set_fence(store, "e1", "x" * 19)
        return
    await set_fence(store, "e1", "x" * 19)
    await set_list_fence(store, "7", "y" * 19)
    with pytest.raises(StoreError, match="the stored fence of 'e1'") as failed:
        await store.load_state("counter", "7", "e1", 1)
    assert "data repair" in failed.value.hint
    assert "\n" not in str(failed.value)
    [refused] = await store.save_states([Save("counter", "7", "e1", 1, b"", 77)])
    assert "the stored fence of 'e1'" in str(refused)
    with pytest.raises(StoreError, match="'7'"):
        await store.add_remembered("counter", "7", [], 1)
    await repair(store, "counter", write=True)
    await the_next_cluster_works(store, IDS)


async def test_rows_of_a_later_epoch_and_invalid_rows_are_removed(store: Any) -> None:
    await by_hand(store, "home", "9", str(A), str(fence_of(6, 1)))
    await by_hand(store, "home", "10", "nowhere", "3")
    damage = await repair(store, "counter", write=True)
    assert sorted(line.partition(":")[0] for line in damage.lines()) == ["shard '10'", "shard '9'"]
    table = await store.load_table("counter")
    assert (set(table.homes), table.dropped) == ({"7", "8"}, ())


async def test_an_unreadable_layout_is_removed_with_all_homes(store: Any) -> None:
    if not isinstance(store, RedisStore):
        await run_sql(store, "UPDATE @shard_table SET layout = ?", "a\nb")
    else:
        await store._servers.connect().hset(store._keys.table("counter")[0], "layout", b"\xff")
    with pytest.raises(StoreError, match="damaged"):
        await store.load_table("counter")
    await repair(store, "counter", write=True)
    table = await store.load_table("counter")
    assert (table.epoch, dict(table.homes)) == (5, {})
    await the_next_cluster_works(store, IDS)


async def test_entities_without_a_table_are_not_ahead_of_the_first_epoch(store: Any) -> None:
    """As after a restore that missed the table."""
    if not isinstance(store, RedisStore):
        for table in ("shard_table", "home"):
            await run_sql(store, f"DELETE FROM @{table}")
    else:
        await store._servers.connect().delete(*store._keys.table("counter"))
    assert (await repair(store, "counter", write=True)).fences == len(IDS) + 1
    await the_next_cluster_works(store, IDS, epoch=1)


async def test_pages_cover_every_entity(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbus.store.sqlite.PAGE", 7)
    monkeypatch.setattr("shardbus.store.redis.CHUNK_KEYS", 7)
    monkeypatch.setattr("shardbus.store.postgres.PAGE", 7)
    for entity_id in IDS:
        await set_fence(store, entity_id, FENCE_MAX)
    assert (await repair(store, "counter", write=True)).fences == len(IDS)
    await the_next_cluster_works(store, IDS)


@pytest.mark.parametrize("number", [FENCE_MAX + 1, 2**80])
async def test_a_number_that_no_store_can_hold_is_a_store_error(store: Any, number: int) -> None:
    for call in (
        lambda: store.load_state("counter", "7", "new", number),
        lambda: store.save_states([Save("counter", "7", "new", number, b"", 5)]),
        lambda: store.add_remembered("counter", "9", ["x"], number),
        lambda: store.claim_epoch("new", number, "crc32/100"),
    ):
        with pytest.raises(StoreError) as failed:
            await call()
        assert "\n" not in str(failed.value)
        assert not isinstance(failed.value, StoreUnavailable)
    assert await store.load_state("counter", "7", "e1", fence_of(6, 1)) == b"e1", (
        "the store goes on"
    )


def test_a_store_without_repair_says_so() -> None:
    with pytest.raises(StoreError, match="cannot be repaired"):
        repairable(MemoryStore())


NUMBERS = st.integers(0, 2**70) | st.integers(0, FENCE_MAX) | st.text(max_size=5)


@given(NUMBERS, st.lists(st.tuples(st.text(max_size=3), st.just(str(A)), NUMBERS), max_size=8))
def test_what_is_left_is_always_sound(epoch: object, rows: list[tuple[str, str, object]]) -> None:
    damage, gone = examine(RawTable(epoch, "crc32/8", tuple(rows)), 3)
    assert 0 <= damage.epoch <= EPOCH_HIGH
    assert last_fence(damage.epoch) < fence_of(damage.epoch + 1, 0) <= FENCE_MAX
    left = [row for row in rows if row[0] not in gone]
    again, none = examine(RawTable(damage.epoch, "crc32/8", tuple(left)), 0)
    assert again.lines() == []
    assert none == []


def test_the_homes_of_a_damaged_table_are_known() -> None:
    """A repair must find the nodes that run, whatever their rows hold."""
    rows = (("1", str(A), "no fence"), ("2", "no node", 3), ("3", "n2:7000#1", 2**80))
    addresses = RawTable("soon", "crc32/8", rows).addresses
    assert addresses == {Address("10.0.0.1", 7355), Address("n2", 7000)}
