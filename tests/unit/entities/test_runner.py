"""Running entities: one message at a time, failures, restarts, state."""

from __future__ import annotations

import asyncio
import contextvars
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.entities.activation import Activation
from shardbus.entities.entity_type import Directive
from shardbus.entities.supervision import Supervisor
from shardbus.errors import (
    ConfigError,
    EntityFailed,
    MailboxFull,
    SchemaError,
    StaleFence,
    StoreUnavailable,
    Unhandled,
)
from shardbus.wire.schema import encode_value
from tests.unit.entities.entity_kit import Bench, Log
from tests.waiting import PATIENCE_S, turns, until


@dataclass
class Ledger:
    total: int = 0


def bench(cls: type, log: Log | None = None, /, **options: Any) -> Bench:
    bus = ShardBus("shop")
    bench_only = {k: options.pop(k) for k in [*options] if k not in ("supervision", "messages")}
    bus.entity("thing", **options)(cls)
    if log is not None:
        cls.log = log  # type: ignore[attr-defined]
    return Bench(bus, **bench_only)


class Worker(Entity):
    log: Log

    def __init__(self) -> None:
        self.inside = 0
        self.done = 0

    @handler
    async def slow(self, name: str) -> str:
        self.inside += 1
        assert self.inside == 1
        self.log.rows.append(("begin", name))
        await self.log.gate.wait()
        self.log.rows.append(("end", name))
        self.inside -= 1
        return name

    @handler
    def fast(self, name: str) -> str:
        assert self.inside == 0
        self.log.rows.append(("fast", name))
        self.done += 1
        return name

    @handler
    async def at_once(self, name: str) -> str:
        assert self.inside == 0
        self.log.rows.append(("at once", name))
        return name

    @handler(thread=True)
    def blocking(self, name: str) -> str:
        assert self.inside == 0
        self.log.rows.append(("thread", name))
        return name

    @handler
    def bad(self, text: str) -> None:
        raise ValueError(text)

    @handler
    async def bad_later(self, text: str) -> None:
        await asyncio.sleep(0)
        raise ValueError(text)

    @handler
    def count(self) -> int:
        return self.done

    async def receive(self, message: object) -> object:
        match message:
            case "get":
                return self.done
            case _:
                return self.unhandled(message)


# One message at a time


async def test_handlers_of_every_kind_answer() -> None:
    b = bench(Worker, Log())
    Worker.log.gate.set()
    for method in ("fast", "at_once", "slow", "blocking"):
        assert await b.ask("e", method, "x") == "x"
    assert await b.ask_message("e", "get") == 1


async def test_messages_wait_in_order_while_a_handler_waits() -> None:
    b = bench(Worker, log := Log())
    first = b.ask("e", "slow", "1")
    rest = [b.ask("e", m, m) for m in ("fast", "at_once", "slow", "blocking", "fast")]
    other = b.ask("f", "fast", "other")
    assert other.done()
    await turns()
    assert log.rows == [("begin", "1"), ("fast", "other")]
    log.gate.set()
    assert await first == "1"
    assert await asyncio.gather(*rest) == ["fast", "at_once", "slow", "blocking", "fast"]
    assert log.rows[2:] == [
        ("end", "1"), ("fast", "fast"), ("at once", "at_once"), ("begin", "slow"), ("end", "slow"),
        ("thread", "blocking"), ("fast", "fast"),
    ]  # fmt: skip


async def test_an_idle_entity_handles_where_the_message_arrives() -> None:
    may_end = threading.Event()

    class Blocking(Worker):
        @handler(thread=True)
        def held(self, name: str) -> str:
            may_end.wait(PATIENCE_S)
            return name

    b = bench(Blocking, Log())
    assert b.ask("e", "fast", "x").done()
    assert b.ask("e", "at_once", "x").done()
    held = b.ask("e", "held", "x")
    assert not held.done()
    may_end.set()
    assert await held == "x"


