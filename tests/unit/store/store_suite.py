"""What every state store must do, as a class of tests that any implementation can be put through.

`StoreConformance` asks for fixtures: `store_factory`, a callable that gives a store not yet
started, every one over the same data; and `pass_time`, a callable that moves the clock of the
leases. One that does nothing suits a store whose clock cannot be moved: expiry is awaited, not
assumed. `spoil` knows the stores that come with shardbus; another overrides it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import pytest

from shardbus.bounds import EPOCH_MAX
from shardbus.errors import ConfigError, StaleEpoch, StaleFence, StoreError, StoreUnavailable
from shardbus.ids import NodeId
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import Save, StateStore
from shardbus.store.redis import RedisStore
from shardbus.store.sqlite import SqliteStore
from tests.waiting import PATIENCE_S

A, B = NodeId("10.0.0.1", 7355, 2**64 - 1), NodeId("::1", 7355, 1)
HUGE = 2**63 - 1
NASTY_IDS = [
    "{}", "{type}", "a}b{c", "a:b/c", "'", '"', "''; DROP TABLE home", "%s%7B", "*?[a-z]", " ",
    "\\x00", "é", "e\u0301", "日本", "\U0001f6e9", "\u2028", "\ufeff", "\ue000", "\uffff",
    "(a", "[a", "-", "+", "x" * 256, "ü" * 128, "0", "00", "-1", "None", "~",
]  # fmt: skip

StoreFactory = Callable[[], StateStore]
Answer = TypeVar("Answer")
LONG_S, SHORT_S = 60.0, 1.0
"""Timeouts of stores: one that must not pass, and one that the test waits for."""


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.01)


async def insist(step: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat `step` until the store answers, and return its answer.

    For a store whose timeout is short because the test waits for it to pass: it may also pass where
    the test does not want it, on a machine that stands still for a moment.
    """
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await step()
            except StoreUnavailable:
                await asyncio.sleep(0.01)


def save(entity_id: str, fence: int, data: bytes | None, op_id: int) -> Save:
    return Save("counter", entity_id, fence, data, op_id)


async def pages(store: StateStore, shard: str, limit: int) -> list[list[str]]:
    found, cursor = [], None
    while True:
        page, cursor = await store.page_remembered("counter", shard, cursor, limit)
        found.append(page)
        if cursor is None:
            return found


async def remembered(store: StateStore, shard: str = "7", limit: int = 100) -> set[str]:
    return {entity_id for page in await pages(store, shard, limit) for entity_id in page}


Spoil = Callable[..., Awaitable[None]]


async def by_hand(store: Any, what: str, *row: str) -> None:
    """Write into the stored table of `counter` past the store: a `home` (shard, node, fence), or an
    `epoch`."""
    match store:
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
            client = store._connect()
            head, homes = store._table("counter")
            if what == "epoch":
                await client.hset(head, "epoch", row[0])
            else:
                await client.hset(homes, row[0], f"{row[2]} {row[1]}")
            with contextlib.suppress(Exception):
                await client.aclose()


