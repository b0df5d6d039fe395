"""The host of one entity type on one node: its shards, its activations, and the messages they
admit.

`activations` finds those in memory, `saver` writes their states. The order of a stop is here: the
entities of a shard stop, messages that wait start one again, or leave, and the shard is down.

Messages that the entities of a moving shard have not handled are left for its next home.

Source: S0.5, S0.9, S0.23, S0.24, S2.38-S2.46, S2.60, S4.25.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from msgspec.structs import replace

from shardbus.config.settings import DataSettings, DeliverySettings, ShardingSettings
from shardbus.entities.activation import (
    AFTER_CURRENT,
    Activation,
    LifeState,
    LifeStep,
    Message,
    Shard,
)
from shardbus.entities.activation_table import ActivationTable
from shardbus.entities.carrying import WAKE_MAX, CarriedStates
from shardbus.entities.context import FirstContext, InstanceContext
from shardbus.entities.deaf_entities import DeafEntities
from shardbus.entities.deferred import DeferredWork
from shardbus.entities.deliveries import EntityDeliveries
from shardbus.entities.draining import Draining
from shardbus.entities.durable_mailboxes import mailboxes_of
from shardbus.entities.entity_sends import EntitySends, delivers
from shardbus.entities.entity_type import EntityType, Invoker, StopReason
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.in_turns import InTurns
from shardbus.entities.lost_attributes import watch_states
from shardbus.entities.merging import MergedStates, sharing
from shardbus.entities.passivation import STOPPED_AT_ONCE, Passivator
from shardbus.entities.projecting import Projecting
from shardbus.entities.reassertion import raise_fences
from shardbus.entities.remembering import RememberedEntities
from shardbus.entities.reminding import Reminding
from shardbus.entities.runner import EntityRunner
from shardbus.entities.state_changes import StateChange, refuse_if_made_by_events
from shardbus.entities.state_saver import StateSaver
from shardbus.entities.stopping import Stopper
from shardbus.entities.supervision import StateLoader
from shardbus.errors import (
    ConfigError,
    Refused,
    StaleActivation,
)
from shardbus.guarded_log import GuardedLog
from shardbus.routing.delivering import DeliveryCounts
from shardbus.sharding.instances import split_row
from shardbus.store.protocol import StateStore, reminder_store
from shardbus.transport.drop_reports import Origin
from shardbus.wire.batch import Chain

log = GuardedLog("shardbus.entity")


class OwnWork(Protocol):
    """Work of the entities of one type that no message of others begins: reminders, the events of a
    projection, news of states that merge, and stored messages. `what` names it."""

    what: str

    def open(self, hosted: Shard) -> None: ...
    def close(self, hosted: Shard) -> None: ...
    def gone(self, activation: Activation) -> None: ...
    def sweep(self, tick: int) -> None: ...
    def claim_again(self) -> None: ...
    def stop(self) -> None: ...


class Host:
    """The shards and activations of one type. `on_down(shard)` is called when the last entity of a
    stopping shard has stopped."""

    wall_clock: Callable[[], float] = staticmethod(time.time)
    """Returns the seconds since 1970, for `context.now`."""

    def __init__(
        self,
        kind: EntityType,
        settings: ShardingSettings,
        node_name: str,
        loop: asyncio.AbstractEventLoop,
        keeper: StateLoader,
        ref: Callable[[Any, str], Any],
        on_down: Callable[[str], None],
        store: StateStore,
        shard_of: Callable[[str], str],
        start_elsewhere: Callable[[str], Awaitable[None]],
        gate: SuspensionGate | None = None,
        delivery: DeliverySettings | None = None,
        delivered: DeliveryCounts | None = None,
        data: DataSettings | None = None,
    ) -> None:
        self.kind, self.settings, self.node_name, self.loop = kind, settings, node_name, loop
        self.deliveries = EntityDeliveries(
            kind, delivery or DeliverySettings(), lambda: self.wall_clock()
        )
        self.ref = ref
        self.stopper = Stopper(kind, self.patience, self._gone)
        self.runner = EntityRunner(kind, settings, loop, keeper, self.stopper.finish, gate)
        self.stopper.attach(self.runner)
        self.tracer: Any = None
        """The tracer (`routing.tracer`) of a node with tracing."""
        self.counts = self.runner.counts
        self.shards: dict[str, Shard] = {}
        self.activations = ActivationTable(loop, self.shards)
        self.active = self.activations.active
        self._context = FirstContext if kind.interface.instances is None else InstanceContext
        self.passivator = Passivator(
            settings, loop, self.active, self.counts, self._passivate, self.runner.abandoned,
            self.gate,
        )  # fmt: skip
        self._stopping = InTurns(loop, self._end_some, STOPPED_AT_ONCE)
        self.deaf = DeafEntities(kind.name, self.runner)
        if kind.codec is not None:
            watch_states(kind.codec, loop)
        self.carrying: CarriedStates | None = None
        self.draining = Draining(self)
        self._keeper, self._on_down, self._shard_of = keeper, on_down, shard_of
        self.remembered: RememberedEntities | None = None
        if settings.remember:
            self._remember(store, start_elsewhere)
        delivery, delivered = delivery or DeliverySettings(), delivered or DeliveryCounts()
        if delivers(kind):
            self._send_deliveries(delivery, delivered, store, start_elsewhere)
        self._attach(store)
        self.deliveries.store_messages(
            self.runner.receive,
            mailboxes_of(self, store, keeper.journals, settings, delivery, delivered, shard_of),
        )
        saver = StateSaver(kind, settings, self.runner, keeper, self.deliveries, self.carrying)
        self.saver = sharing(saver, self.runner, store, data, lambda: self.wall_clock())

    def _attach(self, store: StateStore) -> None:
        """Make the parts that only some types have: the carried memory of entities, their
        reminders, and their work as parts of a projection."""
        kind = self.kind
        if kind.carries:
            self.carrying = CarriedStates(kind, self.counts.carried, self._belongs)
            self.runner.carry(self.carrying)
        if kind.reminds and (reminders := reminder_store(store)) is not None:
            host: Any = self
            reminding = Reminding(host, store, reminders, self._keeper, self.settings)
            self.runner.remind(reminding)
        if kind.projection is not None:
            host = self
            projecting = Projecting(host, store, self._keeper.journals, self._shard_of)
            self.runner.project(projecting)

    def _send_deliveries(
        self,
        delivery: DeliverySettings,
        counts: DeliveryCounts,
        store: StateStore,
        start_elsewhere: Callable[[str], Awaitable[None]],
    ) -> None:
        """Send the deliveries of the entities themselves."""
        self.deliveries.sends = EntitySends(
            self.kind,
            self.node_name,
            self.settings,
            delivery,
            counts,
            self.loop,
            store,
            self.gate,
            self.ref,
            self._start_pending,
            self.maybe_down,
            start_elsewhere,
        )

    def _remember(
        self, store: StateStore, start_elsewhere: Callable[[str], Awaitable[None]]
    ) -> None:
        """Let entities run whenever their shard does."""
        self.remembered = RememberedEntities(
            self.name,
            store,
            self.loop,
            self.settings,
            self.gate,
            start=self._listed,
            again=self._revive,
            settled=self.maybe_down,
            start_elsewhere=start_elsewhere,
        )

    @property
    def name(self) -> str:
        """The name of the entity type."""
        return self.kind.name

    @property
    def gate(self) -> SuspensionGate:
        """The gate of the node."""
        return self.runner.gate

    @property
    def _own_work(self) -> list[OwnWork]:
        """Return the work of its entities that begins without messages of others."""
        runner, mailboxes = self.runner, self.deliveries.mailboxes
        sharing = self.saver if isinstance(self.saver, MergedStates) else None
        each: tuple[OwnWork | None, ...]
        each = (runner.reminding, runner.projecting, sharing, mailboxes)
        return [work for work in each if work is not None]

    @property
    def deferred(self) -> DeferredWork:
        """The work that entities have put off."""
        return self.runner.deferred

    @property
    def outside(self) -> contextvars.Context:
        """The context of timers: not the context of the handler that sets one."""
        return self.runner.running_handlers.eager.outside

    @property
    def patience(self) -> float:
        """Seconds that an entity has to stop before it is cut off."""
        return max(1.0, self.settings.handoff_timeout - 5.0)

    @property
    def waiting_starts(self) -> int:
        """Entities on lists that are still to be started."""
        return sum(each.recovery.waiting for each in self._lists)

    @property
    def _lists(self) -> list[RememberedEntities]:
        """Return the lists of entities that start with their shard."""
        sends, mailboxes = self.deliveries.sends, self.deliveries.mailboxes
        lists = [] if self.remembered is None else [self.remembered]
        lists += [] if sends is None else [sends.lists]
        return lists if mailboxes is None else [*lists, mailboxes.lists]

    def _start_pending(self, hosted: Shard, entity_id: str) -> Activation | None:
        """Start an entity that is listed for its deliveries, if it does not run and its shard is
        here."""
        sends = self.deliveries.sends
        here = self.shards.get(hosted.shard) is hosted and not hosted.stopping
        if sends is None or not here:
            return None
        if (activation := self.find(entity_id, hosted.shard)) is not None:
            sends.runs_already(activation)
            return None
        self.gate.close_if_due()
        if self._shard_of(entity_id) != hosted.shard:
            sends.lists.relocation.move(hosted, entity_id)
            return None
        return self.activate(hosted, entity_id, "deliveries")

    # ---- shards

    def start_shard(self, shard: str, fence: int) -> None:
        """Host a shard. It admits no message until `set_arrivals` opens it."""
        hosted = self.shards[shard] = Shard(shard, fence, self)
        for remembered in self._lists:
            remembered.open(hosted)
        for work in self._own_work:
            work.open(hosted)
        if self.carrying is not None and (waiting := self.carrying.waiting(shard, fence)):
            self.loop.call_soon(self._wake, hosted, waiting)

    def _wake(self, hosted: Shard, waiting: list[str]) -> None:
        """Start entities that have something to take from the old home, some in each turn."""
        carrying = self.carrying
        here = self.shards.get(hosted.shard) is hosted and not hosted.stopping
        if carrying is None or not here:
            return
        self.gate.close_if_due()  # a start looks at the last check only
        for entity_id in waiting[:WAKE_MAX]:
            waits = carrying.has_for(hosted.shard, entity_id)
            if waits and self.find(entity_id, hosted.shard) is None:
                self.activate(hosted, entity_id, "carried")
        if rest := waiting[WAKE_MAX:]:
            self.loop.call_soon(self._wake, hosted, rest)

    def _belongs(self, entity_id: str, shard: str) -> bool:
        try:
            return self._shard_of(entity_id) == shard
        except ConfigError:
            return False

    def set_arrivals(self, shard: str, local: bool, via: object | None) -> None:
        """Set the messages that a shard admits from links: all, only those from one node, or
        none."""
        hosted = self.shards.get(shard)
        if hosted is None:
            return
        was_open = hosted.open
        hosted.admit(local, via)
        if hosted.open and not was_open:
            self.activations.open(hosted)
        elif was_open and not hosted.open:
            self.activations.close([hosted])

    def stop_shards(
        self, shards: list[str], reason: StopReason, patience: float | None = None
    ) -> None:
        """Stop every entity of these shards: by default after the messages in its mailbox, some in
        each turn of the loop; after a failure, at once. Entities that have not stopped within
        `patience` seconds are cut off."""
        present = [self.shards[shard] for shard in shards if shard in self.shards]
        unknown = [shard for shard in shards if shard not in self.shards]
        hosted = [h for h in present if not h.stopping]
        self.activations.close([h for h in hosted if h.open])
        for h in hosted:
            h.admit(False)
            h.stopping = reason
            if reason in AFTER_CURRENT or patience == 0:
                self._end_some(list(h.activations.values()))
            else:
                self._stopping.add(h.activations.values())
            for activation in self.remembered.abandon(h) if self.remembered is not None else ():
                activation.stopping = activation.stopping or reason
                self.runner.settle(activation)
            self.maybe_down(h)
        left = [h for h in present if self.shards.get(h.shard) is h]
        patience = self.patience if patience is None else patience
        if left and patience > 0:
            self.activations.timers.call_later(self.loop, patience, self._cut_off, left)
        elif left:
            self._cut_off(left)
        for shard in unknown:
            self._on_down(shard)

    def _end_some(self, some: list[Activation]) -> None:
        """Ask entities of shards that stop to stop, if they are in memory yet."""
        for activation in some:
            hosted = activation.shard
            if hosted.stopping and hosted.activations.get(activation.key) is activation:
                self.end(activation, hosted.stopping)

    def _cut_off(self, shards: list[Shard]) -> None:
        """End the rest of these shards: their time to stop is over."""
        for hosted in shards:
            here = self.shards.get(hosted.shard) is hosted
            if here and (hosted.activations or self.draining.may_end(hosted.shard)):
                hosted.cut_off = True
                for activation in list(hosted.activations.values()):
                    activation.step(LifeStep.REFUSES)  # no new activation
                    self.stopper.cut_off(activation)
                for remembered in self._lists:
                    remembered.close(hosted)
                for work in self._own_work:
                    work.close(hosted)
                self.maybe_down(hosted)

    def maybe_down(self, hosted: Shard) -> None:
        """End a shard that stops, once it has no entity in memory and no write under way."""
        if hosted.stopping and not hosted.activations and self.shards.get(hosted.shard) is hosted:
            if not self.draining.may_end(hosted.shard) or hosted.shard not in self.shards:
                return
            if not self.deliveries.is_settled(hosted):
                return
            if any(remembered.busy(hosted) for remembered in self._lists):
                return
            for remembered in self._lists:
                remembered.close(hosted)
            for work in self._own_work:
                work.close(hosted)
            del self.shards[hosted.shard]
            self.draining.leave_records(hosted)
            self._on_down(hosted.shard)

    # ---- entities

    def find(self, entity_id: str, shard: str) -> Activation | None:
        """Return the activation of an entity, if it is in memory."""
        activation = self.active.get(entity_id)
        if activation is None and shard in self.shards:
            activation = self.shards[shard].activations.get(entity_id)
        return activation

    def activate(
        self,
        hosted: Shard,
        entity_id: str,
        cause: str = "message",
        mailbox: deque[Message] | None = None,
        chain: Chain = (),
        begins: bool = True,
    ) -> Activation:
        """Start an entity that is not in memory; it begins with the messages of `mailbox`. `chain`:
        the entities that wait for it. Without `begins` the caller starts it later."""
        activation = self._context(hosted, entity_id)
        if mailbox is not None:
            activation.mailbox = mailbox
            self.runner.mailbox_limits.has_mailbox(activation)
        self.activations.add(activation)
        hosted.live += 1
        activation.used = self.runner.tick
        if self.passivator.limited:
            self.passivator.started(activation)
        started = self.counts.started
        started[cause] = started.get(cause, 0) + 1
        if begins and (self.remembered is None or self.remembered.knows(hosted, entity_id)):
            self.runner.start(activation, chain)
            return activation
        activation.step(LifeStep.LISTS)
        if begins and self.remembered is not None:
            self.remembered.add(hosted, activation)
        return activation

    def _listed(self, activation: Activation) -> None:
        """Start an entity that the store has listed. If its shard stops by now, the entity still
        handles the messages that wait for it."""
        if activation.state is not LifeState.LISTING:
            return
        self.gate.close_if_due()  # a start looks at the last check only
        activation.step(LifeStep.LISTED)
        reason, activation.stopping = activation.stopping, None
        self.runner.start(activation)
        if reason is not None:
            self.stopper.stop(activation, reason)

    def _revive(self, hosted: Shard, entity_id: str) -> Activation | None:
        """Start a remembered entity, if it does not run and its shard is still here."""
        here = self.shards.get(hosted.shard) is hosted and not hosted.stopping
        if self.remembered is None or not here or not self.remembered.knows(hosted, entity_id):
            return None
        if self.find(entity_id, hosted.shard) is not None:
            return None
        self.gate.close_if_due()
        if self._shard_of(entity_id) != hosted.shard:
            self.remembered.relocation.move(hosted, entity_id)
            return None
        return self.activate(hosted, entity_id, "remembered")

    def end(self, activation: Activation, reason: StopReason) -> None:
        self.passivator.forget(activation)
        self.stopper.end(activation, reason)

    def _passivate(self, activation: Activation) -> None:
        if self.runner.abandoned(activation):  # no object that could handle a stop message
            self.passivator.forget(activation)
            self.runner.give_up(activation)
        else:
            self.end(activation, StopReason.PASSIVATION)

    def _gone(self, activation: Activation) -> None:
        """Remove an activation that has stopped. Messages that wait for it start a new one."""
        hosted, entity_id = activation.shard, activation.key
        if not self.activations.remove(activation):
            return
        hosted.live -= 1
        reason = (activation.stopping or StopReason.FAILURE).value
        self.counts.stopped[reason] = self.counts.stopped.get(reason, 0) + 1
        self.deferred.end(activation)
        self.passivator.forget(activation)
        self.stopper.ended(activation)
        if self.saver.sizes is not None:
            self.saver.sizes.forget(activation)
        if self.carrying is not None:
            self.carrying.ended(activation)
        for work in self._own_work:
            work.gone(activation)
        sends = self.deliveries.sends
        if sends is not None and sends.gone(activation) and not hosted.stopping:
            backoff = self.settings.entity_restart_backoff
            timers = self.activations.timers
            timers.call_later(self.loop, backoff, self._start_pending, hosted, entity_id)
        if hosted.records and self.kind.states is not None:
            hosted.records.pop(entity_id, None)
        refuses = activation.state is LifeState.REFUSING or activation.refusal is not None
        refuses = refuses or not self._may_return(activation)
        activation.step(LifeStep.ENDS)
        self._keeper.refuse_unsent(self.name, hosted.shard, entity_id)
        waiting = list(activation.mailbox or ())
        activation.mailbox, activation.entity = None, None
        waiting = self.deferred.take_stash(activation) + waiting
        waiting = [m for m in waiting if not m.ends_with_activation]
        if waiting and not refuses:
            again = self.activate(hosted, entity_id, "restart", deque(waiting))
            if hosted.stopping is not None:
                self.end(again, hosted.stopping)
        elif self.remembered is not None and not hosted.stopping:
            self._stopped_alone(self.remembered, hosted, activation)
        if waiting and refuses:
            self.draining.leave(hosted, entity_id, waiting, activation.refusal)
        self.maybe_down(hosted)

    def _may_return(self, activation: Activation) -> bool:
        """True if messages that wait for a stopped entity start a new activation. In a shard that
        stops, only if the entity stopped by itself or by a failure, not because of the shard."""
        hosted = activation.shard
        if hosted.stopping is None:
            return True
        listed = self.remembered is None or self.remembered.knows(hosted, activation.key)
        alone = activation.stopping in AFTER_CURRENT and activation.stopping is not hosted.stopping
        stop_request = activation.stop_request
        alone = alone or self.draining.starts_again(activation)
        return listed and (alone or (stop_request is not None and stop_request.holds))

    def _stopped_alone(
        self, remembered: RememberedEntities, hosted: Shard, activation: Activation
    ) -> None:
        """Forget a remembered entity that passivated while its shard goes on; start one again that
        stopped for any other reason."""
        if activation.stopping is StopReason.PASSIVATION:
            remembered.forget(hosted, activation.key)
        elif activation.key not in hosted.returning:  # one timer, however often it stops
            hosted.returning.add(activation.key)
            backoff = self.settings.entity_restart_backoff
            timers = self.activations.timers
            timers.call_later(self.loop, backoff, self._return, hosted, activation.key)

    def _return(self, hosted: Shard, entity_id: str) -> None:
        hosted.returning.discard(entity_id)
        self._revive(hosted, entity_id)

    def close(self) -> None:
        """Cancel everything that waits: the process ends."""
        self.gate.end()
        if self.remembered is not None:
            self.remembered.stop()
        for work in self._own_work:
            work.stop()
        if self.deliveries.sends is not None:
            self.deliveries.sends.close()
        self.deferred.close()
        self.runner.close()
        self.passivator.stop()
        self._stopping.stop()
        self.activations.end()

    # ---- for contexts

    def timer_cause(self) -> str:
        """Return the trace context of the handler that sets a timer now; empty if it has none."""
        return "" if self.tracer is None else str(self.tracer.cause())

    def tell_self(
        self,
        activation: Activation,
        method: str,
        payload: bytes,
        cause: str,
        delay: float | None = None,
    ) -> None:
        """Hand the message of a timer to its own entity. `cause`: the `timer_cause` when it was
        set; `delay`: the seconds since, None for one that repeats."""
        if self.find(activation.key, activation.shard.shard) is not activation:
            return
        invoker = self.kind.invokers[method]
        if self.tracer is not None:
            is_single = self.kind.interface.instances is None
            entity_id = activation.key if is_single else split_row(activation.key)[0]
            trace = self.tracer.fired(cause, self.name, entity_id, method, delay)
            invoker = self.traced(invoker, trace, is_ask=False) if trace else invoker
        message = Message(invoker, payload, None, Origin.OWN, 0)
        self.stopper.receive_own(activation, message)

    def traced(self, invoker: Invoker, trace: str, *, is_ask: bool) -> Invoker:
        """Return the invoker of one message that carries a trace context. Without tracing here the
        context only travels on, should the message be forwarded."""
        function = invoker.function
        if self.tracer is not None:
            is_async, method = invoker.is_async, invoker.name
            function = self.tracer.handling(
                function, trace, self.loop, is_async=is_async, is_ask=is_ask, method=method
            )
        return replace(invoker, function=function, trace=trace)

    async def change_state(
        self, shard: str, entity_id: str, data: bytes | None, revision: str = "", keep: bool = False
    ) -> None:
        """Make this the state of an entity, for an operator; None removes it. `revision` names the
        state to be replaced, empty for any. `keep`: it is removed though messages wait in its
        durable mailbox, and they stay.

        Raises:
            Refused: the shard is not here, or moves, the entity is busy, or messages wait for it.
                Nothing was changed.
            StateChanged: another state is stored. Nothing was changed.
            AskTimeout: the store has not answered; the state may be changed. StateTooLarge.
        """
        refuse_if_made_by_events(self.kind)
        load, save, disown = self._load_stored, self.saver.save, self.runner.disown
        change = StateChange(self.kind, data, revision, load, save, disown)
        while True:
            hosted = self.shards.get(shard)
            if hosted is None or hosted.stopping is not None or self.gate.close_if_due():
                hint = "try again"
                raise Refused(f"shard {shard!r:.100} of {self.name} moves or waits now", hint=hint)
            if data is None and not keep:
                self.deliveries.refuse_with_messages(hosted, entity_id)
            activation = self.find(entity_id, shard)
            if activation is None:
                await self._change_at_rest(hosted, entity_id, change)
                return
            if await change.make(self.runner, activation):
                return

    async def _load_stored(self, activation: Activation) -> bytes | None:
        """Read the stored state of an entity, and raise its stored fence to the shard's."""
        shard = activation.shard
        return await self._keeper.load(self.name, shard.shard, activation.key, shard.fence)

    async def _change_at_rest(self, hosted: Shard, entity_id: str, change: StateChange) -> None:
        """Save the state of an entity that does not run. Messages wait for it meanwhile."""
        activation = self.activate(hosted, entity_id, "operator", begins=False)
        try:
            stored = await self._load_stored(activation)
            with contextlib.suppress(ValueError):  # a damaged record is replaced with its state
                self.deliveries.loaded(activation, stored)
            await change.save(activation)
        except StaleActivation:
            text = f"shard {hosted.shard!r:.100} of {self.name} has moved meanwhile"
            raise Refused(text, hint="try again") from None
        finally:
            if activation.state is LifeState.LISTING:
                self._go_on(hosted, activation)

    def _go_on(self, hosted: Shard, activation: Activation) -> None:
        """Start an entity whose state was changed, if it is needed; else let it leave memory."""
        if self.remembered is not None and not self.remembered.knows(hosted, activation.key):
            self.remembered.add(hosted, activation)
        elif self.remembered is not None or activation.mailbox:
            self._listed(activation)
        else:
            activation.stopping = activation.stopping or StopReason.PASSIVATION
            self._gone(activation)

    async def reassert(self) -> None:
        """Write the fences of the entities in memory, and the lists of remembered entities, into a
        store whose server may have lost them."""
        if self.remembered is not None:
            self.remembered.list_again()
        for work in self._own_work:
            work.claim_again()
        if self.kind.states is None:
            return
        closed = [a for hosted in self.shards.values() for a in hosted.activations.values()]
        running = [a for a in (*self.active.values(), *closed) if a.entity is not None]
        stale = await raise_fences(self.name, self._keeper, running)
        if stale:
            log.warning("%s: %d entities in memory have later homes elsewhere", self.name, stale)

    # ---- periodic work, and figures

    def sweeps(self) -> dict[str, Callable[[int], object]]:
        """Return the work to do about once a second, by name, each with the current tick as its
        argument: measure mailboxes, find deaf entities, cut off those that do not stop, passivate.
        While the node is suspended no entity is idle or late."""

        def unless_shut(sweep: Callable[[int], object]) -> Callable[[int], object]:
            return lambda tick: None if self.gate.closed else sweep(tick)

        sends = self.deliveries.sends
        return {
            **{work.what: unless_shut(work.sweep) for work in self._own_work},
            "deliveries": unless_shut(sends.sweep if sends is not None else lambda tick: None),
            "mailboxes": lambda tick: self.runner.mailbox_limits.sweep(),
            "deaf entities": unless_shut(self.deaf.sweep),
            "stopping": unless_shut(self.stopper.sweep),
            "passivation": unless_shut(self.passivator.sweep),
        }

    def set_active_entity_limit(self, limit: int) -> None:
        """Set another limit on the entities in memory on this node; 0 for none.

        Raises:
            Refused: entities of this type are remembered.
        """
        here = [h for h in self.shards.values() if not h.stopping]
        closed = [activation for h in here for activation in h.activations.values()]
        self.passivator.resize(limit, [*self.active.values(), *closed])

    @property
    def waiting(self) -> int:
        """Messages that entities here have not handled, those in stopped shards included, which are
        about to leave. Costs a pass over the mailboxes' messages."""
        unhandled = self.runner.waiting + self.deliveries.unstored
        return unhandled + self.draining.waiting

    @property
    def entities(self) -> int:
        """Entities in memory."""
        return sum(hosted.live for hosted in self.shards.values())

    def ids(self, shard: str) -> list[str]:
        """Return the ids of a shard's entities in memory. Costs a pass over all entities."""
        return self.activations.ids_by_shard().get(shard, [])
