"""The declaration of an entity type: the class and the arguments of `@bus.entity`, read and checked
once, when the class is declared.

Source: docs/how-to/define-entities.md; S2.7, S2.8, S2.27, S2.57; B.80, B.85.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

from shardbus import handlers
from shardbus.config.options import closest, unknown
from shardbus.config.settings import ShardingSettings
from shardbus.entities.entity_options import ARGUMENTS, DEFAULTS, EntityOptions, Supervision
from shardbus.entities.entity_type import (
    Directive,
    EntityType,
    EntityTypes,
    Invoker,
    addressed,
    as_method,
    awaited,
    in_thread,
    is_coroutine_function,
    may_wait,
)
from shardbus.entities.merged_state import MergedState, StateOfKind, StateWithMerge
from shardbus.entities.names_used import uses_name
from shardbus.entities.passivation_settings import Passivation
from shardbus.entities.projected_events import NoState
from shardbus.entities.type_settings import TABLE_SETTINGS, check_remembering
from shardbus.entities.unfinished_work import returns_values
from shardbus.entity import Entity, Handler, behaviours_of, current_behaviour
from shardbus.errors import ConfigError
from shardbus.event_sourced import events_of
from shardbus.ids import check_id
from shardbus.projection import Projection, check_projection, projected_events, source_of
from shardbus.replication.kinds import KINDS
from shardbus.replication.versions import KIND_NAMES
from shardbus.routing.instance_policies import NEAREST, choice_of
from shardbus.routing.paths import ancestors, placed_within
from shardbus.routing.refs import NO_ARGUMENTS, START
from shardbus.routing.region import layout_of, shard_function
from shardbus.sharding.allocation.strategies import AllocationStrategy
from shardbus.sharding.handoff_modes import HandoffMode, check_mode
from shardbus.sharding.instances import Instances, instances_of, layout_with
from shardbus.wire.generic_bases import bindings_in, bound, variables_of
from shardbus.wire.schema import (
    IMPORTED,
    ONE_ARGUMENT,
    Interface,
    check_type,
    decoder,
    encode_plain_answer,
    message_decoders,
    message_readers,
    method,
)
from shardbus.wire.stored_events import EventCodec
from shardbus.wire.stored_state import VERSION_MAX, StateCodec

RECEIVE = "def receive(self, message)"


def check_class(cls: object) -> None:
    """Check that `@bus.entity` stands over a class of entities.

    Raises:
        ConfigError: it does not.
    """
    if not isinstance(cls, type):
        name = getattr(cls, "__name__", repr(cls))
        raise ConfigError(
            f"@bus.entity stands over {name:.60}, which is no class",
            hint="write it over class Name(Entity)",
        )
    if not issubclass(cls, Entity):
        raise ConfigError(
            f"{cls.__name__} must be a subclass of shardbus.Entity",
            hint=f"write class {cls.__name__}(Entity)",
        )
    if _is_frozen(cls):
        raise ConfigError(
            f"{cls.__name__} is frozen: an entity has its context and its state set",
            hint="declare the class of its state frozen instead",
        )


def _is_frozen(cls: type) -> bool:
    """True for a frozen dataclass or attrs class, whose objects refuse every attribute."""
    parameters = vars(cls).get("__dataclass_params__")
    return getattr(parameters, "frozen", False) or cls.__setattr__.__name__ == "_frozen_setattrs"


def entity_type_of(
    cls: type,
    name: str,
    options: EntityOptions,
    messages: Iterable[type],
    types: EntityTypes,
    of: object = None,
) -> EntityType:
    """Return the entity type of a class. `messages` and `types` are the application's. `of` is the
    type whose events a projection handles.

    Raises:
        ConfigError: an invalid declaration, with its place.
    """
    options = cast("EntityOptions", {**getattr(cls, DEFAULTS, {}), **options})
    source = projects(cls, name, options, of, types)
    if source is not None:
        options["within"] = source.cls
    declared = declared_settings(name, options)
    settings = ShardingSettings().for_type(name, declared)
    entity_id_of, shard_of = options.get("extract_entity_id"), options.get("extract_shard_id")
    check_extractors(name, entity_id_of, shard_of)
    parent = parent_of(name, options, types, declared)
    interface = interface_of(cls, name, settings.shards, shard_of)
    interface.extract_entity_id = entity_id_of
    instances, router = options.get("instances", 1), options.get("router")
    declare_instances(cls, interface, instances, router, settings)
    if parent is not None:
        interface = placed_within(interface, parent)
    outermost = interface if parent is None else ancestors(interface)[-1]
    mode = settings.handoff if parent is None else handoff_of(types[outermost.name])
    carries = options.get("carry", False)
    check_carrying(cls, name, carries, mode, settings)
    invokers = invokers_of(
        cls, interface, [*classes_of(name, options.get("messages", ())), *messages]
    )
    shape = checked_shape(cls, name, settings, options.get("state_version", 1), interface.instances)
    projection = None
    if source is not None:
        projection = projected_events(cls, name, source)
        shape["states"] = shape["states"] or StateCodec(name, NoState, decoder(NoState), 1)
    if invokers.keys() == {START} and not shape["starts"] and projection is None:
        raise handlers.without_handler(cls)
    durable = options.get("durable_mailbox", False)
    events = None
    if projection is None:
        events = checked_events(cls, name, shape["states"], carries, settings, shape["merged"])
    check_durable_mailbox(name, durable, interface, events)
    return EntityType(
        cls=cls,
        interface=interface,
        invokers=invokers,
        declared=declared,
        **shape,
        supervision=supervision_of(options.get("supervision")),
        events=events,
        strategy=strategy_of(cls, options.get("allocation")),
        behaviours=all_behaviours(cls),
        stop_message=stop_message_of(name, invokers, options.get("stop_message")),
        carries=carries,
        reminds=sets_reminders(cls, name, options.get("reminders")),
        durable_mailbox=durable,
        projection=projection,
    )


def check_durable_mailbox(
    kind: str, durable: object, interface: Interface, events: EventCodec | None
) -> None:
    """Check that messages to the entities of a type can be stored before they are handled.

    Raises:
        ConfigError: the value is no bool, or the type keeps no record of deliveries that holds.
    """
    if not isinstance(durable, bool):
        raise ConfigError(
            f"{kind!r}: durable_mailbox is {durable!r:.60}, which is not true or false"
        )
    if not durable:
        return
    if interface.instances is not None:
        text = f"{kind!r}: durable_mailbox with instances: an entity has one record of its messages"
        raise ConfigError(text, hint="declare instances=1")
    if events is not None:
        raise ConfigError(
            f"{kind!r}: durable_mailbox is not for event-sourced classes: a message could append"
            " its events twice",
            hint="declare a class with a plain state",
        )


def projects(
    cls: type, name: str, options: EntityOptions, of: object, types: EntityTypes
) -> EntityType | None:
    """Return the entity type whose events a class handles, None if it is no projection.

    Raises:
        ConfigError: the class does not fit its decorator, or an option does not fit a projection.
    """
    if of is None:
        if issubclass(cls, Projection):
            raise ConfigError(
                f"{cls.__name__} is a projection",
                hint="write @bus.projection(of=..., name=...) over it",
            )
        return None
    check_projection(cls, name, options)
    return source_of(name, of, types)


def sets_reminders(cls: type, kind: str, declared: object) -> bool:
    """Return whether entities of a type may set reminders: as declared, else if a method of the
    class names `remind`.

    Raises:
        ConfigError: the declared value is no bool.
    """
    if declared is not None and not isinstance(declared, bool):
        raise ConfigError(f"{kind!r}: reminders is {declared!r:.60}, which is not true or false")
    return uses_name(cls, "remind") if declared is None else declared


def checked_events(
    cls: type,
    kind: str,
    states: StateCodec | None,
    carries: object,
    settings: ShardingSettings,
    merged: MergedState | None = None,
) -> EventCodec | None:
    """Return the codec of the events of a class, None if it is not event-sourced.

    Raises:
        ConfigError: an invalid fold, or an option that would lose events.
    """
    events = events_of(cls, kind)
    if events is None:
        return None
    if merged is not None:
        raise ConfigError(
            f"{kind!r}: an event-sourced class cannot have instances: an entity has one journal",
            hint="declare no instances",
        )
    if states is None:
        raise ConfigError(
            f"{kind!r}: an event-sourced class declares the state that its events make",
            hint="write `state: SomeClass` in the class; a default for each field of SomeClass",
        )
    if carries:
        raise ConfigError(f"{kind!r}: carry is not for event-sourced classes: they replay")
    if settings.state_ttl:
        raise ConfigError(f"{kind!r}: state_ttl would remove snapshots whose events are trimmed")
    events.state_class = type(states.cls())
    return events


def handoff_of(kind: EntityType) -> str:
    """Return the mode of a hand-off that a type declares."""
    return ShardingSettings().for_type(kind.name, kind.declared).handoff


def check_carrying(
    cls: type, kind: str, carry: object, mode: str, settings: ShardingSettings
) -> None:
    """Check that a type may carry the memory of its entities.

    Raises:
        ConfigError: its shards move in another mode than `ordered`, it has nothing to carry, or
            one of the two methods cannot be called.
    """
    if carry is False:
        return
    if carry is not True:
        raise ConfigError(f"{kind!r}: carry is {carry!r}, which is not true or false")
    if mode != "ordered":
        raise ConfigError(
            f"{kind!r}: carry needs handoff ordered, not {mode}: only then does the old home hand"
            " its entities to the new one after they have stopped",
            hint='declare handoff="ordered"',
        )
    if settings.remember:
        raise ConfigError(
            f"{kind!r}: carry with remember is not supported: a remembered entity starts by the"
            " list in the store",
            hint="declare one of the two",
        )
    hooks = [getattr(cls, name) is not getattr(Entity, name) for name in ("dehydrate", "rehydrate")]
    if hooks[0] is not hooks[1] or not (hooks[0] or "state" in _annotations(cls)):
        raise ConfigError(
            f"{kind!r}: carry needs a state, or both dehydrate and rehydrate",
            hint="def dehydrate(self) -> bytes, and def rehydrate(self, data: bytes) -> None",
        )
    handlers.check_sync(cls, "dehydrate", "def dehydrate(self) -> bytes")
    handlers.check_sync(cls, "rehydrate", "def rehydrate(self, data: bytes) -> None", b"")


def declared_settings(name: str, options: EntityOptions) -> dict[str, object]:
    """Return the settings of a declaration, with the names of a strategy and of a hand-off, and the
    settings of its passivation.

    Raises:
        ConfigError: there is no such argument, or two arguments set the same.
    """
    for key in options:
        if key not in EntityOptions.__annotations__:
            nearest = closest(key, (*EntityOptions.__annotations__, "name"))
            raise unknown("argument", key, nearest, f"@bus.entity of {name!r}")
    settings = {key: value for key, value in options.items() if key not in ARGUMENTS}
    if not isinstance(settings.get("allocation", ""), str):
        del settings["allocation"]
    if isinstance(mode := settings.get("handoff"), HandoffMode):
        settings["handoff"] = mode.text
    passivation = options.get("passivation")
    if passivation is None:
        return settings
    if not isinstance(passivation, Passivation):
        raise ConfigError(f"{name!r}: passivation must be a Passivation, as Passivation.lru(1000)")
    chosen = passivation.settings()
    for key in chosen:
        if key in settings:
            raise ConfigError(f"{name!r}: passivation sets {key} already: set it once")
    return {**settings, **chosen}


def stop_message_of(
    name: str, invokers: Mapping[str, Invoker], message: object
) -> tuple[Invoker, bytes] | None:
    """Return the handler of the stop message, and the message as a payload."""
    if message is None:
        return None
    try:
        return addressed(invokers, message)
    except ConfigError as e:
        raise ConfigError(f"{name!r}: stop_message: {e.message}", hint=e.hint) from None


def interface_of(
    cls: type, name: str, shards: int, shard_of: Callable[[str], str] | None
) -> Interface:
    """Return the interface of a type: its handlers, its messages, and the shards of its ids."""
    check_id("an entity type", name)
    methods = {}
    for attribute, value in handlers.handlers_of(cls).items():
        handlers.check_handler(cls, attribute, value)
        with _of_class(cls):
            owner = handlers.owner_of(cls, attribute)
            function = handlers.described(value.function)
            methods[attribute] = method(attribute, function, owner, bindings_in(cls, owner))
    layout = f"crc32/{shards}"
    if shard_of is not None:
        checked = shard_function(name, shard_of)
        layout, shard_of = layout_of(checked, shard_of, shards), checked
    receive = receive_of(cls)
    with _of_class(cls):
        messages = message_decoders(receive and handlers.described(receive), ())
    no_handlers = handlers.no_handlers_of(cls)
    return Interface(name, shards, layout, methods, messages, shard_of, no_handlers=no_handlers)


def parent_of(
    name: str, options: EntityOptions, types: EntityTypes, declared: Mapping[str, object]
) -> Interface | None:
    """Return the interface of the type that a type lives within; None if it lives by itself.

    Raises:
        ConfigError: it is no type of this application, or the declaration places shards itself.
    """
    within = options.get("within")
    if within is None:
        return None
    parent = getattr(within, "__shardbus_interface__", None)
    if (
        not isinstance(parent, Interface)
        or parent.name not in types
        or types[parent.name].interface is not parent
    ):
        shown = getattr(within, "__name__", repr(within))
        raise ConfigError(
            f"{name!r}: within is {shown}, which is no entity type of this application",
            hint="give a class that is decorated with @bus.entity above",
        )
    placed = {key: options.get(key) for key in ("allocation", "extract_shard_id")}
    for key, value in {**placed, **declared}.items():
        if value is not None and (key in TABLE_SETTINGS or key in placed):
            raise ConfigError(
                f"{name!r} lives within {parent.name!r}: it cannot set {key}",
                hint=f"its shards are those of {parent.name}: set it there",
            )
    return parent


def declare_instances(
    cls: type, interface: Interface, option: object, router: str | None, settings: ShardingSettings
) -> None:
    """Add the instances and the router of a declaration to the interface of its type.

    Raises:
        ConfigError: they are not valid, or do not fit the class.
    """
    kind = interface.name
    instances = instances_of(kind, option)
    if instances is None:
        if router is not None:
            raise ConfigError(
                f"{kind!r}: router needs instances", hint="declare instances=3, or no router"
            )
        return
    try:
        chosen = choice_of(NEAREST if router is None else router)
    except ConfigError as e:
        raise ConfigError(f"{kind!r}: {e.message}", hint=e.hint) from None
    check_remembering(kind, settings, instances)
    interface.instances, interface.router = instances, chosen.policy
    interface.layout = layout_with(interface.layout, instances)


def check_extractors(kind: str, entity_id: object, shard_id: object) -> None:
    """Check the functions that find an entity and a shard for a message or an id.

    Raises:
        ConfigError: one cannot be called with one argument.
    """
    _check_extractor(kind, "extract_entity_id", entity_id)
    _check_extractor(kind, "extract_shard_id", shard_id)


def _check_extractor(kind: str, name: str, function: object) -> None:
    if function is None:
        return
    if not callable(function):
        raise ConfigError(f"{kind!r}: {name} is {function!r}, which cannot be called")
    check_not_async(f"{kind!r}: {name}", function)
    try:
        inspect.signature(function).bind(None)
    except TypeError as e:
        raise ConfigError(f"{kind!r}: {name} is called with one argument: {e}") from None
    except ValueError:
        return  # written in C: its arguments are unknown


def check_not_async(what: str, function: Callable[..., Any]) -> None:
    """Check that a function of a declaration returns its result when it is called.

    Raises:
        ConfigError: it is async.
    """
    if may_wait(function):
        raise ConfigError(f"{what} is async: it would not be awaited", hint="write a plain def")


def classes_of(kind: str, classes: Iterable[object]) -> list[type]:
    """Return the declared message classes of `receive`.

    Raises:
        ConfigError: one of them is no class.
    """
    taken = []
    for cls in classes:
        if not isinstance(cls, type):
            raise ConfigError(f"{kind!r}: messages has {cls!r}, which is no class")
        taken.append(cls)
    return taken


def invokers_of(cls: type, interface: Interface, classes: list[type]) -> dict[str, Invoker]:
    """Return the invoker of every handler and message class, by name."""
    invokers: dict[str, Invoker] = {}
    for name, value in handlers.handlers_of(cls).items():
        function, waits = _placed(cls, name, value)
        declared = interface.methods[name]
        decoders = declared.decoders
        single = decoders.get(ONE_ARGUMENT) if len(decoders) == 1 else None
        invokers[name] = Invoker(
            name,
            function,
            waits,
            decoders,
            None,
            single,
            declared.read_all,
            returns_values=returns_values(function),
            encode=declared.encode_result,
        )
    invokers[START] = Invoker(START, lambda entity: None, False, {NO_ARGUMENTS[0]: lambda _: ()})
    receive, behaviours = receive_of(cls), behaviours_of(cls)
    if receive is not None:
        shown, takers = handlers.described(receive), list(map(handlers.described, behaviours))
        with _of_class(cls):
            interface.messages = message_decoders(shown, classes, takers)
            readers = message_readers(shown, classes, takers)
        if behaviours:
            receive = current_behaviour(receive, behaviours)
        function, waits = awaited(receive)
        values = returns_values(function)
        for name, decode in interface.messages.items():
            invokers[name] = Invoker(
                name,
                function,
                waits,
                {},
                decode,
                read_all=readers.get(name),
                returns_values=values,
                encode=encode_plain_answer,
            )
    elif behaviours:
        raise ConfigError(
            f"{cls.__name__} has behaviours and no receive",
            hint=f"name the one it begins with, as in receive = {behaviours[0].__name__}",
        )
    return invokers


@contextmanager
def _of_class(cls: type) -> Iterator[None]:
    """Let an error of a method's types name the class."""
    try:
        yield
    except ConfigError as e:
        raise ConfigError(f"{cls.__name__}: {e.message}", hint=e.hint) from None
    except (AttributeError, NameError, SyntaxError, TypeError) as e:
        text = f"{cls.__name__}: an annotation cannot be read: {type(e).__name__}: {e}"
        raise ConfigError(text, hint=IMPORTED) from None


