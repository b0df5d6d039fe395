"""The events of one entity type as a projection of it handles them: the part of its declaration
that its home reads.

A part of a projection lives within its source: the part of account `ada` in the projection
`balances` is the entity `ada/balances` of the type `balances` (`routing.paths`).

Source: docs/how-to/event-sourcing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from shardbus.errors import ConfigError
from shardbus.routing.paths import child_id
from shardbus.wire.stored_events import EventCodec

PLACE = "__shardbus_place__"
"""The attribute of a part of a projection that has its place in the journal."""


@dataclass(frozen=True, slots=True)
class NoState:
    """The state of a part whose class declares none: it only has the number of its last event."""


class EventPlace(msgspec.Struct):
    """The place of one object of a part in the journal of its source."""

    handled: int
    """The number of the last event that the stored record covers."""
    current: int = 0
    """The number of the event whose handler runs, 0 while none does."""


class ProjectedEvents(msgspec.Struct, frozen=True):
    """The events that a projection handles."""

    source: str
    """The name of the entity type whose events they are."""
    codec: EventCodec
    """The codec of that type, with its upcasters."""
    handlers: Mapping[type, tuple[Callable[..., Any], bool]]
    """By the class of an event: the method, and whether it is a coroutine function. Events of other
    classes are passed over."""
    attempts: int
    """Failures at one event after which a part stops; 0: it never stops."""


def part_id(source_id: str, projection: str) -> str:
    """Return the id of the part of an entity.

    Raises:
        ConfigError: it would be longer than an id may be.
    """
    return child_id(source_id, projection)


def place_of(entity: Any) -> EventPlace:
    """Return the place of a part.

    Raises:
        ConfigError: the object has not been started.
    """
    place: EventPlace | None = vars(entity).get(PLACE)
    if place is None:
        raise ConfigError(
            f"{type(entity).__name__} has no place in a journal yet",
            hint="use it in on_start or in a handler, not in __init__",
        )
    return place
