"""Each transcript in `singleton/` is played, and must read as it does in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.playing import check
from tests.scenarios.singleton_transcript import play

TRANSCRIPTS = sorted((Path(__file__).parent / "singleton").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, rewrite: bool) -> None:
    check(path, play, rewrite)
