"""Each transcript in `singleton/` is played, and must read as it does in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from singleton_transcript import play

TRANSCRIPTS = sorted((Path(__file__).parent / "singleton").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, rewrite: bool) -> None:
    written = path.read_text(encoding="utf-8")
    played = play(written)
    if rewrite:
        path.write_text(played, encoding="utf-8")
    assert rewrite or played == written, "run pytest tests/scenarios --rewrite and review the diff"
