"""Accounts that save under faults, and the judge of acknowledged saves.

Each account has one sender, which adds 1 and waits for the new total: an acknowledged save. One
that got no answer is in doubt.

    a total is above the one answered before     no acknowledged save was lost or overwritten
    stored >= the last total answered            the same, at the end
    stored <= answers + asks in doubt            nothing was saved twice

docs/guarantees.md promises the first two as long as one server keeps the data. If the store fails
over, the replica may lack the last saves. Such a *gap* is the time from the fault until the store
is whole again: two answers are not compared across it. A failover while the senders rest and after
the replica has everything makes no gap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from shardbus import AsyncClient, RequestError
from tests.process.app import Account

ACCOUNTS = 8
ASK_S = 30.0
"""Longer than the three attempts of a save."""
PAUSE_S = 0.1


class Answer(NamedTuple):
    """A total, the instant at which the sender asked, and the instant of the answer, in seconds."""

    total: int
    asked_at: float
    at: float


class Gap(NamedTuple):
    """A time in which the store may lose acknowledged saves, in seconds."""

    begun: float
    ended: float


@dataclass
class Kept:
    """The answers that one sender got."""

    answers: list[Answer] = field(default_factory=list)
    doubts: int = 0


class Savers:
    """A sender for each account."""

    def __init__(self, client: AsyncClient) -> None:
        self.accounts = {f"account-{n}": Kept() for n in range(ACCOUNTS)}
        self._client = client
        self._open = asyncio.Event()
        self._open.set()
        self._busy = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._ends = False

    def begin(self) -> None:
        """Start sending."""
        self._tasks = [asyncio.create_task(self._send(name)) for name in self.accounts]

    async def end(self) -> None:
        """Wait for the asks under way, then stop."""
        self._ends = True
        self._open.set()
        await asyncio.gather(*self._tasks)

    async def rest(self) -> None:
        """Wait until no sender waits for an answer, and send nothing until `resume`."""
        self._open.clear()
        while self._busy:
            await asyncio.sleep(0.01)

    def resume(self) -> None:
        self._open.set()

    @property
    def answered(self) -> dict[str, int]:
        """The number of answers of each account."""
        return {name: len(account.answers) for name, account in self.accounts.items()}

    async def _send(self, name: str) -> None:
        account, kept = self._client.ref(Account, name), self.accounts[name]
        while not self._ends:
            await self._open.wait()
            self._busy += 1
            asked_at = time.monotonic()
            try:
                async with asyncio.timeout(ASK_S):
                    total = await account.add(1)
                kept.answers.append(Answer(total, asked_at, time.monotonic()))
            except (RequestError, TimeoutError):
                kept.doubts += 1
            finally:
                self._busy -= 1
            await asyncio.sleep(PAUSE_S)


def judge(
    accounts: Mapping[str, Kept], stored: Mapping[str, int], gaps: Sequence[Gap]
) -> list[str]:
    """Return the rules that were broken."""
    broken = []
    for name, account in accounts.items():
        for before, after in pairwise(account.answers):
            if after.total <= before.total and not _across(before.at, after.at, gaps):
                broken.append(f"{name}: {after.total} was answered after {before.total}")
        at, answers = stored.get(name, 0), account.answers
        if answers and at < answers[-1].total and not _across(answers[-1].at, float("inf"), gaps):
            broken.append(f"{name}: {answers[-1].total} was answered, {at} is stored")
        if at > len(answers) + account.doubts:
            broken.append(
                f"{name}: {at} is stored after {len(answers)} answers and {account.doubts} doubts"
            )
    return broken


def _across(first: float, second: float, gaps: Sequence[Gap]) -> bool:
    """True if a gap touches the time between two answers."""
    return any(gap.begun <= second and gap.ended >= first for gap in gaps)
