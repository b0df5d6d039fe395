"""The parts of a projection: every part that is behind gets its turn, one that fails pauses and
then stops, nothing is forgotten, and memory is bounded."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from shardbus.errors import LocalProtocolError
from shardbus.projections import parts
from shardbus.projections.parts import (
    AT_WORK_MAX,
    HELD_MAX,
    PAUSE_MAX_S,
    PAUSE_S,
    SCANNED_MAX,
    TRANSITIONS,
    WORK_S,
    Effect,
    Failed,
    Handled,
    HandleEvents,
    News,
    Part,
    PartState,
    ProjectedParts,
    Retry,
    ScanAgain,
    ShardGone,
    Trigger,
    Waits,
)


def news(machine: ProjectedParts, *names: str, now: float = 0.0, shard: str = "7") -> list[Effect]:
    """Report news of these sources."""
    return [effect for name in names for effect in machine.handle(News(shard, name), now)]


def fail(
    machine: ProjectedParts, now: float, number: int = 1, *, raised: bool = True
) -> list[Effect]:
    """Let the part `a` fail."""
    return machine.handle(Failed("a", number, "ValueError: no", raised), now)


def test_a_part_has_the_states_of_its_drawing_and_no_other_step() -> None:
    for state, trigger in product(PartState, Trigger):
        part = Part("7", 0.0, state)
        if (state, trigger) in TRANSITIONS:
            assert part.step(trigger) is TRANSITIONS[state, trigger]
        else:
            with pytest.raises(LocalProtocolError):
                part.step(trigger)
            assert part.state is state


def test_news_give_a_part_one_turn_and_news_during_it_give_another() -> None:
    machine = ProjectedParts(10)
    assert news(machine, "a", "a") == [HandleEvents("7", "a", single=False)]
    assert machine.handle(Handled("a", 3, more=False), 1.0) == [
        HandleEvents("7", "a", single=False)
    ]
    assert machine.handle(Handled("a", 3, more=False), 2.0) == []
    assert machine.behind == 0
    assert machine.state_of("a") is PartState.CAUGHT_UP


def test_a_part_whose_journal_has_more_goes_on_behind_the_others() -> None:
    machine = ProjectedParts(10)
    names = [f"n{n}" for n in range(AT_WORK_MAX)]
    news(machine, "a", *names)
    assert machine.handle(Handled("a", 100, more=True), 1.0)[0].source_id == names[-1]  # type: ignore[union-attr]
    assert machine.state_of("a") is PartState.DUE
    assert machine.handle(Handled("n0", 1, more=False), 1.0) == [
        HandleEvents("7", "a", single=False)
    ]


def test_so_many_parts_work_at_once_and_no_more() -> None:
    machine = ProjectedParts(10)
    assert len(news(machine, *(f"n{n}" for n in range(100)))) == AT_WORK_MAX


def test_an_event_that_fails_is_tried_again_after_a_pause_that_doubles_alone() -> None:
    machine = ProjectedParts(10)
    news(machine, "a")
    assert fail(machine, 0.0, 3) == []
    assert machine.deadline() == PAUSE_S
    assert machine.tick(PAUSE_S - 0.01) == []
    assert machine.tick(PAUSE_S) == [HandleEvents("7", "a", single=True)]
    fail(machine, 1.0, 3)
    assert machine.deadline() == 1.0 + 2 * PAUSE_S
    machine.tick(2.0)
    assert machine.handle(Handled("a", 2, more=True), 2.0) == [HandleEvents("7", "a", single=True)]
    assert machine.failing[0][1].number == 3, "it has not passed the failed one"
    assert machine.handle(Handled("a", 3, more=True), 2.0) == [HandleEvents("7", "a", single=False)]
    assert machine.failing == []


def test_after_so_many_failures_at_one_event_the_part_stops_until_it_is_retried() -> None:
    machine = ProjectedParts(3)
    news(machine, "a", "b")
    for turn in range(3):
        fail(machine, 100.0 * turn, 5)
        machine.tick(100.0 * turn + 50.0)
    assert machine.state_of("a") is PartState.STOPPED
    assert (machine.stopped, machine.behind) == (1, 2)
    assert machine.tick(1e6)[1:] == []
    assert news(machine, "a", now=1e6) == [], "news do not resume it"
    assert machine.handle(Retry("b"), 1e6) == []
    assert machine.handle(Retry("a"), 1e6) == [HandleEvents("7", "a", single=True)]
    fail(machine, 1e6, 5)
    assert machine.state_of("a") is PartState.PAUSED, "it has all attempts again"


def test_failures_at_another_event_are_counted_anew() -> None:
    machine = ProjectedParts(2)
    news(machine, "a")
    fail(machine, 0.0, 5)
    machine.tick(10.0)
    machine.handle(Handled("a", 5, more=True), 10.0)
    fail(machine, 10.0, 6)
    assert machine.state_of("a") is PartState.PAUSED


def test_a_store_that_does_not_answer_never_stops_a_part_and_nor_does_no_limit() -> None:
    for machine, raised in ((ProjectedParts(2), False), (ProjectedParts(0), True)):
        news(machine, "a")
        for turn in range(100):
            fail(machine, 100.0 * turn, 0, raised=raised)
            assert machine.deadline() <= 100.0 * turn + PAUSE_MAX_S  # type: ignore[operator]
            machine.tick(100.0 * turn + 50.0)
        assert machine.state_of("a") is PartState.AT_WORK


def test_a_part_that_waits_for_its_deliveries_has_not_failed() -> None:
    machine = ProjectedParts(1)
    news(machine, "a")
    for turn in range(5):
        assert machine.handle(Waits("a"), float(turn)) == []
        assert machine.tick(turn + PAUSE_S) == [HandleEvents("7", "a", single=False)]
    assert machine.failing == []


def test_a_part_without_an_answer_is_looked_after() -> None:
    machine = ProjectedParts(10)
    news(machine, "a")
    assert machine.deadline() == WORK_S
    assert machine.tick(WORK_S) == [HandleEvents("7", "a", single=False)]
    assert machine.deadline() == 2 * WORK_S


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    machine = ProjectedParts(1)
    news(machine, "a")
    fail(machine, 0.0)
    assert fail(machine, 0.0) == machine.handle(Handled("a", 9, more=False), 0.0) == []
    assert machine.handle(Waits("a"), 0.0) == machine.handle(Handled("x", 9, more=True), 0.0) == []
    assert machine.state_of("a") is PartState.STOPPED


def test_the_parts_of_a_shard_that_left_are_forgotten() -> None:
    machine = ProjectedParts(1)
    news(machine, "a", "b")
    news(machine, "c", shard="8")
    fail(machine, 0.0)
    machine.handle(ShardGone("7"), 0.0)
    assert machine.behind == 1
    machine.check()
    assert news(machine, "a") == [HandleEvents("7", "a", single=False)]


def test_too_many_parts_let_their_shard_be_scanned_again() -> None:
    machine = ProjectedParts(10)
    names = [f"n{n}" for n in range(HELD_MAX)]
    assert machine.has_room
    news(machine, *names[:SCANNED_MAX])
    assert not machine.has_room
    news(machine, *names[SCANNED_MAX:])
    assert news(machine, "late") == [ScanAgain("7")]
    assert news(machine, names[0]) == []
    machine.check()
    for name in names:
        machine.handle(Handled(name, 1, more=False), 1.0)
    machine.handle(Handled(names[0], 1, more=False), 1.0)
    assert machine.has_room
    assert machine.behind == 0


def test_the_lag_is_the_age_of_the_first_part_that_is_behind() -> None:
    machine = ProjectedParts(10)
    assert machine.lag(5.0) == 0.0
    news(machine, "a", now=1.0)
    news(machine, "b", now=2.0)
    assert machine.lag(5.0) == 4.0
    news(machine, "a", now=3.0)
    machine.handle(Handled("a", 1, more=False), 4.0)
    assert machine.lag(5.0) == 3.0


@pytest.mark.parametrize("seed", range(20))
def test_every_part_catches_up_whatever_happens_in_between(seed: int) -> None:
    """The dumb reference: a count of events for each source, and of those that are handled."""
    dice, machine, now = Random(seed), ProjectedParts(dice_attempts(seed)), 0.0
    journal = {f"n{n}": 0 for n in range(60)}
    handled, waiting = dict(journal), []
    for _ in range(2000):
        now += dice.random()
        what = dice.random()
        if what < 0.3:
            name = dice.choice(list(journal))
            journal[name] += dice.randrange(1, 3)
            effects = machine.handle(News(str(len(name)), name), now)
        elif what < 0.35:
            effects = machine.handle(Retry(), now)
        elif what < 0.37:
            shard = dice.choice("23")
            effects = machine.handle(ShardGone(shard), now)
            waiting = [work for work in waiting if work.shard != shard]
            for name, last in journal.items():  # the next home's scan
                if len(name) == int(shard) and handled[name] != last:
                    effects += machine.handle(News(shard, name), now)
        elif waiting:
            effects = answer(
                machine, waiting.pop(dice.randrange(len(waiting))), dice, journal, handled, now
            )
        else:
            effects = machine.tick(now)
        waiting += [work for work in effects if isinstance(work, HandleEvents)]
        machine.check()
        behind = {name for name, last in journal.items() if handled[name] != last}
        assert behind <= set(machine._parts), "a part is forgotten"
    for _ in range(10_000):
        if not waiting and not machine.behind:
            break
        now += 1.0
        effects = machine.handle(Retry(), now)
        while waiting:
            work = waiting.pop()
            handled[work.source_id] = journal[work.source_id]
            effects += machine.handle(
                Handled(work.source_id, handled[work.source_id], more=False), now
            )
        waiting += [work for work in effects if isinstance(work, HandleEvents)]
    assert handled == journal


def dice_attempts(seed: int) -> int:
    """Return a limit of attempts."""
    return (0, 1, 3)[seed % 3]


def answer(
    machine: ProjectedParts,
    work: HandleEvents,
    dice: Random,
    journal: dict[str, int],
    handled: dict[str, int],
    now: float,
) -> list[Effect]:
    """Answer one call for work as a part may."""
    name = work.source_id
    if dice.random() < 0.3:
        return machine.handle(Failed(name, handled[name] + 1, "no", dice.random() < 0.7), now)
    if dice.random() < 0.1:
        return machine.handle(Waits(name), now)
    last = journal[name]
    step = 1 if work.single else dice.randrange(1, 4)
    handled[name] = min(last, handled[name] + step)
    return machine.handle(Handled(name, handled[name], more=handled[name] < last), now)


def test_the_bounds_are_below_each_other() -> None:
    assert 0 < AT_WORK_MAX < SCANNED_MAX < HELD_MAX
    assert parts.ERROR_MAX > 0
