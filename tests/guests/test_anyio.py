"""anyio in handlers and beside the client: the promises of its scopes for a task hold."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest
import sniffio

from shardbus import Entity, EntityFailed, ShardBus, handler
from tests.guests.nodes import served

bus = ShardBus("anyio")


@bus.entity("worker", shards=8)
class Worker(Entity):
    def __init__(self) -> None:
        self.seen: list[str] = []

    @handler
    async def moves_on(self) -> bool:
        with anyio.move_on_after(0.001) as scope:
            await anyio.sleep_forever()
        return scope.cancelled_caught

    @handler
    async def moves_on_late(self) -> bool:
        """Open the scope after the first wait."""
        await anyio.sleep(0)
        with anyio.move_on_after(0.001) as scope:
            await anyio.sleep_forever()
        await anyio.sleep(0)
        return scope.cancelled_caught

    @handler
    async def fails_after(self) -> None:
        with anyio.fail_after(0.001):
            await anyio.sleep_forever()

    @handler
    async def nested(self) -> list[bool]:
        with anyio.move_on_after(60) as outer:
            with anyio.move_on_after(0.001) as inner:
                await anyio.sleep_forever()
            await anyio.sleep(0.001)
        return [outer.cancelled_caught, inner.cancelled_caught]

    @handler
    async def group(self) -> list[int]:
        results: list[int] = []
        turn = [anyio.Event() for _ in range(4)]

        async def put(n: int) -> None:
            await turn[n + 1].wait()
            results.append(n)
            turn[n].set()

        async with anyio.create_task_group() as group:
            for n in range(3):
                group.start_soon(put, n)
            turn[3].set()
        return results

    @handler
    async def group_fails(self) -> None:
        async def fail() -> None:
            raise ValueError("child")

        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            group.start_soon(fail)

    @handler
    async def group_is_cancelled(self) -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            await anyio.sleep(0)
            group.cancel_scope.cancel()
            await anyio.sleep_forever()
        return "left"

    @handler
    async def streams(self) -> list[int]:
        send, receive = anyio.create_memory_object_stream[int](0)

        async def produce() -> None:
            async with send:
                for n in range(3):
                    await send.send(n)

        async with anyio.create_task_group() as group:
            group.start_soon(produce)
            async with receive:
                return [n async for n in receive]

    @handler
    async def started(self) -> str:
        async def serve(*, task_status: anyio.abc.TaskStatus[str]) -> None:
            task_status.started("up")
            await anyio.sleep_forever()

        async with anyio.create_task_group() as group:
            said = await group.start(serve)
            group.cancel_scope.cancel()
        return said

    @handler
    async def shielded(self) -> list[str]:
        said = []
        with anyio.move_on_after(0.001):
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.002)
                    said.append("cleaned up")
        return said

    @handler
    async def thread(self) -> str:
        def ask_back() -> str:
            return anyio.from_thread.run(self.name)

        return await anyio.to_thread.run_sync(ask_back)

    async def name(self) -> str:
        await anyio.sleep(0)
        return f"{self.context.entity_id} by {sniffio.current_async_library()}"

    @handler
    async def task_info(self) -> list[bool]:
        first = anyio.get_current_task()
        await anyio.sleep(0)
        second = anyio.get_current_task()
        return [first == second, first.has_pending_cancellation()]

    @handler
    async def locks(self) -> str:
        lock = anyio.Lock()
        async with lock:
            await anyio.sleep(0)
            assert lock.statistics().owner == anyio.get_current_task()
        return "free" if not lock.locked() else "held"

    @handler
    async def files(self, path: str) -> str:
        async with await anyio.open_file(path, "w") as file:
            await file.write("text")
        return await anyio.Path(path).read_text()


async def test_scopes_end_what_waits_and_nothing_else() -> None:
    async with served(bus) as client:
        worker = client.ref(Worker, "a")
        for _ in range(3):
            assert await worker.moves_on() is True
            assert await worker.moves_on_late() is True
            assert await worker.nested() == [False, True]
            assert await worker.shielded() == ["cleaned up"]
            with pytest.raises(EntityFailed, match="TimeoutError"):
                await worker.fails_after()


async def test_groups_of_tasks() -> None:
    async with served(bus) as client:
        worker = client.ref(Worker, "a")
        assert await worker.group() == [2, 1, 0]
        with pytest.raises(EntityFailed, match="unhandled errors in a TaskGroup"):
            await worker.group_fails()
        assert await worker.group_is_cancelled() == "left"
        assert await worker.streams() == [0, 1, 2]
        assert await worker.started() == "up"


async def test_threads_locks_and_files(tmp_path: object) -> None:
    async with served(bus) as client:
        worker = client.ref(Worker, "a")
        assert await worker.thread() == "a by asyncio"
        assert await worker.locks() == "free"
        assert await worker.files(f"{tmp_path}/file") == "text"


async def test_the_current_task_has_a_description() -> None:
    async with served(bus) as client:
        for n in range(3):
            assert await client.ref(Worker, f"w{n % 2}").task_info() == [True, False]


async def test_scopes_around_asks() -> None:
    async with served(bus) as client:
        worker = client.ref(Worker, "a")
        with anyio.move_on_after(0):
            await worker.group()
        results: list[object] = []

        async def ask(n: int) -> None:
            results.append(await client.ref(Worker, f"w{n}").moves_on())

        async def fail() -> None:
            await worker.fails_after()

        async with anyio.create_task_group() as group:
            for n in range(10):
                group.start_soon(ask, n)
        assert results == [True] * 10
        with pytest.raises(ExceptionGroup) as raised:
            async with anyio.create_task_group() as group:
                group.start_soon(fail)
        assert isinstance(raised.value.exceptions[0], EntityFailed)
