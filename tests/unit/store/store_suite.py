"""The duties of shardbus's stores beyond `StoreSuite`: survive rows that were edited by hand.

`by_hand` knows how each of these stores keeps its rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from shardbus.bounds import EPOCH_MAX
from shardbus.errors import StaleEpoch, StaleFence, StoreError, StoreUnavailable
from shardbus.store.memory import MemoryStore
from shardbus.store.postgres import PostgresStore
from shardbus.store.protocol import StateStore
from shardbus.store.redis import RedisStore
from shardbus.store.sqlite import SqliteStore
from shardbus.testing.store_suite import HUGE, A, B, save
from tests.waiting import PATIENCE_S

Answer = TypeVar("Answer")
LONG_S, SHORT_S = 60.0, 1.0
"""Timeouts of stores: one that must not pass, and one that the test waits for."""


async def insist(step: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat `step` until the store answers, and return its answer.

    For a store whose timeout is short because the test waits for it to pass: it may also pass at
    another place of the test, on a machine that stands still for a moment.
    """
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await step()
            except StoreUnavailable:
                await asyncio.sleep(0.01)


async def failure(step: Callable[[], Awaitable[object]], says: str) -> StoreUnavailable:
    """Repeat `step`, which fails each time, until the error says this, and return that error.

    For the same stores: on a machine that stands still, time may pass before the cause is known.
    """
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with pytest.raises(StoreUnavailable) as raised:
                await step()
            if re.search(says, str(raised.value)):
                return raised.value


Spoil = Callable[..., Awaitable[bool]]


def is_integer(text: str) -> bool:
    """True if a column of integers takes the text."""
    return text.removeprefix("-").isdigit() and -(2**63) <= int(text) < 2**63


async def by_hand(store: Any, what: str, *row: str) -> bool:
    """Write past the store: into the table of `counter` a `home` (shard, node, fence) or an
    `epoch`, or the `fence` of an entity (id, fence). Returns False if this store cannot hold such
    a value."""
    match store:
        case MemoryStore() if what == "fence":
            store._held.states["counter", row[0]].fence = row[1]  # type: ignore[assignment]
        case SqliteStore() if what == "fence":
            await store._worker.call(
                lambda steps: steps.db.execute(
                    f"UPDATE entity SET fence = ? WHERE cluster = {steps.cluster} AND id = ?",
                    row[::-1],
                )
            )
        case RedisStore() if what == "fence":
            client = store._servers.connect()
            key = store._keys.entity("counter", "7", row[0])
            await client.hset(key, "v", f"{row[1]:>19}{'0' * 41}")
            with contextlib.suppress(Exception):
                await client.aclose()
        case MemoryStore():
            table: Any = store._held.tables["counter"]
            if what == "epoch":
                table.epoch = row[0]
            else:
                table.homes[row[0]] = row[1:]
        case SqliteStore():
            where = "cluster = {} AND type = 'counter'"
            await store._worker.call(
                lambda steps: (
                    steps.db.execute(
                        f"UPDATE shard_table SET epoch = ? WHERE {where.format(steps.cluster)}", row
                    )
                    if what == "epoch"
                    else steps.db.execute(
                        f"REPLACE INTO home VALUES ({steps.cluster}, 'counter', ?, ?, ?)", row
                    )
                )
            )
        case RedisStore():
            client = store._servers.connect()
            head, homes = store._keys.table("counter")
            if what == "epoch":
                await client.hset(head, "epoch", row[0])
            else:
                await client.hset(homes, row[0], f"{row[2]} {row[1]}")
            with contextlib.suppress(Exception):
                await client.aclose()
        case PostgresStore():
            if not is_integer(row[-1]):
                return False
            connection = (await store._connect()).connection
            if what == "epoch":
                text = f"UPDATE {store._schema}.shard_table SET epoch = $1"
                await connection.fetch(text, int(row[0]))
            else:
                text = (
                    f"INSERT INTO {store._schema}.home VALUES ($1, 'counter', $2, $3, $4)"
                    " ON CONFLICT (cluster, type, shard) DO UPDATE SET node = excluded.node,"
                    " fence = excluded.fence"
                )
                await connection.fetch(text, store._cluster, *row[:2], int(row[2]))
            await connection.close()
    return True


