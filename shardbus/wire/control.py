"""The messages of the sharding machines and of their singletons, and a few between node and client,
as bytes.

The tag is the class's name; the body is the dataclass as a MessagePack map, so that a newer node
may add a field that an older one ignores. Only the classes listed here can be decoded.

Source: shardbus/sharding/messages.py, shardbus/membership/singleton/messages.py; S0.6-S0.8; B.97.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from shardbus.errors import RemoteProtocolError
from shardbus.ids import NodeId
from shardbus.membership.singleton import messages
from shardbus.sharding.messages import MESSAGES
from shardbus.wire.batch import UNREADABLE, Control


@dataclass(frozen=True, slots=True)
class Describe:
    """A client asks what a type is. Answer: TypeInfo."""


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """How a client finds the shard of an entity by itself. `shards` 0: the type has a function of
    its own, for which a client needs its class. `known` False: no such type here."""

    known: bool
    layout: str
    shards: int


@dataclass(frozen=True, slots=True)
class Members:
    """The nodes that are Up or leaving, for clients, and those that were just found dead: nothing
    more comes from them."""

    nodes: tuple[NodeId, ...]
    died: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusals:
    """Tells that came by this link, were acknowledged, and are dropped: entity type, reason, how
    many. For who listens."""

    counts: tuple[tuple[str, str, Annotated[int, msgspec.Meta(ge=0)]], ...]


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender of this has given up that process, which leaves: nothing more is to be taken from
    it."""

    node: NodeId


_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (*MESSAGES, *messages.MESSAGES, Describe, TypeInfo, Members, Refusals, Goodbye)
}
_DECODERS: dict[str, msgspec.msgpack.Decoder[object]] = {
    name: msgspec.msgpack.Decoder(cls) for name, cls in _CLASSES.items()
}
_encode = msgspec.msgpack.Encoder().encode


def encode_control(entity_type: str, message: object) -> Control:
    """Wrap a message of one of the listed classes for the wire."""
    return Control(type(message).__name__, entity_type, _encode(message))


def decode_control(control: Control) -> object:
    """Unwrap it.

    Raises:
        RemoteProtocolError: an unknown tag, or a body that does not fit the class.
    """
    decoder = _DECODERS.get(control.tag)
    if decoder is None:
        raise RemoteProtocolError(f"unknown control message {control.tag!r}")
    try:
        return decoder.decode(control.body)
    except UNREADABLE as e:
        raise RemoteProtocolError(f"not a {control.tag}: {e}") from None
