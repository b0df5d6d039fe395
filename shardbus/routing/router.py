"""The hot path of tells and asks: from an entity id to the session of its shard's home.

A message whose shard has a known home costs one look-up (entity id to `ShardRoute`) and one append
(to the open batch of the session that the route names). Every other case (an unknown home, a shard
that moves, a full buffer) is decided by the pure `sharding.region.region.ShardRegion`; the router
carries out its effects. Nodes and clients use the same router: the region of a client hosts nothing
and sends any node the questions that the region of a node sends the coordinator.

    route.out is an outbox    the home is known: append to its batch
    route.out is None         the region decides: `Deliver`

Its parts: `rows`, the instances of each shard, of a type with instances; `caller`, the handler that
asks, in a process that hosts entities; `tracer`, in a process with tracing. `InstanceSender` and
`TracedSender` send by a router. The properties of one message (its binding to an instance, chain,
deadline, trace) are arguments of its send, and then fields of the `PendingMessage`.

The routes of entity ids are cached, up to ROUTES_MAX ids, because to hash an id costs more than to
find it.

Source: S0.6, S0.11 to S0.15, S2.22 to S2.24; docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from shardbus.errors import NodeLost
from shardbus.histograms import Histogram
from shardbus.ids import NodeId, check_id, shard_number
from shardbus.routing.instance_policies import Choice, without_instances
from shardbus.routing.instance_routes import InstanceRoutes
from shardbus.routing.pending_message import (
    Binding,
    BufferedAsks,
    PendingMessage,
    Refusal,
    rejection,
)
from shardbus.routing.shard_route import ROUTES_MAX, ShardRoute, check_room
from shardbus.routing.tracer import Tracer
from shardbus.sharding import events
from shardbus.sharding.instances import INSTANCES_MAX, split_row
from shardbus.sharding.messages import CarriedEntity, MoveAck
from shardbus.sharding.region.region import ShardRegion
from shardbus.sharding.region.route import (
    REJECT_BUFFER_FULL,
    REJECT_EXPIRED,
    REJECT_NO_INSTANCE,
    Absence,
    BufferedMessage,
)
from shardbus.tasks.answers import answers_of
from shardbus.tasks.interrupts import raise_signalled
from shardbus.tasks.own_loop import check_loop
from shardbus.transport.asks import CoarseClock, Failure, Key, Unsent
from shardbus.transport.direct_message import AskingRun, LocalOutbox
from shardbus.transport.fork_guard import guard
from shardbus.transport.full_entities import Target
from shardbus.transport.machine_timer import MachineTimer
from shardbus.transport.outbox import SessionOutbox, too_large
from shardbus.transport.session import Session
from shardbus.wire.batch import PAYLOAD_BYTES_MAX, Chain
from shardbus.wire.schema import Decode, Interface, check_method, encode_message, form_of
from shardbus.wire.values import Pack

WHY = {
    Absence.NEVER: "unknown_home",
    Absence.DEAD: "home_died",
    Absence.MOVING: "move",
}
"""Why a message waits, as its trace says."""
ABANDONED = "abandoned"
"""The reason for which an ask is dropped whose sender has given it up before it had a home."""
FLUSH_TIMEOUT_MS = 60_000


class KeyTable(dict[str, Key]):
    """The keys of the methods of one entity type, each made when it is first looked up."""

    __slots__ = ("_type",)

    def __init__(self, entity_type: str) -> None:
        super().__init__()
        self._type = entity_type

    def __missing__(self, method: str) -> Key:
        key = self[method] = (self._type, check_method(method))
        return key


class NumberedRoutes(dict[int, ShardRoute]):
    """The routes of one entity type by the number of the default shard function (`ids`), so that no
    text is built for a message. Each is looked up by its shard's name once."""

    __slots__ = ("_route",)

    def __init__(self, route: Callable[[str], ShardRoute]) -> None:
        super().__init__()
        self._route = route

    def __missing__(self, number: int) -> ShardRoute:
        route = self[number] = self._route(str(number))
        return route


