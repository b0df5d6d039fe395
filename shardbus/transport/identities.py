"""Identities: whose key is whose, and the permissions of its process.

With `security.allowed`, the secret of the cluster no longer admits a process: each has a key of its
own (`security.keys`), and only keys of this TOML file may connect.

    [orders-api]                          a name, for logs
    key = "Yne@$w-vo<fVvi]a<NY6T1..."     its public key
    role = "client"                       or "node", or "store": a replica of `cluster://` alone
    types = ["order", "cart"]             a client's entity types; without it, all
    addresses = ["10.0.3.0/24"]           where a client may connect from; without it, everywhere

    [node-1]
    key = "..."
    role = "node"
    addresses = ["10.0.0.1:7355"]         names that a node may have, HOST or HOST:PORT; without
                                          it, any address

A node has the permissions of a client, too. A client may not subscribe to gossip, and no HELLO of
it may name a node.

A file of a key has one line with `key` and 64 hexadecimal digits. The file of a client also has the
public keys of the cluster, `server` and the key, the newest first: such a client needs no secret,
and cannot pretend to be a node.

Source: docs/security.md.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path

import msgspec

from shardbus.errors import ConfigError
from shardbus.ids import Address, check_id
from shardbus.transport.permissions import Permissions, Role, authorize
from shardbus.transport.secret_file import SECRET_BYTES, read_private
from shardbus.wire.batch import Hello

PUBLIC_CHARACTERS = 40
ALLOWED_BYTES_MAX = 1 << 20
FIELDS = {"key", "role", "types", "addresses"}
ROLES = {"client": Role.CLIENT, "node": Role.NODE, "store": Role.STORE}


class Identity(msgspec.Struct, frozen=True):
    """A process that may connect. `types` is None for all of them."""

    name: str
    key: bytes
    role: Role
    addresses: tuple[str, ...] = ()
    types: frozenset[str] | None = None

    def may_connect_from(self, address: str) -> bool:
        """True if a connection may come from this address. A node may come from anywhere: its
        connections leave by any interface."""
        if self.role is not Role.CLIENT or not self.addresses:
            return True
        try:
            place = ip_address(address)
        except ValueError:
            return False
        return any(place in ip_network(network, strict=False) for network in self.addresses)

    def may_be(self, address: Address) -> bool:
        """True if a node may have this address."""
        names = (str(address), address.host)
        return not self.addresses or any(allowed in names for allowed in self.addresses)


class OwnKey(msgspec.Struct, frozen=True):
    """The content of a file of a key. `servers`: the public keys of the cluster, for a client."""

    secret: bytes
    servers: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        return f"OwnKey(servers={self.servers!r})"


def authorize_by(
    directory: Mapping[str, Identity], hello: Hello, user: str | None
) -> Permissions | str:
    """Return the permissions of a session by the identity of its connection, or why it is
    refused."""
    identity = directory.get(user or "")
    if identity is None:
        return "its key is not in security.allowed"
    if identity.role is Role.STORE:
        return f"{identity.name} is a replica, which speaks to replicas only"
    if hello.node is not None:
        if identity.role is not Role.NODE:
            return f"{identity.name} is a client, and calls itself {hello.name[:256]}"
        if not identity.may_be(hello.node.address):
            return f"{identity.name} may not have the address {hello.node.address}"
    answer = authorize(hello, user)
    if isinstance(answer, Permissions) and identity.role is Role.CLIENT:
        return Permissions(answer.role, identity.types)
    return answer


def read_allowed(path: Path) -> dict[bytes, Identity]:
    """Return the identities of a file by their public keys.

    Raises:
        ConfigError: the file cannot be read, or an entry is malformed or stands twice.
    """
    try:
        with path.open("rb") as file:
            text = file.read(ALLOWED_BYTES_MAX + 1)
        if len(text) > ALLOWED_BYTES_MAX:
            raise ConfigError(f"{str(path)!r} is too large")
        tables = tomllib.loads(text.decode("utf-8-sig"))
    except OSError as failed:
        raise ConfigError(
            f"security.allowed {str(path)!r} cannot be read: {failed.strerror}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise ConfigError(f"{str(path)!r} is not TOML: {str(wrong).splitlines()[0]}") from None
    identities: dict[bytes, Identity] = {}
    for name, table in tables.items():
        try:
            identity = _identity(check_id("the name of an identity", name), table)
        except ConfigError as wrong:
            raise ConfigError(f"[{name}] of {str(path)!r}: {wrong.message}") from None
        if identity.key in identities:
            other = identities[identity.key].name
            raise ConfigError(f"[{name}] and [{other}] of {str(path)!r} have the same key")
        identities[identity.key] = identity
    return identities


def _identity(name: str, table: object) -> Identity:
    if not isinstance(table, dict) or not table.keys() <= FIELDS:
        raise ConfigError(f"it is a table of {', '.join(sorted(FIELDS))}")
    role = ROLES.get(str(table.get("role")))
    if role is None:
        raise ConfigError("its role is client, node or store")
    key = public_key(table.get("key"))
    addresses, types = _words(table, "addresses"), _words(table, "types")
    if role is Role.NODE and "types" in table:
        raise ConfigError("a node may use all types")
    if role is Role.STORE and "types" in table:
        raise ConfigError("a replica uses no types")
    if role is Role.CLIENT:
        for address in addresses:
            try:
                ip_network(address, strict=False)
            except ValueError:
                raise ConfigError(f"{address!r} is no IP address or network") from None
    return Identity(name, key, role, addresses, frozenset(types) if "types" in table else None)


def _words(table: Mapping[str, object], name: str) -> tuple[str, ...]:
    words = table.get(name, [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{name} is a list of texts")
    return tuple(words)


def public_key(text: object) -> bytes:
    """Return a public key.

    Raises:
        ConfigError: it is not 40 characters of Z85.
    """
    if isinstance(text, str) and text.isascii() and len(text) == PUBLIC_CHARACTERS:
        return text.encode()
    raise ConfigError(f"a public key has {PUBLIC_CHARACTERS} characters")


def read_key(path: Path) -> OwnKey:
    """Return the key in a private file.

    Raises:
        ConfigError: the file cannot be read, others may read it, or it is malformed.
    """
    secret, servers = b"", []
    for number, line in enumerate(read_private(path, "a key").splitlines(), 1):
        word, _, value = line.strip().partition(" ")
        try:
            if word == "key" and not secret:
                secret = bytes.fromhex(value)
            elif word == "server":
                servers.append(public_key(value))
            elif word and not word.startswith("#"):
                raise ValueError
        except (ValueError, ConfigError):
            raise ConfigError(f"line {number} of {str(path)!r} is malformed") from None
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"{str(path)!r} has no key", hint="make one with `shardbus keys own`")
    return OwnKey(secret, tuple(servers))
