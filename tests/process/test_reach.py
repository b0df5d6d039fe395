"""A node is a member only where it can take part, and a node has one session by whatever name it is
dialled."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
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


async def is_held_off(nodes: list[NodeProcess], *others: NodeProcess) -> None:
    """Check that the nodes become no members for a while, and that nothing happens to the
    others."""
    loop = asyncio.get_running_loop()
    until_ = loop.time() + HOLD_S
    strangers = {node.address for node in nodes}
    while loop.time() < until_:
        for other in others:
            page = await other.page("/v1/nodes")
            assert page is None or strangers.isdisjoint(row["address"] for row in page["nodes"])
        await asyncio.sleep(0.5)
    assert not any([await node.ready() for node in nodes])
    assert all("unreachable" not in other.err.read_text() for other in others)


@pytest.mark.long
async def test_a_node_whose_gossip_is_not_reached_is_no_member_until_it_is(lab: Processes) -> None:
    first, second = await lab.cluster(2)
    mapped = free_port()
    late = lab.begin("--advertise-gossip", f"127.0.0.1:{mapped}")
    await late.says(f"does not reach this node at 127.0.0.1:{mapped} (gossip)")
    await is_held_off([late], first, second)
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


async def in_no_cluster(node: NodeProcess) -> str:
    """The first line in which the node says why."""
    await node.says("in no cluster after")
    lines = node.err.read_text().splitlines()
    return next(line for line in lines if "in no cluster after" in line)


async def test_a_wrong_seed_is_named_with_what_listens_there(lab: Processes) -> None:
    """The nodes have other stores: on the cluster's own they are refused, with the right
    addresses."""
    [first] = await lab.cluster(1)
    wrong = {
        first.http_port: "an HTTP server answers there",
        free_port(): "no process listens there",
        first.gossip_port: "a node's port of gossip answers there",
    }
    late = {}
    for port in wrong:
        store_url = f"sqlite:///{lab.folder}/{port}.db"
        late[port] = lab.begin("--store", store_url, seeds=[f"127.0.0.1:{port}"])
    for port, why in wrong.items():
        line = await in_no_cluster(late[port])
        assert f"127.0.0.1:{port} (messages): no answer (" in line
        assert why in line


def block(machine: Machine, chain: str, port: int) -> None:
    """Packets of TCP to this port are lost at a machine."""
    rule = ["-A", chain, "-p", "tcp", "--dport", str(port), "-j", "DROP"]
    subprocess.run([*machine.enter, "iptables", "-w", "5", *rule], check=True, capture_output=True)


def clear(machine: Machine) -> None:
    subprocess.run([*machine.enter, "iptables", "-w", "5", "-F"], check=True, capture_output=True)


@pytest.mark.long
async def test_one_channel_in_one_direction(walled: Processes) -> None:
    """Four nodes, of which each lacks another one."""
    assert walled.network is not None
    first, second = await walled.cluster(2)
    seeds = [first.address, second.address]
    late = {}
    for chain in ("INPUT", "OUTPUT"):
        for port in (GOSSIP, MESSAGES):
            machine = walled.network.machine()
            block(machine, chain, port)
            late[chain, port] = walled.begin(machine=machine, seeds=seeds)
    for (_, port), node in late.items():
        named = "(gossip)" if port == GOSSIP else "(messages)"
        assert f":{port} {named}" in await in_no_cluster(node)
    await is_held_off([*late.values()], first, second)
    for node in late.values():
        assert node.machine is not None
        clear(node.machine)
    for node in late.values():
        await until(node.ready, "the ready line once the way is open")
    await walled.agree()


# Names


async def counts(client: AsyncClient, keys: range) -> list[int]:
    return await asyncio.gather(*(client.call("account", f"k{i}", "add", 1) for i in keys))


async def test_a_client_is_served_at_once_by_any_name(lab: Processes) -> None:
    """A blocking one, too."""
    [node] = await lab.cluster(1)
    for count, names in enumerate([("localhost",), ("localhost", "127.0.0.1"), ("127.0.0.1",)], 1):
        urls = [f"tcp://{name}:{node.port}" for name in names]
        async with AsyncClient(*urls, cluster="lab", timeout=PATIENCE_S) as client:
            assert await counts(client, range(20)) == [count] * 20
            sessions = client._endpoint.outgoing_sessions
            assert [session.name.partition("#")[0] for session in sessions] == [node.address]

    def ask() -> list[Any]:
        url = f"tcp://localhost:{node.port}"
        with Client(url, cluster="lab", timeout=PATIENCE_S) as client:
            return [client.call("account", f"k{i}", "add", 1) for i in range(3)]

    assert await asyncio.to_thread(ask) == [4, 4, 4]


async def test_seeds_by_other_names_make_one_cluster(lab: Processes) -> None:
    """The first one names itself, too: it founds."""
    port = free_port()
    first = lab.begin(port=port, seeds=[f"localhost:{port}"])
    await until(first.ready, "the ready line of a first seed by another name")
    await lab.start(seeds=[f"localhost:{port}", f"127.0.0.1:{port}"])
    await lab.agree()
