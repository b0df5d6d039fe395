"""The keyword arguments of `@bus.entity`, for type checkers and editors: they complete the names,
and refuse unknown ones and values that cannot be.

`EntityArguments` are the arguments of the declaration itself, which `ShardBus.entity` describes.
`EntityOptions` adds every setting of section `sharding`, under its own name; a test compares both
with `ShardingSettings`, where units, ranges and meanings stand.

Source: docs/how-to/define-entities.md; docs/reference/settings.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict

from shardbus.entities.entity_type import Directive
from shardbus.entities.passivation_settings import Passivation
from shardbus.sharding.allocation.strategies import AllocationStrategy
from shardbus.sharding.handoff_modes import HandoffMode
from shardbus.sharding.instances import Instances
from shardbus.wire.schema import Extractor

Duration = float | str
"""Seconds, or a text with a unit: 0.1, "100ms", "2s", "24h"."""
Size = int | str
"""Bytes, or a text with a unit: 65536, "64KiB"."""
Limit = int | Literal["off"] | None
"""A count. 0, "off" and None are no limit."""
Supervision = (
    Mapping[type[Exception], Directive | Literal["resume", "restart", "stop"]]
    | Callable[[Exception], Directive]
)


class EntityArguments(TypedDict, total=False):
    """Arguments that are no settings."""

    messages: Iterable[type]
    supervision: Supervision | None
    passivation: Passivation | None
    stop_message: Any
    extract_entity_id: Extractor | None
    extract_shard_id: Callable[[str], str] | None
    instances: int | Instances
    router: Literal["nearest", "round-robin", "random", "least-busy", "hash", "all", "first"] | None
    within: type | None
    carry: bool
    durable_mailbox: bool
    reminders: bool | None
    state_version: int


class EntityOptions(EntityArguments, total=False):
    """All arguments of `@bus.entity`, but for the name."""

    shards: int
    role: str
    coordinator_role: str
    remember: bool
    passivate_after: Duration | None
    active_entity_limit: Limit
    passivation_strategy: Literal["lru", "slru", "mru", "lfu", "composite"]
    passivation_protected: float
    passivation_window: float
    slow_handler_after: Duration | None
    mailbox: int
    mailbox_bytes: Size
    mailbox_patience: Duration | None
    durable_mailbox_messages: int
    durable_mailbox_bytes: Size
    buffer_size: int
    buffer_bytes: Size
    homes: Literal["ask", "gossip"]
    hop_limit: int
    retry_interval: Duration
    shard_start_timeout: Duration
    begin_handoff_timeout: Duration
    handoff_timeout: Duration
    shard_failure_backoff: Duration
    entity_restart_backoff: Duration
    entity_restart_backoff_min: Duration
    entity_recovery_strategy: Literal["adaptive", "constant", "all"]
    entity_recovery_constant_rate_frequency: Duration
    entity_recovery_constant_rate_number_of_entities: int
    coordinator_failure_backoff: Duration
    waiting_for_state_timeout: Duration
    updating_state_timeout: Duration
    shard_region_query_timeout: Duration
    min_members: int
    allocation: (
        AllocationStrategy
        | Literal[
            "least-shards",
            "least-load",
            "threshold",
            "consistent-hashing",
            "circular",
            "external",
        ]
        | None
    )
    rebalance_interval: Duration
    rebalance_threshold: int
    max_simultaneous_rebalance: int
    rebalance_absolute_limit: Limit
    rebalance_relative_limit: float
    load: Literal["messages", "time", "memory", "mailbox", "mixed"]
    rebalance_load_tolerance: float
    rebalance_move_cost: float
    rebalance_cool_down: Duration | None
    use_lease: Literal["off", "shards", "singleton", "both"]
    lease_ttl: Duration
    lease_retry_interval: Duration
    handoff: (
        HandoffMode
        | Literal[
            "buffer",
            "ordered",
            "forward",
            "drop",
            "keep/open/drop",
            "forward/open/forward",
            "forward/buffer/forward",
            "drop/open/forward",
        ]
    )
    max_moves_in_flight: int
    max_moves_per_minute: Limit
    state_limit: Size
    state_compression: Literal["none", "zlib"]
    state_ttl: Duration | None
    snapshot_after: Limit
    events_kept: Limit
    state_sweep_rate: int
    dead_letters: Limit
    dead_letter_bytes: Size
    dead_letter_payloads: Size | None


DEFAULTS = "__shardbus_defaults__"
"""The attribute of a class that has values for options which its declaration does not name."""

ARGUMENTS = frozenset(EntityArguments.__annotations__)
"""The arguments that are no settings, by name."""
