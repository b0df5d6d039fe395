"""Disks and store objects in virtual time. One seed decides all that happens.

Messages are lost, doubled and late; a late one may come after the operation that sent it, and after
others. A disk has its log: what is synced stays, an answer leaves after the sync. A disk

    crashes   and loses what is not synced; of that, the first records may have reached the disk
    stalls    so that nothing is synced for a while, and no answer leaves
    is full   so that it stores nothing, and answers nothing that it would have to store

`Faults` has the rates. They end with `heal`.

Source: docs/simulation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from random import Random

from shardbus.replication.messages import ReadRow, Record
from shardbus.replication.proposer import (
    Finished,
    Operation,
    Outcome,
    Proposer,
    RingFound,
    SendCall,
)
from shardbus.replication.registers import Registers
from shardbus.replication.ring import (
    AdoptRing,
    ReplicaRing,
    RingMember,
    StoreCall,
    StoreReply,
    first_ring,
)
from shardbus.simulation.timeline import Timeline

DELAY_S = (0.0005, 0.004)
LATE_S = (0.02, 3.0)
"""Of a message, and of a late one."""
SYNC_S = (0.0002, 0.003)
SESSION_BITS = 40


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
    )


class SimReplica:
    """A disk and its process."""

    def __init__(self, world: ReplicationWorld, disk: int) -> None:
        self.world, self.disk = world, disk
        self.up = True
        self.full_until = self.stalled_until = self.cut_until = 0.0
        self.log: list[Record] = []
        self.registers = Registers()
        self.rate = world.dice.uniform(0.97, 1.03)
        self._unsynced: list[Record] = []
        self._answers: list[Callable[[], None]] = []
        self._syncing = False
        self._starts = 0

    @property
    def clock(self) -> float:
        """The time of this machine's clock."""
        return self.world.now * self.rate

    def receive(self, call: StoreCall | AdoptRing, back: Callable[[StoreReply], None]) -> None:
        """Handle a call. `back` sends the answer."""
        world = self.world
        if not self.up or isinstance(call, AdoptRing):
            return
        if self.full_until > world.now and not isinstance(call.request, ReadRow):
            return
        answer = self.registers.handle(call.request, self.clock)
        self._unsynced += self.registers.take_records()
        reply = StoreReply(call.number, self.disk, call.ring, answer)
        self._answers.append(lambda: back(reply))
        if not self._syncing:
            self._syncing = True
            starts = self._starts
            world.later(world.dice.uniform(*SYNC_S), lambda: self._sync(starts))

    def _sync(self, starts: int) -> None:
        if starts != self._starts:
            return
        if self.stalled_until > self.world.now:
            self.world.at(self.stalled_until, lambda: self._sync(starts))
            return
        self._syncing = False
        self.log += self._unsynced
        answers, self._answers, self._unsynced = self._answers, [], []
        for answer in answers:
            answer()

    def crash(self) -> None:
        """Lose what is not synced, but perhaps its first part, and every answer under way."""
        self.up = self._syncing = False
        self._starts += 1
        self.log += self._unsynced[: self.world.dice.randint(0, len(self._unsynced))]
        self._unsynced, self._answers = [], []

    def restart(self) -> None:
        """Begin again from the log."""
        if self.up:
            return
        self.up = True
        self.registers = Registers()
        for record in self.log:
            self.registers.replay(record)


class SimStoreObject:
    """A store object: a proposer, and its timer."""

    def __init__(self, world: ReplicationWorld, session: int) -> None:
        self.world = world
        self.proposer = Proposer(session, world.ring, world.dice)
        self.rate = world.dice.uniform(0.97, 1.03)
        self._ends: dict[Hashable, Callable[[Outcome], None]] = {}
        self._due: float | None = None

    @property
    def clock(self) -> float:
        """The time of this machine's clock."""
        return self.world.now * self.rate

    def submit(
        self, key: str, work: Operation, timeout: float, end: Callable[[Outcome], None]
    ) -> None:
        """Run an operation; `end` gets its outcome."""
        ticket = self.world.ticket()
        self._ends[ticket] = end
        self._carry(self.proposer.submit(ticket, key, work, self.world.now, timeout))

    def reply(self, reply: StoreReply) -> None:
        """Take a disk's reply."""
        self._carry(self.proposer.handle(reply, self.world.now))

    def _carry(self, effects: list[Finished | SendCall | RingFound]) -> None:
        for effect in effects:
            match effect:
                case SendCall(disk, call):
                    self.world.send(self, disk, call)
                case Finished(ticket, outcome):
                    self._ends.pop(ticket)(outcome)
                case RingFound():
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

    def __init__(self, dice: Random, faults: ReplicaFaults, disks: int = 3) -> None:
        super().__init__()
        self.dice, self.faults = dice, faults
        members = tuple(RingMember(disk) for disk in range(1, disks + 1))
        self.ring: ReplicaRing = first_ring(members, disks)
        self.replicas = {member.disk: SimReplica(self, member.disk) for member in members}
        self._tickets = 0

    def ticket(self) -> int:
        """Return a new ticket."""
        self._tickets += 1
        return self._tickets

    def store_object(self) -> SimStoreObject:
        """Return a new store object."""
        return SimStoreObject(self, self.dice.getrandbits(SESSION_BITS))

    def begin(self) -> None:
        """Let faults happen from now on."""
        for replica in self.replicas.values():
            for kind in ("crash", "stall", "fill", "cut"):
                self._plan(replica, kind)

    def heal(self) -> None:
        """End all faults."""
        self.faults = ReplicaFaults()
        for replica in self.replicas.values():
            replica.full_until = replica.stalled_until = replica.cut_until = 0.0
            replica.restart()

    def send(self, store: SimStoreObject, disk: int, call: StoreCall | AdoptRing) -> None:
        """Carry a call to a disk, and its answer back."""
        replica = self.replicas.get(disk)
        if replica is None:
            return

        def back(reply: StoreReply) -> None:
            self._carry(replica, lambda: store.reply(reply))

        self._carry(replica, lambda: replica.receive(call, back))

    def _carry(self, replica: SimReplica, arrive: Callable[[], None]) -> None:
        dice, faults = self.dice, self.faults
        if replica.cut_until > self.now or dice.random() < faults.loss:
            return
        again = True
        while again:
            late = dice.random() < faults.late
            self.later(dice.uniform(*(LATE_S if late else DELAY_S)), arrive)
            again = dice.random() < faults.double

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
            case "stall":
                replica.stalled_until = self.now + lasts
            case "fill":
                replica.full_until = self.now + lasts
            case _:
                replica.cut_until = self.now + lasts
        self._plan(replica, kind)
