"""References to entities of types with instances.

`ref.to("all")` returns a reference to the same entity by another router. `reference` makes the
reference that fits a type, so that a type without instances has the plain `Ref`, whose calls know
nothing of instances.

A reference by `nearest` or `hash` keeps the route that it has picked, and asks for another one when
the router's `version` has changed: one comparison per message.

Source: docs/partitions.md.
"""

from __future__ import annotations

import asyncio
from typing import Any

from shardbus.routing.instance_policies import Choice, choice_of
from shardbus.routing.instance_router import InstanceRouter
from shardbus.routing.instance_sender import InstanceSender
from shardbus.routing.refs import (
    UNPACKABLE,
    Addressed,
    Ref,
    ask,
    milliseconds,
    start_entity,
    without_instances,
)
from shardbus.routing.router import Router, ShardRoute
from shardbus.wire.missing_handlers import no_attribute
from shardbus.wire.schema import Interface, Method

AnySender = Router | InstanceSender
"""What sends to a type: the router of one without instances, or a sender by one router."""


def reference(
    sender: AnySender, entity_id: str, timeout_ms: int, interface: Interface | None = None
) -> Ref:
    """Return a reference to an entity, with the handlers of this interface, or those that the
    sender knows. Raises ConfigError if the id is not valid."""
    if isinstance(sender, InstanceSender):
        return InstanceRef(sender, entity_id, timeout_ms, interface)
    return Ref(sender, entity_id, timeout_ms, interface)


def sender_by(sender: AnySender, policy: object, key: object, after: object) -> InstanceSender:
    """Return a sender to the same type by this router.

    Raises:
        ConfigError: the type has no instances, or the router is not valid.
    """
    return by_choice(sender, choice_of(policy, key, after))


def by_choice(sender: AnySender, choice: Choice) -> InstanceSender:
    """Return a sender to the same type by this choice. Raises ConfigError: it has no instances."""
    if not isinstance(sender, InstanceSender):
        raise without_instances(sender.interface.name)
    return sender.towards(choice)


def address_of(sender: AnySender) -> tuple[Any, ...]:
    """Return what two senders of one process have in common that send alike."""
    return (sender.router, sender.choice) if isinstance(sender, InstanceSender) else (sender,)


class Picked:
    """The instance that a reference sends to: its wire id and its route, as of a version of the
    router. With a router that picks for each message, it is never up to date."""

    __slots__ = ("_entity_id", "_router", "_sender", "route", "version", "wire")

    def __init__(self, sender: InstanceSender, entity_id: str) -> None:
        self._sender, self._entity_id = sender, entity_id
        self._router: InstanceRouter = sender.router
        self.wire = ""
        self.version = -1
        self.route: ShardRoute
        self.renew()

    def renew(self) -> None:
        """Pick again."""
        self.wire = wire = self._sender.pick(self._entity_id)
        self.route = self._router.route_of(wire)
        if self._sender.sticky:
            self.version = self._router.version


class InstanceCall(Addressed):
    """One handler of one entity with instances: call it to ask, or use `tell`."""

    __slots__ = (
        "_count",
        "_id",
        "_key",
        "_method",
        "_packed",
        "_picked",
        "_router",
        "_sender",
        "_timeout_ms",
    )

    def __init__(
        self,
        sender: InstanceSender,
        entity_id: str,
        picked: Picked,
        method: Method,
        timeout_ms: int,
    ) -> None:
        self._sender, self._id, self._picked, self._method = sender, entity_id, picked, method
        self._router, self._timeout_ms = sender.router, timeout_ms
        self._key, self._count = sender.key(method.name), method.count
        self._packed = method.pack

    def _address(self) -> tuple[Any, ...]:
        return *address_of(self._sender), self._id, self._method.name

    def __repr__(self) -> str:
        return f"<ref {self._key[0]} {self._id!r} {self._method.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Ask. Returns a future of the handler's answer; by `all`, of a dict of node to reply or
        error. Raises as `Call`."""
        payload = self._method.encode(args, kwargs)
        decode = self._method.decode_result
        return self._sender.ask(self._key, self._id, payload, self._timeout_ms, decode)

    def tell(self, *args: Any, **kwargs: Any) -> Any:
        """Send without an answer. Returns an awaitable that waits while the send buffer is full.
        Raises as `Call.tell`."""
        if kwargs or (len(args) != self._count and len(args) not in self._method.counts):
            payload = self._method.encode(args, kwargs)
        else:
            try:
                packed = self._packed
                payload = packed(args)
            except UNPACKABLE:
                payload = self._method.encode(args, kwargs)
        picked = self._picked
        if picked.version != self._router.version:
            if self._sender.to_all:
                return self._sender.tell(self._key, self._id, payload)
            picked.renew()
        out = picked.route.out
        if out is None:
            return self._sender.tell(self._key, self._id, payload)
        out.tell(self._key, picked.wire, payload)
        return self._router.done if out.writable else out.until_room

    def tell_nowait(self, *args: Any, **kwargs: Any) -> None:
        """Send at once, or raise BufferFull if `tell` would wait."""
        self._sender.tell_nowait(self._key, self._id, self._method.encode(args, kwargs))


class TracedInstanceCall(InstanceCall):
    """The same in a process with tracing, where each message passes the router."""

    __slots__ = ()

    def tell(self, *args: Any, **kwargs: Any) -> Any:
        return self._sender.tell(self._key, self._id, self._method.encode(args, kwargs))


class InstanceRef(Ref):
    """A reference to one entity of a type with instances. Its attributes are the entity's
    handlers."""

    def __init__(
        self,
        sender: InstanceSender,
        entity_id: str,
        timeout_ms: int,
        interface: Interface | None = None,
    ) -> None:
        self._sender, self.entity_id, self._timeout_ms = sender, entity_id, timeout_ms
        self._interface = interface or sender.interface
        self._picked = Picked(sender, entity_id)

    def _address(self) -> tuple[Any, ...]:
        return *address_of(self._sender), self.entity_id

    def start_entity(self) -> asyncio.Future[Any]:
        """Start an instance of the entity without a message, or by `all` each of them."""
        return start_entity(self._sender, self.entity_id, self._timeout_ms)

    def tell(self, message: object) -> Any:
        """Send a message to `receive`."""
        return self._sender.send(self.entity_id, message)

    def ask(self, message: object) -> asyncio.Future[Any]:
        """Ask `receive`."""
        return ask(self._sender, self.entity_id, message, (), self._timeout_ms)

    @property
    def entity_type(self) -> str:
        """Return the type's name."""
        return self._sender.interface.name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        method = self._interface.methods.get(name)
        if method is None:
            raise no_attribute(self._interface, name)
        kind = InstanceCall if self._sender.router.tracing is None else TracedInstanceCall
        call = kind(self._sender, self.entity_id, self._picked, method, self._timeout_ms)
        setattr(self, name, call)
        return call

    def to(self, policy: str, *, key: object = None, after: object = None) -> InstanceRef:
        """Return a reference to the same entity by another router. Raises as `sender_by`."""
        sender = sender_by(self._sender, policy, key, after)
        return InstanceRef(sender, self.entity_id, self._timeout_ms, self._interface)

    def within(self, timeout: float) -> InstanceRef:
        """Return a reference to the same entity with another deadline for asks, in seconds."""
        return InstanceRef(self._sender, self.entity_id, milliseconds(timeout), self._interface)
