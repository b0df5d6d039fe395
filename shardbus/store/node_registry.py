"""The addresses of running nodes in the store, for commands that must not run beside any node.

A node that hosts nothing is in no shard table. So each node registers its address once it listens,
before it joins, and removes it when it ends. A node that is killed leaves its address behind, so a
reader must connect to an address before it relies on it. A node that restarts at the same address
is registered by the same entry.

The addresses are stored as remembered entities of a reserved type, all under one fence, because no
node takes over from another. So every store that can remember entities can hold them.

Source: S2.54; docs/how-to/operate.md.
"""

from __future__ import annotations

from collections.abc import Collection

from shardbus.errors import ConfigError
from shardbus.ids import Address
from shardbus.store.protocol import StateStore

RESERVED = "$nodes"
"""The entity type of the addresses; no application can have a type of that name."""
SHARD, FENCE = "all", 1
PAGE = 1000


async def register(store: StateStore, node: Address) -> None:
    """Record that a node listens at this address. May be repeated. Raises StoreUnavailable."""
    await store.add_remembered(RESERVED, SHARD, [str(node)], FENCE)


async def touch(store: StateStore) -> None:
    """Write, and change nothing, to find out whether the store takes writes. Raises
    StoreUnavailable."""
    await store.add_remembered(RESERVED, SHARD, [], FENCE)


async def remove(store: StateStore, nodes: Collection[Address]) -> None:
    """Forget these addresses. Raises StoreUnavailable."""
    if nodes:
        await store.remove_remembered(RESERVED, SHARD, [str(node) for node in nodes], FENCE)


async def registered(store: StateStore) -> set[Address]:
    """Return the addresses at which nodes listen, or listened until they were killed. Entries that
    are no address are left out. Raises StoreUnavailable."""
    addresses: set[Address] = set()
    cursor: str | None = None
    while True:
        page, cursor = await store.page_remembered(RESERVED, SHARD, cursor, PAGE)
        for text in page:
            try:
                addresses.add(Address.parse(text))
            except ConfigError:
                continue
        if cursor is None:
            return addresses
