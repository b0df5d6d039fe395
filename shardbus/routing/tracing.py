"""OpenTelemetry: the spans of messages, and how their context travels.

This is the only module that imports OpenTelemetry, and only a process with tracing imports it. It
uses only the API: the application chooses an SDK, its sampler and its exporter.

    client or entity   span `ask` or `tell`, from the call to the answer
     └─ router         span `buffered` (why: unknown_home, home_died, move), while the message waits
     └─ relay          span `relay`, on a node that sends the message on to a later home
     └─ entity         span `buffered` (why: mailbox), then span `handle`
         └─ save       span `save`, until the store has the state
         ├─ ask ...    an ask or a tell of the handler
         └─ timer      the time of a timer that the handler sets, then span `handle`

The envelope carries one text: the W3C `traceparent` of the sender's span, its `tracestate`, and the
`traceparent` of each relay and each wait for a home, which become *links* of the span `handle`:

    traceparent|tracestate|link|link

**Sampling by the parent.** A message is traced if the span that is current when it is sent is
sampled. If there is none, code outside of entities begins a trace for `ratio` of its messages, and
for at most a limit of them in a second; an entity never does. A message that is not traced carries
nothing, and neither do the messages that it causes. The message of a timer belongs to the trace of
the handler that set it; a timer that repeats begins a trace each time, as code outside of entities
does, with a link to that handler. The texts of others are read strictly: a text that is none counts
as no context.

**The cost of an untraced message.** Its sender reads the current context from its variable,
compares it with the context without a span, and counts down to the next message that begins a
trace. There is no object and no call for it, so senders write that out:

    left = tracing.countdown = tracing.countdown - 1
    if left <= 0 or current() is not tracing.plain:
        context = tracing.parent()

A traced one costs some tens of microseconds at each end, most of them in the SDK, which is why a
process that sends without pause needs the limit. When the limit is reached, the countdown stands
until a timer of the loop begins it again, so that no message is considered only to be declined.

Source: docs/how-to/trace.md; B.151.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NamedTuple

from opentelemetry import context as api
from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from shardbus.deliveries.numbers import MARK
from shardbus.error_text import described, is_a, is_exception, type_name
from shardbus.errors import Rejection
from shardbus.store.journals import Journals
from shardbus.store.protocol import Reminders
from shardbus.transport.asks import set_error

LINKS_MAX = 8
"""Links that one message carries; the last ones are kept."""
STATE_MAX = 512
"""Characters of `tracestate`; a longer one does not travel."""
TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
NEVER = 2**30 - 1
"""A gap of a process that begins no trace. Python subtracts from larger numbers more slowly."""
PAUSE_S = 0.01
"""The shortest pause of a countdown, so that a high limit needs no more than 100 timers a second;
the permits of that time are kept."""


class Carried(NamedTuple):
    """The trace context in the envelope of a message."""

    parent: SpanContext
    links: tuple[SpanContext, ...] = ()


def _reader() -> Callable[[], Context]:
    """Return the quickest function that returns the current context: the variable's own, in which
    the API keeps it. Where the API keeps it elsewhere, its own function."""
    kept = getattr(getattr(api, "_RUNTIME_CONTEXT", None), "_current_context", None)
    return kept.get if isinstance(kept, contextvars.ContextVar) else get_current


class TraceLimit:
    """Permits `rate` traces a second, and as many at once after a second without any. `loop` has
    the clock and the timers."""

    __slots__ = ("_at", "_loop", "_rate", "_tokens")

    def __init__(self, rate: int, loop: asyncio.AbstractEventLoop) -> None:
        self._rate, self._loop = rate, loop
        self._tokens, self._at = float(rate), loop.time()

    def take(self) -> float:
        """Count a trace that begins now. Returns the seconds until another one may begin."""
        now = self._loop.time()
        self._tokens = min(self._rate, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        return 0.0 if self._tokens >= 1 else max(PAUSE_S, (1 - self._tokens) / self._rate)

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Call by a timer of the loop."""
        self._loop.call_later(seconds, call)


