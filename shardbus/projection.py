"""Projections: read sides that handle the events of event-sourced entities.

    @bus.projection(of=Account, name="statements")
    class Statements(Projection):
        state: Statement

        @event
        async def deposited(self, event: Deposited) -> None:
            self.state.lines.append(event.amount)
            self.deliver(self.context.ref(Bank, "all").add, event.amount)

        @handler
        def lines(self) -> list[int]:
            return self.state.lines

A projection is an entity type that lives within the type whose events it handles: it has one part
for each entity, in the same shard, with the id `ada/statements` (`Statements.id_for("ada")`). A
part handles the events of its entity in their order. It may have handlers, timers and references as
any entity. `entities.projecting` has the guarantees and how they are kept.

Source: docs/how-to/event-sourcing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from shardbus.entities.entity_options import EntityOptions
from shardbus.entities.entity_type import EntityType, EntityTypes, awaited
from shardbus.entities.projected_events import ProjectedEvents, part_id, place_of
from shardbus.entity import Entity
from shardbus.errors import ConfigError
from shardbus.event_sourced import MARK, event_class, marked_in
from shardbus.routing.paths import parent_id
from shardbus.wire.schema import Interface
from shardbus.wire.stored_state import StateCodec, numbered

REFUSED = (
    "within",
    "instances",
    "router",
    "carry",
    "durable_mailbox",
    "supervision",
    "extract_entity_id",
    "extract_shard_id",
    "allocation",
    "remember",
    "state_ttl",
    "stop_message",
)
"""Options of `@bus.entity` that a projection cannot have."""


class Projection(Entity):
    """The base of projections. A subclass has a method with `@event` for each event that it
    handles, plain or async; events of other classes are passed over. It may declare `state`.

    Args:
        attempts: failures at one event after which a part stops until an operator retries it, or
            its shard moves; 10. 0: it tries again for ever, with pauses of up to 30 s.
    """

    attempts: ClassVar[int] = 10

    @property
    def source_id(self) -> str:
        """The id of the entity whose events this part handles."""
        return parent_id(self.context.entity_id)

    @property
    def event_number(self) -> int:
        """The number of the event that is handled now, from 1; 0 outside of a handler of events. It
        is the same each time that the event is handled, so `source_id` and `event_number` name an
        effect elsewhere that must happen once."""
        return place_of(self).current

    @property
    def handled(self) -> int:
        """The number of the last event whose handling is stored, 0 for none."""
        return place_of(self).handled

    @classmethod
    def id_for(cls, source_id: str) -> str:
        """Return the id of the part that handles the events of this entity.

        Raises:
            ConfigError: the class is not declared yet, or the id would be too long.
        """
        interface = getattr(cls, "__shardbus_interface__", None)
        if not isinstance(interface, Interface):
            raise ConfigError(f"{cls.__name__} is not declared", hint="write @bus.projection(...)")
        return part_id(source_id, interface.name)

    def save(self) -> Coroutine[Any, Any, None]:
        """Store the state, for a handler of messages that changes it. A handler of events does not
        save: the state is stored with the number of its event after it. Raises as `Entity.save`.

        Raises:
            ConfigError: an event is being handled.
        """
        place = place_of(self)
        if place.current:
            raise ConfigError(
                f"{type(self).__name__} calls save while it handles an event",
                hint="change self.state; it is stored with the number of the event",
            )
        codec: StateCodec = self.__shardbus_states__  # type: ignore[attr-defined]
        data = numbered(place.handled, codec.write(self.state))  # type: ignore[attr-defined]
        return self.context._save(data)

    def clear(self) -> Coroutine[Any, Any, None]:
        """Refuse: a part without a record would handle all events again.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{type(self).__name__} is a projection, which is rewound instead",
            hint="`shardbus projection rewind`",
        )


def check_projection(cls: type, name: str, options: EntityOptions) -> None:
    """Check that `@bus.projection` stands over a projection, and nothing else does.

    Raises:
        ConfigError: it does not, or an option is none of a projection.
    """
    if not issubclass(cls, Projection):
        raise ConfigError(
            f"{cls.__name__} must be a subclass of shardbus.Projection",
            hint=f"write class {cls.__name__}(Projection)",
        )
    for key in REFUSED:
        if options.get(key) is not None:
            raise ConfigError(f"{name!r} is a projection, which has no {key}")
    if type(cls.attempts) is not int or cls.attempts < 0:
        raise ConfigError(f"{cls.__name__}.attempts is {cls.attempts!r}, which is no number from 0")


def projected_events(cls: type, name: str, source: EntityType) -> ProjectedEvents:
    """Return the events that a projection of this type handles.

    Raises:
        ConfigError: the type has no events, or a handler of events is invalid.
    """
    if source.events is None:
        raise ConfigError(
            f"{name!r}: {source.name!r} has no events",
            hint="give the class of an event-sourced type",
        )
    codec = source.events
    handlers: dict[type, tuple[Callable[..., Any], bool]] = {}
    for attribute, function in marked_in(cls).items():
        where = f"{cls.__name__}.{attribute}"
        if getattr(function, MARK) != ("", 1):
            raise ConfigError(f"{where}: name and version are those of {source.cls.__name__}'s")
        taken = event_class(where, function)
        if taken in handlers:
            raise ConfigError(f"{where}: there are two handlers of {taken.__name__}")
        if not codec.has(taken):
            raise ConfigError(f"{where}: {source.cls.__name__} has no fold of {taken.__name__}")
        handlers[taken] = awaited(function)
    if not handlers:
        raise ConfigError(
            f"{cls.__name__} handles no event",
            hint="write a method with @event for each event that it handles",
        )
    attempts: int = getattr(cls, "attempts", 0)
    return ProjectedEvents(source.name, codec, handlers, attempts)


def source_of(name: str, of: object, types: EntityTypes) -> EntityType:
    """Return the entity type whose events a projection handles.

    Raises:
        ConfigError: it is no type of this application.
    """
    interface = getattr(of, "__shardbus_interface__", None)
    source = types.get(interface.name) if isinstance(interface, Interface) else None
    if source is None or source.interface is not interface:
        shown = getattr(of, "__name__", repr(of))
        raise ConfigError(
            f"{name!r}: of is {shown:.100}, which is no entity type of this application",
            hint="give a class that is decorated with @bus.entity above",
        )
    return source
