"""The entity types that a client uses: a router for each, fed by what the contact says.

A type known by its class brings its own shard function; one known by name is described by the
contact. A type whose function is its own can only be used by its class.

Source: docs/how-to.md; S2.37; B.57.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from shardbus.config.settings import ShardingSettings
from shardbus.errors import (
    AskTimeout,
    ConfigError,
    LocalProtocolError,
    RequestError,
    UnknownEntityType,
)
from shardbus.ids import NodeId
from shardbus.routing.router import Router
from shardbus.sharding import events
from shardbus.sharding.region.region import ShardRegion
from shardbus.transport.asks import Unsent
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.session import Session
from shardbus.wire.batch import Control
from shardbus.wire.control import Describe, TypeInfo, encode_control
from shardbus.wire.schema import Interface

DESCRIBE_EVERY_S = 1.0
CLOSED = "the client is closed"


class ClientRegion:
    """One type: its router, and what a router asks of its owner."""

    def __init__(self, kinds: ClientRegions, interface: Interface) -> None:
        self._kinds, self.interface = kinds, interface
        endpoint = kinds.endpoint
        region = ShardRegion(interface.name, None, interface.layout, kinds.settings)
        self.router = Router(interface, region, self, endpoint.loop, endpoint.clock)
        self.dropped_messages: dict[str, int] = {}

    def adopt(self, interface: Interface) -> None:
        """The type was known by name; now its class is.

        Raises:
            ConfigError: they disagree about how ids map to shards.
        """
        if interface.layout != self.interface.layout:
            raise ConfigError(
                f"entity type {interface.name!r} is laid out as {self.interface.layout} in the"
                f" cluster, as {interface.layout} here"
            )
        self.interface = self.router.interface = interface

    def out_for(self, node: NodeId) -> Session:
        """The session to a node."""
        return self._kinds.endpoint.session_to(node.address, node, probe=True)

    def is_here(self, node: NodeId) -> bool:
        """Nothing lives in a client."""
        return False

    def perform(self, effect: events.RegionEffect) -> None:
        """Ask the contact; what else there is does not concern a client."""
        match effect:
            case events.SendCoordinator(message=message):
                self._kinds.to_contact(encode_control(self.interface.name, message))
            case _:
                pass

    def dropped(self, reason: str, count: int, via: int = 0) -> None:
        """Messages that were not sent."""
        self.dropped_messages[reason] = self.dropped_messages.get(reason, 0) + count


DOUBT_S = 2.0
"""So many seconds a node that refused us is taken for dead, although its cluster counts it in."""


class ClientRegions:
    """See the module."""

    def __init__(self, endpoint: Endpoint, to_contact: Callable[[Control], bool]) -> None:
        self.endpoint, self.to_contact = endpoint, to_contact
        self.settings = ShardingSettings()
        self.routers: dict[str | type, Router] = {}
        """The routers of the types known so far, by name and by class."""
        self._kinds: dict[str, ClientRegion] = {}
        self._contact: NodeId | None = None
        self._gone: dict[NodeId, float] = {}
        """Who was found to be no more, and when; a wall that refuses may have lied in its name."""
        self._learning: dict[str, list[asyncio.Future[Router]]] = {}
        self._closed = False

    # ---- finding a type

    def of_class(self, cls: type) -> Router:
        """The router of a decorated class. Raises as `kind_of`."""
        return self.kind_of(cls).router

    def kind_of(self, cls: type) -> ClientRegion:
        """The type of a decorated class.

        Raises:
            ConfigError: the class is not one.
        """
        interface = getattr(cls, "__shardbus_interface__", None)
        if not isinstance(interface, Interface):
            name = getattr(cls, "__name__", repr(cls))
            raise ConfigError(f"{name} is no entity class", hint="decorate it with @bus.entity")
        kind = self._kinds.get(interface.name) or self._add(interface)
        if kind.interface is not interface:
            kind.adopt(interface)
        self.routers[cls] = kind.router
        return kind

    def known(self, kind: str | type) -> Router | None:
        """The router if the type is known already."""
        if isinstance(kind, str):
            known = self._kinds.get(kind)
            return known.router if known is not None else None
        return self.of_class(kind)

    async def learn(self, kind: str | type, timeout: float) -> Router:
        """The router of a type, described by the contact if need be.

        Raises:
            UnknownEntityType: the cluster has no such type. AskTimeout: no answer.
            LocalProtocolError: the client is closed.
        """
        known = self.known(kind)
        if known is not None:
            return known
        assert isinstance(kind, str)
        future: asyncio.Future[Router] = self.endpoint.loop.create_future()
        self._learning.setdefault(kind, []).append(future)
        deadline = self.endpoint.loop.time() + timeout
        while not (future.done() or self._closed):
            left = deadline - self.endpoint.loop.time()
            if left <= 0:
                raise AskTimeout(f"no node says what entity type {kind!r} is")
            self.to_contact(encode_control(kind, Describe()))
            await asyncio.wait([future], timeout=min(left, DESCRIBE_EVERY_S))
        if self._closed:
            raise LocalProtocolError(CLOSED)
        return future.result()

    def described(self, name: str, info: TypeInfo) -> None:
        """The contact says what a type is."""
        waiting = [future for future in self._learning.pop(name, []) if not future.done()]
        kind = self._kinds.get(name)
        error: Exception | None = None
        if not info.known:
            error = UnknownEntityType(f"the cluster has no entity type {name!r}")
        elif kind is not None and kind.interface.layout != info.layout:
            error = UnknownEntityType(
                f"entity type {name!r} is laid out as {info.layout} in the cluster, as"
                f" {kind.interface.layout} here"
            )
        elif kind is None and not info.shards:
            text = f"entity type {name!r} has a shard function of its own"
            error = ConfigError(text, hint="name it by its class instead")
        elif kind is None:
            kind = self._add(Interface(name, info.shards, info.layout))
        if isinstance(error, RequestError) and kind is not None:
            kind.router.refuse(error)
        for future in waiting:
            if error is not None:
                future.set_exception(error)
            elif kind is not None:
                future.set_result(kind.router)

    def _add(self, interface: Interface) -> ClientRegion:
        kind = self._kinds[interface.name] = ClientRegion(self, interface)
        if self._closed:
            kind.router.end(LocalProtocolError(CLOSED))
        self.routers[interface.name] = kind.router
        if self._contact is not None:
            self._introduce(kind)
        return kind

    def _introduce(self, kind: ClientRegion) -> None:
        """Have the contact say what the type is in the cluster, and where its shards are."""
        self.to_contact(encode_control(kind.interface.name, Describe()))
        kind.router.handle(events.CoordinatorAt(self._contact))

    # ---- news

    def contact_at(self, node: NodeId | None) -> None:
        """Who is asked from now on."""
        self._contact = node
        for kind in self._kinds.values():
            if node is not None:
                self._introduce(kind)
            else:
                kind.router.handle(events.CoordinatorAt(None))

    def received(self, name: str, sender: NodeId, message: Any) -> None:
        """A message for a type's region."""
        kind = self._kinds.get(name)
        if kind is not None and sender == self._contact:
            kind.router.handle(events.MessageReceived(sender, message))

    def alive(self, nodes: Iterable[NodeId]) -> None:
        """These processes answer, or their cluster says that they are there."""
        for node in [node for node in nodes if node in self._gone]:
            del self._gone[node]
            for kind in self._kinds.values():
                kind.router.handle(events.NodeBack(node))

    def doubt(self, members: Iterable[NodeId]) -> None:
        """Whoever was refused a while ago, and is a member yet, is tried again."""
        old = self.endpoint.loop.time() - DOUBT_S
        self.alive([node for node in members if self._gone.get(node, math.inf) <= old])

    def leaving(self, node: NodeId) -> None:
        """It hosts nothing any more, though nobody may say where the shards are that were there."""
        for kind in self._kinds.values():
            kind.router.handle(events.NodeLeft(node))

    def lost(self, session: Session, unsent: list[Unsent]) -> None:
        """The session to a node ended, and with it the node, if it is `gone`."""
        by_kind = _by_kind(unsent)
        for name, kind in self._kinds.items():
            mine = by_kind.get(name, [])
            if session.gone:
                self._gone[session.tag] = self.endpoint.loop.time()
                kind.router.gone(session.tag, mine)
            else:
                kind.router.reconnect(session)
                kind.router.resend(mine)

    def resend(self, unsent: list[Unsent]) -> None:
        """Messages that a lost session never sent."""
        for name, messages in _by_kind(unsent).items():
            if name in self._kinds:
                self._kinds[name].router.resend(messages)

    def uses(self, session: Session) -> bool:
        """Whether some shard's messages still go there."""
        return any(r.out is session for k in self._kinds.values() for r in k.router.routes.values())

    # ---- waiting

    @property
    def buffering(self) -> bool:
        """Whether some message waits for its shard's home."""
        return self.buffered > 0

    @property
    def buffered(self) -> int:
        """Messages that wait for their shard's home."""
        return sum(kind.router.region.buffered[0] for kind in self._kinds.values())

    @property
    def refused(self) -> Counter[str]:
        """Messages that had no home and were given up, by reason."""
        return sum((Counter(k.dropped_messages) for k in self._kinds.values()), Counter())

    async def unbuffered(self) -> None:
        """Return once no message waits for a home."""
        while self.buffering:
            await asyncio.sleep(0.02)

    def expire(self) -> None:
        """Fail the asks that have waited for too long."""
        for kind in self._kinds.values():
            if kind.router.buffered_asks:
                self.endpoint.asks_timed_out += kind.router.expire()

    def close(self) -> None:
        """Stop the clocks, and refuse what is still sent."""
        self._closed = True
        for kind in self._kinds.values():
            kind.router.end(LocalProtocolError(CLOSED))
        for futures in self._learning.values():
            for future in futures:
                future.cancel()


def _by_kind(unsent: list[Unsent]) -> dict[str, list[Unsent]]:
    by_kind: dict[str, list[Unsent]] = {}
    for message in unsent:
        by_kind.setdefault(message.key[0], []).append(message)
    return by_kind