def _placed(cls: type, name: str, value: Handler[Any, Any]) -> tuple[Callable[..., Any], bool]:
    """Return the handler's function, to be called on the loop, and whether it is a coroutine
    function. A blocking one runs in a thread."""
    thread: object = value.thread
    function = as_method(value.function)
    if isinstance(thread, bool) and not thread:
        return awaited(function)
    where = f"handler {name} of {cls.__name__}"
    if thread is not True and not isinstance(thread, ThreadPoolExecutor):
        raise ConfigError(
            f"{where}: thread is {thread!r}, neither true nor a ThreadPoolExecutor",
            hint="write @handler(thread=True)",
        )
    if is_coroutine_function(value.function):
        raise ConfigError(
            f"{where} is async: it cannot run in a thread",
            hint=f"write def {name}, or @handler without thread",
        )
    return in_thread(function, None if thread is True else thread), True


def all_behaviours(cls: type) -> frozenset[Callable[..., Any]]:
    """Return the behaviours of a class, `receive` included; empty without `@behaviour`."""
    behaviours = behaviours_of(cls)
    return frozenset([cls.receive, *behaviours]) if behaviours else frozenset()  # type: ignore[attr-defined]


def receive_of(cls: type) -> Callable[..., Any] | None:
    """Return the `receive` of a class; None if it has none.

    Raises:
        ConfigError: it, or a behaviour, cannot be called with an entity and a message.
    """
    static = inspect.getattr_static(cls, "receive", None)
    if static is not None:
        handlers.check_method(f"{cls.__name__}.receive", RECEIVE, static, (None,))
    for fn in behaviours_of(cls):
        name = getattr(fn, "__name__", "")
        handlers.check_method(f"{cls.__name__}.{name}", f"def {name}(self, message)", fn, (None,))
    receive: Callable[..., Any] | None = getattr(cls, "receive", None)
    return receive


