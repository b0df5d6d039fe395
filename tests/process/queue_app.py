"""A queue of work, and the worker of a test, which writes down each item."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from shardbus import AsyncClient, ShardBus
from shardbus.delivery import WorkQueue

bus = ShardBus("lab")


@bus.entity(name="jobs", shards=10)
class Jobs(WorkQueue[str]):
    lease = 4.0
    limit = 60


WORKER = "from tests.process.queue_app import work; work()"


def work() -> None:
    """Work on items of the queue `a`. Write `begins JOB TIME` and, once it is confirmed, `done JOB
    TIME`, to a file. The arguments are the file and addresses of nodes."""
    asyncio.run(_work(Path(sys.argv[1]), *sys.argv[2:]))


async def _work(record: Path, *addresses: str) -> None:
    with record.open("w", buffering=1) as lines:
        async with AsyncClient(*addresses, cluster="lab") as client:
            async for item in client.queue(Jobs, "a").work():
                lines.write(f"begins {item.value} {time.monotonic_ns()}\n")
                async with item:
                    await asyncio.sleep(0.005)
                lines.write(f"done {item.value} {time.monotonic_ns()}\n")
