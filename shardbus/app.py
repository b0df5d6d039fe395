"""`ShardBus`: the application object. It collects entity classes; a node runs them, a client calls
them.

Source: docs/how-to.md; S2.7, S2.8, S2.27, S2.57; B.80, B.85.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from shardbus.cluster import Cluster, Running
from shardbus.entity import Entity, Handler, behaviours_of, current_behaviour
from shardbus.errors import ConfigError, LocalProtocolError
from shardbus.ids import check_id
from shardbus.placement import ExternalAllocation
from shardbus.runtime.entity_type import (
    Directive,
    EntityType,
    Invoker,
    addressed,
    in_thread,
    is_coroutine_function,
)
from shardbus.runtime.observers import Callback
from shardbus.runtime.passivation import Passivation
from shardbus.settings import ShardingSettings, read
from shardbus.sharding.allocation import AllocationStrategy
from shardbus.transport.addressing import Region, layout_of, shard_function
from shardbus.transport.refs import ASK_TIMEOUT_MS, NO_ARGUMENTS, RESERVED, START
from shardbus.wire.schema import (
    ONE_ARGUMENT,
    Decode,
    Extractor,
    Interface,
    check_type,
    decoder,
    is_message_class,
    message_decoders,
    method,
)

C = TypeVar("C", bound=type)
E = TypeVar("E")
K = TypeVar("K", bound=Callable[[], Any])
Supervision = Mapping[type[Exception], Directive | str] | Callable[[Exception], Directive]


class ShardBus:
    """An application: a cluster name and the entity types of that cluster."""

    def __init__(self, name: str) -> None:
        self.name = check_id("a cluster name", name)
        self.types: dict[str, EntityType] = {}
        self._messages: list[type] = []
        self._node: Running | None = None
        self._when_up: list[Callback] = []
        self._when_removed: list[Callback] = []

    def message(self, cls: C) -> C:
        """Register a dataclass, `msgspec.Struct` or pydantic model as a message of the types
        declared after it, in `receive`.

        Raises:
            ConfigError: it is none of these, or a field of it cannot travel.
        """
        if not is_message_class(cls):
            raise ConfigError(f"{cls.__name__} is no dataclass, msgspec.Struct or pydantic model")
        check_type(f"message {cls.__name__}", cls)
        self._messages.append(cls)
        return cls

    def entity(
        self,
        name: str | None = None,
        *,
        messages: Iterable[type] = (),
        supervision: Supervision | None = None,
        allocation: AllocationStrategy | str | None = None,
        passivation: Passivation | None = None,
        stop_message: object = None,
        extract_entity_id: Extractor | None = None,
        extract_shard_id: Callable[[str], str] | None = None,
        **own: object,
    ) -> Callable[[C], C]:
        """Declare a class as an entity type.

        Args:
            name: the type's name on the wire and in the store; the class name in lower case by
            default.
            messages: classes that `receive` takes.
            supervision: exception type to `resume`, `restart` or `stop`, or a function that says.
            allocation: an allocation strategy, or the name of one; least shards by default.
            passivation: when entities leave memory; after 120 idle seconds by default.
            stop_message: what an entity gets when the runtime wants it to stop, which it does when
            it calls `context.stop()`. A text that names a handler without parameters is for that,
            everything else for `receive`.
            extract_entity_id: message to entity id, for `bus.region(name).tell(message)`; or to
            (entity id, what the entity receives), which unwraps an envelope; None for a message
            that it does not know [S2.12].
            extract_shard_id: entity id to shard id, instead of crc32. Every node and client needs
            the same function.
            own: any sharding setting by its name.

        Raises:
            ConfigError: a declaration that cannot work, with the place of it.
        """

        def decorate(cls: C) -> C:
            kind = name or cls.__name__.lower()
            if kind.startswith("$"):
                raise ConfigError(f"{kind!r}: names that begin with $ are shardbus's own")
            if kind in self.types:
                raise ConfigError(f"there are two entity types called {kind!r}")
            if isinstance(allocation, str):
                own["allocation"] = allocation
            declared = _declared(kind, own, passivation)
            settings = ShardingSettings().for_type(kind, declared)
            interface = _interface(cls, kind, settings.shards, extract_shard_id)
            invokers = _invokers(cls, interface, [*messages, *self._messages])
            self.types[kind] = EntityType(
                cls=cls,
                interface=interface,
                invokers=invokers,
                declared=declared,
                **_shape(cls),
                supervision=_supervision(supervision),
                strategy=None if isinstance(allocation, str) else _strategy(cls, allocation),
                behaviours=_behaviours(cls),
                stop_message=_stop_message(kind, invokers, stop_message),
            )
            interface.extract_entity_id = extract_entity_id
            cls.__shardbus_interface__ = interface  # type: ignore[attr-defined]
            return cls

        return decorate

    # ---- inside a node

    def ref(self, kind: type[E], entity_id: str) -> E:
        """A reference to an entity, inside a node that runs this application.

        Raises:
            LocalProtocolError: no node runs here; use a client.
        """
        return cast("E", self._running().ref(kind, entity_id))

    async def start_entity(self, kind: str | type, entity_id: str) -> None:
        """Start an entity without a message, from inside a node; returns when it runs. A remembered
        one stays from then on [S4.40]. Raises as an ask."""
        await cast("Any", self._running().ref(kind, entity_id)).start_entity()

    def set_active_entity_limit(self, kind: str | type, limit: int) -> None:
        """Let at most so many entities of a type be in memory on this node from now on; 0 is no
        limit. It lasts for the life of this process [B.85].

        Raises:
            ConfigError: no such limit. UnknownEntityType: no such type. Refused: its entities are
                remembered, so there is no limit on them. LocalProtocolError: no node runs here.
        """
        wanted = read(
            ShardingSettings, "active_entity_limit", limit, "active_entity_limit", "the call"
        )
        self._running().set_active_entity_limit(kind, wanted)

    def region(self, kind: str | type) -> Region:
        """The local region of a type: it finds the entity by the message, with the type's
        `extract_entity_id` [S2.8]. It may be kept from before the node starts.

        Raises:
            ConfigError: there is no such type.
        """
        known = self._type(kind)
        return Region(known.interface, lambda: self._running().kinds[known.name], ASK_TIMEOUT_MS)

    def start_proxy(self, kind: str | type) -> Region:
        """Host nothing of a type in this process, and only send to it [S2.37]. To be called before
        the node starts; a node that lacks the type's role is a proxy without it.

        Raises:
            ConfigError: there is no such type. LocalProtocolError: the node runs already.
        """
        known = self._type(kind)
        if self._node is not None and not known.proxy:
            raise LocalProtocolError(f"the node runs: {known.name!r} cannot become a proxy now")
        self.types[known.name] = replace(known, proxy=True)
        return self.region(known.name)

    def external_allocation(self, name: str) -> ExternalAllocation:
        """Where shards of a type with strategy `external` shall live [B.69].

        Raises:
            LocalProtocolError: no node runs here.
        """
        return ExternalAllocation(self._running().steering, name)

    @property
    def cluster(self) -> Cluster:
        """The cluster as the node in this process sees it [B.20].

        Raises:
            LocalProtocolError: no node runs here.
        """
        return Cluster(self._running())

    def on_member_up(self, callback: K) -> K:
        """Call this, plain or async and without arguments, once this node is Up; at once if it is.
        Usable as a decorator [B.21]."""
        self._when_up.append(callback)
        if self._node is not None:
            self._node.observers.when_up(callback)
        return callback

    def on_member_removed(self, callback: K) -> K:
        """The same once this node's membership is over: it left, was downed, or the cluster
        stopped. Async callbacks have five seconds."""
        self._when_removed.append(callback)
        if self._node is not None:
            self._node.observers.when_removed(callback)
        return callback

    def attach(self, node: Running | None) -> None:
        """For the runtime: a node runs in this process, or does no more."""
        self._node = node
        if node is not None:
            for callback in self._when_up:
                node.observers.when_up(callback)
            for callback in self._when_removed:
                node.observers.when_removed(callback)

    def _type(self, kind: str | type) -> EntityType:
        interface = getattr(kind, "__shardbus_interface__", None)
        name = interface.name if isinstance(interface, Interface) else kind
        if name not in self.types:
            raise ConfigError(f"there is no entity type {name!r}")
        return self.types[name]

    def _running(self) -> Running:
        if self._node is None:
            raise LocalProtocolError(f"no node of {self.name!r} runs in this process; use a client")
        return self._node


def _declared(
    name: str, own: Mapping[str, object], passivation: Passivation | None
) -> dict[str, object]:
    if passivation is not None and not isinstance(passivation, Passivation):
        raise ConfigError(f"{name!r}: passivation must be a Passivation, as Passivation.lru(1000)")
    said = passivation.settings() if passivation is not None else {}
    for key in said:
        if key in own:
            raise ConfigError(f"{name!r}: passivation says {key} already, say it once")
    return {**own, **said}


def _stop_message(
    name: str, invokers: Mapping[str, Invoker], message: object
) -> tuple[Invoker, bytes] | None:
    if message is None:
        return None
    try:
        return addressed(invokers, message)
    except ConfigError as e:
        raise ConfigError(f"{name!r}: stop_message: {e.message}") from None


def _interface(
    cls: type, name: str, shards: int, shard_of: Callable[[str], str] | None
) -> Interface:
    check_id("an entity type", name)
    if not issubclass(cls, Entity):
        raise ConfigError(f"{cls.__name__} must be a subclass of shardbus.Entity")
    methods = {}
    for attribute, value in _handlers(cls).items():
        if attribute in RESERVED or attribute.startswith("_"):
            raise ConfigError(f"{cls.__name__}: a handler cannot be called {attribute!r}")
        methods[attribute] = method(attribute, value.function)
    layout = f"crc32/{shards}"
    if shard_of is not None:
        checked = shard_function(name, shard_of)
        layout, shard_of = layout_of(checked, shard_of, shards), checked
    receive = getattr(cls, "receive", None)
    messages = message_decoders(receive, ())
    return Interface(name, shards, layout, methods, messages, shard_of)


def _handlers(cls: type) -> dict[str, Handler[Any, Any]]:
    found: dict[str, Handler[Any, Any]] = {}
    for base in reversed(cls.__mro__):
        found |= {k: v for k, v in vars(base).items() if isinstance(v, Handler)}
    return found


def _invokers(cls: type, interface: Interface, classes: list[type]) -> dict[str, Invoker]:
    invokers: dict[str, Invoker] = {}
    for name, value in _handlers(cls).items():
        function = in_thread(value.function) if value.thread else value.function
        waits = is_coroutine_function(function)
        decoders = interface.methods[name].decoders
        single = decoders.get(ONE_ARGUMENT) if len(decoders) == 1 else None
        invokers[name] = Invoker(name, function, waits, decoders, single=single)
    invokers[START] = Invoker(START, lambda entity: None, False, {NO_ARGUMENTS[0]: lambda _: ()})
    receive, behaviours = getattr(cls, "receive", None), behaviours_of(cls)
    if receive is not None:
        interface.messages = message_decoders(receive, classes, behaviours)
        if behaviours:
            receive = current_behaviour(receive, behaviours)
        for name, decode in interface.messages.items():
            waits = is_coroutine_function(receive)
            invokers[name] = Invoker(name, receive, waits, {}, decode)
    elif behaviours:
        raise ConfigError(
            f"{cls.__name__} has behaviours and no receive",
            hint=f"say with which it begins, as in receive = {behaviours[0].__name__}",
        )
    return invokers


def _behaviours(cls: type) -> frozenset[Callable[..., Any]]:
    found = behaviours_of(cls)
    return frozenset([cls.receive, *found]) if found else frozenset()  # type: ignore[attr-defined]


def _shape(cls: type) -> dict[str, Any]:
    """What of an entity's life the class brings itself."""
    state_class, read_state = _state(cls)
    return {
        "starts": getattr(cls, "on_start", None) is not Entity.on_start,
        "stops": getattr(cls, "on_stop", None) is not Entity.on_stop,
        "state_class": state_class,
        "read_state": read_state,
    }


