"""States move from store to store as lines, and are written above the stored fences."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shardbus.errors import ConfigError, StaleFence, StoreError
from shardbus.ids import shard_of
from shardbus.store.listing import stored_pages
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import Reminders, Save, StateStore, reminder_store
from shardbus.store.redis import RedisStore
from shardbus.store.sqlite import SqliteStore
from shardbus.store.transfer import Importer, StoredEntity, line_of, read_line, write_states
from shardbus.wire.schema import encode_value
from shardbus.wire.stored_state import compressed, joined
from tests.unit.store.store_suite import LONG_S

STATES = {
    "plain": encode_value({"items": {"tea": 1}, "at": b"\x00\xff"}),
    "version": joined(3, encode_value([1, 2.5, None])),
    "short": compressed(encode_value({"text": "x" * 5000})),
    "single precision": b"\xca?\x80\x00\x00",
    "no value": b"\xc1\x00",
    "empty": b"",
}


def shard(entity_type: str, entity_id: str) -> str:
    return shard_of(entity_id, 10)


@pytest.fixture
async def stores(tmp_path: Path, redis_url: str) -> AsyncIterator[dict[str, StateStore]]:
    made: dict[str, StateStore] = {
        "redis": RedisStore(redis_url, timeout=LONG_S),
        "sqlite": SqliteStore(tmp_path / "bus.db", timeout=LONG_S, full_sync=False),
        "memory": MemoryStore(),
    }
    for store in made.values():
        await store.start()
    yield made
    for store in made.values():
        await store.close()


async def exported(store: StateStore, entity_type: str) -> list[str]:
    return [
        line_of(StoredEntity(entity_type, key, shard(entity_type, key), data))
        async for page in stored_pages(store, entity_type)
        for key, data in page.states
    ]


async def brought(store: StateStore, lines: list[str], batch: int, **options: Any) -> Importer:
    importer = Importer(store, shard, **options)
    for first in range(0, len(lines), batch):
        assert (
            await importer.put([read_line(line) for line in lines[first : first + batch]]) is None
        )
    return importer


async def round_trip(stores: dict[str, StateStore], states: dict[str, bytes], batch: int) -> None:
    """Move states from Redis to SQLite, from there to memory, and back to Redis."""
    saves = [
        Save("cart", shard("cart", key), key, 5, data, n)
        for n, (key, data) in enumerate(states.items(), 1)
    ]
    for first in range(0, len(saves), 1000):
        assert set(await stores["redis"].save_states(saves[first : first + 1000])) == {None}
    lines = await exported(stores["redis"], "cart")
    for name in ("sqlite", "memory"):
        done = (await brought(stores[name], lines, batch)).done
        assert (done.written, done.same) == (len(states), 0)
        lines = await exported(stores[name], "cart")
    assert len(lines) == len(states)
    done = (await brought(stores["redis"], lines, batch)).done
    assert (done.written, done.same) == (0, len(states))


async def test_states_move_from_store_to_store_unchanged(stores: dict[str, StateStore]) -> None:
    await round_trip(stores, STATES, 2)
    assert await stores["memory"].read_states("cart", list(STATES)) == list(STATES.values())


@pytest.mark.long
async def test_ten_thousand_states_move_through_every_store(
    stores: dict[str, StateStore],
) -> None:
    await round_trip(stores, {f"c{n}": encode_value({"n": n}) for n in range(10_000)}, 500)


async def test_another_state_is_refused_skipped_or_replaced(stores: dict[str, StateStore]) -> None:
    store = stores["sqlite"]
    old = [("cart", shard("", key), key, b"\x01") for key in ("a", "b")]
    await write_states(store, old)
    new = [StoredEntity("cart", key, "", b"\x02") for key in ("a", "c")]
    refused = await Importer(store, shard).put(new)
    assert refused is new[0]
    assert await store.read_states("cart", ["a", "c"]) == [b"\x01", None]
    skipping = Importer(store, shard, existing="skip")
    assert await skipping.put(new) is None
    assert (skipping.done.skipped, skipping.done.written) == (1, 1)
    assert await store.read_states("cart", ["a", "c"]) == [b"\x01", b"\x02"]
    trying = Importer(store, shard, existing="replace", write=False)
    await trying.put(new)
    assert trying.done.written == 1
    assert await store.read_states("cart", ["a"]) == [b"\x01"]
    await Importer(store, shard, existing="replace").put(new)
    assert await store.read_states("cart", ["a", "b"]) == [b"\x02", b"\x01"]


async def test_a_state_is_written_above_the_stored_fence(stores: dict[str, StateStore]) -> None:
    for store in stores.values():
        await store.save_states([Save("cart", "1", "a", 77, b"old", 1)])
        await write_states(store, [("cart", "1", "a", b"new"), ("cart", "1", "b", b"b")])
        [late] = await store.save_states([Save("cart", "1", "a", 77, b"late", 2)])
        assert isinstance(late, StaleFence)
        assert late.stored == 78
        assert await store.load_state("cart", "1", "a", 79) == b"new"
        await write_states(store, [("cart", "1", "a", None)])
        assert await store.read_states("cart", ["a", "b"]) == [None, b"b"]


async def test_remembered_entities_come_back_to_their_lists(stores: dict[str, StateStore]) -> None:
    for store in stores.values():
        await store.add_remembered("cart", "4", ["x"], 9)
        lines = [line_of(StoredEntity("cart", key, "4", None)) for key in ("x", "y")]
        done = (await brought(store, lines, 10)).done
        assert done.remembered == 2
        assert await store.page_remembered("cart", "4", None, 10) in (
            (["x", "y"], None),
            (["y", "x"], None),
        )


async def test_reminders_are_written_above_the_fences_of_entity_and_shard(
    stores: dict[str, StateStore],
) -> None:
    due = 1_764_412_800_000
    lines = [line_of(StoredEntity("cart", key, "4", None, Reminders(due, b"r-%d" % n, alone=True)))
             for n, key in enumerate(("x", "y", "z"))]  # fmt: skip
    for store in stores.values():
        reminders = reminder_store(store)
        assert reminders is not None
        await store.add_remembered("cart", "4", [], 9)
        await store.save_states([Save("cart", "4", "x", 12, b"state", 1)])
        assert (await brought(store, lines, 10)).done.reminded == 3
        assert await reminders.due_shards("cart") == ["4"]
        assert await reminders.page_due("cart", "4", None, 9) == [(due, k) for k in ("x", "y", "z")]
        assert await reminders.load_reminders("cart", "4", ["x", "z"]) == [b"r-0", b"r-2"]
        assert await store.read_states("cart", ["x", "y"]) == [b"state", None]
        assert (await brought(store, lines, 10)).done.same == 3
        other = [lines[0].replace(str(due), "1764412800001"), lines[1].replace("ci0x", "ci05")]
        importer = Importer(store, shard)
        refused = await importer.put([read_line(line) for line in other])
        assert refused is not None
        assert refused.entity_id == "y"
        assert (await brought(store, other, 10, existing="skip")).done.skipped == 1
        assert (await brought(store, other, 10, existing="replace")).done.reminded == 1
        assert await reminders.load_reminders("cart", "4", ["y"]) == [b"r-9"]


async def test_a_fence_that_grows_meanwhile_shows_a_node() -> None:
    class Busy(MemoryStore):
        async def save_states(self, saves: Any) -> Any:
            for save in saves:
                await self.load_state(save.entity_type, save.shard, save.entity_id, save.fence + 9)
            return await super().save_states(saves)

    store = Busy()
    await store.start()
    with pytest.raises(StoreError, match="has grown meanwhile: a node runs"):
        await write_states(store, [("cart", "1", "a", b"x")])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "it is no JSON"),
        ("[1]", "no object with type and id"),
        ('{"type": "cart", "id": "a"}', "none or both of state and raw"),
        ('{"type": "cart", "id": "a", "state": 1, "raw": "AA=="}', "none or both"),
        ('{"type": "cart", "id": "a", "state": 1, "more": 1}', "an unknown field 'more'"),
        ('{"type": "cart", "id": 7, "state": 1}', "id is 7, not a text"),
        ('{"type": "cart", "id": "", "state": 1}', "id"),
        ('{"type": "cart", "id": "a", "state": 1, "version": 0}', "version is 0, not 1 to"),
        ('{"type": "cart", "id": "a", "state": {"x": {"$bytes": "!"}}}', r"at \$\.x: \$bytes"),
        ('{"type": "cart", "id": "a", "raw": "!"}', "base64"),
        ('{"type": "cart", "id": "a", "state": 99999999999999999999}', "cannot send this"),
    ],
)
def test_a_line_that_is_none_says_why(line: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_line(line)
