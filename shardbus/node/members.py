"""The members of the cluster, as this node sees them now.

    alive      members that are neither down nor removed: membership reports when they end
    departed   nodes that were members a moment ago, and may still forward messages (`DEPART_S`)
    lost       members that were unreachable before they went: they died, the others left

`update` takes a view, and answers which members it has no more.

Source: docs/architecture.md; S1.60-S1.62, S2.67.
"""

from __future__ import annotations

import asyncio

from shardbus.ids import NodeId
from shardbus.membership.member import Member, Status, age_order
from shardbus.membership.view import MembershipView
from shardbus.node.session_loss import DEPART_S
from shardbus.node.view_ages import ViewAges
from shardbus.shells.type_members import HOSTING

LEAVING = (Status.LEAVING, Status.EXITING)


class ClusterMembers:
    """The members as `me` sees them."""

    def __init__(self, me: NodeId, loop: asyncio.AbstractEventLoop) -> None:
        self._me, self._loop = me, loop
        self.view: MembershipView | None = None
        """The last view; None before the first."""
        self.ages = ViewAges(loop.time())
        self.alive: dict[NodeId, Member] = {}
        self._suspects: set[NodeId] = set()
        """ClusterMembers that were unreachable in the view before the last."""
        self._departed: dict[NodeId, None] = {}
        self._since: float | None = None
        """When this node became a member, on the clock of the loop."""

    def update(self, view: MembershipView) -> dict[NodeId, Member]:
        """Take a new view. Returns the members of the last view that this one has no more, as they
        were."""
        former, before, now = self.view, self.alive, self._loop.time()
        self._suspects = set(former.unreachable if former else ())
        self.view = view
        self.ages.on_view(view, now)
        if self._since is None and view.status is not None:
            self._since = now
        ended = (Status.DOWN, Status.REMOVED)
        self.alive = {m.node: m for m in view.members if m.status not in ended}
        gone = {node: member for node, member in before.items() if node not in self.alive}
        for node in gone:
            self._departed[node] = None
            self._loop.call_later(DEPART_S, self._departed.pop, node, None)
        return gone

    def __contains__(self, node: NodeId) -> bool:
        """True if membership reports when this node's process ends."""
        return node in self.alive

    @property
    def may_connect(self) -> tuple[NodeId, ...]:
        """The nodes that may have sessions with this one."""
        return (*self.alive, *self._departed)

    @property
    def joined(self) -> bool:
        """True while this node is in a cluster."""
        return self.view is not None and self.view.member(self._me) is not None

    @property
    def is_up(self) -> bool:
        """True if this node is a full member, so that its regions may register."""
        return self.view is not None and self.view.status in HOSTING

    @property
    def alone(self) -> bool:
        """True if the last view has no other member."""
        return self.view is not None and {m.node for m in self.view.members} <= {self._me}

    @property
    def somebody_leaves(self) -> bool:
        """True while a member is on its way out."""
        return any(member.status in LEAVING for member in self._all())

    def joined_for(self) -> float:
        """Seconds since this node became a member; 0 if it is none yet."""
        return 0.0 if self._since is None else self._loop.time() - self._since

    def ids(self) -> list[NodeId]:
        """All members."""
        return [member.node for member in self._all()]

    def zones(self) -> dict[NodeId, str]:
        """The zone of each member that has one."""
        return {member.node: member.zone for member in self._all() if member.zone}

    def hosting(self) -> tuple[NodeId, ...]:
        """The members that host shards now."""
        return tuple(m.node for m in self._all() if m.status in HOSTING)

    def with_type(self, entity_type: str) -> tuple[NodeId, ...]:
        """The hosting members that have announced the entity type, the oldest first."""
        having = [m for m in self._all() if m.status in HOSTING and m.announces(entity_type)]
        return tuple(m.node for m in sorted(having, key=age_order))

    def others_up(self) -> list[Member]:
        """The other members that are up and reachable, the oldest first."""
        away = {self._me, *(self.view.unreachable if self.view is not None else ())}
        up = [m for m in self._all() if m.status is Status.UP and m.node not in away]
        return sorted(up, key=age_order)

    def is_unreachable(self, node: NodeId) -> bool:
        """True if the last view has the node as unreachable."""
        return self.view is not None and node in self.view.unreachable

    def reachable(self) -> set[NodeId]:
        """The living members that this node reaches by its own observation."""
        return self.alive.keys() - set(self.view.unreached if self.view is not None else ())

    def may_coordinate(self, node: NodeId, entity_type: str, role: str) -> bool:
        """True if the node may run the type's coordinator, now or a moment ago. `role`: of the
        nodes that may."""
        if node == self._me or node in self._departed:
            return True
        member = self.alive.get(node)
        if member is None or not member.may_have_type(entity_type):
            return False
        return member.has_role(role)

    def is_down(self, node: NodeId) -> bool:
        """True of a node that is gone, and that the last view still has: it was downed."""
        return self.view is not None and self.view.member(node) is not None

    def died(self, node: NodeId) -> bool:
        """True if a member that is gone was lost, and did not leave."""
        member = self.view.member(node) if self.view is not None else None
        return node in self._suspects or (member is not None and member.status is Status.DOWN)

    def _all(self) -> tuple[Member, ...]:
        return self.view.members if self.view is not None else ()
