"""Plug-ins that never return, on real nodes: the other types go on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from shardbus import AskTimeout
from tests.process.nodes import Processes
from tests.process.warm import ROOT
from tests.waiting import until

APP = "tests.process.plugins:bus"
ENTRY_POINT = "[shardbus.stores]\nhanging = tests.process.plugins:open_hanging\n"


@pytest.mark.long
async def test_a_strategy_that_never_returns_stops_no_node(lab: Processes) -> None:
    nodes = await lab.cluster(3, app=APP)
    async with lab.client() as client:
        await asyncio.gather(*(client.call("plain", f"e{n}", "hit") for n in range(30)))
        placed = (client.call("placed", f"e{n}", "hit") for n in range(30))
        plain = (client.call("plain", f"e{n}", "hit") for n in range(30))
        assert set(await asyncio.gather(*placed, *plain)) == {1}
    assert "Hangs.allocate has not returned for" in lab.logs()
    for node in nodes:
        assert await node.terminate() == 0


@pytest.fixture
def plugged(tmp_path: Path) -> dict[str, str]:
    """The environment of a node that finds the store, as after `pip install`."""
    info = tmp_path / "installed" / "hanging-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINT)
    paths = (ROOT, ROOT / "cli", info.parent)
    return {"PYTHONPATH": os.pathsep.join(map(str, paths))}


@pytest.mark.long
async def test_a_store_that_blocks_stops_no_node_and_is_named(
    lab: Processes, plugged: dict[str, str], tmp_path: Path
) -> None:
    lab.store = f"hanging:///{tmp_path}/store.db"
    node = await lab.start(app=APP, settings=("store.timeout=0.1s",), **plugged)
    async with lab.client(node) as client:
        assert await client.call("plain", "a", "hit") == 1
        with pytest.raises(AskTimeout):
            await client.call("stored", "a", "hit", timeout=3.0)
        assert await client.call("plain", "a", "hit") == 1
    await until(
        lambda: "HangingStore.load_state has not returned within 1.1 s" in lab.logs(), "the log"
    )
