"""The replicas of a store inside the cluster, as a node reaches them, and its own among them.

Source: docs/how-to/keep-state.md; docs/reference/metrics.md.
"""

from __future__ import annotations

from typing import cast

from shardbus.config.replicas import own_replica
from shardbus.node.node import Node
from shardbus.store.protocol import replicas_of

BEHIND_INTERVALS, BEHIND_S = 5, 60.0
"""Repair intervals, and seconds, after which a repair should have passed."""


def replica_row(node: Node) -> dict[str, object] | None:
    """Return the facts of this node's replica, None if it has none."""
    address = str(own_replica(node.settings))
    return next((row for row in replicas_of(node.store) if row["address"] == address), None)


def own_repairs(node: Node) -> dict[str, float]:
    """Return the facts of its repairs, empty without a replica, or before it has answered."""
    row = replica_row(node)
    return {} if row is None else cast("dict[str, float]", row["repairs"])


def spares(node: Node) -> int | None:
    """Return the number of spares in reach, None without a store inside the cluster."""
    rows = replicas_of(node.store)
    return sum(bool(row["spare"]) for row in rows) if rows else None


def replica_zones(node: Node) -> dict[str, str]:
    """Return the zone of each replica of the ring, by address."""
    rows = [row for row in replicas_of(node.store) if row["member"]]
    return {str(row["address"]): str(row["zone"]) for row in rows}


def replicas_behind(node: Node) -> dict[str, float]:
    """Return the replicas that serve, and have compared their rows with all others for the last
    time more than `BEHIND_INTERVALS` repair intervals ago, each with these seconds. While a replica
    is away none is named: no other one can compare with it."""
    rows = [row for row in replicas_of(node.store) if row["member"]]
    if not all(row["serves"] for row in rows):
        return {}
    repairs = {str(row["address"]): cast("dict[str, float]", row["repairs"]) for row in rows}
    return {
        address: facts["age"]
        for address, facts in repairs.items()
        if facts and facts["age"] > max(BEHIND_INTERVALS * facts["interval"], BEHIND_S)
    }
