"""Calls from another thread or another loop: each raises LocalProtocolError, and has no effect."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.client.asynchronous import AsyncClient
from shardbus.errors import LocalProtocolError
from shardbus.node.node import Node
from tests.loopback.nodes import Nodes

bus = ShardBus("loops")
effects: list[str] = []


@bus.entity("account", shards=4)
class Account(Entity):
    """Takes deliveries."""

    @handler
    async def add(self, why: str) -> int:
        effects.append(why)
        return 1

    async def receive(self, message: str) -> str:
        effects.append(message)
        return message


ACTS: dict[str, Callable[[Any], Any]] = {
    "ask": lambda own: own.context.ref(Account, "a").add("ask"),
    "tell": lambda own: own.context.ref(Account, "a").add.tell("tell"),
    "tell_nowait": lambda own: own.context.ref(Account, "a").add.tell_nowait("tell_nowait"),
    "ask of a reference": lambda own: own.account.add("ask"),
    "tell of a reference": lambda own: own.account.add.tell("tell"),
    "schedule_once": lambda own: own.context.schedule_once(0, "timer"),
    "schedule": lambda own: own.context.schedule(0.01, "timer"),
    "stop": lambda own: own.context.stop(),
    "passivate": lambda own: own.context.passivate(),
    "stash": lambda own: own.context.stash(),
    "set_idle_timeout": lambda own: own.context.set_idle_timeout(5),
}


@bus.entity("worker", shards=4)
class Worker(Entity):
    """Acts in a thread."""

    async def on_start(self) -> None:
        effects.append("start")
        self.account = self.context.ref(Account, "a")

    @handler(thread=True)
    def act(self, name: str) -> str:
        try:
            ACTS[name](self)
        except LocalProtocolError as error:
            return str(error)
        return "done"

    @handler
    def alive(self) -> bool:
        return True

    async def receive(self, message: str) -> None:
        effects.append(message)


CALLS: dict[str, Callable[[Any], Any]] = {
    "ask": lambda refs: refs.ref(Account, "a").add("ask"),
    "ask of a key": lambda refs: refs.ref(Account, "a").add.ask("key", key="k"),
    "tell": lambda refs: refs.ref(Account, "a").add.tell("tell"),
    "tell_nowait": lambda refs: refs.ref(Account, "a").add.tell_nowait("tell_nowait"),
    "deliver": lambda refs: refs.ref(Account, "a").add.deliver("deliver"),
    "deliver_nowait": lambda refs: refs.ref(Account, "a").add.deliver_nowait("deliver"),
}
BY_NAME: dict[str, Callable[[AsyncClient], Any]] = {
    "tell by name": lambda client: client.tell("account", "a", "hello"),
    "ask by name": lambda client: client.ask("account", "a", "hello"),
    "call by name": lambda client: client.call("account", "a", "add", "call"),
    "acknowledged tell": lambda client: client.tell("account", "a", "hello", ack=True),
    "a value": lambda client: client.data.put("key", 1),
    "stored ids": lambda client: anext(aiter(client.stored("account"))),
}


@pytest.fixture
async def node() -> AsyncIterator[tuple[Nodes, Node]]:
    async with Nodes() as nodes:
        yield nodes, await nodes.start(bus)
        effects.clear()


@pytest.mark.parametrize("act", ACTS)
async def test_a_handler_in_a_thread_cannot_send_or_act(node: tuple[Nodes, Node], act: str) -> None:
    client = await node[0].client()
    worker = client.ref(Worker, "w")
    await client.ref(Account, "a").add("begin")
    assert "belong to the event loop" in await worker.act(act)
    assert await worker.alive()
    assert await client.ref(Account, "a").add("end") == 1
    assert effects == ["begin", "start", "end"], "nothing was sent, and the entity runs on"


def in_its_own_loop(call: Callable[[], Any]) -> BaseException | None:
    """Make the call in a loop of this thread, await it, and return its error."""

    async def awaited() -> None:
        await call()

    try:
        asyncio.run(asyncio.wait_for(awaited(), 60))
    except Exception as error:
        return error
    return None


def without_loop(call: Callable[[], Any]) -> BaseException | None:
    """Make the call in this thread, which has no loop, and return its error."""
    try:
        call()
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize(
    ("call", "where"),
    [(call, in_its_own_loop) for call in (CALLS | BY_NAME)]
    + [(call, without_loop) for call in CALLS],
)
async def test_a_client_of_another_loop_sends_nothing(
    node: tuple[Nodes, Node], call: str, where: Callable[[Callable[[], Any]], Any]
) -> None:
    client = await node[0].client()
    await client.ref(Account, "a").add("begin")
    act = CALLS.get(call) or BY_NAME[call]
    error = await asyncio.to_thread(where, lambda: act(client))
    assert isinstance(error, LocalProtocolError), error
    assert "belong to the event loop" in str(error)
    assert await client.ref(Account, "a").add("end") == 1
    assert effects == ["begin", "end"]


async def test_an_ask_of_a_thread_does_not_join_those_that_wait_to_be_sent(
    node: tuple[Nodes, Node],
) -> None:
    client = await node[0].client()
    account = client.ref(Account, "a")
    await account.add("begin")
    answers = [account.add("first"), account.add("second")]
    errors: list[BaseException | None] = []
    thread = threading.Thread(
        target=lambda: errors.append(without_loop(lambda: account.add("third")))
    )
    thread.start()
    thread.join()  # in the same turn of the loop
    assert isinstance(errors[0], LocalProtocolError)
    assert await asyncio.gather(*answers) == [1, 1]
    assert effects == ["begin", "first", "second"]


async def test_a_class_is_not_used_for_the_first_time_in_another_loop(
    node: tuple[Nodes, Node],
) -> None:
    client = await node[0].client()
    for where in (in_its_own_loop, without_loop):
        error = await asyncio.to_thread(where, lambda: client.ref(Account, "a"))
        assert isinstance(error, LocalProtocolError), error
        assert "belong to the event loop" in str(error)
    assert await client.ref(Account, "a").add("here") == 1


OPENINGS: dict[str, Callable[[], Any]] = {
    "client": lambda: AsyncClient("tcp://127.0.0.1:1", cluster="loops").__aenter__(),
    "node": lambda: ShardBus("loops").run().start(),
}


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_client_and_a_node_need_the_loop_of_asyncio(opening: str) -> None:
    """As under trio, which runs coroutines in no loop of asyncio's."""
    coroutine = OPENINGS[opening]()
    with pytest.raises(LocalProtocolError, match="no event loop of asyncio runs here"):
        coroutine.send(None)
