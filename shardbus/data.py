"""Kinds of replicated values, for `bus.data.update`.

    from shardbus.data import Counter

    await bus.data.update("hits", Counter, lambda hits: hits.add(1))

Source: docs/how-to/replicated-values.md; B.133.
"""

from shardbus.replication.kinds import (
    Counter,
    Flag,
    GrowSet,
    Map,
    MultiMap,
    PNCounter,
    Register,
    Set,
    Versioned,
)
from shardbus.store.replicated_data import ReplicatedData

__all__ = [
    "Counter", "Flag", "GrowSet", "Map", "MultiMap", "PNCounter", "Register", "ReplicatedData",
    "Set", "Versioned",
]  # fmt: skip
