"""Nodes that know each other by name, and a name server that never answers.

Every machine has the names of those that run in its file of hosts. A name that is gone from there
is asked of a name server that swallows all questions, as the name of a container that has ended:
the system's look-up then takes ten seconds.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.markers import long_only
from tests.process.namespaces import FILES, Machine, inside
from tests.process.nodes import MACHINE_PORTS, NodeProcess, Processes
from tests.waiting import until


class Names:
    """The names of the machines of one test."""

    def __init__(self, server: Machine) -> None:
        with inside(server.name):
            self._server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._server.bind((server.address, 53))
        self._address = server.address
        self._names: dict[str, Machine] = {}
        self._folders: list[Path] = []

    def add(self, name: str, machine: Machine) -> None:
        folder = FILES / machine.name
        folder.mkdir(parents=True)
        self._folders.append(folder)
        (folder / "resolv.conf").write_text(f"nameserver {self._address}\n")
        (folder / "nsswitch.conf").write_text("hosts: files dns\n")
        self._names[name] = machine
        self._write()

    def forget(self, name: str) -> None:
        """From now on, look-ups of this name hang."""
        del self._names[name]
        self._write()

    def _write(self) -> None:
        """In place: a process sees the file that there was when it began."""
        lines = [f"{machine.address} {name}\n" for name, machine in self._names.items()]
        for folder in self._folders:
            (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))

    @property
    def received_question(self) -> bool:
        """True if the name server has received a question since the last look."""
        self._server.setblocking(False)
        received = 0
        try:
            while self._server.recv(4096):
                received += 1
        except BlockingIOError:
            return bool(received)
        return bool(received)

    def close(self) -> None:
        self._server.close()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def names(walled: Processes) -> Iterator[Names]:
    assert walled.network is not None
    made = Names(walled.network.machine())
    yield made
    made.close()


def begin(
    walled: Processes, names: Names, count: int, settings: tuple[str, ...] = ()
) -> list[NodeProcess]:
    """Start nodes that advertise names."""
    assert walled.network is not None
    machines = [walled.network.machine() for _ in range(count)]
    for n, machine in enumerate(machines):
        names.add(f"node{n + 1}", machine)
    seeds = [f"node{n + 1}:{MACHINE_PORTS[0]}" for n in range(count)]
    started = []
    for n, machine in enumerate(machines):
        options = ("--advertise", f"node{n + 1}")
        node = walled.begin(*options, seeds=seeds, machine=machine, settings=settings)
        node.host = f"node{n + 1}"
        started.append(node)
    return started


@pytest.mark.long
@pytest.mark.parametrize(
    "settings", [(), *long_only(("cluster.confirmed_death=false",))], ids=["confirmed", "silent"]
)
async def test_survivors_stay_together_while_the_name_server_is_silent(
    walled: Processes, names: Names, settings: tuple[str, ...]
) -> None:
    """Also while the dead member's name is looked up again and again, until silence proves it. A
    death that is proved at once may need no look-up."""
    nodes = begin(walled, names, 4, settings)
    await walled.agree(*nodes)
    victim = nodes.pop(0)
    names.forget(victim.host)
    victim.kill()
    if settings:
        await until(lambda: names.received_question, "a question that gets no answer")
    await walled.agree(*nodes)
    for node in nodes:
        log = node.err.read_text()
        assert not re.search(r"node[234]:\d+#\w+ is (unreachable|down|gone)", log), log[-2000:]
        assert await node.terminate() == 0


@pytest.mark.long
async def test_a_node_that_is_downed_without_a_name_server_ends_with_1(
    walled: Processes, names: Names
) -> None:
    nodes = begin(walled, names, 3)
    await walled.agree(*nodes)
    lost = nodes[2]
    for node in nodes[:2]:
        names.forget(node.host)
    assert walled.network is not None
    machines = [node.machine for node in nodes if node.machine is not None]
    walled.network.split(machines[:2], machines[2:])
    assert await lost.ended() == 1, lost.err.read_text()[-2000:]
    assert "does not end" not in lost.err.read_text()
    nodes[0].signal(signal.SIGTERM)
    assert await nodes[0].ended() == 0
