"""Reminders made of registers: the same answers as in memory, and an index with the due times of
the states, whoever races.

The registers here are a dict. Between any two of their steps others run. A step may be carried out
without an answer, or not at all, or later: until the next write or load of its key is chosen.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from shardbus.errors import StaleFence, StoreError, StoreUnavailable
from shardbus.replication import functions, reminder_index
from shardbus.replication.proposer import (
    Completed,
    LoadState,
    Operation,
    Outcome,
    Outdated,
    ReadValue,
)
from shardbus.replication.reminder_index import SettledSave, due_of, list_of
from shardbus.replication.values import (
    NO_LIST,
    Function,
    ListValue,
    OpenSave,
    Reading,
    RemindersValue,
    SaveChange,
    SavedReminders,
    StateValue,
    Unchanged,
    Value,
    Written,
    changed,
    list_key,
    saved,
    state_key,
)
from shardbus.store import replicated_reminders
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import Reminders, Save
from shardbus.store.replicated_reminders import ReplicatedReminders

KIND, SHARDS, IDS = "alarm", ("7", "8"), ("a", "b", "c", "d")


def state_of(save: Save, value: Value) -> StateValue:
    """Return the state after a save."""
    reminders = None
    if save.reminders is not None:
        due, record, alone = save.reminders
        reminders = SavedReminders(save.shard, due, record if due else None, alone)
    state = value if isinstance(value, StateValue) else None
    return saved(state, SaveChange(save.op_id, save.data, reminders))


class Registers:
    """Registers that several objects share. `trouble`: the part of steps without an answer."""

    def __init__(self, dice: random.Random, trouble: float = 0.0) -> None:
        self.dice, self.trouble = dice, trouble
        self.rows: dict[str, Value] = {}
        self.fences: dict[str, int] = {}
        self.late: dict[str, Value] = {}
        """By key: the value of a write without an answer that was not carried out yet."""
        self.writes = self.loads = 0

    def reminders(self) -> ReplicatedReminders:
        return ReplicatedReminders(self.change, self.do_all, self.read, self.save_all)

    async def _others(self) -> None:
        for _ in range(self.dice.randint(0, 3) if self.trouble else 0):
            await asyncio.sleep(0)

    def _come(self, key: str, part: float = 0.5) -> None:
        """Let a late write be carried out now, perhaps."""
        if key in self.late and self.dice.random() < part:
            self.rows[key] = self.late.pop(key)

    def _write(self, key: str, value: Value) -> bool:
        """Write a value. Returns False if nobody gets an answer: it is written, later or never."""
        self.writes += 1
        self.late.pop(key, None)
        drawn = self.dice.random()
        if drawn < self.trouble / 2:
            self.late[key] = value
            return False
        self.rows[key] = value
        return drawn >= self.trouble

    async def change(self, key: str, fence: int, function: Function) -> object:
        await asyncio.sleep(0)
        await self._others()
        self._come(key)
        before = self.rows.get(key)
        step = function(before)
        if isinstance(step, Written):
            if step.change is not None:
                assert changed(before, step.change) == step.value, "the change makes another value"
            again = function(step.value)
            assert isinstance(again, Unchanged), "a repeat writes again"
            assert again.result == step.result, "a repeat answers otherwise"
            if not self._write(key, step.value):
                raise StoreUnavailable("no answer")
        await self._others()
        if isinstance(step.result, Exception):
            raise step.result
        return step.result

    async def read(self, key: str) -> Reading:
        await self._others()
        self._come(key)
        return Reading(self.rows.get(key), 0.0)

    async def do_all(self, works: Sequence[tuple[str, Operation]]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for key, work in works:
            if isinstance(work, ReadValue):
                outcomes.append(Completed(await self.read(key)))
                continue
            assert isinstance(work, LoadState)
            outcomes.append(await self.load(key, work.fence))
        return outcomes

    async def load(self, key: str, fence: int) -> Outcome:
        await self._others()
        self._come(key)
        if self.fences.get(key, 0) > fence:
            return Outdated(self.fences[key])
        self.fences[key] = fence
        self.late.pop(key, None)
        self.loads += 1
        return Completed(self.rows.get(key))

    async def save_all(self, saves: Sequence[Save]) -> list[StoreError | None]:
        return [await self._save(save) for save in saves]

    async def _save(self, save: Save) -> StoreError | None:
        key = state_key(save.entity_type, save.entity_id)
        await self._others()
        self._come(key)
        value, fence = self.rows.get(key), self.fences.get(key, 0)
        if isinstance(value, StateValue) and value.op == save.op_id:
            self.late.pop(key, None)
            return None
        if fence > save.fence:
            return StaleFence(save.entity_type, save.entity_id, save.fence, fence)
        self.fences[key] = save.fence
        return None if self._write(key, state_of(save, value)) else StoreUnavailable("no answer")

    async def claim(self, shard: str, fence: int) -> None:
        """Raise the fence of a shard, as a home does."""
        function = functions.change_list(KIND, shard, (), (), fence)
        await self.change(list_key(KIND, shard), fence, function)

    def due(self, shard: str) -> list[tuple[int, str]]:
        """Return the due times in the states."""
        rows = ((key.split("\x1f")[2], value) for key, value in self.rows.items() if key[0] == "s")
        return sorted((due_of(v, shard), one) for one, v in rows if due_of(v, shard))

    def list_of(self, shard: str) -> ListValue:
        return list_of(self.rows.get(list_key(KIND, shard)))


def reminding(shard: str, entity_id: str, fence: int, op: int, due: int, **more: Any) -> Save:
    record = b"%d" % op if due else None
    data = more.get("data")
    reminders = Reminders(due, record, alone=data is None and not more.get("clear"))
    return Save(KIND, shard, entity_id, fence, data, op, reminders)


# ---- alone


class Twins:
    """The same calls on reminders of registers and on a store in memory."""

    def __init__(self, seed: int, trouble: float) -> None:
        self.dice = random.Random(seed)
        self.registers = Registers(self.dice, trouble)
        self.ours, self.memory = self.registers.reminders(), MemoryStore()
        self.fences = dict.fromkeys(SHARDS, 1)
        self.ops = 0
        self.former: list[Save] = []

    def draw(self) -> Save:
        dice = self.dice
        shard, self.ops = dice.choice(SHARDS), self.ops + 1
        entity_id = f"{dice.choice(IDS)}{shard}"
        fence = self.fences[shard]
        data = b"%d" % self.ops if dice.random() < 0.5 else None
        if dice.random() < 0.25:
            return Save(KIND, shard, entity_id, fence, data, self.ops)
        fence -= dice.random() < 0.1
        due = dice.choice((0, dice.randint(1, 9), dice.randint(1, 9)))
        return reminding(
            shard, entity_id, fence, self.ops, due, data=data, clear=dice.random() < 0.2
        )

    async def save(self, saves: list[Save]) -> None:
        answers = await self.ours.save_states(saves)
        for _ in range(40):
            again = [n for n, a in enumerate(answers) if isinstance(a, StoreUnavailable)]
            if not again:
                break
            repeats = await self.ours.save_states([saves[n] for n in again])
            for n, answer in zip(again, repeats, strict=True):
                answers[n] = answer
        same = await self.memory.save_states(saves)
        assert [type(answer) for answer in answers] == [type(answer) for answer in same]

    async def raise_fence(self, shard: str) -> None:
        self.fences[shard] += 1
        fence = self.fences[shard]
        await self.until(lambda: self.registers.claim(shard, fence))
        await self.memory.add_remembered(KIND, shard, (), fence)
        for entity_id in IDS:
            await self.registers.load(state_key(KIND, entity_id + shard), fence)
            await self.memory.load_state(KIND, shard, entity_id + shard, fence)

    async def until(self, call: Callable[[], Any]) -> Any:
        """Repeat a call until it is answered."""
        for _ in range(60):
            with contextlib.suppress(StoreUnavailable):
                return await call()
        raise AssertionError("no answer in 60 attempts")

    async def compare(self) -> None:
        for shard in SHARDS:
            call = KIND, shard, self.dice.choice((None, (3, "b7"))), self.dice.randint(1, 9)
            page = await self.until(partial(self.ours.page_due, *call))
            assert page == await self.memory.page_due(*call)
            ids = [one + shard for one in IDS]
            records = await self.ours.load(KIND, ids)
            assert records == await self.memory.load_reminders(KIND, shard, ids)
            states = [self.registers.rows.get(state_key(KIND, one)) for one in ids]
            data = [v.data if isinstance(v, StateValue) else None for v in states]
            assert data == await self.memory.read_states(KIND, ids)

    async def run(self) -> None:
        await self.memory.start()
        for shard in SHARDS:
            await self.raise_fence(shard)
        for _ in range(30):
            drawn = self.dice.random()
            if drawn < 0.6:
                saves = {save.entity_id: save for save in (self.draw() for _ in range(3))}
                await self.save(list(saves.values()))
                self.former += [save for save in saves.values() if save.reminders is not None]
            elif drawn < 0.75:
                await self.raise_fence(self.dice.choice(SHARDS))
            elif drawn < 0.85 and self.former:
                late = self.dice.choice(self.former)
                if late.fence < self.fences[late.shard]:
                    await self.save([late])
            else:
                await self.compare()
            if self.dice.random() < 0.1:
                self.ours = self.registers.reminders()  # its process has ended
        await self.compare()


@pytest.mark.parametrize("trouble", [0.0, 0.3])
async def test_every_step_answers_as_in_memory(trouble: float) -> None:
    for seed in range(60):
        await Twins(seed, trouble).run()


async def test_the_saves_of_an_entity_keep_their_order() -> None:
    registers = Registers(random.Random(1))
    ours = registers.reminders()
    saves = [reminding("7", "a", 1, 1, 5, data=b"one"), Save(KIND, "7", "a", 1, b"two", 2)]
    assert await ours.save_states(saves) == [None, None]
    state = registers.rows[state_key(KIND, "a")]
    assert isinstance(state, StateValue)
    assert (state.op, state.data, due_of(state, "7")) == (2, b"two", 5)
    saves = [Save(KIND, "7", "a", 1, b"three", 3), reminding("7", "a", 1, 4, 6)]
    assert await ours.save_states(saves) == [None, None]
    state = registers.rows[state_key(KIND, "a")]
    assert isinstance(state, StateValue)
    assert (state.op, state.data, due_of(state, "7")) == (4, b"three", 6)


# ---- races


class Race:
    """Homes of one shard, each under a higher fence than the one before, and readers."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.registers = Registers(self.dice, trouble=0.2)
        self.highest = 0
        self.ops = self.compared = 0
        self.acknowledged: dict[str, int] = {}
        """By entity: the highest operation that was answered."""

    async def run_owner(self, fence: int) -> None:
        """Be a home: claim the shard, read its index, then save, and compare."""
        ours = self.registers.reminders()
        for _ in range(self.dice.randint(0, 40)):
            await asyncio.sleep(0)
        doubtful = set[str]()
        with contextlib.suppress(StaleFence):
            await self._insist(lambda: self.registers.claim("7", fence))
            self.highest = max(self.highest, fence)
            await self._compare(ours, fence, doubtful)
            for turn in range(12):
                entity_id = self.dice.choice(IDS)
                await self._save(ours, fence, entity_id, doubtful)
                if turn % 3 == 2:
                    await self._compare(ours, fence, doubtful)

    async def _save(
        self, ours: ReplicatedReminders, fence: int, entity_id: str, doubtful: set[str]
    ) -> None:
        if isinstance(await self.registers.load(state_key(KIND, entity_id), fence), Outdated):
            raise StaleFence(KIND, entity_id, fence, 0)
        doubtful.discard(entity_id)
        self.ops += 1
        op, due = self.ops, self.dice.choice((0, self.dice.randint(1, 99)))
        save = reminding("7", entity_id, fence, op, due, data=b"x")
        [error] = await ours.save_states([save])
        if isinstance(error, StaleFence):
            raise error
        if error is None:
            self.acknowledged[entity_id] = op
        elif not (isinstance(error, StoreUnavailable) and error.definite):
            doubtful.add(entity_id)

    async def _compare(self, ours: ReplicatedReminders, fence: int, doubtful: set[str]) -> None:
        """A home that is the newest one reads the entries that the states have."""
        page = await self._insist(lambda: ours.page_due(KIND, "7", None, 99))
        if self.highest > fence:
            return
        self.compared += 1
        assert [one for one in page if one[1] not in doubtful] == [
            one for one in self.registers.due("7") if one[1] not in doubtful
        ]

    async def read_on(self) -> None:
        """Read as an operator does, under no fence."""
        for _ in range(20):
            with contextlib.suppress(StoreUnavailable):
                await self.registers.reminders().page_due(KIND, "7", None, 99)

    async def _insist(self, call: Callable[[], Any]) -> Any:
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await asyncio.sleep(0)

    async def judge(self) -> None:
        self.registers.trouble = 0.0
        for key in list(self.registers.late):
            self.registers._come(key)
        fence = self.highest + 1
        await self.registers.claim("7", fence)
        ours = self.registers.reminders()
        assert await ours.page_due(KIND, "7", None, 99) == self.registers.due("7")
        assert not self.registers.list_of("7").open, "the reader has settled all"
        for entity_id, op in self.acknowledged.items():
            state = self.registers.rows[state_key(KIND, entity_id)]
            assert isinstance(state, StateValue)
            assert state.op >= op, "an acknowledged save is lost"


