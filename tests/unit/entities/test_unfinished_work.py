"""A handler that returns undone work: it is done as a part of the message, or the message fails."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from shardbus import Entity, EntityFailed, Rejection, ShardBus, behaviour, handler
from shardbus.entities.unfinished_work import is_unfinished, returns_values
from shardbus.transport.drop_reports import Origin
from shardbus.wire.schema import encode_value
from tests.unit.entities.entity_kit import Bench
from tests.waiting import until

WAITS, ENDS = 1, -1
"""Numbers for which the work waits for the loop, or ends at once."""


class Lazy:
    """An awaitable of a library, whose work begins when it is awaited."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __await__(self) -> Any:
        return self.make().__await__()


class Working(Entity):
    def __init__(self) -> None:
        self.done: list[int] = []

    async def work(self, number: int) -> int:
        if number > 0:
            await asyncio.sleep(0)
        self.done.append(number)
        return number


async def nested(self: Any, number: int) -> Any:
    return self.work(number)


async def late(self: Any, number: int) -> Any:
    if number > 0:
        await asyncio.sleep(0)
    return self.work(number)


def old_style(self: Any, number: int) -> Any:
    return (yield from self.work(number).__await__())


def waits_in_thread(self: Any, number: int) -> Any:
    return self.work(number)


RETURNING = {
    "a coroutine": handler(lambda self, number: self.work(number)),
    "a lazy object": handler(lambda self, number: Lazy(lambda: self.work(number))),
    "a task": handler(lambda self, number: asyncio.ensure_future(self.work(number))),
    "a lazy coroutine": handler(lambda self, number: Lazy(lambda: nested(self, number))),
    "a coroutine, async": handler(nested),
    "a coroutine, async and late": handler(late),
    "an old coroutine": handler(types.coroutine(old_style)),
    "a coroutine from a thread": handler(thread=True)(waits_in_thread),
}


def bench(attributes: dict[str, Any]) -> Bench:
    bus = ShardBus("shop")
    bus.entity("working")(type("Tested", (Working,), attributes))
    return Bench(bus)


def told(shop: Bench, method: str) -> None:
    """Send a message that expects no answer, as another node does."""
    shop._deliver(method, [("a", encode_value(()), Origin.UNREPORTED)], None, 0)


@pytest.mark.parametrize("number", [WAITS, ENDS])
@pytest.mark.parametrize("way", RETURNING)
async def test_the_work_behind_an_answer_is_done(way: str, number: int) -> None:
    shop = bench({"act": RETURNING[way]})
    shop.tell("a", "act", number)
    shop.tell_many("act", ("a", (number * 2,)), ("b", (number,)), ("c", (number,)))
    assert await shop.ask("a", "act", number * 3) == number * 3
    await until(lambda: all(shop.entity(entity_id).done for entity_id in "abc"), "work is left")
    assert shop.entity("a").done == [number, number * 2, number * 3]
    await until(lambda: not any(shop.activation(i).busy for i in "abc"), "one is busy")
    counts = shop.host.counts
    assert (counts.begun, counts.undone, shop.dropped) == (5, 0, {})


@pytest.mark.parametrize("number", [WAITS, ENDS])
async def test_messages_of_receive_and_behaviours_are_done(number: int) -> None:
    def receive(self: Any, message: Any) -> Any:
        return self.work(message)

    @behaviour
    def busy(self: Any, message: Any) -> Any:
        return Lazy(lambda: self.work(message * 10))

    def switch(self: Any) -> None:
        self.context.become(self.busy)

    shop = bench({"receive": receive, "busy": busy, "switch": handler(switch)})
    assert await shop.ask_message("a", number) == number
    await shop.ask("a", "switch")
    assert await shop.ask_message("a", number) == number * 10
    assert shop.entity("a").done == [number, number * 10]