async def test_order_is_kept_between_the_mailbox_and_what_arrives_later() -> None:
    b = bench(Worker, log := Log())
    b.tell("e", "slow", "s")
    for i in range(1000):
        b.tell("e", "fast", str(i))
    log.gate.set()
    await turns(2)
    b.tell("e", "fast", "last")
    await until(lambda: ("fast", "last") in log.rows, "the last message")
    assert log.rows[2:] == [("fast", str(i)) for i in range(1000)] + [("fast", "last")]


async def test_a_long_mailbox_lets_other_callbacks_run() -> None:
    b = bench(Worker, log := Log())
    b.tell("e", "slow", "s")
    last = [b.ask("e", "fast", "x") for _ in range(600)][-1]
    log.gate.set()
    while len(log.rows) <= 2:
        await turns(1)
    assert not last.done()
    await last


async def test_a_full_mailbox_refuses_the_newest() -> None:
    b = bench(Worker, log := Log(), mailbox=2)
    first = b.ask("e", "slow", "1")
    waiting = [b.ask("e", "fast", "x") for _ in range(3)]
    b.tell("e", "fast", "lost")
    assert waiting[2].done()
    with pytest.raises(MailboxFull, match="2 messages waiting"):
        await waiting[2]
    assert b.dropped == {"mailbox_full": 2}
    log.gate.set()
    assert await asyncio.gather(first, *waiting[:2]) == ["1", "x", "x"]


async def test_an_ask_whose_deadline_passed_in_the_mailbox_is_not_handled() -> None:
    b = bench(Worker, log := Log())
    b.tell("e", "slow", "s")
    b.ask("e", "fast", "late", ticks=10)
    kept = b.ask("e", "fast", "kept", ticks=11)
    b.host.runner.advance(b.host.runner.tick + 10)
    log.gate.set()
    assert await kept == "kept"
    assert ("fast", "late") not in log.rows
    assert b.dropped == {"expired": 1}


# Values that do not fit


@pytest.mark.parametrize("payload", [b"\x90", b"\x93\x01\x02\x03", b"\x91\x05", b"\xc1", b""])
async def test_a_message_that_does_not_fit_is_the_senders_error(payload: bytes) -> None:
    b = bench(Worker, log := Log())
    await b.ask("e", "fast", "x")
    before = b.entity("e")
    with pytest.raises(SchemaError, match="fast"):
        await b.send_raw("e", "fast", payload)
    assert b.entity("e") is before
    assert b.host.counts.failures == 0
    assert b.dropped == {"schema": 1}
    b.tell("e", "slow", "s")
    waiting = b.send_raw("e", "fast", payload)
    log.gate.set()
    with pytest.raises(SchemaError):
        await waiting


async def test_a_message_that_receive_does_not_take_is_unhandled() -> None:
    b = bench(Worker, Log())
    with pytest.raises(Unhandled, match="thing takes no such int"):
        await b.ask_message("e", 5)
    assert b.dropped == {"unhandled": 1}
    assert b.host.counts.failures == 0


class Strange(Entity):
    @handler
    def odd(self) -> object:
        return object()

    @handler
    async def odd_later(self) -> object:
        await asyncio.sleep(0)
        return object()

    @handler
    def fine(self) -> int:
        return 1


@pytest.mark.parametrize("method", ["odd", "odd_later"])
async def test_an_answer_that_cannot_be_encoded_fails_the_ask_only(method: str) -> None:
    b = bench(Strange)
    with pytest.raises(EntityFailed, match="returned a value that cannot be encoded"):
        await b.ask("e", method)
    assert await b.ask("e", "fine") == 1


# Failures


@pytest.mark.parametrize("method", ["bad", "bad_later"])
async def test_a_handler_that_raises_restarts_its_entity(method: str) -> None:
    b = bench(Worker, Log())
    await b.ask("e", "fast", "x")
    before, activation = b.entity("e"), b.activation("e")
    with pytest.raises(EntityFailed) as failed:
        await b.ask("e", method, "broken")
    assert (failed.value.type, failed.value.message) == ("ValueError", "broken")
    assert await b.ask("e", "count") == 0
    assert b.entity("e") is not before
    assert b.activation("e") is activation
    assert b.host.counts.failures == 1


