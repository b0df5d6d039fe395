"""`AsyncClient`: send to entities from outside the cluster.

A client is not a member. It asks one node, its *contact*, for the description of a type and the
homes of its shards, and sends messages directly to their homes. The contact pushes every change.
When a node dies or leaves, the client sees it by its own connection and chooses another contact.
Messages that were not sent are routed again. Asks that were sent and not answered fail as NodeLost,
because the handler may have run.

A client hosts nothing: it refuses asks, ignores tells and answers a flush at once.

Source: S2.37, S3.58 to S3.64 (flush before switching homes).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from shardbus import errors
from shardbus.client.contact import Contact
from shardbus.client.outbox import ClientOutbox
from shardbus.client.regions import CLOSED, ClientRegions
from shardbus.client.stored import PAGE, ForEach, call_each, stored_ids
from shardbus.client.towards import Towards
from shardbus.client.work_queue import ClientQueue, HasValues
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address, NodeId, check_id
from shardbus.routing.instance_policies import choice_of
from shardbus.routing.refs import OfOneProcess, Ref, ask, milliseconds, pack, tell
from shardbus.routing.region import Region
from shardbus.routing.sent import awaited
from shardbus.routing.tracer import Tracer, open_tracing
from shardbus.tasks.own_loop import asyncio_loop
from shardbus.transport import permissions
from shardbus.transport.asks import Key, Unsent
from shardbus.transport.drop_reports import RefusedTells
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.endpoint_events import EndpointEvents
from shardbus.transport.environment import Environment
from shardbus.transport.fork_guard import guard
from shardbus.transport.send_buffer import SEND_BUFFER_BYTES, SEND_BUFFER_FULL, SendBufferLimit
from shardbus.transport.session import Session
from shardbus.transport.zmq.curve import Keyring
from shardbus.transport.zmq.network import ZmqNetwork
from shardbus.wire.batch import AskRun, Control, Flush, Relayed, TellRun
from shardbus.wire.control import Members, Refusals, TypeInfo, decode_control
from shardbus.wire.schema import decode_value, encode_value

if TYPE_CHECKING:
    from shardbus.client.values import ClientData

log = GuardedLog("shardbus.client")

E = TypeVar("E")
V = TypeVar("V")
ASK_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 10.0
CLOSE_S = 2.0
TRACES_A_SECOND = 100
"""Traces that a client begins, at most, for messages that are sent under no span."""
SECRET_VARIABLE = "SHARDBUS_SECURITY__SECRET"  # noqa: S105  (the name of a variable)
KEY_VARIABLE = "SHARDBUS_SECURITY__KEYS"
_LIST_STORED: Key = (permissions.QUESTION_TYPE, permissions.LIST_STORED)
_OUTBOX: Key = (permissions.QUESTION_TYPE, permissions.OUTBOX)
_VALUES: Key = (permissions.QUESTION_TYPE, permissions.VALUES)
SEND_BUFFER_MIN = 16 * 1024 * 1024


def path_of(path: str | os.PathLike[str] | None, variable: str) -> str:
    """Return a file of keys: the given one, or the environment's. Empty is none."""
    return os.environ.get(variable, "") if path is None else os.fspath(path)


