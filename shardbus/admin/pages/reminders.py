"""Pages about reminders: which entities have some, their contents, and their end.

Lists come from the index in the store, of every shard, so they need no home and wake no entity. A
reminder is cancelled by the entity's home, which also starts the entity if it is not in memory:
only a home writes reminders.

Source: docs/how-to/reminders.md; B.119.
"""

from __future__ import annotations

from typing import Any

from shardbus.admin.administration import Administration, moment_of
from shardbus.admin.questions import question, refusing
from shardbus.errors import ConfigError
from shardbus.http.page import PAGE_DEFAULT, EntityId, EntityType, Json, Operator, PageSize, page
from shardbus.reminders.record import Entry, decoded
from shardbus.sharding.events import Note
from shardbus.store.protocol import Due, ReminderStore, reminder_store


@page("GET", "/v1/reminders/{type}")
async def reminders(
    admin: Administration, type: EntityType, limit: PageSize = PAGE_DEFAULT
) -> Json:
    """The entities of a type that have reminders, those first that are due first.

    `type`, `reminders` (each with `id`, `shard`, `due`, which is when the first reminder of this
    entity is due, and `late`, the seconds since, or 0), `more`.
    """
    store, now = _store_of(admin, type), admin.node.environment.wall_clock() * 1000
    entries: list[tuple[Due, str]] = []
    for shard in await store.due_shards(type):
        due = await store.page_due(type, shard, None, limit + 1)
        entries = sorted([*entries, *((entry, shard) for entry in due)])[: limit + 1]
    rows = [
        {
            "id": entity_id,
            "shard": shard,
            "due": moment_of(due),
            "late": round(max(0.0, now - due) / 1000, 3),
        }
        for (due, entity_id), shard in entries[:limit]
    ]
    return {"type": type, "reminders": rows, "more": len(entries) > limit}


@page("GET", "/v1/reminders/{type}/{id}")
async def reminders_of(admin: Administration, type: EntityType, id: EntityId) -> Json:
    """The reminders of one entity, without their data.

    `type`, `id`, `shard`, `reminders` (each with `name`, `handler`, `due`, `number` (of the due
    moment, from 1), `delivery` (the same each time that this moment is delivered), `every` (in
    seconds, or 0), `cron`, `tz`, `late`, `jitter` and `bytes` (of its data)).
    """
    shard, store = admin.region(type).router.shard_of(id), _store_of(admin, type)
    [data] = await store.load_reminders(type, shard, [id])
    entries = sorted(decoded(data).entries.values(), key=lambda entry: (entry.due, entry.name))
    return {"type": type, "id": id, "shard": shard, "reminders": [_row(entry) for entry in entries]}


@page("DELETE", "/v1/reminders/{type}/{id}")
async def cancel_reminders(
    admin: Administration, type: EntityType, id: EntityId, operator: Operator, name: str = ""
) -> Json:
    """The owner cancels a reminder of the entity; without `name`, all of them.

    `type`, `id`, `shard`, `node` (the owner), `cancelled` (names).
    """
    _store_of(admin, type)
    answer, shard, home = await admin.ask_home("cancel_reminders", type, id, name, operator)
    return {
        "type": type,
        "id": id,
        "shard": shard,
        "node": home,
        "cancelled": answer["cancelled"],
    }


@question("cancel_reminders")
@refusing
async def answer_cancel_reminders(
    admin: Administration, name: str, shard: str, entity_id: str, reminder: str, operator: str
) -> Any:
    """Cancel a reminder of an entity whose shard is here, all of them without a name. `operator`
    names who asks, for the log."""
    reminding = admin.region(name).host.runner.reminding
    if reminding is None:
        raise ConfigError(f"{name!r} sets no reminders")
    cancelled = await reminding.cancel(shard, entity_id, reminder)
    for removed in cancelled:
        text = f"{removed!r:.100} of {entity_id!r:.100}, by {operator:.100}"
        admin.node.note(name, Note("reminder_cancelled", text, entity_id=entity_id))
    return {"cancelled": cancelled}


def _store_of(admin: Administration, type: str) -> ReminderStore:
    if not admin.region(type).entity_type.reminds:
        raise ConfigError(f"{type!r} sets no reminders")
    store = reminder_store(admin.node.store)
    if store is None:
        raise ConfigError("this store keeps no reminders")
    return store


def _row(entry: Entry) -> Json:
    rule = entry.rule
    return {
        "name": entry.name,
        "handler": entry.handler,
        "due": moment_of(entry.due),
        "number": entry.number,
        "delivery": entry.delivery,
        "every": rule.every_ms / 1000,
        "cron": rule.cron,
        "tz": rule.tz,
        "late": rule.late,
        "jitter": rule.jitter_ms / 1000,
        "bytes": len(entry.payload) - 1,
    }