async def test_an_error_of_the_work_is_the_handlers() -> None:
    class Refusal(Rejection):
        pass

    async def fail(error: Exception) -> None:
        await asyncio.sleep(0)
        raise error

    fails = handler(lambda self: fail(ValueError("no")))
    rejects = handler(lambda self: Lazy(lambda: fail(Refusal("no"))))
    shop = bench({"fails": fails, "rejects": rejects, "act": RETURNING["a coroutine"]})
    with pytest.raises(EntityFailed, match="ValueError: no"):
        await shop.ask("a", "fails")
    with pytest.raises(Refusal):
        await shop.ask("a", "rejects")
    told(shop, "fails")
    told(shop, "rejects")
    assert await shop.ask("a", "act", 1) == 1
    assert shop.dropped == {"failed": 1, "rejected": 1}


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (generator, "generator"),
        (async_generator, "async_generator"),
        (contextlib.contextmanager(generator), "GeneratorContextManager"),
        (contextlib.asynccontextmanager(async_generator), "AsyncGeneratorContextManager"),
    ],
)
async def test_a_body_that_nothing_runs_is_no_success(make: Any, named: str) -> None:
    shop = bench({"act": handler(lambda self: make())})
    with pytest.raises(EntityFailed, match=f"TypeError: the handler returned a {named}, and"):
        await shop.ask("a", "act")
    told(shop, "act")
    await until(lambda: shop.dropped == {"failed": 1}, "the told message is not counted")


async def test_work_may_put_its_message_aside() -> None:
    class Stashing(Working):
        is_open = False

        @handler
        def act(self, number: int) -> Any:
            return self.later(number)

        async def later(self, number: int) -> Any:
            await asyncio.sleep(0)
            if not self.is_open:
                self.context.stash()
                return None
            return await self.work(number)

        @handler
        def unlock(self) -> None:
            self.is_open = True
            self.context.unstash_all()

    bus = ShardBus("shop")
    bus.entity()(Stashing)
    shop = Bench(bus)
    ask = shop.ask("a", "act", 5)
    await shop.ask("a", "unlock")
    assert await ask == 5
    assert shop.entity("a").done == [5]


async def test_the_entity_is_busy_until_the_work_is_done() -> None:
    gate = asyncio.Event()
    rows: list[str] = []

    async def wait(name: str) -> None:
        rows.append(f"begins {name}")
        await gate.wait()
        rows.append(f"ends {name}")

    shop = bench({"act": handler(lambda self, name: wait(name))})
    shop.tell("a", "act", "first")
    shop.tell("a", "act", "second")
    assert rows == ["begins first"]
    gate.set()
    await until(lambda: len(rows) == 4, "a message was not handled")
    assert rows == ["begins first", "ends first", "begins second", "ends second"]


def test_what_is_unfinished() -> None:
    coroutine = nested(None, 1)
    undone = [coroutine, Lazy(generator), generator(), async_generator()]
    undone.append(contextlib.contextmanager(generator)())
    done = [None, 1, "a", b"", [], {}, (), generator, nested, contextlib.nullcontext, object()]
    assert [is_unfinished(work) for work in undone] == [True] * len(undone)
    assert [is_unfinished(work) for work in done] == [False] * len(done)
    coroutine.close()


def test_only_functions_without_a_call_in_a_return_are_known_to_return_values() -> None:
    async def attribute_later(self: Any) -> Any:
        await asyncio.sleep(0)
        return self.total

    def several(self: Any, n: int) -> Any:
        if n:
            return self.total
        return self.work(n)

    def either(self: Any) -> Any:
        return self.total or self.work(1)

    def by_name(self: Any) -> Any:
        answer = self.work(1)
        return answer  # noqa: RET504

    plain = [lambda self: self.total, lambda self: None, lambda self: self.n + 1, attribute_later]
    unknown = [lambda self: self.work(1), several, either, by_name, nested, Lazy(generator), len]
    assert [returns_values(function) for function in plain] == [True] * len(plain)
    assert [returns_values(function) for function in unknown] == [False] * len(unknown)