class Tracing:
    """The tracing of one process. `ratio`: the part of messages without a parent that begin a
    trace, as many as `limit` permits, if `may_begin` permits it. `where`: the name of this process,
    an attribute of each span."""

    __slots__ = (
        "_dice", "_last_verdict", "_limit", "_may_begin", "_ratio", "_tracer", "countdown",
        "current", "plain", "where",
    )  # fmt: skip

    def __init__(
        self,
        where: str,
        ratio: float = 0.0,
        dice: Random | None = None,
        may_begin: Callable[[], bool] = lambda: True,
        limit: TraceLimit | None = None,
    ) -> None:
        self.where, self._may_begin = where, may_begin
        self._ratio, self._dice = ratio, dice or Random()
        self._limit = limit
        self.current: Any = _reader()
        self.plain = contextvars.Context().run(self.current)
        """The current context where nothing has set one."""
        self.countdown = self._gap()
        """Messages until one begins a trace; senders count it down."""
        self._tracer = trace.get_tracer("shardbus")
        self._last_verdict: tuple[Context, bool | None] = self.plain, None
        """The last other context, and whether its span is sampled; None: it has none."""

    # ---- the sender

    def parent(self) -> Context | None:
        """Return the context to trace a message in that is sent now; None if it is not traced.
        `countdown` has counted the message."""
        context: Context = self.current()
        if context is not self.plain:
            seen, verdict = self._last_verdict
            if context is not seen:
                span = trace.get_current_span(context).get_span_context()
                verdict = span.trace_flags.sampled if span.is_valid else None
                self._last_verdict = context, verdict
            if verdict is not None:
                self.countdown += 1
                return context if verdict else None
        if self.countdown > 0:
            return None
        self.countdown = self._gap()
        if self._ratio <= 0 or not self._may_begin():
            return None
        if self._limit is not None and (pause := self._limit.take()):
            self.countdown = NEVER
            self._limit.after(pause, self._resume)
        return context

    def _resume(self) -> None:
        self.countdown = self._gap()

    def _gap(self) -> int:
        return self._dice.randint(1, max(1, round(2 / self._ratio) - 1)) if self._ratio else NEVER

    @staticmethod
    def under(context: Context, call: Callable[[], Any]) -> Any:
        """Call with this context as the current one, as a thread had it that sends by the loop."""
        token = attach(context)
        try:
            return call()
        finally:
            detach(token)

    def send(
        self, what: str, entity_type: str, entity_id: str, method: str, context: Context
    ) -> Span:
        """Begin the span of a message that is sent."""
        kind = SpanKind.CLIENT if what == "ask" else SpanKind.PRODUCER
        about = self._about(entity_type, entity_id, method)
        return self._tracer.start_span(f"{what} {entity_type}", context, kind, about)

    @staticmethod
    def end_with(span: Span, answer: asyncio.Future[Any]) -> None:
        """End the span of an ask with its outcome."""
        if answer.cancelled():
            span.set_status(Status(StatusCode.ERROR, "cancelled"))
        elif (error := answer.exception()) is not None:
            _fail(span, error)
        span.end()

    @staticmethod
    def ending(span: Span, answer: Any) -> AnswerWithSpan:
        """Return an answer that ends the span of an ask, too; for a thread that waits for it."""
        return AnswerWithSpan(span, answer)

    @staticmethod
    def text(span: Span) -> str:
        """Return the envelope's context for a span; empty if it is not sampled."""
        context = span.get_span_context()
        if not context.is_valid or not context.trace_flags.sampled:
            return ""
        state = context.trace_state.to_header() if context.trace_state else ""
        return f"{_traceparent(context)}|{state if len(state) <= STATE_MAX else ''}"

    # ---- on the way

    def passed(self, carried: str, what: str, about: dict[str, Any], seconds: float = 0.0) -> str:
        """Note that a message has waited for these seconds, or is relayed: a span of its own, and a
        link in the envelope's context from now on."""
        read = self.read(carried)
        if read is None:
            return carried
        now = time.time_ns()
        span = self._tracer.start_span(
            what,
            _context_of(read.parent),
            attributes={**about, "shardbus.process": self.where},
            start_time=now - int(seconds * 1e9),
        )
        span.end(now)
        head, state, *links = carried.split("|")
        links = [*links, _traceparent(span.get_span_context())][-LINKS_MAX:]
        return "|".join([head, state, *links])

    @staticmethod
    def read(text: str) -> Carried | None:
        """Return the context in a text; None if it is none, or not sampled."""
        head, _, rest = text.partition("|")
        state, *others = rest.split("|")
        parent = _span_context(head, state)
        if parent is None or not parent.trace_flags.sampled:
            return None
        links = (_span_context(other) for other in others[:LINKS_MAX])
        return Carried(parent, tuple(link for link in links if link is not None))

    # ---- the entity

    def handling(
        self,
        function: Callable[..., Any],
        text: str,
        loop: asyncio.AbstractEventLoop,
        *,
        is_async: bool,
        is_ask: bool,
        method: str,
    ) -> Callable[..., Any]:
        """Return a handler's function for a traced message that arrives now."""
        carried = self.read(text)
        if carried is None:
            return function
        arrived, waits = time.time_ns(), [False]
        loop.call_soon(waits.__setitem__, 0, True)
        kind = SpanKind.SERVER if is_ask else SpanKind.CONSUMER

        def begin(entity: Any) -> tuple[Span, Any]:
            activation = entity.context
            called = method.removeprefix(MARK) or "receive"
            about = self._about(activation.entity_type, activation.entity_id, called)
            about["shardbus.shard"] = activation.shard_id
            about["shardbus.fence"] = activation.fence
            parent = _context_of(carried.parent)
            if waits[0]:
                why = {**about, "shardbus.why": "mailbox"}
                self._tracer.start_span(
                    "buffered", parent, attributes=why, start_time=arrived
                ).end()
            name = f"handle {activation.entity_type}.{called}"
            links = [Link(link) for link in carried.links]
            span = self._tracer.start_span(name, parent, kind, about, links)
            return span, attach(trace.set_span_in_context(span, parent))

        if is_async:

            async def call_async(entity: Any, *args: Any) -> Any:
                span, token = begin(entity)
                try:
                    return await function(entity, *args)
                except BaseException as error:
                    _fail(span, error)
                    raise
                finally:
                    detach(token)
                    span.end()

            return call_async

        def call(entity: Any, *args: Any) -> Any:
            span, token = begin(entity)
            try:
                return function(entity, *args)
            except BaseException as error:
                _fail(span, error)
                raise
            finally:
                detach(token)
                span.end()

        return call

    def _about(self, entity_type: str, entity_id: str, method: str) -> dict[str, Any]:
        return {
            "messaging.system": "shardbus",
            "shardbus.entity_type": entity_type,
            "shardbus.entity_id": entity_id,
            "shardbus.method": method or "receive",
            "shardbus.process": self.where,
        }

    # ---- timers

    def cause(self) -> str:
        """Return the context for a timer that is set now: its handler's."""
        return self.text(trace.get_current_span())

    def fired(
        self, cause: str, entity_type: str, entity_id: str, method: str, delay: float | None
    ) -> str:
        """Return the context for the message of a timer; empty if it is not traced. The message of
        one that was set `delay` seconds ago belongs to the trace of the handler that set it. A
        timer that repeats, `delay` None, or whose handler was not traced, begins a trace as code
        outside of entities does."""
        about = self._about(entity_type, entity_id, method)
        if cause and delay is not None:
            return self.passed(cause, f"timer {entity_type}", about, delay)
        self.countdown -= 1
        context = self.parent()
        if context is None:
            return ""
        read = self.read(cause)
        links = [] if read is None else [Link(read.parent)]
        span = self._tracer.start_span(
            f"timer {entity_type}", context, SpanKind.PRODUCER, about, links
        )
        span.end()
        return self.text(span)

    # ---- the store

    def keeper(self, states: Any) -> StateKeeper:
        """Return a store of states that loads and saves by `states`, with spans."""
        return StateKeeper(states, self)

    def saving(
        self, entity_type: str, entity_id: str, saved: asyncio.Future[None]
    ) -> asyncio.Future[None]:
        """Give a save that has begun a span, if its handler is traced. Returns the save."""
        context = get_current()
        if trace.get_current_span(context).get_span_context().trace_flags.sampled:
            about = self._about(entity_type, entity_id, "save")
            name = f"save {entity_type}"
            span = self._tracer.start_span(name, context, SpanKind.CLIENT, about)
            saved.add_done_callback(lambda answer: self.end_with(span, answer))
        return saved


