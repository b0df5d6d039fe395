"""Each transcript in `membership/` is played, and must read as it does in the file.

The checks of the simulator run after every step of every machine in them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardbus.errors import ConfigError
from tests.scenarios.membership_transcript import play
from tests.scenarios.playing import check

HERE = Path(__file__).parent
TRANSCRIPTS = sorted((HERE / "membership").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, rewrite: bool) -> None:
    check(path, play, rewrite)


@pytest.mark.parametrize("hash_seed", ["1", "4242"])
def test_a_transcript_does_not_depend_on_hashing(hash_seed: str) -> None:
    [path] = [path for path in TRANSCRIPTS if path.stem == "34_concurrent_joins"]
    places = [HERE, HERE.parent / "unit", HERE.parents[1]]
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"}
    env["PYTHONPATH"] = os.pathsep.join(map(str, places))
    program = "import sys; from membership_transcript import play; print(play(sys.stdin.read()))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        input=path.read_text(encoding="utf-8"),
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == play(path.read_text(encoding="utf-8")) + "\n"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("$ jion n1", "no such command: jion n1"),
        ("$ settings min_member=3\n$ show", "min_member"),
        ("$ join n1\n$ settings min_members=3", "settings come before everything else"),
    ],
)
def test_a_misspelt_command_is_refused(script: str, why: str) -> None:
    with pytest.raises((ValueError, ConfigError), match=why):
        play(script)
