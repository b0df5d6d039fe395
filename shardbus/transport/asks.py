"""The waiting asks of a session: exactly one outcome each.

An ask is identified by its correlation id. Its outcome is the first of these, and only that: the
answer; the error that the other side reports; AskTimeout at its deadline; NodeLost when the session
is lost. Deadlines are kept in coarse ticks and checked by a sweep, because a timer for each ask
would cost more than the ask.

An error travels as the name of its class and its text. Whether it is definite follows from its
class, unless `begun` travels with it: a handler has begun with the message, and errors of the class
are definite otherwise. An answer that cannot be read is such an error, too.

Source: docs/architecture.md; B.108, B.112; I12.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec

from shardbus import errors
from shardbus.error_text import NAME_MAX, TEXT_MAX, described, plain, text_of, type_name, written
from shardbus.errors import (
    AskTimeout,
    EntityFailed,
    ReentrancyError,
    Rejection,
    RequestError,
    SchemaError,
    StateUnreadable,
)
from shardbus.tasks.interrupts import raise_interrupt
from shardbus.wire.batch import FAILURE_MAX, UNREADABLE, Chain, Fail, ReplyRun
from shardbus.wire.rejections import decode_rejection, encode_rejection, plain_rejection
from shardbus.wire.schema import Decode

Failure = RequestError | ReentrancyError
"""The errors that a caller may get instead of an answer."""
FAILURE_TEXT_MAX = TEXT_MAX
"""Characters of an error's text that travel."""

_write_cycle = msgspec.json.Encoder().encode
_read_cycle = msgspec.json.Decoder(
    Annotated[tuple[tuple[str, str], ...], msgspec.Meta(min_length=2)]
).decode

_write_place = msgspec.json.Encoder().encode
_read_place = msgspec.json.Decoder(tuple[str, str, int, str]).decode
FIELD_MAX = 1024
"""Characters of the path of a field that travel."""

Key = tuple[str, str]
"""(entity type, method). Callers keep one object per pair: keys are compared by identity."""


class Waiter(Protocol):
    """Waits for an answer without being a future: a relayed ask, a flush."""

    def resolve(self, payload: bytes) -> None: ...
    def fail(self, error: Failure) -> None: ...


class PendingAsk(NamedTuple):
    """A caller: a future with the function that decodes its answer, or (decode None) a Waiter."""

    waiter: Any
    decode: Decode | None
    deadline: int
    """In ticks."""


class Unsent(NamedTuple):
    """A message that a lost session returns, to be sent another way."""

    key: Key
    shard: str
    entity_id: str
    payload: bytes
    hops: int
    waiting: PendingAsk | None
    chain: Chain
    via: int = 0
    trace: str = ""


NEVER = 2**62
"""A tick that does not come."""
LOOKS_TICKS = 20
"""Ticks between two looks at all asks, at most: a run that stays open gives its later asks the
deadline of its first one."""


class CoarseClock:
    """A coarse clock for deadlines, in ticks of `TICK_MS`. The owner of the sessions calls `move`.

    `tick` stands still while the event loop is blocked, and leaps afterwards. An ask made in
    between must not expire at once, so `after` counts from the time itself and not from `tick`."""

    __slots__ = ("_began", "_time", "tick")
    TICK_MS = 50

    def __init__(self) -> None:
        self.tick = 0
        self._time: Callable[[], float] | None = None
        self._began = 0.0

    @classmethod
    def ticks(cls, seconds: float) -> int:
        """Return the number of whole ticks in a number of seconds."""
        return int(seconds * 1000) // cls.TICK_MS

    def start(self, time: Callable[[], float]) -> None:
        """Use this source of time, in seconds."""
        self._time, self._began = time, time()

    def move(self) -> None:
        """Set `tick` to the current time."""
        self.tick = self._now()

    def after(self, timeout_ms: int) -> int:
        """Return the tick at which at least `timeout_ms` will have passed from now."""
        return self._now() + timeout_ms // self.TICK_MS + 2

    def _now(self) -> int:
        if self._time is None:
            return self.tick
        return int((self._time() - self._began) * 1000) // self.TICK_MS


class Asks:
    """The asks of one session that have no outcome yet."""

    __slots__ = ("_clock", "_earliest", "_earliest_new", "corr", "entries")

    def __init__(self, clock: CoarseClock) -> None:
        self._clock = clock
        self._earliest = self._earliest_new = NEVER
        """No ask expires before both: the least deadline at the last look at all asks, and the
        least one that was given since."""
        self.corr = 0
        """Last correlation id."""
        self.entries: dict[int, PendingAsk | tuple[Any, Decode | None, int]] = {}
        """By correlation id. Plain tuples: making a named one costs as much as the rest of an
        ask's bookkeeping."""

    @property
    def tick(self) -> int:
        """The tick of the clock by which deadlines are kept."""
        return self._clock.tick

    def expect(self, waiter: Any, decode: Decode | None, timeout_ms: int) -> int:
        """Register a caller. Returns the correlation id."""
        corr = self.corr = self.corr + 1
        self.entries[corr] = (waiter, decode, self.deadline(timeout_ms))
        return corr

    def deadline(self, timeout_ms: int) -> int:
        """Return the tick at which an ask made now expires."""
        tick = self._clock.after(timeout_ms)
        if tick < self._earliest_new:
            self._earliest_new = tick
        return tick

    def take(self, corr: int) -> PendingAsk | None:
        """Remove an ask without an outcome and return its caller, who then gets the outcome from
        elsewhere."""
        entry = self.entries.pop(corr, None)
        return PendingAsk(*entry) if entry is not None else None

    def on_replies(self, run: ReplyRun) -> None:
        """Answers arrived. Drop those whose ask has had an outcome."""
        pop = self.entries.pop
        for corr, payload in zip(run.corrs, run.payloads, strict=True):
            entry = pop(corr, None)
            if entry is None:
                continue
            waiter, decode, _ = entry
            if decode is None:
                waiter.resolve(payload)
            elif not waiter.done():
                try:
                    waiter.set_result(decode(payload))
                except BaseException as e:  # a message class's own checks may raise anything
                    refuse_answer(waiter, e)

    def on_fail(self, fail: Fail) -> None:
        """An ask failed on the other side."""
        entry = self.entries.pop(fail.corr, None)
        if entry is not None:
            refuse(entry, failure(fail, relayed=entry[1] is None))

    def expire(self, name: str) -> int:
        """Fail the asks whose deadline has passed. Returns their number."""
        now = self._clock.tick
        if now < self._earliest and now < self._earliest_new:
            return 0
        late = [corr for corr, entry in self.entries.items() if entry[2] <= now]
        for corr in late:
            refuse(self.entries.pop(corr), AskTimeout(f"no answer from {name} in time"))
        left = min((entry[2] for entry in self.entries.values()), default=NEVER)
        self._earliest = min(left, self._earliest_new, now + LOOKS_TICKS)
        self._earliest_new = NEVER
        return len(late)

    def abandon(self, error: RequestError) -> None:
        """Fail every waiting ask."""
        entries, self.entries = self.entries, {}
        for entry in entries.values():
            refuse(entry, error)


