"""Which shards and which entities of a type get the most messages on this node, from its samples.

A shard that gets most of the messages of its type is a *hot shard*: more nodes do not help, since
it lives on one. If most of its messages are for one entity, moving the shard does not help either.

Only messages that are sampled for loads and latencies anyway are looked at
(`shells.load_sampling`), and each counts for all that it stands for. They are noted as they come
and counted once a second, all together: a sketch is out of the processor's caches when a single
message needs it. Counts halve every `HALF_LIFE_S`, so the parts are of the last half minute, about.

Source: docs/how-to/operate.md; N.9.
"""

from __future__ import annotations

from typing import Any

from shardbus.heavy_hitters import HeavyHitters

HALF_LIFE_S = 10
"""Calls of `pace`, one a second, after which a message counts half."""
SHOWN = 3
NOTED_MAX = 500
"""Samples that wait to be counted; the next one has them counted at once."""


class HotSpots:
    """The most frequent shards and entities of one type."""

    __slots__ = ("_entities", "_noted", "_seconds", "_shards")

    def __init__(self) -> None:
        self._shards = HeavyHitters[str]()
        self._entities = HeavyHitters[tuple[str, str]]()
        self._noted: list[tuple[str, str, int]] = []
        self._seconds = 0

    def add(self, shard: str, entity_id: str, weight: int) -> None:
        """Note a sampled message, which stands for `weight` messages."""
        if len(self._noted) >= NOTED_MAX:
            self._count()
        self._noted.append((shard, entity_id, weight))

    def _count(self) -> None:
        noted, self._noted = self._noted, []
        for shard, entity_id, weight in noted:
            self._shards.add(shard, weight)
            self._entities.add((shard, entity_id), weight)

    def pace(self) -> None:
        """Count the noted messages, and let older ones count less. Called about once a second."""
        self._count()
        self._seconds = (self._seconds + 1) % HALF_LIFE_S
        if not self._seconds:
            self._shards.halve()
            self._entities.halve()

    def row(self) -> dict[str, Any]:
        """Return the messages counted, and up to `SHOWN` shards and entities with their parts of
        them."""
        self._count()
        return {
            "messages": round(self._shards.total, 1),
            "shards": [[shard, round(part, 4)] for shard, part in self._shards.top(SHOWN)],
            "entities": [
                [shard, entity_id, round(part, 4)]
                for (shard, entity_id), part in self._entities.top(SHOWN)
            ],
        }
