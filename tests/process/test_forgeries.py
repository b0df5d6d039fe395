"""A stranger forges every message that nodes exchange. Each is refused and counted, and changes
neither membership, nor a table, nor a fence."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import zmq

from shardbus.ids import NodeId
from shardbus.membership.messages import JoinRefused
from shardbus.wire import gossip
from shardbus.wire.batch import FrameType, decode_membership
from shardbus.wire.control import Goodbye
from tests.forger import (
    ALL_CONTROL,
    CLIENTS_MAY,
    Forger,
    answers,
    init_join,
    join,
    question,
    relayed,
    sample,
)
from tests.markers import long_only
from tests.ports import free_port
from tests.process.app import Page
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import PATIENCE_S, until

STATE = ("/v1/cluster", "/v1/nodes", "/v1/shards/page")
LINKS = 500
CALM = ("cluster.failure_detector.acceptable_heartbeat_pause=60s",)
"""A node that is starved for a while is called unreachable by nobody: nothing changes."""


async def counts(node: NodeProcess) -> dict[str, int]:
    """The node's refusals, by reason."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        text = (await client.get(f"http://127.0.0.1:{node.http_port}/metrics")).text
    rows = re.findall(r'messages_dropped_total\{.*reason="(\w+)"\} (\d+)', text)
    return {reason: int(count) for reason, count in rows}


