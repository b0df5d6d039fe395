"""`ShardBus`: the application. It collects entity classes; a node runs them, and a client sends to
them.

Source: docs/how-to/define-entities.md; S2.7, S2.8, S2.27, S2.57.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from msgspec.structs import replace

from shardbus.admin.shard_control import ShardControl
from shardbus.client.work_queue import ClientQueue, HasValues
from shardbus.cluster import Cluster, RunningNode
from shardbus.config.loading import for_types, from_environment, load, nested_at
from shardbus.config.options import closest, read, unknown
from shardbus.config.settings import Settings, ShardingSettings
from shardbus.declaration import check_class, entity_type_of
from shardbus.entities.entity_options import EntityOptions
from shardbus.entities.entity_type import EntityType
from shardbus.errors import ConfigError, LocalProtocolError, NodeLost, Rejection
from shardbus.ids import check_id
from shardbus.node.app_version import VersionSource
from shardbus.node.shutdown_phases import PHASES
from shardbus.node.subscriptions import Callback
from shardbus.placement import ExternalAllocation
from shardbus.routing.refs import ASK_TIMEOUT_MS
from shardbus.routing.region import Region
from shardbus.routing.sent import Sent, awaited
from shardbus.wire import schema
from shardbus.wire.rejections import check_rejection
from shardbus.wire.stored_state import NoStates

if TYPE_CHECKING:
    from shardbus.embedding import EmbeddedNode
    from shardbus.store.replicated_data import ReplicatedData

C = TypeVar("C", bound=type)
E = TypeVar("E")
V = TypeVar("V")
K = TypeVar("K", bound=Callable[[], Any])
M = TypeVar("M", bound=Callable[[Any], Any])


MYPY = False
"""mypy takes it for true."""


class ShardBus:
    """An application: a cluster name and the entity types of that cluster."""

    def __init__(self, name: str) -> None:
        self.name = check_id("a cluster name", name)
        self.types: dict[str, EntityType] = {}
        self._messages: list[type] = []
        self._node: RunningNode | None = None
        self._away = ""
        """Why there is no node now, while an embedded one rejoins its cluster."""
        self._when_up: list[Callback] = []
        self._when_removed: list[Callback] = []
        self._at_shutdown: list[tuple[str, Callback]] = []
        self.version_source: VersionSource | None = None
        """For the node: gives the version of the application."""

    def message(self, cls: C) -> C:
        """Register a dataclass, `msgspec.Struct` or pydantic model as a message of the types
        declared after it, in `receive`. A subclass of `Rejection` is only checked: handlers raise
        it, and it needs no registration.

        Raises:
            ConfigError: it is none of these, or a field of it cannot be encoded.
        """
        if issubclass(cls, Rejection):
            check_rejection(cls)
            return cls
        if not schema.is_message_class(cls):
            raise ConfigError(
                f"{cls.__name__} is not a dataclass, msgspec.Struct or pydantic model"
            )
        schema.check_type(f"message {cls.__name__}", cls)
        self._messages.append(cls)
        return cls

    if MYPY:  # its error for an overloaded function would list every option

        def entity(  # pyright: ignore[reportRedeclaration]
            self, name: str | type | None = None, **options: Unpack[EntityOptions]
        ) -> Callable[[C], C]: ...

    else:

        @overload
        def entity(self, cls: C, /) -> C: ...
        @overload
        def entity(
            self, name: str | None = None, **options: Unpack[EntityOptions]
        ) -> Callable[[C], C]: ...
        def entity(self, name: Any = None, **options: Unpack[EntityOptions]) -> Any:
            """Declare a class as an entity type: by `@bus.entity`, or `@bus.entity(...)` with
            arguments.

            Args:
                name: the type's name on the wire and in the store; the class name in lower case by
                default.
                messages: classes that `receive` takes.
                supervision: exception type to `resume`, `restart` or `stop`, or a function of it.
                allocation: an allocation strategy, or the name of one; least shards by default.
                Section `sharding.types` of the settings wins over either.
                passivation: when entities leave memory; after 120 idle seconds by default.
                stop_message: sent to an entity that must stop, which it does by `context.stop()`. A
                text that names a handler without parameters calls that handler; anything else is
                passed to `receive`.
                extract_entity_id: message to entity id, for `bus.region(name).tell(message)`; or
                to (entity id, message for the entity), which unwraps an envelope; None for a
                message that it does not know [S2.12].
                extract_shard_id: entity id to shard id, instead of crc32; the same in all
                processes.
                instances: how many instances each entity has, on as many nodes; or an
                `Instances`, which computes it. The coordinator's own declaration rules.
                router: how a sender chooses among the instances: nearest (the default),
                round-robin, random, least-busy, hash, all or first. A sender may choose another by
                `ref.to`.
                within: the class of their parents, with which they live and move [S3.4-S3.6].
                durable_mailbox: tells and deliveries are stored before they are handled, and are
                lost by no failure once they are confirmed [S3.77].
                carry: entities take their memory along when their shard moves [S3.80].
                state_version: the version of the class of `state`; see `migrate`.
                options: any sharding setting by its name, besides those above. `handoff` may also
                be a `Handoff`.

            Raises:
                ConfigError: an invalid declaration, with its place.
            """

            def decorate(cls: C) -> C:
                self._declare(cls, name, options)
                return cls

            if not callable(name):
                return decorate
            decorated, name = cast("Any", name), None
            return decorate(decorated)

    def projection(
        self, *, of: type, name: str | None = None, **options: Unpack[EntityOptions]
    ) -> Callable[[C], C]:
        """Declare a class of `Projection` as a read side of an event-sourced type: it handles the
        events of each entity of the type, in their order.

        Args:
            of: the class of the type, which is decorated with `@bus.entity` above.
            name: the name of the projection on the wire and in the store; the class name in lower
            case by default. A projection under a new name begins with the first event.
            options: as for `entity`, without those that place or restart an entity.

        Raises:
            ConfigError: an invalid declaration, with its place.
        """

        def decorate(cls: C) -> C:
            self._declare(cls, name, options, of)
            return cls

        return decorate

    def _declare(
        self, cls: Any, name: str | None, options: EntityOptions, of: object = None
    ) -> None:
        check_class(cls)
        kind = check_id("an entity type", name or cls.__name__.lower())
        if kind.startswith("$"):
            raise ConfigError(f"{kind!r}: names that begin with $ are reserved")
        if kind in self.types:
            raise ConfigError(f"there are two entity types called {kind!r}")
        declared = entity_type_of(cls, kind, options, self._messages, self.types, of)
        self.types[kind] = declared
        cls.__shardbus__, cls.__shardbus_interface__ = self, declared.interface
        cls.__shardbus_states__ = declared.states or declared.merged or NoStates(cls.__name__)

    def migrate(self, kind: str | type, version: int) -> Callable[[M], M]:
        """Declare how the stored state of a type goes from this version to the next: a function
        from the plain value of the one, of dicts, lists, texts, numbers and bytes, to the other's.
        It runs when a state of that version, or of an earlier one, is loaded.

        Raises:
            ConfigError: this application has no such type, the type has no state, or no such
                earlier version, or the version has a migration already.
        """
        entity_type = self._type(kind)
        name, states = entity_type.name, entity_type.codec
        latest = 0 if states is None else states.version
        if states is None:
            raise ConfigError(f"{name!r} has no state")
        if type(version) is not int or not 1 <= version < latest:
            raise ConfigError(
                f"{name!r}: a migration from version {version!r}, and the state has {latest}",
                hint="declare one for each version below state_version",
            )
        if version in states.migrations:
            raise ConfigError(f"{name!r} has two migrations from version {version}")

        def declare(function: M) -> M:
            states.migrations[version] = function
            return function

        return declare

    def upcast(self, kind: str | type, event: str | type, version: int) -> Callable[[M], M]:
        """Declare how stored events of a class go from this version to the next: a function from
        the plain value of the one, of dicts, lists, texts, numbers and bytes, to the other's. It
        runs when an event of that version, or of an earlier one, is replayed. `event` is the class,
        or the name under which its events are stored.

        Raises:
            ConfigError: this application has no such type, the type has no such event or no such
                earlier version, or the version has an upcaster already.
        """
        entity_type = self._type(kind)
        if entity_type.events is None:
            raise ConfigError(f"{entity_type.name!r} is not event-sourced")
        form = entity_type.events.form(event)
        if type(version) is not int or not 1 <= version < form.version:
            raise ConfigError(
                f"{form.name!r}: an upcaster from version {version!r}, and it has {form.version}",
                hint="declare one for each version below that of @event",
            )
        if (form.name, version) in entity_type.events.upcasters:
            raise ConfigError(f"{form.name!r} has two upcasters from version {version}")
        upcasters = entity_type.events.upcasters

        def declare(function: M) -> M:
            upcasters[form.name, version] = function
            return function

        return declare

    # ---- inside a node

    def ref(self, kind: type[E], entity_id: str) -> E:
        """A reference to an entity, inside a node that runs this application.

        Raises:
            LocalProtocolError: no node runs here; use a client.
            NodeLost: the node was downed, and rejoins at this moment.
        """
        return cast("E", self._running().ref(kind, entity_id))

    def queue(self, kind: type[HasValues[V]], entity_id: str) -> ClientQueue[V]:
        """The means to put into a queue of work and to work on its items, inside a node.

        Raises:
            ConfigError: it is no class of queues. LocalProtocolError: no node runs here.
        """
        return ClientQueue(self, kind, entity_id)

    @awaited
    def start_entity(self, kind: str | type, entity_id: str) -> Sent[None]:
        """Start an entity without a message, from inside a node; returns when it runs. An entity of
        a type that remembers is remembered from then on [S4.40]. Raises as an ask."""
        return Sent(cast("Any", self._running().ref(kind, entity_id)).start_entity())

    def set_active_entity_limit(self, kind: str | type, limit: int) -> None:
        """Keep at most `limit` entities of a type in memory on this node; 0 is no limit. It lasts
        for the life of this process.

        Raises:
            ConfigError: the limit is invalid.
            UnknownEntityType: this application has no such type.
            Refused: the type's entities are remembered, so there is no limit on them.
            LocalProtocolError: no node runs here.
        """
        limit = read(
            ShardingSettings, "active_entity_limit", limit, "active_entity_limit", "the call"
        )
        self._running().set_active_entity_limit(kind, limit)

    def region(self, kind: str | type) -> Region:
        """The local region of a type, which finds the entity by the message, with the type's
        `extract_entity_id` [S2.8]. It may be made before the node starts.

        Raises:
            ConfigError: this application has no such type.
        """
        interface = self._type(kind).interface
        return Region(interface, lambda: self._running().regions[interface.name], ASK_TIMEOUT_MS)

    def start_proxy(self, kind: str | type) -> Region:
        """Host no shard of a type in this process, and only send to it [S2.37]. Call it before the
        node starts; a node without the type's role is a proxy anyway.

        Raises:
            ConfigError: this application has no such type, or it lives within another.
            LocalProtocolError: the node runs already.
        """
        entity_type = self._type(kind)
        if entity_type.interface.within is not None:
            raise ConfigError(
                f"{entity_type.name!r} lives within {entity_type.interface.within.name!r}",
                hint=f"start a proxy of {entity_type.interface.within.name}",
            )
        if self._node is not None and not entity_type.proxy:
            raise LocalProtocolError(
                f"the node runs: {entity_type.name!r} cannot become a proxy now"
            )
        self.types[entity_type.name] = replace(entity_type, proxy=True)
        return self.region(entity_type.name)

    async def shutdown_region(self, kind: str | type) -> None:
        """Hand off every shard of a type on this node, and host the type here no more: the node
        stays a member and sends to the type as a proxy, until its process ends. Returns when
        nothing of the type runs here [S2.50].

        Raises:
            UnknownEntityType: there is no such type. NodeLost: membership ended first.
            LocalProtocolError: no node runs here.
        """
        await self._running().shutdown_region(kind)

    def region_state(self, kind: str | type) -> dict[str, list[str]]:
        """Return the type's shards on this node, each with the sorted ids of its entities in
        memory: Akka's `CurrentShardRegionState` [S2.82]. Costs a pass over these entities.

        Raises:
            UnknownEntityType: there is no such type. LocalProtocolError: no node runs here.
        """
        return self._running().region_state(kind)

    def external_allocation(self, name: str) -> ExternalAllocation:
        """The places that are set for shards of a type.

        Raises:
            LocalProtocolError: no node runs here.
        """
        node = self._running()
        return ExternalAllocation(ShardControl(node.regions, node.rpc), name)

    @property
    def cluster(self) -> Cluster:
        """The cluster as the node in this process sees it.

        Raises:
            LocalProtocolError: no node runs here.
        """
        return Cluster(self._running())

    @property
    def data(self) -> ReplicatedData:
        """The replicated values of the cluster, as the node in this process reaches them [S3.81].
        They need the store inside the cluster, `cluster://`.

        Raises:
            LocalProtocolError: no node runs here.
            NodeLost: the node was downed, and rejoins at this moment.
        """
        from shardbus.store.replicated_data import ReplicatedData

        node = self._running()
        return ReplicatedData(node.store, node.settings.data)

    def on_member_up(self, callback: K) -> K:
        """Call a plain or async function without arguments once this node is Up; at once if it is.
        Usable as a decorator."""
        self._when_up.append(callback)
        if self._node is not None:
            self._node.subscriptions.when_up(callback)
        return callback

    def on_member_removed(self, callback: K) -> K:
        """Call a function once this node's membership has ended: it left, was downed, or the
        cluster stopped. Async callbacks have five seconds. Usable as a decorator."""
        self._when_removed.append(callback)
        if self._node is not None:
            self._node.subscriptions.when_removed(callback)
        return callback

    def on_shutdown(self, phase: str) -> Callable[[K], K]:
        """Call the decorated plain or async function without arguments in a phase of this node's
        leaving, concurrently with others of that phase and for at most `shutdown.<phase>` seconds.
        Until `before-cluster-shutdown` has ended the node is a full member and answers. A node
        that is declared down, or gets a second signal, goes through no phase.

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

    def version(self, source: K) -> K:
        """Use the result of the decorated plain or async function without arguments as the version
        of the application, unless `node.version` is set or it returns None. It runs before the node
        joins. If it fails, or takes longer than `node.version_timeout`, the node does not start.

        Raises:
            ConfigError: there is such a function already.
        """
        if self.version_source is not None:
            raise ConfigError("two functions return the version: keep one")
        self.version_source = source
        return source

    @property
    def runs(self) -> bool:
        """True while a node of this application runs in this process, or rejoins its cluster."""
        return self._node is not None or bool(self._away)

    def set_away(self, reason: str) -> None:
        """For an embedded node: it rejoins, for this reason, or (empty) it does not."""
        self._away = reason

    def run(
        self,
        settings: Mapping[str, object] | Settings | None = None,
        *,
        on_stopped: Callable[[str], object] | None = None,
    ) -> EmbeddedNode:
        """Return a node to run in this process's event loop: `async with bus.run(...)`.

        Args:
            settings: settings by their dotted names, as `{"node.port": 7355}`, over those of the
                environment (`SHARDBUS_NODE__PORT`); or all of them.
            on_stopped: called with the reason when the node has ended by itself: an operator let
                it leave, or it was downed and does not rejoin.

        Raises:
            ConfigError: a setting is unknown or invalid, or does not fit the application.
        """
        from shardbus.embedding import EmbeddedNode

        if not isinstance(settings, Settings):
            layers = [("bus.run", nested_at(key, value)) for key, value in (settings or {}).items()]
            settings = load(for_types([*from_environment(os.environ), *layers], self.types))
        return EmbeddedNode(self, settings, on_stopped)

    def attach(self, node: RunningNode | None) -> None:
        """For the node: it runs in this process, or (None) has ended."""
        self._node = node
        if node is not None:
            for callback in self._when_up:
                node.subscriptions.when_up(callback)
            for callback in self._when_removed:
                node.subscriptions.when_removed(callback)
            for phase, callback in self._at_shutdown:
                node.phases.add(phase, callback)

    def _type(self, kind: str | type) -> EntityType:
        interface = getattr(kind, "__shardbus_interface__", None)
        name = interface.name if isinstance(interface, schema.Interface) else kind
        if name not in self.types:
            raise ConfigError(f"there is no entity type {name!r}")
        return self.types[name]

    def _running(self) -> RunningNode:
        if self._node is None:
            if self._away:
                raise NodeLost(self._away)
            raise LocalProtocolError(f"no node of {self.name!r} runs in this process; use a client")
        return self._node
