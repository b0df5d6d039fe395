"""The demo: replay a month of flights through a cluster that changes meanwhile.

Three nodes start. A producer replays the flights into one entity per aircraft. After a third of the
rows a fourth node joins; after two thirds the node with the coordinator is killed. At the end the
demo asks every aircraft for its figures and compares them with the file's. The exit code is
0 only if they are equal and every node left normally.

A store that the user names is used under a cluster name of the demo, by one demo at a time; the
flight logs are removed from it at the end.

python -m examples.flights.demo [--store URL] [--rate ROWS_PER_SECOND]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from examples.flights.app import Aircraft, FlightLog
from examples.flights.nodes import INSIDE, Node, Nodes
from examples.flights.outage import one_per_shard, percentile, until_answered
from examples.flights.replay import SIDE_BY_SIDE, Replay, insist, paced
from examples.flights.rows import Row, read, straight
from examples.flights.screen import Bar, Screen
from shardbus import AsyncClient

T = TypeVar("T")
CLUSTER = "flights-demo"
TYPE = "aircraft"
RATE = 1500.0
LOOK_S = 0.05
WHOLE_DEMO_S = 110.0


class Demo:
    """One run. The figures of the file are computed before it starts."""

    def __init__(
        self, screen: Screen, nodes: Nodes, rows: list[Row], rate: float, *, own_store: bool
    ) -> None:
        self.screen, self.nodes, self.rows, self.rate = screen, nodes, rows, rate
        self.own_store = own_store
        self.file = straight(rows)
        self.client: AsyncClient
        self.replay: Replay
        self._joined = asyncio.Event()

    async def run(self) -> bool:
        """Run the demo. Returns True if the figures of the cluster equal the file's."""
        self.screen.say(f"{len(self.rows):,} rows, {len(self.file):,} aircraft; three nodes start")
        for node in await self.nodes.add_first(3):
            self._say_up(node)
        addresses = [f"tcp://{node.address}" for node in self.nodes]
        async with AsyncClient(*addresses, cluster=CLUSTER) as self.client:
            if not self.own_store:
                await self._forget_all()
            await self._stream()
            self._report_stream()
            logs = await self._ask_all()
            if not self.own_store:
                await self._forget_all()
        self.screen.shard_table()
        equal = self.screen.figures(logs, self.file)
        codes = await self.nodes.leave()
        how = "together" if self.nodes.inside else "one after the other"
        self.screen.say(f"the nodes left {how}, exit codes {codes}")
        return equal and not any(codes)

    async def _add(self) -> Node:
        node = await self.nodes.add()
        self._say_up(node)
        return node

    def _say_up(self, node: Node) -> None:
        self.screen.say(f"{node.name} is up: {node.address}, http://127.0.0.1:{node.http_port}")

    # ---- the stream

    async def _stream(self) -> None:
        self.replay = Replay(self.client)
        with self.screen.bar(len(self.rows)) as bar:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch(bar))
                group.create_task(self._disturb())
                await self.replay.run(self._held(paced(self.rows, self.rate)))
                watch.cancel()
            bar.show(self.replay.done)

    async def _watch(self, bar: Bar) -> None:
        while True:
            bar.show(self.replay.done)
            await asyncio.sleep(LOOK_S)

    async def _held(self, rows: AsyncIterator[Row]) -> AsyncIterator[Row]:
        """Yield the rows; after two thirds of them, wait until the fourth node has joined."""
        number = 0
        async for row in rows:
            if number == self._part(2 / 3):
                await self._joined.wait()
            number += 1
            yield row

    async def _disturb(self) -> None:
        """Start a node and kill another while the stream runs."""
        await self._reached(1 / 3)
        await self._shards("at first")
        newcomer = await self._add()
        while not (await self.nodes.shards(TYPE))[newcomer]:
            await asyncio.sleep(LOOK_S)
        self._joined.set()
        await self._reached(2 / 3 + 0.02)
        hosted = await self._shards("after the join")
        victim = await self.nodes.coordinator(TYPE)
        one_each = one_per_shard(self.file)
        away = {shard: one_each[shard] for shard in hosted[victim] if shard in one_each}
        await victim.kill()
        killed_at = asyncio.get_running_loop().time()
        self.screen.say(f"{victim.name}, which has the coordinator: kill -9")
        waits = (await until_answered(self.client, killed_at, away)).values()
        self.screen.say(
            f"its {len(waits)} shards answer again: half of them within "
            f"{percentile(waits, 0.5):.2f} s of the kill, all within {max(waits):.2f} s"
        )
        await self._shards("after the kill")

    def _part(self, part: float) -> int:
        return int(part * len(self.rows))

    async def _reached(self, part: float) -> None:
        while self.replay.done < self._part(part):
            await asyncio.sleep(LOOK_S)

    async def _shards(self, when: str) -> dict[Node, list[str]]:
        hosted = await self.nodes.shards(TYPE)
        self.screen.shards(when, {node.name: len(shards) for node, shards in hosted.items()})
        return hosted

    def _report_stream(self) -> None:
        replay = self.replay
        again = ", ".join(f"{count:,} after {error}" for error, count in replay.resent.items())
        self.screen.say(f"recorded {replay.recorded:,} rows; sent again: {again or 'none'}")
        self.screen.say(f"refused {replay.refused:,} rows without a tail number: {replay.refusal}")

    # ---- every aircraft

    async def _forget_all(self) -> None:
        """Remove the flight logs from the user's store, also an earlier demo's."""
        await self._each(lambda aircraft: aircraft.forget())

    async def _ask_all(self) -> dict[str, FlightLog]:
        logs = await self._each(lambda aircraft: aircraft.summary())
        return dict(zip(self.file, logs, strict=True))

    async def _each(self, call: Callable[[Aircraft], Awaitable[T]]) -> list[T]:
        """Send the same ask to every aircraft, a bounded number at a time."""
        slots = asyncio.Semaphore(SIDE_BY_SIDE)

        async def answer_of(tailnum: str) -> T:
            aircraft = self.client.ref(Aircraft, tailnum)
            async with slots:
                return await insist(lambda: call(aircraft), Counter())

        return await asyncio.gather(*map(answer_of, self.file))


