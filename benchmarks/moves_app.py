"""The application of `benchmarks.moves`: entities that record every tell that they handle.

A record is three integers: the entity, the number of the tell, and when it was handled. The number
is the time of sending. Both are nanoseconds of the monotonic clock, which all processes
of a machine share. A record is in the file once the handler has returned, so that SIGKILL takes
none of them. `BENCH_HANDOFF` is the mode in which shards move.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Any

from shardbus import Entity, ShardBus, handler

SHARDS = 1_000
RECORD = struct.Struct("=qqq")

bus = ShardBus("moves")


class Book:
    """Hold this process's records, in a file that is named by its process id."""

    def __init__(self) -> None:
        self._file = -1

    def write(self, entity: int, number: int) -> None:
        """Add a record."""
        if self._file < 0:
            path = os.path.join(os.environ["BENCH_FOLDER"], f"handled-{os.getpid()}")
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.write(self._file, RECORD.pack(entity, number, time.monotonic_ns()))


book = Book()
mode: Any = os.environ.get("BENCH_HANDOFF", "buffer")
homes: Any = os.environ.get("BENCH_HOMES", "ask")


@bus.entity(
    "thing",
    shards=SHARDS,
    handoff=mode,
    homes=homes,
)
class Thing(Entity):
    """Answer under a number as its id."""

    @handler
    def note(self, number: int) -> None:
        """Record the tell."""
        book.write(int(self.context.entity_id), number)

    @handler
    def echo(self) -> None:
        """Answer."""
