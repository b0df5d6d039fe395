"""What people ask of the coordinator of a type, through any node.

The asked node finds the coordinator and asks it (`questions`); what the coordinator refuses comes
back as the error that it raised there.

Source: B.63, B.69, B.77, N.10, S3.19; docs/reference/http.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from shardbus.errors import (
    ConfigError,
    Refused,
    ShardBusError,
    StoreUnavailable,
    UnknownEntityType,
)
from shardbus.ids import Address, NodeId

if TYPE_CHECKING:
    from shardbus.node.rpc import NodeRpc
    from shardbus.shells.region import RegionShell

REFUSALS: Mapping[str, type[ShardBusError]] = {
    error.__name__: error for error in (ConfigError, Refused, StoreUnavailable)
}


SHARDS_MAX = 10_000
"""Shards that one command may name."""

Place = NodeId | Address | str
"""A node, or the address of one that may not be there yet, also as text."""


def address_of(place: Place) -> Address:
    """The address alone, for whoever lives there shall host.

    Raises:
        ConfigError: the text is no address.
    """
    if isinstance(place, NodeId):
        return place.address
    return place if isinstance(place, Address) else Address.parse(place.partition("#")[0])


class ShardControlServices(Protocol):
    """The node."""

    kinds: dict[str, RegionShell]
    rpc: NodeRpc


class ShardControl:
    """See the module. Every method raises UnknownEntityType for a type that there is not, Refused
    if the coordinator is not known, and RequestError if it does not answer."""

    def __init__(self, node: ShardControlServices) -> None:
        self._node = node

    def kind(self, name: str) -> RegionShell:
        """The type, as this node runs it."""
        kind = self._node.kinds.get(name)
        if kind is None:
            raise UnknownEntityType(f"there is no entity type {name!r}")
        return kind

    async def ask(self, name: str, question: str, *args: object) -> Any:
        """What the type's coordinator answers."""
        coordinator = self.kind(name).coordinator
        answer = None
        if coordinator is not None:
            answer = await self._node.rpc.ask(coordinator, question, name, *args, of=name)
        if not answer:
            raise Refused(f"the coordinator of {name!r} is not known yet", hint="try again")
        if isinstance(answer, dict) and "refused" in answer:
            error, message, hint = answer["refused"]
            raise REFUSALS.get(error, Refused)(message, hint=hint)
        return answer

    async def rebalance(
        self, name: str, *, paused: bool | None = None, moves: int | None = None
    ) -> dict[str, Any]:
        """Look at the balance of a type now; or pause that, or resume it, or bound the moves at a
        time (0: as the settings say). What was told is stored when this returns. Returns how fast
        it goes now: `paused`, `held` (why nothing moves for balance), `moving` and
        `moves_at_a_time`."""
        if paused is None and moves is None:
            return dict(await self.ask(name, "rebalance"))
        return dict(await self.ask(name, "slow", paused, moves))

    async def stop(self, name: str, shards: Sequence[str]) -> dict[str, Any]:
        """Stop these shards where they are, until somebody sends to them. Returns those that have
        `stopped`, and those that are `stopping` and had not by the time of the answer.

        Raises:
            ConfigError: the type has no such shard, or there are too many.
        """
        self._check_shards(name, shards)
        return dict(await self.ask(name, "stop", list(dict.fromkeys(shards))))

    async def places(self, name: str) -> dict[str, Address]:
        """Where somebody said that shards shall live."""
        found = await self.ask(name, "places")
        return {shard: Address.parse(place) for shard, place in found["places"].items()}

    async def place(self, name: str, changes: Mapping[str, Address | None]) -> dict[str, Address]:
        """These shards shall live there, or, None, where the strategy likes; returns every place.
        It is stored when this returns, and done as soon as it can be.

        Raises:
            ConfigError: the type has no such shard. Refused: its strategy is not `external`.
            StoreUnavailable: the old or the new places count.
        """
        self._check_shards(name, changes)
        told = {shard: str(place) if place else "" for shard, place in changes.items()}
        found = await self.ask(name, "place", told)
        return {shard: Address.parse(place) for shard, place in found["places"].items()}

    def _check_shards(self, name: str, shards: Collection[str]) -> None:
        has_shard = self.kind(name).router.has_shard
        for shard in shards:
            if not has_shard(shard):
                raise ConfigError(f"{name!r} has no shard {shard!r}")
        if len(shards) > SHARDS_MAX:
            raise ConfigError(f"{len(shards)} shards at once: at most {SHARDS_MAX}")