@pytest.mark.parametrize("first", [0, 60])
async def test_the_index_of_the_newest_home_says_what_the_states_say(first: int) -> None:
    compared = 0
    for seed in range(first, first + 60):
        race = Race(seed)
        await asyncio.gather(race.read_on(), *(race.run_owner(fence) for fence in range(1, 6)))
        await race.judge()
        compared += race.compared
    assert compared > 150, "too few homes compare for the test to say much"


async def test_a_save_under_way_when_a_home_reads_has_its_effect_before_or_never() -> None:
    for late in (False, True):
        registers = Registers(random.Random(1))
        former, home = registers.reminders(), registers.reminders()
        await registers.claim("7", 1)
        assert await former.save_states([reminding("7", "a", 1, 1, 50, data=b"x")]) == [None]
        begun = asyncio.Event()

        async def held(saves: Sequence[Save], begun: asyncio.Event = begun) -> Any:
            begun.set()
            await asyncio.sleep(0)
            return [StoreUnavailable("no answer") for _ in saves]

        save = reminding("7", "a", 1, 2, 5, data=b"y")
        former._save_all = held
        [error] = await former.save_states([save])
        assert isinstance(error, StoreUnavailable)
        key = state_key(KIND, "a")
        registers.late[key] = state_of(save, registers.rows[key])
        registers.dice = random.Random(3 if late else 4)
        await registers.claim("7", 2)
        page = await home.page_due(KIND, "7", None, 9)
        assert key not in registers.late, "it is under way no more"
        assert page == registers.due("7")
        [error] = await registers.save_all([save])
        assert page == registers.due("7")
        assert isinstance(error, StaleFence) or page == [(5, "a")]


