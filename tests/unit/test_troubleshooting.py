"""Each symptom of the page "Troubleshooting" is a text that the product prints or logs, or the name
of an event or a finding."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from shardbus.admin.diagnosis import ADVICE
from shardbus.log_events import EVENTS
from shardbus.membership.view import DomainEvent
from shardbus.node.event_log import ALARMING, NOTEWORTHY, event_name
from tests.syntax import nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
ROW = re.compile(r"^\| `([^`]+)` \|([^|]*)\|([^|]+)\|([^|]+)\|$", re.MULTILINE)
VARIABLE = "\0"
SPECIFIER = re.compile(r"%[-+ #0]*[\d.]*[a-z]")
BETWEEN = f"{VARIABLE}(?:[^{VARIABLE}]{{0,3}}{VARIABLE})*"
"""Variables that stand together, such as type and id."""
NAME = re.compile(r"[a-z]+(?:[_-][a-z]+)+")
ANY = "..."


def symptoms() -> list[str]:
    return [row[0] for row in ROW.findall(PAGE.read_text(encoding="utf-8"))]


@cache
def names() -> frozenset[str]:
    """The names of events, notes and findings."""
    logged = {event.name for event in EVENTS.values()}
    events = {event_name(event) for event in get_args(DomainEvent)}
    return frozenset(logged | events | ALARMING | NOTEWORTHY | set(ADVICE))


@cache
def texts() -> tuple[str, ...]:
    """Every text of the code, with a mark in place of each variable part."""
    messages = set[str]()
    for folder in ("shardbus", "cli"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            messages.update(texts_of(tree_of(path)))
    return tuple(sorted(messages))


def texts_of(tree: ast.Module) -> Iterator[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (
                part.value if isinstance(part, ast.Constant) else VARIABLE for part in node.values
            )
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield SPECIFIER.sub(VARIABLE, node.value)


def is_said(symptom: str, said: tuple[str, ...]) -> bool:
    """True if a text has the fixed parts of a symptom, with variables or more text between them."""
    parts = [part for part in symptom.split(ANY) if part]
    pattern = re.compile(BETWEEN.join(map(re.escape, parts)))
    return any(pattern.search(text) for text in said)


@pytest.mark.parametrize("symptom", symptoms())
def test_the_product_says_it(symptom: str) -> None:
    if NAME.fullmatch(symptom):
        assert symptom in names()
    else:
        assert is_said(symptom, texts())


def test_every_row_has_a_symptom_a_cause_and_a_remedy() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == len(symptoms()) > 35
    assert len(set(symptoms())) == len(rows)


def test_a_text_that_no_code_has_is_found() -> None:
    said = tuple(
        texts_of(ast.parse('f"no answer from {name} in time"\nlog("%s has %d left", a, b)'))
    )
    assert is_said("no answer from ... in time", said)
    assert is_said("... has ... left", said)
    assert not is_said("no answer of ... in time", said)
    assert not is_said("no answer from anna in time", said)
