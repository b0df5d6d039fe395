"""The gossip state as plain values for MessagePack.

A state has a table with each node once; everything else refers to a node by its place in the table.
Members come first in the table, so that one comparison shows whether a seen node, observer, subject
or counter is a member.

A state that is small on the wire may be large in memory. So a state that lists a node twice where
once is enough is refused. A state has no more rows than members, which is checked before any row is
decoded; a row has no more flags than there are other members, which is checked before the next row
is decoded.

Source: S1.46, S3.34, B.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from shardbus.bounds import UID_MAX, Epoch, Host, Port, Version
from shardbus.errors import RemoteProtocolError
from shardbus.ids import Address, NodeId, is_host
from shardbus.membership.gossip import META_BYTES_MAX, Gossip
from shardbus.membership.gossip import Meta as Written
from shardbus.membership.member import Member, Service, Status
from shardbus.membership.messages import NAME_MAX
from shardbus.membership.reachability import Flag, ObserverRow, Reachability
from shardbus.membership.vector_clock import VectorClock

V = TypeVar("V")

NODES_MAX = 20_000
STATUSES, SERVICES = tuple(Status), tuple(Service)
WORST = Flag.TERMINATED.value

Name = Annotated[str, Meta(max_length=NAME_MAX)]
Place = Annotated[int, Meta(ge=0, lt=NODES_MAX)]
Seconds = Annotated[float, Meta(ge=-1e12, le=1e12)]
Names = Annotated[list[Name], Meta(max_length=256)]
Nodes = Annotated[list[tuple[Host, Port, int]], Meta(max_length=NODES_MAX)]
Places = Annotated[list[Place], Meta(max_length=NODES_MAX)]
Bytes = Annotated[bytes, Meta(max_length=META_BYTES_MAX)]
Counters = Annotated[list[tuple[Place, Version]], Meta(max_length=NODES_MAX)]
GOSSIP_HOST = "gossip_host="
"""The beginning of a feature that carries a member's `gossip_host`. Builds that do not know it keep
it in the list and pass it on; a field of its own would make their states unreadable."""
Flags = Annotated[
    list[tuple[Place, Annotated[int, Meta(ge=1, le=WORST)]]], Meta(max_length=NODES_MAX)
]


class WireMember(Struct, array_like=True, forbid_unknown_fields=True):
    """A member without its node. `status` is the rank of the status."""

    gossip_port: Port
    http: Name
    roles: Names
    version: Name
    status: Annotated[int, Meta(ge=0, le=Status.DOWN.rank)]
    up_number: Version
    service: Annotated[int, Meta(ge=0, le=2)] = 0
    service_version: Version = 0
    yields: Version = 0
    zone: Name = ""
    features: Names = []


class WireRow(Struct, array_like=True, forbid_unknown_fields=True):
    """One observer's row of reachability. Its flags stay encoded until every observer is checked to
    be a member and to stand once."""

    observer: Place
    version: Version
    flags: msgspec.Raw


class WireState(Struct, array_like=True, forbid_unknown_fields=True):
    """A gossip state. The first `len(members)` of `nodes` are the members, the others the
    tombstones."""

    nodes: Nodes
    members: Annotated[list[WireMember], Meta(max_length=NODES_MAX)]
    seen: Places
    rows: Annotated[list[WireRow], Meta(max_length=NODES_MAX)]
    clock: Counters
    tombstones: Annotated[list[Seconds], Meta(max_length=NODES_MAX)]
    epochs: Annotated[dict[Name, Epoch], Meta(max_length=4096)]
    meta: Annotated[dict[Name, tuple[Version, Bytes]], Meta(max_length=4096)]
    kept_down: Places


_encode_flags = msgspec.msgpack.Encoder().encode
_decode_flags: Callable[[msgspec.Raw], list[tuple[int, int]]] = msgspec.msgpack.Decoder(
    Flags
).decode


def wire_state(gossip: Gossip) -> WireState:
    """Return a gossip state in its wire form."""
    nodes = [*gossip.members, *sorted(gossip.tombstones)]
    place = {node: i for i, node in enumerate(nodes)}
    return WireState(
        nodes=[(n.host, n.port, n.uid) for n in nodes],
        members=[wire_member(member) for member in gossip.members.values()],
        seen=sorted(place[n] for n in gossip.seen),
        rows=[
            WireRow(place[observer], row.version, _wire_flags(row, place))
            for observer, row in gossip.reachability.rows.items()
        ],
        clock=[(place[n], c) for n, c in gossip.clock.counters.items()],
        tombstones=[gossip.tombstones[n] for n in nodes[len(gossip.members) :]],
        epochs=dict(gossip.epochs),
        meta={name: (m.version, m.data) for name, m in gossip.meta.items()},
        kept_down=sorted(place[n] for n in gossip.kept_down),
    )


def gossip_of(wire: WireState) -> Gossip:
    """Return the gossip state of a wire form.

    Raises:
        RemoteProtocolError: it exceeds a bound, or lists a node twice.
    """
    nodes = [node_of(n) for n in wire.nodes]
    alive = len(wire.members)
    if len(nodes) != alive + len(wire.tombstones) or len(set(nodes)) != len(nodes):
        raise RemoteProtocolError("a state's nodes are its members and its tombstones, each once")
    members = {n: member_of(n, w) for n, w in zip(nodes, wire.members, strict=False)}

    def at(place: int) -> NodeId:
        if place >= alive:
            raise RemoteProtocolError("a state refers to a node that is not a member")
        return nodes[place]

    def anywhere(place: int) -> NodeId:
        if place >= len(nodes):
            raise RemoteProtocolError("a state refers to a node that is not in it")
        return nodes[place]

    observers = once((at(row.observer), row) for row in wire.rows)
    return Gossip(
        members=dict(sorted(members.items())),
        seen=frozenset(once((at(place), None) for place in wire.seen)),
        reachability=Reachability({n: _row(row, at) for n, row in observers.items()}),
        clock=VectorClock(once((at(p), count) for p, count in wire.clock)),
        tombstones=dict(zip(nodes[alive:], wire.tombstones, strict=True)),
        epochs=wire.epochs,
        meta={name: Written(version, data) for name, (version, data) in wire.meta.items()},
        kept_down=frozenset(once((anywhere(place), None) for place in wire.kept_down)),
    )


def _wire_flags(row: ObserverRow, place: Mapping[NodeId, int]) -> msgspec.Raw:
    return msgspec.Raw(_encode_flags([(place[s], flag) for s, flag in row.flags.items()]))


def _row(wire: WireRow, at: Callable[[int], NodeId]) -> ObserverRow:
    flags = _decode_flags(wire.flags)
    if any(place == wire.observer for place, _ in flags):
        raise RemoteProtocolError("a row has a flag of its own observer")
    return ObserverRow(wire.version, once((at(s), Flag(flag)) for s, flag in flags))


def wire_member(member: Member) -> WireMember:
    """Return a member in its wire form, without its node."""
    return WireMember(
        member.gossip_port,
        member.http,
        list(member.roles),
        member.version,
        member.status.rank,
        member.up_number,
        SERVICES.index(member.service),
        member.service_version,
        member.yields,
        member.zone,
        [*member.features, *([GOSSIP_HOST + member.gossip_host] if member.gossip_host else ())],
    )


def member_of(node: NodeId, wire: WireMember) -> Member:
    """Return the member of a node and a wire form.

    Raises:
        RemoteProtocolError: the host of its gossip port is none.
    """
    hosts = [f.removeprefix(GOSSIP_HOST) for f in wire.features if f.startswith(GOSSIP_HOST)]
    if not all(map(is_host, hosts)):
        raise RemoteProtocolError("a member's gossip host is not a host")
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
        wire.yields,
        wire.zone,
        tuple(f for f in wire.features if not f.startswith(GOSSIP_HOST)),
        hosts[0] if hosts else "",
    )


def node_of(wire: tuple[str, int, int]) -> NodeId:
    """Return the node of a wire form.

    Raises:
        RemoteProtocolError: the uid or the host is not valid.
    """
    if not 0 <= wire[2] <= UID_MAX:
        raise RemoteProtocolError(f"a uid has 64 bits, not {wire[2]}")
    if not is_host(wire[0]):
        raise RemoteProtocolError(f"not a host: {wire[0]!r}")
    return NodeId(*wire)


def address_of(wire: tuple[str, int]) -> Address:
    """Return the address of a wire form.

    Raises:
        RemoteProtocolError: the host is not valid.
    """
    if not is_host(wire[0]):
        raise RemoteProtocolError(f"not a host: {wire[0]!r}")
    return Address(*wire)


def once(pairs: Iterable[tuple[NodeId, V]]) -> dict[NodeId, V]:
    """Return the pairs as a dict.

    Raises:
        RemoteProtocolError: a node stands twice.
    """
    by_node: dict[NodeId, V] = {}
    for node, value in pairs:
        if node in by_node:
            raise RemoteProtocolError(f"{node} is listed twice")
        by_node[node] = value
    return by_node
