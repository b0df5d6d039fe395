"""Messages for types that a client does not know yet.

A type that is named by a string is described by the contact. Until then its messages wait here, in
the order of the calls that sent them:

    tell, ask by name ──the type is known──────────> its router
                      └─it is not known yet────────> here, in order
                           its description comes      all of them to its router, before any other
                           there is no such type      each gets the error
                           its deadline passes        it gets AskTimeout; the others keep the order
                           its caller cancels an ask  it is left out
                           the client closes          each gets LocalProtocolError

A name that has a router has no message here, because `release` is called where the router is made.
So a message that is sent later comes behind.

The messages of all names together are bounded as messages for shards without a home. A dropped tell
is counted, also if its caller awaits it and so gets the error.

Source: docs/guarantees.md, "What order means"; S2.37.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from shardbus.config.settings import ShardingSettings
from shardbus.errors import AskTimeout, BufferFull, RequestError
from shardbus.routing.instance_policies import Choice
from shardbus.routing.pending_message import OVERHEAD_BYTES
from shardbus.routing.router import LoopSender
from shardbus.routing.tracer import Tracer
from shardbus.sharding.region.route import REJECT_BUFFER_FULL, REJECT_EXPIRED, REJECT_REFUSED
from shardbus.transport.asks import CoarseClock, Key, set_error
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.outbox import too_large
from shardbus.wire.batch import PAYLOAD_BYTES_MAX
from shardbus.wire.schema import Decode, Interface

DESCRIBE_EVERY_S = 1.0
NEVER = 2**62
"""A tick that does not come."""
UNKNOWN_TYPE = "unknown_type"
"""The reason for which tells to a type are dropped that the cluster does not have."""


class HeldMessage(msgspec.Struct, eq=False):
    """A message to an entity. `decode` reads the answer of an ask; None: a tell."""

    entity_id: str
    method: str
    payload: bytes
    timeout_ms: int
    decode: Decode | None = None
    choice: Choice | None = None
    """The router that its sender has chosen, of a type with instances."""

    @property
    def size(self) -> int:
        """The bytes that it counts while it waits."""
        return len(self.payload) + OVERHEAD_BYTES

    def send(self, sender: LoopSender, outcome: asyncio.Future[Any], timeout_ms: int) -> None:
        """Send it. Raises as `Router.tell`."""
        if self.choice is not None:
            sender = sender.by(self.choice)
        key = sender.key(self.method)
        if self.decode is not None:
            sender.ask_for(outcome, key, self.entity_id, self.payload, timeout_ms, self.decode)
            return
        room = sender.tell(key, self.entity_id, self.payload)
        if room is sender.done:
            _done(outcome)
        else:
            asyncio.ensure_future(room).add_done_callback(lambda _: _done(outcome))


class Waiting(msgspec.Struct, eq=False):
    """A message that waits, with its outcome: of a tell, that there is room for another one."""

    message: HeldMessage
    outcome: asyncio.Future[Any]
    deadline: int
    """In ticks."""
    context: Any
    """The trace context of its sender; None without tracing."""


class UnknownTypes:
    """The messages of one client that wait for the descriptions of their types. `describe` asks the
    contact for one, `away` returns why there is no contact."""

    def __init__(
        self,
        endpoint: Endpoint,
        settings: ShardingSettings,
        describe: Callable[[str], object],
        away: Callable[[], str],
        tracer: Tracer | None,
    ) -> None:
        self._loop, self._clock, self._tracer = endpoint.loop, endpoint.clock, tracer
        self._messages_max, self._bytes_max = settings.buffer_size, settings.buffer_bytes
        self._describe, self._away = describe, away
        self._waiting: dict[str, list[Waiting]] = {}
        self._learning: dict[str, list[asyncio.Future[LoopSender]]] = {}
        self._described_at: dict[str, float] = {}
        """When the contact was last asked, by type."""
        self._earliest = NEVER
        self.messages = self.bytes = 0
        self.dropped: Counter[str] = Counter()
        """Tells that were not sent, by reason."""

    def fits(self, message: HeldMessage) -> bool:
        """True if there is room for one more message."""
        return self.messages < self._messages_max and (self.bytes + message.size <= self._bytes_max)

    @property
    def tells(self) -> int:
        """The tells that wait."""
        return sum(w.message.decode is None for row in self._waiting.values() for w in row)

    def add(self, name: str, message: HeldMessage) -> asyncio.Future[Any]:
        """Keep a message until its type is known. Returns its outcome.

        Raises:
            MessageTooLarge: the payload is over the limit. BufferFull: no room, and it is a tell.
        """
        if len(message.payload) > PAYLOAD_BYTES_MAX:
            raise too_large(len(message.payload))
        outcome: asyncio.Future[Any] = self._loop.create_future()
        if not self.fits(message):
            self.dropped[REJECT_BUFFER_FULL] += 1
            error = BufferFull(f"the buffer for types that are not known yet, as {name!r}, is full")
            if message.decode is None:
                raise error
            set_error(outcome, error)
            return outcome
        context = None if self._tracer is None else self._tracer.current()
        deadline = self._clock.after(message.timeout_ms)
        row = self._waiting.setdefault(name, [])
        row.append(Waiting(message, outcome, deadline, context))
        self.messages += 1
        self.bytes += message.size
        self._earliest = min(self._earliest, deadline)
        self._ask(name)
        return outcome

    def sender_of(self, name: str) -> asyncio.Future[LoopSender]:
        """Return a future of the sender to a type, once that is known. Cancel it to give up."""
        future: asyncio.Future[LoopSender] = self._loop.create_future()
        self._learning.setdefault(name, []).append(future)
        self._ask(name)
        return future

    def _ask(self, name: str) -> None:
        if name not in self._described_at:
            self._described_at[name] = self._loop.time()
            self._describe(name)

    def ask_again(self) -> None:
        """Request each description now: there is a new contact."""
        for name in self._described_at:
            self._described_at[name] = self._loop.time()
            self._describe(name)

    def tick(self) -> int:
        """Fail messages that have waited too long, and request missing descriptions again. Returns
        the number of asks that failed."""
        late = 0
        if self._clock.tick >= self._earliest:
            self._earliest = NEVER
            late = sum(self._expire(name, row) for name, row in list(self._waiting.items()))
        now = self._loop.time()
        for name, at in list(self._described_at.items()):
            learning = [f for f in self._learning.pop(name, ()) if not f.done()]
            if learning:
                self._learning[name] = learning
            elif name not in self._waiting:
                del self._described_at[name]
                continue
            if now - at >= DESCRIBE_EVERY_S:
                self._described_at[name] = now
                self._describe(name)
        return late

    def _expire(self, name: str, row: list[Waiting]) -> int:
        tick, kept, asks = self._clock.tick, list[Waiting](), 0
        for waiting in row:
            if waiting.deadline > tick and not self._is_given_up(waiting):
                kept.append(waiting)
                self._earliest = min(self._earliest, waiting.deadline)
                continue
            asks += waiting.message.decode is not None and not waiting.outcome.done()
            self._fail(waiting, REJECT_EXPIRED, not_described(name, self._away()))
        row[:] = kept
        if not kept:
            del self._waiting[name]
        return asks

    @staticmethod
    def _is_given_up(waiting: Waiting) -> bool:
        return waiting.message.decode is not None and waiting.outcome.done()

    def _take(self, name: str) -> list[Waiting]:
        self._described_at.pop(name, None)
        return self._waiting.pop(name, [])

    # ---- the end of the wait

    def release(self, name: str, sender: LoopSender) -> None:
        """Send the messages that wait for a type: this sends to it from now on."""
        for waiting in self._take(name):
            if self._is_given_up(waiting):
                self._leave(waiting)
                continue
            left_ms = max(waiting.deadline - self._clock.tick, 1) * CoarseClock.TICK_MS
            send = partial(waiting.message.send, sender, waiting.outcome)
            try:
                if self._tracer is None:
                    send(left_ms)
                else:
                    self._tracer.under(waiting.context, partial(send, left_ms))
            except BufferFull as error:  # the router has counted it
                self._fail(waiting, "", error)
            except Exception as error:
                reason = UNKNOWN_TYPE if isinstance(error, RequestError) else REJECT_REFUSED
                self._fail(waiting, reason, error)
            else:
                self._leave(waiting)
        for future in self._learning.pop(name, ()):
            if not future.done():
                future.set_result(sender)

    def refuse(self, name: str, error: Exception) -> None:
        """Fail the messages that wait for a type: there is none, or it cannot be used."""
        for waiting in self._take(name):
            self._fail(waiting, UNKNOWN_TYPE, error)
        for future in self._learning.pop(name, ()):
            if not future.done():
                set_error(future, error)

    def close(self, error: Exception) -> None:
        """Fail everything: the client is closed, and has counted the tells."""
        for name in list(self._described_at):
            for waiting in self._take(name):
                self._fail(waiting, "", error)
            for future in self._learning.pop(name, ()):
                if not future.done():
                    set_error(future, error)

    def _leave(self, waiting: Waiting) -> None:
        self.messages -= 1
        self.bytes -= waiting.message.size

    def _fail(self, waiting: Waiting, reason: str, error: Exception) -> None:
        """Drop a message; a tell is counted by this reason, unless it is empty."""
        self._leave(waiting)
        if waiting.message.decode is None and reason:
            self.dropped[reason] += 1
        if not waiting.outcome.done():
            set_error(waiting.outcome, error)


def not_described(name: str, why: str) -> AskTimeout:
    """Return the error for a message whose type no node has described in time; `why` is empty if
    there is a node to ask."""
    text = f"no node describes the entity type {name!r}"
    return AskTimeout(f"{text}: {why}" if why else text)


def _done(outcome: asyncio.Future[Any]) -> None:
    if not outcome.done():
        outcome.set_result(None)


class HeldMessages:
    """Takes the messages of a type that is not known yet; `hold` keeps them."""

    def __init__(
        self,
        hold: Callable[[str, HeldMessage], asyncio.Future[Any]],
        name: str,
        choice: Choice | None,
        timeout_ms: int,
    ) -> None:
        self._hold, self._name, self._choice, self._timeout_ms = hold, name, choice, timeout_ms
        self.interface = Interface(name, 1, "")
        """No handlers: none is known."""

    def key(self, method: str) -> Key:
        """Return the key of a method."""
        return self._name, method

    def tell(self, key: Key, entity_id: str, payload: bytes) -> asyncio.Future[Any]:
        """Keep a tell. Returns a future that is done when there is room for more."""
        message = HeldMessage(entity_id, key[1], payload, self._timeout_ms, None, self._choice)
        return self._hold(self._name, message)

    def ask(
        self, key: Key, entity_id: str, payload: bytes, timeout_ms: int, decode: Decode
    ) -> asyncio.Future[Any]:
        """Keep an ask. Returns a future of its answer."""
        message = HeldMessage(entity_id, key[1], payload, timeout_ms, decode, self._choice)
        return self._hold(self._name, message)
