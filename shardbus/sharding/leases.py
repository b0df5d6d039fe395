"""Leases: a shard or a coordinator runs here only while the store confirms that it is ours.

Leases are a second safety net below the coordinator. A shard or a coordinator does not start before
this node holds the lease of its name, and stops when the lease is lost. Another node that takes
itself for the home waits for the same lease.

                   not granted: again after `retry_interval`
                        ┌────┐
    FREE ──wanted──> ASKING ─┴─granted──> HELD ──dropped──> RETURNING ──returned──> FREE
     ^                  │                 │ ^ confirmed
     └─────dropped──────┘                 │ └─┘
                                          └──not confirmed, in time or by the store──> LOST
    FREE <──dropped─────────────────────────────────────────────────────────────────────┘

`TRANSITIONS` is the drawing as data, and `LeaseEntry.advance` is the only place that changes a
state. A lease that is FREE is forgotten.

- **Time counts from the request.** A lease lasts `ttl` seconds from when this node asked the store
  for it, or asked to renew it, by this node's clock. The store counts from when the request
  arrived, which is later. So the owner's deadline passes before another node can get the lease,
  however slow the answer was. An answer that comes after the lease has ended is ignored.
- **Time to stop.** A lease counts as lost a part of the `ttl` (`GUARD`) before its end: `left`
  seconds remain in which its owner can stop in order. If the store reports it as lost, 0 seconds
  remain.
- **All leases are renewed together**, each quarter of the `ttl`, so that three attempts fail before
  a lease is lost.
- **A lost lease is final.** Its owner stops, drops it, and may request it again: that is a new
  lease with a higher counter.

Not here: the owners of leases (`shells/shard_leases.py`, `shells/singleton.py`), and the store.

Source: B.59, B.99, B.100; docs/guarantees.md.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

import msgspec

from shardbus.sharding.events import Note
from shardbus.sharding.timers import Timers
from shardbus.store.protocol import Lease
from shardbus.transitions import following

RENEW = 0.25
"""The part of the ttl after which leases are renewed, and within which the store must answer."""

GUARD = 0.1
"""The part of the ttl at its end in which the owner of a lease stops."""


# Into the machine.


class WantLease(msgspec.Struct, frozen=True):
    """Get this lease and keep it. Answer: LeaseHeld, at some time, and perhaps LeaseLost later."""

    name: str


class DropLease(msgspec.Struct, frozen=True):
    """Give the lease up: nothing runs under it. Answer: LeaseFree."""

    name: str


class LeaseGranted(msgspec.Struct, frozen=True):
    """Answer to AcquireCall. `lease` is None if another owner holds it."""

    name: str
    ticket: int
    lease: Lease | None


class LeaseRenewed(msgspec.Struct, frozen=True):
    """Answer to RenewCall: whether this node still holds it."""

    name: str
    ticket: int
    kept: bool


class LeaseReturned(msgspec.Struct, frozen=True):
    """Answer to ReleaseCall, also if the store did not answer: then the lease ends by itself."""

    name: str
    ticket: int


class LeaseCallFailed(msgspec.Struct, frozen=True):
    """AcquireCall or RenewCall had no answer in time."""

    name: str
    ticket: int


Event = WantLease | DropLease | LeaseGranted | LeaseRenewed | LeaseReturned | LeaseCallFailed

# Out of the machine.


class AcquireCall(msgspec.Struct, frozen=True):
    """Ask the store for the lease. Answer: LeaseGranted or LeaseCallFailed."""

    name: str
    ticket: int


class RenewCall(msgspec.Struct, frozen=True):
    """Ask the store to renew the lease. Answer: LeaseRenewed or LeaseCallFailed."""

    lease: Lease
    ticket: int


class ReleaseCall(msgspec.Struct, frozen=True):
    """Release the lease in the store. Answer: LeaseReturned."""

    lease: Lease
    ticket: int


class LeaseHeld(msgspec.Struct, frozen=True):
    """Start the owner of the lease: this node holds it."""

    name: str


class LeaseLost(msgspec.Struct, frozen=True):
    """Stop the owner of the lease, which ends in `left` seconds; then drop the lease."""

    name: str
    left: float


class LeaseFree(msgspec.Struct, frozen=True):
    """Answer to DropLease: this node does not hold the lease any more."""

    name: str


Effect = AcquireCall | RenewCall | ReleaseCall | LeaseHeld | LeaseLost | LeaseFree | Note


class LeaseState(Enum):
    """The state of one lease."""

    FREE = "free"
    """This node neither has nor requests it."""
    ASKING = "asking"
    HELD = "held"
    LOST = "lost"
    RETURNING = "returning"


class LeaseTrigger(Enum):
    """The triggers of a lease's transitions."""

    WANTED = "wanted"
    DROPPED = "dropped"
    GRANTED = "granted"
    NOT_GRANTED = "not granted"
    """Another owner holds it, the store did not answer, or the answer came too late."""
    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    RETURNED = "returned"


