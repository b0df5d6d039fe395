"""The fuzzed code: each decoder of bytes or text that another process, a file or a store may send.

A target takes any bytes. It may return, or raise one of the errors that its decoder declares.
Anything else is a finding: another error, 50 ms of processor time, 32 MiB of memory. `seeds` are
valid inputs, made by the encoders, from which the fuzzer starts.

`sequences` has the targets that feed a whole session or node instead of one decoder.
"""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shardbus.config import loading
from shardbus.errors import (
    ConfigError,
    Rejection,
    RemoteProtocolError,
    SchemaError,
    StoreError,
)
from shardbus.ids import Address, NodeId, check_id
from shardbus.membership import messages as m
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member, Status
from shardbus.membership.reachability import Flag, ObserverRow, Reachability
from shardbus.membership.vector_clock import VectorClock
from shardbus.sharding.messages import Home
from shardbus.sharding.table_state import pack_homes, unpack_homes
from shardbus.store.redis_urls import RedisUrl
from shardbus.store.rows import table_of
from shardbus.store.urls import family, mask_url, split_options
from shardbus.transport.fragments import FragmentAssembly
from shardbus.transport.secret_file import parse_secrets
from shardbus.wire import batch, gossip, schema
from shardbus.wire.control import CLASSES, decode_control
from shardbus.wire.rejections import decode_rejection, encode_rejection

ALWAYS = (b"", b"\x00", b"\xff" * 64, b"\x93" * 4096, b"\xdd\xff\xff\xff\xff", b"\xc7\xff\xff")
"""Inputs that each target gets: nothing, nesting, lengths that are not there."""


@dataclass(frozen=True)
class Target:
    """One thing to fuzz. `share`: its part of all inputs, relative to the others."""

    name: str
    run: Callable[[bytes], object]
    """A text that it returns and that starts with `state` tells apart inputs that raise nothing."""
    declared: tuple[type[BaseException], ...]
    seeds: tuple[bytes, ...]
    share: int = 10
    words: tuple[bytes, ...] = field(default=())
    """Parts of inputs that chance would not find."""

    def __call__(self, data: bytes) -> str:
        """Feed one input. Returns the declared error's name and text, or the state that it led to.

        Raises:
            BaseException: an error that the decoder does not declare.
        """
        try:
            state = self.run(data)
        except self.declared as error:
            return f"{type(error).__name__}: {error}"
        return state if isinstance(state, str) else ""


# ---- frames and batches


def _headers() -> tuple[bytes, ...]:
    tag = batch.cluster_tag("shop")
    return tuple(
        batch.pack_header(batch.PROTOCOL_VERSION, kind, tag, 9, 1, 1, 0) for kind in batch.FrameType
    )


def _batches() -> tuple[bytes, ...]:
    chain = (("page", "a", 7), ("page", "b", 8))
    value = schema.encode_value([1, "two", {"three": 3.5}])
    runs: list[batch.Run] = [
        batch.TellRun("page", "hit", ["a", "b"], [value, b"\x90"]),
        batch.AskRun("page", "hit", 5000, ["a"], [value], [1], chain),
        batch.ReplyRun([1, 2], [value, value]),
        batch.Fail(1, "EntityFailed", "text", "detail"),
        batch.Fail(1, "Rejection", "text", "module:Class", value),
        batch.Relayed("page", "7", "a", "hit", value, 3, 500, 1, chain, 4),
        batch.Control("Describe", "page", msgspec.msgpack.encode({})),
        batch.Flush("page", "7", 9, 1000, 0),
    ]
    many = batch.TellRun("page", "hit", ["a"] * 3000, [b"\x90"] * 3000)
    return (*(batch.encode_batch([run]) for run in runs), batch.encode_batch([*runs, many]))


def _batch(data: bytes) -> None:
    for run in batch.decode_batch(data):
        if isinstance(run, batch.Control):
            with suppress(RemoteProtocolError):
                decode_control(run)


def _bodies() -> tuple[bytes, ...]:
    node = NodeId("n1", 7001, 1)
    hello = batch.Hello("shop", str(node), node, 3, True)
    welcome = batch.LinkWelcome(node, True)
    membership = batch.MembershipFrame(node, gossip.encode(m.InitNack()))
    refused = batch.RefusedBody("another cluster", False)
    bodies = (hello, welcome, membership, refused)
    return tuple(bytes((i,)) + batch.encode_body(body) for i, body in enumerate(bodies))


