"""Membership messages as bytes.

    byte 0      version of this format
    byte 1      0: what follows is plain; 1: it is compressed by zlib
    the rest    one msgpack array: a tag that names the message, then its fields in order

Decoding is schema-first: every field has a type and a bound, what is declared nowhere is refused,
and a compressed body may not grow beyond `BODY_MAX`. Anything that does not fit raises
RemoteProtocolError, and nothing else does.

A state has a table in which each node stands once; everything else refers to a node by its place
there, as often as it speaks of it. Members come first in the table, so that a reader can check at a
glance that seen nodes, observers, subjects and counters are members.

Small on the wire may be large here. So what speaks of a node twice where once is enough is refused.
A state has no more rows than members, which is checked before any of them is read; and a row has
no more flags than there are other members, which is checked before the next one is.

Source: S1.46, S3.34, B.13.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, TypeVar, assert_never

import msgspec
from msgspec import Meta, Struct

from shardbus.errors import RemoteProtocolError
from shardbus.ids import NodeId, is_host
from shardbus.membership import messages as m
from shardbus.membership.gossip import META_BYTES_MAX, Gossip
from shardbus.membership.gossip import Meta as Written
from shardbus.membership.member import Member, Service, Status
from shardbus.membership.reachability import Flag, Reachability, Row
from shardbus.membership.vector_clock import VectorClock

V = TypeVar("V")

FORMAT = 1
PLAIN, COMPRESSED = 0, 1
COMPRESS_FROM = 256
BODY_MAX = 8 << 20
NODES_MAX = 20_000
UID_MAX = 2**64 - 1
WORST = Flag.TERMINATED.value

Host = Annotated[str, Meta(min_length=1, max_length=255)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Name = Annotated[str, Meta(max_length=m.NAME_MAX)]
SettingName = Annotated[str, Meta(max_length=m.SETTING_NAME_MAX)]
Text = Annotated[str, Meta(max_length=m.TEXT_MAX)]
Number = Annotated[int, Meta(ge=0, le=2**62)]
Place = Annotated[int, Meta(ge=0, lt=NODES_MAX)]
Seconds = Annotated[float, Meta(ge=-1e12, le=1e12)]
Millis = Annotated[int, Meta(ge=0, le=10**9)]
Names = Annotated[list[Name], Meta(max_length=256)]
Settings = Annotated[dict[SettingName, Text], Meta(max_length=m.SETTINGS_MAX)]
Nodes = Annotated[list[tuple[Host, Port, int]], Meta(max_length=NODES_MAX)]
Places = Annotated[list[Place], Meta(max_length=NODES_MAX)]
Bytes = Annotated[bytes, Meta(max_length=META_BYTES_MAX)]
Counters = Annotated[list[tuple[Place, Number]], Meta(max_length=NODES_MAX)]
Flags = Annotated[
    list[tuple[Place, Annotated[int, Meta(ge=1, le=WORST)]]], Meta(max_length=NODES_MAX)
]


class WireMember(Struct, array_like=True, forbid_unknown_fields=True):
    """A member without its name. `status` is the status's rank."""

    gossip_port: Port
    http: Name
    roles: Names
    version: Name
    status: Annotated[int, Meta(ge=0, le=Status.DOWN.rank)]
    up_number: Number
    service: Annotated[int, Meta(ge=0, le=2)] = 0
    service_version: Number = 0


class WireRow(Struct, array_like=True, forbid_unknown_fields=True):
    """One observer's row of reachability. Its flags stay bytes until all observers are known to
    be members, each once."""

    observer: Place
    version: Number
    flags: msgspec.Raw


class WireState(Struct, array_like=True, forbid_unknown_fields=True):
    """A copy of the state. The first `len(members)` of `nodes` are the members, the rest the
    tombstones."""

    nodes: Nodes
    members: Annotated[list[WireMember], Meta(max_length=NODES_MAX)]
    seen: Places
    rows: Annotated[list[WireRow], Meta(max_length=NODES_MAX)]
    clock: Counters
    tombstones: Annotated[list[Seconds], Meta(max_length=NODES_MAX)]
    epochs: Annotated[dict[Name, Number], Meta(max_length=4096)]
    meta: Annotated[dict[Name, tuple[Number, Bytes]], Meta(max_length=4096)]


class WireGreeting(Struct, array_like=True, forbid_unknown_fields=True):
    cluster: Name
    protocol: Number
    settings: Settings


class InitJoin(Struct, array_like=True, tag=1, forbid_unknown_fields=True):
    greeting: WireGreeting


class InitAck(Struct, array_like=True, tag=2, forbid_unknown_fields=True):
    greeting: WireGreeting


class InitNack(Struct, array_like=True, tag=3, forbid_unknown_fields=True):
    pass