def refuse(entry: PendingAsk | tuple[Any, Decode | None, int], error: Failure) -> None:
    """Fail one waiting ask with `error`."""
    waiter, decode, _ = entry
    if decode is None:
        waiter.fail(error)
    elif not waiter.done():
        set_error(waiter, error)


def refuse_answer(waiter: Any, error: BaseException) -> None:
    """Fail one waiting ask whose answer cannot be read, by this error."""
    raise_interrupt(error)
    refused = SchemaError(f"the answer does not fit: {text_of(error)}")
    set_error(waiter, _as_begun(refused, begun=True))


def set_error(answer: Any, error: BaseException) -> None:
    """Set an error as the outcome of an ask. A sender that drops the answer drops the error, too:
    asyncio does not log it as one that was never retrieved."""
    answer.set_exception(error)
    if isinstance(answer, asyncio.Future):
        answer.exception()


def fail_of(corr: int, error: Exception, *, begun: bool = False) -> Fail:
    """Return an error in its wire form, which can be written and read whatever the error is: one
    that cannot would spoil the other answers of its batch. `begun`: a handler has begun with the
    message, so that no error of it is definite."""
    try:
        return _fail_of(corr, error, begun)
    except BaseException as e:  # a subclass that an application has written
        text = f"{text_of(error)} (the error itself cannot be sent: {described(e, FIELD_MAX)})"
        return Fail(corr, "EntityFailed", plain(text, FAILURE_TEXT_MAX), type_name(error))


def _fail_of(corr: int, error: Exception, begun: bool) -> Fail:
    if isinstance(error, Rejection):
        try:
            name, text, fields = encode_rejection(error)
        except SchemaError as e:
            return _fail_of(corr, EntityFailed("SchemaError", e.message), begun)
        return Fail(corr, "Rejection", plain(text, FAILURE_TEXT_MAX), name, fields)
    text = written(error.message) if isinstance(error, RequestError) else text_of(error)
    detail = ""
    if isinstance(error, StateUnreadable):
        place = (error.entity_type, error.entity_id, error.version, plain(error.field, FIELD_MAX))
        detail = _write_place(place).decode()
    elif isinstance(error, EntityFailed):
        detail = plain(error.type, NAME_MAX)
    elif isinstance(error, ReentrancyError):
        detail = _write_cycle(error.cycle).decode()
    if len(detail) > FAILURE_MAX:
        raise ValueError(f"its details have {len(detail)} characters, at most {FAILURE_MAX}")
    begun = begun or (isinstance(error, RequestError) and not error.definite)
    begun = bool(begun and getattr(type(error), "definite", False))
    return Fail(corr, type_name(error), plain(text, FAILURE_TEXT_MAX), detail, begun=begun)


def failure(fail: Fail, *, relayed: bool = False) -> Failure:
    """Return the error that a Fail stands for. `relayed`: this process only passes it on, so a
    rejection is not read."""
    if fail.error == "Rejection":
        if not relayed:
            made = decode_rejection(fail.detail, fail.text, fail.fields)
            if not made.definite:  # whatever its class says, the handler ran
                return made
        return plain_rejection(fail.detail, fail.text, fail.fields)
    if fail.error == "EntityFailed":
        return EntityFailed(fail.detail, fail.text)
    if fail.error == "StateUnreadable":
        return _as_begun(_state_unreadable(fail), begun=fail.begun)
    if fail.error == "ReentrancyError":
        try:
            return ReentrancyError(_read_cycle(fail.detail))
        except UNREADABLE:
            return EntityFailed(fail.error, fail.text)
    cls = getattr(errors, fail.error, None)
    if isinstance(cls, type) and issubclass(cls, RequestError) and cls is not RequestError:
        return _as_begun(cls(fail.text), begun=fail.begun)
    return EntityFailed(fail.error, fail.text)


def _as_begun(error: RequestError, *, begun: bool) -> RequestError:
    """Return the error, not definite if a handler has begun."""
    if begun:
        error.definite = False
    return error


def _state_unreadable(fail: Fail) -> StateUnreadable:
    try:
        kind, entity_id, version, field = _read_place(fail.detail)
    except UNREADABLE:
        return StateUnreadable(fail.text)
    return StateUnreadable(
        fail.text, entity_type=kind, entity_id=entity_id, version=version, field=field
    )
