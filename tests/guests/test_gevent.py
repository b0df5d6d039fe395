"""gevent: a patched program uses the blocking client, and so does a pool of threads."""

from __future__ import annotations

import asyncio
import sys
from typing import ClassVar

import pytest

from shardbus import Entity, ShardBus, handler
from tests.guests.nodes import served

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

bus = ShardBus("green")

PROGRAM = """
import sys
from gevent import monkey
if sys.argv[2] == "patched":
    monkey.patch_all()
import gevent
from gevent.threadpool import ThreadPool
from shardbus import Client

with Client(sys.argv[1], cluster="green", timeout=60, connect_timeout=60) as client:
    spawn = gevent.spawn if sys.argv[2] == "patched" else ThreadPool(8).spawn
    asks = [spawn(client.call, "door", f"d{n}", "passes") for n in range(5)]
    gevent.sleep(0)
    opens = spawn(client.call, "door", "key", "opens")
    print(sorted(ask.get() for ask in asks), opens.get())
"""


@bus.entity("door", shards=8)
class Door(Entity):
    is_open: ClassVar[asyncio.Event]

    @handler
    async def passes(self) -> str:
        await self.is_open.wait()
        return self.context.entity_id

    @handler
    def opens(self) -> str:
        self.is_open.set()
        return "open"


@pytest.mark.parametrize("how", ["patched", "threads"])
async def test_greenlets_go_on_while_an_ask_waits(how: str) -> None:
    """The asks are answered only once another greenlet of the program has opened the door."""
    async with served(bus) as client:
        Door.is_open = asyncio.Event()
        address = f"tcp://{client.contact.address}"  # type: ignore[union-attr]
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, address, how), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await program.communicate()
        Door.is_open.set()
    assert out.decode().strip() == "['d0', 'd1', 'd2', 'd3', 'd4'] open"