# ---- one by one


async def test_a_save_that_its_intent_refuses_is_not_sent() -> None:
    registers = Registers(random.Random(1))
    ours = registers.reminders()
    await registers.claim("7", 5)
    [error] = await ours.save_states([reminding("7", "a", 4, 1, 9, data=b"x")])
    assert isinstance(error, StaleFence)
    assert (error.entity_id, error.fence, error.stored) == ("a", 4, 5)
    assert registers.rows.get(state_key(KIND, "a")) is None
    assert registers.list_of("7").open == {}


async def test_without_an_intent_nothing_is_sent_for_certain() -> None:
    registers = Registers(random.Random(1))
    ours = registers.reminders()

    async def away(key: str, fence: int, function: Function) -> object:
        raise StoreUnavailable("no answer")

    ours._change = away
    save = reminding("7", "a", 1, 1, 9, data=b"x")
    answers = await ours.save_states([save, Save(KIND, "7", "b", 1, b"y", 2)])
    assert isinstance(answers[0], StoreUnavailable)
    assert answers[0].definite
    assert answers[1] is None
    assert registers.rows.keys() == {state_key(KIND, "b")}


async def test_saves_of_a_shard_share_an_intent_and_are_settled_by_the_next() -> None:
    registers = Registers(random.Random(1))
    ours = registers.reminders()
    saves = [reminding("7", f"e{n}", 1, n + 1, 10 + n, data=b"x") for n in range(20)]
    assert await ours.save_states(saves) == [None] * 20
    assert registers.writes == 21
    assert registers.list_of("7").open.keys() == {save.entity_id for save in saves}
    assert await ours.save_states([reminding("7", "e0", 1, 50, 9)]) == [None]
    assert registers.list_of("7").open.keys() == {"e0"}
    assert len(registers.list_of("7").due) == 19
    loads = registers.loads
    assert await ours.page_due(KIND, "7", None, 2) == [(9, "e0"), (11, "e1")]
    assert registers.list_of("7").open == {}
    assert registers.loads == loads, "its own saves need no load"


