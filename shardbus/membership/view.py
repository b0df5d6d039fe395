"""The membership view: the cluster as the rest of a node sees it, and the events of its changes.

The view is immutable. Which nodes have seen a version, and which observer flags which subject,
changes with almost every message and is no event of its own. The events report changes that a node
can act on: whether all nodes agree (`ConvergenceChanged`, in place of Akka's SeenChanged and
ReachabilityChanged), and which members are lost or back.

Source: B.20-B.22.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from shardbus.ids import Address, NodeId
from shardbus.membership.downing.electorate import MEMBERS, Electorate, electorate_of
from shardbus.membership.downing.split import Decision, survey
from shardbus.membership.gossip import VOTERS_META, Gossip
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

BESIDE_MEMBERS = ("leader", "converged", "epochs", "meta", "electorate")
"""The fields of a view that say nothing about a member's state."""


@dataclass(frozen=True, slots=True)
class MembershipView:
    """The cluster as this node sees it now. Tuples are in address order."""

    me: NodeId
    members: tuple[Member, ...] = ()
    unreachable: tuple[NodeId, ...] = ()
    """The members that some observer cannot reach, including the terminated ones."""
    terminated: tuple[NodeId, ...] = ()
    """The members whose processes are proved gone."""
    quarantined: tuple[NodeId, ...] = ()
    """The members that an observer accuses of acknowledging nothing."""
    unreached: tuple[NodeId, ...] = ()
    """The members that this node itself does not reach, or accuses."""
    doubtful: tuple[NodeId, ...] = ()
    """The members that may have to go: cut off from this node's side, or at the end of bad links
    (`downing.links`). A member that only a node without any working link reports is none."""
    leader: NodeId | None = None
    converged: bool = False
    epochs: Mapping[str, int] = field(default_factory=dict)
    """The highest coordinator epoch known, per entity type, and the epoch of decisions by lease
    (`downing.split.EPOCHS`)."""
    meta: Mapping[str, bytes] = field(default_factory=dict)
    """Bytes that the application has written, by name."""
    electorate: Electorate = MEMBERS
    """Who votes about a split (`downing.electorate`)."""

    def member(self, node: NodeId) -> Member | None:
        """Return the member, or None."""
        return next((m for m in self.members if m.node == node), None)

    @property
    def status(self) -> Status | None:
        """This node's own status; None while it is not a member."""
        mine = self.member(self.me)
        return mine.status if mine else None

    def oldest(self, role: str = "", able: Callable[[Member], bool] | None = None) -> Member | None:
        """Return the oldest working member with that role, among those that are `able`. A member
        that leaves does not count. A member that stops with the whole cluster does."""
        up = [m for m in self.members if m.status in WORKING and m.has_role(role)]
        if able is not None:
            up = [m for m in up if able(m)]
        return min(up, key=age_order, default=None)

    def role_leader(self, role: str) -> NodeId | None:
        """Return the first reachable member with that role, in the leader's order."""
        able = [
            m
            for m in self.members
            if m.has_role(role)
            and m.status is not Status.DOWN
            and (m.node == self.me or m.node not in self.unreachable)
        ]
        return min(able, key=leader_order).node if able else None

    def same_members(self, other: MembershipView) -> bool:
        """True if both views show the same members, in the same states: they differ at most in the
        leader, in convergence, and in gossip's other contents."""
        beside = {name: getattr(other, name) for name in BESIDE_MEMBERS}
        return replace(self, **beside) == other

    @property
    def stopping(self) -> bool:
        """True while the whole cluster stops. No shard moves any more."""
        return any(m.status in STOPPING for m in self.members)


def view_of(gossip: Gossip, me: NodeId) -> MembershipView:
    """Build the view of this copy of the state."""
    verdicts = gossip.unreachable()
    return MembershipView(
        me=me,
        members=tuple(gossip.members.values()),
        unreachable=tuple(verdicts),
        terminated=tuple(n for n, flag in verdicts.items() if flag is Flag.TERMINATED),
        quarantined=tuple(n for n, flag in verdicts.items() if flag is Flag.QUARANTINED),
        unreached=_unreached(gossip, me) if verdicts else (),
        doubtful=_doubtful(gossip, me) if verdicts else (),
        leader=leader_of(gossip, me),
        converged=me in gossip.members and gossip.converged(),
        epochs=gossip.epochs,
        meta={n: written.data for n, written in gossip.meta.items() if n != VOTERS_META},
        electorate=electorate_of(gossip),
    )


