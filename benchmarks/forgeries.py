"""Forged attempts to reach a node that has a secret: how many of them get a frame through.

    python -m benchmarks.forgeries [--attempts 10000] [--batch 200] [--seed 1]

A node with a secret runs in this process, and a stranger attacks its two ports over the loopback,
in turn:

    plain        a DEALER or SUB without keys, which sends HELLO, Join and gossip
    other        CURVE with keys of another secret
    half         CURVE with the right server key, as an eavesdropper may know it, and an own key
    server       CURVE with the right server key as its own public key
    old          ZMTP 1.0, and 2.0: frames without a handshake
    http         the request of a web page whose body is frames
    replay       the bytes of a good connection, recorded and sent again, whole or cut off
    noise        random bytes after a good greeting

The attempts come from many addresses of the loopback, because the handshakes of one address are
bounded. Prints one JSON line: attempts by kind, successes, the members in the node's view
afterwards, and its counters. Exits 1 if anything got through.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from shardbus import ShardBus
from shardbus.config.settings import NodeSettings, SecuritySettings, Settings
from shardbus.ids import Address
from shardbus.node.node import Node
from shardbus.store.memory import MemoryStore
from shardbus.transport.secret_file import new_secret, secrets_text, write_private
from shardbus.transport.zmq.curve import ClusterKeys, KeyPair, Keyring, connect_with, derive
from shardbus.transport.zmq.network import ZmqNetwork
from shardbus.wire.batch import PROTOCOL_VERSION, FrameType, Hello, encode_body, pack_header
from tests.ports import free_port

CURVE_KINDS = ("plain", "other", "half", "server")
RAW_KINDS = ("old", "http", "replay", "noise")
KINDS = CURVE_KINDS + RAW_KINDS
WAIT_S = 4.0
"""For the end of one attempt: ZeroMQ ends a silent handshake after 3 s."""
PER_ADDRESS = 200
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
_DONE = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)


class Target:
    """The node, and the attempts that have reached it."""

    def __init__(self, folder: Path) -> None:
        self.secret = folder / "cluster.secret"
        write_private(self.secret, secrets_text([new_secret()]))
        self.keys = Keyring(self.secret).newest
        self.reached: Counter[str] = Counter()

    async def start(self) -> None:
        """Start the node and count every frame that reaches it."""
        bus = ShardBus("forged")
        port = free_port()
        node_settings = NodeSettings(port=port, gossip_port=free_port())
        settings = Settings(node=node_settings, security=SecuritySettings(secret=str(self.secret)))
        node = self.node = Node(bus.name, bus.types, settings, MemoryStore())
        count = self._counted
        original = ZmqNetwork.listen

        def listen(network: ZmqNetwork, *words: Any) -> Any:
            host, at, name, on_frame, on_cut = words
            return original(network, host, at, name, count("frame", on_frame), on_cut)

        ZmqNetwork.listen = listen  # type: ignore[method-assign, assignment]
        try:
            await node.start()
        finally:
            ZmqNetwork.listen = original  # type: ignore[method-assign]
        node.join("127.0.0.1:0")
        while node.view is None or not node.members.is_up:
            await asyncio.sleep(0.05)
        thread: Any = node.cluster
        thread.on_listening = count("subscription", thread.on_listening)
        thread.on_frames = count("gossip", thread.on_frames)
        self.ports = (port, int(thread.gossip_port))

    def _counted(self, what: str, call: Any) -> Any:
        def counted(*words: Any) -> Any:
            self.reached[what] += 1
            return call(*words)

        return counted


class Stranger:
    """Attacks the target. `recorded`: the bytes of a good connection."""

    def __init__(self, target: Target, seed: int) -> None:
        self._target, self._dice = target, random.Random(seed)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._other = derive(new_secret())
        self.recorded = b""
        self._attempts = 0

    async def record(self) -> None:
        """Record the frames of a good peer, by a relay in between, and send nothing of it on."""
        taken = bytearray()
        port = self._target.ports[0]

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            near, far = await asyncio.open_connection("127.0.0.1", port)

            async def back() -> None:
                while data := await near.read(65536):
                    writer.write(data)

            task = asyncio.ensure_future(back())
            while data := await reader.read(65536):
                taken.extend(data)
                far.write(data)
            task.cancel()
            far.close()

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        network, up = ZmqNetwork(Keyring(self._target.secret)), asyncio.Event()
        network.open(asyncio.get_running_loop())
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        good = network.connect(address, lambda parts: None, up.set, lambda: None)
        await up.wait()
        good.send(*self._hello())
        await asyncio.sleep(0.2)
        good.close()
        network.close()
        server.close()
        self.recorded = bytes(taken)

    async def attempt(self, kind: str) -> str:
        """Try once. Returns how it ended."""
        self._attempts += 1
        port = self._target.ports[self._attempts // len(KINDS) % 2]
        number = self._attempts // PER_ADDRESS + 1
        source = f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"
        if kind in CURVE_KINDS:
            return await self._by_zeromq(kind, source, port)
        return await self._by_tcp(self._bytes(kind), source, port)

    async def _by_zeromq(self, kind: str, source: str, port: int) -> str:
        gossip = port == self._target.ports[1]
        socket = self._context.socket(zmq.SUB if gossip else zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        if kind != "plain":
            connect_with(socket, self._keys(kind))
        if gossip:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        monitor = socket.get_monitor_socket(_DONE)
        socket.connect(f"tcp://{source}:0;127.0.0.1:{port}")
        if not gossip:
            with suppress(zmq.Again):  # the connection may have been refused by now
                socket.send_multipart(self._hello(), zmq.NOBLOCK)
        try:
            return await self._outcome(monitor)
        finally:
            socket.disable_monitor()
            monitor.close(0)
            socket.close(0)

    async def _outcome(self, monitor: zmq.Socket[bytes]) -> str:
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_S
        while loop.time() < until:
            if monitor.poll(0):
                event = parse_monitor_message(monitor.recv_multipart())["event"]
                good = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                return "admitted" if good else "refused"
            await asyncio.sleep(0.005)
        return "silent"

    async def _by_tcp(self, data: bytes, source: str, port: int) -> str:
        try:
            async with asyncio.timeout(WAIT_S):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=(source, 0)
                )
                writer.write(data)
                while await reader.read(65536):
                    pass
                writer.close()
        except TimeoutError:
            return "silent"
        except OSError:
            return "refused"
        return "refused"

    def _keys(self, kind: str) -> ClusterKeys:
        if kind == "other":
            return self._other
        server = KeyPair(self._target.keys.server.public, b"")
        if kind == "server":
            return ClusterKeys(server, KeyPair(server.public, zmq.curve_keypair()[1]))
        return ClusterKeys(server, KeyPair(*zmq.curve_keypair()))

    def _hello(self) -> tuple[bytes, bytes]:
        node = self._target.node
        head = pack_header(PROTOCOL_VERSION, FrameType.HELLO, node.endpoint.tag, 5, 0, 0, 0)
        return head, encode_body(Hello(node.membership.cluster_name, str(node.me), node.me, 99))

    def _bytes(self, kind: str) -> bytes:
        head, body = self._hello()
        frames = bytes((len(head) + 1, 1)) + head + bytes((len(body) + 1, 0)) + body
        match kind:
            case "old":
                second = b"\xff" + bytes(7) + b"\x01\x7f\x01\x05" + b"\0\0" + frames
                return self._dice.choice((b"\x01\0" + frames, second))
            case "http":
                return b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + frames
            case "replay":
                return self.recorded[: self._dice.randrange(1, len(self.recorded) + 1)]
            case _:
                return GREETING + self._dice.randbytes(self._dice.randrange(1, 2000))

    def close(self) -> None:
        """Close every socket."""
        self._context.destroy(0)


async def run(attempts: int, batch: int, seed: int) -> dict[str, Any]:
    """Attack a new node. Returns the outcome."""
    with tempfile.TemporaryDirectory() as folder:
        target = Target(Path(folder))
        await target.start()
        stranger = Stranger(target, seed)
        await stranger.record()
        good = dict(target.reached)
        target.reached.clear()
        ends: Counter[str] = Counter()
        kinds = [KINDS[n % len(KINDS)] for n in range(attempts)]
        for first in range(0, attempts, batch):
            now = kinds[first : first + batch]
            ends.update(await asyncio.gather(*map(stranger.attempt, now)))
        stranger.close()
        view, node = target.node.view, target.node
        assert view is not None
        report = {
            "name": "forgeries",
            "attempts": dict(Counter(kinds)),
            "ends": dict(ends),
            "reached": dict(target.reached),
            "recorded": {"bytes": len(stranger.recorded), "reached": good},
            "members": len(view.members),
            "sessions": len(node.endpoint.sessions()),
            "counted": dict(node.endpoint.dropped_frames) | {"gossip": node.cluster.dropped_frames},
        }
        await node.close()
        return report


def through(report: dict[str, Any]) -> int:
    """Return how many attempts got anywhere."""
    reached = int(report["members"]) - 1 + int(report["sessions"])
    return reached + int(report["ends"].get("admitted", 0)) + int(sum(report["reached"].values()))


def main() -> int:
    """Run it and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--attempts", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = asyncio.run(run(options.attempts, options.batch, options.seed))
    print(json.dumps(report | {"through": through(report)}))
    return 1 if through(report) else 0


if __name__ == "__main__":
    sys.exit(main())
