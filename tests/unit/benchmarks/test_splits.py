"""The counts of `benchmarks.splits`, from rows whose answer is known."""

from __future__ import annotations

import array
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import splits
from benchmarks import splits_judge as judge
from benchmarks.splits_judge import Overlap, Row

S = 1_000_000_000
"""A second in the rows' unit."""


def row(process: int, at: float, entity: int = 1, activation: int = 0, end: int = 0) -> Row:
    """A record; each process has one activation of an entity unless another is given."""
    seq = int(1000 * at)
    return Row(process, entity, 1, seq, activation or 100 * process + entity, end, int(at * S))


def test_activations_one_after_the_other_do_not_overlap() -> None:
    rows = [row(1, 1.0), row(1, 2.0), row(2, 2.1), row(2, 3.0), row(1, 4.0, activation=7)]
    assert judge.overlaps(rows) == []


def test_a_message_after_the_successors_first_one_is_an_overlap() -> None:
    rows = [row(1, 1.0), row(2, 2.0), row(1, 3.5), row(2, 4.0)]
    assert judge.overlaps(rows) == [Overlap(1, 1, 2, 1.5)]
    assert judge.overlaps(reversed(rows)) == judge.overlaps(rows)


def test_a_handler_that_ends_after_the_successors_first_message_is_an_overlap() -> None:
    assert judge.overlaps([row(1, 1.0), row(2, 2.0), row(1, 2.5, end=1)]) == [Overlap(1, 1, 2, 0.5)]


def test_an_activation_within_another_is_an_overlap() -> None:
    rows = [row(1, 1.0), row(2, 2.0), row(2, 3.0), row(1, 4.0), row(3, 5.0)]
    assert judge.overlaps(rows) == [Overlap(1, 1, 2, 2.0)]


def test_other_entities_do_not_overlap() -> None:
    assert judge.overlaps([row(1, 1.0), row(2, 2.0, entity=2), row(1, 3.0)]) == []


def test_a_takeover_ends_with_a_survivors_first_message() -> None:
    rows = [row(1, 1.0), row(1, 1.0, 2), row(2, 1.0, 3), row(2, 5.0), row(2, 6.0), row(2, 7.0, 3)]
    assert judge.takeovers(rows, 2 * S, {2}) == {1: 3.0}


def test_a_pause_is_a_silence_that_begins_in_the_split() -> None:
    busy = [row(1, n / 10) for n in range(100)]
    assert judge.pause(busy, 1, 2 * S, 5 * S) is None
    quiet = [busy_row for busy_row in busy if not 4.05 * S < busy_row.at < 7.05 * S]
    assert judge.pause(quiet, 1, 2 * S, 9 * S) == (4 * S, int(7.1 * S))
    assert judge.pause(busy, 1, 2 * S, 12 * S) == (int(9.9 * S), 0)


def test_what_a_process_handles_after_a_moment_is_counted() -> None:
    rows = [row(1, 1.0), row(1, 2.0), row(1, 3.0), row(2, 3.0)]
    assert judge.handled(rows, 1, 2 * S) == [1.0]


def test_what_no_node_handled_is_missing_and_what_two_did_is_repeated() -> None:
    rows = [row(1, 1.0), row(2, 1.0), row(1, 1.0, end=1), row(1, 2.0)]
    tells = [judge.Told(1, seq, 1) for seq in (1000, 2000, 3000)]
    assert judge.missing(tells, rows) == [tells[2]]
    assert judge.repeated(rows) == 1


@pytest.mark.parametrize(
    ("gone", "dropped", "reasons"),
    [
        (set(), {}, {"unexplained": 3}),
        (set(), {"no_home": 3}, {"no_home": 3}),
        (set(), {"no_home": 1}, {"no_home": 1, "unexplained": 2}),
        ({2}, {}, {"held_by_the_ended": 2, "relayed_by_the_ended": 1}),
        ({2}, {"no_home": 1}, {"no_home": 1, "held_by_the_ended": 2}),
        ({1, 2}, {}, {"held_by_the_ended": 3}),
    ],
)
def test_a_loss_has_a_reason_or_is_unexplained(
    gone: set[int], dropped: dict[str, int], reasons: dict[str, int]
) -> None:
    """Process 1 handles entity 1, process 2 entity 2. One message of the first is missing, and two
    of the second."""
    rows = [row(1, n / 10) for n in range(40)] + [row(2, n / 10, 2) for n in range(40)]
    nodes: Any = [SimpleNamespace(process=SimpleNamespace(pid=pid)) for pid in (1, 2)]
    tells = [judge.Told(1, 9000, 1), judge.Told(1, 9001, 2), judge.Told(1, 9002, 2)]
    verdict = splits.judged(rows, S, 3 * S, gone, nodes, tells, Counter(dropped))
    assert verdict["lost_by_reason"] == reasons
    assert (verdict["lost"], verdict["ended"]) == (3, len(gone))


def test_rows_are_read_from_where_reading_ended(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    assert splits._rows(path, 24, 0) == []
    path.write_bytes(array.array("q", [1, 2, 3, 4, 5, 6, 7]).tobytes())
    assert splits._rows(path, 24, 0) == [(1, 2, 3), (4, 5, 6)]
    assert splits._rows(path, 24, 1) == [(4, 5, 6)]


def test_the_sum_has_the_worst_times_and_all_counts() -> None:
    first = {
        "shape": "two", "strategy": "down-all", "ended": 2, "overlaps": 1, "told": 5, "lost": 1,
        "repeated": 0,
        "overlap_s": 0.5, "suspend_s": 4.0, "failover_s": None, "resume_s": None,
        "lost_by_reason": {"stopped": 1},
    }  # fmt: skip
    other = first | {"shape": "stopped", "woken": 3, "failover_s": 9.0, "suspend_s": 2.0}
    total = splits.summed([first, other])
    assert (total["overlaps"], total["woken"], total["lost_by_reason"]) == (
        2,
        3,
        Counter(stopped=2),
    )
    assert (total["suspend_s"], total["failover_s"], total["resume_s"]) == (4.0, 9.0, None)
