"""Starts that fail: the decision of supervision, the refused senders, and the entities that do not
stay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus import ConfigError, Entity, Passivation, ShardBus, StopReason, handler
from shardbus.entities.activation import Activation, LifeState
from shardbus.entities.failures import STARTS_MAX
from shardbus.errors import EntityFailed, StateUnreadable, StoreUnavailable
from tests.unit.entities.entity_kit import Bench, Log
from tests.waiting import turns, until


class Failing(Log):
    """Every start fails with `error`, until that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = LookupError("no such customer")


class Customer(Entity):
    """One whose constructor fails."""

    log: Failing

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.log.rows.append("start")
        if self.log.error is not None:
            raise self.log.error.with_traceback(None)

    @handler
    def hit(self, n: int) -> int:
        self.log.rows.append(n)
        return n

    @handler
    def fail(self) -> None:
        self.log.error = LookupError("it is gone")
        raise ArithmeticError

    @handler
    def deferred(self) -> None:
        self.context.stash()


class Starting(Customer):
    """One whose `on_start` fails."""

    def __init__(self) -> None:
        self.context.schedule_once(3600, "timer")

    async def on_start(self) -> None:
        self.begin()

    def receive(self, message: str) -> None:
        """Timers."""


class Waiting(Customer):
    """One whose `on_start` fails later."""

    def __init__(self) -> None: ...

    async def on_start(self) -> None:
        await self.log.start_gate.wait()
        self.begin()


class Ledger(Entity):
    """One that has a state."""

    log: Failing
    state: dict  # type: ignore[type-arg]

    @handler
    def hit(self, n: int) -> int:
        return n


STOP = {LookupError: "stop"}
ALL = pytest.mark.parametrize("cls", [Customer, Starting, Waiting])


def bench(
    cls: type, log: Failing, supervision: Any = None, /, declared: Any = None, **options: Any
) -> Bench:
    bus = ShardBus("shop")
    bus.entity("customer", supervision=supervision, **(declared or {}))(cls)
    cls.log = log  # type: ignore[attr-defined]
    return Bench(bus, **options)


def failing(b: Bench, entity_id: str) -> Activation:
    """The entity, which waits for its next try."""
    activation = b.activation(entity_id)
    assert activation is not None
    assert activation.entity is None
    return activation


def pausing(b: Bench) -> set[str]:
    """The ids of entities that wait for their next attempt to start."""
    return {i for i, a in b.host.active.items() if a.state is LifeState.PAUSING}


# Decisions of supervision


@ALL
async def test_S2_48_a_start_with_directive_stop_refuses_waiting_messages(cls: type) -> None:
    b = bench(cls, log := Failing(), STOP)
    asks = [b.ask("e", "hit", n) for n in range(3)]
    b.tell("e", "hit", 3)
    outcomes = await asyncio.gather(*asks, return_exceptions=True)
    assert [str(o) for o in outcomes] == ["LookupError: no such customer"] * 3
    assert all(isinstance(o, EntityFailed) for o in outcomes)
    assert b.activation("e") is None
    assert b.dropped == {"start_failed": 4}
    assert b.host.counts.stopped == {"failure": 1}
    assert log.rows == ["start"]
    log.error = None
    assert await b.ask("e", "hit", 5) == 5


@ALL
async def test_a_start_after_a_failed_handler_is_asked_about_too(cls: type) -> None:
    b = bench(cls, log := Failing(), STOP)
    log.error = None
    await b.ask("e", "hit", 1)
    stashed, failed, after = b.ask("e", "deferred"), b.ask("e", "fail"), b.ask("e", "hit", 2)
    outcomes = await asyncio.gather(stashed, failed, after, return_exceptions=True)
    assert [str(o) for o in outcomes] == [
        "LookupError: it is gone",
        "ArithmeticError",
        "LookupError: it is gone",
    ]
    await until(lambda: b.activation("e") is None, "its end")
    assert b.host.counts.stopped == {"failure": 1}


@pytest.mark.parametrize("directive", ["resume", "restart"])
@ALL
async def test_any_other_directive_restarts_and_messages_wait(cls: type, directive: str) -> None:
    b = bench(cls, log := Failing(), {LookupError: directive}, entity_restart_backoff_min=0.001)
    waiting = b.ask("e", "hit", 1)
    await until(lambda: len(log.rows) > 2, "some tries")
    assert not waiting.done()
    log.error = None
    assert await waiting == 1


