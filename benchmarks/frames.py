"""How long one frame keeps a node from answering `/livez`.

    python -m benchmarks.frames [--only WORD] [--size 16777216] [--rounds 1] [--inside] [--bursts]

A node with 64 shards runs in a process of its own. A client and a member of its cluster send it one
large frame at a time, and a thread requests `/livez` again and again, until the node
has been quick for a while. The frames, each as large as `--size` bytes or its bounds allow:

    client     runs of every kind with the greatest counts: one entity, many, unknown types, long
               chains; batches of 4,096 runs; bytes that are no batch; each control message
    member     each control message with the longest lists
    newcomer   each message of membership, compressed bombs

Prints one JSON line for each frame, and one with the longest of all, which must be below 250 ms on
quiet cores. The exit code is 1 if it is not. With `--bursts` a member also sends 1,000 large
control messages of each class at once, which its session sends in frames of 128 KiB, as it does for
any sender; these are printed as `frames_burst`, and have no limit.

With `--inside` the node runs in this process, and the figure is the processor time of the longest
callback of its loop. It needs no quiet cores, and names the frames whose work must be cut into
slices.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from benchmarks.counters import bus
from benchmarks.harness import emit, free_port
from benchmarks.nodes import Node as NodeProcess
from benchmarks.nodes import settled, wait
from shardbus.config.settings import NodeSettings, Settings
from shardbus.ids import NodeId
from shardbus.membership import messages as joining
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member
from shardbus.membership.singleton import messages as handover
from shardbus.node.node import Node
from shardbus.sharding import messages
from shardbus.sharding.messages import Home
from shardbus.store.opening import open_store
from shardbus.wire import batch, gossip
from shardbus.wire.batch import BODY_BYTES_MAX, FrameType
from shardbus.wire.control import Goodbye, Members, Refusals, TypeInfo
from shardbus.wire.schema import encode_value
from tests.forger import Forger

LIMIT_MS = 250.0
QUIET_MS, QUIET_TIMES = 30.0, 40
"""A frame is handled once this number of answers in a row took less."""
FRAME_S = 30.0
BUSY_S, IDLE_S = 0.002, 0.5
"""Without a callback above the one for the other, a frame is handled, with `--inside`."""
CONTROL = (*messages.MESSAGES, *handover.MESSAGES, Members, Refusals, TypeInfo, Goodbye)
COUNTER = "counter"
BURST = "member many"
RESERVE = 4096
"""Bytes of a frame that its lists leave free."""
SETTINGS = ("cluster.min_members=1", "log.level=error")


class Livez:
    """Requests `/livez` from a thread, with short pauses."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = False
        self.answers: list[float] = []
        self.pending = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=FRAME_S)
        while not self._over:
            began = self.pending = time.monotonic()
            connection.request("GET", "/livez")
            connection.getresponse().read()
            self.answers.append(1000 * (time.monotonic() - began))
            time.sleep(0.002)

    def close(self) -> None:
        """End the thread."""
        self._over = True
        self._thread.join()

    async def longest(self, send: Callable[[], object]) -> float:
        """Send, wait until the node is quick again, and return its longest answer in ms."""
        self.answers.clear()
        await asyncio.to_thread(send)
        until = time.monotonic() + FRAME_S
        while time.monotonic() < until:
            await asyncio.sleep(0.01)
            last = self.answers[-QUIET_TIMES:]
            if len(last) == QUIET_TIMES and max(last) < QUIET_MS:
                break
        return max(self.answers, default=1000 * FRAME_S)


