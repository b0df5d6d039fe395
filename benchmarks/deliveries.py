"""Measure deliveries beside asks of the same handlers, in turn, at one node.

One producer, 10,000 entities, 256 in flight: of counters without state, of carts that save each
change in Redis, of the same carts with durable mailboxes (`mailbox`), and by an outbox of the
producer (`outbox`), whose run ends when all of its messages are confirmed. The processor time of
both processes for one message is measured, too: it depends less on how busy the machine is.

    python -m benchmarks.deliveries [counter] [cart] [mailbox] [outbox]

BENCH_RUNS (3) and BENCH_SECONDS (4) make it shorter or longer.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import IDS, IN_FLIGHT, RUNS, SECONDS, Side, asked, emit, median
from benchmarks.saves import saving
from benchmarks.saves_app import DurableCart
from benchmarks.sides import Product
from shardbus.client.outbox import ClientOutbox
from tests.redis_server import RedisServer

SIZE = 100
"""Bytes of the state of a cart."""


class Delivered(Side):
    """Deliver to the entities of another side's node, of another type if it is given."""

    name = "deliver"

    def __init__(self, product: Product, kind: type | None = None) -> None:
        self._product, self.host, self._kind = product, product.host, kind
        self._calls: dict[str, Any] = {}

    async def __aexit__(self, *_: object) -> None:
        """Leave the node to the other side."""

    def ask(self, entity_id: str) -> Any:
        """Deliver to one entity."""
        if self._kind is None:
            return self._product._call(entity_id).deliver(self._product.message)
        call = self._calls.get(entity_id)
        if call is None:
            ref: Any = self._product.client.ref(self._kind, entity_id)
            call = self._calls[entity_id] = ref.put
        return call.deliver(self._product.message)


class Sent(Delivered):
    """Send to the entities of another side's node by an outbox."""

    name = "send"

    def __init__(self, product: Product, outbox: ClientOutbox) -> None:
        super().__init__(product)
        self._outbox = outbox

    def ask(self, entity_id: str) -> Any:
        """Send to one entity."""
        return self._outbox.send(self._product._call(entity_id), self._product.message)

    async def settled(self) -> None:
        """Wait until everything is confirmed."""
        while self._outbox.unconfirmed:
            await asyncio.sleep(0.005)


async def timed(side: Side, seconds: float) -> tuple[float, int]:
    """Return messages a second, until all are confirmed, and their number."""
    begun = time.monotonic()
    _, taken = await asked(side, IN_FLIGHT, seconds)
    if isinstance(side, Sent):
        await side.settled()
    return len(taken) / (time.monotonic() - begun), len(taken)


async def compare(kind: str, product: Product, delivered: Delivered) -> None:
    """Measure both sides of one node."""
    sides: list[Side] = [product, delivered]
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    costs: dict[str, list[tuple[float, float]]] = {side.name: [] for side in sides}
    for side in sides:
        for at in range(0, len(IDS), IN_FLIGHT):
            await asyncio.gather(*(side.ask(entity_id) for entity_id in IDS[at : at + IN_FLIGHT]))
        await timed(side, 0.5)
    for _ in range(RUNS):
        for side in sides:
            before, mine = (await side.host.ask("cpu"))["cpu"], time.process_time_ns()
            rate, handled = await timed(side, SECONDS)
            after, count = (await side.host.ask("cpu"))["cpu"], 1000 * handled
            rates[side.name].append(rate)
            elapsed = time.process_time_ns() - mine
            costs[side.name].append(((after - before) / count, elapsed / count))
    for side in sides:
        name, runs = f"deliveries/{kind}/{side.name}", [round(rate) for rate in rates[side.name]]
        emit(name, median(rates[side.name]), "req/s", runs=runs)
        for which, where in enumerate(("host", "producer")):
            spent = [cost[which] for cost in costs[side.name]]
            emit(f"{name}_{where}", median(spent), "us", least=round(min(spent), 2))
    asks, others = (rates[side.name] for side in sides)
    pairs = [a / b for a, b in zip(others, asks, strict=True)]
    shown = [round(pair, 3) for pair in pairs]
    emit(f"deliveries/{kind}/ratio_rate", median(pairs), "x", of="asks", pairs=shown)


async def main() -> None:
    """Measure and print."""
    kinds = sys.argv[1:] or ["counter", "cart", "mailbox", "outbox"]
    if "counter" in kinds:
        async with Product() as product:
            await compare("counter", product, Delivered(product))
    for kind in ("cart", "mailbox", "outbox"):
        if kind not in kinds:
            continue
        with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder)) as server:
            async with saving(f"redis://127.0.0.1:{server.port}/0") as product:
                product.message = bytes(SIZE)
                if kind == "outbox":
                    async with product.client.outbox("bench") as outbox:
                        await compare(kind, product, Sent(product, outbox))
                else:
                    to = DurableCart if kind == "mailbox" else None
                    await compare(kind, product, Delivered(product, to))


if __name__ == "__main__":
    asyncio.run(main())