async def test_supervision_is_not_asked_about_a_silent_store() -> None:
    b = bench(Ledger, Failing(), {Exception: "stop"}, entity_restart_backoff_min=0.001)
    b.keeper.fail_loads = [StoreUnavailable("away")] * 3
    assert await b.ask("e", "hit", 1) == 1


@pytest.mark.parametrize("directive", ["stop", "restart", "resume"])
async def test_a_state_that_cannot_be_read_ends_the_start_at_once(directive: str) -> None:
    """Whatever supervision says: another try reads the same bytes. The next message tries again."""
    b = bench(Ledger, Failing(), {Exception: directive})
    b.keeper.states["e"] = (0, b"\xc0")
    asks = [b.ask("e", "hit", 1) for _ in range(3)]
    for failed in await asyncio.gather(*asks, return_exceptions=True):
        assert isinstance(failed, StateUnreadable)
        assert (failed.entity_id, failed.version) == ("e", 1)
    assert list(b.host.counts.failed.unreadable) == ["e"]
    b.keeper.states.clear()
    assert await b.ask("e", "hit", 1) == 1
    assert b.host.counts.failed.unreadable == {}


async def test_a_bounded_number_of_unreadable_states_is_remembered() -> None:
    b = bench(Ledger, Failing())
    for n in range(STARTS_MAX + 3):
        b.keeper.states[f"e{n}"] = (0, b"\xc0")
        with pytest.raises(StateUnreadable):
            await b.ask(f"e{n}", "hit", 1)
    assert list(b.host.counts.failed.unreadable) == [f"e{n}" for n in range(3, STARTS_MAX + 3)]


async def test_a_cancellation_that_a_start_lets_out_is_tried_again() -> None:
    class Cancels(Customer):
        left = 3

        def __init__(self) -> None: ...

        async def on_start(self) -> None:
            await asyncio.sleep(0)
            if Cancels.left:
                Cancels.left -= 1
                raise asyncio.CancelledError

    b = bench(Cancels, Failing(), {Exception: "stop"}, entity_restart_backoff_min=0.001)
    assert await b.ask("e", "hit", 1) == 1
    assert b.host.counts.started == {"message": 1}


async def test_at_a_handoff_waiting_messages_go_to_the_next_home() -> None:
    b = bench(Waiting, log := Failing(), STOP)
    b.host.draining.passes_on = True
    log.start_gate.clear()
    ask = b.ask("e", "hit", 1)
    await turns()
    b.stop()
    log.start_gate.set()
    await b.stopped()
    assert not ask.done()
    assert [entity_id for entity_id, _ in b.take_unhandled()] == ["e"]


@ALL
async def test_a_remembered_entity_that_stops_returns_once_after_the_backoff(
    cls: type,
) -> None:
    b = bench(cls, log := Failing(), STOP, remember=True, entity_restart_backoff=3600)
    for n in range(3):
        with pytest.raises(EntityFailed, match="no such customer"):
            await b.ask("e", "hit", n)
        await until(lambda: b.activation("e") is None, "its end")
    loop: Any = asyncio.get_running_loop()
    [back] = [h for h in loop._scheduled if "_return" in repr(h)]
    log.error = None
    come_back, args = back._callback, back._args
    back.cancel()
    come_back(*args)
    await until(lambda: b.entity("e"), "the entity, without a message")
    assert b.host.counts.started == {"message": 3, "remembered": 1}


async def test_a_failed_start_ends_what_it_began() -> None:
    b = bench(Starting, log := Failing(), entity_restart_backoff_min=0.001)
    b.tell("e", "hit", 1)
    await until(lambda: len(log.rows) > 4, "some tries")
    activation = failing(b, "e")
    assert activation.extras is not None
    assert activation.extras.timers == {}


# Who does not stay


@ALL
async def test_B79_an_unwanted_entity_that_fails_to_start_is_passivated_when_idle(
    cls: type,
) -> None:
    b = bench(cls, Failing(), passivate_after=10, entity_restart_backoff_min=3600)
    ask = b.ask("e", "hit", 1, ticks=100)
    b.ask("waits", "hit", 2, ticks=100_000)
    b.tell("told", "hit", 3)
    await turns(10)
    b.pass_ticks(99)
    failing(b, "e")
    await turns()
    b.pass_ticks(101)
    assert b.activation("e") is None
    assert b.host.counts.stopped == {"passivation": 1}
    assert b.dropped == {"start_failed": 1}
    with pytest.raises(EntityFailed, match="it does not start: no such customer"):
        await ask
    failing(b, "waits")
    failing(b, "told")
    await turns()
    assert pausing(b) == {"waits", "told"}


