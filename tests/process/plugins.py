"""An application whose strategy never returns, and a store whose loads of one type never do."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from shardbus import Entity, ShardBus, handler
from shardbus.store.protocol import StateStore
from shardbus.store.sqlite import SqliteStore

bus = ShardBus("lab")


def hang() -> None:
    threading.Event().wait()


class Hangs:
    """Asks a service that never answers."""

    def allocate(self, *question: Any) -> Any:
        hang()

    def rebalance(self, *question: Any) -> Any:
        return []


@bus.message
@dataclass
class Held:
    value: int = 0


@bus.entity("placed", shards=8, allocation=Hangs())
class Placed(Entity):
    @handler
    def hit(self) -> int:
        return 1


@bus.entity("plain", shards=8)
class Plain(Entity):
    @handler
    def hit(self) -> int:
        return 1


@bus.entity("stored", shards=8)
class Stored(Entity):
    state: Held

    @handler
    def hit(self) -> int:
        return 1


class HangingStore(SqliteStore):
    """Blocks its thread when it loads an entity, as a driver does whose server is gone."""

    async def load_state(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        if entity_type == "stored":
            hang()
        return await super().load_state(entity_type, shard, entity_id, fence)


def open_hanging(url: str, *, cluster: str, timeout: float) -> StateStore:
    return HangingStore(url.removeprefix("hanging:///"), cluster=cluster, timeout=timeout)
