"""The replicated values of a simulated cluster's store. One disk stands for all replicas.

Reads, writes and listings have the latency and the failures of the store's other requests. A disk
that has lost rows, or was set back, stamps as another disk from then on, as a real one does.

Source: docs/simulation.md; docs/how-to/replicated-values.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping

from shardbus.errors import StoreUnavailable, ValueRefused
from shardbus.replication.quorum import Level
from shardbus.replication.versions import NOTHING, DataChange, DataValue, NotTaken, taken
from shardbus.simulation.nodes.journals import Request
from shardbus.store.replicated_values import Since, belongs, watch_values


class ValueDisk:
    """The values, by name."""

    def __init__(self) -> None:
        self.rows: dict[str, DataValue] = {}
        self.changed: list[str] = []
        """The names that were written, in order."""
        self._disk, self._counter = 1, 0

    @property
    def run(self) -> int:
        """The number of this run of the disk."""
        return self._disk

    def write(self, name: str, change: DataChange) -> DataValue:
        """Take a write.

        Raises:
            ValueRefused: nothing was written.
        """
        outcome = taken(self.rows.get(name, NOTHING), self._disk, self._counter, change)
        if isinstance(outcome, NotTaken):
            raise ValueRefused(name, outcome.reason, outcome.detail, change.limit)
        self.rows[name], self._counter = outcome
        self.changed.append(name)
        return self.rows[name]

    def replace(self, rows: Mapping[str, DataValue]) -> None:
        """Have these rows instead, as another disk."""
        self.rows, self.changed = dict(rows), []
        self._disk += 1
        self._counter = 0


class SimValues:
    """One process's client. `record` is called with the name of each value that is written."""

    is_open = True

    def __init__(self, disk: ValueDisk, request: Request, record: Callable[[str], None]) -> None:
        self._disk, self._request, self._record = disk, request, record
        self.counts: Counter[tuple[str, str]] = Counter()

    def replicas_of(self, name: str) -> list[str]:
        return ["simulated"]

    async def get(self, name: str, level: Level) -> DataValue:
        async def read() -> DataValue:
            return self._disk.rows.get(name, NOTHING)

        try:
            value: DataValue = await self._request(read)
        except StoreUnavailable as error:
            self.counts["get", "failed"] += 1
            error.definite = True  # nothing was written
            raise
        self.counts["get", "done"] += 1
        return value

    async def write(self, name: str, change: DataChange, level: Level) -> DataValue:
        async def write() -> DataValue:
            value = self._disk.write(name, change)
            self._record(name)
            return value

        value: DataValue = await self._request(write)
        self.counts["write", "done"] += 1
        return value

    async def keys(self, prefix: str) -> list[str]:
        async def read() -> list[str]:
            rows = self._disk.rows.items()
            names = [n for n, value in rows if value.dots and n.startswith(prefix)]
            return sorted(name for name in names if belongs(name, prefix))

        return await self._request(read)

    async def changed(self, prefix: str, since: Since) -> tuple[set[str], bool]:
        async def read() -> tuple[int, int, list[str]]:
            run, seen = since.get(0, (0, 0))
            rows = self._disk.changed
            return self._disk.run, len(rows), rows[seen:] if run == self._disk.run else rows

        run, until, names = await self._request(read)
        complete = run == since.get(0, (0, 0))[0]
        since[0] = run, until
        mine = {name for name in names if name.startswith(prefix) and belongs(name, prefix)}
        return mine, complete

    async def watch(self, prefix: str, level: Level) -> AsyncGenerator[tuple[str, DataValue], None]:
        async for name, value in watch_values(self, prefix, level):
            yield name, value
