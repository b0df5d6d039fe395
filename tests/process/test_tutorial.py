"""The tutorials are true: their files and commands, as they stand there. So are the sessions with
keys that need no other machine."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.process.terminal import Step, Terminal, blocks, sessions, shape
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
PARTITIONS = (ROOT / "docs" / "tutorial-partitions.md").read_text(encoding="utf-8")
KEYS = (ROOT / "docs" / "how-to" / "keys.md").read_text(encoding="utf-8")
FILES = ("stock.py", "client.py")
KEY = re.compile(r"\S{40}(?=$|\s|\")")
FINGERPRINT = re.compile(r"\b[0-9a-f]{16}\b")


@pytest.mark.long
def test_the_tutorial_runs_as_it_stands_there(terminal: Terminal, tmp_path: Path) -> None:
    terminal.folder = tmp_path
    terminal.environment["PYTHONPATH"] += f":{tmp_path}"
    for name, text in zip(FILES, blocks(TUTORIAL, "python"), strict=True):
        (tmp_path / name).write_text(terminal.here(text), encoding="utf-8")
    before, stopped, moved, killed = split_at_the_stop(sessions(TUTORIAL))
    for step in before:
        terminal.expect(step)
    first, second = terminal.nodes
    [interrupt] = stopped
    assert list(map(shape, terminal.interrupt(first))) == list(map(shape, interrupt.output))
    for step in moved:
        terminal.expect(step)
    command = next(step.command for step in before if " node start " in step.command)
    terminal.run(Step(f"{command} --port 7355 --http-port 8558 --seed 127.0.0.1:7365"))
    second.send_signal(signal.SIGKILL)
    second.wait(PATIENCE_S)
    for step in killed:
        terminal.expect(step)


def split_at_the_stop(sessions: list[list[Step]]) -> tuple[list[Step], ...]:
    """Return the steps before the stop of the first node, the stop, the steps after it, and those
    after the second node was killed."""
    [stop] = [number for number, steps in enumerate(sessions) if steps[0].command == "^C"]
    assert len(sessions) == stop + 3
    before = [step for steps in sessions[:stop] for step in steps]
    return before, sessions[stop], sessions[stop + 1], sessions[stop + 2]


@pytest.mark.long
def test_keys_are_made_and_shown_as_it_stands_there(terminal: Terminal, tmp_path: Path) -> None:
    terminal.folder = tmp_path
    shown = [steps for steps in sessions(KEYS) if "scp" not in " ".join(s.command for s in steps)]
    assert len(shown) == 2
    for step in (step for steps in shown for step in steps):
        assert masked(terminal.run(step)) == masked(step.output), step.command


def masked(lines: list[str]) -> list[str]:
    """The lines without parts drawn by chance, and with one space for many."""
    plain = (FINGERPRINT.sub("FINGERPRINT", KEY.sub("KEY", line)) for line in lines)
    return [" ".join(line.split()) for line in plain]


@pytest.mark.long
@pytest.mark.parametrize("use", ["1. ", "2. ", "3. "])
def test_the_tutorial_of_partitions_runs_as_it_stands_there(terminal: Terminal, use: str) -> None:
    """`^C` is Ctrl-C in the terminal of the node that was started first."""
    [section] = [part for part in PARTITIONS.split("\n## ") if part.startswith(use)]
    for step in (step for steps in sessions(section) for step in steps):
        if step.command == "^C":
            said = terminal.interrupt(terminal.nodes[0])
            assert list(map(shape, said)) == list(map(shape, step.output))
        else:
            terminal.expect(step)
    assert len([node for node in terminal.nodes if node.poll() is None]) in (1, 2)
