"""Deliveries that the entities of one type send themselves (`Entity.deliver`).

    handler      deliver ──> pending in the record, in memory
                 save    ──> listed in the store ──> stored with the state ──> sent
    confirmed    ──> no longer pending; the next save stores that
    quiet        ──> stored without it by a save of this module ──> off the list

An entity with pending deliveries has a `DeliverySender` of its own, under the name in its record.
While any is pending the entity stays in memory, and starts again when it stops. The list, one per
shard like the list of remembered entities, is ahead of the state: the next home of the shard reads
it and starts these entities, which find their deliveries in their records.

The save of a quiet entity writes the state that was stored last, not the one in memory, which a
handler may have changed and not saved. It is made between two messages, as one of the entity's own:
if its outcome is unknown, the entity starts again, so that a late write never follows a newer one.

**A save in doubt**, because the store has not answered, or the handler has given it up, may have
stored deliveries. If the handler goes on all the same, the entity reads its record in the store
before its next message, and sends the ones that are there.

An entity that is not on the list waits for that in its save, for at most `LISTED_WITHIN_S`.

Source: docs/how-to/deliver.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import count
from types import CodeType
from typing import Any, TypeVar
from zlib import crc32

from shardbus.config.settings import DeliverySettings, ShardingSettings
from shardbus.deliveries.producer import DeliveryEnd
from shardbus.deliveries.record import DeliveryRecord, PendingDelivery
from shardbus.entities.activation import Activation, LifeState, Message, Shard
from shardbus.entities.entity_type import EntityType, Invoker, layers
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.remembering import RememberedEntities
from shardbus.error_text import text_of
from shardbus.errors import ConfigError, ShardBusError, StoreUnavailable
from shardbus.guarded_log import GuardedLog
from shardbus.routing.delivering import DeliveryCounts, DeliverySender
from shardbus.store.protocol import StateStore
from shardbus.transport.drop_reports import Origin
from shardbus.wire.stored_state import split_record

log = GuardedLog("shardbus.entity")

T = TypeVar("T")

SETTLE = "$deliveries"
"""The name of the invoker of such a message. No handler has this name."""
LISTED_WITHIN_S = 5.0
LIST = "!deliveries"
"""Behind the name of a type: the name under which the store lists its entities with pending
deliveries."""


def _same(argument: T, payload: bytes) -> T:
    """Return the argument of a message of this module, which its payload does not have."""
    return argument


def delivers(kind: EntityType) -> bool:
    """True if entities of the type may have pending deliveries in the store: they have a state, and
    a method of their class uses a name `deliver`. Only then the store is asked for them, at each
    start of a shard and when a coordinator begins to rule."""
    return kind.states is not None and any(
        "deliver" in code.co_names
        for base in kind.cls.__mro__
        if base.__module__ != "shardbus.entity"
        for value in vars(base).values()
        for code in _codes_of(value)
    )


def _codes_of(value: Any) -> Iterator[CodeType]:
    """Yield the code of a method and of the functions in it."""
    for function in (value, getattr(value, "function", None), getattr(value, "fget", None)):
        if not callable(function):
            continue
        waiting = [getattr(layer, "__code__", None) for layer in layers(function)]
        while waiting:
            code = waiting.pop()
            if isinstance(code, CodeType):
                yield code
                waiting += code.co_consts


class Outgoing:
    """The deliveries of one entity. `stored`: its state as the store has it, without a record."""

    __slots__ = ("saves", "sender", "stored")

    def __init__(self, sender: DeliverySender) -> None:
        self.sender = sender
        self.stored: bytes | None = None
        self.saves = 0
        """Saves under way."""


class EntitySends:
    """Delivers for the entities of one type on one node. `activate(hosted, entity_id)` starts one,
    `ref(type, id)` makes a reference, `settled(hosted)` is called when a shard's list has no write
    under way any more."""

    def __init__(
        self,
        kind: EntityType,
        node_name: str,
        settings: ShardingSettings,
        delivery: DeliverySettings,
        counts: DeliveryCounts,
        loop: asyncio.AbstractEventLoop,
        store: StateStore,
        gate: SuspensionGate,
        ref: Callable[[Any, str], Any],
        activate: Callable[[Shard, str], Activation | None],
        settled: Callable[[Shard], None],
        start_elsewhere: Callable[[str], Awaitable[None]],
    ) -> None:
        self._kind, self._delivery = kind, delivery
        self._counts, self._loop, self._ref = counts, loop, ref
        self.names = (f"{node_name}/{crc32(kind.name.encode()):x}.{n}" for n in count(1))
        """Names for producers, which no other one has or had."""
        self._outgoing: dict[Activation, Outgoing] = {}
        self._listed: dict[Activation, list[asyncio.Future[None]]] = {}
        self.lists = RememberedEntities(
            kind.name + LIST,
            store,
            loop,
            settings,
            gate,
            start=self._on_listed,
            settled=settled,
            start_elsewhere=start_elsewhere,
            again=activate,
        )

    @property
    def unconfirmed(self) -> int:
        """Deliveries of entities here that are sent and not confirmed."""
        return sum(outgoing.sender.unconfirmed for outgoing in self._outgoing.values())

    # ---- saves

    async def before_save(self, activation: Activation) -> None:
        """Wait until an entity is listed that has pending deliveries to store.

        Raises:
            StoreUnavailable: it is not in time. Nothing was saved.
        """
        hosted = activation.shard
        record = hosted.records[activation.key]
        if not record.pending or self.lists.knows(hosted, activation.key):
            return
        listed: asyncio.Future[None] = self._loop.create_future()
        waiting = self._listed.setdefault(activation, [])
        waiting.append(listed)
        if len(waiting) == 1:
            self.lists.add(hosted, activation)
        try:
            async with asyncio.timeout(LISTED_WITHIN_S):
                await listed
        except TimeoutError:
            text = f"{self._kind.name} {activation.key!r:.100} is not listed for its deliveries"
            hint = "see why the store does not answer"
            raise StoreUnavailable(text, hint=hint, definite=True) from None

    def _on_listed(self, activation: Activation) -> None:
        for waiter in self._listed.pop(activation, ()):
            if not waiter.done():
                waiter.set_result(None)

    def begins(self, activation: Activation) -> None:
        """Note that a save is under way."""
        if (outgoing := self._outgoing.get(activation)) is not None:
            outgoing.saves += 1

    def ended(self, activation: Activation) -> None:
        """Note that a save has ended."""
        outgoing = self._outgoing.get(activation)
        if outgoing is not None and outgoing.saves:
            outgoing.saves -= 1

    def saved(
        self, activation: Activation, record: DeliveryRecord, last: int, data: bytes | None
    ) -> None:
        """Send the deliveries up to the number `last`, which the store has now with the state
        `data`."""
        if activation.state is LifeState.GONE:
            return
        outgoing = self._outgoing.get(activation)
        if outgoing is not None:
            outgoing.stored = data
        if not record.pending and outgoing is None:
            return
        if outgoing is None:
            outgoing = self._open(activation, record)
            outgoing.stored = data
        self._send(activation, outgoing, record, last)

    def doubt(self, activation: Activation, record: DeliveryRecord, last: int) -> None:
        """Note that the store may have the record with the deliveries up to the number `last`."""
        if last > record.last_stored or activation in self._outgoing:
            invoker = Invoker(
                SETTLE, self._read_again, True, {}, decode_message=partial(_same, record)
            )
            message = Message(invoker, b"", None, Origin.OWN, 0)
            if activation.state < LifeState.STOPPING:
                activation.shard.host.runner.receive_next(activation, message)

    async def _read_again(self, entity: Any, record: DeliveryRecord) -> None:
        """Send the deliveries that a save in doubt has stored, as the handler of a message. If the
        store does not answer, the entity starts again, and finds them."""
        activation: Activation = entity.context._of()
        if activation.shard.records.get(activation.key) is not record:
            return  # it has started again
        data = await activation.shard.host.saver.stored(entity.context)
        stored, alone = split_record(data) if data else (b"", b"")
        last = DeliveryRecord.of(stored).last
        record.last_stored = max(record.last_stored, last)
        self.saved(activation, record, last, alone or None)

    def loaded(self, activation: Activation, record: DeliveryRecord, data: bytes | None) -> None:
        """Send the deliveries that are pending in an entity's record. `data`: its state, as
        stored."""
        outgoing = self._outgoing.get(activation)
        if outgoing is None:
            if not record.pending:
                if self.lists.knows(activation.shard, activation.key):
                    self.lists.forget(activation.shard, activation.key)
                return
            outgoing = self._open(activation, record)
        outgoing.stored = data
        self._send(activation, outgoing, record, record.last)

    def runs_already(self, activation: Activation) -> None:
        """Take an entity off the list that was loaded, without pending deliveries, before its shard
        had read the list."""
        if activation.state is not LifeState.RUNNING or activation in self._outgoing:
            return
        record = activation.shard.records.get(activation.key)
        if record is None or not record.pending:
            self.lists.forget(activation.shard, activation.key)

    def _open(self, activation: Activation, record: DeliveryRecord) -> Outgoing:
        sender = DeliverySender(record.producer, self._delivery, self._counts, self._loop)
        outgoing = self._outgoing[activation] = Outgoing(sender)
        return outgoing

    def _send(
        self, activation: Activation, outgoing: Outgoing, record: DeliveryRecord, last: int
    ) -> None:
        """Offer each stored delivery that was not offered yet, and settle each one that has ended
        since it was stored."""
        producer = outgoing.sender.producer
        open_now = {seq for line in producer.lines.values() for seq in line.numbers()}
        for pending in list(record.pending.values()):
            if pending.seq > last:
                return
            if pending.seq <= producer.last:
                if pending.seq not in open_now:
                    record.settle(pending.seq)
                continue
            try:
                sender = self._ref(pending.entity_type, pending.entity_id)._sender
                end = partial(self._on_end, activation, pending)
                method, payload = pending.method, pending.payload
                letter = outgoing.sender.letter(sender, pending.entity_id, method, payload, end)
                target = (pending.entity_type, pending.entity_id)
                outgoing.sender.offer(letter, target, seq=pending.seq)
            except ShardBusError as error:
                log.warning(
                    "%s %r cannot deliver: %s", self._kind.name, activation.key, text_of(error)
                )
                return

    def _on_end(
        self,
        activation: Activation,
        pending: PendingDelivery,
        end: DeliveryEnd,
        error: BaseException | None,
    ) -> None:
        record = activation.shard.records.get(activation.key)
        if end is DeliveryEnd.CLOSED or record is None or activation not in self._outgoing:
            return
        record.settle(pending.seq)
        if end is not DeliveryEnd.CONFIRMED:
            log.error(
                "%s %r: a delivery to %s %r is given up, %s: %s",
                self._kind.name,
                activation.key,
                pending.entity_type,
                pending.entity_id,
                end.value,
                "" if error is None else text_of(error),
            )

    # ---- activations

    def gone(self, activation: Activation) -> bool:
        """Forget an activation that has left memory. Returns True if it had pending deliveries."""
        outgoing = self._outgoing.pop(activation, None)
        self._listed.pop(activation, None)
        if outgoing is None:
            return False
        outgoing.sender.abandon()
        record = activation.shard.records.get(activation.key)
        return record is not None and bool(record.pending)

    def sweep(self, tick: int) -> None:
        """Keep entities with pending deliveries in memory; store that others have none, and take
        them off the list. Called about once a second."""
        for activation, outgoing in list(self._outgoing.items()):
            record = activation.shard.records.get(activation.key)
            if record is None:
                continue
            if record.pending:
                activation.used = tick
            elif not activation.busy and activation.shard.stopping is None:
                settle = partial(self._settle, activation)
                invoker = Invoker(SETTLE, settle, True, {}, decode_message=partial(_same, outgoing))
                message = Message(invoker, b"", None, Origin.OWN, 0)
                activation.shard.host.runner.receive(activation, message, counts=False)

    async def _settle(self, activation: Activation, entity: Any, outgoing: Outgoing) -> None:
        """Store a record without pending deliveries, as the handler of a message. If the store does
        not answer, the entity starts again with its stored state, as after any save."""
        hosted, key = activation.shard, activation.key
        record = hosted.records.get(key)
        if record is None or record.pending or self._outgoing.get(activation) is not outgoing:
            return
        await hosted.host.saver.save(entity.context, outgoing.stored)
        if not record.pending and not outgoing.saves and hosted.records.get(key) is record:
            del self._outgoing[activation]
            outgoing.sender.abandon()
            self.lists.forget(hosted, key)

    def close(self) -> None:
        """Cancel everything: the node ends."""
        self.lists.stop()
        for outgoing in self._outgoing.values():
            outgoing.sender.abandon()
        self._outgoing.clear()


def not_declared(kind: str) -> ConfigError:
    """Return the error for a delivery of an entity that cannot keep it."""
    return ConfigError(
        f"{kind} cannot deliver: it has no state of its own to keep deliveries in, or no method of"
        " its class uses a name `deliver`",
        hint="declare `state`, and call self.deliver in a method of the class",
    )
