"""The common part of all transcripts: how they are read, played and compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random


class Steady(Random):
    """Dice that always fall on the low side."""

    def uniform(self, a: float, b: float) -> float:
        return a


def replayed(script: str, perform: Callable[[str], list[str]]) -> str:
    """The script, with the present consequences of each line of commands below it."""
    lines: list[str] = []
    for line in script.splitlines():
        if line.startswith("#") or not line.strip():
            lines.append(line)
        elif line.startswith("$"):
            lines += [line, *perform(line.removeprefix("$").strip())]
    return "\n".join(lines) + "\n"


def check(path: Path, play: Callable[[str], str], rewrite: bool) -> None:
    """The transcript reads as it is played; with `rewrite`, it will."""
    written = path.read_text(encoding="utf-8")
    played = play(written)
    if rewrite:
        path.write_text(played, encoding="utf-8")
    assert rewrite or played == written, "run pytest tests/scenarios --rewrite and review the diff"
