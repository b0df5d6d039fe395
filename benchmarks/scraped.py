"""Measure the cost of reading `/metrics`: tells with and without a reader, in turn, on one host.

Counting is always on: it is plain additions. A monitoring system adds requests. The reader asks
once a second, more often than most systems do.

The effect is less than the difference of two equal runs. So every other pair has the reader first,
and `page_host_cpu` is the processor time of a page by itself: of pages some time apart, so that
none finds the caches as another left them, less the host's usual time.

    python -m benchmarks.scraped
"""

from __future__ import annotations

import asyncio
import contextlib
from urllib.request import urlopen

from benchmarks.harness import RUNS, Cost, costed, emit, median, warmed
from benchmarks.sides import Product

EVERY_S = 1.0
PAGES, APART_S = 20, 0.1


async def main() -> None:
    """Measure and print."""
    async with Product() as side:
        rounds = await warmed(side)
        costs: dict[bool, list[Cost]] = {False: [], True: []}
        for run in range(RUNS):
            for read in (False, True) if run % 2 == 0 else (True, False):
                reader = asyncio.create_task(_read(side.http)) if read else None
                costs[read].append(await costed(side, rounds))
                if reader is not None:
                    reader.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await reader
        for read, runs in costs.items():
            name = f"scraped/{'read' if read else 'unread'}"
            emit(name, median(c.rate for c in runs), "msg/s", runs=[round(c.rate) for c in runs])
            emit(f"{name}_host_cpu", median(c.host for c in runs), "us")
        pairs = list(zip(costs[True], costs[False], strict=True))
        less = [1 - read.rate / unread.rate for read, unread in pairs]
        more = [read.host / unread.host - 1 for read, unread in pairs]
        emit("scraped/less", median(less), "x", of="unread", pairs=[round(v, 3) for v in less])
        emit("scraped/host_cpu_more", median(more), "x", pairs=[round(v, 3) for v in more])
        page = await _processor(side, read=True) - await _processor(side, read=False)
        emit("scraped/page_host_cpu", page, "us", pages=PAGES)


async def _read(port: int) -> None:
    while True:
        await asyncio.to_thread(_page, f"http://127.0.0.1:{port}/metrics")
        await asyncio.sleep(EVERY_S)


async def _processor(side: Product, *, read: bool) -> float:
    """Return the microseconds of the idle host's processor for each of some pages, or for the time
    of one."""
    before = (await side.host.ask("cpu"))["cpu"]
    for _ in range(PAGES):
        if read:
            await asyncio.to_thread(_page, f"http://127.0.0.1:{side.http}/metrics")
        await asyncio.sleep(APART_S)
    return ((await side.host.ask("cpu"))["cpu"] - before) / 1e3 / PAGES


def _page(url: str) -> None:
    with urlopen(url, timeout=5) as answer:
        answer.read()


if __name__ == "__main__":
    asyncio.run(main())
