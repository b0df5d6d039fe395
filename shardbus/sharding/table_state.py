"""The homes of a shard table as bytes, for TableState.

A thousand homes take 28 kB as MessagePack, mostly for the same few node ids and for names that are
numbers in order. Here they are columns, sorted by shard, and zlib finds repetitions in each:

    head        kind of the names, number of homes, the lowest fence
    names       numbers: each less the one before; other names: joined by a zero byte
    places      of each home's node in the list of nodes
    fences      each less the lowest

A column of numbers has one byte for their width, then all their highest bytes, then the next ones.

`unpack_homes` looks before it allocates: it inflates a bounded number of bytes, and takes no more
homes than a type may have shards.

Source: S3.33, S3.45; docs/partitions.md.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate

from shardbus.bounds import FENCE_MAX, ID_CHARACTERS_MAX, SHARDS_MAX
from shardbus.errors import RemoteProtocolError
from shardbus.ids import NodeId
from shardbus.inflate import inflate
from shardbus.sharding.messages import TABLE_BYTES_MAX, Home

NUMBERED, NAMED = 0, 1
HEAD = struct.Struct(">BIQ")
NUMBER_DIGITS = 9
WIDTH_MAX = 8


def pack_homes(homes: Iterable[Home], nodes: Sequence[NodeId]) -> bytes:
    """Pack homes, whose nodes are among `nodes`."""
    places = {node: place for place, node in enumerate(nodes)}
    rows = list(homes)
    floor = min((home.fence for home in rows), default=0)
    if all(_is_number(home.shard) for home in rows):
        rows.sort(key=lambda home: int(home.shard))
        numbers = [int(home.shard) for home in rows]
        before = [0, *numbers]
        names = _pack([n - b for n, b in zip(numbers, before, strict=False)])
        kind = NUMBERED
    else:
        rows.sort()
        names, kind = "\0".join(home.shard for home in rows).encode() + b"\0", NAMED
    columns = (
        HEAD.pack(kind, len(rows), floor),
        names,
        _pack([places[home.node] for home in rows]),
        _pack([home.fence - floor for home in rows]),
    )
    return zlib.compress(b"".join(columns), 6)


def unpack_homes(packed: bytes, nodes: Sequence[NodeId]) -> tuple[Home, ...]:
    """Return the homes that were packed with these nodes.

    Raises:
        RemoteProtocolError: the bytes are not packed homes, or exceed a bound.
    """
    body = inflate(packed, TABLE_BYTES_MAX, "shard table")
    try:
        kind, count, floor = HEAD.unpack_from(body)
        if count > SHARDS_MAX or kind not in (NUMBERED, NAMED):
            raise RemoteProtocolError(f"a table of {count} homes of kind {kind}")
        if kind == NUMBERED:
            steps, at = _unpack(body, HEAD.size, count)
            names = [str(number) for number in accumulate(steps)]
        else:
            names, at = _names(body, HEAD.size, count)
        places, at = _unpack(body, at, count)
        fences, at = _unpack(body, at, count)
        homes = tuple(
            Home(name, nodes[place], floor + fence)
            for name, place, fence in zip(names, places, fences, strict=True)
        )
    except (struct.error, IndexError, ValueError) as e:
        raise RemoteProtocolError(f"a malformed table: {e}") from None
    if at != len(body) or len(set(names)) != count:
        raise RemoteProtocolError("a malformed table: it names a shard twice, or is too long")
    if any(home.fence > FENCE_MAX or len(home.shard) > ID_CHARACTERS_MAX for home in homes):
        raise RemoteProtocolError("a malformed table: a fence or a name is above its bound")
    return homes


def _is_number(shard: str) -> bool:
    short = len(shard) <= NUMBER_DIGITS and shard.isascii() and shard.isdigit()
    return short and (shard == "0" or shard[0] != "0")


def _pack(values: Sequence[int]) -> bytes:
    width = max(1, (max(values, default=0).bit_length() + 7) // 8)
    rows = b"".join(value.to_bytes(width, "big") for value in values)
    return bytes((width,)) + b"".join(rows[byte::width] for byte in range(width))


def _unpack(body: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Return the numbers of a column, and where it ends."""
    width, first = body[at], at + 1
    end = first + width * count
    if not 0 < width <= WIDTH_MAX or end > len(body):
        raise ValueError(f"a column of {count} numbers of {width} bytes")
    rows = bytearray(width * count)
    for byte in range(width):
        rows[byte::width] = body[first + byte * count : first + (byte + 1) * count]
    read = int.from_bytes
    return [read(rows[n : n + width], "big") for n in range(0, len(rows), width)], end


def _names(body: bytes, at: int, count: int) -> tuple[list[str], int]:
    names = body[at:].split(b"\0", count)[:count]
    if len(names) < count:
        raise ValueError(f"{len(names)} names of {count}")
    return [name.decode() for name in names], at + sum(len(name) + 1 for name in names)
