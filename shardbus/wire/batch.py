"""What travels on a link: frames, batches, runs.

A frame is one ZeroMQ message of two parts, a fixed header and a body:

    header  version u8, kind u8, cluster u32, sender uid u64, receiver uid u64, seq u64, ack u64
    body    HELLO, WELCOME, REFUSED, MEMBERSHIP: one struct; DATA: a batch; PART and LAST_PART: the
            next bytes of a large batch; the others: empty

A batch is a MessagePack array of *runs*, in the order in which their messages were sent. A run
holds neighbours that share everything but id and payload, as columns: the common case, one producer
and one kind of message, costs one array header per batch and two array elements per message.
Payloads are opaque here; only a handler's declared types read them.

    Tell      [0, type, method, ids, payloads]
    Ask       [1, type, method, timeout_ms, ids, payloads, corrs, chain]
    Reply     [2, corrs, payloads]
    Fail      [3, corr, error, text, detail]
    Relayed   [4, type, shard, id, method, payload, corr, timeout_ms, hops, chain, via]  later hop
    Control   [5, tag, type, body]
    Flush     [6, type, shard, corr, timeout_ms, hops]

A method is the name of a handler, "" for a message that `receive` takes, or ":Name" for one of a
registered class. A correlation id belongs to one direction of one link; 0 means that no answer is
expected.

A chain says which entities wait for the answer, each as [type, id, number], who asked first first.
It is empty for what others ask, and missing in what a build without chains wrote, as is `via`.

Decoding is schema-first: a frame that does not fit is refused whole, and no length that it claims
is believed before its bytes are there.

Source: docs/architecture.md; S0.10, S0.36; B.122.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, TypeVar
from zlib import crc32

import msgspec

from shardbus.errors import RemoteProtocolError
from shardbus.ids import NodeId

T = TypeVar("T")

PROTOCOL_VERSION = 1
BODY_BYTES_MAX = 16 * 1024 * 1024
"""A frame's body. ZeroMQ drops the connection of a peer that sends more."""
PAYLOAD_BYTES_MAX = 8 * 1024 * 1024
"""One message."""
RUNS_MAX = 4096
"""Runs in a batch."""
CHAIN_MAX = 32
"""Entities that are known to wait for one ask. A longer chain loses its oldest."""

Hop = tuple[str, str, int]
"""An entity that waits: its type, its id, and a number of this very run of its handler."""
Chain = Annotated[tuple[Hop, ...], msgspec.Meta(max_length=CHAIN_MAX)]

_HEADER = struct.Struct("<BBIQQQQ")
HEADER_BYTES = _HEADER.size
pack_header = _HEADER.pack


class FrameType(IntEnum):
    """What a frame is."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    DATA = 4
    ACK = 5
    NAK = 6
    BYE = 7
    MEMBERSHIP = 8
    LEAVING = 9
    UNKNOWN = 10
    HELD = 11
    """An ACK of one who has no room for what has come."""
    PART = 12
    LAST_PART = 13


class TellRun(msgspec.Struct, array_like=True, tag_field="op", tag=0, gc=False):
    """Messages without an expected answer."""

    type: str
    method: str
    ids: list[str]
    payloads: list[bytes]


class AskRun(msgspec.Struct, array_like=True, tag_field="op", tag=1, gc=False):
    """Messages whose senders wait, each under its correlation id."""

    type: str
    method: str
    timeout_ms: int
    ids: list[str]
    payloads: list[bytes]
    corrs: list[int]
    chain: Chain = ()


class ReplyRun(msgspec.Struct, array_like=True, tag_field="op", tag=2, gc=False):
    """Answers of handlers."""

    corrs: list[int]
    payloads: list[bytes]


class Fail(msgspec.Struct, array_like=True, tag_field="op", tag=3, gc=False):
    """A failed ask: the name of an error class of `shardbus.errors`, its text, and what else the
    class needs."""

    corr: int
    error: str
    text: str
    detail: str


class Relayed(msgspec.Struct, array_like=True, tag_field="op", tag=4, gc=False):
    """One message that a node passes on to a shard's newer home."""

    type: str
    shard: str
    id: str
    method: str
    payload: bytes
    corr: int
    timeout_ms: int
    hops: int
    chain: Chain = ()
    via: int = 0
    """By which link a tell came to the node that passes it on; means something only there."""


