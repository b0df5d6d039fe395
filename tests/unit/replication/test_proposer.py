from __future__ import annotations

import pytest

from shardbus.replication.functions import expire
from shardbus.replication.messages import (
    ZERO,
    AcceptValue,
    Ballot,
    No,
    PrepareBallot,
    RowShown,
)
from shardbus.replication.proposer import (
    RESEND_S,
    ChangeValue,
    Completed,
    LoadState,
    Outdated,
    Proposer,
    ReadValue,
    SaveState,
    SendCall,
    Unanswered,
)
from shardbus.replication.ring import RingMember, StoreCall, StoreReply, next_ring
from shardbus.replication.values import (
    LeaseValue,
    RemindersValue,
    SavedReminders,
    StateValue,
    Unchanged,
    Value,
    Written,
    lease_key,
    state_key,
    table_key,
)
from tests.unit.replication.replicas_kit import Replicas

KEY = state_key("order", "o-1")
TABLE = table_key("order")


@pytest.fixture
def replicas() -> Replicas:
    return Replicas()


def test_a_load_takes_two_rounds_and_a_save_in_its_group_one(replicas: Replicas) -> None:
    store = replicas.store()
    assert replicas.rounds(store, KEY, LoadState(1)) == 2
    assert [replicas.rounds(store, KEY, SaveState(1, op, b"a")) for op in (1, 2, 3)] == [1, 1, 1]
    assert replicas.rounds(store, KEY, ReadValue()) == 1
    assert replicas.done(store, KEY, ReadValue()).value == StateValue(3, b"a")


def test_a_later_fence_loads_the_last_save_and_outdates_the_former_owner(
    replicas: Replicas,
) -> None:
    former, later = replicas.store(), replicas.store()
    replicas.done(former, KEY, LoadState(1))
    replicas.done(former, KEY, SaveState(1, 1, b"a"))
    assert replicas.done(later, KEY, LoadState(2)) == StateValue(1, b"a")
    assert replicas.run(former, KEY, SaveState(1, 2, b"b")) == Outdated(2)
    assert replicas.run(former, KEY, LoadState(1)) == Outdated(2)
    assert replicas.done(later, KEY, SaveState(2, 3, b"c")) is None
    assert replicas.done(former, KEY, ReadValue()).value == StateValue(3, b"c")


def test_a_save_on_one_disk_does_not_appear_after_a_load_without_it(replicas: Replicas) -> None:
    former, later = replicas.store(), replicas.store()
    replicas.done(former, KEY, LoadState(1))
    replicas.down = {2, 3}
    assert replicas.run(former, KEY, SaveState(1, 1, b"late")) == Unanswered(sent=True)
    replicas.down = {1}
    assert replicas.done(later, KEY, LoadState(2)) is None
    replicas.down = {2}
    assert replicas.done(later, KEY, ReadValue()).value is None
    assert replicas.done(replicas.store(), KEY, LoadState(3)) is None


def test_a_save_without_an_answer_keeps_its_ballot(replicas: Replicas) -> None:
    store = replicas.store()
    replicas.done(store, KEY, LoadState(1))
    replicas.down = {2, 3}
    replicas.run(store, KEY, SaveState(1, 1, b"a"))
    first = replicas.registers[1].row(KEY)
    replicas.down = set()
    assert replicas.run(store, KEY, SaveState(1, 1, b"a")) == Completed(None)
    assert {registers.row(KEY) for registers in replicas.registers.values()} == {first}


def test_a_save_that_is_called_again_does_not_pass_a_later_one(replicas: Replicas) -> None:
    """The first is on disk 1 alone, the second on the others. Called again, it is the last write:
    every majority must say so."""
    store = replicas.store()
    replicas.done(store, KEY, LoadState(1))
    replicas.down = {2, 3}
    replicas.run(store, KEY, SaveState(1, 1, b"a"))
    replicas.down = {1}
    replicas.done(store, KEY, SaveState(1, 2, b"b"))
    replicas.down = {3}
    replicas.done(store, KEY, SaveState(1, 1, b"a"))
    for down in (1, 2, 3):
        replicas.down = {down}
        assert replicas.done(replicas.store(), KEY, ReadValue()).value == StateValue(1, b"a")


