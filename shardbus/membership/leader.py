"""Who leads, and what the leader does.

There is no election. The leader is the first in address order among the reachable Up and Leaving
members (while there is none, of WeaklyUp, then Joining ones), which every node computes from the
same gossip. It is only a role: it may change from one version to the next, and it acts only on a
version that everybody who matters has seen.

    on convergence       joining, weakly_up -> up         once enough have joined, and of each role
                         leaving            -> exiting
                         exiting            -> removed    everybody has seen it exiting
                         down               -> removed    once it is unreachable: stopped or cut off
    without convergence  joining            -> weakly_up  after a while, if it is reachable

Each pass makes one new version; the next pass needs convergence on that.

Source: S1.26-S1.30, S1.47-S1.55, S1.63, B.4, B.17, B.22; T.U1.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardbus.ids import NodeId
from shardbus.membership.gossip import VOTING, Gossip
from shardbus.membership.member import Member, Status, leader_order

COUNTED_FOR_START = (Status.JOINING, Status.WEAKLY_UP, Status.UP, Status.LEAVING)


def leader_of(gossip: Gossip, me: NodeId) -> NodeId | None:
    """The leader as `me` sees it: `me` counts itself as reachable. Members are in address order."""
    unreachable = gossip.verdicts()
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
    """True if the first members may become Up. Once one has, it stays true."""
    members = gossip.members.values()
    if any(m.up_number for m in members):
        return True
    counted = [m for m in members if m.status in COUNTED_FOR_START]
    return len(counted) >= min_members and all(
        sum(role in m.roles for m in counted) >= least for role, least in role_min_members.items()
    )


def act_on_convergence(gossip: Gossip, me: NodeId, enough: bool, now: float) -> Gossip:
    """The leader's pass over a converged version. The same object if there is nothing to do."""
    unreachable = gossip.verdicts()
    number = max((m.up_number for m in gossip.members.values()), default=0)
    changed: list[Member] = []
    removed: list[NodeId] = []
    for node, member in gossip.members.items():
        match member.status:
            case Status.JOINING | Status.WEAKLY_UP if enough:
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
    """The leader's pass while convergence is out of reach. The same object if there is nothing to
    do."""
    if not any(m.status in VOTING for m in gossip.members.values()):
        return gossip
    unreachable = gossip.verdicts()
    weakly = [
        member.moved(Status.WEAKLY_UP)
        for node, member in gossip.members.items()
        if member.status is Status.JOINING and node not in unreachable
    ]
    return gossip.with_members(me, *weakly) if weakly else gossip
