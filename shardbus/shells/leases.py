"""The shell of one owner's leases: runs the lease machine against the store.

Calls of one turn start together, and stores combine waiting calls into few round trips. A call that
takes longer than a renewal may has failed.

Time is the machine's clock, which goes on while the machine sleeps, if the system has such a clock.
The loop's timers do not, and after a pause the loop may handle messages before timers. So code that
is about to act under a lease calls `check` first.

Source: docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from shardbus.config.settings import ShardingSettings
from shardbus.errors import StoreError
from shardbus.guarded_log import GuardedLog
from shardbus.sharding import leases as ls
from shardbus.sharding.events import Note
from shardbus.sharding.leases import Leases
from shardbus.store.clock import machine_clock
from shardbus.store.protocol import StateStore
from shardbus.task_set import TaskSet

T = TypeVar("T")

END_S = 1.0
"""Seconds for the release of leases when a node ends; after that they expire."""

log = GuardedLog("shardbus.leases")


class LeaseHolder(Protocol):
    """The owner of work under leases."""

    def on_held(self, name: str) -> None:
        """Start: the lease is held."""

    def on_lost(self, name: str, left: float) -> None:
        """Stop within `left` seconds, and call `drop` then."""

    def on_free(self, name: str) -> None:
        """Continue after `drop`: the lease is released."""

    def on_note(self, note: Note) -> None:
        """Count and log a note."""


class LeaseShell:
    """Acquires, renews and releases leases for one holder. `clock` gives seconds."""

    def __init__(
        self, store: StateStore, owner: str, settings: ShardingSettings, holder: LeaseHolder
    ) -> None:
        self.clock: Callable[[], float] = machine_clock
        self._store, self._owner, self._holder = store, owner, holder
        self._ttl = settings.lease_ttl
        self._machine = Leases(settings.lease_ttl, settings.lease_retry_interval)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        self._closed = False
        self._tasks = TaskSet()

    def want(self, name: str) -> None:
        """Acquire the lease and keep it; `on_held` reports when it is held."""
        self._handle(ls.WantLease(name))

    def drop(self, name: str) -> None:
        """Release the lease; `on_free` reports when, at once if it was never held."""
        self._handle(ls.DropLease(name))

    def holds(self, name: str) -> bool:
        """True if the lease is held."""
        return self._machine.state_of(name) is ls.LeaseState.HELD

    def check(self) -> None:
        """Give up leases that have expired, though their timer has not fired yet."""
        end = self._machine.first_end
        if end is not None and self.clock() >= end:
            self._tick()

    async def end(self) -> None:
        """Release every lease, within `END_S`; nothing runs under them any more."""
        for name in self._machine.names:
            self.drop(name)
        await self._tasks.wait(END_S)
        self.close()

    def close(self) -> None:
        """Stop timers and calls."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel()

    def _handle(self, event: ls.Event) -> None:
        self._perform(self._machine.handle(event, self.clock()))

    def _tick(self) -> None:
        self._perform(self._machine.tick(self.clock()))

    def _perform(self, effects: list[ls.Effect]) -> None:
        for effect in effects:
            match effect:
                case ls.AcquireCall():
                    self._tasks.spawn(self._acquire(effect))
                case ls.RenewCall():
                    self._tasks.spawn(self._renew(effect))
                case ls.ReleaseCall():
                    self._tasks.spawn(self._release(effect))
                case ls.LeaseHeld(name):
                    self._holder.on_held(name)
                case ls.LeaseLost(name, left):
                    self._holder.on_lost(name, left)
                case ls.LeaseFree(name):
                    self._holder.on_free(name)
                case Note():
                    self._holder.on_note(effect)
        self._arm()

    def _arm(self) -> None:
        due = self._machine.deadline()
        if due == self._due and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._timer = due, None
        if due is not None and not self._closed:
            wait = max(0.0, due - self.clock())
            self._timer = self._loop.call_later(wait, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._tick()

    async def _acquire(self, call: ls.AcquireCall) -> None:
        try:
            lease = await self._in_time(
                self._store.acquire_lease(call.name, self._owner, self._ttl)
            )
        except (StoreError, TimeoutError):
            self._handle(ls.LeaseCallFailed(call.name, call.ticket))
        except Exception:
            log.exception("the lease %r was not acquired", call.name)
            self._handle(ls.LeaseCallFailed(call.name, call.ticket))
        else:
            self._handle(ls.LeaseGranted(call.name, call.ticket, lease))

    async def _renew(self, call: ls.RenewCall) -> None:
        name = call.lease.name
        try:
            kept = await self._in_time(self._store.renew_lease(call.lease, self._ttl))
        except (StoreError, TimeoutError):
            self._handle(ls.LeaseCallFailed(name, call.ticket))
        except Exception:
            log.exception("the lease %r was not renewed", name)
            self._handle(ls.LeaseCallFailed(name, call.ticket))
        else:
            self._handle(ls.LeaseRenewed(name, call.ticket, kept))

    async def _release(self, call: ls.ReleaseCall) -> None:
        name = call.lease.name
        try:
            await self._in_time(self._store.release_lease(call.lease))
        except (StoreError, TimeoutError):
            self._holder.on_note(Note("lease_kept", f"{name}: it expires by itself"))
        except Exception:
            log.exception("the lease %r was not released", name)
        self._handle(ls.LeaseReturned(name, call.ticket))

    async def _in_time(self, call: Awaitable[T]) -> T:
        async with asyncio.timeout(self._ttl * ls.RENEW):
            return await call
