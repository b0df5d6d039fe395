from __future__ import annotations

import pytest

from shardbus.replication.messages import (
    EMPTY,
    ZERO,
    AcceptChange,
    AcceptValue,
    Ballot,
    BucketRows,
    No,
    OtherBase,
    PrepareBallot,
    Promised,
    ReadRow,
    Row,
    RowShown,
    ScanBucket,
    Yes,
    merged,
)
from shardbus.replication.registers import Registers
from shardbus.replication.values import (
    LeaseValue,
    ListChange,
    ListValue,
    StateValue,
    bucket_of,
    lease_key,
    list_key,
    state_key,
)

KEY = state_key("order", "o-1")
LIST = list_key("order", "7")
LEASE = lease_key("shard")


def at(k: int, fence: int = 1) -> Ballot:
    return Ballot(fence, 0, 5, k)


A, B = StateValue(1, b"a"), StateValue(2, b"b")


@pytest.fixture
def registers() -> Registers:
    return Registers()


def test_a_promise_refuses_lower_ballots_and_no_others(registers: Registers) -> None:
    assert registers.handle(PrepareBallot(KEY, at(5)), 0.0) == Promised(ZERO, ZERO, None, 0.0)
    assert registers.handle(PrepareBallot(KEY, at(4)), 0.0) == No(at(5))
    assert registers.handle(AcceptValue(KEY, at(4), A), 0.0) == No(at(5))
    assert registers.row(KEY) == Row(at(5), ZERO, None)
    assert registers.handle(PrepareBallot(KEY, at(5)), 0.0) == Promised(at(5), ZERO, None, 0.0)
    assert registers.handle(AcceptValue(KEY, at(5), A), 0.0) == Yes()
    assert registers.handle(ReadRow(KEY), 0.0) == RowShown(at(5), at(5), A, 0.0)


def test_an_accepted_value_is_a_promise(registers: Registers) -> None:
    registers.handle(AcceptValue(KEY, at(5), A), 0.0)
    assert registers.handle(AcceptValue(KEY, at(4), B), 0.0) == No(at(5))
    assert registers.handle(PrepareBallot(KEY, at(6)), 0.0) == Promised(at(5), at(5), A, 0.0)


def test_a_request_that_comes_again_changes_nothing(registers: Registers) -> None:
    registers.handle(AcceptValue(KEY, at(5), A), 0.0)
    registers.take_records()
    assert registers.handle(AcceptValue(KEY, at(5), A), 0.0) == Yes()
    assert registers.take_records() == []


def test_a_change_is_of_its_base_only(registers: Registers) -> None:
    change = ListChange(1, ("x",), ())
    registers.handle(AcceptValue(LIST, at(1), ListValue(1, frozenset("a"))), 0.0)
    assert registers.handle(AcceptChange(LIST, at(3), at(2), change), 0.0) == OtherBase(at(1))
    assert registers.handle(AcceptChange(LIST, at(3), at(1), change), 0.0) == Yes()
    assert registers.handle(AcceptChange(LIST, at(3), at(1), change), 0.0) == Yes()
    assert registers.handle(AcceptChange(LIST, at(2), at(3), change), 0.0) == No(at(3))
    assert registers.row(LIST).value == ListValue(1, frozenset("ax"))


def test_rows_merge_in_any_order_and_number() -> None:
    rows = [Row(at(9), at(3), A), Row(at(5), at(5), B), Row(at(7), ZERO, None)]
    for row in rows:
        for other in rows:
            assert merged(row, other) == merged(other, row) == merged(merged(row, other), row)
    assert merged(rows[0], rows[1]) == Row(at(9), at(5), B)
    assert merged(EMPTY, rows[0]) == rows[0]


def test_the_log_gives_the_rows_back(registers: Registers) -> None:
    registers.handle(AcceptValue(LIST, at(1), ListValue(1, frozenset("a"))), 0.0)
    registers.handle(AcceptChange(LIST, at(2), at(1), ListChange(1, ("b",), ("a",))), 0.0)
    registers.handle(PrepareBallot(LIST, at(1, fence=2)), 0.0)
    registers.merge(KEY, Row(at(9), at(3), A), 0.0)
    records = registers.take_records()
    again = Registers()
    for record in (*records, *records):
        again.replay(record)
    again.check()
    assert again.rows == registers.rows
    assert again.digests == registers.digests


def test_a_log_without_a_base_is_refused(registers: Registers) -> None:
    registers.handle(AcceptValue(LIST, at(1), ListValue(1, frozenset("a"))), 0.0)
    registers.handle(AcceptChange(LIST, at(2), at(1), ListChange(1, ("b",), ())), 0.0)
    with pytest.raises(ValueError, match="is of"):
        Registers().replay(registers.take_records()[1])


def test_the_age_of_a_lease_is_since_its_value_was_stored(registers: Registers) -> None:
    lease = LeaseValue("n1", 1, 0, 10.0, 7)

    def age(now: float) -> float:
        shown = registers.handle(ReadRow(LEASE), now)
        assert isinstance(shown, RowShown)
        return shown.age

    registers.handle(AcceptValue(LEASE, at(1), lease), 100.0)
    assert age(103.0) == 3.0
    registers.handle(AcceptValue(LEASE, at(2), lease, age=1.0), 103.0)
    assert age(104.0) == 4.0  # the same value, settled
    registers.handle(AcceptValue(LEASE, at(3), lease._replace(renewals=1)), 104.0)
    assert age(105.0) == 1.0
    other = Registers()
    other.handle(AcceptValue(LEASE, at(4), lease, age=2.5), 50.0)
    assert other.handle(ReadRow(LEASE), 51.0)[3] == 3.5


def test_after_a_start_the_age_of_a_lease_grows_from_the_first_look(registers: Registers) -> None:
    """Else none would end after all replicas have started again."""
    registers.handle(AcceptValue(LEASE, at(1), LeaseValue("n1", 1, 0, 10.0, 7)), 100.0)
    again = Registers()
    for record in registers.take_records():
        again.replay(record)
    ages = [again.handle(ReadRow(LEASE), now)[3] for now in (7.0, 9.0, 20.0)]
    assert ages == [0.0, 2.0, 13.0]


def test_a_scan_shows_keys_and_whether_they_have_a_value(registers: Registers) -> None:
    registers.handle(AcceptValue(KEY, at(1), A), 0.0)
    bucket = bucket_of(KEY)
    request = ScanBucket(bucket, state_key("order", ""))
    assert registers.handle(request, 0.0) == BucketRows(((KEY, at(1), True),))
    registers.handle(AcceptValue(KEY, at(2), StateValue(2, None)), 0.0)
    assert registers.handle(request, 0.0) == BucketRows(((KEY, at(2), False),))
    assert registers.handle(ScanBucket(bucket, state_key("other", "")), 0.0) == BucketRows(())


def test_forgotten_buckets_leave_nothing(registers: Registers) -> None:
    registers.handle(AcceptValue(KEY, at(1), A), 0.0)
    assert registers.forget([bucket_of(KEY)]) == [KEY]
    registers.check()
    assert registers.rows == {}