class Messages(Protocol):
    """Takes the messages of one type: a sender, or a buffer that keeps them until there is one."""

    @property
    def interface(self) -> Interface: ...
    def key(self, method: str, /) -> Key: ...
    def tell(self, key: Key, entity_id: str, payload: bytes, /) -> Any: ...
    def ask(
        self, key: Key, entity_id: str, payload: bytes, timeout_ms: int, decode: Decode, /
    ) -> Any:
        """Send an ask. Returns a future of its answer; the sender of a thread, the answer."""


class Deliverer(Protocol):
    """Delivers messages until they are confirmed: for the process, or for a thread."""

    def deliver(
        self,
        sender: Any,
        entity_id: str,
        method: str,
        payload: bytes,
        within: float | None = None,
        /,
        *,
        waits: bool = True,
    ) -> Any:
        """Deliver a message. Returns a future that ends with its confirmation; the deliverer of a
        thread waits for that."""
        ...

    def ask_once(
        self,
        sender: Any,
        entity_id: str,
        method: str,
        payload: bytes,
        once: str,
        timeout_ms: int,
        decode: Decode,
        /,
    ) -> Any:
        """Ask a handler that runs once for the key `once`. Returns as `Messages.ask`."""
        ...


class Sender(Messages, Protocol):
    """Sends to the entities of one type: a `Router`, or a sender that picks, traces or waits and
    then uses one."""

    @property
    def address(self) -> tuple[Any, ...]:
        """Equal for two senders of one process that send alike."""
        ...

    @property
    def done(self) -> Any:
        """The result of a tell while there is room."""
        ...

    @property
    def deliverer(self) -> Deliverer:
        """Delivers messages by this sender. Raises ConfigError: no deliveries are possible."""
        ...

    def by(self, choice: Choice, /) -> Sender:
        """Return a sender to the same type by this choice of instances. Raises ConfigError: it has
        no instances."""
        ...

    def route_for(self, entity_id: str, /) -> ShardRoute:
        """Return the route that a reference may use without its sender, else `NO_ROUTE`. Raises
        ConfigError: the id is not valid."""
        ...

    def tell_nowait(self, key: Key, entity_id: str, payload: bytes, /) -> None: ...
    def send(self, entity_id: str, message: object, /) -> Any: ...


class LoopSender(Sender, Protocol):
    """A sender for the loop's thread: it never waits."""

    def by(self, choice: Choice, /) -> LoopSender: ...
    def ask_for(
        self,
        answer: Any,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: Decode,
        /,
    ) -> None: ...


class Caller(Protocol):
    """The runner of the current task's handler, in a process that hosts entities."""

    def call_chain_now(self) -> AskingRun | None: ...


class RouterOwner(Protocol):
    """The services of a router's owner: the region's shell of a node, or a client."""

    @property
    def deliverer(self) -> Deliverer: ...
    def out_for(self, node: NodeId) -> SessionOutbox: ...
    def is_here(self, node: NodeId) -> bool: ...
    def send_to_leaving(self, pending: PendingMessage, /) -> SessionOutbox | None:
        """Send a message that a shard still takes which leaves its home. Returns the outbox; None
        if the message must wait."""

    def ask_failed(self, entity_type: str, waited_s: float, /) -> None:
        """Note that an ask of this process has failed that waited so long and found no home."""

    def why_away(self) -> str:
        """Return why no part of the cluster can be asked; empty if one can."""
        ...

    def perform(self, effect: events.RegionEffect) -> None:
        """Carry out an effect that does not concern routes."""

    def lost(self, pending: PendingMessage, reason: str, *, answered: bool) -> None:
        """Count a message that is given up. `answered`: its sender gets an error."""


