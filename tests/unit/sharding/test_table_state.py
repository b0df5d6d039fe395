"""Homes survive packing, a table of a thousand shards is small, and bytes that are no table are
refused without harm."""

from __future__ import annotations

import zlib
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.bounds import FENCE_MAX, SHARDS_MAX
from shardbus.errors import RemoteProtocolError
from shardbus.ids import NodeId
from shardbus.sharding.messages import Home, PartitionChange, TableState
from shardbus.sharding.table_state import HEAD, NAMED, NUMBERED, pack_homes, unpack_homes

NODES = tuple(NodeId(f"10.0.0.{n}", 7355, n) for n in range(1, 6))
numbers = st.integers(0, 10**9 + 9).map(str)
names = st.one_of(
    numbers,
    st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), min_size=1, max_size=9),
)
homes = st.dictionaries(
    names, st.tuples(st.sampled_from(NODES), st.integers(1, FENCE_MAX)), max_size=40
).map(lambda rows: [Home(shard, node, fence) for shard, (node, fence) in rows.items()])


@given(homes)
def test_homes_survive_packing(rows: list[Home]) -> None:
    assert sorted(unpack_homes(pack_homes(rows, NODES), NODES)) == sorted(rows)


@pytest.mark.parametrize("row", ["", "~2"])
def test_rows_of_instances_and_numbers_survive(row: str) -> None:
    rows = [Home(f"{n}{row}", NODES[n % 5], 7 + n) for n in range(100)]
    assert sorted(unpack_homes(pack_homes(rows, NODES), NODES)) == sorted(rows)


@pytest.mark.parametrize("spread", [1, 4_000], ids=["fresh", "after many moves"])
def test_S3_33_a_table_of_1000_shards_has_at_most_3_kb(spread: int) -> None:
    """Even if the fences are in no order, after four thousand moves."""
    epoch = 7 << 32
    fences = [epoch + n * 7919 % 1000 * spread for n in range(1000)]
    rows = [Home(str(n), NODES[n * 31 % 5], fences[n]) for n in range(1000)]
    changes = tuple(PartitionChange(str(n), NODES[0], NODES[1], "awaiting") for n in range(5))
    state = TableState(7, 4_000, NODES, pack_homes(rows, NODES), changes)
    assert len(msgspec.msgpack.encode(state)) <= 3 * 1024
    assert len(msgspec.msgpack.encode(rows)) > 25_000


def packed(body: bytes) -> bytes:
    return zlib.compress(body)


ONE = zlib.decompress(pack_homes([Home("3", NODES[0], 9)], NODES))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 40,
        packed(b""),
        packed(ONE[:-1]),
        packed(ONE + b"\x00"),
        pack_homes([Home("3", NODES[0], 9)], NODES) + b"x",
        pack_homes([Home("3", NODES[0], 9)], NODES)[:-3],
        packed(HEAD.pack(2, 0, 0) + ONE[HEAD.size :]),
        packed(HEAD.pack(NUMBERED, SHARDS_MAX + 1, 0) + bytes(4 * SHARDS_MAX)),
        packed(HEAD.pack(NUMBERED, 2**32 - 1, 0) + bytes(100)),
        packed(HEAD.pack(NUMBERED, 1, 0) + b"\x09" + bytes(9) + b"\x01\x00\x01\x00"),
        packed(HEAD.pack(NUMBERED, 1, 0) + b"\x00" + b"\x01\x00\x01\x00"),
        packed(HEAD.pack(NUMBERED, 1, 0) + b"\x01\x00" + b"\x01\x05" + b"\x01\x00"),
        packed(HEAD.pack(NUMBERED, 1, 2**63) + b"\x01\x00\x01\x00\x01\x00"),
        packed(HEAD.pack(NUMBERED, 2, 0) + b"\x01\x03\x00\x01\x00\x00\x01\x00\x00"),
        packed(HEAD.pack(NAMED, 2, 0) + b"a\x00"),
        packed(HEAD.pack(NAMED, 1, 0) + b"\xff\x00\x01\x00\x01\x00"),
        packed(HEAD.pack(NAMED, 1, 0) + b"a" * 257 + b"\x00\x01\x00\x01\x00"),
    ],
)
def test_bytes_that_are_no_table_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack_homes(data, NODES)


def test_a_table_that_inflates_beyond_its_bound_is_not_inflated() -> None:
    with pytest.raises(RemoteProtocolError, match="over 8388608 bytes"):
        unpack_homes(packed(bytes(9 * 2**20)), NODES)


@given(st.binary(max_size=60), st.integers(0, 3), st.integers(0, 200))
def test_a_broken_table_is_refused_and_nothing_else(noise: bytes, kind: int, count: int) -> None:
    with suppress(RemoteProtocolError):
        unpack_homes(packed(HEAD.pack(kind, count, 5) + noise), NODES)