class Held:
    """Measures the processor time of every callback of this thread's loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last = time.monotonic()
        original = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            original(handle)
            held = time.thread_time() - began
            if held > self.longest_s:
                self.longest_s = held
            if held > BUSY_S:
                self._last = time.monotonic()

        asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]

    async def longest(self, send: Callable[[], object]) -> float:
        """Send, wait until no callback takes long, and return the longest in ms."""
        self.longest_s, self._last = 0.0, time.monotonic()
        await asyncio.to_thread(send)
        until = time.monotonic() + FRAME_S
        while time.monotonic() < min(until, self._last + IDLE_S):
            await asyncio.sleep(0.01)
        return 1000 * self.longest_s

    def close(self) -> None:
        """Nothing runs beside it."""


# ---- values


def plain(declared_type: Any, size: int) -> Any:
    """Return the plain form of a value of a type, whose lists fill about `size` bytes."""
    info = (
        msgspec.inspect.type_info(declared_type)
        if not isinstance(declared_type, msgspec.inspect.Type)
        else declared_type
    )
    match info:
        case msgspec.inspect.StructType(fields=parts):
            return {f.encode_name: plain(f.type, size // len(parts)) for f in parts}
        case msgspec.inspect.NamedTupleType(fields=parts):
            return [plain(f.type, 0) for f in parts]
        case msgspec.inspect.TupleType(item_types=items):
            return [plain(item, 0) for item in items]
        case (
            msgspec.inspect.VarTupleType(item_type=item, max_length=most)
            | msgspec.inspect.ListType(item_type=item, max_length=most)
            | msgspec.inspect.SetType(item_type=item, max_length=most)
        ):
            item_ = plain(item, 0)
            count = max(1, size // len(msgspec.msgpack.encode(item_)))
            return [item_] * min(count, most or count)
        case msgspec.inspect.DictType(value_type=value, max_length=most):
            count = max(1, size // (9 + len(msgspec.msgpack.encode(plain(value, 0)))))
            return {f"{n:07d}": plain(value, 0) for n in range(min(count, most or count))}
        case msgspec.inspect.UnionType(types=types):
            return plain(types[0], size)
        case msgspec.inspect.IntType(ge=low):
            return low or 1
        case msgspec.inspect.FloatType():
            return 0.5
        case msgspec.inspect.StrType():
            return "1"
        case msgspec.inspect.BoolType():
            return True
        case _:
            return None


def control(
    cls: type[msgspec.Struct], sender: NodeId, size: int, *, distinct: bool
) -> batch.Control:
    """Return a control message of this class with lists of about `size` bytes; `distinct`: the
    shards in them differ."""
    value = plain(cls, size - min(RESERVE, size // 4))
    for name in cls.__struct_fields__:
        if name in ("node", "coordinator") and isinstance(value[name], list):
            value[name] = list(sender)
        if distinct and isinstance(value[name], list):
            value[name] = [renamed(item, n) for n, item in enumerate(value[name])]
    return batch.Control(cls.__name__, COUNTER, msgspec.msgpack.encode(value))


def renamed(item: Any, number: int) -> Any:
    """Return an item of a list under another shard."""
    if isinstance(item, str):
        return str(number)
    if isinstance(item, list) and len(item) == len(Home._fields) and isinstance(item[0], str):
        return [str(number), *item[1:]]
    return item


# ---- frames of a client


def client_batches(size: int) -> Iterator[tuple[str, bytes]]:
    """Yield batches that any client may send."""
    most = batch.MESSAGES_MAX
    small, names = encode_value((b"x",)), [f"e{n}" for n in range(most)]
    large = encode_value((bytes(max(1, (size - RESERVE) // most - 64)),))
    corrs = list(range(1, most + 1))
    callers = tuple((COUNTER, f"c{n}", n) for n in range(batch.CHAIN_MAX))
    half = batch.RUNS_MAX
    runs: dict[str, list[batch.Run]] = {
        "tells_of_one": [batch.TellRun(COUNTER, "hit", ["a"] * most, [small] * most)],
        "tells_of_many": [batch.TellRun(COUNTER, "hit", names, [small] * most)],
        "tells_large": [batch.TellRun(COUNTER, "hit", names, [large] * most)],
        "tells_malformed": [batch.TellRun(COUNTER, "hit", ["b"] * most, [b"\xc1"] * most)],
        "tells_bad_ids": [batch.TellRun(COUNTER, "hit", ["\n" * 1500] * most, [small] * most)],
        "tells_unknown": [batch.TellRun("none", "hit", names, [small] * most)],
        "asks_of_many": [batch.AskRun(COUNTER, "hit", 5000, names, [small] * most, corrs)],
        "asks_in_chains": [batch.AskRun(COUNTER, "hit", 9, names, [small] * most, corrs, callers)],
        "asks_unknown": [batch.AskRun("none", "hit", 5000, names, [small] * most, corrs)],
        "asks_of_nodes": [batch.AskRun("$node", "leave", 5000, names, [small] * most, corrs)],
        "asks_no_method": [batch.AskRun(COUNTER, "none", 5000, names, [small] * most, corrs)],
        "replies": [batch.ReplyRun(corrs, [small] * most)],
        "fails": [batch.Fail(n, "EntityFailed", "t" * 1900, "d" * 1900) for n in range(half)],
        "runs_of_types": [batch.TellRun(f"t{n}", "hit", ["a"], [small]) for n in range(half)],
        "runs_of_methods": [
            batch.TellRun(COUNTER, f"m{n}", ["a", "b"], [small] * 2) for n in range(half)
        ],
        "asks_of_types": [
            batch.AskRun(f"t{n}", "hit", 9, ["a", "b"], [small] * 2, [n, n]) for n in range(half)
        ],
        "flushes": [batch.Flush(COUNTER, str(n % 64), n + 1, 5000, 0) for n in range(half)],
        "flushes_unknown": [batch.Flush(COUNTER, f"s{n}", n + 1, 5000, 0) for n in range(half)],
        "relayed": [
            batch.Relayed(COUNTER, "1", "a", "hit", small, n + 1, 5000, 0) for n in range(half)
        ],
    }
    for name, made in runs.items():
        yield name, batch.encode_batch(made)
    each = max(64, (size - RESERVE) // half)
    me = NodeId("n1", 7001, 1)
    for cls in CONTROL:
        message = control(cls, me, each, distinct=True)
        yield f"many_{cls.__name__}", batch.encode_batch([message] * half)
        for distinct in (True, False):
            kind = "distinct" if distinct else "same"
            alone = control(cls, me, size, distinct=distinct)
            yield f"one_{cls.__name__}_{kind}", batch.encode_batch([alone])


def not_batches(size: int) -> Iterator[tuple[str, bytes]]:
    """Yield bytes that are no batch, though they may begin as one."""
    yield "noise", os.urandom(size)
    yield "nils", b"\xc0" * size
    yield "nesting", b"\x91" * size
    yield "empty_arrays", b"\xdd" + (size - 5).to_bytes(4, "big") + b"\x90" * (size - 5)
    yield "lengths", b"\xdd\xff\xff\xff\xff" * (size // 5)
    entity = batch.encode_batch([batch.TellRun(COUNTER, "hit", ["a"], [b"\x90"])])[:-4]
    yield "cut_off", entity + b"\xdc\x1f\xff" + b"\xa1a" * ((size - 100) // 2)
    ids = ["\ud7ff" * ((size - RESERVE) // 3)]
    yield "long_id", batch.encode_batch([batch.TellRun(COUNTER, "hit", ids, [b"\x90"])])
    payload = batch.encode_batch([batch.TellRun(COUNTER, "hit", ["a"], [b"\x91" * (size - 99)])])
    yield "nested_payload", payload


def memberships(node: NodeId, size: int) -> Iterator[tuple[str, bytes]]:
    """Yield messages of membership, with as much in them as fits."""
    settings = {f"{n:064d}": "v" * 512 for n in range(joining.SETTINGS_MAX)}
    greeting = joining.Greeting(bus.name, joining.PROTOCOL, settings)
    many = [NodeId(f"n{n}", 7001, n) for n in range(2000)]
    state = Gossip({n: Member(n, 7002) for n in many}, frozenset(many))
    kinds: list[joining.Message] = [
        joining.InitJoin(greeting),
        joining.Join(greeting, Member(node, 7002)),
        joining.Welcome(state),
        joining.GossipState(node, state),
    ]
    for kind in kinds:
        yield type(kind).__name__, gossip.encode(kind)
    for tag in range(1, 12):
        head = bytes((0x93, tag))
        yield f"plain_{tag}", b"\x01\x00" + head + b"\x91" * (size - RESERVE)
        for fill in (b"\x91", b"\xa0", b"\x00"):
            bomb = zlib.compress(head + b"\xdd\x00\x7f\xff\xff" + fill * (8 * 2**20 - 64), 9)
            yield f"bomb_{tag}_{fill.hex()}", b"\x01\x01" + bomb


# ---- the run


Frame = tuple[str, int, Callable[[], object]]
"""Its name, its size in bytes, and its sender."""


def client(target: NodeId, size: int) -> Iterator[Frame]:
    """Yield each frame of a client; every one has a session of its own."""
    for name, body in (*client_batches(size), *not_batches(size)):
        forger = Forger(target, cluster=bus.name)
        forger.become_client()
        cut = body[:BODY_BYTES_MAX]
        yield f"client {name}", len(cut), partial(forger.send, FrameType.DATA, cut, seq=1)
        forger.close()


def newcomer(target: NodeId, size: int) -> Iterator[Frame]:
    """Yield each frame of a node that is no member, and of a program without a session."""
    for name, data in memberships(target, size):
        forger = Forger(target, cluster=bus.name)
        node = forger.become_node()
        body = msgspec.msgpack.encode([list(node), data])
        yield f"newcomer {name}", len(body), partial(forger.send, FrameType.MEMBERSHIP, body)
        forger.close()
    forger = Forger(target, cluster=bus.name)
    for kind in FrameType:
        yield f"stranger {kind.name}", size, partial(forger.send, kind, os.urandom(size))
    forger.close()


def member(node: Node, target: NodeId, size: int, *, bursts: bool) -> Iterator[Frame]:
    """Yield each control message of a member, and with `bursts` 1,000 of each at once."""
    loop, session = node.loop, node.endpoint.session_to(target.address)

    def send(message: batch.Control, times: int) -> None:
        loop.call_soon_threadsafe(post, message, times)

    def post(message: batch.Control, times: int) -> None:
        for _ in range(times):
            session.outbox.control(message)
        session.outbox.flush()

    for cls in CONTROL:
        for distinct in (True, False):
            sample = control(cls, node.me, size, distinct=distinct)
            name = f"member {cls.__name__} {'distinct' if distinct else 'same'}"
            yield name, len(sample.body), partial(send, sample, 1)
        if not bursts:
            continue
        many = control(cls, node.me, max(64, (size - RESERVE) // 1000), distinct=True)
        yield f"{BURST} {cls.__name__}", 1000 * len(many.body), partial(send, many, 1000)


async def measure(measured: Livez | Held, frames: Iterator[Frame], only: str, rounds: int) -> float:
    """Send every frame. Returns the longest time in ms."""
    emit("frames_still", await measured.longest(lambda: None), "ms")
    longest = 0.0
    while frame := await asyncio.to_thread(next, frames, None):
        name, length, send = frame
        if only in name:
            taken = max([await measured.longest(send) for _ in range(rounds)])
            if name.startswith(BURST):
                emit("frames_burst", taken, "ms", messages=name, bytes=length)
                continue
            longest = max(longest, taken)
            emit("frames", taken, "ms", frame=name, bytes=length)
    measured.close()
    emit("frames_longest", longest, "ms", limit=LIMIT_MS)
    return longest


async def joined(folder: str, seeds: tuple[str, ...]) -> Node:
    """Start a node in this process, and return it once it is Up."""
    settings = NodeSettings(port=free_port(), gossip_port=free_port(), seeds=seeds)
    store = open_store(f"sqlite:///{folder}/store.db", cluster=bus.name)
    node = Node(bus.name, bus.types, Settings(node=settings), store)
    await node.start()
    node.join("127.0.0.1:0")
    await wait(lambda: node.members.is_up, "the member", 0.05)
    return node


async def run(only: str, size: int, rounds: int, *, bursts: bool) -> float:
    """Measure `/livez` of a node in a process of its own. Returns the longest time in ms."""
    with tempfile.TemporaryDirectory() as folder:
        process = NodeProcess(folder, [], SETTINGS)
        member_node: Node | None = None
        try:
            await wait(lambda: settled([process]), "the node", 0.05)
            target = NodeId.parse(str(process.view()["self"]))
            member_node = await joined(folder, (process.address,))
            of_member = member(member_node, target, size, bursts=bursts)
            frames = chain(client(target, size), newcomer(target, size), of_member)
            return await measure(Livez(process.http), frames, only, rounds)
        finally:
            if member_node is not None:
                await member_node.close()
            process.kill()


async def inside(only: str, size: int, rounds: int) -> float:
    """Measure the callbacks of a node in this process. Returns the longest time in ms."""
    with tempfile.TemporaryDirectory() as folder:
        node = await joined(folder, ())
        session = node.loopback

        def to_itself(cls: type, distinct: bool, length: int, times: int) -> Frame:
            message = control(cls, node.me, length, distinct=distinct)

            def post() -> None:
                for _ in range(times):
                    session.outbox.control(message)

            name = f"member {cls.__name__} {times} {'distinct' if distinct else 'same'}"
            return name, times * len(message.body), lambda: node.loop.call_soon_threadsafe(post)

        handlers = (
            to_itself(cls, distinct, length, times)
            for cls in CONTROL
            for distinct, length, times in ((True, size, 1), (False, size, 1), (True, 2600, 100))
        )
        frames = chain(client(node.me, size), newcomer(node.me, size), handlers)
        try:
            return await measure(Held(), frames, only, rounds)
        finally:
            await node.close()


def main() -> int:
    """Run it and print the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="frames whose name has this in it")
    parser.add_argument("--size", type=int, default=BODY_BYTES_MAX)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--inside", action="store_true", help="processor time of callbacks")
    parser.add_argument("--bursts", action="store_true", help="1,000 control messages at once, too")
    options = parser.parse_args()
    if options.inside:
        measured = inside(options.only, options.size, options.rounds)
    else:
        measured = run(options.only, options.size, options.rounds, bursts=options.bursts)
    return int(asyncio.run(measured) > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
