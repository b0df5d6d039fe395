"""What a node says of one entity type over HTTP, and what it does to it: from its own picture, and
by questions to the coordinator and to those who host.

Source: docs/reference/http.md; S2.82, S2.83; B.61, B.69.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from shardbus.admin.limits import limits
from shardbus.admin.shard_control import address_of
from shardbus.errors import ConfigError, RequestError
from shardbus.http.api import Json
from shardbus.ids import Address, NodeId

if TYPE_CHECKING:
    from shardbus.node.node import Node
    from shardbus.shells.region import RegionShell

ENTITIES_MAX = 1000
PACE = ("paused", "held", "moving", "moves_at_a_time")
_STATES = {
    "begin": "handing_off",
    "stopping": "handing_off",
    "handing_off": "handing_off",
    "starting": "starting",
    "unallocated": "unallocated",
}


def _by_shard(row: Mapping[str, Any]) -> tuple[int, str]:
    """Sorts numbers as numbers."""
    return len(row["shard"]), row["shard"]


def _check_shard(kind: RegionShell, shard: str) -> None:
    if not kind.router.has_shard(shard):
        raise ConfigError(f"{kind.name!r} has no shard {shard!r}")


def _changes(told: Mapping[str, Any] | None) -> list[Json] | None:
    """What became of a shard, oldest first; None if nobody could say."""
    if told is None:
        return None
    now = datetime.now(UTC)
    return [
        {
            "at": (now - timedelta(seconds=age)).isoformat(timespec="milliseconds"),
            "from": source,
            "to": target,
            "why": why,
            "epoch": epoch,
            "fence": fence or None,
            "seconds": round(seconds, 3),
        }
        for age, source, target, why, epoch, fence, seconds in told["changes"]
    ]


class TypeAnswers:
    """See the module."""

    def __init__(self, node: Node) -> None:
        self._node, self._shard_control = node, node.shard_control

    async def _table(self, name: str) -> dict[str, Any]:
        """The coordinator's table, or what this node knows of it, which is not `complete`."""
        kind = self._shard_control.kind(name)
        if kind.coordinator is not None:
            try:
                table = await self._node.rpc.ask(kind.coordinator, "table", name, of=name)
                if table is not None:
                    return {**table, "complete": True}
            except RequestError:
                pass
        region = kind.router.region
        known = [region.home_of(shard) for shard in kind.router.routes]
        rows = [[h.shard, str(h.node), h.fence, "running"] for h in known if h is not None]
        return {"epoch": region.epoch, "shards": rows, "complete": False}

    async def shards(self, type: str) -> Json:
        """Where the shards of a type live, and how many entities each has in memory."""
        kind = self._shard_control.kind(type)
        asked = self._node.rpc.ask_all("stats", of=type)
        table, stats = await asyncio.gather(self._table(type), asked)
        answered = {str(node) for node in stats}
        live = {
            (str(node), shard): count
            for node, types in stats.items()
            for shard, count in types.get(type, {}).items()
        }
        rows = [
            {
                "shard": shard,
                "node": node,
                "state": _STATES.get(state, "running"),
                "fence": fence,
                "entities": live.get((node, shard), 0) if node in answered else None,
                "load": round(load[0], 2) if load and load[0] is not None else None,
            }
            for shard, node, fence, state, *load in table["shards"]
        ]
        rows.sort(key=_by_shard)
        return {
            "type": type,
            "coordinator": str(kind.coordinator) if kind.coordinator else None,
            "epoch": table["epoch"],
            "complete": table["complete"],
            **{name: table.get(name) for name in PACE},
            "shards": rows,
        }

    async def where(self, type: str, id: str) -> Json:
        """Where one entity lives, or would."""
        kind = self._shard_control.kind(type)
        shard = kind.router.route_of(id).shard
        home = kind.router.region.home_of(shard)
        running = False
        state = "unallocated"
        if home is not None:
            state = "running"
            try:
                running = await self._node.rpc.ask(home.node, "running", type, shard, id, of=type)
            except RequestError:
                state = "unknown"
        return {
            "type": type,
            "id": id,
            "shard": shard,
            "node": str(home.node) if home is not None else None,
            "state": state,
            "running": running,
        }

    async def entities(
        self, type: str, shard: str | None, prefix: str, limit: int, cursor: str | None
    ) -> Json:
        """A page of the entities in memory, by id; without those of nodes that are silent."""
        kind = self._shard_control.kind(type)
        if shard:
            _check_shard(kind, shard)
        limit = min(limit, ENTITIES_MAX)
        asked = self._node.rpc.members()
        pages = await self._node.rpc.ask_all(
            "entities", type, shard or "", prefix, cursor or "", limit + 1, of=type
        )
        rows = [
            {"id": i, "shard": s, "node": str(node)}
            for node, page in pages.items()
            for i, s in page or ()
        ]
        rows.sort(key=lambda row: (row["id"], row["node"]))
        more = len(rows) > limit
        rows = rows[:limit]
        return {
            "entities": rows,
            "next": rows[-1]["id"] if more and rows else None,
            "silent": [str(node) for node in asked if node not in pages],
        }

    async def explain(self, type: str, id: str) -> Json:
        """Where an entity is, why, and what its messages wait for."""
        kind = self._shard_control.kind(type)
        answer = await self.where(type, id)
        region = kind.router.region
        shard = str(answer["shard"])
        home = region.home_of(shard)
        route = kind.router.routes.get(shard)
        messages, size = region.buffered
        if home is None:
            why = "no home is known here; the coordinator is asked while messages wait"
        elif route is not None and route.out is None:
            why = "messages wait here: the shard is on the move"
        else:
            why = "the home is known, messages go there directly"
        answer |= {
            "layout": kind.kind.interface.layout,
            "fence": home.fence if home is not None else None,
            "coordinator": str(kind.coordinator) if kind.coordinator else None,
            "epoch": region.epoch,
            "why": why,
            "buffered": {"messages": messages, "bytes": size},
            "history": _changes(await self._told(kind, shard)),
        }
        return answer

    async def explain_shard(self, type: str, shard: str) -> Json:
        """Where a shard is, and how it came there."""
        kind = self._shard_control.kind(type)
        _check_shard(kind, shard)
        told = await self._told(kind, shard)
        known = told or {}
        if told is None and (home := kind.router.region.home_of(shard)) is not None:
            known = {"node": str(home.node), "fence": home.fence}
        return {
            "type": type,
            "shard": shard,
            "node": known.get("node"),
            "state": known.get("state", "unknown"),
            "fence": known.get("fence"),
            "coordinator": str(kind.coordinator) if kind.coordinator else None,
            "epoch": known.get("epoch", kind.router.region.epoch),
            "history": _changes(told),
        }

    async def _told(self, kind: RegionShell, shard: str) -> dict[str, Any] | None:
        """What the coordinator says of a shard; None if it does not answer."""
        if kind.coordinator is None:
            return None
        try:
            told = await self._node.rpc.ask(
                kind.coordinator, "shard", kind.name, shard, of=kind.name
            )
        except RequestError:
            return None
        return dict(told) if told is not None else None

    # ---- what is done to it

    async def plan(self, type: str, add: int, remove: tuple[str, ...]) -> Json:
        """What would move with so many nodes more and without these."""
        gone = [str(self._member(node)) for node in remove]
        found = await self._shard_control.ask(type, "plan", add, gone)
        return {
            "type": type,
            "add": add,
            "remove": gone,
            "moves": [{"shard": s, "from": a, "to": b} for s, a, b in found["moves"]],
            "nodes": [{"node": n, "before": b, "after": a} for n, b, a in found["nodes"]],
            "rounds": found["rounds"],
            "settled": found["settled"],
            **{name: found[name] for name in PACE},
        }

    async def rebalance(self, type: str, pause: bool | None, moves: int | None) -> Json:
        """Look at the balance of a type now, or say when and how fast."""
        pace = await self._shard_control.rebalance(type, paused=pause, moves=moves)
        return {"type": type, "rebalancing": not pace["held"], **pace}

    async def stop(self, type: str, shards: tuple[str, ...]) -> Json:
        """Stop shards until somebody sends to them."""
        return {"type": type, **await self._shard_control.stop(type, shards)}

    async def places(self, type: str) -> Json:
        """Where somebody said that shards shall live, and where they do."""
        return await self._places(type, await self._shard_control.places(type))

    async def place(self, type: str, places: Mapping[str, str]) -> Json:
        """Say so."""
        wanted = {shard: address_of(text) if text else None for shard, text in places.items()}
        return await self._places(type, await self._shard_control.place(type, wanted))

    async def _places(self, type: str, places: Mapping[str, Address]) -> Json:
        table = await self._table(type)
        homes = {row[0]: row[1] for row in table["shards"]}
        rows = [
            {"shard": shard, "place": str(place), "node": homes.get(shard)}
            for shard, place in places.items()
        ]
        rows.sort(key=_by_shard)
        return {"type": type, "places": rows}

    async def limits(self, type: str) -> Json:
        """The limit on entities in memory on every node that hosts the type."""
        return await limits(self._node, self._shard_control.kind(type))

    async def set_limit(self, type: str, limit: int, node: str | None) -> Json:
        """Another limit on entities in memory, on one node or on all."""
        on = None if node is None else self._member(node, itself=True)
        return await limits(self._node, self._shard_control.kind(type), limit, on)

    def _member(self, text: str, *, itself: bool = False) -> NodeId:
        view = self._node.view
        if itself and text == "self" and view is not None and view.status is not None:
            return self._node.me
        members = [m.node for m in view.members] if view is not None else []
        for node in members:
            if text in (str(node), str(node.address)):
                return node
        raise ConfigError(f"no member is called {text!r}", hint="`shardbus nodes` lists them")
