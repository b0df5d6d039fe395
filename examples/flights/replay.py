"""The producer: sends every row to its aircraft, and repeats a row until it is answered.

Rows of one aircraft are sent one after the other; rows of different aircraft are sent concurrently,
up to a bound. After an error that does not say whether the row was applied, the row is sent again
under the same number, and the aircraft applies it once. A permanent error is not retried. A row
without a tail number has no entity; the library refuses its empty id, and the row is counted as
refused.

python -m examples.flights.replay tcp://127.0.0.1:7355
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

from examples.flights.app import TRACED, Aircraft, bus
from examples.flights.rows import Row, read
from examples.flights.traces import RATIO
from shardbus import (
    AskTimeout,
    AsyncClient,
    BufferFull,
    ConfigError,
    EntityFailed,
    MailboxFull,
    NodeLost,
    ShardBusError,
)

T = TypeVar("T")
SIDE_BY_SIDE = 512
ATTEMPTS = 40
PAUSE_S, PAUSE_MAX_S = 0.02, 1.0
PASSING = (NodeLost, AskTimeout, EntityFailed, BufferFull, MailboxFull)
"""Errors after which the same row may be sent again."""


class GaveUp(Exception):
    """No answer came after many attempts. The call may have been handled."""

    def __init__(self, last: Exception) -> None:
        super().__init__(f"{ATTEMPTS} attempts, the last: {type(last).__name__}: {last}")


async def insist(call: Callable[[], Awaitable[T]], resent: Counter[str]) -> T:
    """Repeat a call until it is answered. `resent` counts the repetitions by the error before.

    Raises:
        GaveUp: no answer came.
    """
    pause = PAUSE_S
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await call()
        except PASSING as error:
            if attempt == ATTEMPTS:
                raise GaveUp(error) from error
            resent[type(error).__name__] += 1
        await asyncio.sleep(pause)
        pause = min(2 * pause, PAUSE_MAX_S)
    raise AssertionError("unreachable")


async def paced(rows: Iterable[Row], rate: float = 0.0) -> AsyncIterator[Row]:
    """Yield the rows, at most `rate` per second; 0 is no limit."""
    now = asyncio.get_running_loop().time
    began = now()
    for number, row in enumerate(rows):
        early = began + number / rate - now() if rate else 0.0
        if early > 0:
            await asyncio.sleep(early)
        yield row


class Replay:
    """One run of the producer."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.recorded = 0
        self.refused = 0
        self.refusal = ""
        """The error of the first row that the library refused."""
        self.resent: Counter[str] = Counter()
        """Repeated rows, by the error of the attempt before."""
        self._slots = asyncio.Semaphore(SIDE_BY_SIDE)
        self._waiting: dict[str, deque[Row]] = {}

    @property
    def done(self) -> int:
        """Rows that are recorded or refused."""
        return self.recorded + self.refused

    async def run(self, rows: AsyncIterator[Row]) -> None:
        """Send all rows; return when each is recorded or refused.

        Raises:
            GaveUp: in a group, for each row that could not be recorded.
        """
        async with asyncio.TaskGroup() as group:
            async for row in rows:
                await self._slots.acquire()
                self._take(row, group)

    def _take(self, row: Row, group: asyncio.TaskGroup) -> None:
        """Queue the row behind the others of its aircraft."""
        waiting = self._waiting.get(row.tailnum)
        if waiting is not None:
            waiting.append(row)
            return
        try:
            aircraft = self.client.ref(Aircraft, row.tailnum)
        except ConfigError as error:
            self.refused += 1
            self.refusal = self.refusal or f"{type(error).__name__}: {error}"
            self._slots.release()
            return
        self._waiting[row.tailnum] = deque([row])
        group.create_task(self._in_order(row.tailnum, aircraft))

    async def _in_order(self, tailnum: str, aircraft: Aircraft) -> None:
        waiting = self._waiting[tailnum]
        while waiting:
            row = waiting[0]
            await insist(partial(aircraft.record, row.seq, row.flight), self.resent)
            waiting.popleft()
            self.recorded += 1
            self._slots.release()
        del self._waiting[tailnum]


async def main(addresses: list[str]) -> None:
    """Replay the month into a running cluster."""
    client = AsyncClient(*addresses, cluster=bus.name, tracing=TRACED, trace_ratio=RATIO)
    async with client:
        replay = Replay(client)
        await replay.run(paced(read()))
    again = ", ".join(f"{count} after {error}" for error, count in replay.resent.items())
    print(f"recorded {replay.recorded} rows, sent again: {again or 'none'}")
    print(f"refused {replay.refused} rows: {replay.refusal}")


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1:]))
    except ShardBusError as failed:
        sys.exit(f"replay: {failed}")