def checked_shape(
    cls: type,
    kind: str,
    settings: ShardingSettings,
    version: object = 1,
    instances: Instances | None = None,
) -> dict[str, Any]:
    """Return which hooks the class has, and its state.

    Raises:
        ConfigError: one of them is invalid, or does not fit the type's settings.
    """
    shape = shape_of(cls, kind, version, instances)
    state = shape["states"] is not None
    if shape["merged"] is not None and settings.state_ttl:
        raise ConfigError(
            f"{kind!r}: state_ttl is not for states that instances share",
            hint="remove them with self.clear()",
        )
    check_mode(kind, settings.handoff, state=state, remember=settings.remember)
    return shape


def shape_of(
    cls: type, kind: str, version: object, instances: Instances | None = None
) -> dict[str, Any]:
    """Return which hooks the class has, and its state: `states` of its own, or one that is `merged`
    of those of its instances."""
    handlers.check_hooks(cls)
    _check_item(cls)
    state_class = _state_class(cls)
    letter = next((letter for letter, each in KINDS.items() if each is state_class), None)
    if letter is None:
        states = _states(cls, kind, version, state_class)
        merged = merged_state(cls, kind, states, instances)
        states = states if merged is None else None
    else:
        states, merged = None, state_of_kind(kind, letter, version, instances)
    return {
        "starts": getattr(cls, "on_start", None) is not Entity.on_start,
        "stops": getattr(cls, "on_stop", None) is not Entity.on_stop,
        "states": states,
        "merged": merged,
    }


