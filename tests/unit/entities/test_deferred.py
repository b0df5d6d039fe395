"""Behaviours, and the messages that an entity puts aside: a stash, and work beside its messages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import permutations
from typing import Any
from unittest.mock import Mock

import pytest

from shardbus import Entity, ShardBus, StopReason, behaviour, handler
from shardbus.errors import ConfigError, EntityFailed, LocalProtocolError, MailboxFull
from tests.unit.entities.entity_kit import Bench
from tests.waiting import turns, until


@dataclass
class Loaded:
    value: int


@dataclass
class Get:
    pass


class Outside:
    """The waits of entities: loads and writes that end when the test says so."""

    def __init__(self) -> None:
        self.under_way: list[asyncio.Future[Any]] = []
        self.cancelled = 0

    async def call(self) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.under_way.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def end(self, outcome: object) -> None:
        """The oldest call ends so."""
        await until(lambda: self.under_way, "a call")
        future = self.under_way.pop(0)
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        await turns()


class Account(Entity):
    """Loading, running, waiting: as the documents have it."""

    outside: Outside
    seen: list[Any]

    def __init__(self) -> None:
        self.value = 0
        self.context.pipe_to_self(self.outside.call())

    @behaviour
    def loading(self, message: object) -> object:
        match message:
            case Loaded(value=value):
                self.value = value
                self.context.become(self.running)
                self.context.unstash_all()
            case Exception() as error:
                raise error
            case _:
                self.context.stash()
        return None

    receive = loading

    @behaviour
    def running(self, message: object) -> object:
        match message:
            case int():
                self.context.become(self.waiting)
                self.context.pipe_to_self(self.write(message), answer=True)
                return "not sent"
            case "get":
                return self.value
            case "passivate":
                self.context.passivate()
                return "passivates"
        return self.unhandled(message)

    @behaviour
    async def waiting(self, message: object) -> object:
        match message:
            case Loaded(value=value):
                self.value = value
                self.context.unstash_all()
                self.context.become(self.running)
                return value
            case Exception() as error:
                raise error
        self.context.stash()
        return None

    async def write(self, amount: int) -> Loaded:
        await self.outside.call()
        return Loaded(self.value + amount)

    @handler
    def at_once(self) -> int:
        return self.value

    @handler
    def bad(self) -> None:
        raise ValueError("bad")

    @handler
    async def block(self) -> str:
        self.seen.append("blocked")
        gate: asyncio.Event = self.gate  # type: ignore[attr-defined]
        await gate.wait()
        return "done"


def bench(cls: type[Any] = Account, /, **settings: Any) -> tuple[Bench, Outside]:
    bus = ShardBus("shop")
    bus.entity("account", messages=[Loaded])(cls)
    cls.outside, cls.seen, cls.gate = Outside(), [], asyncio.Event()
    made = Bench(bus, **settings)
    return made, cls.outside


async def loaded(
    value: int = 10, *, cls: type[Any] = Account, **settings: Any
) -> tuple[Bench, Outside]:
    """An account that runs."""
    b, outside = bench(cls, **settings)
    first = b.ask_message("a", "get")
    await outside.end(Loaded(value))
    assert await first == value
    return b, outside


# Behaviours


async def test_S4_24_become_changes_the_behaviour() -> None:
    class Door(Entity):
        @behaviour
        def closed(self, message: str) -> str:
            if message == "open":
                self.context.become(self.opened)
            return "closed"

        @behaviour
        async def opened(self, message: str | int) -> str:
            await asyncio.sleep(0)
            if message == "close":
                self.context.become(self.closed)
            return "opened"

        receive = closed

    b, _ = bench(Door)
    said = [b.ask_message("d", m) for m in ("knock", "open", "knock", 1, "close", "knock", "open")]
    assert await asyncio.gather(*said) == ["closed"] * 2 + ["opened"] * 3 + ["closed"] * 2
    assert await b.ask_message("other", "knock") == "closed"


async def test_S4_24_a_failed_entity_begins_again_with_receive() -> None:
    b, outside = await loaded()
    with pytest.raises(EntityFailed):
        await b.ask("a", "bad")
    waiting = b.ask_message("a", "get")
    await turns()
    assert not waiting.done()
    await outside.end(Loaded(11))
    assert await waiting == 11


async def test_S4_24_handlers_by_name_are_no_part_of_a_behaviour() -> None:
    b, _ = bench()
    assert await b.ask("a", "at_once") == 0


async def test_S4_24_messages_of_every_behaviour_can_be_read() -> None:
    class Reads(Entity):
        def receive(self, message: Get) -> str:
            self.context.become(self.later)
            return "got"

        @behaviour
        def later(self, message: Loaded) -> int:
            return message.value

    bus = ShardBus("shop")
    bus.entity("reads")(Reads)
    b = Bench(bus)
    assert await b.ask_message("r", Get()) == "got"
    assert await b.ask_message("r", Loaded(4)) == 4


async def test_S4_24_only_a_behaviour_of_its_own_can_be_become() -> None:
    class Odd(Entity):
        others: list[Odd]

        @behaviour
        def second(self, message: object) -> str:
            return "second"

        def unmarked(self, message: object) -> str:
            return "unmarked"

        def receive(self, message: str) -> str:
            self.others.append(self)
            behaviours: dict[str, Any] = {
                "own": self.second,
                "back": self.receive,
                "unmarked": self.unmarked,
                "another's": self.others[0].second,
                "a function": print,
            }
            try:
                self.context.become(behaviours[message])
            except LocalProtocolError as e:
                return str(e)
            return "became"

    Odd.others = []
    b, _ = bench(Odd)
    assert await b.ask_message("first", "back") == "became"
    assert await b.ask_message("x", "unmarked") == "unmarked is no behaviour of this account"
    assert await b.ask_message("x", "another's") == "second is no behaviour of this account"
    assert await b.ask_message("x", "a function") == "print is no behaviour of this account"
    assert await b.ask_message("x", "own") == "became"
    assert await b.ask_message("x", "own") == "second"


def test_S4_24_a_class_names_its_first_behaviour() -> None:
    class Undecided(Entity):
        @behaviour
        def first(self, message: object) -> None: ...

    with pytest.raises(ConfigError, match=r"no receive; name the one.*receive = first"):
        ShardBus("shop").entity()(Undecided)


async def test_a_subclass_replaces_a_behaviour() -> None:
    class Louder(Account):
        @behaviour
        def running(self, message: object) -> object:
            return "LOUD"

    b, outside = bench(Louder)
    first = b.ask_message("a", "get")
    await outside.end(Loaded(1))
    assert await first == "LOUD"


# Loading


async def test_S4_18_S4_19_messages_wait_until_the_state_has_come() -> None:
    b, outside = bench()
    asks = [b.ask_message("a", "get") for _ in range(3)]
    await turns()
    assert not any(ask.done() for ask in asks)
    await outside.end(Loaded(7))
    assert await asyncio.gather(*asks) == [7] * 3


async def test_S4_18_the_outcome_is_the_very_object() -> None:
    class Keeps(Entity):
        got: list[object]

        def receive(self, message: object) -> None:
            if message == "begin":
                self.context.pipe_to_self(asyncio.sleep(0, result=self.got))
            else:
                self.got.append(message)

    Keeps.got = []
    b, _ = bench(Keeps)
    await b.ask_message("k", "begin")
    await until(lambda: Keeps.got, "the outcome")
    assert Keeps.got[0] is Keeps.got


async def test_S4_20_a_load_that_fails_restarts_and_what_is_stashed_stays() -> None:
    b, outside = bench()
    asks = [b.ask_message("a", "get") for _ in range(3)]
    await outside.end(OSError("no repository"))
    await turns()
    assert b.host.counts.failures == 1
    assert not any(ask.done() for ask in asks)
    await outside.end(Loaded(8))
    assert await asyncio.gather(*asks) == [8] * 3


# Updates


async def test_S4_21_S4_22_the_asker_of_an_update_is_answered_when_it_is_written() -> None:
    b, outside = await loaded(10)
    update, get, second = (b.ask_message("a", m) for m in (5, "get", 2))
    await turns()
    assert not update.done()
    assert not get.done()
    await outside.end(None)
    assert await update == 15
    assert await get == 15
    await outside.end(None)
    assert await second == 17


async def test_S4_23_a_failed_update_fails_its_asker_and_the_entity_loads_again() -> None:
    b, outside = await loaded(10)
    update, get = b.ask_message("a", 5), b.ask_message("a", "get")
    await outside.end(OSError("disk full"))
    with pytest.raises(EntityFailed, match="disk full") as failed:
        await update
    assert failed.value.type == "OSError"
    assert not get.done()
    await outside.end(Loaded(10))
    assert await get == 10


async def test_a_handler_that_fails_behind_its_work_has_one_outcome() -> None:
    class Fails(Account):
        @behaviour
        def running(self, message: object) -> object:
            if message == "get":
                return "get"
            self.context.pipe_to_self(self.outside.call(), answer=True)
            raise ValueError

    b, outside = bench(Fails)
    first = b.ask_message("a", "get")
    await outside.end(Loaded(1))
    await first
    with pytest.raises(EntityFailed, match="ended before its work was done"):
        await b.ask_message("a", 1)


async def test_the_outcome_comes_however_full_the_mailbox_is() -> None:
    b, outside = await loaded(10, mailbox=2)
    update = b.ask_message("a", 5)
    await turns()
    blocked = b.ask("a", "block")
    full = [b.ask_message("a", "get") for _ in range(3)]
    with pytest.raises(MailboxFull):
        await full[2]
    await outside.end(None)
    Account.gate.set()  # type: ignore[attr-defined]
    assert await blocked == "done"
    assert await update == 15
    assert await asyncio.gather(*full[:2]) == [15] * 2


async def test_the_stash_is_bounded_as_the_mailbox_is() -> None:
    b, outside = bench(mailbox=2)
    asks = [b.ask_message("a", "get") for _ in range(3)]
    with pytest.raises(MailboxFull, match="has 2 messages stashed"):
        await asks[2]
    assert b.dropped == {"mailbox_full": 1}
    await outside.end(Loaded(1))
    assert await asyncio.gather(*asks[:2]) == [1, 1]


# The end of an incarnation


async def test_work_of_a_stopping_entity_is_cancelled_and_its_asker_failed() -> None:
    b, outside = await loaded(10)
    update, get = b.ask_message("a", 5), b.ask_message("a", "get")
    await turns()
    activation = b.activation("a")
    assert activation is not None
    activation.passivate()
    assert update.done()
    with pytest.raises(EntityFailed, match="account 'a' ended before its work was done"):
        await update
    await turns()
    assert outside.cancelled == 1
    del outside.under_way[0]
    await outside.end(Loaded(10))  # the next incarnation's load; the stash came along
    assert await get == 10


async def test_a_waiting_outcome_is_not_for_the_next_activation() -> None:
    b, outside = await loaded(10)
    update = b.ask_message("a", 5)
    await turns()
    b.tell("a", "block")
    b.tell("a", "bad")
    get = b.ask_message("a", "get")
    await outside.end(None)
    Account.gate.set()  # type: ignore[attr-defined]
    with pytest.raises(EntityFailed, match="ended before its work was done"):
        await update
    await outside.end(Loaded(99))
    assert await get == 99


async def test_a_handoff_waits_for_work_and_for_what_waits_for_it() -> None:
    b, outside = await loaded(10)
    update, get = b.ask_message("a", 5), b.ask_message("a", "get")
    await turns()
    b.stop()
    await turns()
    assert b.down == []
    await outside.end(None)
    assert await asyncio.gather(update, get) == [15, 15]
    await b.stopped()


async def test_a_handoff_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    b, outside = await loaded(10, handoff_timeout=5.001)
    update = b.ask_message("a", 5)
    await turns()
    calls: list[Any] = []
    monkeypatch.setattr(b.host.loop, "call_later", lambda *args: calls.append(args) or Mock())
    b.stop()
    [(cut_off, *shards)] = [call[1:] for call in calls if b.host._cut_off in call]
    cut_off(*shards)
    with pytest.raises(EntityFailed, match="ended before its work was done"):
        await update
    await b.stopped()
    await turns()
    assert outside.cancelled == 1


async def test_an_entity_with_work_under_way_is_not_idle() -> None:
    b, outside = await loaded(10, passivate_after=1.0)
    update = b.ask_message("a", 5)
    await turns()
    activation = b.activation("a")
    assert activation is not None
    activation.set_idle_timeout(1.0)
    b.pass_ticks(1000)
    assert b.activation("a") is activation
    await outside.end(None)
    assert await update == 15
    b.pass_ticks(1000)
    assert b.activation("a") is None


async def test_closing_the_host_cancels_work_under_way() -> None:
    b, outside = await loaded(10)
    update = b.ask_message("a", 5)
    await turns()
    b.host.close()
    await turns()
    assert outside.cancelled == 1
    assert not update.done()


@pytest.mark.parametrize("order", [*permutations(("a", "b", "stop", "loaded"))])
async def test_TSU22_no_order_of_load_messages_and_stop_loses_a_message(order: Any) -> None:
    b, outside = bench()
    asks: dict[str, asyncio.Future[Any]] = {}
    passivating = b.ask_message("x", "get")  # starts it
    for step in order:
        activation = b.activation("x")
        if step == "loaded":
            await outside.end(Loaded(1))
        elif step == "stop" and activation is not None:
            activation.passivate()
        else:
            asks[step] = b.ask_message("x", "get")
        await turns()

    async def everything_loads() -> bool:
        for future in outside.under_way:
            if not future.done():
                future.set_result(Loaded(1))
        return all(ask.done() for ask in (*asks.values(), passivating))

    await until(everything_loads, "every answer")
    assert [ask.result() for ask in (*asks.values(), passivating)] == [1] * (len(asks) + 1)


# Mistakes


class Clumsy(Entity):
    mistake: str

    def receive(self, message: str) -> str:
        work = asyncio.get_running_loop().create_future()
        try:
            match message:
                case "stash twice":
                    self.context.stash()
                    self.context.stash()
                case "stash and pipe":
                    self.context.stash()
                    self.context.pipe_to_self(work, answer=True)
                case "pipe twice":
                    self.context.pipe_to_self(work, answer=True)
                    self.context.pipe_to_self(work, answer=True)
        except LocalProtocolError as e:
            raise RuntimeError(str(e)) from None
        return "not sent"


@pytest.mark.parametrize("how", ["stash twice", "stash and pipe", "pipe twice"])
async def test_a_message_is_put_aside_once(how: str) -> None:
    b, _ = bench(Clumsy)
    b.ask_message("c", how)
    await turns()
    assert b.host.counts.failures == 1


async def test_work_needs_a_receive_and_an_answer_a_message() -> None:
    class Deaf(Entity):
        @handler
        def hello(self) -> str:
            return "hello"

    b, _ = bench(Deaf)
    await b.ask("d", "hello")
    activation = b.activation("d")
    assert activation is not None
    future = asyncio.get_running_loop().create_future()
    with pytest.raises(LocalProtocolError, match="account has no receive"):
        activation.pipe_to_self(future)
    b, _ = await loaded()
    activation = b.activation("a")
    assert activation is not None
    with pytest.raises(LocalProtocolError, match="no message is being handled"):
        activation.pipe_to_self(future, answer=True)


async def test_cancelled_work_is_an_outcome_like_any_failure() -> None:
    b, outside = await loaded(10)
    update = b.ask_message("a", 5)
    await turns()
    outside.under_way.pop().cancel()
    with pytest.raises(EntityFailed) as failed:
        await update
    assert failed.value.type == "CancelledError"


async def test_work_and_timers_end_before_on_stop() -> None:
    """Else messages of the meantime would wait in the mailbox and start the next incarnation."""

    class Ends(Account):
        async def on_stop(self, reason: StopReason) -> None:
            self.seen.append(reason)
            await self.gate.wait()  # type: ignore[attr-defined]

    b, outside = await loaded(10, cls=Ends)
    activation = b.activation("a")
    assert activation is not None
    activation.pipe_to_self(outside.call())
    activation.schedule_once(0, "get")
    await turns()
    activation.schedule_once(0, "get")
    activation.stop()
    await until(lambda: outside.cancelled, "the end of the work")
    await turns()
    Ends.gate.set()  # type: ignore[attr-defined]
    await until(lambda: b.host.counts.stopped, "the stop")
    assert Ends.seen == [StopReason.STOPPED]
    assert b.activation("a") is None