TRANSITIONS: dict[tuple[LeaseState, LeaseTrigger], LeaseState] = {
    (LeaseState.FREE, LeaseTrigger.WANTED): LeaseState.ASKING,
    (LeaseState.ASKING, LeaseTrigger.NOT_GRANTED): LeaseState.ASKING,
    (LeaseState.ASKING, LeaseTrigger.GRANTED): LeaseState.HELD,
    (LeaseState.ASKING, LeaseTrigger.DROPPED): LeaseState.FREE,
    (LeaseState.HELD, LeaseTrigger.CONFIRMED): LeaseState.HELD,
    (LeaseState.HELD, LeaseTrigger.NOT_CONFIRMED): LeaseState.LOST,
    (LeaseState.HELD, LeaseTrigger.DROPPED): LeaseState.RETURNING,
    (LeaseState.LOST, LeaseTrigger.DROPPED): LeaseState.FREE,
    (LeaseState.RETURNING, LeaseTrigger.RETURNED): LeaseState.FREE,
}


class LeaseEntry(msgspec.Struct):
    """One lease. `ticket` is the number of the request under way, 0 for none."""

    state: LeaseState = LeaseState.FREE
    lease: Lease | None = None
    ticket: int = 0
    asked_at: float = 0.0
    ends: float = 0.0
    """HELD: when it ends, by this node's clock."""
    again: bool = False
    """LOST, RETURNING: it is needed again afterwards."""
    refused: bool = False

    def advance(self, trigger: LeaseTrigger) -> None:
        """Go to the state that follows.

        Raises:
            LocalProtocolError: the table has no such transition. Nothing changed.
        """
        self.state = following(TRANSITIONS, self.state, trigger, "lease")


