"""The actions of a unit on its workers: `shardbus_cli.workers.worker_group`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus_cli.children.group import (
    FAILED,
    RAN_WELL_S,
    AllReady,
    ChildClosed,
    ChildEffect,
    ChildEvent,
    ChildExited,
    ChildLeaves,
    ChildReady,
    ChildServes,
    CommandChild,
    EndAll,
    Ending,
    Interrupt,
    KillChild,
    RestartLater,
    SpawnChild,
    StartAll,
    Word,
)
from shardbus_cli.workers import worker_group
from shardbus_cli.workers.worker_group import WorkerGroup, WorkerStage


def spawned(worker: int, workers: int, *, joins: bool = True) -> SpawnChild:
    """The start of a worker that joins by all, or founds the cluster."""
    return SpawnChild(worker, worker, tuple(range(workers)) if joins else ())


def after(machine: WorkerGroup, *events: ChildEvent, now: float = 0.0) -> list[ChildEffect]:
    """The effects of the last of these events."""
    effects: list[ChildEffect] = []
    for event in events:
        effects = machine.handle(event, now)
        machine.check()
    return effects


def ready(workers: int = 3) -> WorkerGroup:
    """A unit that is."""
    machine = WorkerGroup(workers)
    after(machine, StartAll(), ChildServes(0, 40.0))
    after(machine, *(ChildServes(n, 40.0) for n in range(1, workers)))
    assert after(machine, *(ChildReady(n) for n in range(workers))) == [AllReady()]
    return machine


def ends(effects: Iterable[ChildEffect]) -> list[int]:
    return [effect.code for effect in effects if isinstance(effect, EndAll)]


def test_worker_0_goes_first_and_alone() -> None:
    machine = WorkerGroup(3)
    assert after(machine, StartAll()) == [spawned(0, 3, joins=False)]
    others = [spawned(1, 3), spawned(2, 3)]
    assert after(machine, ChildServes(0, 40.0)) == others
    assert after(machine, ChildServes(1, 40.0)) == []


def test_a_unit_is_announced_once_when_the_last_is_ready() -> None:
    machine = ready()
    after(machine, ChildExited(1, -9))
    machine.tick(0.5)
    assert after(machine, ChildServes(1, 40.0), ChildReady(1)) == []
    assert machine.ready


def test_a_unit_that_leaves_is_not_announced() -> None:
    machine = WorkerGroup(1)
    after(machine, StartAll(), ChildServes(0, 40.0), Interrupt())
    assert after(machine, ChildReady(0)) == []
    assert not machine.announced


@pytest.mark.parametrize("code", [1, 2, 3, 4, 6])
def test_a_start_that_fails_ends_the_unit_with_its_code(code: int) -> None:
    machine = WorkerGroup(3)
    after(machine, StartAll())
    assert after(machine, ChildExited(0, code)) == [EndAll(code)]


def test_a_failed_start_of_one_worker_lets_the_others_leave() -> None:
    machine = WorkerGroup(3)
    after(machine, StartAll(), ChildServes(0, 40.0), ChildServes(1, 40.0))
    assert after(machine, ChildExited(2, 1)) == [
        CommandChild(0, Word.CLOSE),
        CommandChild(1, Word.CLOSE),
    ]
    assert after(machine, ChildClosed(0), ChildClosed(1)) == [
        CommandChild(0, Word.LEAVE),
        CommandChild(1, Word.LEAVE),
    ]
    assert after(machine, ChildExited(0, 0), ChildExited(1, 0)) == [EndAll(1)]


@pytest.mark.parametrize("code", worker_group.PERMANENT)
def test_a_permanent_failure_ends_the_unit_later_too(code: int) -> None:
    machine = ready(2)
    after(machine, ChildExited(1, -9))
    assert machine.tick(0.5) == [spawned(1, 2)]
    assert after(machine, ChildExited(1, code), now=1.0) == [CommandChild(0, Word.CLOSE)]
    assert after(machine, ChildClosed(0), ChildExited(0, 0), now=1.0) == [EndAll(code)]


def test_an_application_that_ends_while_it_loads_has_failed() -> None:
    machine = WorkerGroup(2)
    assert after(machine, StartAll(), ChildExited(0, 0)) == [EndAll(FAILED)]


def test_pauses_double_up_to_a_bound_and_are_short_again_after_a_minute_of_readiness() -> None:
    machine, now, seconds = ready(), 10.0, []
    for _ in range(9):
        [rests] = machine.handle(ChildExited(2, -9), now)
        assert isinstance(rests, RestartLater)
        seconds.append(rests.seconds)
        assert machine.deadline() == now + rests.seconds
        assert machine.tick(now + 0.999 * rests.seconds) == []
        now += rests.seconds
        assert machine.tick(now) == [spawned(2, 3)]
        after(machine, ChildServes(2, 40.0), ChildReady(2), now=now)
        now += RAN_WELL_S - 1
    assert seconds == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    now += 1.0
    assert after(machine, ChildExited(2, -9), now=now) == [RestartLater(2, -9, 0.5)]


def test_a_worker_that_never_stays_is_started_again_for_ever() -> None:
    machine, now = ready(2), 0.0
    for _ in range(2_000):
        now += worker_group.LONGEST_PAUSE_S
        assert machine.handle(ChildExited(1, -11), now)
        now += worker_group.LONGEST_PAUSE_S
        assert machine.tick(now) == [spawned(1, 2)]


def test_a_worker_that_left_by_order_is_not_restarted() -> None:
    machine = ready(2)
    assert after(machine, ChildLeaves(0), ChildExited(0, 0)) == []
    assert machine.deadline() is None
    assert machine.ready
    assert after(machine, ChildLeaves(1), ChildExited(1, 0)) == [EndAll(0)]


@pytest.mark.parametrize("code", [0, 1, 2, 3, 7, 255])
def test_no_exit_code_of_a_worker_that_was_ready_ends_the_unit(code: int) -> None:
    machine = ready(2)
    assert after(machine, ChildExited(1, code)) == [RestartLater(1, code, 0.5)]
    assert machine.tick(0.5) == [spawned(1, 2)]
    assert not machine.leaving


@pytest.mark.parametrize("code", [0, 2, 3, 255])
def test_no_handler_of_a_worker_that_is_ready_first_ends_the_unit(code: int) -> None:
    machine = WorkerGroup(2)
    after(machine, StartAll(), ChildServes(0, 40.0), ChildReady(0), ChildServes(1, 40.0))
    assert after(machine, ChildExited(0, code)) == [RestartLater(0, code, 0.5)]


def test_a_worker_that_left_once_is_restarted_as_any_other() -> None:
    machine = ready(2)
    after(machine, ChildLeaves(1), ChildExited(1, -9))
    machine.tick(0.5)
    after(machine, ChildServes(1, 40.0), ChildReady(1))
    assert after(machine, ChildExited(1, 0)) == [RestartLater(1, 0, 1.0)]


def test_all_close_before_the_first_leaves() -> None:
    machine = ready(2)
    closes = [CommandChild(0, Word.CLOSE), CommandChild(1, Word.CLOSE)]
    assert after(machine, Interrupt()) == [Ending(), *closes]
    assert after(machine, ChildClosed(1)) == []
    assert after(machine, ChildClosed(0)) == [
        CommandChild(0, Word.LEAVE),
        CommandChild(1, Word.LEAVE),
    ]
    assert after(machine, ChildExited(0, 0)) == []
    assert after(machine, ChildExited(1, 7)) == [EndAll(7)]


def test_a_worker_that_does_not_close_delays_the_others_for_5_s_at_most() -> None:
    machine = ready(2)
    after(machine, Interrupt(), ChildClosed(1))
    assert machine.deadline() == worker_group.CLOSE_S
    assert machine.tick(worker_group.CLOSE_S) == [
        CommandChild(0, Word.LEAVE),
        CommandChild(1, Word.LEAVE),
    ]


def test_a_worker_that_dies_while_closing_does_not_delay_the_others() -> None:
    machine = ready(2)
    after(machine, Interrupt(), ChildClosed(1))
    assert after(machine, ChildExited(0, -9)) == [CommandChild(1, Word.LEAVE)]
    assert after(machine, ChildExited(1, 0)) == [EndAll(FAILED)]


def test_a_worker_that_rests_or_starts_does_not_delay_the_end() -> None:
    machine = ready()
    after(machine, ChildExited(0, -9), ChildExited(1, -9))
    assert machine.tick(0.5) == [spawned(0, 3), spawned(1, 3)]
    after(machine, ChildExited(1, -9), now=0.5)
    assert after(machine, Interrupt(), now=0.5) == [
        Ending(),
        CommandChild(2, Word.CLOSE),
        CommandChild(0, Word.LEAVE),
    ]
    assert machine.states[1].stage is WorkerStage.GONE


def test_a_worker_that_exceeds_its_deadline_is_killed() -> None:
    machine = ready(2)
    after(machine, Interrupt(), ChildClosed(0), ChildClosed(1))
    late = 40.0 + worker_group.LEAVE_MARGIN_S
    assert machine.deadline() == late
    after(machine, ChildExited(0, 0))
    assert machine.tick(late) == [KillChild(1)]
    assert after(machine, ChildExited(1, -9), now=late) == [EndAll(worker_group.NOT_DRAINED)]


def test_a_second_signal_stops_all_at_once() -> None:
    machine = ready(2)
    after(machine, Interrupt())
    assert after(machine, Interrupt()) == [CommandChild(0, Word.STOP), CommandChild(1, Word.STOP)]
    assert after(machine, Interrupt()) == []
    assert machine.tick(worker_group.STOP_S) == [KillChild(0), KillChild(1)]
    assert after(machine, ChildExited(0, 1), ChildExited(1, -9)) == [EndAll(FAILED)]


def test_the_first_signal_to_a_unit_that_ends_by_itself_does_not_hurry_it() -> None:
    machine = ready(2)
    after(machine, ChildExited(1, -9))
    machine.tick(0.5)
    after(machine, ChildExited(1, 3))
    assert after(machine, Interrupt()) == []
    assert after(machine, Interrupt()) == [CommandChild(0, Word.STOP)]


STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from([-9, 0, 1, 3, 7])))


@given(STEPS)
def test_in_any_order_a_unit_ends_once_and_leaves_no_worker(
    steps: list[tuple[int, int, int]],
) -> None:
    """Processes end in any order; afterwards the unit leaves, and no worker stays."""
    machine, now, running = WorkerGroup(3), 0.0, set[int]()
    end: list[int] = []

    def take(effects: list[ChildEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SpawnChild):
                assert effect.run not in running
                running.add(effect.run)
            elif isinstance(effect, CommandChild | KillChild):
                assert effect.run in running
        end.extend(ends(effects))
        machine.check()

    take(machine.handle(StartAll(), now))
    for what, worker, code in [*steps, (4, 0, 0)]:
        if end:
            break
        now += 1.0
        if what == 4:
            take(machine.handle(Interrupt(), now))
        elif what == 5:
            take(machine.tick(now))
        elif worker in running:
            if what == 3:
                running.discard(worker)
            take(machine.handle(event(what, worker, code), now))
    for worker in sorted(running):
        take(machine.handle(ChildExited(worker, 0), now))
    assert len(end) == 1
    assert all(state.stage is WorkerStage.GONE for state in machine.states)


def event(what: int, worker: int, code: int) -> ChildEvent:
    return (
        ChildServes(worker, 40.0),
        ChildReady(worker),
        ChildClosed(worker),
        ChildExited(worker, code),
    )[what]
