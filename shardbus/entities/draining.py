"""Messages between entities that leave a node together.

A shard that leaves takes nothing new: messages for it wait for its next home. But its entities
still handle the messages in their mailboxes, and a handler may call other entities of the shard, or
of another one that leaves. If such a call waited for the next home, that would wait for the
handler, and the handler for it. So an entity may call the entities that leave the node with it
until their shard has stopped:

    sender                                its message for a shard that leaves, and is still here
    an entity of a shard that leaves      stays: its receiver handles it here, and starts again if
                                          it has stopped
    any other                             waits for the next home

- **Order.** Once a message of an entity waits for the next home of a shard, all its later ones for
  that shard follow it.
- **No circle.** A call waits only for a shard that began to leave before the sender's own. So of
  any shards that leave one node, the first waits for none.
- **An end.** Asks end with the handlers that await them. Tells might go to and fro for ever: they
  stay for `TELLS_S` after the first message that stayed. A shard whose time to stop is over takes
  nothing more.

A shard leaves from the moment at which its region closes the route to it until it has stopped or
another home is known. Calls between entities on several nodes can still form a circle, which ends
with AskTimeout.

Messages of this node that were sent before a shard stopped, and arrive afterwards, stay as well.

Messages that the entities of a shard have not handled when it stops are left for its next home; if
there is none, as when the whole cluster stops, they are refused.

Source: docs/guarantees.md, S0.23, S2.27.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from shardbus.entities.activation import MOVES, Activation, Message, Shard
from shardbus.entities.deliveries import EntityDeliveries
from shardbus.entities.durable_mailboxes import RECORD
from shardbus.entities.entity_type import StopReason
from shardbus.entities.runner import failure_for_asker
from shardbus.entities.supervision import EntityCounts
from shardbus.errors import Unhandled
from shardbus.transport.drop_reports import Origin
from shardbus.wire.batch import Chain

TELLS_S = 1.0
"""Seconds in which tells between leaving entities stay."""


class Drain:
    """The messages that one shard takes while it leaves, towards a home with this fence or a higher
    one."""

    __slots__ = ("_tells_until", "_waiting", "fence")

    def __init__(self, fence: int, now: float) -> None:
        self.fence = fence
        self._tells_until = now + TELLS_S
        self._waiting: set[Activation] = set()
        """Entities of which a message waits for the next home."""

    def takes(self, sender: Activation, now: float, *, asks: bool, leaves: bool) -> bool:
        """True if the shard takes a message of this entity. `leaves`: so does the sender."""
        stays = leaves and sender not in self._waiting and (asks or now < self._tells_until)
        if not stays:
            self._waiting.add(sender)
        return stays


class DrainingHost(Protocol):
    """The parts of a host that shards need while they leave."""

    shards: dict[str, Shard]
    loop: asyncio.AbstractEventLoop
    counts: EntityCounts
    deliveries: EntityDeliveries

    @property
    def name(self) -> str: ...
    def activate(
        self, hosted: Shard, entity_id: str, cause: str, mailbox: Any, chain: Chain
    ) -> Activation: ...
    def end(self, activation: Activation, reason: StopReason) -> None: ...


class Draining:
    """The shards of one type that leave this node."""

    def __init__(self, host: DrainingHost) -> None:
        self._host = host
        self.leaves: Callable[[str], int] = lambda shard: 0
        """Returns the lowest fence of the next home of a shard that leaves; 0 if it stays, or has
        another home."""
        self.may_end: Callable[[str], bool] = lambda shard: True
        """Returns false while entities of other types run in a shard that has none of this type,
        and may call some."""
        self.passes_on = False
        """Messages that a moving shard has not handled go to its next home; else they are
        refused."""
        self._left: dict[str, list[tuple[str, Message]]] = {}

    # ---- messages that it takes

    def keeps(self, shard: str, sender: Activation, *, asks: bool) -> bool:
        """True if a shard that leaves takes a message of this entity."""
        hosted, fence = self._host.shards.get(shard), self.leaves(shard)
        if hosted is None or hosted.cut_off or not fence:
            return False
        drain, now = hosted.drain, self._host.loop.time()
        if drain is None or drain.fence != fence:
            drain = hosted.drain = Drain(fence, now)
        origin = sender.shard
        leaves = origin.host.draining.leaves(origin.shard) > 0
        return bool(drain.takes(sender, now, asks=asks, leaves=leaves))

    def enter(self, hosted: Shard, entity_id: str, chain: Chain) -> Activation | None:
        """Return the activation of an entity of a shard that stops, started again if need be, for a
        message of this node that has arrived; None if the shard does not take that."""
        host, reason = self._host, hosted.stopping
        if hosted.cut_off or reason not in MOVES:
            return None
        awaited_at_the_end = bool(chain) and not self.passes_on  # the whole cluster stops
        if not awaited_at_the_end and not self.leaves(hosted.shard):
            return None
        if (activation := hosted.activations.get(entity_id)) is not None:
            return activation
        activation = host.activate(hosted, entity_id, "message", None, chain)
        host.loop.call_soon(host.end, activation, reason)
        return activation

    def starts_again(self, activation: Activation) -> bool:
        """True if messages that came while an entity stopped start it again. Older ones that it has
        put aside would be overtaken; and one that has just failed to start would fail alike."""
        hosted, extras = activation.shard, activation.extras
        if extras is not None and (extras.stash or extras.start_failure is not None):
            return False
        return not hosted.cut_off and activation.stopping in MOVES

    # ---- messages that it leaves

    def leave(self, hosted: Shard, entity_id: str, messages: list[Message], failure: Any) -> None:
        """Leave messages that no entity handles here to the next home, or refuse them. `failure`:
        of a start that is not tried again, or None."""
        if self.passes_on and hosted.stopping in MOVES:
            left = self._left.setdefault(hosted.shard, [])
            left.extend((entity_id, message) for message in messages)
            return
        name = self._host.name
        for message in messages:
            reason = "stopped" if failure is None else "start_failed"
            self._host.counts.lose(reason, entity_id, *message[:4])
            error: Exception = Unhandled(f"{name} {entity_id!r} stopped")
            if failure is not None:
                error = failure_for_asker(name, entity_id, failure, begun=False)
            message.refuse(error)

    def leave_records(self, hosted: Shard) -> None:
        """Leave records of deliveries to the next home of a shard that has stopped, ahead of its
        messages."""
        if not hosted.records or not self.passes_on or hosted.stopping not in MOVES:
            return
        deliveries = self._host.deliveries
        invoker = deliveries.invokers[RECORD]
        records = [
            (entity_id, Message(invoker, record, None, Origin.UNREPORTED, 0))
            for entity_id, record in deliveries.leave(hosted)
        ]
        self._host.counts.accepted += len(records)
        if records:
            self._left[hosted.shard] = records + self._left.get(hosted.shard, [])

    def take_left(self, shard: str) -> list[tuple[str, Message]]:
        """Return, once, the unhandled messages of a shard that has stopped, by entity id; messages
        of one entity are in order."""
        return self._left.pop(shard, [])

    @property
    def waiting(self) -> int:
        """Messages of stopped shards that are about to leave."""
        return sum(map(len, self._left.values()))
