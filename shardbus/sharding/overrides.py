"""What people have told the coordinator of one entity type, and it shall not forget.

    places    shard -> the address of the node on which it shall live, for strategy `external`
    paused    nothing is moved for balance
    moves     so many at a time instead of `max_moves_in_flight`; 0 is the setting

It is one small value, kept in the store under the coordinator's epoch: whoever takes over reads it
before it decides anything, and one that was replaced cannot write it any more. The machine is given
all of it, each time.

Places are addresses, not incarnations: a node that restarts at its address is meant again. Nobody
need be there yet.

Source: B.69, B.77; N.10; T.S18, T.SU5; Pekko's external allocation, the idea.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardbus.errors import ConfigError
from shardbus.ids import Address

PLACES_MAX = 100_000
"""Shards of one type that can have a place."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """From now on it shall be so."""

    places: Mapping[str, Address] = field(default_factory=dict)
    paused: bool = False
    moves: int = 0

    def slowed(self, paused: bool | None, moves: int | None) -> Overrides:
        """With rebalancing paused or not, and so many moves at a time; None changes nothing."""
        return replace(
            self,
            paused=self.paused if paused is None else paused,
            moves=self.moves if moves is None else moves,
        )

    def placed(self, changes: Mapping[str, Address | None]) -> Overrides:
        """With these places; None takes a shard's away.

        Raises:
            ConfigError: there would be too many. Nothing changed.
        """
        places = {**self.places, **{s: place for s, place in changes.items() if place is not None}}
        for shard, place in changes.items():
            if place is None:
                places.pop(shard, None)
        if len(places) > PLACES_MAX:
            raise ConfigError(
                f"{len(places)} shards with a place: at most {PLACES_MAX} may have one"
            )
        return replace(self, places=places)