class Join(Struct, array_like=True, tag=4, forbid_unknown_fields=True):
    greeting: WireGreeting
    node: tuple[Host, Port, int]
    member: WireMember


class JoinRefused(Struct, array_like=True, tag=5, forbid_unknown_fields=True):
    reason: Text


class Welcome(Struct, array_like=True, tag=6, forbid_unknown_fields=True):
    state: WireState


class Heartbeat(Struct, array_like=True, tag=7, forbid_unknown_fields=True):
    sequence: Number
    sent_at: Seconds
    lag_ms: Millis


class HeartbeatReply(Struct, array_like=True, tag=8, forbid_unknown_fields=True):
    sequence: Number
    sent_at: Seconds
    lag_ms: Millis


class GossipStatus(Struct, array_like=True, tag=9, forbid_unknown_fields=True):
    nodes: Nodes
    counts: Annotated[list[Number], Meta(max_length=NODES_MAX)]
    seen: Number


class GossipSeen(Struct, array_like=True, tag=10, forbid_unknown_fields=True):
    nodes: Nodes
    counts: Annotated[list[Number], Meta(max_length=NODES_MAX)]


class GossipState(Struct, array_like=True, tag=11, forbid_unknown_fields=True):
    to: tuple[Host, Port, int]
    state: WireState


Wire = (
    InitJoin
    | InitAck
    | InitNack
    | Join
    | JoinRefused
    | Welcome
    | Heartbeat
    | HeartbeatReply
    | GossipStatus
    | GossipSeen
    | GossipState
)

MALFORMED = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    MemoryError,
    OverflowError,
    RecursionError,
)

_encoder = msgspec.msgpack.Encoder()
_decode_body: Callable[[bytes], Wire] = msgspec.msgpack.Decoder(Wire).decode
_decode_flags: Callable[[msgspec.Raw], list[tuple[int, int]]] = msgspec.msgpack.Decoder(
    Flags
).decode


def encode(message: m.Message) -> bytes:
    """The message as bytes."""
    body = _encoder.encode(_to_wire(message))
    if len(body) < COMPRESS_FROM:
        return bytes((FORMAT, PLAIN)) + body
    return bytes((FORMAT, COMPRESSED)) + zlib.compress(body, 1)


def decode(data: bytes) -> m.Message:
    """The message in these bytes.

    Raises:
        RemoteProtocolError: they are no message of this format, or break a bound.
    """
    if len(data) < 2 or data[0] != FORMAT or data[1] not in (PLAIN, COMPRESSED):
        raise RemoteProtocolError("not a membership message of a known format")
    body = data[2:] if data[1] == PLAIN else _inflate(data[2:])
    try:
        return _from_wire(_decode_body(body))
    except MALFORMED as error:
        raise RemoteProtocolError(f"malformed membership message: {error}") from None


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(data, BODY_MAX)
    except zlib.error as error:
        raise RemoteProtocolError(f"malformed membership message: {error}") from None
    if not inflater.eof or inflater.unused_data:
        raise RemoteProtocolError(f"membership message over {BODY_MAX} bytes, or cut off")
    return body


def _to_wire(message: m.Message) -> Wire:
    match message:
        case m.InitJoin(greeting):
            return InitJoin(_wire_greeting(greeting))
        case m.InitAck(greeting):
            return InitAck(_wire_greeting(greeting))
        case m.InitNack():
            return InitNack()
        case m.Join(greeting, member):
            return Join(_wire_greeting(greeting), member.node, _wire_member(member))
        case m.JoinRefused(reason):
            return JoinRefused(reason)
        case m.Welcome(gossip):
            return Welcome(_wire_state(gossip))
        case m.Heartbeat(sequence, sent_at, lag):
            return Heartbeat(sequence, sent_at, round(1000 * lag))
        case m.HeartbeatReply(sequence, sent_at, lag):
            return HeartbeatReply(sequence, sent_at, round(1000 * lag))
        case m.GossipStatus(clock, seen):
            return GossipStatus(list(clock.counters), list(clock.counters.values()), seen)
        case m.GossipSeen(clock):
            return GossipSeen(list(clock.counters), list(clock.counters.values()))
        case m.GossipState(to, gossip):
            return GossipState(to, _wire_state(gossip))
        case _:
            assert_never(message)


def _from_wire(wire: Wire) -> m.Message:
    match wire:
        case InitJoin(greeting):
            return m.InitJoin(_greeting(greeting))
        case InitAck(greeting):
            return m.InitAck(_greeting(greeting))
        case InitNack():
            return m.InitNack()
        case Join(greeting, node, member):
            return m.Join(_greeting(greeting), _member(_node(node), member))
        case JoinRefused(reason):
            return m.JoinRefused(reason)
        case Welcome(state):
            return m.Welcome(_gossip(state))
        case Heartbeat(sequence, sent_at, lag_ms):
            return m.Heartbeat(sequence, sent_at, lag_ms / 1000)
        case HeartbeatReply(sequence, sent_at, lag_ms):
            return m.HeartbeatReply(sequence, sent_at, lag_ms / 1000)
        case GossipStatus(nodes, counts, seen):
            return m.GossipStatus(_clock(nodes, counts), seen)
        case GossipSeen(nodes, counts):
            return m.GossipSeen(_clock(nodes, counts))
        case GossipState(to, state):
            return m.GossipState(_node(to), _gossip(state))
        case _:
            assert_never(wire)


