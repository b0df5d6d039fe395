"""Commands in the wire form of Redis.

A script that saves 128 entities has 390 arguments. The client library copies its packed bytes for
each argument that follows, and takes ten times as long as is needed here. So a link packs its
commands itself (`redis_client`).

Source: the Redis serialization protocol, arrays of bulk strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

Value = str | bytes | int


def packed(command: Sequence[Value]) -> bytes:
    """Return a command as it is sent: the number of its parts, then length and bytes of each. Its
    name is one word."""
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
    pieces = [b""] * (2 * len(parts))
    pieces[::2], pieces[1::2] = map(_head, map(len, parts)), parts
    return b"".join((b"*%d" % len(parts), *pieces, b"\r\n"))


@lru_cache(maxsize=1024)
def _head(length: int) -> bytes:
    return b"\r\n$%d\r\n" % length
