"""A node at its limit of file descriptors: connected clients stay, new clients get the reason of
the refusal, and connect as soon as there is room."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress

import pytest
import zmq

from shardbus import AsyncClient, NodeLost, ShardBusError
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import PATIENCE_S, until

LIMIT = 256
FEW = (shutil.which("prlimit") or "", f"--nofile={LIMIT}:{LIMIT}")
REFUSED = re.compile("no_descriptor|no file descriptor left for another client")
LISTENER = """
import os, sys, zmq
from shardbus.transport.zmq.connection_guard import ConnectionGuard
socket = zmq.Context().socket(zmq.ROUTER)
guard = ConnectionGuard(
    socket, connections_max=100, on_cut=lambda reason: print(reason, flush=True)
)
port = socket.bind_to_random_port("tcp://127.0.0.1")
guard.start(port)
print(port, flush=True)
print(socket.recv_multipart()[1].decode(), flush=True)
sys.stdin.readline()
hoard = []
try:
    while True:
        hoard.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    print("none is left", flush=True)
while hoard:
    message = socket.recv_multipart()[1]
    print(message.decode(), flush=True)
    if message == b"release":
        while hoard:
            os.close(hoard.pop())
print(socket.recv_multipart()[1].decode(), flush=True)
"""
pytestmark = pytest.mark.skipif(not FEW[0], reason="needs prlimit")


def client(node: NodeProcess, connect_timeout: float = PATIENCE_S) -> AsyncClient:
    return AsyncClient(
        f"tcp://{node.address}", cluster="lab", timeout=PATIENCE_S, connect_timeout=connect_timeout
    )


@asynccontextmanager
async def hoarding(user: AsyncClient, node: NodeProcess) -> AsyncIterator[None]:
    """The application of the node has all descriptors."""
    page = 0
    while not str(await user.call("page", f"page-{page}", "where")).startswith(node.address):
        page += 1
    assert await user.call("page", f"page-{page}", "hoard")
    yield
    await user.call("page", f"page-{page}", "release")


async def test_a_node_with_too_few_descriptors_ends_with_the_reason(lab: Processes) -> None:
    node = lab.begin(enter=(FEW[0], "--nofile=30:30"))
    assert await node.ended() == 1
    assert "may open 30 file descriptors, and a node needs 64" in node.err.read_text()


@pytest.mark.long
async def test_clients_that_find_no_room_learn_why_and_the_others_go_on(lab: Processes) -> None:
    node = lab.begin(enter=FEW)
    await until(node.ready, "the ready line")
    inside: list[AsyncClient] = []
    refused = ""
    async with AsyncExitStack() as entered:
        while not refused:
            try:
                inside.append(await entered.enter_async_context(client(node, 10.0)))
            except NodeLost as error:
                refused = str(error)
            assert len(inside) < LIMIT
        assert "has no file descriptor left for another client" in refused
        for n, user in enumerate(inside, 1):
            assert await user.call("page", "page-1", "hit", 1, n) == n
        await node.says("has no file descriptor left for another client")
        late = entered.enter_async_context(client(node))
        await inside.pop().close()
        await late
    assert await node.terminate() == 0


@pytest.mark.long
async def test_a_node_whose_application_takes_all_descriptors_goes_on_without_new_clients(
    lab: Processes,
) -> None:
    """Something of the node may give one back, so that a client gets as far as to its refusal."""
    node = lab.begin(enter=FEW)
    other = lab.begin(seeds=[node.address])
    await lab.agree(node, other)
    async with client(node) as user:
        async with hoarding(user, node):
            with pytest.raises(ShardBusError):
                await client(node, 5.0).__aenter__()
            await until(lambda: REFUSED.search(node.err.read_text()), "the reason in the log")
            assert await user.call("page", "page-2", "hit", 1, 1) == 1
        async with client(node) as late:
            assert await late.call("page", "page-2", "hit", 1, 2) == 2
    await lab.agree(node, other)
    assert await node.terminate() == 0


@pytest.mark.long
def test_a_listener_without_descriptors_ends_what_waits_and_keeps_what_is_open() -> None:
    """ZeroMQ would try in a loop to accept the waiting connections; each connection is ended in its
    place."""
    process = subprocess.Popen(
        [*FEW, sys.executable, "-c", LISTENER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said = process.stdout

    def line() -> str:
        return said.readline().strip()

    def message() -> str:
        """The next message; connections may end late."""
        while (last := line()) == "no_descriptor":
            pass
        return last

    port = int(line())
    with zmq.Context() as context, context.socket(zmq.DEALER) as old:
        old.connect(f"tcp://127.0.0.1:{port}")
        old.send(b"x")
        assert line() == "x", "it is connected"
        process.stdin.write("\n")
        process.stdin.flush()
        assert line() == "none is left"
        with ExitStack() as let_in:
            ended = 0
            while ended < 10:
                late = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
                let_in.enter_context(late)
                late.settimeout(1.0)
                with suppress(TimeoutError):  # it found one that was free for a moment, and stays
                    while late.recv(100):
                        pass
                    assert line() == "no_descriptor"
                    ended += 1
        old.send(b"goes on")
        old.send(b"release")
        assert [message(), message()] == ["goes on", "release"]
        with context.socket(zmq.DEALER) as new:
            new.connect(f"tcp://127.0.0.1:{port}")
            new.send(b"comes in")
            assert message() == "comes in"
    process.wait(PATIENCE_S)
    process.stdin.close()
    said.close()