def merged_state(
    cls: type, kind: str, states: StateCodec | None, instances: Instances | None
) -> MergedState | None:
    """Return the state that the instances of a type share by the function `merge` of its class;
    None if they share none.

    Raises:
        ConfigError: there is no such function, or it cannot be called with two states.
    """
    merge = getattr(cls, "merge", None)
    if states is None or instances is None or (instances.most_wanted == 1 and not callable(merge)):
        return None
    if not callable(merge):
        raise ConfigError(
            f"{kind!r}: state with instances: each instance would overwrite the others",
            hint="write a static merge(a, b), or `state: Counter`, or another kind of"
            " shardbus.data; or declare instances=1, or no state",
        )
    check_not_async(f"{kind!r}: merge", merge)
    try:
        inspect.signature(merge).bind(None, None)
    except TypeError as e:
        raise ConfigError(
            f"{kind!r}: merge is called with two states: {e}",
            hint="write @staticmethod def merge(a, b)",
        ) from None
    except ValueError:
        pass  # written in C: its arguments are unknown
    return StateWithMerge(states, merge)


def state_of_kind(
    kind: str, letter: str, version: object, instances: Instances | None
) -> MergedState:
    """Return the state of a type whose state is of a kind of replicated values.

    Raises:
        ConfigError: the type has no instances, or declares a version.
    """
    name = f"state is a replicated {KIND_NAMES[letter]}"
    if instances is None:
        raise ConfigError(
            f"{kind!r}: {name}, and the type has no instances",
            hint="declare instances=3, or use bus.data",
        )
    if version != 1:
        raise ConfigError(f"{kind!r}: {name}, which has no state_version")
    return StateOfKind(kind, letter)


