"""The next ask after orders that were refused, or that failed: no sender slows an entity down.

    python -m benchmarks.refusals [--rounds 500]

One node, one client, one entity for each kind. A round asks six times and then times one valid ask.
The six are valid; or they name no handler, so that an error answers them which the entity never
sees; or they are refused by a `Rejection`; or they raise another error, which restarts the entity.
The kinds take turns. `more` is how much longer the median of the timed ask is than after those that
name no handler, 0.05 being 5 %: any error runs code that is less warm than the code of an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import emit, median
from benchmarks.nodes import Node, settled, wait
from shardbus import AsyncClient, Entity, EntityFailed, Rejection, ShardBus, Unhandled, handler

bus = ShardBus("refusals")
ORDERS = 6
KINDS = {"valid": 1, "unhandled": 0, "refused": 4, "failed": -1}
"""The amount that is ordered before the timed ask; 0: the order names no handler."""


@dataclass
class OutOfStock(Rejection):
    """Say how many are left."""

    left: int


@bus.entity(name="article", shards=8)
class Article(Entity):
    """Sell up to three at a time."""

    @handler
    def order(self, amount: int) -> int:
        """Refuse too high an amount, and fail for a value that is no amount."""
        if amount > 3:
            raise OutOfStock(3)
        if amount < 0:
            raise ValueError(amount)
        return amount


async def next_ask_s(client: AsyncClient, kind: str) -> float:
    """Return the seconds of a valid ask after six of this kind."""
    amount, entity_id = KINDS[kind], f"article-{kind}"
    article: Any = client.ref(Article, entity_id)
    for _ in range(ORDERS):
        with contextlib.suppress(OutOfStock, EntityFailed, Unhandled):
            if amount:
                await article.order(amount)
            else:
                await client.call(Article, entity_id, "nothing")
    began = time.perf_counter()
    await article.order(1)
    return time.perf_counter() - began


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=500)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        node = Node(folder, [], app="benchmarks.refusals:bus")
        try:
            await wait(lambda: settled([node]), "the node")
            async with AsyncClient(f"tcp://{node.address}", cluster=bus.name) as client:
                taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
                for _ in range(rounds):
                    for kind in KINDS:
                        taken[kind].append(await next_ask_s(client, kind))
        finally:
            node.kill()
    for kind, seconds in taken.items():
        emit(f"refusals/after_{kind}", 1e6 * median(seconds), "us", rounds=rounds)
    for kind in ("refused", "failed"):
        more = median(taken[kind]) / median(taken["unhandled"]) - 1
        emit(f"refusals/after_{kind}_more", more, "x", of="unhandled")


if __name__ == "__main__":
    asyncio.run(main())
