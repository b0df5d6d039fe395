"""`ShardBus`: the application object. It collects entity classes; a node runs them, a client calls
them.

Source: docs/how-to.md; S2.7, S2.8, S2.57.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from shardbus.cluster import Cluster, Running
from shardbus.entity import Entity, Handler
from shardbus.errors import ConfigError, LocalProtocolError
from shardbus.ids import check_id
from shardbus.runtime.entity_type import (
    Directive,
    EntityType,
    Invoker,
    in_thread,
    is_coroutine_function,
)
from shardbus.runtime.observers import Callback
from shardbus.runtime.phases import PHASES
from shardbus.settings import ShardingSettings, closest, unknown
from shardbus.transport.refs import NO_ARGUMENTS, RESERVED, START
from shardbus.wire.schema import (
    ONE_ARGUMENT,
    Decode,
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
        self._at_shutdown: list[tuple[str, Callback]] = []

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
        allocation: object | None = None,
        extract_entity_id: Callable[[Any], str] | None = None,
        extract_shard_id: Callable[[str], str] | None = None,
        **declared: object,
    ) -> Callable[[C], C]:
        """Declare a class as an entity type.

        Args:
            name: the type's name on the wire and in the store; the class name in lower case by
            default.
            messages: classes that `receive` takes.
            supervision: exception type to `resume`, `restart` or `stop`, or a function that says.
            allocation: an allocation strategy; least shards by default.
            extract_entity_id: message to entity id, for `bus.region(name).tell(message)`.
            extract_shard_id: entity id to shard id, instead of crc32.
            declared: any sharding setting by its name.

        Raises:
            ConfigError: a declaration that cannot work, with the place of it.
        """

        def decorate(cls: C) -> C:
            kind = name or cls.__name__.lower()
            if kind in self.types:
                raise ConfigError(f"there are two entity types called {kind!r}")
            settings = ShardingSettings().for_type(kind, declared)
            interface = _interface(cls, kind, settings.shards, extract_shard_id)
            invokers = _invokers(cls, interface, [*messages, *self._messages])
            state_class, read_state = _state(cls)
            self.types[kind] = EntityType(
                cls=cls,
                interface=interface,
                invokers=invokers,
                declared=dict(declared),
                starts=getattr(cls, "on_start", None) is not Entity.on_start,
                stops=getattr(cls, "on_stop", None) is not Entity.on_stop,
                state_class=state_class,
                read_state=read_state,
                supervision=_supervision(supervision),
                strategy=allocation,
                extract_entity_id=extract_entity_id,
            )
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

    def region(self, name: str) -> Region:
        """The local region of a type, which takes messages by the type's `extract_entity_id`
        [S2.8]."""
        kind = self.types.get(name)
        if kind is None:
            raise ConfigError(f"there is no entity type {name!r}")
        return Region(self, kind)

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

    def on_shutdown(self, phase: str) -> Callable[[K], K]:
        """Call what is decorated, plain or async and without arguments, in a phase of this node's
        leaving, side by side with others of that phase and for at most `shutdown.<phase>` seconds.
        Until `before-cluster-shutdown` is over the node is a full member and answers. A node that
        is declared down, or told twice to stop, goes through no phase [B.141].

        Raises:
            ConfigError: no such phase.
        """
        if phase not in PHASES:
            raise unknown("phase", phase, closest(phase, PHASES), "bus.on_shutdown")

        def decorate(callback: K) -> K:
            self._at_shutdown.append((phase, callback))
            if self._node is not None:
                self._node.phases.add(phase, callback)
            return callback

        return decorate

    def attach(self, node: Running | None) -> None:
        """For the runtime: a node runs in this process, or does no more."""
        self._node = node
        if node is not None:
            for callback in self._when_up:
                node.observers.when_up(callback)
            for callback in self._when_removed:
                node.observers.when_removed(callback)
            for phase, callback in self._at_shutdown:
                node.phases.add(phase, callback)

    def _running(self) -> Running:
        if self._node is None:
            raise LocalProtocolError(f"no node of {self.name!r} runs in this process; use a client")
        return self._node


class Region:
    """A type's local region: give it a message, it finds the entity."""

    def __init__(self, bus: ShardBus, kind: EntityType) -> None:
        self._bus, self._kind = bus, kind

    def _ref(self, message: object) -> Any:
        extract = self._kind.extract_entity_id
        if extract is None:
            raise ConfigError(f"entity type {self._kind.name!r} has no extract_entity_id")
        return self._bus.ref(self._kind.cls, extract(message))

    def tell(self, message: object) -> Any:
        """Send to the entity that the message names."""
        return self._ref(message).tell(message)

    def ask(self, message: object) -> Any:
        """Ask the entity that the message names."""
        return self._ref(message).ask(message)


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
        layout = f"{shard_of.__module__}.{shard_of.__qualname__}/{shards}"
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
    receive = getattr(cls, "receive", None)
    if receive is not None:
        interface.messages = message_decoders(receive, classes)
        for name, decode in interface.messages.items():
            waits = is_coroutine_function(receive)
            invokers[name] = Invoker(name, receive, waits, {}, decode)
    return invokers


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