class AnswerWithSpan:
    """The outcome of an ask, for a thread that waits for it; ends the span of the ask first."""

    __slots__ = ("_answer", "_span")

    def __init__(self, span: Span, answer: Any) -> None:
        self._span, self._answer = span, answer

    def done(self) -> bool:
        """True if there is an outcome."""
        return bool(self._answer.done())

    def set_result(self, value: Any) -> None:
        """Set a value as the outcome."""
        self._span.end()
        self._answer.set_result(value)

    def set_exception(self, error: BaseException) -> None:
        """Set an error as the outcome."""
        _fail(self._span, error)
        self._span.end()
        set_error(self._answer, error)


class StateKeeper:
    """Loads and saves the state of entities by `states`, with a span for each traced save."""

    def __init__(self, states: Any, tracing: Tracing) -> None:
        self._states, self._tracing = states, tracing
        journals: Journals | None = states.journals
        self.journals: Any = None if journals is None else JournalKeeper(journals, tracing)
        self.load: Callable[[str, str, str, int], Awaitable[bytes | None]] = states.load
        self.refuse_unsent: Callable[[str, str, str], None] = states.refuse_unsent

    def save(
        self,
        entity_type: str,
        shard: str,
        entity_id: str,
        fence: int,
        data: bytes | None,
        reminders: Reminders | None = None,
    ) -> asyncio.Future[None]:
        """As the store's."""
        place = (entity_type, shard, entity_id, fence)
        saved: asyncio.Future[None] = self._states.save(*place, data, reminders)
        return self._tracing.saving(entity_type, entity_id, saved)


