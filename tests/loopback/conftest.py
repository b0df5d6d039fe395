"""What tests with real nodes in this process have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.loopback.nodes import Nodes


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    """Nodes that end with the test."""
    async with Nodes() as nodes:
        yield nodes
