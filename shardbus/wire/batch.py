"""The wire format of a session: frames, batches, runs.

A frame is one ZeroMQ message of two parts, a fixed header and a body:

    header  version u8, kind u8, cluster u32, sender uid u64, receiver uid u64, seq u64, ack u64
    body    HELLO, WELCOME, REFUSED, MEMBERSHIP: one struct; DATA: a batch; PART and LAST_PART: the
            next bytes of a large batch; the others: empty

A batch is a MessagePack array of *runs*, in the order in which their messages were sent. A run
holds neighbouring messages that share everything but id and payload, as columns. The common case,
one producer and one type of message, costs one array header per batch and two array elements per
message. Payloads are opaque here; only a handler's declared types decode them.

    Tell      [0, type, method, ids, payloads, trace]
    Ask       [1, type, method, timeout_ms, ids, payloads, corrs, chain, trace]
    Reply     [2, corrs, payloads]
    Fail      [3, corr, error, text, detail, fields]
    Relayed   [4, type, shard, id, method, payload, corr, timeout_ms, hops, chain, via, trace]
              a later hop
    Control   [5, tag, type, body]
    Flush     [6, type, shard, corr, timeout_ms, hops]
    Hold      [7, type, ids, begins]                         with the feature `entity_holds`

A method is the name of a handler, "" for a plain message of `receive`, or ":Name" for a message of
a registered class. A correlation id belongs to one direction of one session; 0 means no answer is
expected.

A chain lists the entities that wait for the answer, each as [type, id, number], the first caller
first. It is empty for asks from outside of entities. `trace` is the trace context of a message
(`routing.tracing`); a traced message has a run to itself. `chain`, `via`, `fields` and `trace` are
missing in batches of builds without them, which ignore them.

Decoding is schema-first: a frame that does not fit the schema is refused whole, and a claimed
length is checked against the bytes that are there.

Source: docs/architecture.md; S0.10, S0.36; B.122.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, TypeVar
from zlib import crc32

import msgspec

from shardbus.bounds import Hops, Id, Mark, Millis, Text, Uid
from shardbus.errors import RemoteProtocolError
from shardbus.ids import NodeId

T = TypeVar("T")

PROTOCOL_VERSION = 1
"""The version in the header of each frame."""
OLDEST_SESSION, NEWEST_SESSION = 1, 1
"""The versions of sessions that this build speaks. A greeting says both; ranges must meet."""
DROP_REPORTS = "drop_reports"
"""Tells that were dropped are reported to their sender."""
ENTITY_HOLDS = "entity_holds"
"""A receiver without room for an entity holds back the messages for this entity only."""
SESSION_FEATURES: tuple[str, ...] = (DROP_REPORTS, ENTITY_HOLDS)
"""The features of a session that this build speaks and a neighbouring one may not:
docs/upgrading.md."""
BODY_BYTES_MAX = 16 * 1024 * 1024
"""Limit of a frame's body. ZeroMQ ends the connection of a peer that sends more."""
PAYLOAD_BYTES_MAX = 8 * 1024 * 1024
"""Limit of one message."""
RUNS_MAX = 4096
"""Limit of runs in a batch."""
MESSAGES_MAX = 8192
"""Limit of messages in a batch. A sender of this build fills a batch with at most some 700."""
CONTROL_BYTES_MAX = 256 * 1024
"""Limit of the bodies of a batch's control messages without the largest: one message may do much
work, many large ones in one batch would add up. A sender of this build fills a batch with half."""
CHAIN_MAX = 32
"""Limit of a chain. A longer chain loses its oldest entity."""

NAME_CHARACTERS_MAX = 300
"""Limit of a process's name: a host, a port and a uid."""
SECRET_BYTES_MAX = 64
GREETING_BYTES_MAX = 8192
"""Limit of the body of a HELLO, WELCOME or REFUSED."""
ProcessName = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)]

FAILURE_MAX = 32 * 1024
"""Characters, at most, of an error's text and of its details."""
REJECTION_BYTES_MAX = 64 * 1024
"""Bytes, at most, of a rejection's fields."""
TRACE_MAX = 2048
"""Characters, at most, of a trace context. A sender of this build fills some 1,100."""
METHOD_MAX = 1024
"""Characters, at most, of a method: the name of a handler or of a class."""