def test_a_save_that_another_store_object_has_settled_is_not_applied_twice(
    replicas: Replicas,
) -> None:
    store, other = replicas.store(), replicas.store()
    replicas.done(store, KEY, LoadState(1))
    replicas.down = {2, 3}
    replicas.run(store, KEY, SaveState(1, 1, b"a"))
    replicas.down = {3}

    def expire(value: Value) -> Written | Unchanged:
        assert isinstance(value, StateValue)
        return Written(StateValue(value.op, None, None, 7), True)

    assert replicas.done(other, KEY, ChangeValue(0, expire)) is True
    replicas.down = set()
    assert replicas.done(store, KEY, SaveState(1, 1, b"a")) is None
    assert replicas.done(other, KEY, ReadValue()).value == StateValue(1, None, None, 7)


def test_a_save_that_its_successor_has_loaded_is_done(replicas: Replicas) -> None:
    former, later = replicas.store(), replicas.store()
    replicas.done(former, KEY, LoadState(1))
    replicas.down = {2, 3}
    replicas.run(former, KEY, SaveState(1, 1, b"a"))
    replicas.down = {3}
    assert replicas.done(later, KEY, LoadState(2)) == StateValue(1, b"a")
    assert replicas.run(former, KEY, SaveState(1, 1, b"a")) == Completed(None)


def test_a_save_needs_as_many_disks_as_it_says(replicas: Replicas) -> None:
    store = replicas.store()
    replicas.done(store, KEY, LoadState(1))
    replicas.down = {3}
    assert replicas.run(store, KEY, SaveState(1, 1, b"a", copies=3)) == Unanswered(sent=True)
    replicas.down = set()
    assert replicas.run(store, KEY, SaveState(1, 1, b"a", copies=3)) == Completed(None)


def counted(value: Value) -> Written:
    number = int(value[0]) if isinstance(value, tuple) else 0  # type: ignore[call-overload]
    return Written((number + 1,), number + 1)


def test_a_change_takes_one_round_while_no_other_store_object_prepares(
    replicas: Replicas,
) -> None:
    first, other = replicas.store(), replicas.store()
    work = ChangeValue(0, counted)
    assert [replicas.rounds(first, TABLE, work) for _ in range(3)] == [2, 1, 1]
    assert replicas.done(other, TABLE, work) == 4
    assert replicas.done(first, TABLE, work) == 5
    assert replicas.done(other, TABLE, ChangeValue(0, lambda value: Unchanged(value))) == (5,)


def test_operations_on_a_key_wait_for_each_other(replicas: Replicas) -> None:
    store = replicas.store()
    replicas.down = {1, 2, 3}
    tickets = [replicas.begin(store, TABLE, ChangeValue(0, counted)) for _ in range(3)]
    assert store.busy == 3
    replicas.down = set()
    assert replicas.run(store, TABLE, ReadValue()) == Completed(((3,), 0.0))
    assert [replicas.outcomes[ticket] for ticket in tickets] == [
        Completed(1),
        Completed(2),
        Completed(3),
    ]


def test_an_operation_that_waited_too_long_was_not_sent(replicas: Replicas) -> None:
    store = replicas.store()
    replicas.down = {1, 2, 3}
    first = replicas.begin(store, TABLE, ChangeValue(0, counted))
    assert replicas.run(store, TABLE, ReadValue()) == Unanswered(sent=False)
    assert replicas.outcomes[first] == Unanswered(sent=True)
    assert store.busy == 0


def test_a_forgotten_group_costs_a_promise_and_nothing_else(replicas: Replicas) -> None:
    store = replicas.store()
    store._groups_max = 1
    replicas.done(store, KEY, LoadState(1))
    replicas.done(store, state_key("order", "o-2"), LoadState(1))
    assert replicas.rounds(store, KEY, SaveState(1, 1, b"a")) == 2
    assert replicas.rounds(store, KEY, SaveState(1, 2, b"b")) == 1


def one_disk_has(replicas: Replicas, disk: int) -> None:
    """A save of op 1 is on this disk alone, without an answer."""
    store = replicas.store()
    replicas.done(store, KEY, LoadState(1))
    replicas.down = {1, 2, 3} - {disk}
    assert replicas.run(store, KEY, SaveState(1, 1, b"a")) == Unanswered(sent=True)


