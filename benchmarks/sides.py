"""Run the sides of a comparison: shardbus, and two baselines of bare pyzmq and msgpack.

    shardbus      one node started by the command line, one AsyncClient
    raw_batched   blocking sockets, 256 envelopes in a message: the ceiling for tells
    raw_ticked    asyncio on the socket's descriptor, a message per turn of the loop: the ceiling
                  for independent asks

The baselines route to a dict; they have no mailboxes, placement, acknowledgements or recovery.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any
from zlib import crc32

import msgpack
import zmq

from benchmarks.counters import Counter, meter
from benchmarks.harness import IN_FLIGHT, PAYLOAD, Side, free_port, spawned
from shardbus import AsyncClient

BATCH = 256
MESSAGE_BYTES = 256 * 2**10
"""Batches of large payloads are shorter: ZeroMQ queues a thousand of them."""
SHARDS = 64
CHUNK = 1_000


class Product(Side):
    """Run shardbus; every tell and ask calls `handler` of an entity of `kind` with `message`. `app`
    is the module of its application. `trace_ratio`: the producer begins traces for this part of its
    messages, at most `trace_limit` in a second; None: without tracing."""

    def __init__(
        self,
        name: str = "shardbus",
        handler: str = "hit",
        message: object = PAYLOAD,
        *,
        app: str = "benchmarks.counters",
        kind: type = Counter,
        store: str = "memory://",
        trace_ratio: float | None = None,
        trace_limit: int = 100,
    ) -> None:
        self.name, self._handler, self.message = name, handler, message
        self._trace_ratio, self._trace_limit = trace_ratio, trace_limit
        self._app, self._kind, self._store = app, kind, store

    async def __aenter__(self) -> Product:
        self._stack = AsyncExitStack()
        port, gossip, http = free_port(), free_port(), free_port()
        start = "import sys; from shardbus_cli.main import main; sys.exit(main())"
        arguments = (
            f"node start {self._app}:bus --port {port} --gossip-port {gossip}"
            f" --http-port {http} --store {self._store}"
        )
        ratio = self._trace_ratio
        if ratio is not None:
            arguments += " --set tracing.enabled=true"
        self.host = await self._stack.enter_async_context(spawned("-c", start, *arguments.split()))
        cluster = self._kind.__shardbus__.name  # type: ignore[attr-defined]
        client = AsyncClient(
            f"tcp://127.0.0.1:{port}",
            cluster=cluster,
            tracing=ratio is not None,
            trace_ratio=ratio or 0.0,
            trace_limit=self._trace_limit,
        )
        self.client = await self._stack.enter_async_context(client)
        self.http = http
        self._calls: dict[str, Any] = {}
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def _call(self, entity_id: str) -> Any:
        call = self._calls.get(entity_id)
        if call is None:
            ref: Any = self.client.ref(self._kind, entity_id)
            call = self._calls[entity_id] = getattr(ref, self._handler)
        return call

    async def tell(self, ids: Iterable[str]) -> None:
        """Send one message to each."""
        message = self.message
        for i, entity_id in enumerate(ids, 1):
            await self._call(entity_id).tell(message)
            if i % CHUNK == 0:
                await asyncio.sleep(0)

    def ask(self, entity_id: str) -> Any:
        """Ask one."""
        return self._call(entity_id)(self.message)


class Raw(Side):
    """Run bare pyzmq; `name` chooses the baseline."""

    def __init__(self, name: str, payload: bytes = PAYLOAD) -> None:
        self.name, self._payload = name, payload
        self._batch = max(1, min(BATCH, MESSAGE_BYTES // len(payload)))

    async def __aenter__(self) -> Raw:
        self._stack = AsyncExitStack()
        self._endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.host = await self._stack.enter_async_context(
            spawned("-m", "benchmarks.sides", self.name, self._endpoint)
        )
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(self._endpoint)
        self._corr = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        if self.name == "raw_ticked":
            self._ticked = Ticked(self._socket, self._on_message, self._send)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.name == "raw_ticked":
            self._ticked.close()
        self._context.destroy(0)
        await self._stack.aclose()

    def _send(self, out: list[Any]) -> None:
        self._socket.send(msgpack.packb(out))

    def _on_message(self, frames: list[bytes]) -> None:
        for corr, count in msgpack.unpackb(frames[0]):
            self._waiting.pop(corr).set_result(count)

    async def tell(self, ids: Iterable[str]) -> None:
        """Send one message to each."""
        ids = list(ids)
        if self.name == "raw_batched":
            for at in range(0, len(ids), self._batch):
                batch = ids[at : at + self._batch]
                self._send([(_shard(key), key, self._payload) for key in batch])
            return
        for i, key in enumerate(ids):
            self._ticked.put((_shard(key), key, self._payload))
            if i % IN_FLIGHT == 0:
                await asyncio.sleep(0)

    async def ask(self, entity_id: str) -> Any:
        """Ask one; only with raw_ticked."""
        self._corr = corr = self._corr + 1
        future = self._waiting[corr] = asyncio.get_running_loop().create_future()
        self._ticked.put((_shard(entity_id), entity_id, self._payload, corr))
        return await future


class Ticked:
    """Read a socket when its descriptor is ready; write it once per turn of the loop."""

    def __init__(self, socket: zmq.Socket[bytes], on_message: Any, send: Any) -> None:
        self._socket, self._on_message, self._send = socket, on_message, send
        self._loop = asyncio.get_running_loop()
        self._out: list[Any] = []
        self._loop.add_reader(int(socket.getsockopt(zmq.FD)), self._read)

    def put(self, item: Any) -> None:
        """Send a message at the end of the turn."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(item)

    def close(self) -> None:
        """Stop reading."""
        self._loop.remove_reader(int(self._socket.getsockopt(zmq.FD)))

    def _read(self) -> None:
        try:
            for _ in range(100):
                self._on_message(self._socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return
        self._loop.call_soon(self._read)

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._send(out)
        self._read()


_shards: dict[str, int] = {}


def _shard(key: str) -> int:
    shard = _shards.get(key)
    if shard is None:
        shard = _shards[key] = crc32(key.encode()) % SHARDS
    return shard


class _Entity:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


_entities: dict[str, _Entity] = {}


def _handle(key: str) -> int:
    entity = _entities.get(key)
    if entity is None:
        entity = _entities[key] = _Entity()
    entity.count += 1
    meter.hit()
    return entity.count


def _answers(frame: bytes) -> list[tuple[int, int]]:
    replies = []
    for envelope in msgpack.unpackb(frame):
        count = _handle(envelope[1])
        if len(envelope) == 4:
            replies.append((envelope[3], count))
    return replies


def host(name: str, endpoint: str) -> None:
    """Run a baseline's host until it is killed."""
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.bind(endpoint)
    if name == "raw_batched":
        while True:
            who, frame = socket.recv_multipart()
            if replies := _answers(frame):
                socket.send_multipart((who, msgpack.packb(replies)))

    def send(out: list[Any]) -> None:
        by: dict[bytes, list[Any]] = {}
        for who, reply in out:
            by.setdefault(who, []).append(reply)
        for who, replies in by.items():
            socket.send_multipart((who, msgpack.packb(replies)))

    async def ticked() -> None:
        def on_message(frames: list[bytes]) -> None:
            for reply in _answers(frames[1]):
                reader.put((frames[0], reply))

        reader = Ticked(socket, on_message, send)
        await asyncio.Event().wait()

    asyncio.run(ticked())


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    host(*sys.argv[1:])
