"""Output: values on one line, tables for people, and no control characters."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shardbus_cli import output
from tests.waiting import PATIENCE_S


def test_values_are_shown_on_one_line():
    assert output.safe({"a": 1, "b": [True, None]}) == "a=1, b=yes, -"
    assert output.safe("a\nb\u202ec\x7f") == "a\\nb\\u202ec\\x7f"
    assert output.safe("é 漢") == "é 漢"
    assert output.safe("") == output.safe(None) == output.safe([]) == "-"


def test_tables_are_drawn_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    output.table(("id", "node"), [{"id": "[red]a\x1b[0m", "node": "x" * 80}])
    drawn = capsys.readouterr().out
    assert "[red]a\\x1b[0m" in drawn
    assert drawn.count("x") >= 80


@pytest.mark.parametrize("words", [["version"], ["config", "show"]])
def test_an_output_on_a_full_disk_is_no_defect_of_the_command(words: list[str]) -> None:
    program = "from shardbus_cli.main import main; main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        "shardbus: cannot write: No space left on device\n",
    )
