"""Whether a replica serves, and why it waits: founding, disk life and ring as one. Pure.

A replica serves while all of this holds:

    founded    its disk is one of a store that was founded             `founding`, or a later ring
    member     its disk is in the newest ring that it has              `ring`
    alone      no other replica has a copy of its disk                 `founding`
    accepted   the other disks of the ring have accepted this run      `disk_life`
    merged     it votes in every partition that it holds               `moves`
    one store  if alone in its ring, no other replica of the settings  `rivals`
               is of a store of its own

A blank disk beside a founded store, and a disk that a ring has left out, come in by a change of the
ring: by themselves in place of the lost disk of their address (`joining`). At any other address a
blank one is a *spare*: an operator takes it in, or the members do in place of one that is away for
long (`ring_repair`). A disk that was left out has rows on which no majority rests. It is given up
like a refused one, so that a blank one follows it.

Every report carries the counter and the run of the disk; the answer has the verdict. A ring that a
report shows is adopted, if it is newer, and of this store. The changes that a report makes are
synced before it is answered.

Source: docs/architecture.md; S2.75.
"""

from __future__ import annotations

from enum import Enum

from shardbus.ids import Address
from shardbus.replication.disk_life import (
    SILENT_S,
    DiskLife,
    DiskRegistry,
    DiskShown,
    DiskVerdict,
)
from shardbus.replication.founding import DiskReport, Founding, FoundingState
from shardbus.replication.moves import AskDisk, RingDisk
from shardbus.replication.ring import (
    NO_RING,
    ReplicaRing,
    RingMember,
    is_related,
    majority,
    places_of,
)
from shardbus.replication.ring_repair import GivesWay, RepairWaits, Sight, ring_repair
from shardbus.replication.values import PARTITIONS
from shardbus.wire.disk_frames import DiskState
from shardbus.wire.replica_frames import ReportBody

_SPARE = "an operator, as a spare: shardbus store add {} (it is not in ring {})"


class ReplicaState(Enum):
    """The state of a replica, as `store status` shows it."""

    BLANK = "blank"
    SPARE = "spare"
    NAMED = "named"
    WAITING = "waiting"
    MERGING = "merging"
    FOUNDED = "founded"


