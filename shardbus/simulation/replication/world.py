"""Disks and store objects in virtual time. One seed decides all that happens.

Messages are lost, doubled and late; a late one may come after the operation that sent it, and after
others. A disk has its log: synced records stay, an answer leaves after the sync. A disk

    crashes   and loses unsynced records; the first of them may have reached the disk
    stalls    so that nothing is synced for a while, and no answer leaves
    is full   so that it stores nothing, and answers nothing that it would have to store
    is lost   for ever; an operator replaces it in the ring
    is set back   to an older copy of its log; the others must notice, and it is lost, too

A message that must not come twice is never doubled: its link is a connection.

**Operators** change the ring: they replace a lost disk, or any, add one and remove one. Each asks
the disks that it reaches for their reports, makes one step, and goes; several may work at a time.

`ReplicaFaults` has the rates. They end with `heal`.

Source: docs/simulation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

from shardbus.replication import moves, proposer
from shardbus.replication import ring as rings
from shardbus.replication.disk_life import DiskRegistry, DiskShown, is_accepted
from shardbus.replication.functions import decide_once
from shardbus.replication.messages import ReadRow, TakeChange
from shardbus.simulation.timeline import Timeline

DELAY_S = (0.0005, 0.004)
LATE_S = (0.02, 3.0)
"""Of a message, and of a late one."""
SYNC_S = (0.0002, 0.003)
SESSION_BITS = 40
DISKS_MAX = 5
REACHED = 0.9
"""The part of the disks that an operator reaches."""
OPERATOR_TIMEOUT_S = 1.0
KINDS_OF_FAULTS = ("crash", "stall", "fill", "cut", "lost", "set_back")
COUNT_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class ReplicaFaults:
    """Rates of faults: of messages as parts of all, of disks in events a second of each."""

    loss: float = 0.0
    double: float = 0.0
    late: float = 0.0
    crash: float = 0.0
    stall: float = 0.0
    fill: float = 0.0
    cut: float = 0.0
    """No messages between a disk and the others."""
    lost: float = 0.0
    set_back: float = 0.0
    operators: float = 0.0
    """Steps of operators a second."""


def drawn_faults(dice: Random) -> ReplicaFaults:
    """Draw the rates of a run."""
    return ReplicaFaults(
        loss=dice.choice((0, 0.02, 0.15)),
        double=dice.choice((0, 0.05, 0.3)),
        late=dice.choice((0, 0.02, 0.1)),
        crash=dice.choice((0, 0.3, 1.5)),
        stall=dice.choice((0, 0, 0.5)),
        fill=dice.choice((0, 0, 0.3)),
        cut=dice.choice((0, 0.3, 1.0)),
        lost=dice.choice((0, 0.1)),
        set_back=dice.choice((0, 0, 0.3)),
        operators=dice.choice((0, 0, 4.0, 12.0)),
    )


class SimReplica:
    """A disk and its process."""

    def __init__(self, world: ReplicationWorld, disk: int) -> None:
        self.world, self.disk = world, disk
        self.up = True
        self.lost = False
        self.full_until = self.stalled_until = self.cut_until = 0.0
        self.log: list[moves.DiskRecord] = []
        self.place = moves.RingDisk(disk, world.partitions)
        self.status: moves.DiskStatus = self.place.status
        """As it is synced."""
        self.rate = world.dice.uniform(0.97, 1.03)
        self._unsynced: list[moves.DiskRecord] = []
        self._leaving: list[Callable[[], None]] = []
        self._syncing = False
        self._starts = 0
        self._due: float | None = None
        self.registry = DiskRegistry()
        self.accepted = True
        """A majority of the ring has let this run of the disk vote."""
        self.run, self.counter, self.confirmed = 0, 1, 0
        self.copies: list[tuple[int, int]] = []
        """Older copies of the disk: the length of the log, and the counter."""
        self._answers: dict[int, bool] = {}

    @property
    def clock(self) -> float:
        """The time of this machine's clock."""
        return self.world.now * self.rate

    def show(self) -> None:
        """Count, and show the disk to the others until they judge it."""
        if not self.up or not self.world.judges:
            self.accepted = True
            return
        if self._answers:
            self.counter += 1
            self._answers = {}
        shown = DiskShown(self.disk, self.counter, self.run)
        for other in self._others():
            self.world.carry(other, partial(self._show, other, shown))
        self._decide()
        starts = self._starts
        self.world.later(COUNT_EVERY_S, lambda: self.show() if starts == self._starts else None)

    def _show(self, other: SimReplica, shown: DiskShown) -> None:
        if other.up and self.up and shown.run == self.run:  # a closed connection brings nothing
            verdict = other.registry.answer(shown, other.clock)
            self.world.carry(other, partial(self._judge, other.disk, shown, verdict))

    def _judge(self, other: int, shown: DiskShown, verdict: bool) -> None:
        if not self.up or shown != (self.disk, self.counter, self.run):
            return
        self._answers[other] = verdict
        self._decide()

    def _decide(self) -> None:
        disks = [d for d in self.place.ring.disks if not self.world.replicas[d].lost]
        refused = not all(self._answers.values())
        match is_accepted(self.disk, disks, self._answers, waited=refused):
            case True:
                self.accepted = True
                if self.confirmed < self.counter:
                    self.confirmed = self.counter
                    self.copies.append((len(self.log), self.counter))
            case False:
                self.crash()
                self.lost = True
            case None:
                pass

    def _others(self) -> list[SimReplica]:
        disks = sorted(self.place.ring.disks - {self.disk})
        return [self.world.replicas[disk] for disk in disks]

    def set_back(self) -> None:
        """Stop, and begin again from an older copy, in which it has a ring. One without is the copy
        of a blank disk, which gets a new id."""
        older = [copy for copy in self.copies if copy[0] and copy[1] < self.confirmed]
        if older:
            self.crash()
            length, self.counter = self.world.dice.choice(older)
            del self.log[length:]
            self.restart()

    def receive(
        self, call: rings.StoreCall | rings.AdoptRing, back: Callable[[rings.StoreReply], None]
    ) -> None:
        """Handle a call of a store object. `back` sends the answer."""
        full = self.full_until > self.world.now
        match call:
            case _ if not self.up:
                pass
            case rings.StoreCall() if not self.accepted:
                pass
            case rings.AdoptRing(ring):
                self._ask(self.place.adopt(ring, self.clock))
            case rings.StoreCall(_, _, request) if not full or isinstance(request, ReadRow):
                reply = self.place.answer(call, self.clock)
                self._leave(lambda: back(reply))

    def ask(self, asker: SimReplica, request: object) -> None:
        """Handle a call of another disk."""
        if not self.up or not self.accepted:
            return
        if isinstance(request, rings.AdoptRing):
            self._ask(self.place.adopt(request.ring, self.clock))
            return
        assert not isinstance(request, rings.StoreCall)
        answer = self.place.show(request, self.clock)  # type: ignore[arg-type]

        def back() -> None:
            if asker.up:
                asker._ask(asker.place.take(self.disk, answer, asker.clock))

        self._leave(lambda: self.world.carry(self, back))

    def repair(self) -> None:
        """Compare with the other disks."""
        if self.up:
            self._ask(self.place.repair(self.clock))

    def _ask(self, effects: list[moves.AskDisk]) -> None:
        for effect in effects:
            other = self.world.replicas.get(effect.disk)
            if other is not None:
                request = effect.request
                arrive = partial(other.ask, self, request)
                self._leave(partial(self.world.carry, other, arrive))
        self._leave(lambda: None)
        due = self.place.deadline()
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            starts = self._starts
            self.world.at(max(due / self.rate, self.world.now), lambda: self._tick(due, starts))

    def _tick(self, due: float, starts: int) -> None:
        if self._due == due and starts == self._starts:
            self._due = None
            self._ask(self.place.tick(max(due, self.clock)))

    def _leave(self, action: Callable[[], None]) -> None:
        """Let the action happen once everything is synced."""
        self._unsynced += self.place.take_records()
        self._leaving.append(action)
        if not self._syncing:
            self._syncing = True
            starts = self._starts
            self.world.later(self.world.dice.uniform(*SYNC_S), lambda: self._sync(starts))

    def _sync(self, starts: int) -> None:
        if starts != self._starts:
            return
        if self.stalled_until > self.world.now:
            self.world.at(self.stalled_until, lambda: self._sync(starts))
            return
        self._syncing = False
        self.log += self._unsynced
        self.status = self.place.status
        leaving, self._leaving, self._unsynced = self._leaving, [], []
        for action in leaving:
            action()

    def crash(self) -> None:
        """Lose unsynced records, except perhaps the first of them, and every answer under way."""
        self.up = self._syncing = False
        self._starts += 1
        self.log += self._unsynced[: self.world.dice.randint(0, len(self._unsynced))]
        self._unsynced, self._leaving, self._due = [], [], None
        for other in self.world.replicas.values():
            other.registry.closed(self.disk, self.run)

    def restart(self) -> None:
        """Begin again from the log."""
        if self.up or self.lost:
            return
        self.up, self.accepted = True, False
        self.run = self.world.ticket()
        self.counter += 1
        self._answers = {}
        self.place = moves.RingDisk(self.disk, self.world.partitions)
        for record in self.log:
            self.place.replay(record)
        self.status = self.place.status
        self._ask(self.place.tick(self.clock))
        self.show()


