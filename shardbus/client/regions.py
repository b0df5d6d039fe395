"""The entity types that a client uses: one router for each, fed by the contact's messages.

A type that is named by its class brings its shard function. A type that is named by a string is
described by the contact; if its shard function is its own, it can only be used by its class.

During a rollout the contact may lack a type that other members have. It names them, and the first
of them becomes the type's *guide*: it describes the type and locates its shards, as the contact
does for the other types, until it leaves or is lost.

Source: S2.37.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from operator import length_hint
from threading import get_ident
from typing import Any, TypeVar

from shardbus.client.unknown_types import UNKNOWN_TYPE, HeldMessage, UnknownTypes, not_described
from shardbus.config.settings import DeliverySettings, ShardingSettings
from shardbus.errors import (
    BufferFull,
    ConfigError,
    LocalProtocolError,
    NodeLost,
    RequestError,
    UnknownEntityType,
)
from shardbus.ids import NodeId, check_id
from shardbus.routing.delivering import DeliveryCounts, DeliverySender
from shardbus.routing.instance_policies import NEAREST, POLICIES
from shardbus.routing.instance_sender import sender_of
from shardbus.routing.paths import described_within
from shardbus.routing.pending_message import PendingMessage
from shardbus.routing.router import LoopSender, Router
from shardbus.routing.tracer import Tracer
from shardbus.sharding import events
from shardbus.sharding.instances import Instances
from shardbus.sharding.region.region import ShardRegion
from shardbus.sharding.region.route import REJECT_BUFFER_FULL, REJECT_REFUSED
from shardbus.tasks.own_loop import check_loop
from shardbus.transport.asks import Unsent, refuse
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.outbox import SessionOutbox
from shardbus.transport.session import Session
from shardbus.wire.batch import Control
from shardbus.wire.control import Describe, TypeInfo, encode_control
from shardbus.wire.schema import Interface

T = TypeVar("T")

POLL_S = 0.02
REFUSED_RETRY_S = 2.0
"""A node that refused this client counts as gone for this time, even while it is a member."""
CLOSED = "the client is closed"


Row = tuple[str, object]
"""An entity id and a message for it."""


class Rest(Iterator[Row]):
    """The messages of a batch that are not sent yet. `first` was taken from the others. Its length
    is known if the batch's is."""

    __slots__ = ("_first", "_others")

    def __init__(self, others: Iterator[Row], first: Row | None = None) -> None:
        self._others, self._first = others, first

    def __next__(self) -> Row:
        if (first := self._first) is None:
            return next(self._others)
        self._first = None
        return first

    def __length_hint__(self) -> int:
        return length_hint(self._others) + (self._first is not None)


class ClientRegion:
    """One type: its router, and the services that a router asks of its owner."""

    def __init__(self, regions: ClientRegions, interface: Interface, within: Router | None) -> None:
        self._regions, self.interface = regions, interface
        endpoint = regions.endpoint
        region = (
            ShardRegion(interface.name, None, interface.layout, regions.settings)
            if within is None
            else within.region
        )
        loop, clock = endpoint.loop, endpoint.clock
        self.router = Router(interface, region, self, loop, clock, within, tracer=regions.tracer)
        if self.router.rows is not None:
            self.router.rows.sender_name = endpoint.name
        self.sender = sender_of(self.router)
        self.deliverer = regions.deliverer
        self.dropped_messages: dict[str, int] = {}

    def adopt(self, interface: Interface) -> None:
        """Use the interface of the class for a type that was known by its name only.

        Raises:
            ConfigError: they disagree about how ids map to shards.
        """
        if interface.layout != self.interface.layout:
            raise ConfigError(
                f"entity type {interface.name!r} is laid out as {self.interface.layout} in the"
                f" cluster, as {interface.layout} here"
            )
        self.interface = self.router.interface = interface

    @property
    def has_table(self) -> bool:
        """False if the type lives within another one, whose region machine places it."""
        return self.router.table is self.router

    def out_for(self, node: NodeId) -> SessionOutbox:
        """Return the outbox of the session to a node."""
        return self._regions.endpoint.session_to(node.address, node, probe=True).outbox

    def is_here(self, node: NodeId) -> bool:
        """Return False: a client hosts nothing."""
        return False

    def send_to_leaving(self, pending: PendingMessage) -> None:
        """Return None: a client hosts nothing."""

    def ask_failed(self, entity_type: str, waited_s: float) -> None:
        """Do nothing: a client has no statistics of its asks."""

    def why_away(self) -> str:
        """Return why there is no contact; empty if there is one."""
        return self._regions.away()

    def perform(self, effect: events.RegionEffect) -> None:
        """Send messages for the coordinator to the contact; ignore other effects."""
        match effect:
            case events.SendCoordinator(message=message):
                self._regions.ask_guide(self.interface.name, message)
            case _:
                pass

    def lost(self, pending: PendingMessage, reason: str, *, answered: bool) -> None:
        """Count a message that was not sent."""
        self.dropped(reason)

    def dropped(self, reason: str) -> None:
        """Count a message that was not sent."""
        self.dropped_messages[reason] = self.dropped_messages.get(reason, 0) + 1