class JournalKeeper:
    """The journals of a store, with a span for each traced append of events."""

    def __init__(self, journals: Journals, tracing: Tracing) -> None:
        self._journals, self._tracing = journals, tracing

    def __getattr__(self, name: str) -> Any:
        """Everything else is the store's."""
        return getattr(self._journals, name)

    def append(
        self, kind: str, shard: str, name: str, fence: int, after: int, entries: tuple[bytes, ...]
    ) -> asyncio.Future[None]:
        """As the store's."""
        appended: Any = self._journals.append(kind, shard, name, fence, after, entries)
        return self._tracing.saving(kind, name, appended)


STATUS_MAX = 1024
"""Characters of an error in the status of a span."""


def _fail(span: Span, error: BaseException) -> None:
    """Note an error. A rejection is an answer, and no failure."""
    try:
        if is_a(error, Rejection):
            span.set_attribute("shardbus.rejection", error.type)
            return
        if is_exception(error):
            span.record_exception(error)
    except BaseException:  # it has no text, or none that can be written
        span.set_attribute("exception.type", type_name(error))
    span.set_status(Status(StatusCode.ERROR, described(error, STATUS_MAX)))


def _traceparent(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _span_context(text: str, state: str = "") -> SpanContext | None:
    fields = TRACEPARENT.fullmatch(text)
    if fields is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in fields.groups())
    states = TraceState.from_header([state]) if state else TraceState()
    context = SpanContext(trace_id, span_id, True, TraceFlags(flags), states)
    return context if context.is_valid else None


def _context_of(parent: SpanContext) -> Context:
    return trace.set_span_in_context(NonRecordingSpan(parent), Context())
