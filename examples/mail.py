"""Mails that workers send: a queue of work, which loses nothing though nodes and workers die.

    shardbus dev examples/mail.py
    python -m examples.mail work tcp://127.0.0.1:7355
    python -m examples.mail put tcp://127.0.0.1:7355 20

Start as many workers as you like, and end some of them: their mails go to others. Those to `ghost`
always fail: they are tried three times, and set aside.

    shardbus queue show mail main
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import dataclass

from shardbus import AsyncClient, ShardBus
from shardbus.delivery import WorkQueue

bus = ShardBus("mail")


@dataclass(frozen=True)
class Mail:
    to: str
    text: str


@bus.entity(name="mail")
class Outgoing(WorkQueue[Mail]):
    """Mails to send. A worker has one for at most ten seconds."""

    lease = 10.0
    attempts = 3


async def send(mail: Mail) -> None:
    """Send a mail. This one only pretends."""
    await asyncio.sleep(0.1)
    if mail.to == "ghost":
        raise ValueError("there is no such address")
    print(f"sent to {mail.to}: {mail.text}", flush=True)


async def put(address: str, count: int) -> None:
    """Put mails into the queue; the tenth is to `ghost`."""
    async with AsyncClient(address, cluster=bus.name) as client:
        queue = client.queue(Outgoing, "main")
        for n in range(1, count + 1):
            to = f"user-{n}" if n % 10 else "ghost"
            await queue.put(Mail(to, f"hello, this is mail {n}"))
    print(f"{count} mails are in the queue")


async def work(address: str) -> None:
    """Send mails, two at a time, until Ctrl-C."""
    async with AsyncClient(address, cluster=bus.name) as client:
        await client.queue(Outgoing, "main").run(send, at_once=2)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        match sys.argv[1:]:
            case ["put", address, count]:
                asyncio.run(put(address, int(count)))
            case ["work", address]:
                asyncio.run(work(address))
            case _:
                sys.exit("usage: python -m examples.mail put ADDRESS COUNT | work ADDRESS")
