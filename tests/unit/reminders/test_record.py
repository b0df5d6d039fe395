"""The reminders of one entity: the fired, the left out, and the next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.errors import ConfigError
from shardbus.reminders.record import (
    EMPTY,
    LATE_MS,
    Entry,
    Record,
    decoded,
    encoded,
    is_left_out,
    jitter,
    shown,
)
from shardbus.reminders.rule import Late, Rule

MINUTE = 60_000
policies = st.sampled_from(["once", "all", "skip"])


def entry(
    moment: int, every: int = 0, late: Late = "once", name: str = "due", by: int = 0
) -> Entry:
    rule = Rule(every, late=late, jitter_ms=by)
    return Entry(name, "ring", b"\x90", 77, moment, moment + jitter(rule, 77, 1), rule)


def fire_all(record: Record, now: int) -> tuple[list[int], Record]:
    """Return the moments that fire by now, and the record after them."""
    fired = []
    while (due := record.first_due(now)) is not None:
        if not is_left_out(due, now):
            fired.append(due.moment)
        record = record.past(due, now)
    return fired, record


@pytest.mark.parametrize(
    ("late", "fired", "following"),
    [
        ("once", [MINUTE], 6 * MINUTE),
        ("all", [MINUTE, 2 * MINUTE, 3 * MINUTE, 4 * MINUTE, 5 * MINUTE], 6 * MINUTE),
        ("skip", [5 * MINUTE], 6 * MINUTE),
    ],
)
def test_what_fires_after_five_minutes_without_a_home(
    late: Late, fired: list[int], following: int
) -> None:
    now = 5 * MINUTE + LATE_MS - 1
    record = EMPTY.setting(entry(MINUTE, MINUTE, late))
    moments, after = fire_all(record, now)
    assert moments == fired
    assert after.due == following


@pytest.mark.parametrize(("late", "fires"), [("once", 1), ("all", 1), ("skip", 0)])
def test_a_late_reminder_that_is_due_once(late: Late, fires: int) -> None:
    record = EMPTY.setting(entry(MINUTE, late=late))
    assert len(fire_all(record, MINUTE + LATE_MS)[0]) == 1
    moments, after = fire_all(record, MINUTE + LATE_MS + 1)
    assert len(moments) == fires
    assert after == EMPTY


@given(
    st.integers(1, 10**9), st.integers(1000, 10**7), policies,
    st.lists(st.integers(0, 10**7), max_size=20), st.integers(0, 500),
)  # fmt: skip
def test_each_moment_fires_once_in_order_and_never_early(
    moment: int, every: int, late: Late, steps: list[int], by: int
) -> None:
    record, now, seen = EMPTY.setting(entry(moment, every, late, by=by)), moment, []
    for step in steps:
        now = now + step
        for _ in range(50):
            due = record.first_due(now)
            if due is None:
                break
            assert due.moment <= due.due <= due.moment + by
            assert due.due <= now
            if not is_left_out(due, now):
                seen.append((due.moment, due.delivery))
            record = record.past(due, now)
            following = record.entries["due"]
            assert following.moment > due.moment
            assert (following.moment - moment) % every == 0
            if late == "all":
                assert following.moment == due.moment + every
    assert [at for at, _ in seen] == sorted({at for at, _ in seen})
    assert len({delivery for _, delivery in seen}) == len(seen)


def test_a_delivery_keeps_its_number_until_it_has_fired() -> None:
    first = entry(MINUTE, MINUTE)
    assert entry(MINUTE, MINUTE).delivery == first.delivery
    assert first.at(2 * MINUTE).delivery != first.delivery
    assert shown(first).delivery == first.delivery
    assert (shown(first).number, shown(first.at(2 * MINUTE)).number) == (1, 2)


@given(st.lists(st.tuples(st.text(min_size=1, max_size=5), st.integers(1, 10**12)), max_size=8))
def test_a_record_comes_back_as_it_was_stored(parts: list[tuple[str, int]]) -> None:
    record = EMPTY
    for name, moment in parts:
        record = record.setting(entry(moment, MINUTE, "all", name))
    data = encoded(record)
    assert (data is None) == (not parts)
    assert decoded(data) == record
    assert record.due == min((moment for _, moment in dict(parts).items()), default=0)


def test_the_first_due_comes_first() -> None:
    record = (
        EMPTY.setting(entry(9, name="b")).setting(entry(5, name="c")).setting(entry(9, name="a"))
    )
    assert record.due == 5
    assert fire_all(record, 9) == ([5, 9, 9], EMPTY)
    assert record.first_due(4) is None
    assert record.without(["c", "gone"]).first_due(9) == entry(9, name="a")


def test_there_are_bounds() -> None:
    record = EMPTY
    for n in range(100):
        record = record.setting(entry(n + 1, name=f"r{n}"))
    record.setting(entry(5, name="r7"))
    with pytest.raises(ConfigError, match="at most 100"):
        record.setting(entry(5, name="one more"))
    long = Entry("long", "ring", b"\x91" + b"x" * 300_000, 1, 5, 5, Rule())
    with pytest.raises(ConfigError, match="bytes"):
        EMPTY.setting(long)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1))
def test_a_stored_reminder_of_any_moment_is_shown(moment: int, every: int) -> None:
    stored = decoded(encoded(EMPTY.setting(entry(moment, every))))
    assert [shown(each).name for each in stored.entries.values()] == ["due"]


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x92\x02\x90", b"\xc1"])
def test_damage_is_an_error(data: bytes) -> None:
    with pytest.raises(Exception, match=r".+"):
        decoded(data)
