"""Whether the number of shards suits the number of nodes.

With fewer shards than nodes some nodes host nothing; with very many shards per node, moves, first
messages and takeovers cost more than they must. Neither is an error, and neither can be changed
while the cluster runs, so it is said once, when it has been so for a while: a cluster that is just
starting has few nodes and will have more.

A shard function of the user's own may give any number of shards; then those that have a home count.

Source: S2.18, S2.19; docs/how-to/define-entities.md.
"""

from __future__ import annotations

from shardbus.sharding.events import Note

PER_NODE_MAX = 1000
"""Shards per node above which there are very many."""

LASTING_S = 30.0

TOO_FEW, TOO_MANY = "too_few_shards", "too_many_shards"


class ShardCountCheck:
    """Says it once per change. `declared` is the number of shards of the type, 0 if its function
    gives any."""

    __slots__ = ("_declared", "_said", "_seen", "_since")

    def __init__(self, declared: int) -> None:
        self._declared = declared
        self._said = self._seen = ""
        self._since = 0.0

    def look(self, nodes: int, homes: int, now: float) -> list[Note]:
        """So many nodes host, and so many shards have a home. What is to be said now."""
        shards = max(self._declared, homes)
        found = ""
        if nodes and shards > PER_NODE_MAX * nodes:
            found = TOO_MANY
        elif 0 < self._declared < nodes:
            found = TOO_FEW
        if found != self._seen:
            self._seen, self._since = found, now
        if found == self._said or now - self._since < LASTING_S:
            return []
        self._said = found
        if not found:
            return []
        return [Note(found, f"{shards} shards for {nodes} nodes: about ten per node are good")]
