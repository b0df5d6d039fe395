"""`EntityProbe`: one entity, its state, its time, its end."""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shardbus import Entity, ShardBus, StoreUnavailable, handler
from shardbus.errors import EntityFailed, MessageTooLarge
from shardbus.testing import EntityProbe, TestCluster
from shardbus.wire.batch import PAYLOAD_BYTES_MAX
from tests.unit.testing.shop import (
    Alarm,
    Counter,
    EmptyStock,
    Order,
    OutOfStock,
    Stock,
    Total,
    Undeclared,
)


async def test_an_entity_answers_and_saves() -> None:
    async with EntityProbe(Counter, "page-7") as probe:
        assert probe.saved is None
        assert not probe.running
        assert probe.entity is None
        assert await probe.ask("add", 2) == 2
        assert await probe.ref.add(3) == 5
        assert probe.saved == Total(5)
        assert isinstance(probe.entity, Counter)
        assert probe.entity.state == Total(5)
        assert probe.starts == {"message": 1}


async def test_an_entity_begins_with_a_state() -> None:
    async with EntityProbe(Counter, "page-7", state=Total(40)) as probe:
        assert probe.saved == Total(40)
        assert await probe.ask("add", 2) == 42
        assert probe.saved == Total(42)


async def test_a_tell_has_been_handled_when_it_returns() -> None:
    async with EntityProbe(Counter, "page-7") as probe:
        await probe.tell("add_slowly", 7, 20.0)
        assert probe.saved == Total(7)
        assert probe.cluster.now > 20


async def test_a_crash_takes_what_was_not_saved() -> None:
    async with EntityProbe(Counter, "page-7") as probe:
        await probe.ask("add", 1)
        lost = asyncio.ensure_future(probe.ask("add_slowly", 10, 30.0))
        await probe.advance(2)
        assert probe.entity is not None
        assert probe.entity.state == Total(11)
        await probe.crash()
        assert await probe.ask("total") == 1
        with pytest.raises(Exception, match="incarnation"):
            await lost


async def test_an_idle_entity_leaves_memory() -> None:
    async with EntityProbe(Counter, "page-7") as probe:
        await probe.ask("add", 1)
        await probe.advance(100)
        assert probe.running
        await probe.advance(50)
        assert not probe.running
        assert probe.stops == {"passivation": 1}
        assert await probe.ask("total") == 1


async def test_timers_go_by_virtual_time() -> None:
    async with EntityProbe(Alarm, "a") as probe:
        assert await probe.ask("count") == 0
        await probe.advance(30.5)
        assert probe.entity is not None
        assert len(probe.entity.rung) == 3
        first, second, third = probe.entity.rung
        assert second - first == pytest.approx(10, abs=0.001)
        assert third - second == pytest.approx(10, abs=0.001)


async def test_other_entities_run_or_are_faked() -> None:
    async with EntityProbe(Order, "o-1") as probe:
        assert await probe.ask("place", 30) == 70
        assert await probe.client.ref(Stock, "main").take(1) == 99
    async with EntityProbe(Order, "o-1", fakes={Stock: EmptyStock}) as probe:
        with pytest.raises(OutOfStock) as refused:
            await probe.ask("place", 30)
        assert refused.value.left == 3


async def test_a_store_that_fails_is_felt() -> None:
    async with EntityProbe(Counter, "page-7") as probe:
        await probe.ask("add", 1)
        probe.store.stop()
        with pytest.raises(EntityFailed, match=StoreUnavailable.__name__):
            await probe.ask("add", 1, timeout=60.0)
        probe.store.start()
        assert await probe.ask("add", 1, timeout=60.0) == 2


async def test_a_class_that_no_application_declares() -> None:
    for _ in range(2):
        async with EntityProbe(Undeclared, "u") as probe:
            assert await probe.ask("write", "a") == 1
            assert probe.saved.lines == ["a"]