async def run(store: str, rate: float, folder: Path) -> bool:
    """Run the demo with its files in `folder`. Returns True if the figures are equal."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    is_external = store in ("", INSIDE)
    nodes = Nodes(folder, store or f"sqlite:///{folder}/flights.db", CLUSTER)
    try:
        async with asyncio.timeout(WHOLE_DEMO_S):
            return await Demo(Screen(), nodes, list(read()), rate, own_store=is_external).run()
    finally:
        await nodes.kill()


def reasons(failed: BaseException) -> list[str]:
    """Return one line per error, also for each error of a group."""
    if isinstance(failed, BaseExceptionGroup):
        return list(dict.fromkeys(line for inner in failed.exceptions for line in reasons(inner)))
    return [f"{type(failed).__name__}: {failed}".rstrip(": ")]


def main() -> int:
    """Run the demo from the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="demo", description="Flights through a changing cluster.")
    parser.add_argument(
        "--store",
        default="",
        help="URL of a store, cluster:// for one of the nodes; a SQLite file by default",
    )
    parser.add_argument("--rate", type=float, default=RATE, help="rows per second, 0: no limit")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="flights-demo-"))
    equal = False
    try:
        equal = asyncio.run(run(options.store, options.rate, folder))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("demo: interrupted", file=sys.stderr)
    except Exception as failed:
        for line in reasons(failed)[:5]:
            print(f"demo: {line}", file=sys.stderr)
    if equal:
        shutil.rmtree(folder)
        return 0
    print(f"demo: the nodes' logs are in {folder}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
