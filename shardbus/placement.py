"""Places of shards that the application sets: `bus.external_allocation(type)`.

    places = bus.external_allocation("partition")
    await places.set("7", "10.0.0.3:7355")      # partition 7 of the topic is read there
    await places.unset("7")

Any node takes the call; places are stored, and outlive coordinators and a full stop. Strategy
`external` has no other rule; any other one decides about the shards without a place.

Source: docs/how-to/define-entities.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardbus.admin.shard_control import Place, ShardControl, address_of
from shardbus.ids import Address


class ExternalAllocation:
    """The places of one type's shards. Every method raises UnknownEntityType for an unknown type,
    Refused if the type has instances, a node at a new place takes no shard, or the coordinator is
    not known, and RequestError if the coordinator does not answer."""

    def __init__(self, shard_control: ShardControl, name: str) -> None:
        self._shard_control, self._name = shard_control, name

    async def places(self) -> dict[str, Address]:
        """The places that are set."""
        return await self._shard_control.places(self._name)

    async def set(self, shard: str, place: Place) -> None:
        """Set the place of a shard. It is stored when this returns; the shard moves once a node
        runs there.

        Raises:
            ConfigError: the type has no such shard, or the address is invalid.
            StoreUnavailable: either the old or the new place is stored.
        """
        await self.set_all({shard: place})

    async def set_all(self, places: Mapping[str, Place | None]) -> None:
        """Set the places of many shards in one write; None takes a place away."""
        addresses = {s: None if place is None else address_of(place) for s, place in places.items()}
        await self._shard_control.place(self._name, addresses)

    async def unset(self, *shards: str) -> None:
        """Take the places of these shards away: they stay until something else moves them."""
        await self.set_all(dict.fromkeys(shards))
