"""Send for `benchmarks.splits`, in a process of its own: tells at a fixed rate, whatever returns.

    python -m benchmarks.splits_load FOLDER PRODUCER PAGES RATE ADDRESS...

Standard input has a word a line; the answer is one JSON line. `go`: tell the pages in turn, RATE a
second. `rest`: stop, and wait until nodes have acknowledged everything. `count`: the sums so far.
Each tell is a row in FOLDER/told-PRODUCER: page, number, nanoseconds since boot.

One in 101 messages has a handler that waits for a second. The sender does not wait for a tell;
one that has no room is refused, counted, and is no tell.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from typing import Any

from benchmarks.splits_app import Page, boot_ns, bus
from shardbus import AsyncClient, RequestError

STEP_S = 0.005
LINGERS = 101
"""No divisor of the number of pages, so that all pages have such handlers."""
LINGER_S = 1.0
FLUSH_S = 30.0


class Producer:
    """Sends, and writes down sent messages."""

    def __init__(self, client: AsyncClient, path: str, number: int, pages: int) -> None:
        self.client, self.path, self.number = client, path, number
        self.seq = 0
        self.refused: Counter[str] = Counter()
        self._refs: list[Any] = [client.ref(Page, str(n)) for n in range(pages)]

    async def go(self, rate: float, stop: asyncio.Event) -> None:
        """Send at this rate until a stop."""
        begun, sent = time.monotonic(), 0
        rows = array.array("q")
        while not stop.is_set():
            due = int((time.monotonic() - begun) * rate) + 1
            for _ in range(sent, due):
                self._send(rows)
            sent = max(sent, due)
            await asyncio.sleep(STEP_S)
        with open(self.path, "ab") as file:
            rows.tofile(file)

    def _send(self, rows: array.array[int]) -> None:
        self.seq += 1
        seq, page = self.seq, self.seq % len(self._refs)
        ref, now = self._refs[page], boot_ns()
        try:
            if seq % LINGERS:
                ref.hit.tell_nowait(self.number, seq)
            else:
                ref.linger.tell_nowait(self.number, seq, LINGER_S)
        except RequestError as error:
            self.refused[type(error).__name__] += 1
        else:
            rows.extend((page, seq, now))

    async def rest(self) -> dict[str, Any]:
        """Wait until everything is acknowledged, for a while."""
        flushed = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self.client.flush()
                flushed = True
        return {"flushed": flushed}

    def count(self) -> dict[str, Any]:
        """Return the sums."""
        return {
            "told": self.seq - sum(self.refused.values()),
            "not_told": dict(self.refused),
            "lost": self.client.lost_messages,
            "refused": dict(self.client.refused_messages),
        }


async def main(folder: str, number: int, pages: int, rate: float, *nodes: str) -> None:
    """See the module."""
    words = asyncio.StreamReader()
    reading = asyncio.StreamReaderProtocol(words)
    await asyncio.get_running_loop().connect_read_pipe(lambda: reading, sys.stdin)
    async with AsyncClient(*nodes, cluster=bus.name) as client:
        producer = Producer(client, f"{folder}/told-{number}", number, pages)
        await client.ref(Page, "0").hit.tell(0, 0)
        stop, sending = asyncio.Event(), None
        while word := (await words.readline()).decode().strip():
            if word == "go":
                stop.clear()
                sending = asyncio.create_task(producer.go(rate, stop))
                print("{}", flush=True)
            elif word == "rest" and sending is not None:
                stop.set()
                await sending
                print(json.dumps(await producer.rest()), flush=True)
            elif word == "count":
                print(json.dumps(producer.count()), flush=True)


if __name__ == "__main__":
    where, *numbers = sys.argv[1:5]
    asyncio.run(main(where, int(numbers[0]), int(numbers[1]), float(numbers[2]), *sys.argv[5:]))
