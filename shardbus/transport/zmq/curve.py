"""CURVE: the keys that are derived from a cluster's secret, and how sockets use them.

    secret ──keyed BLAKE2b──> server key pair      every node listens under it
                         └──> node key pair        every process of the cluster connects with it

Both sides are authenticated: the side that connects encrypts to the server key, which only the
secret gives, and the side that listens asks the handler of `zap` whether it knows the key of the
other side. So one file on each machine is enough.

A `Keyring` has the keys of all secrets in the file, the newest first. It is replaced as a whole, so
that any thread may read it. A `KeyFallback` decides with which of them one connection is tried: a
handshake that fails is followed by the next key at once, and after all of them by a pause that
grows. While a secret is rotated, one of the keys works. If none does for `ROUNDS` rounds, the
secrets differ. ZeroMQ itself never connects again after some failed handshakes, so the owner of the
socket must make another one.

Source: docs/security.md; RFC 26 of ZeroMQ (CurveZMQ).
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq
from zmq.utils import z85

from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.transport.identities import Identity, authorize_by, read_allowed, read_key
from shardbus.transport.permissions import Permissions, Role, authorize
from shardbus.transport.secret_file import read_secrets
from shardbus.wire.batch import Hello

ZAP_DOMAIN = b"shardbus"
MESSAGE_OVERHEAD = 33
"""Bytes that CURVE adds to each part: the name of the command, a nonce, a tag and the flags."""
ROUNDS = 3
"""Failures with every key after which the secrets count as different. One failure proves nothing: a
process that ends closes its connections in the middle of a handshake."""
PAUSE_S, PAUSE_MAX_S = 0.05, 2.0
FINGERPRINT_BYTES = 8
DENIED = 400
"""The answer of a ZAP handler that refuses a key."""
EXPLAINED = (DENIED, int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH))
"""Values of events that name the reason of a failed handshake. Other values only say that the other
side has closed the connection."""
SILENT = (0, errno.EAGAIN, errno.EINTR, errno.EINPROGRESS, errno.ETIMEDOUT)
"""Values of events for a handshake without an answer in time. It proves nothing about keys: the
other process stands still, or its loop is blocked. The value is the error of libzmq's last read;
EAGAIN was seen, and EPIPE where the other side has other keys."""

log = GuardedLog("shardbus.keys")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair, as ZeroMQ writes it (Z85)."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: bytes) -> KeyPair:
        """Return the pair of 32 secret bytes."""
        text = z85.encode(secret)
        return cls(zmq.curve_public(text), text)


class ClusterKeys(msgspec.Struct, frozen=True):
    """The key pairs that one secret gives."""

    server: KeyPair
    node: KeyPair

    @property
    def fingerprint(self) -> str:
        """A short name of the secret that may be shown: it is made of the public key."""
        digest = hashlib.blake2b(self.server.public, digest_size=FINGERPRINT_BYTES)
        return digest.hexdigest()


def derive(secret: bytes) -> ClusterKeys:
    """Return the keys of a secret. The result for a secret never changes."""

    def pair(purpose: bytes) -> KeyPair:
        return KeyPair.of(hashlib.blake2b(purpose, key=secret, digest_size=32).digest())

    return ClusterKeys(pair(b"shardbus 1 server"), pair(b"shardbus 1 node"))


def require_curve() -> None:
    """Check that this build of libzmq can encrypt.

    Raises:
        ConfigError: it cannot.
    """
    if not zmq.has("curve"):
        raise ConfigError(
            "security.secret is set, and this libzmq cannot encrypt", hint="pip install -U pyzmq"
        )


class Keyring:
    """The keys in the file of a cluster's secret, the newest first.

    Raises:
        ConfigError: the file cannot be used, or this libzmq cannot encrypt.
    """

    def __init__(self, path: str | Path, key: str | Path = "", allowed: str | Path = "") -> None:
        require_curve()
        self.path, self._key, self._allowed = Path(path or key), key, allowed
        self._has_secret = bool(path)
        self._stamp: tuple[int, ...] = ()
        self.keys: tuple[ClusterKeys, ...] = ()
        self.identities: Mapping[bytes, Identity] | None = None
        """Who may connect, by public key; None if the secret decides."""
        self._users: Mapping[bytes, str] = {}
        self.reload()
        self._in_use = self.state

    @classmethod
    def at(cls, path: str, key: str = "", allowed: str = "") -> Keyring | None:
        """Return the keyring of the settings; None if they are empty. `key`: the file of an own
        key. `allowed`: the file of the keys that may connect."""
        return cls(path, key, allowed) if path or key else None

    @property
    def newest(self) -> ClusterKeys:
        """The keys under which a node listens."""
        return self.keys[0]

    def user_of(self, public: bytes, address: str = "", *, nodes_only: bool = False) -> str | None:
        """Return the name of a peer by its public key; None if it may not connect from this
        address, or is a client where only nodes may connect."""
        identities = self.identities
        if identities is None:
            return self._users.get(public)
        identity = identities.get(public)
        if identity is None or not identity.may_connect_from(address):
            return None
        return None if nodes_only and identity.role is not Role.NODE else identity.name

    def authorize(self, hello: Hello, user: str | None) -> Permissions | str:
        """Return the permissions of a session, or why it is refused."""
        if self.identities is None:
            return authorize(hello, user)
        return authorize_by({peer.name: peer for peer in self.identities.values()}, hello, user)

    @property
    def state(self) -> tuple[object, ...]:
        """Decides who may connect; another one after a change."""
        return self.keys, self.identities

    def adopt(self) -> bool:
        """Read the file again. Returns True if sockets must listen anew, since who may connect is
        decided otherwise than at the last call. A failed handshake may have read it meanwhile.

        Raises:
            ConfigError: the file cannot be used. The keys stay as they were.
        """
        self.reload()
        before, self._in_use = self._in_use, self.state
        return self._in_use != before

    def reload(self) -> bool:
        """Read the file again. Returns True if the keys changed.

        Raises:
            ConfigError: the file cannot be used. The keys stay as they were.
        """
        stamp, before = self._stamp_now(), self.state
        key_file = read_key(Path(self._key)) if self._key else None
        identities = read_allowed(Path(self._allowed)) if self._allowed else None
        keys = tuple(map(derive, read_secrets(self.path))) if self._has_secret else ()
        users = {key.node.public: f"secret {key.fingerprint}" for key in keys}
        if key_file is not None:
            pair = KeyPair.of(key_file.secret)
            servers = tuple(KeyPair(server, b"") for server in key_file.servers)
            keys = tuple(ClusterKeys(key.server, pair) for key in keys) or tuple(
                ClusterKeys(server, pair) for server in servers
            )
        if not keys:
            raise ConfigError(
                f"{str(self.path)!r} has no key of the cluster",
                hint="name security.secret too, or make it with `shardbus keys own --server-of`",
            )
        if keys != self.keys:
            self.keys = keys
        if identities != self.identities:
            self.identities = identities
        self._users, self._stamp = users, stamp
        return self.state != before

    def reload_if_changed(self) -> bool:
        """Read the file again if it is another one than before, after a failed handshake. Returns
        True if the keys changed."""
        if self._stamp_now() == self._stamp:
            return False
        try:
            return self.reload()
        except ConfigError as wrong:
            self._stamp = self._stamp_now()
            log.warning("the keys stay as they were: %s", wrong)
            return False

    def _stamp_now(self) -> tuple[int, ...]:
        try:
            now = self.path.stat()
        except OSError:
            return ()
        return now.st_ino, now.st_mtime_ns, now.st_size


class KeyFallback:
    """Chooses the keys of one connection, attempt by attempt. Without a keyring the only choice is
    no keys."""

    def __init__(self, keyring: Keyring | None) -> None:
        self._keyring = keyring
        self._keys: tuple[ClusterKeys | None, ...] = (None,)
        self._at = 0
        self._failed = 0
        """Failures since the last success."""
        self._refresh()

    @property
    def current(self) -> ClusterKeys | None:
        """The keys for the next attempt; None for none."""
        return self._keys[self._at]

    def hopeless(self, why: int = 0) -> bool:
        """True if every key has failed `ROUNDS` times in a row. Without keys, that takes twice as
        many failures, unless a value of `EXPLAINED` says why: often the other side closes the
        connection before it is known that it has keys."""
        rounds = ROUNDS if why or self._keyring is not None else 2 * ROUNDS
        return self._failed >= rounds * len(self._keys)

    def succeeded(self) -> None:
        """The handshake is complete: these keys are the first to try after the next break."""
        self._failed = 0

    def failed(self, value: int) -> float:
        """The handshake failed, with the value of that event: choose the next keys. Returns the
        pause before they are tried, in seconds."""
        if value in SILENT:
            return PAUSE_S
        if self._keyring is not None:
            self._keyring.reload_if_changed()
        if self._refresh():
            return 0.0
        self._failed += 1
        self._at = (self._at + 1) % len(self._keys)
        rounds, within = divmod(self._failed, len(self._keys))
        return 0.0 if within else min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(rounds, 16))

    def _refresh(self) -> bool:
        """Take the keys of the keyring if it has others now. Returns True if it had."""
        if self._keyring is None or self._keys is self._keyring.keys:
            return False
        self._keys, self._at, self._failed = self._keyring.keys, 0, 0
        return True


def reason_for(value: int, *, keyed: bool) -> str:
    """Return why handshakes fail, by the value of the last event. `keyed`: this process has a
    secret."""
    if keyed and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        return "that node has no secret: it runs without security.secret"
    if not keyed:
        has_none = (
            "the cluster has a secret, and this process has none: set security.secret, "
            "as in SHARDBUS_SECURITY__SECRET"
        )
        if value in EXPLAINED:
            return has_none
        return f"no connection is let in: that node has no file descriptor left, or {has_none}"
    if value == DENIED:
        return "the cluster does not know this process's key"
    return "the cluster's secret differs from the one here, or that node has none"


def listen_with(socket: zmq.Socket[bytes], keys: ClusterKeys) -> None:
    """Set the keys of a socket that listens; they hold from its next bind on. Without a handler of
    `zap` in its context, it refuses every peer."""
    socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.server.secret)


def connect_with(socket: zmq.Socket[bytes], keys: ClusterKeys) -> None:
    """Set the keys of a socket that connects; they hold from its next connect on."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server.public)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.node.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.node.secret)
