"""The scan of journals goes over every page, waits for room, and goes on when the store fails."""

from __future__ import annotations

import asyncio
from typing import Any

from shardbus.entities.journal_scan import JournalScan
from shardbus.errors import StoreUnavailable
from shardbus.store.journal_protocol import JournalPage
from tests.virtual_time import virtual


class FakeJournals:
    """Pages of three journals, each with two events; every second call fails."""

    def __init__(self, names: list[str]) -> None:
        self._names, self.calls = names, 0

    async def page(
        self, kind: str, cursor: str | None, limit: int
    ) -> tuple[list[tuple[str, str]], str | None]:
        self.calls += 1
        if self.calls % 2 == 0:
            raise StoreUnavailable("it is away")
        first = 0 if cursor is None else int(cursor)
        names = self._names[first : first + 3]
        following = first + 3 if first + 3 < len(self._names) else None
        return [("1", name) for name in names], None if following is None else str(following)

    async def read(self, kind: str, shard: str, name: str, after: int, limit: int) -> JournalPage:
        return JournalPage(1, [], 2)


class Scanned:
    """A scan over fake journals, and its reports."""

    def __init__(self, names: list[str]) -> None:
        self.news: list[str] = []
        self.has_room = True
        journals: Any = FakeJournals(names)
        self.scan = JournalScan(
            "statement",
            "account",
            journals,
            self._numbers,
            lambda name: name[-1],
            lambda shard, name: self.news.append(name),
            lambda: self.has_room,
            asyncio.get_running_loop(),
        )

    async def _numbers(self, names: Any) -> list[int]:
        return [2 if name.startswith("ok") else 0 for name in names]


@virtual
async def test_every_page_is_scanned_though_the_store_fails_in_between() -> None:
    scanned = Scanned([f"n{n}-7" for n in range(10)] + ["ok-7", "other-8"])
    scanned.scan.add(["7"])
    assert scanned.scan.shards == 1
    await asyncio.sleep(60)
    assert scanned.news == [f"n{n}-7" for n in range(10)]
    assert scanned.scan.shards == 0


@virtual
async def test_a_scan_waits_for_room_and_a_shard_that_left_is_left_out() -> None:
    scanned = Scanned(["a-7", "b-8"])
    scanned.has_room = False
    scanned.scan.add(["7", "8"])
    await asyncio.sleep(60)
    assert scanned.news == []
    scanned.scan.forget("8")
    scanned.has_room = True
    await asyncio.sleep(1)
    assert scanned.news == ["a-7"]
    scanned.scan.add(["8"])
    await asyncio.sleep(60)
    assert scanned.news == ["a-7", "b-8"]
    scanned.scan.stop()
