"""Event-sourced entities: a command answers once its events are stored, the state is their fold,
and no failure loses one, doubles one or shows one that is not stored."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from shardbus import (
    AskTimeout,
    ConfigError,
    EntityFailed,
    EventSourced,
    NodeLost,
    Rejection,
    RequestError,
    ShardBus,
    StoreUnavailable,
    event,
    handler,
)
from shardbus.deliveries.record import DeliveryRecord, encode_done
from shardbus.entities.reminding import Reminding
from shardbus.simulation.nodes.stores import StoreServer
from shardbus.store.journals import Journals
from shardbus.testing import EntityProbe, TestCluster
from shardbus.wire.stored_events import stored_event, with_delivery
from shardbus.wire.stored_state import split_numbered, split_record

bus = ShardBus("bank")


@dataclass(frozen=True)
class Deposited:
    amount: int
    note: str = ""


@dataclass(frozen=True)
class Withdrawn:
    amount: int


@dataclass
class Balance:
    amount: int = 0
    seen: list[int] = field(default_factory=list)


@dataclass
class TooLittle(Rejection):
    left: int


@dataclass(frozen=True)
class Known:
    n: int


class Other:
    """No event of any type."""


@dataclass(frozen=True)
class Moved:
    steps: int
    unit: str = ""


@bus.entity(name="account", snapshot_after=5, shards=10)
class Account(EventSourced):
    state: Balance

    @event
    def deposited(self, event: Deposited) -> None:
        self.state.amount += event.amount
        self.state.seen.append(event.amount)

    @event
    def withdrawn(self, event: Withdrawn) -> Balance:
        return Balance(self.state.amount - event.amount, self.state.seen)

    @handler
    async def deposit(self, amount: int) -> int:
        await self.persist(Deposited(amount))
        return self.state.amount

    @handler
    async def transfer(self, amount: int) -> int:
        await self.persist(Withdrawn(amount), Deposited(amount))
        return self.state.amount

    @handler
    async def withdraw(self, amount: int) -> int:
        if amount > self.state.amount:
            raise TooLittle(self.state.amount)
        await self.persist(Withdrawn(amount))
        return self.state.amount

    @handler
    async def careless(self, amount: int) -> str:
        try:
            await self.persist(Deposited(amount))
        except StoreUnavailable:
            return "in doubt"
        return "stored"

    @handler
    def balance(self) -> int:
        return self.state.amount

    @handler
    def seen(self) -> list[int]:
        return self.state.seen

    @handler
    async def forget(self) -> None:
        await self.clear()

    @handler
    async def try_to_forget(self) -> str:
        try:
            await self.clear()
        except StoreUnavailable as error:
            return f"in doubt: definite {error.definite}, {self.state.amount} left"
        return "cleared"

    @handler
    async def snapshot(self) -> None:
        await self.save()

    @handler
    async def nothing(self) -> None:
        await self.persist()


def journal(store: Any, entity_id: str, kind: str = "account") -> Any:
    """Return the stored journal of an entity."""
    return store._server.data.journals[kind, entity_id]


async def test_a_command_answers_once_its_events_are_stored_and_the_state_is_their_fold() -> None:
    async with EntityProbe(Account, "a") as probe:
        assert await probe.ask("deposit", 5) == 5
        assert await probe.ask("deposit", 7) == 12
        assert await probe.ask("withdraw", 2) == 10
        assert journal(probe.store, "a").last == 3
        with pytest.raises(TooLittle):
            await probe.ask("withdraw", 11)
        await probe.ask("nothing")
        assert journal(probe.store, "a").last == 3
        await probe.crash()
        assert await probe.ask("balance") == 10
        assert await probe.ask("seen") == [5, 7]


async def test_events_of_one_persist_are_stored_together() -> None:
    async with EntityProbe(Account, "a") as probe:
        await probe.ask("deposit", 5)
        before = journal(probe.store, "a").op_id
        assert await probe.ask("transfer", 3) == 5
        assert journal(probe.store, "a").last == 3
        assert journal(probe.store, "a").op_id == before + 1


async def test_a_snapshot_is_saved_every_n_events_and_a_start_replays_what_follows() -> None:
    async with EntityProbe(Account, "a") as probe:
        for n in range(1, 13):
            await probe.ask("deposit", n)
        row = probe.store._server.data.states["account", "a"]
        assert split_numbered(row.data)[0] == 10
        assert probe.saved.amount == sum(range(1, 11))
        await probe.crash()
        assert await probe.ask("balance") == sum(range(1, 13))
        journal(probe.store, "a").entries[:10] = [b"unreadable"] * 10
        await probe.crash()
        assert await probe.ask("balance") == sum(range(1, 13))


async def test_events_behind_a_snapshot_are_trimmed_as_the_type_says() -> None:
    settings = {"sharding.types.account.events_kept": 2}
    async with EntityProbe(Account, "a", settings=settings) as probe:
        for n in range(1, 8):
            await probe.ask("deposit", n)
        stored = journal(probe.store, "a")
        assert (stored.trimmed, stored.last) == (3, 7)
        await probe.crash()
        assert await probe.ask("seen") == list(range(1, 8))


async def test_a_snapshot_that_fails_does_not_fail_its_command() -> None:
    settings = {"sharding.types.account.state_limit": 10}
    async with EntityProbe(Account, "a", settings=settings) as probe:
        for n in range(1, 8):
            await probe.ask("deposit", n)
        assert probe.saved is None
        await probe.crash()
        assert await probe.ask("seen") == list(range(1, 8))


async def test_clear_begins_anew_and_the_numbers_go_on() -> None:
    async with EntityProbe(Account, "a") as probe:
        await probe.ask("deposit", 5)
        await probe.ask("forget")
        assert await probe.ask("balance") == 0
        stored = journal(probe.store, "a")
        assert (stored.trimmed, stored.last) == (1, 1)
        await probe.crash()
        assert await probe.ask("deposit", 7) == 7
        await probe.crash()
        assert await probe.ask("seen") == [7]
        assert stored.last == 2


async def test_a_delivery_is_handled_once_and_its_number_stays_with_the_snapshot() -> None:
    async with EntityProbe(Account, "a") as probe:
        for n in (5, 6):
            await probe.ref.deposit.deliver(n)
        assert await probe.ask("seen") == [5, 6]
        await probe.crash()
        assert await probe.ask("seen") == [5, 6]
        await probe.ref.deposit.deliver(7)
        await probe.crash()
        assert await probe.ask("seen") == [5, 6, 7]
        assert await probe.ref.deposit.ask(8, key="order-8") == 26
        assert await probe.ref.deposit.ask(8, key="order-8") == 26
        await probe.crash()
        assert await probe.ref.deposit.ask(8, key="order-8") == 26
        assert await probe.ask("seen") == [5, 6, 7, 8]


class KillsAtAppends:
    """Kills the home of entity `a` once its journal has these entries, before the node has the
    answer."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: type, *numbers: int) -> None:
        self._kind, self._name, self._numbers = kind, kind.__name__.lower(), list(numbers)
        self.cluster: TestCluster
        self.killed = 0
        record = StoreServer.record_journal

        def recorded(server: Any, what: str, kind: str, name: str, fence: int) -> None:
            record(server, what, kind, name, fence)
            if (what, kind, name) == ("appended to", self._name, "a"):
                self._appended()

        patch.setattr(StoreServer, "record_journal", recorded)

    def _appended(self) -> None:
        last = journal(self.cluster.store, "a", self._name).last
        if self._numbers and last >= self._numbers[0]:
            del self._numbers[0]
            self.cluster.world.later(0.0, self._kill)

    def _kill(self) -> None:
        home = self.cluster.where(self._kind, "a")
        assert home is not None
        self.killed += 1
        self.cluster.world.kill(home.name)