class TakesReplies(Protocol):
    """A store object, as the network sees it."""

    def reply(self, reply: rings.StoreReply) -> None: ...


class SimStoreObject:
    """A store object: a proposer, and its timer."""

    def __init__(
        self, world: ReplicationWorld, session: int, ring: rings.ReplicaRing | None = None
    ) -> None:
        self.world = world
        self.proposer = proposer.Proposer(session, ring or world.ring, world.dice)
        self.rate = world.dice.uniform(0.97, 1.03)
        self._ends: dict[Hashable, Callable[[proposer.Outcome], None]] = {}
        self._due: float | None = None

    @property
    def clock(self) -> float:
        """The time of this machine's clock."""
        return self.world.now * self.rate

    def submit(
        self,
        key: str,
        work: proposer.Operation,
        timeout: float,
        end: Callable[[proposer.Outcome], None],
    ) -> None:
        """Run an operation; `end` gets its outcome."""
        ticket = self.world.ticket()
        self._ends[ticket] = end
        self._carry(self.proposer.submit(ticket, key, work, self.world.now, timeout))

    def reply(self, reply: rings.StoreReply) -> None:
        """Take a disk's reply."""
        self._carry(self.proposer.handle(reply, self.world.now))

    def _carry(self, effects: list[proposer.Effect]) -> None:
        for effect in effects:
            match effect:
                case proposer.SendCall(disk, call):
                    self.world.send(self, disk, call)
                case proposer.Finished(ticket, outcome):
                    self._ends.pop(ticket)(outcome)
                case proposer.RingFound():
                    pass
        due = self.proposer.deadline()
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            self.world.at(max(due, self.world.now), lambda: self._tick(due))

    def _tick(self, due: float) -> None:
        if self._due == due:
            self._due = None
            self._carry(self.proposer.tick(self.world.now))