_BODIES: tuple[Callable[[bytes], object], ...] = (
    batch.decode_hello,
    batch.decode_welcome,
    batch.decode_membership,
    batch.decode_refused,
)


def _body(data: bytes) -> None:
    if data:
        _BODIES[data[0] % len(_BODIES)](data[1:])


_TAGS = tuple(CLASSES)


def _plain(declared: Any, depth: int = 0) -> Any:
    """Return a value of a type, as plain as can be."""
    match msgspec.inspect.type_info(declared) if depth == 0 else declared:
        case msgspec.inspect.StructType(fields=fields):
            return {f.encode_name: _plain(f.type, depth + 1) for f in fields}
        case msgspec.inspect.NamedTupleType(fields=fields):
            return [_plain(f.type, depth + 1) for f in fields]
        case msgspec.inspect.TupleType(item_types=items):
            return [_plain(item, depth + 1) for item in items]
        case (
            msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.ListType(item_type=item)
        ):
            return [_plain(item, depth + 1)]
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return {_plain(key, depth + 1): _plain(value, depth + 1)}
        case msgspec.inspect.UnionType(types=types):
            return _plain(types[0], depth + 1)
        case msgspec.inspect.IntType(ge=low):
            return low or 1
        case msgspec.inspect.StrType():
            return "a"
        case msgspec.inspect.BytesType():
            return b"a"
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.FloatType():
            return 0.5
        case _:
            return None


def _controls() -> tuple[bytes, ...]:
    return tuple(
        bytes((i,)) + msgspec.msgpack.encode(_plain(cls)) for i, cls in enumerate(CLASSES.values())
    )


def _fields() -> tuple[bytes, ...]:
    return tuple(
        bytes(f.name, "ascii") for cls in CLASSES.values() for f in msgspec.structs.fields(cls)
    )


def _control(data: bytes) -> None:
    if data:
        decode_control(batch.Control(_TAGS[data[0] % len(_TAGS)], "page", data[1:]))


# ---- membership


def _gossip_state() -> Gossip:
    nodes = [NodeId(f"n{i}", 7000 + i, i) for i in range(1, 6)]
    members = {n: Member(n, n.port + 1, "127.0.0.1:1", ("hot",), "1") for n in nodes[:4]}
    members[nodes[0]] = Member(nodes[0], 7002, "", (), "1", Status.UP, 1, zone="west")
    rows = {nodes[0]: ObserverRow(2, {nodes[1]: Flag.UNREACHABLE})}
    return Gossip(
        members=members,
        seen=frozenset(nodes[:2]),
        reachability=Reachability(rows),
        clock=VectorClock({nodes[0]: 4, nodes[1]: 2}),
        tombstones={nodes[4]: 12.5},
        epochs={"page": 3},
    )


def _gossips() -> tuple[bytes, ...]:
    state = _gossip_state()
    greeting = m.Greeting("shop", 1, {"shards": "100"})
    node = next(iter(state.members))
    messages: list[m.Message] = [
        m.InitJoin(greeting),
        m.InitNack(),
        m.JoinRefused("no"),
        m.Welcome(state),
        m.Heartbeat(1, 2.0, 0.01),
        m.HeartbeatReply(1, 2.0, 0.01),
        m.GossipStatus(state.clock, 3),
        m.GossipSeen(state.clock),
        m.GossipState(node, state),
    ]
    encoded = [gossip.encode(message) for message in messages]
    plain = [data if data[1] == 0 else b"\x01\x00" + zlib.decompress(data[2:]) for data in encoded]
    bombs = [
        bytes((gossip.FORMAT, gossip.COMPRESSED)) + zlib.compress(body)
        for body in (b"\x91" * 2**20, b"\xdd\x00\x0f\xff\xff" + b"\x90" * 2**20, b"\x00" * 2**22)
    ]
    return (*encoded, *plain, *bombs)


def _gossip(data: bytes) -> None:
    gossip.decode(data)


_NODES = tuple(NodeId("10.0.0.1", 7355, uid) for uid in range(1, 4))