def _unreached(gossip: Gossip, me: NodeId) -> tuple[NodeId, ...]:
    row = gossip.reachability.rows.get(me)
    return tuple(sorted(row.flags)) if row else ()


def _doubtful(gossip: Gossip, me: NodeId) -> tuple[NodeId, ...]:
    split = survey(gossip, me)
    return tuple(n for n in gossip.members if n != me and (n in split.cut or n in split.broken))


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
    """All nodes have seen that the whole cluster stops; the member's process ends."""

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
    """A member is removed for good. `member` is as it was last known."""

    member: Member


@dataclass(frozen=True, slots=True)
class UnreachableMember:
    """Some observer cannot reach this member."""

    member: Member
    terminated: bool


@dataclass(frozen=True, slots=True)
class QuarantinedMember:
    """This member answers, but messages that must arrive did not reach it. Its process must
    restart."""

    member: Member


@dataclass(frozen=True, slots=True)
class ReachableMember:
    """Every observer of this member reaches it again."""

    member: Member


@dataclass(frozen=True, slots=True)
class ServiceChanged:
    """An operator has opened, cordoned or drained this member."""

    member: Member


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """Another node is the leader."""

    leader: NodeId | None


@dataclass(frozen=True, slots=True)
class RoleLeaderChanged:
    """Another member is the leader among those with this role."""

    role: str
    leader: NodeId | None


@dataclass(frozen=True, slots=True)
class ConvergenceChanged:
    """All nodes have the same version, or not any more."""

    converged: bool


@dataclass(frozen=True, slots=True)
class MetaChanged:
    """The application has written these bytes."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class SelfStarved:
    """This node's own timer was late by `seconds`: its process or its machine lacked CPU time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NodeStarved:
    """A member reports that its timers were late by `seconds`: it lacks CPU time and is not
    dead."""

    node: NodeId
    seconds: float


@dataclass(frozen=True, slots=True)
class SlowHeartbeat:
    """A heartbeat's reply took nearly the time that would have made the member
    unreachable."""

    node: NodeId
    seconds: float


@dataclass(frozen=True, slots=True)
class OtherCluster:
    """A cluster of this one's name that a seed is in. `node`: the seed's node. `reason`: why this
    node could not be in that cluster; empty if it could, had it joined there. `writes`: it is no
    seed, but a node that this node's store names."""

    seed: Address
    node: NodeId | None
    reason: str = ""
    writes: bool = False


@dataclass(frozen=True, slots=True)
class OtherClustersChanged:
    """Seeds of this node are in other clusters; none is any more, if there are no clusters here."""

    clusters: tuple[OtherCluster, ...]


@dataclass(frozen=True, slots=True)
class DowningDecided:
    """A split was decided. The decision carries its reason."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class HandlingSuspended:
    """This node's entities handle no messages: it lost contact to the members that its strategy
    requires. `silent`: the members without contact."""

    reason: str
    silent: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class HandlingResumed:
    """This node's entities handle messages again, after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RivalCluster:
    """The state store holds the claim of another cluster of this name: two use one store.
    `addresses`: its members, empty if they are not known. `gone`: this cluster has the claim
    again."""

    addresses: tuple[Address, ...] = ()
    gone: bool = False


@dataclass(frozen=True, slots=True)
class FoundingWaits:
    """This node founds no cluster yet, because another one has, or had, the store's claim. `reason`
    completes the sentence that starts with the node."""

    reason: str


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
"""The event of each status that a member can enter."""

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
    | HandlingSuspended
    | HandlingResumed
    | RivalCluster
    | FoundingWaits
    | OtherClustersChanged
)

NOTICES: tuple[type[DomainEvent], ...] = (
    SelfStarved, NodeStarved, SlowHeartbeat, DowningDecided, HandlingSuspended, HandlingResumed,
    RivalCluster, FoundingWaits,
    OtherClustersChanged,
)  # fmt: skip
"""The events that no comparison of two views shows (`changes`)."""

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
    """Return the events between two views.

    Order: members removed, back, new or in another status, lost, each in address order; then
    leaders, meta, convergence. A node that is Down reports no member as back: its own flags no
    longer count, which clears its view.
    """
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
