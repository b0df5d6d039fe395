"""Room for a tell: how senders wait until there is some.

Source: docs/architecture.md; N.15.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardbus.transport.session import Session


class RoomWaiter:
    """Awaited, it is done when its session is writable, or lost. For who does not await it, nothing
    is kept."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def __await__(self) -> Generator[object, None, None]:
        return self._session.room().__await__()


def wake(futures: list[asyncio.Future[None]]) -> None:
    """They wait no longer."""
    for future in futures:
        if not future.done():
            future.set_result(None)
    futures.clear()
