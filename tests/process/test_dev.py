"""`shardbus dev` and `shardbus init` with real processes and signals."""

from __future__ import annotations

import http.client
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from shardbus import AsyncClient
from shardbus.ids import NodeId
from shardbus.store.opening import open_store
from tests.markers import long_only
from tests.ports import free_block
from tests.process.nodes import NodeProcess, Processes
from tests.process.test_workers import lives
from tests.waiting import PATIENCE_S, until

NODES = 3
APP = """
import subprocess, sys, threading
from pathlib import Path
from dataclasses import dataclass
from shardbus import Entity, ShardBus, StopReason, handler

@dataclass
class Kept:
    total: int = 0

def make():
    bus = ShardBus("lab")

    @bus.entity("box", shards=6)
    class Box(Entity):
        state: Kept

        @handler
        async def add(self, amount: int) -> int:
            self.state.total += amount * FACTOR
            await self.save()
            return self.state.total

        @handler
        def tool(self) -> int:
            forever = "import threading; threading.Event().wait()"
            return subprocess.Popen([sys.executable, "-c", forever]).pid

        @handler
        def block(self) -> None:
            Path("blocks").touch()
            threading.Event().wait()

        async def on_stop(self, reason: StopReason) -> None:
            self.state.total += 1000
            await self.save()

    return bus

FACTOR = 1
"""


class Dev:
    """One `shardbus dev` in the folder of the test."""

    def __init__(self, lab: Processes, *options: str) -> None:
        self.lab = lab
        (lab.folder / "boxes.py").write_text(APP)
        (lab.folder / "pyproject.toml").write_text('[tool.shardbus]\napp = "boxes:make"\n')
        block = free_block(20 * NODES)
        self.port, self.http = block, block + 10 * NODES
        self.process: NodeProcess = lab.run(
            "dev", "--port", str(self.port), "--http-port", str(self.http), *options
        )

    def said(self, text: str) -> bool:
        assert self.process.running, self.process.err.read_text()
        return text in self.process.out.read_text() + self.process.err.read_text()

    async def wait(self, text: str) -> None:
        await until(lambda: self.said(text), f"{text!r} of dev")

    def pids(self) -> list[int]:
        """The processes of the nodes, as the table of the first screen has them."""
        lines = self.process.out.read_text().splitlines()
        rows = [line.split() for line in lines if "  http://" in line]
        return [int(row[3]) for row in rows if row[0].isdecimal()]

    def client(self) -> AsyncClient:
        addresses = (f"tcp://127.0.0.1:{self.port + 10 * n}" for n in range(NODES))
        return AsyncClient(
            *addresses, cluster="lab", timeout=PATIENCE_S, connect_timeout=PATIENCE_S
        )


@pytest.mark.parametrize("blocked", [True, *long_only(False)])
async def test_dev_runs_nodes_and_leaves_none_behind_even_if_it_is_killed(
    lab: Processes, blocked: bool
) -> None:
    dev = Dev(lab)
    await dev.wait("Ctrl-C ends them")
    nodes = dev.pids()
    assert len(nodes) == NODES
    async with dev.client() as client:
        assert await client.call("box", "b", "add", 5) == 5
        tool = await client.call("box", "b", "tool")
        try:
            assert lives(tool)
            if blocked:
                await client.cast("box", "b", "block")
                await until((lab.folder / "blocks").exists, "a handler that blocks its node")
            dev.process.kill()
            await until(lambda: not any(map(lives, [*nodes, tool])), "the end of every process")
        finally:
            for pid in (*nodes, tool):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.long
async def test_dev_keeps_state_over_its_end_and_a_kill_of_a_node(lab: Processes) -> None:
    dev = Dev(lab)
    await dev.wait("Ctrl-C ends them")
    nodes = dev.pids()
    async with dev.client() as client:
        assert await client.call("box", "b", "add", 5) == 5
        os.kill(nodes[2], signal.SIGKILL)
        await dev.wait("node 3 was ended by SIGKILL; it starts again in 0.5 s")
        await dev.wait("node 3 is ready again")
    dev.process.signal(signal.SIGINT)
    assert await dev.process.ended() == 0
    assert not any(map(lives, nodes))
    assert "Traceback" not in dev.process.err.read_text()
    again = Dev(lab)
    await again.wait("Ctrl-C ends them")
    async with again.client() as client:
        assert await client.call("box", "b", "add", 0) in (5, 1005), "kept, with on_stop if it ran"
    again.process.signal(signal.SIGTERM)
    assert await again.process.ended() == 0


