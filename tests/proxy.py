"""A TCP proxy that breaks the traffic through it. It handles bytes and does not parse them.

    cut         every connection ends with a reset, and with it the bytes under way
    half        one side is reset, the other hears nothing of it
    mute        connections stay, and everything on them vanishes: a gateway that forgot them
    truncate    the next k bytes pass, then the connection ends, most likely within a frame
    corrupt     after k more bytes one bit of the next is turned over
    delay, rate every byte comes late; no more than so many come in a second
    slow_accept a connection is taken, and nothing is done with it for a while
    refuse      nobody listens, until `listen`

`Proxy` runs on the loop of a test. As a process of its own it cuts by a plan drawn from a seed:

    python -m tests.proxy --port 7355 --target 7400 --cuts 1000 --bytes 300000 --seed 1

and prints its events, as one line of JSON, once its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
from collections import deque

from tests.ports import free_port

CHUNK = 65_536
QUEUE_CHUNKS = 16
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: a close sends RST and discards unsent bytes."""


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a crashed middlebox does."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


class Flow:
    """One direction of a connection."""

    def __init__(
        self, passage: Passage, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        self.passage, self.source, self.sink = passage, source, sink
        self.muted = False
        self.truncate_in: int | None = None
        self.corrupt_in: int | None = None
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUE_CHUNKS)

    async def read(self) -> None:
        """Take bytes that come, with the time at which they may go on."""
        proxy, loop = self.passage.proxy, asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await self.source.read(CHUNK):
                await self._queue.put((loop.time() + proxy.delay, data))
        await self._queue.put((0.0, b""))

    async def write(self) -> None:
        """Pass it on, as far as the faults allow."""
        proxy, loop = self.passage.proxy, asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while True:
                due, data = await self._queue.get()
                if not data:
                    break
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
                if self.muted:
                    continue
                for part in self._parts(data):
                    self.sink.write(part)
                    await self.sink.drain()
                    proxy.passed(len(part))
                    if proxy.rate:
                        await asyncio.sleep(len(part) / proxy.rate)
                if self.truncate_in == 0:
                    self.passage.end()
                    return
        if not self.passage.held:
            self.sink.close()

    def _parts(self, data: bytes) -> list[bytes]:
        if self.corrupt_in is not None:
            at = self.corrupt_in
            if at < len(data):
                spoiled = bytearray(data)
                spoiled[at] ^= 1 << self.passage.proxy.dice.randrange(8)
                data = bytes(spoiled)
                self.corrupt_in = None
                self.passage.proxy.corrupted += 1
            else:
                self.corrupt_in = at - len(data)
        if self.truncate_in is not None:
            data = data[: self.truncate_in]
            self.truncate_in -= len(data)
        rate = self.passage.proxy.rate
        size = max(1, int(rate / 50)) if rate else len(data) or 1
        return [data[i : i + size] for i in range(0, len(data), size)]


class Passage:
    """One connection: near is who connected, far is the target."""

    def __init__(
        self,
        proxy: Proxy,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.proxy, self.near, self.far = proxy, near[1], far[1]
        self.held = False
        """Hide the end of one side from the other."""
        self.inward, self.outward = Flow(self, near[0], far[1]), Flow(self, far[0], near[1])

    async def run(self) -> None:
        """Until both directions have ended."""
        flows = (self.inward, self.outward)
        await asyncio.gather(*(f.read() for f in flows), *(f.write() for f in flows))

    def end(self) -> None:
        """Reset both sides."""
        reset(self.near)
        reset(self.far)
        self.proxy.live.pop(self, None)


class Proxy:
    """See the module. `port` is where it listens, `target` where it connects to, both on the
    loopback interface."""

    def __init__(self, target: int, port: int = 0, seed: int = 0) -> None:
        self.target, self.port = target, port or free_port()
        self.dice = random.Random(seed)
        self.delay = self.rate = self.slow_accept = 0.0
        self.connections = self.cuts = self.corrupted = self.bytes = 0
        self.plan: deque[int] = deque()
        """At these numbers of bytes all connections are cut."""
        self.live: dict[Passage, None] = {}
        self._held: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        await self.listen()

    async def listen(self) -> None:
        """Take connections, again."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def refuse(self) -> None:
        """Take no connections, and end those that are."""
        if self._server is not None:
            self._server.close()
        self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.slow_accept:
            await asyncio.sleep(self.slow_accept)
        try:
            far = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            reset(writer)
            return
        passage = Passage(self, (reader, writer), far)
        self.live[passage] = None
        self.connections += 1
        task = asyncio.get_running_loop().create_task(passage.run())
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(passage, task))

    def _ended(self, passage: Passage, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.live.pop(passage, None)

    def passed(self, count: int) -> None:
        """So many bytes have passed."""
        self.bytes += count
        if self.plan and self.bytes >= self.plan[0] and self.live:
            self.cut()
            self.plan.popleft()

    # ---- faults

    def cut(self) -> None:
        """Break every connection, with the bytes under way on it."""
        self.cuts += bool(self.live)
        for passage in list(self.live):
            passage.end()

    def half(self, *, far: bool = False) -> None:
        """Break the side of who connected (`far`: the target's) only; the other one does not
        notice."""
        for passage in list(self.live):
            passage.held = True
            self._held += [passage.near, passage.far]
            reset(passage.far if far else passage.near)
            self.live.pop(passage, None)

    def mute(self) -> None:
        """Swallow everything on the connections that are; new ones work."""
        for passage in self.live:
            passage.inward.muted = passage.outward.muted = True

    def truncate(self, count: int, *, outward: bool = False) -> None:
        """Let so many bytes pass to the target (`outward`: from it), then cut."""
        for passage in self.live:
            (passage.outward if outward else passage.inward).truncate_in = count

    def corrupt(self, count: int, *, outward: bool = False) -> None:
        """Turn one bit over, so many bytes from now."""
        for passage in self.live:
            (passage.outward if outward else passage.inward).corrupt_in = count

    def draw_plan(self, cuts: int, mean: int) -> None:
        """Cut so often, after `mean` bytes on average."""
        at = self.bytes
        for _ in range(cuts):
            at += 1 + int(self.dice.expovariate(1 / mean))
            self.plan.append(at)

    async def close(self) -> None:
        """Let go of everything."""
        if self._server is not None:
            self._server.close()
        for passage in list(self.live):
            passage.end()
        for writer in self._held:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("port", 0), ("target", 0), ("cuts", 0), ("bytes", 0), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args()
    proxy = Proxy(chosen.target, chosen.port, chosen.seed)
    proxy.draw_plan(chosen.cuts, chosen.bytes)
    await proxy.start()
    print(json.dumps({"port": proxy.port}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    done = {"connections": proxy.connections, "cuts": proxy.cuts, "bytes": proxy.bytes}
    print(json.dumps(done), flush=True)
    await proxy.close()


if __name__ == "__main__":
    asyncio.run(_main())
