"""A node is a member only where it can take part, and a node has one session by whatever name it is
dialled."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from shardbus import AsyncClient, Client
from tests.ports import free_port
from tests.process.namespaces import Machine
from tests.process.nodes import MACHINE_PORTS, NodeProcess, Processes
from tests.waiting import PATIENCE_S, until

MESSAGES, GOSSIP, _ = MACHINE_PORTS
HOLD_S = 20.0
"""Longer than the failure detector takes to find a member that is not heard unreachable."""


@contextlib.asynccontextmanager
async def relay(port: int, to: int) -> AsyncIterator[None]:
    """A mapped port."""

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()


async def is_held_off(node: NodeProcess, *others: NodeProcess) -> None:
    """Check that the node becomes no member for a while, and that nothing happens to the others."""
    loop = asyncio.get_running_loop()
    until_ = loop.time() + HOLD_S
    while loop.time() < until_:
        for other in others:
            page = await other.page("/v1/nodes")
            assert page is None or node.address not in [row["address"] for row in page["nodes"]]
        await asyncio.sleep(0.5)
    assert not await node.ready()
    assert all("unreachable" not in other.err.read_text() for other in others)


@pytest.mark.long
async def test_a_node_whose_gossip_is_not_reached_is_no_member_until_it_is(lab: Processes) -> None:
    first, second = await lab.cluster(2)
    mapped = free_port()
    late = lab.begin("--advertise-gossip", f"127.0.0.1:{mapped}")
    await late.says(f"does not reach this node at 127.0.0.1:{mapped} (gossip)")
    await is_held_off(late, first, second)
    async with relay(mapped, late.gossip_port):
        await until(late.ready, "the ready line behind the mapped port")
        await lab.agree()


@pytest.mark.long
async def test_a_node_whose_messages_are_not_reached_is_no_member(lab: Processes) -> None:
    [first] = await lab.cluster(1)
    late = lab.begin("--advertise", f"127.0.0.1:{free_port()}")
    await late.says("(messages): connection refused")
    page = await first.page("/v1/nodes")
    assert [row["address"] for row in page["nodes"]] == [first.address]


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (lambda first: first.http_port, "an HTTP server answers there"),
        pytest.param(lambda first: free_port(), "no process listens there", marks=pytest.mark.long),
        pytest.param(
            lambda first: first.gossip_port,
            "a node's port of gossip answers there",
            marks=pytest.mark.long,
        ),
    ],
    ids=["HTTP", "nothing", "gossip"],
)
async def test_a_wrong_seed_is_named_with_what_listens_there(
    lab: Processes, seed: Callable[[NodeProcess], int], why: str
) -> None:
    """The node has another store: on the cluster's own it is refused, with the right addresses."""
    [first] = await lab.cluster(1)
    port = seed(first)
    store_url = f"sqlite:///{lab.folder}/another.db"
    late = lab.begin("--store", store_url, seeds=[f"127.0.0.1:{port}"])
    await late.says("in no cluster after")
    [line] = [x for x in late.err.read_text().splitlines() if "in no cluster after" in x][:1]
    assert f"127.0.0.1:{port} (messages): no answer (" in line
    assert why in line


def block(machine: Machine, chain: str, port: int) -> None:
    """Packets of TCP to this port are lost at a machine."""
    rule = ["-A", chain, "-p", "tcp", "--dport", str(port), "-j", "DROP"]
    subprocess.run([*machine.enter, "iptables", "-w", "5", *rule], check=True, capture_output=True)


def clear(machine: Machine) -> None:
    subprocess.run([*machine.enter, "iptables", "-w", "5", "-F"], check=True, capture_output=True)


@pytest.mark.long
@pytest.mark.parametrize("port", [GOSSIP, MESSAGES], ids=["gossip", "messages"])
@pytest.mark.parametrize("chain", ["INPUT", "OUTPUT"])
async def test_one_channel_in_one_direction(walled: Processes, chain: str, port: int) -> None:
    named = "(gossip)" if port == GOSSIP else "(messages)"
    assert walled.network is not None
    first, second = await walled.cluster(2)
    machine = walled.network.machine()
    block(machine, chain, port)
    late = walled.begin(machine=machine)
    await late.says("in no cluster after")
    [line] = [x for x in late.err.read_text().splitlines() if "in no cluster after" in x][:1]
    assert f":{port} {named}" in line
    await is_held_off(late, first, second)
    clear(machine)
    await until(late.ready, "the ready line once the way is open")
    await walled.agree()


# Names


async def counts(client: AsyncClient, keys: range) -> list[int]:
    return await asyncio.gather(*(client.call("account", f"k{i}", "add", 1) for i in keys))


@pytest.mark.parametrize("names", [("localhost",), ("localhost", "127.0.0.1"), ("127.0.0.1",)])
async def test_a_client_is_served_at_once_by_any_name(
    lab: Processes, names: tuple[str, ...]
) -> None:
    [node] = await lab.cluster(1)
    urls = [f"tcp://{name}:{node.port}" for name in names]
    async with AsyncClient(*urls, cluster="lab", timeout=PATIENCE_S) as client:
        assert await counts(client, range(20)) == [1] * 20
        sessions = client._endpoint.outgoing_sessions
        assert [session.name.partition("#")[0] for session in sessions] == [node.address]


async def test_a_blocking_client_is_too(lab: Processes) -> None:
    [node] = await lab.cluster(1)

    def ask() -> list[Any]:
        url = f"tcp://localhost:{node.port}"
        with Client(url, cluster="lab", timeout=PATIENCE_S) as client:
            return [client.call("account", f"k{i}", "add", 1) for i in range(3)]

    assert await asyncio.to_thread(ask) == [1, 1, 1]


async def test_seeds_by_other_names_make_one_cluster(lab: Processes) -> None:
    """The first one names itself, too: it founds."""
    port = free_port()
    first = lab.begin(port=port, seeds=[f"localhost:{port}"])
    await until(first.ready, "the ready line of a first seed by another name")
    await lab.start(seeds=[f"localhost:{port}", f"127.0.0.1:{port}"])
    await lab.agree()
