"""Lines of a replica's log, and frames between disks: written bytes are read back."""

from __future__ import annotations

import msgspec
import pytest

from shardbus.replication.disk_life import DiskKnown
from shardbus.replication.messages import Ballot, Row
from shardbus.replication.moves import (
    BucketContent,
    DiskAnswer,
    DiskRequest,
    MergedRecord,
    PartitionDigests,
    PlaceRecord,
    ShowBucket,
    ShowDigests,
)
from shardbus.replication.ring import (
    NotVoting,
    ReplicaRing,
    RingIs,
    RingMember,
    RingWanted,
    first_ring,
    next_ring,
)
from shardbus.replication.values import ListValue, StateValue, list_key, state_key
from shardbus.wire import disk_frames
from shardbus.wire.disk_frames import (
    DiskState,
    LogTurn,
    decode_disk_answer,
    decode_disk_request,
    decode_turn,
    encode_disk_answer,
    encode_disk_request,
    encode_turn,
)

FIRST = first_ring((RingMember(5), RingMember(2**63 - 1, "rack 1", "10.0.0.1:7357")), 2)
RING = next_ring(FIRST, (RingMember(5), RingMember(6)))
B, C = Ballot(2**62, 3, 2**63 - 1, 9), Ballot(2**62, 4, 1, 1)
ROWS = (
    (state_key("counter", "a"), Row(C, B, StateValue(7, b"x" * 100)), 0.0),
    (state_key("counter", "b"), Row(B, B, StateValue(8, b"y" * 100)), 0.0),
    (list_key("counter", "7"), Row(B, B, ListValue(4, frozenset({"a"}))), 1.5),
)


def test_places_come_back_before_what_was_merged_in_them() -> None:
    place = PlaceRecord(RING, frozenset(range(256)), frozenset(), frozenset({3, 255}))
    merged = MergedRecord(2, 17)
    state = DiskState(3, RING, True, 12, (DiskKnown(6, 4, 99),))
    read = decode_turn(encode_turn(LogTurn([merged, place], state)))
    assert read == LogTurn([place, merged], state)


def test_a_turn_of_the_first_version_is_read() -> None:
    old = msgspec.msgpack.encode([[], [], [], [7, [1, 1, [[5, "zone"]], []], True], 3])
    turn = decode_turn(old)
    assert turn.compacted == 3
    assert turn.state == DiskState(7, ReplicaRing(1, 1, (RingMember(5, "zone"),)), True)


@pytest.mark.parametrize("request_", [ShowDigests(3, 255), ShowBucket(3, 4095)])
def test_requests_come_back(request_: DiskRequest) -> None:
    assert decode_disk_request(encode_disk_request(request_)) == request_


@pytest.mark.parametrize(
    "answer",
    [
        PartitionDigests(5, 3, 255, True, tuple(2**64 - n for n in range(1, 17))),
        BucketContent(5, 3, 4095, ROWS),
        BucketContent(5, 3, 4095, ()),
        RingIs(RING),
        RingWanted(2),
        NotVoting(),
    ],
)
def test_answers_come_back(answer: DiskAnswer) -> None:
    [body] = encode_disk_answer(2**63 - 1, answer)
    assert decode_disk_answer(body) == (2**63 - 1, answer)


def test_a_large_bucket_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_frames, "PART_BYTES", 50)
    parts = [
        decode_disk_answer(body)[1] for body in encode_disk_answer(5, BucketContent(5, 3, 1, ROWS))
    ]
    contents = [part for part in parts if isinstance(part, BucketContent)]
    assert [part.complete for part in contents] == [False, False, True]
    assert tuple(row for part in contents for row in part.rows) == ROWS


@pytest.mark.parametrize("body", [b"\xc0", b"\x91\xa1x", b"\x92\x01\xa1x", b"\x92\xa1d\xa1x"])
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_disk_request(body)
    with pytest.raises(msgspec.MsgspecError):
        decode_disk_answer(body)
