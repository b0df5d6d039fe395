"""`StoreSuite`: the laws of every state store, as a class of tests for a plugged-in store.

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def store_factory(self, tmp_path):
            path = tmp_path / "store"
            return lambda: MyStore(path)

The suite needs two fixtures. `store_factory` is a function that makes a store which is not yet
started; all stores that it makes in one test have the same data, which is empty at first.
`pass_time` is a function that moves the clock of the leases. The default does nothing, as for a
store whose clock cannot be moved: the tests wait for leases to expire.

The tests run in a real event loop, so that a store may use files and sockets. They need
`pytest-asyncio`, which `pip install 'shardbus[testing]'` installs.

Source: docs/how-to/keep-state.md; `shardbus.store.protocol`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from shardbus.bounds import EPOCH_MAX
from shardbus.errors import ConfigError, StaleEpoch, StaleFence, StoreUnavailable
from shardbus.ids import NodeId
from shardbus.store.protocol import (
    Due,
    Reminders,
    ReminderStore,
    Save,
    StateStore,
    reminder_store,
)

A, B = NodeId("10.0.0.1", 7355, 2**64 - 1), NodeId("::1", 7355, 1)
HUGE = 2**63 - 1
NASTY_IDS = [
    "{}", "{type}", "a}b{c", "a:b/c", "'", '"', "''; DROP TABLE home", "%s%7B", "*?[a-z]", " ",
    "\\x00", "é", "e\u0301", "日本", "\U0001f6e9", "\u2028", "\ufeff", "\ue000", "\uffff",
    "(a", "[a", "-", "+", "x" * 256, "ü" * 128, "0", "00", "-1", "None", "~",
]  # fmt: skip

"""Ids that a store must keep apart: a store that puts them into text escapes them."""
WITHIN_S = 300.0
"""Real seconds, at most, for a lease to expire."""

StoreFactory = Callable[[], StateStore]


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(WITHIN_S):
        while not await condition():
            await asyncio.sleep(0.01)


def save(entity_id: str, fence: int, data: bytes | None, op_id: int, shard: str = "7") -> Save:
    return Save("counter", shard, entity_id, fence, data, op_id)


def reminding(
    entity_id: str, fence: int, due: int, op_id: int, shard: str = "7", *, data: bytes | None = None
) -> Save:
    """A save with reminders; of them alone without `data`."""
    record = b"%d" % due if due else None
    reminders = Reminders(due, record, alone=data is None)
    return Save("counter", shard, entity_id, fence, data, op_id, reminders)


async def due_in(store: ReminderStore, shard: str = "7", limit: int = 100) -> list[Due]:
    """Return the index of a shard, read in pages."""
    entries: list[Due] = []
    while True:
        page = await store.page_due("counter", shard, entries[-1] if entries else None, limit)
        assert not set(page) & set(entries), "a page has entries of an earlier one"
        entries += page
        if len(page) < limit:
            return entries


async def pages(store: StateStore, shard: str, limit: int) -> list[list[str]]:
    lists, cursor = [], None
    while True:
        page, cursor = await store.page_remembered("counter", shard, cursor, limit)
        lists.append(page)
        if cursor is None:
            return lists


async def remembered(store: StateStore, shard: str = "7", limit: int = 100) -> set[str]:
    return {entity_id for page in await pages(store, shard, limit) for entity_id in page}


async def stored(store: StateStore, prefix: str = "", limit: int = 100) -> list[str]:
    """Return the ids of a list, each once."""
    ids: dict[str, None] = {}
    cursor, first = None, True
    while first or cursor is not None:
        page, cursor = await store.page_stored("counter", prefix, cursor, limit)
        ids.update(dict.fromkeys(page))
        first = False
    return list(ids)


@asynccontextmanager
async def started(factory: StoreFactory) -> AsyncIterator[StateStore]:
    """Yield a store that is started."""
    store = factory()
    await store.start()
    yield store
    await store.close()


async def cancel_some(check: Callable[[int], Coroutine[Any, Any, None]], turns: int) -> None:
    """Check five of the numbers 1 to 100 at a time, and cancel three of these calls. Each other one
    must get its own answer."""
    dice = random.Random(7)
    for _ in range(turns):
        tasks = [asyncio.create_task(check(dice.randint(1, 100))) for _ in range(5)]
        for _ in range(dice.randint(0, 4)):
            await asyncio.sleep(0)
        for task in dice.sample(tasks, 3):
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if outcome is not None and not isinstance(outcome, asyncio.CancelledError):
                raise outcome
    await check(42)


class TableTests:
    """Tests of tables: identity, epochs, homes, layouts."""

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


class LeaseTests:
    """Tests of leases."""

    async def test_a_lease_has_one_owner(self, store: StateStore, other: StateStore) -> None:
        held = await store.acquire_lease("sbr", "a", 3600.0)
        assert held is not None
        assert await other.acquire_lease("sbr", "b", 3600.0) is None
        assert await store.acquire_lease("sbr", "a", 3600.0) == held
        assert await store.renew_lease(held, 3600.0)
        assert await other.acquire_lease("another", "b", 3600.0) is not None

    async def test_a_released_lease_is_free_and_its_counter_grows(
        self, store: StateStore, other: StateStore
    ) -> None:
        first = await store.acquire_lease("sbr", "a", 3600.0)
        assert first is not None
        await store.release_lease(first)
        assert not await store.renew_lease(first, 3600.0)
        second = await other.acquire_lease("sbr", "b", 3600.0)
        assert second is not None
        assert second.counter > first.counter
        await store.release_lease(first)
        assert await store.acquire_lease("sbr", "a", 3600.0) is None
        assert await other.renew_lease(second, 3600.0)

    async def test_a_lease_runs_out(
        self, store: StateStore, other: StateStore, pass_time: Callable[[float], None]
    ) -> None:
        first = await store.acquire_lease("sbr", "a", 0.2)
        assert first is not None
        pass_time(0.2)
        await until(lambda: other.acquire_lease("sbr", "b", 3600.0))
        second = await other.acquire_lease("sbr", "b", 3600.0)
        assert second is not None
        assert second.counter > first.counter
        assert not await store.renew_lease(first, 3600.0)
        await store.release_lease(first)
        assert await store.acquire_lease("sbr", "a", 3600.0) is None

    async def test_a_lease_that_ran_out_is_not_renewed_but_acquired_anew(
        self, store: StateStore, pass_time: Callable[[float], None]
    ) -> None:
        first = await store.acquire_lease("sbr", "a", 0.2)
        assert first is not None

        async def lost() -> bool:
            renewed = await store.renew_lease(first, 0.001)
            pass_time(0.001)
            return not renewed

        await until(lost)
        second = await store.acquire_lease("sbr", "a", 3600.0)
        assert second is not None
        assert second.counter > first.counter

    async def test_a_late_release_does_not_free_the_owners_newer_lease(
        self, store: StateStore, other: StateStore, pass_time: Callable[[float], None]
    ) -> None:
        first = await store.acquire_lease("sbr", "a", 0.1)
        assert first is not None
        pass_time(0.1)

        async def again() -> bool:
            lease = await store.acquire_lease("sbr", "a", 3600.0)
            return lease is not None and lease.counter > first.counter

        await until(lambda: other.acquire_lease("sbr", "b", 0.001))
        pass_time(0.001)
        await until(again)
        await store.release_lease(first)
        assert await other.acquire_lease("sbr", "b", 3600.0) is None

    async def test_of_many_that_race_for_a_lease_one_gets_it(
        self, store: StateStore, other: StateStore
    ) -> None:
        racers = [
            racer.acquire_lease("sbr", f"owner-{n}", 3600.0)
            for n in range(20)
            for racer in (store, other)
        ]
        held = [lease for lease in await asyncio.gather(*racers) if lease is not None]
        assert len({lease.owner for lease in held}) == 1
        assert len({lease.counter for lease in held}) == 1


class StateTests:
    """Tests of entities' states and fences."""

    async def test_state_comes_back_as_it_was_saved(
        self, store: StateStore, other: StateStore
    ) -> None:
        assert await store.load_state("counter", "7", "a", 1) is None
        for op_id, data in enumerate((b"", b"\x00\xff\r\n", bytes(range(256)) * 4096), start=1):
            assert await store.save_states([save("a", 1, data, op_id)]) == [None]
            assert await other.load_state("counter", "7", "a", 1) == data
        assert await store.load_state("other", "7", "a", 1) is None

    async def test_a_load_locks_the_predecessor_out(
        self, store: StateStore, other: StateStore
    ) -> None:
        await store.save_states([save("a", 7, b"old", 1)])
        assert await other.load_state("counter", "7", "a", 8) == b"old"
        [refused] = await store.save_states([save("a", 7, b"late", 2)])
        assert isinstance(refused, StaleFence)
        assert (refused.entity_id, refused.fence, refused.stored) == ("a", 7, 8)
        with pytest.raises(StaleFence):
            await store.load_state("counter", "7", "a", 7)
        assert await other.load_state("counter", "7", "a", 8) == b"old"

    async def test_a_load_of_nothing_locks_the_predecessor_out_too(self, store: StateStore) -> None:
        assert await store.load_state("counter", "7", "a", HUGE) is None
        [refused] = await store.save_states([save("a", HUGE - 1, b"late", 1)])
        assert isinstance(refused, StaleFence)
        assert refused.stored == HUGE
        assert await store.save_states([save("a", HUGE, b"new", 2)]) == [None]

    async def test_fences_are_compared_as_numbers(self, store: StateStore) -> None:
        await store.load_state("counter", "7", "a", 9)
        assert await store.save_states([save("a", 10, b"ten", 1)]) == [None]
        [refused] = await store.save_states([save("a", 9, b"nine", 2)])
        assert isinstance(refused, StaleFence)
        assert await store.load_state("counter", "7", "a", 2**53 + 1) == b"ten"
        [refused] = await store.save_states([save("a", 2**53, b"late", 3)])
        assert isinstance(refused, StaleFence)

    async def test_a_save_whose_answer_was_lost_is_applied_once(self, store: StateStore) -> None:
        for _ in range(2):
            assert await store.save_states([save("a", 1, b"one", HUGE)]) == [None]
        assert await store.save_states([save("a", 1, b"two", HUGE)]) == [None]
        assert await store.load_state("counter", "7", "a", 2) == b"one"
        assert await store.save_states([save("a", 1, b"one", HUGE)]) == [None]
        assert await store.load_state("counter", "7", "a", 2) == b"one"

    async def test_a_load_comes_after_a_save_that_was_given_up(self, store: StateStore) -> None:
        """The loaded state stays, whenever the server executes the save."""
        long = bytes(range(256)) * 1024
        states: dict[str, bytes | None] = {}
        for n in range(40):
            entity_id = f"e-{n}"
            await store.save_states([save(entity_id, 1, b"old", 2 * n + 1)])
            given_up = asyncio.ensure_future(
                store.save_states([save(entity_id, 1, long, 2 * n + 2)])
            )
            for _ in range(n):
                await asyncio.sleep(0)
            given_up.cancel()
            states[entity_id] = await store.load_state("counter", "7", entity_id, 1)
            await asyncio.wait([given_up])
        assert set(states.values()) <= {b"old", long}
        for _ in range(4):  # behind all that was sent, on whatever connection
            others = (store.load_state("counter", "7", f"other-{n}", 1) for n in range(40))
            assert set(await asyncio.gather(*others)) == {None}
            assert await store.read_states("counter", list(states)) == list(states.values())

    async def test_a_save_comes_after_one_that_was_given_up_before_a_load(
        self, store: StateStore
    ) -> None:
        for n in range(40):
            given_up = asyncio.ensure_future(store.save_states([save("a", 1, b"late", 2 * n + 1)]))
            for _ in range(n):
                await asyncio.sleep(0)
            given_up.cancel()
            await store.load_state("counter", "7", "a", 1)
            assert await store.save_states([save("a", 1, b"%d" % n, 2 * n + 2)]) == [None]
            await asyncio.wait([given_up])
            assert await store.load_state("counter", "7", "a", 1) == b"%d" % n

    async def test_a_save_that_is_sent_again_after_a_newer_one_changes_nothing(
        self, store: StateStore, other: StateStore
    ) -> None:
        """Its first answer was lost, and its owner has lost the entity meanwhile."""
        late = [save("a", 1, b"late", 1)]
        assert await store.save_states(late) == [None]
        assert await other.load_state("counter", "7", "a", 2) == b"late"
        assert await store.save_states(late) == [None], "it was applied before"
        assert await other.save_states([save("a", 2, b"newer", 2)]) == [None]
        for _ in range(3):
            [refused] = await store.save_states(late)
            assert isinstance(refused, StaleFence)
        assert await store.read_states("counter", ["a"]) == [b"newer"]
        assert await other.save_states([save("a", 2, None, 3)]) == [None]
        [refused] = await store.save_states(late)
        assert isinstance(refused, StaleFence)
        assert await other.load_state("counter", "7", "a", 2) is None

    async def test_late_repeats_beside_newer_saves_leave_the_newest(
        self, store: StateStore, other: StateStore
    ) -> None:
        for n in range(1, 13):
            late = [save("a", n, b"%d" % n, 10 * n)]
            assert await store.save_states(late) == [None]
            await other.load_state("counter", "7", "a", n + 1)
            newer = [save("a", n + 1, b"newer %d" % n, 10 * n + 1)]
            answers = await asyncio.gather(
                store.save_states(late), other.save_states(newer), store.save_states(late)
            )
            assert answers[1] == [None]
            for [answer] in (answers[0], answers[2]):
                assert answer is None or isinstance(answer, StaleFence)
            assert await other.load_state("counter", "7", "a", n + 1) == b"newer %d" % n

    async def test_a_cleared_state_keeps_its_fence(self, store: StateStore) -> None:
        assert await store.save_states([save("a", 5, b"x", 1), save("a", 5, None, 2)]) == [
            None,
            None,
        ]
        [refused] = await store.save_states([save("a", 4, b"late", 3)])
        assert isinstance(refused, StaleFence)
        assert await store.load_state("counter", "7", "a", 5) is None

    async def test_saves_of_one_call_are_judged_one_by_one(self, store: StateStore) -> None:
        await store.load_state("counter", "7", "b", 9)
        answers = await store.save_states(
            [save("a", 1, b"a", 1), save("b", 8, b"b", 2), Save("other", "7", "c", 1, b"c", 3)]
        )
        assert [answer is None for answer in answers] == [True, False, True]
        assert await store.load_state("other", "7", "c", 1) == b"c"
        assert await store.save_states([]) == []

    async def test_five_thousand_saves_in_one_call(self, store: StateStore) -> None:
        saves = [save(f"e-{n}", 1, b"%d" % n, n) for n in range(1, 5001)]
        assert await store.save_states(saves) == [None] * 5000
        for n in (1, 128, 129, 2500, 5000):
            assert await store.load_state("counter", "7", f"e-{n}", 1) == b"%d" % n

    async def test_a_call_may_have_entities_of_many_shards(
        self, store: StateStore, other: StateStore
    ) -> None:
        shards = [*NASTY_IDS, *map(str, range(60))]
        places = {f"e-{n}": shards[n % len(shards)] for n in range(300)}
        await other.load_state("counter", places["e-5"], "e-5", 9)
        saves = [
            save(name, 8, name.encode(), n, shard) for n, (name, shard) in enumerate(places.items())
        ]
        answers = dict(zip(places, await store.save_states(saves), strict=True))
        refused = answers.pop("e-5")
        assert isinstance(refused, StaleFence)
        assert (refused.entity_id, refused.fence, refused.stored) == ("e-5", 8, 9)
        assert set(answers.values()) == {None}
        loads = (other.load_state("counter", places[name], name, 9) for name in places)
        states = dict(zip(places, await asyncio.gather(*loads), strict=True))
        assert states.pop("e-5") is None
        assert states == {name: name.encode() for name in states}


