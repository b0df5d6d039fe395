"""The homes of a type's shards in columns, for a page that asks again and again.

    ShardMaps    on the node of the coordinator: numbers each state of the map
    version      equal versions are equal maps; a reader that has the version gets no columns

A map costs its coordinator one pass over the shards, and only when it has changed: otherwise an
answer is a comparison. `states` has one letter per shard, in the order of `shards`:

    r  running       h  handing_off       s  starting

A shard without a home has no row.

Source: docs/reference/http.md; B.149.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shardbus.ids import NodeId
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.table import ShardTable

RECENT = 50
"""Changes of homes on a map."""
RUNNING = "r"
LETTERS = {"running": RUNNING, "handing_off": "h", "starting": "s"}

Columns = dict[str, Any]


class DrawnMap(msgspec.Struct, frozen=True):
    """A map with its version, and its sources."""

    table: ShardTable
    states: dict[str, str]
    version: str
    columns: Columns


class ShardMaps:
    """The last map of each type whose coordinator runs here."""

    def __init__(self) -> None:
        self._maps: dict[str, DrawnMap] = {}
        self._drawn = 0

    def of(self, name: str, coordinator: Coordinator, client_version: str, now: float) -> Columns:
        """Return the map, without columns if its version is `client_version`."""
        table, states = coordinator.table, coordinator.unsettled()
        last = self._maps.get(name)
        if last is None or last.table is not table or last.states != states:
            self._drawn += 1
            version = f"{coordinator.epoch}.{self._drawn}"
            rows = [(shard, str(home.node)) for shard, home in table.homes.items()]
            last = DrawnMap(table, states, version, columns_of(rows, states))
            self._maps[name] = last
        head = {"epoch": coordinator.epoch, "version": last.version}
        if last.version == client_version:
            return head
        changes = [
            [shard, now - c.at, _text(c.source), _text(c.target), c.why, c.seconds]
            for shard, c in coordinator.history.recent(RECENT)
        ]
        return {**head, **last.columns, "changes": changes}


def columns_of(rows: list[tuple[str, str]], states: dict[str, str]) -> Columns:
    """Return the columns of a map. `rows`: shard and node; `states`: of shards that do not simply
    run."""
    rows = sorted(rows, key=lambda row: (len(row[0]), row[0]))
    nodes = sorted({node for _, node in rows})
    index = {node: i for i, node in enumerate(nodes)}
    return {
        "nodes": nodes,
        "shards": [shard for shard, _ in rows],
        "homes": [index[node] for _, node in rows],
        "states": "".join(LETTERS.get(states.get(shard, ""), RUNNING) for shard, _ in rows),
    }


def _text(node: NodeId | None) -> str | None:
    return None if node is None else str(node)
