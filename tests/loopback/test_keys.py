"""Nodes and clients with a cluster's secret, over real sockets: who has it is served as before, who
has another or none gets nowhere and receives the reason, and a secret is rotated under load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from benchmarks import forgeries
from shardbus import AskTimeout, AsyncClient, NodeLost, Refused, UnknownEntityType
from shardbus.config.settings import SecuritySettings
from shardbus.ids import Address, NodeId
from shardbus.node.node import Node
from shardbus.transport.permissions import uid_of
from shardbus.transport.secret_file import new_secret, secrets_text, write_private
from shardbus.transport.zmq import zap
from shardbus.transport.zmq.curve import KeyPair, Keyring, connect_with, derive
from shardbus.transport.zmq.network import ZmqNetwork
from shardbus.wire.batch import PROTOCOL_VERSION, FrameType, Hello, encode_body, pack_header
from tests.loopback.nodes import Nodes, blocking_client
from tests.loopback.test_node import application
from tests.ports import free_port
from tests.waiting import PATIENCE_S, until

Socket = zmq.Socket[bytes]
DIFFERS = "the cluster's secret differs"


def secret_file(folder: Path, name: str = "cluster.secret", *secrets: bytes) -> Path:
    path = folder / name
    write_private(path, secrets_text(secrets or [new_secret()]), replace=True)
    return path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return secret_file(tmp_path)


@pytest.fixture
async def nodes(secret: Path) -> AsyncIterator[Nodes]:
    async with Nodes() as nodes:
        nodes.security = SecuritySettings(secret=str(secret))
        yield nodes


async def refused_client(address: str, secret: Path | str) -> None:
    """Enter a client, for as long as the refusal may take on a busy machine."""
    client = AsyncClient(address, cluster="shop", secret=secret, connect_timeout=PATIENCE_S)
    await client.__aenter__()


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    context: zmq.Context[Socket] = zmq.Context()
    yield context
    context.destroy(0)


async def test_nodes_and_clients_with_the_secret_work_as_without(
    nodes: Nodes, secret: Path
) -> None:
    bus, _ = application()
    await nodes.cluster(bus, 3)
    client = await nodes.client(secret=secret)
    for n in range(30):
        await client.tell("counter", f"page-{n}", "add", 2)
    assert [await client.call("counter", f"page-{n}", "add", 1) for n in range(30)] == [3] * 30
    assert [node.endpoint.dropped_frames for node in nodes.all] == [{}] * 3

    def blocking() -> Any:
        with blocking_client(nodes.all[1], secret=secret) as other:
            return other.call("counter", "page-1", "add", 1)

    assert await asyncio.to_thread(blocking) == 4


async def test_the_secret_of_the_environment_is_that_of_a_client(
    nodes: Nodes, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, _ = application()
    await nodes.start(bus)
    monkeypatch.setenv("SHARDBUS_SECURITY__SECRET", str(secret))
    client = await nodes.client()
    assert await client.call("counter", "page-1", "add", 1) == 1


async def test_a_client_with_another_secret_or_none_is_refused_with_the_reason(
    nodes: Nodes, tmp_path: Path
) -> None:
    bus, _ = application()
    node = await nodes.start(bus)
    other = secret_file(tmp_path, "other.secret")
    address = f"tcp://{node.me.address}"
    with pytest.raises(Refused, match=DIFFERS):
        await refused_client(address, other)
    with pytest.raises(Refused, match="has a secret, and this process has none"):
        await refused_client(address, "")
    await until(lambda: node.endpoint.dropped_frames.get("handshake_failed", 0) >= 2, "the count")
    assert not node.endpoint.sessions()


async def test_a_client_with_a_secret_is_told_that_the_node_has_none(secret: Path) -> None:
    bus, _ = application()
    async with Nodes() as nodes:
        node = await nodes.start(bus)
        address = f"tcp://{node.me.address}"
        with pytest.raises(Refused, match=r"has no secret|or that node has none"):
            await refused_client(address, secret)


async def test_a_node_with_another_secret_stops_and_founds_no_cluster(
    nodes: Nodes, tmp_path: Path
) -> None:
    bus, _ = application()
    await nodes.start(bus)
    nodes.security = SecuritySettings(secret=str(secret_file(tmp_path, "other.secret")))
    stranger = await nodes.start(bus, up=False)
    async with asyncio.timeout(PATIENCE_S):
        reason = await stranger.membership.stopped
    assert reason.startswith("join failed: " + DIFFERS)
    assert stranger.membership.refusals
    assert len(nodes.all[0].view.members) == 1  # type: ignore[union-attr]


async def test_a_subscriber_without_the_key_of_a_member_sees_no_gossip(
    nodes: Nodes, context: zmq.Context[Socket], secret: Path
) -> None:
    """The second has the server key, as an eavesdropper may, and a key of its own."""
    bus, _ = application()
    first, _ = await nodes.cluster(bus, 2)
    port = first.cluster.gossip_port  # type: ignore[attr-defined]
    keys = Keyring(secret).newest
    plain, forged, key_holder = (context.socket(zmq.SUB) for _ in range(3))
    forged.setsockopt(zmq.CURVE_SERVERKEY, keys.server.public)
    public, private = zmq.curve_keypair()
    forged.setsockopt(zmq.CURVE_PUBLICKEY, public)
    forged.setsockopt(zmq.CURVE_SECRETKEY, private)
    connect_with(key_holder, keys)
    for subscriber in (plain, forged, key_holder):
        subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        subscriber.setsockopt(zmq.SUBSCRIBE, b"%016x" % nodes.all[1].me.uid)
        subscriber.connect(f"tcp://127.0.0.1:{port}")
    sockets: PubSub = first.cluster._sockets  # type: ignore[attr-defined]
    await until(lambda: sockets.dropped.get("unknown_key"), "the refusal")
    assert await asyncio.to_thread(key_holder.poll, 1000 * PATIENCE_S)
    assert not plain.poll(0)
    assert not forged.poll(0)


PubSub = Any


async def test_a_handler_of_keys_that_fails_admits_nobody(
    nodes: Nodes, secret: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bus, _ = application()
    node = await nodes.start(bus)
    before = await nodes.client(secret=secret)

    def fail(self: Keyring, public: bytes) -> str:
        raise RuntimeError("planted")

    monkeypatch.setattr(Keyring, "user_of", fail)
    address = f"tcp://{node.me.address}"
    with pytest.raises(Refused, match="does not know this process's key"):
        await refused_client(address, secret)
    assert "its key could not be checked" in caplog.text
    assert await before.call("counter", "page-1", "add", 1) == 1  # a connection that stands goes on


async def test_without_its_handler_a_node_admits_nobody(
    nodes: Nodes, secret: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bus, _ = application()
    node = await nodes.start(bus)

    def end(self: zap.ZapHandler, parts: list[bytes]) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(zap.ZapHandler, "_answer", end)
    address = f"tcp://{node.me.address}"
    for _ in range(2):  # the first ends the thread, the second finds none
        with pytest.raises(Exception, match=r"no node|differs"):
            async with AsyncClient(address, cluster="shop", secret=secret, connect_timeout=1.0):
                pass
    assert "every new connection is refused" in caplog.text
    assert not node.endpoint.clients


async def test_handshakes_of_one_address_are_bounded(
    secret: Path, context: zmq.Context[Socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zap.HandshakeLimit.__init__, "__defaults__", (8, 0.0))
    loop, port, cuts = asyncio.get_running_loop(), free_port(), list[str]()
    network = ZmqNetwork(Keyring(secret))
    network.open(loop)
    listener = network.listen("127.0.0.1", port, "n1", lambda parts: None, cuts.append)
    wrong = derive(new_secret())
    strangers = []
    try:
        ups: list[int] = []
        for n in range(20):  # members are not limited
            network.connect(
                Address("127.0.0.1", port),
                lambda parts: None,
                lambda n=n: ups.append(n),  # type: ignore[misc]
                lambda: None,
            )
            await until(lambda n=n: n in ups, "a connection")  # type: ignore[misc]
        assert "too_many_handshakes" not in cuts
        for _ in range(20):
            dealer = context.socket(zmq.DEALER)
            connect_with(dealer, wrong)
            dealer.connect(f"tcp://127.0.0.1:{port}")
            strangers.append(dealer)
        await until(lambda: "too_many_handshakes" in cuts, "the bound")
    finally:
        listener.close()
        network.close()


# Rotation


async def test_a_secret_is_rotated_under_load_and_nothing_is_lost(
    nodes: Nodes, secret: Path
) -> None:
    bus, _ = application()
    await nodes.cluster(bus, 3)
    client = await nodes.client(secret=secret)
    old, new = Keyring(secret).newest, new_secret()
    sent = asks = 0
    rotating = True

    async def load() -> None:
        nonlocal sent, asks
        while rotating:
            for n in range(60):
                await client.tell("counter", f"page-{n}", "add", 1)
            sent += 1
            await client.call("counter", "page-1", "add", 0)
            asks += 1
            await asyncio.sleep(0)

    work = asyncio.ensure_future(load())

    async def rounds(count: int) -> None:
        goal = sent + count
        await until(lambda: work.done() or sent >= goal, f"{count} rounds")

    await rounds(5)
    held = bytes.fromhex(secret.read_text().splitlines()[1])
    secret_file(secret.parent, secret.name, new, held)
    for node in nodes.all:
        assert node.rekey() is True
        await rounds(3)
    secret_file(secret.parent, secret.name, new)
    for node in nodes.all:
        assert node.rekey() is True
        await rounds(3)
    assert nodes.all[0].rekey() is False
    rotating = False
    await work
    await client.flush()
    totals = [await client.call("counter", f"page-{n}", "add", 0) for n in range(60)]
    assert totals == [sent] * 60
    assert client.lost_messages == 0
    assert all(node.keyring.user_of(old.node.public) is None for node in nodes.all)  # type: ignore[union-attr]
    await nodes.agree(3)


async def test_an_old_secret_is_refused_once_it_is_dropped(
    nodes: Nodes, secret: Path, tmp_path: Path
) -> None:
    bus, _ = application()
    node = await nodes.start(bus)
    late = secret_file(tmp_path, "late.secret", bytes.fromhex(secret.read_text().splitlines()[1]))
    client = await nodes.client(secret=late)
    assert await client.call("counter", "page-1", "add", 1) == 1
    secret_file(tmp_path, secret.name, new_secret())
    assert node.rekey() is True
    with pytest.raises((AskTimeout, NodeLost)):
        await client.call("counter", "page-1", "add", 1, timeout=1.0)
    with pytest.raises(Refused, match=DIFFERS):
        await refused_client(f"tcp://{node.me.address}", late)


async def test_a_node_without_a_secret_has_nothing_to_rotate() -> None:
    bus, _ = application()
    async with Nodes() as nodes:
        node: Node = await nodes.start(bus)
        with pytest.raises(Refused, match="has no secret"):
            node.rekey()


# Forgeries


async def test_no_forged_attempt_gets_a_frame_through() -> None:
    report = await forgeries.run(160, 80, 3)
    assert report["recorded"]["reached"] == {"frame": 1}  # a message that gets through is noticed
    assert forgeries.through(report) == 0, report
    assert report["counted"]["handshake_failed"] > 0
    assert report["counted"]["unknown_key"] > 0


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_no_forged_attempt_of_thousands_gets_a_frame_through() -> None:
    report = await forgeries.run(2_000, 200, 4)
    assert forgeries.through(report) == 0, report


# Identities


class Party:
    """Files of keys, and the file of those that are allowed."""

    def __init__(self, folder: Path, secret: Path) -> None:
        self.folder, self.secret, self.allowed = folder, secret, folder / "allowed.toml"
        self.entries: dict[str, str] = {}

    def add(self, name: str, role: str, more: str = "") -> Path:
        """Make a key, and allow it."""
        path, made = self.folder / f"{name}.key", new_secret()
        servers = "".join(
            f"server {keys.server.public.decode()}\n" for keys in Keyring(self.secret).keys
        )
        write_private(path, f"key {made.hex()}\n{servers if role == 'client' else ''}")
        public = KeyPair.of(made).public.decode()
        self.entries[name] = f"[{name}]\nkey = {json.dumps(public)}\nrole = '{role}'\n{more}\n"
        self.write()
        return path

    def write(self) -> None:
        self.allowed.write_text("".join(self.entries.values()))

    def settings(self, key: Path) -> SecuritySettings:
        return SecuritySettings(secret=str(self.secret), keys=str(key), allowed=str(self.allowed))


@pytest.fixture
def party(tmp_path: Path, secret: Path) -> Party:
    return Party(tmp_path, secret)


async def test_only_keys_that_are_allowed_connect_and_do_what_their_role_may(
    party: Party, secret: Path, context: zmq.Context[Socket]
) -> None:
    bus, _ = application()
    first, two, rogue = (party.add(n, "node") for n in ("one", "two", "rogue"))
    user = party.add("user", "client")
    other = party.add("other", "client", "types = ['cart']")
    del party.entries["rogue"]
    party.write()
    async with Nodes() as nodes:
        for key in (first, two):
            nodes.security = party.settings(key)
            await nodes.start(bus)
        await nodes.agree(2)
        client = await nodes.client(secret="", key=user)
        assert await client.call("counter", "page-1", "add", 1) == 1
        narrow = await nodes.client(secret="", key=other)
        for use in (
            narrow.call("counter", "page-1", "add", 1),
            narrow.ref(bus.types["counter"].cls, "page-2").add(1),
            narrow.start_entity("counter", "page-3"),
        ):
            with pytest.raises(UnknownEntityType):
                await use
        await narrow.flush()
        assert await client.call("counter", "page-1", "add", 0) == 1
        address = f"tcp://{nodes.all[0].me.address}"
        with pytest.raises(Refused, match="does not know this process's key"):  # the secret alone
            await refused_client(address, secret)
        nodes.security = party.settings(rogue)
        stranger = await nodes.start(bus, up=False)
        async with asyncio.timeout(PATIENCE_S):
            reason = await stranger.membership.stopped
        assert "does not know this process's key" in reason
        port = nodes.all[0].cluster.gossip_port  # type: ignore[attr-defined]
        spy = context.socket(zmq.SUB)  # a client may not read gossip
        connect_with(spy, Keyring("", user).newest)
        spy.setsockopt(zmq.SUBSCRIBE, b"")
        spy.connect(f"tcp://127.0.0.1:{port}")
        sockets: PubSub = nodes.all[0].cluster._sockets  # type: ignore[attr-defined]
        before = sockets.dropped.get("unknown_key", 0)
        await until(lambda: sockets.dropped.get("unknown_key", 0) > before, "the refusal")
        assert not spy.poll(0)


async def test_a_client_cannot_call_itself_a_node(party: Party) -> None:
    bus, _ = application()
    first, user = party.add("one", "node"), party.add("user", "client")
    async with Nodes() as nodes:
        nodes.security = party.settings(first)
        node = await nodes.start(bus)
        network = ZmqNetwork(Keyring("", user))
        network.open(asyncio.get_running_loop())
        frames: list[list[bytes]] = []
        fake = NodeId("127.0.0.1", 1, uid_of(b"x" * 16))
        connection = network.connect(node.me.address, frames.append, lambda: None, lambda: None)
        head = pack_header(PROTOCOL_VERSION, FrameType.HELLO, node.endpoint.tag, fake.uid, 0, 0, 0)
        hello = Hello("shop", str(fake), fake, 1, False, b"x" * 16)
        connection.send(head, encode_body(hello))
        await until(lambda: node.endpoint.dropped_frames.get("not_authorized"), "the refusal")
        await until(lambda: frames, "the answer")
        assert b"is a client" in frames[0][1]
        assert not node.endpoint.sessions()
        connection.close()
        network.close()


async def test_a_revoked_key_loses_its_connection_and_others_lose_nothing(party: Party) -> None:
    bus, _ = application()
    first = party.add("one", "node")
    kept, revoked = party.add("kept", "client"), party.add("revoked", "client")
    async with Nodes() as nodes:
        nodes.security = party.settings(first)
        node = await nodes.start(bus)
        good = await nodes.client(secret="", key=kept)
        bad = await nodes.client(secret="", key=revoked, timeout=2.0)
        assert await bad.call("counter", "page-1", "add", 1, timeout=PATIENCE_S) == 1
        del party.entries["revoked"]
        party.write()
        assert node.rekey() is True
        for n in range(100):
            await good.tell("counter", f"page-{n}", "add", 1)
        with pytest.raises((AskTimeout, NodeLost)):
            await bad.call("counter", "page-1", "add", 1)
        await good.flush()
        assert good.lost_messages == 0
        assert await good.call("counter", "page-1", "add", 0) == 2
