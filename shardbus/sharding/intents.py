"""Intents of direct moves, as rows of the stored table.

While a shard moves directly, the store must have both homes: the old one, and the home that may run
the shard next. The row of the shard has the old home. A row beside it, named `INTENT_MARK` and the
shard, has the new one. The write that makes the new home the shard's removes the intent.

The mark is no letter of any alphabet, so that no shard function returns such a name by accident.

Source: docs/partitions.md; S3.56.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardbus.ids import NodeId
from shardbus.sharding.messages import Home

INTENT_MARK = "\u2192"

StoredHome = tuple[NodeId, int]


def intent_row(shard: str) -> str:
    """Return the name of the row that has the intent of this shard."""
    return INTENT_MARK + shard


def split_intents(
    rows: Mapping[str, StoredHome],
) -> tuple[dict[str, StoredHome], dict[str, Home]]:
    """Return the homes of a stored table, and the intents by shard."""
    homes: dict[str, StoredHome] = {}
    intents: dict[str, Home] = {}
    for row, (node, fence) in rows.items():
        if row.startswith(INTENT_MARK):
            shard = row.removeprefix(INTENT_MARK)
            intents[shard] = Home(shard, node, fence)
        else:
            homes[row] = node, fence
    return homes, intents
