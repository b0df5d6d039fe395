"""The judges of a run see each kind of wrong, and accept all that is allowed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.replicas import is_whole
from tests.chaos.resources import AGE_S, CEILING, Sample, Use, exceeded, use_of
from tests.chaos.saving import Answer, Gap, Kept, judge
from tests.chaos.steps import Kind
from tests.chaos.verdict import (
    Verdict,
    ended_by_itself,
    judge_asks,
    judge_pages,
    tracebacks,
)
from tests.process.app import RECORD
from tests.process.test_ledger import ASK, TELL, Ledger

Row = tuple[int, int, int, int, int]


def ledger(folder: Path, rows: list[Row]) -> Ledger:
    """A ledger of rows: page, producer, number, activation, instant."""
    (folder / "ledger-1").write_bytes(b"".join(RECORD.pack(*row) for row in rows))
    return Ledger(folder)


@pytest.mark.parametrize(
    ("rows", "outcome", "wrong"),
    [
        ([(0, ASK, 1, 7, 1), (0, TELL, 1, 7, 2)], "ok", ""),
        ([(0, ASK, 1, 7, 1)], "unsure", ""),
        ([], "unsure", ""),
        ([], "refused", ""),
        ([], "ok", "was ok, handled 0 times"),
        ([(0, ASK, 1, 7, 1)], "refused", "was refused, handled 1 times"),
        ([(0, ASK, 1, 7, 1), (0, ASK, 1, 7, 2)], "unsure", "repeated"),
        ([(0, TELL, 2, 7, 1), (0, TELL, 1, 7, 2)], "", "reordered"),
        ([(0, TELL, 1, 7, 1), (0, TELL, 2, 8, 2), (0, TELL, 3, 7, 3)], "", "overlaps"),
        ([(0, TELL, 1, 7, 1), (0, 0, 0, 8, 2), (0, TELL, 3, 7, 3)], "", "overlaps"),
        ([(0, 0, 0, 7, 1), (0, 0, 0, 8, 2), (0, 0, 0, 7, 3), (0, TELL, 1, 8, 4)], "", "overlaps"),
        ([(0, TELL, 1, 7, 1), (0, TELL, 2, 8, 2), (0, 0, -1, 7, 3)], "", ""),
        (
            [(0, 0, 0, 7, 1), (0, 0, 0, 8, 2), (0, 0, 0, 9, 4), (0, TELL, 1, 7, 5)],
            "",
            "overlaps",
        ),
    ],
)
def test_the_judge_of_pages(tmp_path: Path, rows: list[Row], outcome: str, wrong: str) -> None:
    book = ledger(tmp_path, rows)
    wrongs = judge_pages(book) + judge_asks(book, {(0, 1): outcome} if outcome else {})
    assert any(wrong in text for text in wrongs) if wrong else wrongs == []


GAP = Gap(5.0, 9.0)


@pytest.mark.parametrize(
    ("totals", "stored", "gaps", "wrong"),
    [
        ([(1, 1), (2, 2)], 2, [], ""),
        ([(1, 1), (2, 2)], 1, [], "2 was answered, 1 is stored"),
        ([(1, 1), (1, 2)], 2, [], "1 was answered after 1"),
        ([(2, 1), (1, 2)], 2, [], "1 was answered after 2"),
        ([(1, 1), (2, 2)], 4, [], "4 is stored after 2 answers and 1 doubts"),
        ([(1, 1), (2, 2)], 3, [], ""),
        ([(2, 4), (1, 10), (2, 11)], 2, [GAP], ""),
        ([(2, 6), (1, 7), (2, 11)], 2, [GAP], ""),
        ([(1, 4), (2, 10), (2, 11)], 2, [GAP], "2 was answered after 2"),
        ([(1, 1), (1, 2), (2, 10)], 2, [GAP], "1 was answered after 1"),
        ([(1, 1), (2, 6)], 1, [GAP], ""),
        ([(1, 1), (2, 10)], 1, [GAP], "2 was answered, 1 is stored"),
    ],
)
def test_the_judge_of_saves(
    totals: list[tuple[int, int]], stored: int, gaps: list[Gap], wrong: str
) -> None:
    kept = Kept([Answer(total, at, at) for total, at in totals], doubts=1)
    wrongs = judge({"account-0": kept}, {"account-0": stored}, gaps)
    assert any(wrong in text for text in wrongs) if wrong else wrongs == []


SOUND = Use(descriptors=60, threads=12, mib=80, tasks=40)


def grown(name: str, per_s: float, seconds: float) -> list[Sample]:
    """Samples of a process in which one value grows."""
    return [
        Sample(at, SOUND._replace(**{name: int(getattr(SOUND, name) + per_s * at)}))
        for at in range(0, int(seconds), 2)
    ]


@pytest.mark.parametrize("name", Use._fields)
def test_a_leak_exceeds_a_bound_and_a_peak_does_not(name: str) -> None:
    assert exceeded(grown(name, 0.0, 600)) == []
    assert any(f"{name} grew" in text for text in exceeded(grown(name, 2.0, 600)))
    assert exceeded(grown(name, 0.5, AGE_S / 4)) == []
    high = SOUND._replace(**{name: getattr(CEILING, name)})
    peak = [Sample(at, high if at % 50 == 0 else SOUND) for at in range(0, 600, 2)]
    assert exceeded(peak) == []
    above = high._replace(**{name: getattr(high, name) + 1})
    once = [Sample(0.0, above), Sample(2.0, SOUND)]
    assert f"at most {getattr(CEILING, name)}" in exceeded(once)[0]


def test_growth_of_caches_in_the_first_third_is_no_leak() -> None:
    samples = [Sample(at, SOUND._replace(mib=min(80 + at, 250))) for at in range(0, 600, 2)]
    assert exceeded(samples) == []


def test_the_use_of_a_process_is_read_and_none_of_one_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / f"tasks-{os.getpid()}").write_text("17")
    use = use_of(os.getpid(), tmp_path)
    assert use is not None
    assert use.tasks == 17
    assert min(use) > 0
    assert use_of(2**30, tmp_path) is None


@pytest.mark.parametrize(
    ("code", "log", "faulted", "starved", "wrong"),
    [
        (1, "", True, False, ""),
        (7, "", True, False, ""),
        (-11, "", True, True, "ended by itself with -11"),
        (1, "", False, True, ""),
        (7, "", False, True, "ended by itself with 7"),
        (1, "", False, False, "ended by itself with 1"),
        (1, "Traceback (most", True, True, "a traceback"),
    ],
)
def test_a_node_that_ends_by_itself_needs_a_reason(
    code: int, log: str, faulted: bool, starved: bool, wrong: str
) -> None:
    errors, note = ended_by_itself("n1", code, log, faulted=faulted, starved=starved)
    assert wrong in errors
    assert bool(errors) == bool(wrong) != bool(note)


def test_a_traceback_is_wrong() -> None:
    assert tracebacks([("n1", "Traceback (most recent call last)"), ("n2", "ready")]) == [
        "tracebacks of n1"
    ]
    assert tracebacks([("n1", "ready")]) == []


def test_a_verdict_says_whether_all_kinds_were_done() -> None:
    verdict = Verdict(7)
    verdict.done.update(Kind)
    assert verdict.ending == "seed 7: nothing wrong, all kinds done"
    del verdict.done[Kind.SPLIT]
    verdict.impossible.append("no root")
    ending = "seed 7: nothing wrong, NOT all kinds done: without split (no root)"
    assert verdict.ending == ending
    verdict.kinds = frozenset(Kind) - {Kind.SPLIT}
    assert verdict.ending == "seed 7: nothing wrong, all kinds done", "the store cannot do it"
    verdict.kinds = frozenset(Kind)
    verdict.wrong.append("2 overlaps")
    assert verdict.ending.startswith("seed 7: 2 overlaps, NOT all")
    assert str(verdict).endswith(verdict.ending)


def test_saves_that_are_acknowledged_and_not_written_are_seen() -> None:
    """A planted fault: the group commit answers without the store. Seed 4, with a planned failover
    and a kill, has shown these answers."""
    totals = [*range(1, 26), *range(1, 74)]
    kept = Kept([Answer(total, at, at) for at, total in enumerate(totals)])
    assert judge({"account-3": kept}, {"account-3": 0}, []) == [
        "account-3: 1 was answered after 25",
        "account-3: 73 was answered, 0 is stored",
    ]


def test_a_log_may_have_no_traceback() -> None:
    assert tracebacks([("n1", "all is well"), ("n2", "Traceback (most recent call last)")]) == [
        "tracebacks of n2"
    ]


FOUNDED = {"state": "founded", "ring": 2, "members": ["a", "b", "c"], "unmerged": 0}
SPARE = {"state": "spare", "ring": 0, "members": [], "unmerged": 0}


@pytest.mark.parametrize(
    ("third", "whole"),
    [
        (FOUNDED, True),
        (FOUNDED | {"unmerged": 1}, False),
        (FOUNDED | {"ring": 3}, False),
        (FOUNDED | {"members": ["a", "b", "d"]}, False),
        (SPARE, False),
        ({"state": "unreachable"}, False),
        ({"state": "waiting", "ring": 2, "members": ["a", "b", "c"], "unmerged": 0}, False),
    ],
)
def test_a_ring_is_whole_once_three_serve_in_it_and_two_are_spares(
    third: dict[str, object], whole: bool
) -> None:
    assert is_whole([FOUNDED, FOUNDED, third, SPARE, SPARE]) is whole
    assert is_whole([SPARE, third, FOUNDED, SPARE, FOUNDED]) is whole
