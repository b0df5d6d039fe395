"""Recognizes the program that listens at an address, for a node that gets no answer from there.

The probe speaks as much of ZeroMQ's own protocol (ZMTP 3) as it takes to recognize the kind of
socket:

    this process                       a ZeroMQ socket
                                       sends its signature at once
    greeting, 64 bytes ──────────────> the rest of its own greeting, and READY, which names the kind
                                       of socket; one with keys ends the connection before that

Other servers are silent at first, or say something else. To a silent one the probe sends empty
lines, which an HTTP server answers with an error. The result of the probe is for people, and
nothing depends on it.

Source: ZMTP 3.1 (rfc.zeromq.org/spec/37); docs/how-to/operate.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from shardbus.transport.name_lookups import KnownName
from shardbus.transport.tcp_probe import open_probe

CONNECT_WITHIN_S, ANSWER_WITHIN_S = 2.0, 0.5
SIGNATURE = b"\xff" + 8 * b"\0" + b"\x7f"
GREETING = SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + 32 * b"\0"
KIND = b"Socket-Type"
LINES, BYTES_MAX = b"\r\n\r\n", 512

ROUTER, XPUB = "ROUTER", "XPUB"
"""The kinds of socket of a node: for messages, and for gossip."""
PORT_OF = {ROUTER: "a node's port of messages", XPUB: "a node's port of gossip"}

REFUSED = "connection refused: no process listens there"
NO_ANSWER = "no answer to an attempt to connect: is the address right, or a firewall in between?"
HTTP = "an HTTP server answers there"
FOREIGN = "a process listens there that does not speak ZeroMQ"
KEYED = "a ZeroMQ socket answers there that wants keys, or is no node's"


async def who_listens(host: KnownName, port: int, kind: str) -> str:
    """Describe the listener at an address where a socket of this kind is expected; empty if one
    is."""
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            connection = await open_probe(host, port)
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return NO_ANSWER
    except OSError as error:
        return error.strerror or str(error)
    with connection:
        return judge(await _answer(connection), kind)


async def _answer(connection: socket.socket) -> bytes:
    """Return the bytes of the other side: a greeting comes without a request, READY after another
    greeting, an error of HTTP after a line."""
    got = await _received(connection, b"")
    request = GREETING if got.startswith(SIGNATURE[:1]) else LINES
    try:
        await asyncio.get_running_loop().sock_sendall(connection, b"" if _done(got) else request)
    except OSError:
        return got
    return await _received(connection, got)


async def _received(connection: socket.socket, got: bytes) -> bytes:
    """Return all bytes received until nothing comes for a while, with those before."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, TimeoutError):
        while not _done(got):
            async with asyncio.timeout(ANSWER_WITHIN_S):
                part = await loop.sock_recv(connection, BYTES_MAX)
            if not part:
                break
            got += part
    return got


def _done(got: bytes) -> bool:
    return len(got) >= BYTES_MAX or got.startswith(b"HTTP/") or _kind_in(got) is not None


def judge(answer: bytes, kind: str) -> str:
    """Describe the sender of this answer; empty if it is a socket of this kind."""
    if answer.startswith(b"HTTP/"):
        return HTTP
    if not answer.startswith(SIGNATURE[:1]):
        return FOREIGN
    actual = _kind_in(answer)
    if actual is None:
        return KEYED
    if actual == kind:
        return ""
    there = PORT_OF.get(actual, "another ZeroMQ socket")
    return f"{there} answers there, not {PORT_OF[kind]}"


def _kind_in(answer: bytes) -> str | None:
    """Return the kind of socket that a READY names."""
    at = answer.find(KIND, len(GREETING))
    if at < 0:
        return None
    length = int.from_bytes(answer[at + len(KIND) : at + len(KIND) + 4], "big")
    value = answer[at + len(KIND) + 4 :][:length]
    return value.decode("ascii", "replace") if len(value) == length else None
