"""Leases: what runs here only while the store says that it is ours.

A second net below the coordinator. A shard, or a coordinator, does not start before this node holds
the lease of its name, and stops when the lease is lost. Whoever else might believe to be its home
waits for the same lease.

                         refused, no answer: again after `retry_interval`
                              ┌────┐
    (none) ──Want──> ASKING ──┴────┴──granted──> HELD ──Drop──> RETURNING ──Returned──> (none): Free
       ^                │                         │ ^ renewed
       └───Drop: Free───┘                         │ └─┘
                                                  └──refused, or not confirmed in time: Lost──> LOST
       (none): Free  <──────────────────────────────────────────────────────────────Drop─────────┘

- **Time is counted from the question.** A lease lasts `ttl` from when the store was asked for it,
  or asked to renew it, by this node's clock; the store counts from when it heard that, which is
  later. So the owner knows the end before anybody else can get it, however slow the answer was. An
  answer that comes later than the lease lasts is none.
- **Room to stop.** It is lost a part of the `ttl` (`GUARD`) before that end: `left` seconds in
  which what runs under it may end in order. If the store says that it is lost, nothing is left.
- **All leases are renewed together**, each quarter of the `ttl`, so that three attempts fail before
  one is lost.
- **Lost is final.** Who lost it stops, drops it, and may want it again: a new lease with a higher
  counter.

Not here: what runs under a lease (`runtime/tenancy.py`, `runtime/succession.py`), and the store.

Source: B.59, B.99, B.100; T.SU12, T.G4; docs/guarantees.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from shardbus.sharding.events import Note
from shardbus.sharding.timers import Timers
from shardbus.store.protocol import Lease

RENEW = 0.25
"""The part of the ttl after which leases are renewed, and within which the store has to answer."""

GUARD = 0.1
"""The part of the ttl at its end in which what runs under a lease stops."""


# Into the machine.


@dataclass(frozen=True, slots=True)
class WantLease:
    """Get this lease and keep it. Answer: Held, at some time, and perhaps Lost later."""

    name: str


@dataclass(frozen=True, slots=True)
class DropLease:
    """It is not wanted any more, and nothing runs under it. Answer: Free."""

    name: str


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """Answer to Acquire; without a lease, another one holds it."""

    name: str
    ticket: int
    lease: Lease | None


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """Answer to Renew: whether it is still ours."""

    name: str
    ticket: int
    kept: bool


@dataclass(frozen=True, slots=True)
class LeaseReturned:
    """Answer to Release, also if the store did not answer: then it runs out by itself."""

    name: str
    ticket: int


@dataclass(frozen=True, slots=True)
class LeaseCallFailed:
    """No answer to Acquire or Renew."""

    name: str
    ticket: int


Event = WantLease | DropLease | LeaseGranted | LeaseRenewed | LeaseReturned | LeaseCallFailed

# Out of the machine.


@dataclass(frozen=True, slots=True)
class AcquireCall:
    """Ask the store for it. Answer: Granted or Failed."""

    name: str
    ticket: int


@dataclass(frozen=True, slots=True)
class RenewCall:
    """Ask the store to prolong it. Answer: Renewed or Failed."""

    lease: Lease
    ticket: int


@dataclass(frozen=True, slots=True)
class ReleaseCall:
    """Give it back. Answer: Returned."""

    lease: Lease
    ticket: int


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """It is ours: start."""

    name: str


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """It is not ours any more, or will not be in `left` seconds: stop, then Drop."""

    name: str
    left: float


@dataclass(frozen=True, slots=True)
class LeaseFree:
    """Answer to Drop: whoever wants it can have it, as far as this node is concerned."""

    name: str


Effect = AcquireCall | RenewCall | ReleaseCall | LeaseHeld | LeaseLost | LeaseFree | Note


class LeaseState(Enum):
    """Where one lease stands."""

    ASKING = "asking"
    HELD = "held"
    LOST = "lost"
    RETURNING = "returning"


@dataclass(slots=True)
class LeaseEntry:
    """One lease. `ticket` is that of the question under way, 0 for none."""

    state: LeaseState = LeaseState.ASKING
    lease: Lease | None = None
    ticket: int = 0
    asked_at: float = 0.0
    ends: float = 0.0
    """HELD: until when it is surely ours."""
    again: bool = False
    """LOST, RETURNING: wanted anew."""
    refused: bool = False


class Leases:
    """The leases of one owner. `handle`, `deadline`, `tick`, `check`; times in seconds."""

    def __init__(self, ttl: float, retry_interval: float) -> None:
        self._ttl, self._retry = ttl, retry_interval
        self._entries: dict[str, LeaseEntry] = {}
        self._tickets = 0
        self._asks: Timers[str] = Timers()
        self._ends: Timers[str] = Timers()
        self._renew_at: float | None = None
        self._turn_at: float | None = None
        self._out: list[Effect] = []

    def state_of(self, name: str) -> LeaseState | None:
        """Where it stands; None if nobody wants it."""
        entry = self._entries.get(name)
        return entry.state if entry is not None else None

    @property
    def names(self) -> list[str]:
        """All that are wanted, held, or on their way back."""
        return list(self._entries)

    @property
    def first_end(self) -> float | None:
        """When the first of those held must be given up. Whoever wakes up later than that calls
        `tick` before anything else."""
        return self._ends.deadline()

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event."""
        self._turn_at = now
        match event:
            case WantLease(name):
                self._want(name, now)
            case DropLease(name):
                self._drop(name, now)
            case LeaseGranted(name, ticket, lease):
                self._on_granted(name, ticket, lease, now)
            case LeaseRenewed(name, ticket, kept):
                entry = self._asked(name, ticket, LeaseState.HELD)
                if entry is not None and kept:
                    self._prolong(name, entry)
                elif entry is not None:
                    self._lose(name, entry, 0.0, "the store says so")
            case LeaseReturned(name, ticket):
                if self._asked(name, ticket, LeaseState.RETURNING) is not None:
                    self._free(name, now)
            case LeaseCallFailed(name, ticket):
                if self._asked(name, ticket, LeaseState.ASKING) is not None:
                    self._asks.set(name, now + self._retry)
                else:
                    self._asked(name, ticket, LeaseState.HELD)
            case _:
                assert_never(event)
        return self._take()

    def deadline(self) -> float | None:
        """When `tick` is due."""
        dues = (self._turn_at, self._asks.deadline(), self._ends.deadline(), self._renew_at)
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: float) -> list[Effect]:
        """Give up what is over, ask for what is wanted, renew all the others."""
        self._turn_at = None
        for name in self._ends.due(now):
            entry = self._entries[name]
            self._lose(name, entry, max(0.0, entry.ends - now), "the store did not confirm it")
        for name in self._asks.due(now):
            self._out.append(AcquireCall(name, self._ask(self._entries[name], now)))
        if self._renew_at is not None and now >= self._renew_at:
            self._renew_at = now + self._ttl * RENEW if self._ends else None
            for entry in self._entries.values():
                if entry.state is LeaseState.HELD and entry.lease is not None and not entry.ticket:
                    self._out.append(RenewCall(entry.lease, self._ask(entry, now)))
        return self._take()

    def check(self) -> None:
        """Audit: every lease is asked for, has an end, or is waited for."""
        for name, entry in self._entries.items():
            assert (name in self._ends) == (entry.state is LeaseState.HELD), name
            assert (entry.lease is None) == (entry.state is LeaseState.ASKING), name
            if entry.state is LeaseState.ASKING:
                assert (name in self._asks) == (not entry.ticket), name
            else:
                assert name not in self._asks, name
        assert not self._ends or self._renew_at is not None

    def _want(self, name: str, now: float) -> None:
        entry = self._entries.get(name)
        if entry is None:
            self._entries[name] = LeaseEntry()
            self._asks.set(name, now)
        elif entry.state in (LeaseState.LOST, LeaseState.RETURNING):
            entry.again = True

    def _drop(self, name: str, now: float) -> None:
        entry = self._entries.get(name)
        if entry is None or entry.lease is None:
            self._free(name, now)
        elif entry.state is LeaseState.LOST:
            self._out.append(ReleaseCall(entry.lease, 0))
            self._free(name, now)
        elif entry.state is LeaseState.HELD:
            self._ends.cancel(name)
            entry.state = LeaseState.RETURNING
            self._out.append(ReleaseCall(entry.lease, self._ask(entry, now)))
        else:
            entry.again = False

    def _on_granted(self, name: str, ticket: int, lease: Lease | None, now: float) -> None:
        if name not in self._entries and lease is not None:
            self._out.append(ReleaseCall(lease, 0))  # it was given up before the answer came
        entry = self._asked(name, ticket, LeaseState.ASKING)
        if entry is None:
            return
        if lease is None:
            self._asks.set(name, now + self._retry)
            if not entry.refused:
                self._out.append(Note("lease_refused", f"{name}: another one holds it"))
            entry.refused = True
        elif now >= entry.asked_at + self._ttl * (1 - GUARD):
            self._asks.set(name, now)
        else:
            entry.state, entry.lease = LeaseState.HELD, lease
            self._prolong(name, entry)
            if self._renew_at is None:
                self._renew_at = now + self._ttl * RENEW
            self._out.append(LeaseHeld(name))

    def _prolong(self, name: str, entry: LeaseEntry) -> None:
        entry.ends = entry.asked_at + self._ttl
        self._ends.set(name, entry.ends - self._ttl * GUARD)

    def _lose(self, name: str, entry: LeaseEntry, left: float, why: str) -> None:
        self._ends.cancel(name)
        entry.state, entry.ticket = LeaseState.LOST, 0
        self._out += [Note("lease_lost", f"{name}: {why}"), LeaseLost(name, left)]

    def _free(self, name: str, now: float) -> None:
        entry = self._entries.pop(name, None)
        self._asks.cancel(name)
        self._out.append(LeaseFree(name))
        if entry is not None and entry.again:
            self._want(name, now)

    def _ask(self, entry: LeaseEntry, now: float) -> int:
        self._tickets += 1
        entry.ticket, entry.asked_at = self._tickets, now
        return self._tickets

    def _asked(self, name: str, ticket: int, state: LeaseState) -> LeaseEntry | None:
        """The lease, if this answers the question under way for it in that state."""
        entry = self._entries.get(name)
        if entry is None or entry.ticket != ticket or entry.state is not state:
            return None
        entry.ticket = 0
        return entry

    def _take(self) -> list[Effect]:
        effects, self._out = self._out, []
        return effects
