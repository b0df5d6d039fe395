"""The instances of a type, as its router keeps them: the rows of each shard, and their number.

Instance 2 of the entity `x` has the *wire id* `x~2`. It belongs to row 2 of the shard of `x`, as in
`17~2`, and a row has a home of its own, like a shard. Everything below the senders knows wire ids
and rows only: batches, mailboxes, the host, forwarding, order. So the router of such a type has a
shard function that splits wire ids (`row_of`), and keeps here, for each shard, the rows that take
messages now.

    sender ──x──> InstanceSender ──x~2──> Router ──> session to the home of 17~2
                   picks 2 of ready

`version` grows with each change of a home or of N, so that a sender may keep its pick.

**N** is the coordinator's number, and until that arrives the number that the type declares. When
N shrinks, the region machine rejects the messages that wait for the rows above; they are routed to
another instance, except the part of an `all`, which the others get anyway. A message so routed may
be handled after later ones of its sender. Messages of `all` wait until the number is known, in
order and bounded.

The first use of a shard requests homes for all of its rows, so that each has one. A message that
was sent before any home was known waits for the instance that its sender picked blindly. If another
instance gets a home and this one none, the message goes there, unless its router is `hash`
(`pending_message.Binding`).

Source: docs/partitions.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from shardbus.errors import ConfigError
from shardbus.ids import NodeId, check_id, shard_of
from shardbus.routing.instance_policies import distance, spread
from shardbus.routing.open_asks import OpenAsks
from shardbus.routing.pending_message import PendingMessage, Refusal
from shardbus.routing.shard_route import ROUTES_MAX, ShardRoute
from shardbus.sharding import events
from shardbus.sharding.instances import INSTANCE_MARK, INSTANCES_MAX, row_of, split_row
from shardbus.sharding.region.region import ShardRegion
from shardbus.sharding.region.route import RouteBuffers
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


class Uncounted:
    """The messages of `all` that wait for the number of instances, in order, each with its
    sender."""

    __slots__ = ("_held", "_room")

    def __init__(self) -> None:
        self._room = RouteBuffers(UNCOUNTED_MAX, UNCOUNTED_BYTES_MAX)
        self._held: list[tuple[PendingMessage, Callable[[], object]]] = []

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[PendingMessage]:
        return (message for message, _ in self._held)

    def add(self, message: PendingMessage, send: Callable[[], object]) -> bool:
        """Keep a message. Returns False if there is no room."""
        if not self._room.add(message):
            return False
        self._held.append((message, send))
        return True

    def take(self) -> list[tuple[PendingMessage, Callable[[], object]]]:
        """Return all of them, which wait no more."""
        held, self._held = self._held, []
        self._room.remove([message for message, _ in held])
        return held


class RoutesRows(Protocol):
    """The services of a router that its rows use."""

    interface: Interface
    region: ShardRegion
    refused: Refusal | None

    def route(self, shard: str) -> ShardRoute: ...
    def handle(self, event: events.RegionEvent) -> None: ...


class InstanceRoutes:
    """The rows of one type. `sender_name` is the name of this process; `here` its node, None in a
    client."""

    def __init__(self, router: RoutesRows, loop: asyncio.AbstractEventLoop) -> None:
        self._router, self._loop = router, loop
        self._shard_function = router.interface.shard_of
        assert router.interface.instances is not None
        self.count = max(router.interface.instances.exact, 1)
        """N as far as this process knows."""
        self.version = 0
        self.sender_name = ""
        self.here: NodeId | None = None
        self.zone = ""
        """The zone of this node; empty if it has none, or in a client."""
        self._zones: Mapping[NodeId, str] = {}
        self.open_asks = OpenAsks()
        """Asks without an answer, and how long answers took; kept for `least-busy` only."""
        self.senders: dict[object, Any] = {}
        """The senders by their choice of router: they share turns."""
        self.hedged = 0
        """Asks of `first` that were sent to a second instance."""
        self.rerouted = 0
        """Messages for an instance that is no more, which went to another one."""
        self.uncounted = Uncounted()
        self.homeless: list[PendingMessage] = []
        """Messages that have lost their instance; the router sends them on."""
        self._rows: dict[str, ShardRows] = {}
        self._rows_by_id: dict[str, ShardRows] = {}
        self._unwatched: list[str] = []

    # ---- ids and rows

    def base_shard_of(self, entity_id: str) -> str:
        """Return the shard of an entity, of which each instance has a row.

        Raises:
            ConfigError: the id is not valid.
        """
        check_plain_id(self._router.interface.name, entity_id)
        return self._base(entity_id)

    def _base(self, entity_id: str) -> str:
        if self._shard_function is not None:
            shard = check_id("a shard id", self._shard_function(entity_id))
            if INSTANCE_MARK in shard:
                raise ConfigError(f"shard {shard!r:.60} of {self._router.interface.name!r} has a ~")
            return shard
        return shard_of(entity_id, self._router.interface.shards)

    def row_of(self, wire: str) -> str:
        """Return the row of a wire id.

        Raises:
            ConfigError: it names no instance.
        """
        base, instance = split_row(wire)
        if not instance or not base or INSTANCE_MARK in base:
            raise ConfigError(f"{wire!r:.60} names no instance of {self._router.interface.name!r}")
        return row_of(self._base(base), instance)

    def of(self, entity_id: str) -> ShardRows:
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
        before = len(rows.routes)
        for k in range(before + 1, self.count + 1):
            row = row_of(rows.shard, k)
            rows.routes.append(self._router.route(row))
            if self._router.region.home_of(row) is None:
                if not self._unwatched:
                    self._loop.call_soon(self._watch)
                self._unwatched.append(row)
        del rows.routes[self.count :]
        ready: list[int] = []
        distances: list[float] = []
        for k, route in enumerate(rows.routes, 1):
            home = self._router.region.home_of(route.shard) if route.out is not None else None
            if home is not None:
                ready.append(k)
                distances.append(distance(home.node, self.here, self.zone, self._zones))
        rows.ready, rows.distances, rows.fresh = tuple(ready), tuple(distances), True

    def _watch(self) -> None:
        rows, self._unwatched = tuple(self._unwatched), []
        if self._router.refused is None:
            self._router.handle(events.Watch(rows))

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

    # ---- the number of instances

    @property
    def counted(self) -> bool:
        """True if the coordinator's number is known."""
        return self._router.region.instances > 0

    def set_count(self, count: int) -> None:
        """Use the number that a node has described, unless a later one is known."""
        self._router.handle(events.InstancesDescribed(count))

    def recount(self) -> None:
        """Use the coordinator's number if it is new."""
        if self.counted and self.count != self._router.region.instances:
            self.count = self._router.region.instances
            self.stale()

    def changed(self, row: str) -> None:
        """Compute anew which instances have homes: a row's home has changed."""
        self.version += 1
        rows = self._rows.get(split_row(row)[0])
        if rows is not None:
            rows.fresh = False

    def instead_of(self, wire: str) -> tuple[str, str]:
        """Return the wire id and the row of another instance, in place of one that is no more or
        has no home."""
        entity_id, _ = split_row(wire)
        rows = self.of(entity_id)
        at = spread(wire, len(rows.ready) or self.count)
        instance = rows.ready[at - 1] if rows.ready else at
        self.rerouted += 1
        return wire_id(entity_id, instance), row_of(rows.shard, instance)

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
        """Return the cost of one more ask to an instance, in s."""
        home = self._router.region.home_of(rows.routes[instance - 1].shard)
        node = home.node if home is not None else None
        return self.open_asks.cost(wire_id(entity_id, instance), node, self._loop.time())
