"""Projections: a read side handles the events of each entity in order, its own state has each once,
and no death, outage, move or failure loses one or skips one silently."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from shardbus import (
    ConfigError,
    Entity,
    EventSourced,
    Projection,
    Rejection,
    RequestError,
    ShardBus,
    Unhandled,
    event,
    handler,
)
from shardbus.testing import TestCluster
from shardbus.wire.schema import decode_value
from shardbus.wire.stored_state import split, split_numbered, split_record
from tests.markers import long_only


@dataclass(frozen=True)
class Deposited:
    amount: int


@dataclass(frozen=True)
class Withdrawn:
    amount: int


@dataclass(frozen=True)
class Walked:
    metres: int


@dataclass(frozen=True)
class Distance:
    metres: int = 0


def further(state: Distance, event: Walked) -> Distance:
    return Distance(state.metres + event.metres)


@dataclass
class Balance:
    amount: int = 0


@dataclass
class Lines:
    amounts: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


@dataclass
class Total:
    amount: int = 0
    count: int = 0


class Outside:
    """A system beside the store, and the faults of its callers."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = defaultdict(list)
        """The numbers of the events that arrived, by account."""
        self.fails: set[tuple[str, int]] = set()
        """Account and number of events whose handler raises."""
        self.error: Exception = ValueError("cannot read this")
        """The error that it raises."""


def declared(*, projections: bool = True, **options: Any) -> Any:
    """Return an application, its classes and its outside."""
    bus, outside = ShardBus("bank"), Outside()
    own: dict[str, Any] = {"bus": bus, "outside": outside}

    @bus.entity(name="account", shards=10, **options)
    class Account(EventSourced):
        state: Balance

        @event
        def deposited(self, event: Deposited) -> None:
            self.state.amount += event.amount

        @event
        def withdrawn(self, event: Withdrawn) -> None:
            self.state.amount -= event.amount

        @handler
        async def deposit(self, amount: int) -> int:
            await self.persist(Deposited(amount))
            return self.state.amount

        @handler
        async def deposit_all(self, amounts: list[int]) -> None:
            await self.persist(*map(Deposited, amounts))

        @handler
        async def withdraw(self, amount: int) -> int:
            await self.persist(Withdrawn(amount))
            return self.state.amount

        @handler
        async def forget(self) -> None:
            await self.clear()

        @handler
        def balance(self) -> int:
            return self.state.amount

    @bus.entity(name="bank", shards=10)
    class Bank(Entity):
        state: Total

        @handler
        async def add(self, amount: int) -> None:
            self.state.amount += amount
            self.state.count += 1

        @handler
        def total(self) -> tuple[int, int]:
            return self.state.amount, self.state.count

    own |= {"Account": Account, "Bank": Bank}
    if not projections:
        return type("App", (), own)

    @bus.projection(of=Account, name="statement")
    class Statement(Projection):
        state: Lines

        @event
        async def deposited(self, event: Deposited) -> None:
            self.state.amounts.append(event.amount)
            self.state.numbers.append(self.event_number)
            if (self.source_id, self.event_number) in outside.fails:
                raise outside.error
            self.deliver(self.context.ref(Bank, "all").add, event.amount)

        @event
        def withdrawn(self, event: Withdrawn) -> None:
            self.state.amounts.append(-event.amount)
            self.state.numbers.append(self.event_number)

        @handler
        def lines(self) -> list[int]:
            return self.state.amounts

        @handler
        def numbers(self) -> list[int]:
            return self.state.numbers

        @handler
        async def saved(self) -> None:
            await self.save()

    @bus.projection(of=Account, name="exported")
    class Exported(Projection):
        attempts = 0

        @event
        async def deposited(self, event: Deposited) -> None:
            outside.rows[self.source_id].append(self.event_number)

    own |= {"Statement": Statement, "Exported": Exported}
    return type("App", (), own)


def once(numbers: list[int]) -> list[int]:
    """Return numbers without repeats, in the order of their first arrival."""
    return list(dict.fromkeys(numbers))