async def test_a_failing_entity_with_an_own_idle_timeout_is_passivated_too() -> None:
    class Own(Starting):
        async def on_start(self) -> None:
            self.context.set_idle_timeout(2)
            await super().on_start()

        @handler
        def close(self) -> None:
            self.context.stop()

    declared = {"stop_message": "close"}
    b = bench(Own, Failing(), declared=declared, passivate_after=0, entity_restart_backoff_min=3600)
    b.ask("e", "hit", 1, ticks=1)
    await turns()
    b.pass_ticks(40)
    assert b.activation("e") is None


async def test_a_remembered_entity_is_tried_while_it_fails() -> None:
    class Own(Starting):
        async def on_start(self) -> None:
            self.context.set_idle_timeout(2)
            await super().on_start()

    b = bench(Own, Failing(), remember=True, entity_restart_backoff_min=3600)
    b.ask("e", "hit", 1, ticks=1)
    await until(lambda: pausing(b), "a failed start")
    b.pass_ticks(10_000)
    failing(b, "e")


async def test_B80_a_limit_evicts_failing_entities_without_askers() -> None:
    declared = {"passivation": Passivation.lru(10)}
    b = bench(Starting, log := Failing(), declared=declared, entity_restart_backoff_min=3)
    for n in range(100):
        b.ask(f"bogus{n}", "hit", n, ticks=100)
    await turns(20)
    assert b.host.entities == 100, "an asker waits for each"
    b.pass_ticks(101)
    await turns(20)
    assert b.host.entities == 10
    assert b.host.passivator.evicted == 90
    log.error = None
    evicted = next(f"bogus{n}" for n in range(100) if b.activation(f"bogus{n}") is None)
    assert await b.ask(evicted, "hit", 1) == 1


async def test_an_abandoned_entity_starts_afresh_at_its_next_message() -> None:
    b = bench(Waiting, log := Failing(), passivate_after=1, entity_restart_backoff_min=3600)
    b.ask("e", "hit", 1, ticks=1)
    await until(lambda: pausing(b), "two failed starts")
    b.pass_ticks(40)
    log.error = None
    assert await b.ask("e", "hit", 2) == 2
    b.stop()
    await b.stopped()
    assert b.host.counts.stopped == {"passivation": 1, "handoff": 1}


# The cause, for those who ask and for operators


@pytest.mark.parametrize("cls", [Customer, Starting, Waiting])
async def test_an_ask_that_cannot_wait_for_the_next_attempt_gets_the_cause(cls: type) -> None:
    b = bench(cls, log := Failing(), entity_restart_backoff_min=5)
    early = b.ask("e", "hit", 1, ticks=99)
    patient = b.ask("e", "hit", 2, ticks=10_000)
    await until(lambda: pausing(b), "two failed starts")
    with pytest.raises(EntityFailed, match="it does not start: no such customer") as failed:
        await early
    assert failed.value.type == "LookupError"
    with pytest.raises(EntityFailed, match="it does not start"):
        await b.ask("e", "hit", 3, ticks=99)
    b.tell("e", "hit", 4)
    assert not patient.done(), "its time suffices for the next attempt"
    activation = failing(b, "e")
    assert [m.payload for m in activation.mailbox or ()] != []
    assert b.dropped == {"start_failed": 2}
    start = b.host.counts.failed.starts["e"]
    assert (start.times, start.error) == (2, "LookupError: no such customer")
    assert b.host.counts.failed.methods["on_start"].count == 2
    log.error = None
    patient.cancel()


async def test_a_start_that_succeeds_forgets_what_failed() -> None:
    b = bench(Starting, log := Failing(), entity_restart_backoff_min=0.01)
    ask = b.ask("e", "hit", 1, ticks=100)
    await until(lambda: pausing(b), "two failed starts")
    log.error = None
    assert await ask == 1
    assert b.host.counts.failed.starts == {}
    activation = b.activation("e")
    assert activation is not None
    assert activation.extras is not None
    assert activation.extras.start_failure is None


# Declarations


def plain(self: Any) -> None: ...


def plain_stop(self: Any, reason: StopReason) -> None: ...


@pytest.mark.parametrize(("name", "method"), [("on_start", plain), ("on_stop", plain_stop)])
def test_a_start_or_an_end_that_is_not_async_is_refused(name: str, method: Any) -> None:
    bus = ShardBus("shop")
    with pytest.raises(ConfigError, match=rf"Plain\.{name} is not async.*async def {name}"):
        bus.entity("plain")(type("Plain", (Entity,), {name: method}))
