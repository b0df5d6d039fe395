"""Pages about the entities in memory."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping
from typing import Annotated, Any

from shardbus.admin.administration import Administration, text_of
from shardbus.admin.questions import question
from shardbus.admin.shard_control import check_shard
from shardbus.errors import Refused, RequestError
from shardbus.http.page import (
    PAGE_DEFAULT,
    PAGE_MAX,
    EntityId,
    EntityType,
    Json,
    Number,
    PageSize,
    page,
)
from shardbus.ids import NodeId
from shardbus.routing.instance_policies import Choice
from shardbus.routing.instance_routes import wire_id
from shardbus.routing.instance_sender import InstanceSender
from shardbus.sharding.instances import INSTANCE_MARK, split_row
from shardbus.shells.region import RegionShell

LIMIT_MAX = 999_999_999
SLICE = 2048
"""Entities that are looked at between two turns of the loop."""


@page("GET", "/v1/where/{type}/{id}")
async def where(admin: Administration, type: EntityType, id: EntityId) -> Json:
    """Where one entity lives, or would.

    `type`, `id`, `shard`, `node`, `state` (`running`, `unallocated`, or `unknown` if the home did
    not answer), `running` (the entity is in memory). Of a type with instances, the home belongs to
    the instance that this node would choose by `nearest`: `instance` is its number, `shard` its
    row, and `instances` lists all of them. `/v1/where/{type}/{id}~2` is one instance. `/v1/types`
    has `instances` and `router`, `/v1/entities/{type}` an `instance` in each row.
    """
    region = admin.region(type)
    router = region.router
    if router.rows is None or INSTANCE_MARK in id:
        return await _place(admin, region, type, id)
    count = len(router.rows.of(id).routes)
    places = await asyncio.gather(
        *(_place(admin, region, type, wire_id(id, k)) for k in range(1, count + 1))
    )
    nearest = InstanceSender(router, Choice()).pick(id)
    chosen = next((place for place in places if place["id"] == nearest), places[0])
    columns = ("shard", "node", "state", "running")
    rows = [
        {"instance": k, **{column: place[column] for column in columns}}
        for k, place in enumerate(places, 1)
    ]
    return {**chosen, "id": id, "instance": split_row(str(chosen["id"]))[1], "instances": rows}


async def _place(admin: Administration, region: RegionShell, type: str, id: str) -> Json:
    """The home of an entity by its wire id."""
    shard = region.router.route_of(id).shard
    home = region.router.region.home_of(shard)
    running = False
    state = "unallocated"
    if home is not None:
        state = "running"
        try:
            running = await admin.node.rpc.ask(home.node, "running", type, shard, id, of=type)
        except RequestError:
            state = "unknown"
    return {
        "type": type,
        "id": id,
        "shard": shard,
        "node": text_of(home and home.node),
        "state": state,
        "running": running,
    }


@page("GET", "/v1/entities/{type}")
async def entities(
    admin: Administration,
    type: EntityType,
    shard: str | None = None,
    prefix: str = "",
    limit: PageSize = PAGE_DEFAULT,
    cursor: str | None = None,
) -> Json:
    """A page of entities in memory, sorted by id.

    `entities`, each with `id`, `shard`, `node`; `next` is the cursor of the next page, or null;
    `silent` are the nodes that did not answer in time: their entities are missing.
    """
    region = admin.region(type)
    if shard:
        check_shard(region, shard)
    columns = shard or "", prefix, cursor or "", limit + 1
    pages, silent = await admin.ask_all("entities", type, *columns, of=type)
    rows = [
        {"id": i, "shard": s, "node": str(node)}
        for node, page in pages.items()
        for i, s in page or ()
    ]
    rows.sort(key=lambda row: (row["id"], row["node"]))
    more = len(rows) > limit
    rows = rows[:limit]
    following = rows[-1]["id"] if more and rows else None
    if region.entity_type.interface.instances is not None:
        for row in rows:
            row["id"], row["instance"] = split_row(row["id"])
    return {
        "entities": rows,
        "next": following,
        "silent": silent,
    }


@page("GET", "/v1/limit/{type}")
async def limits(admin: Administration, type: EntityType) -> Json:
    """The limit of a type's entities in memory, on each node that hosts it.

    `type`, `strategy`, `nodes` (each with `node`, `limit`, `entities` in memory, and the number of
    `evicted` entities), `silent` (nodes that did not answer; their limit may differ). A change
    lasts for the life of a node's process. Entities over a lower limit are evicted soon after the
    answer.
    """
    return _limits(admin.region(type), *await admin.ask_all("limit", type, None, of=type))


@page("POST", "/v1/limit/{type}")
async def set_limit(
    admin: Administration,
    type: EntityType,
    limit: Annotated[int, Number(0, LIMIT_MAX)],
    node: str | None = None,
) -> Json:
    """Set the limit on entities in memory, 0 for none, on all nodes or on one.

    Raises:
        Refused: the type's entities are remembered, or the one node does not host it.
    """
    region = admin.region(type)
    on = None if node is None else admin.member(node, itself=True)
    if region.settings.remember:
        raise Refused(f"entities of {type!r} are remembered: there is no limit on them")
    if on is None:
        return _limits(region, *await admin.ask_all("limit", type, limit, of=type))
    try:
        answer = await admin.node.rpc.ask(on, "limit", type, limit, of=type)
    except RequestError:
        return _limits(region, {}, [str(on)])
    if answer is None:
        raise Refused(f"{on} hosts no {type!r}, or keeps its entities in memory")
    return _limits(region, {on: answer}, [])


def _limits(region: RegionShell, answers: Mapping[NodeId, Any], silent: list[str]) -> Json:
    """The answers to `limit` as a page."""
    rows = [
        {"node": str(node), "limit": row[0], "entities": row[1], "evicted": row[2]}
        for node, row in answers.items()
        if row is not None
    ]
    return {
        "type": region.name,
        "strategy": region.settings.passivation_strategy,
        "nodes": rows,
        "silent": silent,
    }


# ---- answers of this node


@question("running")
def answer_running(admin: Administration, name: str, shard: str, entity_id: str) -> bool:
    """True if the entity is in memory here."""
    return admin.region(name).host.find(entity_id, shard) is not None


@question("entities")
async def answer_entities(
    admin: Administration, name: str, shard: str, prefix: str, after: str, limit: int
) -> list[list[str]]:
    """Up to `limit` entities (id, shard) in memory here, sorted by id, with ids above `after`.

    One pass over the entities, in slices between which the loop turns.

    Raises:
        BufferFull: there are `LISTS_MAX` passes.
    """
    host = admin.region(name).host
    limit = max(0, min(limit, PAGE_MAX + 1))
    with admin.list_of_entities():
        first: list[tuple[str, str]] = []
        for part in host.activations.walk(SLICE):
            matching = [
                (i, s)
                for i, s in part
                if i > after and i.startswith(prefix) and (not shard or s == shard)
            ]
            if matching:
                first = heapq.nsmallest(limit, [*first, *matching])
            await asyncio.sleep(0)
        return [list(row) for row in first]


@question("limit")
def answer_limit(admin: Administration, name: str, new_limit: int | None) -> list[int] | None:
    """The limit on entities in memory here, their number, and how many were evicted. `wanted`
    is set as the new limit. None if this node does not host the type, or the type takes no
    limit."""
    region = admin.region(name)
    if not region.hosts:
        return None
    if new_limit is not None:
        try:
            region.host.set_active_entity_limit(new_limit)
        except Refused:
            return None
    passivator = region.host.passivator
    return [passivator.limit, region.host.entities, passivator.evicted]