async def test_saves_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_reminders, "SETTLED_MAX", 3)
    registers = Registers(random.Random(1))
    ours = registers.reminders()
    for n in range(6):
        assert await ours.save_states([reminding(str(n), "a" + str(n), 1, n + 1, 5)]) == [None]
    assert sum(map(len, ours._settled.values())) == ours._remembered == 3
    for n in range(6):
        assert await ours.page_due(KIND, str(n), None, 9) == [(5, f"a{n}")]


async def test_an_entity_that_has_moved_to_another_shard_keeps_its_reminders_there() -> None:
    registers = Registers(random.Random(1))
    ours = registers.reminders()
    await ours.save_states([reminding("7", "a", 1, 1, 5, data=b"x")])
    await ours.save_states([reminding("8", "a", 2, 2, 5)])
    assert await ours.page_due(KIND, "7", None, 9) == [(5, "a")], "to be removed there"
    await ours.save_states([reminding("7", "a", 2, 3, 0)])
    assert await ours.page_due(KIND, "7", None, 9) == []
    assert await ours.page_due(KIND, "8", None, 9) == [(5, "a")]
    assert await ours.load(KIND, ["a"]) == [b"2"]


def test_only_the_last_intent_of_an_entity_is_settled() -> None:
    step = reminder_index.intend({"a": 1, "b": 1}, 11, {})(None)
    assert isinstance(step, Written)
    both = step.value
    step = reminder_index.intend({"a": 1}, 12, {"b": SettledSave(11, 4)})(both)
    assert isinstance(step, Written)
    value = list_of(step.value)
    assert (value.due, value.open) == ({"b": 4}, {"a": OpenSave(1, 12)})
    assert isinstance(reminder_index.settle({"a": SettledSave(11, 9)})(value), Unchanged)
    step = reminder_index.settle({"a": SettledSave(12, 0)})(value)
    assert isinstance(step, Written)
    assert list_of(step.value) == value._replace(open={})


def test_a_list_that_differs_from_the_states_is_opened() -> None:
    value = NO_LIST._replace(
        fence=5, due={"same": 1, "later": 2, "gone": 3}, open={"o": OpenSave(1, 1)}
    )
    rows = {
        name: RemindersValue("7", due, b"r")
        for name, due in (("same", 1), ("later", 4), ("new", 5), ("o", 6))
    }
    after = reminder_index.reopened(value, rows, 77)
    assert after is not None
    assert (after.fence, after.due) == (5, {"same": 1})
    assert after.open == {"o": OpenSave(1, 1)} | dict.fromkeys(
        ("later", "gone", "new"), OpenSave(-1, 77)
    )
    assert reminder_index.reopened(after, rows, 78) is None
