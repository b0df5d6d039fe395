"""A real node and strangers who send any bytes, or none. Its memory and its descriptors
stay within bounds, others are served meanwhile, and refusals are counted by its reason."""

from __future__ import annotations

import asyncio
import os
import random
import re
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from shardbus import AsyncClient
from tests.process.app import Page
from tests.process.nodes import NodeProcess, Processes
from tests.strangers import Stranger, frame, message
from tests.waiting import PATIENCE_S, until

MIB = 1 << 20
GROWTH_MAX = 640 * MIB
"""The memory that one stranger may cost: some twenty times the 16 MiB that a connection may have
unread, and the bytes that come until that is seen."""
ATTACK = 4096 * MIB
SILENT = 1000


@pytest.fixture
def descriptors() -> Iterator[None]:
    """This process needs many, too."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def resident(node: NodeProcess) -> int:
    """Bytes of memory that the process has now."""
    pages = Path(f"/proc/{node.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def opened(node: NodeProcess) -> int:
    """How many descriptors it has."""
    return len(os.listdir(f"/proc/{node.process.pid}/fd"))


async def dropped(node: NodeProcess) -> dict[str, int]:
    """The node's refusals, by reason."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        text = (await client.get(f"http://127.0.0.1:{node.http_port}/metrics")).text
    rows = re.findall(r'messages_dropped_total\{.*reason="(\w+)"\} (\d+)', text)
    return {reason: int(count) for reason, count in rows}


@asynccontextmanager
async def served(client: AsyncClient, node: NodeProcess) -> AsyncIterator[list[int]]:
    """Ask all the time, one after the other; and look at the node's memory. Yields its lines."""
    sizes = [resident(node)]
    over = False

    async def ask() -> None:
        asks = 0
        while not over or asks < 10:
            asks += 1
            assert await client.ref(Page, f"page-{asks % 20}").hit(1, asks) == asks
            sizes.append(resident(node))

    asking = asyncio.create_task(ask())
    try:
        yield sizes
    finally:
        over = True
        await asking


