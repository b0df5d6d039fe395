"""An application whose handlers call functions that end a process, or the loop of one."""

from __future__ import annotations

import asyncio
import os
import sys

from shardbus import Entity, ShardBus, handler

bus = ShardBus("lab")
tasks: set[asyncio.Task[None]] = set()


async def leave(code: int) -> None:
    await asyncio.sleep(0)
    sys.exit(code)


@bus.entity("job", shards=8)
class Job(Entity):
    @handler
    def hit(self) -> int:
        return os.getpid()

    @handler
    def exits(self, code: int) -> None:
        sys.exit(code)

    @handler
    async def interrupts(self) -> None:
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    @handler(thread=True)
    def exits_in_a_thread(self, code: int) -> None:
        sys.exit(code)

    @handler
    async def exits_in_a_group(self, code: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(leave(code))

    @handler
    def leaves_a_task(self, code: int) -> None:
        task = asyncio.create_task(leave(code))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    @handler
    def stops_the_loop(self) -> None:
        asyncio.get_running_loop().stop()

    @handler
    def dies(self, code: int) -> None:
        os._exit(code)
