"""The turns of a replica: changes in memory are written and synced, and then answers leave.

    rows and places in memory ──> answers wait ──┐
                                                 ├─ a turn: one write, one sync ──> answers leave
    rows and places in memory ──> answers wait ──┘

A turn is all that came while the last one was written. Its records are written and synced in a
thread; meanwhile the loop handles further calls for the next turn. An answer shows rows, so it
leaves only once everything that was in memory before it is synced. A turn without records needs no
sync.

**Rewriting.** When the log is at its limit, every row is written again, some with each turn, and
then the older segments go (`replication.log`). A change of a row that is not written again yet is
written as the whole row, because the row that it is a change of goes with the older segments. The
last of these turns has the place in the ring and the facts of the disk.

**Failure.** After a write or a sync that failed, nothing of that turn is answered, and the process
ends, because the rows in its memory differ from the rows on its disk.

Source: docs/architecture.md; S2.32, S3.85.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from shardbus.guarded_log import GuardedLog
from shardbus.replica.disk import ReplicaDisk
from shardbus.replication.messages import (
    ZERO,
    ChangeRecord,
    PromiseRecord,
    Record,
    Row,
    ValueRecord,
)
from shardbus.replication.moves import DiskRecord, DiskStatus, RingDisk
from shardbus.replication.values import length_of
from shardbus.wire.disk_frames import DiskState, LogTurn, encode_turn

log = GuardedLog("shardbus.store")

REWRITTEN_ROWS, REWRITTEN_BYTES = 1000, 2**20
"""Rows that a turn writes anew, at most, and the bytes of their states after which it stops."""
WAITING_MAX = 100_000
"""Answers that wait for a sync, above which further calls are dropped."""


class _Turn(msgspec.Struct):
    """Calls that wait for the next sync, in their order."""

    calls: list[Callable[[], None]] = msgspec.field(default_factory=list)
    count: int = 0


class _Rewrite(msgspec.Struct):
    """Every row is written anew. `number`: the first segment that has them."""

    number: int
    remaining_keys: Iterator[str]
    unwritten: set[str]


class DiskTurns:
    """The writes of one disk. Belongs to one event loop, from `start` on.

    Args:
        place: the rows and the place in memory.
        state: returns the facts of the disk, as they are to be stored.
        stored: these facts, as the disk has them.
        on_stored: called after a turn that has stored other facts or another place, with the
            former facts.
        on_failed: called once when the disk can be used no longer.
    """

    def __init__(
        self,
        disk: ReplicaDisk,
        place: RingDisk,
        state: Callable[[], DiskState],
        stored: DiskState,
        on_stored: Callable[[DiskState], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._disk, self._place, self._state = disk, place, state
        self._on_stored, self._on_failed = on_stored, on_failed
        self.stored = stored
        self.status: DiskStatus = place.status
        """The place, as it is synced."""
        self.count = 0
        """Turns that were written."""
        self.failed = False
        """Nothing is answered any more: the disk has failed, was given up, or is closed."""
        self._turn, self._writing = _Turn(), False
        self._rewrite: _Rewrite | None = None
        self._threads = ThreadPoolExecutor(1, "shardbus-disk")
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Write the first turn soon."""
        self._loop = asyncio.get_running_loop()
        self.soon()

    def close(self) -> None:
        """Wait for the turn that is being written, and close the disk."""
        self.failed = True
        self._threads.shutdown()
        self._disk.close()

    @property
    def is_full(self) -> bool:
        """True if too many answers wait for a sync."""
        return self._turn.count > WAITING_MAX

    def after_sync(self, call: Callable[[], None], answers: int = 1) -> None:
        """Call this once all that is in memory now is synced."""
        self._turn.calls.append(call)
        self._turn.count += answers
        self.soon()

    def soon(self) -> None:
        """Write a turn soon."""
        if not self._writing:
            self._writing = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Write the changes since the last turn; make the calls at once if there are none."""
        turn, self._turn = self._turn, _Turn()
        if self.failed:
            return
        self._writing = True
        begins = self._rewrite is None and self._disk.plan.wants_compaction
        if begins:
            keys = list(self._place.registers.rows)
            number = self._disk.plan.current + 1
            self._rewrite = _Rewrite(number, iter(keys), set(keys))
        records: Sequence[DiskRecord] = self._place.take_records()
        compacted = 0
        if self._rewrite is not None:
            records = self._whole_rows(records, self._rewrite)
            if not self._rewrite.unwritten:
                compacted = self._rewrite.number
                records.append(self._place.place)
        state, status = self._state(), self._place.status
        new_state = state if state != self.stored or compacted else None
        if not records and new_state is None and not begins:
            _make(turn)
            self._writing = False
            return
        body = encode_turn(LogTurn(records, new_state, compacted))
        work = self._threads.submit(self._write, body, begins, bool(compacted))
        work.add_done_callback(
            lambda done: self._post(partial(self._written, turn, state, status, done.exception()))
        )

    def _post(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop has ended
            return

    def _write(self, body: bytes, begins: bool, ends: bool) -> None:
        """Write and sync, in the thread of the disk."""
        if begins:
            self._disk.begin_compaction()
        self._disk.write(body)
        if ends:
            self._disk.end_compaction()

    def _written(
        self, turn: _Turn, state: DiskState, status: DiskStatus, error: BaseException | None
    ) -> None:
        if self.failed:
            return
        if error is not None:
            self.failed = True
            log.error("the replica ends: its disk %s failed: %s", self._disk.path, error)
            self._on_failed(f"the disk {self._disk.path} failed: {error}")
            return
        self.count += 1
        before, self.stored = self.stored, state
        changed = state != before or status != self.status
        self.status = status
        _make(turn)
        if changed:
            self._on_stored(before)
        self._writing = False
        if self._rewrite is not None and not self._rewrite.unwritten:
            self._rewrite = None
        if self._turn.calls or self._rewrite is not None or self._state() != self.stored:
            self.soon()

    def _whole_rows(self, records: Sequence[DiskRecord], rewrite: _Rewrite) -> list[DiskRecord]:
        """Return the records of a turn and some rows that are written anew."""
        whole, registers = list[DiskRecord](), self._place.registers
        for record in records:
            if isinstance(record, ChangeRecord) and record.key in rewrite.unwritten:
                whole += records_of(record.key, registers.row(record.key))
                rewrite.unwritten.discard(record.key)
            else:
                whole.append(record)
        written = weight = 0
        for key in rewrite.remaining_keys:
            if key not in rewrite.unwritten:
                continue
            rewrite.unwritten.discard(key)
            row = registers.row(key)
            whole += records_of(key, row)
            written += 1
            weight += length_of(row.value)
            if written >= REWRITTEN_ROWS or weight >= REWRITTEN_BYTES:
                break
        return whole


def _make(turn: _Turn) -> None:
    for call in turn.calls:
        call()


def records_of(key: str, row: Row) -> list[Record]:
    """Return the records that make this row."""
    records = list[Record]()
    if row.ballot > ZERO:
        records.append(ValueRecord(key, row.ballot, row.value))
    if row.promise > row.ballot:
        records.append(PromiseRecord(key, row.promise))
    return records
