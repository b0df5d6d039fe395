"""The stores that a run may have, by the names of `--store`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.chaos.cluster import ClusterStore
from tests.chaos.postgres import PostgresChaosStore
from tests.chaos.replicas import MemoryStore, ReplicaStore
from tests.chaos.store import ChaosStore, Site, StoreServers

SENTINEL = "sentinel"
STORES: Mapping[str, Callable[[Site], ChaosStore]] = {
    SENTINEL: StoreServers,
    "cluster": ClusterStore,
    "postgres": PostgresChaosStore,
    "replicas": ReplicaStore,
    "memory": MemoryStore,
}
