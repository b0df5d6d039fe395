"""Entities that save under load, and the judge of the saves' outcomes.

Each account has one sender, which adds 1 and waits for the answer: the new total, after the store
has it. An answer acknowledges a save; an ask without one leaves its save in doubt. At the end the
judge reads the store:

    the totals answered to one sender grow        no acknowledged save was overwritten
    stored >= the last total answered             no acknowledged save was lost
    stored <= answers + asks in doubt             nothing was saved twice
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from shardbus import AsyncClient
from shardbus.errors import RequestError
from shardbus.store.opening import open_store
from shardbus.store.protocol import StateStore
from tests.process.app import Account, Balance
from tests.waiting import until

ASK_S = 30.0
"""Longer than the three attempts of a save, so that its sender gets the cause."""
PAUSE_S = 0.02
ACCOUNTS = 8


@dataclass
class Ledger:
    """The answers to one sender."""

    totals: list[int] = field(default_factory=list)
    doubts: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """The texts of the failed asks, and how often each came."""


class Savers:
    """Senders to `count` accounts, while the context lasts."""

    def __init__(self, client: AsyncClient, count: int = ACCOUNTS) -> None:
        self.ledgers = {f"account-{n}": Ledger() for n in range(count)}
        self._client = client
        self._tasks: list[asyncio.Task[None]] = []
        self._ends = False

    async def __aenter__(self) -> Savers:
        self._tasks = [asyncio.create_task(self._send(name)) for name in self.ledgers]
        await self.proceed("the first answers")
        return self

    async def __aexit__(self, *error: object) -> None:
        self._ends = True
        await asyncio.gather(*self._tasks)

    async def _send(self, name: str) -> None:
        account, ledger = self._client.ref(Account, name), self.ledgers[name]
        while not self._ends:
            try:
                async with asyncio.timeout(ASK_S):
                    ledger.totals.append(await account.add(1))
            except (RequestError, TimeoutError) as error:
                ledger.doubts += 1
                text = str(error) or "no answer in time"
                ledger.errors[text] = ledger.errors.get(text, 0) + 1
            await asyncio.sleep(PAUSE_S)

    @property
    def answers(self) -> int:
        return sum(len(ledger.totals) for ledger in self.ledgers.values())

    @property
    def errors(self) -> str:
        """Return every text that a sender got, a line each."""
        return "\n".join({text for ledger in self.ledgers.values() for text in ledger.errors})

    async def proceed(self, what: str, count: int = 5) -> None:
        """Wait until each sender has `count` more answers."""
        before = {name: len(ledger.totals) for name, ledger in self.ledgers.items()}
        await until(
            lambda: all(len(self.ledgers[n].totals) >= before[n] + count for n in before), what
        )

    async def suffer(self, what: str) -> None:
        """Wait until some ask of each sender has failed."""
        await until(lambda: all(ledger.doubts for ledger in self.ledgers.values()), what)

    def last(self) -> dict[str, int]:
        """Return the last total that each sender was answered."""
        return {name: ledger.totals[-1] for name, ledger in self.ledgers.items()}


async def stored_totals(url: str, names: list[str]) -> dict[str, int]:
    """Read the totals from the store."""
    return await totals_in(open_store(url, cluster="lab", timeout=10.0), names)


async def totals_in(store: StateStore, names: list[str]) -> dict[str, int]:
    """Open a store, and read the totals from it."""
    await store.start()
    try:
        return {name: await _total(store, name) for name in names}
    finally:
        await store.close()


async def _total(store: StateStore, name: str) -> int:
    [data] = await store.read_states("account", [name])
    return 0 if data is None else msgspec.convert(msgspec.msgpack.decode(data), Balance).total


def judge(savers: Savers, stored: dict[str, int]) -> list[str]:
    """Return the rules that were broken; see the module."""
    broken = []
    for name, ledger in savers.ledgers.items():
        totals, at = ledger.totals, stored[name]
        for before, after in pairwise(totals):
            if after <= before:
                broken.append(f"{name}: {after} was answered after {before}")
        if at < totals[-1]:
            broken.append(f"{name}: {totals[-1]} was answered, {at} is stored")
        if at > len(totals) + ledger.doubts:
            broken.append(f"{name}: {at} is stored after {len(totals)} answers")
    return broken
