"""Pages of the keys of a Redis server, or of all masters of a cluster, by SCAN.

A cursor of SCAN is a place in the hash table of one process, and says nothing to another one. So a
cursor here names the server and its run id besides that place; a server that has been restarted or
replaced since refuses it, for keys would be missing. The masters of a cluster come one after the
other, in the order of their names. While slots of a cluster move, a key may be missing.

SCAN looks at every key of the server, whatever its name. One page therefore looks at a bounded
number of keys, and may have none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError, ResponseError

from shardbus.errors import StoreError, StoreUnavailable
from shardbus.store.protocol import IdPage

SCAN_KEYS = 1000
"""Keys that the server looks at in one call."""
SCANS_MAX = 10
"""Calls, at most, for one page."""


class KeyScan:
    """Lists keys through a client that `connect` creates. `shown` names the server in errors;
    `timeout` bounds a call, in seconds. `one_server`: the client reaches no cluster."""

    def __init__(
        self, connect: Callable[[], Any], shown: str, *, timeout: float, one_server: bool
    ) -> None:
        self._connect, self._shown = connect, shown
        self._timeout, self._one_server = timeout, one_server
        self._client: Any = None
        self._is_former = False
        """The client may be connected to a server that is the master no more."""

    def leave_server(self) -> None:
        """Let the next page connect anew: the store has another server."""
        self._is_former = True

    async def page(self, pattern: str, cursor: str | None, limit: int) -> IdPage:
        """Return about `limit` keys after `cursor`, and the next cursor, None at the end.

        Raises:
            StoreError: the cursor is of another server. StoreUnavailable: there is no answer.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._page(pattern, cursor, limit)
        except (RedisError, OSError, TimeoutError) as error:
            await self.close()
            hint = "the user needs the command SCAN"
            why = f"{self._shown} does not list its keys: {str(error) or 'no answer in time'}"
            raise StoreUnavailable(why, hint=hint, definite=True) from None

    async def close(self) -> None:
        """Close the connection. The next page opens another one."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                await client.aclose()

    async def _page(self, pattern: str, cursor: str | None, limit: int) -> IdPage:
        if self._is_former:
            self._is_former = False
            await self.close()
        if self._client is None:
            self._client = self._connect()
        nodes = await self._nodes()
        name, run_id, place = _parsed(cursor) if cursor else (next(iter(nodes)), None, 0)
        if name not in nodes or (run_id is not None and run_id != await self._run_id(nodes[name])):
            raise StoreError(
                f"{self._shown} has another server than when the list began",
                hint="list again from the start",
            )
        keys: dict[str, None] = {}
        for _ in range(SCANS_MAX):
            place, batch = await self._scan(nodes[name], place, pattern, min(limit, SCAN_KEYS))
            keys.update((key.decode(), None) for key in batch)
            if place == 0 or len(keys) >= limit:
                break
        if place == 0:
            later = [other for other in nodes if other > name]
            if not later:
                return list(keys), None
            name = later[0]
        return list(keys), f"{name} {await self._run_id(nodes[name])} {place}"

    async def _nodes(self) -> dict[str, Any]:
        """Return the masters of a cluster by name, sorted; of one server, an empty name."""
        if self._one_server:
            return {"-": None}
        await self._client.initialize()
        return dict(sorted((node.name, node) for node in self._client.get_primaries()))

    async def _run_id(self, node: Any) -> str:
        """Return the start of the server's run id; "-" if it hides it."""
        named = {} if node is None else {"target_nodes": node}
        try:
            answer = await self._client.info("server", **named)
        except ResponseError:
            return "-"
        return str(answer.get("run_id", ""))[:12] or "-"

    async def _scan(
        self, node: Any, place: int, pattern: str, count: int
    ) -> tuple[int, list[bytes]]:
        scan = self._client.scan
        if node is None:
            after, keys = await scan(place, match=pattern, count=count)
            return after, keys
        after, keys = await scan(place, match=pattern, count=count, target_nodes=node)
        return (after[node.name] if isinstance(after, dict) else after), keys


def _parsed(cursor: str) -> tuple[str, str, int]:
    """Return the server's name, its run id and the place of a cursor.

    Raises:
        StoreError: it is no cursor.
    """
    parts = cursor.split(" ")
    if len(parts) != 3 or not (parts[2].isascii() and parts[2].isdigit()):
        raise StoreError(f"{cursor!r:.60} is no cursor of this store")
    return parts[0], parts[1], int(parts[2])
