"""The files of a replica: one log in one directory, locked by the process that writes it.

    PATH/lock               held while the process runs
    PATH/log-0000000001     a segment (`shardbus.replication.log`)
    PATH/failed             the disk is given up, with the reason: it may not be used any more
    PATH/damaged-ID/        the segments of the last disk that could not be used
    PATH/former-ID/         the segments of a disk whose rows an operator has founded the store from

`open` reads all segments and hands out their bodies, the oldest first. If the log is damaged, its
segments are put aside, and the disk has a new id: for the other replicas it is a new one, without
rows. `write` appends one frame and syncs it; it is called in a thread, one call at a time.

After an error of `write` the object is of no use any more. Nothing of that turn was acknowledged,
and a failed sync leaves a mark, because a later read may return pages that never reached the disk.

Source: docs/architecture.md; S2.32, S3.85.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.quantities import counted
from shardbus.replication.log import (
    HEADER_BYTES,
    MARKER_BYTES,
    LogPlan,
    Segment,
    SegmentHeader,
    damage_of,
    frame,
    read_segment,
)

log = GuardedLog("shardbus.store")

DISK_BITS = 63
PREFIX, DIGITS = "log-", 10
FAILED, LOCK, DAMAGED, FORMER = "failed", "lock", "damaged-", "former-"
SYNC_FAILED = "a sync has failed"
INCOMPLETE = "the founding of a store anew was cut short: repeat it"
MARK_CHARACTERS = 500
Read = Callable[[memoryview], int]
"""Takes the body of a frame. Returns the number of the segment before which a compaction says that
segments are gone, 0 if the body does not say so."""


class ReplicaDisk(Protocol):
    """The disk of a replica: `Disk`, or `memory_disk.MemoryDisk`, which keeps nothing."""

    path: Path
    plan: LogPlan
    id: int
    damage: str

    def open(self, read: Read, reset: Callable[[], None]) -> None: ...

    def write(self, body: bytes) -> None: ...

    def begin_compaction(self) -> int: ...

    def end_compaction(self) -> None: ...

    def check(self, sizes: Mapping[int, int]) -> list[str]: ...

    def give_up(self, why: str) -> None: ...

    def close(self) -> None: ...


class Disk:
    """The log in the directory `path`. Rows are written anew at `limit` bytes."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.plan = path, LogPlan(limit)
        self.id = -1
        """A random number of `DISK_BITS`, for the life of the log; -1 before `open`."""
        self.is_new = True
        """True if there was no log, or none that can be used."""
        self.damage = ""
        """Why the former log cannot be used; empty if it can, or there was none."""
        self.dropped = 0
        """Bytes of a torn tail."""
        self._lock = -1
        self._file = -1
        self._marker = b""

    # ---- start and end

    def open(self, read: Read, reset: Callable[[], None]) -> None:
        """Lock the directory and read the log. If the log is damaged, `reset` is called: the
        records that `read` has taken do not count.

        Raises:
            ConfigError: the directory cannot be used, or another process has it.
        """
        self.lock()
        self._read(read)
        if self.damage:
            log.error("the replica's disk in %s cannot be used: %s", self.path, self.damage)
            for old in self.path.glob(f"{DAMAGED}*"):
                shutil.rmtree(old, ignore_errors=True)
            self._put_aside(DAMAGED)
            reset()
        if self.id < 0:
            self.id = secrets.randbits(DISK_BITS)

    def lock(self) -> None:
        """Make the directory, and keep other processes from it.

        Raises:
            ConfigError: as `open`.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ConfigError(
                f"store.path: another process has the replica in {str(self.path)!r}",
                hint="end it, or give this replica a directory of its own",
            ) from None
        except OSError as error:
            raise ConfigError(f"store.path: {str(self.path)!r}: {error.strerror}") from error

    def begin_anew(self) -> Path | None:
        """Begin a log under a new id, in a locked directory. It counts from `completed` on: a start
        before that finds a mark, and puts the log aside. Returns the directory with the former
        segments, None if there were none."""
        aside = self._put_aside(FORMER) if self._numbers() else None
        self.give_up(INCOMPLETE)
        self.id = secrets.randbits(DISK_BITS)
        return aside

    def completed(self) -> None:
        """The log that was begun anew is whole, and counts."""
        (self.path / FAILED).unlink()
        self._sync_directory()

    def _read(self, read: Read) -> None:
        compacted, segments = 0, dict[int, Segment]()
        for number in self._numbers():
            segment = read_segment(self._name(number).read_bytes())
            for body in segment.bodies:
                compacted = max(compacted, read(body))
            segments[number] = Segment(segment.header, (), segment.length, segment.end)
        self.damage = self._mark() or damage_of(segments, compacted)
        if not self.damage:
            self._resume(segments)

    def _mark(self) -> str:
        """Return why the disk was given up, empty if it was not."""
        try:
            return (self.path / FAILED).read_text()[:MARK_CHARACTERS] or SYNC_FAILED
        except FileNotFoundError:
            return ""

    def give_up(self, why: str) -> None:
        """Mark the disk, so that the next start puts its segments aside, and begins a new one.

        Raises:
            OSError: the mark cannot be written.
        """
        (self.path / FAILED).write_text(why)
        self._sync_directory()

    def _resume(self, segments: dict[int, Segment]) -> None:
        """Go on behind the last whole frame."""
        for number, segment in segments.items():
            name = self._name(number)
            size = name.stat().st_size
            self.dropped += size - segment.length
            if segment.header is None:
                name.unlink()
                continue
            if size > segment.length:
                os.truncate(name, segment.length)
            self.id, self.is_new = segment.header.disk, False
            self._marker = segment.header.marker
            self.plan.sizes[number] = segment.length
        if self.plan.current:
            self._file = os.open(self._name(self.plan.current), os.O_WRONLY | os.O_APPEND)
            os.fsync(self._file)
        self._sync_directory()

    def _put_aside(self, prefix: str) -> Path:
        aside = self.path / f"{prefix}{secrets.token_hex(4)}"
        aside.mkdir()
        for number in self._numbers():
            name = self._name(number)
            name.rename(aside / name.name)
        (self.path / FAILED).unlink(missing_ok=True)
        self._sync_directory()
        return aside

    def close(self) -> None:
        """Close the files, and free the directory."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    # ---- turns

    def write(self, body: bytes) -> None:
        """Append one frame, and sync it.

        Raises:
            OSError: it is not known whether the frame is there. The disk cannot be used any more.
        """
        if self.plan.begins_segment:
            self._begin(self.plan.opened())
        data = memoryview(frame(self._marker, body) + body)
        while data:
            data = data[os.write(self._file, data) :]
        self._sync()
        self.plan.wrote(len(body))
        with contextlib.suppress(OSError):
            free = os.statvfs(self.path)
            self.plan.room = free.f_bavail * free.f_frsize

    def begin_compaction(self) -> int:
        """Begin the segment for rows that are written anew. Returns its number."""
        number = self.plan.begin_compaction()
        self._begin(number)
        return number

    def end_compaction(self) -> None:
        """Remove the segments whose rows were written anew, the oldest first."""
        for number in self.plan.compacted():
            self._name(number).unlink(missing_ok=True)
        self._sync_directory()

    def _begin(self, number: int) -> None:
        """Make a segment. Its header is synced before its first frame is written."""
        if self._file >= 0:
            os.close(self._file)
        self._marker = secrets.token_bytes(MARKER_BYTES)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(self._name(number), flags, 0o600)
        os.write(self._file, SegmentHeader(number, self.id, self._marker).encode())
        self._sync()
        self._sync_directory()

    def _sync(self) -> None:
        try:
            os.fdatasync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                (self.path / FAILED).touch()
                self._sync_directory()
            raise

    # ---- checking

    def check(self, sizes: Mapping[int, int]) -> list[str]:
        """Read segments as a start would. Returns a text for each spoiled segment. Runs in a thread
        of its own, beside `write`. `sizes`: the synced bytes of each segment; one that a compaction
        removes meanwhile is left out."""
        spoiled = []
        for number, size in sorted(sizes.items()):
            if size <= HEADER_BYTES:
                continue
            try:
                with self._name(number).open("rb") as file:
                    segment = read_segment(file.read(size))
            except FileNotFoundError:
                if number in self.plan.sizes:
                    spoiled.append(f"segment {number} is missing")
                continue
            except OSError as error:
                spoiled.append(f"segment {number} cannot be read: {error.strerror}")
                continue
            if segment.length < size:
                after = counted(segment.length, "byte")
                spoiled.append(f"segment {number} is damaged after {after}")
        return spoiled

    # ---- names

    def _numbers(self) -> list[int]:
        ends = (name.name.removeprefix(PREFIX) for name in self.path.glob(f"{PREFIX}*"))
        return sorted(int(end) for end in ends if end.isdigit())

    def _name(self, number: int) -> Path:
        return self.path / f"{PREFIX}{number:0{DIGITS}}"

    def _sync_directory(self) -> None:
        directory = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
