"""Journals of entities as lines of JSON: to read them, and to bring one to another store.

    {"type": "account", "id": "a", "shard": "7", "first": 1, "last": 12, "snapshot": "..."}
    {"number": 1, "event": "Deposited", "version": 1, "value": {"amount": 5}}

The first line names the entity; `snapshot` has the stored bytes of its state in base64, if there is
one. `first` is above 1 if the journal is trimmed. A line per event follows, with its plain value
(`wire.plain_json`), or with `raw`, its bytes in base64, where that would lose something. An event
that made a delivery done has its number in `delivery`: [producer, era, seq, seconds since 1970], or
[key, seconds, mark of the request] of an ask with a key.

An import writes a journal that is not there, while no node runs. It numbers the events from 1, and
the snapshot with them: nothing depends on the numbers but the order. Deliveries that were done
before stay so.

Source: docs/how-to/event-sourcing.md.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec

from shardbus.deliveries.numbers import DeliveryNumber, NumberKind
from shardbus.deliveries.record import decode_done, encode_done
from shardbus.errors import ConfigError, Refused, StoreError
from shardbus.ids import check_id
from shardbus.store.journal_protocol import Append, JournalStore
from shardbus.store.protocol import StateStore
from shardbus.store.transfer import write_states
from shardbus.wire.plain_json import from_json, to_json
from shardbus.wire.schema import encode_value
from shardbus.wire.stored_events import stored_event, with_delivery
from shardbus.wire.stored_state import numbered, split_numbered, split_record, with_record

PAGE = 1000
APPENDED = 500
"""Events of one append of an import."""
FENCE = 1
"""The fence of a journal that is imported: below every home's."""


async def journal_lines(
    store: StateStore, journals: JournalStore, kind: str, shard: str, entity_id: str
) -> AsyncIterator[str]:
    """Yield the lines of a journal. Nothing is written, so it may run beside nodes.

    Raises:
        Refused: the entity has no journal. StoreUnavailable: the store does not answer.
    """
    page = await journals.read(kind, shard, entity_id, 0, PAGE)
    [snapshot] = await store.read_states(kind, [entity_id])
    if not page.last and snapshot is None:
        raise Refused(f"{kind} {entity_id!r:.100} has no journal")
    head: dict[str, Any] = {"type": kind, "id": entity_id, "shard": shard}
    head |= {"first": page.first, "last": page.last}
    if snapshot is not None:
        head["snapshot"] = base64.b64encode(snapshot).decode()
    yield _line(head)
    while page.entries:
        for number, entry in enumerate(page.entries, page.first):
            yield _line({"number": number, **shown_event(entry)})
        if page.end >= page.last:
            return
        page = await journals.read(kind, shard, entity_id, page.end, PAGE)


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
    if done.kind == NumberKind.KEYED:
        return [done.name, done.used, done.mark.hex()]
    return [done.name, done.era, done.seq, done.used]


def _delivery_of(shown: list[Any]) -> bytes:
    """Return the stored form of a delivery of a line. Raises ValueError, TypeError."""
    name, *numbers = shown
    if len(numbers) == 2:
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


async def import_journal(
    store: StateStore, journals: JournalStore, lines: Iterable[str | bytes], shard: str = ""
) -> tuple[str, str, int]:
    """Write a journal from its lines. `shard` is where this application has the entity, empty for
    the shard of the first line. Returns type, id and the number of events.

    Raises:
        ConfigError: a line is none of an export, or lines are missing. Nothing more is written.
        Refused: the entity has a journal. StoreError: the store refuses it, or does not answer.
    """
    rest = iter(lines)
    head = _parsed(next(rest, b""), 1)
    kind, entity_id = (check_id(name, str(head.get(name, ""))) for name in ("type", "id"))
    shard = shard or str(head.get("shard", ""))
    first, last = head.get("first"), head.get("last")
    if not isinstance(first, int) or not isinstance(last, int):
        raise ConfigError("line 1 has no first and last: it is not of a journal")
    if (await journals.read(kind, shard, entity_id, 0, 0)).last:
        raise Refused(f"{kind} {entity_id!r:.100} has a journal here", hint="name another store")
    events: list[bytes] = []
    for number, text in enumerate(rest, 2):
        row = _parsed(text, number)
        if row.get("number") != first + len(events):
            raise ConfigError(f"line {number} has event {row.get('number')!r:.40}, out of order")
        try:
            events.append(_entry_of(row))
        except (KeyError, ValueError, TypeError, binascii.Error) as error:
            raise ConfigError(f"line {number}: {error}") from None
    if first + len(events) != last + 1:
        raise ConfigError(f"the journal ends with event {last}, the lines end earlier or later")
    if "snapshot" in head:
        record, alone = split_record(base64.b64decode(head["snapshot"], validate=True))
        number, data = split_numbered(alone)
        moved = numbered(max(0, number - first + 1), data)
        if record:
            moved = with_record(record, moved)
        await write_states(store, [(kind, shard, entity_id, moved)])
    for begin in range(0, len(events), APPENDED):
        part = tuple(events[begin : begin + APPENDED])
        one = Append(kind, shard, entity_id, FENCE, part, secrets.randbits(63), begin)
        [refused] = await journals.append([one])
        if refused is not None:
            raise refused
    return kind, entity_id, len(events)


def _parsed(text: str | bytes, number: int) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"line {number} is no JSON: {error}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"line {number} is no object")
    return row
