"""The schedule of a shard, against a store that is a dict, and over a day of many reminders."""

from __future__ import annotations

import random
from bisect import bisect_right, insort

import pytest

from shardbus.reminders.schedule import (
    HELD_MAX,
    PAUSE_MAX_MS,
    WINDOW,
    WOKEN_MAX,
    WOKEN_MS,
    Doubtful,
    Effect,
    Ended,
    Event,
    IndexRead,
    ReadIndex,
    ReminderSchedule,
    Saved,
)
from shardbus.store.protocol import Due
from tests.markers import long_only

DAY = 86_400_000


class Shard:
    """A shard's index, its home, and the woken entities."""

    def __init__(self, due: dict[str, int] | None = None) -> None:
        self.due = dict(due or {})
        self.index = sorted((at, entity_id) for entity_id, at in self.due.items())
        self.schedule = ReminderSchedule()
        self.now = 0
        self.loads: list[ReadIndex] = []
        self.woken: list[tuple[int, str, int]] = []
        self.reads = 0
        self.most_held = 0

    def put(self, entity_id: str, at: int) -> None:
        """Change the index in the store."""
        if entity_id in self.due:
            self.index.remove((self.due.pop(entity_id), entity_id))
        if at:
            self.due[entity_id] = at
            insort(self.index, (at, entity_id))

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ReadIndex):
                self.loads.append(effect)
            else:
                self.woken.append((self.now, effect.entity_id, effect.attempt))
        self.schedule.check()
        self.most_held = max(self.most_held, self.schedule.held)

    def begin(self) -> None:
        self.take(self.schedule.begin())

    def page(self, load: ReadIndex) -> tuple[Due, ...]:
        self.reads += 1
        first = 0 if load.after is None else bisect_right(self.index, load.after)
        return tuple(self.index[first : first + load.limit])

    def answer(self) -> None:
        """Answer the read under way."""
        self.handle(IndexRead(self.page(self.loads.pop())))

    def handle(self, event: Event) -> None:
        self.take(self.schedule.handle(event, self.now))

    def save(self, entity_id: str, at: int) -> None:
        self.put(entity_id, at)
        self.handle(Saved(entity_id, at))

    def tick(self, now: int) -> None:
        self.now = now
        self.take(self.schedule.tick(now))


def started(due: dict[str, int]) -> Shard:
    shard = Shard(due)
    shard.begin()
    shard.answer()
    return shard


def test_an_entity_is_woken_when_it_is_due_and_not_before() -> None:
    shard = started({"a": 100, "b": 200})
    assert shard.schedule.deadline() == 100
    shard.tick(99)
    assert shard.woken == []
    shard.tick(100)
    assert shard.woken == [(100, "a", 1)]
    shard.tick(150)
    assert len(shard.woken) == 1
    shard.save("a", 0)
    shard.handle(Ended("a", True))
    shard.tick(250)
    assert [entity_id for _, entity_id, _ in shard.woken] == ["a", "b"]


def test_nothing_is_read_again_while_nothing_is_due() -> None:
    shard = started({f"e{n}": DAY + n for n in range(WINDOW * 3)})
    for hour in range(23):
        shard.tick(hour * 3_600_000)
    assert (shard.reads, shard.schedule.held) == (1, WINDOW)


def test_a_failed_entity_is_woken_again_after_pauses() -> None:
    shard = started({"a": 100})
    at, pauses = 100, []
    for attempt in range(1, 11):
        shard.tick(at)
        assert shard.woken[-1] == (at, "a", attempt)
        shard.handle(Ended("a", False, raised=True))
        following = shard.schedule.deadline()
        assert following is not None
        pauses.append(following - at)
        at = following
    assert pauses == [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]
    shard.tick(at)
    shard.save("a", 0)
    shard.handle(Ended("a", True))
    assert shard.schedule.deadline() is None


