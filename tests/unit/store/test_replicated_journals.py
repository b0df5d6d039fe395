"""Journals made of registers: the same answers as in memory, and one history whoever races.

The registers here are a dict. Between any two of their steps others run, and a step may be carried
out without an answer, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any

import pytest

from shardbus.errors import JournalConflict, StaleFence, StoreError, StoreUnavailable
from shardbus.replication import journal_rows, journals
from shardbus.replication.journal_rows import OPS_KEPT, BlockValue, JournalValue, audit
from shardbus.replication.registers import is_there
from shardbus.replication.values import (
    BLOCK,
    Function,
    Reading,
    Unchanged,
    Value,
    Written,
    block_key,
    changed,
    journal_key,
)
from shardbus.store.journal_protocol import Append
from shardbus.store.memory_journals import MemoryJournals
from shardbus.store.replicated_journals import ReplicatedJournals

KIND, SHARD, NAMES = "account", "7", ("a", "b")


@pytest.fixture(autouse=True)
def small_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_rows, "HEAD_ENTRIES", 4)
    monkeypatch.setattr(journal_rows, "HEAD_BYTES", 60)


class Registers:
    """Registers that several journals share. `trouble`: the part of steps without an answer."""

    def __init__(self, dice: random.Random, trouble: float = 0.0) -> None:
        self.rows: dict[str, Value] = {}
        self.dice, self.trouble, self.blocks_away = dice, trouble, False
        self.blocks_written = 0

    def journals(self) -> ReplicatedJournals:
        return ReplicatedJournals(self.change, self.change_all, self.read, self.page)

    async def _others(self) -> None:
        for _ in range(self.dice.randint(0, 3) if self.trouble else 0):
            await asyncio.sleep(0)

    def _apply(self, key: str, function: Function) -> object:
        before = self.rows.get(key)
        match function(before):
            case Written(value, result, change):
                if change is not None:
                    assert changed(before, change) == value, "the change makes another value"
                again = function(value)
                assert isinstance(again, Unchanged), "a repeat writes again"
                assert again.result == result, "a repeat answers otherwise"
                self.rows[key] = value
                self.blocks_written += key[0] == BLOCK
                if isinstance(value, JournalValue):
                    audit(value)
                return result
            case Unchanged(result):
                return result

    async def change(self, key: str, fence: int, function: Function) -> object:
        await self._others()
        if self.blocks_away and key[0] == BLOCK:
            raise StoreUnavailable("no answer")
        lost = self.dice.random()
        if lost < self.trouble / 2:
            raise StoreUnavailable("it was not sent", definite=True)
        result = self._apply(key, function)
        await self._others()
        if self.trouble and self.dice.random() < 0.3:
            # Its value was chosen by another one, which went on from it: it looks again.
            result = self._apply(key, function)
        if lost < self.trouble:
            raise StoreUnavailable("no answer")
        if isinstance(result, Exception):
            raise result
        return result

    async def change_all(self, changes: Sequence[tuple[str, int, Function]]) -> list[object]:
        results = list[object]()
        for change in changes:
            try:
                results.append(await self.change(*change))
            except StoreError as e:
                results.append(e)
        return results

    async def read(self, key: str) -> Reading:
        await self._others()
        return Reading(self.rows.get(key), 0.0)

    async def page(
        self, prefix: str, cursor: str | None, limit: int
    ) -> tuple[list[str], str | None]:
        keys = sorted(k for k, v in self.rows.items() if k.startswith(prefix) and is_there(v))
        return keys, None


async def outcome(call: Any) -> object:
    try:
        return await call
    except StoreError as e:
        return type(e)


async def steps_as_in_memory(seed: int) -> None:
    dice = random.Random(seed)
    registers = Registers(dice)
    ours, rows = registers.journals(), {}
    memory = MemoryJournals(lambda: rows)
    ops, last = 0, dict.fromkeys(NAMES, 0)
    for _ in range(80):
        name, fence = dice.choice(NAMES), dice.randint(1, 3)
        match dice.choice(["append"] * 5 + ["open", "read", "trim", "forget", "page"]):
            case "append":
                ops += 1
                after = last[name] if dice.random() < 0.9 else dice.randint(0, 9)
                entries = tuple(b"%d" % n * dice.randint(1, 9) for n in range(dice.randint(1, 5)))
                one = Append(KIND, SHARD, name, fence, entries, ops, after)
                calls = [(await journal.append([one]))[0] for journal in (ours, memory)]
                assert type(calls[0]) is type(calls[1])
                if dice.random() < 0.2:
                    assert [(await j.append([one]))[0] is None for j in (ours, memory)] == [
                        calls[0] is None
                    ] * 2
            case "open":
                call = (KIND, SHARD, name, fence, dice.randint(0, 9), dice.randint(0, 9))
                assert await outcome(ours.open(*call)) == await outcome(memory.open(*call))
            case "read":
                after, limit = dice.randint(0, 12), dice.randint(0, 9)
                page = await memory.read(KIND, SHARD, name, after, limit)
                assert await ours.read(KIND, SHARD, name, after, limit) == page
            case "page":
                pages = [(await journal.page(KIND, None, 10))[0] for journal in (ours, memory)]
                assert sorted(pages[0]) == sorted(pages[1])
            case step:
                upto = dice.randint(0, last[name] + 2)
                call = (KIND, SHARD, name, fence, upto, step == "forget")
                assert await outcome(ours.trim(*call)) == await outcome(memory.trim(*call))
        last = {n: rows[KIND, n].last if (KIND, n) in rows else 0 for n in NAMES}
        for each in NAMES:
            whole = await memory.read(KIND, SHARD, each, 0, 1000)
            assert await ours.read(KIND, SHARD, each, 0, 1000) == whole


@pytest.mark.parametrize("first", range(0, 60, 20))
async def test_every_step_answers_as_in_memory(first: int) -> None:
    for seed in range(first, first + 20):
        await steps_as_in_memory(seed)


# ---- races


class Race:
    """Owners of one journal, each under a higher fence than the one before. Each entry names its
    number, so that a wrong one shows wherever it is read."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.registers = Registers(self.dice, trouble=0.1)
        self.applied: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.ops = 0

    async def run_owner(self, fence: int) -> None:
        ours = self.registers.journals()
        for _ in range(self.dice.randint(0, 30)):
            await asyncio.sleep(0)
        try:
            while True:
                try:
                    last = (await ours.open(KIND, SHARD, "a", fence, 0, 0)).last
                    await self._write(ours, fence, last)
                    return
                except (StoreUnavailable, JournalConflict):
                    continue
        except StaleFence:
            return

    async def _write(self, ours: ReplicatedJournals, fence: int, last: int) -> None:
        for turn in range(24):
            count = self.dice.randint(1, 3)
            entries = tuple(b"%d:%d.%d" % (last + 1 + n, fence, self.ops + n) for n in range(count))
            self.ops += count
            one = Append(KIND, SHARD, "a", fence, entries, self.ops, last)
            [error] = await ours.append([one])
            if error is None:
                self.applied |= set(entries)
                last += count
            else:
                if not isinstance(error, StoreUnavailable):
                    self.refused |= set(entries)
                raise error
            if turn % 4 == 3:
                await self.read(ours)
            if turn % 3 == 2:
                await ours.trim(KIND, SHARD, "a", fence, max(0, last - self.dice.randint(0, 9)))

    async def read_on(self) -> None:
        """Read while owners append and trim."""
        for _ in range(80):
            await self.read(self.registers.journals())

    async def read(self, ours: ReplicatedJournals) -> set[bytes]:
        page = await ours.read(KIND, SHARD, "a", 0, 10_000)
        numbers = [int(entry.split(b":")[0]) for entry in page.entries]
        assert numbers == list(range(page.first, page.first + len(numbers)))
        assert numbers[-1:] == [page.last][: len(numbers)]
        return set(page.entries)

    async def judge(self) -> None:
        entries = await self.read(self.registers.journals())
        head = journals.head_of(self.registers.rows.get(journal_key(KIND, "a")))
        missing = {entry for entry in self.applied if int(entry.split(b":")[0]) > head.trimmed}
        assert missing <= entries, "an acknowledged entry is missing"
        assert not entries & self.refused, "a refused entry is there"
        for place in head.blocks:
            block = self.registers.rows[block_key(KIND, "a", place.slot)]
            assert isinstance(block, BlockValue)
            assert block[:2] == (head.life, place.begin)


