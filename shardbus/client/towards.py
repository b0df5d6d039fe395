"""The verbs of a client by the name of a type: `client.call(...)`, `client.to("all").tell(...)`.

Each sends when it is called; an unknown type is described by the contact first, in order
(`unknown_types`). `to` chooses a router for types with instances; a client itself has no choice and
uses the router that the type declares.

Source: docs/how-to/send.md, docs/partitions.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from operator import length_hint
from threading import get_ident
from typing import Any, TypeVar

from shardbus.client.regions import ClientRegions, Rest, Row
from shardbus.client.unknown_types import HeldMessage, HeldMessages
from shardbus.errors import RequestError, ShardBusError
from shardbus.routing.instance_policies import Choice
from shardbus.routing.refs import (
    ask,
    call,
    cast,
    method_and_payload,
    milliseconds,
    pack,
    start_entity,
    tell,
)
from shardbus.routing.router import LoopSender, Messages
from shardbus.routing.sent import DONE, OnceAwaited, Sent, awaited
from shardbus.transport.asks import set_error

T = TypeVar("T")


def _of_a_part(outcome: asyncio.Future[Any]) -> None:
    """Let the error of a message of a batch not be definite: those before it may be sent."""
    error = None if outcome.cancelled() else outcome.exception()
    if isinstance(error, RequestError):
        error.definite = False


class Towards:
    """The verbs of a client. With a choice they send by this router; they raise ConfigError then if
    the type has no instances."""

    def __init__(self, regions: ClientRegions, choice: Choice | None, timeout_ms: int) -> None:
        self._regions, self._choice, self.timeout_ms = regions, choice, timeout_ms
        self._thread = get_ident()
        self.routers: dict[str | type, LoopSender] = regions.routers if choice is None else {}
        """The senders to the known types, by name and by class."""

    @awaited
    def tell(
        self, kind: str | type, entity_id: str, message: object, *args: Any, ack: bool = False
    ) -> Any:
        """Send without an answer. Returns an awaitable that waits while the send buffer is full, or
        while the client does not know the type.

        With further arguments `message` is the name of a handler. Raises BufferFull, SchemaError,
        MessageTooLarge or UnknownEntityType; the message was then not sent.

        With `ack` it is delivered, as by `ref.add.deliver(2)`: it is sent until the entity confirms
        that it has handled it, which the awaitable waits for, and takes effect once. Raises
        DeliveryFailed, too, and a Rejection if the handler refuses.
        """
        if ack:
            return self._here(lambda: self._deliver(kind, entity_id, message, args))
        return self._here(lambda: tell(self._to(kind), entity_id, message, args))

    @awaited
    def tell_many(self, kind: str | type, messages: Iterable[Row]) -> Sent[None]:
        """Send a batch of (entity id, message), in order. Messages without room are sent as soon as
        there is room, unless the caller cancels its wait; messages of others may come in between.
        An error ends the batch; it is not definite if messages before were sent."""
        return self._here(lambda: self._tell_many(kind, messages))

    @awaited
    def ask(
        self,
        kind: str | type,
        entity_id: str,
        message: object,
        *args: Any,
        timeout: float | None = None,
    ) -> Any:
        """Send and await the answer, at most `timeout` seconds, in which the client also requests
        an unknown type's description and finds a node if it has lost the last one. By `all`, the
        answer is a dict of node to reply or error.

        With further arguments `message` is the name of a handler. Raises a RequestError; its
        `definite` is True if the handler certainly did not run."""
        return self._here(lambda: ask(self._to(kind), entity_id, message, args, self._ms(timeout)))

    @awaited
    def call(
        self,
        kind: str | type,
        entity_id: str,
        handler: str,
        *args: Any,
        timeout: float | None = None,
    ) -> Sent[Any]:
        """Ask a handler by its name; it may have no arguments."""
        sender, timeout_ms = self.routers.get(kind), self._ms(timeout)
        if sender is None or get_ident() != self._thread:
            return self._here(lambda: call(self._to(kind), entity_id, handler, args, timeout_ms))
        return Sent(call(sender, entity_id, handler, args, timeout_ms))

    @awaited
    def start_entity(
        self, kind: str | type, entity_id: str, timeout: float | None = None
    ) -> Sent[None]:
        """Start an entity without a message; returns when it runs. A remembered entity keeps
        running from then on. Raises as `ask`."""
        return self._here(lambda: start_entity(self._to(kind), entity_id, self._ms(timeout)))

    @awaited
    def cast(self, kind: str | type, entity_id: str, handler: str, *args: Any) -> Sent[None]:
        """Tell a handler by its name; it may have no arguments."""
        sender = self.routers.get(kind)
        if sender is None or get_ident() != self._thread:
            return self._here(lambda: cast(self._to(kind), entity_id, handler, args))
        room = cast(sender, entity_id, handler, args)
        return DONE if room is sender.done else Sent(room)

    @awaited
    def ask_many(
        self, kind: str | type, messages: Iterable[Row], timeout: float | None = None
    ) -> Sent[list[Any]]:
        """Ask a batch of (entity id, message). Returns answers or errors, in the same order."""
        return self._here(lambda: self._ask_many(kind, messages, self._ms(timeout)))

    async def router_of(self, kind: str | type, timeout_ms: int | None = None) -> LoopSender:
        """Return the sender to a type, for the blocking client. Raises UnknownEntityType, or
        AskTimeout after `timeout_ms`."""
        wait_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        return self._by_choice(kind, await self._regions.learn(kind, wait_ms / 1000))

    # ---- in the loop's thread

    def _deliver(
        self, kind: str | type, entity_id: str, message: object, args: tuple[Any, ...]
    ) -> Awaitable[None]:
        sender = self._sender(kind)
        if sender is None:
            return asyncio.ensure_future(self._deliver_to_unknown(kind, entity_id, message, args))
        key, payload = pack(sender, message, args)
        outcome: Awaitable[None] = sender.deliverer.deliver(sender, entity_id, key[1], payload)
        return outcome

    async def _deliver_to_unknown(
        self, kind: str | type, entity_id: str, message: object, args: tuple[Any, ...]
    ) -> None:
        await self.router_of(kind)
        await self._deliver(kind, entity_id, message, args)

    def _here(self, send: Callable[[], Awaitable[T]]) -> Sent[T]:
        """Send now; or if this is not the loop's thread, when the loop awaits the result."""
        return Sent(send() if self._regions.in_loop else OnceAwaited(send))

    def _sender(self, kind: str | type) -> LoopSender | None:
        """Return the sender to a type; None if it is not known yet."""
        sender = self.routers.get(kind)
        if sender is None and (inner := self._regions.find(kind)) is not None:
            sender = self._by_choice(kind, inner)
        return sender

    def _by_choice(self, kind: str | type, sender: LoopSender) -> LoopSender:
        if self._choice is not None:
            sender = self.routers[kind] = sender.by(self._choice)
        return sender

    def _to(self, kind: str | type) -> Messages:
        """Return an object that takes messages for a type, known or not."""
        sender = self._sender(kind)
        if sender is not None:
            return sender
        assert isinstance(kind, str)
        return HeldMessages(self._regions.hold, kind, self._choice, self.timeout_ms)

    # ---- batches

    def _ask_many(
        self, kind: str | type, messages: Iterable[Row], timeout_ms: int
    ) -> asyncio.Future[list[Any]]:
        sender, asks = self._to(kind), list[asyncio.Future[Any]]()
        for entity_id, message in messages:
            try:
                asks.append(ask(sender, entity_id, message, (), timeout_ms))
            except ShardBusError as error:
                failed: asyncio.Future[Any] = self._regions.endpoint.loop.create_future()
                set_error(failed, error)
                asks.append(failed)
        if not asks:
            return self._regions.settled(list[Any]())
        return asyncio.gather(*asks, return_exceptions=True)

    def _tell_many(self, kind: str | type, messages: Iterable[Row]) -> Any:
        """Send while there is room. Returns an awaitable: an empty one, or the task that sends the
        rest."""
        rows, sender = iter(messages), self._sender(kind)
        if sender is None:
            return self._hold_many(kind, rows)
        send, done, sent = sender.send, sender.done, False
        try:
            for entity_id, message in rows:
                waits = send(entity_id, message)
                sent = True
                if waits is not done:
                    rest = Rest(rows)
                    return self._regions.batch(self._send_rest(kind, waits, rest), rest)
        except RequestError as error:
            error.definite = error.definite and not sent
            raise
        return done

    def _hold_many(self, kind: str | type, rows: Iterator[Row]) -> asyncio.Future[Any]:
        waits: asyncio.Future[Any] | None = None
        try:
            for entity_id, message in rows:
                method, payload = method_and_payload(message, ())
                held = HeldMessage(entity_id, method, payload, self.timeout_ms, None, self._choice)
                if not self._regions.unknown.fits(held):
                    rest = Rest(rows, (entity_id, message))
                    return self._regions.batch(self._send_rest(kind, waits, rest), rest)
                others = waits is not None
                waits = self._regions.hold(kind, held)
                if others:
                    waits.add_done_callback(_of_a_part)
        except RequestError as error:
            error.definite = error.definite and waits is None
            raise
        return self._regions.settled(None) if waits is None else waits

    async def _send_rest(self, kind: str | type, waits: Awaitable[None] | None, rest: Rest) -> None:
        """Send the rest of a batch, each message as soon as there is room."""
        sent = waits is not None
        try:
            if waits is not None:
                await waits
            sender = await self.router_of(kind)
            send, done = sender.send, sender.done
            for entity_id, message in rest:
                room: Any = send(entity_id, message)
                sent = True
                if room is not done:
                    await room
        except Exception as error:
            if isinstance(error, RequestError):
                error.definite = error.definite and not sent
            self._regions.not_sent(error, length_hint(rest))
            raise

    def _ms(self, timeout: float | None) -> int:
        return self.timeout_ms if timeout is None else milliseconds(timeout)
