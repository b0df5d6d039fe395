"""While a node is suspended its entities handle nothing, lose nothing, and go on in order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from shardbus import Entity, ShardBus, StopReason, handler
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.runs import RUN_SLICE
from shardbus.errors import MailboxFull
from shardbus.wire.schema import encode_value
from tests.unit.entities.entity_kit import Bench, Log, LogEntity
from tests.waiting import turns, until


def bench(cls: type[Entity] = LogEntity, **settings: Any) -> tuple[Bench, Log]:
    log = Log()
    bus = ShardBus("test")
    made = type("Logged", (cls,), {"log": log})
    bus.entity(name="page", **settings)(made)
    return Bench(bus), log


def suspend(b: Bench) -> None:
    b.gate.confirmed(b.now)


async def resume(b: Bench) -> None:
    b.gate.confirmed(b.now + 10.0)
    b.gate.poll()
    await turns()


async def test_messages_wait_while_the_node_is_suspended_and_keep_their_order() -> None:
    b, log = bench()
    b.tell("e", "hit", 0)
    suspend(b)
    for n in (1, 2, 3):
        b.tell("e", "hit", n)
        b.tell("new", "hit", 10 * n)
    await turns()
    assert log.rows == [0]
    await resume(b)
    assert [n for n in log.rows if n < 10] == [0, 1, 2, 3]
    assert [n for n in log.rows if n >= 10] == [10, 20, 30]


async def test_the_gate_shuts_by_the_clock_alone() -> None:
    b, log = bench()
    b.gate.confirmed(5.0)
    b.tell("e", "hit", 1)
    b.now = 5.0
    b.tell("e", "hit", 2)
    await turns()
    assert log.rows == [1]


async def test_it_opens_only_by_a_later_confirmation() -> None:
    b, log = bench()
    suspend(b)
    b.tell("e", "hit", 1)
    b.gate.poll()
    await turns()
    assert log.rows == []
    await resume(b)
    assert log.rows == [1]


async def test_a_handler_that_waited_goes_on_only_once_the_node_is_confirmed() -> None:
    b, log = bench()
    answer = b.ask("e", "slow", 1)
    await turns()
    suspend(b)
    log.gate.set()
    await turns()
    assert log.rows == []
    assert not answer.done()
    await resume(b)
    assert await answer == 1


async def test_an_ask_is_answered_after_the_suspension() -> None:
    b, _ = bench()
    suspend(b)
    answer = b.ask("e", "hit", 7)
    await turns()
    assert not answer.done()
    await resume(b)
    assert await answer == 7


async def test_an_ask_keeps_its_deadline() -> None:
    b, log = bench()
    suspend(b)
    b.ask("e", "hit", 7, ticks=5)
    b.pass_ticks(10)
    await resume(b)
    assert log.rows == []
    assert b.dropped == {"expired": 1}


async def test_a_mailbox_keeps_its_bound() -> None:
    b, log = bench(mailbox=2)
    suspend(b)
    asks = [b.ask("e", "hit", n) for n in range(3)]
    with pytest.raises(MailboxFull):
        await asks[2]
    await resume(b)
    assert log.rows == [0, 1]


async def test_a_cancelled_handler_is_cancelled_only_once_the_node_is_confirmed() -> None:
    class Timed(LogEntity):
        @handler
        async def impatient(self) -> None:
            try:
                async with asyncio.timeout(0.001):
                    await asyncio.get_running_loop().create_future()
            except TimeoutError:
                self.log.rows.append("timeout")

    b, log = bench(Timed)
    b.tell("e", "impatient")
    suspend(b)
    await asyncio.sleep(0.01)
    assert log.rows == []
    b.gate.confirmed(b.now + 1)
    b.gate.poll()
    await until(lambda: log.rows == ["timeout"], "the timeout")


@dataclass
class Total:
    value: int = 0


async def test_a_save_is_not_acknowledged_while_the_node_is_suspended() -> None:
    class Saving(LogEntity):
        state: Total

        @handler
        async def keep(self, n: int) -> None:
            self.state.value = n
            await self.save()
            self.log.rows.append(n)

        @handler
        def keep_beside(self, n: int) -> None:
            self.context.pipe_to_self(self.keep(n))

        async def receive(self, message: object) -> None: ...

    for method in ("keep", "keep_beside"):
        b, log = bench(Saving)
        b.tell("e", "hit", 0)
        await until(lambda log=log: log.rows == [0], "the start")
        b.tell("e", method, 1)
        suspend(b)
        await turns(20)
        assert log.rows == [0]
        if method == "keep_beside":
            assert b.keeper.states["e"][1] is not None
        await resume(b)
        await until(lambda log=log: log.rows == [0, 1], "the acknowledged save")


async def test_nothing_starts_while_the_node_is_suspended() -> None:
    class Starting(LogEntity):
        made: ClassVar[list[str]] = []

        async def on_start(self) -> None:
            self.made.append(self.context.entity_id)

    b, _ = bench(Starting)
    Starting.made.clear()
    suspend(b)
    b.tell("e", "hit", 1)
    await turns()
    assert Starting.made == []
    await resume(b)
    assert Starting.made == ["e"]


async def test_nothing_stops_while_the_node_is_suspended() -> None:
    class Stopping(LogEntity):
        async def on_stop(self, reason: StopReason) -> None:
            self.log.stopped.append((self.context.entity_id, reason))

    b, log = bench(Stopping)
    b.tell("e", "hit", 1)
    suspend(b)
    b.stop()
    await turns()
    assert log.stopped == []
    assert b.down == []
    await resume(b)
    assert log.stopped == [("e", StopReason.HANDOFF)]
    assert b.down == [b.SHARD]


async def test_no_entity_is_idle_while_the_node_is_suspended() -> None:
    b, _ = bench(passivate_after=1.0)
    b.tell("e", "hit", 1)
    suspend(b)
    b.tell("other", "hit", 1)
    b.pass_ticks(10_000)
    assert b.activation("e") is not None
    assert b.activation("e").stopping is None


async def test_timers_wait() -> None:
    class Ticking(LogEntity):
        @handler
        def begin(self) -> None:
            self.context.schedule_once(0.001, "tick")

        async def receive(self, message: object) -> None:
            self.log.rows.append(message)

    b, log = bench(Ticking)
    b.tell("e", "begin")
    suspend(b)
    await asyncio.sleep(0.01)
    assert log.rows == []
    await resume(b)
    await until(lambda: log.rows == ["tick"], "the timer's message")


async def test_a_long_run_stops_where_the_time_is_over() -> None:
    class Sleeper(LogEntity):
        @handler
        def pause(self, n: int) -> None:
            self.log.rows.append(n)
            if n == 0:
                made[0].now = 100.0

    b, log = bench(Sleeper)
    made = [b]
    b.gate.confirmed(50.0)
    corrs = 0
    kind = b.kind.invokers["pause"]
    ids = [f"e{n}" for n in range(3 * RUN_SLICE)]
    payloads = [encode_value((n,)) for n in range(len(ids))]

    def arrive(entity_id: str, payload: bytes, corr: int) -> Any:
        return b.host.activate(b.host.shards[b.SHARD], entity_id)

    find = b.host.active.get
    b.host.counts.accepted += len(ids)
    b.runs.deliver(find, arrive, kind, None, ids, payloads, corrs, 0)
    assert len(log.rows) == RUN_SLICE
    b.now = 0.0
    await resume(b)
    await until(lambda: sorted(log.rows) == list(range(len(ids))), "the rest of the run")


async def test_many_held_entities_go_on_some_in_each_turn() -> None:
    b, log = bench()
    suspend(b)
    for n in range(1000):
        b.tell(f"e{n}", "hit", n)
    b.gate.confirmed(b.now + 10.0)
    b.gate.poll()
    await asyncio.sleep(0)
    assert 0 < len(log.rows) < 1000
    await until(lambda: len(log.rows) == 1000, "all of them")
    assert log.rows == sorted(log.rows)


async def test_the_end_lets_handlers_that_wait_end_and_nothing_begin() -> None:
    class Cleaning(LogEntity):
        @handler
        async def work(self) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.log.rows.append("cleaned up")

    b, log = bench(Cleaning)
    b.tell("e", "work")
    await turns()
    b.gate.end()
    b.tell("other", "hit", 1)
    b.host.close()
    await until(lambda: log.rows == ["cleaned up"], "the clean-up")
    b.gate.confirmed(b.now + 100.0)
    b.gate.poll()
    await turns()
    assert log.rows == ["cleaned up"]


async def test_a_stuck_mailbox_is_not_stuck_because_its_node_is_suspended() -> None:
    b, _ = bench(mailbox=1, mailbox_patience=0.001)
    suspend(b)
    limits = b.host.runner.mailbox_limits
    limits.arrives(True)
    for n in range(3):
        b.tell("e", "hit", n)
    assert b.dropped == {}
    await asyncio.sleep(0.02)
    b.tell("e", "hit", 3)
    assert b.dropped == {}


def test_the_gate_says_why_it_is_shut() -> None:
    b_now = [0.0]
    gate = SuspensionGate(lambda: b_now[0])
    assert gate.describe() == ""
    gate.confirmed(1.0)
    b_now[0] = 2.0
    assert gate.is_shut()
    assert gate.describe() == "", "a question closes nothing"
    assert gate.close_if_due()
    assert gate.describe() == "suspended, because membership has not confirmed this node lately"
    gate.suspended("no consent of b; keep-majority: minority")
    gate.suspended("no consent of b and c; keep-majority: minority")
    b_now[0] = 5.0
    assert gate.suspensions == 1
    assert gate.describe() == (
        "suspended, because no consent of b and c; keep-majority: minority (3.0 s)"
    )
    gate.resumed()
    gate.confirmed(9.0)
    gate.poll()
    assert gate.describe() == ""
