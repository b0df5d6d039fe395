"""The record of an entity: which deliveries have taken effect, of each producer.

An entity keeps, for each producer, the number of the last delivery that is done. The record is
written with the state, by the same save, so a delivery is done exactly if its effect is stored.

    number of a delivery            decision
    era below the stored one        STALE      another opener has taken the producer over
    seq up to `done`                REPEATED   confirmed again, not handled
    before above `done`             GAP        the producer sends again from there
    otherwise                       HANDLE

`before` is 0 if the producer has no unconfirmed delivery to this entity before this one. So a
producer whose row was forgotten needs nothing: its next delivery is handled. If an earlier delivery
is unconfirmed and there is no row, that one was not handled, and the next is a gap and not taken
for the first. So no delivery passes a failed one of its producer.

A delivery that is *done* is one whose number a save has stored; for an entity without state, one
whose handler has returned. One that was handled and not stored leaves the record as it is, and is
handled again.

**Keyed asks** keep their result for a time, and their key from the first save of their handler on.
If that was stored and the result was not, a repeated ask is not handled: it gets LOST_RESULT. A key
stands for one request, as an idempotency key of a payment service does: another handler or other
arguments under the same key are not handled, and get OTHER_REQUEST instead of a result that is not
theirs. Requests are compared by `request_mark`. A record of an earlier release has no mark, and
fits any request.

**Event-sourced entities** store their record with their snapshots. Each delivery that is done since
then stands beside its events in the journal (`DoneDelivery`), and a replay adds it to the record. A
firing of a reminder stands there in the same form, and is no part of the record.

**Deliveries of the entity itself** wait in the record until they are confirmed, with the numbers
that they are sent under. Their producer is named once, so its numbers never return.

Bounds: rows of producers and results that were not used for a time, and the least used above a
number, are forgotten. A delivery that is repeated after that may be handled twice. Pending
deliveries are bounded in number and bytes; the next one is refused.

Source: docs/how-to/deliver.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from hashlib import blake2b
from typing import Annotated

import msgspec

from shardbus.bounds import Uid
from shardbus.deliveries.numbers import UNREADABLE, DeliveryNumber, NumberKind, ProducerName
from shardbus.errors import BufferFull
from shardbus.quantities import counted

PENDING_MAX = 100
"""Deliveries of one entity that wait for their confirmation."""
PENDING_BYTES_MAX = 256 * 1024
RESULTS_MAX = 1000
"""Results of keyed asks that one entity keeps."""
RESULTS_BYTES_MAX = 256 * 1024
"""Bytes of the results that one entity keeps. A larger one is answered and not kept."""
COMPARED_MAX = 16 * 1024
"""Bytes of arguments that are compared by their values, and not by their length."""
MARK_BYTES = 8
RESULT_KEPT_S = 24 * 3600
"""Seconds for which a result is kept."""
FIRING = 3
"""The kind of a `DoneDelivery` that is a firing of a reminder; the others are of `NumberKind`."""


class ReceiverDecision(Enum):
    """How the receiver treats a delivery."""

    HANDLE = "handle"
    REPEATED = "repeated"
    GAP = "gap"
    STALE = "stale"


_HANDLE, _GAP = ReceiverDecision.HANDLE, ReceiverDecision.GAP
"""A look-up of a global costs less than one in an enumeration."""


class DoneRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The last delivery of one producer that is done. `used`: seconds since 1970."""

    era: Uid
    seq: Uid
    used: Uid