class DamagedTables:
    """Tables that were edited by hand. Needs the fixtures of `StoreSuite`."""

    @pytest.fixture
    def spoil(self) -> Spoil:
        return by_hand

    async def test_rows_that_cannot_be_true_are_left_out_and_named(
        self, store: StateStore, other: StateStore, spoil: Spoil
    ) -> None:
        await store.claim_epoch("counter", 1, "crc32/100")
        await store.write_homes("counter", 1, {"7": (A, 1), "8": (B, HUGE)}, 1)
        bad = {
            "10": ("somewhere", "2"),
            "11": ("", "2"),
            "12": ("10.0.0.1:0#1", "2"),
            "13": ("10.0.0.1:7355#" + "f" * 17, "2"),
            "14": (str(A), "-5"),
            "15": (str(A), "0"),
            "16": (str(A), "soon"),
            "17": (str(A), str(HUGE + 1)),
            "x" * 257: (str(A), "2"),
            "a\nb": (str(A), "2"),
        }
        held = [
            shard
            for shard, (node, fence) in bad.items()
            if await spoil(store, "home", shard, node, fence)
        ]
        loaded = await store.load_table("counter")
        claimed = await other.claim_epoch("counter", 2, "crc32/100")
        for table in (loaded, claimed):
            assert table is not None
            assert dict(table.homes) == {"7": (A, 1), "8": (B, HUGE)}
            assert len(table.dropped) == len(held)
            for shard in held[:-2]:
                assert sum(text.startswith(f"shard '{shard}': ") for text in table.dropped) == 1

    async def test_a_bad_row_ends_when_its_shard_gets_a_home_or_none(
        self, store: StateStore, spoil: Spoil
    ) -> None:
        await store.claim_epoch("counter", 1, "crc32/100")
        for shard in ("7", "8"):
            await spoil(store, "home", shard, "nowhere", "-1")
        await store.write_homes("counter", 1, {"7": (A, 5), "8": None}, 1)
        table = await store.load_table("counter")
        assert table is not None
        assert (dict(table.homes), table.dropped) == ({"7": (A, 5)}, ())

    async def test_a_damaged_fence_fails_the_save_of_its_own_entity_alone(
        self, store: StateStore, spoil: Spoil
    ) -> None:
        saves = [save(f"e-{n}", 1, b"old", n) for n in range(1, 6)]
        assert await store.save_states(saves) == [None] * 5
        if not await spoil(store, "fence", "e-3", "x" * 19):
            return
        saves = [save(f"e-{n}", 1, b"new", n + 10) for n in range(1, 6)]
        answers = await store.save_states(saves)
        assert [answer is None for answer in answers] == [True, True, False, True, True]
        assert "the stored fence of 'e-3' of 'counter' is damaged" in str(answers[2])
        states = await store.read_states("counter", ["e-1", "e-3", "e-5"])
        assert states == [b"new", b"old", b"new"]

    @pytest.mark.parametrize("epoch", ["soon", "-1", "", str(EPOCH_MAX + 1)])
    async def test_a_table_without_a_readable_epoch_is_a_store_error(
        self, store: StateStore, other: StateStore, spoil: Spoil, epoch: str
    ) -> None:
        await store.claim_epoch("counter", 1, "crc32/100")
        if not await spoil(store, "epoch", epoch):
            return
        with pytest.raises(StoreError, match="damaged") as failed:
            await store.load_table("counter")
        assert not isinstance(failed.value, StaleEpoch | StaleFence | StoreUnavailable)
        with pytest.raises(StoreError, match="damaged"):
            await store.write_homes("counter", 1, {"7": (A, 1)}, 1)
        with contextlib.suppress(StoreError):  # a store may take a claim for a repair
            await other.claim_epoch("counter", 2, "crc32/100")
