"""Gets and writes of replicated values at R and W disks of N."""

from __future__ import annotations

from itertools import count, product
from random import Random

import pytest

from shardbus.errors import ConfigError
from shardbus.replication.kinds import Counter, Register, Set
from shardbus.replication.messages import MergeValue, ReadRow, TakeChange
from shardbus.replication.proposer import Completed, SendCall, Unanswered
from shardbus.replication.quorum import (
    ALL,
    LEVELS,
    MAJORITY,
    MAJORITY_PLUS,
    DataEffect,
    DataOutcome,
    GetValue,
    Level,
    Quorums,
    RequestSettled,
    TooFewDisks,
    WriteValue,
    check_level,
    disks_needed,
)
from shardbus.replication.registers import Registers
from shardbus.replication.ring import RingMember, StoreCall, StoreReply, first_ring, next_ring
from shardbus.replication.values import data_key
from shardbus.replication.versions import DataChange, DataValue, NotTaken

KEY = data_key("k")
TIMEOUT_S = 5.0


class Disks:
    """Disks 1 to `disks`, and one store object. Requests arrive at once. `down`: disks that get
    nothing; `lossy`: disks of which the network loses answers. `sent` has all requests."""

    def __init__(self, disks: int = 3) -> None:
        members = tuple(RingMember(disk) for disk in range(1, disks + 1))
        self.ring = first_ring(members, disks)
        self.registers = {disk: Registers(disk) for disk in range(1, disks + 1)}
        self.rings = dict.fromkeys(self.registers, self.ring)
        self.quorums = Quorums(self.ring, Random(1))
        self.down: set[int] = set()
        self.lossy: set[int] = set()
        self.sent: list[tuple[int, object]] = []
        self.now = 0.0
        self.outcomes: dict[object, DataOutcome] = {}
        self._tickets = count(1)
        self.serve()

    def serve(self) -> None:
        self.carry(self.quorums.serve(frozenset(self.registers) - self.down, self.now))

    def begin(self, work: GetValue | WriteValue) -> int:
        ticket = next(self._tickets)
        self.carry(self.quorums.submit(ticket, KEY, work, self.now, TIMEOUT_S))
        return ticket

    def run(self, work: GetValue | WriteValue) -> DataOutcome:
        ticket = self.begin(work)
        while ticket not in self.outcomes:
            due = self.quorums.deadline()
            assert due is not None
            self.now = max(self.now, due)
            self.carry(self.quorums.tick(self.now))
        return self.outcomes[ticket]

    def value(self, work: GetValue | WriteValue) -> DataValue:
        outcome = self.run(work)
        assert isinstance(outcome, Completed), outcome
        assert isinstance(outcome.result, DataValue)
        return outcome.result

    def get(self, level: Level = MAJORITY) -> DataValue:
        return self.value(GetValue(level))

    def carry(self, effects: list[DataEffect]) -> None:
        queue = list(effects)
        while queue:
            self.quorums.check()
            match queue.pop(0):
                case RequestSettled(ticket, outcome):
                    assert ticket not in self.outcomes
                    self.outcomes[ticket] = outcome
                case SendCall(disk, StoreCall() as call):
                    self.sent.append((disk, call.request))
                    if disk in self.down:
                        continue
                    answer = self.registers[disk].handle(call.request, self.now)
                    self.registers[disk].check()
                    if disk not in self.lossy:
                        reply = StoreReply(call.number, disk, call.ring, answer)
                        queue += self.quorums.handle(reply, self.now)
        self.quorums.check()

    def has(self, disk: int) -> DataValue | None:
        value = self.registers[disk].row(KEY).value
        return value if isinstance(value, DataValue) else None

    def takes(self) -> list[int]:
        return [disk for disk, request in self.sent if isinstance(request, TakeChange)]


def adding(amount: int = 1) -> DataChange:
    change = Counter().add(amount).changes.change()
    assert change is not None
    return change


def putting(value: object) -> DataChange:
    change = Register().set(value).changes.change()
    assert change is not None
    return change


