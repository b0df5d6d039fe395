"""Commands to the coordinator of a type, through any node.

The node that gets the command asks the coordinator (`answers`). A refusal by the coordinator is
raised here as the error that it raised there.

Source: docs/reference/http.md; S3.19.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shardbus.errors import (
    AskTimeout,
    ConfigError,
    Refused,
    ShardBusError,
    StateChanged,
    StoreUnavailable,
)
from shardbus.ids import Address, NodeId
from shardbus.node.rpc import NodeRpc
from shardbus.quantities import counted
from shardbus.shells.region import RegionShell, region_of

REFUSALS: Mapping[str, type[ShardBusError]] = {
    error.__name__: error
    for error in (AskTimeout, ConfigError, Refused, StateChanged, StoreUnavailable)
}
"""Errors of a coordinator that its asker raises again, by name."""

SHARDS_MAX = 10_000
"""Shards that one command may name."""

Place = NodeId | Address | str
"""A node, or the address of a node that may not run yet; a text is either."""


def address_of(place: Place) -> Address:
    """The address alone: a later node at the same address counts, too.

    Raises:
        ConfigError: the text is not an address.
    """
    if isinstance(place, NodeId):
        return place.address
    return place if isinstance(place, Address) else Address.parse(place.partition("#")[0])


def check_shard(region: RegionShell, shard: str) -> None:
    """Check that a type has a shard.

    Raises:
        ConfigError: it has none of this name.
    """
    if not region.router.has_shard(shard):
        raise ConfigError(f"{region.name!r} has no shard {shard!r}")


def agreed(answer: Any) -> Any:
    """Return an answer, or raise the refusal that it is."""
    if isinstance(answer, dict) and "refused" in answer:
        error, message, hint = answer["refused"]
        raise REFUSALS.get(error, Refused)(message, hint=hint)
    return answer


class ShardControl:
    """Asks coordinators. Every method raises UnknownEntityType for an unknown type, Refused if the
    coordinator is not known, and RequestError if it does not answer."""

    def __init__(self, regions: Mapping[str, RegionShell], rpc: NodeRpc) -> None:
        self._regions, self._rpc = regions, rpc

    async def ask(self, name: str, question: str, *args: object) -> Any:
        """The answer of the type's coordinator."""
        coordinator = region_of(self._regions, name).coordinator
        answer = None
        if coordinator is not None:
            answer = await self._rpc.ask(coordinator, question, name, *args, of=name)
        if not answer:
            raise Refused(f"the coordinator of {name!r} is not known yet", hint="try again")
        return agreed(answer)

    async def rebalance(
        self, name: str, *, paused: bool | None = None, moves: int | None = None
    ) -> dict[str, Any]:
        """Check the balance of a type now; with `paused` or `moves`, pause or resume rebalancing,
        or bound the moves at a time (0: as configured), which is stored when this returns.

        Returns:
            `paused`, `held` (why no shard moves for balance), `moving` and `moves_at_a_time`.
        """
        if paused is None and moves is None:
            return dict(await self.ask(name, "rebalance"))
        return dict(await self.ask(name, "slow", paused, moves))

    async def stop(self, name: str, shards: Sequence[str]) -> dict[str, Any]:
        """Stop these shards until a message arrives for them.

        Returns:
            `stopped`: the shards that have stopped; `stopping`: those that are still to stop.

        Raises:
            ConfigError: the type has no such shard, or there are more than `SHARDS_MAX`.
        """
        self._check_shards(name, shards)
        return dict(await self.ask(name, "stop", list(dict.fromkeys(shards))))

    async def places(self, name: str) -> dict[str, Address]:
        """The places that were set for shards of a type."""
        answer = await self.ask(name, "places")
        return {shard: Address.parse(place) for shard, place in answer["places"].items()}

    async def place(self, name: str, changes: Mapping[str, Address | None]) -> dict[str, Address]:
        """Set the places of shards; None takes a place away. The places are stored when this
        returns, and the shards move as soon as they can. Returns every place.

        Raises:
            ConfigError: the type has no such shard.
            Refused: the type has instances, or a node there takes no shard.
            StoreUnavailable: either the old or the new places are stored.
        """
        self._check_shards(name, changes)
        addresses = {shard: str(place) if place else "" for shard, place in changes.items()}
        answer = await self.ask(name, "place", addresses)
        return {shard: Address.parse(place) for shard, place in answer["places"].items()}

    def _check_shards(self, name: str, shards: Collection[str]) -> None:
        region = region_of(self._regions, name)
        for shard in shards:
            check_shard(region, shard)
        if len(shards) > SHARDS_MAX:
            raise ConfigError(f"{counted(len(shards), 'shard')} at once: at most {SHARDS_MAX}")
