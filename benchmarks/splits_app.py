"""The application of `benchmarks.splits`: entities that record when they handle a message.

A record is six integers: the entity, the producer, the number of its message, the activation, 0 at
the beginning of a handler and 1 at its end, and the time. The time is nanoseconds since boot, of a
clock that all processes of the machine share and that goes on while a process is stopped. A record
is in the file at once, so that SIGKILL takes none of them.

SIGUSR1 blocks the loop of a node that has a record, for `BLOCKED_S`, as a handler does that
computes for so long.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import struct
import time

from shardbus import Entity, ShardBus, handler

SHARDS = 60
BLOCKED_S = 12.0
RECORD = struct.Struct("=qqqqqq")
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

bus = ShardBus("splits")


def boot_ns() -> int:
    """Return the nanoseconds since boot."""
    return time.clock_gettime_ns(CLOCK)


class Book:
    """Hold this process's records, in a file that is named by its process id."""

    def __init__(self) -> None:
        self._file = -1

    def write(self, *row: int) -> None:
        """Add a record."""
        if self._file < 0:
            path = os.path.join(os.environ["BENCH_FOLDER"], f"handled-{os.getpid()}")
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            signal.signal(signal.SIGUSR1, lambda *_: time.sleep(BLOCKED_S))
        os.write(self._file, RECORD.pack(*row, boot_ns()))


book = Book()


@bus.entity("page", shards=SHARDS)
class Page(Entity):
    """Answer under a number as its id."""

    def __init__(self) -> None:
        self.number, self.activation = int(self.context.entity_id), secrets.randbits(62)

    @handler
    def hit(self, producer: int, seq: int) -> None:
        """Handle a message at once."""
        book.write(self.number, producer, seq, self.activation, 0)

    @handler
    async def linger(self, producer: int, seq: int, seconds: float) -> None:
        """Handle a message, and wait meanwhile."""
        book.write(self.number, producer, seq, self.activation, 0)
        await asyncio.sleep(seconds)
        book.write(self.number, producer, seq, self.activation, 1)