class ClientRegions:
    """The types of one client. `to_contact` sends to the contact; it returns False without one.
    `away` returns why there is none now."""

    def __init__(
        self,
        endpoint: Endpoint,
        to_contact: Callable[[Control], bool],
        away: Callable[[], str],
        tracer: Tracer | None = None,
    ) -> None:
        self.endpoint, self.to_contact, self.tracer = endpoint, to_contact, tracer
        self.away = away
        self.settings = ShardingSettings()
        self.deliverer = DeliverySender(
            endpoint.name, DeliverySettings(), DeliveryCounts(), endpoint.loop
        )
        self.routers: dict[str | type, LoopSender] = {}
        """The senders to the known types, by name and by class."""
        self._by_name: dict[str, ClientRegion] = {}
        self._contact: NodeId | None = None
        self._guides: dict[str, NodeId] = {}
        """The guides of the types that the contact lacks."""
        self._gone_at: dict[NodeId, float] = {}
        """When each node was found to be gone. It may live: a firewall that refuses connections
        looks like a process that ended."""
        self.unknown = UnknownTypes(endpoint, self.settings, self._describe, away, tracer)
        """The messages for types that are not known yet."""
        self.batches: dict[asyncio.Task[None], Rest] = {}
        """The tasks that send the rests of batches, and those rests."""
        self._asked_for_refused = endpoint.loop.time()
        self._thread = get_ident()
        self._closed = False

    # ---- finding a type

    def of_class(self, cls: type) -> ClientRegion:
        """Return the region of a decorated class.

        Raises:
            ConfigError: the class is not decorated, or the cluster lays it out differently.
            LocalProtocolError: this is the first use of the class, and not in the client's loop.
        """
        interface = getattr(cls, "__shardbus_interface__", None)
        if not isinstance(interface, Interface):
            name = getattr(cls, "__name__", repr(cls))
            raise ConfigError(f"{name} is no entity class", hint="decorate it with @bus.entity")
        region = self._by_name.get(interface.name)
        if region is None:
            check_loop(self.endpoint.loop)
            region = self._add(interface)
        if region.interface is not interface:
            region.adopt(interface)
        self.routers[cls] = region.sender
        return region

    def find(self, kind: str | type) -> LoopSender | None:
        """Return the sender to a type, None if it is named by a string and not known yet."""
        if isinstance(kind, str):
            region = self._by_name.get(kind)
            return region.sender if region is not None else None
        return self.of_class(kind).sender

    async def learn(self, kind: str | type, timeout: float) -> LoopSender:
        """Return the sender to a type; ask the contact for its description if it is not known.

        Raises:
            UnknownEntityType: the cluster has no such type. AskTimeout: no answer in time.
            LocalProtocolError: the client is closed.
        """
        sender = self.find(kind)
        if sender is not None:
            return sender
        assert isinstance(kind, str)
        if self._closed:
            raise LocalProtocolError(CLOSED)
        future = self.unknown.sender_of(kind)
        await asyncio.wait([future], timeout=timeout)
        if not future.done():
            future.cancel()
            raise not_described(kind, self.away())
        return future.result()

    def hold(self, kind: str | type, message: HeldMessage) -> asyncio.Future[Any]:
        """Send a message once its type is known. Returns its outcome: the answer of an ask; of a
        tell, that there is room for more.

        Raises:
            ConfigError: the id is not valid. Otherwise as `UnknownTypes.add`.
        """
        assert isinstance(kind, str)
        check_id("an entity id", message.entity_id)
        if self._closed:
            raise LocalProtocolError(CLOSED)
        return self.unknown.add(kind, message)

    @property
    def in_loop(self) -> bool:
        """True if this is the thread of the client's loop."""
        return get_ident() == self._thread

    def settled(self, result: T) -> asyncio.Future[T]:
        """Return a future that has this result."""
        future: asyncio.Future[T] = self.endpoint.loop.create_future()
        future.set_result(result)
        return future

    # ---- batches

    def batch(self, sending: Coroutine[Any, Any, None], rest: Rest) -> asyncio.Task[None]:
        """Send the rest of a batch in a task. A batch that fails and is not awaited is only counted
        (`not_sent`), and not logged."""
        task = self.endpoint.loop.create_task(sending)
        self.batches[task] = rest

        def ended(task: asyncio.Task[None]) -> None:
            del self.batches[task]
            if not task.cancelled():
                task.exception()

        task.add_done_callback(ended)
        return task

    def not_sent(self, error: Exception, count: int) -> None:
        """Count the tells of a batch that were not sent because of an error."""
        reason = REJECT_REFUSED
        if isinstance(error, BufferFull):
            reason = REJECT_BUFFER_FULL
        elif isinstance(error, RequestError):
            reason = UNKNOWN_TYPE
        if count:
            self.unknown.dropped[reason] += count

    def ask_guide(self, name: str, message: object) -> None:
        """Send a message for the type's coordinator or about it: to its guide, else the contact."""
        guide, control = self._guides.get(name), encode_control(name, message)
        if guide is None:
            self.to_contact(control)
        else:
            self.endpoint.session_to(guide.address, guide, probe=True).outbox.control(control)

    def _describe(self, name: str) -> None:
        """Request the description of a type in the cluster."""
        self.ask_guide(name, Describe())

    def _guide_of(self, name: str) -> NodeId | None:
        return self._guides.get(name, self._contact)

    def on_type_info(self, name: str, sender: NodeId, info: TypeInfo) -> None:
        """Add the type that its guide describes, or refuse it, and answer those who wait. Another
        node may not know it."""
        if self._closed or sender != self._guide_of(name):
            return
        region = self._by_name.get(name)
        guides = [node for node in info.elsewhere if node not in self._gone_at]
        if not info.known and self._guides.pop(name, None) is None and guides:
            self._guides[name] = guides[0]
            if region is None:
                self._describe(name)
            else:
                self._introduce(region)
            return
        error: Exception | None = None
        if not info.known:
            error = _unknown(name, info)
        elif region is not None and region.interface.layout != info.layout:
            error = UnknownEntityType(
                f"entity type {name!r} is laid out as {info.layout} in the cluster, as"
                f" {region.interface.layout} here"
            )
        elif region is None and not info.shards:
            text = f"entity type {name!r} has a shard function of its own"
            error = ConfigError(text, hint="name it by its class instead")
        elif region is None:
            region = self._add(described(name, info))
        if info.instances and region is not None and region.router.rows is not None:
            region.router.rows.set_count(info.instances)
        if region is None and error is not None:
            self.unknown.refuse(name, error)
        elif region is not None and isinstance(error, RequestError):
            region.router.refuse(error, UNKNOWN_TYPE)
        elif region is not None:
            region.router.admit()

    def _add(self, interface: Interface) -> ClientRegion:
        within = None
        if interface.within is not None:
            parent = self._by_name.get(interface.within.name) or self._add(interface.within)
            within = parent.router
        region = self._by_name[interface.name] = ClientRegion(self, interface, within)
        if self._closed:
            region.router.end(LocalProtocolError(CLOSED))
        self.routers[interface.name] = region.sender
        if self._guide_of(interface.name) is not None:
            self._introduce(region)
        self.unknown.release(interface.name, region.sender)
        return region

    def _introduce(self, region: ClientRegion) -> None:
        """Request the type's description in the cluster and the homes of its shards."""
        name = region.interface.name
        self._describe(name)
        if region.has_table:
            region.router.handle(events.CoordinatorAt(self._guide_of(name)))

    # ---- changes in the cluster

    def set_contact(self, node: NodeId | None) -> None:
        """Ask this node from now on; None: there is no contact."""
        self._contact = node
        if node is not None:
            self.unknown.ask_again()
        for name, region in self._by_name.items():
            if name not in self._guides:
                self._turn_to_contact(region)

    def _turn_to_contact(self, region: ClientRegion) -> None:
        if self._contact is not None:
            self._introduce(region)
        elif region.has_table:
            region.router.handle(events.CoordinatorAt(None))

    def _leave_guide(self, node: NodeId) -> None:
        """Ask the contact again about the types whose guide was this node."""
        for name in [name for name, guide in self._guides.items() if guide == node]:
            del self._guides[name]
            if (region := self._by_name.get(name)) is not None:
                self._turn_to_contact(region)
            else:
                self._describe(name)

    def on_message(self, name: str, sender: NodeId, message: Any) -> None:
        """Pass a message to a type's region. Only its guide may send one: another node's view of
        the homes may be older."""
        region = self._by_name.get(name)
        if region is not None and sender == self._guide_of(name):
            region.router.handle(events.MessageReceived(sender, message))

    def on_nodes_alive(self, nodes: Iterable[NodeId]) -> None:
        """Route to these nodes again: they answer, or their cluster counts them as members."""
        for node in [node for node in nodes if node in self._gone_at]:
            del self._gone_at[node]
            self._handle(events.NodeBack(node))

    def retry_refused(self, members: Iterable[NodeId]) -> None:
        """Route again to the members that have counted as gone for REFUSED_RETRY_S."""
        latest = self.endpoint.loop.time() - REFUSED_RETRY_S
        self.on_nodes_alive([n for n in members if self._gone_at.get(n, math.inf) <= latest])

    def on_node_leaving(self, node: NodeId) -> None:
        """Send nothing new to a node that leaves. Where its shards go is not known yet."""
        self._handle(events.NodeLeft(node))
        self._leave_guide(node)

    def _handle(self, event: events.RegionEvent) -> None:
        """Pass an event to the region machine of each table."""
        for region in self._by_name.values():
            if region.has_table:
                region.router.handle(event)

    def on_session_lost(self, session: Session, unsent: list[Unsent]) -> None:
        """Route the unsent messages of a lost session again. If `peer_ended`, its node has ended;
        otherwise a new session to the same node replaces it."""
        by_table = self._by_table(unsent)
        if session.peer_ended:
            self._gone_at[session.tag] = self.endpoint.loop.time()
        for name, region in self._by_name.items():
            if not region.has_table:
                continue
            messages = by_table.get(name, [])
            if session.peer_ended:
                region.router.gone(session.tag, messages)
            else:
                region.router.reconnect(session)
                region.router.resend(messages)
        self._leave_guide(session.tag)

    def resend(self, unsent: list[Unsent]) -> None:
        """Route the unsent messages of a session to a node that never answered."""
        for name, messages in self._by_table(unsent).items():
            self._by_name[name].router.resend(messages)

    def _by_table(self, unsent: list[Unsent]) -> dict[str, list[Unsent]]:
        """Return the messages of known types by the type that has their table."""
        by_table: dict[str, list[Unsent]] = {}
        for message in unsent:
            region = self._by_name.get(message.key[0])
            if region is not None:
                by_table.setdefault(region.router.table.interface.name, []).append(message)
            elif message.waiting is not None:  # a question to the node itself
                refuse(message.waiting, NodeLost("the node is gone"))
        return by_table

    def uses(self, session: Session) -> bool:
        """True if the messages of some shard go along this session."""
        routers = [region.router for region in self._by_name.values()]
        return any(route.out is session.outbox for r in routers for route in r.routes.values())

    # ---- waiting

    @property
    def buffering(self) -> bool:
        """True if some message waits for its shard's home. An ask that has ended does not: its
        place in the buffer is free for another one."""
        tables = [r.router for r in self._by_name.values() if r.has_table]
        return self.unknown.messages > 0 or any(router.buffers for router in tables)

    @property
    def buffered(self) -> int:
        """Return how many messages wait for their type or for their shard's home."""
        tables = [r.router for r in self._by_name.values() if r.has_table]
        return self.unknown.messages + sum(router.waiting for router in tables)

    @property
    def buffered_tells(self) -> int:
        """Return how many of these messages are tells, with the tells of batches that follow."""
        tables = [r.router for r in self._by_name.values() if r.has_table]
        batches = sum(map(length_hint, self.batches.values()))
        return batches + self.unknown.tells + sum(router.buffered_tells for router in tables)

    @property
    def refused(self) -> Counter[str]:
        """Return the number of messages without a home that were dropped, by reason."""
        drops = [Counter(region.dropped_messages) for region in self._by_name.values()]
        return sum(drops, self.unknown.dropped.copy())

    async def until_unbuffered(self) -> None:
        """Return once no message waits for a home, and no batch for room."""
        while self.batches:
            await asyncio.wait(list(self.batches))
        while self.buffering:
            await asyncio.sleep(POLL_S)

    def expire(self) -> None:
        """Fail the messages whose type is not described by their deadlines, and the buffered asks
        whose deadline has passed."""
        self.endpoint.asks_timed_out += self.unknown.tick()
        for region in self._by_name.values():
            if region.router.buffered_asks:
                self.endpoint.asks_timed_out += region.router.expire()
        self._ask_for_refused()

    def _ask_for_refused(self) -> None:
        """Request the descriptions of refused types again: nodes that know them may have come."""
        now = self.endpoint.loop.time()
        if now - self._asked_for_refused < REFUSED_RETRY_S:
            return
        self._asked_for_refused = now
        for name, region in self._by_name.items():
            if region.router.refused is not None:
                self._describe(name)

    def close(self) -> None:
        """Stop the timers, and refuse all buffered and later messages."""
        self._closed = True
        self.deliverer.close(CLOSED)
        for region in self._by_name.values():
            region.router.end(LocalProtocolError(CLOSED))
        self.unknown.close(LocalProtocolError(CLOSED))
        for task in self.batches:
            task.cancel()


def _unknown(name: str, info: TypeInfo) -> UnknownEntityType:
    if info.elsewhere:
        nodes = ", ".join(str(node.address) for node in info.elsewhere)
        return UnknownEntityType(f"no member that seems to have {name!r} describes it: {nodes}")
    hint = f"did you mean {info.similar!r}?" if info.similar else ""
    return UnknownEntityType(f"the cluster has no entity type {name!r}", hint=hint)


def described(name: str, info: TypeInfo) -> Interface:
    """Return the interface of a type that a node describes."""
    interface = described_within(name, info.layout, info.shards, info.within)
    if info.router:
        interface.instances = Instances(exact=info.instances)
        interface.router = info.router if info.router in POLICIES else NEAREST
    return interface
