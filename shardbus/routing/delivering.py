"""The deliveries of one producer, sent by routers: the shell of `deliveries.producer`.

    deliver(...)  ──offer──> Producer ──Send──> sender.ask_for ──> Attempt ──outcome──┐
                                 ^                                                    │
                                 └──────────── MachineTimer, `_act` <─────────────────┘

A delivery is sent when its verb is called, if there is room in its window. Its future ends when the
delivery is confirmed or has failed; a caller may drop it.

A process has one for all that it delivers, an entity one of its own while deliveries of it are not
confirmed (`entities.deliveries`).

Keyed asks have no window and no number: `KeyedCall` repeats one until its deadline.

Source: docs/how-to/deliver.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Any, Protocol

from shardbus.config.settings import DeliverySettings
from shardbus.deliveries.numbers import (
    MARK,
    AnswerCode,
    DeliveryNumber,
    KeyedAsk,
    NumberKind,
    encode_number,
    read_answer,
)
from shardbus.deliveries.producer import (
    Delivery,
    DeliveryEnd,
    DeliveryEnded,
    Producer,
    ProducerLimits,
    RoundBegun,
    SendDelivery,
    SendOutcome,
)
from shardbus.error_text import text_of
from shardbus.errors import (
    AskTimeout,
    BufferFull,
    DeliveryFailed,
    EntityFailed,
    LocalProtocolError,
    MailboxFull,
    MessageTooLarge,
    NodeLost,
    Rejection,
    SchemaError,
    StateUnreadable,
    Unhandled,
    UnknownEntityType,
)
from shardbus.quantities import counted
from shardbus.routing.router import LoopSender
from shardbus.transport.asks import set_error
from shardbus.transport.machine_timer import MachineTimer
from shardbus.wire.batch import PAYLOAD_BYTES_MAX
from shardbus.wire.schema import Decode

DEFINITE = (SchemaError, UnknownEntityType, MessageTooLarge, StateUnreadable)
"""Errors after which a delivery is not tried again."""
NOT_READY = frozenset({
    "StoreUnavailable", "StaleFence", "StaleActivation", "StoreError", "CancelledError",
})  # fmt: skip
"""Failures of an entity that are none of its handler."""
_DELIVER, _SKIP = int(NumberKind.DELIVER), int(NumberKind.SKIP)
"""A look-up of a global costs less than one in an enumeration."""
_CONFIRMED = SendOutcome.CONFIRMED
HEADER_BYTES = 512
"""Bytes, at most, of a delivery besides its arguments."""
FOREVER = float("inf")


def limits_of(settings: DeliverySettings) -> ProducerLimits:
    """Return the limits of a producer."""
    return ProducerLimits(
        window=settings.window,
        window_all=settings.window_all,
        resend=settings.resend,
        resend_max=max(settings.resend, settings.resend_max),
        retry=settings.retry,
        retry_max=max(settings.retry, settings.retry_max),
        attempts=settings.attempts,
        skips_poison=settings.on_poison == "skip",
    )


def outcome_of(error: BaseException) -> SendOutcome:
    """Return what an error says about a sending of a delivery."""
    if isinstance(error, Rejection):
        return SendOutcome.CONFIRMED
    if isinstance(error, DEFINITE):
        return SendOutcome.DEFINITE
    if isinstance(error, AskTimeout):
        return SendOutcome.NO_ANSWER
    if isinstance(error, Unhandled) or (
        isinstance(error, EntityFailed) and error.type not in NOT_READY
    ):
        return SendOutcome.FAILED
    return SendOutcome.NOT_NOW


class Letter:
    """What it takes to send a delivery. `ended(end, error)` is called once."""

    __slots__ = ("_end", "entity_id", "key", "payload", "rejection", "sender")

    def __init__(
        self, sender: LoopSender, entity_id: str, method: str, payload: bytes, end: Any
    ) -> None:
        self.sender, self.entity_id, self.payload = sender, entity_id, payload
        self.key = sender.key(MARK + method)
        self._end = end
        """A future, or what is called."""
        self.rejection: Rejection | None = None
        """The answer of a handler that has refused."""

    def ended(self, end: DeliveryEnd, error: BaseException | None) -> None:
        """Give the outcome to the one that waits for it."""
        answer = self._end
        if not isinstance(answer, asyncio.Future):
            answer(end, error)
        elif answer.done():
            return
        elif end is DeliveryEnd.CONFIRMED and self.rejection is None:
            answer.set_result(None)
        else:
            target = (self.key[0], self.entity_id)
            set_error(answer, self.rejection or failure_of(end, target, error))


class Attempt:
    """One sending: has those methods of a future that an answer uses."""

    __slots__ = ("_deliveries", "_delivery", "_over", "_round")

    def __init__(self, deliveries: DeliverySender, delivery: Delivery, round: int) -> None:
        self._deliveries, self._delivery, self._round = deliveries, delivery, round
        self._over = False

    def done(self) -> bool:
        """True if there is an outcome."""
        return self._over

    def set_result(self, value: Any) -> None:
        """Report an answer."""
        self._over = True
        code, outcome = value.code, _CONFIRMED
        if not code:
            pass
        elif code == AnswerCode.REPEATED:
            outcome = SendOutcome.REPEATED
        elif code == AnswerCode.GAP:
            outcome = SendOutcome.GAP
        elif code == AnswerCode.STALE:
            outcome = SendOutcome.STALE
        self._deliveries.report(self._delivery, self._round, outcome, None)

    def set_exception(self, error: BaseException) -> None:
        """Report an error."""
        self._over = True
        if isinstance(error, Rejection):
            self._delivery.letter.rejection = error
        self._deliveries.report(self._delivery, self._round, outcome_of(error), error)


class KeepUndelivered(Protocol):
    """Keeps a delivery that is given up as a dead letter."""

    def __call__(
        self,
        name: str,
        reason: str,
        entity_id: str,
        method: str,
        payload: bytes,
        sender: str,
        /,
    ) -> None: ...


class DeliveryCounts:
    """What became of the deliveries of a process and of its entities. `keep`: what keeps those that
    are given up."""

    def __init__(self, keep: KeepUndelivered | None = None) -> None:
        self.ended: Counter[str] = Counter()
        """By `DeliveryEnd`."""
        self.resent: Counter[str] = Counter()
        """By `SendOutcome`, or `pause`."""
        self.keep = keep


class DeliverySender:
    """Delivers under one producer's name. `name` is unique, or has a new `era` at each opening."""

    def __init__(
        self,
        name: str,
        settings: DeliverySettings,
        counts: DeliveryCounts,
        loop: asyncio.AbstractEventLoop,
        era: int = 0,
        last: int = 0,
    ) -> None:
        self.name, self.era, self.settings, self.counts = name, era, settings, counts
        self.producer = Producer(limits_of(settings), last)
        self._loop = loop
        self._timer = MachineTimer(self.producer.deadline, self._tick)
        self._reports: deque[tuple[Delivery, int, SendOutcome, BaseException | None]] = deque()
        self._acting = False
        self._closed = False

    # ---- verbs

    def deliver(
        self,
        sender: LoopSender,
        entity_id: str,
        method: str,
        payload: bytes,
        within: float | None = None,
        *,
        waits: bool = True,
    ) -> asyncio.Future[None]:
        """Deliver a message. Returns a future that ends when the delivery is confirmed.

        Raises:
            BufferFull: too many wait, or with `waits` false there is no room in the window.
            MessageTooLarge, LocalProtocolError: the process ends.
        """
        target = (sender.interface.name, entity_id)
        sender.route_for(entity_id)  # an invalid id is the caller's error
        if not waits and not self.producer.has_room(target):
            raise BufferFull(
                f"the window of deliveries to {target[0]} {entity_id!r:.100} is full",
                hint="await deliver(...), which waits for room",
            )
        future: asyncio.Future[None] = self._loop.create_future()
        letter = Letter(sender, entity_id, method, payload, future)
        seconds = self.settings.within if within is None else within
        self.offer(letter, target, self._loop.time() + seconds if seconds else FOREVER)
        return future

    def ask_once(
        self,
        sender: LoopSender,
        entity_id: str,
        method: str,
        payload: bytes,
        once: str,
        timeout_ms: int,
        decode: Decode,
    ) -> asyncio.Future[Any]:
        """Ask a handler that runs once for the key `once`. Returns a future of its answer."""
        sender.route_for(entity_id)
        settings = self.settings
        call = KeyedCall(sender, entity_id, method, payload, once, timeout_ms, decode, settings)
        return call.answer

    def offer(
        self, letter: Letter, target: tuple[str, str], until: float = FOREVER, seq: int = 0
    ) -> None:
        """Take a letter. `seq`: the number that it had before. Raises as `deliver`."""
        if self._closed:
            raise LocalProtocolError("this process delivers nothing any more: it ends")
        if len(letter.payload) > PAYLOAD_BYTES_MAX - HEADER_BYTES:
            raise MessageTooLarge(f"a delivery of {len(letter.payload)} bytes is too large")
        if self.producer.is_full:
            waiting = counted(self.producer.waiting, "delivery waits", "deliveries wait")
            raise BufferFull(f"{waiting} behind the windows")
        _, effects = self.producer.offer(target, letter, until, self._loop.time(), seq)
        self._act(effects)

    @property
    def unconfirmed(self) -> int:
        """Deliveries without an end."""
        return self.producer.unconfirmed

    def close(self, error: BaseException) -> None:
        """DeliveryEnd every delivery with this error: the process ends."""
        self._closed = True
        self._timer.stop()
        for line in list(self.producer.lines.values()):
            for delivery in (*line.window.values(), *line.waiting):
                delivery.letter.ended(DeliveryEnd.CLOSED, error)

    def abandon(self) -> None:
        """Send nothing any more, and report nothing: who goes on has the same numbers."""
        self._closed = True
        self._timer.stop()

    # ---- the machine

    def report(
        self, delivery: Delivery, round: int, outcome: SendOutcome, error: BaseException | None
    ) -> None:
        """Take the outcome of a sending."""
        if self._acting:  # a message may be refused while it is sent
            self._reports.append((delivery, round, outcome, error))
        elif not self._closed:
            self._act(self.producer.on_outcome(delivery, round, outcome, self._loop.time(), error))

    def _tick(self) -> None:
        self._act(self.producer.tick(self._loop.time()))

    def _act(self, effects: list[Any]) -> None:
        """Carry out effects, and those of what is reported meanwhile."""
        self._acting = True
        try:
            while True:
                for effect in effects:
                    self._perform(effect)
                if not self._reports:
                    break
                delivery, round, outcome, error = self._reports.popleft()
                now = self._loop.time()
                effects = self.producer.on_outcome(delivery, round, outcome, now, error)
        finally:
            self._acting = False
        self._timer.arm()

    def _perform(self, effect: SendDelivery | DeliveryEnded | RoundBegun) -> None:
        kind = effect.__class__  # a `match` costs as much as the rest
        if kind is SendDelivery:
            self._send(effect)  # type: ignore[arg-type]
        elif kind is DeliveryEnded:
            self._end(effect)  # type: ignore[arg-type]
        else:
            assert isinstance(effect, RoundBegun)
            self.counts.resent[effect.reason] += effect.count

    def _send(self, effect: SendDelivery) -> None:
        delivery = effect.delivery
        letter: Letter = delivery.letter
        kind, body = (_SKIP, b"") if effect.skips else (_DELIVER, letter.payload)
        number = DeliveryNumber(kind, self.name, self.era, delivery.seq, effect.before, body)
        attempt = Attempt(self, delivery, effect.round)
        try:
            letter.sender.ask_for(
                attempt,
                letter.key,
                letter.entity_id,
                encode_number(number),
                int(effect.timeout * 1000),
                read_answer,
            )
        except Exception as error:
            if not attempt.done():
                attempt.set_exception(error)

    def _end(self, effect: DeliveryEnded) -> None:
        delivery, end = effect.delivery, effect.end
        self.counts.ended[end.value] += 1
        letter: Letter = delivery.letter
        if end is not DeliveryEnd.CONFIRMED and self.counts.keep is not None:
            name, entity_id = delivery.line.target
            body, reason = letter.payload, end.value
            self.counts.keep(name, reason, entity_id, letter.key[1][1:], body, self.name)
        letter.ended(end, effect.error)


