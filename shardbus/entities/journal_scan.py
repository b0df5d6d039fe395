"""The scan of a type's journals for events that a projection has not handled.

    shards to scan ──> a page of journals ──> those of these shards
                            ^                    │ number of the part's record, last of the journal
                            │                    v
                            └── once there is room ── differ: news of this entity

A journal's home reports its own appends, so a scan is only for the past: a shard that has come
here, a part that was behind when its former home ended, a store that may have lost writes, and a
projection that is new. One pass goes over all journals of the type, page by page, for all shards
that need one; a shard that comes meanwhile gets the next pass. A page costs one read of records,
and the number of its journals in short reads, `AT_ONCE` of them at a time. If the store fails, the
pass goes on at the same page after a pause.

Stores list journals by type, not by shard. So the cost of a move grows with all journals of the
type: 2,000 pages for a million.

Source: docs/how-to/event-sourcing.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from shardbus.backoff import doubling
from shardbus.entities.projected_events import part_id
from shardbus.error_text import described
from shardbus.errors import StoreError
from shardbus.guarded_log import GuardedLog
from shardbus.projections.parts import PAUSE_MAX_S, PAUSE_S, SCANNED_MAX
from shardbus.store.journals import Journals
from shardbus.store.protocol import StateStore
from shardbus.task_set import TaskSet
from shardbus.wire.stored_state import split_numbered, split_record

log = GuardedLog("shardbus.projections")

PAGE = SCANNED_MAX // 2
"""Journals of a page, about; a store may return more."""
AT_ONCE = 32
"""Short reads that are under way at once."""
ROOM_S = 0.2
"""Between two looks whether there is room."""

Numbers = Callable[[Sequence[str]], Awaitable[list[int]]]
"""As `stored_numbers` of one projection."""


def split_place(data: bytes | None) -> tuple[int, bytes]:
    """Return the number of the last event and the state of the record of a part, stored as `data`;
    0 and nothing if there is none.

    Raises:
        ValueError: it cannot be read.
    """
    _, alone = split_record(data or b"")
    return split_numbered(alone)


async def stored_numbers(
    store: StateStore, projection: str, source_ids: Sequence[str]
) -> list[int]:
    """Return, of each of these entities, the number of the last event that its part has handled; -1
    if the record cannot be read. Raises StoreError."""
    keys = [part_id(source_id, projection) for source_id in source_ids]
    numbers = []
    for data in await store.read_states(projection, keys):
        try:
            numbers.append(split_place(data)[0])
        except ValueError:
            numbers.append(-1)
    return numbers


@dataclass(eq=False, repr=False)
class JournalScan:
    """Scans the journals of `source`, the type whose events the projection `name` handles.
    `shard_of(id)` is the shard of an entity, empty if it is unknown. `news(shard, id)` takes an
    entity that is behind, and `has_room()` says whether a page of them may come."""

    _name: str
    _source: str
    _journals: Journals
    _numbers: Numbers
    _shard_of: Callable[[str], str]
    _news: Callable[[str, str], None]
    _has_room: Callable[[], bool]
    _loop: asyncio.AbstractEventLoop
    _waiting: set[str] = field(default_factory=set)
    """Shards of the next pass."""
    _scanned: set[str] = field(default_factory=set)
    """Shards of the pass that runs."""
    _tasks: TaskSet = field(default_factory=TaskSet)
    _runs: bool = False

    @property
    def shards(self) -> int:
        """Shards that are not scanned to the end yet."""
        return len(self._waiting | self._scanned)

    def add(self, shards: Iterable[str]) -> None:
        """Scan these shards from their first journal on."""
        self._waiting.update(shards)
        if self._waiting and not self._runs:
            self._runs = True
            self._tasks.spawn(self._run(), self._loop)

    def forget(self, shard: str) -> None:
        """Leave out a shard: it has left this node."""
        self._waiting.discard(shard)
        self._scanned.discard(shard)

    def stop(self) -> None:
        """End the scan: the node ends."""
        self._tasks.cancel()

    async def _run(self) -> None:
        try:
            while self._waiting:
                self._scanned, self._waiting = self._waiting, set()
                await self._pass()
                self._scanned = set()
        finally:
            self._runs = False

    async def _pass(self) -> None:
        """Go over all journals once. A page that fails is repeated."""
        cursor: str | None = None
        failures = 0
        while self._scanned:
            while not self._has_room():
                await asyncio.sleep(ROOM_S)
            try:
                page, after = await self._journals.page(self._source, cursor, PAGE)
                await self._compare([name for _, name in page])
            except StoreError as error:
                failures += 1
                log.warning("the journals for %s: %s", self._name, described(error))
                await asyncio.sleep(doubling(PAUSE_S, PAUSE_MAX_S, failures))
                continue
            failures, cursor = 0, after
            if cursor is None:
                return

    async def _compare(self, names: Sequence[str]) -> None:
        """Report the entities of a page that are behind and whose shards are scanned."""
        placed = [(self._shard_of(name), name) for name in names]
        mine = [(shard, name) for shard, name in placed if shard in self._scanned]
        if not mine:
            return
        numbers = await self._numbers([name for _, name in mine])
        for begin in range(0, len(mine), AT_ONCE):
            part = mine[begin : begin + AT_ONCE]
            reads = (self._journals.read(self._source, shard, name, 0, 0) for shard, name in part)
            heads = await asyncio.gather(*reads)
            for (shard, name), head, number in zip(part, heads, numbers[begin:], strict=False):
                if head.last != number and shard in self._scanned:
                    self._news(shard, name)