def _state(cls: type) -> tuple[type | None, Decode | None]:
    wanted = typing.get_type_hints(cls).get("state") if "state" in _annotations(cls) else None
    if wanted is None:
        return None, None
    check_type(f"{cls.__name__}.state", wanted)
    try:
        wanted()
    except TypeError as e:
        raise ConfigError(f"{cls.__name__}.state: every field needs a default: {e}") from None
    return wanted, decoder(wanted)


def _strategy(cls: type, given: AllocationStrategy | None) -> AllocationStrategy | None:
    if given is not None:
        for name in ("allocate", "rebalance"):
            if isinstance(given, type) or not callable(getattr(given, name, None)):
                raise ConfigError(
                    f"{cls.__name__}: allocation is {given!r}, which cannot {name}"[:300],
                    hint="give an object with both methods, or a strategy's name",
                )
    return given


def _annotations(cls: type) -> set[str]:
    return {name for base in cls.__mro__ for name in getattr(base, "__annotations__", {})}


def _supervision(given: Supervision | None) -> Callable[[Exception], Directive]:
    if given is None:
        return lambda error: Directive.RESTART
    if callable(given):
        return given
    try:
        table = {cls: Directive(what) for cls, what in given.items()}
    except ValueError as e:
        raise ConfigError(f"supervision: {e}", hint="use resume, restart or stop") from None

    def decide(error: Exception) -> Directive:
        for cls in type(error).__mro__:
            if cls in table:
                return table[cls]
        return Directive.RESTART

    return decide
