"""The shards and entities of one type on one node: who is here, who may come in, who goes.

`active` holds the entities of every shard that lets all arrivals in; it is the hot path's one
look-up. The entities of a shard that is on the move are kept in the shard itself, where only the
slow path looks, and the slow path asks the region machine first.

What the entities of a shard that moves have not handled is left to its next home.

Source: S0.5, S0.9, S0.23, S0.24, S2.38-S2.46, S2.60, S4.25; C.14, C.17, C.18; B.50.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from shardbus.config.settings import ShardingSettings
from shardbus.entities.answers import told
from shardbus.entities.context import AFTER_CURRENT, OWN, Context, Message
from shardbus.entities.deferred import DeferredWork
from shardbus.entities.entity_type import EntityType, StopReason
from shardbus.entities.passivator import Passivator
from shardbus.entities.recovery import EntityRecovery
from shardbus.entities.relocation import EntityRelocation
from shardbus.entities.remembering import RememberedEntities
from shardbus.entities.runner import EntityRunner
from shardbus.entities.shard import Shard
from shardbus.entities.stopping import Stopper
from shardbus.entities.supervision import MOVES, StateLoader
from shardbus.errors import StaleFence, Unhandled
from shardbus.store.protocol import StateStore
from shardbus.wire.batch import Chain


class Host:
    """See the module. `on_down(shard)` is called when the last entity of a stopping shard
    stopped."""

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
    ) -> None:
        self.kind, self.settings, self.node_name, self.loop = kind, settings, node_name, loop
        self.name, self.ref = kind.name, ref
        self.patience = max(1.0, settings.handoff_timeout - 5.0)
        """Seconds for an entity to stop, before it is cut off."""
        self.stopper = Stopper(kind, self.patience, self._gone)
        self.execution = EntityRunner(kind, settings, loop, keeper, self.stopper.finish)
        self.stopper.attach(self.execution)
        self.counts = self.execution.counts
        self.deferred = DeferredWork(kind, self.execution, settings.mailbox)
        self.active: dict[str, Context] = {}
        abandoned = self.execution.abandoned
        self.passivator = Passivator(
            settings, loop, self.active, self.counts, self._passivate, abandoned
        )
        self.shards: dict[str, Shard] = {}
        self.passes_on = False
        """What is not handled when a shard moves is for its next home; else it is refused."""
        self._left: dict[str, list[tuple[str, Message]]] = {}
        self._keeper, self._on_down = keeper, on_down
        self._shard_of = shard_of
        self.recovery = EntityRecovery(settings, loop, self._revive)
        self.memory: RememberedEntities | None = None
        if settings.remember:
            memory = self.memory = RememberedEntities(
                kind.name,
                store,
                loop,
                pause_max=settings.shard_failure_backoff,
                start=self._remembered,
                recover=self.recovery.put,
                settled=self._maybe_down,
            )
            forget, again = memory.forget, self._revive
            self._relocation = EntityRelocation(kind.name, loop, start_elsewhere, forget, again)

    # ---- shards

    def start_shard(self, shard: str, fence: int) -> None:
        """The shard lives here now; nothing comes in until `set_arrivals` opens it."""
        hosted = self.shards[shard] = Shard(shard, fence)
        if self.memory is not None:
            self.memory.open(hosted)

    def set_arrivals(self, shard: str, local: bool, via: object | None) -> None:
        """Let in what comes over links: all of it, from one node only, or nothing."""
        hosted = self.shards.get(shard)
        if hosted is None:
            return
        was_open = hosted.open
        hosted.arrivals, hosted.via = local, via
        if hosted.open and not was_open:
            self.active.update(hosted.activations)
            hosted.activations = {}
        elif was_open and not hosted.open:
            self._take_out([hosted])

    def _take_out(self, shards: list[Shard]) -> None:
        """Move the shards' entities from the hot path to the shards."""
        chosen = set(map(id, shards))
        for activation in [c for c in self.active.values() if id(c.shard) in chosen]:
            activation.shard.activations[activation.entity_id] = activation
            del self.active[activation.entity_id]

    def stop_shards(
        self, shards: list[str], reason: StopReason, patience: float | None = None
    ) -> None:
        """Stop every entity of these shards, by default after the messages that are in its mailbox;
        after a failure, at once. Who has not stopped within `patience` seconds is cut off."""
        known = [self.shards[shard] for shard in shards if shard in self.shards]
        unknown = [shard for shard in shards if shard not in self.shards]
        hosted = [h for h in known if not h.stopping]
        self._take_out([h for h in hosted if h.open])
        for h in hosted:
            h.arrivals, h.stopping = False, reason
            for activation in list(h.activations.values()):
                self._end(activation, reason)
            for activation in self.memory.abandon(h) if self.memory is not None else ():
                activation.stopping = activation.stopping or reason
                self.execution.settle(activation)
            self._maybe_down(h)
        left = [h for h in known if self.shards.get(h.shard) is h]
        patience = self.patience if patience is None else patience
        if left and patience > 0:
            self.loop.call_later(patience, self._cut_off, left)
        elif left:
            self._cut_off(left)
        for shard in unknown:
            self._on_down(shard)

    def _cut_off(self, shards: list[Shard]) -> None:
        for hosted in shards:
            if self.shards.get(hosted.shard) is hosted:
                for activation in list(hosted.activations.values()):
                    activation.gone = True  # no new incarnation
                    self.stopper.cut_off(activation)
                if self.memory is not None:
                    self.memory.close(hosted)
                self._maybe_down(hosted)

    def _maybe_down(self, hosted: Shard) -> None:
        if hosted.stopping and not hosted.activations and self.shards.get(hosted.shard) is hosted:
            if self.memory is not None:
                if self.memory.busy(hosted):
                    return
                self.memory.close(hosted)
            del self.shards[hosted.shard]
            self._on_down(hosted.shard)

    # ---- entities

    def find(self, entity_id: str, shard: str) -> Context | None:
        """The entity if it is in memory."""
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
    ) -> Context:
        """Start an entity that is not in memory; it begins with what is in its mailbox. `chain`:
        the entities that wait for that."""
        activation = Context(self, hosted, entity_id)
        activation.mailbox = mailbox
        if mailbox is not None:
            self.execution.mailbox_limits.has_mailbox(activation)
        (self.active if hosted.open else hosted.activations)[entity_id] = activation
        hosted.live += 1
        activation.used = self.execution.tick
        if self.passivator.limited:
            self.passivator.started(activation)
        started = self.counts.started
        started[cause] = started.get(cause, 0) + 1
        if self.memory is None or self.memory.knows(hosted, entity_id):
            self._begin(activation, chain)
        else:
            activation.busy = True
            self.memory.add(hosted, activation)
        return activation

    def _begin(self, activation: Context, chain: Chain = ()) -> None:
        self.execution.start(activation, chain)
        if activation.mailbox and not activation.busy:
            self.execution.settle_soon(activation)

    def _remembered(self, activation: Context) -> None:
        """The store knows the entity now. If its shard shall stop already, it still handles what
        has come for it."""
        if activation.gone:
            return
        reason, activation.stopping, activation.busy = activation.stopping, None, False
        self._begin(activation)
        if reason is not None:
            self.stopper.stop(activation, reason)

    def _revive(self, hosted: Shard, entity_id: str) -> Context | None:
        """Start a remembered entity, if it does not run and its shard is still here."""
        here = self.shards.get(hosted.shard) is hosted and not hosted.stopping
        if self.memory is None or not here or not self.memory.knows(hosted, entity_id):
            return None
        if self.find(entity_id, hosted.shard) is not None:
            return None
        if self._shard_of(entity_id) != hosted.shard:
            self._relocation.move(hosted, entity_id)
            return None
        return self.activate(hosted, entity_id, "remembered")

    def _end(self, activation: Context, reason: StopReason) -> None:
        self.passivator.forget(activation)
        self.stopper.end(activation, reason)

    def _passivate(self, activation: Context) -> None:
        if self.execution.abandoned(activation):  # there is nobody who could be told
            self.passivator.forget(activation)
            self.execution.give_up(activation)
        else:
            self._end(activation, StopReason.PASSIVATION)

    def _gone(self, activation: Context) -> None:
        """It has stopped. What still waits for it starts a new incarnation."""
        hosted = activation.shard
        if self.active.get(activation.entity_id) is activation:
            del self.active[activation.entity_id]
        elif hosted.activations.get(activation.entity_id) is activation:
            del hosted.activations[activation.entity_id]
        else:
            return
        hosted.live -= 1
        reason = (
            activation.stopping.value
            if activation.stopping is not None
            else StopReason.FAILURE.value
        )
        self.counts.stopped[reason] = self.counts.stopped.get(reason, 0) + 1
        activation.end_incarnation()
        self.passivator.forget(activation)
        self.stopper.ended(activation)
        waiting = list(activation.mailbox or ())
        activation.busy, activation.mailbox, activation.entity = True, None, None
        if activation.extras is not None:
            waiting = activation.extras.stash + waiting
        waiting = [m for m in waiting if not m.own]
        returns = activation.refusal is None and self._may_return(activation)
        refuses, activation.gone = activation.gone or not returns, True
        if waiting and not refuses:
            again = self.activate(hosted, activation.entity_id, "restart", deque(waiting))
            if hosted.stopping is not None:
                self._end(again, hosted.stopping)
        elif self.memory is not None and not hosted.stopping:
            self._stopped_alone(self.memory, hosted, activation)
        if waiting and refuses:
            self._leave(hosted, activation, waiting)
        self._maybe_down(hosted)

    def _leave(self, hosted: Shard, activation: Context, messages: list[Message]) -> None:
        """Nobody handles these here any more."""
        entity_id, failure = activation.entity_id, activation.refusal
        if self.passes_on and hosted.stopping in MOVES:
            left = self._left.setdefault(hosted.shard, [])
            left.extend((entity_id, message) for message in messages)
            return
        for message in messages:
            self.counts.drop("stopped" if failure is None else "start_failed", via=message.corr)
            if message.session is not None:
                stopped = Unhandled(f"{self.name} {entity_id!r} stopped")
                error = stopped if failure is None else told(activation, failure)
                message.session.fail(message.corr, error)

    def take_left(self, shard: str) -> list[tuple[str, Message]]:
        """What was not handled of a shard that has stopped, by entity id, each entity's in
        order."""
        return self._left.pop(shard, [])

    def _may_return(self, activation: Context) -> bool:
        """Whether what waits for an entity that has stopped starts a new incarnation. In a shard
        that stops only if it went of its own accord or by a failure, not because of the shard."""
        hosted = activation.shard
        if hosted.stopping is None:
            return True
        listed = self.memory is None or self.memory.knows(hosted, activation.entity_id)
        alone = activation.stopping in AFTER_CURRENT and activation.stopping is not hosted.stopping
        return listed and (
            alone or (activation.stop_request is not None and activation.stop_request.holds)
        )

    def _stopped_alone(
        self, memory: RememberedEntities, hosted: Shard, activation: Context
    ) -> None:
        """A remembered entity stopped and its shard did not: it is forgotten if it wanted to be,
        else it comes back."""
        if activation.stopping is StopReason.PASSIVATION:
            memory.forget(hosted, activation.entity_id)
        elif activation.entity_id not in hosted.returning:  # each stop would begin a row of its own
            hosted.returning.add(activation.entity_id)
            backoff = self.settings.entity_restart_backoff
            self.loop.call_later(backoff, self._return, hosted, activation.entity_id)

    def _return(self, hosted: Shard, entity_id: str) -> None:
        hosted.returning.discard(entity_id)
        self._revive(hosted, entity_id)

    def close(self) -> None:
        """The process ends."""
        if self.memory is not None:
            self.memory.stop()
            self._relocation.stop()
        self.recovery.stop()
        self.deferred.close()
        self.execution.close()
        self.passivator.stop()

    # ---- what contexts ask for

    def tell_self(self, activation: Context, method: str, payload: bytes) -> None:
        """A timer's message to its own entity."""
        if self.find(activation.entity_id, activation.shard.shard) is not activation:
            return
        invoker = self.kind.invokers.get(method) or self.kind.invokers.get("")
        if invoker is None:
            self.counts.drop("unhandled")
        else:
            self.stopper.tell(activation, Message(invoker, payload, None, OWN, 0))

    async def save(self, activation: Context, data: bytes | None) -> None:
        """Write the entity's state under its fence."""
        try:
            await self._keeper.save(self.name, activation.entity_id, activation.shard.fence, data)
        except StaleFence:
            activation.stopping = activation.stopping or StopReason.FAILURE
            raise

    # ---- time, and what is shown

    def sweeps(self, tick: int) -> dict[str, Callable[[], None]]:
        """What is to be done about once a second: look what is in mailboxes, cut off who does not
        stop, passivate who shall not stay."""
        return {
            "mailboxes": self.execution.mailbox_limits.sweep,
            "ends": partial(self.stopper.sweep, tick),
            "residents": partial(self.passivator.sweep, tick),
        }

    def set_active_entity_limit(self, limit: int) -> None:
        """Another limit on the entities in memory here, from now on; 0 for none.

        Raises:
            Refused: entities of this type are remembered.
        """
        here = [h for h in self.shards.values() if not h.stopping]
        closed = [activation for h in here for activation in h.activations.values()]
        self.passivator.resize(limit, [*self.active.values(), *closed])

    @property
    def entities(self) -> int:
        """How many are in memory."""
        return sum(hosted.live for hosted in self.shards.values())

    def ids(self, shard: str) -> list[str]:
        """The entities of a shard that are in memory."""
        hosted = self.shards.get(shard)
        if hosted is None:
            return []
        return list(hosted.activations) + [i for i, c in self.active.items() if c.shard is hosted]
