"""Journals as lines of JSON: to read them, and to bring them to another store.

    {"type": "account", "id": "a", "shard": "7", "first": 1, "last": 12, "snapshot": "..."}
    {"number": 1, "event": "Deposited", "version": 1, "value": {"amount": 5}}

The first line names the journal: of an entity, or, under a reserved type, of a durable mailbox or
an outbox. `snapshot` has the stored bytes of the entity's state in base64, if there is one. `first`
is above 1 if the journal is trimmed. A line per entry follows: an event with its plain value
(`wire.plain_json`), or `raw`, its bytes in base64, where that would lose something, and for all
entries that are no events. An event that made a delivery done has its number in `delivery`:
[producer, era, seq, seconds since 1970], or [key, seconds, mark of the request] of an ask with a
key. One that ended a firing of a reminder has [its delivery, milliseconds since 1970].

**An import** keeps the numbers, because projections and outboxes go by them: before the first entry
of a trimmed journal it appends fillers, and trims them. It may be repeated: a journal that is there
already, as a whole or the beginning of it, is *the same*, and is completed. Any other one is
refused, kept or replaced, as the caller says.

Source: docs/how-to/event-sourcing.md; docs/how-to/back-up.md.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from shardbus.deliveries.numbers import DeliveryNumber, NumberKind
from shardbus.deliveries.record import FIRING, decode_done, encode_done, encode_firing
from shardbus.errors import ConfigError, Refused, StaleFence, StoreError
from shardbus.ids import check_id
from shardbus.store.journal_protocol import Append, JournalPage, JournalStore
from shardbus.store.outboxes import REGISTER_TYPE, raise_fence
from shardbus.store.protocol import StateStore
from shardbus.store.shared_states import SharedState, shared_in
from shardbus.store.transfer import StoredEntity, read_line, write_states
from shardbus.wire.plain_json import from_json, to_json
from shardbus.wire.schema import encode_value
from shardbus.wire.stored_events import stored_event, with_delivery
from shardbus.wire.stored_state import split_numbered, split_record

PAGE = 1000
ATTEMPTS = 5
"""Looks at a journal that a node changes meanwhile."""
APPENDED, APPENDED_BYTES = 500, 4 * 1024 * 1024
"""Entries of one append of an import, and the bytes after which it takes no more."""
FILLER, FILLERS = b"\x00", 10_000
"""An entry in the place of a removed one, and how many of them one append has."""
FILLERS_MAX = 10_000_000
"""Removed entries of a journal that can be imported."""
FENCE = 1
"""The fence of a journal that is imported: below every home's."""
HEAD_FIELDS = {"type", "id", "shard", "first", "last", "snapshot"}
ENTRY_FIELDS = {"number", "event", "version", "value", "delivery", "raw"}


class JournalHead(NamedTuple):
    """The first line of a journal. `snapshot`: stored bytes, None without one."""

    kind: str
    name: str
    shard: str
    first: int
    last: int
    snapshot: bytes | None


class JournalEntry(NamedTuple):
    """A line of a journal: the number of an entry, and its stored bytes."""

    number: int
    data: bytes


ExportLine = StoredEntity | SharedState | JournalHead | JournalEntry


def read_export_line(text: str | bytes) -> ExportLine:
    """Return the content of a line of an export.

    Raises:
        ConfigError: it is no such line.
    """
    try:
        row = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"it is no JSON: {error}") from None
    if isinstance(row, dict) and "number" in row:
        return _entry_in(row)
    if isinstance(row, dict) and "first" in row:
        return _head_in(row)
    if isinstance(row, dict) and "shared" in row:
        return shared_in(row)
    return read_line(text)


