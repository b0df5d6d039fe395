"""Classes to declare, and a function that declares one and returns its type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardbus import Entity, ShardBus, handler
from shardbus.entities.entity_type import EntityType


@dataclass
class Hit:
    page: str
    count: int = 1


@dataclass
class Ledger:
    total: int = 0


@dataclass
class NoDefault:
    total: int


class Opaque:
    pass


def declared(bus: ShardBus, cls: type, *args: Any, **options: Any) -> EntityType:
    bus.entity(*args, **options)(cls)
    return next(iter(bus.types.values()))


class Anything(Entity):
    """The least that a type needs: it takes every message."""

    def receive(self, message: object) -> None: ...


class Counter(Entity):
    @handler
    def add(self, amount: int = 1) -> int:
        return amount


@dataclass
class Letter:
    to: int
    text: str


def by_message(message: object) -> str | tuple[str, object] | None:
    """Both ways to name an entity; anything else is not known."""
    match message:
        case Hit(page=page):
            return page
        case Letter(to=to, text=text):
            return str(to), text
    return None
