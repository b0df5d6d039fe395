"""Rows of several disks, and store objects on them, in this process: requests arrive at once."""

from __future__ import annotations

from collections import Counter
from itertools import count
from random import Random
from typing import Any

from shardbus.replication.proposer import (
    Completed,
    Effect,
    Finished,
    Operation,
    Outcome,
    Proposer,
    SendCall,
)
from shardbus.replication.registers import Registers
from shardbus.replication.ring import (
    ReplicaRing,
    RingMember,
    StoreCall,
    StoreReply,
    first_ring,
)

TIMEOUT_S = 5.0


class Replicas:
    """Disks 1 to `disks`, which all hold everything. `down`: they get nothing. `counts` has the
    requests sent to disks, by kind."""

    def __init__(self, disks: int = 3, *, seed: int = 1) -> None:
        members = tuple(RingMember(disk) for disk in range(1, disks + 1))
        self.ring: ReplicaRing = first_ring(members, disks)
        self.registers = {member.disk: Registers() for member in members}
        self.down: set[int] = set()
        self.now = 0.0
        self.counts: Counter[str] = Counter()
        self.outcomes: dict[int, Outcome] = {}
        self._dice = Random(seed)
        self._sessions, self._tickets = count(1), count(1)

    def store(self) -> Proposer:
        """A new store object."""
        return Proposer(next(self._sessions), self.ring, self._dice)

    def begin(self, store: Proposer, key: str, work: Operation) -> int:
        """Submit an operation, and return its ticket. Its first requests arrive."""
        ticket = next(self._tickets)
        self._carry(store, store.submit(ticket, key, work, self.now, TIMEOUT_S))
        return ticket

    def run(self, store: Proposer, key: str, work: Operation) -> Outcome:
        """Submit an operation, and let time pass until it is over."""
        ticket = self.begin(store, key, work)
        while ticket not in self.outcomes:
            due = store.deadline()
            assert due is not None
            self.now = max(self.now, due)
            self._carry(store, store.tick(self.now))
        return self.outcomes[ticket]

    def done(self, store: Proposer, key: str, work: Operation) -> Any:
        """Run an operation that takes effect, and return its result."""
        outcome = self.run(store, key, work)
        assert isinstance(outcome, Completed), outcome
        return outcome.result

    def rounds(self, store: Proposer, key: str, work: Operation) -> int:
        """Run an operation, and return its rounds."""
        before = sum(self.counts.values())
        self.done(store, key, work)
        return (sum(self.counts.values()) - before) // len(self.ring.members)

    def _carry(self, store: Proposer, effects: list[Effect]) -> None:
        store.check()
        queue = list(effects)
        while queue:
            match queue.pop(0):
                case Finished(ticket, outcome):
                    assert isinstance(ticket, int)
                    self.outcomes[ticket] = outcome
                case SendCall(disk, StoreCall() as call):
                    self.counts[type(call.request).__name__] += 1
                    if disk in self.down:
                        continue
                    answer = self.registers[disk].handle(call.request, self.now)
                    self.registers[disk].check()
                    reply = StoreReply(call.number, disk, call.ring, answer)
                    queue += store.handle(reply, self.now)
                    store.check()