def _head_in(row: dict[str, Any]) -> JournalHead:
    if unknown := sorted(set(row) - HEAD_FIELDS):
        raise ConfigError(f"it has an unknown field {unknown[0]!r:.60}")
    kind, name, shard = (check_id(key, row.get(key, "")) for key in ("type", "id", "shard"))
    first, last, text = row.get("first"), row.get("last"), row.get("snapshot")
    if type(first) is not int or type(last) is not int or not 1 <= first <= last + 1 < 2**53:
        raise ConfigError("first and last are no numbers of entries")
    if first > FILLERS_MAX:
        raise ConfigError(f"{first - 1} entries of the journal were removed, more than can be held")
    try:
        snapshot = None if text is None else base64.b64decode(text, validate=True)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"snapshot: {error}") from None
    return JournalHead(kind, name, shard, first, last, snapshot)


def _entry_in(row: dict[str, Any]) -> JournalEntry:
    if unknown := sorted(set(row) - ENTRY_FIELDS):
        raise ConfigError(f"it has an unknown field {unknown[0]!r:.60}")
    if type(row["number"]) is not int:
        raise ConfigError(f"number is {row['number']!r:.60}")
    try:
        return JournalEntry(row["number"], _entry_of(row))
    except (KeyError, ValueError, TypeError, binascii.Error, StoreError) as error:
        raise ConfigError(f"the entry: {error!r:.200}") from None


async def journal_lines(
    store: StateStore, journals: JournalStore, kind: str, shard: str, name: str
) -> AsyncIterator[str]:
    """Yield the lines of a journal. Nothing is written, so it may run beside nodes.

    Raises:
        Refused: the entity has no journal. StoreUnavailable: the store does not answer.
        StoreError: a node removes entries meanwhile.
    """
    snapshot, page = await _begin(store, journals, (kind, shard, name))
    last = page.last
    if not last and snapshot is None:
        raise Refused(f"{kind} {name!r:.100} has no journal")
    head: dict[str, Any] = {"type": kind, "id": name, "shard": shard}
    head |= {"first": page.first, "last": last}
    if snapshot is not None:
        head["snapshot"] = base64.b64encode(snapshot).decode()
    yield _line(head)
    after = page.first - 1
    while after < last:
        if not page.entries or page.first != after + 1:
            raise _removed(kind, name)
        for number, entry in enumerate(page.entries[: last - after], page.first):
            yield _line({"number": number, **shown_event(entry)})
        after = page.end
        if after < last:
            page = await journals.read(kind, shard, name, after, PAGE)


async def _begin(
    store: StateStore, journals: JournalStore, place: tuple[str, str, str]
) -> tuple[bytes | None, JournalPage]:
    """Return the snapshot of a journal and its first page. A node may save a snapshot meanwhile,
    and remove the entries before it: then both are read again.

    Raises:
        StoreError: the node does so each time.
    """
    for _ in range(ATTEMPTS):
        [snapshot] = await store.read_states(place[0], [place[2]])
        page = await journals.read(*place, 0, PAGE)
        if page.first == 1 or (snapshot is not None and _number(snapshot) >= page.first - 1):
            return snapshot, page
        if [snapshot] == await store.read_states(place[0], [place[2]]):
            return snapshot, page  # what has no snapshots is trimmed, too
    raise _removed(place[0], place[2])


def _removed(kind: str, name: str) -> StoreError:
    return StoreError(
        f"entries of the journal {kind} {name!r:.100} are removed while it is read",
        hint="repeat it, or stop the nodes",
    )


def _number(snapshot: bytes) -> int:
    """Return the number of the last event of a snapshot; 0 if it has none, or is unreadable."""
    try:
        return split_numbered(split_record(snapshot)[1])[0]
    except ValueError:
        return 0


def shown_event(entry: bytes) -> dict[str, Any]:
    """Return the fields of an event, by which `_entry_of` makes it again."""
    try:
        event = stored_event(entry)
        row = {"event": event.name, "version": event.version, "value": to_json(event.value)}
        if event.delivery:
            row["delivery"] = _shown_delivery(event.delivery)
        if _entry_of(row) == entry:
            return row
    except (ValueError, TypeError, StoreError):
        pass
    return {"raw": base64.b64encode(entry).decode()}


