"""The meaning of one view of membership for the coordinators of entity types.

An application may have a thousand types, and most of them have the same role on the same members.
So the meaning of a view is computed once for the types that agree in both, and shared.

Source: docs/architecture.md; S2.67, B.65.
"""

from __future__ import annotations

from shardbus.ids import NodeId
from shardbus.membership.gossip import STARTING
from shardbus.membership.member import WORKING, Member, Service, Status
from shardbus.membership.singleton.predecessors import WAY_OUT
from shardbus.membership.view import MembershipView
from shardbus.sharding.events import MembersChanged

HOSTING = (*WORKING, Status.LEAVING)
"""Members in these statuses host shards."""

REGISTERING = (*HOSTING, Status.EXITING)
"""Members in these statuses have regions that register; a new coordinator waits for each."""


class TypeMembers:
    """The members of one view, for the types on this node."""

    def __init__(self, view: MembershipView) -> None:
        self.view = view
        self.stopping = view.stopping
        self.registers = view.status in REGISTERING
        """True if this node's regions register."""
        self._summaries: dict[tuple[str, tuple[NodeId, ...]], MembersChanged] = {}

    def of(self, role: str, having: list[Member]) -> MembersChanged:
        """Return the members that have a type, as its coordinator receives them. `role`: of the
        type's hosts."""
        key = (role, tuple(m.node for m in having))
        summary = self._summaries.get(key)
        if summary is None:
            summary = self._summaries[key] = self._summary(role, having)
        return summary

    def _summary(self, role: str, having: list[Member]) -> MembersChanged:
        view = self.view
        live = tuple(m.node for m in having if m.status in REGISTERING)
        closed = {m.node: m.service for m in having if m.service is not Service.OPEN}
        unfit = tuple(m.node for m in having if m.status in WAY_OUT or m.node in closed)
        silent = tuple(n for n in view.doubtful if n in live and n not in unfit)
        if not set(live) <= {*unfit, *silent}:  # a silent node would not start a shard now
            unfit += silent
        draining = tuple(node for node in closed if closed[node] is Service.DRAINING)
        arriving = any(m.status in STARTING for m in view.members)
        versions = {m.node: m.version for m in having if m.has_role(role)}
        zones = {m.node: m.zone for m in having if m.zone}
        unsettled = bool(view.unreachable) or arriving
        return MembersChanged(live, unfit, unsettled, draining, versions, zones)
