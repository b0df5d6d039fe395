"""README.md is true: its example is the file it names, its sessions run as they stand there, and
its links lead to existing files. So do the sessions of examples/README.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.process.terminal import ROOT, Step, Terminal, blocks, sessions

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")


EXAMPLE = (ROOT / "examples" / "counter.py").read_text(encoding="utf-8")


def test_the_session_of_the_example_runs_as_it_stands_there(
    terminal: Terminal, tmp_path: Path
) -> None:
    [steps] = [steps for steps in sessions(README) if "examples.counter" in steps[0].command]
    for step in steps:
        terminal.expect(run_elsewhere(step, terminal, tmp_path))


@pytest.mark.long
def test_the_sessions_run_as_they_stand_there(terminal: Terminal, tmp_path: Path) -> None:
    for steps in sessions(README):
        for step in steps:
            terminal.expect(run_elsewhere(step, terminal, tmp_path))
    assert not terminal.nodes_run


@pytest.mark.long
def test_TR9_the_sessions_of_the_examples_run_as_they_stand_there(terminal: Terminal) -> None:
    for steps in sessions(EXAMPLES):
        for step in steps:
            terminal.expect(step)
    assert not terminal.nodes_run


def run_elsewhere(step: Step, terminal: Terminal, tmp: Path) -> Step:
    """The example names its port in its source: a copy with this run's port is run instead."""
    if not step.command.startswith("python examples/counter.py"):
        return step
    copy = tmp / "counter.py"
    copy.write_text(terminal.here(EXAMPLE), encoding="utf-8")
    return Step(f"python {copy}", step.output)


def test_the_example_is_the_file() -> None:
    [example] = blocks(README, "python")
    assert EXAMPLE.endswith(example)


def test_what_it_points_to_exists() -> None:
    named = re.findall(r"`((?:tests|examples|configs|docs|benchmarks)/[^`*]*)`", README)
    assert named
    missing = [path for path in named if not (ROOT / path).exists()]
    assert missing == []


def test_the_words_are_fifteen() -> None:
    words = README.partition("## Glossary")[2].splitlines()
    assert sum(line.startswith("| ") for line in words) - 1 == 15
