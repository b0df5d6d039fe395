"""The bookkeeping of a disk's replicated values: stamps, tombstones, and recent changes.

**Stamps.** A write that this disk takes gets the next number above every counter in its rows, its
own and others'. The rows are in its log, so the numbers never go back: a stamp that a crash took
away was in no answer.

**Tombstones** go once every disk of their partition has them. A disk proves this by digests: if
each other disk has shown the digest that the bucket has here, all have the same rows, tombstones
included (`moves`). Then it writes the clocks of the bucket's tombstones into one row of the bucket
(`removed_key`), which merges and travels as any other row. A tombstone whose clock that row covers
is dropped, here and on each disk that gets the row; no message says so.

From then on a key without a row counts as dropped up to that clock. At the moment of the proof each
event that the clock covers was on every disk. So a dot that the clock covers, of a key that has no
row here, was dropped: a late message does not bring it back, and its sender gets `Gone`. A disk
that does not have all rows of the partition yet does not conclude this. It takes such a row; reads
compare it with other disks, for which the key is dropped.

**Changes.** `recent` has the last keys that changed, numbered, for watchers (`ListChanges`). The
numbers are of one run of the replica. A watcher whose last number is too old reads everything anew.

Source: docs/how-to/replicated-values.md; S3.86-S3.88.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from shardbus.replication.messages import EMPTY, KeysChanged, ListChanges, Row
from shardbus.replication.values import DATA, SEPARATOR, bucket_of
from shardbus.replication.versions import Clock, DataValue, clock_of

CHANGES_KEPT = 10_000
CHANGES_SHOWN = 1000
"""Keys of one answer, at most."""


class DataRows:
    """The facts about the replicated values of one disk. `disk`: its id."""

    __slots__ = ("count", "counter", "disk", "recent", "run", "tombstones", "until")

    def __init__(self, disk: int) -> None:
        self.disk = disk
        self.counter = 0
        """The highest counter in any row."""
        self.tombstones: dict[int, dict[str, Clock]] = {}
        """By bucket and key, with their clocks."""
        self.count = 0
        """Rows."""
        self.run = 1
        """Set by the driver to a random number; above 0."""
        self.until = 0
        """Changes since the start."""
        self.recent: deque[tuple[int, str]] = deque(maxlen=CHANGES_KEPT)

    def note(self, key: str, before: Row, after: Row | None) -> None:
        """The row of a key has changed; `after` None: it was dropped."""
        if before is not EMPTY:
            self.count -= 1
        if after is not None and isinstance(after.value, DataValue):
            self.count += 1
            self.counter = max([self.counter, *(counter for _, counter in after.value.clock)])
        if key[0] == DATA:
            self._note_tombstone(key, after)
            if after is not None:
                self.until += 1
                self.recent.append((self.until, key))

    def _note_tombstone(self, key: str, after: Row | None) -> None:
        bucket = bucket_of(key)
        if after is not None and isinstance(after.value, DataValue) and not after.value.dots:
            self.tombstones.setdefault(bucket, {})[key] = after.value.clock
        elif key in (dropped := self.tombstones.get(bucket, {})):
            del dropped[key]
            if not dropped:
                del self.tombstones[bucket]

    def clock_of_tombstones(self, bucket: int) -> Clock:
        """Return the clock that covers a bucket's tombstones."""
        clocks: Iterable[Clock] = self.tombstones.get(bucket, {}).values()
        return clock_of(stamp for clock in clocks for stamp in clock)

    def changes(self, request: ListChanges) -> KeysChanged:
        """Return the keys that changed since a number, about `CHANGES_SHOWN` of them."""
        oldest = self.recent[0][0] if self.recent else self.until + 1
        if request.run != self.run or request.since + 1 < oldest:
            return KeysChanged(self.run, self.until, (), complete=False)
        keys: dict[str, None] = {}
        until = self.until
        prefix = f"{DATA}{SEPARATOR}{request.prefix}"
        for back in range(self.until - request.since, 0, -1):
            number, key = self.recent[-back]
            if key.startswith(prefix):
                keys[key] = None
            if len(keys) >= CHANGES_SHOWN:
                until = number
                break
        return KeysChanged(self.run, until, tuple(keys), complete=True)
