"""An application whose handlers, answers and starts fail."""

from __future__ import annotations

from shardbus import Entity, ShardBus, handler

bus = ShardBus("lab")


@bus.entity("order", shards=8)
class Order(Entity):
    """Whatever it is asked, it fails."""

    @handler
    def pay(self, amount: int) -> int:
        raise ValueError(f"no money for {amount}")

    @handler
    async def ship(self) -> object:
        return lambda: "an answer that cannot be sent"


@bus.entity("customer", shards=8)
class Customer(Entity):
    """It does not start."""

    async def on_start(self) -> None:
        raise LookupError(f"no row for {self.context.entity_id}")

    @handler
    def hit(self) -> None: ...


@bus.entity("uncoordinated", shards=8)
class Uncoordinated(Entity):
    """A type for which a setting may leave no coordinator."""

    @handler
    def hit(self) -> None: ...