@pytest.mark.long
async def test_a_reload_runs_new_code_with_the_old_state_and_broken_code_stops_nothing(
    lab: Processes,
) -> None:
    dev = Dev(lab, "--reload")
    await dev.wait("Ctrl-C ends them")

    def write(text: str) -> None:
        """At once: `dev` would load half a file."""
        (lab.folder / "boxes.new").write_text(text)
        (lab.folder / "boxes.new").rename(lab.folder / "boxes.py")

    async with dev.client() as client:
        assert await client.call("box", "b", "add", 5) == 5
    write(APP + "1 / 0\n")
    await dev.wait("the nodes run the code as it was")
    assert dev.process.err.read_text().count("ZeroDivisionError: division") == 1
    async with dev.client() as client:
        assert await client.call("box", "b", "add", 1) == 6
    write(APP.replace("FACTOR = 1", "FACTOR = 10"))
    await dev.wait("boxes.py changed: the nodes run the new code")
    async with dev.client() as client:
        assert await client.call("box", "b", "add", 2) == 1026, "on_stop ran, and its save counts"
    dev.process.signal(signal.SIGINT)
    assert await dev.process.ended() == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("1 / 0\n", 3, "it raised ZeroDivisionError (line 1 of boxes.py)"),
        ("def make(size): ...\n", 3, "the factory boxes:make needs arguments"),
    ],
    ids=["raises", "needs arguments"],
)
async def test_an_application_that_cannot_be_loaded_is_said_once(
    lab: Processes, text: str, code: int, said: str
) -> None:
    dev = Dev(lab)
    (lab.folder / "boxes.py").write_text(text)
    assert await dev.process.ended() == code
    assert dev.process.err.read_text().count(said) == 1


@pytest.mark.long
async def test_other_shards_than_stored_are_said_with_a_command_that_mends_it(
    lab: Processes,
) -> None:
    folder = lab.folder / ".shardbus"
    folder.mkdir(mode=0o700)
    store = open_store(f"sqlite:///{folder / 'state.db'}", cluster="lab", timeout=PATIENCE_S)
    await store.start()
    await store.claim_epoch("box", 1, "crc32/12")
    await store.write_homes("box", 1, {"7": (NodeId("127.0.0.1", 7355, 1), 1 << 32)}, 1)
    await store.close()
    dev = Dev(lab)
    assert await dev.process.ended() == 1
    said = dev.process.err.read_text()
    assert "'crc32/6', the store has 'crc32/12'" in said
    assert "`shardbus dev --fresh`" in said
    match = re.search(r"`shardbus (data remove [^`]*)`", said)
    assert match is not None, said
    removal = lab.run(*shlex.split(match[1]))
    assert await removal.ended() == 0, removal.err.read_text()
    again = Dev(lab)
    await again.wait("Ctrl-C ends them")
    again.process.signal(signal.SIGINT)
    assert await again.process.ended() == 0


@pytest.mark.long
async def test_a_second_dev_and_a_taken_port_are_refused(lab: Processes, tmp_path: Path) -> None:
    dev = Dev(lab)
    await dev.wait("Ctrl-C ends them")
    second = lab.run("dev", "--port", str(dev.port), "--http-port", str(dev.http))
    assert await second.ended() == 1
    assert "another `shardbus dev` (process " in second.err.read_text()
    dev.process.signal(signal.SIGINT)
    assert await dev.process.ended() == 0


@pytest.mark.long
def test_a_new_project_passes_its_own_test_and_the_type_checker(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    shardbus = Path(sys.executable).with_name("shardbus")
    subprocess.run([shardbus, "init", str(project)], check=True)
    for command in (["pytest", "-q", "-p", "no:cacheprovider"], ["mypy", "--strict", "."]):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=project, text=True, check=False, timeout=PATIENCE_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


@pytest.mark.long
async def test_the_web_route_of_a_new_project_reaches_the_cluster(lab: Processes) -> None:
    """The nodes by `dev` in the project, the route by its server, both as the README says."""
    project = lab.folder / "shop"
    made = lab.run("init", str(project))
    assert await made.ended() == 0
    block = free_block(4)
    dev = NodeProcess(
        project, "dev", ["dev", "--nodes", "1", "--port", str(block), "--http-port", str(block + 2)]
    )
    lab.all.append(dev)
    await until(lambda: "Ctrl-C ends them" in dev.out.read_text(), "the project's cluster")
    environment = os.environ | {"NODES": f"tcp://127.0.0.1:{block}"}
    web = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "web:app", "--port", str(block + 3)],
        cwd=project, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        answers: list[str] = []

        def answered() -> bool:
            connection = http.client.HTTPConnection("127.0.0.1", block + 3, timeout=PATIENCE_S)
            try:
                connection.request("POST", "/counters/page-7?amount=2")
                answers.append(connection.getresponse().read().decode())
            except OSError:
                return False  # it does not listen yet
            finally:
                connection.close()
            return True

        await until(answered, "the web route")
        assert answers[-1] == '{"total":2}'
    finally:
        web.kill()
        web.wait()
