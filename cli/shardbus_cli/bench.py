"""`bench`: measure a node on this machine. The command starts a node, sends to it and ends it.

    start     first messages to new entities
    tell      tells to all entities in turn, as fast as possible
    ask       asks, one at a time
    ask256    asks, 256 in flight

The entities are counters in one node; the messages come from this process, over the loopback. With
`--secret` the links are encrypted. The time of tells ends when every entity has reported its count
and no message is missing, so a result needs seconds of load. `benchmarks/` compares with other
systems and with plain sockets.

Source: docs/reference/cli.md; docs/performance.md.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbus_cli import output
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.parameters import Secret

if TYPE_CHECKING:
    from shardbus import AsyncClient

LANES = 256
STRIDE = 7_919
START_S, END_S = 60.0, 30.0
CHUNK = 1_000
Row = dict[str, Any]


def bench(
    seconds: Annotated[
        float, typer.Option(min=0.1, max=600, help="Seconds of each measurement.")
    ] = 2.0,
    entities: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Number of counters.")
    ] = 10_000,
    payload: Annotated[int, typer.Option(min=0, max=65_536, help="Bytes in a message.")] = 64,
    secret: Secret = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per measurement.")
    ] = False,
) -> None:
    """Measure tells, asks and starts of entities on this machine, with a node started for it."""
    import asyncio

    rows = asyncio.run(_measured(seconds, entities, bytes(i % 251 for i in range(payload)), secret))
    if as_json:
        for row in rows:
            output.data(json.dumps(row))
        return
    shown = [{**row, "value": f"{row['value']:,.0f}"} for row in rows]
    output.table(("name", "value", "unit"), shown)


async def _measured(
    seconds: float, entities: int, payload: bytes, secret: Path | None
) -> list[Row]:
    async with _node(secret) as address:
        from shardbus import AsyncClient
        from shardbus_cli.bench_app import bus

        async with AsyncClient(
            address, cluster=bus.name, timeout=60.0, secret=secret or ""
        ) as client:
            work = _Work(client, entities, payload)
            rows = [await work.start(), await work.tell(seconds)]
            for lanes, name in ((1, "ask"), (LANES, f"ask{LANES}")):
                rows += await work.ask(name, lanes, seconds)
            await work.check()
            return rows


class _Work:
    """The load on one node. It counts the messages that it sends, so that a lost one is found."""

    def __init__(self, client: AsyncClient, entities: int, payload: bytes) -> None:
        from shardbus_cli.bench_app import HitCounter

        step = STRIDE if entities % STRIDE else 1
        numbers = (i * step % entities for i in range(entities))
        self._refs: list[Any] = [client.ref(HitCounter, f"counter-{i}") for i in numbers]
        self._payload, self._sent = payload, 0
        self._facts = {"entities": entities, "payload": len(payload)}

    async def start(self) -> Row:
        """Measure the first messages to all entities."""
        began = time.monotonic()
        await self._round()
        await self.check()
        return self._row("start", len(self._refs) / (time.monotonic() - began), "entities/s")

    async def tell(self, seconds: float) -> Row:
        """Measure rounds of tells for `seconds`."""
        began, before = time.monotonic(), self._sent
        while time.monotonic() < began + seconds:
            await self._round()
        await self.check()
        rate = (self._sent - before) / (time.monotonic() - began)
        return self._row("tell", rate, "messages/s")

    async def ask(self, name: str, lanes: int, seconds: float) -> list[Row]:
        """Measure `lanes` closed loops of asks: their rate and latency."""
        import asyncio

        refs: Iterator[Any] = cycle(self._refs)
        taken: list[float] = []
        began = time.monotonic()

        async def lane() -> None:
            """Ask until the time is over, at least once."""
            at = began
            while at < began + seconds:
                at = time.monotonic()
                await next(refs).hit(self._payload)
                taken.append(1e6 * (time.monotonic() - at))

        await asyncio.gather(*(lane() for _ in range(lanes)))
        rate = len(taken) / (time.monotonic() - began)
        self._sent += len(taken)
        taken.sort()
        rows = [self._row(name, rate, "requests/s")]
        for part in (50, 99):
            value = taken[min(len(taken) - 1, len(taken) * part // 100)]
            rows.append(self._row(f"{name}_p{part}", value, "us"))
        return rows

    async def check(self) -> None:
        """Check that every message was handled once.

        Raises:
            CommandFailure: a message was lost or handled twice.
        """
        import asyncio

        left, total = iter(self._refs), 0

        async def lane() -> None:
            nonlocal total
            for ref in left:
                handled = await ref.total()
                total += handled

        await asyncio.gather(*(lane() for _ in range(LANES)))
        if total != self._sent:
            sent = output.counted(self._sent, "message was sent", "messages were sent")
            raise CommandFailure(f"{sent}, {total} handled", "report it")

    async def _round(self) -> None:
        import asyncio

        for i, ref in enumerate(self._refs, 1):
            await ref.hit.tell(self._payload)
            if i % CHUNK == 0:
                await asyncio.sleep(0)
        self._sent += len(self._refs)

    def _row(self, name: str, value: float, unit: str) -> Row:
        return {"name": name, "value": round(value, 1), "unit": unit, "parameters": self._facts}


@asynccontextmanager
async def _node(secret: Path | None) -> AsyncIterator[str]:
    """Start a node and yield its address. The node ends with this process; it is killed, because it
    stores nothing."""
    import asyncio

    from shardbus_cli.children.prefixed_output import PrefixedOutput
    from shardbus_cli.children.process import start_child
    from shardbus_cli.workers.unit import KIND

    loop = asyncio.get_running_loop()
    ready, ended = loop.create_future(), loop.create_future()

    def on_report(report: Mapping[str, Any]) -> None:
        if report["is"] == "ready":
            loop.call_soon_threadsafe(ready.set_result, report["node"])

    prefixed_output = PrefixedOutput()
    prefixed_output.start()
    process = start_child(KIND, 0, _command(secret), prefixed_output)
    process.follow(on_report, lambda code: loop.call_soon_threadsafe(ended.set_result, code))
    try:
        await asyncio.wait((ready, ended), timeout=START_S, return_when="FIRST_COMPLETED")
        if not ready.done():
            raise CommandFailure(
                "the node did not start", "see its log above", code=ExitCode.FAILED
            )
        yield f"tcp://{ready.result()}"
    finally:
        process.kill()
        await _within(ended, END_S)
        prefixed_output.close()


def _command(secret: Path | None) -> Callable[[int], list[str]]:
    port, gossip = _free_ports()

    def command(fd: int) -> list[str]:
        flags = f"--port {port} --gossip-port {gossip} --http-port 0 --store memory://"
        flags += f" --log-level error --leash-fd {fd}"
        keys = ["--set", f"security.secret={secret or ''}"]
        return ["node", "start", "shardbus_cli.bench_app:bus", *flags.split(), *keys]

    return command


async def _within(future: Awaitable[Any], seconds: float) -> None:
    import asyncio

    await asyncio.wait((asyncio.ensure_future(future),), timeout=seconds)


def _free_ports() -> list[int]:
    """Return two free ports."""
    with socket.socket() as first, socket.socket() as other:
        for probe in (first, other):
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in (first, other)]