def _states(cls: type, kind: str, version: object, state: Any) -> StateCodec | None:
    if type(version) is not int or not 1 <= version <= VERSION_MAX:
        raise ConfigError(f"{kind!r}: state_version is {version!r}, not 1 to {VERSION_MAX}")
    if state is None:
        if version != 1:
            raise ConfigError(f"{kind!r}: state_version without a state", hint="declare state: ...")
        return None
    if isinstance(state, typing.TypeVar | typing.NewType):
        raise ConfigError(
            f"{cls.__name__}.state: {state} is no class", hint="declare the class in each entity"
        )
    check_type(f"{cls.__name__}.state", state)
    try:
        state()
    except TypeError as e:
        raise ConfigError(f"{cls.__name__}.state: every field needs a default: {e}") from None
    return StateCodec(kind, state, decoder(state), version)


def _state_class(cls: type) -> Any:
    """Return the annotation of `state`; None if there is none. The class may have others, which
    only type checkers can read."""
    owner = next((base for base in cls.__mro__ if "state" in handlers.own_annotations(base)), None)
    if owner is None:
        return None
    annotation = _resolved(cls, owner, handlers.own_annotations(owner)["state"])
    with _of_class(cls):
        return bound(annotation, bindings_in(cls, owner))


def _resolved(cls: type, owner: type, annotation: Any, *, extras: bool = False) -> Any:
    """Return an annotation in the body of `owner` with the classes that its texts name, and with
    the metadata of `Annotated` if `extras`. Raises ConfigError about `cls`: a name is not known
    there."""
    names = {"__annotations__": {"it": annotation}, "__module__": owner.__module__}
    alone = type(owner.__name__, (), names)
    namespace = {**variables_of(owner), **vars(owner)}
    with _of_class(cls):
        return typing.get_type_hints(alone, None, namespace, include_extras=extras)["it"]


