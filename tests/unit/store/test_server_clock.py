"""How far a client believes the clock of a store's server when it takes over a lease."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.store.server_clock import KEEP_S, ServerClock, clock_offset

TTL, MARGIN, HOUR = 20.0, 4.0, 3600.0


def observed(*offsets: tuple[float, float]) -> ServerClock:
    """A clock with these offsets, each measured at a time."""
    clock = ServerClock(MARGIN)
    for at, offset in offsets:
        clock.observe(at + offset, at)
    return clock


def test_a_server_whose_clock_was_never_read_has_no_limit() -> None:
    assert ServerClock(MARGIN).limit(TTL, 5.0) is None


def test_without_a_jump_the_limit_is_the_servers_clock() -> None:
    clock = observed(*((float(at), 100.0) for at in range(0, 60, 2)))
    assert clock.limit(TTL, 60.0) == 160.0


def test_a_jump_ahead_ends_no_lease_for_its_length() -> None:
    jump = [(float(at), 100.0 + (HOUR if at >= 30 else 0.0)) for at in range(0, 60, 2)]
    clock = observed(*(point for point in jump if point[0] <= 30))
    assert clock.limit(TTL, 30.0) == 130.0
    clock = observed(*jump)
    last = 28.0 + TTL + MARGIN
    assert clock.limit(TTL, last) == 100.0 + last
    assert clock.limit(TTL, last + 1) == 100.0 + HOUR + last + 1


def test_a_clock_that_is_set_back_counts_at_once() -> None:
    clock = observed((0.0, HOUR), (2.0, 0.0))
    assert clock.limit(TTL, 2.0) == 2.0


def test_a_slow_answer_does_not_loosen_the_limit() -> None:
    clock = observed((0.0, 100.0), (2.0, 101.5))
    assert clock.limit(TTL, 2.0) == 102.0


def test_a_server_that_was_silent_for_long_is_known_by_its_last_answer() -> None:
    assert observed((0.0, 100.0)).limit(TTL, 500.0) == 600.0


@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(-50.0, 50.0)), min_size=1, max_size=60),
    st.floats(0.0, 100.0),
    st.floats(0.0, 30.0),
)
def test_the_limit_is_by_the_smallest_offset_of_the_window(
    steps: list[tuple[float, float]], ttl: float, later: float
) -> None:
    now, rows = 0.0, []
    for step, offset in steps:
        now += step
        rows.append((now, offset))
    clock = ServerClock(MARGIN)
    for at, offset in rows:
        clock.observe(at + offset, at)
    now += later
    window = [offset for at, offset in rows if at >= now - ttl - MARGIN] or [rows[-1][1]]
    limit = clock.limit(ttl, now)
    assert limit is not None
    assert abs(limit - (now + min(window))) < 1e-9


def test_offsets_are_kept_for_an_hour() -> None:
    clock = observed(*((float(at), float(at)) for at in range(0, 8000, 2)))
    assert len(clock._offsets) <= KEEP_S / 2 + 1


@pytest.mark.parametrize(
    ("server", "offset"), [(10.0, 0.0), (10.5, 0.0), (11.0, 0.0), (9.0, -1.0), (14.0, 3.0)]
)
def test_a_clock_is_off_only_as_far_as_the_call_does_not_explain(
    server: float, offset: float
) -> None:
    assert clock_offset(server, asked_at=10.0, answered_at=11.0) == offset
