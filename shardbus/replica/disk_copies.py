"""Disks of replicas that do not run: reading all that they have, and writing a new one.

Reading changes nothing, and goes on behind damage: each segment up to its first spoiled frame.
`findings` names each damage with its place. So rows of a spoiled disk are good for a merge, and
never for a vote.

A new disk is the only one of its ring (`replication.refounding`). While it is written, its
directory has a mark, so that a crash leaves no half of it in use.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from shardbus.errors import ConfigError
from shardbus.ids import Address
from shardbus.replica.disk import DIGITS, FAILED, FORMER, INCOMPLETE, LOCK, PREFIX, Disk
from shardbus.replica.turns import records_of
from shardbus.replication.log import (
    FRAME_BYTES,
    HEADER_BYTES,
    Segment,
    damage_of,
    read_segment,
)
from shardbus.replication.messages import Record
from shardbus.replication.moves import DiskRecord, PlaceRecord, RingDisk
from shardbus.replication.registers import Registers
from shardbus.replication.ring import ReplicaRing, RingMember
from shardbus.replication.values import PARTITIONS, length_of
from shardbus.wire.disk_frames import DiskState, LogTurn, decode_turn, encode_turn

TURN_ROWS, TURN_BYTES = 1000, 2**20
"""Rows of a frame, at most, and the bytes of their states after which it ends."""


class DiskCopy(msgspec.Struct):
    """The content of a disk's directory, or of a backup."""

    path: Path
    place: RingDisk = msgspec.field(default_factory=lambda: RingDisk(-1))
    state: DiskState = msgspec.field(default_factory=DiskState)
    findings: list[str] = msgspec.field(default_factory=list)
    """Each damage, with its place; empty if a start would take the whole disk."""
    segments: int = 0
    bytes: int = 0

    @property
    def registers(self) -> Registers:
        """The rows."""
        return self.place.registers

    @property
    def ring(self) -> ReplicaRing:
        """The newest ring that it has."""
        return max(self.place.ring, self.state.ring, key=lambda ring: ring.number)

    def take(self, segment: Segment, where: str) -> int:
        """Take the frames of a segment. Returns the highest compaction that they record."""
        compacted, place = 0, HEADER_BYTES
        for body in segment.bodies:
            try:
                turn = decode_turn(body)
                for record in turn.records:
                    self.place.replay(record)
                self.state = turn.state or self.state
                compacted = max(compacted, turn.compacted)
            except (msgspec.MsgspecError, ValueError, TypeError) as error:
                self.findings.append(f"{where}: the frame at byte {place} cannot be used: {error}")
            place += FRAME_BYTES + len(body)
        return compacted


def read_disk(path: Path) -> DiskCopy:
    """Read the disk of a replica that does not run.

    Raises:
        ConfigError: there is none, it cannot be read, or its replica runs.
    """
    if _is_incomplete(path):
        asides = sorted(str(aside) for aside in path.glob(f"{FORMER}*")) or ["the backup"]
        raise ConfigError(f"{str(path)!r}: {INCOMPLETE}", hint=f"from {', '.join(asides)}, into it")
    with _locked(path):
        try:
            return _read(path)
        except OSError as error:
            raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def _read(path: Path) -> DiskCopy:
    copy, compacted, segments = DiskCopy(path), 0, dict[int, Segment]()
    for name in sorted(path.glob(f"{PREFIX}{'[0-9]' * DIGITS}")):
        number = int(name.name.removeprefix(PREFIX))
        segment = read_segment(name.read_bytes())
        compacted = max(compacted, copy.take(segment, f"segment {number}"))
        copy.bytes += name.stat().st_size
        segments[number] = Segment(segment.header, (), segment.length, segment.end)
    if not segments:
        raise ConfigError(f"{str(path)!r} has no log of a replica")
    copy.segments = len(segments)
    header = next((each.header for each in segments.values() if each.header is not None), None)
    copy.place.identify(header.disk if header is not None else -1)
    if damage := damage_of(segments, compacted):
        copy.findings.insert(0, damage)
    if (path / FAILED).exists():
        copy.findings.append(f"it was given up: {(path / FAILED).read_text()[:200]}")
    return copy


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep the replica of this directory from a start meanwhile. A copy may have no lock."""
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ConfigError(
            f"a process has the replica in {str(path)!r}", hint="stop its node or `store serve`"
        ) from None
    finally:
        os.close(lock)


def has_log(path: Path) -> bool:
    """True if a directory has a log of a replica, whole or not."""
    return any(path.glob(f"{PREFIX}*")) and not _is_incomplete(path)


def _is_incomplete(path: Path) -> bool:
    try:
        return (path / FAILED).read_text() == INCOMPLETE
    except OSError:
        return False


def turns_of(registers: Registers) -> Iterator[LogTurn]:
    """Yield all rows, in turns of bounded length."""
    records, rows, weight = list[Record](), 0, 0
    for key, row in registers.rows.items():
        records += records_of(key, row)
        rows += 1
        weight += length_of(row.value)
        if rows >= TURN_ROWS or weight >= TURN_BYTES:
            yield LogTurn(records)
            records, rows, weight = [], 0, 0
    if records:
        yield LogTurn(records)


def write_alone(
    path: Path,
    limit: int,
    registers: Registers,
    me: Address,
    ring: Callable[[RingMember], ReplicaRing],
) -> tuple[ReplicaRing, Path | None]:
    """Write a new disk with these rows, alone in its ring, for the replica at `me`. `ring` makes
    the ring. Returns it, and the directory with the segments that were there before.

    Raises:
        ConfigError: the directory cannot be used, or another process has it.
    """
    disk = Disk(path, limit)
    disk.lock()
    try:
        aside = disk.begin_anew()
        alone = ring(RingMember(disk.id, address=str(me)))
        for turn in turns_of(registers):
            disk.write(encode_turn(turn))
        disk.write(encode_turn(LogTurn([_everywhere(alone)], DiskState(0, alone, True))))
        disk.completed()
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be written: {error.strerror}") from error
    finally:
        disk.close()
    return alone, aside


def _everywhere(ring: ReplicaRing) -> DiskRecord:
    """Return the place of a disk that has all rows of its store."""
    every = frozenset(range(PARTITIONS))
    return PlaceRecord(ring, every, every, every)
