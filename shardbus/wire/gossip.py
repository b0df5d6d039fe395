"""Membership messages as bytes.

    byte 0      version of this format
    byte 1      0: the rest is plain; 1: it is compressed by zlib
    the rest    one msgpack array: a tag that names the message, then its fields in order

Decoding is schema-first: every field has a type and a bound, undeclared fields are refused, and a
compressed body may not inflate beyond `BODY_MAX`. Malformed bytes raise RemoteProtocolError and no
other error.

`state` builds and checks the gossip state that some messages carry.

Source: S1.46, S3.34, B.13.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Annotated, assert_never

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple

from shardbus.bounds import Host, Millis, Port, Version
from shardbus.errors import ConfigError, RemoteProtocolError
from shardbus.ids import Address
from shardbus.inflate import inflate
from shardbus.membership import messages as m
from shardbus.membership.vector_clock import VectorClock
from shardbus.membership.vitals import Vitals
from shardbus.wire.state import (
    NODES_MAX,
    Name,
    Nodes,
    Seconds,
    WireMember,
    WireState,
    address_of,
    gossip_of,
    member_of,
    node_of,
    once,
    wire_member,
    wire_state,
)

FORMAT = 1
PLAIN, COMPRESSED = 0, 1
COMPRESS_FROM = 96
"""Bytes of a body. Compressing so few takes some 50 microseconds, about once a second."""
BODY_MAX = 8 << 20
HEAD_BYTES = 2
OLDEST, DIGITS_MAX, GOSSIP = "$oldest", 9, "$gossip"
"""The names under which a greeting's settings carry the lowest protocol and the place of the
gossip, so that every build can read the greeting of every other, and refuse it with a reason."""
INFLATED_FROM = 4096
"""Compressed bytes that are enough for the first two; the tables of a block come before them."""

SettingName = Annotated[str, Meta(max_length=m.SETTING_NAME_MAX)]
Text = Annotated[str, Meta(max_length=m.TEXT_MAX)]
BEYOND_MAX = 16
"""Members that the result of a trial names, at most."""
Settings = Annotated[dict[SettingName, Text], Meta(max_length=m.SETTINGS_MAX)]


class WireGreeting(Struct, array_like=True, forbid_unknown_fields=True):
    cluster: Name
    protocol: Version
    settings: Settings


class WireInitJoin(Struct, array_like=True, tag=1, forbid_unknown_fields=True):
    greeting: WireGreeting


class WireInitAck(Struct, array_like=True, tag=2, forbid_unknown_fields=True):
    greeting: WireGreeting
    cookie: Version = 0


class WireInitNack(Struct, array_like=True, tag=3, forbid_unknown_fields=True):
    pass


class WireTrial(Struct, array_like=True, tag=12, forbid_unknown_fields=True):
    node: tuple[Host, Port, int]
    member: WireMember
    cookie: Version


class WireTrialResult(Struct, array_like=True, tag=13, forbid_unknown_fields=True):
    messages: Text
    gossip: Text
    others: Annotated[list[tuple[Host, Port]], Meta(max_length=BEYOND_MAX)]


class WireJoin(Struct, array_like=True, tag=4, forbid_unknown_fields=True):
    greeting: WireGreeting
    node: tuple[Host, Port, int]
    member: WireMember
    cookie: Version = 0


class WireJoinRefused(Struct, array_like=True, tag=5, forbid_unknown_fields=True):
    reason: Text


class WireWelcome(Struct, array_like=True, tag=6, forbid_unknown_fields=True):
    state: WireState


Amount = Annotated[float, Meta(ge=0, le=1e15)]
"""A number of `Vitals`."""


class WireVitals(Struct, array_like=True, forbid_unknown_fields=True):
    busy: Annotated[float, Meta(ge=0, le=1)]
    lag: Amount
    rss: Amount
    gc: Annotated[float, Meta(ge=0, le=1)]
    mailbox: Amount
    rate: Amount


class WireHeartbeat(Struct, array_like=True, tag=7, forbid_unknown_fields=True):
    sequence: Version
    sent_at: Seconds
    lag_ms: Millis


class WireHeartbeatReply(Struct, array_like=True, tag=8, forbid_unknown_fields=True):
    sequence: Version
    sent_at: Seconds
    lag_ms: Millis
    consent: bool
    vitals: WireVitals | None = None


class WirePlainReply(Struct, array_like=True, tag=8):
    """A reply to a heartbeat as builds without vitals write and read it: an array has every field,
    also one that is None. Read as WireHeartbeatReply."""

    sequence: Version
    sent_at: Seconds
    lag_ms: Millis
    consent: bool


class WireGossipStatus(Struct, array_like=True, tag=9, forbid_unknown_fields=True):
    nodes: Nodes
    counts: Annotated[list[Version], Meta(max_length=NODES_MAX)]
    seen: Version


class WireGossipSeen(Struct, array_like=True, tag=10, forbid_unknown_fields=True):
    nodes: Nodes
    counts: Annotated[list[Version], Meta(max_length=NODES_MAX)]


class WireGossipState(Struct, array_like=True, tag=11, forbid_unknown_fields=True):
    to: tuple[Host, Port, int]
    state: WireState


Wire = (
    WireInitJoin
    | WireInitAck
    | WireInitNack
    | WireTrial
    | WireTrialResult
    | WireJoin
    | WireJoinRefused
    | WireWelcome
    | WireHeartbeat
    | WireHeartbeatReply
    | WireGossipStatus
    | WireGossipSeen
    | WireGossipState
)

MALFORMED = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    MemoryError,
    OverflowError,
    RecursionError,
)

_CLASSES: dict[int | None, type[m.Message]] = {
    wire.__struct_config__.tag: message  # type: ignore[misc]
    for wire, message in (
        (WireInitJoin, m.InitJoin),
        (WireInitAck, m.InitAck),
        (WireInitNack, m.InitNack),
        (WireTrial, m.Trial),
        (WireTrialResult, m.TrialResult),
        (WireJoin, m.Join),
        (WireJoinRefused, m.JoinRefused),
        (WireWelcome, m.Welcome),
        (WireHeartbeat, m.Heartbeat),
        (WireHeartbeatReply, m.HeartbeatReply),
        (WireGossipStatus, m.GossipStatus),
        (WireGossipSeen, m.GossipSeen),
        (WireGossipState, m.GossipState),
    )
}
"""Messages by the tag of their wire form."""

_encoder = msgspec.msgpack.Encoder()
_decode_body: Callable[[bytes], Wire] = msgspec.msgpack.Decoder(Wire).decode


def encode(message: m.Message) -> bytes:
    """Encode a message."""
    body = _encoder.encode(_to_wire(message))
    if len(body) < COMPRESS_FROM:
        return bytes((FORMAT, PLAIN)) + body
    return bytes((FORMAT, COMPRESSED)) + zlib.compress(body, 1)


def decode(data: bytes) -> m.Message:
    """Decode a message.

    Raises:
        RemoteProtocolError: the bytes are not a message of this format, or exceed a bound.
    """
    if len(data) < 2 or data[0] != FORMAT or data[1] not in (PLAIN, COMPRESSED):
        raise RemoteProtocolError("not a membership message of a known format")
    body = data[2:] if data[1] == PLAIN else inflate(data[2:], BODY_MAX, "membership message")
    try:
        return _from_wire(_decode_body(body))
    except MALFORMED as error:
        raise RemoteProtocolError(f"malformed membership message: {error}") from None


def kind_of(data: bytes) -> type | None:
    """Return the class of an encoded message by its first bytes; None if it has none. The rest is
    not looked at, so a message that nothing may send costs nothing."""
    head = data[2 : 2 + HEAD_BYTES]
    try:
        if data[1:2] == bytes((COMPRESSED,)):
            head = zlib.decompressobj().decompress(data[2 : 2 + INFLATED_FROM], HEAD_BYTES)
        count = head[0]
        tag = head[1] if 0x90 < count <= 0x9F else None  # an array of 1 to 15 fields
    except (zlib.error, IndexError):
        return None
    return _CLASSES.get(tag)


def _to_wire(message: m.Message) -> Wire | WirePlainReply:
    match message:
        case m.InitJoin(greeting):
            return WireInitJoin(_wire_greeting(greeting))
        case m.InitAck(greeting, cookie):
            return WireInitAck(_wire_greeting(greeting), cookie)
        case m.InitNack():
            return WireInitNack()
        case m.Trial(member, cookie):
            return WireTrial(member.node, wire_member(member), cookie)
        case m.TrialResult(messages, gossip, others):
            return WireTrialResult(messages, gossip, list(others))
        case m.Join(greeting, member, cookie):
            return WireJoin(_wire_greeting(greeting), member.node, wire_member(member), cookie)
        case m.JoinRefused(reason):
            return WireJoinRefused(reason)
        case m.Welcome(gossip):
            return WireWelcome(wire_state(gossip))
        case m.Heartbeat(sequence, sent_at, lag):
            return WireHeartbeat(sequence, sent_at, round(1000 * lag))
        case m.HeartbeatReply(sequence, sent_at, lag, consent, vitals):
            if vitals is None:
                return WirePlainReply(sequence, sent_at, round(1000 * lag), consent)
            busy = WireVitals(*vitals)
            return WireHeartbeatReply(sequence, sent_at, round(1000 * lag), consent, busy)
        case m.GossipStatus(clock, seen):
            return WireGossipStatus(list(clock.counters), list(clock.counters.values()), seen)
        case m.GossipSeen(clock):
            return WireGossipSeen(list(clock.counters), list(clock.counters.values()))
        case m.GossipState(to, gossip):
            return WireGossipState(to, wire_state(gossip))
        case _:
            assert_never(message)


def _from_wire(wire: Wire) -> m.Message:
    match wire:
        case WireInitJoin(greeting):
            return m.InitJoin(_greeting(greeting))
        case WireInitAck(greeting, cookie):
            return m.InitAck(_greeting(greeting), cookie)
        case WireInitNack():
            return m.InitNack()
        case WireTrial(node, member, cookie):
            return m.Trial(member_of(node_of(node), member), cookie)
        case WireTrialResult(messages, gossip, others):
            return m.TrialResult(messages, gossip, tuple(address_of(place) for place in others))
        case WireJoin(greeting, node, member, cookie):
            return m.Join(_greeting(greeting), member_of(node_of(node), member), cookie)
        case WireJoinRefused(reason):
            return m.JoinRefused(reason)
        case WireWelcome(state):
            return m.Welcome(gossip_of(state))
        case WireHeartbeat(sequence, sent_at, lag_ms):
            return m.Heartbeat(sequence, sent_at, lag_ms / 1000)
        case WireHeartbeatReply(sequence, sent_at, lag_ms, consent, busy):
            vitals = Vitals(*astuple(busy)) if busy is not None else None
            return m.HeartbeatReply(sequence, sent_at, lag_ms / 1000, consent, vitals)
        case WireGossipStatus(nodes, counts, seen):
            return m.GossipStatus(_clock(nodes, counts), seen)
        case WireGossipSeen(nodes, counts):
            return m.GossipSeen(_clock(nodes, counts))
        case WireGossipState(to, state):
            return m.GossipState(node_of(to), gossip_of(state))
        case _:
            assert_never(wire)


def _wire_greeting(greeting: m.Greeting) -> WireGreeting:
    settings = dict(greeting.settings)
    if greeting.oldest:
        settings[OLDEST] = str(greeting.oldest)
    if greeting.gossip is not None:
        settings[GOSSIP] = str(greeting.gossip)
    return WireGreeting(greeting.cluster, greeting.protocol, settings)


def _greeting(wire: WireGreeting) -> m.Greeting:
    settings = dict(wire.settings)
    oldest = settings.pop(OLDEST, "0")
    if not (oldest.isascii() and oldest.isdigit()) or len(oldest) > DIGITS_MAX:
        raise RemoteProtocolError("the lowest protocol in a greeting is no number")
    try:
        gossip = Address.parse(settings.pop(GOSSIP)) if GOSSIP in settings else None
    except ConfigError:
        raise RemoteProtocolError("the place of the gossip in a greeting is no address") from None
    return m.Greeting(wire.cluster, wire.protocol, settings, int(oldest), gossip)


def _clock(nodes: list[tuple[str, int, int]], counts: list[int]) -> VectorClock:
    if len(nodes) != len(counts):
        raise RemoteProtocolError("a clock needs one count per node")
    return VectorClock(once((node_of(n), c) for n, c in zip(nodes, counts, strict=True)))