class AsyncClient(Towards, OfOneProcess):
    """Send to entities from any asyncio program; use it as `async with
    AsyncClient("tcp://host:port", ...)`.

    The client connects by the first address that answers; give several, so that it starts although
    a node is down. `timeout` is the default deadline of an ask, in seconds (5), and bounds entering
    the client, too, which otherwise waits `connect_timeout` (10). `send_buffer_bytes`
    bounds the messages that wait for each node while the caller does not await its tells. `secret`
    names the file with the cluster's secret, by default the file named by
    SHARDBUS_SECURITY__SECRET; empty is none. `key` names the file of a key of its own, for a
    cluster with `security.allowed`, by default the file named by SHARDBUS_SECURITY__KEYS. `tracing`
    creates OpenTelemetry spans for messages that are sent under a sampled span, and for the part
    `trace_ratio` of those that are sent under none, but for at most `trace_limit` of these in a
    second; 0 is no limit. `environment` is for the simulator.

    Raises ConfigError if an argument is invalid, or the secret cannot be used."""

    def __init__(
        self,
        *addresses: str,
        cluster: str,
        timeout: float | None = None,
        connect_timeout: float | None = None,
        send_buffer_bytes: int = SEND_BUFFER_BYTES,
        secret: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        tracing: bool = False,
        trace_ratio: float = 0.0,
        trace_limit: int = TRACES_A_SECOND,
        environment: Callable[[], Environment] | None = None,
    ) -> None:
        if not addresses:
            raise errors.ConfigError(
                "a client needs the address of a node", hint="as in tcp://10.0.0.1:7355"
            )
        if not all(isinstance(address, str) for address in addresses):
            raise errors.ConfigError(
                f"addresses are texts, not {addresses!r:.100}",
                hint="give each one as an argument, as in AsyncClient(*addresses, cluster=...)",
            )
        if send_buffer_bytes < SEND_BUFFER_MIN:
            raise errors.ConfigError(f"send_buffer_bytes is at least {SEND_BUFFER_MIN}")
        self.cluster = check_id("a cluster name", cluster)
        self.timeout_ms = milliseconds(ASK_TIMEOUT_S if timeout is None else timeout)
        self._addresses = [Address.parse(a) for a in addresses]
        if connect_timeout is None:
            longest = CONNECT_TIMEOUT_S if timeout is None else timeout
            connect_timeout = min(CONNECT_TIMEOUT_S, longest)
        self._connect_timeout = milliseconds(connect_timeout) / 1000
        keyring = None
        if environment is None:
            keyring = Keyring.at(path_of(secret, SECRET_VARIABLE), path_of(key, KEY_VARIABLE))
        self._make_environment = environment or (lambda: Environment(network=ZmqNetwork(keyring)))
        self._send_buffer_limit = SendBufferLimit(send_buffer_bytes)
        self.tracer: Tracer | None = None
        """Set when the client is entered, if it traces."""
        self._tracing, self._trace_ratio, self._trace_limit = tracing, trace_ratio, trace_limit
        self._refused_tells = RefusedTells()
        self._contact: Contact
        self._outboxes: WeakSet[ClientOutbox] = WeakSet()
        self._queues: WeakSet[ClientQueue[Any]] = WeakSet()
        self._entered = self._closed = False
        self._ended = asyncio.Event()
        self.lost_messages = 0
        """Tells whose arrival is unknown: their node died, or was silent for too long, before it
        acknowledged them. Also counts the tells that `close` gave up."""

    async def __aenter__(self) -> AsyncClient:
        if self._entered:
            raise errors.LocalProtocolError(
                "a client is entered once",
                hint="make another one; lifespan(lambda: AsyncClient(...)) does at each start",
            )
        loop = asyncio_loop()
        self._entered = True
        guard(self)
        environment = self._make_environment()
        uid, dice = environment.uid, environment.dice
        if self._tracing:
            self.tracer = open_tracing(
                permissions.client_name(uid), self._trace_ratio, dice, loop, limit=self._trace_limit
            )
        self._endpoint = Endpoint(
            self.cluster,
            permissions.client_name(uid),
            uid,
            self,
            events=EndpointEvents(
                opened=lambda session: self._regions.on_nodes_alive((session.tag,)),
                lost=self._on_lost,
                leaving=self._on_leaving,
                refused=lambda reason, address: self._contact.on_refused(reason),
                busy=lambda reason: self._contact.on_busy(reason),
                denied=lambda address, reason: self._contact.on_denied(reason),
                tick=self._on_tick,
            ),
            network=environment.network,
            secret=environment.secret,
            send_buffer_limit=self._send_buffer_limit,
        )
        self._endpoint.start()
        self._regions = ClientRegions(
            self._endpoint, self.to_contact, lambda: self._contact.away, self.tracer
        )
        Towards.__init__(self, self._regions, None, self.timeout_ms)
        contact = self._contact = Contact(
            self._endpoint, self._addresses, dice, self._regions.set_contact
        )
        contact.seek()
        try:
            async with asyncio.timeout(self._connect_timeout):
                await contact.until_found()
            if contact.refused:
                raise contact.error
        except BaseException as error:
            self._end()
            if isinstance(error, TimeoutError):
                raise contact.error from None
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise LocalProtocolError for an attribute that entering the client creates."""
            if name.startswith("__") or self.__dict__.get("_entered", True):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise errors.LocalProtocolError("the client was not entered", hint="use `async with`")

    async def close(self) -> None:
        """Close the client. It first waits up to two seconds for tells to be acknowledged; call
        `flush` before to wait longer. Tells without an acknowledgement are counted in
        `lost_messages`. Items of queues that are being given back have two seconds, too.

        A call that is cancelled while it waits closes the client at once; another call waits for
        the end of the first one."""
        if not self._closed:
            self._closed = True
            for outbox in list(self._outboxes):
                outbox.abandon()
            try:
                await asyncio.gather(*(queue.leave() for queue in list(self._queues)))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSE_S):
                        await self._flushed()
            finally:
                self._end()
        await self._ended.wait()

    def _end(self) -> None:
        """Close everything, and count unacknowledged messages."""
        self._closed = True
        self._ended.set()
        self._contact.close()
        self.lost_messages += self._regions.buffered_tells
        self._regions.close()
        sessions = self._endpoint.sessions()
        self._endpoint.close()
        self.lost_messages += sum(sum(session.unconfirmed.values()) for session in sessions)

    # ---- sending

    def ref(self, kind: type[E], entity_id: str) -> E:
        """Return a reference to one entity, typed as its class.

        Raises:
            ConfigError: the class is no entity class, or the id is not valid.
        """
        router = self.routers.get(kind) or self._regions.of_class(kind).sender
        declared: Any = kind
        ref: Any
        try:
            interface = declared.__shardbus_interface__
        except AttributeError:
            interface = None
        ref = Ref(router, entity_id, self.timeout_ms, interface)
        return ref  # type: ignore[no-any-return]

    def region(self, kind: type) -> Region:
        """Return the type's region, which finds the entity of a message by the class's
        `extract_entity_id`. Raises as `ref`."""
        region = self._regions.of_class(kind)
        return Region(region.interface, lambda: region, self.timeout_ms)

    @awaited
    def tell(
        self, kind: str | type, entity_id: str, message: object, *args: Any, ack: bool = False
    ) -> Any:
        router = self.routers.get(kind) or self._regions.find(kind)
        if router is None or ack:
            return super().tell(kind, entity_id, message, *args, ack=ack)
        return tell(router, entity_id, message, args) if args else router.send(entity_id, message)

    tell.__doc__ = Towards.tell.__doc__

    def tell_nowait(self, kind: str | type, entity_id: str, message: object, *args: Any) -> None:
        """Send at once, or raise BufferFull if `tell` would wait."""
        router = self._regions.find(kind)
        if router is None:
            raise errors.BufferFull(
                f"entity type {kind!r} is not known yet", hint="await a tell or an ask first"
            )
        key, payload = pack(router, message, args)
        router.tell_nowait(key, entity_id, payload)

    @awaited
    def ask(
        self,
        kind: str | type,
        entity_id: str,
        message: object,
        *args: Any,
        timeout: float | None = None,
    ) -> Any:
        router = self.routers.get(kind) or self._regions.find(kind)
        if router is None:
            return super().ask(kind, entity_id, message, *args, timeout=timeout)
        return ask(router, entity_id, message, args, self._ms(timeout))

    ask.__doc__ = Towards.ask.__doc__

    async def stored(
        self, kind: str | type, *, prefix: str = "", shard: str | None = None
    ) -> AsyncIterator[str]:
        """Yield the ids of the type's entities that have a stored state, of an event-sourced type
        those that have events, from the nodes' store, one page in memory: `async for id in
        client.stored(Cart)`. With `prefix`, only ids that begin with it; with `shard`, only ids of
        that shard.

        An entity that has a state all the time comes at least once. With a store in Redis one may
        come twice. Each page may take the client's `timeout`.

        Raises:
            UnknownEntityType: there is no such type, or this client may not use it. Unhandled: the
                cluster lists nothing for clients. EntityFailed: the store does not answer, or its
                server has changed; list again. RequestError: no node answers.
        """
        name = kind if isinstance(kind, str) else self._regions.of_class(kind).interface.name

        async def page(cursor: str) -> tuple[list[str], str | None]:
            arguments = (name, shard or "", prefix, cursor, PAGE)
            ids, following = await self._ask_contact(_LIST_STORED, arguments)
            return ids, following

        async for entity_id in stored_ids(page, self.timeout_ms / 1000):
            yield entity_id

    async def for_each(
        self,
        kind: str | type,
        action: str | Callable[[Any], Awaitable[object]],
        *args: Any,
        rate: float = 100.0,
        at_once: int = 16,
        prefix: str = "",
        shard: str | None = None,
        tell: bool = False,
        timeout: float | None = None,
        on_error: Callable[[str, Exception], object] | None = None,
    ) -> ForEach:
        """Call a handler of each entity of the type that `stored` yields, which starts it.

        Args:
            action: the name of a handler, called with `args`; or a function that takes a reference
                and returns an awaitable, as `lambda cart: cart.expire(7)`.
            rate: calls that begin per second. at_once: calls that run at a time.
            prefix, shard: only these entities, as `stored`.
            tell: tell, do not ask. Then `timeout` does not apply.
            timeout: seconds for one answer.
            on_error: called with the id and the error of each call that fails; it must not raise.

        Returns:
            How many were called, and which failed. An entity may be called twice, as `stored` says.

        Raises:
            As `stored`, when some entities may have been called. ConfigError: an invalid argument.
            NodeLost: the client has closed meanwhile.
        """
        if self._closed:
            raise errors.LocalProtocolError(CLOSED)
        router = await self.router_of(kind)

        async def call(entity_id: str) -> object:
            if not isinstance(action, str):
                return await action(Ref(router, entity_id, self.timeout_ms))
            if tell:
                await self.cast(kind, entity_id, action, *args)
                return None
            return await self.call(kind, entity_id, action, *args, timeout=timeout)

        ids = self.stored(kind, prefix=prefix, shard=shard)
        try:
            return await call_each(ids, call, rate=rate, at_once=at_once, on_error=on_error)
        except errors.LocalProtocolError as closed:
            raise errors.NodeLost(closed.message) from None

    def outbox(self, name: str) -> ClientOutbox:
        """Return a durable sender: `async with client.outbox("orders") as outbox: await
        outbox.send(ref.add, 2)`. Each message that it has taken is in the cluster's store, and is
        delivered by this process or by the next one that opens the outbox of this name.

        Raises:
            ConfigError: the name is not valid.
        """
        check_id("the name of an outbox", name)

        async def ask(*arguments: object) -> Any:
            return await self._ask_contact(_OUTBOX, arguments)

        owner = f"{self._endpoint.name}/{token_hex(4)}"
        outbox = ClientOutbox(name, owner, ask, self.router_of)
        self._outboxes.add(outbox)
        return outbox

    def queue(self, kind: type[HasValues[V]], entity_id: str) -> ClientQueue[V]:
        """Return the means to put into a queue of work, and to work on its items.

        Raises:
            ConfigError: it is no class of queues, or the id is not valid.
        """
        queue = ClientQueue(self, kind, entity_id)
        self._queues.add(queue)
        return queue

    @property
    def data(self) -> ClientData:
        """The replicated values of the cluster, with the calls of `bus.data`: `get`, `put`,
        `update`, `delete`, `watch` and `keys`. The contact does each step. They need nodes with the
        store inside the cluster, `cluster://`."""
        from shardbus.client.values import ClientData, NodeValues  # few clients use them

        async def ask(*arguments: object) -> Any:
            return await self._ask_contact(_VALUES, arguments)

        return ClientData(NodeValues(ask, self.timeout_ms / 1000, lambda: self._closed))

    async def _ask_contact(self, key: Key, arguments: tuple[object, ...]) -> Any:
        """Ask the contact a question about the cluster.

        Raises:
            NodeLost: there is no contact, or it is gone. AskTimeout: no answer in time.
        """
        session = self._contact.session
        if self._closed:
            raise errors.LocalProtocolError(CLOSED)
        if session is None:
            away = errors.NodeLost(f"the client seeks another node: {self._contact.away}")
            away.definite = True
            raise away
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        payload = encode_value(arguments)
        session.outbox.ask(key, "", payload, self.timeout_ms, future, decode_value)
        return await future

    async def flush(self) -> None:
        """Wait until a node has acknowledged every tell so far. A tell to a node that died before
        it acknowledged is lost and counted in `lost_messages`.

        Raises LocalProtocolError if the client is closed."""
        if self._closed:
            raise errors.LocalProtocolError(CLOSED)
        await self._flushed()

    async def _flushed(self) -> None:
        while True:
            await self._regions.until_unbuffered()
            sessions = self._endpoint.sessions()
            waits = [s.drained() for s in sessions if s.link.outstanding or s.outbox.unflushed]
            if not waits and not self._regions.buffering:
                return
            if waits:
                await asyncio.wait(waits)

    def to(self, policy: str, *, key: object = None, after: object = None) -> Towards:
        """Send to types with instances by this router: `await client.to("all").ask(...)`. `key`
        is for `hash`, and `after`, a delay in seconds, for `first`.

        Raises:
            ConfigError: there is no such router, or it does not take the option.
        """
        return Towards(self._regions, choice_of(policy, key, after), self.timeout_ms)

    @property
    def buffered(self) -> int:
        """Return how many messages wait for their type, or for their shard's home."""
        return self._regions.buffered

    @property
    def refused_messages(self) -> dict[str, int]:
        """Return the number of dropped messages by reason: tells that a node acknowledged and then
        dropped (nodes report them within a second), and messages that had no room in this client.

        The reason `unconfirmed` counts tells that a node forwarded before it left; whether they
        were handled is unknown."""
        refused = self._regions.refused
        for (_, reason), count in self._refused_tells.counts.items():
            refused[reason] += count
        refused[SEND_BUFFER_FULL] += sum(self._send_buffer_limit.refused.values())
        return dict(+refused)

    @property
    def busy(self) -> bool:
        """True if a message was sent that is not acknowledged or answered yet, or will be when the
        session with its node, a member, has opened."""
        members = self._contact.members
        sessions = [s for s in self._endpoint.sessions() if s.link.open or s.tag in members]
        return any(s.busy for s in sessions)

    # ---- the contact

    @property
    def contact(self) -> NodeId | None:
        """Return the node that describes types and locates shards; None while the client seeks
        another."""
        session = self._contact.session
        return session.tag if session is not None else None

    def to_contact(self, control: Control) -> bool:
        """Send to the contact. Returns False if the client has none at present."""
        session = self._contact.session
        if session is None:
            return False
        session.outbox.control(control)
        return True

    # ---- sessions

    def _on_leaving(self, session: Session) -> None:
        """Send nothing new to a node that leaves; messages under way there end normally."""
        contact = self._contact
        contact.leaving.add(session.tag)
        self._regions.on_node_leaving(session.tag)
        if session is contact.session:
            contact.session = None
            contact.seek()

    def _on_lost(self, session: Session, unsent: list[Unsent]) -> None:
        self.lost_messages += sum(session.unconfirmed.values())
        contact = self._contact
        if session is contact.session:
            contact.session = None
            self._regions.set_contact(None)
        if isinstance(session.tag, NodeId):
            # A silent node that is still a member is not gone: the cluster knows better.
            session.peer_ended = session.peer_ended or session.tag not in contact.members
            if session.peer_ended and not session.closed_idle:
                self._endpoint.departures.announce(session.tag)
            self._regions.on_session_lost(session, unsent)
            if session.peer_ended:
                contact.leaving.discard(session.tag)
        else:
            self._regions.resend(unsent)
        if contact.session is None:
            contact.seek()

    def _on_tick(self, tick: int) -> None:
        self._regions.expire()
        if line := self._refused_tells.log_line(asyncio.get_running_loop().time()):
            log.warning("%s", line)
        self._regions.retry_refused(self._contact.members)
        for node in list(self._contact.leaving):
            self._endpoint.close_idle(node, in_use=self._regions.uses)

    # ---- arrivals

    def on_control(self, session: Session, control: Control) -> None:
        """Handle a message of the contact or of another node."""
        message = decode_control(control)
        match message:
            case Members():
                self._contact.members = message.nodes
                self._regions.on_nodes_alive(message.nodes)
                for node in message.died:
                    self._endpoint.remove(node, errors.NodeLost(f"{node} is gone"))
            case Refusals():
                self._refused_tells.record(session.name, message)
            case TypeInfo():
                self._regions.on_type_info(control.type, session.tag, message)
            case _:
                self._regions.on_message(control.type, session.tag, message)

    def on_tells(self, session: Session, run: TellRun) -> None:
        """Ignore tells: a client hosts nothing."""

    def on_asks(self, session: Session, run: AskRun) -> None:
        """Fail asks: a client hosts nothing."""
        for corr in run.corrs:
            session.outbox.fail(corr, errors.RequestError("a client hosts nothing"))

    def on_relayed(self, session: Session, message: Relayed) -> None:
        """Ignore forwarded messages: a client hosts nothing."""

    def on_flush(self, session: Session, flush: Flush) -> None:
        """Answer at once: a client has no messages of its own on the way to a shard it hosts."""
        session.outbox.reply(flush.corr, b"")
