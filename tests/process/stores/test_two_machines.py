"""Two machines with an SQLite file each, under one path: the second node is refused when it joins.

Each machine is a network namespace, and the folder of the file is a tmpfs of its own in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.namespaces import Network
from tests.process.nodes import Processes
from tests.waiting import until


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


@pytest.fixture
def apart(tmp_path: Path, disk: Path, network: Network) -> Iterator[Processes]:
    lab = Processes(tmp_path, f"sqlite:///{disk}/store.db", network)
    yield lab
    lab.close()


@pytest.mark.long
async def test_a_node_whose_file_is_another_one_is_refused_with_both_identities(
    apart: Processes, disk: Path, network: Network
) -> None:
    first = apart.begin(machine=network.machine(str(disk)))
    await until(first.ready, "the first node")
    second = apart.begin(machine=network.machine(str(disk)))
    assert await second.ended() == 6
    said = second.err.read_text()
    [line] = [line for line in said.splitlines() if line.startswith("shardbus: ")]
    assert "the identity of the store" in line
    assert len(set(re.findall(r"\b[0-9a-f]{16}\b", line))) == 2, line
    assert "set store.url to one store for all nodes" in line
    assert "Traceback" not in said
    assert not list(disk.iterdir()), "the files are on the machines only"
    assert first.get("/readyz") is not None
    assert first.get("/v1/cluster")["members"] == 1
    assert await first.terminate() == 0
