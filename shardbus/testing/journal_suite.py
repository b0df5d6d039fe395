"""`JournalSuite`: the laws of a state store's journals, as a class of tests.

    class TestMyJournals(JournalSuite):
        @pytest.fixture
        def store_factory(self, tmp_path):
            path = tmp_path / "store"
            return lambda: MyStore(path)

`store_factory` is as in `StoreSuite`: all stores that it makes in one test have the same data,
which is empty at first. The stores have `journals`.

Source: docs/how-to/own-store.md; `shardbus.store.journal_protocol`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from shardbus.errors import JournalConflict, StaleFence, StoreError, StoreUnavailable
from shardbus.store.journal_protocol import (
    PAGE_BYTES,
    Append,
    JournalPage,
    JournalStore,
    journals_of,
)
from shardbus.store.protocol import Save, StateStore
from shardbus.testing.store_suite import HUGE, NASTY_IDS, StoreFactory, cancel_some, started

HIGH = 2**62
"""A fence above the tests' fences."""


def append(
    name: str, after: int, *entries: bytes, fence: int = 1, op_id: int = 0, shard: str = "7"
) -> Append:
    """Return an append, under an operation id of its own unless one is given."""
    op_id = op_id or random.getrandbits(62) + 1
    return Append("account", shard, name, fence, entries, op_id, after)


async def put(
    journals: JournalStore, name: str, after: int, *entries: bytes, fence: int = 1
) -> None:
    """Append, and raise the error of a refusal."""
    [refused] = await journals.append([append(name, after, *entries, fence=fence)])
    if refused is not None:
        raise refused


async def read(journals: JournalStore, name: str, after: int = 0, limit: int = 100) -> JournalPage:
    return await journals.read("account", "7", name, after, limit)


async def whole(
    journals: JournalStore, name: str, limit: int = 100, shard: str = "7"
) -> list[bytes]:
    """Return all entries, by pages of `limit`."""
    entries: list[bytes] = []
    page = JournalPage(1, [], 1)
    while page.end < page.last:
        page = await journals.read("account", shard, name, page.end, limit)
        assert len(page.entries) <= limit
        assert page.entries or page.end == page.last
        entries += page.entries
    return entries


async def names(journals: JournalStore, kind: str, limit: int) -> list[tuple[str, str]]:
    keys: dict[tuple[str, str], None] = {}
    cursor, first = None, True
    while first or cursor is not None:
        page, cursor = await journals.page(kind, cursor, limit)
        keys.update(dict.fromkeys(page))
        first = False
    return list(keys)


def kinds(outcomes: Sequence[StoreError | None]) -> list[type]:
    return [type(outcome) for outcome in outcomes]


def _journals_of(store: StateStore) -> JournalStore:
    journals = journals_of(store)
    assert journals is not None
    return journals