@pytest.mark.parametrize("first", range(0, 30, 10))
async def test_owners_that_race_write_one_history(first: int) -> None:
    moved = 0
    for seed in range(first, first + 10):
        race = Race(seed)
        await asyncio.gather(race.read_on(), *(race.run_owner(fence) for fence in range(1, 6)))
        await race.judge()
        moved += race.registers.blocks_written
    assert moved > 60, "too few heads move to blocks for the test to say much"


class Rivals(Race):
    """Writers of one journal under one fence."""

    async def run_owner(self, fence: int) -> None:
        ours = self.registers.journals()
        for _ in range(12):
            with contextlib.suppress(StoreUnavailable, JournalConflict):
                last = (await ours.read(KIND, SHARD, "a", 0, 0)).last
                await self._write(ours, 1, last)


@pytest.mark.parametrize("first", range(0, 30, 10))
async def test_writers_under_one_fence_are_refused_for_nothing_that_is_written(first: int) -> None:
    for seed in range(first, first + 10):
        race = Rivals(seed)
        await asyncio.gather(*(race.run_owner(1) for _ in range(3)))
        assert race.refused
        await race.judge()


async def test_an_append_behind_which_too_many_have_come_is_in_doubt() -> None:
    registers, ours = await filled("a", 1)
    function = journals.append_to(KIND, SHARD, "a", 1, (b"mine",), 99, 1)
    registers._apply(journal_key(KIND, "a"), function)
    for n in range(2, 2 + OPS_KEPT + 1):
        assert (
            registers._apply(journal_key(KIND, "a"), function)
            == journals.head_of(registers.rows[journal_key(KIND, "a")])
            or n == 2 + OPS_KEPT
        )
        await ours.append([Append(KIND, SHARD, "a", 1, (b"%d" % n,), n, n)])
    assert isinstance(registers._apply(journal_key(KIND, "a"), function), StoreUnavailable)


