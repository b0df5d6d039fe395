"""Pages about the shards of a type, and commands to its coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from heapq import nlargest
from operator import itemgetter
from typing import Annotated, Any

from shardbus.admin.administration import Administration, text_of
from shardbus.admin.pages.cluster import ask_loads, instances_of
from shardbus.admin.questions import question, refusing
from shardbus.admin.shard_control import address_of
from shardbus.errors import ConfigError
from shardbus.http.page import EntityType, Json, Number, ShardId, page
from shardbus.ids import Address, NodeId, check_id
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.events import Rebalance
from shardbus.sharding.instances import split_row
from shardbus.sharding.shard_load import MESSAGES, UNITS
from shardbus.shells.region import RegionShell

HOTTEST = 10
"""Shards with the most load, on the page of loads."""
ADD_MAX = 1000
MOVES_MAX = 1_000_000
STOP_PART = 0.5
"""The part of the asker's timeout that stopping shards may take; then the answer names the shards
that are still to stop."""
PACE = ("paused", "held", "moving", "moves_at_a_time")
_STATES = {
    "begin": "handing_off",
    "stopping": "handing_off",
    "handing_off": "handing_off",
    "starting": "starting",
    "unallocated": "unallocated",
}


@page("GET", "/v1/shards/{type}")
async def shards(admin: Administration, type: EntityType) -> Json:
    """Where the shards of a type live.

    `type`, `coordinator`, `epoch`, `complete`, `load_unit`, `paused`, `held` (the reason why
    nothing moves for balance, or empty), `moving` (shards on the move), `moves_at_a_time` (per
    source and target), `shards`, each with `shard`, `node`, `state`, `age` (seconds for which it
    moves or starts, else null), `fence`, `entities` (null if its node did not answer in time),
    `load` (with strategy `least-load`, else null; in `load_unit`: `messages/s`, `handler s/s`,
    `entities`, `waiting messages` or `parts of a node`, by `sharding.load`). States are `starting`,
    `running`, `handing_off` and `unallocated`. A shard that never had a home has no row. If the
    coordinator does not answer, the rows are this node's, `complete` is false, and the four fields
    from `paused` on are null.
    """
    region = admin.region(type)
    asking = admin.node.rpc.ask_all("stats", of=type)
    table, stats = await asyncio.gather(admin.table(type), asking)
    answered = {str(node) for node in stats}
    live = {
        (str(node), shard): count
        for node, types in stats.items()
        for shard, count in types.get(type, {}).items()
    }
    rows = [shard_row(*columns) for columns in table["shards"]]
    for row in rows:
        node, shard = row["node"], row["shard"]
        row["entities"] = live.get((node, shard), 0) if node in answered else None
    rows.sort(key=_by_shard)
    return {
        "type": type,
        "coordinator": text_of(region.coordinator),
        "epoch": table["epoch"],
        "complete": table["complete"],
        **{name: table.get(name) for name in PACE},
        "load_unit": _load_unit(table),
        "shards": rows,
    }


def shard_row(
    shard: str,
    node: str,
    fence: int,
    state: str,
    load: float | None = None,
    age: float | None = None,
    *_: object,
) -> dict[str, Any]:
    """Return a row of a coordinator's table as a page has it; `age`: for how long the shard has
    been neither running nor at rest. A coordinator of an older version sends less."""
    return {
        "shard": shard,
        "node": node,
        "state": _STATES.get(state, "running"),
        "age": round(age, 3) if age is not None else None,
        "fence": fence,
        "load": round(load, 2) if load is not None else None,
    }


def _by_shard(row: Mapping[str, Any]) -> tuple[int, str]:
    """A key that sorts numbers as numbers."""
    return len(row["shard"]), row["shard"]


def _load_unit(table: Mapping[str, Any]) -> str:
    """The unit of a table's loads; the coordinator of an older version does not name it."""
    return str(table.get("load_unit") or UNITS[MESSAGES])


