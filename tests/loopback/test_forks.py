"""In a child of a fork the parent's objects refuse, with advice; the parent goes on, and a
client that the child makes itself works."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from shardbus import AsyncClient, Client, Entity, ShardBus, handler
from tests.loopback.nodes import Nodes
from tests.waiting import PATIENCE_S

bus = ShardBus("forks")
SAYS = "was made before this process was forked"


@bus.entity("counter")
class Counter(Entity):
    """Counts."""

    def __init__(self) -> None:
        self.total = 0

    @handler
    def add(self, amount: int) -> int:
        self.total += amount
        return self.total


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with Nodes() as nodes:
        await nodes.start(bus)
        yield nodes


def in_child(what: Callable[[], Any]) -> tuple[int, int]:
    """Fork, and do it there; the child's id, and the file of its outcome."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    said = "it was interrupted"
    try:
        said = str(what())
    except BaseException as e:
        said = f"{type(e).__name__}: {e}"
    finally:
        os.write(writing, said.encode())
        os._exit(0)


async def outcome(child: int, reading: int) -> str:
    """The child's output, once it has ended."""

    def read() -> str:
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read().decode()
        os.waitpid(child, 0)
        return said

    return await asyncio.to_thread(read)


async def forked(what: Callable[[], Any]) -> str:
    return await outcome(*in_child(what))


async def test_an_asynchronous_client_and_its_refs_refuse_in_a_child(nodes: Nodes) -> None:
    client = await nodes.client()
    ref = client.ref(Counter, "a")
    assert await ref.add(1) == 1
    uses: list[Callable[[], Any]] = [
        lambda: client.tell("counter", "a", "add", 1),
        lambda: client.tell_nowait("counter", "a", "add", 1),
        lambda: client.ask(Counter, "a", "add", 1),
        lambda: client.ref(Counter, "b"),
        lambda: client.lost_messages,
        lambda: ref.add(1),
        lambda: ref.add.tell(1),
        lambda: ref.add.tell_nowait(1),
    ]
    for use in uses:
        said = await forked(use)
        assert said.startswith("LocalProtocolError: this ")
        assert SAYS in said
        assert "make one after the fork, or start processes by the method 'spawn'" in said
    assert await ref.add(1) == 2


async def test_a_client_that_was_not_entered_yet_works_in_a_child(nodes: Nodes) -> None:
    client = AsyncClient(
        f"tcp://{nodes.all[0].me.address}",
        cluster="forks",
        timeout=PATIENCE_S,
        connect_timeout=PATIENCE_S,
    )

    async def use() -> int:
        async with client:
            return int(await client.ask(Counter, "a", "add", 7))

    assert await forked(lambda: asyncio.new_event_loop().run_until_complete(use())) == "7"


async def test_a_blocking_client_refuses_in_a_child_and_its_block_can_be_left(
    nodes: Nodes,
) -> None:
    address = f"tcp://{nodes.all[0].me.address}"

    def work() -> list[str]:
        with Client(
            address, cluster="forks", timeout=PATIENCE_S, connect_timeout=PATIENCE_S
        ) as client:
            ref = client.ref(Counter, "a")
            assert ref.add(1) == 1
            children = [
                in_child(lambda: client.tell("counter", "a", "add", 1)),
                in_child(lambda: ref.add(1)),
                in_child(client.flush),
                in_child(lambda: client.__exit__(None, None, None)),
                in_child(lambda: with_own(address)),
            ]
            said = [asyncio.run(outcome(*child)) for child in children]
            assert ref.add(1) == 102
            return said

    *refused, left, child_answer = await asyncio.to_thread(work)
    assert all(SAYS in said for said in refused)
    assert left == "None"
    assert child_answer == "101"


async def test_a_blocking_client_that_was_not_used_yet_opens_in_a_child(nodes: Nodes) -> None:
    client = Client(
        f"tcp://{nodes.all[0].me.address}",
        cluster="forks",
        timeout=PATIENCE_S,
        connect_timeout=PATIENCE_S,
    )
    assert await forked(lambda: client.call("counter", "a", "add", 7)) == "7"
    assert await forked(lambda: client.call("counter", "a", "add", 1)) == "8"


FORKING = """
import os, sys
from shardbus import Client
client = Client(sys.argv[1], cluster="forks")
print(client.call("counter", "a", "add", 7), flush=True)
if (child := os.fork()) == 0:
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


async def test_a_child_that_ends_closes_no_client_of_its_parent(nodes: Nodes) -> None:
    address = f"tcp://{nodes.all[0].me.address}"
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        FORKING,
        address,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await program.communicate()
    assert (output.decode(), errors.decode()) == ("7\n3\n", "")


def with_own(address: str) -> int:
    """A client that was made after the fork."""
    with Client(address, cluster="forks", timeout=PATIENCE_S, connect_timeout=PATIENCE_S) as client:
        return int(client.ref(Counter, "a").add(100))


async def test_a_node_and_its_endpoint_refuse_in_a_child(nodes: Nodes) -> None:
    node = nodes.all[0]
    ref = node.ref(Counter, "a")
    assert await ref.add(1) == 1
    [session, *_] = [*node.endpoint.sessions(), node.loopback]
    uses: list[Callable[[], Any]] = [
        lambda: node.ref(Counter, "a"),
        lambda: node.members.hosting(),
        lambda: node.endpoint.sessions(),
        lambda: session.outbox.tell(("counter", "add"), "a", b"\x91\x01"),
        lambda: ref.add(1),
        lambda: node.cluster.app_alive(),
    ]
    for use in uses:
        assert SAYS in await forked(use)
    assert await ref.add(1) == 2
