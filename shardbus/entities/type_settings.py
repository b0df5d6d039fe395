"""The settings of each entity type, checked against the application. `shardbus check` calls this
before a node starts, and so does the node itself.

Source: S2.34, S2.37, B.32; docs/reference/cli.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shardbus.config.options import closest
from shardbus.config.replicas import is_in_memory, is_replicated
from shardbus.config.settings import Settings, ShardingSettings
from shardbus.config.validation import check_leases
from shardbus.entities.entity_type import EVERY_TYPE, EntityType, EntityTypes
from shardbus.errors import ConfigError
from shardbus.membership.known_types import TYPES_MAX
from shardbus.sharding.handoff_modes import MODES, check_mode
from shardbus.sharding.instances import Instances

TABLE_SETTINGS = (
    "shards", "role", "coordinator_role", "buffer_size", "buffer_bytes", "hop_limit",
    "retry_interval", "shard_start_timeout", "begin_handoff_timeout", "handoff_timeout",
    "shard_failure_backoff", "coordinator_failure_backoff", "waiting_for_state_timeout",
    "updating_state_timeout", "shard_region_query_timeout", "min_members", "allocation",
    "rebalance_interval", "rebalance_threshold", "max_simultaneous_rebalance",
    "rebalance_absolute_limit", "rebalance_relative_limit", "load", "rebalance_load_tolerance",
    "rebalance_move_cost", "rebalance_cool_down", "use_lease", "homes",
    "lease_ttl", "lease_retry_interval", "max_moves_in_flight", "max_moves_per_minute", "handoff",
)  # fmt: skip
"""Settings of the shards and their table. A type that lives within another has that one's."""


def settings_by_type(types: EntityTypes, settings: Settings) -> dict[str, ShardingSettings]:
    """Return the settings of each type, by its name.

    Raises:
        ConfigError: a node with these settings could not host the types, or only send to them.
    """
    if len(types) > TYPES_MAX:
        raise ConfigError(
            f"the application declares {len(types)} entity types, at most {TYPES_MAX} are possible",
            hint="entities of one kind are one type, however many there are",
        )
    _check_names("node.proxies", settings.node.proxies, types, every=True)
    _check_names("http.ready_types", settings.http.ready_types, types)
    chosen: dict[str, ShardingSettings] = {}
    for name, kind in types.items():
        parent = kind.interface.within
        if parent is None:
            chosen[name] = _settings_of(name, kind, settings)
        else:
            chosen[name] = _settings_within(name, kind, settings, parent.name, chosen[parent.name])
        if kind.events is not None or kind.projection is not None:
            why = f"the states of {name!r} have numbers of events"
            hint = "without them, events would be missing or handled again"
            chosen[name] = _without_ttl(name, settings, chosen[name], why, hint)
        if kind.merged is not None:
            why, hint = f"the instances of {name!r} share their states", "remove it"
            chosen[name] = _without_ttl(name, settings, chosen[name], why, hint)
    return chosen


def _without_ttl(
    name: str, settings: Settings, chosen: ShardingSettings, why: str, hint: str
) -> ShardingSettings:
    """Return settings by which no state is removed. `sharding.state_ttl` is for the other types:
    events before the one whose number a state has may be removed, and no node alone knows that an
    entity with instances is idle."""
    if settings.sharding.types.get(name, {}).get("state_ttl"):
        raise ConfigError(f"sharding.types.{name}.state_ttl: {why}", hint=hint)
    return replace(chosen, state_ttl=0.0)


def _settings_within(
    name: str, kind: EntityType, settings: Settings, parent: str, table: ShardingSettings
) -> ShardingSettings:
    """Return the settings of a type that lives within another: the parent's table settings are its
    own."""
    for key in settings.sharding.types.get(name, {}):
        if key in TABLE_SETTINGS:
            raise ConfigError(
                f"sharding.types.{name}.{key}: {name!r} lives within {parent!r}",
                hint=f"set sharding.types.{parent}.{key}",
            )
    chosen = settings.sharding.for_type(name, kind.declared)
    if chosen.remember and not table.remember:
        raise ConfigError(
            f"{name!r} remembers its entities, and {parent!r}, within which it lives, does not",
            hint=f"set remember for {parent}: only then do its shards start without a message",
        )
    _check_carrying(name, kind, chosen)
    chosen = replace(chosen, **{key: getattr(table, key) for key in TABLE_SETTINGS})
    state = kind.states is not None
    check_mode(name, chosen.handoff, state=state, remember=chosen.remember)
    return chosen


def _settings_of(name: str, kind: EntityType, settings: Settings) -> ShardingSettings:
    chosen = settings.sharding.for_type(name, kind.declared)
    if chosen.shards != kind.interface.shards:
        raise ConfigError(
            f"sharding.shards is {chosen.shards} for {name!r}, its class says"
            f" {kind.interface.shards}",
            hint="declare it in the class, for clients compute shards too",
        )
    check_remembering(name, chosen, kind.interface.instances)
    _check_carrying(name, kind, chosen)
    state, durable = kind.states is not None, kind.durable_mailbox
    check_mode(name, chosen.handoff, state=state, remember=chosen.remember, durable=durable)
    check_leases(name, chosen, settings.store)
    _check_lasting(name, chosen, settings.store.url)
    return chosen


def check_remembering(name: str, chosen: ShardingSettings, instances: Instances | None) -> None:
    """Check that a type with instances does not remember its entities, nor moves shards directly.

    Raises:
        ConfigError: it does.
    """
    if instances is not None and MODES[chosen.handoff] is not None:
        raise ConfigError(
            f"{name!r}: handoff {chosen.handoff} with instances is not supported: a direct move"
            " does not keep the instances of an entity apart",
            hint=f"set sharding.types.{name}.handoff = buffer",
        )
    if instances is not None and chosen.remember:
        raise ConfigError(
            f"{name!r}: remember with instances is not supported",
            hint="an instance starts with the first message for it",
        )


def _check_lasting(name: str, chosen: ShardingSettings, url: str) -> None:
    """Refuse settings that remember entities in a store that a full stop empties."""
    if chosen.remember and is_replicated(url) and is_in_memory(url):
        raise ConfigError(
            f"{name!r}: remember with cluster://?durability=memory is not supported: a full stop"
            " would forget the entities",
            hint="leave ?durability=memory out, or choose another store",
        )


def _check_carrying(name: str, kind: EntityType, chosen: ShardingSettings) -> None:
    """Refuse settings that remember the entities of a type that carries. Another mode than
    `ordered` is no error: then nothing is carried."""
    if kind.carries and chosen.remember:
        raise ConfigError(
            f"{name!r}: carry with remember is not supported: a remembered entity starts by the"
            " list in the store",
            hint=f"set sharding.types.{name}.remember = off",
        )


def _check_names(
    setting: str, names: Iterable[str], types: EntityTypes, *, every: bool = False
) -> None:
    """Refuse names of types that the application does not declare."""
    for name in names:
        if name in types and types[name].interface.within is not None:
            raise ConfigError(
                f"{setting}: {name!r} lives within another type", hint="name the outermost"
            )
        if name not in types and not (every and name == EVERY_TYPE):
            near, kinds = closest(name, types), ", ".join(sorted(types))
            some = f"{EVERY_TYPE} or one of {kinds}" if every else f"one of {kinds}"
            hint = f"did you mean {near}?" if near else some
            raise ConfigError(f"{setting}: there is no entity type {name!r}", hint=hint)
