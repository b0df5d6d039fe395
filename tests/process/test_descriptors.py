"""A node at its limit of file descriptors: who is in stays in, new clients learn why they are
refused, and come in as soon as there is room."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from shardbus import AsyncClient, NodeLost, ShardBusError
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import PATIENCE_S, until

LIMIT = 256
FEW = (shutil.which("prlimit") or "", f"--nofile={LIMIT}:{LIMIT}")
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


async def test_a_node_whose_application_takes_all_descriptors_turns_new_connections_away(
    lab: Processes,
) -> None:
    node = lab.begin(enter=FEW)
    other = lab.begin(seeds=[node.address])
    await lab.agree(node, other)
    async with client(node) as user:
        async with hoarding(user, node):
            with pytest.raises(ShardBusError):
                await client(node, 5.0).__aenter__()
            await node.says("no_descriptor")
            assert await user.call("page", "page-2", "hit", 1, 1) == 1
        async with client(node) as late:
            assert await late.call("page", "page-2", "hit", 1, 2) == 2
    await lab.agree(node, other)
    assert await node.terminate() == 0
