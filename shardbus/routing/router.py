"""The way of a message to its shard's home: the hot path, and the region machine behind it.

A message whose shard has a known home costs one look-up (entity id to `ShardRoute`) and one append
(to the open batch of the session that the route names). Everything else, an unknown home, a shard
on the move, a bounded buffer, is decided by the pure `sharding.region.Region`; this shell carries
out what it says. Nodes and clients use the same router: a client's region hosts nothing and asks
any node where a node's region asks the coordinator.


    route.out is a session    the home is known: append there
    route.out is None         the machine has the word: `Deliver`

Entity ids are remembered with their routes, up to a bound, because hashing an id costs more than
finding it.

Source: S0.6, S0.11-S0.15, S2.22-S2.24; docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from shardbus.errors import AskTimeout
from shardbus.ids import NodeId, check_id, shard_number, shard_of
from shardbus.routing.buffered_asks import BufferedAsks, rejection
from shardbus.routing.pending_message import PendingMessage, Refusal
from shardbus.sharding import events
from shardbus.sharding.region.buffered import REJECT_EXPIRED
from shardbus.sharding.region.buffered import BufferedMessage as Kept
from shardbus.sharding.region.region import ShardRegion
from shardbus.transport.asks import CoarseClock, Failure, Key, Unsent
from shardbus.transport.fork_guard import guard
from shardbus.transport.machine_timer import MachineTimer
from shardbus.transport.outbox import too_large
from shardbus.transport.session import Session
from shardbus.wire.batch import PAYLOAD_BYTES_MAX, Chain
from shardbus.wire.schema import Decode, Interface, encode_value, method_of, pack_value

ROUTES_MAX = 200_000
FLUSH_TIMEOUT_MS = 60_000


class ShardRoute:
    """One shard as a sender sees it."""

    __slots__ = ("out", "shard")

    def __init__(self, shard: str) -> None:
        self.shard = shard
        self.out: Session | None = None


class RouterOwner(Protocol):
    """What the router's owner does for it: a node's entity type, or a client."""

    def out_for(self, node: NodeId) -> Session: ...
    def is_here(self, node: NodeId) -> bool: ...
    def perform(self, effect: events.RegionEffect) -> None:
        """An effect that is not about routes."""

    def dropped(self, reason: str, count: int, via: int = 0) -> None: ...


class _Echo:
    """Waits for a flush to come back. One that is lost with its session proves nothing: the end of
    the node will be told, or the flush sent again."""

    __slots__ = ("_flush_id", "_router", "_shard")

    def __init__(self, router: Router, shard: str, flush_id: int) -> None:
        self._router, self._shard, self._flush_id = router, shard, flush_id

    def resolve(self, payload: bytes) -> None:
        self._router.handle(events.FlushDone(self._shard, self._flush_id))

    def fail(self, error: Failure) -> None:
        if isinstance(error, AskTimeout):
            self._router.handle(events.FlushDone(self._shard, self._flush_id))


class Router:
    """See the module. One per entity type and process; belongs to the event loop's thread."""

    def __init__(
        self,
        interface: Interface,
        region: ShardRegion,
        shell: RouterOwner,
        loop: asyncio.AbstractEventLoop,
        clock: CoarseClock,
    ) -> None:
        guard(self)
        self.interface, self.region = interface, region
        self.routes: dict[str, ShardRoute] = {}
        self.buffered_asks = BufferedAsks(interface.name)
        self.refused: Refusal | None = None
        self._by_id: dict[str, ShardRoute] = {}
        self._numbered: dict[int, ShardRoute] = {}
        """The routes by the number that the default shard function gives: no text is made of it."""
        self._shell, self._loop, self._clock = shell, loop, clock
        self._create_future: Callable[[], asyncio.Future[Any]] = partial(asyncio.Future, loop=loop)
        self.done = loop.create_future()
        """What a tell with room returns: one for all, as it costs nothing to await."""
        self.done.set_result(None)
        self._machine_timer = MachineTimer(region.deadline, self._tick)
        self._keys: dict[str, Key] = {}
        self._key_of_class: dict[type, Key] = {}
        self._shards, self._shard_of = interface.shards, interface.shard_of

    def key(self, method: str) -> Key:
        """The one key object for a method."""
        key = self._keys.get(method)
        if key is None:
            key = self._keys[method] = (self.interface.name, method)
        return key

    def shard_of(self, entity_id: str) -> str:
        """The shard of an entity.

        Raises:
            ConfigError: not an id.
        """
        check_id("an entity id", entity_id)
        if self._shard_of is not None:
            return check_id("a shard id", self._shard_of(entity_id))
        return self._numbered_route(entity_id).shard

    def _numbered_route(self, entity_id: str) -> ShardRoute:
        """The route of an entity's shard, by the default shard function."""
        number = shard_number(entity_id, self._shards)
        route = self._numbered.get(number)
        if route is None:
            route = self._numbered[number] = self.route(shard_of(entity_id, self._shards))
        return route

    def has_shard(self, shard: str) -> bool:
        """Whether the type's shard function can give this shard."""
        if self._shard_of is not None:
            return True
        return shard.isascii() and shard.isdigit() and len(shard) < 10 and int(shard) < self._shards

    def route_of(self, entity_id: str) -> ShardRoute:
        """The route of an entity's shard. The same object for as long as the process lives."""
        route = self._by_id.get(entity_id)
        if route is None:
            if len(self._by_id) >= ROUTES_MAX:
                self._by_id.clear()
            if self._shard_of is not None:
                route = self.route(self.shard_of(entity_id))
            else:
                route = self._numbered_route(check_id("an entity id", entity_id))
            self._by_id[entity_id] = route
        return route

    def route(self, shard: str) -> ShardRoute:
        """The route of a shard."""
        route = self.routes.get(shard)
        if route is None:
            route = self.routes[shard] = ShardRoute(shard)
        return route

    # ---- sending

    def tell(self, key: Key, entity_id: str, payload: bytes) -> Any:
        """Send without waiting for an answer. Returns an awaitable, done when there is room to send
        more.

        Raises:
            BufferFull: too much waits already, for the shard's home or, without one, for any.
            MessageTooLarge: just that.
        """
        route = self._by_id.get(entity_id) or self.route_of(entity_id)
        out = route.out
        if out is None:
            return self.deliver(PendingMessage(key, route.shard, entity_id, payload))
        out.tell(key, entity_id, payload)
        return self.done if out.writable else out.until_room

    def send(self, entity_id: str, message: object) -> Any:
        """`tell` a message of `receive`.

        Raises:
            SchemaError: the message cannot travel. Otherwise as `tell`.
        """
        key = self._key_of_class.get(message.__class__)
        if key is None:
            key = self._key_of_class[message.__class__] = self.key(method_of(message))
        try:
            payload = pack_value(message)
        except (TypeError, ValueError, OverflowError, RecursionError):
            payload = encode_value(message)
        route = self._by_id.get(entity_id) or self.route_of(entity_id)
        out = route.out
        if out is None:
            return self.deliver(PendingMessage(key, route.shard, entity_id, payload))
        out.tell(key, entity_id, payload)
        return self.done if out.writable else out.until_room

    def ask(
        self, key: Key, entity_id: str, payload: bytes, timeout_ms: int, decode: Decode
    ) -> asyncio.Future[Any]:
        """Send and return a future of the answer, read by `decode`."""
        future = self._create_future()
        route = self._by_id.get(entity_id) or self.route_of(entity_id)
        out = route.out
        if out is None:
            deadline = self._clock.after(timeout_ms)
            self.deliver(
                PendingMessage(key, route.shard, entity_id, payload, 0, future, decode, deadline)
            )
        else:
            out.ask(key, entity_id, payload, timeout_ms, future, decode)
        return future

    def ask_for(
        self,
        answer: Any,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: Decode,
    ) -> None:
        """The same for an answer of the caller's own making, which is no future of this loop."""
        route = self.route_of(entity_id)
        if route.out is not None:
            route.out.ask(key, entity_id, payload, timeout_ms, answer, decode)
        else:
            deadline = self._clock.after(timeout_ms)
            shard = route.shard
            self.deliver(
                PendingMessage(key, shard, entity_id, payload, 0, answer, decode, deadline)
            )

    def ask_within(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: Decode,
        chain: Chain,
    ) -> asyncio.Future[Any]:
        """The same from inside an entity: `chain` says who waits."""
        future = self._create_future()
        route = self._by_id.get(entity_id) or self.route_of(entity_id)
        out = route.out
        if out is None:
            deadline = self._clock.after(timeout_ms)
            self.deliver(
                PendingMessage(
                    key, route.shard, entity_id, payload, 0, future, decode, deadline, chain
                )
            )
        else:
            out.ask_within(key, entity_id, payload, timeout_ms, future, decode, chain)
        return future

    def deliver(self, envelope: PendingMessage) -> Any:
        """Send an envelope by its shard's route; for arrivals that belong elsewhere too.

        Raises:
            BufferFull: nobody waits for an answer, and the buffer is full. MessageTooLarge: just
                that; found here, so that those in the buffer behind it are not stopped by it.
        """
        if len(envelope.payload) > PAYLOAD_BYTES_MAX:
            raise too_large(len(envelope.payload))
        out = self.route(envelope.shard).out
        if out is not None:
            envelope.send(out, self._clock)
            return self.done if out.writable else out.until_room
        if self.refused is not None:
            envelope.refuse(self.refused)
            if envelope.waiter is None:
                raise self.refused
            return self.done
        self.buffered_asks.add(envelope)
        self.handle(events.Deliver(envelope.shard, envelope))
        if envelope.error is not None and envelope.waiter is None:
            raise envelope.error
        return self.done

    def arrived(self, envelope: PendingMessage, via: NodeId | None) -> None:
        """A message came over a link, and the shard is not ours to deliver it."""
        self.buffered_asks.add(envelope)
        self.handle(events.Deliver(envelope.shard, envelope, via, envelope.hops - 1))

    def resend(self, unsent: list[Unsent]) -> None:
        """Messages that a lost session never sent, in order; their home still lives. They are older
        than what waits."""
        held: list[PendingMessage] = []
        for envelope in map(self._envelope, unsent):
            out = self.route(envelope.shard).out
            if out is not None:
                envelope.send(out, self._clock)
            elif self.refused is not None:
                envelope.refuse(self.refused)
            else:
                held.append(envelope)
        for envelope in reversed(held):
            self.buffered_asks.add(envelope)
            self.handle(events.Deliver(envelope.shard, envelope, older=True))

    def gone(self, node: NodeId, unsent: list[Unsent]) -> None:
        """A node has ended; `unsent` was to go there and never left."""
        envelopes = [self._envelope(one) for one in unsent]
        for envelope in envelopes:
            self.buffered_asks.add(envelope)
        self.handle(events.NodeGone(node, tuple((e.shard, e) for e in envelopes)))

    def stopped(self, shard: str, left: list[PendingMessage]) -> None:
        """The shard runs here no more; `left` is what its entities have not handled."""
        for envelope in left:
            self.buffered_asks.add(envelope)
        self.handle(events.ShardDown(shard, tuple(left)))

    def _envelope(self, unsent: Unsent) -> PendingMessage:
        key, shard, entity_id, payload, hops, waiting, chain, via = unsent
        waiter, decode, deadline = waiting or (None, None, 0)
        shard = shard or self.route_of(entity_id).shard
        own = self.key(key[1])
        return PendingMessage(
            own, shard, entity_id, payload, hops, waiter, decode, deadline, chain, via
        )

    def reconnect(self, lost: Session) -> None:
        """A session to a home that lives was lost: from now on use a new one."""
        for route in self.routes.values():
            if route.out is lost:
                route.out = self._shell.out_for(lost.tag)

    def refuse(self, error: Refusal) -> None:
        """The type cannot be reached from here: fail what waits, and what is sent from now on."""
        self.refused = error
        self.buffered_asks.refuse(error)

    def end(self, error: Refusal) -> None:
        """The client is closed: the same, for what would go along a session, too."""
        self.refuse(error)
        for route in self.routes.values():
            route.out = None
        self.close()

    def expire(self) -> int:
        """Fail buffered asks whose deadline has passed; says how many."""
        late = self.buffered_asks.expire(self._clock.tick)
        if late:
            self.handle(events.Expired(tuple({envelope.shard: None for envelope in late})))
        return len(late)

    # ---- the machine

    def handle(self, event: events.RegionEvent) -> None:
        """Give the region an event and do what it says."""
        for effect in self.region.handle(event, self._loop.time()):
            self._perform(effect)
        self._machine_timer.arm()

    def _perform(self, effect: events.RegionEffect) -> None:
        match effect:
            case events.SetRoute(shard=shard, node=node):
                self.route(shard).out = None if node is None else self._shell.out_for(node)
            case events.Release(node=node, envelopes=envelopes):
                self._release(node, envelopes)
            case events.SendFlush(shard=shard, node=node, flush_id=flush_id):
                echo = _Echo(self, shard, flush_id)
                self._shell.out_for(node).flush_shard(
                    self.interface.name, shard, 0, FLUSH_TIMEOUT_MS, echo
                )
            case events.Reject(envelope=envelope, reason=reason):
                assert isinstance(envelope, PendingMessage)
                self.buffered_asks.discard(envelope)
                self._dropped(envelope, reason)
                if not envelope.expired:
                    envelope.refuse(rejection(self.interface.name, reason))
            case _:
                self._shell.perform(effect)

    def _release(self, node: NodeId, envelopes: tuple[Kept, ...]) -> None:
        out = self._shell.out_for(node)
        for envelope in envelopes:
            assert isinstance(envelope, PendingMessage)
            self.buffered_asks.discard(envelope)
            if envelope.error is None:
                envelope.send(out, self._clock)
            elif envelope.expired:
                self._dropped(envelope, REJECT_EXPIRED)
        if self._shell.is_here(node):
            out.flush()  # nothing that arrives from elsewhere may overtake them

    def _dropped(self, envelope: PendingMessage, reason: str) -> None:
        if envelope.key is not None:  # else it is a flush, and no message
            self._shell.dropped(reason, 1, envelope.via)

    def _tick(self) -> None:
        for effect in self.region.tick(self._loop.time()):
            self._perform(effect)

    def close(self) -> None:
        """Stop the clock."""
        self._machine_timer.stop()
