"""The shell of a coordinator: runs one type's coordinator machine against the store and the
sessions.

Every node has one per entity type. A machine runs in it while the singleton (`singleton`) requires
one:

    prepare   create a machine that loads the table and keeps requests
    begin     let it rule; create one if there is none
    retire    let it finish the write under way; `ended` reports when it has
    stop      drop it, whatever it does

Regions may send requests before this node knows that it is next. They are kept for `EARLY_S`.

Overrides by operators (`overrides`) are read with the claim of an epoch, and written before they
apply.

A strategy of the user's is called in a thread (`strategy_thread`).

A store call that takes longer than `updating_state_timeout` has failed, whatever timeouts the store
itself has. Failed steps repeat: the machine repeats its writes and claims, and this shell repeats
the start of remembered entities every `RETRY_S`.

Source: docs/architecture.md; S0.18, S0.32, S0.33, S2.60, S2.61, S2.76.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Protocol, TypeVar

from msgspec.structs import replace

from shardbus import errors
from shardbus.bounds import EPOCH_SHIFT
from shardbus.error_text import described
from shardbus.guarded_log import GuardedLog
from shardbus.ids import NodeId
from shardbus.sharding import events, messages
from shardbus.sharding.allocation.checked import StrategyFault
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.sharding.coordinator.strategy_calls import ANSWER_S
from shardbus.sharding.overrides import Overrides
from shardbus.shells.overrides import OverridesStore
from shardbus.shells.reminded_shards import RemindedShards, SelfActing
from shardbus.shells.strategy_thread import StrategyThread
from shardbus.store.protocol import StateStore
from shardbus.task_set import TaskSet
from shardbus.transport.machine_timer import MachineTimer

log = GuardedLog("shardbus.coordinator")

T = TypeVar("T")

RETRY_S = 1.0
"""Between two attempts to start remembered entities."""

FORMER_PAGE = 200
"""Remembered entities that move at once from a shard that the type has no more."""

EARLY_MAX = 10_000
"""Messages kept for a coordinator that does not run here yet."""

EARLY_S = 2.0
"""Seconds for which they are kept; after that regions repeat the reports that still matter."""

DROPPED_SHOWN = 3
"""Invalid rows of the stored table that the log names."""


class CoordinatorOwner(Protocol):
    """The services that a coordinator needs from the singleton that runs it."""

    def send(self, to: NodeId, entity_type: str, message: events.Message) -> None: ...
    def epoch_claimed(self, entity_type: str, epoch: int) -> None: ...
    def epoch_met(self, entity_type: str, epoch: int) -> None: ...
    def ended(self, entity_type: str) -> None: ...
    def note(self, entity_type: str, note: events.Note) -> None: ...
    def ask_homes(self, entity_type: str, shards: list[str]) -> list[str]: ...
    async def start_entity(self, entity_type: str, entity_id: str) -> None: ...


class CoordinatorShell:
    """Runs the coordinator of one entity type.

    Args:
        make: builds a fresh machine.
        owner: sends messages, and is called when a machine rules or has ended.
        overrides: keeps the settings of operators.
        store_timeout: seconds after which a store call has failed.
        remember: True if the type's entities are remembered.
        self_acting: returns the types with these shards whose entities work without messages.
        check_lease: stops this shell if its lease is over; called before anything is handled.
    """

    def __init__(
        self,
        entity_type: str,
        make: Callable[[], Coordinator],
        store: StateStore,
        owner: CoordinatorOwner,
        overrides: OverridesStore,
        *,
        store_timeout: float,
        remember: bool = False,
        self_acting: Callable[[], SelfActing] = SelfActing,
        check_lease: Callable[[], None] = lambda: None,
    ) -> None:
        self.entity_type = entity_type
        self._remember, self._store_timeout = remember, store_timeout
        self._check_lease = check_lease
        self._reminded = RemindedShards(store, self_acting, partial(owner.ask_homes, entity_type))
        self.machine: Coordinator | None = None
        self.overrides = Overrides()
        self._make, self._store, self._owner = make, store, owner
        self._overrides_store, self._override_lock = overrides, asyncio.Lock()
        self._tasks, self._reminding = TaskSet(), TaskSet()
        """The second has the task of `_reminded`, which ends with the machine."""
        self.strategy_thread = StrategyThread(entity_type)
        """Outlives the machines: a call of an earlier one may still stand still."""
        self._members: events.MembersChanged | None = None
        self._epoch_floor = 0
        self._retiring = False
        self._early: deque[tuple[float, events.MessageReceived]] = deque(maxlen=EARLY_MAX)
        self._machine_timer: MachineTimer | None = None
        self._stops: list[tuple[set[str], asyncio.Event]] = []
        """Shards that commands wait for to stop."""

    def update(self, members: events.MembersChanged, epoch: int) -> None:
        """Hand over the members, and the highest epoch in gossip."""
        self._members, self._epoch_floor = members, max(epoch, self._epoch_floor)
        self.handle(members)
        self.handle(events.EpochSeen(epoch))

    def freeze(self) -> None:
        """Keep the members as they were, so that no shard moves: the whole cluster stops."""
        if self._members is None:
            return
        frozen = replace(self._members, unsettled=True, draining=())
        if frozen != self._members:
            self._members = frozen
            self.handle(frozen)

    def prepare(self) -> None:
        """Create a machine that is ready to rule."""
        self._create()
        self.handle(events.Prepare(self._epoch_floor))

    def begin(self, epoch: int) -> None:
        """Let a machine rule, with a higher epoch than this."""
        self._epoch_floor = max(epoch, self._epoch_floor)
        if self.machine is None:
            self._create()
        self.handle(events.Start(self._epoch_floor))

    def retire(self) -> None:
        """End the machine once the write under way is done."""
        self._retiring = True
        if self.machine is None:
            self._owner.ended(self.entity_type)
        else:
            self.handle(events.Retire())

    def stop(self) -> None:
        """Drop the machine at once."""
        if self._machine_timer is not None:
            self._machine_timer.stop()
        self.machine = None
        self._reminding.cancel()
        for _, done in self._stops:
            done.set()

    def _create(self) -> None:
        self.stop()
        self.machine = coordinator = self._make()
        self._machine_timer = MachineTimer(coordinator.deadline, self._tick)
        if self._members is not None:
            self.handle(self._members)
        self._drop_early(asyncio.get_running_loop().time())
        early, self._early = self._early, deque(maxlen=EARLY_MAX)
        for _, event in early:
            self.handle(event)

    def _drop_early(self, now: float) -> None:
        while self._early and self._early[0][0] < now - EARLY_S:
            self._early.popleft()

    def received(self, sender: NodeId, message: events.Message) -> None:
        """Handle a message for the coordinator, or keep it for one that may begin soon. If none
        begins, the sender repeats its message at the right node."""
        event = events.MessageReceived(sender, message)
        if self.machine is not None:
            self.handle(event)
        elif isinstance(message, messages.Register | messages.GetShardHome):
            now = asyncio.get_running_loop().time()
            self._drop_early(now)
            self._early.append((now, event))

    def handle(self, event: events.CoordinatorEvent) -> None:
        """Give the machine an event, and perform its effects."""
        self._check_lease()
        if self.machine is not None:
            now = asyncio.get_running_loop().time()
            self._perform(self.machine, self.machine.handle(event, now))

    def _tick(self) -> None:
        self._check_lease()
        if self.machine is not None:
            now = asyncio.get_running_loop().time()
            self._perform(self.machine, self.machine.tick(now))

    def _perform(self, machine: Coordinator, effects: list[events.CoordinatorEffect]) -> None:
        for effect in effects:
            match effect:
                case events.Send(to=to, message=message):
                    self._owner.send(to, self.entity_type, message)
                case events.Persist():
                    self._tasks.spawn(self._persist(machine, effect))
                case events.LoadTable():
                    self._tasks.spawn(self._load(machine))
                case events.ClaimEpoch(epoch=epoch, layout=layout):
                    self._tasks.spawn(self._claim(machine, epoch, layout))
                case events.AskStrategy():
                    self._tasks.spawn(self._ask_strategy(machine, effect))
                case events.ShardsStopped(shards=shards):
                    for left, done in self._stops:
                        left.difference_update(shards)
                        if not left:
                            done.set()
                case events.Stop(reason=reason):
                    level = logging.INFO if self._retiring else logging.WARNING
                    log.log(level, "the coordinator of %r has ended: %s", self.entity_type, reason)
                    self.stop()
                    self._owner.ended(self.entity_type)
                case events.Note():
                    self._owner.note(self.entity_type, effect)
        if self._machine_timer is not None and self.machine is machine:
            self._machine_timer.arm()

    def _handle_for(self, machine: Coordinator, event: events.CoordinatorEvent) -> None:
        if self.machine is machine:
            self.handle(event)

    async def _ask_strategy(self, machine: Coordinator, question: events.AskStrategy) -> None:
        try:
            answered = await self.strategy_thread.run(question.ask)
        except Exception as e:
            log.exception("the strategy of %r was not called", self.entity_type)
            fault = StrategyFault("allocate", "was not called", f": {described(e)}")
            answered = events.StrategyAnswered(question.number, {}, (fault,))
        self._handle_for(machine, answered)

    async def ask_strategy(self, machine: Coordinator, call: Callable[[], T]) -> T:
        """Return the result of `call`, which asks the strategy of the type.

        Raises:
            Refused: the strategy is one of the user's, and has not answered in time.
        """
        if machine.rebalancing.calls is None:
            return call()
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self.strategy_thread.run(call)
        except TimeoutError:
            what = f"the strategy of {self.entity_type!r} has not answered within {ANSWER_S:g} s"
            raise errors.Refused(what, hint="`shardbus doctor` shows what it does wrong") from None

    async def _load(self, machine: Coordinator) -> None:
        try:
            table = await self._in_time(self._store.load_table(self.entity_type))
            await self._reminded.move(table, machine.layout)
        except errors.StoreError as e:
            self._handle_for(machine, events.StoreFailed(str(e)))
        except Exception as e:
            log.exception("the table of %r was not loaded", self.entity_type)
            self._handle_for(machine, events.StoreFailed(repr(e)))
        else:
            self._handle_for(machine, events.TableLoaded(table))

    async def _claim(self, machine: Coordinator, epoch: int, layout: str) -> None:
        try:
            table = await self._in_time(self._store.claim_epoch(self.entity_type, epoch, layout))
            overrides = await self._in_time(self._overrides_store.load(epoch))
        except (errors.StaleEpoch, errors.StaleFence) as e:
            self._epoch_floor = max(self._epoch_floor, e.stored)
            self._owner.epoch_met(self.entity_type, e.stored)
            self._handle_for(machine, events.EpochRefused(e.stored))
        except (errors.StoreError, errors.ConfigError) as e:
            log.error("the table of %r cannot be claimed: %s", self.entity_type, e)
            self._handle_for(machine, events.StoreFailed(str(e)))
        except Exception as e:
            log.exception("the table of %r was not claimed", self.entity_type)
            self._handle_for(machine, events.StoreFailed(repr(e)))
        else:
            self._epoch_floor = max(self._epoch_floor, epoch)
            self._owner.epoch_claimed(self.entity_type, epoch)
            self.overrides = overrides
            self._handle_for(machine, overrides)
            if table.dropped:
                some = "; ".join(table.dropped[:DROPPED_SHOWN])
                note = events.Note("rows_dropped", some, len(table.dropped))
                self._owner.note(self.entity_type, note)
            self._handle_for(machine, events.EpochClaimed(table))
            if self._reminded.self_acting().any:
                self._reminding.spawn(self._reminded.run(lambda: self.machine is machine))
            if self._remember:
                await self._start_remembered(machine)

    async def override(self, change: Callable[[Overrides], Overrides]) -> Overrides:
        """Change the operators' overrides; returns them once they are stored and apply.

        Raises:
            Refused: no coordinator rules here.
            StoreUnavailable: either the old or the new overrides are stored.
        """
        async with self._override_lock:
            machine = self._ruling()
            changed = change(self.overrides)
            try:
                await self._in_time(self._overrides_store.save(machine.epoch, changed))
            except errors.StaleFence:
                raise errors.Refused(f"the coordinator of {self.entity_type!r} has moved") from None
            self.overrides = changed
            self._handle_for(machine, changed)
            return changed

    async def stop_shards(self, shards: Collection[str], seconds: float) -> list[str]:
        """Stop these shards; returns those that have not stopped within `seconds`, and still will.

        Raises:
            Refused: no coordinator rules here, or it ended meanwhile.
        """
        machine = self._ruling()
        waiting = (set(shards), asyncio.Event())
        self._stops.append(waiting)
        try:
            self.handle(events.StopShards(tuple(shards)))
            async with asyncio.timeout(seconds):
                await waiting[1].wait()
        except TimeoutError:
            pass
        finally:
            self._stops.remove(waiting)
        if self._ruling() is not machine:
            raise errors.Refused(f"the coordinator of {self.entity_type!r} has moved")
        return [shard for shard in shards if shard in waiting[0]]

    async def check_claim(self) -> None:
        """Stop ruling if the store has lost the claim of this coordinator: it was emptied, or
        restored from an older copy. If it does not answer, the next write finds out."""
        machine = self.machine
        if machine is None or machine.state is not CoordinatorState.RULING:
            return
        epoch = machine.epoch
        try:
            table = await self._in_time(self._store.load_table(self.entity_type))
        except errors.StoreError as e:
            log.warning("the table of %r cannot be checked: %s", self.entity_type, e)
            return
        if table is None or table.epoch < epoch:
            self._handle_for(machine, events.ClaimLost())

    def _ruling(self) -> Coordinator:
        machine = self.machine
        if machine is None or machine.state is not CoordinatorState.RULING:
            raise errors.Refused(
                f"the coordinator of {self.entity_type!r} has moved", hint="try again"
            )
        return machine

    async def _start_remembered(self, machine: Coordinator) -> None:
        """Request the homes of shards with remembered entities, as a message for one of them would:
        they run without messages. Entities of shards that the type has no more move to where they
        belong. Repeat after an error while the machine runs."""
        former: list[str] | None = None
        while self.machine is machine:
            try:
                if former is None:
                    shards = await self._store.remembered_shards(self.entity_type)
                    former = self._owner.ask_homes(self.entity_type, shards)
                while former:
                    await self._move_entities(former[-1], machine.epoch)
                    former.pop()
                return
            except (errors.StoreError, errors.RequestError) as e:
                log.warning("remembered entities of %r: %s", self.entity_type, e)
                await asyncio.sleep(RETRY_S)

    async def _move_entities(self, shard: str, epoch: int) -> None:
        """Start the entities of a former shard in their present shards, then remove them from its
        list."""
        name, store, fence = self.entity_type, self._store, epoch << EPOCH_SHIFT
        while True:
            ids, _ = await store.page_remembered(name, shard, None, FORMER_PAGE)
            if not ids:
                return
            await asyncio.gather(*(self._owner.start_entity(name, i) for i in ids))
            await store.remove_remembered(name, shard, ids, fence)

    async def _persist(self, machine: Coordinator, write: events.Persist) -> None:
        name, store = self.entity_type, self._store
        try:
            await self._in_time(store.write_homes(name, write.epoch, write.homes, write.op_id))
        except errors.StaleEpoch as e:
            self._epoch_floor = max(self._epoch_floor, e.stored)
            self._owner.epoch_met(self.entity_type, e.stored)
            self._handle_for(machine, events.PersistFailed(write.op_id, True))
        except errors.StoreError as e:
            log.warning("the table of %r was not written: %s", self.entity_type, e)
            self._handle_for(machine, events.PersistFailed(write.op_id, False, e.message))
        except Exception:
            log.exception("the table of %r was not written", self.entity_type)
            self._handle_for(machine, events.PersistFailed(write.op_id, False))
        else:
            self._handle_for(machine, events.Persisted(write.op_id))
            self._reminded.freed(shard for shard, home in write.homes.items() if home is None)

    async def _in_time(self, answer: Awaitable[T]) -> T:
        """Wait for an answer of the store.

        Raises:
            StoreUnavailable: no answer within the timeout. The store may have done the work.
        """
        try:
            async with asyncio.timeout(self._store_timeout):
                return await answer
        except TimeoutError:
            text = f"the store gave no answer within {self._store_timeout:g} s"
            raise errors.StoreUnavailable(text) from None
