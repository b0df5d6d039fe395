"""Deliveries at their entity: the shell of `deliveries.record`.

Each handler has a second invoker, under its name with `MARK`. It reads the number of the delivery,
decides by the record, calls the handler, and answers when the delivery is done:

    entity with state       a save that the handler awaits stores the record with the state; if it
                            has not saved, this invoker does, after it has returned
    event-sourced entity    so does a persist, which stores the number beside the events; a replay
                            adds it to the record of the snapshot
    entity without state    the handler has returned; the record is in the memory of the shard

So the confirmation is never ahead of the save, and the effect is never stored without the number.
Which save belongs to the delivery follows from a context variable: a task of an earlier message may
save while the handler runs, and must not make its delivery done.

A handler that raises before a save leaves nothing behind: the entity starts again with its stored
state and record. After a save the delivery is done, and its sender gets the error once. A rejection
is an answer: done.

**Moves.** The record of an entity with state is loaded with it. The records of a type without state
go ahead of the messages that a shard leaves for its next home, as messages (`RECORD`).

**Deliveries of an entity** (`Entity.deliver`) are in its record until they are confirmed. They are
sent once a save has stored them; a new activation finds them there and sends them again, under the
same numbers. An entity is listed in the store before its first pending delivery is stored, so that
the next home of its shard starts it; it leaves the list when nothing has been pending for a while.

Source: docs/how-to/deliver.md.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import msgspec

from shardbus.config.settings import DeliverySettings
from shardbus.deliveries.numbers import (
    APPLIED,
    LOST_RESULT,
    MARK,
    REPEATED,
    STALE,
    DeliveryNumber,
    KeyedAsk,
    NumberKind,
    gap,
    other_request,
    read_number,
    result,
)
from shardbus.deliveries.record import (
    FIRING,
    DeliveryRecord,
    DoneDelivery,
    ReceiverDecision,
    ResultForm,
    decode_done,
    encode_done,
    request_mark,
)
from shardbus.entities.activation import Activation, Shard
from shardbus.entities.activation import Message as PlainMessage
from shardbus.entities.durable_mailboxes import RECORD, DurableMailboxes
from shardbus.entities.entity_sends import EntitySends, not_declared
from shardbus.entities.entity_type import EntityType, Invoker
from shardbus.entities.unfinished_work import finish, is_unfinished
from shardbus.error_text import is_a
from shardbus.errors import Refused, Rejection, SchemaError
from shardbus.quantities import counted
from shardbus.routing.refs import START
from shardbus.tasks.context_variables import restore
from shardbus.wire.rejections import decode_rejection, encode_rejection
from shardbus.wire.schema import decode_value
from shardbus.wire.stored_state import split_record, with_record

RECORDS_MAX = 100_000
"""Records of entities without state that one node keeps for one type."""
RECORDS_MOVED_MAX = 1000
"""Records of entities without state that go to the next home of one shard: the latest."""
POISON_MAX = 10
"""The last deliveries to entities of one type that were skipped as poison, on one node."""
_SKIP, _HANDLE = int(NumberKind.SKIP), ReceiverDecision.HANDLE
"""A look-up of a global costs less than one in an enumeration."""
_Refusal = tuple[str, str, bytes]
_write_refusal = msgspec.msgpack.Encoder().encode
_read_refusal = msgspec.msgpack.Decoder(_Refusal).decode


class Handling(msgspec.Struct, eq=False):
    """A delivery that a handler works on."""

    activation: Activation
    number: DeliveryNumber | None
    key: str
    """Of a keyed ask; else empty."""
    mark: bytes = b""
    """Of the request of a keyed ask."""
    stored: bool = False
    """A save has stored that it is done."""
    data: bytes | None = None
    """The state in that save."""


class PoisonDelivery(NamedTuple):
    """A delivery that was skipped. `at`: seconds since 1970."""

    at: float
    entity_id: str
    method: str
    producer: str


HANDLING: ContextVar[Handling | None] = ContextVar("shardbus delivery", default=None)
Message = tuple[DeliveryNumber | KeyedAsk, tuple[Any, ...]]
"""A delivery, and the arguments of its handler."""


def record_of(activation: Activation) -> DeliveryRecord:
    """Return the record of an entity, made if there is none."""
    records = activation.shard.records
    record = records.get(activation.key)
    if record is None:
        record = records[activation.key] = DeliveryRecord()
    return record


class EntityDeliveries:
    """Deliveries to the entities of one type on one node. `wall_clock` returns the seconds since
    1970."""

    def __init__(
        self, kind: EntityType, settings: DeliverySettings, wall_clock: Callable[[], float]
    ) -> None:
        self._kind, self._settings, self._wall_clock = kind, settings, wall_clock
        self.sends: EntitySends | None = None
        """The deliveries of the entities themselves; None if their class sends none."""
        self.mailboxes: DurableMailboxes | None = None
        """The durable mailboxes of the entities; None if their type has none."""
        self.receive: Callable[[Activation, PlainMessage], None]
        """Takes a message of others for an entity."""
        self.decisions: Counter[str] = Counter()
        """Deliveries that were not handled, by decision, and rows that were forgotten."""
        self.poison: deque[PoisonDelivery] = deque(maxlen=POISON_MAX)
        self.invokers: Mapping[str, Invoker] = {**kind.invokers, **self._invokers()}
        """By method, of plain messages and of deliveries."""

    def store_messages(
        self,
        receive: Callable[[Activation, PlainMessage], None],
        mailboxes: DurableMailboxes | None,
    ) -> None:
        """Take messages by `receive`, or by these mailboxes in front of the entities. Called once,
        before any message comes."""
        self.mailboxes = mailboxes
        self.receive = receive if mailboxes is None else mailboxes.take

    def find_direct(
        self, find: Callable[[str], Activation | None]
    ) -> Callable[[str], Activation | None]:
        """Return the function that finds entities for messages that their senders await: `find`, or
        one that finds none of a type whose messages go by its mailboxes."""
        return find if self.mailboxes is None else lambda entity_id: None

    def is_settled(self, hosted: Shard) -> bool:
        """True if no mailbox of a shard that stops has work under way."""
        return self.mailboxes is None or self.mailboxes.is_settled(hosted)

    def refuse_with_messages(self, hosted: Shard, entity_id: str) -> None:
        """Let no operator remove a state without a word on the messages that wait for it.

        Raises:
            Refused: messages wait in the durable mailbox of the entity.
        """
        waiting = 0 if self.mailboxes is None else self.mailboxes.waiting_of(hosted, entity_id)
        if waiting:
            raise waiting_messages(self._kind.name, entity_id, waiting)

    @property
    def unstored(self) -> int:
        """Messages that wait in front of their entities, and are not stored."""
        return 0 if self.mailboxes is None else self.mailboxes.unstored

    # ---- invokers

    def _invokers(self) -> dict[str, Invoker]:
        """Return the invokers of deliveries, by method."""
        invokers = {
            MARK + name: self._delivering(name, invoker)
            for name, invoker in self._kind.invokers.items()
            if name != START
        }
        if MARK not in invokers:
            invokers[MARK] = self._naming()
        invokers[RECORD] = Invoker(RECORD, lambda entity, record: None, False, {}, lambda b: b)
        return invokers

    def _delivering(self, name: str, invoker: Invoker) -> Invoker:
        read = _reader(invoker)
        plain = self._kind.states is None and invoker.never_waits
        handle = self._handle_plain if plain else self._handle
        return Invoker(
            MARK + name,
            partial(handle, invoker),
            not plain,
            {},
            read,
            returns_values=True,
            encode=_as_it_is,
        )

    def _naming(self) -> Invoker:
        """Return the invoker of plain messages to a type without `receive`: a text names a handler
        without arguments, as in a tell."""
        invokers = self._kind.invokers

        def read(payload: bytes | DeliveryNumber) -> tuple[Invoker, Message]:
            number = payload if isinstance(payload, DeliveryNumber) else read_number(payload)
            named = invokers.get(str(decode_value(number.arguments)))
            if named is None or named.name == START:
                raise SchemaError(f"{self._kind.name} has no receive, and no such handler")
            return named, (number, named.decoders[0x90](b"\x90"))

        async def handle(entity: Any, named: tuple[Invoker, Message]) -> bytes:
            return await self._handle(named[0], entity, named[1])

        return Invoker(MARK, handle, True, {}, read, returns_values=True, encode=_as_it_is)

    # ---- handling

    def _decide(
        self,
        activation: Activation,
        invoker: Invoker,
        number: DeliveryNumber | KeyedAsk,
        mark: bytes,
    ) -> bytes | None:
        """Return the answer to a delivery that is not to be handled; None if it is.

        Raises:
            Rejection: the kept answer of a keyed ask.
        """
        record = record_of(activation)
        if isinstance(number, KeyedAsk):
            kept = record.results.get(number.key)
            if kept is None:
                return None
            if not kept.is_of(mark):
                self.decisions["key_reused"] += 1
                return other_request(invoker.name)
            self.decisions["repeated"] += 1
            if kept.form == ResultForm.REJECTION:
                raise decode_rejection(*_read_refusal(kept.payload))
            return LOST_RESULT if kept.form == ResultForm.UNKNOWN else result(kept.payload)
        decision = record.decide(number)
        if decision is ReceiverDecision.HANDLE:
            return None
        self.decisions[decision.value] += 1
        if decision is ReceiverDecision.GAP:
            return gap(record.done_of(number.producer))
        return REPEATED if decision is ReceiverDecision.REPEATED else STALE

    def _handle_plain(self, invoker: Invoker, entity: Any, message: Message) -> bytes:
        """Handle a delivery to an entity without state, by a function that returns a value."""
        number, arguments = message
        activation: Activation = entity.context._of()
        record = record_of(activation)
        numbered = number.__class__ is DeliveryNumber
        mark = b"" if numbered else request_mark(invoker.name, number.arguments)
        if not numbered or record.decide(number) is not _HANDLE:  # type: ignore[arg-type]
            answer = self._decide(activation, invoker, number, mark)
            if answer is not None:
                return answer
        if numbered and number.kind == _SKIP:  # type: ignore[union-attr]
            self._skipped(activation, invoker, number)  # type: ignore[arg-type]
            return self._done(activation, number, mark, None)
        try:
            value = invoker.function(entity, *arguments)
        except BaseException as error:
            if is_a(error, Rejection):
                self._refused(activation, number, mark, error)
            raise
        if not numbered:
            return self._done(activation, number, mark, (invoker, value))
        self._mark(activation, record, number, int(self._wall_clock()))  # type: ignore[arg-type]
        return APPLIED

    async def _handle(self, invoker: Invoker, entity: Any, message: Message) -> bytes:
        """Handle a delivery in any way that a handler may have."""
        number, arguments = message
        activation: Activation = entity.context._of()
        numbered = number.__class__ is DeliveryNumber
        mark = b"" if numbered else request_mark(invoker.name, number.arguments)
        if not numbered or record_of(activation).decide(number) is not _HANDLE:  # type: ignore[arg-type]
            answer = self._decide(activation, invoker, number, mark)
            if answer is not None:
                return answer
        if isinstance(number, KeyedAsk):
            keyed, skips, handling = True, False, Handling(activation, None, number.key, mark)
        else:
            keyed, skips = False, number.kind == _SKIP
            handling = Handling(activation, number, "")
        token = None if self._kind.states is None else HANDLING.set(handling)
        try:
            value = None
            if not skips:
                value = invoker.function(entity, *arguments)
                if invoker.is_async:
                    value = await value
                while not invoker.returns_values and is_unfinished(value):
                    value = await finish(value)
                if activation.extras is not None and activation.extras.stashed:
                    return APPLIED  # not sent: the message is handled, and answered, later
            if handling.stored and not keyed:
                return APPLIED
            answer = self._done(activation, number, mark, None if skips else (invoker, value))
            if keyed or not handling.stored:
                await self._save(entity, handling)
            if skips:
                self._skipped(activation, invoker, number)  # type: ignore[arg-type]
            return answer
        except BaseException as error:
            if is_a(error, Rejection):
                activation.shard.host.runner.revert(activation)
                self._refused(activation, number, mark, error)
                if keyed or not handling.stored:
                    await self._save(entity, handling)
            raise
        finally:
            if token is not None:
                restore(HANDLING, token)

    def _skipped(self, activation: Activation, invoker: Invoker, number: DeliveryNumber) -> None:
        """Note that a delivery is done and was not handled: its producer gives it up."""
        self.decisions["skipped"] += 1
        now, method, producer = self._wall_clock(), invoker.name, number.producer
        self.poison.append(PoisonDelivery(now, activation.key, method, producer))

    async def _save(self, entity: Any, handling: Handling) -> None:
        """Store the record with the state of the handler's own save, which may have removed it; if
        it made none, as the state is now."""
        states = self._kind.states
        if self._kind.events is not None or self._kind.projection is not None:
            await entity.save()  # with its number: events would be folded or handled again
        elif states is not None:
            data = handling.data if handling.stored else states.write(entity.state)
            await entity.context._save(data)

    def _done(
        self,
        activation: Activation,
        number: DeliveryNumber | KeyedAsk,
        mark: bytes,
        answered: tuple[Invoker, Any] | None,
    ) -> bytes:
        """Note that a handler has returned, and return the answer."""
        record, now = record_of(activation), int(self._wall_clock())
        if isinstance(number, KeyedAsk):
            assert answered is not None
            payload = answered[0].encode(answered[1])
            record.keep(number.key, ResultForm.VALUE, payload, now, mark)
            self._age(activation, record, now)
            return result(payload)
        if self._kind.states is None:
            self._mark(activation, record, number, now)
        return APPLIED

    def _refused(
        self,
        activation: Activation,
        number: DeliveryNumber | KeyedAsk,
        mark: bytes,
        error: BaseException,
    ) -> None:
        """Note that a handler has refused."""
        record, now = record_of(activation), int(self._wall_clock())
        if isinstance(number, KeyedAsk):
            refusal = _write_refusal(encode_rejection(error))  # type: ignore[arg-type]
            record.keep(number.key, ResultForm.REJECTION, refusal, now, mark)
            self._age(activation, record, now)
        elif self._kind.states is None:
            self._mark(activation, record, number, now)

    def _mark(
        self, activation: Activation, record: DeliveryRecord, number: DeliveryNumber, now: int
    ) -> None:
        if record.mark(number, now):
            self._age(activation, record, now)

    def _age(self, activation: Activation, record: DeliveryRecord, now: int) -> None:
        """Forget old rows and results, and records above the bound."""
        before = record.forgotten
        record.age(now, self._settings.remember, self._settings.producers)
        self.decisions["forgotten"] += record.forgotten - before
        records = activation.shard.records
        while len(records) > RECORDS_MAX and self._kind.states is None:
            del records[next(iter(records))]
            self.decisions["forgotten"] += 1

    # ---- loads

    def loaded(self, activation: Activation, data: bytes | None) -> None:
        """Take the record that an entity with state has loaded with it, in the place of any other,
        and send the deliveries that are pending in it.

        Raises:
            ValueError: it is none.
        """
        stored, alone = split_record(data) if data else (b"", b"")
        records = activation.shard.records
        record = DeliveryRecord.of(stored)
        if stored:
            records[activation.key] = record
            self._age(activation, record, int(self._wall_clock()))
        elif records:
            records.pop(activation.key, None)
        if self.sends is not None:
            self.sends.loaded(activation, record, alone or None)

    # ---- deliveries of an entity

    def deliver(
        self, activation: Activation, target: tuple[str, str], method: str, payload: bytes
    ) -> None:
        """Add a delivery of an entity to its record. It is sent once a save has stored it.

        Raises:
            ConfigError: the entity cannot keep it. BufferFull: too many are pending.
        """
        if self.sends is None:
            raise not_declared(self._kind.name)
        record = record_of(activation)
        if not record.producer:
            record.producer = next(self.sends.names)
        record.add(*target, method, payload, int(self._wall_clock()))

    def revert(self, activation: Activation) -> None:
        """Forget the deliveries that a handler has added and not saved: it has raised."""
        record = activation.shard.records.get(activation.key)
        if record is not None and self.sends is not None:
            record.revert()

    # ---- saves

    def begin_save(self, activation: Activation, data: bytes | None) -> tuple[bytes, Saving]:
        """Return the stored form of a state, with the record as it is once this save has ended, and
        the argument for `end_save`."""
        record = activation.shard.records[activation.key]
        handling, number, key, mark, now = HANDLING.get(), None, "", b"", 0
        if handling is not None:
            if handling.activation is activation:
                number, now = handling.number, int(self._wall_clock())
                key, mark = handling.key, handling.mark
            else:
                handling = None
        stored = with_record(record.stored(number, key, now, mark), data)
        record.last_saved = record.last
        if self.sends is not None:
            self.sends.begins(activation)
        return stored, (record, handling, record.last, data)

    def fail_save(self, activation: Activation, saving: Saving, *, in_doubt: bool) -> None:
        """Note that the store lacks the state that `begin_save` returned, or may lack it."""
        if self.sends is not None:
            self.sends.ended(activation)
            record, _, last, _ = saving
            if in_doubt:
                self.sends.doubt(activation, record, last)

    def end_save(self, activation: Activation, saving: Saving) -> None:
        """Note that the store has the state that `begin_save` returned."""
        record, handling, last, data = saving
        record.last_stored = max(record.last_stored, last)
        if self.sends is not None:
            self.sends.ended(activation)
            self.sends.saved(activation, record, last, data)
        if handling is not None:
            handling.data = data
            self._stored(activation, record, handling, int(self._wall_clock()))

    def _stored(
        self, activation: Activation, record: DeliveryRecord, handling: Handling, now: int
    ) -> None:
        """Note that the store has the effect of a delivery."""
        handling.stored = True
        if handling.number is not None:
            self._mark(activation, record, handling.number, now)
        elif handling.key not in record.results:
            record.keep(handling.key, ResultForm.UNKNOWN, b"", now, handling.mark)
            self._age(activation, record, now)

    # ---- journals

    def begin_append(self, activation: Activation) -> tuple[bytes, Appending]:
        """Return the stored form of the delivery that an append of events makes done, empty for
        none, and the argument for `end_append`."""
        handling = HANDLING.get()
        if handling is None or handling.stored or handling.activation is not activation:
            return b"", None
        now = int(self._wall_clock())
        done = encode_done(handling.number, handling.key, now, handling.mark)
        return done, (handling, now)

    def end_append(self, activation: Activation, appending: Appending) -> None:
        """Note that the journal has the delivery that `begin_append` returned."""
        if appending is not None:
            self._stored(activation, record_of(activation), *appending)

    def replayed(self, activation: Activation, deliveries: list[bytes]) -> DoneDelivery | None:
        """Add to the record the deliveries that a journal has beside its events. Returns the last
        firing of a reminder among them.

        Raises:
            ValueError: one is unreadable.
        """
        firing = None
        if deliveries:
            record = record_of(activation)
            for data in deliveries:
                done = decode_done(data)
                if done.kind == FIRING:
                    firing = done
                else:
                    record.replay(done)
            self._age(activation, record, int(self._wall_clock()))
        return firing

    # ---- moves

    def leave(self, hosted: Shard) -> list[tuple[str, bytes]]:
        """Return the records of a shard without state that stops, for its next home."""
        if self._kind.states is not None:
            return []
        latest = [*hosted.records.items()][-RECORDS_MOVED_MAX:]
        return [(key, record.stored()) for key, record in latest if record]

    def adopt(self, hosted: Shard, entity_id: str, data: bytes) -> None:
        """Take a record of the shard's former home. Entries that this home has made since stay."""
        if self._kind.states is not None:
            return
        try:
            came = DeliveryRecord.of(data)
        except ValueError:
            return
        record = hosted.records.setdefault(entity_id, DeliveryRecord())
        for producer, row in came.done.items():
            number = DeliveryNumber(NumberKind.DELIVER, producer, row.era, row.seq, 0, b"")
            record.mark(number, row.used)
        for key, kept in came.results.items():
            record.results.setdefault(key, kept)


