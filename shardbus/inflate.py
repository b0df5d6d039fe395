"""Inflates the compressed bytes of another process, up to a bound: a few bytes may stand for
gigabytes.

Source: S1.46; docs/security.md.
"""

from __future__ import annotations

import zlib

from shardbus.errors import RemoteProtocolError


def inflate(data: bytes, most: int, what: str) -> bytes:
    """Return the inflated bytes, at most `most` of them. `what` names them in the error.

    Raises:
        RemoteProtocolError: the bytes are not compressed by zlib, are cut off or too many, or more
            follows them.
    """
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(data, most)
    except zlib.error as error:
        raise RemoteProtocolError(f"malformed {what}: {error}") from None
    if not inflater.eof or inflater.unused_data:
        raise RemoteProtocolError(f"{what} over {most} bytes, or cut off")
    return body
