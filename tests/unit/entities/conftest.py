"""Fixtures of the tests of entities."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.entities.entity_kit import Bench
from tests.waiting import turns


@pytest.fixture(autouse=True)
async def _hosts_are_closed() -> AsyncIterator[None]:
    """Cancel what a test leaves under way, so that it does not reach another test."""
    yield
    closed = [Bench.made.pop() for _ in range(len(Bench.made))]
    for bench in closed:
        bench.host.close()
    if closed:
        await turns()
