"""Where ends meet messages put aside: stop messages and limits while an entity's work is under way,
and starts that fail while the shard is to move."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus import Entity, ShardBus, StopReason, handler
from shardbus.errors import EntityFailed, StaleFence, StoreUnavailable, Unhandled
from shardbus.wire.schema import encode_value
from tests.unit.entities.entity_kit import Bench, Log, LogEntity
from tests.waiting import turns, until

STRATEGIES = ["lru", "slru", "mru", "lfu", "composite"]


class Order(LogEntity):
    """Writes beside its messages; on its stop message it writes once more, and stops then."""

    async def on_start(self) -> None:
        self.log.maybe_fail()

    async def on_stop(self, reason: StopReason) -> None:
        self.log.rows.append(reason)

    async def write(self, what: str) -> str:
        await self.log.work.wait()
        return what

    @handler
    def begin(self) -> None:
        self.context.pipe_to_self(self.write("written"))

    @handler
    def passivate(self) -> None:
        self.context.passivate(stop_message="stop")

    async def receive(self, message: str) -> None:
        self.log.rows.append(message)
        if message == "stop":
            self.context.pipe_to_self(self.write("last"))
        elif message == "last":
            self.context.stop()


class Hurried(Order):
    """Stops on its stop message though it may have begun something."""

    async def receive(self, message: str) -> None:
        self.log.rows.append(message)
        if message == "stop":
            self.context.stop()


def bench(log: Log, cls: type[Any] = Order, /, **options: Any) -> Bench:
    bus = ShardBus("shop")
    declared = {k: options.pop(k) for k in ("stop_message", "supervision") if k in options}
    bus.entity("order", **declared)(cls)
    cls.log = log
    return Bench(bus, **options)


# Stop messages and work


async def test_an_entity_that_holds_gets_the_outcome_of_its_work() -> None:
    b = bench(log := Log())
    await b.ask("e", "passivate")
    later = [b.ask("e", "hit", n) for n in (1, 2)]
    await turns()
    assert log.rows == ["stop"]
    log.work.set()
    assert await asyncio.gather(*later) == [1, 2]
    assert log.rows == ["stop", "last", StopReason.PASSIVATION, 1, 2]
    assert b.host.counts.cut_off == 0


async def test_an_earlier_outcome_does_not_wait_behind_other_messages() -> None:
    b = bench(log := Log())
    await b.ask("e", "begin")
    slow = b.ask("e", "slow", 1)
    await turns()
    activation = b.activation("e")
    assert activation is not None
    activation.passivate(stop_message="stop")
    later = b.ask("e", "hit", 2)
    log.work.set()
    await turns()
    b.host.tell_self(activation, "", encode_value("timer"), "")
    log.gate.set()
    assert await asyncio.gather(slow, later) == [1, 2]
    expected = [1, "stop", "written", "timer", "last", StopReason.PASSIVATION, 2]
    assert log.rows == expected


async def test_outcomes_behind_the_stop_message_come_before_waiting_messages() -> None:
    """The stop message is being handled when others come, then its own."""

    class Slow(Order):
        async def receive(self, message: str) -> None:
            if message == "stop":
                await self.log.gate.wait()
            await Order.receive(self, message)

    b = bench(log := Log(), Slow)
    await b.ask("e", "begin")
    await b.ask("e", "passivate")
    later = b.ask("e", "hit", 1)
    log.work.set()
    await turns()
    activation = b.activation("e")
    assert activation is not None
    b.host.tell_self(activation, "", encode_value("timer"), "")
    log.gate.set()
    assert await later == 1
    expected = ["stop", "written", "timer", "last", StopReason.PASSIVATION, 1]
    assert log.rows == expected


@pytest.mark.parametrize("cls", [Order, Hurried])
async def test_a_handoff_waits_for_the_work_of_an_entity_with_a_stop_message(
    cls: type[Any],
) -> None:
    b = bench(log := Log(), cls, stop_message="stop")
    await b.ask("e", "begin")
    b.stop()
    await turns()
    assert log.rows == ["stop"]
    assert b.down == []
    log.work.set()
    await b.stopped()
    outcomes = ["written", "last"] if cls is Order else ["written"]
    assert log.rows == ["stop", *outcomes, StopReason.HANDOFF]


async def test_a_handoff_waits_for_the_work_of_an_entity_that_holds_and_for_the_next() -> None:
    b = bench(log := Log())
    await b.ask("e", "passivate")
    later = b.ask("e", "hit", 1)
    b.stop()
    await turns()
    assert b.down == []
    log.work.set()
    assert await later == 1
    await b.stopped()
    assert log.rows == ["stop", "last", StopReason.PASSIVATION, 1, StopReason.HANDOFF]
    assert b.dropped == {}


async def test_an_entity_that_holds_at_a_handoff_waits_only_for_its_work() -> None:
    """The runtime stops it, and it declared the message with which it stops."""

    class Closes(Order):
        async def receive(self, message: str) -> None:
            self.log.rows.append(message)
            if message == "stop":
                self.context.passivate(stop_message="close")
            elif message == "close":
                self.context.stop()

    b = bench(log := Log(), Closes, stop_message="stop")
    await b.ask("e", "begin")
    slow = b.ask("e", "slow", 1)
    await turns()
    b.stop()
    log.gate.set()
    assert await slow == 1
    await turns()
    waiting = b.ask("e", "hit", 2)
    assert log.rows == [1, "stop", "close"]
    log.work.set()
    assert await waiting == 2
    await b.stopped()
    assert log.rows[3:6] == ["written", StopReason.HANDOFF, 2]


async def test_an_entity_that_stops_itself_does_not_wait_for_its_work() -> None:
    b = bench(log := Log(), Hurried)
    await b.ask("e", "begin")
    await b.ask("e", "passivate")
    assert log.rows == ["stop", StopReason.PASSIVATION]
    log.work.set()
    await turns()
    assert log.rows == ["stop", StopReason.PASSIVATION]
    assert b.activation("e") is None


# Limits and work


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_B89_an_entity_with_work_under_way_is_not_evicted(strategy: str) -> None:
    b = bench(log := Log(), active_entity_limit=2, passivation_strategy=strategy)
    await b.ask("works", "begin")
    for n in range(8):
        b.host.runner.advance(b.host.runner.tick + 1)
        await b.ask(f"e{n}", "hit", n)
        await turns(3)
    assert b.entity("works") is not None
    assert b.host.entities == 2
    log.work.set()
    await until(lambda: "written" in log.rows, "the outcome")
    b.host.set_active_entity_limit(1)
    b.pass_ticks(20)
    await turns(5)
    assert b.host.entities == 1


# Starts that fail while the shard is to move


@pytest.mark.parametrize("by_tell", [False, True])
@pytest.mark.parametrize("reason", [StopReason.HANDOFF, StopReason.SHUTDOWN])
async def test_a_start_is_tried_again_for_messages_that_wait_though_the_shard_is_to_move(
    reason: StopReason, by_tell: bool
) -> None:
    cls, stop_message = (Hurried, {"stop_message": "stop"}) if by_tell else (Order, {})
    b = bench(log := Log(), cls, entity_restart_backoff_min=0.01, **stop_message)
    log.fail = [StoreUnavailable(str(n)) for n in range(4)]
    asks = [b.ask("e", "hit", n) for n in (1, 2)]
    await until(lambda: b.host.counts.failures > 1, "a few attempts")
    b.stop(reason)
    assert await asyncio.gather(*asks) == [1, 2]
    await b.stopped()
    assert log.rows == [1, 2, *(["stop"] if by_tell else []), reason]
    assert b.dropped == {}


async def test_a_store_that_stays_silent_at_a_handoff_is_asked_until_the_entity_is_cut_off() -> (
    None
):
    b = bench(
        log := Log(),
        Hurried,
        stop_message="stop",
        entity_restart_backoff_min=0.01,
        handoff_timeout=5,
    )
    log.fail = [StoreUnavailable("down")] * 100_000
    waiting = [b.ask("e", "hit", n) for n in (1, 2)]
    b.stop()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unhandled, Unhandled]
    await b.stopped()
    assert (b.dropped, b.host.counts.cut_off) == ({"stopped": 2}, 1)
    assert log.rows == []


@pytest.mark.parametrize("by_tell", [False, True])
@pytest.mark.parametrize("error", [StaleFence("order", "e", 7, 8), ValueError("broken")])
async def test_a_start_that_cannot_succeed_here_ends_with_the_shard(
    error: Exception, by_tell: bool
) -> None:
    """A newer activation has the state, or the code is wrong: it will not be otherwise soon."""
    stop_message = {"stop_message": "stop"} if by_tell else {}
    b = bench(log := Log(), entity_restart_backoff_min=0.01, **stop_message)
    log.fail = [error] * 1000
    waiting = b.ask("e", "hit", 1)
    await until(lambda: b.host.counts.failures > 2, "a few attempts")
    b.stop()
    with pytest.raises(Unhandled, match="stopped"):
        await waiting
    await b.stopped()
    assert b.host.counts.cut_off == 0


# Handlers that fail while the shard is to move


class Failing(Entity):
    """Knows whether it is a fresh object: after a failure it must be."""

    log: Log

    def __init__(self) -> None:
        self.spoiled = False

    async def on_stop(self, reason: StopReason) -> None:
        self.log.rows.append(reason)

    @handler
    async def spoil(self) -> None:
        self.spoiled = True
        await self.log.gate.wait()
        raise self.log.fail[0]

    @handler
    def hit(self, n: int) -> int:
        assert not self.spoiled
        self.log.rows.append(n)
        return n

    def receive(self, message: str) -> None:
        self.log.rows.append(message)
        self.context.stop()


@pytest.mark.parametrize("by_tell", [False, True])
@pytest.mark.parametrize("directive", ["restart", "stop"])
async def test_an_entity_that_fails_at_a_handoff_restarts_before_it_goes_on(
    directive: str, by_tell: bool
) -> None:
    stop_message = {"stop_message": "stop"} if by_tell else {}
    b = bench(log := Log(), Failing, supervision={ValueError: directive}, **stop_message)
    log.fail = [ValueError("spoiled")]
    failing = b.ask("e", "spoil")
    asks = [b.ask("e", "hit", n) for n in (1, 2)]
    await turns()
    b.stop()
    log.gate.set()
    with pytest.raises(EntityFailed):
        await failing
    assert await asyncio.gather(*asks) == [1, 2]
    await b.stopped()
    last = [*(["stop"] if by_tell else []), StopReason.HANDOFF]
    first = [StopReason.FAILURE] if directive == "stop" else []
    assert log.rows == [*first, 1, 2, *last]
    assert b.dropped == {}


async def test_a_stale_activation_handles_no_waiting_message_at_a_handoff() -> None:
    class Stale(Failing):
        async def on_start(self) -> None:
            if self.log.rows:
                raise StaleFence("order", "e", 7, 8)

    b = bench(log := Log(), Stale, entity_restart_backoff_min=0.01)
    log.fail = [StaleFence("order", "e", 7, 8)]
    b.tell("e", "spoil")
    waiting = b.ask("e", "hit", 1)
    await turns()
    b.stop()
    log.gate.set()
    with pytest.raises(Unhandled, match="stopped"):
        await waiting
    await b.stopped()
    assert log.rows == [StopReason.FAILURE]
    assert b.dropped == {"failed": 1, "stopped": 1}


async def test_a_stop_message_alone_is_no_reason_to_ask_a_silent_store_again() -> None:
    class Silenced(Failing):
        async def on_start(self) -> None:
            if self.log.gate.is_set():
                raise StoreUnavailable("down")

    b = bench(log := Log(), Silenced, stop_message="stop", entity_restart_backoff_min=0.01)
    log.fail = [ValueError("spoiled")]
    b.tell("e", "spoil")
    await turns()
    b.stop()
    log.gate.set()
    await b.stopped()
    assert (b.dropped, b.host.counts.cut_off, log.rows) == ({"failed": 1}, 0, [])