@page("GET", "/v1/partitions/{type}")
async def partitions(admin: Administration, type: EntityType) -> Json:
    """The instances of each shard of a type, and the nodes in order.

    `type`, `instances` (N; null without instances), `complete`, `nodes` (sorted: the ordinal of a
    node is its place), `partitions` [{`shard`, `instances` [{`instance`, `node`, `state`,
    `fence`}]}].
    """
    region = admin.region(type)
    table = await admin.table(type)
    members = admin.node.view.members if admin.node.view is not None else ()
    instances: dict[str, list[dict[str, Any]]] = {}
    for row, node, fence, state, *_ in table["shards"]:
        shard, instance = split_row(row)
        shown = {"node": node, "fence": fence, "state": _STATES.get(state, "running")}
        instances.setdefault(shard, []).append({"instance": instance or 1, **shown})
    rows: list[Json] = [
        {"shard": shard, "instances": sorted(instances[shard], key=itemgetter("instance"))}
        for shard in sorted(instances, key=lambda shard: (len(shard), shard))
    ]
    return {
        "type": type,
        "instances": instances_of(region),
        "complete": table["complete"],
        "nodes": [str(node) for node in sorted(member.node for member in members)],
        "partitions": rows,
        "gossip": _gossip_of(region),
    }


def _gossip_of(region: RegionShell) -> Json | None:
    """The table of a type as this node has it by gossip; None if none travels."""
    gossip = region.table.router.region.table_gossip
    if gossip.state is None:
        return None
    epoch, version = gossip.version
    return {
        "epoch": epoch,
        "version": version,
        "behind": [str(node) for node in gossip.behind(gossip.version)],
        "pending": [
            {
                "shard": change.shard,
                "from": change.source and str(change.source),
                "to": change.target and str(change.target),
                "status": change.status,
            }
            for change in gossip.state.changes
        ],
    }


@page("GET", "/v1/load")
async def load(admin: Administration) -> Json:
    """How busy the nodes are, and the shards with the most messages.

    `node`, `nodes`, `unseen`, `looks`, `hottest`. This node asks three members, or a tenth of them
    if that is more; each answers for itself and the nodes that it watches. It asks others, up to
    five times, while a member is missing; `unseen` names members that no answer was about. `nodes`
    has averages with a half-life of 12 s and their `age` in seconds: `busy` (processor time of the
    loop's thread, 0 to 1), `lag` (seconds by which its timers are late), `rss` (bytes), `gc` (part
    of the time), `mailbox` (messages that wait), `rate` (messages per second). `hottest` has ten
    shards of each unit, only of types with strategy `least-load`, each with `type`, `shard`,
    `node`, `load`, `unit`: loads in different units cannot be compared.
    """
    survey = await ask_loads(admin)
    rows = [
        {"node": str(node), **vitals._asdict(), "age": round(age, 3)}
        for node, (vitals, age) in sorted(survey.vitals.items())
    ]
    return {
        "node": str(admin.node.me),
        "nodes": rows,
        "unseen": [str(node) for node in survey.unseen()],
        "looks": survey.looks,
        "hottest": await _hottest(admin),
    }


async def _hottest(admin: Administration) -> list[Json]:
    """The shards with the most load, of the types that are balanced by it: `HOTTEST` of each
    unit, for loads in different units cannot be compared."""
    tables = await asyncio.gather(*map(admin.table, admin.tables))
    rows: list[Json] = [
        {
            "type": name,
            "shard": row[0],
            "node": row[1],
            "load": round(row[4], 3),
            "unit": _load_unit(table),
        }
        for name, table in zip(admin.tables, tables, strict=True)
        for row in table["shards"]
        if len(row) > 4 and row[4]
    ]
    rows.sort(key=lambda row: (str(row["type"]), str(row["shard"])))
    hottest: list[Json] = []
    for unit in dict.fromkeys(row["unit"] for row in rows):
        same = (row for row in rows if row["unit"] == unit)
        hottest += nlargest(HOTTEST, same, key=itemgetter("load"))
    return hottest


