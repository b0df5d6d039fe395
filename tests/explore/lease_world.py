"""The world of one lease: two owners, and a store that answers when the world says so.

    1 acquires, 1 drops the first owner requests the lease, or gives it up; also 2
    1 served               the store does the first owner's oldest call
    1 answered, 1 unheard  the oldest answer arrives; its call has no answer, served or not
    1 stops                the work under a lost lease has stopped, before its time is over
    1 sleeps, 1 wakes      its process stands still; events meanwhile wait
    second, ttl            one second passes; the whole ttl

Laws: two owners that are awake never work under the lease at once; an owner works only while the
store would confirm the lease. At rest a requested lease is held by one owner, and a lease that no
owner requests is free in the store.
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


class LeaseOwner:
    """One owner: its machine, its calls with their answers, and the work under the lease."""

    def __init__(self) -> None:
        self.machine = Leases(TTL, RETRY)
        self.calls: list[list[Any]] = []
        """Each with its answer, None while the store has not served it."""
        self.wants_lease = self.works = self.asleep = False
        self.stop_at: float | None = None
        self.late: list[ls.Event] = []


class LeaseWorld:
    """Two owners and the store."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.now, self.store = 100.0, LeaseStore()
        self.owners = {name: LeaseOwner() for name in "12"}
        self.doubt = False
        """A call had no answer: the store keeps a lease until it ends."""

    def events(self) -> Iterable[str]:
        verbs = ["second", "ttl"]
        for name, owner in self.owners.items():
            if owner.asleep:
                verbs.append(f"{name} wakes")
            else:
                verbs += [f"{name} {'drops' if owner.wants_lease else 'wants'}", f"{name} sleeps"]
            if any(answer is None for _, answer in owner.calls):
                verbs.append(f"{name} served")
            if owner.calls:
                verbs.append(f"{name} unheard")
                if owner.calls[0][1] is not None:
                    verbs.append(f"{name} answered")
            if owner.stop_at is not None and not owner.asleep:
                verbs.append(f"{name} stops")
        return verbs

    def do(self, event: str) -> None:
        match event.split():
            case ["second"]:
                self._pass(1.0)
            case ["ttl"]:
                self._pass(TTL)
            case [name, verb]:
                self._do(name, self.owners[name], verb)
        self._turn()

    def _do(self, name: str, owner: LeaseOwner, verb: str) -> None:
        match verb:
            case "wants":
                owner.wants_lease = True
                self._handle(name, ls.WantLease(NAME))
            case "drops":
                owner.wants_lease = owner.works = False
                owner.stop_at = None
                self._handle(name, ls.DropLease(NAME))
            case "served":
                row = next(row for row in owner.calls if row[1] is None)
                row[1] = self.store.do(name, row[0], self.now)
            case "answered":
                self._handle(name, owner.calls.pop(0)[1])
            case "unheard":
                self.doubt = True
                self._handle(name, unheard(owner.calls.pop(0)[0]))
            case "stops":
                self._stop(name, owner)
            case "sleeps":
                owner.asleep = True
            case "wakes":
                self._wake(name, owner)

    def _wake(self, name: str, owner: LeaseOwner) -> None:
        """Go on: a shell looks at its leases first."""
        owner.asleep = False
        end = owner.machine.first_end
        if end is not None and self.now >= end:
            self._perform(name, owner.machine.tick(self.now))
        if owner.stop_at is not None and self.now >= owner.stop_at:
            self._stop(name, owner)
        late, owner.late = owner.late, []
        for event in late:
            self._handle(name, event)

    def _stop(self, name: str, owner: LeaseOwner) -> None:
        owner.works, owner.stop_at = False, None
        self._handle(name, ls.DropLease(NAME))
        if owner.wants_lease:
            self._handle(name, ls.WantLease(NAME))

    def _handle(self, name: str, event: ls.Event) -> None:
        owner = self.owners[name]
        if owner.asleep:
            owner.late.append(event)
        else:
            self._perform(name, owner.machine.handle(event, self.now))

    def _perform(self, name: str, effects: list[ls.Effect]) -> None:
        owner = self.owners[name]
        for effect in effects:
            match effect:
                case ls.AcquireCall() | ls.RenewCall() | ls.ReleaseCall():
                    owner.calls.append([effect, None])
                case ls.LeaseHeld():
                    owner.works = True
                    self.said.append(f"{name} holds it")
                case ls.LeaseLost(_, left):
                    self.said.append(f"{name} loses it, {left:g} s are left")
                    owner.stop_at = self.now + left
                case _:
                    pass
        owner.machine.check()
        if owner.stop_at is not None and owner.stop_at <= self.now and not owner.asleep:
            self._stop(name, owner)
        self._check()

    def _dues(self) -> list[float]:
        awake = [owner for owner in self.owners.values() if not owner.asleep]
        dues = [due for owner in awake for due in (owner.machine.deadline(), owner.stop_at)]
        return [due for due in dues if due is not None]

    def _turn(self) -> None:
        for name, owner in self.owners.items():
            while not owner.asleep:
                due = owner.machine.deadline()
                if owner.stop_at is not None and owner.stop_at <= self.now:
                    self._stop(name, owner)
                elif due is not None and due <= self.now:
                    self._perform(name, owner.machine.tick(self.now))
                else:
                    break

    def _pass(self, seconds: float) -> None:
        end = self.now + seconds
        while (dues := self._dues()) and min(dues) <= end:
            self.now = max(self.now, min(dues))
            self._turn()
        self.now = end

    def _check(self) -> None:
        working = [n for n, owner in self.owners.items() if owner.works and not owner.asleep]
        assert len(working) < 2, "both work under the lease"
        for name in working:
            assert self.store.owner == name, f"{name} works, the store has {self.store.owner!r}"
            assert self.now <= self.store.ends, f"{name} works under a lease that has ended"

    def key(self) -> Hashable:
        rows = []
        for owner in self.owners.values():
            due, end = owner.machine.deadline(), owner.machine.first_end
            calls = tuple((type(call).__name__, type(got).__name__) for call, got in owner.calls)
            times = tuple(
                None if at is None else round(max(at - self.now, -1.0), 1)
                for at in (due, end, owner.stop_at)
            )
            state = owner.machine.state_of(NAME)
            flags = owner.wants_lease, owner.works, owner.asleep, len(owner.late)
            rows.append((state, calls, times, flags))
        return (
            tuple(rows),
            self.doubt,
            self.store.owner,
            round(max(self.store.ends - self.now, 0.0), 1),
        )

    def rest(self) -> None:
        for name, owner in self.owners.items():
            if owner.asleep:
                self.do(f"{name} wakes")
        self._serve()
        if not self.doubt and not any(owner.wants_lease for owner in self.owners.values()):
            assert self.store.owner == "", f"{self.store.owner} does not release the lease"
        for _ in range(4 * int(TTL)):
            self._pass(1.0)
            self._turn()
            self._serve()
        working = [owner for owner in self.owners.values() if owner.works]
        acquiring = [owner for owner in self.owners.values() if owner.wants_lease]
        assert len(working) == bool(acquiring), (
            f"{len(acquiring)} want the lease, {len(working)} work"
        )
        assert acquiring or self.store.owner == "" or self.now >= self.store.ends
        for owner in self.owners.values():
            if not owner.wants_lease:
                assert owner.machine.names == [], "a lease is kept that its owner does not want"
            state = owner.machine.state_of(NAME)
            assert state in (None, LeaseState.ASKING, LeaseState.HELD), state

    def _serve(self) -> None:
        for name, owner in self.owners.items():
            while owner.calls:
                if owner.calls[0][1] is None:
                    self.do(f"{name} served")
                self.do(f"{name} answered")

    def close(self) -> None: ...


def unheard(call: ls.Effect) -> ls.Event:
    """Return an owner's event for a call without an answer."""
    match call:
        case ls.AcquireCall(name, ticket):
            return ls.LeaseCallFailed(name, ticket)
        case ls.RenewCall(lease, ticket):
            return ls.LeaseCallFailed(lease.name, ticket)
        case ls.ReleaseCall(lease, ticket):
            return ls.LeaseReturned(lease.name, ticket)
    raise AssertionError(f"no call: {call}")
