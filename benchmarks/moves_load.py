"""Send for `benchmarks.moves`, in a process of its own: asks and tells at a fixed rate, whatever
returns.

    python -m benchmarks.moves_load FOLDER FIRST COUNT RATE LIMIT ADDRESS...

Entities FIRST to FIRST + COUNT - 1 get asks and tells in turn, RATE of each a second, until
standard input is closed or LIMIT of each are sent (0: no limit). It prints `running` when it begins
and one JSON line at its end, and leaves `told` and `asked` in FOLDER: rows as in
`benchmarks.moves_counts`.

The sender does not wait for a tell. If the send buffer is full, the tell is refused; the sender
counts it as refused and not as a tell.
"""

from __future__ import annotations

import array
import asyncio
import json
import sys
import time
from collections import Counter
from functools import partial
from typing import Any

from benchmarks.moves_app import Thing, bus
from shardbus import AsyncClient, RequestError

STEP_S = 0.001
ASK_TIMEOUT_S = 1.0
END_WITHIN_S = 30.0


class Sender:
    """Sends, and writes down messages and answers."""

    def __init__(self, client: AsyncClient, first: int, count: int) -> None:
        self.entities = range(first, first + count)
        self.tells = array.array("q")
        self.asks = array.array("q")
        self.outcomes: Counter[str] = Counter()
        self.refused = 0
        self.late = 0.0
        """Seconds by which the sender itself was behind at its worst."""
        self._refs: list[Any] = [client.ref(Thing, str(n)) for n in self.entities]
        self._waiting: set[asyncio.Future[object]] = set()

    async def run(self, rate: float, limit: int, stop: asyncio.Event) -> None:
        """Send at this rate until a stop, then wait for every outcome."""
        begun, sent = time.monotonic(), 0
        while not stop.is_set() and sent < limit:
            since = time.monotonic() - begun
            self.late = max(self.late, since - sent / rate)
            due = min(int(since * rate) + 1, limit)
            for turn in range(sent, due):
                self._send(turn % len(self.entities))
            sent = max(sent, due)
            await asyncio.sleep(STEP_S)
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=END_WITHIN_S)

    def _send(self, index: int) -> None:
        entity, ref = self.entities[index], self._refs[index]
        sent = time.monotonic_ns()
        asking: asyncio.Future[object] = ref.echo()
        self._waiting.add(asking)
        asking.add_done_callback(partial(self._answered, entity, sent))
        number = time.monotonic_ns()
        try:
            ref.note.tell_nowait(number)
        except RequestError:
            self.refused += 1
        else:
            self.tells.extend((entity, number))

    def _answered(self, entity: int, sent: int, asking: asyncio.Future[object]) -> None:
        self._waiting.discard(asking)
        error = asking.exception()
        self.asks.extend((entity, sent, 0 if error else time.monotonic_ns()))
        if error:
            self.outcomes[type(error).__name__] += 1


async def main(folder: str, first: int, count: int, rate: float, limit: int, *nodes: str) -> None:
    """See the module."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    async with AsyncClient(*nodes, cluster=bus.name, timeout=ASK_TIMEOUT_S) as client:
        sender = Sender(client, first, count)
        print("running", flush=True)
        await sender.run(rate, limit or sys.maxsize, stop)
        async with asyncio.timeout(END_WITHIN_S):
            await client.flush()
        lost_batches = client.lost_messages
    for name, rows in (("told", sender.tells), ("asked", sender.asks)):
        with open(f"{folder}/{name}", "wb") as file:
            rows.tofile(file)
    end = {
        "refused": sender.refused,
        "outcomes": sender.outcomes,
        "late_ms": round(1000 * sender.late, 1),
        "batches_lost": lost_batches,
    }
    print(json.dumps(end), flush=True)


if __name__ == "__main__":
    where, *numbers = sys.argv[1:6]
    first_, count_, rate_, limit_ = map(int, numbers)
    asyncio.run(main(where, first_, count_, rate_, limit_, *sys.argv[6:]))