def failure_of(
    end: DeliveryEnd, target: tuple[str, str], error: BaseException | None
) -> BaseException:
    """Return the error of a delivery that has failed."""
    if end is DeliveryEnd.REFUSED and error is not None:
        return error
    if end is DeliveryEnd.CLOSED and error is not None:
        return error
    return DeliveryFailed(
        f"a delivery to {target[0]} {target[1]!r:.100} is given up: {end.value}",
        entity_type=target[0],
        entity_id=target[1],
        reason=end.value,
        why="" if error is None else text_of(error),
        definite=end is DeliveryEnd.POISON,
    )


class KeyedCall:
    """One ask with a key. It is sent again until its deadline while no answer of its handler is
    certain."""

    def __init__(
        self,
        sender: LoopSender,
        entity_id: str,
        method: str,
        payload: bytes,
        key: str,
        timeout_ms: int,
        decode: Decode,
        settings: DeliverySettings,
    ) -> None:
        self._sender, self._entity_id, self._settings = sender, entity_id, settings
        self._key = sender.key(MARK + method)
        self._payload = encode_number(KeyedAsk(key, payload))
        self._decode, self._pauses = decode, 0
        loop = self._loop = asyncio.get_running_loop()
        self._until = loop.time() + timeout_ms / 1000
        self.answer: asyncio.Future[Any] = loop.create_future()
        self._send()

    def _send(self) -> None:
        if self.answer.done():
            return
        left = max(self._until - self._loop.time(), 0.0)
        part = int(min(left, self._settings.resend) * 1000)
        try:
            sent = self._sender.ask(self._key, self._entity_id, self._payload, part, self._read)
        except Exception as error:
            self._failed(error)
        else:
            sent.add_done_callback(self._on_outcome)

    def _read(self, payload: bytes) -> Any:
        answer = read_answer(payload)
        if answer.code == AnswerCode.RESULT:
            return self._decode(answer.result)
        if answer.code == AnswerCode.LOST_RESULT:
            raise LookupError("it has been handled, and its result was not stored")
        return self._decode(payload)

    def _on_outcome(self, sent: asyncio.Future[Any]) -> None:
        if self.answer.done():
            return
        if sent.cancelled():
            self.answer.cancel()
        elif (error := sent.exception()) is None:
            self.answer.set_result(sent.result())
        else:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Send it again after a pause, if it may be lost, or has no room."""
        outcome = outcome_of(error)
        again = outcome in (SendOutcome.NO_ANSWER, SendOutcome.NOT_NOW) and isinstance(
            error, (AskTimeout, NodeLost, BufferFull, MailboxFull, EntityFailed)
        )
        self._pauses += 1
        settings = self._settings
        pause = min(settings.retry * 2 ** min(self._pauses - 1, 30), settings.retry_max)
        pause = 0.0 if outcome is SendOutcome.NO_ANSWER else pause
        if not again or self._loop.time() + pause >= self._until:
            set_error(self.answer, error)
        else:
            self._loop.call_later(pause, self._send)
