"""The runs on several Pythons: the package's own declaration, and the runner's report."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.supply import pythons
from tests.supply.pythons import ENVIRONMENTS, LOWEST_ON, PYTHONS, ROOT, Outcome

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BASE = Path("/usr/bin/python-of-a-test")


def test_the_classifiers_are_pythons_that_the_runner_tests() -> None:
    prefix = "Programming Language :: Python :: 3."
    named = [f"3.{text[len(prefix) :]}" for text in PROJECT["classifiers"] if prefix in text]
    assert named == list(PYTHONS[: len(named)])
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert named[0] == LOWEST_ON


def prepare(name: str, base: Path, uv: str) -> Path:
    assert (base, Path(uv).name) == (BASE, "uv")
    if name == "newest":
        raise subprocess.CalledProcessError(2, ["uv"])
    return Path(name)


def suite(name: str, python: Path, arguments: Iterable[str]) -> Outcome:
    assert python == Path(name)
    assert arguments == ["-q"]
    return Outcome(name, ENVIRONMENTS[name], "9 tests", failed=name == "3.12", ran=True)


def outcome(*names: str, missing: str = "3.14") -> int:
    def find(python: str) -> Path | None:
        return None if python == missing else BASE

    return pythons.run(names, ["-q"], find, prepare, suite)


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (("3.11", "3.13"), 0),
        (("3.11", "3.14"), 0),  # one is skipped
        (("3.11", "3.12"), 1),  # one fails
        (("3.11", "newest"), 1),  # one cannot be set up
        (("3.14",), 1),  # none ran
    ],
    ids=["good", "skipped", "failing", "broken", "none"],
)
def test_the_exit_code_tells_whether_all_that_ran_passed(names: tuple[str, ...], code: int) -> None:
    assert outcome(*names) == code


def test_the_table_names_what_was_skipped_and_what_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome("3.11", "3.12", "3.14", "newest")
    table = capsys.readouterr().out.splitlines()[-4:]
    assert [line.split()[0] for line in table] == ["3.11", "3.12", "3.14", "newest"]
    assert table[0].endswith("9 tests")
    assert table[1].endswith("FAILED: 9 tests")
    assert table[2].endswith("skipped: no Python 3.14 in PATH or in pyenv")
    assert "FAILED: not set up" in table[3]


def fake(path: Path, said: str) -> None:
    """Write a program that prints a version, as an interpreter would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{said}\n", encoding="utf-8")
    path.chmod(0o755)


def test_the_newest_release_of_pyenv_is_taken_if_the_one_in_path_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path / "shims" / "python3.12", "exit 127")
    for release in ("3.12.9", "3.12.10", "3.12.2"):
        fake(tmp_path / "versions" / release / "bin" / "python", "echo 3.12")
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    path = pythons.interpreter("3.12")
    assert path == tmp_path / "versions" / "3.12.10" / "bin" / "python"
    assert pythons.interpreter("3.99") is None


def test_counts_come_from_the_report(tmp_path: Path) -> None:
    report = tmp_path / "results.xml"
    report.write_text(
        '<testsuites><testsuite tests="7" failures="1" errors="0" skipped="2"/></testsuites>'
    )
    assert pythons.summed(report) == {"tests": 7, "failures": 1, "errors": 0, "skipped": 2}