def _tables() -> tuple[bytes, ...]:
    """Tables as they travel, and the compressed parts in them."""
    numbered = [Home(str(n), _NODES[n % 3], (7 << 32) + n * 911) for n in range(40)]
    named = [Home(f"{n}~2", _NODES[n % 3], n + 1) for n in range(40)]
    packed = [pack_homes(homes, _NODES) for homes in ((), numbered[:1], numbered, named)]
    return (*packed, *(zlib.decompress(table) for table in packed))


def _table(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        unpack_homes(data, _NODES)
    unpack_homes(zlib.compress(data, 1), _NODES)


# ---- users' messages


@dataclass
class Order:
    """A message as users declare it."""

    name: str
    lines: list[tuple[int, float]]
    notes: dict[str, str | None] = field(default_factory=dict)
    parent: Order | None = None


class Page:
    """Handlers with the types that users use."""

    def hit(self, n: int, name: str = "", when: float | None = None) -> int:
        raise NotImplementedError

    def order(self, order: Order) -> None:
        raise NotImplementedError

    def many(self, orders: list[Order], raw: bytes) -> None:
        raise NotImplementedError


_METHODS = tuple(
    schema.method(name, getattr(Page, name)) for name in ("hit", "order", "many")
)  # three handlers


def _payloads() -> tuple[bytes, ...]:
    order = Order("a", [(1, 2.5)], {"x": None}, Order("b", []))
    arguments: list[tuple[Any, ...]] = [(1,), (1, "a", 2.0), (order,), ([order, order], b"raw")]
    owners = (0, 0, 1, 2)
    return tuple(
        bytes((owner,)) + schema.encode_value(args)
        for owner, args in zip(owners, arguments, strict=True)
    )


def _payload(data: bytes) -> None:
    if len(data) > 1:
        method = _METHODS[data[0] % len(_METHODS)]
        method.decoders[data[1]](data[1:])
        if method.read_all is not None:
            method.read_all([data[1:]] * 8)


def _value(data: bytes) -> None:
    schema.decode_value(data)


@dataclass
class Refusal(Rejection):
    """A rejection with fields of several types."""

    left: int
    lines: list[tuple[str, float]] = field(default_factory=list)
    note: bytes | None = None


def _refusals() -> tuple[bytes, ...]:
    name, _, fields = encode_rejection(Refusal(3, [("a", 2.5)], b"raw"))
    return tuple(
        schema.encode_value([called, fields]) for called in (name, "other:Refusal", "m:Gone", "")
    )


def _refusal(data: bytes) -> str:
    """Read the class and the fields of a rejection, and pass it on."""
    try:
        name, fields = msgspec.msgpack.decode(data, type=tuple[str, bytes])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    error = decode_rejection(name, "text", fields)
    if type(error) not in (Rejection, Refusal):
        raise AssertionError(f"{name!r} has made a {type(error).__name__}")
    encode_rejection(error)
    return f"state {type(error).__name__} {len(str(error)) > 100}"


# ---- parts of large batches


def _parts(data: bytes) -> None:
    """The first byte of each part is its length; an empty part ends the batch."""
    assembly, at = FragmentAssembly(), 0
    while at < len(data):
        length, at = data[at], at + 1
        assembly.add(data[at : at + length])
        at += length
        if length == 0:
            batch.decode_batch(assembly.take())


def _cut(body: bytes) -> bytes:
    return b"".join(bytes((len(part),)) + part for part in _pieces(body, 60)) + b"\x00"


def _pieces(body: bytes, size: int) -> Iterator[bytes]:
    yield from (body[at : at + size] for at in range(0, len(body), size))


# ---- texts

ROWS_MAX = 2000
TEXT_MAX = 2**18
"""Bytes of a text. Turning more into text takes longer here than to refuse it."""


def _text(data: bytes) -> str:
    return data[:TEXT_MAX].decode("utf-8", "surrogateescape")


def _ids(data: bytes) -> None:
    text = _text(data)
    for read in (Address.parse, NodeId.parse, lambda t: Address.advertised(t, 1), _entity_id):
        with suppress(ConfigError):
            read(text)


def _entity_id(text: str) -> str:
    return check_id("entity id", text)


def _settings(data: bytes) -> None:
    """A file of settings, and its lines as `--set` and as variables."""
    text = _text(data)
    with suppress(ConfigError):
        loading.load(loading.from_assignments(text.splitlines()[:20]))
    variables = dict(line.partition("=")[::2] for line in text.splitlines()[:20])
    with suppress(ConfigError):
        loading.load(
            loading.from_environment(
                {f"SHARDBUS_{name.upper()}": value for name, value in variables.items()}
            )
        )
    loading.load([("file", tomllib.loads(text))])


def _urls(data: bytes) -> None:
    text = _text(data)
    mask_url(text)
    with suppress(ConfigError):
        split_options(text, ("durability", "timeout"))
    if family(text) == "redis":
        RedisUrl.parse(text)


def _secrets(data: bytes) -> None:
    parse_secrets(_text(data), "the file")


# ---- rows of a store


def _rows(data: bytes) -> None:
    """One line is the epoch, one the layout; each further one is a row of three fields. The time
    for a table grows with its rows, so only the values may be large."""
    lines = data.split(b"\n")[:ROWS_MAX]
    rows = [(*line.split(b"|", 2), b"", b"")[:3] for line in lines[2:]]
    layout = lines[1] if len(lines) > 1 else b""
    table_of("page", lines[0], layout, rows)  # type: ignore[arg-type]
    table_of("page", _text(lines[0]), _text(layout), [tuple(map(_text, row)) for row in rows])  # type: ignore[misc]


_ROWS = (
    b"3\ncrc32/100\n7|n1:7001#0000000000000001|12884901889\n8|n2:7002#00000000000000ff|5",
    b"0\ncrc32/100",
    b"9" * 40 + b"\n\xff\n1|n:" + b"9" * 5000 + b"#1|1",
)

_SETTINGS = (
    b"[node]\nport = 7355\nhost = '127.0.0.1'\nseeds = ['10.0.0.1:7355']",
    b"[cluster.failure_detector]\nthreshold = 12\n[cluster.downing]\nstrategy = 'keep-majority'",
    b"[sharding]\nhandoff_timeout = '60s'\n[sharding.types.page]\nshards = 10",
    b"node.port=1\ncluster.downing.strategy=down-all\nsharding.types.a.b.shards=3\nstore.url=x",
)

WIRE = (RemoteProtocolError,)
DECODERS: tuple[Target, ...] = (
    Target("header", lambda data: void(batch.read_header(data)), WIRE, _headers(), share=8),
    Target("batch", _batch, WIRE, _batches(), share=30),
    Target("bodies", _body, WIRE, _bodies(), share=10),
    Target(
        "control",
        _control,
        WIRE,
        _controls(),
        share=15,
        words=_fields(),
    ),
    Target("gossip", _gossip, WIRE, _gossips(), share=20),
    Target(
        "payload",
        _payload,
        (msgspec.MsgspecError, LookupError, UnicodeDecodeError, SchemaError),
        _payloads(),
        share=15,
    ),
    Target("table", _table, WIRE, _tables(), share=10),
    Target("value", _value, (SchemaError,), tuple(p[1:] for p in _payloads()), share=10),
    Target("rejection", _refusal, (), _refusals(), share=10),
    Target("parts", _parts, WIRE, tuple(_cut(body) for body in _batches()), share=10),
    Target(
        "ids", _ids, (), (b"10.0.0.1:7355", b"tcp://[::1]:1", b"n1:7001#0000000000000001"), share=10
    ),
    Target(
        "settings",
        _settings,
        (ConfigError, tomllib.TOMLDecodeError),
        _SETTINGS,
        share=1,
        words=tuple(key.encode() for key, _ in loading.options()),
    ),
    Target(
        "urls",
        _urls,
        (ConfigError,),
        (b"redis://user:pass@h:1/0", b"redis+sentinel://a:1,b:2/m/0", b"sqlite:///x", b"memory://"),
        share=3,
    ),
    Target("secrets", _secrets, (ConfigError,), (b"# a\n" + b"d1" * 32 + b"\n" + b"0a" * 32,), 3),
    Target("rows", _rows, (StoreError,), _ROWS, share=6),
)


def void(value: object) -> None:
    """Take a value that a target does not need."""
