"""Pages about projections: how far they are behind, which parts fail, and the orders of operators.

Each node answers for the parts of its shards. A part is named by the id of its source. Orders go to
the home of the part, which carries them out as a message of the part.

Source: docs/how-to/event-sourcing.md.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from shardbus.admin.administration import Administration
from shardbus.admin.questions import question, refusing
from shardbus.entities.projected_events import ProjectedEvents, part_id
from shardbus.entities.projecting import Projecting
from shardbus.errors import ConfigError, RequestError, ShardBusError, UnknownEntityType
from shardbus.http.page import (
    PAGE_DEFAULT,
    EntityId,
    EntityType,
    Json,
    Number,
    Operator,
    PageSize,
    page,
)
from shardbus.sharding.events import Note
from shardbus.store.journal_protocol import journals_of

REWOUND = 20
"""Parts that one request rewinds, about."""
SUMS = ("shards", "behind", "stopped", "scanning", "handled", "passed", "failed", "missing")
EventNumber = Annotated[int, Number(1, 10**9 - 1)]


@page("GET", "/v1/projections")
async def projections(admin: Administration) -> Json:
    """The projections, and how far they are behind, of all nodes together.

    `projections`, each with `name`, `of` (the type whose events it handles), `shards`, `behind`
    (entities with events that are not handled), `lag` (seconds for which the first of them has been
    so), `stopped` (entities at an event that failed too often), `scanning` (shards that are not
    searched yet for entities that are behind), and since the starts of the nodes: `handled`
    (events), `passed` (those of them without a handler), `failed` (attempts) and `missing` (events
    that were removed before); `silent` (members that did not answer).
    """
    answers, silent = await admin.ask_all("projections")
    rows: dict[str, dict[str, Any]] = {}
    for answer in answers.values():
        for name, row in answer.items():
            total = rows.setdefault(name, {"name": name, "of": row["of"], "lag": 0.0})
            total["lag"] = max(total["lag"], row["lag"])
            total |= {key: total.get(key, 0) + row[key] for key in SUMS}
    return {"projections": [rows[name] for name in sorted(rows)], "silent": silent}


@page("GET", "/v1/projections/{type}")
async def projection(
    admin: Administration, type: EntityType, limit: PageSize = PAGE_DEFAULT
) -> Json:
    """One projection on each node, and the entities at whose events it fails, stopped ones first.

    `name`, `of`, `nodes` (each with `node` and the fields of `/v1/projections`), `failing` (each
    with `id`, `node`, `state` (paused, stopped, or at work again), `number` of the event or 0,
    `attempts` and `error`), `silent`.
    """
    events = _events_of(admin, type)
    answers, silent = await admin.ask_all("projection", type, limit, of=type)
    failing = [
        {"node": str(node), **row} for node, answer in answers.items() for row in answer["failing"]
    ]
    failing.sort(key=lambda row: (row["state"] != "stopped", row["id"]))
    nodes = [{"node": str(node), **answer["row"]} for node, answer in answers.items()]
    nodes.sort(key=lambda row: str(row["node"]))
    return {
        "name": type,
        "of": events.source,
        "nodes": nodes,
        "failing": failing[:limit],
        "silent": silent,
    }


@page("GET", "/v1/projections/{type}/{id}")
async def projection_of(admin: Administration, type: EntityType, id: EntityId) -> Json:
    """How far a projection is with one entity, which is started if it is not in memory.

    `name`, `id`, `node`, `handled` (the number of the last event that is handled), `last` (of the
    journal), `first` (the first that is not removed), `behind` (the difference), `state` (caught
    up, due, at work, paused, stopped), `number` (of an event that has failed, or 0), `attempts` and
    `error`.
    """
    answer, home = await _ask_home(admin, "projection_part", type, id)
    return {"name": type, "id": id, "node": home, **answer}


@page("POST", "/v1/projections/{type}/retry")
async def retry_projection(
    admin: Administration, type: EntityType, operator: Operator, id: EntityId = ""
) -> Json:
    """Let the entities at whose events a projection has failed be tried again now; with `id`, one.

    `name`, `retried` (how many), `silent`.
    """
    _events_of(admin, type)
    answers, silent = await admin.ask_all("projection_retry", type, id, operator, of=type)
    return {"name": type, "retried": sum(answers.values()), "silent": silent}


@page("POST", "/v1/projections/{type}/skip")
async def skip_event(
    admin: Administration, type: EntityType, operator: Operator, id: EntityId, number: EventNumber
) -> Json:
    """Pass over the next event of an entity, which must have this number. The projection never
    handles it.

    `name`, `id`, `node`, `skipped`. 409 if its next event has another number.
    """
    skipped, home = await _ask_home(admin, "projection_skip", type, id, number, operator)
    return {"name": type, "id": id, "node": home, "skipped": skipped}


@page("POST", "/v1/projections/{type}/rewind")
async def rewind_projection(
    admin: Administration,
    type: EntityType,
    operator: Operator,
    id: EntityId = "",
    missing: bool = False,
    after: str = "",
) -> Json:
    """Let a projection handle the events of an entity anew, from the first one on, with an empty
    state. Without `id`, those of about 20 entities after a cursor: repeat it with `next`.

    `name`, `rewound` (ids), `refused` (each with `id` and `error`), `next` (cursor or null). An
    entity whose first events are removed is refused unless `missing` is true.
    """
    events, ids, following = _events_of(admin, type), [id], None
    if not id:
        journals = journals_of(admin.node.store)
        assert journals is not None
        names, following = await journals.page(events.source, after or None, REWOUND)
        ids = [name for _, name in names]

    async def rewind(entity: str) -> str:
        try:
            await _ask_home(admin, "projection_rewind", type, entity, missing, operator)
        except (ShardBusError, RequestError) as error:
            return error.message
        return ""

    errors = dict(zip(ids, await asyncio.gather(*map(rewind, ids)), strict=True))
    return {
        "name": type,
        "rewound": [entity for entity, error in errors.items() if not error],
        "refused": [{"id": entity, "error": error} for entity, error in errors.items() if error],
        "next": following,
    }


def _events_of(admin: Administration, type: str) -> ProjectedEvents:
    regions = admin.node.regions
    events = regions[type].entity_type.projection if type in regions else None
    if events is None:
        names = [name for name, r in regions.items() if r.entity_type.projection is not None]
        hint = f"there {'are' if len(names) > 1 else 'is'} {', '.join(names) or 'none'}"
        raise UnknownEntityType(f"there is no projection {type!r:.100}", hint=hint)
    return events


async def _ask_home(
    admin: Administration, question: str, type: str, id: str, *arguments: object
) -> tuple[Any, str]:
    """Return the answer of the home of an entity's part, and that node."""
    _events_of(admin, type)
    routed = part_id(id, type)
    answer, _, home = await admin.ask_home(question, type, id, *arguments, routed=routed)
    return answer["answer"], home


