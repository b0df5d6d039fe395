"""What a unit does about its workers: `shardbus_cli.workers.worker_group`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus_cli.workers import worker_group
from shardbus_cli.workers.worker_group import (
    AnnounceReady,
    CommandWorker,
    Effect,
    EndUnit,
    Event,
    KillWorker,
    LeaveUnit,
    RestartLater,
    SpawnWorker,
    StartUnit,
    WorkerClosed,
    WorkerExited,
    WorkerGroup,
    WorkerLeaves,
    WorkerReady,
    WorkerServing,
    WorkerStage,
)


def after(machine: WorkerGroup, *events: Event, now: float = 0.0) -> list[Effect]:
    """The effects of the last of these events."""
    effects: list[Effect] = []
    for event in events:
        effects = machine.handle(event, now)
        machine.check()
    return effects


def ready(workers: int = 3) -> WorkerGroup:
    """A unit that is."""
    machine = WorkerGroup(workers)
    after(machine, StartUnit(), WorkerServing(0, 40.0))
    after(machine, *(WorkerServing(n, 40.0) for n in range(1, workers)))
    assert after(machine, *(WorkerReady(n) for n in range(workers))) == [AnnounceReady()]
    return machine


def ends(effects: Iterable[Effect]) -> list[int]:
    return [effect.code for effect in effects if isinstance(effect, EndUnit)]


def test_worker_0_goes_first_and_alone() -> None:
    machine = WorkerGroup(3)
    assert after(machine, StartUnit()) == [SpawnWorker(0, again=False)]
    others = [SpawnWorker(1, again=False), SpawnWorker(2, again=False)]
    assert after(machine, WorkerServing(0, 40.0)) == others
    assert after(machine, WorkerServing(1, 40.0)) == []


def test_a_unit_is_announced_once_when_the_last_is_ready() -> None:
    machine = ready()
    after(machine, WorkerExited(1, -9))
    machine.tick(0.5)
    assert after(machine, WorkerServing(1, 40.0), WorkerReady(1)) == []
    assert machine.ready


def test_a_unit_that_leaves_is_not_announced() -> None:
    machine = WorkerGroup(1)
    after(machine, StartUnit(), WorkerServing(0, 40.0), LeaveUnit())
    assert after(machine, WorkerReady(0)) == []
    assert not machine.announced


@pytest.mark.parametrize("code", [1, 2, 3, 4, 6])
def test_a_start_that_fails_ends_the_unit_with_its_code(code: int) -> None:
    machine = WorkerGroup(3)
    after(machine, StartUnit())
    assert after(machine, WorkerExited(0, code)) == [EndUnit(code)]


def test_a_failed_start_of_one_worker_lets_the_others_leave() -> None:
    machine = WorkerGroup(3)
    after(machine, StartUnit(), WorkerServing(0, 40.0), WorkerServing(1, 40.0))
    assert after(machine, WorkerExited(2, 1)) == [
        CommandWorker(0, "close"),
        CommandWorker(1, "close"),
    ]
    assert after(machine, WorkerClosed(0), WorkerClosed(1)) == [
        CommandWorker(0, "leave"),
        CommandWorker(1, "leave"),
    ]
    assert after(machine, WorkerExited(0, 0), WorkerExited(1, 0)) == [EndUnit(1)]


@pytest.mark.parametrize("code", worker_group.PERMANENT)
def test_a_permanent_failure_ends_the_unit_later_too(code: int) -> None:
    machine = ready(2)
    after(machine, WorkerExited(1, -9))
    assert machine.tick(0.5) == [SpawnWorker(1, again=True)]
    assert after(machine, WorkerExited(1, code), now=1.0) == [CommandWorker(0, "close")]
    assert after(machine, WorkerClosed(0), WorkerExited(0, 0), now=1.0) == [EndUnit(code)]


def test_an_application_that_ends_while_it_loads_has_failed() -> None:
    machine = WorkerGroup(2)
    assert after(machine, StartUnit(), WorkerExited(0, 0)) == [EndUnit(worker_group.FAILED)]


def test_pauses_double_up_to_a_bound_and_are_short_again_after_a_minute_of_readiness() -> None:
    machine, now, seconds = ready(), 10.0, []
    for _ in range(9):
        [rests] = machine.handle(WorkerExited(2, -9), now)
        assert isinstance(rests, RestartLater)
        seconds.append(rests.seconds)
        assert machine.deadline() == now + rests.seconds
        assert machine.tick(now + 0.999 * rests.seconds) == []
        now += rests.seconds
        assert machine.tick(now) == [SpawnWorker(2, again=True)]
        after(machine, WorkerServing(2, 40.0), WorkerReady(2), now=now)
        now += worker_group.RAN_WELL_S - 1
    assert seconds == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    now += 1.0
    assert after(machine, WorkerExited(2, -9), now=now) == [RestartLater(2, -9, 0.5)]


def test_a_worker_that_never_stays_is_started_again_for_ever() -> None:
    machine, now = ready(2), 0.0
    for _ in range(2_000):
        now += worker_group.LONGEST_PAUSE_S
        assert machine.handle(WorkerExited(1, -11), now)
        now += worker_group.LONGEST_PAUSE_S
        assert machine.tick(now) == [SpawnWorker(1, again=True)]


def test_a_worker_that_left_by_order_is_not_restarted() -> None:
    machine = ready(2)
    assert after(machine, WorkerLeaves(0), WorkerExited(0, 0)) == []
    assert machine.deadline() is None
    assert machine.ready
    assert after(machine, WorkerLeaves(1), WorkerExited(1, 0)) == [EndUnit(0)]


@pytest.mark.parametrize("code", [0, 1, 2, 3, 7, 255])
def test_no_exit_code_of_a_worker_that_was_ready_ends_the_unit(code: int) -> None:
    machine = ready(2)
    assert after(machine, WorkerExited(1, code)) == [RestartLater(1, code, 0.5)]
    assert machine.tick(0.5) == [SpawnWorker(1, again=True)]
    assert not machine.leaving


@pytest.mark.parametrize("code", [0, 2, 3, 255])
def test_no_handler_of_a_worker_that_is_ready_first_ends_the_unit(code: int) -> None:
    machine = WorkerGroup(2)
    after(machine, StartUnit(), WorkerServing(0, 40.0), WorkerReady(0), WorkerServing(1, 40.0))
    assert after(machine, WorkerExited(0, code)) == [RestartLater(0, code, 0.5)]


def test_a_worker_that_left_once_is_restarted_as_any_other() -> None:
    machine = ready(2)
    after(machine, WorkerLeaves(1), WorkerExited(1, -9))
    machine.tick(0.5)
    after(machine, WorkerServing(1, 40.0), WorkerReady(1))
    assert after(machine, WorkerExited(1, 0)) == [RestartLater(1, 0, 1.0)]


def test_all_close_before_the_first_leaves() -> None:
    machine = ready(2)
    assert after(machine, LeaveUnit()) == [CommandWorker(0, "close"), CommandWorker(1, "close")]
    assert after(machine, WorkerClosed(1)) == []
    assert after(machine, WorkerClosed(0)) == [CommandWorker(0, "leave"), CommandWorker(1, "leave")]
    assert after(machine, WorkerExited(0, 0)) == []
    assert after(machine, WorkerExited(1, 7)) == [EndUnit(7)]


def test_a_worker_that_does_not_close_delays_the_others_for_5_s_at_most() -> None:
    machine = ready(2)
    after(machine, LeaveUnit(), WorkerClosed(1))
    assert machine.deadline() == worker_group.CLOSE_S
    assert machine.tick(worker_group.CLOSE_S) == [
        CommandWorker(0, "leave"),
        CommandWorker(1, "leave"),
    ]


def test_a_worker_that_dies_while_closing_does_not_delay_the_others() -> None:
    machine = ready(2)
    after(machine, LeaveUnit(), WorkerClosed(1))
    assert after(machine, WorkerExited(0, -9)) == [CommandWorker(1, "leave")]
    assert after(machine, WorkerExited(1, 0)) == [EndUnit(worker_group.FAILED)]


def test_a_worker_that_rests_or_starts_does_not_delay_the_end() -> None:
    machine = ready()
    after(machine, WorkerExited(0, -9), WorkerExited(1, -9))
    assert machine.tick(0.5) == [SpawnWorker(0, again=True), SpawnWorker(1, again=True)]
    after(machine, WorkerExited(1, -9), now=0.5)
    assert after(machine, LeaveUnit(), now=0.5) == [
        CommandWorker(2, "close"),
        CommandWorker(0, "leave"),
    ]
    assert machine.states[1].stage is WorkerStage.GONE


def test_a_worker_that_exceeds_its_deadline_is_killed() -> None:
    machine = ready(2)
    after(machine, LeaveUnit(), WorkerClosed(0), WorkerClosed(1))
    late = 40.0 + worker_group.LEAVE_MARGIN_S
    assert machine.deadline() == late
    after(machine, WorkerExited(0, 0))
    assert machine.tick(late) == [KillWorker(1)]
    assert after(machine, WorkerExited(1, -9), now=late) == [EndUnit(worker_group.NOT_DRAINED)]


def test_a_second_signal_stops_all_at_once() -> None:
    machine = ready(2)
    after(machine, LeaveUnit())
    assert after(machine, LeaveUnit()) == [CommandWorker(0, "stop"), CommandWorker(1, "stop")]
    assert after(machine, LeaveUnit()) == []
    assert machine.tick(worker_group.STOP_S) == [KillWorker(0), KillWorker(1)]
    assert after(machine, WorkerExited(0, 1), WorkerExited(1, -9)) == [EndUnit(worker_group.FAILED)]


def test_the_first_signal_to_a_unit_that_ends_by_itself_does_not_hurry_it() -> None:
    machine = ready(2)
    after(machine, WorkerExited(1, -9))
    machine.tick(0.5)
    after(machine, WorkerExited(1, 3))
    assert after(machine, LeaveUnit()) == []
    assert after(machine, LeaveUnit()) == [CommandWorker(0, "stop")]


STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from([-9, 0, 1, 3, 7])))


@given(STEPS)
def test_in_any_order_a_unit_ends_once_and_leaves_no_worker(
    steps: list[tuple[int, int, int]],
) -> None:
    """Processes end in any order; afterwards the unit leaves, and no worker stays."""
    machine, now, running = WorkerGroup(3), 0.0, set[int]()
    end: list[int] = []

    def take(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SpawnWorker):
                assert effect.worker not in running
                running.add(effect.worker)
            elif isinstance(effect, CommandWorker | KillWorker):
                assert effect.worker in running
        end.extend(ends(effects))
        machine.check()

    take(machine.handle(StartUnit(), now))
    for what, worker, code in [*steps, (4, 0, 0)]:
        if end:
            break
        now += 1.0
        if what == 4:
            take(machine.handle(LeaveUnit(), now))
        elif what == 5:
            take(machine.tick(now))
        elif worker in running:
            if what == 3:
                running.discard(worker)
            take(machine.handle(event(what, worker, code), now))
    for worker in sorted(running):
        take(machine.handle(WorkerExited(worker, 0), now))
    assert len(end) == 1
    assert all(state.stage is WorkerStage.GONE for state in machine.states)


def event(what: int, worker: int, code: int) -> Event:
    return (
        WorkerServing(worker, 40.0),
        WorkerReady(worker),
        WorkerClosed(worker),
        WorkerExited(worker, code),
    )[what]
