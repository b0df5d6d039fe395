"""Disks that replace each other: spares take the places of disks that are away (`ring_repair`).

Each disk of the ring reports to the others now and then, with its sight of them. Reports are lost,
late and doubled as all messages are. A disk that decides makes the change as an operator does,
beside operators that may change the ring at the same time.

Source: docs/simulation.md.
"""

from __future__ import annotations

from functools import partial

from shardbus.replication.moves import unmerged
from shardbus.replication.ring_repair import GivesWay, Sight, ring_repair
from shardbus.simulation.replication.world import ReplicationWorld, SimReplica

REPORT_S, SIGHT_S = 0.05, 0.2
"""Between two reports, and until one is old."""
AFTER_S = 0.7
"""Longer than a crash, a stall or a cut of the simulated world."""


class SpareRepairs:
    """The repairs of one world. `spares`: disks that are there at the begin."""

    def __init__(self, world: ReplicationWorld, spares: int) -> None:
        self.world = world
        self._spares = [world.blank() for _ in range(spares)]
        self._heard_at: dict[tuple[int, int, int], float] = {}
        """When a disk, in one run, has heard another one last, or missed it first."""
        self._sights: dict[tuple[int, int], tuple[float, Sight]] = {}
        """The last report of a disk to another one, and when it came."""
        self.count = 0
        world.later(REPORT_S, self._report)

    @property
    def broken(self) -> str:
        """The broken rule once all has settled: a disk that is gone has no place beside a spare."""
        ring = self.world.highest
        gone = [disk for disk in ring.disks if self.world.replicas[disk].lost]
        return f"{gone} are gone, and spares are there" if gone and self._free() else ""

    def _free(self) -> list[SimReplica]:
        disks = self.world.highest.disks
        replicas = [self.world.replicas[member.disk] for member in self._spares]
        return [r for r in replicas if r.up and not r.place.ring.number and r.disk not in disks]

    def _report(self) -> None:
        self.world.later(REPORT_S, self._report)
        for replica in list(self.world.replicas.values()):
            if replica.up and replica.disk in replica.place.ring.disks:
                sight = self._sight(replica)
                for disk in sorted(replica.place.ring.disks - {replica.disk}):
                    other = self.world.replicas[disk]
                    if replica.cut_until <= self.world.now:
                        self.world.carry(other, partial(self._receive, other, replica.disk, sight))
                self._decide(replica, sight)

    def _receive(self, replica: SimReplica, sender: int, sight: Sight) -> None:
        if replica.up:
            self._heard_at[replica.disk, replica.run, sender] = self.world.now
            self._sights[replica.disk, sender] = self.world.now, sight

    def _sight(self, replica: SimReplica) -> Sight:
        now, away = self.world.now, dict[int, float]()
        for other in replica.place.ring.disks - {replica.disk}:
            missed = now - self._heard_at.setdefault((replica.disk, replica.run, other), now)
            if missed > SIGHT_S:
                away[other] = missed
        serves = replica.accepted and replica.place.voting.issuperset(self.world.partitions)
        return Sight(replica.place.ring.number, serves, away)

    def _decide(self, replica: SimReplica, sight: Sight) -> None:
        ring, now = replica.place.ring, self.world.now
        sights = {
            sender: shown
            for (receiver, sender), (at, shown) in self._sights.items()
            if receiver == replica.disk and sender in ring.disks and now - at <= SIGHT_S
        }
        sights[replica.disk] = sight
        free = {each.disk for each in self._free() if each.cut_until <= now}
        spares = [member for member in self._spares if member.disk in free]
        decision = ring_repair(ring, replica.disk, sights, spares, AFTER_S)
        if not isinstance(decision, GivesWay):
            return
        reached = [self.world.replicas[disk].status for disk in sights]
        if unmerged(ring, reached, self.world.partitions):
            self.world.push(ring)
            return
        self.count += 1
        kept = [member for member in ring.members if member != decision.lost]
        self.world.change(ring, (*kept, decision.spare))
