"""The router of a type with instances, in terms of rows.

Instance 2 of the entity `x` has the *wire id* `x~2`. It belongs to row 2 of the shard of `x`, as in
`17~2`, and a row has a home of its own, like a shard. Everything below the senders knows wire ids
and rows only: batches, mailboxes, the host, forwarding, order. So this is a `Router` whose shard
function splits wire ids, and which keeps, for each shard, the rows that take messages now.

    sender ──x──> InstanceSender ──x~2──> InstanceRouter ──> session to the home of 17~2
                   picks 2 of ready

`version` grows with each change of a home or of N, so that a sender may keep what it has picked.

**N** is what the coordinator says, and until that is known what the type declares. When N shrinks,
the region machine rejects what waits for the rows above; it is routed to another instance, except
the part of an `all`, which the others get anyway. A message so routed may be handled after later
ones of its sender. Messages of `all` wait until the number is known, in order and bounded.

Homes are asked for when a shard is first used: all of its rows, so that each has one. A message
that was sent before any home was known waits for the instance that its sender picked blindly. If
another instance gets a home and this one none, the message goes there, unless its router is `hash`.

Source: docs/partitions.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from shardbus.errors import ConfigError, NodeLost, RequestError
from shardbus.ids import NodeId, check_id, shard_of
from shardbus.routing.instance_policies import distance, spread
from shardbus.routing.open_asks import OpenAsks
from shardbus.routing.pending_message import Binding, PendingMessage, Refusal, rejection
from shardbus.routing.router import ROUTES_MAX, Router, RouterOwner, ShardRoute
from shardbus.sharding import events
from shardbus.sharding.instances import INSTANCE_MARK, INSTANCES_MAX, row_of, split_row
from shardbus.sharding.region.region import ShardRegion
from shardbus.sharding.region.route import (
    REJECT_BUFFER_FULL,
    REJECT_EXPIRED,
    REJECT_NO_INSTANCE,
    RouteBuffers,
)
from shardbus.transport.asks import CoarseClock, Unsent
from shardbus.transport.session import too_large
from shardbus.wire.batch import PAYLOAD_BYTES_MAX
from shardbus.wire.schema import Interface

UNCOUNTED_MAX = 10_000
"""Messages of `all` that wait for the number of instances; then their senders get BufferFull."""
UNCOUNTED_BYTES_MAX = 64 * 2**20


def wire_id(entity_id: str, instance: int) -> str:
    """Return the id under which messages to an instance of an entity travel."""
    return f"{entity_id}{INSTANCE_MARK}{instance}"


def check_plain_id(entity_type: str, entity_id: str) -> str:
    """Return the id of an entity of a type with instances, if a sender may use it.

    Raises:
        ConfigError: it is no id, or it has the mark of an instance.
    """
    check_id("an entity id", entity_id)
    if INSTANCE_MARK in entity_id:
        raise ConfigError(
            f"{entity_id!r:.60} has a {INSTANCE_MARK}: {entity_type!r} has instances, whose numbers"
            " follow that mark",
            hint="choose other ids, or a router by ref.to(...)",
        )
    check_id("an entity id with its instance", wire_id(entity_id, INSTANCES_MAX))
    return entity_id


class ShardRows:
    """The rows of one shard. `ready` has the instances with an open home, in order, `distances` how
    far each of them is."""

    __slots__ = ("distances", "fresh", "ready", "routes", "shard", "watched_at")

    def __init__(self, shard: str, watched_at: float) -> None:
        self.shard, self.watched_at = shard, watched_at
        self.routes: list[ShardRoute] = []
        self.ready: tuple[int, ...] = ()
        self.distances: tuple[float, ...] = ()
        self.fresh = False
        """`ready` is up to date."""


class InstanceRouter(Router):
    """Routes wire ids. `sender_name` is the name of this process; `here` its node, None in a
    client."""

    def __init__(
        self,
        interface: Interface,
        region: ShardRegion,
        owner: RouterOwner,
        loop: asyncio.AbstractEventLoop,
        clock: CoarseClock,
    ) -> None:
        super().__init__(interface, region, owner, loop, clock)
        assert interface.instances is not None
        self.count = max(interface.instances.exact, 1)
        """N as far as this process knows."""
        self.version = 0
        self.sender_name = ""
        self.here: NodeId | None = None
        self.zone = ""
        """The zone of this node; empty if it has none, or in a client."""
        self._zones: Mapping[NodeId, str] = {}
        self.rtts: Callable[[], Mapping[NodeId, float]] = dict
        self.open_asks = OpenAsks()
        """Asks without an answer, and how long answers took; kept for `least-busy` only."""
        self.senders: dict[object, Any] = {}
        """The senders by their choice of router: they share turns."""
        self.hedged = 0
        """Asks of `first` that were sent to a second instance."""
        self.rerouted = 0
        """Messages for an instance that is no more, which went to another one."""
        self._rows: dict[str, ShardRows] = {}
        self._rows_by_id: dict[str, ShardRows] = {}
        self._unwatched: list[str] = []
        self._homeless: list[PendingMessage] = []
        self._uncounted_room = RouteBuffers(UNCOUNTED_MAX, UNCOUNTED_BYTES_MAX)
        self._uncounted: list[tuple[PendingMessage, Callable[[], object]]] = []
        """Messages of `all` that wait for the number of instances, and what sends each."""

    # ---- ids and rows

    def base_shard_of(self, entity_id: str) -> str:
        """Return the shard of an entity, of which each instance has a row.

        Raises:
            ConfigError: the id is not valid.
        """
        check_plain_id(self.interface.name, entity_id)
        return self._base(entity_id)

    def _base(self, entity_id: str) -> str:
        if self._shard_of is not None:
            shard = check_id("a shard id", self._shard_of(entity_id))
            if INSTANCE_MARK in shard:
                raise ConfigError(f"shard {shard!r:.60} of {self.interface.name!r} has a ~")
            return shard
        return shard_of(entity_id, self._shards)

    def shard_of(self, entity_id: str) -> str:
        """Return the row of a wire id.

        Raises:
            ConfigError: it names no instance.
        """
        check_id("an entity id", entity_id)
        base, instance = split_row(entity_id)
        if not instance or not base or INSTANCE_MARK in base:
            raise ConfigError(f"{entity_id!r:.60} names no instance of {self.interface.name!r}")
        return row_of(self._base(base), instance)

    def has_shard(self, shard: str) -> bool:
        """True if this can be a row of the type."""
        base, instance = split_row(shard)
        return 0 < instance <= INSTANCES_MAX and super().has_shard(base)

    def route_of(self, entity_id: str) -> ShardRoute:
        """Return the route of a wire id; the same object until the process ends."""
        route = self._by_id.get(entity_id)
        if route is None:
            if len(self._by_id) >= ROUTES_MAX:
                self._by_id.clear()
            route = self._by_id[entity_id] = self.route(self.shard_of(entity_id))
        return route

    def rows_of(self, entity_id: str) -> ShardRows:
        """Return the rows of an entity's shard, up to date.

        Raises:
            ConfigError: the id is not valid, or has the mark of an instance.
        """
        rows = self._rows_by_id.get(entity_id)
        if rows is None:
            if len(self._rows_by_id) >= ROUTES_MAX:
                self._rows_by_id.clear()
            shard = self.base_shard_of(entity_id)
            rows = self._rows.get(shard)
            if rows is None:
                rows = self._rows[shard] = ShardRows(shard, self._loop.time())
            self._rows_by_id[entity_id] = rows
        if not rows.fresh:
            self._refresh(rows)
        return rows

    def _refresh(self, rows: ShardRows) -> None:
        known = len(rows.routes)
        for k in range(known + 1, self.count + 1):
            row = row_of(rows.shard, k)
            rows.routes.append(self.route(row))
            if self.region.home_of(row) is None:
                if not self._unwatched:
                    self._loop.call_soon(self._watch)
                self._unwatched.append(row)
        del rows.routes[self.count :]
        zones, rtts = self._zones, self.rtts()
        ready: list[int] = []
        distances: list[float] = []
        for k, route in enumerate(rows.routes, 1):
            home = self.region.home_of(route.shard) if route.out is not None else None
            if home is not None:
                ready.append(k)
                distances.append(distance(home.node, self.here, self.zone, zones, rtts))
        rows.ready, rows.distances, rows.fresh = tuple(ready), tuple(distances), True

    def _watch(self) -> None:
        rows, self._unwatched = tuple(self._unwatched), []
        if self.refused is None:
            self.handle(events.Watch(rows))

    def set_zones(self, zones: Mapping[NodeId, str]) -> None:
        """Use these zones of the members that have one."""
        if zones != self._zones:
            self._zones = zones
            self.zone = zones.get(self.here, "") if self.here is not None else ""
            self.stale()

    def stale(self) -> None:
        """Compute anew which instances are near: members or zones have changed."""
        self.version += 1
        for rows in self._rows.values():
            rows.fresh = False

    def _pending(self, unsent: Unsent) -> PendingMessage:
        """Return a message that a lost session never sent. It goes where it was going."""
        pending = super()._pending(unsent)
        pending.binding = Binding.PICKED
        return pending

    # ---- the number of instances

    @property
    def counted(self) -> bool:
        """True if the coordinator's number is known."""
        return self.region.instances > 0

    def hold_uncounted(self, message: PendingMessage, send: Callable[[], object]) -> None:
        """Keep a message of `all` until the coordinator's number is known, then call `send`.

        Raises:
            BufferFull: no room. MessageTooLarge: the payload is over the limit.
        """
        if len(message.payload) > PAYLOAD_BYTES_MAX:
            raise too_large(len(message.payload))
        if self.refused is not None:
            raise self.refused
        if not self._uncounted_room.add(message):
            self._drop_uncounted(message, REJECT_BUFFER_FULL, answered=True)
            raise rejection(self.interface.name, REJECT_BUFFER_FULL)
        if self.tracing is not None:
            send = partial(self.tracing.under, self.tracing.current(), send)
        self._uncounted.append((message, send))

    @property
    def waiting(self) -> int:
        return super().waiting + len(self._uncounted)

    def _take_uncounted(self) -> list[tuple[PendingMessage, Callable[[], object]]]:
        held, self._uncounted = self._uncounted, []
        self._uncounted_room.remove([message for message, _ in held])
        return held

    def _drop_uncounted(self, message: PendingMessage, reason: str, *, answered: bool) -> None:
        self.entered += 1
        self._owner.lost(message, reason, answered=answered)

    def _buffered(self) -> Iterator[PendingMessage]:
        yield from super()._buffered()
        yield from (message for message, _ in self._uncounted)

    def set_count(self, count: int) -> None:
        """Use the number that a node has described, unless a later one is known."""
        self.handle(events.InstancesDescribed(count))

    # ---- the machine

    def refuse(self, error: Refusal, reason: str) -> None:
        for message, _ in self._take_uncounted():
            message.refuse(error)
            if message.waiter is None:
                self._drop_uncounted(message, reason, answered=False)
        super().refuse(error, reason)

    def give_up(self, reason: str) -> int:
        held = self._take_uncounted()
        for message, _ in held:
            self._drop_uncounted(message, reason, answered=message.waiter is not None)
        return super().give_up(reason) + len(held)

    def end(self, error: Refusal) -> None:
        for message, _ in self._take_uncounted():
            message.refuse(error)
        super().end(error)

    def handle(self, event: events.RegionEvent) -> None:
        super().handle(event)
        self._settle()

    def _tick(self) -> None:
        super()._tick()
        self._settle()

    def _settle(self) -> None:
        """Use a new number, and route what lost its instance."""
        if self.counted and self.count != self.region.instances:
            self.count = self.region.instances
            self.stale()
        if self.counted and self._uncounted:
            for message, send in self._take_uncounted():
                if not message.abandoned:
                    with suppress(RequestError):  # the buffer is full, which is counted already
                        send()
        while self._homeless:
            homeless, self._homeless = self._homeless, []
            for pending in homeless:
                self._route_anew(pending)

    def _perform(self, effect: events.RegionEffect) -> None:
        match effect:
            case events.SetRoute(shard=row):
                super()._perform(effect)
                self._changed(row)
            case events.Reject(message=PendingMessage() as pending, reason=reason) if (
                reason == REJECT_NO_INSTANCE
            ):
                self.buffered_asks.discard(pending)
                self._homeless.append(pending)
            case _:
                super()._perform(effect)

    def _changed(self, row: str) -> None:
        self.version += 1
        rows = self._rows.get(split_row(row)[0])
        if rows is not None:
            rows.fresh = False

    def _route_anew(self, pending: PendingMessage) -> None:
        """Send a message to another instance: that which it was for is no more, or has no home."""
        if pending.expired:
            self._dropped(pending, REJECT_EXPIRED)
            return
        gone = NodeLost(f"{pending.entity_id!r} of {self.interface.name!r} is no instance any more")
        if pending.key is None or pending.binding is Binding.PART:
            self._dropped(pending, REJECT_NO_INSTANCE)
            pending.refuse(gone)
            return
        entity_id, _ = split_row(pending.entity_id)
        rows = self.rows_of(entity_id)
        at = spread(pending.entity_id, len(rows.ready) or self.count)
        instance = rows.ready[at - 1] if rows.ready else at
        pending.entity_id = wire_id(entity_id, instance)
        pending.shard = row_of(rows.shard, instance)
        self.rerouted += 1
        self.left += 1
        try:
            self.deliver(pending)
        except RequestError:  # the buffer is full, which is counted already
            return

    # ---- open asks, for `least-busy`

    def note_open(self, wire: str, node: NodeId | None, answer: asyncio.Future[Any]) -> None:
        """Count an ask as open until it has its outcome, and take its time then."""
        asks, now = self.open_asks, self._loop.time
        begun = now()
        asks.opened(wire, node)

        def closed(answer: asyncio.Future[Any]) -> None:
            failed = answer.cancelled() or answer.exception() is not None
            end = now()
            asks.closed(wire, node, end - begun, end, failed=failed)

        answer.add_done_callback(closed)

    def cost_of(self, entity_id: str, rows: ShardRows, instance: int) -> float:
        """Return what one more ask to an instance costs, in s."""
        home = self.region.home_of(rows.routes[instance - 1].shard)
        node = home.node if home is not None else None
        return self.open_asks.cost(wire_id(entity_id, instance), node, self._loop.time())