class TablesAndLeases:
    @pytest.fixture
    async def store(self, store_factory: StoreFactory) -> AsyncIterator[StateStore]:
        store = store_factory()
        await store.start()
        yield store
        await store.close()

    other = store

    @pytest.fixture
    def spoil(self) -> Spoil:
        return by_hand

    # Tables

    async def test_an_identity_is_written_once_and_read_by_all(
        self, store: StateStore, other: StateStore
    ) -> None:
        first, second = await asyncio.gather(store.identity(), other.identity())
        assert len(first) == 16
        assert first == second == await other.identity() == await store.identity()

    async def test_a_known_identity_is_written_again(
        self, store: StateStore, other: StateStore
    ) -> None:
        await store.identity()
        assert await other.identity("0123456789abcdef") == "0123456789abcdef"
        assert await store.identity() == "0123456789abcdef"

    async def test_a_table_is_there_once_it_was_claimed(self, store: StateStore) -> None:
        assert await store.load_table("counter") is None
        claimed = await store.claim_epoch("counter", 1, "crc32/100")
        assert (claimed.epoch, claimed.layout, dict(claimed.homes)) == (1, "crc32/100", {})
        assert await store.load_table("counter") == claimed
        assert await store.load_table("other") is None

    async def test_an_epoch_is_claimed_once(self, store: StateStore, other: StateStore) -> None:
        await store.claim_epoch("counter", 5, "crc32/100")
        for epoch in (5, 4, 1):
            with pytest.raises(StaleEpoch) as refused:
                await other.claim_epoch("counter", epoch, "crc32/100")
            assert (refused.value.epoch, refused.value.stored) == (epoch, 5)
        assert (await other.claim_epoch("counter", EPOCH_MAX, "crc32/100")).epoch == EPOCH_MAX
        with pytest.raises(StaleEpoch):
            await store.claim_epoch("counter", EPOCH_MAX - 1, "crc32/100")

    async def test_a_claim_repeated_by_its_owner_answers_again(self, store: StateStore) -> None:
        first = await store.claim_epoch("counter", 5, "crc32/100")
        assert await store.claim_epoch("counter", 5, "crc32/100") == first
        with pytest.raises(StaleEpoch):
            await store.claim_epoch("counter", 5, "crc32/200")

    async def test_homes_are_kept_across_claims(self, store: StateStore, other: StateStore) -> None:
        await store.claim_epoch("counter", 1, "crc32/100")
        await store.write_homes("counter", 1, {"7": (A, 1), "8": (B, HUGE), "9": (A, 3)}, 11)
        await store.write_homes("counter", 1, {"7": None, "8": (A, HUGE), "no": None}, 12)
        table = await other.claim_epoch("counter", 2, "crc32/100")
        assert dict(table.homes) == {"8": (A, HUGE), "9": (A, 3)}
        await other.write_homes("counter", 2, {}, 13)
        assert await store.load_table("counter") == table

    async def test_a_layout_is_refused_once_there_are_homes(self, store: StateStore) -> None:
        await store.claim_epoch("counter", 1, "crc32/100")
        assert (await store.claim_epoch("counter", 2, "crc32/200")).layout == "crc32/200"
        await store.write_homes("counter", 2, {"7": (A, 1)}, 1)
        with pytest.raises(ConfigError) as refused:
            await store.claim_epoch("counter", 3, "crc32/300")
        assert "crc32/200" in str(refused.value)
        assert "crc32/300" in str(refused.value)
        table = await store.load_table("counter")
        assert table is not None
        assert table.epoch == 2

    @pytest.mark.parametrize("homes", [{"7": (A, 1)}, {}], ids=["a home", "nothing"])
    @pytest.mark.parametrize("epoch", [1, 3])
    async def test_homes_under_another_epoch_are_refused(
        self, store: StateStore, epoch: int, homes: dict[str, tuple[NodeId, int] | None]
    ) -> None:
        await store.claim_epoch("counter", 2, "crc32/100")
        with pytest.raises(StaleEpoch) as refused:
            await store.write_homes("counter", epoch, homes, 1)
        assert (refused.value.epoch, refused.value.stored) == (epoch, 2)
        table = await store.load_table("counter")
        assert table is not None
        assert not table.homes

    async def test_homes_of_a_writer_that_did_not_claim_this_epoch_are_refused(
        self, store: StateStore, other: StateStore
    ) -> None:
        """A store that lost a claim may grant the same epoch once more."""
        await store.claim_epoch("counter", 2, "crc32/100")
        with pytest.raises(StaleEpoch):
            await other.write_homes("counter", 2, {"7": (A, 1)}, 1)
        await store.write_homes("counter", 2, {"7": (A, 1)}, 2)

    async def test_homes_without_a_table_are_refused(self, store: StateStore) -> None:
        with pytest.raises(StaleEpoch):
            await store.write_homes("counter", 1, {"7": (A, 1)}, 1)
        assert await store.load_table("counter") is None

    async def test_a_write_whose_answer_was_lost_is_applied_once(self, store: StateStore) -> None:
        await store.claim_epoch("counter", 1, "crc32/100")
        await store.write_homes("counter", 1, {"7": (A, 1)}, HUGE)
        await store.write_homes("counter", 1, {"7": (B, 2)}, HUGE)
        table = await store.load_table("counter")
        assert table is not None
        assert dict(table.homes) == {"7": (A, 1)}

    async def test_a_removed_table_keeps_its_epoch(self, store: StateStore) -> None:
        await store.claim_epoch("counter", 9, "crc32/100")
        await store.claim_epoch("other", 3, "crc32/100")
        await store.write_homes("counter", 9, {"7": (A, 1)}, 1)
        await store.write_homes("other", 3, {"7": (A, 1)}, 1)
        assert await store.remove_table("counter")
        assert not await store.remove_table("counter")
        with pytest.raises(StaleEpoch):
            await store.claim_epoch("counter", 8, "crc32/200")
        table = await store.claim_epoch("counter", 10, "crc32/200")
        assert (table.epoch, table.layout, dict(table.homes)) == (10, "crc32/200", {})
        other = await store.load_table("other")
        assert other is not None
        assert dict(other.homes) == {"7": (A, 1)}

    # Tables that were edited by hand

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
        for shard, (node, fence) in bad.items():
            await spoil(store, "home", shard, node, fence)
        loaded = await store.load_table("counter")
        claimed = await other.claim_epoch("counter", 2, "crc32/100")
        for table in (loaded, claimed):
            assert table is not None
            assert dict(table.homes) == {"7": (A, 1), "8": (B, HUGE)}
            assert len(table.dropped) == len(bad)
            for shard in range(10, 18):
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

    @pytest.mark.parametrize("epoch", ["soon", "-1", "", str(EPOCH_MAX + 1)])
    async def test_a_table_without_a_readable_epoch_is_a_store_error(
        self, store: StateStore, other: StateStore, spoil: Spoil, epoch: str
    ) -> None:
        await store.claim_epoch("counter", 1, "crc32/100")
        await spoil(store, "epoch", epoch)
        with pytest.raises(StoreError, match="damaged") as failed:
            await store.load_table("counter")
        assert not isinstance(failed.value, StaleEpoch | StaleFence | StoreUnavailable)
        with pytest.raises(StoreError, match="damaged"):
            await store.write_homes("counter", 1, {"7": (A, 1)}, 1)
        with contextlib.suppress(StoreError):  # a store may take a claim for a repair
            await other.claim_epoch("counter", 2, "crc32/100")

    async def test_of_two_that_claim_an_epoch_at_once_one_gets_it(
        self, store: StateStore, other: StateStore
    ) -> None:
        for epoch in range(1, 20):
            claims = await asyncio.gather(
                store.claim_epoch("counter", epoch, "crc32/100"),
                other.claim_epoch("counter", epoch, "crc32/100"),
                return_exceptions=True,
            )
            assert sum(isinstance(claim, StaleEpoch) for claim in claims) == 1

    # Leases

    async def test_a_lease_has_one_owner(self, store: StateStore, other: StateStore) -> None:
        held = await store.acquire_lease("sbr", "a", 60.0)
        assert held is not None
        assert await other.acquire_lease("sbr", "b", 60.0) is None
        assert await store.acquire_lease("sbr", "a", 60.0) == held
        assert await store.renew_lease(held, 60.0)
        assert await other.acquire_lease("another", "b", 60.0) is not None

    async def test_a_released_lease_is_free_and_its_counter_grows(
        self, store: StateStore, other: StateStore
    ) -> None:
        first = await store.acquire_lease("sbr", "a", 60.0)
        assert first is not None
        await store.release_lease(first)
        assert not await store.renew_lease(first, 60.0)
        second = await other.acquire_lease("sbr", "b", 60.0)
        assert second is not None
        assert second.counter > first.counter
        await store.release_lease(first)
        assert await store.acquire_lease("sbr", "a", 60.0) is None
        assert await other.renew_lease(second, 60.0)

    async def test_a_lease_runs_out(
        self, store: StateStore, other: StateStore, pass_time: Callable[[float], None]
    ) -> None:
        first = await store.acquire_lease("sbr", "a", 0.2)
        assert first is not None
        pass_time(0.2)
        await until(lambda: other.acquire_lease("sbr", "b", 60.0))
        second = await other.acquire_lease("sbr", "b", 60.0)
        assert second is not None
        assert second.counter > first.counter
        assert not await store.renew_lease(first, 60.0)
        await store.release_lease(first)
        assert await store.acquire_lease("sbr", "a", 60.0) is None

    async def test_a_lease_that_ran_out_is_not_renewed_but_acquired_anew(
        self, store: StateStore, pass_time: Callable[[float], None]
    ) -> None:
        first = await store.acquire_lease("sbr", "a", 60.0)
        assert first is not None

        async def lost() -> bool:
            renewed = await store.renew_lease(first, 0.001)
            pass_time(0.001)
            return not renewed

        await until(lost)
        second = await store.acquire_lease("sbr", "a", 60.0)
        assert second is not None
        assert second.counter > first.counter

    async def test_a_late_release_does_not_free_the_owners_newer_lease(
        self, store: StateStore, other: StateStore, pass_time: Callable[[float], None]
    ) -> None:
        first = await store.acquire_lease("sbr", "a", 0.1)
        assert first is not None
        pass_time(0.1)

        async def again() -> bool:
            lease = await store.acquire_lease("sbr", "a", 60.0)
            return lease is not None and lease.counter > first.counter

        await until(lambda: other.acquire_lease("sbr", "b", 0.001))
        pass_time(0.001)
        await until(again)
        await store.release_lease(first)
        assert await other.acquire_lease("sbr", "b", 60.0) is None

    async def test_of_many_that_race_for_a_lease_one_gets_it(
        self, store: StateStore, other: StateStore
    ) -> None:
        racers = [
            racer.acquire_lease("sbr", f"owner-{n}", 60.0)
            for n in range(20)
            for racer in (store, other)
        ]
        held = [lease for lease in await asyncio.gather(*racers) if lease is not None]
        assert len({lease.owner for lease in held}) == 1
        assert len({lease.counter for lease in held}) == 1
