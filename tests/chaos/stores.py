"""The stores that a run may have, by the names of `--store`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.chaos.cluster import ClusterStore
from tests.chaos.postgres import PostgresChaosStore
from tests.chaos.store import ChaosStore, StoreServers

SENTINEL = "sentinel"
STORES: Mapping[str, Callable[[Path, str, tuple[str, ...]], ChaosStore]] = {
    SENTINEL: StoreServers,
    "cluster": ClusterStore,
    "postgres": PostgresChaosStore,
}
"""Each takes a folder, the address of the store's machine, and the command that enters it."""
