"""`definite` is True only if no handler of the ask has begun: every way in which an entity can fail
an ask with which a handler has begun, with each error that is definite otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.entities.entity_type import Directive
from shardbus.errors import (
    BufferFull,
    EntityFailed,
    MailboxFull,
    MessageTooLarge,
    RequestError,
    SchemaError,
    StateUnreadable,
    Unhandled,
    UnknownEntityType,
)
from tests.unit.entities.entity_kit import Bench
from tests.waiting import turns

DEFINITE = [
    BufferFull,
    MailboxFull,
    MessageTooLarge,
    SchemaError,
    StateUnreadable,
    Unhandled,
    UnknownEntityType,
]


def transparent(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of a library."""

    @wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


@dataclass
class Moody:
    """A message whose own check passes so many times, as one that looks at the clock may."""

    passes: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if Moody.passes <= 0:
            raise ValueError("too late")
        Moody.passes -= 1


@dataclass
class State:
    n: int = 0


class Works(Entity):
    """Counts its beginnings. It lets the errors of an entity that it asks pass."""

    state: State
    begun: ClassVar[int] = 0
    raises: ClassVar[Exception] = ValueError("none")

    def fail(self) -> None:
        Works.begun += 1
        raise Works.raises

    @handler
    def plain(self) -> None:
        self.fail()

    @handler
    async def at_once(self) -> None:
        self.fail()

    @handler
    async def later(self) -> None:
        await asyncio.sleep(0)
        self.fail()

    @handler(thread=True)
    def in_thread(self) -> None:
        self.fail()

    @handler
    def after_a_stash(self) -> None:
        Works.begun += 1
        self.context.stash()

    @handler
    def unstash(self) -> None:
        self.context.unstash_all()

    @handler
    def moody(self, message: Moody) -> None:
        self.fail()

    @handler
    async def moody_async(self, message: Moody) -> None:
        self.fail()

    @handler
    @transparent
    def moody_decorated(self, message: Moody) -> None:
        self.fail()

    @handler
    async def moody_cancelled(self, message: Moody) -> None:
        Works.begun += 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    @handler
    def moody_stash(self, message: Moody) -> None:
        self.after_a_stash()

    def receive(self, message: object) -> object:
        Works.begun += 1
        if isinstance(message, Exception):
            raise message
        if message == "pipe":
            self.context.pipe_to_self(self.later(), answer=True)
            return None
        return self.unhandled(message)


def bench(**settings: Any) -> Bench:
    Works.begun, Moody.passes = 0, 1
    bus = ShardBus("shop")
    bus.entity("works", supervision=settings.pop("supervision", None))(Works)
    return Bench(bus, **settings)


async def failed(ask: asyncio.Future[Any]) -> RequestError:
    with pytest.raises(RequestError) as raised:
        await ask
    assert Works.begun, "the handler has begun"
    assert not raised.value.definite
    return raised.value


# Errors that a handler lets pass


@pytest.mark.parametrize("cls", DEFINITE)
@pytest.mark.parametrize("method", ["plain", "at_once", "later", "in_thread"])
async def test_an_error_of_an_inner_ask_is_a_failure_of_the_handler(
    cls: type[RequestError], method: str
) -> None:
    b = bench()
    Works.raises = cls("of another entity")
    assert cls.definite
    error = await failed(b.ask("e", method))
    assert isinstance(error, EntityFailed)
    assert (type(error), error.type) == (EntityFailed, cls.__name__)
    assert "of another entity" in error.message
    await turns()
    assert b.host.counts.failures == 1, "as any other exception, it restarts the entity"


async def test_an_unreadable_state_of_the_very_entity_is_not_definite_from_a_handler() -> None:
    b = bench()
    Works.raises = StateUnreadable("kept", entity_type="works", entity_id="e")
    assert type(await failed(b.ask("e", "plain"))) is EntityFailed


async def test_a_declined_ask_of_another_entity_is_a_failure() -> None:
    b = bench()
    Works.raises = Unhandled("another takes no such int")
    Works.raises.definite = False
    error = await failed(b.ask("e", "plain"))
    assert isinstance(error, EntityFailed)
    await turns()
    assert b.host.counts.failures == 1


@pytest.mark.parametrize("cls", DEFINITE)
async def test_an_error_of_piped_work_is_not_definite(cls: type[RequestError]) -> None:
    b = bench()
    Works.raises = cls("of the work")
    assert isinstance(await failed(b.ask_message("e", "pipe")), EntityFailed)


async def test_what_receive_declines_has_reached_it() -> None:
    b = bench()
    error = await failed(b.ask_message("e", 5))
    assert isinstance(error, Unhandled)
    assert b.dropped == {"unhandled": 1}
    assert b.host.counts.failures == 0


# Messages that were put aside


async def test_a_full_stash_is_not_definite() -> None:
    b = bench(mailbox=1)
    await b.ask("e", "unstash")  # it starts
    b.ask("e", "after_a_stash")
    error = await failed(b.ask("e", "after_a_stash"))
    assert isinstance(error, MailboxFull)
    assert b.dropped == {"mailbox_full": 1}


async def test_a_stashed_message_of_an_entity_that_stops_is_not_definite() -> None:
    b = bench()
    stashed = b.ask("e", "after_a_stash")
    b.stop()
    error = await failed(stashed)
    assert isinstance(error, Unhandled)
    assert b.dropped == {"stopped": 1}


async def test_a_stashed_message_of_a_state_that_is_unreadable_now_is_not_definite() -> None:
    b = bench(supervision=lambda error: Directive.RESTART)
    stashed = b.ask("e", "after_a_stash")
    await turns()
    b.keeper.states["e"] = (7, b"\xc1")
    Works.raises = ValueError("begin again")
    failing, fresh = b.ask("e", "plain"), b.ask("e", "later")
    await failed(failing)
    error = await failed(stashed)
    assert isinstance(error, StateUnreadable)
    with pytest.raises(StateUnreadable) as never_began:
        await fresh
    assert never_began.value.definite
    assert Works.begun == 2


# Messages whose own checks do not say the same twice


@pytest.mark.parametrize("method", ["moody", "moody_async", "moody_decorated"])
async def test_a_handler_that_raised_is_not_taken_for_a_message_that_does_not_fit(
    method: str,
) -> None:
    b = bench()
    Works.raises = KeyError("mine")
    error = await failed(b.ask("e", method, {}))
    assert isinstance(error, EntityFailed)
    assert error.type == "KeyError"


async def test_a_handler_that_cancels_itself_is_not_taken_for_one_either() -> None:
    error = await failed(bench().ask("e", "moody_cancelled", {}))
    assert isinstance(error, EntityFailed)
    assert error.type == "CancelledError"


async def test_a_message_that_never_fits_is_definite() -> None:
    b = bench()
    Moody.passes = 0
    with pytest.raises(SchemaError) as refused:
        await b.ask("e", "moody", {})
    assert refused.value.definite
    assert Works.begun == 0


async def test_a_stashed_message_that_does_not_fit_any_more_is_not_definite() -> None:
    b = bench()
    stashed = b.ask("e", "moody_stash", {})
    await b.ask("e", "unstash")
    assert isinstance(await failed(stashed), SchemaError)
    assert b.dropped == {"schema": 1}
