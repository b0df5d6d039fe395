"""Operators' settings for one entity type, which the coordinator keeps.

    places    shard -> the address of the node on which it must live
    paused    nothing is moved for balance
    moves     moves in flight instead of `max_moves_in_flight`; 0 means the setting

The overrides are one small value, stored under the coordinator's epoch. A new coordinator reads it
before it decides anything, and a replaced one cannot write it any more. The machine gets the whole
value each time.

Places are addresses, not incarnations: a node that restarts at its address is meant again. The node
need not be there yet.

Source: B.69, B.77, N.10; Pekko's external allocation.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from shardbus.errors import ConfigError
from shardbus.ids import Address
from shardbus.quantities import counted

PLACES_MAX = 100_000
"""How many shards of one type can have a place."""


class Overrides(msgspec.Struct, frozen=True):
    """The overrides of one entity type."""

    places: Mapping[str, Address] = msgspec.field(default_factory=dict)
    paused: bool = False
    moves: int = 0

    def slowed(self, paused: bool | None, moves: int | None) -> Overrides:
        """Return these overrides with another `paused` or `moves`; None changes nothing."""
        return replace(
            self,
            paused=self.paused if paused is None else paused,
            moves=self.moves if moves is None else moves,
        )

    def placed(self, changes: Mapping[str, Address | None]) -> Overrides:
        """Return these overrides with changed places; None removes the place of a shard.

        Raises:
            ConfigError: more than `PLACES_MAX` shards would have a place. Nothing changed.
        """
        places = {**self.places, **{s: place for s, place in changes.items() if place is not None}}
        for shard, place in changes.items():
            if place is None:
                places.pop(shard, None)
        if len(places) > PLACES_MAX:
            raise ConfigError(
                f"{counted(len(places), 'shard')} with a place: at most {PLACES_MAX} may have one"
            )
        return replace(self, places=places)
