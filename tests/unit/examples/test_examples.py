"""The promises of the examples, without nodes: their entities on a bench, their database on a
file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from examples import event_counter, office
from examples.accounts import app
from examples.accounts.repository import Outdated, Repository
from examples.event_counter import (
    CounterChanged,
    Decrement,
    EntityEnvelope,
    EventLog,
    Get,
    Increment,
    Stop,
)
from shardbus import ShardBus, StoreUnavailable
from shardbus.errors import EntityFailed, Unhandled
from shardbus.wire.schema import encode_value
from tests.unit.entities.entity_kit import Bench
from tests.waiting import turns, until

BENCHES: list[Bench] = []


@pytest.fixture(autouse=True)
async def _nothing_is_left_under_way() -> AsyncIterator[None]:
    yield
    while BENCHES:
        BENCHES.pop().host.close()
    await turns()


def bench(cls: type) -> Bench:
    """A bench for a class of the examples, which stays declared as it is there."""
    bus = ShardBus("examples")
    bus.entity("thing")(type(cls.__name__, (cls,), {}))
    BENCHES.append(Bench(bus))
    return BENCHES[-1]


# The event counter


async def count(b: Bench, *commands: object) -> int:
    for command in commands:
        await b.ask_message("7", command)
    return int(await b.ask_message("7", Get(7)))


def log_of(b: Bench) -> bytes | None:
    return b.keeper.states["7"][1]


async def test_S2_9_a_counter_is_made_of_its_stored_events_again() -> None:
    b = bench(event_counter.Counter)
    assert await count(b, Increment(), Increment(), Decrement()) == 1
    events = [CounterChanged(+1), CounterChanged(+1), CounterChanged(-1)]
    assert log_of(b) == encode_value(EventLog(0, events))
    await b.ask_message("7", Stop())
    assert b.activation("7") is None
    assert await count(b) == 1
    assert b.keeper.loads == 2


async def test_S2_74_events_are_folded_into_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_counter, "SNAPSHOT_AFTER", 3)
    b = bench(event_counter.Counter)
    assert await count(b, *[Increment()] * 3) == 3
    assert log_of(b) == encode_value(EventLog(3, []))
    assert await count(b, Decrement()) == 2
    assert log_of(b) == encode_value(EventLog(3, [CounterChanged(-1)]))
    await b.ask_message("7", Stop())
    assert await count(b, Increment()) == 3


async def test_S2_9_a_counter_that_is_idle_stops_and_is_recovered() -> None:
    BENCHES.append(b := Bench(event_counter.bus))
    assert await count(b, Increment()) == 1
    b.pass_ticks(int(event_counter.IDLE_S * 20) + 1)
    await turns()
    assert b.activation("7") is None
    assert await count(b) == 1


async def test_S2_9_an_event_that_is_not_stored_does_not_count() -> None:
    b = bench(event_counter.Counter)
    assert await count(b, Increment()) == 1
    b.keeper.fail_saves.append(StoreUnavailable("gone"))
    with pytest.raises(EntityFailed):
        await b.ask_message("7", Increment())
    assert await count(b) == 1


@pytest.mark.parametrize(
    ("message", "parsed"),
    [
        (EntityEnvelope(7, Increment()), ("7", Increment())),
        (EntityEnvelope(8, Get(9)), ("8", Get(9))),
        (Get(123), "123"),
        (Increment(), None),
    ],
)
def test_S2_12_the_counters_extractor_knows_both_ways(message: object, parsed: object) -> None:
    assert event_counter.extract_entity_id(message) == parsed


def test_S2_15_the_counters_shards_are_numbers() -> None:
    assert [event_counter.extract_shard_id(i) for i in ("7", "107", "-1")] == ["7", "7", "99"]


# Accounts


class Fake:
    """A repository whose calls end when the test says so."""

    def __init__(self) -> None:
        self.under_way: list[tuple[int, asyncio.Future[int]]] = []

    async def read(self, account: str, fence: int) -> int:
        return await self._call(0)

    async def write(self, account: str, fence: int, cents: int) -> int:
        return await self._call(cents)

    async def _call(self, cents: int) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.under_way.append((cents, future))
        return await future

    async def end(self, outcome: int | Exception | None = None) -> None:
        """The oldest call ends so; a write, by default, with its written value."""
        await until(lambda: self.under_way, "a call")
        cents, future = self.under_way.pop(0)
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(cents if outcome is None else outcome)
        await turns()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    monkeypatch.setattr(app, "repository", fake)
    return fake


class Account:
    """Either way to write it, asked alike."""

    def __init__(self, cls: type) -> None:
        self.b = bench(cls)
        self._handlers = cls is app.PlainAccount

    def change(self, cents: int) -> asyncio.Future[Any]:
        if self._handlers:
            return self.b.ask("ann", "change", cents)
        return self.b.ask_message("ann", cents)

    def balance(self) -> asyncio.Future[Any]:
        if self._handlers:
            return self.b.ask("ann", "balance")
        return self.b.ask_message("ann", "balance")


@pytest.fixture(params=[app.Account, app.PlainAccount])
async def account(request: pytest.FixtureRequest, fake: Fake) -> Account:
    return Account(request.param)


async def test_S4_18_S4_19_an_account_loads_before_it_answers(account: Account, fake: Fake) -> None:
    asks = [account.balance(), account.change(5), account.balance()]
    await turns()
    assert not any(ask.done() for ask in asks)
    assert len(fake.under_way) == 1
    await fake.end(10)
    assert await asks[0] == 10
    await fake.end()
    assert await asyncio.gather(*asks[1:]) == [15, 15]


async def test_S4_20_a_load_that_fails_costs_no_message(account: Account, fake: Fake) -> None:
    asks = [account.balance() for _ in range(3)]
    await fake.end(OSError("no database"))
    await fake.end(10)
    assert await asyncio.gather(*asks) == [10] * 3
    assert account.b.host.counts.failures == 1


async def test_S4_21_S4_22_each_change_is_answered_to_who_wanted_it(
    account: Account, fake: Fake
) -> None:
    asks = [account.change(1), account.change(10), account.change(100)]
    await fake.end(0)
    for done in range(3):
        assert [ask.done() for ask in asks] == [True] * done + [False] * (3 - done)
        await fake.end()
    assert await asyncio.gather(*asks) == [1, 11, 111]


async def test_S4_23_a_change_that_fails_is_told_and_what_is_stored_counts(
    account: Account, fake: Fake
) -> None:
    asks = [account.change(5), account.change(7), account.balance()]
    await fake.end(10)
    await fake.end(OSError("disk full"))
    with pytest.raises(EntityFailed, match="OSError: disk full"):
        await asks[0]
    await fake.end(10)
    await fake.end()
    assert await asyncio.gather(*asks[1:]) == [17, 17]


async def test_an_account_takes_nothing_else(fake: Fake) -> None:
    account = Account(app.Account)
    balance, odd = account.balance(), account.b.ask_message("ann", "all of it")
    await fake.end(3)
    assert await balance == 3
    with pytest.raises(Unhandled):
        await odd


async def test_the_database_refuses_debts_and_outdated_fences(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "new" / "bank.sqlite")
    assert await repository.read("ann", 7) == 0
    assert await repository.write("ann", 7, 500) == 500
    with pytest.raises(sqlite3.IntegrityError, match="an account is never in debt"):
        await repository.write("ann", 7, -1)
    assert await repository.read("ann", 7) == 500
    assert await repository.read("ann", 9) == 500
    with pytest.raises(Outdated):
        await repository.write("ann", 7, 0)
    with pytest.raises(Outdated):
        await repository.read("ann", 8)
    assert await repository.write("ann", 9, 400) == 400
    assert await repository.read("bob", 1) == 0


# The office


async def test_an_invoice_is_issued_once() -> None:
    b = bench(office.Invoice)
    assert await b.ask("1001", "issue", {"desk": 1, "chair": 4}) == 64600
    assert await b.ask("1001", "issue", {"lamp": 1}) == 64600
    with pytest.raises(EntityFailed, match="KeyError"):
        await b.ask("1002", "issue", {"sofa": 1})


async def test_an_order_collects() -> None:
    b = bench(office.Order)
    await b.ask("1001", "add", "chair", 3)
    assert await b.ask("1001", "add", "chair") == {"chair": 4}
    b.host.ref = lambda cls, entity_id: _Invoice(cls, entity_id)
    assert await b.ask("1001", "close") == "Invoice 1001 {'chair': 4}"


class _Invoice:
    def __init__(self, cls: type, entity_id: str) -> None:
        self._name = f"{cls.__name__} {entity_id}"

    async def issue(self, lines: dict[str, int]) -> str:
        return f"{self._name} {lines}"
