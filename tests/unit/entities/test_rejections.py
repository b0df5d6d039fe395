"""Handlers that refuse: the asker gets the rejection, and the entity goes on as it is. Handlers
that fail: counts, restarts, and waiting messages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import Entity, Rejection, ShardBus, StopReason, behaviour, handler
from shardbus.entities.activation import Activation, LifeState, Message
from shardbus.entities.entity_type import Directive
from shardbus.entities.supervision import Supervisor
from shardbus.errors import EntityFailed, ReentrancyError
from shardbus.transport.drop_reports import Origin
from shardbus.wire.schema import encode_value
from tests.unit.entities.entity_kit import Bench, Log
from tests.waiting import PATIENCE_S, turns, until

MARK = -7
"""The mark of a session that gets reports of dropped tells."""


@dataclass
class OutOfStock(Rejection):
    left: int


class Shop(Entity):
    """Refuses in every way, and counts its sales."""

    log: Log

    def __init__(self) -> None:
        self.sold = 0

    @handler
    def sell(self, amount: int) -> int:
        if amount > 3:
            raise OutOfStock(3)
        self.sold += amount
        return self.sold

    @handler
    async def sell_async(self, amount: int) -> int:
        return self.sell(amount)

    @handler
    async def sell_later(self, amount: int) -> int:
        await self.log.gate.wait()
        return self.sell(amount)

    @handler(thread=True)
    def sell_in_thread(self, amount: int) -> int:
        return self.sell(amount)

    @handler
    def fail(self) -> None:
        raise ValueError("broken")

    @handler
    async def fail_later(self) -> None:
        await self.log.gate.wait()
        raise ValueError("broken")

    @handler
    def stash_and_refuse(self) -> None:
        self.context.stash()
        raise OutOfStock(0)

    @handler
    def look_up(self) -> None:
        async def work() -> None:
            raise OutOfStock(1)

        self.context.pipe_to_self(work(), answer=True)

    @behaviour
    def receive(self, message: object) -> int:
        match message:
            case int():
                return self.sell(message)
            case Exception():
                raise message
        return self.unhandled(message)


def bench(log: Log | None = None, cls: Any = Shop, /, **options: Any) -> Bench:
    bus = ShardBus("shop")
    bus.entity("shop", supervision=options.pop("supervision", None))(cls)
    cls.log = log or Log()
    cls.log.gate.set()
    return Bench(bus, **options)


def tell(b: Bench, entity_id: str, method: str, *args: Any) -> None:
    """Tell as by a session that gets reports of dropped tells."""
    b._deliver(method, [(entity_id, encode_value(args), MARK)], None, 0)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The backoffs of starts, none of which is waited for."""
    waits: list[float] = []

    async def pause(self: Supervisor, activation: Activation, seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(Supervisor, "_pause", pause)
    return waits


# Rejections


@pytest.mark.parametrize("method", ["sell", "sell_async", "sell_later", "sell_in_thread"])
async def test_a_rejection_is_an_answer_and_the_entity_goes_on(method: str) -> None:
    errors: list[Exception] = []

    def supervision(error: Exception) -> Directive:
        errors.append(error)
        return Directive.STOP

    b = bench(supervision=supervision)
    assert await b.ask("e", method, 2) == 2
    entity = b.entity("e")
    with pytest.raises(OutOfStock) as refused:
        await b.ask("e", method, 4)
    assert refused.value.left == 3
    assert await b.ask("e", method, 1) == 3
    assert b.entity("e") is entity
    assert not errors
    assert not b.dropped
    assert b.host.counts.failures == 0
    assert b.host.counts.started == {"message": 1}


async def test_receive_may_refuse() -> None:
    b = bench()
    with pytest.raises(OutOfStock):
        await b.ask_message("e", 4)
    assert await b.ask_message("e", 1) == 1


async def test_a_rejection_in_a_run_leaves_the_rest_of_the_run() -> None:
    b = bench()
    rows, answers = [], []
    for amount in (1, 4, 2):
        corr, future = b.asker.expect()
        rows.append(("e", encode_value((amount,)), corr))
        answers.append(future)
    b._deliver("sell", rows, b.asker, 10_000)
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert outcomes == [1, OutOfStock(3), 3]


async def test_a_rejection_of_piped_work_reaches_the_asker_that_waits() -> None:
    b = bench()
    with pytest.raises(OutOfStock) as refused:
        await b.ask("e", "look_up")
    assert refused.value.left == 1
    assert b.host.counts.failures == 0


async def test_a_rejection_of_a_message_that_was_put_aside_is_no_answer_yet() -> None:
    b = bench()
    waiting = b.ask("e", "stash_and_refuse")
    await turns()
    assert not waiting.done()
    assert not b.dropped
    assert b.host.counts.failures == 0


@pytest.mark.parametrize("method", ["sell", "sell_async", "sell_later", "sell_in_thread"])
async def test_a_told_message_that_is_refused_is_counted_for_its_sender(method: str) -> None:
    b = bench()
    reported: list[tuple[int, str, int]] = []
    b.host.counts.report_drop = lambda via, reason, count: reported.append((via, reason, count))
    tell(b, "e", method, 4)
    await until(lambda: reported, "the report")
    assert reported == [(MARK, "rejected", 1)]
    assert b.dropped == {"rejected": 1}
    assert b.host.counts.failures == 0


async def test_a_rejection_in_a_start_is_a_failed_start(waits: list[float]) -> None:
    class Closed(Shop):
        async def on_start(self) -> None:
            raise OutOfStock(0)

    b = bench(None, Closed, supervision={Rejection: "stop"})
    with pytest.raises(EntityFailed) as failed:
        await b.ask("e", "sell", 1)
    assert failed.value.type == "OutOfStock"
    assert b.host.counts.failures == 1


async def test_a_rejection_in_the_stop_message_stops_the_entity() -> None:
    class Closing(Shop):
        @handler
        def close(self) -> None:
            raise OutOfStock(0)

    bus = ShardBus("shop")
    bus.entity("shop", stop_message="close")(Closing)
    b = Bench(bus)
    await b.ask("e", "sell", 1)
    b.stop(StopReason.HANDOFF)
    await turns()
    assert b.down == [b.SHARD]
    assert b.host.counts.stopped == {"handoff": 1}


# Tells that fail


@pytest.mark.parametrize("method", ["fail", "fail_later"])
@pytest.mark.parametrize("directive", ["resume", "restart", "stop"])
async def test_a_told_message_that_fails_is_counted_for_its_sender(
    method: str, directive: str
) -> None:
    b = bench(supervision={ValueError: directive})
    reported: list[tuple[int, str, int]] = []
    b.host.counts.report_drop = lambda via, reason, count: reported.append((via, reason, count))
    tell(b, "e", method)
    await until(lambda: reported, "the report")
    assert reported == [(MARK, "failed", 1)]
    assert b.dropped == {"failed": 1}
    assert b.host.counts.failures == 1


async def test_an_asked_message_that_fails_is_not_counted_as_dropped() -> None:
    b = bench()
    with pytest.raises(EntityFailed):
        await b.ask("e", "fail")
    assert not b.dropped


async def test_a_told_message_that_is_cut_off_has_failed() -> None:
    b = bench(log := Log())
    log.gate.clear()
    tell(b, "e", "sell_later", 1)
    activation = b.activation("e")
    assert activation is not None
    b.stop()
    b.host._cut_off(list(b.host.shards.values()))
    await b.stopped()
    assert b.dropped == {"failed": 1}


# Restarts


async def test_restarts_are_counted_by_their_cause() -> None:
    b = bench()
    for _ in range(3):
        with pytest.raises(EntityFailed):
            await b.ask("e", "fail")
    assert await b.ask("e", "sell", 1) == 1
    assert b.host.counts.started == {"message": 1, "restart": 3}
    assert not b.host.counts.stopped


async def test_refused_and_failed_orders_schedule_no_backoff(waits: list[float]) -> None:
    b = bench(entity_restart_backoff_min=3600, entity_restart_backoff=3600)
    for _ in range(6):
        with pytest.raises(OutOfStock):
            await b.ask("e", "sell", 4)
        with pytest.raises(EntityFailed):
            await b.ask("e", "fail")
        tell(b, "e", "fail")
    assert await b.ask("e", "sell", 1) == 1
    assert not waits


class Restless(Entity):
    """Begins work of its own in each start, which fails."""

    log: Log

    async def on_start(self) -> None:
        self.log.rows.append("start")
        how = self.log.failing
        if "timer" in how:
            self.context.schedule_once(0, "tick")
        elif "work" in how:
            self.context.pipe_to_self(self.work())

    async def work(self) -> None:
        raise ValueError("work")

    @handler
    def hit(self) -> int:
        return 1

    def receive(self, message: object) -> None:
        raise ValueError(message)


@pytest.mark.parametrize("how", ["timer", "work"])
async def test_a_start_that_leads_to_a_failure_waits_longer_and_longer(
    how: str, waits: list[float]
) -> None:
    log = Log()
    log.failing = {how}
    b = bench(
        log, Restless, entity_restart_backoff_min=0.01, entity_restart_backoff=0.04,
    )  # fmt: skip
    b.tell("e", "hit")
    await until(lambda: len(waits) >= 5, "five backoffs")
    log.failing = set()
    assert waits[:5] == [0.01, 0.02, 0.04, 0.04, 0.04]


async def test_a_message_in_between_ends_the_backoff_of_own_failures(waits: list[float]) -> None:
    b = bench(Log(), Restless)
    assert await b.ask("e", "hit") == 1
    activation = b.activation("e")
    assert activation is not None
    invoker = b.kind.invokers[""]

    async def fail_by_itself() -> None:
        failures = b.host.counts.failures
        message = Message(invoker, encode_value("tick"), None, Origin.OWN, 0)
        b.host.runner.receive(activation, message, counts=False)
        await until(lambda: b.host.counts.failures > failures, "the failure")
        await turns()

    for _ in range(4):
        await fail_by_itself()
        b.pass_ticks(1)
        assert await b.ask("e", "hit") == 1
    assert not waits
    await fail_by_itself()
    await fail_by_itself()
    assert len(waits) == 1
    assert "failed" not in b.dropped


async def test_a_message_that_arrives_in_the_backoff_of_own_failures_ends_it() -> None:
    log = Log()
    log.failing = {"timer"}
    b = bench(log, Restless, entity_restart_backoff_min=3600, entity_restart_backoff=3600)
    b.tell("e", "hit")
    await until(lambda: in_state(b, LifeState.PAUSING), "a backoff")
    log.failing, starts = set(), len(log.rows)
    activation = b.activation("e")
    assert activation is not None
    own = Message(b.kind.invokers[""], encode_value("tick"), None, Origin.OWN, 0)
    b.host.runner.receive(activation, own, counts=False)
    await turns()
    assert len(log.rows) == starts, "its own messages wait"
    assert await asyncio.wait_for(b.ask("e", "hit"), PATIENCE_S) == 1


def in_state(b: Bench, state: LifeState) -> bool:
    activation = b.activation("e")
    return activation is not None and activation.state is state


# Errors that pass through


async def test_a_rejection_that_an_entity_does_not_catch_reaches_its_own_asker() -> None:
    class Asks(Shop):
        @handler
        async def order(self) -> int:
            await asyncio.sleep(0)
            raise Rejection("elsewhere", type="Elsewhere")

        @handler
        async def cycle(self) -> int:
            raise ReentrancyError([("shop", "e"), ("shop", "f")])

    b = bench(None, Asks)
    with pytest.raises(Rejection, match="Elsewhere: elsewhere"):
        await b.ask("e", "order")
    with pytest.raises(EntityFailed):
        await b.ask("e", "cycle")
    assert b.host.counts.failures == 1
