"""Paths of entities: a type that lives within another.

    @bus.entity(name="order")                  order 7        is  "7"
    @bus.entity(name="item", within=Order)     its item 3     is  "7/3"
    @bus.entity(name="note", within=Item)      a note of it   is  "7/3/first"

The id of such an entity is its parent's id, a slash, and an id of its own without a slash. Its
shard is the shard of its parent, so a parent and all that lives within it have one home, in one
table, by one coordinator. They move together: on a node that gives a shard away, the innermost
entities stop first.

Whether the parent itself runs does not matter. It is in memory only when it gets messages, as any
entity.

Source: S3.4-S3.6, S3.46.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from shardbus.bounds import TYPES_WITHIN_MAX
from shardbus.errors import ConfigError
from shardbus.ids import check_id, shard_of
from shardbus.sharding.instances import row_of, split_row
from shardbus.wire.schema import Interface

SEPARATOR = "/"


def child_id(parent_id: str, own_id: str) -> str:
    """Return the id of the entity with this id of its own within a parent.

    Raises:
        ConfigError: the own id has a slash, or one of the ids is invalid.
    """
    if SEPARATOR in own_id:
        raise ConfigError(f"the id {own_id!r:.100} within a parent must not have a slash")
    check_id("an entity id", own_id)
    return check_id("an entity id", f"{parent_id}{SEPARATOR}{own_id}")


def parent_id(entity_id: str) -> str:
    """Return the id of the parent of an entity.

    Raises:
        ConfigError: the id has no parent's id or no id of its own.
    """
    parent, _, name = entity_id.rpartition(SEPARATOR)
    if not parent or not name:
        raise ConfigError(f"{entity_id!r:.100} names no parent", hint="write PARENT/ID")
    return parent


def shard_function_of(interface: Interface) -> Callable[[str], str]:
    """Return the function that finds the shard of an entity of this type."""
    declared, shards = interface.shard_of, interface.shards
    return declared if declared is not None else lambda entity_id: shard_of(entity_id, shards)


def place_function_of(interface: Interface) -> Callable[[str], str]:
    """Return the function from an entity's id to the shard that hosts it, in the way that a store
    places its state: with instances it is from a wire id to a row."""
    base = shard_function_of(interface)
    if interface.instances is None:
        return base

    def row(entity_id: str) -> str:
        plain, number = split_row(entity_id)
        return row_of(base(plain), number) if number else base(plain)

    return row


def placed_within(interface: Interface, parent: Interface) -> Interface:
    """Return the interface of a type with the shards of its parents.

    Raises:
        ConfigError: too many types live within each other, or one of the two has instances.
    """
    if parent.instances is not None or interface.instances is not None:
        raise ConfigError(
            f"{interface.name!r}: within and instances exclude each other",
            hint="an instance has no place of its own to live within",
        )
    if len(ancestors(parent)) + 1 >= TYPES_WITHIN_MAX:
        raise ConfigError(
            f"{interface.name!r}: at most {TYPES_WITHIN_MAX} types live within each other"
        )
    of_parent = shard_function_of(parent)
    return replace(
        interface,
        shards=parent.shards,
        layout=f"{parent.layout} within {parent.name}",
        shard_of=lambda entity_id: of_parent(parent_id(entity_id)),
        within=parent,
    )


def ancestors(interface: Interface) -> tuple[Interface, ...]:
    """Return the types that a type lives within, the nearest first."""
    parents = []
    while interface.within is not None:
        interface = interface.within
        parents.append(interface)
    return tuple(parents)


def described_within(name: str, layout: str, shards: int, within: Sequence[str]) -> Interface:
    """Return the interface of a type that is known by its description: `within` names the types
    that it lives within, the nearest first, and the outermost has the default shard function."""
    outermost = [name, *within][-1]
    interface = Interface(outermost, shards, f"crc32/{shards}" if within else layout)
    for inner in reversed([name, *within][:-1]):
        interface = placed_within(Interface(inner, shards, ""), interface)
    return interface
