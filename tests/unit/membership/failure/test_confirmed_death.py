"""Confirmed death: when members are probed, and the results of a sweep."""

from __future__ import annotations

from itertools import pairwise

import pytest

from shardbus.ids import NodeId
from shardbus.membership.failure.confirmed_death import (
    ANSWER_WITHIN,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    DeathWatch,
    ProbeOutcome,
    Sweep,
)

A, B, C = (NodeId(host, 1, 1) for host in "abc")


@pytest.mark.parametrize(
    ("outcome", "proof"),
    [
        (ProbeOutcome.REFUSED, True),
        (ProbeOutcome.OTHER, True),
        (ProbeOutcome.OPEN, False),
        (ProbeOutcome.UNKNOWN, False),
    ],
)
def test_what_proves_a_death(outcome: ProbeOutcome, proof: bool) -> None:
    assert outcome.proves_death is proof


def test_nothing_is_probed_without_a_reason() -> None:
    watch = DeathWatch()
    assert watch.deadline() is None
    assert watch.tick(1.0) == []
    watch.on_result(A, ProbeOutcome.OPEN, 1.0)
    assert watch.deadline() is None


def test_a_dropped_connection_is_probed_at_once_and_again_with_growing_pauses() -> None:
    watch = DeathWatch()
    watch.suspect(A, 10.0)
    now, times = 10.0, []
    for _ in range(8):
        assert watch.deadline() == now
        assert watch.tick(now) == [A]
        assert watch.tick(now) == []
        times.append(now)
        watch.on_result(A, ProbeOutcome.OPEN, now)
        now = watch.deadline() or 0.0
    pauses = [b - a for a, b in pairwise(times)]
    assert pauses[0] == pytest.approx(FIRST_PAUSE)
    assert pauses[1] == pytest.approx(2 * FIRST_PAUSE)
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE)


def test_a_new_doubt_does_not_wait_for_the_end_of_a_pause() -> None:
    watch = DeathWatch()
    watch.suspect(A, 0.0)
    watch.tick(0.0)
    watch.on_result(A, ProbeOutcome.OPEN, 0.0)
    watch.suspect(A, 0.01)
    assert watch.tick(0.01) == [A]
    watch.suspect(A, 0.02)
    assert watch.tick(0.02) == []
    watch.on_result(A, ProbeOutcome.OPEN, 0.03)
    assert watch.deadline() == pytest.approx(0.03 + 2 * FIRST_PAUSE)


def test_a_proof_ends_the_probing() -> None:
    watch = DeathWatch()
    watch.suspect(A, 0.0)
    watch.tick(0.0)
    watch.on_result(A, ProbeOutcome.REFUSED, 0.1)
    assert watch.deadline() is None


def test_a_probe_without_an_answer_is_repeated() -> None:
    watch = DeathWatch()
    watch.suspect(A, 0.0)
    assert watch.tick(0.0) == [A]
    assert watch.deadline() == ANSWER_WITHIN
    assert watch.tick(ANSWER_WITHIN) == [A]


@pytest.mark.parametrize(("asked_at", "cleared"), [(4.9, False), (5.0, True), (6.0, True)])
def test_only_an_answer_to_a_later_question_clears_a_doubt(asked_at: float, cleared: bool) -> None:
    watch = DeathWatch()
    watch.suspect(A, 5.0)
    watch.on_alive(A, asked_at)
    watch.on_alive(B, asked_at)
    assert (watch.deadline() is None) is cleared


def test_the_last_reason_for_a_doubt_counts() -> None:
    """An answer to a question from before the connection dropped again says nothing."""
    watch = DeathWatch()
    watch.suspect(A, 1.0)
    watch.suspect(A, 5.0)
    watch.on_alive(A, 3.0)
    assert watch.deadline() is not None
    watch.on_alive(A, 5.0)
    assert watch.deadline() is None


def test_former_members_are_forgotten() -> None:
    watch = DeathWatch()
    for node in (A, B):
        watch.suspect(node, 0.0)
    watch.keep([B, C])
    assert watch.tick(0.0) == [B]


def test_a_sweep_doubts_whoever_has_not_answered_clearly() -> None:
    sweep = Sweep(dict.fromkeys((A, B, C)))
    sweep.on_result(A, ProbeOutcome.OPEN)
    sweep.on_result(NodeId("x", 1, 1), ProbeOutcome.OPEN)
    sweep.on_result(B, ProbeOutcome.UNKNOWN)
    assert sweep.doubtful() == (B, C)
    sweep.on_result(C, ProbeOutcome.OPEN)
    assert sweep.doubtful() == (B,)