def test_a_save_does_not_end_the_pause_of_a_reminder_that_fails() -> None:
    shard = started({"a": 100})
    shard.tick(100)
    shard.handle(Ended("a", False, raised=True))
    for now in range(110, 300, 10):
        shard.now = now
        shard.save("a", 100)  # other reminders of the entity, which are due later
    assert shard.woken == [(100, "a", 1)]
    shard.tick(300)
    assert shard.woken[1:] == [(300, "a", 2)]
    shard.handle(Ended("a", False, raised=True))
    shard.save("a", 310)  # this one was forgotten
    shard.tick(310)
    assert shard.woken[2:] == [(310, "a", 1)]


def test_only_what_handlers_raise_counts_as_an_attempt() -> None:
    shard = started({"a": 100})
    for now, raised, attempt in ((100, False, 1), (40_000, True, 1), (80_000, False, 2)):
        shard.tick(now)
        assert shard.woken[-1] == (now, "a", attempt)
        shard.handle(Ended("a", False, raised))
    shard.tick(120_000)
    assert shard.woken[-1] == (120_000, "a", 2)


def test_an_entity_without_an_end_is_woken_again() -> None:
    shard = started({"a": 100})
    shard.tick(100)
    shard.tick(100 + WOKEN_MS - 1)
    assert len(shard.woken) == 1
    shard.tick(100 + WOKEN_MS)
    assert len(shard.woken) == 2


def test_few_are_woken_at_once() -> None:
    shard = started({f"e{n}": 5 for n in range(WOKEN_MAX + 10)})
    shard.tick(5)
    assert len(shard.woken) == WOKEN_MAX
    first = shard.woken[0][1]
    shard.save(first, 0)
    shard.handle(Ended(first, True))
    assert len(shard.woken) == WOKEN_MAX + 1


def test_a_save_during_a_read_is_newer_than_the_read() -> None:
    shard = Shard({"a": 100, "b": 200, "c": 300})
    shard.begin()
    page = shard.page(shard.loads.pop())
    shard.save("a", 900)
    shard.save("b", 0)
    shard.save("d", 50)
    shard.handle(IndexRead(page))
    shard.tick(899)
    assert [entity_id for _, entity_id, _ in shard.woken] == ["d", "c"]
    shard.tick(900)
    assert [entity_id for _, entity_id, _ in shard.woken] == ["d", "c", "a"]


def test_after_a_save_in_doubt_the_earlier_time_counts() -> None:
    shard = started({"a": 500, "b": 100, "c": 400})
    shard.handle(Doubtful("a", 300))
    shard.handle(Doubtful("b", 0))
    shard.handle(Doubtful("c", 900))
    shard.tick(100)
    shard.tick(300)
    shard.tick(400)
    assert shard.woken == [(100, "b", 1), (300, "a", 1), (400, "c", 1)]


def test_a_clock_that_is_set_back_and_forward() -> None:
    shard = started({"a": 3_600_000 * 5, "b": 3_600_000 * 5 + 100})
    shard.tick(3_600_000 * 5)
    shard.handle(Ended("a", False))
    shard.tick(3_600_000 * 4)
    assert len(shard.woken) == 1
    deadline = shard.schedule.deadline()
    assert deadline is not None
    assert deadline <= 3_600_000 * 5 + 200
    shard.tick(3_600_000 * 6)
    assert sorted(entity_id for _, entity_id, _ in shard.woken) == ["a", "a", "b"]


def test_no_pause_outlasts_a_clock_that_is_set_back() -> None:
    hour = 3_600_000
    shard = started({"a": hour, "b": hour})
    shard.tick(5 * hour)
    shard.handle(Ended("a", False))  # b is at work, a pauses
    shard.tick(4 * hour)
    shard.tick(4 * hour + PAUSE_MAX_MS)
    assert [entity_id for _, entity_id, _ in shard.woken] == ["a", "b", "a"]
    shard.tick(4 * hour + WOKEN_MS)
    assert [entity_id for _, entity_id, _ in shard.woken] == ["a", "b", "a", "b"]


