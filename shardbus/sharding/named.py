"""The allocation strategies that settings can name.

Source: S2.57, S2.63, S2.64; B.63-B.69; N.9.
"""

from __future__ import annotations

from shardbus.settings import ShardingSettings
from shardbus.sharding.allocation import (
    AllocationStrategy,
    ConsistentHashing,
    External,
    LeastShard,
    LeastShardThreshold,
)
from shardbus.sharding.least_load import LeastLoad


def strategy_of(settings: ShardingSettings) -> AllocationStrategy:
    """The strategy that the settings of a type name, with its limits."""
    limit = settings.rebalance_absolute_limit
    match settings.allocation:
        case "threshold":
            return LeastShardThreshold(
                settings.rebalance_threshold, settings.max_simultaneous_rebalance
            )
        case "consistent-hashing":
            return ConsistentHashing(max_moves=limit)
        case "external":
            return External(limit)
        case "least-load":
            return LeastLoad(settings.rebalance_load_tolerance, limit)
        case _:
            return LeastShard(limit, settings.rebalance_relative_limit)
