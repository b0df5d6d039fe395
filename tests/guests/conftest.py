"""Tests of this folder run on asyncio's loop and on uvloop, tests of loops on every loop."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.guests.loops import LOOPS, LoopFactory

EVERYWHERE = ("asyncio", "uvloop")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    """Return the loops of a test."""
    every = item.get_closest_marker("every_loop") is not None
    return LOOPS if every else {name: LOOPS[name] for name in EVERYWHERE}