def _check_item(cls: Any) -> None:
    """Resolve and check the class of the values of a queue of work: `WorkQueue["Mail"]`.

    Raises:
        ConfigError: it does not travel, or it names a class that is not known.
    """
    owner = next((base for base in cls.__mro__ if "__shardbus_item__" in vars(base)), None)
    if owner is not None:
        item = _resolved(cls, owner, owner.__shardbus_item__, extras=True)
        check_type(f"an item of {cls.__name__}", item)
        cls.__shardbus_item__ = item


def strategy_of(cls: type, strategy: AllocationStrategy | str | None) -> AllocationStrategy | None:
    """Return the given allocation strategy if it is an object; None if it is a name."""
    if strategy is None or isinstance(strategy, str):
        return None
    for name in ("allocate", "rebalance"):
        if isinstance(strategy, type) or not callable(getattr(strategy, name, None)):
            raise ConfigError(
                f"{cls.__name__}: allocation is {strategy!r}, which cannot {name}"[:300],
                hint="give an object with both methods, or a strategy's name",
            )
    return strategy


def _annotations(cls: type) -> set[str]:
    return {name for base in cls.__mro__ for name in handlers.own_annotations(base)}


def supervision_of(policy: Supervision | None) -> Callable[[Exception], Directive]:
    """Return the supervision as a function of the error."""
    if policy is None:
        return lambda error: Directive.RESTART
    if callable(policy):
        check_not_async("supervision", policy)
        return policy
    if not isinstance(policy, Mapping):
        raise ConfigError(f"supervision: {policy!r} is no mapping and no function")
    wrong: list[object] = [cls for cls in policy if Exception not in getattr(cls, "__mro__", ())]
    if wrong:
        raise ConfigError(f"supervision: {wrong[0]!r} is no class of exceptions")
    try:
        table = {cls: Directive(what) for cls, what in policy.items()}
    except ValueError as e:
        raise ConfigError(f"supervision: {e}", hint="use resume, restart or stop") from None

    def decide(error: Exception) -> Directive:
        for cls in type(error).__mro__:
            if cls in table:
                return table[cls]
        return Directive.RESTART

    return decide
