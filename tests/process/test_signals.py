"""SIGTERM and SIGINT at every moment of a node's life: it ends in order, as process 1 too."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.markers import long_only
from tests.ports import free_port
from tests.process.app import Stubborn
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import until

SIGNALS = (signal.SIGTERM, signal.SIGINT)
IMPORTS = """
import os, time
from pathlib import Path
os.write(2, b"imports begin\\n")
{body}
"""
SLEEPS = "time.sleep(3600)"
CATCHES = """
while True:
    try:
        time.sleep(3600)
    except BaseException:
        pass
"""
SPACE = ("--pid", "--fork", "--mount-proc", "--kill-child")

UNWATCHED = ("cluster.app_stall_timeout=1h", "cluster.quarantine_after=2h")
"""A loop that stands still is no reason for the node to end."""


def catches(pid: int, number: int = signal.SIGTERM) -> bool:
    """True if the process handles the signal by now."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    [mask] = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


def child_of(pid: int) -> int:
    """The only child of a process; 0 if it has none yet."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(pids[0]) if pids else 0


@pytest.mark.parametrize("number", SIGNALS)
async def test_a_signal_during_its_imports_ends_a_node(lab: Processes, number: int) -> None:
    node = lab.begin(fresh=True)
    # Python itself handles SIGINT: the handler that matters is the handler of the command.
    await until(lambda: catches(node.process.pid), "the first instruction of the command")
    node.signal(signal.Signals(number))
    assert await node.ended() == 0
    assert "Traceback" not in node.err.read_text()


@pytest.mark.parametrize("body", [SLEEPS, *long_only(CATCHES)])
@pytest.mark.parametrize("number", SIGNALS)
async def test_a_signal_while_it_imports_its_application_ends_a_node(
    lab: Processes, body: str, number: int
) -> None:
    app = lab.folder / "slow_app.py"
    app.write_text(IMPORTS.format(body=body))
    node = lab.run("node", "start", f"{app}:bus")
    await node.says("imports begin")
    node.signal(signal.Signals(number))
    assert await node.ended() == 0
    assert "Traceback" not in node.err.read_text()


def has_spaces() -> bool:
    """True if this process may make namespaces. In a chroot it may not."""
    unshare = shutil.which("unshare")
    done = unshare and subprocess.run([unshare, *SPACE, "true"], capture_output=True, check=False)
    return bool(done and done.returncode == 0)


@pytest.mark.skipif(not has_spaces(), reason="needs unshare, root and no chroot")
@pytest.mark.parametrize("body", ["", *long_only(SLEEPS)])
async def test_process_one_of_a_container_gets_the_signal_while_it_starts(
    lab: Processes, body: str
) -> None:
    """The kernel drops a signal for process 1 that has no handler."""
    app = lab.folder / "slow_app.py"
    app.write_text(IMPORTS.format(body=body))
    enter = (shutil.which("unshare") or "", *SPACE)
    node = NodeProcess(lab.folder, "contained", ["node", "start", f"{app}:bus"], None, enter=enter)
    lab.all.append(node)
    first = await until(lambda: child_of(node.process.pid), "process 1")
    await until(lambda: catches(first), "the first instruction of the command")
    if body:
        await node.says("imports begin")
    os.kill(first, signal.SIGTERM)
    assert await node.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, *long_only(signal.SIGINT)])
async def test_a_signal_while_it_joins_ends_a_node(lab: Processes, number: int) -> None:
    node = lab.begin(seeds=[f"127.0.0.1:{free_port()}"])
    await until(lambda: node.get("/livez"), "HTTP")
    node.signal(signal.Signals(number))
    assert await node.ended() == 0


async def test_a_signal_while_its_store_does_not_answer_ends_a_node(lab: Processes) -> None:
    """A server that accepts and says nothing."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        node = lab.begin("--store", url, settings=("store.timeout=120s",))
        silent.accept()  # the node has begun to ask
        node.signal(signal.SIGTERM)
        assert await node.ended() == 0


async def test_the_wait_after_ctrl_c_names_what_it_waits_for_and_a_second_one_ends_it(
    lab: Processes,
) -> None:
    node = await lab.start()
    async with lab.client() as client:
        assert await client.ref(Stubborn, "x").hello() == "hello"
    node.signal(signal.SIGINT)
    await node.says("shardbus: this node waits for 1 shard of 'stubborn'")
    await node.says(" s more at most; a second Ctrl-C stops it at once")
    node.signal(signal.SIGINT)
    assert await node.ended() == 1


@pytest.mark.long
async def test_a_second_signal_ends_a_node_whose_loop_is_blocked(lab: Processes) -> None:
    node = await lab.start(settings=UNWATCHED)
    async with lab.client() as client:
        await client.cast("page", "page-1", "block", 3600.0)
        await node.says("blocks the loop since")
        node.signal(signal.SIGTERM)
        await node.says("which is blocked at ")
        node.signal(signal.SIGTERM)
        assert await node.ended() == 7
    assert "does not end, at " in node.err.read_text()


def children_of(pid: int) -> list[int]:
    """The children of all threads of a process."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(number) for path in lists for number in path.read_text().split()]


def computes(pid: int) -> bool:
    """True if the process is there, and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_workers_of_simulate_end_with_a_parent_that_was_killed() -> None:
    program = str(Path(sys.executable).with_name("shardbus"))
    command = [program, "simulate", "--seeds", "10000", "--jobs", "2"]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        # Two workers, and the process that keeps track of their semaphores.
        await until(lambda: len(children_of(parent.pid)) == 3, "the workers")
        children = children_of(parent.pid)
    finally:
        parent.kill()
        parent.wait()
    await until(lambda: not any(map(computes, children)), "the end of the workers")