def test_levels_are_numbers_of_disks() -> None:
    assert [disks_needed(MAJORITY, n) for n in range(1, 8)] == [1, 2, 2, 3, 3, 4, 4]
    assert [disks_needed(MAJORITY_PLUS, n) for n in range(1, 8)] == [1, 2, 3, 4, 4, 5, 5]
    assert [disks_needed(ALL, n) for n in range(1, 8)] == list(range(1, 8))
    full = [
        (r, w) for r, w in product(range(1, 4), repeat=2)
        if disks_needed(r, 3) + disks_needed(w, 3) > 3
    ]  # fmt: skip
    assert full == [(1, 3), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3)]
    assert [check_level("w", level) for level in (*LEVELS, 1, "2", 9)] == [*LEVELS, 1, 2, 9]


@pytest.mark.parametrize("level", [0, -1, 10, 1.0, True, None, "most", "", "0", "-1", "10"])
def test_other_levels_are_refused(level: object) -> None:
    with pytest.raises(ConfigError, match="no number of replicas"):
        check_level("r", level)


def test_a_write_is_stamped_by_one_disk_and_sent_to_all() -> None:
    disks = Disks()
    value = disks.value(WriteValue(adding(), 1))
    [taker] = disks.takes()
    assert value.clock == ((taker, 1),)
    assert [disks.has(disk) for disk in (1, 2, 3)] == [value] * 3


def test_a_write_ends_with_w_disks_and_not_before() -> None:
    disks = Disks()
    disks.lossy = {2, 3}
    disks.carry(disks.quorums.serve(frozenset({1}), 0.0))
    outcome = disks.run(WriteValue(adding(), 2))
    assert outcome == Unanswered(sent=True)
    assert isinstance(disks.run(WriteValue(adding(), 1)), Completed)


@pytest.mark.parametrize("seed", range(5))
def test_a_get_returns_what_w_disks_have_and_repairs_the_others_first(seed: int) -> None:
    disks = Disks()
    disks.down = {1 + seed % 3}
    disks.serve()
    value = disks.value(WriteValue(putting(seed), MAJORITY))
    behind = min(disks.down)
    assert disks.has(behind) is None
    disks.down = {1 + (seed + 1) % 3}
    disks.serve()
    disks.sent.clear()
    assert disks.get() == value
    assert disks.has(behind) == value
    assert any(isinstance(request, MergeValue) for _, request in disks.sent)


def test_a_get_of_equal_values_writes_nothing() -> None:
    disks = Disks()
    disks.value(WriteValue(putting(1), ALL))
    disks.sent.clear()
    disks.get(ALL)
    assert {type(request) for _, request in disks.sent} == {ReadRow}


def test_a_get_does_not_end_while_a_disk_that_it_counts_is_behind() -> None:
    disks = Disks()
    disks.registers[1].handle(TakeChange(KEY, putting(1)), 0.0)

    def handle(effects: list[DataEffect]) -> list[StoreCall]:
        return [
            e.call for e in effects if isinstance(e, SendCall) and isinstance(e.call, StoreCall)
        ]

    calls = handle(disks.quorums.submit("get", KEY, GetValue(2), 0.0, TIMEOUT_S))
    effects: list[DataEffect] = []
    for disk, call in zip((1, 2), calls, strict=False):
        answer = disks.registers[disk].handle(call.request, 0.0)
        effects += disks.quorums.handle(StoreReply(call.number, disk, 1, answer), 0.0)
    assert not [e for e in effects if isinstance(e, RequestSettled)]
    repairs = {e.disk: e.call for e in effects if isinstance(e, SendCall)}
    assert set(repairs) == {2, 3}
    call = repairs[2]
    assert isinstance(call, StoreCall)
    answer = disks.registers[2].handle(call.request, 0.0)
    [settled] = disks.quorums.handle(StoreReply(call.number, 2, 1, answer), 0.0)
    assert isinstance(settled, RequestSettled)


def test_a_write_without_an_answer_is_in_doubt_and_not_taken_twice() -> None:
    disks = Disks()
    disks.lossy = {1, 2, 3}
    assert disks.run(WriteValue(adding(), MAJORITY)) == Unanswered(sent=True)
    assert len(disks.takes()) == 1
    disks.lossy = set()
    assert Counter(disks.get(ALL)).value == 1


def test_a_write_to_a_disk_that_goes_out_of_reach_is_in_doubt_at_once() -> None:
    disks = Disks()
    disks.lossy = {1, 2, 3}
    ticket = disks.begin(WriteValue(adding(), 1))
    [taker] = disks.takes()
    disks.down = {taker}
    disks.serve()
    assert disks.outcomes[ticket] == Unanswered(sent=True)


