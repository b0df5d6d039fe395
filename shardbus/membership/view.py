"""What the rest of a node sees of the cluster: an immutable picture, and what changed between two
of them.

Who has seen a version, and who flags whom, changes with almost every message and is no event of its
own. What a node can act on is: whether all agree (`ConvergenceChanged`, in place of Akka's
SeenChanged and ReachabilityChanged), and which members are lost or back.

Source: B.20-B.22; T.U3, T.U9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardbus.ids import NodeId
from shardbus.membership.downing.split import Decision
from shardbus.membership.gossip import Gossip
from shardbus.membership.leader import leader_of
from shardbus.membership.member import (
    STOPPING,
    WORKING,
    Member,
    Service,
    Status,
    age_order,
    leader_order,
)
from shardbus.membership.reachability import Flag


@dataclass(frozen=True, slots=True)
class MembershipView:
    """The cluster as this node sees it now. Tuples are in address order."""

    me: NodeId
    members: tuple[Member, ...] = ()
    unreachable: tuple[NodeId, ...] = ()
    """Every member that somebody cannot reach, the terminated ones included."""
    terminated: tuple[NodeId, ...] = ()
    """Those whose processes are proved gone."""
    quarantined: tuple[NodeId, ...] = ()
    """Those that answer, but must start anew."""
    leader: NodeId | None = None
    converged: bool = False
    epochs: Mapping[str, int] = field(default_factory=dict)
    """The highest coordinator epoch known, per entity type; and that of the decisions by lease
    (`downing.EPOCHS`)."""
    meta: Mapping[str, bytes] = field(default_factory=dict)
    """What the application has written, by name."""

    def member(self, node: NodeId) -> Member | None:
        """The member, if it is one."""
        return next((m for m in self.members if m.node == node), None)

    @property
    def status(self) -> Status | None:
        """This node's own status; None while it is no member."""
        mine = self.member(self.me)
        return mine.status if mine else None

    def oldest(self, role: str = "") -> Member | None:
        """The oldest Up member with that role. A member that has begun to leave is not Up any
        more; one that stops with the whole cluster still is."""
        up = [m for m in self.members if m.status in WORKING and m.has_role(role)]
        return min(up, key=age_order, default=None)

    def role_leader(self, role: str) -> NodeId | None:
        """Who leads the members with that role: the first that is reachable, as for the leader."""
        able = [
            m
            for m in self.members
            if m.has_role(role)
            and m.status is not Status.DOWN
            and (m.node == self.me or m.node not in self.unreachable)
        ]
        return min(able, key=leader_order).node if able else None

    @property
    def stopping(self) -> bool:
        """True while the whole cluster stops: nothing is moved any more."""
        return any(m.status in STOPPING for m in self.members)


