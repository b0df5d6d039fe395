"""Commands in the wire form of Redis.

A script that saves 128 entities has 260 arguments. The client library copies what it has packed for
each argument that follows, and takes ten times as long as is needed here. So the connections of a
store pack long commands themselves, and leave short ones to the library, which knows the commands
whose names have several words.

Source: the Redis serialization protocol, arrays of bulk strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

Value = str | bytes | int
LONG = 16
"""Parts of a long command, at least. Those of several words have fewer."""


def packing(connection: type[Any]) -> type[Any]:
    """Return a class of connections that packs long commands here."""
    library = connection.pack_command

    def pack_command(self: Any, *command: Value) -> list[bytes]:
        return [packed(command)] if len(command) >= LONG else library(self, *command)

    return type(connection.__name__, (connection,), {"pack_command": pack_command})


def packed(command: Sequence[Value]) -> bytes:
    """Return a command as it is sent: the number of its parts, then length and bytes of each."""
    pieces = [b"*%d" % len(command)]
    for part in command:
        data = part if isinstance(part, bytes) else str(part).encode()
        pieces += (_head(len(data)), data)
    pieces.append(b"\r\n")
    return b"".join(pieces)


@lru_cache(maxsize=1024)
def _head(length: int) -> bytes:
    return b"\r\n$%d\r\n" % length