def test_a_read_settles_a_value_that_no_majority_has(replicas: Replicas) -> None:
    one_disk_has(replicas, 1)
    replicas.down = {3}
    assert replicas.done(replicas.store(), KEY, ReadValue()).value == StateValue(1, b"a")
    replicas.down = {1}
    assert replicas.done(replicas.store(), KEY, ReadValue()).value == StateValue(1, b"a")


def test_a_value_that_was_merged_below_a_promise_is_not_chosen(replicas: Replicas) -> None:
    """A load has its promises, which do not show the save; a disk that promised merges the save. A
    read of it must not return the save, because the load may still store the value before."""
    one_disk_has(replicas, 1)
    promise = Ballot(2, 0, 99, 1)
    for disk in (2, 3):
        replicas.registers[disk].handle(PrepareBallot(KEY, promise), 0.0)
    replicas.registers[2].merge(KEY, replicas.registers[1].row(KEY), 0.0)
    replicas.down = {3}
    assert replicas.done(replicas.store(), KEY, ReadValue()).value == StateValue(1, b"a")
    load = AcceptValue(KEY, promise, None)
    answers = [replicas.registers[disk].handle(load, 0.0) for disk in (2, 3)]
    assert isinstance(answers[0], No), "the read has settled what it returned"


def test_a_refusal_is_one_once_a_value_is_chosen_under_the_higher_fence(
    replicas: Replicas,
) -> None:
    """Disk 1 has a save; a load that died has promises of the others. Its owner settles, and finds
    it: done. A load that comes then must show it."""
    store = replicas.store()
    replicas.done(store, KEY, LoadState(1))
    for disk in (2, 3):
        replicas.registers[disk].handle(PrepareBallot(KEY, Ballot(2, 0, 99, 1)), 0.0)
    assert replicas.run(store, KEY, SaveState(1, 1, b"a")) == Completed(None)
    assert replicas.done(replicas.store(), KEY, LoadState(3)) == StateValue(1, b"a")


def test_a_refused_save_has_no_effect_later(replicas: Replicas) -> None:
    store = replicas.store()
    replicas.done(store, KEY, LoadState(1))
    for disk in (1, 2, 3):
        replicas.registers[disk].handle(PrepareBallot(KEY, Ballot(2, 0, 99, 1)), 0.0)
    assert replicas.run(store, KEY, SaveState(1, 1, b"a")) == Outdated(2)
    promises = {registers.row(KEY).ballot for registers in replicas.registers.values()}
    assert len(promises) == 1
    assert promises.pop() > Ballot(2, 0, 99, 1)


def test_a_group_ends_with_the_ring(replicas: Replicas) -> None:
    store = replicas.store()
    replicas.done(store, KEY, LoadState(1))
    ring = next_ring(replicas.ring, (*replicas.ring.members[:2], RingMember(9)))
    store.take_ring(ring, replicas.now)
    replicas.ring = ring
    replicas.registers[9] = replicas.registers[3]
    assert replicas.rounds(store, KEY, SaveState(1, 1, b"a")) == 2


def test_an_operation_begins_its_round_anew_in_a_new_ring(replicas: Replicas) -> None:
    store = replicas.store()
    replicas.done(store, KEY, LoadState(1))
    replicas.down = {1, 2, 3}
    replicas.begin(store, KEY, SaveState(1, 1, b"a"))
    ring = next_ring(replicas.ring, (*replicas.ring.members[:2], RingMember(9)))
    sent = [
        effect.call.request
        for effect in store.take_ring(ring, replicas.now)
        if isinstance(effect, SendCall) and isinstance(effect.call, StoreCall)
    ]
    assert [type(request) for request in sent] == [PrepareBallot] * 3


def test_answers_of_another_ring_do_not_count(replicas: Replicas) -> None:
    store = replicas.store()
    effects = store.submit(1, KEY, ReadValue(), 0.0, 5.0)
    number = next(e.call.number for e in effects if isinstance(e, SendCall) and e.disk == 1)  # type: ignore[union-attr]
    shown = RowShown(ZERO, ZERO, None, 0.0)
    for disk in (1, 2, 3):
        assert store.handle(StoreReply(number, disk, 2, shown), 0.0) == []
    assert store.handle(StoreReply(number, 1, 1, shown), 0.0) == []
    assert store.handle(StoreReply(number, 2, 1, shown), 0.0) != []