Hop = tuple[Id, Id, Uid]
"""A waiting entity: its type, its id, and the number of this run of its handler."""
Chain = Annotated[tuple[Hop, ...], msgspec.Meta(max_length=CHAIN_MAX)]
Ids = Annotated[list[str], msgspec.Meta(max_length=MESSAGES_MAX)]
"""The frame bounds each id. The host checks an id before it starts an entity, so that the sender of
a wrong one gets an answer, and the other messages of the batch are handled."""
Payloads = Annotated[list[bytes], msgspec.Meta(max_length=MESSAGES_MAX)]
Corrs = Annotated[list[int], msgspec.Meta(max_length=MESSAGES_MAX)]
Method = Annotated[str, msgspec.Meta(max_length=METHOD_MAX)]
Trace = Annotated[str, msgspec.Meta(max_length=TRACE_MAX)]
Failure = Annotated[str, msgspec.Meta(max_length=FAILURE_MAX)]
RejectionFields = Annotated[bytes, msgspec.Meta(max_length=REJECTION_BYTES_MAX)]

_HEADER = struct.Struct("<BBIQQQQ")
HEADER_BYTES = _HEADER.size
pack_header = _HEADER.pack


class FrameType(IntEnum):
    """Type of a frame."""

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
    """An ACK of a process that lives and has no room for received batches."""
    PART = 12
    LAST_PART = 13


class TellRun(msgspec.Struct, array_like=True, tag_field="op", tag=0, gc=False):
    """Messages without an expected answer."""

    type: Id
    method: Method
    ids: Ids
    payloads: Payloads
    trace: Trace = ""


class AskRun(msgspec.Struct, array_like=True, tag_field="op", tag=1, gc=False):
    """Messages with an answer, each under its correlation id."""

    type: Id
    method: Method
    timeout_ms: Millis
    ids: Ids
    payloads: Payloads
    corrs: Corrs
    chain: Chain = ()
    trace: Trace = ""


class ReplyRun(msgspec.Struct, array_like=True, tag_field="op", tag=2, gc=False):
    """Answers of handlers."""

    corrs: Corrs
    payloads: Payloads


class Fail(msgspec.Struct, array_like=True, tag_field="op", tag=3, gc=False):
    """A failed ask: the name of an error class of `shardbus.errors`, its text, and further
    arguments of the class. `fields`: a rejection's (`wire.rejections`). `begun`: a handler has
    begun, although errors of this class are definite."""

    corr: Uid
    error: Id
    text: Failure
    detail: Failure
    fields: RejectionFields = b""
    begun: bool = False


class Relayed(msgspec.Struct, array_like=True, tag_field="op", tag=4, gc=False):
    """One message that a node forwards to a shard's newer home."""

    type: Id
    shard: str
    id: str
    method: Method
    payload: bytes
    corr: Uid
    timeout_ms: Millis
    hops: Hops
    chain: Chain = ()
    via: Mark = 0
    """Mark of the session that a tell came by, on the node that forwards it; other nodes give it
    back in reports of dropped tells."""
    trace: Trace = ""


class Control(msgspec.Struct, array_like=True, tag_field="op", tag=5, gc=False):
    """A message between the state machines of two processes; `wire.control` decodes it."""

    tag: Id
    type: Id
    body: bytes


class Flush(msgspec.Struct, array_like=True, tag_field="op", tag=6, gc=False):
    """Requests an answer from the shard's home once everything sent before on this session has
    arrived."""

    type: Id
    shard: str
    corr: Uid
    timeout_ms: Millis
    hops: Hops


