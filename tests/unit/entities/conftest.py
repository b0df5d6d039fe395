"""Fixtures of the tests of entities."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests import waiting
from tests.laws import left_over
from tests.unit.entities.entity_kit import Bench
from tests.waiting import fail_when_idle, turns

HANG_S = 60.0
"""Ends a wait for a condition. A bench has no sockets and no store server; its longest waits are
backoffs of a second."""


@pytest.fixture(autouse=True)
async def _hangs_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that waits in vain within a minute."""
    fail_when_idle(asyncio.get_running_loop())
    monkeypatch.setattr(waiting, "PATIENCE_S", HANG_S)


@pytest.fixture(autouse=True)
async def _hosts_are_closed() -> AsyncIterator[None]:
    """Cancel tasks that a test leaves under way, so that it does not reach another test."""
    yield
    closed = [Bench.made.pop() for _ in range(len(Bench.made))]
    missing = [bench.missing for bench in closed]
    for bench in closed:
        bench.host.close()
    if closed:
        await turns()
        assert left_over(asyncio.get_running_loop()) == []
    assert not any(missing), f"{missing} messages arrived and have no fate"
