"""The shell of a coordinator: it carries out what the machine says, against the store and the
links.

One per entity type, on the oldest node with the type's role. When another node becomes the oldest,
this one just stops: whoever takes over claims a higher epoch, and the store and the regions refuse
the lower one.

Source: S0.18, S0.32, S0.33, S2.60, S2.61; B.97; C.35; docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from shardbus.errors import ConfigError, StaleEpoch, StoreError
from shardbus.ids import NodeId
from shardbus.sharding import events
from shardbus.sharding.coordinator import Coordinator
from shardbus.store.protocol import StateStore
from shardbus.transport.clockwork import Clockwork

log = logging.getLogger("shardbus.coordinator")

RESTART_S = 1.0


class Office(Protocol):
    """What a coordinator needs from its node."""

    def send(self, to: NodeId, entity_type: str, message: events.Message) -> None: ...
    def epoch_claimed(self, entity_type: str, epoch: int) -> None: ...
    def note(self, entity_type: str, note: events.Note) -> None: ...
    def wake(self, entity_type: str, shards: list[str]) -> None: ...


class Coordination:
    """See the module. `make` builds a fresh machine; `start` and `stop` as often as the oldest node
    changes."""

    def __init__(
        self,
        entity_type: str,
        make: Callable[[], Coordinator],
        store: StateStore,
        office: Office,
        *,
        remember: bool = False,
    ) -> None:
        self.entity_type = entity_type
        self._remember = remember
        self.coordinator: Coordinator | None = None
        self._make, self._store, self._office = make, store, office
        self._tasks: set[asyncio.Task[None]] = set()
        self._members: events.Members | None = None
        self._epoch_floor = 0
        self._restart: asyncio.TimerHandle | None = None
        self._clockwork: Clockwork | None = None

    def update(self, rules: bool, members: events.Members, epoch_floor: int) -> None:
        """The picture of the cluster changed: rule or not, over whom, and above which epoch."""
        self._members, self._epoch_floor = members, max(epoch_floor, self._epoch_floor)
        if not rules:
            self.stop()
        elif self.coordinator is None and self._restart is None:
            self._start()
        elif self.coordinator is not None:
            self.handle(members)

    def _start(self) -> None:
        self._restart = None
        assert self._members is not None
        self.coordinator = coordinator = self._make()
        self._clockwork = Clockwork(coordinator.deadline, self._tick)
        self.handle(self._members)
        self.handle(events.Start(self._epoch_floor))

    def stop(self) -> None:
        """Rule no more."""
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None
        if self._clockwork is not None:
            self._clockwork.stop()
        self.coordinator = None

    def received(self, sender: NodeId, message: events.Message) -> None:
        """A message for the coordinator; without one here, the sender will find the right node."""
        self.handle(events.Received(sender, message))

    def handle(self, event: events.CoordinatorEvent) -> None:
        """Give the machine an event and do what it says."""
        if self.coordinator is not None:
            now = asyncio.get_running_loop().time()
            self._perform(self.coordinator, self.coordinator.handle(event, now))

    def _tick(self) -> None:
        if self.coordinator is not None:
            now = asyncio.get_running_loop().time()
            self._perform(self.coordinator, self.coordinator.tick(now))

    def _perform(self, machine: Coordinator, effects: list[events.CoordinatorEffect]) -> None:
        for effect in effects:
            match effect:
                case events.Send(to=to, message=message):
                    self._office.send(to, self.entity_type, message)
                case events.Persist():
                    self._spawn(self._persist(machine, effect))
                case events.LoadTable():
                    self._spawn(self._load(machine))
                case events.ClaimEpoch(epoch=epoch, layout=layout):
                    self._spawn(self._claim(machine, epoch, layout))
                case events.Stop(reason=reason):
                    log.warning("coordinator of %r is over: %s", self.entity_type, reason)
                    self.stop()
                    loop = asyncio.get_running_loop()
                    self._restart = loop.call_later(RESTART_S, self._start)
                case events.Note():
                    self._office.note(self.entity_type, effect)
        if self._clockwork is not None and self.coordinator is machine:
            self._clockwork.arm()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell(self, machine: Coordinator, event: events.CoordinatorEvent) -> None:
        if self.coordinator is machine:
            self.handle(event)

    async def _load(self, machine: Coordinator) -> None:
        try:
            table = await self._store.load_table(self.entity_type)
        except StoreError as e:
            self._tell(machine, events.StoreFailed(str(e)))
        else:
            self._tell(machine, events.TableLoaded(table))

    async def _claim(self, machine: Coordinator, epoch: int, layout: str) -> None:
        try:
            table = await self._store.claim_epoch(self.entity_type, epoch, layout)
        except StaleEpoch as e:
            self._epoch_floor = max(self._epoch_floor, e.stored)
            self._tell(machine, events.EpochRefused(e.stored))
        except (StoreError, ConfigError) as e:
            log.error("the table of %r cannot be claimed: %s", self.entity_type, e)
            self._tell(machine, events.StoreFailed(str(e)))
        else:
            self._epoch_floor = max(self._epoch_floor, epoch)
            self._office.epoch_claimed(self.entity_type, epoch)
            self._tell(machine, events.EpochClaimed(table))
            if self._remember:
                await self._wake(machine)

    async def _wake(self, machine: Coordinator) -> None:
        """Shards with remembered entities run though nobody sends to them: ask for their homes, as
        the first message for them would."""
        while self.coordinator is machine:
            try:
                shards = await self._store.remembered_shards(self.entity_type)
            except StoreError as e:
                log.warning("remembered shards of %r: %s", self.entity_type, e)
                await asyncio.sleep(RESTART_S)
            else:
                self._office.wake(self.entity_type, shards)
                return

    async def _persist(self, machine: Coordinator, write: events.Persist) -> None:
        try:
            await self._store.write_homes(self.entity_type, write.epoch, write.homes, write.op_id)
        except StaleEpoch as e:
            self._epoch_floor = max(self._epoch_floor, e.stored)
            self._tell(machine, events.PersistFailed(write.op_id, True))
        except StoreError as e:
            log.warning("the table of %r was not written: %s", self.entity_type, e)
            self._tell(machine, events.PersistFailed(write.op_id, False))
        else:
            self._tell(machine, events.Persisted(write.op_id))
