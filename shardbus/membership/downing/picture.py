"""The inputs of a decision about a split, and which changes of them begin the wait anew.

The problem: a node decides about a split once its picture of it has lasted. Meanwhile a node that
is at fault goes on to report others, and others notice one by one that they do not reach it. If
each report began the wait anew, the node at fault would hold back the decision about itself.

    change                                               the wait
    a member joins, becomes Up, is leaving               begins anew
    Joining becomes WeaklyUp: both have no vote          goes on
    a member goes: Down, Exiting, removed                goes on, and a request for a lease ends
    a new flag between members of this group             begins anew
    a new flag by or on a member that was cut off or     goes on: every node of this side refuses
      had to go before, and is or must still               that member its consent already
    a new flag by or on a member outside this group      goes on
    a flag is taken back: a link works again             begins anew
    a member of this side must go, and had not to        begins anew, unless for a moment only
    a decision by lease: the next epoch                  begins anew

A *group* is the set of members that this node is connected with by working links (`links`).

Source: docs/downing.md; S1.31, B.40.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from shardbus.ids import NodeId
from shardbus.membership.downing.links import group_of
from shardbus.membership.gossip import ON_THE_WAY_OUT, Gossip
from shardbus.membership.member import Status
from shardbus.membership.reachability import Flag


class Change(Enum):
    """The effect of a newer picture on the wait and on a request that was made by the former."""

    NONE = "the same for every decision"
    DEPARTURE = "members have gone"
    NEW = "another picture"


@dataclass(frozen=True, slots=True)
class SplitPicture:
    """The picture of one node."""

    statuses: Mapping[NodeId, Status]
    """The members that are not on their way out."""
    group: frozenset[NodeId]
    flags: Mapping[tuple[NodeId, NodeId], Flag]
    """The flag of each observer and subject that is no `REACHABLE` one."""
    epoch: int

    def change_from(self, before: SplitPicture, away: Collection[NodeId]) -> Change:
        """Return the kind of change. `away`: the members that were cut off or had to go before, and
        are or must still."""
        gone = before.statuses.keys() - self.statuses.keys()
        moot = gone.union(away)
        apart = self.statuses.keys() - self.group - before.group | moot
        same = (
            self.epoch == before.epoch
            and moot >= self.group ^ before.group
            and self.statuses == {n: s for n, s in before.statuses.items() if n not in gone}
        )
        taken_back = before.flags.keys() - self.flags.keys()
        new = self.flags.items() - before.flags.items()
        if not same or any(gone.isdisjoint(link) for link in taken_back):
            return Change.NEW
        if any(apart.isdisjoint(link) for link, _ in new):
            return Change.NEW
        return Change.DEPARTURE if gone else Change.NONE


def picture_of(gossip: Gossip, me: NodeId, monitored_by: int, epoch: int) -> SplitPicture:
    """Return the inputs of a decision of `me` by this copy."""
    statuses = {
        node: Status.JOINING if member.status is Status.WEAKLY_UP else member.status
        for node, member in gossip.members.items()
        if member.status not in ON_THE_WAY_OUT
    }
    flags = [record for record in gossip.records() if record[1] in statuses]
    among = [record for record in flags if record[0] in statuses]
    group = group_of(me, statuses, among, monitored_by)
    return SplitPicture(statuses, group, {(o, s): flag for o, s, flag in flags}, epoch)
