"""A message that cannot leave yet, or that another node sent on: everything that its sending needs.

Messages with a known home never become one. The region machine keeps envelopes in order without
looking into them; the router sends them by `send`, or refuses them.

Source: S0.11, S0.14, S2.22-S2.24; B.122.
"""

from __future__ import annotations

from typing import Any

from shardbus.errors import AskTimeout, LocalProtocolError, RequestError
from shardbus.transport.asks import CoarseClock, Key
from shardbus.transport.session import Session
from shardbus.wire.batch import Chain
from shardbus.wire.schema import Decode

Refusal = RequestError | LocalProtocolError
"""Why a message is not sent: what is in the way, or that its client is closed."""


class PendingMessage:
    """A message that waits for its shard's home, or (key None) a flush that follows such
    messages."""

    __slots__ = (
        "chain",
        "deadline",
        "decode",
        "entity_id",
        "error",
        "hops",
        "key",
        "payload",
        "shard",
        "size",
        "via",
        "waiter",
    )

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
    ) -> None:
        self.key, self.shard, self.entity_id, self.payload, self.hops = (
            key,
            shard,
            entity_id,
            payload,
            hops,
        )
        self.waiter, self.decode, self.deadline, self.chain = waiter, decode, deadline, chain
        self.size, self.via = len(payload) + 128, via
        """`via`: by which link a tell came, as a number below zero."""
        self.error: Refusal | None = None

    @property
    def expired(self) -> bool:
        """Its time is over, and whoever waited for an answer has been told."""
        return isinstance(self.error, AskTimeout)

    def send(self, out: Session, clock: CoarseClock) -> None:
        """Put it on its way. One whose asker has given up is dropped: its outcome is told
        already."""
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
            out.relay(
                self.key,
                self.shard,
                entity_id,
                payload,
                self.hops,
                timeout_ms,
                waiter,
                chain,
                self.via,
            )
        elif waiter is None:
            out.tell_kept(self.key, entity_id, payload)
        elif chain:
            out.ask_within(self.key, entity_id, payload, timeout_ms, waiter, self.decode, chain)
        else:
            out.ask(self.key, entity_id, payload, timeout_ms, waiter, self.decode)

    def refuse(self, error: Refusal) -> None:
        """It will not be sent: tell whoever waits; a teller finds `error`."""
        self.error = error
        if self.waiter is None:
            return
        if self.decode is None:
            self.waiter.fail(error)
        elif not self.waiter.done():
            self.waiter.set_exception(error)