class StoredDataTests:
    """Tests of lists, reads without a fence, and expiry."""

    @pytest.mark.parametrize("limit", [1, 7, 100])
    async def test_stored_ids_come_in_pages(
        self, store: StateStore, other: StateStore, limit: int
    ) -> None:
        kept = {f"e-{n}": b"%d" % n for n in range(40)} | {"empty": b""}
        saves = [save(key, 1, data, n) for n, (key, data) in enumerate(kept.items(), 1)]
        saves += [save("gone", 1, b"x", 90), Save("other", "7", "e-1", 1, b"other", 91)]
        assert set(await store.save_states(saves)) == {None}
        assert await store.save_states([save("gone", 1, None, 92)]) == [None]
        assert await store.load_state("counter", "7", "never saved", 1) is None
        assert sorted(await stored(other, limit=limit)) == sorted(kept)
        assert sorted(await stored(other, "e-1", limit)) == sorted(
            key for key in kept if key.startswith("e-1")
        )
        assert await stored(other, "x", limit) == []

    async def test_a_prefix_is_a_value(self, store: StateStore) -> None:
        saves = [save(name, 1, b"x", number) for number, name in enumerate(NASTY_IDS, start=1)]
        assert set(await store.save_states(saves)) == {None}
        for prefix in NASTY_IDS:
            ids = await stored(store, prefix)
            assert sorted(ids) == sorted(name for name in NASTY_IDS if name.startswith(prefix))

    async def test_a_list_has_what_is_stored_throughout(
        self, store: StateStore, other: StateStore
    ) -> None:
        saves = [save(f"stay-{n:03}", 1, b"x", n) for n in range(1, 121)]
        saves += [save(f"go-{n:03}", 1, b"x", n) for n in range(200, 260)]
        assert set(await store.save_states(saves)) == {None}
        ids, cursor, op_id = list[str](), None, 1000
        while op_id == 1000 or cursor is not None:
            page, cursor = await store.page_stored("counter", "", cursor, 20)
            ids += page
            going = [save(f"go-{n:03}", 1, None, op_id + n) for n in range(200, 260, 7)]
            coming = [save(f"new-{op_id + n}", 1, b"x", op_id + 500 + n) for n in range(9)]
            await other.save_states([*going, *coming])
            op_id += 1000
            assert op_id < 200_000
        assert {f"stay-{n:03}" for n in range(1, 121)} <= set(ids)

    async def test_states_are_read_without_a_fence(self, store: StateStore) -> None:
        names = [f"e-{n}" for n in range(300)]
        saves = [save(name, 5, name.encode(), n) for n, name in enumerate(names, 1)]
        assert set(await store.save_states(saves)) == {None}
        states = await store.read_states("counter", [*names, "unknown", "e-0"])
        assert states == [*(name.encode() for name in names), None, b"e-0"]
        assert await store.read_states("counter", []) == []
        assert await store.read_states("other", ["e-0"]) == [None]
        assert await store.save_states([save("e-0", 5, b"new", 999)]) == [None]

    async def test_a_state_expires_once_it_was_idle_for_long(
        self, store: StateStore, other: StateStore
    ) -> None:
        await store.save_states([save("a", 5, b"a", 1), save("b", 5, b"b", 2)])
        both = ["a", "b", "unknown"]
        assert await store.expire_states("counter", both, 1000, 900) == []
        assert await other.expire_states("counter", both, 1060, 999) == []
        assert await store.expire_states("other", both, 5000, 4000) == []
        assert await other.expire_states("counter", ["a"], 1100, 1000) == ["a"]
        assert await store.expire_states("counter", both, 1101, 1000) == ["b"]
        assert await store.expire_states("counter", both, 9000, 8000) == []
        assert await store.read_states("counter", both) == [None, None, None]
        [refused] = await store.save_states([save("a", 4, b"late", 3)])
        assert isinstance(refused, StaleFence)
        assert await store.load_state("counter", "7", "a", 5) is None

    async def test_a_load_or_a_save_ends_the_idle_time(self, store: StateStore) -> None:
        names = ["saved", "loaded", "loaded again", "left"]
        await store.save_states([save(name, 5, b"x", n) for n, name in enumerate(names, 1)])
        assert await store.expire_states("counter", names, 1000, 900) == []
        await store.save_states([save("saved", 5, b"new", 9)])
        await store.load_state("counter", "7", "loaded", 6)
        await store.load_state("counter", "7", "loaded again", 5)
        assert await store.expire_states("counter", names, 1100, 1050) == ["left"]
        assert await store.expire_states("counter", names, 1200, 1099) == []
        assert await store.expire_states("counter", names, 1200, 1100) == names[:3]

    async def test_a_save_after_its_state_has_expired_counts_anew(self, store: StateStore) -> None:
        await store.save_states([save("a", 5, b"a", 1)])
        await store.expire_states("counter", ["a"], 1000, 900)
        assert await store.expire_states("counter", ["a"], 1100, 1000) == ["a"]
        assert await store.save_states([save("a", 5, b"b", 2)]) == [None]
        assert await store.expire_states("counter", ["a"], 1200, 1100) == []
        assert await store.load_state("counter", "7", "a", 5) == b"b"

    async def test_a_clock_that_was_set_back_starts_the_idle_time_anew(
        self, store: StateStore
    ) -> None:
        await store.save_states([save("a", 5, b"a", 1)])
        assert await store.expire_states("counter", ["a"], 9000, 8900) == []
        assert await store.expire_states("counter", ["a"], 1000, 900) == []
        assert await store.expire_states("counter", ["a"], 1100, 1000) == ["a"]


