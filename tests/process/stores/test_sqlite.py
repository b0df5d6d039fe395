"""An SQLite file in trouble, under a real node whose entities save all the time: a full disk, and a
disk that fails."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.nodes import NodeProcess, Processes
from tests.process.stores.saving import Savers, judge, stored_totals
from tests.process.stores.shims import DISK_ERROR, Shim, no_compiler
from tests.waiting import until

pytestmark = pytest.mark.long

QUICK_STORE = ("sharding.entity_restart_backoff=500ms",)
SMALL = "size=2m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", SMALL, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs root, to mount a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill the file system to its last byte."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


async def survives(
    lab: Processes,
    node: NodeProcess,
    says: str,
    begin: Callable[[], object],
    end: Callable[[], object],
) -> None:
    """Save through a trouble of the disk, and compare the acknowledged saves with the file."""
    async with lab.client(node) as client, Savers(client) as savers:
        begin()
        await savers.suffer("failures on this disk")

        async def named() -> bool:
            command = ("doctor", "--wait", "0", "--node", f"http://127.0.0.1:{node.http_port}")
            doctor = lab.run(*command)
            await doctor.ended()
            return re.search(f"store-errors: .*{says}", doctor.out.read_text()) is not None

        await until(named, "the doctor")
        await until(lambda: re.search(says, savers.errors), "an ask that fails with the cause")
        assert await asyncio.to_thread(node.get, "/readyz")
        end()
        await savers.proceed("saves after the trouble")
    assert await node.terminate() == 0
    log = node.err.read_text()
    assert re.search(f"the store .*{says}", log) is not None
    assert "Traceback" not in log
    assert judge(savers, await stored_totals(lab.store, list(savers.ledgers))) == []


async def test_a_full_disk_loses_no_acknowledged_save(tmp_path: Path, small_disk: Path) -> None:
    lab = Processes(tmp_path, f"sqlite:///{small_disk}/store.db")
    try:
        node = await lab.start(settings=QUICK_STORE)
        await survives(
            lab,
            node,
            r"cannot grow: the disk is full \(SQLITE_FULL\); free some space",
            lambda: fill(small_disk),
            lambda: (small_disk / "filler").unlink(),
        )
    finally:
        lab.close()


@pytest.mark.skipif(no_compiler(), reason="needs a C compiler, for a disk that fails")
async def test_a_failing_disk_loses_no_acknowledged_save(lab: Processes, tmp_path: Path) -> None:
    """Writes and syncs of the file and of its log fail with EIO."""
    shim = Shim(tmp_path / "shim", "disk", DISK_ERROR)
    node = await lab.start(settings=QUICK_STORE, **shim.environment)
    says = r"is on a disk that fails \(SQLITE_IOERR\w*\); see the system log"
    await survives(lab, node, says, shim.on, shim.off)


async def test_a_node_that_starts_on_a_full_disk_ends_with_one_line(
    tmp_path: Path, small_disk: Path
) -> None:
    fill(small_disk)
    lab = Processes(tmp_path, f"sqlite:///{small_disk}/store.db")
    try:
        node = lab.begin(settings=("store.start_timeout=1s",))
        assert await node.ended() == 4
        [line] = [line for line in node.err.read_text().splitlines() if "error: " in line]
        assert re.search(r"the disk is full .*; free some space", line), line
    finally:
        lab.close()
