"""Measure asks whose handler saves its entity, beside a bare client of the same store, in turn.

One node, one producer, 10,000 carts; 1, 256 and 2,048 asks in flight; states of 100 B and 4 KiB.
The bare client of Redis runs one script for up to 128 keys, which compares a fence and writes;
waiting saves go with the next scripts, in one pipeline. It has no node, no entity and no mailbox:
it shows the ceiling of the store and redis-py. The bare client of PostgreSQL is asyncpg with one
connection, and runs the statement of the store for waiting saves. SQLite has no bare side.

    python -m benchmarks.saves                          Redis, appendfsync everysec
    python -m benchmarks.saves always sqlite postgres   others of everysec, always, sqlite, postgres
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from abc import abstractmethod
from pathlib import Path
from typing import Any, Self

import asyncpg  # type: ignore[import-untyped]
from redis.asyncio import Redis

from benchmarks.harness import (
    IDS,
    RUNS,
    SECONDS,
    Side,
    asked,
    emit,
    median,
    percentile,
)
from benchmarks.saves_app import Cart
from benchmarks.sides import Product
from shardbus.store import postgres_statements as sql
from tests.postgres_server import PostgresServer
from tests.redis_server import RedisServer

LANES = (1, 256, 2_048)
FIRST_LANES = 256
SIZES = (100, 4_096)
CHUNK = 128
SCRIPT = """
local answers = {}
for i, key in ipairs(KEYS) do
  local fence = redis.call('HGET', key, 'fence')
  if fence and fence > ARGV[1] then
    answers[i] = fence
  else
    redis.call('HSET', key, 'fence', ARGV[1], 'data', ARGV[i + 1])
    answers[i] = ''
  end
end
return answers
"""


def saving(url: str, handler: str = "put") -> Product:
    """Return shardbus over this store, not yet started."""
    os.environ["BENCH_APP"] = "saves"
    return Product(handler=handler, message=b"", app="benchmarks.saves_app", kind=Cart, store=url)


class Bare(Side):
    """Run a store's client alone: calls that wait while nothing is under way are done at once."""

    def __init__(self, url: str) -> None:
        self.name, self._url, self.message = "bare", url, b""
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._sending: asyncio.Task[None] | None = None

    @abstractmethod
    async def _do(self, ids: list[str]) -> None:
        """Do the waiting saves of these entities."""

    def ask(self, entity_id: str) -> Any:
        """Do one entity's part, with others."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((entity_id, future))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send())
        return future

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            await self._do([entity_id for entity_id, _ in batch])
            for _, future in batch:
                future.set_result(None)


class BareRedis(Bare):
    """Run redis-py alone."""

    async def __aenter__(self) -> Self:
        self._redis = Redis.from_url(self._url)
        self._sha = await self._redis.script_load(SCRIPT)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._redis.aclose()

    async def _do(self, ids: list[str]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        self._fill(pipeline, [f"bare:{{cart}}:{entity_id}" for entity_id in ids])
        await pipeline.execute()

    def _fill(self, pipeline: Any, keys: list[str]) -> None:
        """Put the saves of these entities into a pipeline."""
        for at in range(0, len(keys), CHUNK):
            chunk = keys[at : at + CHUNK]
            data = [self.message] * len(chunk)
            pipeline.evalsha(self._sha, len(chunk), *chunk, f"{7:019}", *data)


class BarePostgres(Bare):
    """Run asyncpg alone: waiting saves are one statement, on tables that the store has created."""

    def __init__(self, url: str, schema: str) -> None:
        super().__init__(url)
        self._text = sql.SAVE_STATES.text(schema)
        self._operations = 0

    async def __aenter__(self) -> Self:
        self._connection = await asyncpg.connect(self._url)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._connection.close()

    async def _do(self, ids: list[str]) -> None:
        carts = list(dict.fromkeys(ids))
        count, begin = len(carts), self._operations
        self._operations += count
        operations = list(range(begin + 1, begin + count + 1))
        rows = (["cart"] * count, carts, [7] * count, operations, [self.message] * count)
        await self._connection.execute(self._text, 1, operations[-1], "bare", *rows)


async def rate_of(call: Any) -> float:
    """Call each entity once in closed loops; return calls a second."""
    ids = iter(IDS)

    async def lane() -> None:
        for entity_id in ids:
            await call(entity_id)

    begun = time.monotonic()
    await asyncio.gather(*(lane() for _ in range(FIRST_LANES)))
    return len(IDS) / (time.monotonic() - begun)


async def compare(where: str, product: Product, bare: Bare | None) -> None:
    """Measure one store."""
    sides: list[Product | Bare] = [product] if bare is None else [product, bare]
    for size in SIZES:
        for side in sides:
            side.message = bytes(size)
            await rate_of(side.ask)  # loads all of them
        for lanes in LANES:
            await _measure(f"saves/{where}/{size}/{lanes}", sides, lanes)


async def _measure(name: str, sides: list[Product | Bare], lanes: int) -> None:
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    p50: dict[str, list[float]] = {side.name: [] for side in sides}
    for side in sides:
        await asked(side, lanes, 0.5)
    for _ in range(RUNS):
        for side in sides:
            rate, taken = await asked(side, lanes, SECONDS)
            rates[side.name].append(rate)
            p50[side.name].append(percentile(taken, 0.5))
    for side in sides:
        runs = [round(rate) for rate in rates[side.name]]
        emit(f"{name}/{side.name}", median(rates[side.name]), "saves/s", runs=runs)
        emit(f"{name}/{side.name}_p50", median(p50[side.name]), "us")
    for what, values in (("rate", rates), ("p50", p50)) if len(sides) > 1 else ():
        pairs = [a / b for a, b in zip(values["shardbus"], values["bare"], strict=True)]
        shown = [round(pair, 3) for pair in pairs]
        emit(f"{name}/ratio_{what}", median(pairs), "x", of="bare", pairs=shown)


async def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        for where in sys.argv[1:] or ["everysec"]:
            if where == "sqlite":
                async with saving(f"sqlite:///{folder}/saves.db") as product:
                    await compare(where, product, None)
                continue
            if where == "postgres":
                with PostgresServer("shared_buffers=64MB") as postgres:
                    url = postgres.url()
                    async with saving(url) as product, BarePostgres(url, "shardbus") as bare_sql:
                        await compare(where, product, bare_sql)
                continue
            with RedisServer(Path(folder) / where, "--appendfsync", where) as server:
                url = f"redis://127.0.0.1:{server.port}/0"
                async with saving(url) as product, BareRedis(url) as bare:
                    await compare(where, product, bare)


if __name__ == "__main__":
    asyncio.run(main())