# ---- blocks


async def filled(name: str, count: int) -> tuple[Registers, ReplicatedJournals]:
    registers = Registers(random.Random(1))
    ours = registers.journals()
    for n in range(count):
        assert await ours.append([Append(KIND, SHARD, name, 1, (b"%d" % n,), n + 1, n)]) == [None]
    return registers, ours


def blocks_of(registers: Registers) -> list[BlockValue]:
    return [value for value in registers.rows.values() if isinstance(value, BlockValue)]


async def test_a_trimmed_block_is_cleared_and_its_slot_used_again() -> None:
    registers, ours = await filled("a", 12)
    assert [len(block.entries) for block in blocks_of(registers)] == [4, 4, 4]
    await ours.trim(KIND, SHARD, "a", 1, 9)
    assert [len(block.entries) for block in blocks_of(registers)] == [0, 0, 4]
    for n in range(12, 20):
        await ours.append([Append(KIND, SHARD, "a", 1, (b"%d" % n,), n + 1, n)])
    assert len(blocks_of(registers)) == 3, "the slots of the dropped blocks have the new ones"
    page = await ours.read(KIND, SHARD, "a", 0, 100)
    assert page.entries == [b"%d" % n for n in range(9, 20)]


async def test_a_block_that_comes_late_changes_nothing() -> None:
    registers, ours = await filled("a", 4)
    [late] = blocks_of(registers)
    await ours.trim(KIND, SHARD, "a", 1, 4, forget=True)
    for n in range(4):
        await ours.append([Append(KIND, SHARD, "a", 1, (b"new %d" % n,), 10 + n, n)])
    await registers.change(block_key(KIND, "a", 0), 0, journals.write_block(late))
    page = await ours.read(KIND, SHARD, "a", 0, 100)
    assert page.entries == [b"new %d" % n for n in range(4)]
    assert len(journals.head_of(registers.rows[journal_key(KIND, "a")]).blocks) == 1


async def test_a_clearing_that_comes_late_leaves_the_next_journal_alone() -> None:
    registers, ours = await filled("a", 5)
    await ours.trim(KIND, SHARD, "a", 1, 4)
    [late] = journals.head_of(registers.rows[journal_key(KIND, "a")]).dropped
    await ours.trim(KIND, SHARD, "a", 1, 5, forget=True)
    for n in range(4):
        await ours.append([Append(KIND, SHARD, "a", 1, (b"new %d" % n,), 10 + n, n)])
    await registers.change(block_key(KIND, "a", 0), 0, journals.clear(late))
    assert len((await ours.read(KIND, SHARD, "a", 0, 100)).entries) == 4


async def test_dropped_blocks_that_nobody_cleared_are_cleared_at_the_next_trim() -> None:
    registers, _ = await filled("a", 12)
    function = journals.trim(KIND, "a", 1, 8)
    await registers.change(journal_key(KIND, "a"), 1, function)  # its process ended then
    assert [len(block.entries) for block in blocks_of(registers)] == [4, 4, 4]
    await registers.journals().trim(KIND, SHARD, "a", 1, 8)
    assert [len(block.entries) for block in blocks_of(registers)] == [0, 0, 4]


async def test_a_head_that_cannot_move_takes_nothing_until_it_has_moved() -> None:
    registers, ours = await filled("a", 3)
    registers.blocks_away = True
    assert await ours.append([Append(KIND, SHARD, "a", 1, (b"3",), 4, 3)]) == [None]
    with pytest.raises(StoreUnavailable):
        await ours.append([Append(KIND, SHARD, "a", 1, (b"4",), 5, 4)])
    registers.blocks_away = False
    assert await ours.append([Append(KIND, SHARD, "a", 1, (b"4",), 5, 4)]) == [None]
    head = journals.head_of(registers.rows[journal_key(KIND, "a")])
    assert (len(head.blocks), head.begin, head.entries) == (1, 5, (b"4",))


async def test_a_reader_takes_no_later_block_for_the_one_that_was_trimmed_meanwhile() -> None:
    registers, ours = await filled("a", 12)
    reads = list[str]()

    async def read(key: str) -> Reading:
        reads.append(key)
        if len(reads) == 2:  # the head is read, and no block yet
            await ours.trim(KIND, SHARD, "a", 1, 12)
            for n in range(12, 24):
                await ours.append([Append(KIND, SHARD, "a", 1, (b"%d" % n,), n + 1, n)])
        return await registers.read(key)

    reader = ReplicatedJournals(registers.change, registers.change_all, read, registers.page)
    page = await reader.read(KIND, SHARD, "a", 0, 100)
    assert (page.first, page.entries) == (13, [b"%d" % n for n in range(12, 24)])
