"""Founding: how blank disks become the replicas of one store, and no second store begins. Pure.

Every replica is started with the same list, the addresses of all replicas of the store. Each
reports the state of its disk to each other one:

    BLANK      it has no ring; it has never served
    NAMED      it has the ring of the store, the list of all its disks, and does not serve yet
    FOUNDED    all disks of the ring have stored it: this one serves

    BLANK ──────────── first address, all others report BLANK ──> NAMED
    BLANK ──────────── another reports a ring with this disk ───> NAMED
    NAMED ──────────── all others report that ring ─────────────> FOUNDED
    NAMED ──────────── another reports it as FOUNDED ───────────> FOUNDED
    any ────────────── the disk has adopted a later ring ───────> FOUNDED

Only the replica of the first address makes a ring, and only with every disk in sight. So there is
one ring at most: a replica whose disk was lost finds others that have a ring without its new disk,
and stays BLANK. Nothing is served before all disks of the ring have it, so a store that was served
is known to every disk of it, and a majority that starts anew never meets as blank ones.

**Spares.** The list may name more replicas than the store has disks. The first replica takes itself
and others into ring 1, in as many zones as there are; those that are left over stay BLANK. They are
in sight when the ring is made, as all others are, and are not waited for afterwards.

A replica stores each change before it reports it. It waits as long as it takes; `waits_for` names
the others, with the reason. If a disk is lost between NAMED and FOUNDED, the ring names a disk that
is gone, and nothing was ever served: remove the directories, and begin anew.

A BLANK disk beside a founded store comes into a later ring (`moves`), in place of a lost disk, or
because an operator adds it.

Not here: changes of the ring; who reports when (`shardbus.replica`).

Source: docs/architecture.md; S2.75.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from shardbus.ids import Address
from shardbus.replication.ring import (
    NO_RING,
    ReplicaRing,
    RingMember,
    first_ring,
    founders,
    is_related,
)


class FoundingState(Enum):
    """How far a disk has come as a member of its store."""

    BLANK = "blank"
    NAMED = "named"
    FOUNDED = "founded"


class DiskReport(msgspec.Struct, frozen=True):
    """A replica's report of its disk. `ring`: the disks of the store, NO_RING if BLANK. `peers`:
    the addresses that the replica was started with. `zone`: where it runs."""

    disk: int
    ring: ReplicaRing
    founded: bool
    peers: tuple[str, ...]
    zone: str = ""


class Founding(msgspec.Struct):
    """The state of one disk.

    Args:
        me: the address of this replica, one of `peers`.
        peers: the addresses of all replicas of the store, in the same order everywhere.
        disk: the id of this disk.
        ring: the disks of the store, as this disk has stored them; NO_RING if it has not.
        founded: this disk has stored that all have.
        may_found: this replica may make a ring.
        zone: where this replica runs.
        members: the disks of ring 1; 0 for one of each replica.
    """

    me: Address
    peers: Sequence[Address]
    disk: int
    ring: ReplicaRing = NO_RING
    founded: bool = False
    may_found: bool = True
    zone: str = ""
    members: int = 0
    reports: dict[Address, DiskReport] = msgspec.field(default_factory=dict)
    """The last report of each other replica."""

    @property
    def state(self) -> FoundingState:
        """How far this disk has come as a member of its store."""
        if self.ring == NO_RING:
            return FoundingState.BLANK
        return FoundingState.FOUNDED if self.founded else FoundingState.NAMED

    @property
    def report(self) -> DiskReport:
        """The report of this replica to the others."""
        peers = tuple(map(str, self.peers))
        return DiskReport(self.disk, self.ring, self.founded, peers, self.zone)

    def on_report(self, sender: Address, report: DiskReport) -> bool:
        """Take the report of another replica. Returns True if this disk must store its state."""
        if sender == self.me or sender not in self.peers:
            return False
        self.reports[sender] = report
        return self._advance()

    def on_silent(self, peer: Address) -> None:
        """A replica is out of reach: its report counts no longer."""
        self.reports.pop(peer, None)

    @property
    def is_copied(self) -> bool:
        """True if another replica has a disk with the id of this one: neither may answer."""
        return any(report.disk == self.disk for report in self.reports.values())

    def on_ring(self, ring: ReplicaRing) -> None:
        """This disk has adopted a ring of a founded store."""
        self.ring, self.founded = ring, True

    @property
    def stands_beside_a_store(self) -> bool:
        """True if this disk is BLANK, and another replica is of a founded store."""
        return self.ring == NO_RING and any(report.founded for report in self.reports.values())

    def start(self) -> bool:
        """Advance without a report: a store of one replica needs none. Returns True if this disk
        must store its state."""
        return self._advance()

    def _advance(self) -> bool:
        before = self.state
        if self.state is FoundingState.BLANK:
            self.ring = self._adopted()
        if self.state is FoundingState.BLANK:
            self.ring = self._made()
        if self.state is FoundingState.NAMED:
            self.founded = self._all_have_it()
        return self.state is not before

    def _adopted(self) -> ReplicaRing:
        """Return the first ring, as another replica has it, if this disk is one of it."""
        rings = (report.ring for report in self.reports.values() if report.ring.number == 1)
        return next((ring for ring in rings if self.disk in ring.disks), NO_RING)

    def _made(self) -> ReplicaRing:
        """Return a ring of all disks, if this replica makes it, and all are in sight and blank."""
        if self.me != self.peers[0] or not self.may_found or self.waits_for:
            return NO_RING
        me = RingMember(self.disk, self.zone, str(self.me))
        others = [RingMember(r.disk, r.zone, str(peer)) for peer, r in self.reports.items()]
        if len({me.disk, *(other.disk for other in others)}) != len(self.peers):
            return NO_RING  # one disk is there twice
        members = founders(me, others, self.members or len(self.peers))
        return first_ring(members, len(members))

    def _all_have_it(self) -> bool:
        reports = self.reports.values()
        same = {report.disk for report in reports if report.ring == self.ring} | {self.disk}
        served = any(report.founded and is_related(report.ring, self.ring) for report in reports)
        return served or same >= self.ring.disks

    @property
    def waits_for(self) -> Mapping[Address, str]:
        """The replicas for which this one waits, and why; empty if it serves."""
        if self.state is FoundingState.FOUNDED and not self.is_copied:
            return {}
        reasons = {peer: self._reason(peer) for peer in self.peers if peer != self.me}
        return {peer: reason for peer, reason in reasons.items() if reason}

    def _reason(self, peer: Address) -> str:
        report = self.reports.get(peer)
        if report is not None and report.disk == self.disk:
            return "its disk is a copy of this one"
        if self._leaves_out(peer):
            return ""
        if report is None:
            return "it is not in sight"
        if report.peers != tuple(map(str, self.peers)):
            return f"it was started with other replicas: {', '.join(report.peers)}"
        if self.state is FoundingState.BLANK and report.ring != NO_RING:
            return "it is of a store that does not have this disk"
        if self.state is FoundingState.NAMED and report.ring != self.ring:
            return "it has not stored the list of disks"
        return ""

    def _leaves_out(self, peer: Address) -> bool:
        """True if the ring was made without the replica of this address."""
        addresses = {member.address for member in self.ring.members}
        return self.state is FoundingState.NAMED and not {str(peer), ""} & addresses
