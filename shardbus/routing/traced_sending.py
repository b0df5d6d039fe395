"""Sends by a router in a process with tracing: a span and its context for each traced message.

A process without tracing has no such sender, so it pays nothing. In one with tracing, a message
that is not traced costs a look at the current context; `routing.tracing` says why that is written
out here. A traced one is a `PendingMessage`, even if its home is known, because that has room for
the context. Once it is one, it counts as accepted, so the bound of the send buffer is checked
before.

Source: docs/how-to/trace.md; B.151.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from shardbus.errors import BufferFull
from shardbus.routing.instance_policies import Choice
from shardbus.routing.pending_message import Binding
from shardbus.routing.router import Deliverer, LoopSender, Router
from shardbus.routing.shard_route import ShardRoute, check_room
from shardbus.routing.tracer import Tracer
from shardbus.transport.asks import Key, set_error
from shardbus.wire.batch import Chain
from shardbus.wire.schema import Decode, Interface, form_of


class TracedSender:
    """Sends by `router` and traces each message."""

    def __init__(self, router: Router, tracer: Tracer) -> None:
        self._router, self.tracer = router, tracer
        self.done = router.done
        self.key: Callable[[str], Key] = router.key
        self._tell, self._send, self.ask_untraced = router.tell, router.send, router.ask

    @property
    def interface(self) -> Interface:
        """The interface of the type, as its router knows it now."""
        return self._router.interface

    @property
    def address(self) -> tuple[Any, ...]:
        """Equal for two senders that send alike."""
        return self._router.address

    @property
    def deliverer(self) -> Deliverer:
        """The deliverer of this process."""
        return self._router.deliverer

    def by(self, choice: Choice) -> LoopSender:
        """Raise ConfigError: the type has no instances."""
        return self._router.by(choice)

    def route_for(self, entity_id: str) -> ShardRoute:
        """Return the route of the entity's shard, for `TracedCall`."""
        return self._router.route_of(entity_id)

    def _parent(self) -> Any | None:
        """Return the context to trace a message in that is sent now; None if it is not traced."""
        tracer = self.tracer
        current = tracer.current
        left = tracer.countdown = tracer.countdown - 1
        if left <= 0 or current() is not tracer.plain:
            return tracer.parent()
        return None

    def tell(self, key: Key, entity_id: str, payload: bytes, binding: Binding = Binding.ANY) -> Any:
        """As `Router.tell`, with a span if it is traced."""
        context = self._parent()
        if context is None:
            return self._tell(key, entity_id, payload, binding)
        return self._tell_traced(key, entity_id, payload, context, binding)

    def tell_accepted(self, key: Key, entity_id: str, payload: bytes, binding: Binding) -> None:
        """As `Router.tell_accepted`, with a span if it is traced."""
        context = self._parent()
        if context is None:
            self._router.tell_accepted(key, entity_id, payload, binding)
            return
        self._tell_traced(key, entity_id, payload, context, binding, accepted=True)

    def tell_nowait(
        self, key: Key, entity_id: str, payload: bytes, binding: Binding = Binding.ANY
    ) -> None:
        """Send at once, or raise BufferFull if `tell` would wait."""
        check_room(self._router.route_of(entity_id).out, key[0], entity_id)
        self.tell(key, entity_id, payload, binding)

    def send(self, entity_id: str, message: object, binding: Binding = Binding.ANY) -> Any:
        """As `Router.send`, with a span if it is traced."""
        context = self._parent()
        if context is None:
            return self._send(entity_id, message, binding)
        form = form_of(message)
        key, payload = self.key(form.method), form.encode(message)
        return self._tell_traced(key, entity_id, payload, context, binding)

    def _tell_traced(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        context: Any,
        binding: Binding,
        *,
        accepted: bool = False,
    ) -> Any:
        span = self.tracer.send("tell", key[0], entity_id, key[1], context)
        try:
            route = self._router.route_of(entity_id)
            if route.out is not None and not accepted:
                route.out.admit(key, entity_id)
            pending = self._router.pending(key, route, entity_id, payload, binding)
            pending.trace = self.tracer.text(span)
            if not accepted:
                return self._router.deliver(pending)
            self._router.deliver_accepted(pending)
            return self.done
        finally:
            span.end()

    def ask(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: Decode,
        binding: Binding = Binding.ANY,
    ) -> asyncio.Future[Any]:
        """As `Router.ask`, with a span if it is traced."""
        tracer, context = self.tracer, self._parent()
        if context is None:
            return self.ask_untraced(key, entity_id, payload, timeout_ms, decode, binding)
        future: asyncio.Future[Any] = self.done.get_loop().create_future()
        span = tracer.send("ask", key[0], entity_id, key[1], context)
        future.add_done_callback(lambda answer: tracer.end_with(span, answer))
        run = self._router.run_of_caller()
        chain = () if run is None else run.chain
        waits = future, decode, timeout_ms
        self._deliver_ask(key, entity_id, payload, binding, waits, chain, span)
        if run is not None:
            run.note_ask((key[0], entity_id), future)
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
        """As `Router.ask_for`, with a span if it is traced."""
        context = self._parent()
        if context is None:
            self._router.ask_for(answer, key, entity_id, payload, timeout_ms, decode, binding)
            return
        span = self.tracer.send("ask", key[0], entity_id, key[1], context)
        if isinstance(answer, asyncio.Future):

            def ended(answer: asyncio.Future[Any]) -> None:
                if answer.cancelled():
                    self.tracer.end_with(span, answer)

            answer.add_done_callback(ended)
        answer = self.tracer.ending(span, answer)
        waits = answer, decode, timeout_ms
        self._deliver_ask(key, entity_id, payload, binding, waits, (), span)

    def _deliver_ask(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        binding: Binding,
        waits: tuple[Any, Decode, int],
        chain: Chain,
        span: Any,
    ) -> None:
        try:
            route = self._router.route_of(entity_id)
            pending = self._router.pending(key, route, entity_id, payload, binding, waits, chain)
            pending.trace = self.tracer.text(span)
            if route.out is not None:
                route.out.admit(key, entity_id)
            self._router.deliver(pending)
        except BufferFull as error:
            set_error(waits[0], error)
        except BaseException:
            span.end()
            raise


def plain_sender(router: Router) -> Router | TracedSender:
    """Return the sender that passes ids to a router as they are."""
    return router if router.tracer is None else TracedSender(router, router.tracer)
