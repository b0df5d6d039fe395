"""The shell of a coordinator: it carries out what the machine says, against the store and the
links.

One per entity type on every node; a machine runs in it while `runtime/succession.py` wants one.

    prepare   a machine that has the table loaded and keeps what is asked
    begin     it rules, or a fresh one does
    retire    it finishes the write under way; `over` says when
    stop      it is dropped, whatever it does

Regions may turn to this node before it knows that it is next. What they ask is kept for a moment.

What people tell the coordinator (`directions`) is read with the claim and written before it counts.

A store that says nothing for `updating_state_timeout` has failed, whatever it promises of itself.

Source: S0.18, S0.32, S0.33, S2.60, S2.61, S2.76; B.97; C.35; docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from shardbus.errors import (
    ConfigError,
    Refused,
    RequestError,
    StaleEpoch,
    StaleFence,
    StoreError,
    StoreUnavailable,
)
from shardbus.ids import NodeId
from shardbus.sharding import events, messages
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.sharding.overrides import Overrides
from shardbus.sharding.table import EPOCH_SHIFT
from shardbus.shells.overrides import OverridesStore
from shardbus.store.protocol import StateStore
from shardbus.transport.machine_timer import MachineTimer

log = logging.getLogger("shardbus.coordinator")

T = TypeVar("T")

RETRY_S = 1.0

FORMER_PAGE = 200

EARLY_MAX = 10_000
"""Messages kept for a coordinator that is not there yet."""

DROPPED_SHOWN = 3
"""Of the stored rows that cannot be true, so many are named in the log."""

EARLY_S = 2.0
"""For how long; then regions repeat what still matters."""


class CoordinatorServices(Protocol):
    """What a coordinator needs from its node."""

    def send(self, to: NodeId, entity_type: str, message: events.Message) -> None: ...
    def epoch_claimed(self, entity_type: str, epoch: int) -> None: ...
    def over(self, entity_type: str) -> None: ...
    def note(self, entity_type: str, note: events.Note) -> None: ...
    def wake(self, entity_type: str, shards: list[str]) -> list[str]: ...
    async def start_entity(self, entity_type: str, entity_id: str) -> None: ...


class CoordinatorShell:
    """See the module. `make` builds a fresh machine; `patience` is how long the store may take;
    `look` stops this if it may not rule any more, and is called before anything is handled."""

    def __init__(
        self,
        entity_type: str,
        make: Callable[[], Coordinator],
        store: StateStore,
        office: CoordinatorServices,
        directing: OverridesStore,
        *,
        patience: float,
        remember: bool = False,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self.entity_type = entity_type
        self._remember, self._patience, self._look = remember, patience, look
        self.coordinator: Coordinator | None = None
        self.overrides = Overrides()
        self._make, self._store, self._office = make, store, office
        self._directing, self._telling = directing, asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._members: events.MembersChanged | None = None
        self._epoch_floor = 0
        self._retiring = False
        self._early: deque[tuple[float, events.MessageReceived]] = deque(maxlen=EARLY_MAX)
        self._machine_timer: MachineTimer | None = None
        self._stops: list[tuple[set[str], asyncio.Event]] = []
        """Shards that somebody waits for to stop."""

    def update(self, members: events.MembersChanged, epoch: int) -> None:
        """The picture of the cluster changed: over whom to rule, and the highest epoch known."""
        self._members, self._epoch_floor = members, max(epoch, self._epoch_floor)
        self.handle(members)
        self.handle(events.EpochSeen(epoch))

    def freeze(self) -> None:
        """The whole cluster stops: whom there was to rule over stays so, and no shard moves any
        more."""
        if self._members is None:
            return
        still = replace(self._members, unsettled=True, draining=())
        if still != self._members:
            self._members = still
            self.handle(still)

    def prepare(self) -> None:
        """Be ready to rule."""
        self._make_one()
        self.handle(events.Prepare(self._epoch_floor))

    def begin(self, epoch: int) -> None:
        """Rule, above this epoch."""
        self._epoch_floor = max(epoch, self._epoch_floor)
        if self.coordinator is None:
            self._make_one()
        self.handle(events.Start(self._epoch_floor))

    def retire(self) -> None:
        """Rule no more once the write under way is done."""
        self._retiring = True
        if self.coordinator is None:
            self._office.over(self.entity_type)
        else:
            self.handle(events.Retire())

    def stop(self) -> None:
        """Rule no more."""
        if self._machine_timer is not None:
            self._machine_timer.stop()
        self.coordinator = None
        for _, over in self._stops:
            over.set()

    def _make_one(self) -> None:
        self.stop()
        self.coordinator = coordinator = self._make()
        self._machine_timer = MachineTimer(coordinator.deadline, self._tick)
        if self._members is not None:
            self.handle(self._members)
        self._forget_early(asyncio.get_running_loop().time())
        early, self._early = self._early, deque(maxlen=EARLY_MAX)
        for _, event in early:
            self.handle(event)

    def _forget_early(self, now: float) -> None:
        while self._early and self._early[0][0] < now - EARLY_S:
            self._early.popleft()

    def received(self, sender: NodeId, message: events.Message) -> None:
        """A message for the coordinator, who may be about to come. If none does, the sender will
        find the right node."""
        event = events.MessageReceived(sender, message)
        if self.coordinator is not None:
            self.handle(event)
        elif isinstance(message, messages.Register | messages.GetShardHome):
            now = asyncio.get_running_loop().time()
            self._forget_early(now)
            self._early.append((now, event))

    def handle(self, event: events.CoordinatorEvent) -> None:
        """Give the machine an event and do what it says."""
        self._look()
        if self.coordinator is not None:
            now = asyncio.get_running_loop().time()
            self._perform(self.coordinator, self.coordinator.handle(event, now))

    def _tick(self) -> None:
        self._look()
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
                case events.ShardsStopped(shards=shards):
                    for waited, over in self._stops:
                        waited.difference_update(shards)
                        if not waited:
                            over.set()
                case events.Stop(reason=reason):
                    level = logging.INFO if self._retiring else logging.WARNING
                    log.log(level, "coordinator of %r is over: %s", self.entity_type, reason)
                    self.stop()
                    self._office.over(self.entity_type)
                case events.Note():
                    self._office.note(self.entity_type, effect)
        if self._machine_timer is not None and self.coordinator is machine:
            self._machine_timer.arm()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell(self, machine: Coordinator, event: events.CoordinatorEvent) -> None:
        if self.coordinator is machine:
            self.handle(event)

    async def _load(self, machine: Coordinator) -> None:
        try:
            table = await self._in_time(self._store.load_table(self.entity_type))
        except StoreError as e:
            self._tell(machine, events.StoreFailed(str(e)))
        else:
            self._tell(machine, events.TableLoaded(table))

    async def _claim(self, machine: Coordinator, epoch: int, layout: str) -> None:
        try:
            table = await self._in_time(self._store.claim_epoch(self.entity_type, epoch, layout))
            told = await self._in_time(self._directing.load(epoch))
        except (StaleEpoch, StaleFence) as e:
            self._epoch_floor = max(self._epoch_floor, e.stored)
            self._tell(machine, events.EpochRefused(e.stored))
        except (StoreError, ConfigError) as e:
            log.error("the table of %r cannot be claimed: %s", self.entity_type, e)
            self._tell(machine, events.StoreFailed(str(e)))
        else:
            self._epoch_floor = max(self._epoch_floor, epoch)
            self._office.epoch_claimed(self.entity_type, epoch)
            self.overrides = told
            self._tell(machine, told)
            if table.dropped:
                some = "; ".join(table.dropped[:DROPPED_SHOWN])
                note = events.Note("rows_dropped", some, len(table.dropped))
                self._office.note(self.entity_type, note)
            self._tell(machine, events.EpochClaimed(table))
            if self._remember:
                await self._wake(machine)

    async def direct(self, change: Callable[[Overrides], Overrides]) -> Overrides:
        """Tell the coordinator here something new; returns what counts now, which is stored.

        Raises:
            Refused: none rules here. StoreUnavailable: the old or the new directions count.
        """
        async with self._telling:
            machine = self._ruling()
            told = change(self.overrides)
            try:
                await self._in_time(self._directing.save(machine.epoch, told))
            except StaleFence:
                raise Refused(f"the coordinator of {self.entity_type!r} has moved") from None
            self.overrides = told
            self._tell(machine, told)
            return told

    async def stop_shards(self, shards: Collection[str], patience: float) -> list[str]:
        """Stop these, and return those that have not within so many seconds; they still will.

        Raises:
            Refused: no coordinator rules here, or it went meanwhile.
        """
        machine = self._ruling()
        waiting = (set(shards), asyncio.Event())
        self._stops.append(waiting)
        try:
            self.handle(events.StopShards(tuple(shards)))
            async with asyncio.timeout(patience):
                await waiting[1].wait()
        except TimeoutError:
            pass
        finally:
            self._stops.remove(waiting)
        if self._ruling() is not machine:
            raise Refused(f"the coordinator of {self.entity_type!r} has moved")
        return [shard for shard in shards if shard in waiting[0]]

    def _ruling(self) -> Coordinator:
        machine = self.coordinator
        if machine is None or machine.state is not CoordinatorState.RULING:
            raise Refused(f"the coordinator of {self.entity_type!r} has moved", hint="try again")
        return machine

    async def _wake(self, machine: Coordinator) -> None:
        """Shards with remembered entities run though nobody sends to them: ask for their homes, as
        the first message for them would. Entities of shards that the type has no more move."""
        former: list[str] | None = None
        while self.coordinator is machine:
            try:
                if former is None:
                    shards = await self._store.remembered_shards(self.entity_type)
                    former = self._office.wake(self.entity_type, shards)
                while former:
                    await self._empty(former[-1], machine.epoch)
                    former.pop()
                return
            except (StoreError, RequestError) as e:
                log.warning("remembered entities of %r: %s", self.entity_type, e)
                await asyncio.sleep(RETRY_S)

    async def _empty(self, shard: str, epoch: int) -> None:
        """Start the entities of a former shard where they belong now, and forget them here."""
        name, store, fence = self.entity_type, self._store, epoch << EPOCH_SHIFT
        while True:
            ids, _ = await store.page_remembered(name, shard, None, FORMER_PAGE)
            if not ids:
                return
            await asyncio.gather(*(self._office.start_entity(name, i) for i in ids))
            await store.remove_remembered(name, shard, ids, fence)

    async def _persist(self, machine: Coordinator, write: events.Persist) -> None:
        name, store = self.entity_type, self._store
        try:
            await self._in_time(store.write_homes(name, write.epoch, write.homes, write.op_id))
        except StaleEpoch as e:
            self._epoch_floor = max(self._epoch_floor, e.stored)
            self._tell(machine, events.PersistFailed(write.op_id, True))
        except StoreError as e:
            log.warning("the table of %r was not written: %s", self.entity_type, e)
            self._tell(machine, events.PersistFailed(write.op_id, False))
        else:
            self._tell(machine, events.Persisted(write.op_id))

    async def _in_time(self, answer: Awaitable[T]) -> T:
        """What the store answers.

        Raises:
            StoreUnavailable: nothing, for too long. It may have done what it was asked to.
        """
        try:
            async with asyncio.timeout(self._patience):
                return await answer
        except TimeoutError:
            text = f"the store gave no answer within {self._patience:g} s"
            raise StoreUnavailable(text) from None
