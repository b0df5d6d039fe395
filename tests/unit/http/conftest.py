"""Fixtures of HTTP: a node, and a client of its pages."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.unit.http.http_kit import FakeNode, client_of


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
async def client(node: FakeNode) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(node) as client:
        yield client
