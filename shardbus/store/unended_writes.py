"""Writes that have begun in a store and have not ended there, also those whose callers have gone
on. A later read of the same row waits for them: the third rule of `protocol`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from shardbus.errors import StoreUnavailable

Key = tuple[str, str]
"""A row: its type or kind, and its id or name."""


class UnendedWrites:
    """The rows that are being written. `seconds` returns how long a reader waits at most. `url` and
    `hint` are for its error."""

    def __init__(self, url: str, seconds: Callable[[], float], hint: str) -> None:
        self._url, self._seconds, self._hint = url, seconds, hint
        self._writes: dict[Key, int] = {}
        """Writes that have not ended, by row."""
        self._awaited: dict[Key, list[asyncio.Future[None]]] = {}
        """Readers that wait for them."""

    def __contains__(self, key: Key) -> bool:
        return key in self._writes

    def begin(self, keys: Sequence[Key]) -> None:
        """Record that writes of these rows begin."""
        for key in keys:
            self._writes[key] = self._writes.get(key, 0) + 1

    def end(self, keys: Sequence[Key]) -> None:
        """Record that writes of these rows have ended."""
        for key in keys:
            left = self._writes.get(key, 1) - 1
            if left:
                self._writes[key] = left
                continue
            self._writes.pop(key, None)
            for ended in self._awaited.pop(key, ()):
                if not ended.done():
                    ended.set_result(None)

    async def wait(self, key: Key) -> None:
        """Wait until no write of a row is under way.

        Raises:
            StoreUnavailable: one has not ended in time.
        """
        if key not in self._writes:
            return
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(key, []).append(ended)
        try:
            async with asyncio.timeout(self._seconds()):
                await ended
        except TimeoutError:
            text = f"{self._url}: an earlier save of {key[0]} {key[1]!r:.100} has not ended"
            raise StoreUnavailable(text, hint=self._hint, definite=True) from None

    def clear(self) -> None:
        """Forget all writes: the store is closed."""
        self._writes.clear()
