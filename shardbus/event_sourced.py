"""Entities whose state is a fold of events.

    class Account(EventSourced):
        state: Balance

        @event
        def deposited(self, event: Deposited) -> None:
            self.state.amount += event.amount

        @handler
        async def deposit(self, amount: int) -> int:
            await self.persist(Deposited(amount))
            return self.state.amount

A handler decides, persists events, and answers once they are stored. A fold only changes the state:
it runs after each event was stored, and again for each stored event when the entity starts. So it
must give the same state each time: no clock, no dice, no message.

Events are entries of the entity's journal in the store, numbered from 1, written under the fence of
its activation. Every `snapshot_after` events the state is saved as a snapshot, with the number of
its last event, so that a start replays few.

Source: docs/how-to/event-sourcing.md; S2.74.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

from shardbus.entities.event_log import LOG, EventLog
from shardbus.entity import Entity
from shardbus.errors import ConfigError
from shardbus.wire.schema import check_type
from shardbus.wire.stored_events import EVENT_VERSION_MAX, EventCodec, EventForm

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__shardbus_event__"
"""The attribute that a fold has: its name, empty for the class's, and its version."""


@overload
def event(function: F) -> F: ...
@overload
def event(*, version: int = 1, name: str = "") -> Callable[[F], F]: ...
def event(function: Any = None, *, version: int = 1, name: str = "") -> Any:
    """Mark a method as the fold of one event: its parameter is annotated with the event's class. It
    changes `self.state`, or returns another state.

    Args:
        version: the version of the event's class; see `ShardBus.upcast`.
        name: the name under which the event is stored; by default its class's. Give the former name
        to a class that is renamed.
    """

    def mark(fold: F) -> F:
        setattr(fold, MARK, (name, version))
        return fold

    return mark if function is None else mark(function)


class EventSourced(Entity):
    """The base of entity classes whose state is a fold of events. A subclass declares `state` and a
    fold for each event."""

    def persist(self, *events: object) -> Coroutine[Any, Any, None]:
        """Store events, and fold them into `self.state`. Returns when the store has them: all of
        them, in one step, and the reminders that were set or forgotten before. Persisting nothing
        does nothing.

        Raises:
            ConfigError: an event has no fold. SchemaError: one cannot be stored as it is. Nothing
                was stored.
            StaleFence: the entity has a newer activation elsewhere; this one stops.
            StaleActivation: this activation has ended on its own node. Nothing was stored.
            StoreUnavailable: the events may or may not be stored, and `self.state` is without them.
                Unless the handler catches this, the entity starts again with the stored events; the
                next `persist` folds them first if they are.
        """
        return self._log().persist(self, events)

    def save(self) -> Coroutine[Any, Any, None]:
        """Save a snapshot now, which the store otherwise gets every `snapshot_after` events. Raises
        as `Entity.save` does."""
        return self._log().snapshot(self)

    def clear(self) -> Coroutine[Any, Any, None]:
        """Begin with an empty state, and remove all events. The numbers go on. Reminders end in the
        same write.

        Raises:
            As `persist` does. StoreUnavailable: `self.state` is as it was if the store may not have
                the empty one; the next `persist` loads the stored one first. If it is empty, events
                may be left, which another `clear` removes.
        """
        return self._log().clear(self)

    def deliver(self, call: Any, /, *args: Any, **kwargs: Any) -> None:
        """Refuse: an entity's deliveries are stored with its state, and events are stored without
        it.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{type(self).__name__} is event-sourced, and self.deliver is stored with a state",
            hint="await ref.handler.deliver(...), or tell",
        )

    def _log(self) -> EventLog:
        log: EventLog | None = vars(self).get(LOG)
        if log is None:
            raise ConfigError(
                f"{type(self).__name__} has no journal yet",
                hint="persist in on_start or in a handler, not in __init__",
            )
        return log


def events_of(cls: type, kind: str) -> EventCodec | None:
    """Return the codec of the events of a class, None for a class without events.

    Raises:
        ConfigError: an invalid declaration, with its place.
    """
    folds = marked_in(cls)
    if not issubclass(cls, EventSourced):
        if folds:
            raise ConfigError(
                f"{cls.__name__}.{next(iter(folds))}: @event in a class that is not event-sourced",
                hint=f"write class {cls.__name__}(EventSourced), or (Projection)",
            )
        return None
    if not folds:
        raise ConfigError(
            f"{cls.__name__} has no fold",
            hint="write a method with @event for each event that it persists",
        )
    return EventCodec(kind, [_form(cls, name, fold) for name, fold in folds.items()])


def marked_in(cls: type) -> dict[str, Callable[..., Any]]:
    """Return the methods of a class that are marked by `@event`, by name."""
    nearest: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        nearest.update(vars(base))
    return {name: attr for name, attr in nearest.items() if MARK in getattr(attr, "__dict__", ())}


def event_class(where: str, function: Callable[..., Any]) -> type:
    """Return the class of the event that a method takes.

    Raises:
        ConfigError: the method does not take one event, annotated with its class.
    """
    try:
        hints = typing.get_type_hints(function)
    except NameError as e:
        raise ConfigError(f"{where}: an annotation is not known there: {e}") from None
    hints.pop("return", None)
    taken = list(hints.values())
    if len(taken) != 1 or not isinstance(taken[0], type):
        raise ConfigError(
            f"{where}: it takes one event, annotated with its class",
            hint=f"def {where.rpartition('.')[2]}(self, event: SomeEvent) -> None",
        )
    cls: type = taken[0]
    return cls


def _form(cls: type, name: str, fold: Callable[..., Any]) -> EventForm:
    where = f"{cls.__name__}.{name}"
    stored, version = getattr(fold, MARK)
    if type(version) is not int or not 1 <= version <= EVENT_VERSION_MAX:
        raise ConfigError(f"{where}: the version is {version!r}, not 1 to {EVENT_VERSION_MAX}")
    code = getattr(fold, "__code__", None)
    taken = event_class(where, fold)
    if code is not None and code.co_flags & 0x0280:
        raise ConfigError(
            f"{where}: a fold takes one event, annotated with its class, and is not async",
            hint=f"def {name}(self, event: SomeEvent) -> None",
        )
    check_type(where, taken)
    return EventForm(stored or taken.__name__, taken, version, fold)
