"""The lines of a replica's log, and the frames between the disks of a store, as bytes.

A frame of the log is one turn: values, changes, promises, and the facts of the disk. Requests and
answers between disks (DIGESTS and ROWS) are lists that begin with a letter for the kind. The rows
of a bucket come in parts of `PART_BYTES`, so that a bucket of large states passes.

Source: docs/architecture.md; S3.85.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, assert_never

import msgspec

from shardbus.replication import messages as msg
from shardbus.replication import moves
from shardbus.replication.disk_life import DiskKnown
from shardbus.replication.ring import NO_RING, NotVoting, ReplicaRing, RingIs, RingWanted
from shardbus.replication.values import length_of
from shardbus.wire.replica_frames import change_of, value_of

PART_BYTES = 2 * 2**20
"""Bytes of states after which a further part of a bucket is begun."""

_pack = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder().decode

# -- the log


class DiskState(msgspec.Struct, array_like=True, frozen=True):
    """The facts of a disk for its store, as its log has them. `counter` and `disks`: as in
    `disk_life`; logs of former versions have none."""

    starts: int = 0
    ring: ReplicaRing = NO_RING
    founded: bool = False
    counter: int = 0
    disks: tuple[DiskKnown, ...] = ()


class _Turn(msgspec.Struct, array_like=True):
    values: list[tuple[str, msg.Ballot, Any]]
    changes: list[tuple[str, msg.Ballot, msg.Ballot, Any]] = []
    promises: list[msg.PromiseRecord] = []
    state: DiskState | None = None
    compacted: int = 0
    places: list[moves.PlaceRecord] = []
    merged: list[moves.MergedRecord] = []


class LogTurn(NamedTuple):
    """The records of one turn of a replica. `compacted`: every row was written anew in this segment
    and later ones."""

    records: Sequence[moves.DiskRecord]
    state: DiskState | None = None
    compacted: int = 0


_read_turn = msgspec.msgpack.Decoder(_Turn).decode


def encode_turn(turn: LogTurn) -> bytes:
    """Return the body of a frame of the log."""
    values: list[Any] = [each for each in turn.records if type(each) is msg.ValueRecord]
    out = _Turn(values, [], [], turn.state, turn.compacted, [], [])
    for record in turn.records if len(values) < len(turn.records) else ():
        match record:
            case msg.ValueRecord():
                pass
            case msg.PromiseRecord():
                out.promises.append(record)
            case msg.ChangeRecord():
                out.changes.append(record)
            case moves.PlaceRecord():
                out.places.append(record)
            case moves.MergedRecord():
                out.merged.append(record)
            case _:
                assert_never(record)
    return _pack(out)


def decode_turn(body: bytes | memoryview) -> LogTurn:
    """Return the records of a turn. Values stand before the changes of them, and places before what
    was merged in them.

    Raises:
        msgspec.MsgspecError: the log is of a version that this one does not read.
    """
    turn = _read_turn(body)
    records: list[msg.Record] = [
        msg.ValueRecord(key, ballot, value_of(key, raw)) for key, ballot, raw in turn.values
    ]
    records += [
        msg.ChangeRecord(key, ballot, base, change_of(key, raw))
        for key, ballot, base, raw in turn.changes
    ]
    records += turn.promises
    return LogTurn([*records, *turn.places, *turn.merged], turn.state, turn.compacted)


# -- between disks

DIGESTS, BUCKET, RING_IS, RING_WANTED, NOT_VOTING = "d", "b", "r", "w", "n"


def encode_disk_request(request: moves.DiskRequest) -> bytes:
    """Return the body of a DIGESTS."""
    kind = DIGESTS if isinstance(request, moves.ShowDigests) else BUCKET
    return _pack((kind, *request))


def decode_disk_request(body: bytes) -> moves.DiskRequest:
    """Return the request.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    match _read(body):
        case [str(kind), *fields] if kind == DIGESTS:
            return msgspec.convert(fields, moves.ShowDigests)
        case [str(kind), *fields] if kind == BUCKET:
            return msgspec.convert(fields, moves.ShowBucket)
        case _:
            raise msgspec.ValidationError("no request of a disk")


def encode_disk_answer(disk: int, answer: moves.DiskAnswer) -> Iterator[bytes]:
    """Yield the bodies of ROWS: one, or several parts of a bucket. `disk`: the one that answers."""
    match answer:
        case moves.PartitionDigests():
            yield _pack((disk, DIGESTS, *answer))
        case moves.BucketContent():
            for part in parts_of(answer):
                yield _pack((disk, BUCKET, *part))
        case RingIs(ring):
            yield _pack((disk, RING_IS, ring))
        case RingWanted(number):
            yield _pack((disk, RING_WANTED, number))
        case NotVoting():
            yield _pack((disk, NOT_VOTING))
        case _:
            assert_never(answer)


def parts_of(content: moves.BucketContent) -> Iterator[moves.BucketContent]:
    """Yield the rows of a bucket in parts, of which only the last is complete."""
    begin = weight = 0
    for place, (_, row, _) in enumerate(content.rows, 1):
        weight += length_of(row.value)
        if weight > PART_BYTES and place < len(content.rows):
            yield content._replace(rows=content.rows[begin:place], complete=False)
            begin, weight = place, 0
    yield content._replace(rows=content.rows[begin:])


class _RawContent(NamedTuple):
    disk: int
    ring: int
    bucket: int
    rows: list[tuple[str, tuple[msg.Ballot, msg.Ballot, Any], float]]
    complete: bool


def decode_disk_answer(body: bytes) -> tuple[int, moves.DiskAnswer]:
    """Return the disk that answers, and its answer.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    match _read(body):
        case [int(disk), str(kind), *fields] if kind == DIGESTS:
            return disk, msgspec.convert(fields, moves.PartitionDigests)
        case [int(disk), str(kind), *fields] if kind == BUCKET:
            raw = msgspec.convert(fields, _RawContent)
            rows = tuple(
                (key, msg.Row(promise, ballot, value_of(key, value)), age)
                for key, (promise, ballot, value), age in raw.rows
            )
            return disk, moves.BucketContent(raw.disk, raw.ring, raw.bucket, rows, raw.complete)
        case [int(disk), str(kind), ring] if kind == RING_IS:
            return disk, RingIs(msgspec.convert(ring, ReplicaRing))
        case [int(disk), str(kind), int(number)] if kind == RING_WANTED:
            return disk, RingWanted(number)
        case [int(disk), str(kind)] if kind == NOT_VOTING:
            return disk, NotVoting()
        case _:
            raise msgspec.ValidationError("no answer of a disk")