Saving = tuple[DeliveryRecord, Handling | None, int, bytes | None]
"""The record, the delivery at work, the number of the last delivery of the entity, and its state,
as they were when a save began."""
Appending = tuple[Handling, int] | None
"""The delivery at work, and the time in whole seconds since 1970, when an append began; None for an
append of no delivery."""


def waiting_messages(name: str, entity_id: str, waiting: int) -> Refused:
    """Return the refusal to remove the state of an entity for which messages wait."""
    messages = counted(waiting, "message waits", "messages wait")
    return Refused(
        f"{messages} in the durable mailbox of {name} {entity_id!r:.100}",
        hint="with --keep-messages an entity without that state handles them",
    )


def _as_it_is(answer: bytes) -> bytes:
    return answer


def _reader(invoker: Invoker) -> Callable[[Any], Message]:
    """Return a function that decodes a delivery and the arguments of its handler. It takes a
    delivery that a mailbox has decoded, too. It may raise anything."""
    decode, single, decoders = invoker.decode_message, invoker.single, invoker.decoders

    def read(payload: Any) -> Message:
        number: DeliveryNumber | KeyedAsk
        number = payload if payload.__class__ is DeliveryNumber else read_number(payload)
        if isinstance(number, DeliveryNumber) and number.kind == _SKIP:
            return number, ()
        body = number.arguments
        if single is not None:
            return number, single(body)
        if decode is not None:
            return number, (decode(body),)
        return number, decoders[body[0]](body)

    return read
