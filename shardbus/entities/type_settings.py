"""The settings of each entity type, checked against the application. `shardbus check` calls this
before a node starts, and so does the node itself.

Source: S2.34, S2.37, B.32; docs/reference/cli.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardbus.config.options import closest
from shardbus.config.settings import Settings, ShardingSettings
from shardbus.config.validation import check_leases
from shardbus.entities.entity_type import EVERY_TYPE, EntityType
from shardbus.errors import ConfigError
from shardbus.sharding.instances import Instances


def settings_by_type(
    types: Mapping[str, EntityType], settings: Settings
) -> dict[str, ShardingSettings]:
    """Return the settings of each type, by its name.

    Raises:
        ConfigError: a node with these settings could not host the types, or only send to them.
    """
    _check_proxies(settings.node.proxies, types)
    return {name: _settings_of(name, kind, settings) for name, kind in types.items()}


def _settings_of(name: str, kind: EntityType, settings: Settings) -> ShardingSettings:
    chosen = settings.sharding.for_type(name, kind.declared)
    if chosen.shards != kind.interface.shards:
        raise ConfigError(
            f"sharding.shards is {chosen.shards} for {name!r}, its class says"
            f" {kind.interface.shards}",
            hint="declare it in the class, for clients compute shards too",
        )
    check_remembering(name, chosen, kind.interface.instances)
    check_leases(name, chosen, settings.store)
    return chosen


def check_remembering(name: str, chosen: ShardingSettings, instances: Instances | None) -> None:
    """Check that a type with instances does not remember its entities.

    Raises:
        ConfigError: it does.
    """
    if instances is not None and chosen.remember:
        raise ConfigError(
            f"{name!r}: remember with instances is not supported",
            hint="an instance starts with the first message for it",
        )


def _check_proxies(names: Iterable[str], types: Mapping[str, EntityType]) -> None:
    """Refuse names of proxies that the application does not declare."""
    for name in names:
        if name != EVERY_TYPE and name not in types:
            near = closest(name, types)
            hint = f"did you mean {near}?" if near else f"* or one of {', '.join(sorted(types))}"
            raise ConfigError(f"node.proxies: there is no entity type {name!r}", hint=hint)
