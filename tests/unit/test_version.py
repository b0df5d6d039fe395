"""The version is in one place, and the changelog has each release as it was published."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

from shardbus.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
HEADING = re.compile(r"^## (\S+) - (\d{4}-\d\d-\d\d)$", re.MULTILINE)
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
PUBLISHED = {"0.1.0": "6b50c30b25292b83"}
"""Releases that are out, with the beginning of the SHA-256 of their notes, which change no more. A
line that a merge has put there belongs under *Unreleased*."""


def notes(release: str) -> str:
    """The text of a release, without its heading."""
    after = CHANGELOG.partition(f"\n## {release}")[2].partition("\n")[2]
    return after.partition("\n## ")[0].strip()


def test_the_version_stands_in_one_file() -> None:
    files = [
        *(ROOT / "shardbus").rglob("*.py"),
        *(ROOT / "cli").rglob("*.py"),
        ROOT / "pyproject.toml",
    ]
    named = [path for path in files if f'"{VERSION}"' in path.read_text(encoding="utf-8")]
    assert [path.relative_to(ROOT).as_posix() for path in named] == ["shardbus/version.py"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    source = project["tool"]["hatch"]["version"]
    match = re.search(source["pattern"], (ROOT / source["path"]).read_text(encoding="utf-8"))
    assert match is not None
    assert match["version"] == VERSION


def test_the_command_prints_it() -> None:
    command = [sys.executable, "-c", "from shardbus_cli.main import main; main()", "version"]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{VERSION}\n"


def test_the_newest_release_is_this_version_and_each_has_a_date() -> None:
    assert CHANGELOG.index("\n## Unreleased\n") < CHANGELOG.index("\n## 0.")
    releases = HEADING.findall(CHANGELOG)
    assert len(releases) == len(re.findall(r"^## ", CHANGELOG, re.MULTILINE)) - 1
    assert releases[0][0] == VERSION
    numbers = [tuple(map(int, name.split("."))) for name, _ in releases]
    days = [date.fromisoformat(day) for _, day in releases]
    assert numbers == sorted(numbers, reverse=True)
    assert days == sorted(days, reverse=True)


def test_a_release_has_each_kind_of_change_once() -> None:
    for name, _ in HEADING.findall(CHANGELOG):
        kinds = re.findall(r"^### (.+)$", notes(name), re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds], name
        assert re.findall(r"^- ", notes(name), re.MULTILINE), name


def test_the_notes_of_a_published_release_stay() -> None:
    older = [name for name, _ in HEADING.findall(CHANGELOG)[1:]]
    assert list(PUBLISHED) == older
    for name, digest in PUBLISHED.items():
        assert hashlib.sha256(notes(name).encode()).hexdigest()[:16] == digest, name
