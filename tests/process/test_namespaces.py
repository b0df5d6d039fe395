"""The walls themselves, felt by plain sockets; and that nothing of them stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.namespaces import FOLDER, Machine, Network, Wall, inside, sweep
from tests.process.warm import ROOT
from tests.waiting import until

SILENCE_S = 0.3
"""The test waits so long only for a swallowed message, and it never comes."""
COMES_S = 60.0
"""The test waits so long at most for a message that comes."""

ABANDONED = """
import subprocess, sys
from tests.process.namespaces import Network
network = Network()
process = subprocess.Popen([*network.machine().enter, "sleep", "600"], stdout=subprocess.DEVNULL)
print(process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def pair(network: Network) -> Iterator[tuple[socket.socket, socket.socket]]:
    """An established connection from the first machine to the second."""
    first, second = network.machine(), network.machine()
    with inside(second.name):
        listener = socket.create_server((second.address, 4000))
    here = dial(first, second, within=COMES_S)
    there, _ = listener.accept()
    with listener, here, there:
        yield here, there


def dial(here: Machine, there: Machine, within: float = SILENCE_S) -> socket.socket:
    with inside(here.name):
        client = socket.socket()
    client.settimeout(within)
    client.connect((there.address, 4000))
    return client


def passes(sender: socket.socket, receiver: socket.socket) -> bool:
    """Whether a byte gets through."""
    receiver.settimeout(COMES_S)
    sender.sendall(b"x")
    return receiver.recv(1) == b"x"


def swallowed(sender: socket.socket, receiver: socket.socket) -> bool:
    """Whether a byte does not get through."""
    receiver.settimeout(SILENCE_S)
    sender.sendall(b"x")
    try:
        receiver.recv(1)
    except TimeoutError:
        return True
    return False


def test_what_meets_a_wall_is_swallowed_on_connections_that_stand(
    network: Network, pair: tuple[socket.socket, socket.socket]
) -> None:
    here, there = pair
    first, second = network.machines
    assert passes(here, there)
    network.split([first], [second])
    assert swallowed(here, there)
    assert swallowed(there, here)
    with pytest.raises(TimeoutError):
        dial(first, second)
    network.heal()
    for end in pair:
        end.settimeout(COMES_S)
        assert end.recv(1) == b"x", "what was swallowed is sent again"


def test_one_way_is_one_way(network: Network, pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    first, second = network.machines
    network.stop([first], [second])
    assert passes(there, here)
    assert swallowed(here, there)


def test_what_meets_a_wall_that_rejects_breaks_connections(
    network: Network, pair: tuple[socket.socket, socket.socket]
) -> None:
    here, _ = pair
    first, second = network.machines
    network.split([first], [second], wall=Wall.REJECT)
    here.settimeout(COMES_S)
    here.sendall(b"x")
    with pytest.raises(ConnectionResetError):
        here.recv(1)
    with pytest.raises(ConnectionRefusedError):
        dial(first, second, within=COMES_S)


def test_who_is_unplugged_reaches_nobody(
    network: Network, pair: tuple[socket.socket, socket.socket]
) -> None:
    network.unplug(network.machines[1])
    assert swallowed(*pair)
    network.plug(network.machines[1])
    pair[1].settimeout(COMES_S)
    assert pair[1].recv(1) == b"x"


async def test_what_a_killed_run_left_is_removed(network: Network) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", ABANDONED],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert run.stdout is not None
    left = int(run.stdout.readline())
    mine, others = network.machine().name, f"sb-{run.pid}-"
    assert [name for name in os.listdir(FOLDER) if name.startswith(others)]
    run.send_signal(signal.SIGKILL)
    run.communicate()
    sweep()  # another run may be at it
    await until(lambda: not any(n.startswith(others) for n in os.listdir(FOLDER)), "their removal")
    assert mine in os.listdir(FOLDER)
    await until(lambda: ended(left), "the end of what ran inside")


def ended(pid: int) -> bool:
    """Whether the process is no more, or only waits for whoever inherited it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"
