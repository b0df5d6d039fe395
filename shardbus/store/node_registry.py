"""The addresses of the nodes that run, in the store: for a command that must not run beside any.

A node that hosts nothing is in no table. So each writes its address here once it listens, before it
joins, and takes it away when it ends. One that is killed leaves its address behind; whoever reads
the roll knocks there before he believes it. A node that comes back at its address is meant again.

They are kept as remembered entities of a reserved type, all under one fence, for nobody takes over
from anybody. So every store that can remember entities can keep them.

Source: S2.54; docs/how-to/operate.md.
"""

from __future__ import annotations

from collections.abc import Collection

from shardbus.errors import ConfigError
from shardbus.ids import Address
from shardbus.store.protocol import StateStore

RESERVED = "$nodes"
"""The entity type under which they are kept; no application can have one of that name."""
SHARD, FENCE = "all", 1
PAGE = 1000


async def register(store: StateStore, node: Address) -> None:
    """A node listens there. Again does no harm. Raises StoreUnavailable."""
    await store.add_remembered(RESERVED, SHARD, [str(node)], FENCE)


async def remove(store: StateStore, nodes: Collection[Address]) -> None:
    """None listens there any more. Raises StoreUnavailable."""
    if nodes:
        await store.remove_remembered(RESERVED, SHARD, [str(node) for node in nodes], FENCE)


async def registered(store: StateStore) -> set[Address]:
    """Where nodes listen, or did until they were killed. What is no address is left out. Raises
    StoreUnavailable."""
    found: set[Address] = set()
    cursor: str | None = None
    while True:
        page, cursor = await store.page_remembered(RESERVED, SHARD, cursor, PAGE)
        for text in page:
            try:
                found.add(Address.parse(text))
            except ConfigError:
                continue
        if cursor is None:
            return found
