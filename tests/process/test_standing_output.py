"""The reader of a node's output stands still: nothing of shardbus waits for it. Where a `print` of
the application does, the node is removed as any other whose loop is blocked, and its process
ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.markers import long_only
from tests.ports import free_block
from tests.process.nodes import NodeProcess, Processes
from tests.process.test_signals import UNWATCHED
from tests.process.test_workers import begin
from tests.waiting import until


@pytest.fixture
def stuck() -> Iterator[int]:
    """The end of a full pipe that nobody reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    yield writing
    os.close(reading)
    os.close(writing)


def streams(which: str, stuck: int) -> dict[str, int]:
    """The arguments with which these streams of a process are stuck."""
    return {name: stuck for name in ("stdout", "stderr") if name in which}


async def serves(node: NodeProcess) -> None:
    """Wait until a node is ready, which its output does not say."""

    def ready() -> bool:
        page = node.get("/readyz")
        return page is not None and page["status"] == "ok"

    await until(ready, f"{node.name} to be ready")


def stands(node: NodeProcess) -> bool:
    """True if the node's main thread waits for a pipe that nobody reads."""
    pid = node.process.pid
    return "pipe_write" in Path(f"/proc/{pid}/task/{pid}/wchan").read_text()


def signalled(node: NodeProcess) -> bool:
    """Ask a node once more to end. True if it has ended."""
    if node.running:
        node.signal(signal.SIGTERM)
    return not node.running


@pytest.mark.parametrize("which", ["stdout and stderr", *long_only("stdout", "stderr")])
@pytest.mark.parametrize("form", ["json", *long_only("pretty")])
async def test_a_node_starts_logs_works_and_leaves(
    lab: Processes, stuck: int, which: str, form: str
) -> None:
    node = lab.begin("--log-format", form, **streams(which, stuck))
    await serves(node)
    async with lab.client(node) as client:
        await client.call("page", "page-1", "speak", 10_000)
        assert await client.call("page", "page-2", "hit", 1, 1) == 1
    assert await node.terminate() == 0


@pytest.mark.parametrize("which", ["stdout", *long_only("stderr")])
async def test_a_second_signal_ends_a_node_with_a_print_that_waits(
    lab: Processes, stuck: int, which: str
) -> None:
    node = lab.begin(settings=UNWATCHED, **streams(which, stuck))
    await serves(node)
    async with lab.client(node) as client:
        await client.cast("page", "page-1", "shout", which, 1)
        await until(lambda: stands(node), "the print")
        await until(lambda: signalled(node), "the end")  # two that come at once are one
        assert await node.ended() == 7


@pytest.mark.long
@pytest.mark.parametrize("which", ["stdout", "stderr"])
async def test_a_node_with_a_print_that_waits_is_removed_and_ends(
    lab: Processes, stuck: int, which: str
) -> None:
    """It does not rejoin, as other nodes with a blocked loop do: its output would stand still
    again."""
    stays = await lab.start()
    settings = ("cluster.app_stall_timeout=1s", "cluster.rejoin_after_down=true")
    node = lab.begin(settings=settings, **streams(which, stuck))
    await lab.agree(stays, node)
    async with lab.client(stays) as client:
        for n in range(40):
            await client.cast("page", f"page-{n}", "shout", which, 1)
        assert await node.ended() == 7
        await lab.agree(stays)
        assert await client.call("page", "page-1", "hit", 1, 1) == 1


@pytest.mark.long
async def test_a_unit_of_workers_starts_and_leaves(lab: Processes, stuck: int) -> None:
    unit = begin(lab, stdout=stuck, stderr=stuck)
    await serves(unit)
    assert await unit.terminate() == 0


@pytest.mark.long
async def test_dev_starts_and_ends(lab: Processes, stuck: int) -> None:
    block = free_block(40)
    options = ("--port", str(block), "--http-port", str(block + 20), "--nodes", "2")
    dev = NodeProcess(
        lab.folder,
        "dev",
        ["dev", "tests.process.app:bus", *options],
        None,
        stdout=stuck,
        stderr=stuck,
    )
    lab.all.append(dev)
    dev.port, dev.http_port = block, block + 20
    await serves(dev)
    assert await dev.terminate() == 0
