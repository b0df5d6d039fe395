"""The leader, and its work.

There is no election. The leader is the first in address order among the reachable members that are
Up, Leaving, or stopping with the whole cluster. While there are none, it is the first of the
WeaklyUp members, then of the Joining, then of the Exiting members, which may be the last
(`member.LEADING`). Every node computes that from gossip. Leadership is only a role: it may change
with each version. The leader acts only on a version that every voter has seen.

    on convergence       joining, weakly_up -> up         once enough have joined, per role too
                         leaving            -> exiting
                         exiting            -> removed    all voters have seen it exiting
                         down               -> removed    once it is unreachable: stopped or cut off
      while the cluster  joining to up      -> preparing_for_shutdown
      stops              preparing          -> ready_for_shutdown         once all of them are
    without convergence  joining            -> weakly_up  after a while, if it is reachable

On convergence the leader also writes who votes about a split, one step at a time
(`downing.electorate`), and lets no member come Up that would count otherwise.

Each pass makes one new version, and the next pass needs convergence on that. A node checks whether
it must act when its state changes, and once per `leader_actions_interval`.

Source: S1.26-S1.30, S1.47-S1.55, S1.63, B.4, B.12, B.17, B.22.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardbus.config.settings import ClusterSettings
from shardbus.ids import NodeId
from shardbus.membership.downing.electorate import (
    RingVoters,
    counts_voters,
    may_come_up,
    with_voters,
)
from shardbus.membership.gossip import STARTING, VOTING, Gossip
from shardbus.membership.member import STOPPING, Member, Status, leader_order

COUNTED_FOR_START = (Status.JOINING, Status.WEAKLY_UP, Status.LEAVING)
"""Members in these statuses count as joined while no member has been Up. A member that leaves
before it is Up counts until it is Exiting."""


class Leadership:
    """One node's leadership: when to check the cluster, and its changes if it leads."""

    def __init__(self, me: NodeId, settings: ClusterSettings) -> None:
        self.me = me
        self.settings = settings
        self._act_at: float | None = None
        self._unconverged_at: float | None = None
        self._checked: Gossip | None = None
        self._converged = False
        self.ring: RingVoters | None = None
        """The voters of this node's store; None if it is not inside the cluster."""
        self._voting = counts_voters(settings.downing)

    def start(self, now: float) -> None:
        """Begin: this node is a member from now on."""
        self._act_at = now + self.settings.leader_actions_interval

    def deadline(self) -> float | None:
        """Return when `act` must be called even if the state has not changed. None before
        `start`."""
        return self._act_at

    def act(self, gossip: Gossip, now: float) -> Gossip:
        """Return the state after this node's pass; the same object if there is nothing to do."""
        settings = self.settings
        if self._act_at is not None and now >= self._act_at:
            self._act_at = now + settings.leader_actions_interval
        if gossip is not self._checked:
            self._checked, self._converged = gossip, gossip.converged()
        if self._converged:
            self._unconverged_at = None
            if leader_of(gossip, self.me) != self.me:
                return gossip
            enough = enough_members(gossip, settings.min_members, settings.role_min_members)
            after = act_on_convergence(gossip, self.me, enough, now)
            mine = after.members.get(self.me)
            if self._voting and mine is not None and mine.status is Status.UP:
                after = with_voters(after, self.me, self.ring)
            return after
        if self._unconverged_at is None:
            self._unconverged_at = now
        patience = settings.allow_weakly_up_members
        waited = bool(patience) and now >= self._unconverged_at + patience
        if waited and leader_of(gossip, self.me) == self.me:
            return promote_weakly(gossip, self.me)
        return gossip


def leader_of(gossip: Gossip, me: NodeId) -> NodeId | None:
    """Return the leader as `me` sees it. `me` counts itself as reachable."""
    unreachable = gossip.unreachable()
    best: Member | None = None
    for node, member in gossip.members.items():
        if member.status is Status.DOWN or (node != me and node in unreachable):
            continue
        if best is None or leader_order(member) < leader_order(best):
            best = member
        if member.status in VOTING:
            break
    return best.node if best else None


def enough_members(gossip: Gossip, min_members: int, role_min_members: Mapping[str, int]) -> bool:
    """True if the first members may become Up. It stays true once a member has been Up."""
    members = gossip.members.values()
    if any(m.up_number for m in members):
        return True
    counted = [m for m in members if m.status in COUNTED_FOR_START]
    return len(counted) >= min_members and all(
        sum(role in m.roles for m in counted) >= least for role, least in role_min_members.items()
    )


def act_on_convergence(gossip: Gossip, me: NodeId, enough: bool, now: float) -> Gossip:
    """Run the leader's pass over a converged version. Return the same object if there is nothing to
    do."""
    unreachable = gossip.unreachable()
    number = max((m.up_number for m in gossip.members.values()), default=0)
    statuses = {m.status for m in gossip.members.values()}
    stopping = not statuses.isdisjoint(STOPPING)
    all_prepare = statuses.isdisjoint((*STARTING, Status.UP))
    changed: list[Member] = []
    removed: list[NodeId] = []
    for node, member in gossip.members.items():
        match member.status:
            case Status.JOINING | Status.WEAKLY_UP if stopping:
                number += 1
                changed.append(member.moved(Status.PREPARING_FOR_SHUTDOWN, number))
            case Status.UP if stopping:
                changed.append(member.moved(Status.PREPARING_FOR_SHUTDOWN))
            case Status.PREPARING_FOR_SHUTDOWN if all_prepare:
                changed.append(member.moved(Status.READY_FOR_SHUTDOWN))
            case Status.JOINING | Status.WEAKLY_UP if enough and may_come_up(gossip, member):
                number += 1
                changed.append(member.moved(Status.UP, number))
            case Status.LEAVING:
                changed.append(member.moved(Status.EXITING))
            case Status.EXITING if node != me:
                removed.append(node)
            case Status.DOWN if node != me and node in unreachable:
                removed.append(node)
            case _:
                pass
    if changed:
        gossip = gossip.with_members(me, *changed)
    if removed:
        gossip = gossip.without_members(me, tuple(removed), now)
    return gossip


def promote_weakly(gossip: Gossip, me: NodeId) -> Gossip:
    """Run the leader's pass without convergence: Joining members become WeaklyUp. Return the same
    object if there is nothing to do."""
    statuses = {m.status for m in gossip.members.values()}
    if statuses.isdisjoint(VOTING) or not statuses.isdisjoint(STOPPING):
        return gossip
    unreachable = gossip.unreachable()
    weakly = [
        member.moved(Status.WEAKLY_UP)
        for node, member in gossip.members.items()
        if member.status is Status.JOINING and node not in unreachable
    ]
    return gossip.with_members(me, *weakly) if weakly else gossip