@dataclass
class Lab:
    """Two nodes, a client with an entity on each, and the state and the counts before the
    forgery."""

    nodes: list[NodeProcess]
    ids: list[NodeId]
    before: list[Any]
    counted: dict[str, int]

    @property
    def target(self) -> NodeProcess:
        return self.nodes[0]

    async def state(self) -> list[Any]:
        pages = [await node.page(path) for node in self.nodes for path in STATE]
        for page in pages:
            assert page is not None
            for row in (page, *page.get("nodes", page.get("shards", []))):
                for changing in ("entities", "status_for", "converged_for", "age"):
                    row.pop(changing, None)
        return pages

    async def refused(self, reason: str, count: int = 1) -> None:
        """Wait until the target has refused so many more, and look at the state."""
        before = self.counted.get(reason, 0)

        async def counted() -> bool:
            assert all(node.running for node in self.nodes)
            assert await self.state() == self.before
            return (await counts(self.target)).get(reason, 0) >= before + count

        await until(counted, f"{count} refusals as {reason}")
        assert await self.state() == self.before
        for node in self.nodes:
            assert "Traceback" not in node.err.read_text()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Two nodes for all tests: no forgery changes anything."""
    folder = tmp_path_factory.mktemp("forgeries")
    pair = Processes(folder, f"sqlite:///{folder}/store.db")
    loop = asyncio.new_event_loop()
    loop.run_until_complete(pair.cluster(2, settings=CALM))
    loop.close()
    yield pair
    pair.close()


@pytest.fixture
async def two(pair: Processes) -> AsyncIterator[Lab]:
    nodes = pair.all
    async with pair.client() as client:
        for number in range(24):
            assert await client.ref(Page, f"page-{number}").hit(1, 1) == 1
        pages = [await node.page("/v1/cluster") for node in nodes]
        two = Lab(nodes, [NodeId.parse(page["self"]) for page in pages], [], {})

        async def still() -> bool:
            two.before = await two.state()
            states = {row["state"] for row in two.before[2]["shards"]}
            return states == {"running"} and two.before == await two.state()

        await until(still, "a cluster at rest")
        two.counted = await counts(two.target)
        yield two
        for number in range(24):
            assert await client.ref(Page, f"page-{number}").hit(1, 2) == 2


@pytest.fixture
async def forger(two: Lab) -> AsyncIterator[Forger]:
    forger = Forger(two.ids[0])
    yield forger
    forger.close()


# Membership


async def test_a_join_outside_of_any_session(two: Lab, forger: Forger) -> None:
    fake = NodeId("127.0.0.1", free_port(), 7)
    for meant in (0, None):
        forger.membership(fake, join(fake), meant=meant)
    await two.refused("no_session", 2)


@pytest.mark.long
async def test_a_join_in_the_session_of_a_client(two: Lab, forger: Forger) -> None:
    forger.become_client()
    fake = NodeId("127.0.0.1", free_port(), 7)
    forger.membership(fake, join(fake))
    await two.refused("not_allowed")


@pytest.mark.long
async def test_a_join_in_the_name_of_another(two: Lab, forger: Forger) -> None:
    forger.become_node()
    for other in (two.ids[1], NodeId("127.0.0.1", free_port(), 7)):
        forger.membership(other, join(other))
    await two.refused("not_allowed", 2)


async def test_a_join_without_the_cookie(two: Lab, forger: Forger) -> None:
    fake = forger.become_node(port=free_port())
    forger.membership(fake, join(fake))
    await two.refused("gossip_no_cookie")


@pytest.mark.long
async def test_a_node_outside_the_loopback_is_refused_on_its_own_connection(
    two: Lab, forger: Forger
) -> None:
    fake = forger.become_node("10.9.8.7", 7355)
    forger.membership(fake, init_join())
    answer = gossip.decode(decode_membership(forger.receive(FrameType.MEMBERSHIP)).body)
    assert isinstance(answer, JoinRefused)
    assert "10.9.8.7:7355 is not on the loopback" in answer.reason
    assert await two.state() == two.before


@pytest.mark.long
async def test_answers_of_a_seed_that_was_not_asked(two: Lab, forger: Forger) -> None:
    fake = forger.become_node()
    for message in answers(fake):
        forger.membership(fake, message)
    await two.refused("not_allowed", len(answers(fake)))


async def test_a_joining_node_believes_only_whom_it_asked(lab: Processes) -> None:
    """A forged refusal does not end it, and forged InitNacks of all its seeds let it found no
    cluster."""
    port, dead = free_port(), f"127.0.0.1:{free_port()}"
    seeds = [f"127.0.0.1:{port}", dead]
    node = lab.begin(port=port, seeds=seeds, settings=("cluster.seed_node_timeout=600",))
    page = await until(lambda: node.page("/v1/cluster"), "the first page")
    forger = Forger(NodeId.parse(page["self"]))
    fake = forger.become_node(port=int(dead.rpartition(":")[2]))
    for message in answers(fake):
        forger.membership(fake, message)

    async def counted() -> bool:
        assert node.running
        assert (await node.page("/v1/cluster"))["members"] == 0
        return (await counts(node)).get("not_allowed", 0) == len(answers(fake))

    await until(counted, "the refusals")
    forger.close()


# Sessions


async def test_a_hello_in_the_name_of_a_member(two: Lab, forger: Forger) -> None:
    member = two.ids[1]
    for session, secret in ((2**40, b""), (2**41, os.urandom(16)), (1, forger.secret)):
        forger.hello(str(member), member.uid, member, session=session, secret=secret)
        forger.receive(FrameType.REFUSED)
    await two.refused("not_authorized", 3)


@pytest.mark.long
async def test_a_hello_in_the_name_of_a_client(two: Lab, forger: Forger) -> None:
    for name in ("client#0000000000000007", "n" * 250, "x"):
        forger.hello(name, 7, None, secret=forger.secret)
        forger.receive(FrameType.REFUSED)
    await two.refused("not_authorized", 3)


@pytest.mark.long
async def test_a_hello_of_16_mib(two: Lab, forger: Forger) -> None:
    forger.hello("client#" + "n" * (15 << 20), 7, None)
    await two.refused("malformed")


# Control messages


@pytest.mark.parametrize("of", ["client", *long_only("unknown node")])
async def test_every_control_message(two: Lab, forger: Forger, of: str) -> None:
    kinds = [cls for cls in ALL_CONTROL if cls not in CLIENTS_MAY]
    if of == "client":
        forger.become_client()
    else:
        forger.become_node()
    for cls in kinds:
        for node in two.ids:
            forger.control(sample(cls, node))
    reason = "not_allowed" if of == "client" else "not_a_member"
    await two.refused(reason, len(kinds) * 2)


@pytest.mark.long
async def test_forwarded_messages_and_questions_of_a_client(two: Lab, forger: Forger) -> None:
    forger.become_client()
    forger.data(relayed())
    questions = ("leave",), ("shutdown_region", "page"), ("stop", "page", ["1"]), ("stats",)
    for name, *arguments in questions:
        forger.data(question(str(name), *arguments))
    await two.refused("not_allowed", 1 + len(questions))


@pytest.mark.long
async def test_questions_of_an_unknown_node(two: Lab, forger: Forger) -> None:
    forger.become_node()
    questions = ("leave",), ("limit", "page", 1), ("place", "page", {"1": "127.0.0.1:1"})
    for name, *arguments in questions:
        forger.data(question(str(name), *arguments))
    await two.refused("not_a_member", len(questions))


@pytest.mark.parametrize("of", ["client", *long_only("unknown node")])
async def test_a_departure_notice(two: Lab, forger: Forger, of: str) -> None:
    if of == "client":
        forger.become_client()
    else:
        forger.become_node()
    for node in two.ids:
        forger.control(Goodbye(node), "")
    await two.refused("early_notice" if of == "client" else "not_a_member", 2)


# Peers without a handshake, and many


def http_post(body: bytes) -> bytes:
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def zmtp_1(*parts: bytes) -> bytes:
    """A routing id, and a message, as ZMTP 1.0 frames them."""
    frames = [(b"", 0), *((part, n + 1 < len(parts)) for n, part in enumerate(parts))]
    return b"".join(
        b"\xff" + (len(part) + 1).to_bytes(8, "big") + bytes([int(more)]) + part
        for part, more in frames
    )


def zmtp_2(*parts: bytes) -> bytes:
    """The same in ZMTP 2.0, with its greeting of a DEALER."""
    frames = b"".join(
        bytes([2 | int(n + 1 < len(parts))]) + len(part).to_bytes(8, "big") + part
        for n, part in enumerate(parts)
    )
    return b"\xff" + bytes(8) + b"\x7f\x01\x05" + b"\x00\x00" + frames


@pytest.mark.long
@pytest.mark.parametrize("form", [http_post, *long_only(zmtp_1, zmtp_2)])
async def test_a_join_of_a_peer_without_a_handshake(two: Lab, form: Callable[..., bytes]) -> None:
    fake = NodeId("127.0.0.1", free_port(), 7)
    sent: list[list[bytes]] = []
    forger = Forger(two.ids[0])
    forger.socket.close(0)
    forger.socket = type("Recorder", (), {"send_multipart": sent.append})()
    forger.membership(fake, join(fake), meant=0)
    body = form(zmtp_1(*sent[0])) if form is http_post else form(*sent[0])
    for port in (two.target.port, two.target.gossip_port):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.settimeout(30)  # ten times the pause after which libzmq ends it
            stranger.sendall(body)
            while await asyncio.to_thread(received, stranger):
                pass
    assert await two.state() == two.before
    forger.close()


def received(stranger: socket.socket) -> bytes:
    try:
        return stranger.recv(4096)
    except ConnectionError:
        return b""


@pytest.mark.long
async def test_requests_of_many_fake_nodes_open_no_link(two: Lab, forger: Forger) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{two.target.process.pid}/fd"))

    before = descriptors()
    for number in range(LINKS):
        fake = NodeId("127.0.0.1", 1 + number, number)
        forger.membership(fake, init_join(), meant=0)
    fake = forger.become_node()
    forger.membership(fake, init_join())
    forger.receive(FrameType.MEMBERSHIP)
    await two.refused("no_session", LINKS)
    assert descriptors() < before + 30


@pytest.mark.long
async def test_a_node_with_500_links_of_clients_and_fake_nodes_works(two: Lab) -> None:
    """The fixture asks every entity afterwards, and a newcomer of each kind gets a session."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.max_sockets = 4 * LINKS
    forgers = [Forger(two.ids[0], context) for _ in range(LINKS)]
    for number, forger in enumerate(forgers):
        if number % 2:
            forger.become_client()
        else:
            forger.become_node(port=1 + number)
    assert await two.state() == two.before
    for forger in (Forger(two.ids[0]), Forger(two.ids[0])):
        forger.become_node()
        forger.become_client()
        forger.close()
    await asyncio.to_thread(context.destroy, 0)
