"""What a node says for itself over HTTP: `http.api.NodeApi`, answered from the node's own picture
and by questions to the nodes that know. What it says of one entity type stands in `type_pages`.

Source: docs/reference/http.md; B.142, B.143.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from shardbus.admin.checkup import collect
from shardbus.admin.metrics import render
from shardbus.admin.type_answers import TypeAnswers
from shardbus.errors import ConfigError, Refused
from shardbus.http.api import Check, Checks, Json
from shardbus.membership import events as cluster
from shardbus.membership.member import Member, Service, Status
from shardbus.membership.view import MembershipView
from shardbus.node.event_log import fact, picture

STALLED_S = 10.0


class Admin(TypeAnswers):
    """See the module."""

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
        stats = await self._node.rpc.ask_all("stats")
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
                    "coordinator_role": kind.coordinator_role,
                    "remember": settings.remember,
                    "hosted_here": kind.hosts,
                    "coordinator": str(kind.coordinator) if kind.coordinator else None,
                    "active_entity_limit": kind.host.passivator.limit,
                    "entities_here": kind.host.entities,
                }
            )
        return {"types": rows}

    # ---- decisions and news

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
                for name, data in self._node.subscriptions.view.meta.items()
            },
        }

    async def checkup(self) -> Json:
        """What every member and the store say about themselves, for the doctor to compare."""
        return await collect(self._node)

    async def events(self) -> AsyncIterator[Json]:
        """The membership as it is now, then what happens."""
        subscription = self._node.subscriptions.subscribe()
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
            if not known and kind.stranger is not None and kind.stranger == kind.coordinator:
                detail = kind.missing
            if self._nobody_has(kind.settings.role):
                role = kind.settings.role
                known, detail = True, f"nobody hosts it: no member is up with role {role!r}"
            elif not known and self._nobody_has(kind.coordinator_role):
                role = kind.coordinator_role
                detail = f"nobody coordinates it: no member is up with role {role!r}"
            checks[f"coordinator:{name}"] = Check(known, detail)
        return checks

    def _nobody_has(self, role: str) -> bool:
        view = self._node.view
        return bool(role) and view is not None and view.oldest(role) is None

    def metrics(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return render(self._node)

    # ---- writes

    async def leave(self, node: str | None) -> Json:
        """Begin to hand off and leave."""
        target = self._node.me if node is None else self._member(node)
        if not await self._node.rpc.ask(target, "leave"):
            raise ConfigError(f"{target} is not able to leave now")
        return {"node": str(target), "leaving": True}

    async def down(self, node: str, *, force: bool) -> Json:
        """Declare a member dead; with `force`, remove it without asking the others."""
        target = self._member(node)
        if force and target == self._node.me:
            raise Refused(f"{target} is this node: a node cannot remove itself")
        self._node.cluster.post(cluster.Remove(target) if force else cluster.Down(target))
        return {"node": str(target), "down": True, "removed": force}

    async def serve(self, node: str, service: str) -> Json:
        """Cordon, uncordon or drain a member. The last that is open stays so: shards without a home
        would wait for nobody."""
        target = self._member(node, itself=True)
        others = [m for m in self._node.subscriptions.view.members if m.node != target]
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
