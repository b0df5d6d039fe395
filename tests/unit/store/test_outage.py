"""The log of a store that fails: one line at its begin, one at its end."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from shardbus.store.outage import QUIET_S, REPEAT_S, Outage


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outage(clock: Clock, caplog: pytest.LogCaptureFixture) -> Iterator[Outage]:
    with caplog.at_level(logging.INFO, "shardbus.store"):
        yield Outage("redis://h", clock)


def test_many_failures_are_one_line_with_the_remedy(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1000):
        outage.failed("is full", "raise maxmemory")
    assert caplog.messages == ["the store redis://h is full; raise maxmemory"]


def test_another_cause_and_a_long_outage_are_logged_again(
    outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outage.failed("is full")
    outage.failed("does not respond")
    clock.now = REPEAT_S - 1
    outage.failed("does not respond")
    clock.now = REPEAT_S
    outage.failed("does not respond")
    assert [line.removeprefix("the store redis://h ") for line in caplog.messages] == [
        "is full",
        "does not respond",
        "does not respond",
    ]


def test_the_end_is_logged_once_no_write_fails_any_more(
    outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outage.answered()
    outage.failed("is full")
    clock.now = QUIET_S / 2
    outage.answered()
    outage.failed("is full")
    clock.now += QUIET_S
    outage.answered()
    outage.answered()
    assert caplog.messages[1:] == [f"the store redis://h works again, after {clock.now:.0f} s"]
    outage.failed("is full")
    assert len(caplog.messages) == 3
