"""The producer: sends every row to its aircraft, and each of them until it is answered.

The rows of an aircraft go one after the other, those of different aircraft side by side, up to a
bound. An error that leaves open whether the row was applied is no problem: the row is sent again
under the same number, and the aircraft applies it once. An error that would come again is not
repeated. A row without a tail number has no entity; the library refuses its empty id, and the row
is counted as refused.

python -m examples.flights.replay tcp://127.0.0.1:7355
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

from examples.flights.app import Aircraft, bus
from examples.flights.rows import Row, read
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
    """No answer after many attempts. What was asked for may have been done."""

    def __init__(self, last: Exception) -> None:
        super().__init__(f"{ATTEMPTS} attempts, the last: {type(last).__name__}: {last}")


async def insist(call: Callable[[], Awaitable[T]], resent: Counter[str]) -> T:
    """Ask until there is an answer. Counts in `resent` what was asked again, by the error before.

    Raises:
        GaveUp: none came.
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
    """The rows, at most `rate` of them a second; 0 is as fast as they are taken."""
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
        """What the library said to the first row that it refused."""
        self.resent: Counter[str] = Counter()
        """Rows sent again, by the error of the attempt before."""
        self._slots = asyncio.Semaphore(SIDE_BY_SIDE)
        self._waiting: dict[str, deque[Row]] = {}

    @property
    def done(self) -> int:
        """Rows that are recorded or refused."""
        return self.recorded + self.refused

    async def run(self, rows: AsyncIterator[Row]) -> None:
        """Send all rows; returns when each is recorded or refused.

        Raises:
            GaveUp: in a group, for each row that could not be recorded.
        """
        async with asyncio.TaskGroup() as group:
            async for row in rows:
                await self._slots.acquire()
                self._take(row, group)

    def _take(self, row: Row, group: asyncio.TaskGroup) -> None:
        """Put the row behind the others of its aircraft."""
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
    """Replay the month into a cluster that runs."""
    async with AsyncClient(*addresses, cluster=bus.name) as client:
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