class JournalSuite:
    """The tests. Subclass it, and give it a `store_factory`."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def store_factory(self) -> StoreFactory:
        """Return a function that makes a store. A subclass gives its own."""
        raise NotImplementedError("give the suite a fixture store_factory")

    @pytest_asyncio.fixture
    async def journals(self, store_factory: StoreFactory) -> AsyncIterator[JournalStore]:
        """Return the journals of a started store."""
        async with started(store_factory) as store:
            yield _journals_of(store)

    @pytest_asyncio.fixture
    async def others(self, store_factory: StoreFactory) -> AsyncIterator[JournalStore]:
        """Return the journals of another store with the same data."""
        async with started(store_factory) as store:
            yield _journals_of(store)

    # Entries

    async def test_entries_come_back_in_their_order(
        self, journals: JournalStore, others: JournalStore
    ) -> None:
        assert await read(journals, "a") == JournalPage(1, [], 0)
        await put(journals, "a", 0, b"", b"\x00\xff\r\n")
        await put(journals, "a", 2, bytes(range(256)) * 400)
        assert await read(others, "a") == JournalPage(
            1, [b"", b"\x00\xff\r\n", bytes(range(256)) * 400], 3
        )
        assert await read(others, "a", 1, 1) == JournalPage(2, [b"\x00\xff\r\n"], 3)
        assert await read(others, "a", 3) == JournalPage(4, [], 3)
        assert await read(others, "b") == JournalPage(1, [], 0)

    async def test_an_append_of_many_entries_is_read_by_pages(
        self, journals: JournalStore, others: JournalStore
    ) -> None:
        entries = [b"%d" % n for n in range(2500)]
        await put(journals, "a", 0, *entries)
        for limit in (7, 100, 1000, 5000):
            assert await whole(others, "a", limit) == entries

    async def test_a_page_is_bounded_in_bytes_and_has_at_least_one_entry(
        self, journals: JournalStore
    ) -> None:
        large = b"x" * (PAGE_BYTES + 1)
        await put(journals, "a", 0, b"1", large, large, b"4", b"5")
        assert (await read(journals, "a")).entries == [b"1", large]
        assert (await read(journals, "a", 1)).entries == [large]
        assert (await read(journals, "a", 3)) == JournalPage(4, [b"4", b"5"], 5)
        assert await whole(journals, "a") == [b"1", large, large, b"4", b"5"]

    async def test_many_journals_share_a_call(
        self, journals: JournalStore, others: JournalStore
    ) -> None:
        batch = [append(f"e-{n}", 0, b"%d" % n, b"x", shard=str(n % 50)) for n in range(700)]
        assert await journals.append(batch) == [None] * len(batch)
        second = [append(f"e-{n}", 2, b"y", shard=str(n % 50)) for n in range(700)]
        assert await others.append(second) == [None] * len(second)
        for n in (0, 1, 349, 699):
            assert await whole(journals, f"e-{n}", shard=str(n % 50)) == [b"%d" % n, b"x", b"y"]

    async def test_appends_to_one_journal_in_a_call_keep_their_order(
        self, journals: JournalStore
    ) -> None:
        batch = [append("a", n, b"%d" % n) for n in range(20)]
        assert await journals.append(batch) == [None] * 20
        assert await whole(journals, "a") == [b"%d" % n for n in range(20)]

    async def test_large_appends_share_a_call(self, journals: JournalStore) -> None:
        entry = b"x" * 300_000
        assert await journals.append([append(f"e-{n}", 0, entry) for n in range(20)]) == [None] * 20
        assert await whole(journals, "e-19") == [entry]

    # Fences and numbers

    async def test_an_append_after_another_number_is_refused(self, journals: JournalStore) -> None:
        await put(journals, "a", 0, b"1", b"2")
        for after in (0, 1, 3):
            with pytest.raises(JournalConflict) as refused:
                await put(journals, "a", after, b"x")
            assert (refused.value.after, refused.value.last) == (after, 2)
        with pytest.raises(JournalConflict) as refused:
            await put(journals, "new", 1, b"x")
        assert (refused.value.after, refused.value.last) == (1, 0)
        assert await whole(journals, "a") == [b"1", b"2"]
        assert await whole(journals, "new") == []
        await put(journals, "new", 0, b"y")

    async def test_an_append_under_a_lower_fence_is_refused(
        self, journals: JournalStore, others: JournalStore
    ) -> None:
        await put(journals, "a", 0, b"1", fence=5)
        await put(others, "a", 1, b"2", fence=HIGH)
        with pytest.raises(StaleFence) as refused:
            await put(journals, "a", 2, b"x", fence=HIGH - 1)
        assert (refused.value.fence, refused.value.stored) == (HIGH - 1, HIGH)
        assert await whole(journals, "a") == [b"1", b"2"]

    async def test_an_opening_locks_the_predecessor_out(
        self, journals: JournalStore, others: JournalStore
    ) -> None:
        await put(journals, "a", 0, b"1", b"2", b"3", fence=5)
        page = await others.open("account", "7", "a", 6, 1, 1)
        assert page == JournalPage(2, [b"2"], 3)
        with pytest.raises(StaleFence):
            await put(journals, "a", 3, b"x", fence=5)
        with pytest.raises(StaleFence) as refused:
            await journals.open("account", "7", "a", 5, 0, 10)
        assert (refused.value.fence, refused.value.stored) == (5, 6)
        await put(others, "a", 3, b"4", fence=6)
        assert await journals.open("account", "7", "a", 6, 3, 10) == JournalPage(4, [b"4"], 4)

    async def test_a_journal_that_is_opened_before_its_first_entry_has_the_fence(
        self, journals: JournalStore, others: JournalStore
    ) -> None:
        assert await others.open("account", "7", "a", 6, 0, 10) == JournalPage(1, [], 0)
        with pytest.raises(StaleFence):
            await put(journals, "a", 0, b"x", fence=5)
        await put(others, "a", 0, b"1", fence=6)

    async def test_an_append_whose_answer_was_lost_is_applied_once(
        self, journals: JournalStore, others: JournalStore
    ) -> None:
        entry = append("a", 0, b"1", b"2", op_id=HUGE)
        assert await journals.append([entry]) == [None]
        assert await journals.append([entry]) == [None]
        assert await others.append([entry]) == [None]
        assert await journals.open("account", "7", "a", HIGH, 0, 10) == JournalPage(
            1, [b"1", b"2"], 2
        )
        assert await journals.append([entry]) == [None]
        await put(journals, "a", 2, b"3", fence=HIGH)
        assert kinds(await journals.append([entry])) == [StaleFence]
        assert await whole(journals, "a") == [b"1", b"2", b"3"]

    async def test_what_is_refused_leaves_the_rest_of_a_call_alone(
        self, journals: JournalStore
    ) -> None:
        await put(journals, "fenced", 0, b"1", fence=9)
        await put(journals, "longer", 0, b"1", b"2")
        repeat = append("repeat", 0, b"1")
        await journals.append([repeat])
        outcomes = await journals.append(
            [
                append("new", 0, b"1"),
                append("fenced", 1, b"x"),
                repeat,
                append("longer", 1, b"x"),
                append("longer", 2, b"3"),
            ]
        )
        none = type(None)
        assert kinds(outcomes) == [none, StaleFence, none, JournalConflict, none]
        assert await whole(journals, "longer") == [b"1", b"2", b"3"]
        assert await whole(journals, "repeat") == await whole(journals, "new") == [b"1"]
        assert await whole(journals, "fenced") == [b"1"]

    async def test_a_fence_that_no_store_can_hold_is_an_error(self, journals: JournalStore) -> None:
        await put(journals, "a", 0, b"1", fence=HUGE)
        await put(journals, "a", 1, b"2", fence=HUGE)
        assert await whole(journals, "a") == [b"1", b"2"]

    # Trimming

    async def test_trimmed_entries_are_gone_and_the_numbers_go_on(
        self, journals: JournalStore, others: JournalStore
    ) -> None:
        await put(journals, "a", 0, *[b"%d" % n for n in range(1, 6)])
        await journals.trim("account", "7", "a", 1, 3)
        assert await read(others, "a") == JournalPage(4, [b"4", b"5"], 5)
        assert await read(others, "a", 4) == JournalPage(5, [b"5"], 5)
        await journals.trim("account", "7", "a", 1, 2)
        await put(others, "a", 5, b"6")
        assert await read(journals, "a") == JournalPage(4, [b"4", b"5", b"6"], 6)
        await journals.trim("account", "7", "a", 1, 100)
        assert await read(others, "a") == JournalPage(7, [], 6)
        await put(others, "a", 6, b"7")
        assert await read(others, "a") == JournalPage(7, [b"7"], 7)

    async def test_a_trim_has_a_fence(self, journals: JournalStore, others: JournalStore) -> None:
        await put(journals, "a", 0, b"1", b"2", fence=5)
        await others.open("account", "7", "a", 6, 0, 10)
        with pytest.raises(StaleFence):
            await journals.trim("account", "7", "a", 5, 2)
        assert await whole(others, "a") == [b"1", b"2"]
        await journals.trim("account", "7", "a", 7, 1)
        with pytest.raises(StaleFence):
            await put(others, "a", 2, b"x", fence=6)

    async def test_a_journal_that_is_trimmed_to_its_end_can_go_for_good(
        self, journals: JournalStore, others: JournalStore
    ) -> None:
        await put(journals, "a", 0, b"1", b"2", fence=5)
        await journals.trim("account", "7", "a", 5, 1, forget=True)
        assert await names(others, "account", 10) == [("7", "a")]
        await journals.trim("account", "7", "a", 5, 2, forget=True)
        assert await names(others, "account", 10) == []
        assert await read(others, "a") == JournalPage(1, [], 0)
        await journals.trim("account", "7", "a", 5, 2, forget=True)
        await put(others, "a", 0, b"1", fence=1)
        assert await whole(journals, "a") == [b"1"]

    async def test_a_trim_of_what_is_not_there_does_nothing(self, journals: JournalStore) -> None:
        await journals.trim("account", "7", "a", 5, 10)
        assert await names(journals, "account", 10) == []
        await put(journals, "a", 0, b"1", fence=1)

    async def test_many_entries_are_trimmed(self, journals: JournalStore) -> None:
        for first in range(0, 24_000, 8000):
            await put(journals, "a", first, *[b"x"] * 8000)
        await journals.trim("account", "7", "a", 1, 23_999)
        assert await read(journals, "a") == JournalPage(24_000, [b"x"], 24_000)
        await journals.trim("account", "7", "a", 1, 24_000, forget=True)
        assert await names(journals, "account", 10) == []

    # Names, races, cancellation, the end

    async def test_names_are_values(self, journals: JournalStore, others: JournalStore) -> None:
        batch = [
            Append(name, name, name, 1, (name.encode(),), number, 0)
            for number, name in enumerate(NASTY_IDS, start=1)
        ]
        assert await journals.append(batch) == [None] * len(batch)
        mixed = [
            Append("account", name, name, 1, (b"%d" % number,), number, 0)
            for number, name in enumerate(NASTY_IDS, start=1)
        ]
        assert await journals.append(mixed) == [None] * len(batch)
        for name in NASTY_IDS:
            assert (await others.read(name, name, name, 0, 10)).entries == [name.encode()]
        for name in NASTY_IDS[::5]:
            assert await names(others, name, 100) == [(name, name)]
        for limit in (7, 100):
            assert set(await names(others, "account", limit)) == {(n, n) for n in NASTY_IDS}

    async def test_journals_are_listed_by_pages(
        self, journals: JournalStore, others: JournalStore
    ) -> None:
        expected = {(str(n % 7), f"e-{n}") for n in range(60)}
        batch = [append(name, 0, b"x", shard=shard) for shard, name in expected]
        await journals.append(batch)
        await others.open("account", "7", "opened", 1, 0, 10)
        for limit in (1, 7, 1000):
            assert set(await names(others, "account", limit)) == expected | {("7", "opened")}
        assert await names(others, "other", 10) == []

    async def test_journals_and_states_of_one_name_do_not_meet(
        self, store_factory: StoreFactory
    ) -> None:
        store = store_factory()
        await store.start()
        journals = journals_of(store)
        assert journals is not None
        await store.save_states([Save("account", "7", "a", HIGH, b"state", 1)])
        await put(journals, "a", 0, b"entry", fence=1)
        assert await store.load_state("account", "7", "a", HIGH) == b"state"
        for _ in range(2):
            cursor, ids, first = None, set[str](), True
            while first or cursor is not None:
                page, cursor = await store.page_stored("account", "", cursor, 10)
                ids, first = ids | set(page), False
            assert ids == {"a"}
            await journals.trim("account", "7", "a", 1, 1, forget=True)
            assert await store.load_state("account", "7", "a", HIGH) == b"state"
        await store.close()

    async def test_two_writers_that_race_write_one_history(
        self, journals: JournalStore, others: JournalStore
    ) -> None:
        async def activation(by: JournalStore, fence: int) -> int:
            written = 0
            try:
                end = (await by.open("account", "7", "a", fence, 0, 0)).last
                for step in range(3):
                    await put(by, "a", end + step, b"%d" % (fence * 10 + step), fence=fence)
                    written += 1
            except StaleFence:
                pass
            return written

        counts = await asyncio.gather(
            *(activation((journals, others)[n % 2], n) for n in range(1, 31))
        )
        expected = [
            b"%d" % (fence * 10 + step)
            for fence in range(1, 31)
            for step in range(counts[fence - 1])
        ]
        assert await whole(journals, "a") == expected
        assert counts[29] == 3

    async def test_two_writers_under_one_fence_do_not_interleave(
        self, journals: JournalStore, others: JournalStore
    ) -> None:
        written: list[bytes] = []
        in_doubt: set[bytes] = set()

        async def write(by: JournalStore, text: bytes) -> None:
            for n in range(20):
                entry = b"%s%d" % (text, n)
                last = (await by.read("account", "7", "a", 0, 0)).last
                [refused] = await by.append([append("a", last, entry, entry)])
                if refused is None:
                    written.extend([entry, entry])
                elif isinstance(refused, StoreUnavailable):
                    in_doubt.add(entry)
                else:
                    assert isinstance(refused, JournalConflict)

        await asyncio.gather(write(journals, b"a"), write(others, b"b"))
        entries = await whole(journals, "a")
        assert entries[::2] == entries[1::2]
        assert len(entries) == 2 * len(set(entries))
        assert sorted(e for e in entries if e not in in_doubt) == sorted(written)

    async def test_an_append_that_was_given_up_is_in_what_is_opened_or_never_applied(
        self, journals: JournalStore
    ) -> None:
        dice = random.Random(7)
        for turn in range(40):
            name = f"e-{turn}"
            task = asyncio.create_task(journals.append([append(name, 0, b"early")]))
            for _ in range(dice.randint(0, 6)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            page = await journals.open("account", "7", name, 1, 0, 10)
            assert page.entries in ([], [b"early"])
            await put(journals, name, page.last, b"late")
            assert await whole(journals, name) == [*page.entries, b"late"]

    async def test_a_cancelled_call_never_mixes_answers(self, journals: JournalStore) -> None:
        await journals.append([append(f"e-{n}", 0, b"%d" % n) for n in range(1, 101)])

        async def check(n: int) -> None:
            assert (await read(journals, f"e-{n}")).entries == [b"%d" % n]

        await cancel_some(check, 40)

    async def test_a_closed_store_is_unavailable(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        journals = _journals_of(store)
        with pytest.raises(StoreUnavailable):
            await journals.read("account", "7", "a", 0, 10)
        await store.start()
        await put(journals, "a", 0, b"1")
        await store.close()
        with pytest.raises(StoreUnavailable):
            await journals.append([append("a", 1, b"2")])
        await store.start()
        await put(journals, "a", 1, b"2")
        assert await whole(journals, "a") == [b"1", b"2"]
        await store.close()
