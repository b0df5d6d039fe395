"""Defects that rules make (`operators`), in chosen files, each with the tests that run its line.

One run of the suite, without the tests that start processes, shows which test executes which line:
coverage.py records the test for each line. Of these a defect gets the `TESTS_MAX` that execute the
fewest lines of the file: they are about it. A line that no test executes is UNTOUCHED.

Source: docs/dependencies.md, CONTRIBUTING.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random

from tests.mutants.catalogue import ROOT, Mutant
from tests.mutants.operators import Change, changes

TESTS_MAX = 60
"""Tests that one defect meets, at most."""
STATEMENT_LINES = 6
"""Lines of one statement, at most, above the sought one."""
SUITE = ("tests/unit", "tests/loopback", "tests/scenarios", "tests/explore", "tests/simulation")
HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
CHANGED = "changed"
"""In place of files: the product's files that differ from a commit, and of these the lines that
do."""


@dataclass(frozen=True, slots=True)
class PlacedMutant(Mutant):
    """A defect at one place of a file. `before` is the source around it: it stands there once."""

    change: Change

    def plant(self, source: str) -> str:
        """Return the source with the defect in it."""
        change = self.change
        return source[: change.start] + change.after + source[change.end :]


class Coverage:
    """Which tests execute which lines of some files."""

    def __init__(self, files: list[str], workers: int, data: Path) -> None:
        self.files, self._workers, self._data = files, workers, data

    @cached_property
    def tests(self) -> dict[tuple[str, int], list[str]]:
        """The tests by file and line, those first that execute few lines of the file.

        Raises:
            RuntimeError: the suite fails without any defect.
        """
        from coverage import CoverageData  # type: ignore[import-not-found,unused-ignore]

        self._run()
        data = CoverageData(basename=str(self._data))
        data.read()
        traced: dict[tuple[str, int], list[str]] = {}
        for file in self.files:
            by_line = {
                line: {context.partition("|")[0] for context in contexts if context}
                for line, contexts in data.contexts_by_lineno(str(ROOT / file)).items()
            }
            lines = Counter(test for tests in by_line.values() for test in tests)
            for line, tests in by_line.items():
                traced[file, line] = sorted(tests, key=lambda test: (lines[test], test))
        return traced

    def tests_of(self, file: str, line: int) -> tuple[str, ...]:
        """Return the tests for a defect in this line. A line within a statement may have none of
        its own."""
        near = range(line, max(line - STATEMENT_LINES, 0), -1)
        return next((tuple(t[:TESTS_MAX]) for at in near if (t := self.tests.get((file, at)))), ())

    def _run(self) -> None:
        settings = self._data.with_name("settings.ini")  # not lines.*: coverage.py erases these
        include = "".join(f"    {ROOT / file}\n" for file in self.files)
        settings.write_text(f"[run]\ndata_file = {self._data}\ninclude =\n{include}", "utf-8")
        suite = [name for name in SUITE if (ROOT / name).exists()]
        options = ["-q", "-m", "not long and not soak", "--hypothesis-profile=quick"]
        options += [f"--numprocesses={self._workers}", "--dist=worksteal", "-p", "pytest_cov"]
        options += ["--cov", "--cov-context=test", f"--cov-config={settings}", "--cov-report="]
        command = [sys.executable, "-m", "pytest", *options, *suite]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise RuntimeError("\n".join(run.stdout.splitlines()[-20:]))


def changed_lines(since: str) -> dict[str, frozenset[int]]:
    """Return the lines of the product that differ from this commit, by file."""
    command = ["git", "diff", "-U0", "--no-color", since, "--", "shardbus", "cli/shardbus_cli"]
    diff = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    by_file: dict[str, frozenset[int]] = {}
    for part in diff.split("\ndiff --git "):
        name = re.search(r"^\+\+\+ b/(\S+\.py)$", part, re.MULTILINE)
        if name is not None:
            hunks = [(int(at), int(count or 1)) for at, count in HUNK.findall(part)]
            lines = (line for at, count in hunks for line in range(at, at + count))
            by_file[name[1]] = frozenset(lines)
    return by_file


def generate(
    files: dict[str, frozenset[int] | None], coverage: Coverage, sample: int, seed: int
) -> tuple[list[Mutant], list[str]]:
    """Return at most `sample` defects of these files, and the places that no test executes. None:
    all lines of the file."""
    places: list[tuple[str, Change]] = []
    for file, lines in files.items():
        source = (ROOT / file).read_text(encoding="utf-8")
        places += [(file, c) for c in changes(source) if lines is None or c.line in lines]
    if len(places) > sample:
        places = sorted(Random(seed).sample(places, sample), key=lambda p: (p[0], p[1].start))
    mutants: list[Mutant] = []
    untouched: list[str] = []
    numbers: defaultdict[str, int] = defaultdict(int)
    for file, change in places:
        where = f"{file}:{change.line}"
        tests = coverage.tests_of(file, change.line)
        if not tests:
            untouched.append(f"{where}: {change.what}")
            continue
        numbers[where] += 1
        stem = re.sub(r"[^a-z0-9]+", "-", f"{where}-{numbers[where]}".lower()).strip("-")
        behaviour = f"{where}: {change.what}"
        mutants.append(
            PlacedMutant(stem, behaviour, file, os.fspath(file), "", tests, change=change)
        )
    return mutants, untouched
