"""A disk that keeps nothing: the rows of its replica are in memory alone.

Each start has a new id, as after the loss of a disk. So a replica that starts again is blank: it
comes into the next ring in place of its former disk, and votes once it has the rows of a majority.
When a majority ends at a time, the rows are lost. When all end, the next start founds a new store.

Source: docs/how-to/keep-state.md; S2.32.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from shardbus.replica.disk import DISK_BITS, Read
from shardbus.replication.log import LogPlan


class MemoryDisk:
    """A `Disk` that forgets each write."""

    def __init__(self) -> None:
        self.path, self.plan = Path("memory"), LogPlan(sys.maxsize)
        self.id = -1
        self.damage = ""

    def open(self, read: Read, reset: Callable[[], None]) -> None:
        """Draw the id."""
        self.id = secrets.randbits(DISK_BITS)

    def write(self, body: bytes) -> None:
        """Keep nothing."""

    def begin_compaction(self) -> int:
        """There is no log, so none is ever at its limit."""
        raise AssertionError("a disk in memory has no log")

    def end_compaction(self) -> None:
        """As `begin_compaction`."""
        raise AssertionError("a disk in memory has no log")

    def check(self, sizes: Mapping[int, int]) -> list[str]:
        """Nothing can be spoiled."""
        return []

    def give_up(self, why: str) -> None:
        """The next start is blank in any case."""

    def close(self) -> None:
        """Keep nothing."""
