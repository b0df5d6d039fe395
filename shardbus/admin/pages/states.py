"""Pages about stored states."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from shardbus.admin.administration import Administration
from shardbus.admin.shard_control import agreed
from shardbus.errors import ConfigError, Refused, RequestError
from shardbus.http.page import (
    PAGE_DEFAULT,
    Body,
    EntityId,
    EntityType,
    Json,
    Operator,
    PageSize,
    page,
)
from shardbus.routing.refs import start_entity
from shardbus.sharding.events import Note
from shardbus.shells.region import RegionShell
from shardbus.transport.permissions import LIST_STORED
from shardbus.wire.plain_json import from_json
from shardbus.wire.schema import encode_value
from shardbus.wire.shown_state import as_text, shown
from shardbus.wire.stored_state import StateCodec

HOME_WITHIN_MS = 1500
"""For a shard to get a home, before a state in it is changed."""
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
    """A page of the entities with a stored state, from this node's store."""
    region = admin.region(type)
    ids, following = await admin.node.rpc.ask(
        admin.node.me, LIST_STORED, type, shard or "", prefix, cursor or "", limit
    )
    rows = [{"id": one, "shard": shard or _shard_of(region, one)} for one in ids]
    return {"type": type, "stored": rows, "next": following}


def _shard_of(region: RegionShell, entity_id: str) -> str | None:
    """The shard of a stored id; None for one that no entity of the type has."""
    try:
        return region.router.shard_of(entity_id)
    except ConfigError:
        return None


@page("GET", "/v1/state/{type}/{id}", operators_only="stored states are for operators")
async def state(
    admin: Administration, type: EntityType, id: EntityId, operator: Operator, text: bool = False
) -> Json:
    """The stored state of an entity, from this node's store. The log names who has read it."""
    _codec(admin, type)
    shard = admin.region(type).router.route_of(id).shard
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
    """Let the owner of an entity replace its state."""
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
) -> Json:
    """Let the owner of an entity remove its state."""
    return await _change_state(admin, type, id, None, operator, revision)


def _codec(admin: Administration, type: str) -> StateCodec:
    codec = admin.region(type).entity_type.states
    if codec is None:
        raise ConfigError(f"{type!r} has no state")
    return codec


async def _change_state(
    admin: Administration, type: str, id: str, value: bytes | None, operator: str, revision: str
) -> Json:
    """Let the home of an entity change its state. Without a home, a start of the entity
    allocates one; it may fail, by the very state that is to be replaced."""
    region = admin.region(type)
    shard, machine = region.router.route_of(id).shard, region.router.region
    if machine.home_of(shard) is None:
        with suppress(RequestError):
            await start_entity(region.router, id, HOME_WITHIN_MS)
    home = machine.home_of(shard)
    if home is None:
        raise Refused(f"shard {shard!r} of {type!r} has no home yet", hint="try again")
    asked = [type, shard, id, value, operator]
    question = "change_state"
    if revision:
        question, asked = "change_state_if", [*asked, revision]
    answer = agreed(await admin.node.rpc.ask(home.node, question, *asked, of=type))
    return {
        "type": type,
        "id": id,
        "shard": shard,
        "node": str(home.node),
        "bytes": answer["bytes"],
        "removed": value is None,
    }
