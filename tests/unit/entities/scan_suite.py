"""The listings that a store must give to the scan of journals for a projection: all entities
that are behind, and no other, however the journals are listed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

from shardbus.entities.journal_scan import JournalScan, stored_numbers
from shardbus.entities.projected_events import part_id
from shardbus.ids import shard_of
from shardbus.store.journal_protocol import Append, journals_of
from shardbus.store.journals import Journals
from shardbus.store.placement import placing
from shardbus.store.protocol import Save, StateStore
from shardbus.testing.store_suite import StoreFactory
from shardbus.wire.stored_state import numbered, with_record
from tests.waiting import until

SHARDS, NAME = 5, "statement"
NAMES = [f"account-{n}" for n in range(40)] + ["of/a/path", "an id with \u00fc"]
IDS: Iterator[int] = count(1)


async def write(store: StateStore, name: str, events: int, handled: int) -> None:
    """Store a journal with so many events, and a part that has handled so many; without a record
    if it is below 0."""
    journals, shard = journals_of(store), shard_of(name, SHARDS)
    assert journals is not None
    for kind in ("account", "other"):
        entries = tuple(b"event" for _ in range(events if kind == "account" else events + 1))
        one = Append(kind, shard, name, 1, entries, next(IDS), 0)
        assert await journals.append([one]) == [None]
    if handled >= 0:
        data = with_record(b"a record of deliveries", numbered(handled, b"\x80"))
        save = Save(NAME, shard, part_id(name, NAME), 1, data, next(IDS))
        assert await store.save_states([save]) == [None]


class ScanSuite:
    """A subclass has a fixture `store_factory`."""

    async def test_a_scan_finds_what_is_behind_and_nothing_else(
        self, store_factory: StoreFactory
    ) -> None:
        store = store_factory()
        await store.start()
        try:
            places = placing(store)
            if places is not None:
                layout = f"crc32/{SHARDS} within account"
                await places.placed(
                    NAME, layout, lambda key: shard_of(key.rpartition("/")[0], SHARDS)
                )
            behind = set()
            for n, name in enumerate(NAMES):
                events = n % 3 + 1
                handled = (events, -1, events - 1, events + 1)[n % 4]
                await write(store, name, events, handled)
                if events != max(handled, 0):
                    behind.add(name)
            journals = journals_of(store)
            assert journals is not None
            await journals.trim("account", shard_of(NAMES[1], SHARDS), NAMES[1], 1, 2)
            found: list[tuple[str, str]] = []
            scan = JournalScan(
                NAME,
                "account",
                Journals(journals, 7),
                lambda names: stored_numbers(store, NAME, names),
                lambda name: shard_of(name, SHARDS),
                lambda shard, name: found.append((shard, name)),
                lambda: True,
                asyncio.get_running_loop(),
            )
            scan.add(str(shard) for shard in range(SHARDS))
            await until(lambda: not scan.shards, "the scan")
            assert {name for _, name in found} == behind
            assert all(shard == shard_of(name, SHARDS) for shard, name in found)
            found.clear()
            scan.add(["2"])
            await until(lambda: not scan.shards, "the second scan")
            assert {name for _, name in found} == {
                name for name in behind if shard_of(name, SHARDS) == "2"
            }
            scan.stop()
        finally:
            await store.close()
