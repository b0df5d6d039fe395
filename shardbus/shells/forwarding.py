"""Messages that go on from this node to another, and the answers that come back for them.

A message that its entity has put aside has no deadline here any more, for it waits as long as the
entity likes; whoever asked still has one. On the way it gets a very late one.

Source: S0.14, S0.15, S2.22-S2.24; B.122.
"""

from __future__ import annotations

from shardbus.entities.activation import Message
from shardbus.routing.pending_message import PendingMessage
from shardbus.transport.asks import Failure, Key
from shardbus.transport.session import Session

LATEST_MS = 86_400_000
"""For a message without a deadline."""


class ForwardedAsk:
    """Waits, for somebody on a session, for the answer to a message that we sent on."""

    __slots__ = ("_corr", "_session")

    def __init__(self, session: Session, corr: int) -> None:
        self._session, self._corr = session, corr

    def resolve(self, payload: bytes) -> None:
        if self._session.lost is None:
            self._session.reply(self._corr, payload)

    def fail(self, error: Failure) -> None:
        if self._session.lost is None:
            self._session.fail(self._corr, error)


def passed_on(
    key: Key, shard: str, entity_id: str, message: Message, hops: int, latest: int
) -> PendingMessage:
    """The message for another node; it was forwarded so often before. `latest`: the tick of a very
    late deadline."""
    _, payload, asker, corr, deadline, chain = message
    waiter = ForwardedAsk(asker, corr) if asker is not None else None
    until, via = min(deadline, latest), min(corr, 0)
    return PendingMessage(key, shard, entity_id, payload, hops + 1, waiter, None, until, chain, via)