class KeptResult(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The result of a keyed ask. `form`: as `ResultForm`; `used`: seconds since 1970; `mark`: of
    its request, empty if it is not known."""

    used: Uid
    form: int
    payload: bytes
    mark: bytes = b""

    def is_of(self, mark: bytes) -> bool:
        """True if the result may be the one of this request."""
        return not self.mark or self.mark == mark


class ResultForm:
    """How the result of a keyed ask is kept."""

    UNKNOWN = 0
    """The handler has saved; its result was not stored."""
    VALUE = 1
    REJECTION = 2


class DoneDelivery(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A delivery that is done, or a keyed ask or a firing of a reminder whose handler has saved,
    beside the events of its handler. `used`: seconds since 1970."""

    kind: int
    """DELIVER or KEYED of `NumberKind`, or FIRING."""
    name: ProducerName
    """The producer's, or the key, or the `delivery` of the firing."""
    era: Uid
    seq: Uid
    """0 for a keyed ask; of a firing: when it began, in milliseconds since 1970."""
    used: Uid
    mark: bytes = b""
    """Of a keyed ask: its request's."""


class PendingDelivery(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A delivery of an entity that is not confirmed. `at`: seconds since 1970."""

    seq: Uid
    entity_type: str
    entity_id: str
    method: str
    payload: bytes
    at: Uid

    @property
    def size(self) -> int:
        """The bytes that it counts."""
        return len(self.payload) + len(self.entity_id) + len(self.method) + 32


class _Sends(msgspec.Struct, array_like=True, gc=False):
    producer: ProducerName
    last: Uid
    pending: list[PendingDelivery]


class _Stored(msgspec.Struct, array_like=True, gc=False):
    done: dict[ProducerName, DoneRow]
    results: dict[Annotated[str, msgspec.Meta(max_length=400)], KeptResult] = {}
    sends: _Sends | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode
_decode_any = msgspec.msgpack.Decoder().decode
_decode_done = msgspec.msgpack.Decoder(DoneDelivery).decode


def encode_done(number: DeliveryNumber | None, key: str, now: int, mark: bytes = b"") -> bytes:
    """Return the stored form of a delivery that is done with an append; without a number, of the
    keyed ask with this key and the mark of its request."""
    if number is None:
        return _encode(DoneDelivery(NumberKind.KEYED, key, 0, 0, now, mark))
    return _encode(DoneDelivery(NumberKind.DELIVER, number.producer, number.era, number.seq, now))


def encode_firing(delivery: str, at: int) -> bytes:
    """Return the stored form of a firing of a reminder that ends with an append. `at`: when it
    began, in milliseconds since 1970."""
    return _encode(DoneDelivery(FIRING, delivery, 0, at, at // 1000))


def decode_done(data: bytes) -> DoneDelivery:
    """Return the delivery that `encode_done` has written.

    Raises:
        ValueError: it is none.
    """
    try:
        done = _decode_done(data)
    except UNREADABLE as error:
        raise ValueError(f"the delivery of an event: {error}") from None
    if done.kind not in (NumberKind.DELIVER, NumberKind.KEYED, FIRING):
        raise ValueError(f"the delivery of an event has kind {done.kind}")
    return done


class DeliveryRecord:
    """The record of one entity. Times are in whole seconds of the wall clock."""

    __slots__ = (
        "done", "forgotten", "last", "last_saved", "last_stored", "pending", "producer", "results",
    )  # fmt: skip

    def __init__(self) -> None:
        self.done: dict[str, DoneRow] = {}
        """By producer, the least recently used one first."""
        self.results: dict[str, KeptResult] = {}
        """By key, the oldest first."""
        self.producer = ""
        """The name under which the entity itself delivers; empty if it never did."""
        self.last = 0
        """The number of its last delivery."""
        self.last_saved = 0
        """The number of its last delivery that a save was asked to store."""
        self.last_stored = 0
        """The number of its last delivery that a save has stored."""
        self.pending: dict[int, PendingDelivery] = {}
        """Its deliveries without a confirmation, by number."""
        self.forgotten = 0
        """Rows of producers, and results, that were forgotten."""

    def __bool__(self) -> bool:
        return bool(self.done or self.results or self.producer)

    # ---- deliveries to the entity

    def decide(self, number: DeliveryNumber) -> ReceiverDecision:
        """Return how to treat a delivery. Changes nothing."""
        row = self.done.get(number.producer)
        done = 0
        if row is not None:
            if number.era < row.era:
                return ReceiverDecision.STALE
            done = row.seq
        if number.seq <= done:
            return ReceiverDecision.REPEATED
        return _GAP if number.before > done else _HANDLE

    def done_of(self, producer: str) -> int:
        """Return the number of the last delivery of a producer that is done; 0 for none."""
        row = self.done.get(producer)
        return 0 if row is None else row.seq

    def mark(self, number: DeliveryNumber, now: int) -> bool:
        """Note that a delivery is done. It never takes a row back. Returns True if the row is
        new."""
        done, producer = self.done, number.producer
        row = done.pop(producer, None)
        done[producer] = _row_after(row, number, now)
        return row is None

    def replay(self, done: DoneDelivery) -> None:
        """Note a delivery, or a keyed ask, that the journal has beside the events of its
        handler."""
        if done.kind == NumberKind.KEYED:
            if done.name not in self.results:
                self.keep(done.name, ResultForm.UNKNOWN, b"", done.used, done.mark)
            return
        number = DeliveryNumber(NumberKind.DELIVER, done.name, done.era, done.seq, 0, b"")
        self.mark(number, done.used)

    # ---- keyed asks

    def keep(self, key: str, form: int, payload: bytes, now: int, mark: bytes = b"") -> None:
        """Keep the result of a keyed ask. One over the bound is kept without its payload."""
        if len(payload) > RESULTS_BYTES_MAX:
            form, payload = ResultForm.UNKNOWN, b""
        self.results.pop(key, None)
        self.results[key] = KeptResult(now, form, payload, mark)

    # ---- deliveries of the entity

    def add(
        self, entity_type: str, entity_id: str, method: str, payload: bytes, now: int
    ) -> PendingDelivery:
        """Add a delivery of the entity, which is sent once a save has stored it.

        Raises:
            BufferFull: too many wait, or too many bytes. Nothing was added.
        """
        pending = PendingDelivery(self.last + 1, entity_type, entity_id, method, payload, now)
        size = pending.size + sum(delivery.size for delivery in self.pending.values())
        if len(self.pending) >= PENDING_MAX or size > PENDING_BYTES_MAX:
            raise BufferFull(
                counted(
                    len(self.pending),
                    "delivery of this entity waits for its confirmation",
                    "deliveries of this entity wait for their confirmation",
                ),
                hint=f"at most {PENDING_MAX}, with {PENDING_BYTES_MAX} bytes",
            )
        self.last += 1
        self.pending[pending.seq] = pending
        return pending

    def revert(self) -> None:
        """Forget the deliveries of the entity that no save was asked to store."""
        for seq in range(self.last_saved + 1, self.last + 1):
            self.pending.pop(seq, None)
        self.last = self.last_saved

    @property
    def is_half_full(self) -> bool:
        """True if half of the room for pending deliveries is used."""
        size = sum(delivery.size for delivery in self.pending.values())
        return 2 * len(self.pending) >= PENDING_MAX or 2 * size >= PENDING_BYTES_MAX

    def settle(self, seq: int) -> None:
        """Forget a delivery of the entity that is confirmed, or given up."""
        self.pending.pop(seq, None)

    # ---- bounds and storage

    def age(self, now: int, remember: float, producers_max: int) -> None:
        """Forget rows and results that were not used for a time, and the oldest above a number."""
        self._forget(self.done, (p for p, row in self.done.items()), now - remember, producers_max)
        self._forget(self.results, iter(self.results), now - RESULT_KEPT_S, RESULTS_MAX)
        size = sum(len(kept.payload) for kept in self.results.values())
        while size > RESULTS_BYTES_MAX:
            size -= len(self.results.pop(next(iter(self.results))).payload)
            self.forgotten += 1

    def _forget(
        self,
        rows: dict[str, DoneRow] | dict[str, KeptResult],
        names: Iterable[str],
        since: float,
        most: int,
    ) -> None:
        """Forget the first rows that are too old or too many: rows are in the order of their
        use."""
        for name in list(names):
            if len(rows) <= most and rows[name].used >= since:
                return
            del rows[name]
            self.forgotten += 1

    def stored(
        self,
        number: DeliveryNumber | None = None,
        key: str = "",
        now: int = 0,
        mark: bytes = b"",
    ) -> bytes:
        """Return the record as it is stored; with `number`, as it is once that delivery is done,
        with `key` and `mark`, once the handler of that keyed ask has saved."""
        done = self.done
        if number is not None:
            row = _row_after(done.get(number.producer), number, now)
            done = {**done, number.producer: row}
        results = self.results
        if key and key not in results:
            results = {**results, key: KeptResult(now, ResultForm.UNKNOWN, b"", mark)}
        sends = None
        if self.producer:
            sends = _Sends(self.producer, self.last, list(self.pending.values()))
        return _encode(_Stored(done, results, sends))

    @classmethod
    def of(cls, data: bytes) -> DeliveryRecord:
        """Return the record that `stored` has written.

        Raises:
            ValueError: it is none.
        """
        record = cls()
        if not data:
            return record
        try:
            stored = _decode(data)
        except UNREADABLE as error:
            raise ValueError(f"its record of deliveries: {error}") from None
        record.done = stored.done
        if len(stored.done) > 1:
            record.done = dict(sorted(stored.done.items(), key=lambda item: item[1].used))
        record.results = stored.results
        if (sends := stored.sends) is not None:
            record.producer, record.last = sends.producer, sends.last
            record.last_saved = record.last_stored = sends.last
            record.pending = {delivery.seq: delivery for delivery in sends.pending}
        return record


def _row_after(row: DoneRow | None, number: DeliveryNumber, now: int) -> DoneRow:
    """Return the row of a producer once this delivery is done."""
    era, seq = number.era, number.seq
    if row is not None and (row.seq > seq or row.era > era):
        era, seq = max(row.era, era), max(row.seq, seq)
    return DoneRow(era, seq, now)


def request_mark(method: str, arguments: bytes) -> bytes:
    """Return a mark of the request of a keyed ask: equal for equal ones, and with near certainty
    not for others. `arguments`: as they travel.

    The order within a set or a mapping does not count, since a repeat from another process may have
    another one; so neither does the order within a list. Arguments above `COMPARED_MAX` bytes, and
    those that cannot be compared, count by their length.
    """
    body = b"%d" % len(arguments)
    if len(arguments) <= COMPARED_MAX:
        with suppress(*UNREADABLE, ValueError, TypeError):
            body = _unordered(_decode_any(arguments))
    return blake2b(_joined([method.encode(), body]), digest_size=MARK_BYTES).digest()


def _unordered(value: object) -> bytes:
    """Return bytes that are equal for values that differ only in the order of their parts."""
    if isinstance(value, list):
        return b"[" + _joined(sorted(map(_unordered, value)))
    if isinstance(value, dict):
        pairs = (_joined([_unordered(k), _unordered(v)]) for k, v in value.items())
        return b"{" + _joined(sorted(pairs))
    return _encode(value)


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)
