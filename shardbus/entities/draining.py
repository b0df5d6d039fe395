"""Messages of entities for a shard that leaves its home.

A shard that leaves takes nothing new: messages for it wait for its next home. But its entities
still handle the messages in their mailboxes, and wait for others meanwhile, which may need the
shard. If those waited for the next home, that would wait for the handlers, and the handlers for it.
So a shard still takes calls of entities until it has stopped, the first moment at which none of its
entities is in memory; what comes later waits:

    sender                              ask                     tell
    an entity that leaves the same node stays until the end     stays for `TELLS_S`
    an entity that a leaving one awaits stays until the end     waits for the next home
    any other entity                    stays for `CALLS_S`     waits
    a client, or other code             waits                   waits

An entity that has stopped already starts again for such a message.

- **Order.** Once a message of an entity waits for the next home of a shard, all its later ones for
  that shard follow it. Behind a call to a home on another node goes a Flush
  (`sharding.region.routing`), and that home takes calls only while nothing older of their node
  waits there.
- **An end.** The times begin with the first message that stays. Asks that stay until the end are on
  behalf of a handler of a leaving shard, whichever node that leaves: they end with it. A shard
  whose time to stop is over takes nothing more.

A shard leaves from the moment at which a region closes its route until another home is known. In
the modes in which shards move directly, only entities that leave together are served so.

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
from shardbus.ids import NodeId
from shardbus.sharding.messages import Home
from shardbus.sharding.region.route import Route
from shardbus.transport.drop_reports import Origin
from shardbus.wire.batch import Chain

TELLS_S = 1.0
"""Seconds in which tells between leaving entities stay."""

CALLS_S = 5.0
"""Seconds in which asks of entities that do not leave stay."""

DRAINS_MIN = 64
"""Drains that are kept before those of shards that have left are looked for."""


class Drain:
    """The messages that a shard takes while it leaves this home."""

    __slots__ = ("_calls_until", "_tells_until", "_waiting", "home")

    def __init__(self, home: Home, now: float) -> None:
        self.home = home
        self._tells_until, self._calls_until = now + TELLS_S, now + CALLS_S
        self._waiting: set[Activation] = set()
        """Entities of which a message waits for the next home."""

    def takes(self, sender: Activation, now: float, *, asks: bool, until_end: bool) -> bool:
        """True if the shard takes a message of this entity. `until_end`: a leaving shard has its
        handler, or awaits it."""
        stays = asks or (until_end and now < self._tells_until)
        stays = stays and (until_end or now < self._calls_until) and sender not in self._waiting
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
        self.may_end: Callable[[str], bool] = lambda shard: True
        """Returns false while entities of other types run in a shard that has none of this type,
        and may call some."""
        self.passes_on = False
        """Messages that a moving shard has not handled go to its next home; else they are
        refused."""
        self._unhandled: dict[str, list[tuple[str, Message]]] = {}
        self._me: NodeId | None = None
        self._route_of: Callable[[str], Route | None] = lambda shard: None
        self._awaited: Callable[[Chain], bool] = lambda chain: False
        self._drains: dict[str, Drain] = {}
        self._drains_max = DRAINS_MIN

    def attach(
        self, me: NodeId, route_of: Callable[[str], Route | None], awaited: Callable[[Chain], bool]
    ) -> None:
        """Set the node, and functions: the route of a shard; whether an entity of a chain, of any
        type, is in a shard that leaves its home."""
        self._me, self._route_of, self._awaited = me, route_of, awaited

    # ---- messages that it takes

    def _home_of(self, shard: str) -> Home | None:
        """Return the home that a shard leaves and which still takes messages."""
        route = self._route_of(shard)
        home = None if route is None else route.leaving_home
        if home is not None and home.node == self._me:
            hosted = self._host.shards.get(shard)
            return home if hosted is not None and not hosted.cut_off else None
        return home

    def leaves(self, shard: str) -> bool:
        """True if a shard of this node leaves it, and still takes messages."""
        home = self._home_of(shard)
        return home is not None and home.node == self._me

    def home_for(
        self, shard: str, sender: Activation, *, asks: bool, chain: Chain = ()
    ) -> Home | None:
        """Return the home for a message of this entity that its shard still takes though it leaves;
        None if the message waits for the next one. `chain`: the chain of an ask."""
        home = self._home_of(shard)
        if home is None:
            return None
        drain, now = self._drains.get(shard), self._host.loop.time()
        if drain is None or drain.home != home:
            drain = self._drain(shard, Drain(home, now))
        origin = sender.shard
        together = home.node == self._me and origin.host.draining.leaves(origin.shard)
        until_end = together or self._awaited(chain)
        return home if drain.takes(sender, now, asks=asks, until_end=until_end) else None

    def _drain(self, shard: str, drain: Drain) -> Drain:
        """Keep the drain of a shard, and forget those of shards that have left."""
        if len(self._drains) >= self._drains_max:
            self._drains = {s: d for s, d in self._drains.items() if self._home_of(s) == d.home}
            self._drains_max = max(DRAINS_MIN, 2 * len(self._drains))
        self._drains[shard] = drain
        return drain

    def takes(self, hosted: Shard, *, awaited: bool = False) -> bool:
        """True if a shard that stops still takes messages. `awaited`: an entity awaits the answer,
        also while the whole cluster stops."""
        if hosted.cut_off or hosted.stopping not in MOVES:
            return False
        return self.leaves(hosted.shard) or (awaited and not self.passes_on)

    def enter(self, hosted: Shard, entity_id: str, chain: Chain) -> Activation | None:
        """Return the activation of an entity of a shard that stops, started again if need be, for a
        message of an entity that has arrived; None if the shard does not take that."""
        if not self.takes(hosted, awaited=bool(chain)):
            return None
        if (activation := hosted.activations.get(entity_id)) is not None:
            return activation
        host = self._host
        activation = host.activate(hosted, entity_id, "message", None, chain)
        host.loop.call_soon(host.end, activation, hosted.stopping or StopReason.HANDOFF)
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
            left = self._unhandled.setdefault(hosted.shard, [])
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
            self._unhandled[hosted.shard] = records + self._unhandled.get(hosted.shard, [])

    def take_unhandled(self, shard: str) -> list[tuple[str, Message]]:
        """Return, once, the unhandled messages of a shard that has stopped, by entity id; messages
        of one entity are in order."""
        return self._unhandled.pop(shard, [])

    @property
    def waiting(self) -> int:
        """Messages of stopped shards that are about to leave."""
        return sum(map(len, self._unhandled.values()))
