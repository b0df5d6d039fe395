"""The corpus again, some generated inputs, and that the judge would see a defect."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz import judge as judging
from tests.fuzz.engine import TARGETS, fuzz
from tests.fuzz.judge import judge
from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import ALWAYS, Target

EVERY = pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
VALID = {"header", "batch", "bodies", "control", "payload", "value", "parts", "secrets", "settings"}
"""Targets all of whose seeds are valid, but perhaps one."""


@EVERY
def test_the_corpus_finds_nothing(target: Target) -> None:
    findings = [
        judge(target, data)[1] for data in (*ALWAYS, *target.seeds, *corpus.load(target.name))
    ]
    assert [str(finding) for finding in findings if finding is not None] == []


@EVERY
@given(data=st.binary(max_size=200))
def test_any_bytes_raise_only_what_is_declared(target: Target, data: bytes) -> None:
    target(data)


@EVERY
@given(seed=st.integers(0, 2**32))
def test_changed_seeds_raise_only_what_is_declared(target: Target, seed: int) -> None:
    mutator = Mutator(target, [], Random(seed))
    for _ in range(5):
        target(mutator.next())


@pytest.mark.parametrize("name", sorted(VALID))
def test_seeds_reach_behind_the_first_check(name: str) -> None:
    """Otherwise the fuzzer starts from inputs that are refused at once."""
    outcomes = [TARGETS[name](seed) for seed in TARGETS[name].seeds]
    assert sum(outcome != "" for outcome in outcomes) <= 1, outcomes


def test_every_file_of_the_corpus_has_a_target() -> None:
    assert {path.stem for path in corpus.FOLDER.glob("*.hex")} <= TARGETS.keys()


# Observations of the judge


def target_of(run: object) -> Target:
    return Target("planted", run, (ValueError,), (b"seed",))  # type: ignore[arg-type]


def test_an_undeclared_error_is_a_finding() -> None:
    def run(data: bytes) -> None:
        {}[data]

    _, finding = judge(target_of(run), b"x")
    assert finding is not None
    assert "KeyError" in finding.what


def test_a_declared_error_is_an_outcome() -> None:
    def run(data: bytes) -> None:
        raise ValueError("no")

    assert judge(target_of(run), b"x") == ("ValueError: no", None)


def test_processor_time_and_hangs_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(data: bytes) -> None:
        while data == b"hang":
            pass
        sum(range(3_000_000))

    monkeypatch.setattr(judging, "CPU_MAX_S", 0.001)
    _, slow = judge(target_of(run), b"x")
    assert slow is not None
    assert "of processor time" in slow.what
    monkeypatch.setattr(judging, "HANG_S", 0.05)
    _, hangs = judge(target_of(run), b"hang")
    assert hangs is not None
    assert "did not end" in hangs.what


def test_memory_is_a_finding() -> None:
    taken: list[bytes] = []

    def run(data: bytes) -> None:
        taken.append(b"x" * 2**28)
        taken.clear()

    _, finding = judge(target_of(run), b"x")
    assert finding is not None
    assert "MiB" in finding.what


@pytest.mark.long
def test_a_planted_defect_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    def run(data: bytes) -> None:
        if data[1:3] == b"\xc0\xee":
            raise KeyError("a null where a text must be")
        raise ValueError(f"path {data[1:2]!r}" if data[1:2] == b"\xc0" else "no")

    _, findings = fuzz(target_of(run), 300_000, 1, keep=False)
    assert len(findings) == 1
    assert "FOUND planted: KeyError" in capsys.readouterr().out