class RememberedTests:
    """Tests of remembered entities."""

    async def test_remembered_entities_are_kept_per_shard(
        self, store: StateStore, other: StateStore
    ) -> None:
        await store.add_remembered("counter", "7", ["a", "b", "c"], 1)
        await store.add_remembered("counter", "7", ["c", "d", "a"], 1)
        await store.remove_remembered("counter", "7", ["b", "absent"], 1)
        await store.add_remembered("counter", "8", ["x"], 1)
        await store.add_remembered("other", "7", ["y"], 1)
        assert await remembered(other, "7") == {"a", "c", "d"}
        assert await remembered(other, "9") == set()

    async def test_an_old_home_cannot_change_what_is_remembered(
        self, store: StateStore, other: StateStore
    ) -> None:
        await store.add_remembered("counter", "7", ["a"], HUGE - 1)
        await other.add_remembered("counter", "7", [], HUGE)
        for change in (store.add_remembered, store.remove_remembered):
            with pytest.raises(StaleFence) as refused:
                await change("counter", "7", ["a", "b"], HUGE - 1)
            assert (refused.value.entity_id, refused.value.stored) == ("7", HUGE)
        assert await remembered(other) == {"a"}

    async def test_pages_hold_what_is_there_throughout(
        self, store: StateStore, other: StateStore
    ) -> None:
        staying = [f"stay-{n:03}" for n in range(120)]
        going = [f"go-{n:03}" for n in range(60)] + [f"zz-{n:03}" for n in range(60)]
        await store.add_remembered("counter", "7", staying + going, 1)
        ids: list[str] = []
        cursor, turn = None, 0
        while turn == 0 or cursor is not None:
            page, cursor = await store.page_remembered("counter", "7", cursor, 20)
            assert len(page) <= 40
            ids += page
            await other.remove_remembered("counter", "7", going[turn * 10 : turn * 10 + 10], 1)
            await other.add_remembered("counter", "7", [f"new-{turn:03}", f"{turn:03}"], 1)
            turn += 1
        assert set(staying) <= set(ids)

    async def test_shards_with_remembered_entities_are_found(
        self, store: StateStore, other: StateStore
    ) -> None:
        assert await store.remembered_shards("counter") == []
        for shard in ("7", "ü :{}", "12"):
            await store.add_remembered("counter", shard, ["a"], 1)
        await store.add_remembered("another", "8", ["a"], 1)
        assert set(await other.remembered_shards("counter")) == {"7", "ü :{}", "12"}

    @pytest.mark.parametrize("limit", [1, 3, 4, 5, 12])
    async def test_pages_end(self, store: StateStore, limit: int) -> None:
        ids = {f"e-{n}" for n in range(12)}
        await store.add_remembered("counter", "7", sorted(ids), 1)
        assert await remembered(store, limit=limit) == ids


