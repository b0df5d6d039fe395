"""`client.to("all")`: sends to types with instances by a router that the sender chooses.

The methods are those of the client, with the same arguments. They first learn the type if it is not
known.

Source: docs/partitions.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from shardbus.client.regions import ClientRegions
from shardbus.routing.instance_policies import Choice
from shardbus.routing.instance_refs import by_choice
from shardbus.routing.instance_sender import InstanceSender
from shardbus.routing.refs import ask, attempt, call, milliseconds, pack
from shardbus.wire.schema import encode_value


class Towards:
    """Sends by one router. Every method raises ConfigError if the type has no instances, otherwise
    as the method of `AsyncClient` with its name."""

    def __init__(self, regions: ClientRegions, choice: Choice, timeout_ms: int) -> None:
        self._regions, self._choice, self._timeout_ms = regions, choice, timeout_ms
        self._senders: dict[str | type, InstanceSender] = {}

    async def sender(self, kind: str | type) -> InstanceSender:
        """Return what sends to a type by this router."""
        known, _ = await self._sender_within(kind, self._timeout_ms)
        return known

    async def _sender_within(self, kind: str | type, timeout_ms: int) -> tuple[InstanceSender, int]:
        """Return what sends to a type, and the milliseconds left of the timeout."""
        known, left_ms = self._senders.get(kind), timeout_ms
        if known is None:
            learnt, left_ms = await self._regions.learn_within(kind, timeout_ms)
            known = self._senders[kind] = by_choice(learnt, self._choice)
        return known, left_ms

    async def tell(self, kind: str | type, entity_id: str, message: object, *args: Any) -> None:
        """Send without an answer."""
        sender = await self.sender(kind)
        key, payload = pack(sender, message, args)
        await sender.tell(key, entity_id, payload)

    async def tell_many(self, kind: str | type, messages: Iterable[tuple[str, object]]) -> None:
        """Send a batch of (entity id, message), in order."""
        sender = await self.sender(kind)
        for entity_id, message in messages:
            waits = sender.send(entity_id, message)
            if waits is not sender.done:
                await waits

    async def cast(self, kind: str | type, entity_id: str, handler: str, *args: Any) -> None:
        """Tell a handler by its name; it may have no arguments."""
        sender = await self.sender(kind)
        await sender.tell(sender.key(handler), entity_id, encode_value(args))

    async def ask(
        self,
        kind: str | type,
        entity_id: str,
        message: object,
        *args: Any,
        timeout: float | None = None,
    ) -> Any:
        """Send and await the answer; by `all`, a dict of node to reply or error."""
        sender, left_ms = await self._sender_within(kind, self._ms(timeout))
        return await ask(sender, entity_id, message, args, left_ms)

    async def call(
        self,
        kind: str | type,
        entity_id: str,
        handler: str,
        *args: Any,
        timeout: float | None = None,
    ) -> Any:
        """Ask a handler by its name; it may have no arguments."""
        sender, left_ms = await self._sender_within(kind, self._ms(timeout))
        return await call(sender, entity_id, handler, args, left_ms)

    async def ask_many(
        self,
        kind: str | type,
        messages: Iterable[tuple[str, object]],
        timeout: float | None = None,
    ) -> list[Any]:
        """Ask a batch of (entity id, message). Returns answers or errors, in the same order."""
        sender, left_ms = await self._sender_within(kind, self._ms(timeout))
        asks = [attempt(sender, entity_id, m, left_ms) for entity_id, m in messages]
        return await asyncio.gather(*asks, return_exceptions=True)

    def _ms(self, timeout: float | None) -> int:
        return self._timeout_ms if timeout is None else milliseconds(timeout)
