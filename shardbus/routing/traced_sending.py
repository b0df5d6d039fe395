"""What a router adds if its process has tracing: a span and its context for each traced message.

A process without tracing makes plain routers, so it pays nothing. In one with tracing, a message
that is not traced costs a look at the current context; a traced one is a `PendingMessage`, even if
its home is known, because that has room for the context. Once it is one, it counts as accepted, so
the bound of the send buffer is checked before.

Source: docs/how-to/trace.md; B.151.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from shardbus.errors import BufferFull, ConfigError
from shardbus.routing.pending_message import Binding, PendingMessage
from shardbus.routing.router import Router
from shardbus.transport.asks import Key, set_error
from shardbus.wire.batch import Chain
from shardbus.wire.schema import Decode, form_of


class Tracer(Protocol):
    """What routers and regions use of `routing.tracing.Tracing`."""

    left: int
    current: Any
    plain: Any

    def parent(self) -> Any | None: ...
    def send(
        self, what: str, entity_type: str, entity_id: str, method: str, context: Any
    ) -> Any: ...
    def end_with(self, span: Any, answer: asyncio.Future[Any]) -> None: ...
    def under(self, context: Any, call: Callable[[], Any]) -> Any: ...
    def ending(self, span: Any, answer: Any) -> Any: ...
    def text(self, span: Any) -> str: ...
    def passed(
        self, carried: str, what: str, about: dict[str, Any], seconds: float = 0.0
    ) -> str: ...
    def handling(
        self,
        function: Any,
        text: str,
        loop: asyncio.AbstractEventLoop,
        *,
        is_async: bool,
        asked: bool,
        method: str,
    ) -> Any: ...
    def cause(self) -> str: ...
    def fired(
        self, cause: str, entity_type: str, entity_id: str, method: str, delay: float | None
    ) -> str: ...
    def keeper(self, states: Any) -> Any: ...


def open_tracing(
    where: str,
    ratio: float,
    dice: Random,
    loop: asyncio.AbstractEventLoop,
    may_begin: Callable[[], bool] = lambda: True,
    limit: int = 0,
) -> Tracer:
    """Return the tracing of this process. Without a span, messages begin traces only where
    `may_begin` permits it, and at most `limit` in a second by the clock of `loop`; 0: any number.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    try:
        from shardbus.routing.tracing import TraceLimit, Tracing
    except ImportError as e:
        raise ConfigError(
            f"tracing needs OpenTelemetry: {e}", hint="pip install 'shardbus[otel]'"
        ) from None
    return Tracing(where, ratio, dice, may_begin, TraceLimit(limit, loop) if limit else None)


class TracedSending(Router):
    """A router that traces what is sent; `trace_with` gives it the tracer."""

    tell_untraced: Callable[[Key, str, bytes, Binding], Any]
    """`tell` as a router without tracing does; below, `send` and `ask`."""
    send_untraced: Callable[[str, object, Binding], Any]
    ask_untraced: Callable[..., asyncio.Future[Any]]

    def trace_with(self, tracer: Tracer | None) -> None:
        super().trace_with(tracer)
        self.tell_untraced, self.send_untraced = super().tell, super().send
        self.ask_untraced = super().ask

    def parent(self) -> Any | None:
        """Return the context to trace a message in that is sent now; None if it is not traced."""
        tracing = self.tracing
        current = tracing.current
        left = tracing.left = tracing.left - 1
        if left <= 0 or current() is not tracing.plain:
            return tracing.parent()
        return None

    def tell(self, key: Key, entity_id: str, payload: bytes, binding: Binding = Binding.ANY) -> Any:
        context = self.parent()
        if context is None:
            return self.tell_untraced(key, entity_id, payload, binding)
        return self.tell_traced(key, entity_id, payload, context, binding)

    def tell_traced(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        context: Any,
        binding: Binding = Binding.ANY,
    ) -> Any:
        """`tell` with a span."""
        span = self.tracing.send("tell", key[0], entity_id, key[1], context)
        try:
            route = self.route_of(entity_id)
            if route.out is not None:
                route.out.admit(key, entity_id)
            pending = PendingMessage(key, route.shard, entity_id, payload, binding=binding)
            pending.trace = self.tracing.text(span)
            return self.deliver(pending)
        finally:
            span.end()

    def send(self, entity_id: str, message: object, binding: Binding = Binding.ANY) -> Any:
        context = self.parent()
        if context is None:
            return self.send_untraced(entity_id, message, binding)
        form = form_of(message)
        key, payload = self.key(form.method), form.encode(message)
        return self.tell_traced(key, entity_id, payload, context, binding)

    def ask(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: Decode,
        binding: Binding = Binding.ANY,
    ) -> asyncio.Future[Any]:
        context = self.parent()
        if context is None:
            return self.ask_untraced(key, entity_id, payload, timeout_ms, decode, binding)
        return self.ask_traced(key, entity_id, payload, timeout_ms, decode, context, (), binding)

    def ask_traced(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: Decode,
        context: Any,
        chain: Chain = (),
        binding: Binding = Binding.ANY,
    ) -> asyncio.Future[Any]:
        """`ask` with a span."""
        future = self._create_future()
        span = self.tracing.send("ask", key[0], entity_id, key[1], context)
        future.add_done_callback(lambda answer: self.tracing.end_with(span, answer))
        self._deliver_ask(future, key, entity_id, payload, timeout_ms, decode, chain, span, binding)
        return future

    def ask_for(
        self,
        answer: Any,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: Decode,
        binding: Binding = Binding.ANY,
    ) -> None:
        context = self.parent()
        if context is None:
            super().ask_for(answer, key, entity_id, payload, timeout_ms, decode, binding)
            return
        span = self.tracing.send("ask", key[0], entity_id, key[1], context)
        if isinstance(answer, asyncio.Future):

            def ended(answer: asyncio.Future[Any]) -> None:
                if answer.cancelled():
                    self.tracing.end_with(span, answer)

            answer.add_done_callback(ended)
        answer = self.tracing.ending(span, answer)
        self._deliver_ask(answer, key, entity_id, payload, timeout_ms, decode, (), span, binding)

    def _deliver_ask(
        self,
        waiter: Any,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: Decode,
        chain: Chain,
        span: Any,
        binding: Binding,
    ) -> None:
        try:
            route, deadline = self.route_of(entity_id), self.deadline(timeout_ms)
            pending = PendingMessage(
                key,
                route.shard,
                entity_id,
                payload,
                0,
                waiter,
                decode,
                deadline,
                chain,
                0,
                binding,
            )
            pending.trace = self.tracing.text(span)
            if route.out is not None:
                route.out.admit(key, entity_id)
            self.deliver(pending)
        except BufferFull as error:
            set_error(waiter, error)
        except BaseException:
            span.end()
            raise