class ReminderTests:
    """Tests of reminders, if the store keeps them."""

    async def test_reminders_are_saved_with_the_state(
        self, store: StateStore, other: StateStore, keeps: ReminderStore
    ) -> None:
        assert await store.save_states([reminding("a", 1, 5000, 1, data=b"one")]) == [None]
        assert await keeps.load_reminders("counter", "7", ["a", "b"]) == [b"5000", None]
        assert await due_in(keeps) == [(5000, "a")]
        assert await store.save_states([save("a", 1, b"two", 2)]) == [None]
        assert await keeps.load_reminders("counter", "7", ["a"]) == [b"5000"]
        assert await store.save_states([reminding("a", 1, 0, 3, data=b"three")]) == [None]
        assert await keeps.load_reminders("counter", "7", ["a"]) == [None]
        assert await due_in(keeps) == []
        assert await other.load_state("counter", "7", "a", 1) == b"three"

    async def test_reminders_alone_leave_the_state(
        self, store: StateStore, other: StateStore, keeps: ReminderStore
    ) -> None:
        saves = [save("a", 1, b"state", 1), reminding("a", 1, 9, 2), reminding("b", 1, 7, 3)]
        assert await store.save_states(saves) == [None] * 3
        assert await due_in(keeps) == [(7, "b"), (9, "a")]
        assert await other.load_state("counter", "7", "a", 1) == b"state"
        assert await other.load_state("counter", "7", "b", 1) is None
        assert await stored(other) == ["a"]

    async def test_the_index_is_sorted_and_comes_in_pages(
        self, store: StateStore, keeps: ReminderStore
    ) -> None:
        entries = [(1 + n % 5, name) for n, name in enumerate(NASTY_IDS)]
        entries += [(6, f"e-{n:03}") for n in range(40)]
        saves = [reminding(name, 1, due, n) for n, (due, name) in enumerate(entries, 1)]
        saves += [reminding("b", 1, 3, 999, shard="8"), save("plain", 1, b"x", 1000)]
        for shard in ("7", "8"):
            await store.add_remembered("counter", shard, [], 1)
        assert await store.save_states(saves) == [None] * len(saves)
        for limit in (1, 3, 7, 100):
            assert await due_in(keeps, limit=limit) == sorted(entries)
        behind = [entry for entry in sorted(entries) if entry > (6, "e-0109")]
        assert await keeps.page_due("counter", "7", (6, "e-0109"), 2) == behind[:2]
        assert await due_in(keeps, "8") == [(3, "b")]
        assert set(await keeps.due_shards("counter")) >= {"7", "8"}
        assert await keeps.due_shards("another") == []

    async def test_a_later_due_time_replaces_the_earlier(
        self, store: StateStore, keeps: ReminderStore
    ) -> None:
        for op_id, due in enumerate((50, 20, 70), 1):
            assert await store.save_states([reminding("a", 1, due, op_id)]) == [None]
            assert await due_in(keeps) == [(due, "a")]

    async def test_reminders_stay_when_the_state_expires(
        self, store: StateStore, other: StateStore, keeps: ReminderStore
    ) -> None:
        assert await store.save_states([reminding("a", 1, 5000, 1, data=b"one")]) == [None]
        assert await other.expire_states("counter", ["a"], 1000, 900) == []
        assert await other.expire_states("counter", ["a"], 1100, 1000) == ["a"]
        assert await other.load_state("counter", "7", "a", 1) is None
        assert await keeps.load_reminders("counter", "7", ["a"]) == [b"5000"]
        assert await store.save_states([save("a", 1, b"two", 2)]) == [None]
        assert await due_in(keeps) == [(5000, "a")]

    async def test_an_old_home_cannot_change_reminders(
        self, store: StateStore, other: StateStore, keeps: ReminderStore
    ) -> None:
        await store.add_remembered("counter", "7", [], 5)
        assert (
            await store.save_states([reminding("a", 5, 10, 1), reminding("b", 5, 11, 2)])
            == [None] * 2
        )
        await other.add_remembered("counter", "7", [], HUGE)
        saves = [reminding("a", 5, 0, 3), reminding("new", HUGE - 1, 4, 4, data=b"x")]
        for refused, late in zip(await store.save_states(saves), saves, strict=True):
            assert isinstance(refused, StaleFence)
            assert (refused.entity_id, refused.stored) == (late.entity_id, HUGE)
        assert await due_in(keeps) == [(10, "a"), (11, "b")]
        assert await other.read_states("counter", ["new"]) == [None]
        await other.load_state("counter", "7", "b", HUGE)
        assert await other.save_states([reminding("b", HUGE, 12, 5)]) == [None]
        assert await due_in(keeps) == [(10, "a"), (12, "b")]

    async def test_a_reminder_whose_answer_was_lost_is_set_once(
        self, store: StateStore, other: StateStore, keeps: ReminderStore
    ) -> None:
        first = reminding("a", 1, 10, 1)
        assert await store.save_states([first]) == [None]
        assert await other.save_states([first]) == [None]
        assert await due_in(keeps) == [(10, "a")]


