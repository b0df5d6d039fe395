"""Small cases in every order: two saves of an owner, and the loads of its two successors.

The machines are the product's. A step is the start of an operation, or the arrival of one request
at its disk with the answer to it, or the end of a pause. A request that has not arrived may never
arrive, or arrive after its operation is over. Every reachable state is visited once, up to a bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from shardbus.replication.messages import AcceptValue, PrepareBallot
from shardbus.replication.proposer import (
    Completed,
    Finished,
    LoadState,
    Operation,
    Outcome,
    Proposal,
    ProposalPhase,
    Proposer,
    SaveState,
    SendCall,
)
from shardbus.replication.registers import Registers
from shardbus.replication.ring import RingMember, StoreCall, StoreReply, first_ring
from shardbus.replication.values import StateValue, state_key
from tests import laws
from tests.markers import long_only

KEY = state_key("t", "e")
LATER = 1e9
MOST = 150_000
"""States that are visited, at most; minutes."""
RING = first_ring((RingMember(1), RingMember(2), RingMember(3)), 3)

Sent = tuple[int, int, StoreCall]
"""A request under way: the store object, the disk, and the call."""


def proposer_like(other: Proposer) -> Proposer:
    """Copy a proposer, so that both go on alone."""
    twin = Proposer(other.session, other.ring, other._dice)
    twin._k, twin._calls, twin._serial = other._k, other._calls, other._serial
    twin._groups = {key: copy(group) for key, group in other._groups.items()}
    copies: dict[int, Proposal] = {}
    for key, queue in other._queues.items():
        twin._queues[key] = deque()
        for proposal in queue:
            mine = copies[id(proposal)] = copy(proposal)
            mine.answers, mine.adopters = dict(mine.answers), set(mine.adopters)
            twin._queues[key].append(mine)
    twin._by_call = {number: copies[id(call)] for number, call in other._by_call.items()}
    twin._wakes = [(at, n, copies[id(call)]) for at, n, call in other._wakes if id(call) in copies]
    return twin


def registers_like(other: Registers) -> Registers:
    twin = Registers()
    twin.rows = dict(other.rows)
    twin._buckets, twin.digests = other._buckets, other.digests
    return twin


@dataclass(slots=True)
class State:
    """A state of the case. `begun`: the operations of each store object that have begun."""

    disks: dict[int, Registers]
    stores: list[Proposer]
    sent: frozenset[Sent]
    begun: tuple[int, ...]
    outcomes: dict[int, Outcome]
    floors: dict[int, int]
    """The highest acknowledged save, when an operation began."""

    def twin(self) -> State:
        return State(
            {disk: registers_like(registers) for disk, registers in self.disks.items()},
            [proposer_like(store) for store in self.stores],
            self.sent,
            self.begun,
            dict(self.outcomes),
            dict(self.floors),
        )

    def identity(self) -> Any:
        return (
            tuple(registers.row(KEY) for registers in self.disks.values()),
            tuple(shape_of(store) for store in self.stores),
            self.sent,
            self.begun,
            tuple(sorted(self.outcomes.items())),
            tuple(sorted(self.floors.items())),
        )


def shape_of(store: Proposer) -> Any:
    groups = tuple(
        (g.ring, g.ballot, g.ours, g.op, g.repeats, g.stored, g.reminded)
        for g in store._groups.values()
    )
    proposals = tuple(
        (p.ticket, p.phase, p.ballot, p.fence, p.round, p.outdated, p.pauses, *sorted(p.answers))
        for queue in store._queues.values()
        for p in queue
    )
    return groups, proposals


class Case:
    """Operations by store object: operations of one object begin in their order. `pauses`: the
    refusals of one operation that are followed."""

    def __init__(self, *works: tuple[tuple[int, Operation], ...], pauses: int) -> None:
        self.works, self.pauses = works, pauses
        self.saves = {
            ticket: work.op for each in works for ticket, work in each
            if isinstance(work, SaveState)
        }  # fmt: skip

    def first(self) -> State:
        """The owner has loaded, and saved 0."""
        stores = [Proposer(session, RING, Random(1)) for session in range(1, len(self.works) + 1)]
        disks = {disk: Registers() for disk in (1, 2, 3)}
        state = State(disks, stores, frozenset(), (0,) * len(stores), {}, {})
        for ticket, work in ((-1, LoadState(1)), (-2, SaveState(1, 1, b""))):
            self.take(state, 0, stores[0].submit(ticket, KEY, work, 0.0, LATER))
            while state.sent:
                self.arrive(state, sorted(state.sent)[0])
        state.outcomes.clear()
        return state

    def take(self, state: State, store: int, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case SendCall(disk, StoreCall() as call):
                    state.sent |= {(store, disk, call)}
                case Finished(ticket, outcome):
                    state.outcomes[ticket] = outcome

    def arrive(self, state: State, message: Sent) -> None:
        store, disk, call = message
        state.sent -= {message}
        answer = state.disks[disk].handle(call.request, 0.0)
        reply = StoreReply(call.number, disk, call.ring, answer)
        self.take(state, store, state.stores[store].handle(reply, 0.0))
        state.sent = frozenset(frame for frame in state.sent if self.matters(state, frame))

    def matters(self, state: State, message: Sent) -> bool:
        """False if neither the disk nor the store object would change: promises only rise."""
        store, disk, call = message
        assert isinstance(call.request, PrepareBallot | AcceptValue)
        awaited = call.number in state.stores[store]._by_call
        return awaited or call.request.ballot > state.disks[disk].row(KEY).promise

    def steps(self, state: State) -> Iterator[State]:
        for store, each in enumerate(self.works):
            at = state.begun[store]
            if at < len(each):
                twin = state.twin()
                ticket, work = each[at]
                twin.begun = (*state.begun[:store], at + 1, *state.begun[store + 1 :])
                if isinstance(work, LoadState):
                    twin.floors[ticket] = self.acked(state)
                effects = twin.stores[store].submit(ticket, KEY, work, 0.0, LATER)
                self.take(twin, store, effects)
                yield twin
            for queue in state.stores[store]._queues.values():
                if queue[0].phase is ProposalPhase.PAUSING and queue[0].pauses <= self.pauses:
                    twin = state.twin()
                    proposal = twin.stores[store]._queues[KEY][0]
                    self.take(twin, store, twin.stores[store].tick(proposal.wake))
                    yield twin
        for message in state.sent:
            twin = state.twin()
            self.arrive(twin, message)
            yield twin

    def acked(self, state: State) -> int:
        """The highest save that was acknowledged."""
        done = [op for t, op in self.saves.items() if isinstance(state.outcomes.get(t), Completed)]
        return max(done, default=1)

    def complaint(self, state: State) -> str:
        loaded = {}
        for ticket, outcome in state.outcomes.items():
            match outcome:
                case Completed(StateValue(op)):
                    loaded[ticket] = op
                    if op < state.floors[ticket]:
                        return f"load {ticket} misses a save that was acknowledged before it"
        if loaded and self.acked(state) > max(loaded.values()):
            return "a save was acknowledged that no successor's load shows"
        if len(set(loaded.values())) > 1:
            return "a former owner's save appeared between two loads of its successors"
        return ""

    def explore(self, most: int) -> tuple[int, str]:
        """Visit states, and return their number, and the first complaint."""
        first = self.first()
        seen, stack = {self.identity(first)}, [first]
        while stack and len(seen) < most:
            for state in self.steps(stack.pop()):
                identity = state.identity()
                if identity in seen:
                    continue
                seen.add(identity)
                if why := self.complaint(state):
                    return len(seen), why
                stack.append(state)
        laws.forget()  # a state has the rows of a disk, and not their digests
        return len(seen), ""

    @staticmethod
    def identity(state: State) -> Any:
        return state.identity()


SAVE_A, SAVE_B = (1, SaveState(1, 2, b"")), (2, SaveState(1, 3, b""))
LOAD_2, LOAD_3 = (3, LoadState(2)), (4, LoadState(3))


@pytest.mark.parametrize("pauses", [0, *long_only(1)])
def test_a_save_and_a_load_in_every_order(pauses: int) -> None:
    assert Case((SAVE_A,), (LOAD_2,), pauses=pauses).explore(MOST)[1] == ""


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_saves_and_a_load_in_every_order() -> None:
    assert Case((SAVE_A, SAVE_B), (LOAD_2,), pauses=0).explore(MOST)[1] == ""


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_save_and_two_loads_in_every_order() -> None:
    assert Case((SAVE_A,), (LOAD_2,), (LOAD_3,), pauses=0).explore(MOST)[1] == ""


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_saves_and_two_loads_in_many_orders() -> None:
    assert Case((SAVE_A, SAVE_B), (LOAD_2,), (LOAD_3,), pauses=0).explore(MOST)[1] == ""
