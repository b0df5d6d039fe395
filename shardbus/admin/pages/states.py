"""Pages about stored states."""

from __future__ import annotations

import asyncio
from typing import Any

from shardbus.admin.administration import Administration
from shardbus.admin.questions import question, refusing
from shardbus.entities.merged_rows import put_state, row_of
from shardbus.entities.merging import MergedStates
from shardbus.errors import ConfigError, StoreError, StoreUnavailable
from shardbus.http.page import (
    PAGE_DEFAULT,
    PAGE_MAX,
    Body,
    EntityId,
    EntityType,
    Json,
    Operator,
    PageSize,
    page,
)
from shardbus.quantities import counted
from shardbus.sharding.events import Note
from shardbus.shells.region import RegionShell
from shardbus.shells.state_expiry import shard_of_stored
from shardbus.store.journal_protocol import journals_of
from shardbus.store.listing import page_event_sourced
from shardbus.transport.permissions import LIST_STORED
from shardbus.wire.plain_json import from_json
from shardbus.wire.schema import decode_value, encode_value
from shardbus.wire.shown_state import as_text, shown
from shardbus.wire.stored_state import StateCodec, split_record

STATE_SHOWN_MAX = 256 * 1024
"""Bytes of the value of a stored state on a page, before it is JSON."""


@page("GET", "/v1/stored/{type}")
async def stored(
    admin: Administration,
    type: EntityType,
    shard: str | None = None,
    prefix: str = "",
    limit: PageSize = PAGE_DEFAULT,
    cursor: str | None = None,
) -> Json:
    """A page of about `limit` entities with a stored state; of an event-sourced type, with events.

    `type`, `stored` (each with `id` and `shard`), `next` (cursor, or null). A page may be empty
    before the end.
    """
    region = admin.region(type)
    ids, following = await admin.node.rpc.ask(
        admin.node.me, LIST_STORED, type, shard or "", prefix, cursor or "", limit
    )
    rows = [
        {"id": entity_id, "shard": shard or shard_of_stored(region, entity_id)} for entity_id in ids
    ]
    return {"type": type, "stored": rows, "next": following}


@page("GET", "/v1/state/{type}/{id}", operators_only="stored states are for operators")
async def state(
    admin: Administration, type: EntityType, id: EntityId, operator: Operator, text: bool = False
) -> Json:
    """The stored state of an entity as JSON, at most 256 KiB (`text=true`: as the text of that
    JSON, indented). Needs the operator's token; the log names who has read it.

    `type`, `id`, `shard`, `version` (of its class, null if nothing is stored), `bytes`, `revision`,
    `state`, or `text` with `?text=true`, and `unreadable` (why the value is not in the answer) if
    it is too long or damaged. Without a stored state `bytes` is 0, and `revision` is `none`. Of a
    type whose instances share a state, `contents` is the number of states that were saved at the
    same time, which `state` is made of.
    """
    region = admin.region(type)
    if (merging := merging_of(region)) is not None:
        value = await merging.values.read(id)
        row = await asyncio.to_thread(row_of, merging.form, id, value, STATE_SHOWN_MAX)
        shard = shard_of_stored(region, id)
    else:
        _codec(admin, type)
        shard = region.router.route_of(id).shard
        [data] = await admin.node.store.read_states(type, [id])
        row = await asyncio.to_thread(shown, data, STATE_SHOWN_MAX)
    note = Note("state_read", f"of {id!r:.100}: by {operator:.100}", entity_id=id)
    admin.node.note(type, note)
    return {"type": type, "id": id, "shard": shard, **(as_text(row) if text else row)}


@page("POST", "/v1/state/{type}/{id}")
async def set_state(
    admin: Administration,
    type: EntityType,
    id: EntityId,
    state: Body,
    operator: Operator,
    revision: str = "",
) -> Json:
    """The state in the body, as JSON, becomes the entity's: its owner saves it, and starts again
    with it. `revision`: only if the stored state still has this one.

    `type`, `id`, `shard`, `node` (the owner), `bytes`, `removed` (false). Values that JSON lacks
    are as in [an export](../how-to/keep-state.md#move-states-to-another-store). A state that does
    not fit the class is 400, an entity that is busy or moves 409. Of a type whose instances share a
    state they get it as news, and `node` is the one that has written it.
    """
    codec = _codec(admin, type)
    try:
        plain = from_json(state)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the state: {error}") from None
    codec.of_plain(plain)  # the owner may have another release, and checks it again
    return await _change_state(admin, type, id, encode_value(plain), operator, revision)


@page("DELETE", "/v1/state/{type}/{id}")
async def remove_state(
    admin: Administration,
    type: EntityType,
    id: EntityId,
    operator: Operator,
    revision: str = "",
    keep_messages: bool = False,
) -> Json:
    """The owner removes the state of the entity, and its reminders. `revision`: only if the stored
    state has this one. 409 while messages wait in its durable mailbox; with `keep_messages` they
    stay, and an entity without that state handles them. `removed` is false if no state was
    stored."""
    removed = await _is_stored(admin, type, id)
    if not keep_messages:
        changed = await _change_state(admin, type, id, None, operator, revision)
        return {**changed, "removed": removed}
    question = "remove_state_keeping_messages"
    _, shard, home = await admin.ask_home(question, type, id, operator, revision)
    return {"type": type, "id": id, "shard": shard, "node": home, "bytes": 0, "removed": removed}


