"""Run the suite of `make test` on each Python, and with the bounds of the dependencies.

    python -m tests.supply.pythons                   # or: make test-pythons
    python -m tests.supply.pythons 3.13 lowest       # some of them
    python -m tests.supply.pythons 3.12 -- -q tests/unit/store

Each environment is a folder of its own, `.venv-NAME`. `3.11` to `3.14` have the packages of
`requirements.lock`. `lowest` has the lowest versions that `pyproject.toml` allows for the packages
of a running node, `newest` the newest of everything. One runs after the other. An environment
without an interpreter is skipped, and the table at the end names it. The exit code is 1 if a test
failed, if an environment could not be set up, or if no environment ran.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
LOWEST_ON, NEWEST_ON = "3.11", "3.13"
ENVIRONMENTS = {python: python for python in PYTHONS} | {"lowest": LOWEST_ON, "newest": NEWEST_ON}
"""The Python of each environment."""
SUITE = ("--numprocesses=4", "--dist=worksteal", "--hypothesis-profile=quick")
CHOICE = ("-m", "not long and not soak")
ABOUT_THE_LOCK = "--ignore=tests/supply/test_supply.py"
"""Left out where the packages differ from the lock: its tests read their metadata."""
EXTRAS = "dev,test,guests,examples"
SETUP_LIMIT_S = 1800.0
SUITE_LIMIT_S = 3600.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of one environment."""

    name: str
    python: str
    result: str
    failed: bool = False
    ran: bool = False


def interpreter(python: str) -> Path | None:
    """Return an interpreter of a version such as "3.12", from PATH or from pyenv, or None.

    A file that does not start is passed over: pyenv puts one into PATH for each version that it
    knows, also for those that are not chosen.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{python}")
    candidates = [Path(on_path)] if on_path else []
    candidates += sorted(pyenv.glob(f"{python}.*/bin/python"), key=_release, reverse=True)
    return next((path for path in candidates if _version(path) == python), None)


def _release(path: Path) -> tuple[int, ...]:
    """Return the version in `versions/3.12.10/bin/python`; text that is no number counts as 0."""
    parts = path.parents[1].name.split(".")
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def _version(path: Path) -> str | None:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run(
        [path, "-c", code], capture_output=True, text=True, check=False, timeout=SETUP_LIMIT_S
    )
    return done.stdout.strip() if done.returncode == 0 else None


def set_up(name: str, base: Path, uv: str) -> Path:
    """Make or refresh the environment, and return its interpreter."""
    folder = ROOT / f".venv-{name}"
    python = folder / "bin" / "python"

    def call(*arguments: str | Path) -> None:
        command = [uv, *map(str, arguments)]
        subprocess.run(command, cwd=ROOT, check=True, timeout=SETUP_LIMIT_S)

    def install(*arguments: str | Path) -> None:
        call("pip", "install", "--quiet", "--python", python, *arguments)

    call("venv", "--quiet", "--allow-existing", "--python", base, folder)
    if name == "lowest":
        bounds = folder / "lowest.txt"
        call(
            "pip", "compile", "--quiet", "--resolution", "lowest-direct", "--no-header",
            "--no-annotate", "--python", python, "pyproject.toml", "--output-file", bounds,
        )  # fmt: skip
        install("--constraint", bounds, "--editable", f".[{EXTRAS}]")
    elif name == "newest":
        install("--upgrade", "--editable", f".[{EXTRAS}]")
    else:
        locked = "requirements.lock"
        call("pip", "sync", "--quiet", "--python", python, "--require-hashes", locked)
        install("--no-deps", "--no-build-isolation", "--editable", ".")
    return python


def run_suite(name: str, python: Path, arguments: Iterable[str]) -> Outcome:
    """Run the suite in an environment."""
    report = ROOT / f".venv-{name}" / "results.xml"
    report.unlink(missing_ok=True)
    left_out = [] if name in PYTHONS else [ABOUT_THE_LOCK]
    command = [str(python), "-m", "pytest", *SUITE, f"--junitxml={report}", *CHOICE]
    command += [*left_out, *arguments]
    done = subprocess.run(command, cwd=ROOT, check=False, timeout=SUITE_LIMIT_S)
    if not report.exists():
        return Outcome(
            name, ENVIRONMENTS[name], f"pytest ended with {done.returncode}", failed=True
        )
    counts = summed(report)
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return Outcome(name, ENVIRONMENTS[name], said, done.returncode != 0, bool(counts["tests"]))


def summed(report: Path) -> dict[str, int]:
    """Return the counts of a report in the format of JUnit."""
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    words = ("tests", "failures", "errors", "skipped")
    return {word: sum(int(suite.get(word, 0)) for suite in suites) for word in words}


def run(
    names: Iterable[str],
    arguments: list[str],
    find: Callable[[str], Path | None] = interpreter,
    prepare: Callable[[str, Path, str], Path] = set_up,
    suite: Callable[[str, Path, Iterable[str]], Outcome] = run_suite,
) -> int:
    """Run the environments one after the other, print the table, and return the exit code."""
    uv = str(Path(sys.executable).with_name("uv"))
    outcomes = []
    for name in names:
        python = ENVIRONMENTS[name]
        base = find(python)
        if base is None:
            missing = f"skipped: no Python {python} in PATH or in pyenv"
            outcomes.append(Outcome(name, python, missing))
            continue
        print(f"== {name}: {base}", flush=True)
        try:
            outcomes.append(suite(name, prepare(name, base, uv), arguments))
        except (subprocess.SubprocessError, OSError) as error:
            outcomes.append(Outcome(name, python, f"not set up: {error}", failed=True))
    for outcome in outcomes:
        failed = "FAILED: " * outcome.failed
        print(f"{outcome.name:8} Python {outcome.python:6} {failed}{outcome.result}")
    nothing_ran = not any(outcome.ran for outcome in outcomes)
    return int(nothing_ran or any(outcome.failed for outcome in outcomes))


def main() -> None:
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ENVIRONMENTS))
    names = parser.parse_args(words[:cut]).names or list(ENVIRONMENTS)
    unknown = [name for name in names if name not in ENVIRONMENTS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(ENVIRONMENTS)}")
    sys.exit(run(names, words[cut + 1 :]))


if __name__ == "__main__":
    main()