def _wire_greeting(greeting: m.Greeting) -> WireGreeting:
    return WireGreeting(greeting.cluster, greeting.protocol, dict(greeting.settings))


def _greeting(wire: WireGreeting) -> m.Greeting:
    return m.Greeting(wire.cluster, wire.protocol, wire.settings)


def _wire_member(member: Member) -> WireMember:
    return WireMember(
        member.gossip_port,
        member.http,
        list(member.roles),
        member.version,
        member.status.rank,
        member.up_number,
        SERVICES.index(member.service),
        member.service_version,
    )


STATUSES = tuple(Status)
SERVICES = tuple(Service)


def _member(node: NodeId, wire: WireMember) -> Member:
    return Member(
        node,
        wire.gossip_port,
        wire.http,
        tuple(wire.roles),
        wire.version,
        STATUSES[wire.status],
        wire.up_number,
        SERVICES[wire.service],
        wire.service_version,
    )


def _node(wire: tuple[str, int, int]) -> NodeId:
    if not 0 <= wire[2] <= UID_MAX:
        raise RemoteProtocolError(f"a uid has 64 bits, not {wire[2]}")
    if not is_host(wire[0]):
        raise RemoteProtocolError(f"not a host: {wire[0]!r}")
    return NodeId(*wire)


def _clock(nodes: list[tuple[str, int, int]], counts: list[int]) -> VectorClock:
    if len(nodes) != len(counts):
        raise RemoteProtocolError("a clock needs one count per node")
    return VectorClock(_once((_node(n), c) for n, c in zip(nodes, counts, strict=True)))


def _wire_state(gossip: Gossip) -> WireState:
    nodes = [*gossip.members, *sorted(gossip.tombstones)]
    place = {node: i for i, node in enumerate(nodes)}
    return WireState(
        nodes=[(n.host, n.port, n.uid) for n in nodes],
        members=[_wire_member(member) for member in gossip.members.values()],
        seen=sorted(place[n] for n in gossip.seen),
        rows=[
            WireRow(place[observer], row.version, _wire_flags(row, place))
            for observer, row in gossip.reachability.rows.items()
        ],
        clock=[(place[n], c) for n, c in gossip.clock.counters.items()],
        tombstones=[gossip.tombstones[n] for n in nodes[len(gossip.members) :]],
        epochs=dict(gossip.epochs),
        meta={name: (m.version, m.data) for name, m in gossip.meta.items()},
    )


def _gossip(wire: WireState) -> Gossip:
    nodes = [_node(n) for n in wire.nodes]
    alive = len(wire.members)
    if len(nodes) != alive + len(wire.tombstones) or len(set(nodes)) != len(nodes):
        raise RemoteProtocolError("a state's nodes are its members and its tombstones, each once")
    members = {n: _member(n, w) for n, w in zip(nodes, wire.members, strict=False)}

    def at(place: int) -> NodeId:
        if place >= alive:
            raise RemoteProtocolError("a state speaks of a node that is no member")
        return nodes[place]

    observers = _once((at(row.observer), row) for row in wire.rows)
    return Gossip(
        members=dict(sorted(members.items())),
        seen=frozenset(_once((at(place), None) for place in wire.seen)),
        reachability=Reachability({n: _row(row, at) for n, row in observers.items()}),
        clock=VectorClock(_once((at(p), count) for p, count in wire.clock)),
        tombstones=dict(zip(nodes[alive:], wire.tombstones, strict=True)),
        epochs=wire.epochs,
        meta={name: Written(version, data) for name, (version, data) in wire.meta.items()},
    )


def _wire_flags(row: Row, place: Mapping[NodeId, int]) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode([(place[s], flag) for s, flag in row.flags.items()]))


def _row(wire: WireRow, at: Callable[[int], NodeId]) -> Row:
    flags = _decode_flags(wire.flags)
    if any(place == wire.observer for place, _ in flags):
        raise RemoteProtocolError("a row speaks of its own observer")
    return Row(wire.version, _once((at(s), Flag(flag)) for s, flag in flags))


def _once(pairs: Iterable[tuple[NodeId, V]]) -> dict[NodeId, V]:
    found: dict[NodeId, V] = {}
    for node, value in pairs:
        if node in found:
            raise RemoteProtocolError(f"{node} is spoken of twice")
        found[node] = value
    return found
