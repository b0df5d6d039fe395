"""The application of the process tests. Entities write down their messages, one record for each
message, so that loss, order, repetition and overlaps can be counted from outside.

A record: entity number, producer, sequence number, activation, monotonic nanoseconds. Sequence 0 is
a start and -1 a stop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shardbus import Entity, Rejection, ShardBus, StaleFence, StopReason, handler

RECORD = struct.Struct("<qqqqq")
FOLDER = Path(os.environ.get("APP_FOLDER", "."))

bus = ShardBus(os.environ.get("APP_CLUSTER", "lab"))
shards = int(os.environ.get("APP_SHARDS", "24"))


class Book:
    """This process's records."""

    def __init__(self) -> None:
        self._file = -1

    def write(self, *row: int) -> None:
        if self._file < 0:
            flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
            self._file = os.open(FOLDER / f"ledger-{os.getpid()}", flags, 0o600)
        os.write(self._file, RECORD.pack(*row, time.monotonic_ns()))


book = Book()
hoard: list[int] = []


@bus.entity("page", shards=shards)
class Page(Entity):
    """Counts nothing, keeps nothing, writes everything down."""

    async def on_start(self) -> None:
        self.number = int(self.context.entity_id.removeprefix("page-"))
        self.activation = random.getrandbits(62)
        book.write(self.number, 0, 0, self.activation)

    async def on_stop(self, reason: StopReason) -> None:
        book.write(self.number, 0, -1, self.activation)

    @handler
    def hit(self, producer: int, seq: int) -> int:
        book.write(self.number, producer, seq, self.activation)
        return seq

    @handler
    def hit_late(self, producer: int, seq: int, gate: str) -> None:
        """Fail until this file exists."""
        if not (FOLDER / gate).exists():
            raise ValueError(f"there is no {gate}")
        self.hit(producer, seq)

    @handler
    async def pass_on(self, page: int, producer: int, seq: int) -> None:
        """Have another page hit: a message from entity to entity."""
        await self.context.ref(Page, f"page-{page}").hit.tell(producer, seq)

    @handler
    def where(self) -> str:
        return self.context.node

    @handler
    def block_until(self, gate: str) -> str:
        """Keep the whole loop waiting until this file exists."""
        while not Path(gate).exists():
            time.sleep(0.05)
        return self.context.node

    @handler
    def speak(self, lines: int) -> None:
        """Log so many lines of a kilobyte."""
        for n in range(lines):
            logging.getLogger("lab").warning(f"{n} {'x' * 1000}")

    @handler
    def shout(self, stream: str, lines: int) -> None:
        """Print so many lines of a kilobyte, by itself: that waits for a reader."""
        for n in range(lines):
            print(f"{n} {'x' * 1000}", file=getattr(sys, stream), flush=True)

    @handler
    def hoard(self) -> int:
        """Open files until none is left to open."""
        with suppress(OSError):
            while True:
                hoard.append(os.open(os.devnull, os.O_RDONLY))
        return len(hoard)

    @handler
    def release(self) -> None:
        """Close them."""
        while hoard:
            os.close(hoard.pop())

    @handler
    def block(self, seconds: float) -> str:
        """Do as a handler must not: keep the whole loop waiting."""
        time.sleep(seconds)
        return self.context.node


@dataclass
class Balance:
    total: int = 0


@dataclass
class Overdrawn(Rejection):
    balance: int


@bus.entity("account", shards=shards)
class Account(Entity):
    """Money in the store."""

    state: Balance

    @handler
    async def add(self, amount: int) -> int:
        self.state.total += amount
        await self.save()
        return self.state.total

    @handler
    def get(self) -> int:
        return self.state.total

    @handler
    async def spend(self, amount: int) -> int:
        if amount > self.state.total:
            raise Overdrawn(self.state.total)
        return await self.add(-amount)

    @handler
    def where(self) -> str:
        return self.context.node

    @handler
    async def add_late(self, amount: int, gate: str) -> str:
        """Add once a file of that name exists, and write down the outcome."""
        self.state.total += amount
        (FOLDER / f"{gate}.waits").touch()
        while not (FOLDER / gate).exists():
            await asyncio.sleep(0.01)
        try:
            await self.save()
        except StaleFence:
            (FOLDER / f"{gate}.stale").touch()
            raise
        (FOLDER / f"{gate}.saved").touch()
        return "saved"


def at_shutdown(kind: str) -> None:
    """The tasks in the phases of leaving, in the tests that name a kind."""

    async def last_words() -> None:
        print("last words:", await bus.ref(Page, "page-1").hit(0, 99), flush=True)

    async def late() -> None:
        await asyncio.Event().wait()

    def fails() -> None:
        raise ValueError("a task that fails")

    def blocks() -> None:
        time.sleep(3600)

    async def late_unless_first() -> None:
        try:
            (FOLDER / "first").touch(exist_ok=False)
        except FileExistsError:
            await late()

    if kind == "uneven":
        bus.on_shutdown("before-service-unbind")(late_unless_first)
    elif kind == "tasks":
        for task in (fails, late, last_words):
            bus.on_shutdown("before-cluster-shutdown")(task)
        bus.on_shutdown("cluster-shutdown")(lambda: print("the end", flush=True))
    elif kind == "block":
        bus.on_shutdown("service-stop")(blocks)


at_shutdown(os.environ.get("APP_SHUTDOWN", ""))


def say_version() -> None:
    """The application finds its version in a file, once that is there."""

    @bus.version
    async def version() -> str:
        print("which version?", flush=True)
        while not (FOLDER / "VERSION").exists():
            await asyncio.sleep(0.01)
        return (FOLDER / "VERSION").read_text().strip()


if os.environ.get("APP_VERSION"):
    say_version()


@bus.entity("stubborn", shards=2)
class Stubborn(Entity):
    """Does not stop."""

    @handler
    def hello(self) -> str:
        return "hello"

    async def on_stop(self, reason: StopReason) -> None:
        await asyncio.Event().wait()


if os.environ.get("APP_QUOTES"):

    @bus.entity("quote", shards=4, instances=3)
    class Quote(Entity):
        """Runs three times, on as many nodes."""

        @handler
        def who(self) -> list[object]:
            return [self.context.entity_id, self.context.instance, self.context.node]

        @handler
        async def wait_for(self, gate: str) -> int:
            """Answer once this file exists; say that it is waited for by another one."""
            Path(f"{gate}-{self.context.instance}").touch()
            while not Path(gate).exists():
                await asyncio.sleep(0.02)
            return self.context.instance


def export_spans(collector: str) -> None:
    """Configure OpenTelemetry as an application does: an SDK, and an exporter to a collector."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=collector)))
    trace.set_tracer_provider(provider)


if "APP_COLLECTOR" in os.environ:
    export_spans(os.environ["APP_COLLECTOR"])
