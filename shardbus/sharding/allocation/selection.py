"""Which allocation strategy a type gets: one that settings name, or its class's own.

Source: S2.57, S2.63, S2.64, B.63-B.69, N.9.
"""

from __future__ import annotations

from shardbus.config.settings import ShardingSettings
from shardbus.sharding.allocation.circular import Circular, Ring
from shardbus.sharding.allocation.least_load import LeastLoad
from shardbus.sharding.allocation.strategies import (
    AllocationStrategy,
    ConsistentHashing,
    External,
    LeastShard,
    LeastShardThreshold,
)

OWN = (Circular, ConsistentHashing, External, LeastLoad, LeastShard, LeastShardThreshold)
"""The strategies of shardbus."""


def may_block(strategy: AllocationStrategy) -> bool:
    """True if the strategy is not one of shardbus: it may ask a service, or never return. A class
    that inherits from one of them is not one of them."""
    return type(strategy) not in OWN


def strategy_for(
    name: str,
    section: ShardingSettings,
    chosen: ShardingSettings,
    declared: AllocationStrategy | None,
    ring: Ring,
) -> AllocationStrategy:
    """Return the strategy of a type. `declared` is an object that its class declares. As with every
    setting of a declaration, only the section of this very type overrides it. `ring`: the one on
    which the types of this node are placed."""
    if declared is None or "allocation" in section.types.get(name, {}):
        return strategy_of(chosen, name, ring)
    return declared


def strategy_of(settings: ShardingSettings, name: str, ring: Ring) -> AllocationStrategy:
    """Return the strategy that the settings of a type name, with its limits."""
    limit = settings.rebalance_absolute_limit
    match settings.allocation:
        case "threshold":
            return LeastShardThreshold(
                settings.rebalance_threshold, settings.max_simultaneous_rebalance
            )
        case "consistent-hashing":
            return ConsistentHashing(max_moves=limit)
        case "circular":
            return Circular(name, ring)
        case "external":
            return External(limit)
        case "least-load":
            tolerance, cost = settings.rebalance_load_tolerance, settings.rebalance_move_cost
            return LeastLoad(tolerance, limit, cost)
        case _:
            return LeastShard(limit, settings.rebalance_relative_limit)