class Hold(msgspec.Struct, array_like=True, tag_field="op", tag=7, gc=False):
    """The receiver has no room for these entities (`begins`), or has room again: the other side
    holds back its messages to them."""

    type: Id
    ids: Ids
    begins: bool


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors that msgspec raises for malformed bytes."""

Run = TellRun | AskRun | ReplyRun | Fail | Relayed | Control | Flush | Hold

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


Version = Annotated[int, msgspec.Meta(ge=0, le=2**16)]
Feature = Annotated[str, msgspec.Meta(max_length=64)]
Features = Annotated[tuple[Feature, ...], msgspec.Meta(max_length=64)]


class SessionVersions(msgspec.Struct, array_like=True, frozen=True):
    """The lowest and the highest version of sessions that a build speaks."""

    oldest: Version = 1
    newest: Version = 1

    def meets(self, other: SessionVersions) -> bool:
        """True if a version is in both ranges."""
        return self.oldest <= other.newest and other.oldest <= self.newest

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}"


SESSION_VERSIONS = SessionVersions(OLDEST_SESSION, NEWEST_SESSION)


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """Opens a session, and resumes it after its connection broke. Answer: WELCOME or REFUSED."""

    cluster: Id
    name: ProcessName
    """Name of the sender: `host:port#uid` for a node, `client#uid` for a client."""
    node: NodeId | None
    """None for a client."""
    session: Uid
    """Grows with every session that the sender opens to the receiver; the same number resumes the
    session."""
    listens: bool = False
    """True if the sender takes reports of dropped tells. Builds without such reports leave it
    out."""
    secret: Annotated[bytes, msgspec.Meta(max_length=SECRET_BYTES_MAX)] = b""
    """Proves the sender's uid, which is a hash of it (`transport.permissions`)."""
    versions: SessionVersions = SessionVersions()
    features: Features = ()
    """The sender's features. Builds before these fields leave them out."""


class LinkWelcome(msgspec.Struct, array_like=True, frozen=True):
    """The session is open: the node that answers, and whether the session is `fresh` there, so that
    it begins now."""

    node: NodeId
    fresh: bool
    versions: SessionVersions = SessionVersions()
    features: Features = ()
    """The node's features, as in a HELLO."""


class MembershipFrame(msgspec.Struct, array_like=True, frozen=True):
    """A membership message and its sender."""

    node: NodeId
    body: bytes


class RefusedBody(msgspec.Struct, array_like=True, frozen=True):
    """The session is not opened, and unless the node is `busy` never will be; why."""

    reason: Text
    stale: bool
    """The addressed process is gone: another one answers at its address."""
    busy: bool = False
    """The node has no room for another session now. Builds without this field end there."""


_encode = msgspec.msgpack.Encoder().encode
encode_body = _encode


def cluster_tag(name: str) -> int:
    """Return the tag of a cluster's name that a header carries. It is enough to drop stray frames;
    HELLO compares the name itself."""
    return crc32(name.encode())


def read_header(frame: bytes) -> Header:
    """Decode a header.

    Raises:
        RemoteProtocolError: wrong size, or a version that this build does not support.
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
    """Decode the body of a DATA frame.

    Raises:
        RemoteProtocolError: it does not fit the schema, the columns of a run differ in length, or
            it has more than `MESSAGES_MAX` messages or `CONTROL_BYTES_MAX` of control messages.
    """
    try:
        runs = _decode_batch(body)
    except UNREADABLE as e:
        raise RemoteProtocolError(f"not a batch: {e}") from None
    messages = control = largest = 0
    for run in runs:
        match run:
            case TellRun():
                even = len(run.ids) == len(run.payloads)
            case AskRun():
                even = len(run.ids) == len(run.payloads) == len(run.corrs)
            case ReplyRun():
                even = len(run.corrs) == len(run.payloads)
            case Control():
                messages += 1
                control, largest = control + len(run.body), max(largest, len(run.body))
                continue
            case _:
                messages += 1
                continue
        if not even:
            raise RemoteProtocolError("the columns of a run differ in length")
        messages += len(run.payloads)
    if messages > MESSAGES_MAX:
        raise RemoteProtocolError(f"a batch of {messages} messages, at most {MESSAGES_MAX}")
    if control - largest > CONTROL_BYTES_MAX:
        raise RemoteProtocolError(f"a batch with {control} bytes of control messages")
    return runs


def _reader(cls: type[T], bytes_max: int = BODY_BYTES_MAX) -> Callable[[bytes], T]:
    """Return a function that decodes such a body, or raises RemoteProtocolError."""
    decode = msgspec.msgpack.Decoder(cls).decode

    def read(body: bytes) -> T:
        if len(body) > bytes_max:
            raise RemoteProtocolError(f"a {cls.__name__} of {len(body)} bytes, at most {bytes_max}")
        try:
            return decode(body)
        except UNREADABLE as e:
            raise RemoteProtocolError(f"not a {cls.__name__}: {e}") from None

    return read


decode_hello = _reader(Hello, GREETING_BYTES_MAX)
decode_welcome = _reader(LinkWelcome, GREETING_BYTES_MAX)
decode_refused = _reader(RefusedBody, GREETING_BYTES_MAX)
decode_membership = _reader(MembershipFrame)
