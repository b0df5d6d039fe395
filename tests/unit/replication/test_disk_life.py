from __future__ import annotations

import pytest

from shardbus.replication.disk_life import (
    SILENT_S,
    DiskKnown,
    DiskRegistry,
    DiskShown,
    is_accepted,
)

KNOWN = DiskKnown(7, 5, run=1)
LATER = 2 * SILENT_S


@pytest.mark.parametrize(
    ("count", "run", "accepted"),
    [
        (6, 1, True),
        (6, 2, True),
        (5, 1, True),
        (4, 1, True),
        (5, 2, False),
        (4, 2, False),
        (1, 2, False),
    ],
)
def test_a_disk_is_accepted_if_its_count_has_not_fallen(
    count: int, run: int, accepted: bool
) -> None:
    registry = DiskRegistry([KNOWN])
    assert registry.answer(DiskShown(7, count, run), 0.0) is accepted


def test_a_lower_count_is_not_written_down() -> None:
    registry = DiskRegistry([KNOWN])
    registry.answer(DiskShown(7, 4, 1), 0.0)
    assert registry.known == (KNOWN,)
    registry.answer(DiskShown(7, 6, 1), 0.0)
    assert registry.known == (DiskKnown(7, 6, 1),)


def test_a_blank_disk_is_new() -> None:
    assert DiskRegistry().answer(DiskShown(7, 1, 9), 0.0)


def test_two_runs_of_one_disk_are_both_refused() -> None:
    registry = DiskRegistry()
    assert registry.answer(DiskShown(7, 1, run=1), 0.0)
    assert not registry.answer(DiskShown(7, 2, run=2), 1.0)
    assert not registry.answer(DiskShown(7, 3, run=1), 1.5)


def test_a_run_follows_a_silent_one() -> None:
    registry = DiskRegistry()
    registry.answer(DiskShown(7, 1, run=1), 0.0)
    assert registry.answer(DiskShown(7, 2, run=2), LATER)


def test_a_run_follows_one_whose_connection_has_closed() -> None:
    registry = DiskRegistry()
    registry.answer(DiskShown(7, 1, run=1), 0.0)
    registry.closed(7, 1)
    assert registry.answer(DiskShown(7, 2, run=2), 0.1)


@pytest.mark.parametrize(
    ("answers", "at_once", "later"),
    [
        ({}, None, None),
        ({2: True}, None, True),
        ({2: True, 3: True}, True, True),
        ({2: False}, None, False),
        ({2: False, 3: True}, None, False),
        ({2: False, 3: False}, None, False),
    ],
)
def test_all_others_decide_at_once_and_a_majority_later(
    answers: dict[int, bool], at_once: bool | None, later: bool | None
) -> None:
    assert is_accepted(1, (1, 2, 3), answers, waited=False) is at_once
    assert is_accepted(1, (1, 2, 3), answers, waited=True) is later


def test_a_ring_of_one_disk_accepts_it() -> None:
    assert is_accepted(1, (1,), {}, waited=False) is True