async def _is_stored(admin: Administration, type: str, id: str) -> bool:
    """True if the entity has a stored state at this moment."""
    if (merging := merging_of(admin.region(type))) is not None:
        return bool((await merging.values.read(id)).dots)
    [data] = await admin.node.store.read_states(type, [id])
    return bool(split_record(data or b"")[1])


def _codec(admin: Administration, type: str) -> StateCodec:
    kind = admin.region(type).entity_type
    codec = kind.codec
    if not kind.has_state:
        raise ConfigError(f"{type!r} has no state")
    if codec is None:
        raise ConfigError(
            f"the state of {type!r} is changed by its own methods",
            hint="send a message to the entity, or remove the state",
        )
    return codec


def merging_of(region: RegionShell) -> MergedStates | None:
    """Return the states that the instances of a type share, None if they share none."""
    saver = region.host.saver
    return saver if isinstance(saver, MergedStates) else None


async def _change_state(
    admin: Administration, type: str, id: str, value: bytes | None, operator: str, revision: str
) -> Json:
    """Let the home of an entity change its state, or change the state that its instances
    share."""
    region = admin.region(type)
    if (merging := merging_of(region)) is not None:
        data = None if value is None else _codec(admin, type).of_plain(decode_value(value))
        await put_state(merging.form, merging.values, id, data, revision)
        size = 0 if data is None else len(data)
        admin.node.note(type, changed_state(id, size, operator))
        return {
            "type": type,
            "id": id,
            "shard": shard_of_stored(region, id),
            "node": str(admin.node.me),
            "bytes": size,
            "removed": False,
        }
    arguments: tuple[object, ...] = (value, operator)
    question = "change_state"
    if revision:
        question, arguments = "change_state_if", (*arguments, revision)
    answer, shard, home = await admin.ask_home(question, type, id, *arguments)
    return {
        "type": type,
        "id": id,
        "shard": shard,
        "node": home,
        "bytes": answer["bytes"],
        "removed": False,
    }


# ---- answers of this node


@question(LIST_STORED)
async def answer_stored(
    admin: Administration, name: str, shard: str, prefix: str, cursor: str, limit: int
) -> tuple[list[str], str | None]:
    """About `limit` ids of entities with a stored state or with events, of one shard or of all, and
    the next cursor.

    Raises:
        BufferFull: `LISTS_MAX` lists are being made.
        ConfigError: the type has no such shard, or the cursor is not of this store.
        StoreUnavailable: the store does not answer.
    """
    region = admin.region(name)
    if shard and not region.router.has_shard(shard):
        raise ConfigError(f"{name!r} has no shard {shard!r:.100}")
    limit = max(1, min(limit, PAGE_MAX))
    with admin.list_of_entities():
        if (merging := merging_of(region)) is not None:
            ids = [each for each in await merging.values.ids(prefix) if each > (cursor or "")]
            ids = [each for each in ids if not shard or shard_of_stored(region, each) == shard]
            return ids[:limit], ids[limit - 1] if len(ids) > limit else None
        if region.entity_type.states is None:
            return [], None
        store, journals = admin.node.store, journals_of(admin.node.store)
        place = (name, prefix, cursor or None, limit)
        try:
            if region.entity_type.events is None or journals is None:
                ids, following = await store.page_stored(*place)
            else:
                ids, following = await page_event_sourced(store, journals, *place)
        except StoreUnavailable:
            raise
        except StoreError as e:
            raise ConfigError(e.message, hint="begin the list anew, without a cursor") from None
    if shard:
        ids = [entity_id for entity_id in ids if shard_of_stored(region, entity_id) == shard]
    return ids, following


@question("change_state")
async def answer_change_state(
    admin: Administration, name: str, shard: str, entity_id: str, value: bytes | None, operator: str
) -> Any:
    """Make the encoded plain value the state of an entity whose shard is here; None removes the
    state. `operator` names who asks, for the log."""
    return await answer_change_state_if(admin, name, shard, entity_id, value, operator, "")


@question("change_state_if")
@refusing
async def answer_change_state_if(
    admin: Administration,
    name: str,
    shard: str,
    entity_id: str,
    value: bytes | None,
    operator: str,
    revision: str,
) -> Any:
    """As `change_state`, but only if the stored state has this revision; empty is any. A
    question of its own, which a node of an earlier release refuses."""
    codec = _codec(admin, name)
    data = None if value is None else codec.of_plain(decode_value(value))
    await admin.region(name).host.change_state(shard, entity_id, data, revision)
    size = 0 if data is None else len(data)
    admin.node.note(name, changed_state(entity_id, size, operator))
    return {"bytes": size}


@question("remove_state_keeping_messages")
@refusing
async def answer_remove_state_keeping_messages(
    admin: Administration, name: str, shard: str, entity_id: str, operator: str, revision: str
) -> Any:
    """Remove the state of an entity whose shard is here, though messages wait for it."""
    _codec(admin, name)
    host = admin.region(name).host
    await host.change_state(shard, entity_id, None, revision, keep=True)
    admin.node.note(name, changed_state(entity_id, 0, operator))
    return {}


def changed_state(entity_id: str, size: int, operator: str) -> Note:
    """Return the log's note about a state that an operator has changed."""
    what = counted(size, "byte") if size else "removed"
    kind = "state_set" if size else "state_removed"
    text = f"of {entity_id!r:.100}: {what}, by {operator:.100}"
    return Note(kind, text, entity_id=entity_id)