class Standing:
    """The standing of one replica.

    Args:
        founding: as the disk has stored it.
        place: the rows, and the place in the ring.
        stored: the facts that the disk has of itself.
        run: a random number, of this process.
    """

    def __init__(self, founding: Founding, place: RingDisk, stored: DiskState, run: int) -> None:
        self.founding, self.place = founding, place
        self.starts = stored.starts + 1
        self.counter = max(stored.counter, stored.starts) + 1
        self.life = DiskLife(place.disk, run)
        self.registry = DiskRegistry(stored.disks)
        self.addresses: dict[int, Address] = {}
        """Where each other disk was last seen."""
        self._runs: dict[Address, tuple[int, int]] = {}
        """The disk and the run of each other replica."""
        self._heard_at: dict[int, float] = {}
        """When each other disk of the ring was seen last, or missed first."""
        self._sights: dict[int, tuple[float, ReportBody]] = {}
        """The last report of each disk in reach, and when it came."""
        self._ticked = 0.0
        self.leaves = False
        """The process of this disk is to end once the others suffice."""
        self.joining = ""
        """Progress of the change that brings this blank disk into the ring."""

    # ---- facts

    @property
    def ring(self) -> ReplicaRing:
        """The newest ring that this disk has."""
        return self.place.ring if self.place.ring != NO_RING else self.founding.ring

    @property
    def state(self) -> DiskState:
        """The facts to store."""
        disks = self.registry.disks
        return DiskState(self.starts, self.ring, self.founding.founded, self.counter, disks)

    def advance(self, now: float) -> None:
        """Take the place in the first ring once the store is founded."""
        if self.founding.founded and self.place.ring == NO_RING:
            self.place.adopt(self.founding.ring, now)

    @property
    def is_left_out(self) -> bool:
        """True if a ring was adopted that does not have this disk."""
        return self.place.ring != NO_RING and self.place.disk not in self.place.ring.disks

    @property
    def rivals(self) -> list[Address]:
        """The replicas of the settings that are of a store beside this one. An operator who has
        founded a store anew in two places has two stores, each alone in its ring: none serves."""
        mine = self.place.ring
        if len(mine.members) != 1:
            return []
        reports = self.founding.reports.items()
        return [peer for peer, each in reports if each.founded and self._is_beside(each.ring)]

    def _is_beside(self, ring: ReplicaRing) -> bool:
        """True if this ring is not one with this disk, and does not give way to its ring."""
        mine = self.place.ring
        gives_way = is_related(mine, ring) and ring.number < mine.number
        return not gives_way and self.place.disk not in ring.disks | ring.former.disks

    def serves(self, stored: DiskState) -> bool:
        """True if the replica answers stores. `stored`: the facts that the disk has."""
        if not stored.founded or self.founding.is_copied or not self.life.votes:
            return False
        return not self.unmerged and not self.is_left_out and not self.rivals

    @property
    def away(self) -> frozenset[int]:
        """The other disks of the ring, and of the ring before, that are not in sight."""
        ring = self.place.ring
        return (ring.disks | ring.former.disks) - self.addresses.keys() - {self.place.disk}

    @property
    def is_spare(self) -> bool:
        """True if this blank disk is beside a founded store that has no disk at its address."""
        founding = self.founding
        if not founding.stands_beside_a_store or founding.is_copied:
            return False
        return not {str(founding.me), ""} & {member.address for member in self._seen_ring.members}

    @property
    def _seen_ring(self) -> ReplicaRing:
        """The newest ring that another replica has reported."""
        rings = (report.ring for report in self.founding.reports.values() if report.founded)
        return max(rings, key=lambda ring: ring.number, default=NO_RING)

    def repair(self, now: float, stored: DiskState, after: float) -> GivesWay | RepairWaits | None:
        """Decide whether a member of the ring gives way to a spare (`ring_repair`)."""
        ring, disk = self.place.ring, self.place.disk
        if not after or not self.serves(stored):
            return None
        reports = [report for at, report in self._sights.values() if now - at <= SILENT_S]
        sights = {
            report.disk: Sight(report.ring.number, report.votes, report.away)
            for report in reports
            if report.disk in ring.disks
        }
        sights[disk] = Sight(ring.number, True, self._missed(now))
        addresses = {member.address for member in ring.members}
        spares = [
            RingMember(report.disk, report.zone, report.sender)
            for report in reports
            if report.ring == NO_RING and report.sender not in addresses
        ]
        return ring_repair(ring, disk, sights, spares, after)

    def _missed(self, now: float) -> dict[int, float]:
        """Return the other disks of the ring that were not seen of late, and for how long."""
        disks = self.place.ring.disks - {self.place.disk}
        self._heard_at = {disk: self._heard_at.get(disk, now) for disk in disks}
        return {disk: now - at for disk, at in self._heard_at.items() if now - at > SILENT_S}

    def is_dispensable(self, now: float) -> bool:
        """True if the process of this disk, which `leaves`, may end: a majority of the ring serves
        without it.

        Disks that leave at the same time must not rely on each other. So one counts only disks
        that know that it leaves; and of two that know it of each other, the one with the lower id
        ends first. A disk of an earlier release does not say what it knows, and counts.
        """
        ring, me = self.place.ring, self.place.disk
        others = 0
        for disk in ring.disks - {me}:
            at, report = self._sights.get(disk, (0.0, None))
            if report is None or now - at > SILENT_S or not report.votes:
                continue
            leaving = report.leaving
            others += leaving is None or (me in leaving and (disk not in leaving or me < disk))
        return others >= majority(len(ring.members))

    @property
    def _leaving(self) -> tuple[int, ...]:
        """The disks that leave, as far as this one has heard."""
        heard = (
            disk for disk, (_, report) in self._sights.items() if disk in (report.leaving or ())
        )
        return (*heard, self.place.disk) if self.leaves else tuple(heard)

    @property
    def unmerged(self) -> int:
        """The partitions that this disk holds, and does not vote in yet."""
        if len(self.place.voting) == PARTITIONS:
            return 0
        places = places_of(self.place.ring)
        held = sum(self.place.disk in disks for disks in places)
        return held - len(self.place.voting)

    def is_lost(self, now: float) -> str:
        """Return why this disk is to be given up, empty if it is not."""
        if self.is_left_out:
            return f"ring {self.place.ring.number} of the store does not have this disk any more"
        if not self.founding.is_copied and self.life.is_lost(self.ring.disks, now):
            return "the other replicas know a later state of this disk: it was set back, or copied"
        return ""

    # ---- reports of others

    def on_report(
        self, report: ReportBody, stored: DiskState, now: float
    ) -> tuple[DiskVerdict, list[AskDisk]]:
        """Take the report of another replica. Returns the verdict for its disk, and requests.

        Raises:
            ConfigError: its sender is no address.
        """
        sender = Address.parse(report.sender)
        shown = DiskShown(report.disk, report.counter, report.run)
        accepts = self.registry.answer(shown, now)
        if report.disk != self.place.disk:
            self.addresses[report.disk] = sender
            self._heard_at[report.disk] = now
            self._sights[report.disk] = now, report
        self._runs[sender] = report.disk, report.run
        if report.verdict is not None:
            self.life.on_verdict(report.verdict, self.ring.disks, now)
        effects = self.adopt(report.ring, now) if report.ring.number > 1 else []
        self.founding.on_report(
            sender,
            DiskReport(report.disk, report.ring, report.founded, report.peers, report.zone),
        )
        self.advance(now)
        votes = self.serves(stored)
        verdict = DiskVerdict(self.place.disk, report.counter, report.run, accepts, votes)
        return verdict, effects

    def on_silent(self, peer: Address) -> None:
        """A replica is out of reach: its process has ended, or the network is cut."""
        self.founding.on_silent(peer)
        if peer in self._runs:
            disk, run = self._runs.pop(peer)
            self.registry.closed(disk, run)
            if self.addresses.get(disk) == peer:
                del self.addresses[disk]
                self._sights.pop(disk, None)

    def adopt(self, ring: ReplicaRing, now: float) -> list[AskDisk]:
        """Take a later ring of this store; another one changes nothing."""
        mine = self.ring
        related = self.place.disk in ring.disks if mine == NO_RING else is_related(mine, ring)
        if ring.number <= self.place.ring.number or not related:
            return []
        effects = self.place.adopt(ring, now)
        self.founding.on_ring(ring)
        self.registry.keep(ring.disks)
        return effects

    def count(self) -> bool:
        """Count a `repair_interval` that has passed. Returns True if there is a count to store: a
        disk that does not vote counts starts only. Otherwise a refused disk would reach the count
        that others know, and one whose intervals are shorter than `GRACE_S` would never vote."""
        self.counter += self.life.votes
        return self.life.votes

    def tick(self, now: float, stored: DiskState) -> None:
        """Show the stored counter, and judge the answers to it. A process that did not run for a
        while, as on a machine that slept, has missed no disk meanwhile."""
        if now - self._ticked > SILENT_S:
            self._heard_at.clear()
        self._ticked = now
        self.life.show(stored.counter, now)
        self.life.judge(self.ring.disks, now)

    def report(self, stored: DiskState, verdict: DiskVerdict | None, now: float) -> ReportBody:
        """Return the report of this disk, with the facts that it has stored; with a verdict it is
        an answer."""
        founding = self.founding
        return ReportBody(
            str(founding.me),
            self.place.disk,
            stored.ring,
            stored.founded,
            tuple(map(str, founding.peers)),
            verdict is not None,
            stored.counter,
            self.life.run,
            self.serves(stored),
            verdict,
            founding.zone,
            self._missed(now),
            self._leaving,
        )

    # ---- for people

    def replica_state(self, stored: DiskState) -> ReplicaState:
        """The state of this replica."""
        if self.founding.state is FoundingState.BLANK:
            return ReplicaState.SPARE if self.is_spare else ReplicaState.BLANK
        if not stored.founded:
            return ReplicaState.NAMED
        if self.serves(stored):
            return ReplicaState.FOUNDED
        return ReplicaState.MERGING if self.unmerged else ReplicaState.WAITING

    def waits_for(self, stored: DiskState) -> str:
        """The replicas for which this one waits, and why; empty if it serves."""
        if self.serves(stored):
            return ""
        founding = self.founding
        if self.is_spare:
            return _SPARE.format(founding.me, self._seen_ring.number)
        if founding.stands_beside_a_store and not founding.is_copied:
            return self.joining or "a change of the ring that takes this blank disk in"
        if not stored.founded or founding.is_copied:
            reasons = founding.waits_for
            texts = [f"{peer}: {reason}" for peer, reason in reasons.items()]
            return "; ".join(texts) or "the first replica to found the store"
        if self.is_left_out:
            return f"a change of ring {self.place.ring.number}, which does not have this disk"
        if not self.life.votes:
            return self._unaccepted()
        if rivals := self.rivals:
            names = ", ".join(map(str, rivals))
            return f"an operator: {names} is of another store; stop one of both, and empty its disk"
        sources = ", ".join(sorted(map(self.name_of, self.place.missing_sources)))
        return f"the rows of {self.unmerged} of {PARTITIONS} partitions, from {sources}"

    def _unaccepted(self) -> str:
        members = self.ring.disks
        refusing = sorted(map(self.name_of, self.life.refusing(members)))
        silent = sorted(map(self.name_of, self.life.silent(members)))
        texts = [
            f"{name}: it knows a later state of this disk, or another run" for name in refusing
        ]
        texts += [f"{name}: it has not accepted this run of the disk yet" for name in silent]
        return "; ".join(texts) or "the other replicas to accept this run of the disk"

    def name_of(self, disk: int) -> str:
        """Return the address of a disk, or its id if none is known."""
        if disk in self.addresses:
            return str(self.addresses[disk])
        named = (member.address for member in self.ring.members if member.disk == disk)
        return next(named, "") or f"disk {disk:016x}"