def resent_after(store: Proposer, now: float) -> float:
    """Begin a read at `now`, and return the seconds until its requests are sent again."""
    store.submit(now, KEY, ReadValue(), now, 50.0)
    due = store.deadline()
    assert due is not None
    return due - now


def answer_after(store: Proposer, now: float, seconds: float) -> None:
    """Read once, with answers that come after so many seconds."""
    effects = store.submit(now, KEY, ReadValue(), now, 50.0)
    shown = RowShown(ZERO, ZERO, None, 0.0)
    for effect in effects:
        assert isinstance(effect, SendCall)
        assert isinstance(effect.call, StoreCall)
        store.handle(StoreReply(effect.call.number, effect.disk, 1, shown), now + seconds)


def test_a_round_of_busy_disks_is_not_sent_again_before_its_usual_time(replicas: Replicas) -> None:
    store = replicas.store()
    for now in range(100):
        answer_after(store, float(now), 0.1)
    assert resent_after(store, 200.0) == pytest.approx(0.4, abs=0.01)
    idle = replicas.store()
    answer_after(idle, 0.0, 0.001)
    assert resent_after(idle, 1.0) == pytest.approx(RESEND_S)


def test_a_stall_is_soon_forgotten(replicas: Replicas) -> None:
    store = replicas.store()
    answer_after(store, 0.0, 40.0)
    assert resent_after(store, 100.0) <= 0.25


def test_the_age_of_a_lease_goes_on_when_it_is_settled(replicas: Replicas) -> None:
    key, lease = lease_key("shard"), LeaseValue("n1", 1, 0, 10.0, 7)
    replicas.registers[1].handle(AcceptValue(key, Ballot(0, 0, 1, 1), lease), 0.0)
    replicas.now, replicas.down = 4.0, {3}
    assert replicas.done(replicas.store(), key, ReadValue()).age == 4.0
    replicas.now, replicas.down = 6.0, {1}
    replicas.registers[3].merge(key, replicas.registers[2].row(key), 6.0, 6.0)
    assert replicas.done(replicas.store(), key, ReadValue()).age == 6.0


def test_a_group_that_no_majority_has_promised_is_not_ours(replicas: Replicas) -> None:
    store = replicas.store()
    replicas.down = {1, 2, 3}
    assert replicas.run(store, KEY, LoadState(1)) == Unanswered(sent=True)
    replicas.down = set()
    assert replicas.rounds(store, KEY, SaveState(1, 1, b"a")) == 2


# -- reminders in the row of a state

REMINDERS = SavedReminders("7", 50, b"r", alone=False)
ALONE = REMINDERS._replace(alone=True)
KEPT = RemindersValue("7", 50, b"r")


def test_a_save_without_reminders_keeps_them_in_one_round(replicas: Replicas) -> None:
    store = replicas.store()
    replicas.done(store, KEY, LoadState(1))
    assert replicas.rounds(store, KEY, SaveState(1, 1, b"a", 0, REMINDERS)) == 1
    assert replicas.rounds(store, KEY, SaveState(1, 2, b"b")) == 1
    assert replicas.rounds(store, KEY, SaveState(1, 3, None, 0, ALONE._replace(due=60))) == 1
    state = replicas.done(store, KEY, ReadValue()).value
    assert state == StateValue(3, b"b", reminders=KEPT._replace(due=60))
    assert replicas.rounds(store, KEY, SaveState(1, 4, None, 0, ALONE._replace(record=None))) == 1
    assert replicas.rounds(store, KEY, SaveState(1, 5, b"c")) == 1
    assert replicas.done(replicas.store(), KEY, ReadValue()).value == StateValue(5, b"c")


