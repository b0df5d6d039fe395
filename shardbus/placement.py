"""Where shards shall live, told by the application: `bus.external_allocation(type)`.

    places = bus.external_allocation("partition")
    await places.set("7", "10.0.0.3:7355")      # partition 7 of the topic is read there
    await places.unset("7")

For types whose allocation strategy is `external`. Any node of the cluster may be told; what it was
told is stored, and outlives coordinators and a full stop.

Source: B.69; T.S18; docs/how-to/tune.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardbus.admin.shard_control import Place, ShardControl, address_of
from shardbus.ids import Address


class ExternalAllocation:
    """See the module. Every method raises UnknownEntityType for a type that there is not, Refused
    if its strategy is another or its coordinator is not known, and RequestError if that does not
    answer."""

    def __init__(self, shard_control: ShardControl, name: str) -> None:
        self._shard_control, self._name = shard_control, name

    async def places(self) -> dict[str, Address]:
        """What was told so far."""
        return await self._shard_control.places(self._name)

    async def set(self, shard: str, place: Place) -> None:
        """The shard shall live there. It is stored when this returns, and moved soon after, once a
        node is there.

        Raises:
            ConfigError: there is no such shard, or that is no address. StoreUnavailable: the old or
            the new place counts.
        """
        await self.set_all({shard: place})

    async def set_all(self, places: Mapping[str, Place | None]) -> None:
        """The same for many at once, in one write; None takes a place away."""
        told = {s: None if place is None else address_of(place) for s, place in places.items()}
        await self._shard_control.place(self._name, told)

    async def unset(self, *shards: str) -> None:
        """These shards live where the strategy likes: they stay until something else moves them."""
        await self.set_all(dict.fromkeys(shards))