def endless_large(port: int) -> None:
    with Stranger(port, patience=15) as stranger:
        part = frame(bytes(MIB), more=True)
        assert stranger.flood(part, ATTACK // MIB) < ATTACK // MIB


def endless_small(port: int) -> None:
    with Stranger(port, patience=15) as stranger:
        parts = frame(b"x", more=True) * 20_000
        assert stranger.flood(parts, ATTACK // len(parts)) < ATTACK // len(parts)


def many_parts(port: int) -> None:
    with Stranger(port) as stranger:
        assert stranger.send(message(*[bytes(900)] * 50))
        assert stranger.ended()


def a_host_of_parts(port: int) -> None:
    with Stranger(port) as stranger:
        stranger.send(frame(b"", more=True) * 300_000 + frame(b""))
        assert stranger.ended()


def malformed(port: int) -> None:
    with Stranger(port) as stranger:
        assert stranger.flood(message(b"noise", b"") * 100, 200) == 200


def random_bytes(port: int) -> None:
    dice = random.Random(7)
    for _ in range(50):
        with Stranger(port) as stranger:
            stranger.flood(dice.randbytes(64 * 1024), 16)
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", port)) as raw, suppress(OSError):
            raw.sendall(dice.randbytes(4096))


HOSTILE: list[tuple[Callable[[int], None], str]] = [
    (endless_large, "too_much_unread"),
    pytest.param(endless_small, "too_much_unread", marks=pytest.mark.long),
    pytest.param(many_parts, "too_many_parts", marks=pytest.mark.long),
    pytest.param(a_host_of_parts, "too_many_parts", marks=pytest.mark.long),
    (malformed, "malformed"),
    pytest.param(random_bytes, "", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("hostile", "reason"), HOSTILE, ids=lambda v: getattr(v, "__name__", ""))
async def test_a_flood_costs_a_bounded_memory_and_nobody_else_an_answer(
    lab: Processes, hostile: Callable[[int], None], reason: str
) -> None:
    node = await lab.start()
    async with lab.client() as client:
        async with served(client, node) as sizes:
            await asyncio.to_thread(hostile, node.port)
        assert max(sizes) - sizes[0] < GROWTH_MAX
        assert client.lost_messages == 0
    if reason:
        await until(lambda: has(node, reason), f"the count of {reason}")
    assert "Traceback" not in node.err.read_text()
    assert len(node.err.read_text().splitlines()) < 60


async def has(node: NodeProcess, reason: str) -> bool:
    return (await dropped(node)).get(reason, 0) > 0


@pytest.mark.long
async def test_a_thousand_silent_connections_are_freed_and_the_node_goes_on(
    lab: Processes, descriptors: None
) -> None:
    node = await lab.start()
    async with lab.client() as client:
        assert await client.ref(Page, "page-1").hit(1, 1) == 1
        before, silent = opened(node), []
        async with served(client, node) as sizes:
            for port in (node.port, node.gossip_port):
                to = ("127.0.0.1", port)
                silent += [socket.create_connection(to) for _ in range(SILENT)]
                assert await node.page("/livez")
            await until(lambda: opened(node) <= before + 4, "every descriptor back")
        assert max(sizes) - sizes[0] < 64 * MIB
        assert client.lost_messages == 0
        for each in silent:
            each.close()
    assert "Traceback" not in node.err.read_text()


async def test_a_node_with_few_descriptors_says_so_and_keeps_some_for_itself(
    lab: Processes, descriptors: None
) -> None:
    node = lab.begin()
    resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (200, 200))
    await until(node.ready, "the ready line")
    await node.says("this process may open 200 file descriptors")
    strangers = []
    for _ in range(300):
        with suppress(ConnectionError):  # The node may end it while it shakes hands.
            strangers.append(Stranger(node.port))
    async with lab.client() as client:
        assert await client.ref(Page, "page-1").hit(1, 1) == 1
    await until(lambda: has(node, "too_many_connections"), "the count")
    assert opened(node) < 200
    await node.says("too_many_connections, at most 100 here: raise the limit")
    for stranger in strangers:
        stranger.socket.close()
    assert await node.terminate() == 0


async def test_a_node_without_a_descriptor_ends_who_waits_and_serves_its_clients(
    lab: Processes, descriptors: None
) -> None:
    node = await lab.start()
    limits = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
    async with lab.client() as client:
        assert await client.ref(Page, "page-1").hit(1, 1) == 1
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (opened(node), limits[1]))
        strangers = [socket.create_connection(("127.0.0.1", node.port)) for _ in range(20)]
        for stranger in strangers:
            stranger.settimeout(PATIENCE_S)
            with stranger, suppress(ConnectionError):
                while await asyncio.to_thread(stranger.recv, 4096):
                    pass
        assert await client.ref(Page, "page-1").hit(1, 2) == 2
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, limits)
    async with lab.client() as client:
        assert await client.ref(Page, "page-1").hit(1, 3) == 3
    assert "Traceback" not in node.err.read_text()


async def test_who_subscribes_to_what_no_node_has_is_ended(lab: Processes) -> None:
    node = await lab.start()
    dice = random.Random(3)
    with Stranger(node.gossip_port, b"SUB") as stranger:
        assert stranger.send(frame(b"\1" + dice.randbytes(40)))
        assert await asyncio.to_thread(stranger.ended)
    await until(lambda: has(node, "gossip_not_a_subscription"), "the count")
    with Stranger(node.gossip_port, b"SUB", patience=15) as stranger:
        topics = b"".join(frame(b"\1" + dice.randbytes(40)) for _ in range(10_000))
        before = resident(node)
        assert stranger.flood(topics, 1000) < 1000
    assert resident(node) - before < 256 * MIB
    async with lab.client() as client:
        assert await client.ref(Page, "page-1").hit(1, 1) == 1
