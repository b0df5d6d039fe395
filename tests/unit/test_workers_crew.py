"""What a unit does about its workers: `shardbus_cli.workers.crew`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus_cli.workers import crew
from shardbus_cli.workers.crew import (
    Announce,
    Begin,
    Closed,
    Crew,
    Effect,
    End,
    Ended,
    Event,
    IsReady,
    Kill,
    Leave,
    Rests,
    Serves,
    Stage,
    Start,
    Tell,
)


def after(machine: Crew, *events: Event, now: float = 0.0) -> list[Effect]:
    """The effects of the last of these events."""
    effects: list[Effect] = []
    for event in events:
        effects = machine.handle(event, now)
        machine.check()
    return effects


def ready(workers: int = 3) -> Crew:
    """A unit that is."""
    machine = Crew(workers)
    after(machine, Begin(), Serves(0, 40.0))
    after(machine, *(Serves(n, 40.0) for n in range(1, workers)))
    assert after(machine, *(IsReady(n) for n in range(workers))) == [Announce()]
    return machine


def ends(effects: Iterable[Effect]) -> list[int]:
    return [effect.code for effect in effects if isinstance(effect, End)]


def test_worker_0_goes_first_and_alone() -> None:
    machine = Crew(3)
    assert after(machine, Begin()) == [Start(0, again=False)]
    others = [Start(1, again=False), Start(2, again=False)]
    assert after(machine, Serves(0, 40.0)) == others
    assert after(machine, Serves(1, 40.0)) == []


def test_a_unit_is_announced_once_when_the_last_is_ready() -> None:
    machine = ready()
    after(machine, Ended(1, -9))
    machine.tick(0.5)
    assert after(machine, Serves(1, 40.0), IsReady(1)) == []
    assert machine.ready


@pytest.mark.parametrize("code", [1, 2, 3, 4, 6])
def test_a_start_that_fails_ends_the_unit_with_its_code(code: int) -> None:
    machine = Crew(3)
    after(machine, Begin())
    assert after(machine, Ended(0, code)) == [End(code)]


def test_what_fails_for_one_of_several_lets_the_others_leave() -> None:
    machine = Crew(3)
    after(machine, Begin(), Serves(0, 40.0), Serves(1, 40.0))
    assert after(machine, Ended(2, 1)) == [Tell(0, "close"), Tell(1, "close")]
    assert after(machine, Closed(0), Closed(1)) == [Tell(0, "leave"), Tell(1, "leave")]
    assert after(machine, Ended(0, 0), Ended(1, 0)) == [End(1)]


@pytest.mark.parametrize("code", crew.PERMANENT)
def test_what_no_start_mends_ends_the_unit_later_too(code: int) -> None:
    machine = ready(2)
    after(machine, Ended(1, -9))
    assert machine.tick(0.5) == [Start(1, again=True)]
    assert after(machine, Ended(1, code), now=1.0) == [Tell(0, "close")]
    assert after(machine, Closed(0), Ended(0, 0), now=1.0) == [End(code)]


def test_an_application_that_ends_while_it_loads_has_failed() -> None:
    machine = Crew(2)
    assert after(machine, Begin(), Ended(0, 0)) == [End(crew.FAILED)]


def test_rests_double_up_to_a_bound_and_begin_anew_after_a_good_minute() -> None:
    machine, now, seconds = ready(), 10.0, []
    for _ in range(9):
        [rests] = machine.handle(Ended(2, -9), now)
        assert isinstance(rests, Rests)
        seconds.append(rests.seconds)
        assert machine.deadline() == now + rests.seconds
        assert machine.tick(now + 0.999 * rests.seconds) == []
        now += rests.seconds
        assert machine.tick(now) == [Start(2, again=True)]
        after(machine, Serves(2, 40.0), IsReady(2), now=now)
        now += crew.RAN_WELL_S - 1
    assert seconds == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    now += 1.0
    assert after(machine, Ended(2, -9), now=now) == [Rests(2, -9, 0.5)]


def test_a_worker_that_never_stays_is_started_again_for_ever() -> None:
    machine, now = ready(2), 0.0
    for _ in range(2_000):
        now += crew.LONGEST_REST_S
        assert machine.handle(Ended(1, -11), now)
        now += crew.LONGEST_REST_S
        assert machine.tick(now) == [Start(1, again=True)]


def test_who_was_told_to_leave_is_not_started_again() -> None:
    machine = ready(2)
    assert after(machine, Ended(0, 0)) == []
    assert machine.deadline() is None
    assert machine.ready
    assert after(machine, Ended(1, 0)) == [End(0)]


def test_all_close_before_the_first_leaves() -> None:
    machine = ready(2)
    assert after(machine, Leave()) == [Tell(0, "close"), Tell(1, "close")]
    assert after(machine, Closed(1)) == []
    assert after(machine, Closed(0)) == [Tell(0, "leave"), Tell(1, "leave")]
    assert after(machine, Ended(0, 0)) == []
    assert after(machine, Ended(1, 7)) == [End(7)]


def test_who_does_not_close_is_not_waited_for_long() -> None:
    machine = ready(2)
    after(machine, Leave(), Closed(1))
    assert machine.deadline() == crew.CLOSE_S
    assert machine.tick(crew.CLOSE_S) == [Tell(0, "leave"), Tell(1, "leave")]


def test_who_dies_instead_of_closing_is_not_waited_for() -> None:
    machine = ready(2)
    after(machine, Leave(), Closed(1))
    assert after(machine, Ended(0, -9)) == [Tell(1, "leave")]
    assert after(machine, Ended(1, 0)) == [End(crew.FAILED)]


def test_who_rests_or_loads_does_not_delay_the_end() -> None:
    machine = ready()
    after(machine, Ended(0, -9), Ended(1, -9))
    assert machine.tick(0.5) == [Start(0, again=True), Start(1, again=True)]
    after(machine, Ended(1, -9), now=0.5)
    assert after(machine, Leave(), now=0.5) == [Tell(2, "close"), Tell(0, "leave")]
    assert machine.standings[1].stage is Stage.GONE


def test_who_is_late_is_killed() -> None:
    machine = ready(2)
    after(machine, Leave(), Closed(0), Closed(1))
    late = 40.0 + crew.LEAVE_MARGIN_S
    assert machine.deadline() == late
    after(machine, Ended(0, 0))
    assert machine.tick(late) == [Kill(1)]
    assert after(machine, Ended(1, -9), now=late) == [End(crew.NOT_DRAINED)]


def test_a_second_signal_stops_all_at_once() -> None:
    machine = ready(2)
    after(machine, Leave())
    assert after(machine, Leave()) == [Tell(0, "stop"), Tell(1, "stop")]
    assert after(machine, Leave()) == []
    assert machine.tick(crew.STOP_S) == [Kill(0), Kill(1)]
    assert after(machine, Ended(0, 1), Ended(1, -9)) == [End(crew.FAILED)]


def test_the_first_signal_to_a_unit_that_ends_by_itself_does_not_hurry_it() -> None:
    machine = ready(2)
    after(machine, Ended(1, 3))
    assert after(machine, Leave()) == []
    assert after(machine, Leave()) == [Tell(0, "stop")]


STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from([-9, 0, 1, 3, 7])))


@given(STEPS)
def test_in_any_order_a_unit_ends_once_with_nobody_left(steps: list[tuple[int, int, int]]) -> None:
    """Processes do as they like; afterwards the unit is told to leave, and everybody goes."""
    machine, now, running = Crew(3), 0.0, set[int]()
    end: list[int] = []

    def take(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Start):
                assert effect.worker not in running
                running.add(effect.worker)
            elif isinstance(effect, Tell | Kill):
                assert effect.worker in running
        end.extend(ends(effects))
        machine.check()

    take(machine.handle(Begin(), now))
    for what, worker, code in [*steps, (4, 0, 0)]:
        if end:
            break
        now += 1.0
        if what == 4:
            take(machine.handle(Leave(), now))
        elif what == 5:
            take(machine.tick(now))
        elif worker in running:
            if what == 3:
                running.discard(worker)
            take(machine.handle(event(what, worker, code), now))
    for worker in sorted(running):
        take(machine.handle(Ended(worker, 0), now))
    assert len(end) == 1
    assert all(standing.stage is Stage.GONE for standing in machine.standings)


def event(what: int, worker: int, code: int) -> Event:
    return (Serves(worker, 40.0), IsReady(worker), Closed(worker), Ended(worker, code))[what]