def number_of(cluster: TestCluster, key: str, kind: str = "statement") -> int:
    """Return the number of the last event in a stored record."""
    row = cluster.store._server.data.states.get((kind, key))
    return 0 if row is None or row.data is None else split_numbered(split_record(row.data)[1])[0]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_handler_of_events_may_return_the_next_state_as_a_fold_may(waits: bool) -> None:
    bus = ShardBus("walks")

    @bus.entity("walker")
    class Walker(EventSourced):
        state: Distance

        @event
        def walked(self, event: Walked) -> Distance:
            return further(self.state, event)

        @handler
        async def walk(self, metres: int) -> None:
            await self.persist(Walked(metres))

    @bus.projection(of=Walker, name="walks")
    class Walks(Projection):
        state: Distance

        @event
        async def walked(self, event: Walked) -> Distance:
            if waits:
                await asyncio.sleep(0.01)
            return further(self.state, event)

    async with TestCluster(bus, nodes=1) as cluster:
        for metres in (3, 4):
            await cluster.client().ref(Walker, "a").walk(metres)
        await cluster.advance(5)
        part = cluster.nodes[0].entity(Walks, Walks.id_for("a"))
        assert part is not None
        assert part.state == Distance(7)


async def test_each_event_of_each_entity_changes_the_state_once_and_in_order() -> None:
    app = declared()
    async with TestCluster(app.bus, nodes=3, seed=1) as cluster:
        client = cluster.client()
        for n in range(1, 6):
            for name in ("ada", "bob"):
                await client.ref(app.Account, name).deposit(n)
        await client.ref(app.Account, "ada").withdraw(3)
        await cluster.advance(5)
        ada = client.ref(app.Statement, app.Statement.id_for("ada"))
        assert await ada.lines() == [1, 2, 3, 4, 5, -3]
        assert await ada.numbers() == [1, 2, 3, 4, 5, 6]
        assert await client.ref(app.Bank, "all").total() == (30, 10)
        assert app.outside.rows == {"ada": [1, 2, 3, 4, 5], "bob": [1, 2, 3, 4, 5]}
        assert number_of(cluster, "ada/exported", "exported") == 6


async def test_events_of_deliveries_are_handled_as_all_others() -> None:
    app = declared()
    async with TestCluster(app.bus, nodes=2) as cluster:
        account = cluster.client().ref(app.Account, "ada")
        await account.deposit.deliver(5)
        await account.withdraw.ask(2, key="order-1")
        await account.deposit(7)
        await cluster.advance(5)
        assert app_lines(cluster, "ada") == [5, -2, 7]
        assert number_of(cluster, "ada/statement") == 3
        assert number_of(cluster, "ada/exported", "exported") == 3
        assert await cluster.client().ref(app.Bank, "all").total() == (12, 2)


async def test_a_projection_that_is_added_later_handles_the_whole_history() -> None:
    old, new = declared(projections=False), declared()
    async with TestCluster(old.bus, nodes=1, seed=2) as cluster:
        client = cluster.client()
        for name in ("ada", "bob", "eve"):
            await client.ref(old.Account, name).deposit_all(list(range(1, 251)))
        data = cluster.store._server.data
    async with TestCluster(new.bus, nodes=2, seed=2) as cluster:
        cluster.store._server.data.journals.update(data.journals)
        await cluster.advance(30)  # no message wakes anything
        for name in ("ada", "bob", "eve"):
            assert number_of(cluster, f"{name}/statement") == 250
            assert app_lines(cluster, name) == list(range(1, 251))
            assert once(new.outside.rows[name]) == list(range(1, 251))
        for node in cluster.nodes:
            projecting = node._host("statement").runner.projecting
            assert projecting.counts.failed == 0, "a backlog of events became one of deliveries"


def app_lines(cluster: TestCluster, name: str) -> list[int]:
    """Return the amounts of a stored statement."""
    row = cluster.store._server.data.states["statement", f"{name}/statement"]
    amounts: list[int] = decode_value(split(row.data)[1])["amounts"]
    return amounts


