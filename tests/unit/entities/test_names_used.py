"""Which classes may deliver and set reminders, by the names in their methods."""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.entities.entity_sends import delivers
from shardbus.entities.names_used import uses_name
from shardbus.entities.unfinished_work import returns_values
from shardbus.testing import EntityProbe


def _nothing(*_: Any) -> Any:
    raise RuntimeError


class Compiled:
    """A method as Cython and Nuitka compile it: its code object has no instructions of its own, and
    Nuitka's names the class of plain functions as its class."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__globals__, self.__annotations__ = function.__globals__, function.__annotations__
        self.__signature__ = inspect.signature(function)
        self.__code__ = _nothing.__code__.replace(co_flags=function.__code__.co_flags)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return types.FunctionType

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __get__(self, instance: object, owner: type) -> Any:
        return types.MethodType(self.function, instance)


@dataclass
class Balance:
    cents: int = 0


def types_of(compiled: Any) -> ShardBus:
    bus = ShardBus("bank")

    @bus.entity("account")
    class Account(Entity):
        state: Balance

        @handler
        @compiled
        async def pay(self, payee: str) -> None:
            self.deliver(self.context.ref(Account, payee).credit, 1)
            await self.context.remind("late", handler="credit", after="1h", data=0)
            await self.save()

        @handler
        @compiled
        def credit(self, cents: int) -> None: ...

    return bus


def plain(function: Any) -> Any:
    return function


@pytest.mark.parametrize("compiled", [plain, Compiled])
async def test_a_method_may_deliver_and_remind(compiled: Any) -> None:
    kind = types_of(compiled).types["account"]
    assert delivers(kind)
    assert kind.reminds
    probe: EntityProbe[Any] = EntityProbe(kind.cls, "a")
    async with probe:
        await probe.ask("pay", "b")


def test_a_class_that_names_it_nowhere_does_not() -> None:
    class Still(Entity):
        class Inner: ...

        name = property(lambda self: "still")

        @handler
        def act(self) -> None:
            def within() -> None: ...

            within()

    assert not uses_name(Still, "deliver")


def test_a_decorator_that_shows_the_code_within_is_not_compiled() -> None:
    class Shown(Compiled):
        @property
        def __wrapped__(self) -> Any:
            return self.function

    class Still(Entity):
        @handler
        @Shown
        def act(self) -> None: ...

    assert not uses_name(Still, "deliver")


def test_no_answer_of_a_compiled_method_is_taken_for_a_value() -> None:
    def constant(self: Any) -> Any:
        return self.cents + 1

    assert returns_values(constant)
    assert not returns_values(Compiled(constant))