@pytest.mark.parametrize("ask", [False, True])
async def test_a_delivery_whose_node_dies_behind_its_append_is_not_handled_again(
    ask: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No snapshot has its number: the journal has it, beside the event."""
    kills = KillsAtAppends(monkeypatch, Account, 3, 5, 7)
    async with TestCluster(bus, nodes=4, seed=1) as cluster:
        kills.cluster = cluster
        account = cluster.client().ref(Account, "a")
        await account.deposit(1)
        for n in range(2, 10):
            if not ask:
                await account.deposit.deliver(n, within=600)
                continue
            with suppress(RequestError):  # its result went with the node
                assert await account.deposit.ask(n, key=f"order-{n}") == sum(range(n + 1))
        assert kills.killed == 3
        assert await account.seen() == list(range(1, 10))
        assert journal(cluster.store, "a").last == 9


@pytest.mark.parametrize("seed", range(4))
async def test_deliveries_take_effect_once_in_order_over_kills_and_failures(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = KillsAtAppends(monkeypatch, Account, 4, 11)
    async with TestCluster(bus, nodes=4, seed=seed) as cluster:
        kills.cluster = cluster
        account = cluster.client().ref(Account, "a")
        pending = []
        for n in range(24):
            cluster.store.fail(0.3 if n % 5 == 1 else 0.0)
            pending.append(account.deposit.deliver(n, within=3600))
            await cluster.advance(0.3)
        cluster.store.fail(0.0)
        for end in pending:
            await end
        assert kills.killed == 2
        assert await account.seen() == list(range(24))
        assert journal(cluster.store, "a").last == 24


async def test_a_delivery_costs_one_append_and_no_snapshot() -> None:
    async with EntityProbe(Account, "a") as probe:
        for n in range(1, 4):
            await probe.ref.deposit.deliver(n)
        assert probe.store.saves(Account, "a") == 0
        assert [entry[:1] for entry in journal(probe.store, "a").entries] == [b"\x94"] * 3
        await probe.ref.transfer.deliver(7)
        await probe.ask("deposit", 4)
        written = [entry[:1] for entry in journal(probe.store, "a").entries]
        assert written[3:] == [b"\x93", b"\x94", b"\x93"]


async def test_a_delivery_that_persists_nothing_is_stored_by_a_snapshot() -> None:
    async with EntityProbe(Account, "a") as probe:
        with pytest.raises(TooLittle):
            await probe.ref.withdraw.deliver(5)
        await probe.ref.nothing.deliver()
        assert probe.store.saves(Account, "a") == 2
        assert journal(probe.store, "a").last == 0
        record = split_record(probe.store._server.data.states["account", "a"].data or b"")[0]
        [row] = DeliveryRecord.of(record).done.values()
        assert row.seq == 2


@pytest.mark.parametrize("producers", [2, 3])
async def test_a_replay_makes_the_record_of_deliveries_again(producers: int) -> None:
    """Of the snapshot's record and the journal behind it, in the order of their use."""
    async with EntityProbe(Account, "a", settings={"delivery.producers": producers}) as probe:
        clients = [probe.cluster.client(f"client-{n}") for n in range(3)]
        for n in range(7):  # a snapshot comes behind the fifth
            await clients[n % 3].ref(Account, "a").deposit.deliver(n)
            await probe.advance(2)
        await clients[0].ref(Account, "a").deposit.ask(7, key="order-7")
        await probe.advance(2)
        await clients[1].ref(Account, "a").deposit.deliver(8)
        [hosted] = (shard for shard in probe._host.shards.values() if "a" in shard.records)
        before = hosted.records["a"]
        assert len(before.done) == producers
        await probe.crash()
        assert await probe.ask("seen") == [*range(9)]
        [hosted] = (shard for shard in probe._host.shards.values() if "a" in shard.records)
        after = hosted.records["a"]
        assert after is not before
        assert [*after.done.items()] == [*before.done.items()]
        assert after.results == before.results


@pytest.mark.parametrize(
    "note", [b"", b"\x91\x00", encode_done(None, "k", 1)[:-1], b"\x95\x07\xa1p\x01\x01\x01"]
)
async def test_an_unreadable_number_of_a_delivery_keeps_the_entity_from_starting(
    note: bytes,
) -> None:
    async with EntityProbe(Account, "a") as probe:
        await probe.ask("deposit", 5)
        await probe.ask("deposit", 6)
        entries = journal(probe.store, "a").entries
        entries[1] = with_delivery(entries[1], note)
        await probe.crash()
        with pytest.raises(EntityFailed, match="the delivery of an event"):
            await probe.ask("balance")


CALLED: list[datetime] = []


@bus.entity(name="invoice", shards=10)
class Invoice(EventSourced):
    """Reminds itself of a payment before it persists."""

    state: Balance

    @event
    def deposited(self, event: Deposited) -> None:
        self.state.amount += event.amount

    @handler
    async def send(self, amount: int) -> None:
        await self.context.remind("due", handler="expire", after="2m")
        await self.persist(Deposited(amount))

    @handler
    async def settle(self, amount: int, fails: str = "") -> None:
        await self.context.forget("due")
        await self.persist(Deposited(amount))
        if fails:
            raise Rejection(fails)

    @handler
    async def dun(self, amount: int) -> None:
        await self.context.remind("due", handler="expire", after="20s", every="2m")
        await self.persist(Deposited(amount))

    @handler
    async def expire(self) -> None:
        CALLED.append(self.context.now())
        reminder = self.context.reminder
        assert reminder is not None
        await self.persist(Deposited(1000), Deposited(reminder.number))
        assert reminder == self.context.reminder
        if self.state.amount > 5000:
            await self.context.forget("due")
            raise Rejection("enough")

    @handler
    async def snapshot(self) -> None:
        await self.save()

    @handler
    def due(self) -> list[str]:
        return [reminder.name for reminder in self.context.reminders()]


async def test_a_reminder_that_a_delivery_sets_is_stored_before_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a crash between the two would lose the reminder: the delivery is not handled again."""
    kills = KillsAtAppends(monkeypatch, Invoice, 1)
    async with TestCluster(bus, nodes=2) as cluster:
        kills.cluster = cluster
        invoice = cluster.client().ref(Invoice, "a")
        await invoice.send.deliver(7, within=600)
        assert kills.killed == 1
        assert await invoice.due() == ["due"]
        assert journal(cluster.store, "a", "invoice").last == 1


@pytest.mark.parametrize("last", ["settle", "send"])
async def test_a_reminder_is_forgotten_or_put_off_behind_the_events_only(
    last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash before they are stored would lose it. Behind them it stays, and finds the state."""
    kills = KillsAtAppends(monkeypatch, Invoice, 2)
    async with TestCluster(bus, nodes=3) as cluster:
        kills.cluster = cluster
        invoice = cluster.client().ref(Invoice, "a")
        await invoice.dun(7)
        with pytest.raises(NodeLost):
            await getattr(invoice, last)(8)
        assert kills.killed == 1
        assert await invoice.due() == ["due"]
        CALLED.clear()
        await cluster.advance(40)
        assert len(CALLED) == 1
        await getattr(invoice, last)(9)
        await cluster.advance(100)
        assert len(CALLED) == 1


async def test_what_a_rejecting_handler_has_forgotten_before_its_events_stays_forgotten() -> None:
    async with EntityProbe(Invoice, "a") as probe:
        await probe.ask("dun", 7)
        with pytest.raises(Rejection):
            await probe.ask("settle", 8, "enough")
        assert await probe.ask("due") == []
        await probe.crash()
        assert await probe.ask("due") == []


async def test_a_firing_whose_events_are_stored_is_not_called_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The journal has its delivery beside the events, and the next moment is as it was."""
    kills = KillsAtAppends(monkeypatch, Invoice, 3)
    async with TestCluster(bus, nodes=2) as cluster:
        kills.cluster = cluster
        await cluster.client().ref(Invoice, "a").dun(7)
        await cluster.advance(145)
        assert kills.killed == 1
        assert await cluster.client().ref(Invoice, "a").due() == ["due"]
        events = journal(cluster.store, "a", "invoice").entries
        assert [stored_event(entry).value["amount"] for entry in events] == [7, 1000, 1, 1000, 2]
        assert [entry[:1] == b"\x94" for entry in events] == [False, False, True, False, True]


async def no_answer(self: Reminding, *_: Any) -> None:
    raise StoreUnavailable("the disk is away")


async def test_moments_that_pass_between_the_events_and_the_end_of_a_firing_are_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One firing makes up for them."""
    async with EntityProbe(Invoice, "a") as probe:
        await probe.ask("dun", 7)
        with monkeypatch.context() as patch:
            patch.setattr(Reminding, "end_append", no_answer)
            await probe.advance(20.1)
        assert journal(probe.store, "a", "invoice").last == 3
        probe.store.stop()
        await probe.advance(130)
        assert journal(probe.store, "a", "invoice").last == 3
        probe.store.start()
        await probe.advance(10)
        assert journal(probe.store, "a", "invoice").last == 5


async def test_a_snapshot_behind_the_events_of_a_firing_has_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replay begins behind the events then, and finds no delivery."""
    async with EntityProbe(Invoice, "a") as probe:
        await probe.ask("dun", 7)
        with monkeypatch.context() as patch:
            patch.setattr(Reminding, "end_append", no_answer)
            await probe.advance(20.1)
            await probe.ask("snapshot")
        assert journal(probe.store, "a", "invoice").last == 3
        await probe.crash()
        await probe.advance(20)
        assert journal(probe.store, "a", "invoice").last == 3
        await probe.advance(120)
        assert journal(probe.store, "a", "invoice").last == 5


async def test_a_snapshot_on_demand() -> None:
    async with EntityProbe(Account, "a") as probe:
        await probe.ask("deposit", 5)
        await probe.ask("snapshot")
        assert probe.saved.amount == 5
        await probe.ask("deposit", 6)
        await probe.crash()
        assert await probe.ask("seen") == [5, 6]


@pytest.mark.parametrize("seed", range(6))
async def test_an_event_in_doubt_is_folded_if_it_is_stored_and_only_then(seed: int) -> None:
    """A handler that catches the error goes on: the next persist looks first."""
    async with EntityProbe(Account, "a", seed=seed) as probe:
        expected = [1]
        await probe.ask("deposit", 1)
        probe.store.fail(1.0)
        assert await probe.ask("careless", 2, timeout=60.0) == "in doubt"
        probe.store.start()
        if journal(probe.store, "a").last == 2:
            expected.append(2)
        await probe.ask("deposit", 3)
        expected.append(3)
        assert await probe.ask("seen") == expected
        await probe.crash()
        assert await probe.ask("seen") == expected


@dataclass(frozen=True)
class Sold:
    at: datetime
    price: float
    lines: list[int]


@dataclass(frozen=True)
class Plain:
    lines: list[int]


@dataclass
class Sales:
    sold: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


async def test_a_fold_gets_the_same_event_live_and_at_a_replay() -> None:
    """Not the object that was persisted: another zone, another number, a list that changes."""
    bus = ShardBus("own")

    @bus.entity(name="shop")
    class Shop(EventSourced):
        state: Sales

        @event
        def on_sold(self, event: Sold) -> None:
            self.state.sold.append(f"{event.at.isoformat()} {event.price!r}")
            self.state.lines = event.lines

        @event
        def on_plain(self, event: Plain) -> None:
            self.state.lines = event.lines

        @handler
        async def sell(self) -> None:
            at = datetime(2026, 7, 2, 0, 30, tzinfo=ZoneInfo("Europe/Berlin"))
            lines = [1]
            await self.persist(Sold(at, 3, lines))
            lines.append(2)

        @handler
        async def put(self) -> None:
            lines = [3]
            await self.persist(Plain(lines))
            lines.append(4)

        @handler
        def look(self) -> tuple[list[str], list[int]]:
            return self.state.sold, self.state.lines

    async with EntityProbe(Shop, "a") as probe:
        for command in ("sell", "put"):
            await probe.ask(command)
            live = await probe.ask("look")
            await probe.crash()
            assert await probe.ask("look") == live


@pytest.mark.parametrize("way", ["Rejection", "Unhandled", "ValueError", "result"])
@pytest.mark.parametrize("caught", [False, True])
async def test_a_fold_that_fails_is_a_failure_and_no_answer(
    way: str, caught: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its event is stored, so the entity starts again with the stored ones; a handler that catches
    the error changes nothing of that."""
    bus, fails = ShardBus("own"), [True]

    @bus.entity(name="odd")
    class Odd(EventSourced):
        state: Balance

        @event
        def on_known(self, event: Known) -> Any:
            self.state.seen.append(event.n)
            if not fails or event.n != 2:
                return None
            if way == "Rejection":
                raise TooLittle(0)
            if way == "Unhandled":
                self.unhandled(event)
            if way == "ValueError":
                raise ValueError("odd")
            return 5

        @handler
        async def put(self, n: int) -> list[int]:
            try:
                await self.persist(Known(n))
            except Exception:
                if not caught:
                    raise
            return self.state.seen

    text = {
        "Rejection": "a fold raised TooLittle",
        "Unhandled": "a fold raised Unhandled",
        "ValueError": "odd",
        "result": "known returned int; a fold returns a Balance as the state, or None",
    }[way]
    async with EntityProbe(Odd, "a") as probe:
        assert await probe.ask("put", 1) == [1]
        if caught:
            await probe.ask("put", 2)
        else:
            with pytest.raises(EntityFailed, match=text):
                await probe.ask("put", 2)
            assert text in caplog.text
            with pytest.raises(EntityFailed, match="event 2 of odd 'a'"):
                await probe.ask("put", 3, timeout=30.0)
        fails.clear()
        assert await probe.ask("put", 3, timeout=60.0) == [1, 2, 3]
        await probe.crash()
        assert await probe.ask("put", 4) == [1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(6))
async def test_a_clear_in_doubt_is_done_if_it_is_stored_and_only_then(seed: int) -> None:
    """The state stays until the store has the empty one; the next persist looks first."""
    async with EntityProbe(Account, "a", seed=seed) as probe:
        await probe.ask("deposit", 1)
        await probe.ask("snapshot")
        await probe.ask("deposit", 2)
        probe.store.fail(1.0)
        answer = await probe.ask("try_to_forget", timeout=60.0)
        assert answer == "in doubt: definite False, 3 left"
        probe.store.start()
        stored = split_numbered(probe.store._server.data.states["account", "a"].data)[0]
        expected = [1, 2, 3] if stored == 1 else [3]
        assert await probe.ask("deposit", 3) == sum(expected)
        assert await probe.ask("seen") == expected
        await probe.crash()
        assert await probe.ask("seen") == expected


async def test_a_clear_whose_events_stay_is_not_called_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def trim(*place: object) -> None:
        raise StoreUnavailable("away", definite=True)

    async with EntityProbe(Account, "a") as probe:
        await probe.ask("deposit", 1)
        with monkeypatch.context() as patched:
            patched.setattr(Journals, "trim", trim)
            assert await probe.ask("try_to_forget") == "in doubt: definite False, 0 left"
        assert await probe.ask("deposit", 2) == 2
        await probe.crash()
        assert await probe.ask("seen") == [2]


async def test_a_store_that_is_away_fails_the_command_and_loses_nothing() -> None:
    async with EntityProbe(Account, "a") as probe:
        await probe.ask("deposit", 1)
        probe.store.stop()
        with pytest.raises((EntityFailed, AskTimeout)):
            await probe.ask("deposit", 2, timeout=30.0)
        probe.store.start()
        assert await probe.ask("deposit", 4, timeout=60.0) == 5
        await probe.crash()
        assert await probe.ask("seen") == [1, 4]


@pytest.mark.parametrize("seed", range(5))
async def test_what_was_answered_is_replayed_after_kills_and_failures(seed: int) -> None:
    async with TestCluster(bus, nodes=3, seed=seed) as cluster:
        client = cluster.client()
        answered: dict[str, list[int]] = {f"e-{n}": [] for n in range(5)}
        tried: dict[str, list[int]] = {f"e-{n}": [] for n in range(5)}
        for turn in range(30):
            cluster.store.fail(0.2 if turn % 4 == 1 else 0.0)
            if turn in (8, 20):
                await cluster.kill(cluster.nodes[turn % len(cluster.nodes)])
            for name in answered:
                tried[name].append(turn)
                with suppress(RequestError):
                    await client.ask("account", name, "deposit", turn, timeout=20.0)
                    answered[name].append(turn)
        cluster.store.fail(0.0)
        for name in answered:
            seen = await client.ask("account", name, "seen", timeout=120.0)
            assert sorted(set(seen)) == seen, "an event is twice, or out of order"
            assert set(answered[name]) <= set(seen) <= set(tried[name])
            assert len(seen) == journal(cluster.store, name).last


async def test_a_former_activation_cannot_append() -> None:
    async with TestCluster(bus, nodes=2, seed=3) as cluster:
        client = cluster.client()
        await client.ask("account", "a", "deposit", 1)
        old = cluster.where(Account, "a")
        await cluster.pause(old)
        with pytest.raises(NodeLost):  # the paused node has the message, and may handle it later
            await client.ask("account", "a", "deposit", 2, timeout=120.0)
        assert await client.ask("account", "a", "deposit", 3, timeout=60.0) == 4
        await cluster.resume(old)
        await cluster.advance(30)
        assert await client.ask("account", "a", "deposit", 5, timeout=60.0) == 9
        assert await client.ask("account", "a", "seen", timeout=60.0) == [1, 3, 5]


async def test_an_event_that_cannot_be_read_is_named_and_nothing_is_lost() -> None:
    async with EntityProbe(Account, "a") as probe:
        await probe.ask("deposit", 1)
        stored = journal(probe.store, "a")
        kept = list(stored.entries)
        stored.entries.append(b"\x93\xa7Unknown\x01\x80")
        await probe.crash()
        with pytest.raises(EntityFailed, match=r"event 2 of account 'a' \(Unknown, version 1\)"):
            await probe.ask("balance", timeout=60.0)
        assert stored.entries[:1] == kept


async def test_missing_events_are_no_empty_state() -> None:
    async with EntityProbe(Account, "a") as probe:
        for n in range(1, 8):
            await probe.ask("deposit", n)
        del probe.store._server.data.journals["account", "a"]
        await probe.crash()
        with pytest.raises(EntityFailed, match="the journal of account 'a'"):
            await probe.ask("balance", timeout=60.0)


async def test_events_that_cannot_be_stored_change_nothing() -> None:
    bus = ShardBus("own")

    @bus.entity(name="odd")
    class Odd(EventSourced):
        state: Balance

        @event
        def on_known(self, event: Known) -> None:
            self.state.amount += event.n

        @handler
        async def wrong(self) -> None:
            await self.persist(Known("text"))  # type: ignore[arg-type]

        @handler
        async def unknown(self) -> None:
            await self.persist(Known(1), Other())

        @handler
        def total(self) -> int:
            return self.state.amount

    async with EntityProbe(Odd, "a") as probe:
        with pytest.raises(EntityFailed, match="cannot store the event Known"):
            await probe.ask("wrong")
        with pytest.raises(EntityFailed, match="has no fold of the event 'Other'"):
            await probe.ask("unknown")
        assert await probe.ask("total") == 0
        assert journal(probe.store, "a", "odd").last == 0


async def test_older_versions_of_an_event_go_through_the_upcasters() -> None:
    def declare(version: int) -> tuple[ShardBus, Any]:
        bus_ = ShardBus("own")

        @bus_.entity(name="walker")
        class Walker(EventSourced):
            state: Balance

            @event(version=version, name="Moved")
            def moved(self, event: Moved) -> None:
                self.state.amount += event.steps * (1000 if event.unit == "km" else 1)

            @handler
            async def go(self, steps: int) -> None:
                await self.persist(Moved(steps))

            @handler
            def total(self) -> int:
                return self.state.amount

        return bus_, Walker

    _, old = declare(1)
    async with EntityProbe(old, "a") as probe:
        await probe.ask("go", 2)
        data = probe.store._server.data
    bus_, new = declare(3)
    bus_.upcast("walker", "Moved", 1)(lambda value: {**value, "steps": value["steps"] + 1})
    bus_.upcast(new, "Moved", 2)(lambda value: {**value, "unit": "km"})
    with pytest.raises(ConfigError, match="two upcasters"):
        bus_.upcast(new, "Moved", 2)
    with pytest.raises(ConfigError, match="from version 3"):
        bus_.upcast(new, "Moved", 3)
    async with EntityProbe(new, "a") as probe:
        probe.store._server.data.journals.update(data.journals)
        assert await probe.ask("total") == 3000


def test_what_is_wrong_in_a_class_is_said_where_it_is_declared() -> None:
    bus = ShardBus("own")
    with pytest.raises(ConfigError, match="has no fold"):

        @bus.entity(name="a")
        class NoFold(EventSourced):
            state: Balance

            @handler
            def look(self) -> None:
                """Nothing."""

    with pytest.raises(ConfigError, match="declares the state"):

        @bus.entity(name="b")
        class NoState(EventSourced):
            @handler
            def look(self) -> None:
                """Nothing."""

            @event
            def deposited(self, event: Deposited) -> None:
                """Nothing."""

    with pytest.raises(ConfigError, match="takes one event"):

        @bus.entity(name="c")
        class NoEvent(EventSourced):
            state: Balance

            @handler
            def look(self) -> None:
                """Nothing."""

            @event
            def deposited(self) -> None:
                """Nothing."""

    with pytest.raises(ConfigError, match="two folds"):

        @bus.entity(name="d")
        class Twice(EventSourced):
            state: Balance

            @handler
            def look(self) -> None:
                """Nothing."""

            @event
            def on_deposited(self, event: Deposited) -> None:
                """Nothing."""

            @event
            def two(self, event: Deposited) -> None:
                """Nothing."""

    with pytest.raises(ConfigError, match="state_ttl"):

        @bus.entity(name="e", state_ttl="1d")
        class Ttl(EventSourced):
            state: Balance

            @handler
            def look(self) -> None:
                """Nothing."""

            @event
            def on_deposited(self, event: Deposited) -> None:
                """Nothing."""
