"""Each transcript in `membership/` is played, and must read as it does in the file.

The checks of the simulator run after every step of every machine in them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from membership_transcript import play

TRANSCRIPTS = sorted((Path(__file__).parent / "membership").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, rewrite: bool) -> None:
    written = path.read_text(encoding="utf-8")
    played = play(written)
    if rewrite:
        path.write_text(played, encoding="utf-8")
    assert rewrite or played == written, "run pytest tests/scenarios --rewrite and review the diff"