async def test_a_handler_in_a_thread() -> None:
    async with EntityProbe(Counter, "page-7") as probe:
        assert await probe.ask("in_thread")
        with pytest.raises(EntityFailed, match="no"):
            await probe.ask("fails_in_thread")


def test_a_probe_without_a_loop() -> None:
    with EntityProbe(Counter, "page-7") as probe:
        assert probe.run(probe.ask("add", 2)) == 2
        assert probe.run(probe.ref.add(2)) == 4
        probe.run(probe.advance(200))
        assert not probe.running


async def test_settings_of_a_probe() -> None:
    settings = {"sharding.types.counter.passivate_after": "10s"}
    async with EntityProbe(Counter, "page-7", settings=settings) as probe:
        await probe.ask("total")
        await probe.advance(15)
        assert not probe.running


@dataclass
class Terms:
    until: datetime | None = None


offers = ShardBus("offers")


@offers.entity
class Offer(Entity):
    state: Terms

    @handler
    async def open(self, minutes: int) -> datetime:
        self.state.until = self.context.now() + timedelta(minutes=minutes)
        await self.save()
        return self.state.until

    @handler
    def is_open(self) -> bool:
        return self.state.until is not None and self.context.now() < self.state.until


async def test_a_deadline_in_the_state_passes_in_virtual_time() -> None:
    async with EntityProbe(Offer, "e") as probe:
        began = probe.cluster.wall_clock
        until = await probe.ref.open(15)
        assert timedelta(0) <= until - began - timedelta(minutes=15) < timedelta(seconds=1)
        await probe.advance(800)
        assert await probe.ask("is_open")
        await probe.crash()
        assert await probe.ask("is_open")
        await probe.advance(100)
        assert not await probe.ask("is_open")
        assert probe.saved == Terms(until)
        assert (began.year, began.tzinfo) == (2026, UTC)


@pytest.mark.parametrize("ends_before_the_outcome", [False, True])
async def test_an_ask_that_an_entity_forgets_to_await_warns_with_its_line(
    ends_before_the_outcome: bool,
) -> None:
    bus = ShardBus("forgetful")

    @bus.entity
    class Forgetful(Entity):
        state: Terms  # the store decides it, so an outcome takes longer

        @handler
        async def remind(self, later: bool) -> None:
            other = self.context.ref(Forgetful, "other")
            if later:
                await asyncio.gather(other.note(), other.note())
            else:
                other.note()

        @handler
        def note(self) -> int:
            return 1

    async def run(later: bool) -> None:
        async with EntityProbe(Forgetful, "e") as probe:
            await probe.ref.remind(later)
            if not ends_before_the_outcome:
                await probe.advance(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await run(True)
    with pytest.warns(RuntimeWarning, match="was never awaited") as warned:
        await run(False)
    [warning] = warned
    line = Path(__file__).read_text().splitlines()[warning.lineno - 1]
    assert (warning.filename, line.strip()) == (__file__, "other.note()")


async def test_an_ask_that_its_call_refuses_is_none_that_was_forgotten() -> None:
    """The error keeps the frames of the call, and with them the answer, until the test ends."""
    probes = ShardBus("probes")
    errors: list[MessageTooLarge] = []

    @probes.entity
    class Sender(Entity):
        @handler
        def send(self, to: str) -> None:
            try:
                self.context.ref(Sender, to).take(b"x" * PAYLOAD_BYTES_MAX)
            except MessageTooLarge as error:
                errors.append(error)

        @handler
        def take(self, text: bytes) -> int:
            return len(text)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with TestCluster(probes, nodes=2) as cluster:
            client = cluster.client()
            for n in range(8):  # to entities of both nodes
                await client.ref(Sender, "a").send(f"e{n}")
            with pytest.raises(MessageTooLarge):
                client.ref(Sender, "a").take(b"x" * PAYLOAD_BYTES_MAX)
            await cluster.advance(10)
    assert len(errors) == 8
