"""Every event loop: asyncio's, in debug mode, with eager tasks, and uvloop."""

from __future__ import annotations

import asyncio
import gc
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from shardbus import AskTimeout, Client, Entity, EntityFailed, ShardBus, handler
from tests.guests.loops import LOOPS
from tests.guests.nodes import served
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.every_loop

bus = ShardBus("loops")


@dataclass
class Total:
    value: int = 0


@bus.entity("tally", shards=8)
class Tally(Entity):
    """Does in its handlers the work of users' handlers."""

    state: Total
    free: ClassVar[asyncio.Event]
    """Set by a test that lets `stands` end."""

    def __init__(self) -> None:
        self.fired = 0

    @handler
    def add(self, amount: int = 1) -> int:
        self.state.value += amount
        return self.state.value

    @handler
    async def keep(self, amount: int = 1) -> int:
        self.state.value += amount
        await self.save()
        return self.state.value

    @handler
    async def waits(self) -> str:
        """Wait for all that asyncio offers."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        await asyncio.sleep(0.0001)
        done = loop.create_future()
        loop.call_later(0.0001, done.set_result, "future")
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0, n)) for n in range(3)]
        sums = await asyncio.gather(*(asyncio.sleep(0, n) for n in range(3)))
        thread = await asyncio.to_thread(lambda: "thread")
        ran = await asyncio.create_subprocess_exec("true")
        return f"{await done} {[t.result() for t in tasks]} {sums} {thread} {await ran.wait()}"

    @handler
    async def late(self) -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return "never"

    @handler
    async def stands(self) -> None:
        await self.free.wait()

    @handler(thread=True)
    def blocks(self) -> str:
        return "thread"

    @handler
    async def through(self, other: str) -> int:
        return await self.context.ref(Tally, other).add(2)

    @handler
    async def fails(self) -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    @handler
    def fire_soon(self) -> None:
        for _ in range(40):
            self.context.schedule_once(0, "fire")
            self.context.schedule_once(0.0001, "fire")

    @handler
    def fire(self) -> None:
        self.fired += 1

    @handler
    def shots(self) -> int:
        return self.fired


async def test_the_first_ask_of_each_entity_is_answered() -> None:
    async with served(bus) as client:
        assert [await client.ref(Tally, f"a{n}").add() for n in range(100)] == [1] * 100
        answers = await client.ask_many("tally", [(f"b{n}", "shots") for n in range(100)])
        assert answers == [0] * 100


async def test_messages_keep_their_order_and_are_acknowledged() -> None:
    async with served(bus) as client:
        tally = client.ref(Tally, "a")
        for n in range(2000):
            await tally.add.tell(n)
        await client.flush()
        assert await tally.add(0) == sum(range(2000))


async def test_a_handler_waits_for_whatever_asyncio_has() -> None:
    async with served(bus) as client:
        tally = client.ref(Tally, "a")
        assert await tally.waits() == "future [0, 1, 2] [0, 1, 2] thread 0"
        assert await tally.late() == "late"
        assert await tally.blocks() == "thread"
        assert await tally.through("b") == 2
        with pytest.raises(EntityFailed, match="no"):
            await tally.fails()
        assert await tally.add() == 1
        await tally.fire_soon()

        async def fired() -> bool:
            return await tally.shots() == 80

        await until(fired, "the timer")


async def test_an_ask_ends_by_its_deadline_or_with_its_caller() -> None:
    async with served(bus) as client:
        Tally.free = asyncio.Event()
        with pytest.raises(AskTimeout):
            await client.call("tally", "a", "stands", timeout=0.05)
        asking = asyncio.ensure_future(client.call("tally", "b", "stands"))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        Tally.free.set()
        assert await client.ref(Tally, "a").add() == 1
        assert await client.ref(Tally, "b").add() == 1


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_state_is_saved_and_loaded(kind: str, tmp_path: Path, redis_url: str) -> None:
    url = f"sqlite:///{tmp_path}/store.db" if kind == "sqlite" else redis_url
    for began in (0, 3):
        async with served(bus, store__url=url, store__timeout=PATIENCE_S) as client:
            saved = [client.ref(Tally, f"e{n}").keep(3) for n in range(20)]
            assert await asyncio.gather(*saved) == [began + 3] * 20


async def test_the_loop_reports_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a lost task nor, in debug mode, a call from a wrong thread."""
    with caplog.at_level(logging.ERROR):
        async with served(bus) as client:
            await asyncio.gather(*(client.ref(Tally, f"a{n}").waits() for n in range(5)))
        gc.collect()
        await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("name", LOOPS)
async def test_the_blocking_client_takes_the_loop_of_the_policy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(bus) as client:
        monkeypatch.setattr(asyncio, "new_event_loop", LOOPS[name])

        def use() -> list[int]:
            with Client(
                f"tcp://{client.contact.address}",
                cluster=bus.name,
                timeout=PATIENCE_S,
                connect_timeout=PATIENCE_S,
            ) as blocking:
                blocking.ref(Tally, "b").add.tell(5)
                return [blocking.ref(Tally, f"b{n}").add() for n in range(50)]

        assert await asyncio.to_thread(use) == [1] * 50
        assert await client.ref(Tally, "b").add() == 6
