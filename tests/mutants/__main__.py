"""Plant each defect of the catalogue into a copy of the tree and run the tests that it names; or
defects made by rules, in chosen files, and run the tests that execute their lines.

    python -m tests.mutants [--jobs 2] [id ...]
    python -m tests.mutants --files shardbus/ids.py ... | changed [--since HEAD] [--sample 100]

    found   a test failed, as it should
    PASSES  no test failed: the behaviour is not tested
    HANGS   the tests did not end: a test should fail, not wait for ever
    STALE   the defect cannot be planted, or its tests cannot be run: mend the entry
    UNTOUCHED   no test executes the line (`--files`)

A rule may make a change that changes nothing for anybody: read the changes that pass.

The exit code is 0 if all are found, 1 if not, and 2 if the tests fail without any defect.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from enum import Enum
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.catalogue import ROOT, Mutant, load, problems
from tests.mutants.generated import CHANGED, Coverage, changed_lines, generate

LIMIT_S = 1800.0
"""Ends tests that hang. No measure of speed."""
LEFT_OUT = (".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "site", "dist")
SHOWN_LINES = 40


class Verdict(Enum):
    """The outcome of a mutant."""

    FOUND = "found"
    PASSES = "PASSES"
    HANGS = "HANGS"
    STALE = "STALE"


class Copy:
    """A copy of the tree in which one defect at a time is planted."""

    def __init__(self, root: Path, number: int) -> None:
        self.root, self.number = root, number
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)

    def judge(self, mutant: Mutant) -> tuple[Verdict, str]:
        """Plant the defect, run its tests, take it out; return the verdict and why."""
        if errors := problems(mutant, self.root):
            return Verdict.STALE, "; ".join(errors)
        path = self.root / mutant.file
        sound = path.read_text(encoding="utf-8")
        path.write_text(mutant.plant(sound), encoding="utf-8")
        try:
            code, said = self.run(mutant.tests)
        finally:
            path.write_text(sound, encoding="utf-8")
        match code:
            case None:
                return Verdict.HANGS, mutant.behaviour
            case 0:
                return Verdict.PASSES, mutant.behaviour
            case 1:
                return Verdict.FOUND, ""
        return Verdict.STALE, f"pytest ended with {code}:\n{said}"

    def run(self, tests: tuple[str, ...]) -> tuple[int | None, str]:
        """Run tests until the first fails; return the exit code, None for a hang, and the output.

        The copy's number stands in for the number of an xdist worker, so that two copies use ports
        of their own. Nothing compiled is written: a file may change twice within the clock's
        second.
        """
        environment = {
            "PYTHONPATH": os.pathsep.join((str(self.root), str(self.root / "cli"))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_XDIST_WORKER": f"gw{self.number}",
        }
        run = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
            cwd=self.root,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = run.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.communicate()
            return None, ""
        return run.returncode, "\n".join(said.splitlines()[-SHOWN_LINES:])


def judge_all(mutants: Sequence[Mutant], jobs: int, *, known_good: bool = False) -> int:
    """Judge the mutants in `jobs` copies at a time; print verdicts and a summary. `known_good`: the
    tests have just run without a defect."""
    began = time.monotonic()
    counts: Counter[Verdict] = Counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(folder) / str(number), number))
        sound = copies.get()
        named = sorted({t for m in mutants if not problems(m) for t in m.tests})
        code, said = sound.run(tuple(named)) if named and not known_good else (0, "")
        copies.put(sound)
        if code != 0:
            print(f"without any defect, the tests end with {code}:\n{said}")
            return 2

        def judge(mutant: Mutant) -> tuple[Verdict, str]:
            copy = copies.get()
            try:
                return copy.judge(mutant)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            under_way = {pool.submit(judge, mutant): mutant for mutant in mutants}
            for done in as_completed(under_way):
                verdict, why = done.result()
                counts[verdict] += 1
                line = f"{verdict.value:7} {under_way[done].id}"
                print(f"{line}: {why}" if why else line, flush=True)
    sums = ", ".join(f"{counts[verdict]} {verdict.value.lower()}" for verdict in Verdict)
    print(f"{len(mutants)} planted: {sums}; {(time.monotonic() - began) / 60:.1f} minutes")
    return int(counts[Verdict.FOUND] < len(mutants))


def judge_made(chosen: argparse.Namespace) -> int:
    """Make defects by rules, and judge them."""
    files: dict[str, frozenset[int] | None] = {}
    for name in chosen.files:
        files |= changed_lines(chosen.since) if name == CHANGED else {name: None}
    if not files:
        print(f"nothing of the product differs from {chosen.since}")
        return 0
    with tempfile.TemporaryDirectory(prefix="coverage-") as folder:
        coverage = Coverage(list(files), chosen.jobs, Path(folder) / "lines")
        try:
            mutants, untouched = generate(files, coverage, chosen.sample, chosen.seed)
        except RuntimeError as error:
            print(f"without any defect, the suite fails:\n{error}")
            return 2
    for place in untouched:
        print(f"UNTOUCHED {place}", flush=True)
    return max(judge_all(mutants, chosen.jobs, known_good=True), int(bool(untouched)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("ids", nargs="*", help="only these; all if none is given")
    parser.add_argument("--jobs", type=int, default=2, help="copies that run at once")
    parser.add_argument("--files", nargs="+", help="make defects in these, or in changed files")
    parser.add_argument(
        "--since", default="HEAD", help="the commit that `changed` is compared with"
    )
    parser.add_argument("--sample", type=int, default=100, help="defects to make, at most")
    parser.add_argument("--seed", type=int, default=0, help="which ones, if there are more")
    chosen = parser.parse_args()
    if chosen.files:
        return judge_made(chosen)
    mutants = {mutant.id: mutant for mutant in load()}
    if unknown := [name for name in chosen.ids if name not in mutants]:
        parser.error(f"there is no mutant {', '.join(unknown)}")
    return judge_all([mutants[name] for name in chosen.ids] or list(mutants.values()), chosen.jobs)


if __name__ == "__main__":
    sys.exit(main())