async def on_node(cluster: TestCluster, work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in the loop of the first node, and return its result."""
    task = cluster.nodes[0]._process.loop.create_task(work)
    await cluster.advance(5)
    return task.result()


@pytest.mark.parametrize("seed", [0, *long_only(*range(1, 8))])
async def test_the_read_side_is_exact_after_kills_moves_and_failures_of_the_store(
    seed: int,
) -> None:
    app = declared(snapshot_after=5, events_kept=1)
    async with TestCluster(app.bus, nodes=3, seed=seed) as cluster:
        client = cluster.client()
        names = [f"account-{n}" for n in range(3)]
        for turn in range(1, 19):
            cluster.store.fail(0.2 if turn % 4 == 1 else 0.0)
            if turn == 8:
                await cluster.kill(cluster.nodes[seed % 3])
            if turn == 12:
                await cluster.leave(cluster.nodes[0])
            if turn == 16:
                await cluster.add()
            for name in names:
                with suppress(RequestError):
                    await client.ask("account", name, "deposit", turn, timeout=20.0)
        cluster.store.fail(0.0)
        await cluster.advance(120)
        total = 0
        for name in names:
            balance = await client.ask("account", name, "balance", timeout=60.0)
            lines = await client.ask("statement", f"{name}/statement", "lines", timeout=60.0)
            numbers = await client.ask("statement", f"{name}/statement", "numbers", timeout=60.0)
            assert numbers == list(range(1, len(numbers) + 1)), "one is lost, or out of order"
            assert sum(lines) == balance
            assert once(app.outside.rows[name]) == numbers
            total += balance
        bank = client.ref(app.Bank, "all")
        await cluster.advance(60)
        assert (await bank.total())[0] == total


@pytest.mark.parametrize("end", ["kill", "leave"])
async def test_nothing_is_lost_when_every_node_ends_and_none_gets_a_message(end: str) -> None:
    """Shards of nodes that died have homes at once; those of nodes that left have none."""
    app = declared()
    async with TestCluster(app.bus, nodes=2, seed=5) as cluster:
        client = cluster.client()
        app.outside.fails.add(("ada", 1))
        for n in (1, 2, 3):
            await client.ref(app.Account, "ada").deposit(n)
            await client.ref(app.Account, "bob").deposit(n)
        for node in list(cluster.nodes):
            await (cluster.kill(node) if end == "kill" else cluster.leave(node))
        app.outside.fails.clear()
        await cluster.add()
        await cluster.advance(60)
        assert number_of(cluster, "ada/statement") == number_of(cluster, "bob/statement") == 3


@pytest.mark.parametrize(
    "error", [ValueError("cannot read this"), Rejection("no"), Unhandled("no")]
)
async def test_an_event_that_fails_is_never_skipped_and_stops_its_own_part_alone(
    error: Exception,
) -> None:
    """Nor is one that is refused: there is no message to refuse."""
    app = declared()
    app.outside.error = error
    async with TestCluster(app.bus, nodes=1, seed=3) as cluster:
        client = cluster.client()
        app.outside.fails.add(("ada", 3))
        await client.ref(app.Account, "ada").deposit_all([1, 2, 3, 4, 5])
        await client.ref(app.Account, "bob").deposit(7)
        await cluster.advance(300)
        projecting = cluster.nodes[0]._host("statement").runner.projecting
        [(source, part)] = projecting.failing(10)
        assert (source, part.state.value, part.number, part.raised) == ("ada", "stopped", 3, 10)
        assert part.error == f"{type(error).__name__}: {error}"
        assert number_of(cluster, "ada/statement") == 2
        ada = client.ref(app.Statement, "ada/statement")
        assert await ada.lines() == [1, 2], "the state is as it was before the event"
        await client.ref(app.Account, "ada").deposit(6)
        await cluster.advance(60)
        assert await ada.lines() == [1, 2]
        assert await client.ref(app.Bank, "all").total() == (10, 3)
        app.outside.fails.clear()
        assert projecting.retry("") == 1
        await cluster.advance(5)
        assert await ada.lines() == [1, 2, 3, 4, 5, 6]
        assert await client.ref(app.Bank, "all").total() == (28, 7)
        assert app.outside.rows["ada"] == [1, 2, 3, 4, 5, 6], "the other projection went on"
        assert projecting.failing(10) == []


async def test_a_store_that_was_away_for_long_stops_nothing() -> None:
    app = declared()
    async with TestCluster(app.bus, nodes=1, seed=10) as cluster:
        client = cluster.client()
        await client.ref(app.Account, "ada").deposit_all([1, 2])
        cluster.store.stop()
        await cluster.advance(1000)
        cluster.store.start()
        await cluster.advance(60)
        assert app_lines(cluster, "ada") == [1, 2]
        assert once(app.outside.rows["ada"]) == [1, 2]
        assert cluster.nodes[0]._host("statement").runner.projecting.parts.behind == 0


async def test_long_work_is_stored_once_a_second() -> None:
    bus, met = ShardBus("own"), []

    @bus.entity(name="walker", shards=10)
    class Walker(EventSourced):
        state: Balance

        @event
        def walked(self, event: Walked) -> None:
            self.state.amount += event.metres

        @handler
        async def walk(self, times: int) -> None:
            await self.persist(*[Walked(1)] * times)

    @bus.projection(of=Walker, name="walks")
    class Walks(Projection):
        @event
        async def walked(self, event: Walked) -> None:
            await asyncio.sleep(0.3)
            met.append(self.event_number)

    async with TestCluster(bus, nodes=2, seed=1) as cluster:
        client = cluster.client()
        await client.ref(Walker, "a").walk(30)
        await cluster.advance(3)
        assert 6 <= number_of(cluster, "a/walks", "walks") <= len(met)
        home = cluster.where(Walker, "a")
        assert home is not None
        await cluster.kill(home)
        await cluster.advance(60)
        assert number_of(cluster, "a/walks", "walks") == 30
        assert once(met) == list(range(1, 31))
        assert len(met) <= 30 + 4, "events of a second at most are handled again"


async def test_removal_of_events_waits_for_each_projection() -> None:
    app = declared(snapshot_after=5, events_kept=1)
    async with TestCluster(app.bus, nodes=1, seed=4) as cluster:
        client, journals = cluster.client(), cluster.store._server.data.journals
        app.outside.fails.add(("ada", 4))
        for n in range(1, 13):
            await client.ref(app.Account, "ada").deposit(n)
        await cluster.advance(5)
        assert journals["account", "ada"].trimmed <= 3
        await client.ref(app.Account, "ada").forget()
        assert journals["account", "ada"].trimmed == 3, "not even clear removes what is not handled"
        app.outside.fails.clear()
        await cluster.advance(300)
        cluster.nodes[0]._host("statement").runner.projecting.retry("")
        await cluster.advance(5)
        await client.ref(app.Account, "ada").forget()
        assert journals["account", "ada"].trimmed == 12
        assert await client.ref(app.Statement, "ada/statement").lines() == list(range(1, 13))


async def test_events_that_were_removed_before_are_counted_and_the_part_goes_on() -> None:
    old, new = declared(projections=False, snapshot_after=5, events_kept=1), declared()
    async with TestCluster(old.bus, nodes=1, seed=6) as cluster:
        for n in range(1, 8):
            await cluster.client().ref(old.Account, "ada").deposit(n)
        data = cluster.store._server.data
        assert data.journals["account", "ada"].trimmed == 4
        data.journals["account", "bob"] = type(data.journals["account", "ada"])("1", 1, trimmed=3)
    async with TestCluster(new.bus, nodes=1, seed=6) as cluster:
        cluster.store._server.data.journals.update(data.journals)
        await cluster.advance(10)
        projecting = cluster.nodes[0]._host("statement").runner.projecting
        assert projecting.counts.missing == 4 + 3
        assert app_lines(cluster, "ada") == [5, 6, 7]
        assert projecting.parts.behind == 0


async def test_an_operator_rewinds_a_part_and_passes_over_an_event() -> None:
    app = declared(snapshot_after=5, events_kept=1)
    async with TestCluster(app.bus, nodes=1, seed=7) as cluster:
        client = cluster.client()
        account, ada = client.ref(app.Account, "ada"), client.ref(app.Statement, "ada/statement")
        await account.deposit_all([1, 2, 3])
        await cluster.advance(5)
        projecting = cluster.nodes[0]._host("statement").runner.projecting
        shard = cluster.nodes[0]._host("statement")._shard_of("ada/statement")
        assert await on_node(cluster, projecting.rewind(shard, "ada", missing=False)) == 0
        await cluster.advance(5)
        assert await ada.numbers() == [1, 2, 3]
        assert (await client.ref(app.Bank, "all").total())[1] == 6, "deliveries happen again"
        app.outside.fails.add(("ada", 4))
        await account.deposit_all([4, 5])
        await cluster.advance(300)
        with pytest.raises(Exception, match="the next event of 'ada' is 4, not 5"):
            await on_node(cluster, projecting.skip(shard, "ada", 5))
        assert await on_node(cluster, projecting.skip(shard, "ada", 4)) == 4
        await cluster.advance(5)
        assert await ada.numbers() == [1, 2, 3, 5]
        with pytest.raises(Exception, match="has no event 6 yet"):
            await on_node(cluster, projecting.skip(shard, "ada", 6))
        for n in range(6, 11):
            await account.deposit(n)
        await cluster.advance(5)
        await account.forget()
        with pytest.raises(Exception, match="the events of 'ada' before number 11 are removed"):
            await on_node(cluster, projecting.rewind(shard, "ada", missing=False))
        assert await ada.numbers() == [1, 2, 3, 5, 6, 7, 8, 9, 10]
        assert await on_node(cluster, projecting.rewind(shard, "ada", missing=True)) == 10
        await cluster.advance(5)
        assert await ada.numbers() == []


async def test_a_save_of_a_handler_keeps_the_number_of_the_last_event() -> None:
    app = declared()
    async with TestCluster(app.bus, nodes=1, seed=8) as cluster:
        client = cluster.client()
        await client.ref(app.Account, "ada").deposit_all([1, 2])
        await cluster.advance(5)
        ada = client.ref(app.Statement, "ada/statement")
        await ada.saved()
        assert number_of(cluster, "ada/statement") == 2
        await ada.numbers.deliver()  # its home saves the record of the delivery
        assert number_of(cluster, "ada/statement") == 2
        await cluster.kill(cluster.nodes[0])
        await cluster.add()
        await cluster.advance(30)
        later = cluster.client("later").ref(app.Statement, "ada/statement")
        assert await later.numbers() == [1, 2]


async def test_a_journal_that_ends_before_the_last_handled_event_is_reported() -> None:
    app = declared()
    async with TestCluster(app.bus, nodes=1, seed=9) as cluster:
        client = cluster.client()
        await client.ref(app.Account, "ada").deposit_all([1, 2, 3])
        await cluster.advance(5)
        await cluster.kill(cluster.nodes[0])
        del cluster.store._server.data.journals["account", "ada"].entries[1:]
        await cluster.add()
        await cluster.advance(300)
        [(_, part)] = cluster.nodes[0]._host("statement").runner.projecting.failing(10)
        assert "the journal ends with event 1, and 3 are handled" in part.error


async def test_upcasters_apply_and_an_unknown_event_stops_its_part() -> None:
    bus, met = ShardBus("own"), []

    @bus.entity(name="walker")
    class Walker(EventSourced):
        state: Balance

        @event(version=2, name="Walked")
        def walked(self, event: Walked) -> None:
            self.state.amount += event.metres

        @handler
        async def walk(self, metres: int) -> None:
            await self.persist(Walked(metres))

    @bus.projection(of=Walker, name="walks")
    class Walks(Projection):
        attempts = 2

        @event
        def walked(self, event: Walked) -> None:
            met.append(event.metres)

    bus.upcast(Walker, Walked, 1)(lambda value: {"metres": 1000 * value["kilometres"]})
    async with TestCluster(bus, nodes=1, seed=1) as cluster:
        await cluster.client().ref(Walker, "a").walk(5)
        await cluster.advance(2)
        entries = cluster.store._server.data.journals["walker", "a"].entries
        entries.append(b"\x93\xa6Walked\x01\x81\xaakilometres\x02")
        entries.append(b"\x93\xa3Fly\x01\x80")
        projecting = cluster.nodes[0]._host("walks").runner.projecting
        projecting.claim_again()
        await cluster.advance(60)
        assert once(met) == [5, 2000]
        [(source, part)] = projecting.failing(10)
        assert (source, part.state.value, part.number) == ("a", "stopped", 3)
        assert "event 3 of walker 'a' (Fly, version 1): no fold takes this event" in part.error


@dataclass(frozen=True)
class Moved:
    steps: int


def test_a_wrong_declaration_is_refused_where_it_stands() -> None:
    app = declared()
    bus: ShardBus = app.bus

    class Right(Projection):
        @event
        def deposited(self, event: Deposited) -> None:
            """Nothing."""

    class Unknown(Projection):
        @event
        def moved(self, event: Moved) -> None:
            """Nothing."""

    class Named(Projection):
        @event(version=2)
        def deposited(self, event: Deposited) -> None:
            """Nothing."""

    class Twice(Right):
        @event
        def again(self, event: Deposited) -> None:
            """Nothing."""

    class Empty(Projection):
        """No handler."""

    class Odd(Right):
        attempts = -1

    class Plain(Entity):
        @handler
        def look(self) -> None:
            """Nothing."""

    for cls, text in (
        (Unknown, "has no fold of Moved"),
        (Named, "name and version are those of Account's"),
        (Twice, "two handlers of Deposited"),
        (Empty, "handles no event"),
        (Odd, "attempts is -1"),
        (Plain, "subclass of shardbus.Projection"),
    ):
        with pytest.raises(ConfigError, match=text):
            bus.projection(of=app.Account, name="wrong")(cls)
    with pytest.raises(ConfigError, match="has no events"):
        bus.projection(of=app.Bank, name="wrong")(Right)
    with pytest.raises(ConfigError, match="no entity type of this application"):
        bus.projection(of=Plain, name="wrong")(Right)
    with pytest.raises(ConfigError, match="which has no within"):
        bus.projection(of=app.Account, name="wrong", within=app.Account)(Right)
    with pytest.raises(ConfigError, match=r"write @bus\.projection"):
        bus.entity(name="wrong")(Right)
    with pytest.raises(ConfigError, match="is not declared"):
        Right.id_for("ada")
    assert "wrong" not in bus.types
