"""The words that hide who acts: no page, docstring, comment or message has one of them.

`docs/FEATURES.md` quotes requirements in the words of their source; its other columns are checked.

Constructions that circle a thing instead of naming it are rare in every package: `CONSTRUCTIONS`
lists them.
"""

from __future__ import annotations

import ast
import io
import math
import re
import tokenize
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


# ---- constructions, by package

PER_10_000 = 5
"""Occurrences of each construction that a package may have in 10,000 words, rounded up."""
CONSTRUCTIONS = {
    "what": re.compile(r"(?<!`)\bwhat\b(?!`)(?![^.]{0,80}\?)", re.IGNORECASE),
    "that of": re.compile(r"\b(?:that|those) of\b", re.IGNORECASE),
    "the one which": re.compile(r"\bthe ones? (?:which|that|who)\b", re.IGNORECASE),
    "a machine that asks or learns": re.compile(
        r"\b(?:(?<!`)(?:learns?|learned|learnt|wants?|wanted|told)(?!`)"
        r"|asks? (?:it|them|him|whether)|(?<!an )asks? for|asked (?:it|for|whether)"
        r"|tells? (?:it|them|how|whether|which|what))\b",
        re.IGNORECASE,
    ),
}
"""In docstrings and comments. By the API a program tells or asks a message: `tells that`."""
PACKAGES = [
    "shardbus/*.py",
    "cli/**/*.py",
    *(f"shardbus/{init.parent.name}/**/*.py" for init in ROOT.glob("shardbus/*/__init__.py")),
]
"""The modules of each package, of the command line, and beside the packages: none is left out."""


def prose(text: str) -> str:
    """The docstrings and comments of a module, on one line."""
    parts = [
        node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    parts += [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return re.sub(r"\s+", " ", "\n".join(parts))


def occurrences(text: str) -> dict[str, list[str]]:
    """Each construction that a text has too often, with the places."""
    most = math.ceil(len(text.split()) * PER_10_000 / 10_000)
    places = {
        name: [text[max(0, m.start() - 40) : m.end() + 40] for m in pattern.finditer(text)]
        for name, pattern in CONSTRUCTIONS.items()
    }
    return {name: hits for name, hits in places.items() if len(hits) > most}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_names_things_instead_of_circling_them(package: str) -> None:
    texts = [prose(path.read_text("utf-8")) for path in sorted(ROOT.glob(package))]
    assert texts
    assert occurrences(" ".join(texts)) == {}


def test_constructions_are_found_in_docstrings_and_comments_alone() -> None:
    text = prose('"""Keeps what\narrives."""\nx = "those of"  # that of a node\n# it wants more\n')
    assert {name: len(hits) for name, hits in occurrences(text * 2).items()} == {
        "what": 2, "that of": 2, "a machine that asks or learns": 2,
    }  # fmt: skip
