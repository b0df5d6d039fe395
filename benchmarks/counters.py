"""The application that a node runs in the benchmarks, and the counters that are read from outside.

Source: the work is described in `benchmarks.harness`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from shardbus import Entity, ShardBus, handler

bus = ShardBus("bench")


@dataclass
class Hit:
    """Hold the payload as a message of its own type."""

    payload: bytes


@dataclass
class Reading:
    """Hold four fields, as messages of applications do."""

    sensor: str
    at: float
    value: int
    payload: bytes


class Meter:
    """Count handled messages and stamp the first and the last of those expected."""

    __slots__ = ("first", "last", "n", "target")

    def __init__(self) -> None:
        self.expect(0)

    def expect(self, target: int) -> None:
        """Reset the counters and expect a new series."""
        self.n, self.target, self.first, self.last = 0, target, 0, 0

    def hit(self) -> None:
        """Count one handled message."""
        n = self.n = self.n + 1
        if n == 1:
            self.first = time.monotonic_ns()
        elif n == self.target:
            self.last = time.monotonic_ns()


meter = Meter()


@bus.entity(name="counter", shards=64, passivate_after=3600.0)
class Counter(Entity):
    """Count the messages that arrive."""

    def __init__(self) -> None:
        self.count = 0

    @handler
    def hit(self, payload: bytes) -> int:
        """Count one message."""
        self.count += 1
        meter.hit()
        return self.count

    @handler
    async def at_once(self, payload: bytes) -> int:
        """Count one message in a coroutine that does not wait."""
        self.count += 1
        meter.hit()
        return self.count

    @handler
    async def waiting(self, payload: bytes) -> int:
        """Count one message after a turn of the loop."""
        await asyncio.sleep(0)
        self.count += 1
        meter.hit()
        return self.count

    @handler
    def take(self, hit: Hit) -> int:
        """Count a message of one field."""
        self.count += 1
        meter.hit()
        return self.count

    @handler
    def note(self, reading: Reading) -> int:
        """Count a message of four fields."""
        self.count += 1
        meter.hit()
        return self.count

    @handler
    def work(self, microseconds: int) -> int:
        """Count one message and keep a core busy for this time."""
        until = time.perf_counter_ns() + 1000 * microseconds
        while time.perf_counter_ns() < until:
            pass
        self.count += 1
        meter.hit()
        return self.count


def resident() -> int:
    """Return the bytes of memory in use by this process."""
    gc.collect()
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def serve(path: str, meter: Meter = meter, more: Callable[[], dict[str, int]] = dict) -> None:
    """Answer the questions of `harness.Host` from a thread that sleeps between them."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(1)

    def loop() -> None:
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rw") as f:
                for line in f:
                    word, _, argument = line.strip().partition(" ")
                    answer = {"n": meter.n, "first": meter.first, "last": meter.last} | more()
                    if word == "expect":
                        meter.expect(int(argument))
                    elif word == "cpu":
                        answer["cpu"] = time.process_time_ns()
                    elif word == "rss":
                        answer["rss"] = resident()
                    f.write(json.dumps(answer) + "\n")
                    f.flush()

    threading.Thread(target=loop, daemon=True).start()


if "BENCH_CONTROL" in os.environ and os.environ.get("BENCH_APP", "counters") == "counters":
    serve(os.environ["BENCH_CONTROL"])
elif "BENCH_CONTROLS" in os.environ:  # a folder, for several processes of one application
    serve(f"{os.environ['BENCH_CONTROLS']}/{os.getpid()}")