# ---- answers of this node


@question("projections")
def answer_projections(admin: Administration) -> dict[str, Any]:
    """The projections of this node, by name."""
    regions = admin.node.regions.items()
    parts = {name: region.host.runner.projecting for name, region in regions}
    return {name: _row(part) for name, part in parts.items() if part is not None}


@question("projection")
def answer_projection(admin: Administration, name: str, limit: int) -> dict[str, Any]:
    """One projection of this node, and its parts that fail."""
    projecting = _projecting(admin, name)
    failing = [
        {
            "id": source_id,
            "state": part.state.value,
            "number": part.number,
            "attempts": part.failures,
            "error": part.error,
        }
        for source_id, part in projecting.failing(limit)
    ]
    return {"row": _row(projecting), "failing": failing}


@question("projection_part")
@refusing
async def answer_projection_part(
    admin: Administration, name: str, shard: str, source_id: str
) -> Any:
    """How far the part of an entity is, whose shard is here."""
    return {"answer": await _projecting(admin, name).described(shard, source_id)}


@question("projection_retry")
def answer_projection_retry(admin: Administration, name: str, source_id: str, operator: str) -> int:
    """How many parts of this node try again."""
    retried = _projecting(admin, name).retry(source_id)
    if retried:
        text = f"{retried} parts, by {operator:.100}"
        admin.node.note(name, Note("projection_retried", text))
    return retried


@question("projection_skip")
@refusing
async def answer_projection_skip(
    admin: Administration, name: str, shard: str, source_id: str, number: int, operator: str
) -> Any:
    """Pass over the next event of a part, whose shard is here."""
    skipped = await _projecting(admin, name).skip(shard, source_id, number)
    text = f"event {number} of {source_id!r:.100}, by {operator:.100}"
    admin.node.note(name, Note("event_skipped", text, entity_id=part_id(source_id, name)))
    return {"answer": skipped}


@question("projection_rewind")
@refusing
async def answer_projection_rewind(
    admin: Administration, name: str, shard: str, source_id: str, missing: bool, operator: str
) -> Any:
    """Let a part, whose shard is here, begin anew."""
    gone = await _projecting(admin, name).rewind(shard, source_id, missing=missing)
    text = f"{source_id!r:.100}, by {operator:.100}"
    admin.node.note(name, Note("projection_rewound", text, entity_id=part_id(source_id, name)))
    return {"answer": gone}


def _projecting(admin: Administration, name: str) -> Projecting:
    projecting = admin.region(name).host.runner.projecting
    if projecting is None:
        raise ConfigError(f"{name!r} is no projection")
    return projecting


def _row(projecting: Projecting) -> dict[str, Any]:
    counts = projecting.counts
    return {
        "of": projecting.events.source,
        "shards": projecting.shards,
        "behind": projecting.parts.behind,
        "lag": round(projecting.lag, 3),
        "stopped": projecting.parts.stopped,
        "scanning": projecting.scan.shards,
        "handled": counts.handled,
        "passed": counts.passed,
        "failed": counts.failed,
        "missing": counts.missing,
    }
