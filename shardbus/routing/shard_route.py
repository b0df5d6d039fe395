"""The route to one shard, and the part of it that senders look at.

    route.out is an outbox    the home is known: append to its batch
    route.out is None         ask the router

Source: docs/architecture.md.
"""

from __future__ import annotations

from shardbus.errors import BufferFull
from shardbus.transport.outbox import SessionOutbox

ROUTES_MAX = 200_000
"""Ids whose routes are cached."""


class ShardRoute:
    """The route to one shard: `out` is the outbox of the session to its home, None if that is
    unknown."""

    __slots__ = ("out", "shard")

    def __init__(self, shard: str) -> None:
        self.shard = shard
        self.out: SessionOutbox | None = None


NO_ROUTE = ShardRoute("")
"""The route of a reference whose every message passes its sender: there is never a session."""


def check_room(out: SessionOutbox | None, entity_type: str, entity_id: str) -> None:
    """Raise BufferFull if a tell to this entity along this session would wait."""
    if out is None or out.has_room_for((entity_type, entity_id)):
        return
    if out.writable:
        raise BufferFull(f"{entity_type} {entity_id!r} has no room at {out.name}")
    raise BufferFull(f"the send buffer to {out.name} is full")