@page("GET", "/v1/plan/{type}")
async def plan(
    admin: Administration,
    type: EntityType,
    add: Annotated[int, Number(0, ADD_MAX)] = 0,
    remove: tuple[str, ...] = (),
) -> Json:
    """Which shards would move with `add` more nodes, and without each `remove`.

    `type`, `add`, `remove`, `moves` (each with `shard`, `from`, `to`), `nodes` (each with `node`,
    and its shards `before` and `after`; new ones are named `new-1:1#...`), `rounds` (the number of
    plans), `settled`, `paused`, `held`, `moving`, `moves_at_a_time`. `POST /v1/rebalance/{type}`
    answers with these four, `type` and `rebalancing`.
    """
    gone = [str(admin.member(node)) for node in remove]
    forecast = await admin.shard_control.ask(type, "plan", add, gone)
    return {
        "type": type,
        "add": add,
        "remove": gone,
        "moves": [{"shard": s, "from": a, "to": b} for s, a, b in forecast["moves"]],
        "nodes": [{"node": n, "before": b, "after": a} for n, b, a in forecast["nodes"]],
        **{name: forecast[name] for name in ("rounds", "settled", *PACE)},
    }


@page("POST", "/v1/rebalance/{type}")
async def rebalance(
    admin: Administration,
    type: EntityType,
    pause: bool | None = None,
    moves: Annotated[int, Number(0, MOVES_MAX)] | None = None,
) -> Json:
    """Check the balance now; or set `pause=true` or `false`, and `moves=N` shards at a time per
    node (0: as in the settings), stored until they are set again."""
    pace = await admin.shard_control.rebalance(type, paused=pause, moves=moves)
    return {"type": type, "rebalancing": not pace["held"], **pace}


@page("POST", "/v1/stop/{type}")
async def stop(admin: Administration, type: EntityType, shard: tuple[ShardId, ...]) -> Json:
    """Stop shards, `?shard=S` for each, until their next message.

    `type`, `stopped`, `stopping` (shards that had not stopped by the time of the answer, half of
    the type's `shard_region_query_timeout`, and that will). Stashed messages count as new messages.
    """
    if not shard:
        raise ConfigError("no shard is given", hint="add ?shard=S for each")
    return {"type": type, **await admin.shard_control.stop(type, shard)}


@page("GET", "/v1/places/{type}")
async def places(admin: Administration, type: EntityType) -> Json:
    """Where shards must live by an operator's order.

    `type`, `places`, each with `shard`, `place` (an address), and `node`, where the shard lives
    now, or null.
    """
    return await _places(admin, type, await admin.shard_control.places(type))


@page("POST", "/v1/places/{type}")
async def place(admin: Administration, type: EntityType, set: tuple[str, ...]) -> Json:
    """Set places: `?set=SHARD=HOST:PORT`, any number of them; `SHARD=` removes a place. Answered
    when they are stored."""
    addresses: dict[str, Address | None] = {}
    for text in set:
        shard, sign, address = text.rpartition("=")
        if not sign:
            raise ConfigError(f"{text[:80]!r} has no place", hint="write SHARD=HOST:PORT")
        addresses[check_id("shard", shard)] = address_of(address) if address else None
    return await _places(admin, type, await admin.shard_control.place(type, addresses))


async def _places(admin: Administration, type: str, places: Mapping[str, Address]) -> Json:
    table = await admin.table(type)
    homes = {row[0]: row[1] for row in table["shards"]}
    rows = [
        {"shard": shard, "place": str(place), "node": homes.get(shard)}
        for shard, place in places.items()
    ]
    rows.sort(key=_by_shard)
    return {"type": type, "places": rows}


# ---- answers of this node


