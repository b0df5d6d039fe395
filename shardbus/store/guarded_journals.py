"""The guard around the journals of a store that is a plug-in; `guarded` has its rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shardbus.errors import StoreError
from shardbus.store.journal_protocol import Append, JournalPage, NamePage
from shardbus.store.unended_writes import UnendedWrites


class GuardedCall(Protocol):
    """Calls a method of the store, by its name, and checks its answer."""

    async def __call__(
        self,
        method: str,
        fits: Callable[[Any], bool],
        *args: object,
        then: Callable[[], None] = ...,
    ) -> Any: ...


@dataclass(eq=False, repr=False)
class GuardedJournals:
    """Calls the journals of a store by `call`. `outcome` returns the meaning of an answer to one
    append. An opening waits for the appends that have not ended in the store."""

    _call: GuardedCall
    _outcome: Callable[[str, object], StoreError | None]
    _writes: UnendedWrites

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Append to journals."""
        keys = [(append.kind, append.name) for append in appends]
        self._writes.begin(keys)
        answers = await self._call(
            "journals.append",
            lambda answer: isinstance(answer, list | tuple) and len(answer) == len(appends),
            appends,
            then=lambda: self._writes.end(keys),
        )
        return [self._outcome("journals.append", answer) for answer in answers]

    async def open(
        self, kind: str, shard: str, name: str, fence: int, after: int, limit: int
    ) -> JournalPage:
        """Raise the fence of a journal and read it, once its appends have ended."""
        await self._writes.wait((kind, name))
        args = (kind, shard, name, fence, after, limit)
        page: JournalPage = await self._call("journals.open", _is_page, *args)
        return page

    async def read(self, kind: str, shard: str, name: str, after: int, limit: int) -> JournalPage:
        """Read a journal."""
        args = (kind, shard, name, after, limit)
        page: JournalPage = await self._call("journals.read", _is_page, *args)
        return page

    async def trim(
        self, kind: str, shard: str, name: str, fence: int, upto: int, forget: bool = False
    ) -> None:
        """Trim a journal."""
        args = (kind, shard, name, fence, upto, forget)
        await self._call("journals.trim", lambda answer: True, *args)

    async def page(self, kind: str, cursor: str | None, limit: int) -> NamePage:
        """Return journals of a kind."""
        names, after = await self._call("journals.page", _is_page_of_names, kind, cursor, limit)
        return [(shard, name) for shard, name in names], after


def _is_page(answer: Any) -> bool:
    return (
        isinstance(answer, JournalPage)
        and all(isinstance(number, int) for number in (answer.first, answer.last))
        and all(isinstance(entry, bytes) for entry in answer.entries)
    )


def _is_page_of_names(answer: Any) -> bool:
    names, cursor = answer
    return (cursor is None or isinstance(cursor, str)) and all(
        isinstance(shard, str) and isinstance(name, str) for shard, name in names
    )
