"""The journals of a simulated cluster's store, with the latency and the failures of its states.

An append, an opening or a trim that arrives after a later one of the same process is refused, and
its sender sends it again if it still waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from shardbus.errors import StoreError
from shardbus.store.journal_protocol import Append, JournalPage, JournalStore, NamePage

T = TypeVar("T")
Key = tuple[str, str]
APPENDED = "appended to"
"""The name of an access that has added entries."""


class Request(Protocol):
    """Sends a request to the server, which carries `work` out when it arrives."""

    def __call__(self, work: Callable[[], Coroutine[Any, Any, T]], /) -> Awaitable[T]: ...


@dataclass(eq=False, repr=False)
class SimJournals:
    """One process's client: a `JournalStore` over `journals`, which never waits. `order` returns
    the check, for the time when a request of these journals is carried out, that none is late.
    `record` notes that a journal was accessed: how, its kind, its name and the fence."""

    _journals: JournalStore
    _request: Request
    _order: Callable[[Sequence[Key]], Callable[[], None]]
    _record: Callable[[str, str, str, int], None]

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        batch = list(appends)
        check = self._order([(call.kind, call.name) for call in batch])

        async def append() -> list[StoreError | None]:
            check()
            before = [
                await self._journals.read(call.kind, call.shard, call.name, 0, 0) for call in batch
            ]
            outcomes = await self._journals.append(batch)
            for call, page, refused in zip(batch, before, outcomes, strict=True):
                if refused is None and page.last == call.after:  # else it is a repeat
                    self._record(APPENDED, call.kind, call.name, call.fence)
            return outcomes

        return await self._request(append)

    async def open(
        self, kind: str, shard: str, name: str, fence: int, after: int, limit: int
    ) -> JournalPage:
        check = self._order([(kind, name)])

        async def open_one() -> JournalPage:
            check()
            page = await self._journals.open(kind, shard, name, fence, after, limit)
            self._record("opened", kind, name, fence)
            return page

        return await self._request(open_one)

    async def read(self, kind: str, shard: str, name: str, after: int, limit: int) -> JournalPage:
        return await self._request(
            lambda: _of(self._journals.read(kind, shard, name, after, limit))
        )

    async def trim(
        self, kind: str, shard: str, name: str, fence: int, upto: int, forget: bool = False
    ) -> None:
        check = self._order([(kind, name)])

        async def trim() -> None:
            check()
            await self._journals.trim(kind, shard, name, fence, upto, forget)

        await self._request(trim)

    async def page(self, kind: str, cursor: str | None, limit: int) -> NamePage:
        return await self._request(lambda: _of(self._journals.page(kind, cursor, limit)))


async def _of(work: Awaitable[T]) -> T:
    return await work
