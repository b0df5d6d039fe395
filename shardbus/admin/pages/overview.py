"""The whole cluster in one answer, and the map of a type's shards: the page `/ui` requests both
every second or two.

Every reachable member is asked for a `brief`, the coordinator of a type for its map. However many
pages are open, and whatever they ask, that happens once in `OVERVIEW_FRESH_S` and, for each type,
once in `MAP_FRESH_S`.

Source: docs/reference/http.md; B.149, N.21.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from shardbus.admin.administration import Administration, text_of
from shardbus.admin.brief import brief_of
from shardbus.admin.pages.cluster import cluster, member_row, types
from shardbus.admin.pages.shards import PACE, pace
from shardbus.admin.questions import question
from shardbus.admin.shard_map import Columns, columns_of
from shardbus.errors import ShardBusError
from shardbus.histograms import LATENCY_BOUNDS
from shardbus.http.page import EntityType, Json, page
from shardbus.ids import NodeId
from shardbus.membership.member import Member
from shardbus.membership.view import MembershipView
from shardbus.shells.region import RegionShell
from shardbus.version import VERSION

OVERVIEW_FRESH_S, MAP_FRESH_S = 0.8, 0.2
MAPS_MAX = 100
"""Maps in one answer."""
COUNTERS = ("dropped", "slow", "late", "store")
ASKED_OTHERWISE = ("status_for", "shards", "entities")
"""Columns of the page of nodes that are not here, or in a brief."""


@page("GET", "/v1/overview")
async def overview(admin: Administration) -> Json:
    """Members, types and the counters of every member in one answer, for `/ui`.

    The fields of `/v1/cluster`, `types` as in `/v1/types`, `at` (seconds since 1970), `build` (the
    version of shardbus), `write` (true if `http.write` is on), and `nodes`, each with the identity
    and state of `/v1/nodes`, and, null if the member did not answer: `types` (type to `shards`,
    `entities`, `received` messages, `failures`, `buffered` messages, and `handled` and `waited`:
    how many handlers took, and how many messages waited, up to each of the `latency_bounds` of the
    answer, the last one longer), `vitals` (as in `/v1/load`), `dropped` (rows of type, reason,
    count; the type of frames is empty), `slow` (rows of type, `waited` or `blocked`, count), `late`
    (asks without an answer in time) and `store` (calls, their seconds, errors). Counters begin with
    the process. Members that are unreachable are not asked. The answer is shared by all readers for
    0.8 s.
    """
    return await admin.shared("overview", OVERVIEW_FRESH_S, partial(_ask_members, admin))


@page("GET", "/v1/map/{type}")
async def shard_map(admin: Administration, type: EntityType, known: str = "") -> Json:
    """Where the shards of a type live, in columns; with `?known=VERSION` only if that has changed.

    `type`, `coordinator`, `epoch`, `complete`, `version`, `paused`, `held`, `moving`,
    `moves_at_a_time`; `nodes`; `shards`, sorted, and in the same order `homes` (the index of a
    node) and `states`, one letter each: `r` running, `h` handing off, `s` starting; `changes`: the
    last 50 changes of homes, newest first, rows of shard, age in seconds, from, to, why, seconds.
    From `nodes` on they are null if `known` is the `version`. Shared for 0.2 s.
    """
    admin.region(type)
    ask = partial(_ask_for_map, admin, type)
    answer = await admin.shared(f"map of {type}", MAP_FRESH_S, ask)
    if known and answer["version"] == known:
        return answer | dict.fromkeys(("nodes", "shards", "homes", "states", "changes"))
    return answer


@page("GET", "/v1/maps")
async def shard_maps(admin: Administration, known: tuple[str, ...] = ()) -> Json:
    """The maps of several types in one answer: `?known=TYPE=VERSION` for each, `TYPE=` without a
    version.

    `maps`, in this order, each as in `/v1/map/{type}`. A type that there is not is 404.
    """
    pairs = [name.rpartition("=")[::2] for name in known[:MAPS_MAX]]
    return {"maps": await asyncio.gather(*(shard_map(admin, *pair) for pair in pairs))}


async def _ask_members(admin: Administration) -> Json:
    node, view = admin.node, admin.node.view
    members = view.members if view is not None else ()
    near = [m.node for m in members if view is not None and m.node not in view.unreachable]
    questions = (node.rpc.ask(member, "brief") for member in near)
    answers = await asyncio.gather(*questions, return_exceptions=True)
    briefs: dict[NodeId, Mapping[str, Any]] = {}
    for member, answer in zip(near, answers, strict=True):
        if isinstance(answer, dict):
            briefs[member] = answer
        elif not isinstance(answer, ShardBusError | dict):
            raise TypeError(f"{member} answered {answer!r}")
    return {
        **await cluster(admin),
        **await types(admin),
        "at": time.time(),
        "build": VERSION,
        "write": node.settings.http.write,
        "latency_bounds": LATENCY_BOUNDS,
        "nodes": [_row(admin, m, briefs.get(m.node), view) for m in members if view is not None],
    }


async def _ask_for_map(admin: Administration, type: str) -> Json:
    region = admin.region(type)
    last = admin.last_maps.get(type, {})
    head = {"type": type, "coordinator": text_of(region.coordinator)}
    answer = await admin.ask_coordinator("shard_map", type, str(last.get("version", "")))
    if answer is None:
        admin.last_maps.pop(type, None)
        return {**head, **_known_here(region)}
    columns = answer if "shards" in answer else {**last, **answer}
    admin.last_maps[type] = {**columns, **head, "complete": True}
    return admin.last_maps[type]


def _known_here(region: RegionShell) -> Columns:
    """Return the part of a map that this node has without the coordinator."""
    machine = region.router.region
    homes = [machine.home_of(shard) for shard in region.router.routes]
    rows = [(home.shard, str(home.node)) for home in homes if home is not None]
    head = {"epoch": machine.epoch, "version": "", "complete": False, "changes": []}
    return {**head, **columns_of(rows, {}), **dict.fromkeys(PACE)}


def _row(
    admin: Administration, member: Member, brief: Mapping[str, Any] | None, view: MembershipView
) -> Json:
    """Return a member with its brief; its counters are null if it did not answer."""
    row, counted = member_row(admin, member, None, None, view), brief or {}
    return {
        **{name: value for name, value in row.items() if name not in ASKED_OTHERWISE},
        "answered": brief is not None,
        "suspended": counted.get("suspended") or None,
        **{name: counted.get(name) for name in ("types", "vitals", *COUNTERS)},
    }


# ---- answers of this node


@question("brief")
def answer_brief(admin: Administration) -> dict[str, Any]:
    """This node's shards and entities, how busy it is, and its counters."""
    return brief_of(admin.node)


@question("shard_map")
def answer_shard_map(admin: Administration, name: str, version: str) -> dict[str, Any] | None:
    """The homes of a type's shards in columns, and the last moves; no columns if the asker has
    the version `version`."""
    coordinator = admin.ruling(name)
    if coordinator is None:
        return None
    drawn = admin.maps.of(name, coordinator, version, admin.node.loop.time())
    return {**drawn, **pace(coordinator)}
