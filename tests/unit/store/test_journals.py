"""Appends of a process share round trips, are sent again under their operation ids, and are over
before a journal is opened."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from shardbus.errors import (
    JournalConflict,
    StaleActivation,
    StaleFence,
    StoreError,
    StoreUnavailable,
)
from shardbus.store import journals as journals_module
from shardbus.store.group_commit import ALONGSIDE, BATCH_BYTES
from shardbus.store.journal_protocol import Append, JournalPage, journals_of, page_of
from shardbus.store.journals import Journals
from shardbus.store.memory import MemoryStore
from shardbus.store.memory_journals import MemoryJournals
from shardbus.store.protocol import StateStore
from tests.virtual_time import virtual

KIND, SHARD = "account", "7"


class Scripted(MemoryJournals):
    """Journals that keep their batches, wait at a gate, and fail as often as set, before or after
    they wrote."""

    def __init__(self) -> None:
        self.rows = {}
        super().__init__(lambda: self.rows)
        self.batches: list[list[Append]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures = 0
        self.lose_answers = False

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        self.batches.append(list(appends))
        await self.gate.wait()
        self.failures -= 1
        if self.failures >= 0 and not self.lose_answers:
            raise StoreUnavailable("away", hint="wait")
        outcomes = await super().append(appends)
        if self.failures >= 0:
            raise StoreUnavailable("away", hint="wait")
        return outcomes


class Observer:
    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.errors: list[str] = []

    def saved(self, entity_type: str, seconds: Sequence[float]) -> None:
        self.kinds += [entity_type] * len(seconds)

    def failed(self, error: Exception) -> None:
        self.errors.append(type(error).__name__)

    def backed_up(self) -> None:
        """Nothing is measured here."""


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@virtual
async def test_appends_of_a_turn_share_a_round_trip() -> None:
    store, observer = Scripted(), Observer()
    journals = Journals(store, 7, observer=observer)
    await asyncio.gather(
        *(journals.append(KIND, SHARD, f"e-{n}", 1, 0, (b"x",)) for n in range(50))
    )
    assert [len(batch) for batch in store.batches] == [50]
    assert observer.kinds == [KIND] * 50
    assert len({entry.op_id for entry in store.batches[0]}) == 50


@virtual
async def test_appends_to_one_journal_go_one_after_the_other() -> None:
    store = Scripted()
    journals = Journals(store, 7)
    appends = [journals.append(KIND, SHARD, "a", 1, 2 * n, (b"%d" % n, b"x")) for n in range(4)]
    await asyncio.gather(*appends)
    assert [len(batch) for batch in store.batches] == [1] * 4
    page = await journals.read(KIND, SHARD, "a")
    assert page.entries == [entry for n in range(4) for entry in (b"%d" % n, b"x")]


@virtual
async def test_an_append_without_an_answer_is_sent_again_and_counts_once() -> None:
    store, observer = Scripted(), Observer()
    journals = Journals(store, 7, observer=observer)
    store.failures, store.lose_answers = 2, True
    await journals.append(KIND, SHARD, "a", 1, 0, (b"1",))
    assert len({batch[0].op_id for batch in store.batches}) == 1
    assert len(store.batches) == 3
    assert (await journals.read(KIND, SHARD, "a")).entries == [b"1"]
    store.failures = 100
    with pytest.raises(StoreUnavailable):
        await journals.append(KIND, SHARD, "a", 1, 1, (b"2",))
    assert observer.errors == ["StoreUnavailable"]


@virtual
async def test_an_opening_waits_for_the_append_in_flight() -> None:
    store = Scripted()
    journals = Journals(store, 7)
    store.gate.clear()
    append = journals.append(KIND, SHARD, "a", 1, 0, (b"1",))
    await turns()
    opening = asyncio.create_task(journals.open(KIND, SHARD, "a", 1))
    other = await journals.open(KIND, SHARD, "b", 1)
    assert other.entries == []
    await turns()
    assert not opening.done()
    store.gate.set()
    assert (await opening).entries == [b"1"]
    await append


@virtual
async def test_an_opening_does_not_wait_for_ever() -> None:
    store, observer = Scripted(), Observer()
    journals = Journals(store, 7, observer=observer)
    store.gate.clear()
    append = journals.append(KIND, SHARD, "a", 1, 0, (b"1",))
    await turns()
    with pytest.raises(StoreUnavailable, match="an earlier append to account 'a' has no outcome"):
        await journals.open(KIND, SHARD, "a", 1)
    assert observer.errors == ["StoreUnavailable"]
    store.gate.set()
    await append


@virtual
async def test_appends_of_an_ended_writer_that_wait_are_refused() -> None:
    store = Scripted()
    journals = Journals(store, 7)
    store.gate.clear()
    first = journals.append(KIND, SHARD, "a", 1, 0, (b"1",))
    await turns()
    second = journals.append(KIND, SHARD, "a", 1, 1, (b"2",))
    journals.refuse_unsent(KIND, SHARD, "a")
    store.gate.set()
    await first
    with pytest.raises(StaleActivation):
        await second
    assert (await journals.open(KIND, SHARD, "a", 2)).entries == [b"1"]


@virtual
async def test_what_is_refused_reaches_its_caller_alone() -> None:
    store = Scripted()
    journals = Journals(store, 7)
    await journals.open(KIND, SHARD, "a", 5)
    outcomes = await asyncio.gather(
        journals.append(KIND, SHARD, "a", 4, 0, (b"x",)),
        journals.append(KIND, SHARD, "b", 4, 3, (b"x",)),
        journals.append(KIND, SHARD, "c", 4, 0, (b"x",)),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [StaleFence, JournalConflict, type(None)]
    conflict = outcomes[1]
    assert isinstance(conflict, JournalConflict)
    assert (conflict.kind, conflict.name, conflict.after, conflict.last) == (KIND, "b", 3, 0)


@virtual
async def test_a_batch_is_bounded_by_the_bytes_of_its_entries() -> None:
    store = Scripted()
    journals = Journals(store, 7)
    half = (b"x" * (BATCH_BYTES // 4),) * 2
    await asyncio.gather(*(journals.append(KIND, SHARD, f"e-{n}", 1, 0, half) for n in range(6)))
    assert [len(batch) for batch in store.batches] == [2, 2, 2]


@virtual
async def test_servers_have_groups_of_their_own() -> None:
    store = Scripted()
    journals = Journals(store, 7, lane=lambda kind, shard: int(shard) % 2)
    store.gate.clear()
    appends = [journals.append(KIND, str(n), f"e-{n}", 1, 0, (b"x",)) for n in range(6)]
    await turns()
    assert sorted(len(batch) for batch in store.batches) == [3, 3]
    assert journals.backlog[0] == 0
    assert journals.longest_append >= 0
    waiting = [journals.append(KIND, "0", f"w-{n}", 1, 0, (b"x",)) for n in range(ALONGSIDE - 1)]
    assert journals.backlog[0] == ALONGSIDE - 1
    store.gate.set()
    await asyncio.gather(*appends, *waiting)


async def test_a_store_without_journals_has_none() -> None:
    class Plain:
        """A store without the ability."""

    assert journals_of(Plain()) is None  # type: ignore[arg-type]
    store: StateStore = MemoryStore()
    assert journals_of(store) is not None


def test_a_missing_entry_is_an_error_and_never_skipped() -> None:
    whole = page_of("k", "n", 3, [(3, b"a"), (4, b"b")], 9, 2)
    assert whole == JournalPage(3, [b"a", b"b"], 9)
    assert whole.end == 4
    assert page_of("k", "n", 10, [], 9, 2) == JournalPage(10, [], 9)
    assert page_of("k", "n", 1, [], 9, 0) == JournalPage(1, [], 9)
    for rows, missing in (([(4, b"b")], 3), ([(3, b"a"), (5, b"c")], 4), ([], 3), ([(3, None)], 3)):
        with pytest.raises(StoreError, match=f"entry {missing} of the journal 'k' 'n' is missing"):
            page_of("k", "n", 3, rows, 9, 5)


def test_a_page_has_a_bound_unless_the_caller_says_otherwise() -> None:
    assert journals_module.PAGE == 1000
