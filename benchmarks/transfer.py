"""Measure `shardbus state export` and `state import` of 100,000 states between Redis, SQLite and
PostgreSQL, with real servers.

The first export runs beside a node of that Redis, and of every callback of the node's loop the
processor time is taken: no answer of the node is later than that because of the export. An import
runs while no node does. The memory of a command is its largest resident size; the size of a command
that moves 1,000 states is printed beside it, because most of it is Python. At the end the last
store has the first one's states.

    python -m benchmarks.transfer               100,000 states
    python -m benchmarks.transfer 10000         another number
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import emit
from benchmarks.listing import LongestCallback
from shardbus import Entity, ShardBus, handler
from shardbus.ids import shard_of
from shardbus.store.opening import open_store
from shardbus.store.protocol import Save
from shardbus.transport.environment import resident_bytes
from shardbus.wire.schema import encode_value
from tests.loopback.nodes import Nodes
from tests.postgres_server import PostgresServer
from tests.redis_server import RedisServer

STATES, FEW = 100_000, 1000
SHARDS = 100
BATCH = 5000
PATIENCE_S = 600.0
ROOT = Path(__file__).resolve().parents[1]
COMMAND = "from shardbus_cli.main import main; main()"
APP = "benchmarks.transfer:bus"
bus = ShardBus("shop")


@dataclass
class CartState:
    items: dict[str, int] = field(default_factory=dict)


@bus.entity("cart", shards=SHARDS)
class Cart(Entity):
    state: CartState

    @handler
    def pieces(self) -> int:
        return sum(self.state.items.values())


class Ended(NamedTuple):
    """A command that has ended: its seconds, and its largest resident size in bytes."""

    seconds: float
    most: int


def run(*words: str, into: Path | None = None) -> Ended:
    """Run a command of shardbus; its output goes `into` a file."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SHARDBUS_")}
    env["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "cli")))
    began = time.monotonic()
    with (into or Path(os.devnull)).open("wb") as out:
        command = [sys.executable, "-c", COMMAND, "state", *words, "--app", APP]
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out)
        _, status, used = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, words
    return Ended(time.monotonic() - began, used.ru_maxrss * 1024)


async def fill(url: str, count: int) -> None:
    """Store that many carts of some 80 bytes."""
    store = open_store(url, cluster="shop", timeout=PATIENCE_S)
    await store.start()
    data = encode_value({"items": {f"item-{n:012}": n for n in range(4)}})
    for first in range(0, count, BATCH):
        ids = [f"cart-{n:07}" for n in range(first, min(first + BATCH, count))]
        saves = [
            Save("cart", shard_of(entity_id, SHARDS), entity_id, 0, data, first + n + 1)
            for n, entity_id in enumerate(ids)
        ]
        assert set(await store.save_states(saves)) == {None}
    await store.close()


async def beside_a_node(url: str, to: Path) -> tuple[Ended, LongestCallback, int]:
    """Export while a node of that store runs in this thread. Returns also by how much the process
    of the node has grown."""
    async with Nodes() as nodes:
        nodes.open_store = lambda: open_store(url, cluster="shop", timeout=PATIENCE_S)
        await nodes.start(bus)
        before = resident_bytes()
        with LongestCallback() as longest:
            done = await asyncio.to_thread(run, "export", "cart", "--store", url, into=to)
        return done, longest, resident_bytes() - before


async def measure(count: int, folder: Path, *, shown: bool) -> None:
    """Move states from one store to the next one, and print the results if they are `shown`."""
    settings = ("--save", "", "--appendonly", "no")
    with (
        RedisServer(folder / "redis-1", *settings) as first,
        RedisServer(folder / "redis-2", *settings) as last,
        PostgresServer("fsync=off") as postgres,
    ):
        source = f"{first.url()}?durability=cache"
        await fill(source, count)
        files = [folder / f"states-{n}" for n in range(4)]
        done, longest, grown = await beside_a_node(source, files[0])
        say("export from Redis", count, done, shown)
        if shown:
            emit("longest callback while states are exported", 1000 * longest.seconds, "ms")
            emit("memory that the node grew by", grown / 2**20, "MiB")
        steps = {
            "SQLite": f"sqlite:///{folder}/bus.db",
            "PostgreSQL": postgres.url(durability="cache"),
            "Redis": f"{last.url()}?durability=cache",
        }
        for n, (name, url) in enumerate(steps.items()):
            into = ("--store", url)
            done = await asyncio.to_thread(run, "import", str(files[n]), *into)
            say(f"import into {name}", count, done, shown)
            done = await asyncio.to_thread(run, "export", "cart", *into, into=files[n + 1])
            say(f"export from {name}, without a node", count, done, shown)
        assert states(files[0]) == states(files[-1]) != set()


def states(file: Path) -> set[tuple[str, str]]:
    """Return the ids and states of an export, without parts that differ between stores."""
    lines = file.read_text().splitlines()
    return {(line.split('"id":"')[1][:12], line.split('"state":')[1]) for line in lines}


def say(what: str, count: int, done: Ended, shown: bool) -> None:
    """Print the rate and the memory of a command."""
    parameters = {"states": count}
    emit(f"{what}: largest size of the command", done.most / 2**20, "MiB", **parameters)
    if shown:
        emit(f"{what}: states", count / done.seconds, "1/s", **parameters)


if __name__ == "__main__":
    most = int(sys.argv[1]) if len(sys.argv) > 1 else STATES
    for number in (FEW, most):
        with tempfile.TemporaryDirectory() as made:
            asyncio.run(measure(number, Path(made), shown=number == most))