def view_of(gossip: Gossip, me: NodeId) -> MembershipView:
    """The picture that this copy of the state gives."""
    verdicts = gossip.verdicts()
    return MembershipView(
        me=me,
        members=tuple(gossip.members.values()),
        unreachable=tuple(verdicts),
        terminated=tuple(n for n, flag in verdicts.items() if flag is Flag.TERMINATED),
        quarantined=tuple(n for n, flag in verdicts.items() if flag is Flag.QUARANTINED),
        leader=leader_of(gossip, me),
        converged=me in gossip.members and gossip.converged(),
        epochs=gossip.epochs,
        meta={name: written.data for name, written in gossip.meta.items()},
    )


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A node is Joining."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberWeaklyUp:
    """A member works, though the cluster has not converged on it."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberUp:
    """A member is Up."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberPreparingForShutdown:
    """A member stops with the whole cluster."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberReadyForShutdown:
    """Everybody knows that the whole cluster stops: the member's process ends."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberLeaving:
    """A member leaves gracefully."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberExiting:
    """A member is about to be removed gracefully."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberDowned:
    """A member was declared Down."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberRemoved:
    """A member is gone for good. `member` is as it was last known."""

    member: Member


@dataclass(frozen=True, slots=True)
class UnreachableMember:
    """Somebody cannot reach this member."""

    member: Member
    terminated: bool


@dataclass(frozen=True, slots=True)
class QuarantinedMember:
    """This member answers, but somebody could not deliver to it what must arrive: it must start
    anew."""

    member: Member


@dataclass(frozen=True, slots=True)
class ReachableMember:
    """Everybody who watches this member reaches it again."""

    member: Member


@dataclass(frozen=True, slots=True)
class ServiceChanged:
    """An operator lets this member take new work again, or none, or drains it."""

    member: Member


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """Another node leads."""

    leader: NodeId | None


@dataclass(frozen=True, slots=True)
class RoleLeaderChanged:
    """Another member leads those with this role."""

    role: str
    leader: NodeId | None


@dataclass(frozen=True, slots=True)
class ConvergenceChanged:
    """Everybody has the same picture now, or no more."""

    converged: bool


@dataclass(frozen=True, slots=True)
class MetaChanged:
    """The application has written something."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class SelfStarved:
    """This node's own timer came late by so many seconds: its process or its machine was
    starved."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NodeStarved:
    """A member says that its timers came late by so many seconds: it is starved, not dead."""

    node: NodeId
    seconds: float


@dataclass(frozen=True, slots=True)
class SlowHeartbeat:
    """A reply took so long that a little more would have made the member unreachable."""

    node: NodeId
    seconds: float


@dataclass(frozen=True, slots=True)
class DowningDecided:
    """What was decided about a split, and why."""

    decision: Decision


Arrival = (
    MemberJoined
    | MemberWeaklyUp
    | MemberUp
    | MemberPreparingForShutdown
    | MemberReadyForShutdown
    | MemberLeaving
    | MemberExiting
    | MemberDowned
    | MemberRemoved
)
"""A member is in another status than before."""

DomainEvent = (
    Arrival
    | UnreachableMember
    | QuarantinedMember
    | ReachableMember
    | ServiceChanged
    | LeaderChanged
    | RoleLeaderChanged
    | ConvergenceChanged
    | MetaChanged
    | SelfStarved
    | NodeStarved
    | SlowHeartbeat
    | DowningDecided
)

ARRIVALS: Mapping[Status, type[Arrival]] = {
    Status.JOINING: MemberJoined,
    Status.WEAKLY_UP: MemberWeaklyUp,
    Status.UP: MemberUp,
    Status.PREPARING_FOR_SHUTDOWN: MemberPreparingForShutdown,
    Status.READY_FOR_SHUTDOWN: MemberReadyForShutdown,
    Status.LEAVING: MemberLeaving,
    Status.EXITING: MemberExiting,
    Status.DOWN: MemberDowned,
    Status.REMOVED: MemberRemoved,
}


def changes(before: MembershipView, after: MembershipView) -> list[DomainEvent]:
    """What happened between two pictures: who is gone, who is back, who has come or moved on, who
    is lost, each in address order; then who leads, what was written, and whether all agree. A node
    that is Down reports nobody as back: its own word does not count any more, and that clears its
    picture."""
    events: list[DomainEvent] = []
    old = {m.node: m for m in before.members}
    new = {m.node: m for m in after.members}
    events += [MemberRemoved(m) for node, m in old.items() if node not in new]
    for node in before.unreachable:
        if node in new and node not in after.unreachable and after.status is not Status.DOWN:
            events.append(ReachableMember(new[node]))
    for node, member in new.items():
        if node not in old or old[node].status is not member.status:
            events.append(ARRIVALS[member.status](member))
        if member.service is not (old[node].service if node in old else Service.OPEN):
            events.append(ServiceChanged(member))
    for node in after.unreachable:
        gone = node in after.terminated
        if node not in before.unreachable or gone is not (node in before.terminated):
            events.append(UnreachableMember(new[node], gone))
    events += [QuarantinedMember(new[n]) for n in after.quarantined if n not in before.quarantined]
    if before.leader != after.leader:
        events.append(LeaderChanged(after.leader))
    for role in sorted({role for m in (*before.members, *after.members) for role in m.roles}):
        if before.role_leader(role) != after.role_leader(role):
            events.append(RoleLeaderChanged(role, after.role_leader(role)))
    for name, data in after.meta.items():
        if before.meta.get(name) != data:
            events.append(MetaChanged(name, data))
    if before.converged is not after.converged:
        events.append(ConvergenceChanged(after.converged))
    return events