class Leases:
    """The leases of one owner. `events` describes `handle`, `deadline` and `tick`.

    Args:
        ttl: seconds that a lease lasts.
        retry_interval: seconds between two requests for a lease that another owner holds.
    """

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
        """Return the state of the lease; None if it is not needed."""
        entry = self._entries.get(name)
        return entry.state if entry is not None else None

    @property
    def names(self) -> list[str]:
        """All leases that are needed, held, or being returned."""
        return list(self._entries)

    @property
    def first_end(self) -> float | None:
        """When the first of those held must be given up. A shell that wakes up later calls `tick`
        before anything else."""
        return self._ends.deadline()

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle one event; return its immediate effects."""
        self._turn_at = now
        match event:
            case WantLease(name):
                self._want(name, now)
            case DropLease(name):
                self._drop(name, now)
            case LeaseGranted(name, ticket, lease):
                self._on_granted(name, ticket, lease, now)
            case LeaseRenewed(name, ticket, kept):
                entry = self._answered(name, ticket, LeaseState.HELD)
                if entry is not None and kept:
                    entry.advance(LeaseTrigger.CONFIRMED)
                    self._prolong(name, entry)
                elif entry is not None:
                    self._lose(name, entry, 0.0, "the store reports it as lost")
            case LeaseReturned(name, ticket):
                entry = self._answered(name, ticket, LeaseState.RETURNING)
                if entry is not None:
                    entry.advance(LeaseTrigger.RETURNED)
                    self._free(name, now)
            case LeaseCallFailed(name, ticket):
                entry = self._answered(name, ticket, LeaseState.ASKING)
                if entry is not None:
                    self._ask_again(name, entry, now + self._retry)
                else:
                    self._answered(name, ticket, LeaseState.HELD)
            case _:
                assert_never(event)
        return self._take_effects()

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        dues = (self._turn_at, self._asks.deadline(), self._ends.deadline(), self._renew_at)
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: float) -> list[Effect]:
        """Give up the leases that end, request wanted ones, renew the others."""
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
        return self._take_effects()

    def check(self) -> None:
        """Check that every lease is requested, has an end, or is being returned; for tests."""
        for name, entry in self._entries.items():
            assert (name in self._ends) == (entry.state is LeaseState.HELD), name
            assert entry.state is not LeaseState.FREE, name
            assert (entry.lease is None) == (entry.state is LeaseState.ASKING), name
            if entry.state is LeaseState.ASKING:
                assert (name in self._asks) == (not entry.ticket), name
            else:
                assert name not in self._asks, name
        assert not self._ends or self._renew_at is not None

    def _want(self, name: str, now: float) -> None:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = LeaseEntry()
            entry.advance(LeaseTrigger.WANTED)
            self._asks.set(name, now)
        elif entry.state in (LeaseState.LOST, LeaseState.RETURNING):
            entry.again = True

    def _drop(self, name: str, now: float) -> None:
        entry = self._entries.get(name)
        if entry is None:
            self._free(name, now)
            return
        if entry.state is LeaseState.RETURNING:
            entry.again = False
            return
        entry.advance(LeaseTrigger.DROPPED)
        if entry.lease is None:
            self._free(name, now)
        elif entry.state is LeaseState.FREE:
            self._out.append(ReleaseCall(entry.lease, 0))
            self._free(name, now)
        else:
            self._ends.cancel(name)
            self._out.append(ReleaseCall(entry.lease, self._ask(entry, now)))

    def _on_granted(self, name: str, ticket: int, lease: Lease | None, now: float) -> None:
        if name not in self._entries and lease is not None:
            self._out.append(ReleaseCall(lease, 0))  # dropped before the answer came
        entry = self._answered(name, ticket, LeaseState.ASKING)
        if entry is None:
            return
        if lease is None:
            self._ask_again(name, entry, now + self._retry)
            if not entry.refused:
                self._out.append(Note("lease_refused", f"{name}: another owner holds it"))
            entry.refused = True
        elif now >= entry.asked_at + self._ttl * (1 - GUARD):
            self._ask_again(name, entry, now)
        else:
            entry.advance(LeaseTrigger.GRANTED)
            entry.lease = lease
            self._prolong(name, entry)
            if self._renew_at is None:
                self._renew_at = now + self._ttl * RENEW
            self._out.append(LeaseHeld(name))

    def _ask_again(self, name: str, entry: LeaseEntry, at: float) -> None:
        entry.advance(LeaseTrigger.NOT_GRANTED)
        self._asks.set(name, at)

    def _prolong(self, name: str, entry: LeaseEntry) -> None:
        entry.ends = entry.asked_at + self._ttl
        self._ends.set(name, entry.ends - self._ttl * GUARD)

    def _lose(self, name: str, entry: LeaseEntry, left: float, why: str) -> None:
        self._ends.cancel(name)
        entry.advance(LeaseTrigger.NOT_CONFIRMED)
        entry.ticket = 0
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

    def _answered(self, name: str, ticket: int, state: LeaseState) -> LeaseEntry | None:
        """Return the lease if the ticket belongs to its request under way, in that state."""
        entry = self._entries.get(name)
        if entry is None or entry.ticket != ticket or entry.state is not state:
            return None
        entry.ticket = 0
        return entry

    def _take_effects(self) -> list[Effect]:
        effects, self._out = self._out, []
        return effects