class CallTests:
    """Tests of names, races, cancelled calls and the end."""

    async def test_ids_are_values(self, store: StateStore) -> None:
        for number, name in enumerate(NASTY_IDS, start=1):
            await store.claim_epoch(name, number, "crc32/100")
            await store.write_homes(name, number, dict.fromkeys(NASTY_IDS, (A, number)), number)
            await store.add_remembered("counter", name, NASTY_IDS[:number], number)
            assert await store.acquire_lease(name, name, 3600.0) is not None
        saves = [
            save(name, 1, name.encode(), number, name)
            for number, name in enumerate(NASTY_IDS, start=1)
        ]
        assert await store.save_states(saves) == [None] * len(saves)
        for number, name in enumerate(NASTY_IDS, start=1):
            table = await store.load_table(name)
            assert table is not None
            assert dict(table.homes) == dict.fromkeys(NASTY_IDS, (A, number))
            for limit in (1, 100):
                assert await remembered(store, name, limit) == set(NASTY_IDS[:number])
            assert await store.load_state("counter", name, name, 1) == name.encode()
            assert await store.acquire_lease(name, "another", 3600.0) is None

    async def test_two_stores_that_race_write_one_history(
        self, store: StateStore, other: StateStore
    ) -> None:
        async def activation(by: StateStore, fence: int) -> int:
            try:
                data = await by.load_state("counter", "7", "a", fence)
                for step in range(3):
                    op_id = fence * 10 + step
                    [refused] = await by.save_states([save("a", fence, b"%d" % fence, op_id)])
                    if refused is not None:
                        raise refused
                return 0 if data is None else int(data)
            except StaleFence:
                return -1

        await asyncio.gather(*(activation((store, other)[n % 2], n) for n in range(1, 31)))
        assert await store.load_state("counter", "7", "a", 30) == b"30"

    async def test_a_cancelled_call_never_mixes_answers(self, store: StateStore) -> None:
        await store.save_states([save(f"e-{n}", 1, b"%d" % n, n) for n in range(1, 101)])

        async def load(n: int) -> None:
            assert await store.load_state("counter", "7", f"e-{n}", 1) == b"%d" % n

        await cancel_some(load, 60)

    async def test_a_closed_store_is_unavailable(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        with pytest.raises(StoreUnavailable):
            await store.load_table("counter")
        await store.start()
        await store.claim_epoch("counter", 1, "crc32/100")
        await store.close()
        await store.close()
        with pytest.raises(StoreUnavailable):
            await store.load_table("counter")
        await store.start()
        await store.load_table("counter")
        await store.close()


class StoreSuite(
    CallTests, ReminderTests, RememberedTests, StoredDataTests, StateTests, LeaseTests, TableTests
):
    """All of these tests. Subclass it, and give it a `store_factory`."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def store_factory(self) -> StoreFactory:
        """Return a function that makes a store. A subclass gives its own."""
        raise NotImplementedError("give the suite a fixture store_factory")

    @pytest.fixture
    def pass_time(self) -> Callable[[float], None]:
        """Return a function that moves the clock of the leases by that many seconds."""
        return lambda seconds: None

    @pytest_asyncio.fixture
    async def store(self, store_factory: StoreFactory) -> AsyncIterator[StateStore]:
        """Return a started store."""
        async with started(store_factory) as store:
            yield store

    @pytest_asyncio.fixture
    async def other(self, store_factory: StoreFactory) -> AsyncIterator[StateStore]:
        """Return another one with the same data."""
        async with started(store_factory) as store:
            yield store

    @pytest.fixture
    def keeps(self, other: StateStore) -> ReminderStore:
        """Return the reminders of the other store, an optional ability."""
        keeps = reminder_store(other)
        if keeps is None:
            pytest.skip("this store keeps no reminders")
        return keeps