def _entry_of(row: dict[str, Any]) -> bytes:
    """Return the stored form of an event of a line."""
    if "raw" in row:
        return base64.b64decode(row["raw"], validate=True)
    encode = msgspec.msgpack.encode
    body = encode_value(from_json(row["value"]))
    entry = b"\x93" + encode(row["event"]) + encode(row["version"]) + body
    return with_delivery(entry, _delivery_of(row["delivery"])) if "delivery" in row else entry


def _shown_delivery(data: bytes) -> list[str | int]:
    done = decode_done(data)
    if done.kind == FIRING:
        return [done.name, done.seq]
    if done.kind == NumberKind.KEYED:
        return [done.name, done.used, done.mark.hex()]
    return [done.name, done.era, done.seq, done.used]


def _delivery_of(shown: list[Any]) -> bytes:
    """Return the stored form of a delivery of a line. Raises ValueError, TypeError."""
    name, *numbers = shown
    if len(numbers) == 1:
        data = encode_firing(name, numbers[0])
    elif len(numbers) == 2:
        used, mark = numbers
        data = encode_done(None, name, used, bytes.fromhex(mark))
    else:
        era, seq, used = numbers
        number = DeliveryNumber(NumberKind.DELIVER, name, era, seq, 0, b"")
        data = encode_done(number, "", used)
    decode_done(data)
    return data


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


class JournalImporter:
    """Writes journals into a store, each by `begin`, `put` and `end`. `existing`: the treatment of
    another journal, or snapshot, that is there: `refuse`, `skip` or `replace`. `write` False only
    compares."""

    def __init__(
        self,
        store: StateStore,
        journals: JournalStore | None,
        *,
        existing: str = "refuse",
        write: bool = True,
    ) -> None:
        self._store, self._journals = store, journals
        self._existing, self._write = existing, write
        self._head: JournalHead | None = None
        self._there = self._next = 0
        """The last number in the store, and the next one of the lines."""
        self._fence, self._skips = FENCE, False
        self.written = self.same = self.skipped = 0
        """Journals."""

    @property
    def head(self) -> JournalHead | None:
        """The journal whose entries come next."""
        return self._head

    async def begin(self, head: JournalHead) -> bool:
        """Begin a journal. Returns False if another one is there, and that is refused.

        Raises:
            StoreError: the store has no journals, or does not answer.
        """
        journals = self._store_of_journals()
        self._head, self._next, self._skips, self._fence = head, head.first, False, FENCE
        page = await journals.read(*self._place, 0, 0)
        self._there = page.last
        if self._existing == "replace" and page.last:
            await self._trim(page.last, forget=True)
            self._there = 0
        [snapshot] = await self._store.read_states(head.kind, [head.name])
        other = snapshot not in (None, head.snapshot) and self._existing != "replace"
        if other or (self._there and (page.first != head.first or page.last > head.last)):
            return self._other()
        if snapshot != head.snapshot and self._write:
            place = (head.kind, head.shard, head.name)
            await write_states(self._store, [(*place, head.snapshot)])
        if self._there < head.first - 1 and self._write:
            await self._fill(head.first - 1)
        return True

    async def put(self, entries: Sequence[JournalEntry]) -> bool:
        """Take the next entries. Returns False if others are there, and that is refused.

        Raises:
            ConfigError: they belong to no journal, or are not in order. Nothing was written.
            StoreError: the store does not answer.
        """
        head = self._head
        for entry in entries:
            if head is None or entry.number != self._next or entry.number > head.last:
                raise ConfigError(f"entry {entry.number} is out of order")
            self._next += 1
        if not entries or self._skips:
            return True
        old = [row.data for row in entries if row.number <= self._there]
        new = [row.data for row in entries[len(old) :]]
        if old and old != await self._read(entries[0].number - 1, len(old)):
            return self._other()
        if new and self._write:
            await self._append(self._next - 1 - len(new), tuple(new))
        return True

    async def end(self) -> None:
        """End the journal.

        Raises:
            ConfigError: lines are missing.
        """
        head, self._head = self._head, None
        if head is None:
            return
        if self._next != head.last + 1:
            raise ConfigError(
                f"the journal of {head.kind} {head.name!r:.100} has entries up to {head.last},"
                f" and its lines end with {self._next - 1}"
            )
        self.skipped += self._skips
        self.same += not self._skips and self._there == head.last
        self.written += not self._skips and self._there < head.last
        if head.kind == REGISTER_TYPE and self._write and not self._skips:
            await raise_fence(self._store, self._store_of_journals(), head.name)

    # ---- steps

    def _store_of_journals(self) -> JournalStore:
        if self._journals is None:
            raise StoreError("this store has no journals", hint="see docs/how-to/own-store.md")
        return self._journals

    def _other(self) -> bool:
        """Another journal is there. Returns False if that is refused."""
        self._skips = True
        return self._existing == "skip"

    @property
    def _place(self) -> tuple[str, str, str]:
        assert self._head is not None
        return self._head.kind, self._head.shard, self._head.name

    async def _read(self, after: int, count: int) -> list[bytes]:
        """Return entries after a number, fewer if some are removed."""
        entries: list[bytes] = []
        while len(entries) < count:
            page = await self._store_of_journals().read(
                *self._place, after + len(entries), count - len(entries)
            )
            if page.first != after + len(entries) + 1 or not page.entries:
                break
            entries += page.entries
        return entries

    async def _fill(self, last: int) -> None:
        """Let the next entry come after this number."""
        after = self._there
        while after < last:
            count = min(FILLERS, last - after)
            await self._append(after, (FILLER,) * count)
            after += count
        await self._trim(last)

    async def _append(self, after: int, entries: tuple[bytes, ...]) -> None:
        append = Append(*self._place, self._fence, entries, secrets.randbits(62) + 1, after)
        [refused] = await self._store_of_journals().append([append])
        if isinstance(refused, StaleFence):
            self._fence = refused.stored
            append = append._replace(fence=self._fence)
            [refused] = await self._store_of_journals().append([append])
        if refused is not None:
            raise refused

    async def _trim(self, upto: int, *, forget: bool = False) -> None:
        if not self._write:
            return
        try:
            await self._store_of_journals().trim(*self._place, self._fence, upto, forget)
        except StaleFence as stale:
            self._fence = stale.stored
            await self._store_of_journals().trim(*self._place, self._fence, upto, forget)


