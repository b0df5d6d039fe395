"""Measure the cost of metrics: tells and asks without samples of latencies, and as they are shipped
while a monitoring system reads `/metrics` every five seconds.

    python -m benchmarks.metered [WORK ...] [--pairs 8] [--slice 5]

How sides are compared is in `benchmarks.turns`. Counters are plain additions and cannot be turned
off; samples, at both ends, and the page are the cost.

    off     no sample of latencies at the node and the client, and no reader: the ratio of both
    on      as shipped; the page is read once in each slice, in its middle
"""

from __future__ import annotations

import asyncio
from urllib.request import urlopen

from benchmarks.sides import Product
from benchmarks.turns import options_of, run
from shardbus.transport import sent_messages


class Unsampled(Product):
    """A node and a client that take no sample of latencies."""

    async def __aenter__(self) -> Unsampled:
        kept, sent_messages.SAMPLES_S = sent_messages.SAMPLES_S, 0
        try:
            await super().__aenter__()
        finally:
            sent_messages.SAMPLES_S = kept
        return self


def page(port: int) -> None:
    """Read the page, as a monitoring system does."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        answer.read()


def main() -> None:
    """Compare."""
    options = options_of("Measure what metrics cost.", pairs=8, seconds=5.0)

    async def read(side: Product) -> None:
        await asyncio.sleep(options.seconds / 2)
        await asyncio.to_thread(page, side.http)

    sides = [
        Unsampled("off", app="benchmarks.unsampled"),
        Product("on"),
        Unsampled("off again", app="benchmarks.unsampled"),
    ]
    asyncio.run(run("metered", sides, options, {"on": read}))


if __name__ == "__main__":
    main()
