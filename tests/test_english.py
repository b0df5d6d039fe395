"""The words that hide who acts: no page, docstring, comment or message has one of them.

`docs/FEATURES.md` quotes requirements in the words of their source; its other columns are checked.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORDS = re.compile(
    r"\b(shall|somebody|nobody|anybody|whom|whoever|so many|so long as|is told|are told"
    r"|tells? (?:it|them|him))\b",
    re.IGNORECASE,
)
SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml"}
FOLDERS = ("shardbus", "cli", "docs", "benchmarks", "examples", "configs")
QUOTED = re.compile(r"^(\| (?:S\d|B|N)\.\d+ \|) .+? (\| [a-z ]+ \| .+ \| .+ \|)$", re.MULTILINE)
"""A row of FEATURES.md without the quoted requirement."""


TEXTS = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in SUFFIXES
] + [*sorted(ROOT.glob("*.md")), ROOT / "docker-compose.yml", ROOT / "Makefile"]


def found(text: str) -> list[str]:
    """The forbidden words of a text, in order."""
    return [word.lower() for word in WORDS.findall(re.sub(r"\s+", " ", text))]


def checked(path: Path) -> str:
    """The text of a file that the rules are for."""
    text = path.read_text(encoding="utf-8")
    return QUOTED.sub(r"\1 \2", text) if path.name == "FEATURES.md" else text


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_text_names_who_acts(path: Path) -> None:
    assert Counter(found(checked(path))) == {}


def test_words_are_found_at_their_bounds_and_across_lines() -> None:
    assert found("So\nmany shells Tell them; nobody's. Marshall is whomever.") == [
        "so many", "tell them", "nobody",
    ]  # fmt: skip
