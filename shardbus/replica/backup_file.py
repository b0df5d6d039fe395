"""A backup of a store: the rows of all its keys in one file, as a log of one segment.

The rows of a majority of the disks are merged, key by key. So each row has every save that was
acknowledged before the backup began, and may have one of its time. The last frame has the ring, and
with it the backup is whole: a file that was cut short has none, and is refused.

The file is written beside its name, and gets the name once it is synced. It has all states in the
clear, and only its owner may read it.

Source: docs/how-to/back-up.md.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from shardbus.errors import ConfigError
from shardbus.quantities import counted
from shardbus.replica.disk import DISK_BITS
from shardbus.replica.disk_copies import DiskCopy, turns_of
from shardbus.replication.log import (
    MARKER_BYTES,
    SegmentEnd,
    SegmentHeader,
    frame,
    read_segment,
)
from shardbus.replication.registers import Registers
from shardbus.replication.ring import ReplicaRing
from shardbus.wire.disk_frames import DiskState, LogTurn, encode_turn

PART = ".part"
NUMBER = 0
"""The number in the header, which no segment of a disk has."""


class BackupWriter:
    """Writes a backup to `path`, which must not be there yet. A context manager: the file appears
    with `complete`.

    Raises:
        ConfigError: the file is there already, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._part = path.with_name(path.name + PART)
        self._marker = secrets.token_bytes(MARKER_BYTES)

    def __enter__(self) -> BackupWriter:
        if self.path.exists():
            raise ConfigError(f"{str(self.path)!r} is there already", hint="name another file")
        try:
            descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            raise self._unwritable(error) from error
        self._file = os.fdopen(descriptor, "wb")
        self._put(SegmentHeader(NUMBER, secrets.randbits(DISK_BITS), self._marker).encode())
        return self

    def add(self, registers: Registers) -> None:
        """Write the rows of some keys."""
        self.rows += len(registers.rows)
        for turn in turns_of(registers):
            self._turn(turn)

    def complete(self, ring: ReplicaRing) -> None:
        """All rows are written: give the file its name."""
        self._turn(LogTurn([], DiskState(0, ring, True)))
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.rename(self.path)
            _sync(self.path.parent)
        except OSError as error:
            raise self._unwritable(error) from error

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)

    def _turn(self, turn: LogTurn) -> None:
        body = encode_turn(turn)
        self._put(frame(self._marker, body), body)

    def _put(self, *parts: bytes) -> None:
        try:
            self._file.writelines(parts)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(f"{str(self.path)!r} cannot be written: {error.strerror}")


def read_backup(path: Path) -> DiskCopy:
    """Read a backup.

    Raises:
        ConfigError: there is none, or it is damaged or cut short; the text has the place.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    segment = read_segment(data)
    if segment.header is None or segment.header.number != NUMBER:
        raise ConfigError(f"{str(path)!r} is no backup")
    copy = DiskCopy(path, segments=1, bytes=len(data))
    copy.take(segment, str(path))
    if segment.end is not SegmentEnd.WHOLE:
        copy.findings.append(
            f"it is damaged after {segment.length} of {counted(len(data), 'byte')}"
        )
    if not copy.state.founded:
        copy.findings.append("its end is missing")
    if copy.findings:
        raise ConfigError(f"{str(path)!r} cannot be used: {'; '.join(copy.findings)}")
    return copy


def _sync(folder: Path) -> None:
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
