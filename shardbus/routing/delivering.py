"""The deliveries of one producer, sent by routers: the shell of `deliveries.producer`.

    deliver(...)  ──offer──> Producer ──Send──> sender.ask_for ──> Letter ──outcome───┐
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
from asyncio import Future
from collections import Counter, deque
from copy import copy
from typing import Any, Protocol

import msgspec

from shardbus.config.settings import DeliverySettings
from shardbus.deliveries.numbers import (
    MARK,
    AnswerCode,
    DeliveryAnswer,
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
    KeyReused,
    LocalProtocolError,
    MailboxFull,
    MessageTooLarge,
    NodeLost,
    Rejection,
    RequestError,
    SchemaError,
    StateUnreadable,
    Unhandled,
    UnknownEntityType,
    is_definite,
)
from shardbus.quantities import counted
from shardbus.routing.router import LoopSender
from shardbus.tasks.own_loop import check_loop
from shardbus.transport.asks import Key, set_error
from shardbus.transport.machine_timer import MachineTimer
from shardbus.wire.batch import PAYLOAD_BYTES_MAX
from shardbus.wire.schema import Decode, check_method

DEFINITE = (SchemaError, UnknownEntityType, MessageTooLarge, StateUnreadable, KeyReused)
"""Errors after which a delivery is not tried again, but for a stored one after those in `LATER`."""
LATER = (UnknownEntityType, StateUnreadable)
"""Those of them after which a stored delivery waits: another release may have the type, or read the
state, and its sender may be gone."""
NOT_READY = frozenset({
    "StoreUnavailable", "StaleFence", "StaleActivation", "StoreError", "CancelledError",
})  # fmt: skip
"""Failures of an entity that are none of its handler."""
_DELIVER, _SKIP = int(NumberKind.DELIVER), int(NumberKind.SKIP)
"""A look-up of a global costs less than one in an enumeration."""
_CONFIRMED_END, _CONFIRMED_VALUE = DeliveryEnd.CONFIRMED, DeliveryEnd.CONFIRMED.value
OUTCOMES: dict[int, SendOutcome] = {
    AnswerCode.REPEATED: SendOutcome.REPEATED,
    AnswerCode.GAP: SendOutcome.GAP,
    AnswerCode.STALE: SendOutcome.STALE,
}
"""By the code of an answer. Any other one confirms."""
HEADER_BYTES = 512
"""Bytes, at most, of a delivery besides its arguments."""
PAYLOAD_MAX = PAYLOAD_BYTES_MAX - HEADER_BYTES
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
    """Return the outcome of a sending that this error has ended."""
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


class _Marked(dict[str, str]):
    """The names of methods behind `MARK`."""

    def __missing__(self, method: str) -> str:
        marked = self[check_method(method)] = MARK + method
        return marked


_marked = _Marked()


def delivery_key(sender: LoopSender, method: str) -> Key:
    """Return the key of deliveries to a method."""
    return sender.key(_marked[method])


class Letter(Delivery, kw_only=True, eq=False):
    """A delivery with all that it takes to send it. It waits for the answer to its first sending,
    by those methods of a future that an answer uses."""

    sender: LoopSender
    entity_id: str
    key: Key
    """Of its method, as `delivery_key` returns it."""
    payload: bytes
    end: Any
    """A future, or a function that is called with the end and the error, once."""
    by: DeliverySender
    round: int = 0
    """Of the line when it was first sent."""
    rejection: Rejection | None = None
    """The answer of a handler that has refused."""
    answered: bool = False
    """There is an outcome of the first sending."""

    def done(self) -> bool:
        """True if there is an outcome."""
        return self.answered

    def set_result(self, value: DeliveryAnswer) -> None:
        """Report an answer."""
        self.answered = True
        if value.code or not self.by.confirm(self):
            self.by.report_answer(self, self.round, value)

    def set_exception(self, error: BaseException) -> None:
        """Report an error."""
        self.answered = True
        self.by.report_error(self, self.round, error)

    def ended(self, end: DeliveryEnd, error: BaseException | None) -> None:
        """Report the outcome to the future or the function `end`."""
        answer = self.end
        if not isinstance(answer, Future):
            answer(end, error)
        elif answer.done():
            return
        elif end is DeliveryEnd.CONFIRMED and self.rejection is None:
            answer.set_result(None)
        else:
            target = (self.key[0], self.entity_id)
            set_error(answer, self.rejection or failure_of(end, target, error))


class Attempt(msgspec.Struct, eq=False):
    """One later sending of a letter. `round`: of the line when it was sent."""

    letter: Letter
    round: int
    answered: bool = False

    def done(self) -> bool:
        """True if there is an outcome."""
        return self.answered

    def set_result(self, value: DeliveryAnswer) -> None:
        """Report an answer."""
        self.answered = True
        self.letter.by.report_answer(self.letter, self.round, value)

    def set_exception(self, error: BaseException) -> None:
        """Report an error."""
        self.answered = True
        self.letter.by.report_error(self.letter, self.round, error)


class KeepUndelivered(Protocol):
    """Keeps a delivery that is given up as a dead letter. `answered`: its sender gets an error; an
    entity, a mailbox or an outbox gets none."""

    def __call__(
        self,
        name: str,
        reason: str,
        entity_id: str,
        method: str,
        payload: bytes,
        sender: str,
        /,
        *,
        answered: bool,
    ) -> None: ...


class DeliveryCounts:
    """Counts of the outcomes of deliveries, of a process and of its entities. `keep` keeps the
    deliveries that are given up."""

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
        self._within = settings.within
        self._first_timeout_ms = int(self.producer.limits.resend * 1000)
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
        loop, producer, key = self._loop, self.producer, sender.key(_marked[method])
        check_loop(loop)
        target = (key[0], entity_id)
        if target not in producer.lines:
            sender.route_for(entity_id)  # an invalid id is the caller's error
        if not waits and not producer.has_room(target):
            raise BufferFull(
                f"the window of deliveries to {target[0]} {entity_id!r:.100} is full",
                hint="await deliver(...), which waits for room",
            )
        future: asyncio.Future[None] = loop.create_future()
        seconds = self._within if within is None else within
        letter = Letter(
            loop.time() + seconds if seconds else FOREVER,
            sender=sender,
            entity_id=entity_id,
            key=key,
            payload=payload,
            end=future,
            by=self,
        )
        if not self._closed and len(payload) <= PAYLOAD_MAX:
            before = producer.send_at_once(letter, target)
            if before is not None:
                self._send(letter, before, self._first_timeout_ms)
                return future
        self.offer(letter, target)
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
        check_loop(self._loop)
        sender.route_for(entity_id)
        settings = self.settings
        call = KeyedCall(sender, entity_id, method, payload, once, timeout_ms, decode, settings)
        return call.answer

    def letter(
        self, sender: LoopSender, entity_id: str, method: str, payload: bytes, end: Any
    ) -> Letter:
        """Return a letter that is tried for ever. `end(end, error)` is called once."""
        key = delivery_key(sender, method)
        return Letter(
            FOREVER,
            sender=sender,
            entity_id=entity_id,
            key=key,
            payload=payload,
            end=end,
            by=self,
        )

    def offer(self, letter: Letter, target: tuple[str, str], seq: int = 0) -> None:
        """Take a letter. `seq`: the number that it had before. Raises as `deliver`."""
        if self._closed:
            raise LocalProtocolError("this process delivers nothing any more: it ends")
        if len(letter.payload) > PAYLOAD_MAX:
            raise MessageTooLarge(f"a delivery of {len(letter.payload)} bytes is too large")
        if self.producer.is_full:
            waiting = counted(self.producer.waiting, "delivery waits", "deliveries wait")
            raise BufferFull(f"{waiting} behind the windows")
        self._act(self.producer.offer(letter, target, self._loop.time(), seq))

    @property
    def unconfirmed(self) -> int:
        """Deliveries without an end."""
        return self.producer.unconfirmed

    def close(self, why: str) -> None:
        """End every delivery as NodeLost: the process ends. It is definite for those that were
        never sent."""
        self._closed = True
        self._timer.stop()
        for line in list(self.producer.lines.values()):
            for delivery in (*line.window.values(), *line.waiting):
                assert isinstance(delivery, Letter)
                error = NodeLost(why)
                error.definite = not delivery.round
                delivery.ended(DeliveryEnd.CLOSED, error)

    def abandon(self) -> None:
        """Send nothing any more, and report nothing: who goes on has the same numbers."""
        self._closed = True
        self._timer.stop()

    # ---- the machine

    def report_answer(self, letter: Letter, round: int, answer: DeliveryAnswer) -> None:
        """Take the answer to a sending."""
        outcome = OUTCOMES.get(answer.code, SendOutcome.CONFIRMED)
        self._report(letter, round, outcome, None)

    def report_error(self, letter: Letter, round: int, error: BaseException) -> None:
        """Take the error of a sending."""
        outcome = outcome_of(error)
        if isinstance(error, Rejection):
            letter.rejection = error
        elif isinstance(error, LATER) and not isinstance(letter.end, Future):
            outcome = SendOutcome.NOT_NOW
        self._report(letter, round, outcome, error)

    def _report(
        self, delivery: Delivery, round: int, outcome: SendOutcome, error: BaseException | None
    ) -> None:
        if self._acting:  # a message may be refused while it is sent
            self._reports.append((delivery, round, outcome, error))
        elif not self._closed:
            self._act(self.producer.on_outcome(delivery, round, outcome, self._loop.time(), error))

    def confirm(self, letter: Letter) -> bool:
        """End a letter that its entity has confirmed. False: nothing has changed; report it."""
        if self._acting or self._closed or not self.producer.confirm(letter):
            return False
        self.counts.ended[_CONFIRMED_VALUE] += 1
        answer = letter.end
        if answer.__class__ is not Future or letter.rejection is not None:
            letter.ended(_CONFIRMED_END, None)
        elif not answer.done():
            answer.set_result(None)
        return True

    def _tick(self) -> None:
        self._act(self.producer.tick(self._loop.time()))

    def _act(self, effects: list[Any]) -> None:
        """Carry out effects, and the effects of outcomes that are reported meanwhile."""
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
            assert isinstance(effect, SendDelivery)
            assert isinstance(effect.delivery, Letter)
            timeout_ms = int(effect.timeout * 1000)
            self._send(effect.delivery, effect.before, timeout_ms, skips=effect.skips)
        elif kind is DeliveryEnded:
            self._end(effect)  # type: ignore[arg-type]
        else:
            assert isinstance(effect, RoundBegun)
            self.counts.resent[effect.reason] += effect.count

    def _send(self, letter: Letter, before: int, timeout_ms: int, *, skips: bool = False) -> None:
        """Send a letter in the round that its line is in."""
        waiter: Letter | Attempt = letter
        if letter.round:
            waiter = Attempt(letter, letter.line.round)
        else:
            letter.round = letter.line.round
        kind, body = (_SKIP, b"") if skips else (_DELIVER, letter.payload)
        number = DeliveryNumber(kind, self.name, self.era, letter.seq, before, body)
        try:
            letter.sender.ask_for(
                waiter,
                letter.key,
                letter.entity_id,
                encode_number(number),
                timeout_ms,
                read_answer,
            )
        except Exception as error:
            if not waiter.answered:
                waiter.set_exception(error)

    def _end(self, effect: DeliveryEnded) -> None:
        letter, end = effect.delivery, effect.end
        assert isinstance(letter, Letter)
        self.counts.ended[end.value] += 1
        if end is not DeliveryEnd.CONFIRMED and self.counts.keep is not None:
            name, entity_id = letter.line.target
            body, reason = letter.payload, end.value
            method, answered = letter.key[1][1:], isinstance(letter.end, Future)
            self.counts.keep(name, reason, entity_id, method, body, self.name, answered=answered)
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
    certain. Its error is definite only if no handler of any copy has begun."""

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
        self._method = method
        self._key = delivery_key(sender, method)
        self._once, self._payload = key, encode_number(KeyedAsk(key, payload))
        self._decode, self._pauses = decode, 0
        self._last: RequestError | None = None
        """The error of the last copy."""
        self._in_doubt = False
        """A handler of some copy may have run."""
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
        if answer.code in (AnswerCode.LOST_RESULT, AnswerCode.OTHER_REQUEST):
            return answer
        return self._decode(payload)

    def _on_outcome(self, sent: asyncio.Future[Any]) -> None:
        if self.answer.done():
            return
        if sent.cancelled():
            self.answer.cancel()
        elif (error := sent.exception()) is not None:
            self._failed(error)
        elif (result := sent.result()).__class__ is DeliveryAnswer:
            lost = result.code == AnswerCode.LOST_RESULT
            self._failed(self._result_lost() if lost else self._reused())
        else:
            self.answer.set_result(result)

    def _result_lost(self) -> EntityFailed:
        return EntityFailed(
            "ResultLost",
            f"{self._method:.100} of {self._entity_id!r:.100}: the key {self._once!r:.200} has been"
            " handled, and its result was not stored",
        )

    def _reused(self) -> KeyReused:
        return KeyReused(
            f"{self._method:.100} of {self._entity_id!r:.100}: the key {self._once!r:.200} was used"
            " for another handler, or with other arguments",
            hint="a key is for one request and its repeats",
        )

    def _failed(self, error: BaseException) -> None:
        """Send it again after a pause, if it may be lost, or has no room."""
        if isinstance(error, LocalProtocolError) and self._last is not None:
            error = self._last  # the client has closed meanwhile
            self._until = self._loop.time()
        if isinstance(error, RequestError):
            self._last = error
            self._in_doubt = self._in_doubt or not error.definite
        outcome = outcome_of(error)
        again = outcome in (SendOutcome.NO_ANSWER, SendOutcome.NOT_NOW) and isinstance(
            error, (AskTimeout, NodeLost, BufferFull, MailboxFull, EntityFailed)
        )
        self._pauses += 1
        settings = self._settings
        pause = min(settings.retry * 2 ** min(self._pauses - 1, 30), settings.retry_max)
        pause = 0.0 if outcome is SendOutcome.NO_ANSWER else pause
        if not again or self._loop.time() + pause >= self._until:
            if self._in_doubt and is_definite(error):
                error = copy(error)  # many messages may share it
                error.definite = False  # type: ignore[attr-defined]
            set_error(self.answer, error)
        else:
            self._loop.call_later(pause, self._send)
