"""Replicated values for a client: `client.data`, which has the calls of `bus.data`.

A client has no store. Its contact, which is a node, does each step with its own: it reads, or it
writes a change that the client has computed. A read without an answer is repeated, by the next
contact, for the time of an ask. A write is sent once: without an answer it is in doubt, as one
whose replicas did not answer.

    get, put, update, delete, keys    one or two steps
    watch                             each `WATCH_S`: the keys that have changed, then their values

Source: docs/how-to/replicated-values.md; S3.81-S3.89, B.133.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec

from shardbus.client.regions import CLOSED
from shardbus.errors import (
    AskTimeout,
    BufferFull,
    ConfigError,
    EntityFailed,
    LocalProtocolError,
    NodeLost,
    StoreUnavailable,
    ValueRefused,
)
from shardbus.replication.quorum import Level, check_level
from shardbus.replication.versions import DataChange, DataValue
from shardbus.store.replicated_data import SharedValues
from shardbus.store.replicated_values import Since, watch_values
from shardbus.transport.permissions import VALUES_TYPE

AskNode = Callable[..., Awaitable[Any]]
"""Asks the contact for a step."""
AGAIN_S = 0.1
"""Between two attempts."""
DEFAULT = ""
"""The level that the node has in its settings."""


class NodeValues:
    """The values, as the contact reads and writes them. `within`: seconds for which a step is
    repeated. `is_closed` says that the client is."""

    def __init__(self, ask: AskNode, within: float, is_closed: Callable[[], bool]) -> None:
        self._ask, self._within, self._is_closed = ask, within, is_closed

    @property
    def is_open(self) -> bool:
        """True until the client is closed."""
        return not self._is_closed()

    async def get(self, name: str, level: Level) -> DataValue:
        """Return the value that the replicas make together. Raises as `ReplicatedValues.get`."""
        return _value(await self._step("get", name, level, None))

    async def write(self, name: str, change: DataChange, level: Level) -> DataValue:
        """Write a value. Raises as `ReplicatedValues.write`; StoreUnavailable, too, if no node has
        answered."""
        return _value(await self._step("write", name, level, change))

    async def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with a text."""
        keys: list[str] = await self._step("keys", prefix, DEFAULT, None)
        return keys

    async def changed(self, prefix: str, since: Since) -> tuple[set[str], bool]:
        """Return the keys that have changed, as `ReplicatedValues.changed`."""
        keys, complete, until = await self._step("changed", prefix, DEFAULT, since)
        since.update(msgspec.convert(until, Since))
        return set(keys), complete

    async def watch(self, prefix: str, level: Level) -> AsyncGenerator[tuple[str, DataValue], None]:
        """Yield values as `watch_values`.

        Raises:
            LocalProtocolError: the client was closed.
        """
        changes = watch_values(self, prefix, level)
        try:
            async for name, value in changes:
                yield name, value
        finally:
            await changes.aclose()
        raise LocalProtocolError(CLOSED)

    async def _step(self, step: str, name: str, level: Level, content: object) -> Any:
        """Let the contact do a step. Raises its refusal."""
        answer = await self._answer(step, name, level, content)
        match answer:
            case {"done": done}:
                return done
            case {"refused": [key, reason, detail, limit]}:
                raise ValueRefused(key, reason, detail, limit)
            case {"unavailable": [text, hint, definite]}:
                raise StoreUnavailable(text, hint=hint, definite=definite)
            case {"invalid": [text, hint]}:
                raise ConfigError(text, hint=hint)
            case _:
                raise StoreUnavailable(f"the node has answered {answer!r:.100}", definite=False)

    async def _answer(self, step: str, name: str, level: Level, content: object) -> Any:
        """Return the answer to a step. One that has had no effect for certain is repeated for a
        time.

        Raises:
            StoreUnavailable: no node has answered, or the client has closed meanwhile.
            LocalProtocolError: the client was closed before.
        """
        loop = asyncio.get_running_loop()
        until, trouble = loop.time() + self._within, ""
        while True:
            try:
                return await self._ask(VALUES_TYPE, step, name, level, content)
            except LocalProtocolError:
                if not trouble:
                    raise
                text = f"no node has answered about {name!r:.100}: {trouble}"
                raise StoreUnavailable(text, definite=True) from None
            except (NodeLost, AskTimeout, BufferFull, EntityFailed) as error:
                definite = error.definite or step != "write"
                if not definite or loop.time() + AGAIN_S >= until:
                    doubt = "" if definite else "; the write may be stored, or may be yet, once"
                    text = f"no node has answered about {name!r:.100}{doubt}: {error}"
                    raise StoreUnavailable(text, definite=definite) from error
                trouble = str(error)
            await asyncio.sleep(AGAIN_S)


class ClientData(SharedValues):
    """The replicated values of a cluster, as a client reaches them by its contact: the calls of
    `SharedValues`. A client that is closed raises LocalProtocolError."""

    def __init__(self, values: NodeValues) -> None:
        self._nodes = values

    @property
    def _values(self) -> NodeValues:
        return self._nodes

    def _level(self, name: str, level: Level | None) -> Level:
        return DEFAULT if level is None else check_level(name, level)

    def _stamped(self, change: DataChange) -> DataChange:
        return change  # by the node


def _value(raw: Any) -> DataValue:
    value: DataValue = msgspec.convert(raw, DataValue)
    return value
