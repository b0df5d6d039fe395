"""The whole cluster in one answer, and the map of a type's shards: what the page `/ui` asks for
every second or two.

Every reachable member is asked for a `brief`, the coordinator of a type for its map. However many
pages are open, and whatever they ask, that happens once in `OVERVIEW_FRESH_S` and, for each type,
once in `MAP_FRESH_S`.

Source: docs/reference/http.md; B.149, N.21.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from shardbus.admin.metrics import VERSION
from shardbus.admin.services import AdminServices
from shardbus.admin.shard_map import Columns, columns_of
from shardbus.admin.shared_answer import SharedAnswer
from shardbus.errors import RequestError, ShardBusError
from shardbus.histograms import LATENCY_BOUNDS
from shardbus.http.api import Json
from shardbus.ids import NodeId
from shardbus.membership.member import Member
from shardbus.membership.view import MembershipView
from shardbus.shells.region import RegionShell, region_of

OVERVIEW_FRESH_S, MAP_FRESH_S = 0.8, 0.2
COUNTERS = ("dropped", "slow", "late", "store")


class ClusterOverview:
    """Asks the members for their briefs, and coordinators for their maps.

    Args:
        facts: answers with `cluster` and `types` of `NodeApi`.
    """

    def __init__(self, node: AdminServices, facts: Callable[[], Awaitable[tuple[Json, Json]]]):
        self._node, self._facts = node, facts
        self._overview = SharedAnswer(self._ask_members, OVERVIEW_FRESH_S)
        self._maps: dict[str, SharedAnswer[Json]] = {}
        self._last: dict[str, Json] = {}
        """The last map of each type that a coordinator sent."""

    async def overview(self) -> Json:
        """Return members, types, and the counters of every member."""
        return await self._overview.get()

    async def shard_map(self, type: str, known: str) -> Json:
        """Return the map of a type; its columns are null if its version is `known`."""
        region_of(self._node.regions, type)
        if type not in self._maps:
            self._maps[type] = SharedAnswer(partial(self._ask_coordinator, type), MAP_FRESH_S)
        found = await self._maps[type].get()
        if known and found["version"] == known:
            return found | dict.fromkeys(("nodes", "shards", "homes", "states", "changes"))
        return found

    async def _ask_members(self) -> Json:
        view = self._node.view
        members = view.members if view is not None else ()
        near = [m.node for m in members if view is not None and m.node not in view.unreachable]
        asked = (self._node.rpc.ask(node, "brief") for node in near)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        briefs: dict[NodeId, Mapping[str, Any]] = {}
        for node, answer in zip(near, answers, strict=True):
            if isinstance(answer, dict):
                briefs[node] = answer
            elif not isinstance(answer, ShardBusError | dict):
                raise TypeError(f"{node} answered {answer!r}")
        cluster, types = await self._facts()
        http = self._node.settings.http
        return {
            **cluster,
            **types,
            "at": time.time(),
            "build": VERSION,
            "write": http.write,
            "latency_bounds": LATENCY_BOUNDS,
            "nodes": [_row(m, briefs.get(m.node), view) for m in members if view is not None],
        }

    async def _ask_coordinator(self, type: str) -> Json:
        region = region_of(self._node.regions, type)
        last = self._last.get(type, {})
        head = {"type": type, "coordinator": region.coordinator and str(region.coordinator)}
        if region.coordinator is not None:
            try:
                found = await self._node.rpc.ask(
                    region.coordinator, "shard_map", type, str(last.get("version", "")), of=type
                )
            except RequestError:
                found = None
            if found is not None:
                columns = found if "shards" in found else {**last, **found}
                self._last[type] = {**columns, **head, "complete": True}
                return self._last[type]
        self._last.pop(type, None)
        return {**head, **_known_here(region)}


def _known_here(region: RegionShell) -> Columns:
    """Return the part of a map that this node knows without the coordinator."""
    machine = region.router.region
    homes = [machine.home_of(shard) for shard in region.router.routes]
    rows = [(home.shard, str(home.node)) for home in homes if home is not None]
    pace = dict.fromkeys(("paused", "held", "moving", "moves_at_a_time"))
    head = {"epoch": machine.epoch, "version": "", "complete": False, "changes": []}
    return {**head, **columns_of(rows, {}), **pace}


def _row(member: Member, brief: Mapping[str, Any] | None, view: MembershipView) -> Json:
    """Return a member with its brief; what it would have counted is null if it did not answer."""
    oldest = view.oldest()
    row: Json = {
        "node": str(member.node),
        "address": str(member.node.address),
        "http": member.http,
        "status": member.status.value,
        "reachable": member.node not in view.unreachable,
        "answered": brief is not None,
        "roles": list(member.roles),
        "version": member.version,
        "zone": member.zone,
        "service": member.service.value,
        "oldest": oldest is not None and member.node == oldest.node,
        "leader": member.node == view.leader,
    }
    known = brief or {}
    row |= {"suspended": known.get("suspended") or None}
    row |= {name: known.get(name) for name in ("types", "vitals", *COUNTERS)}
    return row