@question("table")
def answer_table(admin: Administration, name: str) -> dict[str, Any] | None:
    """The coordinator's table of a type."""
    coordinator = admin.ruling(name)
    if coordinator is None:
        return None
    homes, now = coordinator.table.homes, admin.node.loop.time()
    load_of, state_of = coordinator.rebalancing.load_of, coordinator.state_of
    since = coordinator.unsettled_since
    shards = [
        [
            shard,
            str(home.node),
            home.fence,
            state_of(shard),
            load_of(shard),
            now - began if (began := since(shard)) is not None else None,
        ]
        for shard, home in homes.items()
    ]
    return {
        "epoch": coordinator.epoch,
        "shards": shards,
        "load_unit": coordinator.rebalancing.load_unit,
        **pace(coordinator),
    }


@question("plan")
@refusing
async def answer_plan(admin: Administration, name: str, add: int, remove: list[str]) -> Any:
    """The moves that would follow if `add` nodes came and those in `remove` went."""
    coordinator = admin.ruling(name)
    if coordinator is None:
        return None
    if not 0 <= add <= ADD_MAX:
        raise ConfigError(f"a plan may add 0 to {ADD_MAX} nodes, not {add}")
    call = coordinator.forecasting(add, tuple(NodeId.parse(node) for node in remove))
    seen = await admin.coordinator_shell(name).ask_strategy(coordinator, call)
    nodes = {**seen.before, **seen.after}
    return {
        "moves": [[shard, str(a), str(b)] for shard, (a, b) in seen.moved.items()],
        "nodes": [[str(n), seen.before.get(n, 0), seen.after.get(n, 0)] for n in nodes],
        "rounds": seen.rounds,
        "settled": seen.settled,
        **pace(coordinator),
    }


@question("rebalance")
def answer_rebalance(admin: Administration, name: str) -> dict[str, Any] | None:
    """Check the balance now."""
    coordinator = admin.ruling(name)
    if coordinator is None:
        return None
    admin.coordinator_shell(name).handle(Rebalance())
    return pace(coordinator)


@question("slow")
@refusing
async def answer_slow(
    admin: Administration, name: str, paused: bool | None, moves: int | None
) -> Any:
    """Pause or resume rebalancing, and bound the moves at a time; answered once it is
    stored."""
    coordinator = admin.ruling(name)
    if coordinator is None:
        return None
    await admin.coordinator_shell(name).override(lambda current: current.slowed(paused, moves))
    return pace(coordinator)


@question("stop")
@refusing
async def answer_stop(admin: Administration, name: str, shards: list[str]) -> Any:
    """Stop these shards; the answer lists those that have stopped and those still to stop."""
    if admin.ruling(name) is None:
        return None
    settings = admin.region(name).settings
    patience = STOP_PART * settings.shard_region_query_timeout
    left = await admin.coordinator_shell(name).stop_shards(shards, patience)
    return {"stopped": [s for s in shards if s not in left], "stopping": left}


@question("places")
def answer_places(admin: Administration, name: str) -> dict[str, Any] | None:
    """The places that were set for shards of the type."""
    if admin.ruling(name) is None:
        return None
    places = admin.coordinator_shell(name).overrides.places
    return {"places": {shard: str(place) for shard, place in places.items()}}


@question("place")
@refusing
async def answer_place(
    admin: Administration, name: str, changes: dict[str, str]
) -> dict[str, Any] | None:
    """Set the places of shards; an empty text takes a place away. Answered once it is
    stored."""
    coordinator = admin.ruling(name)
    if coordinator is None:
        return None
    places = {s: Address.parse(text) if text else None for s, text in changes.items()}
    coordinator.rebalancing.check_places({p for p in places.values() if p is not None})
    await admin.coordinator_shell(name).override(lambda current: current.placed(places))
    return answer_places(admin, name)


def pace(coordinator: Coordinator) -> dict[str, Any]:
    """How fast the coordinator moves shards, and why it may not."""
    balance = coordinator.rebalancing
    moving, most = balance.moves_in_flight
    held = balance.why_not()
    return {"paused": balance.paused, "held": held, "moving": moving, "moves_at_a_time": most}