class Mixed(Entity):
    """Handlers in one run that return at once, wait, raise, and leave a colour behind."""

    log: Log

    @handler
    async def go(self, what: str) -> str:
        self.log.rows.append((self.context.entity_id, what, COLOUR.get()))
        COLOUR.set(what)
        if "wait" in what:
            await self.log.gate.wait()
        if "raise" in what:
            raise ValueError(what)
        self.log.rows.append((self.context.entity_id, what, COLOUR.get()))
        return what


COLOUR: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


async def test_in_one_run_a_handler_that_waits_raises_or_sets_context_is_alone_with_it() -> None:
    log = Log()
    b = bench(Mixed, log)
    ways = ["return", "wait", "raise", "wait, raise", "return"]
    rows, answers = [], []
    for n, what in enumerate(ways):
        corr, future = b.asker.expect()
        rows.append((f"e{n}", encode_value((what,)), corr))
        answers.append(future)
    b._deliver("go", rows, b.asker, 10_000)
    began = [(f"e{n}", what, "none") for n, what in enumerate(ways)]
    assert [entry for entry in log.rows if entry[2] == "none"] == began
    assert [a.done() for a in answers] == ["wait" not in what for what in ways]
    log.gate.set()
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    results = [o if isinstance(o, str) else type(o).__name__ for o in outcomes]
    assert results == ["return", "wait", "EntityFailed", "EntityFailed", "return"]
    ended = [(f"e{n}", what, what) for n, what in enumerate(ways) if "raise" not in what]
    assert sorted(entry for entry in log.rows if entry[2] != "none") == sorted(ended)
    assert COLOUR.get() == "none"


async def test_a_failure_in_a_run_leaves_the_rest_of_the_run() -> None:
    b = bench(Worker, Log())
    b.tell_many("bad", ("e", ("1",)), ("f", ("2",)), ("e", ("3",)))
    await until(lambda: b.host.counts.failures == 3, "three failures")
    assert await b.ask("e", "count") == await b.ask("f", "count") == 0


@pytest.mark.parametrize(
    ("directive", "kept", "lives"),
    [("resume", 1, True), ("restart", 0, True), ("stop", None, False)],
)
@pytest.mark.parametrize("method", ["bad", "bad_later"])
async def test_supervision_decides(
    method: str, directive: str, kept: int | None, lives: bool
) -> None:
    b = bench(Worker, Log(), supervision={ArithmeticError: "stop", Exception: directive})
    await b.ask("e", "fast", "x")
    with pytest.raises(EntityFailed):
        await b.ask("e", method, "broken")
    await turns()
    assert (b.entity("e") is not None) is lives
    if kept is not None:
        assert await b.ask("e", "count") == kept
    assert b.host.counts.stopped == ({} if lives else {"failure": 1})


async def test_the_nearest_class_of_the_table_decides() -> None:
    b = bench(Worker, Log(), supervision={Exception: "stop", ValueError: "resume"})
    await b.ask("e", "fast", "x")
    with pytest.raises(EntityFailed):
        await b.ask("e", "bad", "broken")
    assert await b.ask("e", "count") == 1


async def test_a_supervision_that_fails_restarts() -> None:
    def decide(error: Exception) -> Directive:
        raise LookupError("supervision")

    b = bench(Worker, Log(), supervision=decide)
    b.tell_many("bad", ("e", ("1",)), ("f", ("2",)))
    await until(lambda: b.host.counts.failures >= 2, "both failures")
    assert await b.ask("e", "count") == 0
    assert await b.ask("f", "count") == 0


async def test_TSU7_a_stopped_entity_starts_again_for_waiting_messages() -> None:
    b = bench(Worker, log := Log(), supervision={ValueError: "stop"})
    b.tell("e", "slow", "s")
    failing, after = b.ask("e", "bad", "x"), b.ask("e", "count")
    log.gate.set()
    with pytest.raises(EntityFailed):
        await failing
    assert await after == 0
    assert b.host.counts.started == {"message": 1, "restart": 1}


