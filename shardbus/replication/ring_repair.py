"""When a member of the ring gives way to a spare, and to which one: a decision. Pure.

A machine that does not come back leaves a store of three disks with two, and the next loss ends it.
With `store.repair_after` a spare takes the place of such a disk without an operator, by one change
of the ring (`moves`), which replaces one disk.

Each replica has *sights*: its own, and those that the others report. A sight has the ring of a
disk, whether it serves, and for how long it has not seen each other disk of the ring. It counts
while its disk is in reach. In this order:

    no disk is away for long      nothing
    another disk comes first      nothing: of the disks that serve, the lowest one decides
    too few serve                 wait: no majority of the ring could decide
    a disk in reach has another   wait: a change is under way, or a disk comes back
    ring, or does not serve
    a disk has seen the lost one  wait: a link is broken, or the lost disk was there meanwhile
    no spare is in reach          wait
    otherwise                     the disk that is away for longest gives way to the spare whose
                                  zone has the fewest of the other members

So the members that stay are a majority, and each of them has missed the lost disk for the whole
time. A process that starts has missed no disk yet: a restart of the disk that is away, or of any
other one, begins the time anew. In a network that is half cut, two disks may both take themselves
for the lowest, and decide at the same time. The ring decides its next ring once, so one of them
prevails, and the other one begins anew in that ring.

A disk that comes back afterwards has a ring that leaves it out: it is given up, and a blank one
follows, which is a spare (`replica.standing`).

Not here: the change itself (`store.ring_change`), the reports (`replica.standing`).

Source: docs/how-to/keep-state.md; S2.32.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from shardbus.replication.ring import ReplicaRing, RingMember, majority, next_by_zone


class Sight(NamedTuple):
    """The report of one disk. `ring`: the number of its ring. `away`: seconds for which it has not
    seen other disks of the ring; one that is not named is in its sight."""

    ring: int
    serves: bool
    away: Mapping[int, float]


class GivesWay(NamedTuple):
    """In ring `ring` this member is to give way to this spare."""

    ring: int
    lost: RingMember
    spare: RingMember


class RepairWaits(NamedTuple):
    """A member is away for long, and stays. `for_`: the reason."""

    lost: RingMember
    for_: str


def ring_repair(
    ring: ReplicaRing,
    disk: int,
    sights: Mapping[int, Sight],
    spares: Collection[RingMember],
    after: float,
) -> GivesWay | RepairWaits | None:
    """Decide whether a member gives way, as the module says; None if nothing is to be done here.

    Args:
        ring: the ring of this disk.
        sights: of the disks that are in reach, by disk, its own included.
        spares: the spares that are in reach.
        after: seconds; 0 for never.
    """
    away = sights[disk].away
    gone = [m for m in ring.members if away.get(m.disk, 0.0) >= after and m.disk not in sights]
    if not after or not gone:
        return None
    lost = max(gone, key=lambda member: (away[member.disk], member.address))
    here = {member.disk: member for member in ring.members if member.disk in sights}
    serving = [d for d in here if sights[d].serves and sights[d].ring == ring.number]
    if min(serving, default=None) != disk:
        return None
    if len(serving) < majority(len(ring.members)):
        return RepairWaits(lost, f"a majority of the {len(ring.members)} disks of the ring")
    if changing := [here[d] for d in here if d not in serving]:
        return RepairWaits(lost, f"{_names(changing)} to serve in ring {ring.number}")
    seen = [here[d] for d in serving if sights[d].away.get(lost.disk, 0.0) < after]
    if seen:
        return RepairWaits(lost, f"{_names(seen)}, which saw it less than {after:g} s ago")
    spare = next_by_zone([member for member in ring.members if member != lost], spares)
    if spare is None:
        return RepairWaits(lost, "a spare")
    return GivesWay(ring.number, lost, spare)


def _names(members: Sequence[RingMember]) -> str:
    return ", ".join(member.address or f"disk {member.disk:016x}" for member in members)
