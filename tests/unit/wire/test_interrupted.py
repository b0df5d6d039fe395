"""An exception that a signal raises is no error of the value that was at work."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import EventSourced, Rejection, SchemaError, ShardBus, event, handler
from shardbus.errors import ConfigError, StateUnreadable
from shardbus.routing.region import shard_function
from shardbus.wire.rejections import decode_rejection, encode_rejection
from shardbus.wire.schema import answer_encoder, decoder, encode_arguments, encode_value
from shardbus.wire.shapes import shape_of
from shardbus.wire.stored_state import StateCodec


class TimeLimit(Exception):
    """The end of the time of a task."""


@pytest.fixture(params=[TimeLimit, KeyboardInterrupt])
def raised_by_signal(request: Any) -> Iterator[type[BaseException]]:
    """Install a function for SIGUSR1 that raises this class."""

    def function(number: int, frame: object) -> None:
        raise request.param

    before = signal.signal(signal.SIGUSR1, function)
    armed.append(True)
    yield request.param
    armed.clear()
    signal.signal(signal.SIGUSR1, before)


armed: list[bool] = []
"""Not empty while code of the classes gets a signal."""


def comes() -> None:
    if armed:
        signal.raise_signal(signal.SIGUSR1)


@dataclass
class Interrupted:
    """Code of it runs where it is written and read."""

    number: int = 1

    def __post_init__(self) -> None:
        comes()


@dataclass
class NoRoom(Rejection):
    number: int = 1

    def __post_init__(self) -> None:
        comes()


def made(cls: Callable[[], Any]) -> Any:
    before = list(armed)
    armed.clear()
    value = cls()
    armed.extend(before)
    return value


bus = ShardBus("interrupts")


@bus.entity("ledger")
class Ledger(EventSourced):
    state: Interrupted

    @event
    def on(self, event: Interrupted) -> None:
        return None

    @handler
    def take(self, value: Interrupted) -> None:
        return None


EVENTS: Any = bus.types["ledger"].events
TAKE = bus.types["ledger"].interface.methods["take"]


def states(migration: Callable[[Any], Any] = lambda value: value) -> StateCodec:
    return StateCodec("cart", Interrupted, decoder(Interrupted), 2, {1: migration})


def migrated(value: object) -> object:
    comes()
    return value


CALLERS = {
    "an argument": lambda: TAKE.encode((made(Interrupted),), {}),
    "an argument, packed": lambda: TAKE.pack((made(Interrupted),)),
    "a state": lambda: states().write(made(Interrupted)),
    "a name": lambda: encode_arguments((made(Interrupted),)),
    "an event": lambda: EVENTS.write(made(Interrupted)),
}
NODES = {
    "a stored state": lambda: states(migrated).read("7", encode_value({"number": 1})),
    "a plain state": lambda: states().of_plain({"number": 1}),
    "a stored event": lambda: EVENTS.replay(made(Ledger), "7", 1, [made(entry)]),
    "a rejection": lambda: encode_rejection(made(Written)),
    "an answer": lambda: answer_encoder(shape_of("get", Interrupted))(made(Interrupted)),
    "a shard": lambda: shard_function("cart", lambda key: comes() or key)("7"),
}


ERRORS = (SchemaError, ConfigError, StateUnreadable)


class Written(Rejection):
    def __str__(self) -> str:
        comes()
        return "written"


def entry() -> bytes:
    stored: bytes = EVENTS.write(Interrupted()).entry
    return stored


@pytest.mark.parametrize("work", CALLERS)
def test_a_caller_whose_value_is_written_gets_it(
    raised_by_signal: type[BaseException], work: str
) -> None:
    with pytest.raises(raised_by_signal):
        CALLERS[work]()


@pytest.mark.parametrize("work", NODES)
def test_an_interrupt_ends_a_node_and_no_other_exception_does(
    raised_by_signal: type[BaseException], work: str
) -> None:
    ends = raised_by_signal is KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt if ends else ERRORS):
        NODES[work]()


def test_a_rejection_that_arrives_lets_an_interrupt_through(
    raised_by_signal: type[BaseException],
) -> None:
    name, text, payload = made(lambda: encode_rejection(NoRoom()))
    if raised_by_signal is TimeLimit:
        assert type(decode_rejection(name, text, payload)) is Rejection
    else:
        with pytest.raises(KeyboardInterrupt):
            decode_rejection(name, text, payload)
