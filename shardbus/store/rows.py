"""Read stored shard tables, and leave out invalid rows.

A failed disk, a partial restore or a manual edit may leave invalid rows. Such a row must not stop
the coordinator, because no shard would get a home any more. Each row is checked by itself; an
invalid one is named in `dropped`:

    shard   an id: 1 to 256 bytes of UTF-8 without control characters
    node    host:port#uid
    fence   a whole number, 1 to 2**63 - 1
    twice   of two rows for one shard the higher fence counts

The shard of a dropped row has no home in the table. Regions report the shards that they host to a
new coordinator, so the shard is found again if it still runs; otherwise it gets a new home, whose
row replaces the invalid one. A table with an unreadable epoch or layout is a StoreError, because
writers could not be distinguished; the coordinator reads it again later.

Source: N.6.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from shardbus.bounds import EPOCH_MAX, FENCE_MAX
from shardbus.errors import ConfigError, StoreError
from shardbus.ids import NodeId, check_id
from shardbus.store.protocol import StoredTable

VALUE_MAX = 4096
"""Bytes or characters, at most, of a shard, a node or a layout."""
NODES_KEPT = 1024
"""Nodes that were checked."""
REMEDY = "stop the cluster and use `shardbus data repair`, or restore the store from a copy"

Row = tuple[object, object, object]
"""Shard, node and fence as the store has them."""


def table_of(entity_type: str, epoch: object, layout: object, rows: Iterable[Row]) -> StoredTable:
    """Return the table of those rows that are valid.

    Raises:
        StoreError: the epoch or the layout is unreadable.
    """
    homes: dict[str, tuple[NodeId, int]] = {}
    dropped: list[str] = []
    for row in rows:
        try:
            shard, node, fence = home_of(row)
        except ConfigError as wrong:
            dropped.append(f"{shown(row[0])}: {wrong.message}")
            continue
        former = homes.get(shard)
        if former is not None:
            dropped.append(f"{shown(shard)}: it is stored twice")
        if former is None or former[1] < fence:
            homes[shard] = (node, fence)
    number = epoch_of(entity_type, epoch)
    try:
        name = layout_of(layout)
    except ConfigError as wrong:
        raise _damaged(entity_type, wrong.message) from None
    return StoredTable(number, name, homes, tuple(dropped))


def epoch_of(entity_type: str, value: object) -> int:
    """Return a stored epoch as a number. Raises as `table_of`."""
    try:
        return number_of("epoch", value, 0, EPOCH_MAX)
    except ConfigError as wrong:
        raise _damaged(entity_type, wrong.message) from None


def layout_of(value: object) -> str:
    """Return a stored layout. Raises ConfigError if it is unreadable."""
    return check_id("layout", _text("layout", value))


def fence_of(entity_type: str, name: str, value: object) -> int:
    """Return the stored fence of an entity or a shard.

    Raises:
        StoreError: it is no fence.
    """
    try:
        return number_of("fence", value, 0, FENCE_MAX)
    except ConfigError as wrong:
        why = f"the stored fence of {name!r} of {entity_type!r} is damaged: {wrong.message}"
        raise StoreError(why, hint=REMEDY) from None


def check_fence(fence: int) -> int:
    """Return a fence that a store can hold.

    Raises:
        StoreError: it is out of bounds. Nothing was written.
    """
    if not 0 <= fence <= FENCE_MAX:
        raise StoreError(f"the fence {fence} is not 0 to {FENCE_MAX}, so no store can hold it")
    return fence


def _damaged(entity_type: str, why: str) -> StoreError:
    return StoreError(f"the stored table of {entity_type!r} is damaged: {why}", hint=REMEDY)


def home_of(row: Row) -> tuple[str, NodeId, int]:
    """Return shard, node and fence of a row. Raises ConfigError if it is invalid."""
    shard = check_id("shard", _text("shard", row[0]))
    node = _node_of(row[1] if isinstance(row[1], NodeId) else _text("node", row[1]))
    return shard, node, number_of("fence", row[2], 1, FENCE_MAX)


@lru_cache(maxsize=NODES_KEPT)
def _node_of(value: NodeId | str) -> NodeId:
    """Return a stored node. The rows of a table have few nodes, so each is checked once."""
    return NodeId.parse(str(value))


def _text(what: str, value: object) -> str:
    if isinstance(value, bytes | str) and len(value) > VALUE_MAX:
        raise ConfigError(f"{what} {value[:40]!r}... is longer than {VALUE_MAX}")
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {value!r:.60} is not UTF-8") from None
    if not isinstance(text, str):
        raise ConfigError(f"{what} {text!r:.60} is not text")
    return text


def number_of(what: str, value: object, low: int, high: int) -> int:
    """Return a stored number. Raises ConfigError if it is none, or out of bounds."""
    text = value[:100] if isinstance(value, bytes | str) else value
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 30:
        text = int(text)
    if not isinstance(text, int) or isinstance(text, bool) or not low <= text <= high:
        raise ConfigError(f"{what} {text!r:.60} is not {low} to {high}")
    return text


def shown(shard: object) -> str:
    """Return the shard of a row as an error names it."""
    text = shard[:60] if isinstance(shard, bytes | str) else str(shard)
    text = text.decode(errors="backslashreplace") if isinstance(text, bytes) else text
    return f"shard {text[:60]!r}"
