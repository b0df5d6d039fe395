"""Whether a handler has begun, over real sockets: the host reports it to the asker, also where the
message has moved to another node meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.errors import (
    EntityFailed,
    MailboxFull,
    RequestError,
    SchemaError,
    StateUnreadable,
    Unhandled,
)
from shardbus.node import shutdown
from tests.loopback.nodes import Nodes, blocking_client, hosts
from tests.waiting import until

BOUND = 5


@dataclass
class Kept:
    n: int = 0
    lost: ClassVar[bool] = False
    """From now on no stored state can be read."""

    def __post_init__(self) -> None:
        if Kept.lost:
            raise ValueError("of a newer build")


class Job(Entity):
    state: Kept
    begun: ClassVar[int] = 0

    @handler
    async def begin(self) -> int:
        await self.save()
        return Job.begun

    @handler
    async def inner(self) -> object:
        Job.begun += 1
        other: Any = self.context.ref(Job, self.context.entity_id + "-other")
        return await other.ask({"no": "receive"})

    @handler
    def stash(self) -> int:
        Job.begun += 1
        self.context.stash()
        return 0

    @handler
    def misfit(self) -> int:
        Job.begun += 1
        answer: Any = "no int"
        return answer


class Declines(Entity):
    def receive(self, message: object) -> object:
        Job.begun += 1
        return self.unhandled(message)


def application() -> ShardBus:
    bus = ShardBus("shop")
    Job.begun, Kept.lost = 0, False
    bus.entity("job", shards=1, mailbox=BOUND)(Job)
    bus.entity("declines", shards=1)(Declines)
    return bus


async def failed(ask: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        await ask
    return raised.value


async def test_no_error_of_a_handler_that_has_begun_is_definite(nodes: Nodes) -> None:
    await nodes.cluster(application(), 2)
    client = await nodes.client()
    job: Any = client.ref(Job, "a")
    for number, (call, cls) in enumerate(
        [
            (job.inner, EntityFailed),
            (job.misfit, SchemaError),
            (lambda: client.ask("declines", "a", 7), Unhandled),
        ],
        1,
    ):
        error = await failed(call())
        assert type(error) is cls
        assert not error.definite
        assert Job.begun == number
    for call in (
        lambda: client.ask("job", "a", {"no": "receive"}),
        lambda: client.call("job", "a", "stash", 7),
    ):
        assert (await failed(call())).definite
        assert Job.begun == 3


async def test_a_blocking_client_learns_it_too(nodes: Nodes) -> None:
    [node] = await nodes.cluster(application(), 1)

    def definite(entity_type: str) -> bool:
        with blocking_client(node) as client, pytest.raises(Unhandled) as raised:
            client.ask(entity_type, "a", 7)
        return raised.value.definite

    assert not await asyncio.to_thread(definite, "declines")
    assert await asyncio.to_thread(definite, "job")


async def test_as_many_asks_began_as_are_not_definite(nodes: Nodes) -> None:
    await nodes.cluster(application(), 2)
    client = await nodes.client()
    job: Any = client.ref(Job, "a")
    assert await job.begin() == 0
    asks = [asyncio.ensure_future(job.stash()) for _ in range(3 * BOUND)]
    await until(lambda: sum(ask.done() for ask in asks) == 2 * BOUND, "the refusals")
    errors = [await failed(ask) for ask in asks if ask.done()]
    assert {type(error) for error in errors} == {MailboxFull}
    assert sum(error.definite for error in errors) == len(asks) - Job.begun


async def test_what_was_put_aside_is_not_definite_at_its_next_home_either(nodes: Nodes) -> None:
    first = await nodes.start(application())
    await first.ref("job", "a").begin()
    second = await nodes.start(application())
    await nodes.agree(2)
    client = await nodes.client(second)
    assert hosts(nodes.all, "job") == {"0": [first]}
    asks = [asyncio.ensure_future(ref.stash()) for ref in (second.ref("job", "a"),)]
    asks += [asyncio.ensure_future(client.ask("job", "a", "stash"))]
    await until(lambda: Job.begun == 2, "the handlers")
    Kept.lost = True
    await shutdown.leave(first, lambda text: None)
    for ask in asks:
        error = await failed(ask)
        assert isinstance(error, StateUnreadable)
        assert not error.definite, "its handler has begun at the first home"
    fresh = await failed(client.ask("job", "a", "stash"))
    assert isinstance(fresh, StateUnreadable)
    assert fresh.definite
    assert Job.begun == 2