def test_what_is_saved_behind_the_horizon_is_read_later() -> None:
    shard = started({f"e{n:04}": n + 1 for n in range(WINDOW)})
    shard.save("late", DAY)
    assert shard.schedule.held == WINDOW
    for n in range(WINDOW):
        shard.tick(n + 1)
        shard.save(f"e{n:04}", 0)
        shard.handle(Ended(f"e{n:04}", True))
        while shard.loads:
            shard.answer()
    shard.tick(DAY)
    assert shard.woken[-1] == (DAY, "late", 1)


@pytest.mark.parametrize("seed", [*range(20), *long_only(*range(20, 60))])
def test_none_is_lost_none_is_early_none_is_woken_twice(seed: int) -> None:
    dice = random.Random(seed)
    count = dice.choice([3, 40, 700, 3000])
    shard = Shard({f"e{n}": dice.randint(1, 10_000) for n in range(count)})
    shard.begin()
    at_work: set[str] = set()
    done: list[tuple[str, int]] = []
    now = 0
    for _ in range(600):
        seen = len(shard.woken)
        match dice.randint(0, 5):
            case 0 if shard.loads:
                shard.answer()
            case 1:
                shard.save(f"n{dice.randint(0, 300)}", now + dice.randint(1, 9000))
            case 2 if at_work:
                entity_id = dice.choice(sorted(at_work))
                at_work.discard(entity_id)
                if dice.random() < 0.2:
                    shard.handle(Ended(entity_id, False))
                else:
                    due = shard.due.get(entity_id, 0)
                    if due and due <= now:
                        done.append((entity_id, due))
                        again = now + dice.randint(1, 5000) if dice.random() < 0.3 else 0
                        shard.save(entity_id, again)
                    else:
                        shard.handle(Saved(entity_id, due))
                    shard.handle(Ended(entity_id, True))
            case _:
                now += dice.randint(0, 60)
                shard.tick(now)
        for at, entity_id, _ in shard.woken[seen:]:
            assert entity_id not in at_work, "woken while it is at work"
            assert shard.due.get(entity_id, 0) <= at or entity_id not in shard.due, "woken early"
            at_work.add(entity_id)
    now += 40_000
    for _ in range(20_000):
        seen = len(shard.woken)
        while shard.loads:
            shard.answer()
        shard.tick(now)
        at_work |= {entity_id for _, entity_id, _ in shard.woken[seen:]}
        if not at_work:
            break
        for entity_id in sorted(at_work):
            due = shard.due.get(entity_id, 0)
            shard.save(entity_id, 0 if due <= now else due)
            shard.handle(Ended(entity_id, True))
        at_work.clear()
        at_work |= {woken[1] for woken in shard.woken[seen:]} & set(shard.schedule._woken)
    assert [entity_id for at, entity_id in shard.index if at <= now] == [], "never woken"


def test_the_reminders_of_a_day_need_little_memory_and_few_reads() -> None:
    """The bounds do not depend on the number: a million here takes ten times as long."""
    dice = random.Random(7)
    count, step = 100_000, 1000
    shard = Shard({f"e{n:06}": dice.randint(1, DAY) for n in range(count)})
    index, fired, latest, behind = shard.index, 0, 0, 0
    shard.begin()
    shard.schedule.check = lambda: None  # type: ignore[method-assign]
    while shard.loads:
        shard.answer()
    for now in range(step, DAY + step, step):
        seen = len(shard.woken)
        shard.tick(now)
        while seen < len(shard.woken):
            _, entity_id, _ = shard.woken[seen]
            seen += 1
            latest = max(latest, now - shard.due.pop(entity_id))
            fired += 1
            shard.handle(Saved(entity_id, 0))
            shard.handle(Ended(entity_id, True))
            while shard.loads:
                behind = bisect_right(index, (now, "\uffff"), behind)
                shard.answer()
    assert fired == count
    assert latest <= step
    assert shard.most_held <= HELD_MAX
    assert shard.reads <= count / (WINDOW - WINDOW // 4) + 2
