"""A handler gives up its save or persist by a timeout and goes on: the entity finds the outcome
before its next message."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import (
    Entity,
    EventSourced,
    Projection,
    Rejection,
    ShardBus,
    StoreUnavailable,
    event,
    handler,
)
from shardbus.testing import EntityProbe, TestCluster

bus = ShardBus("bank")
PATIENCES = (0.0001, 0.0003, 0.0006, 0.001, 0.0014, 0.01)
"""Seconds: the store gets the write after some of them, and answers after others."""


@dataclass(frozen=True)
class Moved:
    amount: int


@dataclass
class Balance:
    amount: int = 0


@dataclass
class TryLater(Rejection):
    pass


@bus.entity("account")
class Account(EventSourced):
    state: Balance

    @event
    def moved(self, event: Moved) -> None:
        self.state.amount += event.amount

    @handler
    async def move(self, amount: int, patience: float = 60.0) -> None:
        try:
            async with asyncio.timeout(patience):
                await self.persist(Moved(amount))
        except (TimeoutError, StoreUnavailable):
            raise TryLater from None

    @handler
    async def empty(self, patience: float) -> bool:
        try:
            async with asyncio.timeout(patience):
                await self.clear()
        except TimeoutError:
            return False
        return True

    @handler
    async def move_later(self, amount: int, patience: float) -> None:
        """A task that the handler leaves behind gives up."""
        self.task = asyncio.create_task(self.move(amount, patience))

    @handler
    def balance(self) -> int:
        return self.state.amount


@bus.projection(of=Account, name="total")
class Total(Projection):
    state: Balance

    @event
    def moved(self, event: Moved) -> None:
        self.state.amount += event.amount


@bus.entity("sink")
class Sink(Entity):
    state: Balance

    @handler
    def add(self, amount: int) -> None:
        self.state.amount += amount


@bus.entity("source")
class Source(Entity):
    state: Balance

    @handler
    async def pay(self, amount: int, patience: float = 60.0) -> bool:
        self.state.amount += amount
        self.deliver(self.context.ref(Sink, "s").add, amount)
        try:
            async with asyncio.timeout(patience):
                await self.save()
        except (TimeoutError, StoreUnavailable):
            return False
        return True


@pytest.mark.parametrize("patience", PATIENCES)
@pytest.mark.parametrize("way", ["handler", "task"])
async def test_the_next_message_sees_an_event_that_was_stored_although_it_was_given_up(
    patience: float, way: str
) -> None:
    async with EntityProbe(Account, "ada") as probe:
        await probe.ref.move(100)
        if way == "task":
            await probe.ref.move_later(-80, patience)
            await probe.advance(1)
        else:
            with suppress(TryLater):
                await probe.ref.move(-80, patience)
        seen = await probe.ref.balance()
        await probe.crash()
        assert seen == await probe.ref.balance()


async def test_messages_that_wait_are_behind_the_look_at_the_journal() -> None:
    async with EntityProbe(Account, "ada") as probe:
        await probe.ref.move(100)
        for patience in PATIENCES:
            first = probe.cluster.spawn(probe.ref.move(-80, patience))
            second = probe.cluster.spawn(probe.ref.balance())
            with suppress(TryLater):
                await first
            seen = await second
            await probe.crash()
            assert seen == await probe.ref.balance()


@pytest.mark.parametrize("patience", PATIENCES)
async def test_the_next_message_sees_the_outcome_of_a_clear_that_was_given_up(
    patience: float,
) -> None:
    async with EntityProbe(Account, "ada") as probe:
        await probe.ref.move(100)
        done = await probe.ref.empty(patience)
        seen = await probe.ref.balance()
        assert not (done and seen)
        await probe.crash()
        assert seen == await probe.ref.balance()


async def test_a_projection_sees_an_event_that_was_given_up_without_another_event() -> None:
    async with TestCluster(bus, nodes=1) as cluster:
        ref = cluster.client().ref(Account, "ada")
        await ref.move(100)
        stored = 100
        for patience in PATIENCES:
            with suppress(TryLater):
                await ref.move(1, patience)
            await cluster.advance(5)
            stored = await ref.balance()
            await cluster.advance(5)
            part = cluster.nodes[0].entity(Total, "ada/total")
            assert part is not None
            assert part.state.amount == stored
        assert stored > 100, "one of them was stored"


@pytest.mark.parametrize("patience", PATIENCES)
async def test_a_delivery_is_sent_if_the_save_that_was_given_up_has_stored_it(
    patience: float,
) -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        source = cluster.client().ref(Source, "a")
        await source.pay(1)
        await source.pay(1, patience)
        await cluster.advance(10)
        stored = cluster.store.state(Source, "a")
        arrived = cluster.store.state(Sink, "s")
        assert stored is not None
        assert arrived is not None
        assert stored.amount == arrived.amount


async def test_an_entity_reads_the_store_again_whose_handler_has_caught_a_save_without_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store has the write, and its answer got lost."""

    async def lost(*args: Any) -> None:
        await write(*args)
        raise StoreUnavailable("no answer")

    async with TestCluster(bus, nodes=1) as cluster:
        client = cluster.client()
        account, source = client.ref(Account, "a"), client.ref(Source, "a")
        await account.move(1)
        await source.pay(1)
        host = cluster.nodes[0]._host("account")
        write = host.runner.logs.journals.append
        with monkeypatch.context() as patch:
            patch.setattr(host.runner.logs.journals, "append", lost)
            with pytest.raises(TryLater):
                await account.move(1)
        assert await account.balance() == 2
        keeper = cluster.nodes[0]._host("source").saver._keeper
        write = keeper.save
        with monkeypatch.context() as patch:
            patch.setattr(keeper, "save", lost)
            assert not await source.pay(1)
        await cluster.advance(5)
        sink = cluster.store.state(Sink, "s")
        assert sink is not None
        assert sink.amount == 2


async def test_a_delivery_waits_for_the_next_save_if_the_one_in_doubt_has_not_stored_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lost(*args: Any) -> None:
        raise StoreUnavailable("no answer")

    async with TestCluster(bus, nodes=1) as cluster:
        source = cluster.client().ref(Source, "a")
        keeper = cluster.nodes[0]._host("source").saver._keeper
        with monkeypatch.context() as patch:
            patch.setattr(keeper, "save", lost)
            assert not await source.pay(1)
        await cluster.advance(5)
        assert cluster.store.state(Sink, "s") is None
        assert await source.pay(1)
        await cluster.advance(5)
        sink = cluster.store.state(Sink, "s")
        assert sink is not None
        assert sink.amount == 2