async def import_journal(
    store: StateStore, journals: JournalStore, lines: Iterable[str | bytes], shard: str = ""
) -> tuple[str, str, int]:
    """Write one journal from its lines. `shard` is where this application has the entity, empty for
    the shard of the first line. Returns type, id and the number of events.

    Raises:
        ConfigError: a line is none of an export, or lines are missing. Nothing more is written.
        Refused: the entity has another journal. StoreError: the store refuses it, or does not
            answer.
    """
    rest, importer = enumerate(lines, 1), JournalImporter(store, journals)
    _, text = next(rest, (1, b""))
    head = _read(text, 1)
    if not isinstance(head, JournalHead):
        raise ConfigError("line 1 has no first and last: it is not of a journal")
    head = head._replace(shard=shard or head.shard)
    other = Refused(
        f"{head.kind} {head.name!r:.100} has another journal here", hint="name another store"
    )
    entries = [_read(text, number) for number, text in rest]
    if not all(isinstance(row, JournalEntry) for row in entries):
        raise ConfigError("a line behind the first is no event")
    if not await importer.begin(head):
        raise other
    for part in _parts(entries):  # type: ignore[arg-type]
        if not await importer.put(part):
            raise other
    await importer.end()
    return head.kind, head.name, len(entries)


def _parts(entries: Iterable[JournalEntry]) -> Iterator[list[JournalEntry]]:
    """Yield the entries of one append after the other."""
    part: list[JournalEntry] = []
    size = 0
    for entry in entries:
        part.append(entry)
        size += len(entry.data)
        if len(part) == APPENDED or size >= APPENDED_BYTES:
            yield part
            part, size = [], 0
    yield part


def _read(text: str | bytes, number: int) -> ExportLine:
    try:
        return read_export_line(text)
    except ConfigError as error:
        raise ConfigError(f"line {number}: {error}") from None
