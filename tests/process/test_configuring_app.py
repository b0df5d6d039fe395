"""A node whose application configures the process that loads it."""

from __future__ import annotations

import pytest

from shardbus import EntityFailed
from tests.process.nodes import Processes


async def test_handlers_start_processes_and_failures_are_logged(lab: Processes) -> None:
    node = await lab.start(app="tests.process.configuring_app:bus")
    async with lab.client(node) as client:
        assert await client.call("order", "a", "label", "fragile") == "fragile"
        with pytest.raises(EntityFailed):
            await client.call("order", "a", "pay")
    await node.terminate()
    log = node.err.read_text()
    assert "own: shardbus.entity: order 'a' failed: ValueError: no money" in log
