"""Messages that cannot leave yet, or that another node forwarded, with all that their sending
needs.

A message with a known home never becomes a `PendingMessage`. The region machine keeps pending
messages in order and does not look into them; the router sends or refuses them.

`BufferedAsks` holds the asks of one type. An ask ends at its deadline even while it waits for a
home. It then keeps its place in the region's buffer, because to search for it would cost more than
it frees: the region drops it when it needs the room, otherwise the router skips it when the home is
known.

Source: S0.11, S0.14, S2.22 to S2.24, S2.65.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from shardbus.errors import (
    AskTimeout,
    BufferFull,
    LocalProtocolError,
    RequestError,
    Unhandled,
)
from shardbus.sharding.region.route import (
    REJECT_BUFFER_FULL,
    REJECT_DROPPED_IN_MOVE,
    REJECT_HOP_LIMIT,
    REJECT_REFUSED,
    REJECT_STOPPED,
)
from shardbus.transport.asks import CoarseClock, Key, set_error
from shardbus.transport.outbox import SessionOutbox
from shardbus.wire.batch import Chain
from shardbus.wire.schema import Decode

Refusal = RequestError | LocalProtocolError
"""Why a message is not sent: a failed request, or a closed client."""


OVERHEAD_BYTES = 128
"""The weight of a pending message in the buffer besides its payload."""


class Binding(Enum):
    """Which instances of its entity may get a message, of a type with instances."""

    ANY = "any"
    """One: the picked instance, or another one if that has no home."""
    PICKED = "picked"
    """One: the picked instance, or another one if that is no more."""
    PART = "part"
    """The picked instance alone: it is a part of `all`, and the others get theirs."""


class PendingMessage:
    """A message that waits for its shard's home, or (key None) a flush that follows such
    messages. `via` is the session by which a tell came, as a number below zero."""

    __slots__ = (
        "binding", "called", "chain", "deadline", "decode", "entity_id", "error", "hops", "key",
        "payload", "shard", "since", "size", "trace", "via", "waiter", "why",
    )  # fmt: skip

    def __init__(
        self,
        key: Key | None,
        shard: str,
        entity_id: str,
        payload: bytes,
        hops: int = 0,
        waiter: Any = None,
        decode: Decode | None = None,
        deadline: int = 0,
        chain: Chain = (),
        via: int = 0,
        binding: Binding = Binding.ANY,
    ) -> None:
        self.key, self.shard, self.entity_id = key, shard, entity_id
        self.payload, self.hops = payload, hops
        self.waiter, self.decode, self.deadline, self.chain = waiter, decode, deadline, chain
        self.size, self.via = len(payload) + OVERHEAD_BYTES, via
        self.binding, self.called = binding, False
        """`called`: it is on its way into the region, and its sender is called back."""
        self.error: Refusal | None = None
        self.since = 0.0
        """When it began to wait, in seconds of the loop."""
        self.trace = self.why = ""
        """Its trace context, and why it waits; empty if it is not traced."""

    @property
    def any_instance(self) -> bool:
        """True if another instance may handle it as well."""
        return self.binding is Binding.ANY and not self.hops and self.key is not None

    @property
    def expired(self) -> bool:
        """True if its deadline has passed and its ask has failed with AskTimeout."""
        return isinstance(self.error, AskTimeout)

    @property
    def abandoned(self) -> bool:
        """True if it is an ask of this process whose sender has given it up."""
        if self.error is not None or self.waiter is None or self.decode is None:
            return False
        return bool(self.waiter.done())

    @property
    def is_marker(self) -> bool:
        """True if it is a flush, and no message."""
        return self.key is None

    def send(self, out: SessionOutbox, clock: CoarseClock) -> None:
        """Send it along a session. An ask that has its outcome already is dropped."""
        waiter = self.waiter
        if waiter is not None and self.decode is not None and waiter.done():
            return
        entity_id, payload, chain = self.entity_id, self.payload, self.chain
        timeout_ms = (
            max(self.deadline - clock.tick, 1) * CoarseClock.TICK_MS if waiter is not None else 0
        )
        if self.key is None:
            assert waiter is not None
            out.flush_shard(entity_id, self.shard, self.hops, timeout_ms, waiter)
        elif self.hops or (waiter is not None and self.decode is None):
            key, shard, hops, via, trace = self.key, self.shard, self.hops, self.via, self.trace
            out.relay(key, shard, entity_id, payload, hops, timeout_ms, waiter, chain, via, trace)
        elif self.trace:
            decode, since, trace = self.decode, self.since, self.trace
            key = self.key
            out.traced(key, entity_id, payload, timeout_ms, waiter, decode, chain, since, trace)
        elif waiter is None:
            out.tell(self.key, entity_id, payload, True)
        else:
            decode, since = self.decode, self.since
            out.ask(self.key, entity_id, payload, timeout_ms, waiter, decode, chain, since)

    def refuse(self, error: Refusal) -> None:
        """Fail it: an ask gets the error; for a tell, the router finds it in `error`."""
        self.error = error
        if self.waiter is None:
            return
        if self.decode is None:
            self.waiter.fail(error)
        elif not self.waiter.done():
            set_error(self.waiter, error)


class BufferedAsks:
    """The asks of one type that wait for homes. True if there are any."""

    __slots__ = ("_asks", "_entity_type")

    def __init__(self, entity_type: str) -> None:
        self._entity_type = entity_type
        self._asks: dict[PendingMessage, None] = {}

    def __bool__(self) -> bool:
        return bool(self._asks)

    def add(self, pending: PendingMessage) -> None:
        """Record that an ask is about to wait; a tell is ignored."""
        if pending.waiter is not None:
            self._asks[pending] = None

    def last_of(self, waiter: Any) -> PendingMessage | None:
        """Return the ask that began to wait last, if its answer goes to `waiter`."""
        pending = next(reversed(self._asks), None)
        return pending if pending is not None and pending.waiter is waiter else None

    def discard(self, pending: PendingMessage) -> None:
        """Forget one that waits no more."""
        self._asks.pop(pending, None)

    def refuse(self, error: Refusal, entity_type: str | None = None) -> None:
        """Fail all of them with this error, or only those for one of the types."""
        asks = [
            pending
            for pending in self._asks
            if entity_type is None or (pending.key is not None and pending.key[0] == entity_type)
        ]
        for pending in asks:
            del self._asks[pending]
            pending.refuse(error)

    def expire(self, tick: int, why_waiting: Callable[[str], str]) -> list[PendingMessage]:
        """Fail those whose deadline has passed at this tick, and return them. `why_waiting` returns
        why a shard has no home, if that is known."""
        late = [pending for pending in self._asks if pending.deadline <= tick]
        for pending in late:
            del self._asks[pending]
            text = f"no home for shard {pending.shard} of {self._entity_type!r} in time"
            why = why_waiting(pending.shard)
            pending.refuse(AskTimeout(f"{text}: {why}" if why else text))
        return late


def rejection(entity_type: str, reason: str) -> RequestError:
    """Return the error for the sender of a message that was rejected for this reason. The region
    rejects only messages that no node has handled, so the error is definite; no node has died."""
    if reason == REJECT_BUFFER_FULL:
        return BufferFull(f"the buffer of {entity_type!r} for shards without a home is full")
    if reason == REJECT_DROPPED_IN_MOVE:
        return Unhandled(f"a message of {entity_type!r} was dropped while its shard moved")
    if reason == REJECT_STOPPED:
        return Unhandled(f"an entity of {entity_type!r} stopped, and its shard moved on")
    if reason == REJECT_HOP_LIMIT:
        return Unhandled(f"no node took a message of {entity_type!r} within hop_limit forwards")
    if reason == REJECT_REFUSED:
        return Unhandled(f"the coordinator of {entity_type!r} refuses the region of this process")
    return Unhandled(f"a message of {entity_type!r} was given up: {reason}")
