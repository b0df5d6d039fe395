"""The list of stored ids, and a call of each: definite outcomes, and the rate after a pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from shardbus import EventSourced, ShardBus, event, handler
from shardbus.client.stored import BURST_S, call_each, call_each_here, stored_ids
from shardbus.errors import UnknownEntityType
from shardbus.testing import TestCluster
from tests.virtual_time import virtual

PAGES = {"": (["a", "b"], "2"), "2": (["c"], "3"), "3": (["d"], None)}


@pytest.mark.parametrize("broken", ["", "2", "3"])
async def test_an_error_is_definite_on_the_first_page_only(broken: str) -> None:
    errors: list[str] = []

    async def ask_page(cursor: str) -> tuple[list[str], str | None]:
        if cursor == broken:
            raise UnknownEntityType("this client may not use it")
        return PAGES[cursor]

    async def read() -> None:
        async for entity_id in stored_ids(ask_page, 0.0):
            errors.append(entity_id)  # noqa: PERF401 - the loop ends by an error

    with pytest.raises(UnknownEntityType) as failed:
        await read()
    assert failed.value.definite is (not errors)


RATE = 100.0
BURST = int(BURST_S * RATE)


def check_rate(begun: list[float]) -> None:
    """No more calls at once than a pause of `BURST_S` makes up for."""
    assert len(begun) == 60
    assert all(
        late - early >= 0.99 / RATE for early, late in zip(begun, begun[BURST + 2 :], strict=False)
    )


@virtual
async def test_a_slow_page_is_not_made_up_for_without_the_rate() -> None:
    begun: list[float] = []

    async def ids() -> AsyncIterator[str]:
        for n in range(60):
            if n == 10:
                await asyncio.sleep(30)
            yield str(n)

    async def call(entity_id: str) -> None:
        begun.append(asyncio.get_running_loop().time())

    await call_each(ids(), call, rate=RATE, at_once=16, on_error=None)
    check_rate(begun)


def test_a_slow_page_of_a_thread_is_not_made_up_for_without_the_rate() -> None:
    now, begun = [0.0], list[float]()

    def pause(seconds: float) -> None:
        now[0] += seconds

    def ids() -> Iterator[str]:
        for n in range(60):
            if n == 10:
                pause(30)
            yield str(n)

    def call(entity_id: str) -> None:
        begun.append(now[0])

    call_each_here(ids(), call, rate=RATE, on_error=None, clock=lambda: now[0], sleep=pause)
    check_rate(begun)


bus = ShardBus("ledger")


@dataclass(frozen=True)
class Deposited:
    amount: int


@dataclass
class Balance:
    amount: int = 0


@bus.entity("account", shards=4, snapshot_after=5, events_kept=0)
class Account(EventSourced):
    state: Balance

    @event
    def deposited(self, event: Deposited) -> None:
        self.state.amount += event.amount

    @handler
    async def deposit(self, amount: int) -> int:
        await self.persist(Deposited(amount))
        return self.state.amount

    @handler
    def balance(self) -> int:
        return self.state.amount


async def test_event_sourced_entities_are_listed_and_called_with_a_snapshot_and_without() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        client = cluster.client()
        deposits = {f"{n % 3}-{n:02}": n for n in range(1, 31)}
        for entity_id, number in deposits.items():
            for _ in range(1 + number % 6):  # 5 make a snapshot, and leave no event
                await client.ref(Account, entity_id).deposit(1)
        await client.ref(Account, "only asked").balance()

        async def ids(prefix: str = "") -> list[str]:
            return sorted([each async for each in client.stored(Account, prefix=prefix)])

        assert await cluster.spawn(ids()) == sorted(deposits)
        assert await cluster.spawn(ids("1-")) == [each for each in deposits if each[0] == "1"]
        called = await cluster.spawn(client.for_each(Account, "deposit", 1000))
        assert (called.done, called.failed) == (30, 0)
        for entity_id, number in deposits.items():
            assert await client.ref(Account, entity_id).balance() == 1001 + number % 6