class Control(msgspec.Struct, array_like=True, tag_field="op", tag=5, gc=False):
    """A message between the machines of two processes; `wire.control` reads it."""

    tag: str
    type: str
    body: bytes


class Flush(msgspec.Struct, array_like=True, tag_field="op", tag=6, gc=False):
    """Requests an echo from the home of the shard, behind all earlier messages on this link."""

    type: str
    shard: str
    corr: int
    timeout_ms: int
    hops: int


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be."""

Run = TellRun | AskRun | ReplyRun | Fail | Relayed | Control | Flush

encode_batch = msgspec.msgpack.Encoder().encode
_decode_batch: Callable[[bytes], list[Run]] = msgspec.msgpack.Decoder(
    Annotated[list[Run], msgspec.Meta(max_length=RUNS_MAX)]
).decode


class Header(msgspec.Struct, frozen=True, gc=False):
    """The fixed part of a frame, checked."""

    kind: int
    cluster: int
    sender: int
    receiver: int
    seq: int
    ack: int


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """Opens a link, and opens it again after its connection broke. Answer: Welcome or Refused."""

    cluster: str
    name: str
    """Who sends: `host:port#uid` for a node, `client#uid` for a client."""
    node: NodeId | None
    """None for a client."""
    session: int
    """Grows with every session that the sender opens to the receiver; the same number resumes."""
    listens: bool = False
    """The sender wants to hear of tells that are dropped. A build that does not know of that leaves
    it out."""


class LinkWelcome(msgspec.Struct, array_like=True, frozen=True):
    """The link is open; who answered, and whether the session is `fresh` there: it begins now."""

    node: NodeId
    fresh: bool


class MembershipFrame(msgspec.Struct, array_like=True, frozen=True):
    """A membership message and who sent it."""

    node: NodeId
    body: bytes


class RefusedBody(msgspec.Struct, array_like=True, frozen=True):
    """The link is not open and never will be; why."""

    reason: str
    stale: bool
    """The process that was meant is gone: another one answered at its address."""


_encode = msgspec.msgpack.Encoder().encode
encode_body = _encode


def cluster_tag(name: str) -> int:
    """The cluster's name as the header carries it: enough to drop strays; Hello compares the name
    itself."""
    return crc32(name.encode())


def read_header(frame: bytes) -> Header:
    """Read a header.

    Raises:
        RemoteProtocolError: wrong size, or a version that this build does not speak.
    """
    if len(frame) != HEADER_BYTES:
        raise RemoteProtocolError(f"a header of {len(frame)} bytes, expected {HEADER_BYTES}")
    version, kind, cluster, sender, receiver, seq, ack = _HEADER.unpack(frame)
    if version != PROTOCOL_VERSION:
        raise RemoteProtocolError(
            f"protocol version {version}, this build speaks {PROTOCOL_VERSION}"
        )
    return Header(kind, cluster, sender, receiver, seq, ack)


def decode_batch(body: bytes) -> list[Run]:
    """Read the body of a DATA frame.

    Raises:
        RemoteProtocolError: it does not fit the schema, or columns of a run differ in length.
    """
    try:
        runs = _decode_batch(body)
    except UNREADABLE as e:
        raise RemoteProtocolError(f"not a batch: {e}") from None
    for run in runs:
        match run:
            case TellRun():
                even = len(run.ids) == len(run.payloads)
            case AskRun():
                even = len(run.ids) == len(run.payloads) == len(run.corrs)
            case ReplyRun():
                even = len(run.corrs) == len(run.payloads)
            case _:
                continue
        if not even:
            raise RemoteProtocolError("the columns of a run differ in length")
    return runs


def _reader(cls: type[T]) -> Callable[[bytes], T]:
    """A function that reads the body of such a frame, or raises RemoteProtocolError."""
    decode = msgspec.msgpack.Decoder(cls).decode

    def read(body: bytes) -> T:
        try:
            return decode(body)
        except UNREADABLE as e:
            raise RemoteProtocolError(f"not a {cls.__name__}: {e}") from None

    return read


decode_hello = _reader(Hello)
decode_welcome = _reader(LinkWelcome)
decode_refused = _reader(RefusedBody)
decode_membership = _reader(MembershipFrame)
