"""Supervision: the fate of an entity that fails or stops; no other is affected."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus import Entity, ShardBus, StopReason, handler
from shardbus.errors import EntityFailed, Unhandled
from shardbus.store.memory import MemoryData
from tests.unit.entities.entity_kit import Bench, ListStore, Log, LogEntity
from tests.waiting import turns, until


class Fragile(LogEntity):
    """Fails in every way."""

    def __init__(self) -> None:
        if self.context.entity_id in self.log.failing:
            raise ValueError("in the constructor")
        self.fresh = True

    async def on_stop(self, reason: StopReason) -> None:
        self.log.rows.append(reason)
        await self.log.end_gate.wait()

    @handler
    def was_fresh(self) -> bool:
        fresh, self.fresh = self.fresh, False
        return fresh

    @handler
    def passivate(self) -> None:
        self.context.passivate()

    @handler
    def stop(self) -> None:
        self.context.stop()

    @handler
    def fail(self) -> None:
        raise ValueError

    @handler
    async def fail_later(self) -> None:
        await self.log.gate.wait()
        raise ValueError

    @handler
    def passivate_and_fail(self) -> None:
        self.context.passivate()
        raise ValueError

    @handler
    def cancelled(self, n: int) -> int:
        if n < 0:
            raise asyncio.CancelledError
        return self.hit(n)

    @handler
    async def cancelled_async(self, n: int) -> int:
        return self.cancelled(n)


def bench(log: Log, supervision: Any = None, /, **options: Any) -> Bench:
    bus = ShardBus("shop")
    bus.entity("page", supervision=supervision)(Fragile)
    Fragile.log = log
    return Bench(bus, ListStore(MemoryData()), **options)


def start(b: Bench, entity_id: str) -> asyncio.Future[Any]:
    """StartEntity."""
    return b.ask(entity_id, "$start")


# Stops


@pytest.mark.parametrize(
    ("remember", "how", "comes_back"),
    [
        (False, "stop", False),
        (False, "passivate", False),
        (False, "fail", False),
        (True, "stop", True),
        (True, "passivate", False),
        (True, "fail", True),
    ],
)
async def test_T_SU7_a_stopped_entity_returns_only_if_remembered_and_not_passivated(
    remember: bool, how: str, comes_back: bool
) -> None:
    b = bench(Log(), {ValueError: "stop"}, remember=remember, entity_restart_backoff=0.01)
    assert await b.ask("e", "was_fresh")
    outcome = b.ask("e", how)
    await until(lambda: b.host.counts.stopped, "the stop")
    assert isinstance(outcome.exception(), EntityFailed if how == "fail" else type(None))
    if comes_back:
        await until(lambda: b.entity("e"), "the next one, without a message")
        assert await b.ask("e", "was_fresh")
        return
    await until(lambda: isinstance(b.store, ListStore) and b.store.ids() == [], "an empty list")
    assert b.activation("e") is None
    assert await b.ask("e", "was_fresh")


async def test_T_SU8_a_start_while_it_passivates_starts_it_again() -> None:
    b = bench(log := Log())
    await b.ask("e", "hit", 1)
    log.end_gate.clear()
    await b.ask("e", "passivate")
    started = start(b, "e")
    await turns()
    assert not started.done()
    log.end_gate.set()
    await started
    assert b.entity("e") is not None
    assert await b.ask("e", "was_fresh")


async def test_T_SU8_a_start_while_it_waits_for_its_restart_does_not_wait() -> None:
    b = bench(Log(), remember=True, entity_restart_backoff=3600)
    await b.ask("e", "hit", 1)
    await b.ask("e", "stop")
    assert b.activation("e") is None
    await start(b, "e")
    assert await b.ask("e", "was_fresh")
    assert b.host.counts.started == {"message": 2}


async def test_T_SU8_a_start_while_its_stop_is_being_stored_comes_after_that() -> None:
    b = bench(Log(), remember=True)
    store = b.store
    assert isinstance(store, ListStore)
    await b.ask("e", "hit", 1)
    store.gate.clear()
    await b.ask("e", "passivate")
    await turns(10)
    started = start(b, "e")
    await turns(10)
    assert not started.done()
    store.gate.set()
    await started
    assert store.ids() == ["e"]
    assert b.entity("e") is not None


# Backoff and passivation


async def test_T_SU16_an_entity_in_backoff_is_neither_idle_nor_evicted() -> None:
    """It keeps its messages, and the limit evicts another entity."""
    b = bench(
        log := Log(), passivate_after=1, active_entity_limit=2, entity_restart_backoff_min=3600
    )
    await b.ask("e", "hit", 0)
    log.failing.add("e")
    with pytest.raises(EntityFailed):
        await b.ask("e", "fail")
    waiting = b.ask("e", "hit", 1)
    for n in range(4):
        b.pass_ticks(100)
        await b.ask(f"other{n}", "hit", n)
        await turns()
    assert b.activation("e") is not None
    assert not waiting.done()
    assert b.host.entities == 2


async def test_T_SU16_a_passivation_ends_the_backoff_and_what_waits_starts_the_next() -> None:
    b = bench(Log(), entity_restart_backoff_min=0.001)
    for _ in range(3):
        with pytest.raises(EntityFailed):
            await b.ask("e", "fail")
    b.tell("e", "passivate")
    assert await b.ask("e", "was_fresh")
    activation = b.activation("e")
    assert activation is not None
    assert activation.failures == 0


@pytest.mark.parametrize("directive", ["resume", "restart", "stop"])
async def test_T_SU16_an_entity_that_passivates_and_fails_is_passivated(directive: str) -> None:
    b = bench(log := Log(), {ValueError: directive})
    outcome = b.ask("e", "passivate_and_fail")
    after = b.ask("e", "was_fresh")
    await until(outcome.done, "the failure")
    assert isinstance(outcome.exception(), EntityFailed)
    assert await after
    assert log.rows == [StopReason.PASSIVATION]
    assert b.host.counts.stopped == {"passivation": 1}


async def test_T_SU16_a_handoff_waits_for_a_failing_entity_and_hands_off_its_mailbox() -> None:
    b = bench(log := Log())
    failing, after = b.ask("e", "fail_later"), b.ask("e", "hit", 1)
    await turns()
    b.stop()
    assert b.down == []
    log.gate.set()
    with pytest.raises(EntityFailed):
        await failing
    assert await after == 1
    await b.stopped()
    assert log.rows == [1, StopReason.HANDOFF]


# Nobody else


async def test_C18_a_constructor_that_fails_hurts_one_entity_only() -> None:
    b = bench(log := Log(), entity_restart_backoff_min=3600, handoff_timeout=6)
    log.failing.add("bad")
    rows: list[tuple[str, tuple[Any, ...]]] = [("a", (1,)), ("bad", (2,)), ("b", (3,))]
    b.tell_many("hit", *rows)
    assert log.rows == [1, 3]
    waiting = b.ask("bad", "hit", 4)
    assert await b.ask("c", "hit", 5) == 5
    await turns()
    assert not waiting.done()
    b.stop()
    assert set(b.host.shards["0"].activations) == {"bad"}
    await b.stopped()
    with pytest.raises(Exception, match="stopped"):
        await waiting


@pytest.mark.parametrize("method", ["cancelled", "cancelled_async"])
async def test_a_cancellation_that_a_handler_lets_out_is_its_own_failure(method: str) -> None:
    b = bench(log := Log())
    b.tell_many(method, ("a", (1,)), ("b", (-1,)), ("c", (2,)), ("b", (3,)))
    await until(lambda: len(log.rows) == 3, "the others")
    assert sorted(log.rows) == [1, 2, 3]
    assert b.host.counts.failures == 1
    with pytest.raises(EntityFailed, match="CancelledError"):
        await b.ask("b", method, -1)
    busy = b.ask("d", "fail_later")
    queued = b.ask("d", method, -1), b.ask("d", "hit", 4)
    log.gate.set()
    outcomes = await asyncio.gather(busy, *queued, return_exceptions=True)
    assert [type(o) for o in outcomes] == [EntityFailed, EntityFailed, int]


@pytest.mark.parametrize("where", ["__init__", "on_start", "on_stop"])
@pytest.mark.parametrize("plain", [True, False])
async def test_a_cancellation_at_a_start_or_an_end_stays_with_its_entity(
    where: str, plain: bool
) -> None:
    class Cancels(Entity):
        left = 2
        rows: list[int]

        def __init__(self) -> None:
            self.maybe("__init__")

        def maybe(self, here: str) -> None:
            if here == where and Cancels.left:
                Cancels.left -= 1
                raise asyncio.CancelledError

        @handler
        def hit(self, n: int) -> int:
            return n

        @handler
        def passivate(self) -> None:
            self.context.passivate()

    class Hooked(Cancels):
        async def on_start(self) -> None:
            self.maybe("on_start")

        async def on_stop(self, reason: StopReason) -> None:
            self.maybe("on_stop")

    bus = ShardBus("shop")
    bus.entity("page")(Cancels if plain else Hooked)
    b = Bench(bus, entity_restart_backoff_min=0.001)
    b.tell_many("hit", ("a", (1,)), ("b", (2,)))
    assert await asyncio.gather(b.ask("a", "hit", 3), b.ask("b", "hit", 4)) == [3, 4]
    await b.ask("a", "passivate")
    await until(lambda: b.activation("a") is None, "the end of one")
    b.stop()
    await b.stopped()


# Stopping while it starts


@pytest.mark.parametrize("how", ["stop", "passivate"])
async def test_an_entity_that_stops_while_it_starts_refuses_its_messages(how: str) -> None:
    """A next activation would do the same, without end."""

    class Unwilling(Entity):
        gate: asyncio.Event
        end_gate: asyncio.Event

        async def on_start(self) -> None:
            await self.gate.wait()
            getattr(self.context, how)()

        async def on_stop(self, reason: StopReason) -> None:
            await self.end_gate.wait()

        @handler
        def hit(self) -> int:
            raise AssertionError("it has stopped")

    Unwilling.gate, Unwilling.end_gate = asyncio.Event(), asyncio.Event()
    bus = ShardBus("test")
    bus.entity("unwilling")(Unwilling)
    b = Bench(bus)
    waiting = [b.ask("e", "hit") for _ in range(3)]
    b.tell("e", "hit")
    Unwilling.gate.set()
    await turns()
    late = b.ask("e", "hit")  # while `on_stop` waits
    assert late.done()
    assert "stopped as it started" in str(late.exception())
    Unwilling.end_gate.set()
    await turns(50)  # and no longer: a defect would start it again and again
    assert [w.done() and type(w.exception()) for w in waiting] == [Unhandled] * 3
    assert b.dropped == {"stopped": 5}
    assert b.host.counts.started == {"message": 1}
    assert b.host.counts.stopped == {"stopped" if how == "stop" else "passivation": 1}
    assert b.host.entities == 0


async def test_an_entity_that_stops_in_its_constructor_refuses_the_message() -> None:
    class Unwilling(Entity):
        def __init__(self) -> None:
            self.context.stop()

        @handler
        def hit(self) -> int:
            raise AssertionError("it has stopped")

    bus = ShardBus("test")
    bus.entity("unwilling")(Unwilling)
    b = Bench(bus)
    for _ in range(2):
        with pytest.raises(Unhandled, match="stopped as it started"):
            await b.ask("e", "hit")
    assert b.host.entities == 0
    assert b.host.counts.stopped == {"stopped": 2}


@pytest.mark.parametrize("error", [LookupError("too late"), asyncio.CancelledError()])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("how", ["stop", "passivate"])
async def test_a_stop_wins_over_the_failure_of_the_same_start(
    how: str, waits: bool, error: BaseException
) -> None:
    """Otherwise the messages that wait would start it again and again, without a pause."""

    class Unwilling(Entity):
        starts = 0

        async def on_start(self) -> None:
            type(self).starts += 1
            if waits:
                await asyncio.sleep(0)
            getattr(self.context, how)()
            raise error

        @handler
        def hit(self) -> int:
            raise AssertionError("it has stopped")

    bus = ShardBus("test")
    bus.entity("unwilling")(Unwilling)
    b = Bench(bus)
    waiting = [b.ask("e", "hit")]
    if waits:
        waiting += [b.ask("e", "hit") for _ in range(2)]
    await turns(50)
    assert [w.done() and type(w.exception()) for w in waiting] == [EntityFailed] * len(waiting)
    assert Unwilling.starts == 1
    assert b.dropped == {"start_failed": len(waiting)}
    assert b.host.counts.failures == 1
    assert b.host.counts.stopped == {"stopped" if how == "stop" else "passivation": 1}
    assert b.host.entities == 0


async def test_a_stop_wins_over_the_failure_of_a_constructor() -> None:
    class Unwilling(Entity):
        starts = 0

        def __init__(self) -> None:
            type(self).starts += 1
            self.context.stop()
            raise LookupError("too late")

        @handler
        def hit(self) -> int:
            raise AssertionError("it has stopped")

    bus = ShardBus("test")
    bus.entity("unwilling")(Unwilling)
    b = Bench(bus)
    ask = b.ask("e", "hit")
    await turns(50)
    assert ask.done()
    assert str(ask.exception()) == "LookupError: too late"
    assert Unwilling.starts == 1
    assert b.host.entities == 0