class _FlushWaiter:
    """Waits for the echo of a Flush. A Flush that is lost or late proves nothing: the region sends
    it again, and gives it up after `FLUSH_PATIENCE_S`, which it notes."""

    __slots__ = ("_flush_id", "_router", "_shard")

    def __init__(self, router: Router, shard: str, flush_id: int) -> None:
        self._router, self._shard, self._flush_id = router, shard, flush_id

    def resolve(self, payload: bytes) -> None:
        self._router.handle(events.FlushDone(self._shard, self._flush_id))

    def fail(self, error: Failure) -> None:
        pass


class Router:
    """Routes the messages of one entity type in one process. Use it in the event loop's thread."""

    def __init__(
        self,
        interface: Interface,
        region: ShardRegion,
        owner: RouterOwner,
        loop: asyncio.AbstractEventLoop,
        clock: CoarseClock,
        within: Router | None = None,
        *,
        tracer: Tracer | None = None,
        caller: Callable[[], Caller | None] | None = None,
    ) -> None:
        guard(self)
        self.interface, self.region = interface, region
        self.table: Router = self if within is None else within.table
        """The router whose region places the shards of this type: itself, or the router of the
        outermost type that this one lives within. Both share routes and buffered messages."""
        self._inner: dict[str, Router] = {}
        """The routers that use this one's table, by type."""
        self.routes: dict[str, ShardRoute] = {}
        self.buffered_asks = BufferedAsks(interface.name)
        if within is not None:
            self.table._inner[interface.name] = self
            self.routes, self.buffered_asks = self.table.routes, self.table.buffered_asks
        self.refused: Refusal | None = None
        self.tracer = tracer
        """Only in a process with tracing, where `TracedSender`s send by this router."""
        self.entered = 0
        """Messages of this type that the region machine was given, to let them wait or leave."""
        self.left = 0
        """Those that have left it for the home of their shard."""
        self.home_latencies = Histogram()
        """From the first message that waits for the home of a shard until messages go there."""
        self._wanted_since: dict[str, float] = {}
        """When the first message began to wait, by shard."""
        self._by_id: dict[str, ShardRoute] = {}
        self._numbered = NumberedRoutes(self.route)
        self._owner, self._loop, self._clock, self._caller = owner, loop, clock, caller
        self._create_future = answers_of(loop)
        self.done = loop.create_future()
        """The result of a tell while there is room: one finished future for all."""
        self.done.set_result(None)
        self._machine_timer = MachineTimer(region.deadline, self._tick)
        self.key: Callable[[str], Key] = KeyTable(interface.name).__getitem__
        """Returns the key of a method; always the same object."""
        self._forms: dict[type, tuple[Key, Pack]] = {}
        self._shard_of = interface.shard_of
        self.rows: InstanceRoutes | None = None
        """The instances of each shard, of a type with instances: ids are wire ids then."""
        if interface.instances is not None:
            self.rows = InstanceRoutes(self, loop)
            self._shard_of = self.rows.row_of

    @property
    def address(self) -> tuple[Any, ...]:
        """Equal for two senders that send alike."""
        return (self,)

    @property
    def deliverer(self) -> Deliverer:
        """The deliverer of this process."""
        return self._owner.deliverer

    def by(self, choice: Choice) -> LoopSender:
        """Raise ConfigError: the type has no instances."""
        raise without_instances(self.interface.name)

    def shard_of(self, entity_id: str) -> str:
        """Return the shard of an entity.

        Raises:
            ConfigError: the id is not valid.
        """
        check_id("an entity id", entity_id)
        if self._shard_of is not None:
            return check_id("a shard id", self._shard_of(entity_id))
        return self._numbered[shard_number(entity_id, self.interface.shards)].shard

    def has_shard(self, shard: str) -> bool:
        """True if the type's shard function can return this shard."""
        if self.rows is not None:
            shard, instance = split_row(shard)
            if not 0 < instance <= INSTANCES_MAX:
                return False
        if self.table.interface.shard_of is not None:
            return True
        number = shard.isascii() and shard.isdigit() and len(shard) < 10
        return number and int(shard) < self.interface.shards

    def route_of(self, entity_id: str) -> ShardRoute:
        """Return the route of an entity's shard; the same object until the process ends."""
        route = self._by_id.get(entity_id)
        if route is None:
            if len(self._by_id) >= ROUTES_MAX:
                self._by_id.clear()
            if self._shard_of is not None:
                route = self.route(self.shard_of(entity_id))
            else:
                check_id("an entity id", entity_id)
                route = self._numbered[shard_number(entity_id, self.interface.shards)]
            self._by_id[entity_id] = route
        return route

    route_for = route_of

    def route(self, shard: str) -> ShardRoute:
        """Return the route of a shard."""
        route = self.routes.get(shard)
        if route is None:
            route = self.routes[shard] = ShardRoute(shard)
        return route

    # ---- sending

    def tell(self, key: Key, entity_id: str, payload: bytes, binding: Binding = Binding.ANY) -> Any:
        """Send without an answer. Returns an awaitable that is done when there is room for more.

        Raises:
            BufferFull: the buffer for shards without a home is full, or the send buffer is.
            MessageTooLarge: the payload is over the limit.
        """
        route = self._by_id.get(entity_id) or self.route_of(entity_id)
        out = route.out
        if out is None:
            return self.deliver(self.pending(key, route, entity_id, payload, binding))
        out.tell(key, entity_id, payload)
        return self.done if out.writable else out.until_room

    def tell_accepted(self, key: Key, entity_id: str, payload: bytes, binding: Binding) -> None:
        """Send a tell whose sender's call is over. Without room it counts as dropped."""
        route = self.route_of(entity_id)
        self.deliver_accepted(self.pending(key, route, entity_id, payload, binding))

    def tell_nowait(
        self, key: Key, entity_id: str, payload: bytes, binding: Binding = Binding.ANY
    ) -> None:
        """Send at once, or raise BufferFull if `tell` would wait."""
        check_room(self.route_of(entity_id).out, key[0], entity_id)
        self.tell(key, entity_id, payload, binding)

    def send(self, entity_id: str, message: object, binding: Binding = Binding.ANY) -> Any:
        """Tell a message to `receive`.

        Raises:
            SchemaError: the message cannot be serialized. Otherwise as `tell`.
        """
        key, pack = self._forms.get(message.__class__) or self._form(message)
        try:
            payload = pack(message)
        except BaseException as error:  # of a class of the application's
            raise_signalled(error)  # encoding again names it
            payload = encode_message(message)
        route = self._by_id.get(entity_id) or self.route_of(entity_id)
        out = route.out
        if out is None:
            return self.deliver(self.pending(key, route, entity_id, payload, binding))
        out.tell(key, entity_id, payload)
        return self.done if out.writable else out.until_room

    def _form(self, message: object) -> tuple[Key, Pack]:
        """Return the key of a message for `receive` and the function that encodes it."""
        form = form_of(message)
        entry = self._forms[message.__class__] = (self.key(form.method), form.pack)
        return entry

    def ask(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: Decode,
        binding: Binding = Binding.ANY,
    ) -> asyncio.Future[Any]:
        """Send an ask. Returns a future of the answer, which `decode` reads.

        Raises:
            LocalProtocolError: another thread or event loop calls.
        """
        check_loop(self._loop)
        route = self._by_id.get(entity_id) or self.route_of(entity_id)
        out, run = route.out, None
        if self._caller is not None and (caller := self._caller()) is not None:
            run = caller.call_chain_now()
        if isinstance(out, LocalOutbox):
            return out.future_ask(key, entity_id, payload, timeout_ms, decode, run)
        future = self._create_future()
        chain = () if run is None else run.chain
        try:
            if out is None:
                waits = future, decode, timeout_ms
                self.deliver(self.pending(key, route, entity_id, payload, binding, waits, chain))
            else:
                out.ask(key, entity_id, payload, timeout_ms, future, decode, chain)
        except BaseException:
            future.cancel()  # no caller gets it, so none awaits it
            raise
        if run is not None:
            run.note_ask((key[0], entity_id), future)
        return future

    def run_of_caller(self) -> AskingRun | None:
        """Return the run of the handler that sends; None outside of entities."""
        caller = None if self._caller is None else self._caller()
        return None if caller is None else caller.call_chain_now()

    def ask_for(
        self,
        answer: Any,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: Decode,
        binding: Binding = Binding.ANY,
    ) -> None:
        """Send an ask whose outcome goes to `answer`, which need not be a future of this loop."""
        route = self.route_of(entity_id)
        if route.out is not None:
            route.out.ask(key, entity_id, payload, timeout_ms, answer, decode)
        else:
            waits = answer, decode, timeout_ms
            self.deliver(self.pending(key, route, entity_id, payload, binding, waits))

    def pending(
        self,
        key: Key,
        route: ShardRoute,
        entity_id: str,
        payload: bytes,
        binding: Binding,
        waits: tuple[Any, Decode | None, int] = (None, None, 0),
        chain: Chain = (),
    ) -> PendingMessage:
        """Return a message for `deliver`. `waits`, of an ask: the future of the answer, its decoder
        and the timeout in ms."""
        waiter, decode, timeout_ms = waits
        deadline = 0 if waiter is None else self._clock.after(timeout_ms)
        shard = route.shard
        return PendingMessage(
            key, shard, entity_id, payload, 0, waiter, decode, deadline, chain, 0, binding
        )

    def deliver(self, pending: PendingMessage) -> Any:
        """Send a pending message by its shard's route, or buffer it; also for an arrival that
        belongs elsewhere.

        Raises:
            BufferFull: it is a tell, and the buffer is full. MessageTooLarge: the payload is over
                the limit; found here, because in the buffer it would block the messages behind it.
        """
        check_loop(self._loop)
        if len(pending.payload) > PAYLOAD_BYTES_MAX:
            raise too_large(len(pending.payload))
        if (out := self.route(pending.shard).out) is not None:
            pending.send(out, self._clock)
        else:
            out = self._owner.send_to_leaving(pending)
        if out is not None:
            return self.done if out.writable else out.until_room
        if self.refused is not None:
            pending.refuse(self.refused)
            if pending.waiter is None:
                raise self.refused
            return self.done
        pending.called = True
        try:
            self.deliver_accepted(pending)
        finally:
            pending.called = False
        if pending.error is not None and pending.waiter is None:
            raise pending.error
        return self.done

    def deliver_accepted(self, pending: PendingMessage) -> None:
        """Send or buffer a message whose sender's call may be over. Without room it counts as
        dropped, and the sender of an ask gets the error."""
        out = self.route(pending.shard).out
        if out is not None:
            pending.send(out, self._clock)
            return
        self._waits(pending)
        self.handle(events.Deliver(pending.shard, pending))

    def arrived(self, pending: PendingMessage, via: NodeId | None) -> None:
        """Route a message that came over a session for a shard that does not run here."""
        self._waits(pending)
        self.handle(events.Deliver(pending.shard, pending, via, pending.hops - 1))

    def resend(self, unsent: list[Unsent]) -> None:
        """Route the messages, in order, that a lost session never sent while their home lives. They
        are older than the buffered messages, so they go in front of these."""
        held: list[PendingMessage] = []
        for pending in map(self._pending, unsent):
            out = self.route(pending.shard).out
            if out is not None:
                pending.send(out, self._clock)
            elif self.refused is not None:
                pending.refuse(self.refused)
            else:
                held.append(pending)
        for pending in reversed(held):
            self._waits(pending)
            self.handle(events.Deliver(pending.shard, pending, older=True))

    def gone(self, node: NodeId, unsent: list[Unsent]) -> None:
        """Handle the end of a node; `unsent` are the messages for it that never left."""
        left = [self._pending(message) for message in unsent]
        for pending in left:
            self._waits(pending)
        self.handle(events.NodeGone(node, tuple((p.shard, p) for p in left)))

    def stopped(
        self, shard: str, left: list[PendingMessage], carried: tuple[CarriedEntity, ...] = ()
    ) -> None:
        """Handle the stop of a shard here; `left` are the messages that were not handled, `carried`
        is the memory of its entities."""
        for pending in left:
            self._waits(pending)
        self.handle(events.ShardDown(shard, tuple(left), carried))

    def _waits(self, pending: PendingMessage) -> None:
        """Note a message that the region is about to get, and may keep."""
        pending.since = pending.since or self._loop.time()
        if pending.key is not None:
            self.table._router_of(pending).entered += 1
        self.table.buffered_asks.add(pending)
        if self.route(pending.shard).out is None:
            if pending.trace:
                pending.why = WHY[self.table.region.absence_of(pending.shard)[0]]
            self.table._wanted_since.setdefault(pending.shard, pending.since)

    def _trace_wait(self, pending: PendingMessage) -> None:
        """Note that a traced message has waited for its home."""
        about = {"shardbus.why": pending.why, "shardbus.shard": pending.shard}
        waited = self._loop.time() - pending.since
        assert self.tracer is not None
        pending.trace = self.tracer.passed(pending.trace, "buffered", about, waited)
        pending.why = ""

    def _pending(self, unsent: Unsent) -> PendingMessage:
        key, shard, entity_id, payload, hops, waiting, chain, via, trace = unsent
        waiter, decode, deadline = waiting or (None, None, 0)
        router = self._inner.get(key[0], self)
        shard = shard or router.route_of(entity_id).shard
        own_key = router.key(key[1])
        pending = PendingMessage(
            own_key, shard, entity_id, payload, hops, waiter, decode, deadline, chain, via
        )
        pending.trace = trace
        pending.binding = Binding.PICKED  # it goes where it was going
        return pending

    def reconnect(self, lost: Session) -> None:
        """Replace a lost session to a node that lives by a new one."""
        for route in self.routes.values():
            if route.out is lost.outbox:
                route.out = self._owner.out_for(lost.tag)

    def refuse(self, error: Refusal, reason: str) -> None:
        """Fail all buffered and later messages: the type cannot be reached from here. Waiting tells
        are dropped, and counted by this reason."""
        for message in self._take_uncounted():
            message.refuse(error)
            if message.waiter is None:
                self._drop_uncounted(message, reason)
        self._refuse_asks(error)
        name = None if self.table is self else self.interface.name
        waiting = [p for p in self._buffered() if p.key is not None and name in (None, p.key[0])]
        for pending in waiting:
            if pending.waiter is None:
                pending.refuse(error)
                self.table._dropped(pending, reason)
        self.handle(events.Withdrawn(tuple((p.shard, p) for p in waiting)))

    def admit(self) -> None:
        """Take messages again after `refuse`: the type can be reached."""
        refused = self.refused
        for router in (self, *self._inner.values()):
            if router.refused is refused:
                router.refused = None

    @property
    def wanted_since(self) -> float | None:
        """When the oldest message that waits for a home began to wait; None if none waits."""
        return min(self._wanted_since.values(), default=None)

    @property
    def waiting(self) -> int:
        """The number of messages that wait for a home, or for the number of instances, and of
        flushes that follow such messages."""
        uncounted = 0 if self.rows is None else len(self.rows.uncounted)
        return self.table.region.buffered[0] + uncounted

    @property
    def buffers(self) -> bool:
        """True if a message waits that has not expired."""
        return self.waiting > 0 and any(
            not (message.expired or message.abandoned) for message in self._buffered()
        )

    @property
    def buffered_tells(self) -> int:
        """The number of waiting tells, which have no home yet."""
        return sum(pending.waiter is None for pending in self._buffered())

    def _buffered(self) -> Iterator[PendingMessage]:
        """Yield the messages that wait for a home, of all types that use this table."""
        for pending in self.table.region.kept():
            if isinstance(pending, PendingMessage) and not pending.is_marker:
                yield pending
        if self.rows is not None:
            yield from self.rows.uncounted

    def _refuse_asks(self, error: Refusal) -> None:
        self.refused = error
        for inner in self._inner.values():
            inner.refused = error
        self.buffered_asks.refuse(error, None if self.table is self else self.interface.name)

    def end(self, error: Refusal) -> None:
        """Refuse asks, and all later messages, even with a route: the client is closed. The client
        has counted the waiting tells."""
        for message in self._take_uncounted():
            message.refuse(error)
        self._refuse_asks(error)
        for route in self.routes.values():
            route.out = None
        self.close()

    def expire(self) -> int:
        """Fail the buffered asks whose deadline has passed. Returns how many."""
        late = self.buffered_asks.expire(self._clock.tick, self._why_waiting)
        for pending in late:
            self._note_failed(pending)
        if late:
            self.handle(events.Expired(tuple({pending.shard: None for pending in late})))
        return len(late)

    def _why_waiting(self, shard: str) -> str:
        return self._owner.why_away() or self.table.region.why_waiting(shard)

    # ---- the machine

    def handle(self, event: events.RegionEvent) -> None:
        """Pass an event to the region and carry out its effects."""
        table = self.table
        for effect in table.region.handle(event, self._loop.time()):
            table._perform(effect)
        table._machine_timer.arm()
        if self.rows is not None:
            self._settle(self.rows)

    def _perform(self, effect: events.RegionEffect) -> None:
        match effect:
            case events.SetRoute(shard=shard, node=node):
                self._leave(shard)
                self.route(shard).out = None if node is None else self._owner.out_for(node)
                if node is not None and (since := self._wanted_since.pop(shard, None)):
                    self.home_latencies.observe(self._loop.time() - since)
                if self.rows is not None:
                    self.rows.changed(shard)
            case events.Release(node=node, messages=envelopes):
                self._release(node, envelopes)
            case events.Send(message=MoveAck(moves=moves)):
                for move in moves:
                    self._leave(move.old.shard)
                self._owner.perform(effect)
            case events.SendFlush(shard=shard, node=node, flush_id=flush_id):
                waiter = _FlushWaiter(self, shard, flush_id)
                self._owner.out_for(node).flush_shard(
                    self.interface.name, shard, 0, FLUSH_TIMEOUT_MS, waiter
                )
            case events.Reject(message=pending, reason=reason):
                assert isinstance(pending, PendingMessage)
                self.buffered_asks.discard(pending)
                if self.rows is not None and reason == REJECT_NO_INSTANCE:
                    self.rows.homeless.append(pending)
                    return
                self._dropped(pending, reason)
                if not pending.expired:
                    self._note_failed(pending)
                    pending.refuse(rejection(self._router_of(pending).interface.name, reason))
            case _:
                self._owner.perform(effect)

    def _leave(self, shard: str) -> None:
        """Send the messages that wait for full entities of a shard, along its present route, before
        the mark that everything has been sent."""
        out = self.route(shard).out
        if out is not None:
            out.leave(lambda target: self._is_in(target, shard))

    def _is_in(self, target: Target, shard: str) -> bool:
        """True if an entity, of a type that uses this table, is in the shard."""
        router = self._inner.get(target[0], self)
        return target[0] == router.interface.name and router.route_of(target[1]).shard == shard

    def _release(self, node: NodeId, envelopes: tuple[BufferedMessage, ...]) -> None:
        out = self._owner.out_for(node)
        for pending in envelopes:
            assert isinstance(pending, PendingMessage)
            self.buffered_asks.discard(pending)
            if pending.abandoned:
                self._dropped(pending, ABANDONED)
            elif pending.error is None:
                if pending.key is not None:
                    self._router_of(pending).left += 1
                if pending.trace and pending.why and self.tracer is not None:
                    self._trace_wait(pending)
                pending.send(out, self._clock)
            elif pending.expired:
                self._dropped(pending, REJECT_EXPIRED)
        if self._owner.is_here(node):
            out.flush()  # no message that arrives from another node may overtake them

    def _note_failed(self, pending: PendingMessage) -> None:
        """Note an ask of this process that fails while it waits for a home."""
        is_ask = pending.key is not None and pending.decode is not None
        if is_ask and pending.key is not None:
            self._owner.ask_failed(pending.key[0], self._loop.time() - pending.since)

    def _dropped(self, pending: PendingMessage, reason: str) -> None:
        if pending.key is not None:  # a flush is no message
            answered = pending.waiter is not None or pending.called
            self._router_of(pending)._owner.lost(pending, reason, answered=answered)

    def _router_of(self, pending: PendingMessage) -> Router:
        """Return the router of a message's type, which uses this table."""
        return self if pending.key is None else self._inner.get(pending.key[0], self)

    def _tick(self) -> None:
        for effect in self.region.tick(self._loop.time()):
            self._perform(effect)
        if self.rows is not None:
            self._settle(self.rows)

    def give_up(self, reason: str) -> int:
        """Drop every message that waits here, of all types that use this table, and count it;
        return their number. Asks have their outcome at their deadline, or by `end`."""
        uncounted, given_up = self._take_uncounted(), list(self._buffered())
        for message in uncounted:
            self._drop_uncounted(message, reason)
        for pending in given_up:
            self.table._dropped(pending, reason)
        self.handle(events.Withdrawn(tuple((p.shard, p) for p in given_up)))
        return len(uncounted) + len(given_up)

    # ---- instances

    def hold_uncounted(self, message: PendingMessage, send: Callable[[], object]) -> None:
        """Keep a message of `all` until the number of instances is known, then call `send`.

        Raises:
            BufferFull: no room. MessageTooLarge: the payload is over the limit.
        """
        assert self.rows is not None
        if len(message.payload) > PAYLOAD_BYTES_MAX:
            raise too_large(len(message.payload))
        if self.refused is not None:
            raise self.refused
        if self.tracer is not None:
            send = partial(self.tracer.under, self.tracer.current(), send)
        message.called = True
        if not self.rows.uncounted.add(message, send):
            self._drop_uncounted(message, REJECT_BUFFER_FULL)
            raise rejection(self.interface.name, REJECT_BUFFER_FULL)
        message.called = False

    def _drop_uncounted(self, message: PendingMessage, reason: str) -> None:
        self.entered += 1
        self._dropped(message, reason)

    def _take_uncounted(self) -> list[PendingMessage]:
        return [] if self.rows is None else [held for held, _ in self.rows.uncounted.take()]

    def _settle(self, rows: InstanceRoutes) -> None:
        """Use a new number of instances, and route the messages that lost their instance."""
        rows.recount()
        if rows.counted:
            for message, send in rows.uncounted.take():
                if not message.abandoned:
                    send()
        while rows.homeless:
            homeless, rows.homeless = rows.homeless, []
            for pending in homeless:
                self._route_anew(rows, pending)

    def _route_anew(self, rows: InstanceRoutes, pending: PendingMessage) -> None:
        """Send a message to another instance: that which it was for is no more, or has no home."""
        if pending.expired:
            self._dropped(pending, REJECT_EXPIRED)
            return
        if pending.key is None or pending.binding is Binding.PART:
            self._dropped(pending, REJECT_NO_INSTANCE)
            name = self.interface.name
            pending.refuse(NodeLost(f"{pending.entity_id!r} of {name!r} is no instance any more"))
            return
        pending.entity_id, pending.shard = rows.instead_of(pending.entity_id)
        self.left += 1
        self.deliver_accepted(pending)

    def close(self) -> None:
        """Stop the timer."""
        self._machine_timer.stop()
