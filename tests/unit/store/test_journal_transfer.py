"""Journals as lines of JSON: an entity comes to another store, and its deliveries stay done."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from shardbus.deliveries.numbers import DeliveryNumber, NumberKind
from shardbus.deliveries.record import DeliveryRecord, decode_done, encode_done
from shardbus.errors import ConfigError, Refused, StoreError
from shardbus.store import journal_transfer
from shardbus.store.journal_protocol import Append
from shardbus.store.journal_transfer import ATTEMPTS, import_journal, journal_lines, shown_event
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import Save
from shardbus.wire.schema import encode_value
from shardbus.wire.stored_events import stored_event, with_delivery
from shardbus.wire.stored_state import numbered, split_numbered, split_record, with_record

NUMBER = DeliveryNumber(NumberKind.DELIVER, "n1/7:3", 5, 12, 0, b"")
NOTES = (
    b"",
    encode_done(NUMBER, "", 1_700_000_000),
    encode_done(None, "order-9", 1_700_000_001, b"\xfe\x01"),
)


def entry(amount: int, note: bytes = b"") -> bytes:
    """Return the stored form of an event."""
    event = b"\x93" + encode_value("Deposited") + encode_value(1) + encode_value({"amount": amount})
    return with_delivery(event, note) if note else event


async def started(*entries: bytes, snapshot: bytes | None = None) -> Any:
    """Return a store with the journal of account `a`."""
    store = MemoryStore()
    await store.start()
    if entries:
        [refused] = await store.journals.append([Append("account", "7", "a", 3, entries, 1, 0)])
        assert refused is None
    if snapshot is not None:
        [refused] = await store.save_states([Save("account", "7", "a", 3, snapshot, 2)])
        assert refused is None
    return store


async def lines_of(store: Any) -> list[str]:
    return [line async for line in journal_lines(store, store.journals, "account", "7", "a")]


async def test_events_come_with_the_deliveries_that_are_done_with_them() -> None:
    entries = [entry(n, note) for n, note in enumerate(NOTES, 1)]
    lines = await lines_of(await started(*entries))
    shown = [json.loads(line).get("delivery") for line in lines[1:]]
    assert shown == [None, ["n1/7:3", 5, 12, 1_700_000_000], ["order-9", 1_700_000_001, "fe01"]]
    copy = await started()
    assert await import_journal(copy, copy.journals, lines) == ("account", "a", 3)
    page = await copy.journals.read("account", "7", "a", 0, 10)
    assert page.entries == entries
    assert [stored_event(one).delivery for one in page.entries] == [*NOTES]
    assert decode_done(NOTES[1]).seq == 12


@pytest.mark.parametrize(("count", "size"), [(1100, 10), (30, 300_000), (1, 10), (3, 5_000_000)])
async def test_the_appends_of_an_import_are_bounded(
    count: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = b"\x93" + encode_value("Told") + encode_value(1) + encode_value({"text": "x" * size})
    lines = await lines_of(await started(*[event] * count))
    copy, parts = await started(), []
    append = copy.journals.append

    async def appended(batch: list[Append]) -> Any:
        parts.extend(one.entries for one in batch)
        return await append(batch)

    monkeypatch.setattr(copy.journals, "append", appended)
    await import_journal(copy, copy.journals, lines)
    assert [one for part in parts for one in part] == [event] * count
    assert max(len(part) for part in parts) <= journal_transfer.APPENDED
    assert all(sum(map(len, part[:-1])) < journal_transfer.APPENDED_BYTES for part in parts)


async def test_the_record_of_a_snapshot_comes_with_it() -> None:
    record = DeliveryRecord()
    record.mark(NUMBER, 1_700_000_000)
    snapshot = with_record(record.stored(), numbered(3, encode_value({"amount": 6})))
    store = await started(*map(entry, range(1, 6)), snapshot=snapshot)
    await store.journals.trim("account", "7", "a", 3, 2)
    copy = await started()
    await import_journal(copy, copy.journals, await lines_of(store))
    [data] = await copy.read_states("account", ["a"])
    stored, alone = split_record(data)
    assert DeliveryRecord.of(stored).done == record.done
    assert split_numbered(alone) == (3, encode_value({"amount": 6}))
    page = await copy.journals.read("account", "7", "a", 0, 10)
    assert (page.first, page.last) == (3, 5), "projections go by the numbers"
    assert page.entries == [entry(3), entry(4), entry(5)]


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("times", range(2 * ATTEMPTS))
async def test_a_snapshot_that_is_saved_meanwhile_leaves_no_hole(times: int, before: int) -> None:
    """A node saves a snapshot and removes the entries before it, after each of the first `times`
    reads of the state. `before`: the number of the first snapshot, 0 without one."""
    last = 50
    first = numbered(before, encode_value(before)) if before else None
    store = await started(*map(entry, range(1, last + 1)), snapshot=first)
    read_states, saved = store.read_states, before

    async def read(kind: str, ids: list[str]) -> Any:
        nonlocal saved
        states = await read_states(kind, ids)
        if saved < before + 2 * times:
            saved += 2
            snapshot = numbered(saved, encode_value(saved))
            await store.save_states([Save("account", "7", "a", 3, snapshot, 100 + saved)])
            await store.journals.trim("account", "7", "a", 3, saved)
        return states

    store.read_states = read
    try:
        head = json.loads((await lines_of(store))[0])
    except StoreError:
        assert times == 2 * ATTEMPTS - 1, "two reads of each attempt"
        return
    assert times < 2 * ATTEMPTS - 1
    snapshot = base64.b64decode(head.get("snapshot", ""))
    assert split_numbered(snapshot)[0] >= head["first"] - 1


async def test_a_journal_that_is_trimmed_without_a_snapshot_is_shown_from_its_first_entry() -> None:
    """A durable mailbox has none."""
    store = await started(*map(entry, range(1, 6)))
    await store.journals.trim("account", "7", "a", 3, 2)
    [head, *entries] = map(json.loads, await lines_of(store))
    assert (head["first"], "snapshot" in head, len(entries)) == (3, False, 3)


@pytest.mark.parametrize(
    "entry",
    [b"", b"\x94", b"\x93\xa1a\x01", with_delivery(entry(1), b"\x01"), b"\x94\xa1a\x01\x80"],
)
async def test_an_entry_that_cannot_be_shown_comes_as_it_is(entry: bytes) -> None:
    assert set(shown_event(entry)) == {"raw"}
    copy = await started()
    await import_journal(copy, copy.journals, await lines_of(await started(entry)))
    page = await copy.journals.read("account", "7", "a", 0, 10)
    assert page.entries == [entry]


@pytest.mark.parametrize(
    "delivery", [[], ["p"], ["p", "x"], ["p", 1, 2], [1, 2, 3, 4], 7, ["p", -1]]
)
async def test_a_line_with_an_invalid_delivery_is_refused(delivery: object) -> None:
    lines = await lines_of(await started(entry(1)))
    row = {**json.loads(lines[1]), "delivery": delivery}
    copy = await started()
    with pytest.raises(ConfigError, match="line 2"):
        await import_journal(copy, copy.journals, [lines[0], json.dumps(row)])
    assert (await copy.journals.read("account", "7", "a", 0, 10)).last == 0


async def test_another_journal_that_is_there_is_kept() -> None:
    store = await started(entry(1))
    with pytest.raises(Refused):
        await import_journal(store, store.journals, await lines_of(await started(entry(2))))
    assert await lines_of(store) == await lines_of(await started(entry(1)))


@pytest.mark.parametrize("there", range(4))
async def test_an_import_that_was_cut_off_is_completed_by_another_one(there: int) -> None:
    entries = [entry(n) for n in range(1, 4)]
    lines = await lines_of(await started(*entries))
    copy = await started(*entries[:there])
    for _ in range(2):
        await import_journal(copy, copy.journals, lines)
        assert await lines_of(copy) == lines
