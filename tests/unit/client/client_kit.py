"""A client without sockets: an endpoint that plays the cluster, on a loop with virtual time.

`World` says which nodes answer, the types and where shards live. It answers `Describe`
and `GetShardHome` as a contact does, and records the messages of every session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

from shardbus.client import asynchronous
from shardbus.client.asynchronous import AsyncClient
from shardbus.ids import Address, NodeId
from shardbus.sharding.messages import GetShardHome, Home, ShardHomes
from shardbus.transport.asks import CoarseClock, Unsent
from shardbus.transport.endpoint_events import EndpointEvents
from shardbus.transport.environment import Environment
from shardbus.wire.batch import Control
from shardbus.wire.control import Describe, Members, TypeInfo, decode_control, encode_control
from shardbus.wire.schema import decode_value

A, B, C = (NodeId(f"10.0.0.{n}", 7355, n) for n in (1, 2, 3))
LAYOUT, SHARDS = "crc32/12", 12


class FakeSession:
    """A session that records its messages. It acknowledges tells at once unless `deaf`."""

    def __init__(self, endpoint: FakeEndpoint, address: Address, node: NodeId | None) -> None:
        self._endpoint, self.address = endpoint, address
        self.tag: Any = node or address
        self.open = self.peer_ended = self.closed_idle = self.deaf = self.unflushed = False
        self.writable = True
        self.outbox = self.link = self
        self.outstanding = self.waiting_asks = 0
        self.unconfirmed: dict[str, int] = {}
        self.sent: list[tuple[str, str]] = []
        self.values: list[object] = []
        """The payloads of these messages."""
        self.controls: list[object] = []
        self.answers: list[Any] = []
        self.asks: list[Any] = []
        self._unsent: list[Control] = []
        """Messages that wait for the session to open."""
        self._opening: list[asyncio.Future[None]] = []
        self._drained: list[asyncio.Future[None]] = []

    @property
    def name(self) -> str:
        return str(self.tag)

    def has_room_for(self, target: tuple[str, str]) -> bool:
        return self.writable

    @property
    def busy(self) -> bool:
        return bool(self.outstanding or self.waiting_asks or self.unflushed)

    def leave(self, leaves: Any) -> None: ...

    def tell(
        self, key: tuple[str, str], entity_id: str, payload: bytes, accepted: bool = False
    ) -> None:
        self.sent.append(("tell", entity_id))
        self.values.append(decode_value(payload))
        self.outstanding += self.deaf

    def ask(
        self,
        key: Any,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        future: Any,
        decode: Any,
        *rest: Any,
    ) -> None:
        self.sent.append(("ask", entity_id))
        self.values.append(decode_value(payload))
        self.asks.append(future)
        self.waiting_asks += 1

    def flush_shard(self, name: str, shard: str, hops: int, timeout_ms: int, waiter: Any) -> None:
        waiter.resolve(b"")

    def flush(self) -> None: ...

    def control(self, control: Control) -> None:
        self.controls.append(decode_control(control))
        if self.open:
            self._endpoint.loop.call_soon(self._endpoint.world.on_control, self, control)
        else:
            self._unsent.append(control)

    def reply(self, corr: int, payload: bytes) -> None:
        self.answers.append((corr, payload))

    def fail(self, corr: int, error: Exception) -> None:
        self.answers.append((corr, str(error)))

    def opening(self) -> asyncio.Future[None]:
        return self._future(self.open, self._opening)

    def drained(self) -> asyncio.Future[None]:
        return self._future(not self.outstanding, self._drained)

    def _future(self, done: bool, waiting: list[asyncio.Future[None]]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._endpoint.loop.create_future()
        if done:
            future.set_result(None)
        else:
            waiting.append(future)
        return future

    def welcome(self) -> None:
        """The node answers."""
        if not self.open and self in self._endpoint.open_sessions:
            self.open, self.tag = True, self._endpoint.world.nodes[self.address]
            self._endpoint.events.opened(self)
            self._settle(self._opening)
            self.receive(Members(self._endpoint.world.members))
            for control in self._unsent:
                self._endpoint.loop.call_soon(self._endpoint.world.on_control, self, control)

    def acknowledge(self) -> None:
        """The node acknowledges every tell so far."""
        self.outstanding = 0
        self._settle(self._drained)

    def receive(self, message: object, entity_type: str = "") -> None:
        """The node sends a control message."""
        self._endpoint.receiver.on_control(self, encode_control(entity_type, message))

    def lose(self, *, peer_ended: bool, unsent: list[Unsent] | None = None) -> None:
        """The session ends; `peer_ended`: a refused connection proves that the process ended."""
        self.open, self.peer_ended = False, peer_ended
        self.unconfirmed = {"page": self.outstanding} if self.outstanding else {}
        self._endpoint.open_sessions.remove(self)
        self._endpoint.events.lost(self, unsent or [])

    @staticmethod
    def _settle(waiting: list[asyncio.Future[None]]) -> None:
        for future in waiting:
            if not future.done():
                future.set_result(None)
        waiting.clear()


class FakeEndpoint:
    """The part of an endpoint that a client uses."""

    def __init__(
        self,
        world: World,
        cluster: str,
        name: str,
        uid: int,
        receiver: Any,
        *,
        events: EndpointEvents,
        **others: Any,
    ) -> None:
        self.world, self.cluster, self.receiver = world, cluster, receiver
        self.name = name
        self.events = events
        self.send_buffer_limit = others["send_buffer_limit"]
        self.clock = CoarseClock()
        self.open_sessions: list[FakeSession] = []
        self.parting: list[tuple[NodeId, list[bool]]] = []
        self.departures = self
        self.given_up: list[NodeId] = []
        self.asks_timed_out = 0
        self.closed = False
        world.endpoint = self

    def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock.start(self.loop.time)
        self.loop.call_later(0.05, self._tick)

    def _tick(self) -> None:
        if not self.closed:
            self.clock.move()
            self.events.tick(self.clock.tick)
            self.loop.call_later(0.05, self._tick)

    def session_to(
        self, address: Address, node: NodeId | None = None, *, probe: bool = False
    ) -> FakeSession:
        for session in self.open_sessions:
            if session.address == address:
                return session
        session = FakeSession(self, address, node)
        self.open_sessions.append(session)
        self.world.tried.append(address)
        if address in self.world.up:
            self.loop.call_soon(session.welcome)
        return session

    def sessions(self) -> list[FakeSession]:
        return list(self.open_sessions)

    def node_at(self, address: Address) -> NodeId | None:
        tags = [session.tag for session in self.open_sessions if session.address == address]
        return tags[0] if tags else None

    def announce(self, node: NodeId) -> None:
        self.given_up.append(node)

    def remove(self, node: NodeId, error: Exception) -> None:
        for session in self.sessions():
            if session.tag == node:
                session.lose(peer_ended=True)

    def close_idle(self, node: NodeId, in_use: Callable[[Any], bool]) -> bool:
        self.parting.append((node, [in_use(s) for s in self.open_sessions if s.tag == node]))
        return False

    def close(self) -> None:
        self.closed = True
        for session in self.open_sessions:
            session.unconfirmed = {"page": session.outstanding} if session.outstanding else {}


class World:
    """The cluster that a client meets."""

    endpoint: FakeEndpoint

    def __init__(self, *members: NodeId) -> None:
        self.members = members or (A, B)
        self.nodes = {node.address: node for node in self.members}
        self.up = set(self.nodes)
        self.tried: list[Address] = []
        self.types = {"page": TypeInfo(True, LAYOUT, SHARDS)}
        self.lacking: set[NodeId] = set()
        """Nodes that have none of the types."""
        self.elsewhere: tuple[NodeId, ...] = ()
        """Nodes that have them, as the others say."""
        self._home: NodeId | None = A
        self._fence = 1
        self.answers = True

    @property
    def home(self) -> NodeId | None:
        """Where every shard lives; None: no shard has a home. A new home has a higher fence."""
        return self._home

    @home.setter
    def home(self, node: NodeId | None) -> None:
        self._home = node
        self._fence += 1

    def client(self, *addresses: NodeId, **options: Any) -> AsyncClient:
        """A client that was given the addresses of these nodes, or of all."""
        urls = [f"tcp://{node.address}" for node in addresses or self.members]
        network: Any = object()
        return AsyncClient(
            *urls,
            cluster="shop",
            environment=lambda: Environment(b"7", network, Random(1)),
            **options,
        )

    def playing(self) -> Any:
        """Put this world in the place of the network, inside a `with`."""
        return patch.object(
            asynchronous, "Endpoint", lambda *args, **more: FakeEndpoint(self, *args, **more)
        )

    def session(self, node: NodeId) -> FakeSession:
        """The session of the client to this node."""
        [session] = [s for s in self.endpoint.open_sessions if s.address == node.address]
        return session

    def on_control(self, session: FakeSession, control: Control) -> None:
        message = decode_control(control)
        if not self.answers or not session.open:
            return
        has = session.tag not in self.lacking
        match message:
            case Describe():
                unknown = TypeInfo(False, "", 0, elsewhere=self.elsewhere)
                info = self.types.get(control.type, unknown) if has else unknown
                session.receive(info, control.type)
            case GetShardHome(shards):
                if has and self.home is not None:
                    homes = tuple(Home(shard, self.home, self._fence) for shard in shards)
                    session.receive(ShardHomes(1, homes), control.type)

    def move(self, node: NodeId, *shards: str, by: NodeId) -> None:
        """Node `by` says that these shards live at `node` now."""
        self.home = node
        homes = tuple(Home(shard, node, self._fence) for shard in shards)
        self.session(by).receive(ShardHomes(1, homes), "page")
