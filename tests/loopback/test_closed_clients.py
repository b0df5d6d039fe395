"""The error of every call of a client once it closes.

the call begins once the client is closed    LocalProtocolError; DeliveryFailed of an outbox
it is under way when the client closes       its answer if that has come, else a RequestError;
                                             StoreUnavailable of `client.data`
the next value of an iteration               as a call that begins
it is cancelled                              CancelledError, and the client goes on
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import (
    AsyncClient,
    Client,
    DeliveryFailed,
    Entity,
    LocalProtocolError,
    RequestError,
    ShardBus,
    StoreUnavailable,
    handler,
)
from shardbus.client.outbox import ClientOutbox
from shardbus.client.work_queue import ClientQueue, Work
from shardbus.data import Counter
from shardbus.delivery import WorkQueue
from tests.loopback.nodes import Nodes, blocking_client


@dataclass
class Count:
    number: int = 0


bus = ShardBus("shop")


@bus.entity("page", shards=4)
class Page(Entity):
    state: Count

    @handler
    def add(self, amount: int = 1) -> int:
        return amount

    def receive(self, message: int) -> int:
        return message


@bus.entity("jobs")
class Jobs(WorkQueue[str]):
    pass


@dataclass
class Uses:
    """A client with all that its calls need, made before it closes."""

    client: AsyncClient
    ref: Any
    data: Any
    outbox: ClientOutbox
    unopened: ClientOutbox
    queue: ClientQueue[str]
    work: Work[str]


async def first(items: AsyncIterator[Any]) -> Any:
    return await anext(items)


async def opened(outbox: ClientOutbox) -> None:
    async with outbox:
        pass


ENTITIES: dict[str, Callable[[Uses], Any]] = {
    "tell": lambda use: use.client.tell("page", "a", 1),
    "tell of a class": lambda use: use.client.tell(Page, "a", 1),
    "tell_nowait": lambda use: use.client.tell_nowait("page", "a", 1),
    "tell_many": lambda use: use.client.tell_many("page", [("a", 1)]),
    "cast": lambda use: use.client.cast("page", "a", "add", 1),
    "ref.tell": lambda use: use.ref.add.tell(1),
    "ref.tell_nowait": lambda use: use.ref.add.tell_nowait(1),
    "flush": lambda use: use.client.flush(),
}
"""Calls that a client has done, or given up, when it is closed."""
ASKS: dict[str, Callable[[Uses], Any]] = {
    "ask": lambda use: use.client.ask("page", "a", 1),
    "call": lambda use: use.client.call("page", "a", "add", 1),
    "start_entity": lambda use: use.client.start_entity("page", "a"),
    "tell with ack": lambda use: use.client.tell("page", "a", "add", 1, ack=True),
    "ref": lambda use: use.ref.add(1),
    "ref.deliver": lambda use: use.ref.add.deliver(1),
    "ref.deliver_nowait": lambda use: use.ref.add.deliver_nowait(1),
    "ref.ask with a key": lambda use: use.ref.add.ask(1, key="one"),
    "stored": lambda use: first(use.client.stored("page")),
    "for_each": lambda use: use.client.for_each("page", "add"),
    "queue.put": lambda use: use.queue.put("a"),
    "queue.put_many": lambda use: use.queue.put_many(["a", "b"]),
    "queue.pull": lambda use: use.queue.pull(),
    "queue.work": lambda use: first(use.queue.work()),
    "queue.run": lambda use: use.queue.run(print),
    "queue.confirm": lambda use: use.queue.confirm([1]),
    "work.confirm": lambda use: use.work.confirm(),
    "work.extend": lambda use: use.work.extend(),
    "work.release": lambda use: use.work.release(),
}
VALUES: dict[str, Callable[[Uses], Any]] = {
    "data.get": lambda use: use.data.get("a"),
    "data.put": lambda use: use.data.put("a", 1),
    "data.update": lambda use: use.data.update("a", Counter, lambda count: count.add(1)),
    "data.delete": lambda use: use.data.delete("a"),
    "data.keys": lambda use: use.data.keys(),
}
ITERATIONS: dict[str, Callable[[Uses], Any]] = {
    "data.watch": lambda use: first(use.data.watch("a")),
}
OUTBOXES: dict[str, Callable[[Uses], Any]] = {
    "opening of an outbox": lambda use: opened(use.unopened),
    "opening of a new outbox": lambda use: opened(use.client.outbox("new")),
}
SENDS: dict[str, Callable[[Uses], Any]] = {
    "outbox.send": lambda use: use.outbox.send(use.ref.add, 1),
}


WAITING = {**ASKS, **VALUES, **OUTBOXES, **SENDS}
ALL = {**ENTITIES, **ITERATIONS, **WAITING}
CLOSED = ("the client is closed", "this process delivers nothing any more: it ends")


@pytest.fixture
async def use(nodes: Nodes) -> AsyncIterator[Uses]:
    [node] = await nodes.cluster(bus, 1)
    client = await nodes.client(node)
    ref = client.ref(Page, "a")
    assert await ref.add(1) == 1
    queue = client.queue(Jobs, "main")
    await queue.put("a")
    [work] = await queue.pull()
    async with client.outbox("orders") as outbox:
        yield Uses(client, ref, client.data, outbox, client.outbox("later"), queue, work)


async def outcome(call: Callable[[Uses], Any], use: Uses) -> Any:
    result = call(use)
    return await result if result is not None else None


@pytest.mark.parametrize("name", ALL)
async def test_a_call_of_a_closed_client(use: Uses, name: str) -> None:
    await use.client.close()
    call = ALL[name]
    with pytest.raises((LocalProtocolError, DeliveryFailed)) as closed:
        await outcome(call, use)
    if name in (*SENDS, "opening of an outbox"):
        assert isinstance(closed.value, DeliveryFailed)
        assert (closed.value.reason, closed.value.definite) == ("closed", True)
    else:
        assert closed.value.message in CLOSED


async def test_a_closed_client_and_its_outboxes_may_be_closed_again(use: Uses) -> None:
    await use.client.close()
    await use.client.close()
    await use.outbox.close()
    await use.unopened.close()


@pytest.mark.parametrize("name", WAITING)
async def test_a_call_under_way_when_the_client_closes(use: Uses, name: str) -> None:
    """The loop has hardly read an answer when the client has closed."""
    call = WAITING[name]
    waiting = asyncio.ensure_future(outcome(call, use))
    closing = asyncio.ensure_future(use.client.close())
    await asyncio.sleep(0)
    closing.cancel()  # it does not wait for acknowledgements then
    await asyncio.wait({closing})
    [error] = await asyncio.gather(waiting, return_exceptions=True)
    if isinstance(error, BaseException):
        assert isinstance(error, StoreUnavailable if name in VALUES else RequestError)
    else:
        assert name in ASKS
    if name in (*OUTBOXES, *SENDS):
        assert isinstance(error, DeliveryFailed)
        assert error.reason == "closed"


@pytest.mark.parametrize("name", WAITING)
async def test_a_call_that_is_cancelled(use: Uses, name: str) -> None:
    call = WAITING[name]
    waiting = asyncio.ensure_future(outcome(call, use))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await use.ref.add(2) == 2


async def test_an_outbox_that_was_not_opened_takes_nothing(use: Uses) -> None:
    with pytest.raises(LocalProtocolError, match="the outbox is not open; use it in `async with`"):
        await use.client.outbox("closed").send(use.ref.add, 1)


async def test_an_outbox_that_is_closed_while_it_opens(use: Uses) -> None:
    opening = asyncio.ensure_future(opened(use.unopened))
    await asyncio.sleep(0)
    await use.unopened.close()
    with pytest.raises(DeliveryFailed) as failed:
        await opening
    assert (failed.value.reason, failed.value.definite) == ("closed", True)
    async with use.client.outbox("later") as next_one:
        await next_one.send(use.ref.add, 1)


BLOCKING: dict[str, Callable[[Client, Any, Any], Any]] = {
    "tell": lambda client, ref, queue: client.tell("page", "a", 1),
    "tell_nowait": lambda client, ref, queue: client.tell_nowait("page", "a", 1),
    "tell_many": lambda client, ref, queue: client.tell_many("page", [("a", 1)]),
    "ask": lambda client, ref, queue: client.ask("page", "a", 1),
    "call": lambda client, ref, queue: client.call("page", "a", "add", 1),
    "cast": lambda client, ref, queue: client.cast("page", "a", "add", 1),
    "ref": lambda client, ref, queue: ref.add(1),
    "ref.tell": lambda client, ref, queue: ref.add.tell(1),
    "ref.deliver": lambda client, ref, queue: ref.add.deliver(1),
    "ref.ask with a key": lambda client, ref, queue: ref.add.ask(1, key="one"),
    "stored": lambda client, ref, queue: next(iter(client.stored("page"))),
    "for_each": lambda client, ref, queue: client.for_each("page", "add"),
    "flush": lambda client, ref, queue: client.flush(),
    "data.get": lambda client, ref, queue: client.data.get("a"),
    "data.put": lambda client, ref, queue: client.data.put("a", 1),
    "data.keys": lambda client, ref, queue: client.data.keys(),
    "data.watch": lambda client, ref, queue: next(iter(client.data.watch("a"))),
    "opening of an outbox": lambda client, ref, queue: client.outbox("new").__enter__(),
    "queue": lambda client, ref, queue: client.queue(Jobs, "other"),
    "queue.put": lambda client, ref, queue: queue.put("a"),
    "queue.work": lambda client, ref, queue: next(iter(queue.work())),
}


async def test_every_call_of_a_closed_blocking_client(nodes: Nodes) -> None:
    [node] = await nodes.cluster(bus, 1)

    def use() -> dict[str, str]:
        errors = {}
        with blocking_client(node) as client:
            ref, queue = client.ref(Page, "a"), client.queue(Jobs, "main")
            assert ref.add(1) == 1
            queue.put("a")
        for name, call in BLOCKING.items():
            with pytest.raises(LocalProtocolError) as closed:
                call(client, ref, queue)
            errors[name] = closed.value.message
        return errors

    errors = await asyncio.to_thread(use)
    assert errors == dict.fromkeys(BLOCKING, "the client is closed")