def test_the_next_owner_keeps_reminders_that_it_did_not_save(replicas: Replicas) -> None:
    former, later = replicas.store(), replicas.store()
    replicas.done(former, KEY, SaveState(1, 1, b"a", 0, REMINDERS))
    assert replicas.done(later, KEY, LoadState(2)) == StateValue(1, b"a", reminders=KEPT)
    assert replicas.rounds(later, KEY, SaveState(2, 2, b"b")) == 1
    assert replicas.done(later, KEY, ReadValue()).value == StateValue(2, b"b", reminders=KEPT)
    anew = replicas.store()
    assert replicas.done(anew, KEY, SaveState(3, 3, b"c")) is None
    assert replicas.done(anew, KEY, ReadValue()).value == StateValue(3, b"c", reminders=KEPT)


@pytest.mark.parametrize("second", [SaveState(1, 2, b"b"), SaveState(1, 2, None, 0, ALONE)])
def test_a_save_of_a_part_goes_on_from_no_save_without_an_answer(
    replicas: Replicas, second: SaveState
) -> None:
    """The first save is on disk 1 alone. A later one takes its part, or excludes it."""
    for down in ({2}, {1}):
        key = state_key("order", f"o-{down}")
        store = replicas.store()
        replicas.done(store, key, SaveState(1, 9, b"z"))
        replicas.down = {2, 3}
        replicas.run(store, key, SaveState(1, 1, b"a", 0, REMINDERS))
        replicas.down = down
        replicas.done(store, key, second)
        replicas.down = set()
        state = replicas.done(replicas.store(), key, ReadValue()).value
        seen = replicas.registers[2 if down == {1} else 1].row(key).value
        assert state == seen
        taken = down == {2}
        alone = second.reminders is not None
        assert state.data == (b"b" if not alone else b"a" if taken else b"z")
        assert state.reminders == (KEPT if taken or alone else None)


@pytest.mark.parametrize("again", [SaveState(1, 2, b"b"), SaveState(1, 2, None, 0, ALONE)])
def test_a_save_of_a_part_that_is_called_again_is_applied_once(
    replicas: Replicas, again: SaveState
) -> None:
    store = replicas.store()
    replicas.done(store, KEY, SaveState(1, 1, b"a", 0, REMINDERS))
    replicas.down = {2, 3}
    assert replicas.run(store, KEY, again) == Unanswered(sent=True)
    replicas.down = set()
    assert replicas.run(store, KEY, again) == Completed(None)
    state = replicas.done(replicas.store(), KEY, ReadValue()).value
    assert state == StateValue(2, b"a" if again.reminders else b"b", reminders=KEPT)


def test_a_disk_that_was_away_does_not_take_a_part_of_a_row_for_the_row(
    replicas: Replicas,
) -> None:
    store = replicas.store()
    replicas.down = {3}
    replicas.done(store, KEY, SaveState(1, 1, b"a", 0, REMINDERS))
    replicas.down = {1}
    assert replicas.done(store, KEY, SaveState(1, 2, b"b")) is None
    replicas.down = {2}
    state = replicas.done(replicas.store(), KEY, ReadValue()).value
    assert state == StateValue(2, b"b", reminders=KEPT)


def test_a_look_at_a_state_does_not_hide_its_reminders(replicas: Replicas) -> None:
    replicas.done(replicas.store(), KEY, SaveState(1, 1, b"a", 0, REMINDERS))
    store = replicas.store()
    for _ in range(2):
        assert replicas.done(store, KEY, ChangeValue(0, expire(5.0, 1.0, 7))) is False
    assert replicas.done(store, KEY, SaveState(1, 2, b"b")) is None
    assert replicas.done(store, KEY, ReadValue()).value == StateValue(2, b"b", reminders=KEPT)


def test_an_expired_state_keeps_its_reminders(replicas: Replicas) -> None:
    store = replicas.store()
    replicas.done(store, KEY, SaveState(1, 1, b"a", 0, REMINDERS))
    assert replicas.done(store, KEY, ChangeValue(0, expire(9.0, 9.0, 7))) is True
    assert replicas.done(store, KEY, ReadValue()).value == StateValue(1, None, None, 7, KEPT)
    assert replicas.done(store, KEY, SaveState(1, 2, b"b")) is None
    assert replicas.done(store, KEY, ReadValue()).value == StateValue(2, b"b", reminders=KEPT)
