from __future__ import annotations

import pytest

from shardbus.replication.disk_life import (
    GRACE_S,
    SILENT_S,
    DiskKnown,
    DiskLife,
    DiskRegistry,
    DiskShown,
    DiskVerdict,
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
    assert registry.disks == (KNOWN,)
    registry.answer(DiskShown(7, 6, 1), 0.0)
    assert registry.disks == (DiskKnown(7, 6, 1),)


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


def life(*verdicts: tuple[int, bool, bool], now: float = 0.0) -> DiskLife:
    """Disk 1 of three in run 9, at counter 4, with these verdicts: who, accepts, votes itself."""
    disk = DiskLife(1, run=9)
    disk.show(4, 0.0)
    for judge, accepts, votes in verdicts:
        disk.on_verdict(DiskVerdict(judge, 4, 9, accepts, votes), (1, 2, 3), now)
    return disk


def test_a_disk_votes_once_all_others_accept_it_or_a_majority_after_a_while() -> None:
    assert life((2, True, True), (3, True, True)).votes
    disk = life((2, True, True))
    assert not disk.votes
    assert disk.silent((1, 2, 3)) == [3]
    disk.judge((1, 2, 3), GRACE_S)
    assert disk.votes


def test_a_verdict_for_another_counter_or_run_does_not_count() -> None:
    disk = life()
    for counter, run in ((3, 9), (4, 8)):
        for judge in (2, 3):
            disk.on_verdict(DiskVerdict(judge, counter, run, True, True), (1, 2, 3), 0.0)
    assert not disk.votes


def test_a_vote_ends_with_the_first_refusal_and_comes_back_with_the_last_acceptance() -> None:
    disk = life((2, True, True), (3, True, True))
    disk.show(5, 1.0)
    assert disk.votes, "it votes on while it is judged anew"
    disk.on_verdict(DiskVerdict(2, 5, 9, False, True), (1, 2, 3), 1.0)
    assert not disk.votes
    assert disk.refusing((1, 2, 3)) == [2]
    for judge in (2, 3):
        disk.on_verdict(DiskVerdict(judge, 5, 9, True, True), (1, 2, 3), 2.0)
    assert disk.votes


@pytest.mark.parametrize(
    ("verdicts", "now", "lost"),
    [
        ([(2, False, True), (3, False, True)], GRACE_S, True),
        ([(2, False, True), (3, True, True)], GRACE_S, True),
        ([(2, False, True), (3, False, True)], 0.0, False),
        ([(2, False, False), (3, False, True)], GRACE_S, False),
        ([(2, False, True)], GRACE_S, False),
        ([(2, True, True), (3, True, True)], GRACE_S, False),
    ],
)
def test_a_refused_disk_is_lost_only_while_a_majority_votes_without_it(
    verdicts: list[tuple[int, bool, bool]], now: float, lost: bool
) -> None:
    assert life(*verdicts, now=now).is_lost((1, 2, 3), now) is lost


def test_what_is_known_of_disks_outside_the_ring_is_forgotten() -> None:
    registry = DiskRegistry([KNOWN, DiskKnown(8, 1, 1)])
    registry.keep({8, 9})
    assert registry.disks == (DiskKnown(8, 1, 1),)
