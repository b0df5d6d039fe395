"""What a node says for itself over HTTP: `http.api.NodeApi`, answered from the node's own picture
and by questions to the nodes that know.

Source: docs/reference/http.md; S2.82, S2.83; B.61, B.142, B.143.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from shardbus.errors import ConfigError, Refused, RequestError, UnknownEntityType
from shardbus.http.api import Check, Checks, Json
from shardbus.ids import NodeId
from shardbus.membership import events as cluster
from shardbus.membership.member import Member, Service, Status
from shardbus.membership.view import MembershipView
from shardbus.runtime.checkup import collect
from shardbus.runtime.metrics import render
from shardbus.runtime.news import fact, picture

if TYPE_CHECKING:
    from shardbus.runtime.kind import Kind
    from shardbus.runtime.node import Node

ENTITIES_MAX = 1000
STALLED_S = 10.0
_STATES = {
    "begin": "handing_off",
    "stopping": "handing_off",
    "handing_off": "handing_off",
    "starting": "starting",
    "unallocated": "unallocated",
}


class Admin:
    """See the module."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def cluster_name(self) -> str:
        return self._node.cluster_name

    # ---- the cluster

    async def cluster(self) -> Json:
        """Membership as this node sees it, and where the coordinators are."""
        node, view = self._node, self._node.view
        coordinators: dict[str, object] = {}
        for name, kind in node.kinds.items():
            if kind.coordinator is not None:
                epoch = kind.router.region.epoch
                coordinators[name] = {"node": str(kind.coordinator), "epoch": epoch}
        oldest = view.oldest() if view is not None else None
        return {
            "cluster": node.cluster_name,
            "self": str(node.me),
            "status": self._status(),
            "leader": str(view.leader) if view is not None and view.leader else None,
            "oldest": str(oldest.node) if oldest is not None else None,
            "converged": view.converged if view is not None else False,
            "members": len(view.members) if view is not None else 0,
            "unreachable": [str(n) for n in view.unreachable] if view is not None else [],
            "coordinators": coordinators,
        }

    def _status(self) -> str:
        status = self._node.view.status if self._node.view is not None else None
        return status.value if status is not None else "joining"

    async def nodes(self) -> Json:
        """Every member with what it hosts; who does not answer in time has empty counts."""
        view = self._node.view
        if view is None:
            return {"nodes": []}
        stats = await self._node.questions.ask_all("stats")
        return {"nodes": [self._row(m, stats.get(m.node), view) for m in view.members]}

    @staticmethod
    def _row(member: Member, stats: Any, view: Any) -> Json:
        oldest = view.oldest()
        stats = stats or {}
        return {
            "node": str(member.node),
            "address": str(member.node.address),
            "http": member.http,
            "status": member.status.value,
            "reachable": member.node not in view.unreachable,
            "roles": list(member.roles),
            "shards": {name: len(shards) for name, shards in stats.items()},
            "entities": {name: sum(shards.values()) for name, shards in stats.items()},
            "version": member.version,
            "service": member.service.value,
            "oldest": oldest is not None and member.node == oldest.node,
            "leader": member.node == view.leader,
        }

    async def types(self) -> Json:
        """The entity types of this application."""
        rows = []
        for name, kind in self._node.kinds.items():
            settings = kind.settings
            rows.append(
                {
                    "type": name,
                    "shards": kind.kind.interface.shards,
                    "layout": kind.kind.interface.layout,
                    "role": settings.role,
                    "remember": settings.remember,
                    "hosted_here": kind.hosts,
                    "coordinator": str(kind.coordinator) if kind.coordinator else None,
                }
            )
        return {"types": rows}

    # ---- one type

    def _kind(self, name: str) -> Kind:
        kind = self._node.kinds.get(name)
        if kind is None:
            raise UnknownEntityType(f"there is no entity type {name!r}")
        return kind

    async def _table(self, name: str) -> dict[str, Any]:
        """The coordinator's table, or what this node knows of it, which is not `complete`."""
        kind = self._kind(name)
        if kind.coordinator is not None:
            try:
                table = await self._node.questions.ask(kind.coordinator, "table", name)
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
        kind = self._kind(type)
        table = await self._table(type)
        stats = await self._node.questions.ask_all("stats")
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
                "entities": live.get((node, shard), 0),
            }
            for shard, node, fence, state in table["shards"]
        ]
        rows.sort(key=lambda row: (len(row["shard"]), row["shard"]))
        return {
            "type": type,
            "coordinator": str(kind.coordinator) if kind.coordinator else None,
            "epoch": table["epoch"],
            "complete": table["complete"],
            "shards": rows,
        }

    async def where(self, type: str, id: str) -> Json:
        """Where one entity lives, or would."""
        kind = self._kind(type)
        shard = kind.router.route_of(id).shard
        home = kind.router.region.home_of(shard)
        running = False
        state = "unallocated"
        if home is not None:
            state = "running"
            try:
                running = await self._node.questions.ask(home.node, "running", type, shard, id)
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
        """A page of the entities in memory, by id."""
        self._kind(type)
        limit = min(limit, ENTITIES_MAX)
        pages = await self._node.questions.ask_all(
            "entities", type, shard or "", prefix, cursor or "", limit + 1
        )
        rows = [
            {"id": i, "shard": s, "node": str(node)}
            for node, page in pages.items()
            for i, s in page
        ]
        rows.sort(key=lambda row: (row["id"], row["node"]))
        more = len(rows) > limit
        rows = rows[:limit]
        return {"entities": rows, "next": rows[-1]["id"] if more and rows else None}

    async def explain(self, type: str, id: str) -> Json:
        """Where an entity is, why, and what its messages wait for."""
        kind = self._kind(type)
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
        }
        return answer

    async def downing(self) -> Json:
        """How this node decides after a split, and what it last decided."""
        settings = self._node.settings.cluster.downing
        return {
            "node": str(self._node.me),
            "strategy": settings.strategy,
            "stable_after": settings.stable_after,
            "decisions": self._node.decisions.page(),
        }

    async def gossip(self) -> Json:
        """Who has seen which version of the membership, and who stands in the way."""
        seen = self._node.cluster.overview
        return {
            "node": str(self._node.me),
            "version": seen.version,
            "seen": [str(n) for n in seen.seen],
            "waiting_for": [str(n) for n in seen.waiting_for],
            "versions": {str(n): word for n, word in seen.versions.items()},
            "unreachable": [
                {"observer": str(observer), "subject": str(subject), "is": flag.name.lower()}
                for observer, subject, flag in seen.records
            ],
            "tombstones": seen.tombstones,
            "phi": {str(n): round(phi, 3) for n, phi in seen.phis.items()},
            "meta": {
                name: data.decode(errors="replace")
                for name, data in self._node.observers.view.meta.items()
            },
        }

    async def checkup(self) -> Json:
        """What every member and the store say about themselves, for the doctor to compare."""
        return await collect(self._node)

    async def events(self) -> AsyncIterator[Json]:
        """The membership as it is now, then what happens."""
        subscription = self._node.observers.subscribe()
        try:
            async for event in subscription:
                yield picture(event) if isinstance(event, MembershipView) else fact(event)
        finally:
            subscription.close()

    # ---- health

    def liveness(self) -> Checks:
        """This process works. Never asks the store or another node."""
        ended = self._node.stopped.done()
        lag = self._node.lag
        return {
            "loop": Check(lag < STALLED_S, f"{lag:.3f} s late"),
            "membership": Check(not ended, self._node.stopped.result() if ended else "running"),
        }

    def readiness(self) -> Checks:
        """This node is Up and its regions are registered with their coordinators."""
        status = self._node.view.status if self._node.view is not None else None
        phase = self._node.phases.current
        checks = {"membership": Check(status is Status.UP and not phase, phase or self._status())}
        for name, kind in self._node.kinds.items():
            known = kind.coordinator is not None and kind.router.region.registered
            detail = f"coordinator {kind.coordinator}" if known else "not registered yet"
            role = kind.settings.role
            if role and self._node.view is not None and self._node.view.oldest(role) is None:
                known, detail = True, f"nobody hosts it: no member is up with role {role!r}"
            checks[f"coordinator:{name}"] = Check(known, detail)
        return checks

    def metrics(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return render(self._node)

    # ---- writes

    async def leave(self, node: str | None) -> Json:
        """Begin to hand off and leave."""
        target = self._node.me if node is None else self._member(node)
        if not await self._node.questions.ask(target, "leave"):
            raise ConfigError(f"{target} is not able to leave now")
        return {"node": str(target), "leaving": True}

    async def down(self, node: str, *, force: bool) -> Json:
        """Declare a member dead; with `force`, remove it without asking the others."""
        target = self._member(node)
        if force and target == self._node.me:
            raise Refused(f"{target} is this node: a node cannot remove itself")
        self._node.cluster.post(cluster.Remove(target) if force else cluster.Down(target))
        return {"node": str(target), "down": True, "removed": force}

    async def plan(self, type: str, add: int, remove: tuple[str, ...]) -> Json:
        """What would move with so many nodes more and without these."""
        gone = [str(self._member(node)) for node in remove]
        found = await self._ask_coordinator(type, "plan", add, gone)
        return {
            "type": type,
            "add": add,
            "remove": gone,
            "moves": [{"shard": s, "from": a, "to": b} for s, a, b in found["moves"]],
            "nodes": [{"node": n, "before": b, "after": a} for n, b, a in found["nodes"]],
            "rounds": found["rounds"],
            "settled": found["settled"],
        }

    async def rebalance(self, type: str) -> Json:
        """Look at the balance of a type now."""
        await self._ask_coordinator(type, "rebalance")
        return {"type": type, "rebalancing": True}

    async def _ask_coordinator(self, type: str, question: str, *args: object) -> Any:
        coordinator = self._kind(type).coordinator
        answer = None
        if coordinator is not None:
            answer = await self._node.questions.ask(coordinator, question, type, *args)
        if not answer:
            raise Refused(f"the coordinator of {type!r} is not known yet", hint="try again")
        return answer

    async def serve(self, node: str, service: str) -> Json:
        """Cordon, uncordon or drain a member. The last that is open stays so: shards without a home
        would wait for nobody."""
        target = self._member("" if node == "self" else node, itself=node == "self")
        others = [m for m in self._node.observers.view.members if m.node != target]
        if service != Service.OPEN.value and not any(
            m.status is Status.UP and m.service is Service.OPEN for m in others
        ):
            raise Refused(f"no other member would take shards than {target}")
        self._node.cluster.post(cluster.SetService(target, Service(service)))
        return {"node": str(target), "service": service}

    async def join(self, seeds: tuple[str, ...]) -> Json:
        """Begin to join."""
        if self._node.joining:
            raise Refused("this node has joined already", hint="node.join = manual lets it wait")
        self._node.join_by(seeds)
        return {"node": str(self._node.me), "joining": True, "seeds": list(seeds)}

    async def shut_down(self) -> Json:
        """Stop the whole cluster."""
        if not self._node.is_up:
            raise Refused(f"this node is {self._status()}: ask one that is up")
        self._node.cluster.post(cluster.PrepareForShutdown())
        return {"cluster": self._node.cluster_name, "stopping": True}

    def _member(self, text: str, *, itself: bool = False) -> NodeId:
        view = self._node.view
        if itself and view is not None and view.status is not None:
            return self._node.me
        members = [m.node for m in view.members] if view is not None else []
        for node in members:
            if text in (str(node), str(node.address)):
                return node
        raise ConfigError(f"no member is called {text!r}", hint="`shardbus nodes` lists them")