def test_a_write_without_a_disk_in_reach_has_no_effect_and_waits_for_one() -> None:
    disks = Disks()
    disks.down = {1, 2, 3}
    disks.serve()
    assert disks.run(WriteValue(adding(), 1)) == Unanswered(sent=False)
    ticket = disks.begin(WriteValue(adding(), 1))
    disks.down = {1}
    disks.serve()
    assert isinstance(disks.outcomes[ticket], Completed)


def test_a_write_that_the_network_has_not_taken_goes_to_another_disk() -> None:
    disks = Disks()
    effects = disks.quorums.submit(1, KEY, WriteValue(adding(), 1), 0.0, TIMEOUT_S)
    [effect] = effects
    assert isinstance(effect, SendCall)
    assert isinstance(effect.call, StoreCall)
    disks.quorums.on_unsent(effect.call.number, 0.0)
    while 1 not in disks.outcomes:
        disks.now = disks.quorums.deadline() or 0.0
        disks.carry(disks.quorums.tick(disks.now))
    assert isinstance(disks.outcomes[1], Completed)
    assert disks.takes() != [effect.disk]
    assert len(disks.takes()) == 1
    disks.quorums.on_unsent(effect.call.number, disks.now)


def test_a_get_without_answers_has_no_effect() -> None:
    disks = Disks()
    disks.down = {1, 2}
    disks.serve()
    assert disks.run(GetValue(2)) == Unanswered(sent=False)


def test_a_disk_that_does_not_answer_gets_no_further_writes_for_now() -> None:
    disks = Disks()
    disks.lossy = {1}
    while 1 not in disks.takes():
        disks.run(WriteValue(adding(), 1))
    disks.sent.clear()
    for _ in range(20):
        assert isinstance(disks.run(WriteValue(adding(), 2)), Completed)
    assert 1 not in disks.takes()
    disks.lossy = set()
    disks.get(ALL)
    for _ in range(20):
        disks.run(WriteValue(adding(), 2))
    assert 1 in disks.takes()


def test_a_refusal_reaches_the_writer_and_changes_nothing() -> None:
    disks = Disks()
    before = disks.value(WriteValue(adding(), ALL))
    outcome = disks.run(WriteValue(putting(1), MAJORITY))
    assert outcome == NotTaken("kind", "counter")
    assert disks.get(ALL) == before


def test_a_level_above_the_number_of_disks_does_nothing() -> None:
    disks = Disks()
    assert disks.run(WriteValue(adding(), 4)) == TooFewDisks(4, 3)
    assert disks.run(GetValue(4)) == TooFewDisks(4, 3)
    assert disks.sent == []


def test_a_disk_with_a_newer_ring_gets_the_write_again_and_once() -> None:
    disks = Disks()
    disks.lossy = {1, 2, 3}
    ticket = disks.begin(WriteValue(adding(), 1))
    [taker] = disks.takes()
    disks.registers = {disk: Registers(disk) for disk in disks.registers}  # refused: not taken
    disks.lossy = set()
    later = next_ring(disks.ring, disks.ring.members)
    disks.carry(disks.quorums.on_refused(taker, later, 0.0))
    assert isinstance(disks.outcomes[ticket], Completed)
    disks.carry(disks.quorums.on_refused(taker, later, 0.0))
    assert len(disks.takes()) == 2
    assert Counter(disks.get(ALL)).value == 1


def test_a_write_that_was_sent_under_the_new_ring_is_not_sent_again() -> None:
    disks = Disks()
    later = next_ring(disks.ring, disks.ring.members)
    disks.carry(disks.quorums.take_ring(later, 0.0))
    disks.lossy = {1, 2, 3}
    disks.begin(WriteValue(adding(), 1))
    [taker] = disks.takes()
    disks.carry(disks.quorums.on_refused(taker, later, 0.0))
    assert disks.takes() == [taker]


def test_a_removal_counts_at_a_disk_that_has_not_seen_the_element() -> None:
    disks = Disks()
    added = Set().add("a").changes.change()
    assert added is not None
    disks.down = {3}
    disks.serve()
    value = disks.value(WriteValue(added, MAJORITY))
    disks.down = set()
    disks.carry(disks.quorums.serve(frozenset({3}), disks.now))
    removed = Set(value).remove("a").changes.change()
    assert removed is not None
    disks.value(WriteValue(removed, 1))
    assert Set(disks.get(ALL)).value == set()
