"""Every world keeps its laws in all histories within its bounds."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.explore.explorer import Bounds, explore
from tests.explore.worlds import WORLDS

BOUNDS: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "bounds.toml").read_text(encoding="utf-8")
)


@pytest.fixture(autouse=True)
def _log_nothing() -> Iterator[None]:
    """Errors that entities of a world raise on purpose are logged with its stack: that takes most
    time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def visit(name: str, depth: str, record: Any) -> None:
    """Explore a world; fail if it has become smaller than `bounds.toml` says."""
    row = BOUNDS[name][depth]
    visited = explore(WORLDS[name], Bounds(row["depth"], row["near"], row["tail"]))
    record("explored", f"{name}: {visited.states} states, {visited.histories} histories")
    assert visited.states >= row["states"], f"{visited.states} states, {row['states']} before"


def bounded(depth: str) -> list[str]:
    """Return the worlds that have bounds of this depth."""
    return [name for name in WORLDS if depth in BOUNDS[name]]


@pytest.mark.parametrize("name", WORLDS)
def test_short_histories_break_no_law(name: str, record_property: Any) -> None:
    visit(name, "quick", record_property)


@pytest.mark.long
@pytest.mark.parametrize("name", bounded("long"))
def test_longer_histories_break_no_law(name: str, record_property: Any) -> None:
    visit(name, "long", record_property)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", bounded("soak"))
def test_the_longest_histories_break_no_law(name: str, record_property: Any) -> None:
    visit(name, "soak", record_property)
