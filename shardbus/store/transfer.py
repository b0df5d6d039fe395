"""Change the stored states while no node runs: set and remove states, and move them to another
store.

**Fences.** A state is written under a fence above the stored one, so a process that stopped long
ago and wakes up cannot overwrite it. A load by the next home is under a higher fence again: homes
get theirs from a later epoch.

**Lines.** An export is one JSON object per entity and line:

    {"type": "cart", "id": "7", "shard": "42", "version": 2, "state": {"items": {"tea": 1}}}
    {"type": "cart", "id": "7", "shard": "42", "due": 1764412800000, "reminders": "kgGR..."}
    {"type": "cart", "id": "7", "shard": "42", "remembered": true}

`state` is the plain value (`wire.plain_json`). If that would lose something, or the state is not
readable at all, `raw` has the stored bytes in base64 instead. `compressed` is true for a state that
was. `page`, in the first line of each page, is where an export that was interrupted goes on.
`shard` is missing if it is not known. Behind the states come the reminders of each entity that has
some: its record in base64, and when the first is `due`, in milliseconds since 1970. Entities that
are remembered come last, without state.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from shardbus.bounds import FENCE_MAX
from shardbus.errors import ConfigError, SchemaError, StaleFence, StoreError
from shardbus.ids import check_id
from shardbus.store.protocol import Reminders, Save, StateStore, reminder_store
from shardbus.wire.plain_json import from_json, to_json
from shardbus.wire.schema import decode_value, encode_value
from shardbus.wire.stored_state import VERSION_MAX, compressed, is_compressed, joined, split

STATE_FIELDS = {"version", "state", "raw", "compressed", "remembered", "page"}
FIELDS = {"type", "id", "shard", "due", "reminders"} | STATE_FIELDS
"""The fields of a line."""


class StoredEntity(NamedTuple):
    """One line: an entity with its stored state, with its reminders, or (neither) one that is
    remembered. `shard` is empty if it is not known."""

    entity_type: str
    entity_id: str
    shard: str
    data: bytes | None
    reminders: Reminders | None = None


def line_of(entity: StoredEntity, page: str | None = None) -> str:
    """Return the line of an entity. `page`: the cursor of the page that begins with it."""
    row: dict[str, Any] = {"type": entity.entity_type, "id": entity.entity_id}
    row |= {"shard": entity.shard} if entity.shard else {}
    row |= {"page": page} if page is not None else {}
    if entity.reminders is not None:
        record = base64.b64encode(entity.reminders.record or b"").decode()
        row |= {"due": entity.reminders.due, "reminders": record}
    else:
        row |= {"remembered": True} if entity.data is None else _shown(entity.data)
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def _shown(data: bytes) -> dict[str, Any]:
    """Return the fields of a state."""
    try:
        version, value = split(data)
        plain = to_json(decode_value(value))
        row = {"version": version, "state": plain}
        if is_compressed(data):
            row["compressed"] = True
        if _data_of(row) == data:
            return row
    except (SchemaError, ValueError):
        pass
    return {"raw": base64.b64encode(data).decode()}


def read_line(text: str | bytes) -> StoredEntity:
    """Return the entity of a line.

    Raises:
        ConfigError: it is no such line.
    """
    try:
        row = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"it is no JSON: {error}") from None
    if not isinstance(row, dict) or "type" not in row or "id" not in row:
        raise ConfigError("it is no object with type and id")
    if unknown := sorted(set(row) - FIELDS):
        raise ConfigError(f"it has an unknown field {unknown[0]!r:.60}")
    for name in ("type", "id", *(["shard"] if "shard" in row else [])):
        if not isinstance(row[name], str):
            raise ConfigError(f"{name} is {row[name]!r:.60}, not a text")
        check_id(name, row[name])
    shard = row.get("shard", "")
    if "reminders" in row or "due" in row:
        return StoredEntity(row["type"], row["id"], shard, None, _reminders_of(row))
    if row.get("remembered") is True and not {"state", "raw"} & set(row):
        return StoredEntity(row["type"], row["id"], shard, None)
    return StoredEntity(row["type"], row["id"], shard, _data_of(row))


def _reminders_of(row: dict[str, Any]) -> Reminders:
    """Return the reminders of a line. Raises ConfigError."""
    due, text = row.get("due"), row.get("reminders")
    if STATE_FIELDS & set(row):
        raise ConfigError("it has reminders and a state")
    if type(due) is not int or not 0 < due < 2**53:
        raise ConfigError(f"due is {due!r:.60}, no milliseconds since 1970")
    try:
        record = base64.b64decode(text or "", validate=True)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"reminders: {error}") from None
    if not record:
        raise ConfigError("it has no reminders")
    return Reminders(due, record, alone=True)


def _data_of(row: dict[str, Any]) -> bytes:
    """Return the stored bytes of a line. Raises ConfigError."""
    if ("state" in row) == ("raw" in row):
        raise ConfigError("it has none or both of state and raw")
    try:
        if "raw" in row:
            return base64.b64decode(row["raw"], validate=True)
        version = row.get("version", 1)
        if type(version) is not int or not 1 <= version <= VERSION_MAX:
            raise ValueError(f"version is {version!r:.60}, not 1 to {VERSION_MAX}")
        data = joined(version, encode_value(from_json(row["state"])))
        return compressed(data) if row.get("compressed") is True else data
    except (ValueError, TypeError, binascii.Error, SchemaError) as error:
        raise ConfigError(str(error)) from None


class Imported(msgspec.Struct):
    """The outcome of an import for its entities."""

    written: int = 0
    same: int = 0
    """These had that very state, or those reminders, already."""
    skipped: int = 0
    """These had others, which were kept."""
    reminded: int = 0
    """The reminders of these entities were written."""
    remembered: int = 0


class Importer:
    """Writes entities into a store. `shard_of(type, id)` gives the shard of an entity whose line
    has none. `existing`: the treatment of an entity that has another state, or other reminders,
    already: `refuse`, `skip` or `replace`. `write` False only counts."""

    def __init__(
        self,
        store: StateStore,
        shard_of: Callable[[str, str], str],
        *,
        existing: str = "refuse",
        write: bool = True,
    ) -> None:
        self._store, self._shard_of = store, shard_of
        self._existing, self._write = existing, write
        self.done = Imported()

    async def put(self, entities: Sequence[StoredEntity]) -> StoredEntity | None:
        """Write some entities. Returns the first that has another state, or reminders, already, if
        that is refused; then nothing of these was written.

        Raises:
            ConfigError: the shard of an entity is not known. StoreError: the store refuses one.
        """
        states = {s[:2]: s for s in entities if s.data is not None}  # the last one counts
        old: dict[tuple[str, str], bytes | None] = {}
        for entity_type in dict.fromkeys(name for name, _ in states):
            ids = [key[1] for key in states if key[0] == entity_type]
            stored = await self._store.read_states(entity_type, ids)
            old |= {(entity_type, name): data for name, data in zip(ids, stored, strict=True)}
        other = [s for key, s in states.items() if old[key] not in (None, s.data)]
        if other and self._existing == "refuse":
            return other[0]
        last = {s[:2]: s for s in entities if s.reminders is not None}
        reminded, refused = await self._new_reminders(list(last.values()))
        if refused is not None:
            return refused
        kept = {s[:2] for s in other} if self._existing == "skip" else set()
        new = [s for key, s in states.items() if old[key] != s.data and key not in kept]
        self.done.same += sum(old[key] == s.data for key, s in states.items())
        self.done.skipped += len(kept)
        self.done.written += len(new)
        lists = [s for s in entities if s.data is None and s.reminders is None]
        self.done.remembered += len(lists)
        if self._write:
            rows = [(s.entity_type, self._shard(s), s.entity_id, s.data) for s in new]
            await write_states(self._store, rows)
            await self._remind(reminded)
            await self._remember(lists)
        return None

    async def _new_reminders(
        self, entities: Sequence[StoredEntity]
    ) -> tuple[list[StoredEntity], StoredEntity | None]:
        """Return those whose reminders are to be written, and the first with others that are stored
        already, if that is refused."""
        store, new = reminder_store(self._store), []
        for entity in entities:
            if store is None:
                raise StoreError(
                    "this store keeps no reminders", hint="see docs/how-to/reminders.md"
                )
            assert entity.reminders is not None
            shard = self._shard(entity)
            [stored] = await store.load_reminders(entity.entity_type, shard, [entity.entity_id])
            if stored not in (None, entity.reminders.record) and self._existing == "refuse":
                return [], entity
            if stored == entity.reminders.record:
                self.done.same += 1
            elif stored is not None and self._existing == "skip":
                self.done.skipped += 1
            else:
                new.append(entity)
        self.done.reminded += len(new)
        return new, None

    async def _remind(self, entities: Sequence[StoredEntity]) -> None:
        """Write reminders, and enter their shards among those that may have some."""
        saves = [
            Save(s.entity_type, self._shard(s), s.entity_id, 0, None, 0, s.reminders)
            for s in entities
        ]
        await _write(self._store, saves)
        for entity_type, shard in dict.fromkeys(save[:2] for save in saves):
            await self._add(entity_type, shard, ())

    async def _remember(self, entities: Iterable[StoredEntity]) -> None:
        """Add entities to the lists of their shards."""
        lists: dict[tuple[str, str], list[str]] = {}
        for entity in entities:
            lists.setdefault((entity.entity_type, self._shard(entity)), []).append(entity.entity_id)
        for (entity_type, shard), ids in lists.items():
            await self._add(entity_type, shard, ids)

    async def _add(self, entity_type: str, shard: str, ids: Sequence[str]) -> None:
        try:
            await self._store.add_remembered(entity_type, shard, ids, 0)
        except StaleFence as stale:
            await self._store.add_remembered(entity_type, shard, ids, stale.stored)

    def _shard(self, entity: StoredEntity) -> str:
        return entity.shard or self._shard_of(entity.entity_type, entity.entity_id)


async def write_state(
    store: StateStore,
    entity_type: str,
    shard: str,
    entity_id: str,
    state: bytes | None,
    *,
    ends_reminders: bool = False,
) -> None:
    """Write the state of one entity, None to remove it; with `ends_reminders` in one step with the
    end of its reminders. Only while no node runs. Raises as `write_states`."""
    ends = ends_reminders and reminder_store(store) is not None
    reminders = Reminders(0, None, alone=False) if ends else None
    await _write(store, [Save(entity_type, shard, entity_id, 0, state, 0, reminders)])


Row = tuple[str, str, str, bytes | None]
"""Type, shard, id and state; None removes it."""


async def write_states(store: StateStore, rows: Sequence[Row]) -> None:
    """Write states, each under a fence above the stored one. Only while no node runs.

    Raises:
        StoreError: the store refuses one, or does not answer. Others may be written.
    """
    await _write(store, [Save(*row[:3], 0, row[3], 0) for row in rows])


async def _write(store: StateStore, saves: Sequence[Save]) -> None:
    """Write these saves, each under a fence above its entity's and, with reminders, its shard's.
    Raises as `write_states`."""
    fences = [0] * len(saves)
    waiting = list(range(len(saves)))
    for _ in range(3):
        batch = [saves[n]._replace(fence=fences[n], op_id=secrets.randbits(63)) for n in waiting]
        answers = await store.save_states(batch) if batch else ()
        again = []
        for n, refused in zip(waiting, answers, strict=True):
            if isinstance(refused, StaleFence):
                fences[n] = min(refused.stored + 1, FENCE_MAX)
                again.append(n)
            elif refused is not None:
                raise refused
        waiting = again
    if waiting:
        name, _, entity_id = saves[waiting[0]][:3]
        raise StoreError(
            f"the fence of {name} {entity_id!r:.100} has grown meanwhile: a node runs",
            hint="stop all nodes",
        )
