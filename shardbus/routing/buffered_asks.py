"""What waits in a region's buffer, as those who sent it see it: an ask ends at its deadline, even
there, and whoever hears that a message went nowhere hears why.

An ask that ends here keeps its place in the buffer, for to look for each there would cost more than
it frees: the region is told of the shards, and lets go of it where it wants the room. Otherwise it
is left out when the home comes.

Source: S2.65; B.55, B.108, B.112.
"""

from __future__ import annotations

from shardbus.errors import AskTimeout, BufferFull, NodeLost, RequestError, Unhandled
from shardbus.routing.pending_message import PendingMessage, Refusal
from shardbus.sharding.region.buffered import REJECT_BUFFER_FULL, REJECT_STOPPED


class BufferedAsks:
    """The asks that wait for homes of one type. True if there are any."""

    __slots__ = ("_asks", "_entity_type")

    def __init__(self, entity_type: str) -> None:
        self._entity_type = entity_type
        self._asks: dict[PendingMessage, None] = {}

    def __bool__(self) -> bool:
        return bool(self._asks)

    @property
    def flushes(self) -> int:
        """How many of them are no messages, but flushes that follow such."""
        return sum(envelope.key is None for envelope in self._asks)

    def add(self, envelope: PendingMessage) -> None:
        """It is about to wait; what is no ask does not matter here."""
        if envelope.waiter is not None:
            self._asks[envelope] = None

    def discard(self, envelope: PendingMessage) -> None:
        """It waits no more."""
        self._asks.pop(envelope, None)

    def refuse(self, error: Refusal) -> None:
        """None of them will be sent."""
        asks, self._asks = self._asks, {}
        for envelope in asks:
            envelope.refuse(error)

    def expire(self, tick: int) -> list[PendingMessage]:
        """Fail those whose deadline has passed; returns them."""
        late = [envelope for envelope in self._asks if envelope.deadline <= tick]
        for envelope in late:
            del self._asks[envelope]
            text = f"no home for shard {envelope.shard} of {self._entity_type!r} in time"
            envelope.refuse(AskTimeout(text))
        return late


def rejection(entity_type: str, reason: str) -> RequestError:
    """What the sender of a message hears that goes nowhere for this reason."""
    if reason == REJECT_BUFFER_FULL:
        return BufferFull(f"the buffer of {entity_type!r} for shards without a home is full")
    if reason == REJECT_STOPPED:
        return Unhandled(f"an entity of {entity_type!r} stopped, and its shard moved on")
    return NodeLost(f"a message of {entity_type!r} was given up: {reason}")
