"""An application that embeds its node, as a process of its own. Its settings are in the
environment. It prints a line each time the node is up, and ends when the node has ended by itself,
or at SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from tests.process.app import bus


@bus.on_member_up
def up() -> None:
    print("ready: an embedded node", flush=True)


async def main() -> str:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set_result, "left")
    async with bus.run(on_stopped=ended.set_result) as node:
        await ended
    return node.reason


def run() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    reason = asyncio.run(main())
    print(f"ended: {reason}", flush=True)
    raise SystemExit(0 if reason == "left" else 1)
