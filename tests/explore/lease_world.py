"""The world of one lease: two owners, and a store that answers when the world says so.

    1 wants, 1 drops       the first owner wants the lease, or gives it up; also 2
    1 done                 the store does what the first owner's oldest call asks, and answers
    1 lost, 1 late         its call is lost; it is done, and the answer lost
    second, ttl            one second passes; the whole ttl

Laws: two owners never hold the lease at once; an owner holds it only while the store would confirm
it; each request of a release comes from a holder. At rest a lease that is wanted is held by one
owner, and one that no owner wants is free in the store.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from shardbus.sharding import leases as ls
from shardbus.sharding.leases import Leases, LeaseState
from shardbus.store.protocol import Lease

TTL, RETRY, NAME = 8.0, 2.0, "s"


class LeaseStore:
    """The lease in the store: its owner, its counter and its end."""

    def __init__(self) -> None:
        self.owner, self.counter, self.ends = "", 0, 0.0

    def do(self, owner: str, call: ls.Effect, now: float) -> ls.Event:
        if now >= self.ends:
            self.owner = ""
        match call:
            case ls.AcquireCall(name, ticket):
                if self.owner not in ("", owner):
                    return ls.LeaseGranted(name, ticket, None)
                self.owner, self.ends = owner, now + TTL
                self.counter += 1
                return ls.LeaseGranted(name, ticket, Lease(name, owner, self.counter))
            case ls.RenewCall(lease, ticket):
                kept = self._has(lease)
                if kept:
                    self.ends = now + TTL
                return ls.LeaseRenewed(lease.name, ticket, kept)
            case ls.ReleaseCall(lease, ticket):
                if self._has(lease):
                    self.owner = ""
                return ls.LeaseReturned(lease.name, ticket)
        raise AssertionError(f"no call: {call}")

    def _has(self, lease: Lease) -> bool:
        return (self.owner, self.counter) == (lease.owner, lease.counter)


class LeaseWorld:
    """Two machines and the store."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.now, self.store = 100.0, LeaseStore()
        self.machines = {name: Leases(TTL, RETRY) for name in "12"}
        self.calls: dict[str, list[Any]] = {name: [] for name in "12"}
        self.wanted: set[str] = set()
        self.runs: set[str] = set()

    def events(self) -> Iterable[str]:
        found = ["second", "ttl"]
        for name in "12":
            found.append(f"{name} {'drops' if name in self.wanted else 'wants'}")
            if self.calls[name]:
                found += [f"{name} {how}" for how in ("done", "lost", "late")]
        return found

    def do(self, event: str) -> None:
        match event.split():
            case [name, "wants"]:
                self.wanted.add(name)
                self._handle(name, ls.WantLease(NAME))
            case [name, "drops"]:
                self.wanted.discard(name)
                self.runs.discard(name)
                self._handle(name, ls.DropLease(NAME))
            case [name, how]:
                self._end_call(name, how)
            case ["second"]:
                self._pass(1.0)
            case ["ttl"]:
                self._pass(TTL)
        self._turn()

    def _end_call(self, name: str, how: str) -> None:
        call = self.calls[name].pop(0)
        answer = self.store.do(name, call, self.now) if how != "lost" else None
        if how == "done" and answer is not None:
            self._handle(name, answer)
        elif isinstance(call, ls.ReleaseCall):
            self._handle(name, ls.LeaseReturned(NAME, call.ticket))
        else:
            self._handle(name, ls.LeaseCallFailed(NAME, call.ticket))

    def _handle(self, name: str, event: ls.Event) -> None:
        self._perform(name, self.machines[name].handle(event, self.now))

    def _perform(self, name: str, effects: list[ls.Effect]) -> None:
        for effect in effects:
            match effect:
                case ls.AcquireCall() | ls.RenewCall() | ls.ReleaseCall():
                    self.calls[name].append(effect)
                case ls.LeaseHeld():
                    self.runs.add(name)
                    self.said.append(f"{name} holds it")
                case ls.LeaseLost():
                    self.said.append(f"{name} loses it")
                    self.runs.discard(name)
                    self._handle(name, ls.DropLease(NAME))
                    if name in self.wanted:
                        self._handle(name, ls.WantLease(NAME))
                case _:
                    pass
        self.machines[name].check()
        self._check()

    def _turn(self) -> None:
        for name, machine in self.machines.items():
            while (due := machine.deadline()) is not None and due <= self.now:
                self._perform(name, machine.tick(self.now))

    def _pass(self, seconds: float) -> None:
        end = self.now + seconds
        while dues := [d for m in self.machines.values() if (d := m.deadline()) is not None]:
            if min(dues) > end:
                break
            self.now = max(self.now, min(dues))
            self._turn()
        self.now = end

    def _check(self) -> None:
        assert len(self.runs) < 2, "both hold the lease"
        for name in self.runs:
            assert self.store.owner == name, f"{name} holds it, the store has {self.store.owner}"
            assert self.now < self.store.ends, f"{name} holds a lease that has ended"

    def key(self) -> Hashable:
        rows = []
        for name, machine in self.machines.items():
            due = machine.deadline()
            calls = tuple(type(call).__name__ for call in self.calls[name])
            left = None if due is None else round(due - self.now, 1)
            rows.append((machine.state_of(NAME), calls, left))
        ends = max(0.0, round(self.store.ends - self.now, 1))
        return tuple(rows), self.store.owner, ends, frozenset(self.wanted), frozenset(self.runs)

    def rest(self) -> None:
        for _ in range(4 * int(TTL)):
            for name in "12":
                while self.calls[name]:
                    self.do(f"{name} done")
            self._pass(1.0)
            self._turn()
        if self.wanted:
            assert len(self.runs) == 1, "the lease is wanted, and no owner holds it"
        else:
            assert not self.runs
            assert self.store.owner == "" or self.now >= self.store.ends
        for name in set("12") - self.wanted:
            assert self.machines[name].names == [], f"{name} keeps a lease that it does not want"
        states = {machine.state_of(NAME) for machine in self.machines.values()}
        assert states <= {None, LeaseState.ASKING, LeaseState.HELD}, states

    def close(self) -> None: ...
