"""The shell of one owner's leases: it carries out what the machine says, against the store.

Calls of one turn are made together, and the stores put what waits into few round trips. An answer
that takes longer than a renewal may is none.

Time is that of the machine, and goes on while it sleeps, where the system has such a clock. But the
loop's timers stand still then, and after a pause the loop may handle what has arrived before it
looks at them. So whoever is about to let something happen under a lease calls `look` first.

Source: B.59, B.99, B.100; docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from shardbus.config.settings import ShardingSettings
from shardbus.errors import StoreError
from shardbus.sharding import leases as ls
from shardbus.sharding.events import Note
from shardbus.sharding.leases import Leases
from shardbus.store.protocol import StateStore
from shardbus.store.sqlite import machine_clock

END_S = 1.0
"""How long a node that ends waits for its leases to be given back; then they run out."""


class LeaseHolder(Protocol):
    """What runs under leases."""

    def on_held(self, name: str) -> None:
        """It may start."""

    def on_lost(self, name: str, left: float) -> None:
        """It must have stopped in so many seconds; `drop` when it has."""

    def on_free(self, name: str) -> None:
        """What `drop` gave up is given back."""

    def on_note(self, note: Note) -> None:
        """What logs and metrics want to know."""


class LeaseShell:
    """See the module. `clock` gives seconds."""

    def __init__(
        self, store: StateStore, owner: str, settings: ShardingSettings, tenant: LeaseHolder
    ) -> None:
        self.clock: Callable[[], float] = machine_clock
        self._store, self._owner, self._tenant = store, owner, tenant
        self._ttl = settings.lease_ttl
        self._machine = Leases(settings.lease_ttl, settings.lease_retry_interval)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def want(self, name: str) -> None:
        """Get it and keep it; `on_held` says when."""
        self._handle(ls.WantLease(name))

    def drop(self, name: str) -> None:
        """Give it back; `on_free` says when, and at once if it was never ours."""
        self._handle(ls.DropLease(name))

    def holds(self, name: str) -> bool:
        """Whether what it is for may go on."""
        return self._machine.state_of(name) is ls.LeaseState.HELD

    def look(self) -> None:
        """Give up what is over, though no timer has said so yet."""
        end = self._machine.first_end
        if end is not None and self.clock() >= end:
            self._tick()

    async def end(self) -> None:
        """Nothing runs under any of them any more: give all back, if that is quick."""
        for name in self._machine.names:
            self.drop(name)
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=END_S)
        self.close()

    def close(self) -> None:
        """Do nothing more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _handle(self, event: ls.Event) -> None:
        self._perform(self._machine.handle(event, self.clock()))

    def _tick(self) -> None:
        self._perform(self._machine.tick(self.clock()))

    def _perform(self, effects: list[ls.Effect]) -> None:
        for effect in effects:
            match effect:
                case ls.AcquireCall():
                    self._spawn(self._acquire(effect))
                case ls.RenewCall():
                    self._spawn(self._renew(effect))
                case ls.ReleaseCall():
                    self._spawn(self._release(effect))
                case ls.LeaseHeld(name):
                    self._tenant.on_held(name)
                case ls.LeaseLost(name, left):
                    self._tenant.on_lost(name, left)
                case ls.LeaseFree(name):
                    self._tenant.on_free(name)
                case Note():
                    self._tenant.on_note(effect)
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

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _acquire(self, asked: ls.AcquireCall) -> None:
        try:
            async with asyncio.timeout(self._ttl * ls.RENEW):
                lease = await self._store.acquire_lease(asked.name, self._owner, self._ttl)
        except (StoreError, TimeoutError):
            self._handle(ls.LeaseCallFailed(asked.name, asked.ticket))
        else:
            self._handle(ls.LeaseGranted(asked.name, asked.ticket, lease))

    async def _renew(self, asked: ls.RenewCall) -> None:
        name = asked.lease.name
        try:
            async with asyncio.timeout(self._ttl * ls.RENEW):
                kept = await self._store.renew_lease(asked.lease, self._ttl)
        except (StoreError, TimeoutError):
            self._handle(ls.LeaseCallFailed(name, asked.ticket))
        else:
            self._handle(ls.LeaseRenewed(name, asked.ticket, kept))

    async def _release(self, asked: ls.ReleaseCall) -> None:
        name = asked.lease.name
        try:
            async with asyncio.timeout(self._ttl * ls.RENEW):
                await self._store.release_lease(asked.lease)
        except (StoreError, TimeoutError):
            self._tenant.on_note(Note("lease_kept", f"{name}: it runs out by itself"))
        self._handle(ls.LeaseReturned(name, asked.ticket))
