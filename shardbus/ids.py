"""Identifiers of nodes, entities, types and shards.

A node id names one incarnation of a process, `host:port#uid`. The uid is drawn at the start of the
process and never used again, so two processes that follow each other at one address are two nodes.
Entity, type and shard ids are values: 1 to 256 bytes of UTF-8 without control characters. They are
never used as parts of key names or paths.

Source: S1.2, S1.7, S1.8, S2.15, S2.21, S4.8.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from zlib import crc32

from shardbus.bounds import UID_MAX, Host, Port, Uid
from shardbus.errors import ConfigError

ID_BYTES_MAX = 256
PORT_DIGITS_MAX = 5
SHOWN_MAX = 100
"""Characters of an invalid text that an error shows."""
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})|[0-9A-Fa-f.:]{2,45}(%[A-Za-z0-9._-]+)?")
"""A name, an IPv4 address, or an IPv6 address with its zone."""


class Address(NamedTuple):
    """The address of a node: its advertised host and the port of its ROUTER socket."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `host:port` or `tcp://host:port`.

        Raises:
            ConfigError: there is no host, no port, or the port is outside 1..65535.
        """
        host, colon, port = text.removeprefix("tcp://").rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if (
            not colon
            or not is_host(host)
            or not port.isascii()
            or not port.isdigit()
            or len(port) > PORT_DIGITS_MAX
            or not 0 < int(port) < 65536
        ):
            raise ConfigError(
                f"not an address: {_shown(text)}", hint="write host:port, as in 10.0.0.1:7355"
            )
        return cls(host, int(port))

    @classmethod
    def advertised(cls, text: str, port: int) -> Address:
        """Read `host`, which gets `port`, or `host:port`. Raises as `parse`."""
        bare = text.count(":") != 1 and not text.startswith("[")
        if not bare:
            return cls.parse(text)
        if not is_host(text):
            raise ConfigError(f"not a host: {_shown(text)}", hint="write HOST or HOST:PORT")
        return cls(text, port)


def _shown(text: str) -> str:
    """Return a text of any length for an error."""
    return repr(text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}...")


def is_host(text: str) -> bool:
    """True if the text has the form of a host name or IP address. The host need not exist."""
    return bool(HOST.fullmatch(text))


class NodeId(NamedTuple):
    """One incarnation of a node. Node ids sort by address, in the same order on every node."""

    host: Host
    port: Port
    uid: Uid

    def __str__(self) -> str:
        return f"{self.address}#{self.uid:016x}"

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)

    @classmethod
    def parse(cls, text: str) -> NodeId:
        """Read `host:port#uid`, the uid in hexadecimal.

        Raises:
            ConfigError: the text is not of that form.
        """
        address, mark, uid = text.rpartition("#")
        try:
            number = int(uid, 16)
        except ValueError:
            number = -1
        if not mark or not 0 <= number <= UID_MAX:
            raise ConfigError(
                f"not a node: {_shown(text)}",
                hint="write host:port#uid, as `shardbus nodes` prints it",
            )
        return cls(*Address.parse(address), number)


def check_text(what: str, value: object) -> str:
    """Return `value` as a plain `str` if UTF-8 can encode it. `what` names it for the error.

    Raises:
        ConfigError: it is no text, or has a lone surrogate.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{what} must be a str, not {type(value).__name__}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{what} {_shown(value)} is not valid Unicode") from None
    return value if type(value) is str else str.__str__(value)


def check_id(what: str, value: str) -> str:
    """Return `value`, as a plain `str`, if it is a valid id. `what` names the kind of id for the
    error.

    Raises:
        ConfigError: it is no text, empty, longer than 256 bytes of UTF-8, not encodable, or has a
            control character.
    """
    if (
        type(value) is str
        and 0 < len(value) <= ID_BYTES_MAX
        and value.isascii()
        and value.isprintable()
    ):
        return value
    value = check_text(what, value)
    size = len(value.encode())
    if not 0 < size <= ID_BYTES_MAX:
        raise ConfigError(
            f"{what} must have 1 to {ID_BYTES_MAX} bytes of UTF-8, this one has {size}"
        )
    if not value.isprintable() and any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value):
        raise ConfigError(f"{what} {value!r} has a control character")
    return value


def shard_number(entity_id: str, shards: int) -> int:
    """Return the shard number of an entity by the default function, `crc32`. It never changes."""
    return crc32(entity_id.encode()) % shards


def shard_of(entity_id: str, shards: int) -> str:
    """Return the shard id of an entity under the default function: its number as text."""
    return str(shard_number(entity_id, shards))
