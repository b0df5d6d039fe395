"""Decides which peers may connect: the handler of ZeroMQ's authentication protocol (ZAP).

ZeroMQ calls it once for each connection whose handshake has proved that the peer has the secret key
of the public key it shows. It answers 200 with the name of the peer, which every message of the
connection then carries as `User-Id`, or 400. Anything but a well-formed question about a known key
in this domain is refused.

There is one handler for each ZeroMQ context that listens. It must be bound before the first socket
of the context is: earlier connections would not pass through it. It has a thread of its own,
because a handler of the application may block the loop.

**It fails closed, and loudly.** A question that it fails to answer is refused, counted and logged
with a traceback. If the thread itself ends, its socket is closed: the sockets that listen require
an answer (ZAP_ENFORCE_DOMAIN), so that from then on every new peer is refused; `on_failed` is
called, and connections that stand go on.

**Handshakes are bounded.** One costs both sides about 3.6 ms of processor time, before this handler
is asked. So `HandshakeLimit` counts accepted connections by address, and those that are
authenticated give their share back: members and clients are not limited, and a stranger gets
`REFILL_PER_S` attempts a second after the first `BURST`.

Source: docs/security.md; RFC 27 of ZeroMQ (ZAP).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import zmq
from zmq.utils import z85

from shardbus.guarded_log import GuardedLog
from shardbus.transport.log_limiter import log as frame_log
from shardbus.transport.zmq.curve import ZAP_DOMAIN, Keyring

ENDPOINT = "inproc://zeromq.zap.01"
VERSION = b"1.0"
PARTS = 9
"""Routing id, empty part, version, request id, domain, address, identity, mechanism, key."""
KEY_BYTES = 32
POLL_MS = 100
BURST, REFILL_PER_S = 512, 20.0
ADDRESSES_MAX = 4096
LOG_EVERY_S = 10.0

log = GuardedLog("shardbus.keys")


class HandshakeLimit:
    """Bounds the handshakes of each address. Used by the threads of the connection guard and of the
    ZAP handler."""

    def __init__(self, burst: float = BURST, refill: float = REFILL_PER_S) -> None:
        self._burst, self._refill = burst, refill
        self._attempts: dict[str, tuple[float, float]] = {}
        """Address to the attempts left, and when they were counted."""
        self._lock = threading.Lock()

    def accepted(self, address: str, now: float) -> bool:
        """Count a connection of this address. Returns False if it is one too many."""
        with self._lock:
            left = self._now(address, now)
            self._attempts[address] = (max(0.0, left - 1.0), now)
            if len(self._attempts) > ADDRESSES_MAX:
                del self._attempts[next(iter(self._attempts))]
        return left >= 1.0

    def authenticated(self, address: str, now: float) -> None:
        """A connection of this address is authenticated: it does not count."""
        with self._lock:
            self._attempts[address] = (min(self._burst, self._now(address, now) + 1.0), now)

    def _now(self, address: str, now: float) -> float:
        left, then = self._attempts.pop(address, (self._burst, now))
        return min(self._burst, left + (now - then) * self._refill)


def plain_address(text: str) -> str:
    """Return an address as both the kernel and ZeroMQ name it: without a zone, and IPv4 as such."""
    return text.partition("%")[0].removeprefix("::ffff:")


class ZapHandler:
    """Answers for one context. Callbacks are called in its thread.

    Args:
        nodes_only: admit no clients, if the keys say who is one.
        on_denied: a peer was refused; the reason for the counter.
        on_failed: the thread has ended by an error; no peer is admitted from now on.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keyring: Keyring,
        limit: HandshakeLimit,
        *,
        nodes_only: bool = False,
        on_denied: Callable[[str], None],
        on_failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._keyring, self._limit, self._nodes_only = keyring, limit, nodes_only
        self._on_denied, self._on_failed = on_denied, on_failed
        self._stopped = False
        self._logged_at = 0.0
        self._socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ENDPOINT)
        self._thread = threading.Thread(target=self._run, name="shardbus-zap", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the socket. From now on no peer is admitted."""
        self._stopped = True
        self._thread.join(POLL_MS / 1000 + 1.0)

    def _run(self) -> None:
        try:
            while not self._stopped:
                if self._socket.poll(POLL_MS):
                    self._answer(self._socket.recv_multipart(zmq.NOBLOCK))
        except zmq.ZMQError as error:
            if error.errno not in (zmq.ETERM, zmq.ENOTSOCK):
                self._failed()
        except Exception:
            self._failed()
        finally:
            self._socket.close(0)

    def _failed(self) -> None:
        log.exception("peers are not authenticated any more: every new connection is refused")
        self._on_failed()

    def _answer(self, parts: list[bytes]) -> None:
        head = parts[:2]
        request = parts[3] if len(parts) > 3 else b""
        try:
            user = self._user(parts)
        except Exception:
            frame_log.exception("a peer is refused: its key could not be checked")
            user = None
        if user is None:
            self._denied(parts)
            answer = [VERSION, request, b"400", b"the key is not known here", b"", b""]
        else:
            answer = [VERSION, request, b"200", b"OK", user.encode(), b""]
        self._socket.send_multipart([*head, *answer], zmq.NOBLOCK)

    def _user(self, parts: list[bytes]) -> str | None:
        """Return the name of the peer, None if it may not connect."""
        if len(parts) != PARTS:
            return None
        _, _, version, _, domain, address, _, mechanism, key = parts
        if version != VERSION or domain != ZAP_DOMAIN or mechanism != b"CURVE":
            return None
        if len(key) != KEY_BYTES:
            return None
        place = plain_address(address.decode("latin-1"))
        user = self._keyring.user_of(z85.encode(key), place, nodes_only=self._nodes_only)
        if user is not None:
            self._limit.authenticated(place, time.monotonic())
        return user

    def _denied(self, parts: list[bytes]) -> None:
        self._on_denied("unknown_key")
        now = time.monotonic()
        if now - self._logged_at >= LOG_EVERY_S or not self._logged_at:
            self._logged_at = now
            address = parts[5].decode("latin-1")[:64] if len(parts) == PARTS else "?"
            log.warning("refused a connection from %s: its key is not known here", address)
