"""An application that configures its process when it is imported, as many do."""

from __future__ import annotations

import asyncio
import logging.config
import sys

from shardbus import Entity, ShardBus, handler

logging.config.dictConfig(
    {
        "version": 1,
        "handlers": {"own": {"class": "logging.StreamHandler", "formatter": "own"}},
        "formatters": {"own": {"format": "own: %(name)s: %(message)s"}},
        "root": {"handlers": ["own"], "level": "INFO"},
    }
)

if sys.version_info < (3, 14):

    class OtherLoops(asyncio.DefaultEventLoopPolicy):
        """As the policy of uvloop, whose loops watch child processes themselves."""

        def get_child_watcher(self) -> asyncio.AbstractChildWatcher:
            raise NotImplementedError

    asyncio.set_event_loop_policy(OtherLoops())

bus = ShardBus("lab")


@bus.entity("order", shards=8)
class Order(Entity):
    @handler
    async def label(self, text: str) -> str:
        printer = await asyncio.create_subprocess_exec("echo", text, stdout=-1)
        printed, _ = await printer.communicate()
        return printed.decode().strip()

    @handler
    def pay(self) -> None:
        raise ValueError("no money")
