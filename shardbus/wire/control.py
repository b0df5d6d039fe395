"""Control messages as bytes: for sharding and the singletons, and a few between node and client.

The tag is the name of the class. The body is the dataclass as a MessagePack map, so a newer node
may add a field that an older one ignores. Only the classes listed here can be decoded.

Source: S0.6-S0.8; B.97.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from shardbus.bounds import TYPES_WITHIN_MAX, Id, Mark, Text
from shardbus.errors import RemoteProtocolError
from shardbus.ids import NodeId
from shardbus.membership.singleton import messages
from shardbus.sharding.instances import INSTANCES_MAX
from shardbus.sharding.messages import MESSAGES
from shardbus.wire.batch import UNREADABLE, Control

ELSEWHERE_MAX = 3
"""Members that an answer names."""
REFUSALS_MAX = 2000
"""Rows, at most, of one report."""


class Describe(msgspec.Struct, frozen=True):
    """A client requests the layout of an entity type. Answer: TypeInfo."""


class TypeInfo(msgspec.Struct, frozen=True):
    """Lets a client compute the shard of an entity. `shards` 0: the type has its own shard
    function, for which the client needs its class. `known` False: the node has no such type.
    `router` is how senders choose among the instances of an entity, empty if the type has none;
    `instances` is their number as the node has it. `within`: the types that it lives within, the
    nearest first. If `known` is False, `elsewhere` are members that seem to have the type, the
    oldest first, and `similar` is the type with the most similar name, empty if none is."""

    known: bool
    layout: str
    shards: int
    instances: Annotated[int, msgspec.Meta(ge=0, le=INSTANCES_MAX)] = 0
    router: Text = ""
    within: Annotated[tuple[Id, ...], msgspec.Meta(max_length=TYPES_WITHIN_MAX)] = ()
    similar: Text = ""
    elsewhere: Annotated[tuple[NodeId, ...], msgspec.Meta(max_length=ELSEWHERE_MAX)] = ()


class Members(msgspec.Struct, frozen=True):
    """For clients: the nodes that are Up or leaving, and those that were just found dead, from
    which nothing more arrives."""

    nodes: tuple[NodeId, ...]
    died: tuple[NodeId, ...] = ()


class Refusals(msgspec.Struct, frozen=True):
    """Tells that came by this session, were acknowledged, and then dropped: entity type, reason and
    number. Sent to processes that take such reports. `forwarded`: those of them that the receiver
    had forwarded, with its mark of their sender (`Relayed.via`)."""

    counts: Annotated[
        tuple[tuple[Id, Id, Annotated[int, msgspec.Meta(ge=0)]], ...],
        msgspec.Meta(max_length=REFUSALS_MAX),
    ]
    forwarded: Annotated[
        tuple[tuple[Id, Id, Annotated[int, msgspec.Meta(ge=0)], Mark], ...],
        msgspec.Meta(max_length=REFUSALS_MAX),
    ] = ()


class Goodbye(msgspec.Struct, frozen=True):
    """The sender has given up the leaving process `node`: accept nothing more from it."""

    node: NodeId


CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (*MESSAGES, *messages.MESSAGES, Describe, TypeInfo, Members, Refusals, Goodbye)
}
"""The messages that a Control may carry, by their tags."""
_DECODERS: dict[str, msgspec.msgpack.Decoder[object]] = {
    name: msgspec.msgpack.Decoder(cls) for name, cls in CLASSES.items()
}
_encode = msgspec.msgpack.Encoder().encode


def encode_control(entity_type: str, message: object) -> Control:
    """Wrap a message of one of the listed classes for the wire."""
    return Control(type(message).__name__, entity_type, _encode(message))


def class_of(control: Control) -> type:
    """Return the class of a wrapped message, whose body is not looked at.

    Raises:
        RemoteProtocolError: the tag is unknown.
    """
    try:
        return CLASSES[control.tag]
    except KeyError:
        raise RemoteProtocolError(f"unknown control message {control.tag!r}") from None


def decode_control(control: Control) -> object:
    """Decode a wrapped message.

    Raises:
        RemoteProtocolError: the tag is unknown, or the body does not fit the class.
    """
    decoder = _DECODERS.get(control.tag)
    if decoder is None:
        raise RemoteProtocolError(f"unknown control message {control.tag!r}")
    try:
        return decoder.decode(control.body)
    except UNREADABLE as e:
        raise RemoteProtocolError(f"not a {control.tag}: {e}") from None