async def test_a_handler_that_fails_again_and_again_restarts_without_a_backoff() -> None:
    """A backoff of an hour would keep the next ask waiting."""
    b = bench(Worker, Log(), entity_restart_backoff_min=3600, entity_restart_backoff=3600)
    for _ in range(6):
        with pytest.raises(EntityFailed):
            await b.ask("e", "bad", "x")
    assert await b.ask("e", "count") == 0
    assert b.host.counts.failures == 6


async def test_failed_starts_wait_longer_and_longer_until_one_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fragile(Entity):
        log: Log

        def __init__(self) -> None:
            self.log.maybe_fail()

        @handler
        def hit(self, bad: bool = False) -> int:
            if bad:
                raise ValueError("bad")
            return 1

    waits: list[float] = []

    async def pause(self: Supervisor, activation: Activation, seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(Supervisor, "_pause", pause)
    b = bench(Fragile, log := Log(), entity_restart_backoff_min=0.01, entity_restart_backoff=0.04)
    log.fail = [ValueError(str(n)) for n in range(6)]
    assert await b.ask("e", "hit") == 1
    assert waits == [0.01, 0.02, 0.04, 0.04, 0.04]
    log.fail = [ValueError("the failed handler is no failed start: no wait")]
    with pytest.raises(EntityFailed):
        await b.ask("e", "hit", True)
    assert await b.ask("e", "hit") == 1
    assert waits == [0.01, 0.02, 0.04, 0.04, 0.04]


async def test_a_cancelled_handler_is_a_failure() -> None:
    class Cancels(Entity):
        @handler
        async def cancel(self) -> None:
            task = asyncio.current_task()
            await asyncio.sleep(0)
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

        @handler
        def fine(self) -> int:
            return 1

    b = bench(Cancels)
    with pytest.raises(EntityFailed, match="CancelledError"):
        await b.ask("e", "cancel")
    assert await b.ask("e", "fine") == 1


# Start


class Starter(Entity):
    log: Log

    async def on_start(self) -> None:
        self.log.rows.append("start")
        await self.log.gate.wait()
        self.log.maybe_fail()
        self.started = True

    @handler
    def hit(self, n: int) -> int:
        assert self.started
        self.log.rows.append(n)
        return n


async def test_messages_wait_until_on_start_returns() -> None:
    b = bench(Starter, log := Log())
    asks = [b.ask("e", "hit", n) for n in range(3)]
    await turns()
    assert log.rows == ["start"]
    log.gate.set()
    assert await asyncio.gather(*asks) == [0, 1, 2]


async def test_a_start_that_fails_is_repeated_and_messages_wait() -> None:
    b = bench(Starter, log := Log(), entity_restart_backoff_min=0.01)
    log.gate.set()
    log.fail = [ValueError("1"), ValueError("2"), ValueError("3")]
    asks = [b.ask("e", "hit", n) for n in range(3)]
    assert await asyncio.gather(*asks) == [0, 1, 2]
    assert log.rows == ["start"] * 4 + [0, 1, 2]
    assert b.host.counts.failures == 3


async def test_a_constructor_that_fails_is_repeated_too() -> None:
    class Fragile(Entity):
        log: Log

        def __init__(self) -> None:
            self.log.maybe_fail()

        @handler
        def hit(self) -> int:
            return 1

    b = bench(Fragile, log := Log(), entity_restart_backoff_min=0.01)
    log.fail = [ValueError("1"), ValueError("2")]
    assert await b.ask("e", "hit") == 1
    assert b.host.counts.failures == 2


async def test_the_context_is_there_before_the_constructor() -> None:
    class Curious(Entity):
        def __init__(self) -> None:
            self.facts = self.context.entity_id, self.context.entity_type, self.context.fence

        @handler
        def get(self) -> list[object]:
            return [*self.facts, self.context.shard_id, self.context.node, self.context.sender]

    b = bench(Curious)
    assert await b.ask("e", "get") == ["e", "thing", 7, "0", "n1", "tester"]


# State


class Account(Entity):
    state: Ledger
    log: Log

    async def on_start(self) -> None:
        self.log.rows.append(self.state.total)

    @handler
    async def add(self, amount: int) -> int:
        self.state.total += amount
        await self.save()
        return self.state.total

    @handler
    async def add_and_fail(self, amount: int) -> None:
        self.state.total += amount
        raise ValueError("after a change")

    @handler
    async def stubborn(self, amount: int) -> str:
        self.state.total += amount
        try:
            await self.save()
        except (StaleFence, StoreUnavailable) as e:
            return type(e).__name__
        return "saved"

    @handler
    def get(self) -> int:
        return self.state.total

    @handler
    async def forget(self) -> None:
        await self.clear()


async def test_state_is_loaded_before_on_start_and_saved_under_the_fence() -> None:
    b = bench(Account, log := Log())
    assert await b.ask("e", "add", 2) == 2
    assert b.keeper.states["e"][0] == 7
    b.keeper.states["f"] = (3, b"\x81\xa5total\x05")
    assert await b.ask("f", "get") == 5
    assert log.rows == [0, 5]
    await b.ask("f", "forget")
    assert b.keeper.states["f"] == (7, None)


async def test_a_restart_loads_what_is_stored() -> None:
    b = bench(Account, Log())
    await b.ask("e", "add", 2)
    with pytest.raises(EntityFailed):
        await b.ask("e", "add_and_fail", 100)
    assert await b.ask("e", "get") == 2
    assert b.keeper.loads == 2


async def test_a_store_that_did_not_answer_restarts_the_entity_whatever_supervision_says() -> None:
    b = bench(Account, Log(), supervision={Exception: "resume"})
    await b.ask("e", "add", 2)
    b.keeper.fail_saves = [StoreUnavailable("no answer")]
    with pytest.raises(EntityFailed, match="StoreUnavailable"):
        await b.ask("e", "add", 100)
    assert await b.ask("e", "get") == 2


async def test_a_handler_may_go_on_although_the_store_did_not_answer() -> None:
    b = bench(Account, Log())
    b.keeper.fail_saves = [StoreUnavailable("no answer")]
    assert await b.ask("e", "stubborn", 3) == "StoreUnavailable"
    assert await b.ask("e", "get") == 3
    assert b.keeper.loads == 1


async def test_a_load_that_fails_is_repeated() -> None:
    b = bench(Account, Log(), entity_restart_backoff_min=0.01)
    b.keeper.fail_loads = [StoreUnavailable("1"), StoreUnavailable("2")]
    assert await b.ask("e", "get") == 0


@pytest.mark.parametrize("method", ["add", "stubborn"])
async def test_an_activation_that_is_over_stops(method: str) -> None:
    b = bench(Account, Log(), supervision={Exception: "resume"})
    await b.ask("e", "add", 2)
    b.keeper.states["e"] = (8, b"\x81\xa5total\x63")
    outcome = b.ask("e", method, 1)
    await turns(50)
    assert outcome.done()
    if method == "add":
        assert isinstance(outcome.exception(), EntityFailed)
    assert b.activation("e") is None
    assert b.keeper.states["e"] == (8, b"\x81\xa5total\x63")
    assert b.host.counts.stopped == {"failure": 1}


async def test_an_activation_that_is_over_before_it_starts_waits_for_its_shards_end() -> None:
    b = bench(Account, Log(), entity_restart_backoff_min=0.01, entity_restart_backoff=0.05)
    b.keeper.states["e"] = (8, None)
    waiting = b.ask("e", "get")
    await until(lambda: b.keeper.loads > 2, "a few attempts")
    assert not waiting.done()
    b.stop()
    with pytest.raises(Unhandled, match="stopped"):
        await waiting
    await b.stopped()
    assert b.keeper.states["e"] == (8, None)


# Aside


class Stasher(Entity):
    def __init__(self) -> None:
        self.open = False
        self.seen: list[str] = []

    @handler
    def put(self, name: str) -> str:
        if not self.open:
            self.context.stash()
            return "not sent"
        self.seen.append(name)
        return name

    @handler
    async def put_async(self, name: str) -> str:
        await asyncio.sleep(0)
        return Stasher.put.function(self, name)

    @handler
    def unlock(self) -> None:
        self.open = True
        self.context.unstash_all()

    @handler
    def all(self) -> list[str]:
        return self.seen


@pytest.mark.parametrize("method", ["put", "put_async"])
async def test_stashed_messages_are_handled_next_in_their_order(method: str) -> None:
    b = bench(Stasher)
    asks = [b.ask("e", method, name) for name in "abc"]
    await turns(20)
    assert not any(ask.done() for ask in asks)
    unlock, late = b.ask("e", "unlock"), b.ask("e", method, "late")
    assert await asyncio.gather(*asks, late) == ["a", "b", "c", "late"]
    assert await unlock is None
    assert await b.ask("e", "all") == ["a", "b", "c", "late"]


async def test_a_stashed_tell_costs_no_other_message_its_answer() -> None:
    b = bench(Stasher)
    b.tell("e", "put", "told")
    assert await asyncio.wait_for(b.ask("e", "all"), PATIENCE_S) == []
    await b.ask("e", "unlock")
    assert await b.ask("e", "all") == ["told"]


async def test_a_handler_that_stashes_and_raises_leaves_the_outcome_for_later() -> None:
    class Fails(Stasher):
        @handler
        def put_and_fail(self, name: str) -> str:
            if not self.open:
                self.context.stash()
                raise ValueError
            return name

    b = bench(Fails, supervision={ValueError: "resume"})
    waiting = b.ask("e", "put_and_fail", "a")
    assert await asyncio.wait_for(b.ask("e", "all"), PATIENCE_S) == []
    assert not waiting.done()
    await b.ask("e", "unlock")
    assert await waiting == "a"


async def test_a_stash_survives_a_restart() -> None:
    class Fails(Stasher):
        @handler
        def bad(self) -> None:
            raise ValueError

    b = bench(Fails)
    waiting = b.ask("e", "put", "a")
    with pytest.raises(EntityFailed):
        await b.ask("e", "bad")
    await b.ask("e", "unlock")
    assert await waiting == "a"


async def test_timers_send_to_receive_until_the_entity_stops() -> None:
    class Clocked(Entity):
        log: Log

        @handler
        def begin(self) -> None:
            self.context.schedule(0.001, "tick")
            self.context.schedule_once(0.001, "once")

        @handler
        def end(self) -> None:
            self.context.stop()

        def receive(self, message: str) -> None:
            self.log.rows.append(message)

    b = bench(Clocked, log := Log())
    await b.ask("e", "begin")
    await until(lambda: log.rows.count("tick") > 3, "a few ticks")
    assert log.rows.count("once") == 1
    await b.ask("e", "end")
    assert b.activation("e") is None
    assert _timers(b) == 0


async def test_its_own_timers_do_not_keep_an_entity_in_memory() -> None:
    class Clocked(Entity):
        log: Log

        @handler
        def begin(self) -> None:
            self.context.schedule(0.001, "tick")

        def receive(self, message: str) -> None:
            self.log.rows.append(message)

    b = bench(Clocked, log := Log(), passivate_after=10.0)
    await b.ask("e", "begin")
    b.pass_ticks(150)
    await until(lambda: log.rows.count("tick") > 3, "a few ticks")
    b.pass_ticks(150)
    assert b.activation("e") is None


@pytest.mark.parametrize("how", ["schedule", "schedule_once"])
async def test_a_timer_has_no_context_variable_of_the_handler_that_set_it(how: str) -> None:
    class Clocked(Entity):
        log: Log

        @handler
        def begin(self, how: str) -> None:
            COLOUR.set("red")
            getattr(self.context, how)(0.001, "tick")

        def receive(self, message: str) -> None:
            self.log.rows.append(COLOUR.get())

    b = bench(Clocked, log := Log())
    await b.ask("e", "begin", how)
    await until(lambda: log.rows, "a message")
    assert log.rows[0] == "none"


@pytest.mark.parametrize("how", ["schedule", "schedule_once"])
async def test_B118_a_timer_with_a_message_that_cannot_be_encoded_is_refused(how: str) -> None:
    class Clocked(Entity):
        @handler
        def begin(self, how: str) -> None:
            getattr(self.context, how)(0.001, object())

    b = bench(Clocked)
    with pytest.raises(EntityFailed, match="SchemaError: a object cannot travel"):
        await b.ask("e", "begin", how)
    with pytest.raises(SchemaError, match="cannot send this"):
        getattr(b.entity("e").context, how)(0.001, [object()])
    assert _timers(b) == 0


@pytest.mark.parametrize("how", ["schedule", "schedule_once"])
async def test_a_timer_sends_its_message_as_it_was_at_the_call(how: str) -> None:
    class Clocked(Entity):
        log: Log

        @handler
        def begin(self, how: str) -> None:
            message: list[Any] = [1]
            getattr(self.context, how)(0.001, message)
            message.append(object())

        def receive(self, message: list[int]) -> None:
            self.log.rows.append(message)

    b = bench(Clocked, log := Log())
    await b.ask("e", "begin", how)
    await until(lambda: log.rows, "a message")
    assert log.rows[0] == [1]


@pytest.mark.parametrize("how", ["schedule", "schedule_once"])
async def test_a_timer_calls_the_handler_of_that_name(how: str) -> None:
    class Clocked(Entity):
        log: Log

        @handler
        def begin(self, how: str) -> None:
            getattr(self.context, how)(0.001, "expire")
            getattr(self.context, how)(0.001, "other")

        @handler
        async def expire(self, why: str = "time") -> None:
            self.log.rows.append(("expire", why))

        def receive(self, message: str) -> None:
            self.log.rows.append(("receive", message))

    b = bench(Clocked, log := Log())
    await b.ask("e", "begin", how)
    await until(lambda: len(log.rows) >= 2, "both messages")
    assert log.rows[:2] == [("expire", "time"), ("receive", "other")]
    b.stop()
    await b.stopped()


@pytest.mark.parametrize("how", ["schedule", "schedule_once"])
@pytest.mark.parametrize(
    ("message", "typed", "why"),
    [
        ("expired", False, "no handler takes 'expired': there is no receive; name a handler"),
        ("begin", False, "no handler takes 'begin': that handler needs arguments; name a"),
        (7, False, "no handler takes 7: there is no receive"),
        ("seven", True, "no handler takes 'seven': Expected `int`, got `str`"),
    ],
)
async def test_a_timer_whose_message_nothing_takes_is_refused_where_it_is_scheduled(
    how: str, message: object, typed: bool, why: str
) -> None:
    class Clocked(Entity):
        @handler
        def begin(self, how: str, message: Any) -> str:
            try:
                getattr(self.context, how)(0.001, message)
            except ConfigError as e:
                return str(e)
            return ""

    class Numbers(Clocked):
        def receive(self, message: int) -> None: ...

    b = bench(Numbers if typed else Clocked)
    assert (await b.ask("e", "begin", how, message)).startswith(why)
    assert _timers(b) == 0


def _timers(b: Bench) -> int:
    """Timers of the loop that would call this host's entities."""
    loop: Any = asyncio.get_running_loop()
    return sum(
        "schedule" in repr(handle) or "_fire" in repr(handle)
        for handle in loop._scheduled
        if not handle.cancelled()
    )


@pytest.mark.parametrize("how", ["fail", "stop"])
async def test_a_timer_whose_message_ends_the_entity_is_not_set_again(how: str) -> None:
    class Clocked(Entity):
        log: Log

        @handler
        def begin(self) -> None:
            self.context.schedule(0.001, "tick")

        def receive(self, message: str) -> None:
            self.log.rows.append(message)
            if how == "stop":
                self.context.stop()
            else:
                raise ValueError("at each tick")

    b = bench(Clocked, log := Log())
    await b.ask("e", "begin")
    await until(lambda: log.rows, "a tick")
    await turns()
    assert _timers(b) == 0
    assert log.rows == ["tick"]


async def test_an_object_of_a_message_class_reaches_receive() -> None:
    class Typed(Entity):
        async def receive(self, message: Ledger) -> int:
            return message.total

    b = bench(Typed)
    assert await b.ask_message("e", Ledger(5)) == 5


async def test_S2_90_a_blocking_handler_runs_in_threads_of_the_applications_own() -> None:
    pool, gate = ThreadPoolExecutor(1, "own"), threading.Event()

    class Printer(Entity):
        @handler(thread=pool)
        def here(self) -> str:
            assert gate.wait(10)
            return threading.current_thread().name

        @handler(thread=True)
        def there(self) -> str:
            return threading.current_thread().name

        @handler
        def on_loop(self) -> str:
            return threading.current_thread().name

    bus = ShardBus("shop")
    bus.entity("printer")(Printer)
    b = Bench(bus)
    busy = [b.ask(entity, "here") for entity in ("a", "b")]
    assert await b.ask("c", "on_loop") == threading.current_thread().name
    assert not (await b.ask("c", "there")).startswith("own"), "it does not wait for the others"
    gate.set()
    assert await asyncio.gather(*busy) == ["own_0", "own_0"]
    pool.shutdown()
    with pytest.raises(EntityFailed, match="after shutdown"):
        await b.ask("d", "here")


@pytest.mark.parametrize(
    ("thread", "says"),
    [("a pool", "thread is 'a pool', neither true"), (True, "is async: it cannot run in a thread")],
)
def test_a_handler_that_cannot_run_in_a_thread_is_refused(thread: Any, says: str) -> None:
    class Wrong(Entity):
        @handler(thread=thread)
        async def go(self) -> None: ...

    with pytest.raises(ConfigError, match=f"handler go of Wrong.*{says}"):
        ShardBus("shop").entity()(Wrong)


class Idle(Entity):
    @handler
    def ping(self) -> None: ...


NO_SECONDS = [math.nan, math.inf, -1, -0.001, "5", "5s", timedelta(seconds=5), None, True, 1e9]


@pytest.mark.parametrize(
    ("how", "given"),
    [
        *(("schedule_once", given) for given in NO_SECONDS),
        *(("schedule", given) for given in (*NO_SECONDS, 0, 0.0005)),
    ],
)
async def test_a_timer_with_a_time_that_is_none_is_refused_where_it_is_set(
    how: str, given: Any
) -> None:
    b = bench(Idle)
    b.tell("e", "ping")
    name = {"schedule": "interval is 0.001", "schedule_once": "delay is 0"}[how]
    with pytest.raises(ConfigError, match=f"^{name} to 315360000 seconds, as a number, not "):
        getattr(b.entity("e").context, how)(given, "ping")
    assert _timers(b) == 0


@pytest.mark.parametrize("delay", [0, 0.0, Fraction(1, 1000)])
async def test_a_timer_takes_any_number_from_nothing(delay: Any) -> None:
    b = bench(Idle)
    b.tell("e", "ping")
    b.entity("e").context.schedule_once(delay, "ping")
    assert _timers(b) == 1
    b.stop()
    await b.stopped()


async def test_a_restart_ends_the_timers_of_the_failed_entity() -> None:
    class Rings(Entity):
        log: Log

        @handler
        def set_and_fail(self) -> None:
            self.context.schedule_once(0.0, "ring")
            self.context.schedule(0.001, "again")
            raise ValueError("after the timers")

        @handler
        def ping(self) -> str:
            return "pong"

        def receive(self, message: str) -> None:
            self.log.rows.append(message)

    b = bench(Rings, log := Log())
    b.tell("e", "set_and_fail")
    assert b.activation("e") is not None
    await turns(20)
    ask = b.ask("e", "ping")
    assert ask.done()
    assert ask.result() == "pong"
    assert log.rows == []
