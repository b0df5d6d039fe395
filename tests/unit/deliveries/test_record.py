"""The record of an entity: its decisions as a table, its bounds, and the stored part of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.deliveries.numbers import DeliveryNumber
from shardbus.deliveries.record import (
    COMPARED_MAX,
    PENDING_BYTES_MAX,
    PENDING_MAX,
    RESULT_KEPT_S,
    RESULTS_BYTES_MAX,
    RESULTS_MAX,
    DeliveryRecord,
    ReceiverDecision,
    ResultForm,
    decode_done,
    encode_done,
    request_mark,
)
from shardbus.errors import BufferFull

HANDLE, REPEATED, GAP, STALE = (
    ReceiverDecision.HANDLE,
    ReceiverDecision.REPEATED,
    ReceiverDecision.GAP,
    ReceiverDecision.STALE,
)


def number(seq: int, before: int = 0, era: int = 0, producer: str = "p") -> DeliveryNumber:
    return DeliveryNumber(0, producer, era, seq, before, b"")


def with_done(*rows: DeliveryNumber) -> DeliveryRecord:
    record = DeliveryRecord()
    for row in rows:
        record.mark(row, 100)
    return record


@pytest.mark.parametrize(
    ("done", "era", "seq", "before", "decision"),
    [
        # no row of the producer
        (None, 0, 1, 0, HANDLE),
        (None, 0, 9, 0, HANDLE),
        (None, 0, 9, 8, GAP),
        (None, 3, 9, 0, HANDLE),
        # a row: the last that is done is 5, in era 2
        (5, 2, 4, 0, REPEATED),
        (5, 2, 5, 0, REPEATED),
        (5, 2, 5, 4, REPEATED),
        (5, 2, 6, 5, HANDLE),
        (5, 2, 6, 0, HANDLE),
        (5, 2, 9, 5, HANDLE),
        (5, 2, 9, 3, HANDLE),
        (5, 2, 9, 6, GAP),
        (5, 2, 9, 8, GAP),
        # another era
        (5, 1, 6, 5, STALE),
        (5, 1, 4, 0, STALE),
        (5, 3, 6, 5, HANDLE),
        (5, 3, 5, 0, REPEATED),
        (5, 3, 9, 8, GAP),
    ],
)
def test_the_table_of_decisions(
    done: int | None, era: int, seq: int, before: int, decision: ReceiverDecision
) -> None:
    record = DeliveryRecord() if done is None else with_done(number(done, era=2))
    stored = record.stored()
    assert record.decide(number(seq, before, era)) is decision
    assert record.stored() == stored


def test_producers_have_rows_of_their_own() -> None:
    record = with_done(number(5, producer="a"))
    assert record.decide(number(5, producer="b")) is HANDLE
    assert (record.done_of("a"), record.done_of("b")) == (5, 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 9))))
def test_a_replay_makes_the_record_that_the_marks_made(rows: list[tuple[str, int, int]]) -> None:
    live, replayed = DeliveryRecord(), DeliveryRecord()
    for at, (producer, era, seq) in enumerate(rows):
        live.mark(number(seq, era=era, producer=producer), at)
        replayed.replay(decode_done(encode_done(number(seq, era=era, producer=producer), "", at)))
    assert [*replayed.done.items()] == [*live.done.items()]
    assert replayed.stored() == live.stored()


def test_a_replayed_key_has_no_result_and_takes_none_back() -> None:
    record = DeliveryRecord()
    record.replay(decode_done(encode_done(None, "k", 7)))
    assert (record.results["k"].form, record.results["k"].used) == (ResultForm.UNKNOWN, 7)
    record.keep("k", ResultForm.VALUE, b"\x01", 8)
    record.replay(decode_done(encode_done(None, "k", 7)))
    assert record.results["k"].payload == b"\x01"


@pytest.mark.parametrize(
    "data", [b"", b"\x90", b"\x95\x07\xa1p\x00\x01\x00", b"\x95\x00\x01\x00\x01\x00"]
)
def test_an_unreadable_number_in_a_journal_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="the delivery of an event"):
        decode_done(data)


def test_a_mark_never_takes_a_row_back() -> None:
    record = with_done(number(5, era=2), number(3, era=1))
    assert (record.done["p"].era, record.done["p"].seq) == (2, 5)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 12), st.integers(0, 11), st.booleans())
    )
)
def test_each_number_is_handled_once_and_in_order(
    arrivals: list[tuple[str, int, int, bool]],
) -> None:
    """Whatever arrives, and whatever of it fails: no number is done twice, and none after a later
    one."""
    record, handled = DeliveryRecord(), {"a": [0], "b": [0]}
    for producer, seq, before, fails in arrivals:
        before = min(before, seq - 1)
        delivery = number(seq, before, producer=producer)
        if record.decide(delivery) is HANDLE and not fails:
            assert seq > handled[producer][-1]
            assert before <= handled[producer][-1]
            handled[producer].append(seq)
            record = DeliveryRecord.of(record.stored(delivery, now=5))
        assert record.done_of(producer) == handled[producer][-1]


def test_rows_that_are_not_used_are_forgotten() -> None:
    record = DeliveryRecord()
    for at, producer in ((100, "old"), (200, "new"), (150, "old")):
        record.mark(number(1, producer=producer), at)
    record.age(300, remember=150, producers_max=10)
    assert set(record.done) == {"old", "new"}
    record.age(301, remember=150, producers_max=10)
    assert set(record.done) == {"old", "new"}, "the order of use decides, not the order of times"
    record.mark(number(2, producer="new"), 301)
    record.age(301, remember=150, producers_max=10)
    assert set(record.done) == {"new"}
    assert record.forgotten == 1


def test_the_least_used_rows_above_the_bound_are_forgotten() -> None:
    record = with_done(*(number(1, producer=f"p{n}") for n in range(5)))
    record.mark(number(2, producer="p0"), 101)
    record.age(101, remember=1000, producers_max=3)
    assert set(record.done) == {"p3", "p4", "p0"}
    assert record.forgotten == 2


def test_results_are_kept_for_a_day_and_up_to_their_bounds() -> None:
    record = DeliveryRecord()
    record.keep("first", ResultForm.VALUE, b"1", 100)
    record.age(100 + RESULT_KEPT_S, 1, 1)
    assert "first" in record.results
    record.age(101 + RESULT_KEPT_S, 1, 1)
    assert not record.results
    for n in range(RESULTS_MAX + 2):
        record.keep(f"k{n}", ResultForm.VALUE, b"", 100)
    record.age(100, 1, 1)
    assert len(record.results) == RESULTS_MAX
    assert "k1" not in record.results
    record.keep("large", ResultForm.VALUE, bytes(RESULTS_BYTES_MAX), 100)
    record.keep("larger", ResultForm.VALUE, bytes(RESULTS_BYTES_MAX + 1), 100)
    record.keep("small", ResultForm.VALUE, b"1", 100)
    record.age(100, 1, 1)
    assert "large" not in record.results
    assert record.results["larger"].form == ResultForm.UNKNOWN
    assert record.results["small"].payload == b"1"


def test_what_is_stored_is_read_again() -> None:
    record = with_done(number(5, era=2), number(7, producer="q"))
    record.keep("key", ResultForm.REJECTION, b"no", 50)
    record.producer = "me"
    first = record.add("account", "b", "credit", b"\x91\x1e", 60)
    second = record.add("account", "c", "credit", b"\x91\x1e", 60)
    assert (first.seq, second.seq) == (1, 2)
    record.settle(1)
    again = DeliveryRecord.of(record.stored())
    assert (again.done, again.results, again.pending) == (
        record.done, record.results, {2: second},
    )  # fmt: skip
    assert (again.producer, again.last) == ("me", 2)
    assert DeliveryRecord.of(b"").stored() == DeliveryRecord().stored()


def test_a_record_may_be_stored_as_it_is_once_a_delivery_is_done() -> None:
    record = with_done(number(5))
    assert DeliveryRecord.of(record.stored(number(6), now=9)).done_of("p") == 6
    assert DeliveryRecord.of(record.stored(number(4), now=9)).done_of("p") == 5
    kept = DeliveryRecord.of(record.stored(None, "key", 9)).results["key"]
    assert (kept.form, kept.used) == (ResultForm.UNKNOWN, 9)
    assert record.done_of("p") == 5
    assert not record.results
    record.keep("key", ResultForm.VALUE, b"1", 9)
    assert DeliveryRecord.of(record.stored(None, "key", 10)).results["key"].payload == b"1"


pack = msgspec.msgpack.encode
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


def turned(value: Any) -> Any:
    """The same value with each of its parts in the opposite order."""
    if isinstance(value, list):
        return [turned(part) for part in reversed(value)]
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return value


def parts(value: Any) -> Any:
    """A value without the order of its parts, to compare."""
    if isinstance(value, list):
        return ("list", tuple(sorted((parts(part) for part in value), key=repr)))
    if isinstance(value, dict):
        return ("dict", tuple(sorted(((k, parts(v)) for k, v in value.items()), key=repr)))
    return (type(value).__name__, value)


@given(st.lists(PLAIN, max_size=3), st.lists(PLAIN, max_size=3))
def test_marks_are_equal_exactly_for_equal_requests(first: list[Any], second: list[Any]) -> None:
    assert request_mark("pay", pack(first)) == request_mark("pay", pack(turned(first)))
    assert request_mark("pay", pack(first)) != request_mark("refund", pack(first))
    same = request_mark("pay", pack(first)) == request_mark("pay", pack(second))
    assert same == (parts(first) == parts(second))


def test_arguments_that_cannot_be_compared_count_by_their_length() -> None:
    long = pack(["x" * COMPARED_MAX])
    assert request_mark("pay", long) == request_mark("pay", long.replace(b"x", b"y"))
    assert request_mark("pay", long) != request_mark("pay", long + b"y")
    assert request_mark("pay", b"\xc1") == request_mark("pay", b"\xc1")


def test_the_mark_of_a_request_is_kept_from_the_first_save_on() -> None:
    record = DeliveryRecord()
    kept = DeliveryRecord.of(record.stored(None, "key", 9, b"mark")).results["key"]
    assert kept.is_of(b"mark")
    assert not kept.is_of(b"other")
    record.keep("key", ResultForm.VALUE, b"1", 9, b"mark")
    again = DeliveryRecord.of(record.stored()).results["key"]
    assert (again.is_of(b"mark"), again.is_of(b"other")) == (True, False)


def test_a_result_of_an_earlier_release_fits_any_request() -> None:
    rows = pack([{}, {"key": [9, int(ResultForm.VALUE), b"1"]}, None])
    kept = DeliveryRecord.of(rows).results["key"]
    assert kept.payload == b"1"
    assert kept.is_of(b"any")


def test_pending_deliveries_are_bounded() -> None:
    record = DeliveryRecord()
    for _ in range(PENDING_MAX):
        record.add("account", "b", "credit", b"", 0)
    with pytest.raises(BufferFull, match="100 deliveries"):
        record.add("account", "b", "credit", b"", 0)
    record.settle(1)
    assert record.add("account", "b", "credit", b"", 0).seq == PENDING_MAX + 1
    for seq in list(record.pending):
        record.settle(seq)
    with pytest.raises(BufferFull):
        record.add("account", "b", "credit", bytes(PENDING_BYTES_MAX), 0)
    assert not record.pending


@pytest.mark.parametrize("data", [b"x", b"\x91", b"\x91\x81\xa1p\x92\x00\x01", b"\xc1\xff"])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="its record of deliveries"):
        DeliveryRecord.of(data)