class ReplicationWorld(Timeline):
    """The disks, the store objects, and the network between them."""

    def __init__(
        self, dice: Random, faults: ReplicaFaults, disks: int, partitions: Sequence[int]
    ) -> None:
        super().__init__()
        self.dice, self.faults, self.partitions = dice, faults, partitions
        self.judges = bool(faults.set_back)
        """Disks that start show themselves to the others."""
        members = tuple(rings.RingMember(disk) for disk in range(1, disks + 1))
        self.ring: rings.ReplicaRing = rings.first_ring(members, max(disks, 5))
        """The first one: later store objects begin with it, too."""
        self.replicas = {member.disk: SimReplica(self, member.disk) for member in members}
        for replica in self.replicas.values():
            replica.receive(rings.AdoptRing(self.ring), lambda _: None)
        self.rings = 1
        self._tickets = 0

    def ticket(self) -> int:
        """Return a new ticket."""
        self._tickets += 1
        return self._tickets

    def store_object(self, ring: rings.ReplicaRing | None = None) -> SimStoreObject:
        """Return a new store object."""
        return SimStoreObject(self, self.dice.getrandbits(SESSION_BITS), ring)

    def begin(self) -> None:
        """Let faults happen from now on."""
        for replica in self.replicas.values():
            for kind in KINDS_OF_FAULTS:
                self._plan(replica, kind)
            replica.show()
        if self.faults.operators:
            self.later(self.dice.expovariate(self.faults.operators), self._operate)

    def heal(self) -> None:
        """End all faults."""
        self.faults = ReplicaFaults()
        for replica in self.replicas.values():
            replica.full_until = replica.stalled_until = replica.cut_until = 0.0
            replica.restart()
        self._finish()

    def send(self, store: TakesReplies, disk: int, call: rings.StoreCall | rings.AdoptRing) -> None:
        """Carry a call to a disk, and its answer back."""
        replica = self.replicas.get(disk)
        if replica is None:
            return

        def back(reply: rings.StoreReply) -> None:
            self.carry(replica, lambda: store.reply(reply))

        once = isinstance(call, rings.StoreCall) and isinstance(call.request, TakeChange)
        self.carry(replica, lambda: replica.receive(call, back), once=once)

    def carry(self, replica: SimReplica, arrive: Callable[[], None], *, once: bool = False) -> None:
        """Carry a message to a disk, or from one. `once`: it is not doubled."""
        dice, faults = self.dice, self.faults
        if replica.cut_until > self.now or dice.random() < faults.loss:
            return
        again = True
        while again:
            late = dice.random() < faults.late
            self.later(dice.uniform(*(LATE_S if late else DELAY_S)), arrive)
            again = dice.random() < faults.double and not once

    def _may_lose(self, replica: SimReplica) -> bool:
        """True if all disks of the ring are there, and have merged: one of three may then go. One
        of the first ring stays: later store objects begin with it."""
        ring = self.highest
        members = [self.replicas[disk] for disk in ring.disks]
        whole = all(
            member.up
            and member.accepted
            and member.status.ring == ring
            and member.status.merged.issuperset(self.partitions)
            for member in members
        )
        stays = any(not self.replicas[d].lost for d in self.ring.disks - {replica.disk})
        return replica in members and len(members) >= 3 and whole and stays

    @property
    def highest(self) -> rings.ReplicaRing:
        """The highest ring that a disk has."""
        return max((r.status.ring for r in self.replicas.values()), key=lambda r: r.number)

    def _finish(self) -> None:
        """Help a change of the ring on, as a patient operator would."""
        self.push(self.highest)
        self.later(OPERATOR_TIMEOUT_S, self._finish)

    # -- operators

    def _operate(self) -> None:
        """Make one step of an operator."""
        if not self.faults.operators:
            return
        self.later(self.dice.expovariate(self.faults.operators), self._operate)
        reached = [
            replica
            for replica in self.replicas.values()
            if replica.up and replica.cut_until <= self.now and self.dice.random() < REACHED
        ]
        statuses = [replica.status for replica in reached]
        ring = max((status.ring for status in statuses), key=lambda r: r.number, default=None)
        if ring is None or not ring.number:
            return
        if moves.unmerged(ring, statuses, self.partitions):
            self.push(ring)
        else:
            self._decide(ring)
        self.dice.choice(reached).repair()

    def push(self, ring: rings.ReplicaRing) -> None:
        """Send a ring to its disks, and to the disks of the ring before."""
        for disk in sorted(ring.disks | ring.former.disks):
            replica = self.replicas[disk]
            self.carry(replica, partial(replica.receive, rings.AdoptRing(ring), lambda _: None))

    def _decide(self, ring: rings.ReplicaRing) -> None:
        members = list(ring.members)
        lost = [member for member in members if self.replicas[member.disk].lost]
        kind = "replace" if lost else self.dice.choice(("replace", "add", "remove"))
        fewest = 3 if self.faults.lost or self.faults.set_back else 1
        if kind == "remove" and len(members) > fewest:
            members.remove(self.dice.choice(members))
        elif kind == "add" and len(members) < DISKS_MAX:
            members.append(self.blank())
        else:
            members.remove(lost[0] if lost else self.dice.choice(members))
            members.append(self.blank())
        self.change(ring, tuple(members))

    def change(self, ring: rings.ReplicaRing, members: tuple[rings.RingMember, ...]) -> None:
        """Have the disks of a ring decide that the next one has these members."""
        after = rings.next_ring(ring, members)
        store = self.store_object(ring)

        def decided(outcome: proposer.Outcome) -> None:
            if isinstance(outcome, proposer.Completed):
                self.rings += 1
                self.push(rings.ring_of(outcome.result))

        work = proposer.ChangeValue(0, decide_once(rings.ring_value(after)))
        store.submit(moves.ring_key(after.number), work, OPERATOR_TIMEOUT_S, decided)

    def blank(self) -> rings.RingMember:
        """Return a blank disk."""
        disk = len(self.replicas) + 1
        replica = self.replicas[disk] = SimReplica(self, disk)
        for kind in KINDS_OF_FAULTS:
            self._plan(replica, kind)
        replica.show()
        return rings.RingMember(disk)

    # -- faults

    def _plan(self, replica: SimReplica, kind: str) -> None:
        rate = float(getattr(self.faults, kind))
        if rate:
            self.later(self.dice.expovariate(rate), lambda: self._strike(replica, kind))

    def _strike(self, replica: SimReplica, kind: str) -> None:
        if not getattr(self.faults, kind):
            return
        lasts = self.dice.uniform(0.02, 0.6)
        match kind:
            case "crash":
                if replica.up:
                    replica.crash()
                    self.later(lasts, replica.restart)
            case "lost":
                if self.faults.operators and self._may_lose(replica):
                    replica.crash()
                    replica.lost = True
            case "set_back":
                if replica.up and self._may_lose(replica):
                    replica.set_back()
            case "stall":
                replica.stalled_until = self.now + lasts
            case "fill":
                replica.full_until = self.now + lasts
            case _:
                replica.cut_until = self.now + lasts
        self._plan(replica, kind)
