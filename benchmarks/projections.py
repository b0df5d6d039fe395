"""Measure how fast a projection handles stored events, beside a bare read of the same journals, in
turn.

256 entities have 400 events of 64 bytes each in their journals. A node starts with a projection
that is declared anew: it begins with the first event of each journal, and stores the number of the
last event with the state of each part, with up to 100 events in one save. The rate counts from the
first event that a method handles to the last one. The bare read is the store's: page after page of
each journal, 16 journals at once, and the events are not decoded.

    python -m benchmarks.projections                    Redis, appendfsync everysec
    python -m benchmarks.projections sqlite

BENCH_RUNS (3) makes it shorter or longer.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import RUNS, emit, median
from benchmarks.projections_app import ENTITIES, EVENTS, Adding
from benchmarks.sides import Product
from shardbus.store.journal_protocol import JournalStore, journals_of
from shardbus.store.opening import open_store
from tests.redis_server import RedisServer

TOGETHER = 50
"""Events of one append."""
NOTE = bytes(64)
PAGE = 1000
AT_ONCE = 16
"""Journals that the bare side reads at once."""


def producing(url: str, projection: str = "") -> Product:
    """Return a node over this store, not yet started, with a projection of this name."""
    os.environ["BENCH_APP"], os.environ["BENCH_PROJECTION"] = "projections", projection
    return Product(app="benchmarks.projections_app", kind=Adding, handler="add", store=url)


async def fill(url: str) -> None:
    """Store the events."""
    async with producing(url) as product:
        for _ in range(EVENTS // TOGETHER):
            calls = (product._call(f"entity-{n}")(NOTE, TOGETHER) for n in range(ENTITIES))
            await asyncio.gather(*calls)


async def projected(url: str, name: str) -> float:
    """Return the events a second of a projection that begins with the first one."""
    async with producing(url, name) as product:
        count = ENTITIES * EVENTS
        return (count - 1) / await product.host.finished(count)


async def read(url: str) -> float:
    """Return the entries a second of a bare read of all journals."""
    store = open_store(url, cluster="projections", timeout=10.0)
    await store.start()
    try:
        journals = journals_of(store)
        assert journals is not None
        places = [place for place in await _places(journals) if place[1].startswith("entity-")]
        turn, count = asyncio.Semaphore(AT_ONCE), 0

        async def each(shard: str, name: str) -> int:
            after, entries = 0, 0
            async with turn:
                while True:
                    page = await journals.read("adding", shard, name, after, PAGE)
                    entries, after = entries + len(page.entries), page.end
                    if after >= page.last:
                        return entries

        begun = time.perf_counter()
        count = sum(await asyncio.gather(*(each(*place) for place in places)))
        assert count == ENTITIES * EVENTS, count
        return count / (time.perf_counter() - begun)
    finally:
        await store.close()


async def _places(journals: JournalStore) -> list[tuple[str, str]]:
    places: dict[tuple[str, str], None] = {}
    cursor: str | None = None
    while True:
        page, cursor = await journals.page("adding", cursor, PAGE)
        places |= dict.fromkeys(page)
        if cursor is None:
            return list(places)


async def compare(where: str, url: str) -> None:
    """Measure one store."""
    await fill(url)
    rates: dict[str, list[float]] = {"projection": [], "bare": []}
    for number in range(RUNS):
        rates["projection"].append(await projected(url, f"total-{number}"))
        rates["bare"].append(await read(url))
    for side, measured in rates.items():
        runs = [round(rate) for rate in measured]
        emit(f"projections/{where}/{side}", median(measured), "events/s", runs=runs)
    pairs = [a / b for a, b in zip(rates["projection"], rates["bare"], strict=True)]
    shown = [round(pair, 3) for pair in pairs]
    emit(f"projections/{where}/ratio_rate", median(pairs), "x", of="bare", pairs=shown)


async def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        for where in sys.argv[1:] or ["everysec"]:
            if where == "sqlite":
                await compare(where, f"sqlite:///{folder}/projections.db")
                continue
            with RedisServer(Path(folder) / where, "--appendfsync", where) as server:
                await compare(where, f"redis://127.0.0.1:{server.port}/0")


if __name__ == "__main__":
    asyncio.run(main())
