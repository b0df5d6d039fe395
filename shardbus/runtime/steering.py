"""What people ask of the coordinator of a type, through any node.

The asked node finds the coordinator and asks it (`questions`); what the coordinator refuses comes
back as the error that it raised there.

Source: B.63, B.69, B.77, N.10, S3.19; docs/reference/http.md.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    from shardbus.runtime.kind import Kind
    from shardbus.runtime.questions import Questions

REFUSALS: Mapping[str, type[ShardBusError]] = {
    error.__name__: error for error in (ConfigError, Refused, StoreUnavailable)
}


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


class Steered(Protocol):
    """The node."""

    kinds: dict[str, Kind]
    questions: Questions


class Steering:
    """See the module. Every method raises UnknownEntityType for a type that there is not, Refused
    if the coordinator is not known, and RequestError if it does not answer."""

    def __init__(self, node: Steered) -> None:
        self._node = node

    def kind(self, name: str) -> Kind:
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
            answer = await self._node.questions.ask(coordinator, question, name, *args)
        if not answer:
            raise Refused(f"the coordinator of {name!r} is not known yet", hint="try again")
        if isinstance(answer, dict) and "refused" in answer:
            error, message, hint = answer["refused"]
            raise REFUSALS.get(error, Refused)(message, hint=hint)
        return answer

    async def rebalance(self, name: str) -> None:
        """Look at the balance of a type now."""
        await self.ask(name, "rebalance")

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
        for shard in changes:
            if not self.kind(name).router.has_shard(shard):
                raise ConfigError(f"{name!r} has no shard {shard!r}")
        told = {shard: str(place) if place else "" for shard, place in changes.items()}
        found = await self.ask(name, "place", told)
        return {shard: Address.parse(place) for shard, place in found["places"].items()}
