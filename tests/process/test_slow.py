"""One command names the cause of each of five faults, planted in three real nodes, with the output
that a page shows."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbus import AsyncClient
from tests.process.nodes import NodeProcess, Processes
from tests.process.terminal import Step, blocks, sessions
from tests.proxy import Proxy
from tests.redis_server import RedisServer
from tests.waiting import PATIENCE_S, until

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "slow.md"
RULES = ("cluster.downing.stable_after=60s", "cluster.suspend_after=1s")
VARIES = (
    (re.compile(r"because no consent of .*\): its"), "because NO CONSENT: its"),
    (re.compile(r"[\d.]+:\d+#[0-9a-f]+"), "NODE"),
    (re.compile(r"\S*/shop\.py:\d+"), "SHOP"),
    (re.compile(r"\d[\d.]* (us|ms|s)\b"), "SPAN"),
    (re.compile(r"\d+ messages? waits?"), "N messages wait"),
    (re.compile(r"\d[\d.]*"), "N"),
)
"""The parts that differ between two runs of the same fault."""


def shape(text: str) -> str:
    for pattern, word in VARIES:
        text = pattern.sub(word, text)
    return text


def shown() -> Iterator[tuple[list[str], str, list[str]]]:
    """The commands of the page, each with its cause and its output."""
    step: Step
    for [step] in sessions(PAGE.read_text(encoding="utf-8")):
        _, *words = step.command.split()
        yield words, step.output[0].partition(": ")[0].removeprefix("1. "), step.output


@contextlib.asynccontextmanager
async def repeated(
    work: Callable[[], Coroutine[Any, Any, object]], times: int = 1
) -> AsyncIterator[None]:
    """Do something again and again, several at a time."""

    async def forever() -> None:
        while True:
            await work()

    tasks = [asyncio.create_task(forever()) for _ in range(times)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended


class Faults:
    """Asks the command line about the entities of the page."""

    def __init__(self, lab: Processes) -> None:
        self.lab = lab
        self.left = {cause: (words, output) for words, cause, output in shown()}

    async def named(self, node: NodeProcess, cause: str, entity_id: str = "") -> None:
        """Wait until the command prints for this node the page's cause."""
        words, expected = self.left.pop(cause)
        command, entity_type, shown_id = words
        subject = (entity_type, entity_id or shown_id)
        printed: list[str] = []

        async def shows_cause() -> bool:
            page = await node.page(f"/v1/explain/{'/'.join(subject)}")
            if not page or not page["causes"]:
                return False
            printed[:] = [page["causes"][0]["cause"], page["causes"][0]["text"]]
            if page["causes"][0]["cause"].replace("_", " ") != cause:
                return False
            url = f"http://127.0.0.1:{node.http_port}"
            run = self.lab.run(command, *subject, "--node", url)
            if await run.ended():  # a loop that is late may answer later than a command waits
                return False
            printed[:] = run.out.read_text().splitlines()[: len(expected)]
            return [*map(shape, printed)] == [*map(shape, expected)]

        try:
            await until(shows_cause, f"{cause}, as the page has it")
        except AssertionError as e:
            raise AssertionError(f"{e}; printed: {printed}") from None


async def homes(node: NodeProcess, count: int = 200) -> dict[str, str]:
    """A page of each node, by the node's address."""
    by_home: dict[str, str] = {}
    for number in range(count):
        answer = await node.page(f"/v1/where/page/p-{number}")
        if answer and answer["node"]:
            by_home.setdefault(answer["node"].partition("#")[0], f"p-{number}")
    return by_home


@pytest.mark.long
async def test_N21_one_command_names_the_cause_of_five_faults(tmp_path: Path) -> None:
    [app, *_] = blocks(PAGE.read_text(encoding="utf-8"), "python")
    (tmp_path / "shop.py").write_text(app)
    with RedisServer(tmp_path / "redis") as server:
        proxy = Proxy(server.port)
        await proxy.start()
        lab = Processes(tmp_path, f"redis://127.0.0.1:{proxy.port}/0")
        try:
            await _plant(lab, proxy)
        except BaseException:
            print(lab.logs())
            raise
        finally:
            lab.close()
            await proxy.close()


async def _plant(lab: Processes, proxy: Proxy) -> None:
    first, second, third = nodes = await lab.cluster(3, app="shop.py", settings=RULES)
    faults = Faults(lab)
    addresses = [f"tcp://{node.address}" for node in nodes]
    async with AsyncClient(
        *addresses, cluster="shop", timeout=PATIENCE_S, connect_timeout=PATIENCE_S
    ) as client:

        async def price() -> None:
            await client.call("order", "o-1", "price")

        async with repeated(price, times=20):
            await faults.named(second, "slow handler")

        async def add() -> None:
            await client.call("cart", "c-1", "add")

        await add()
        proxy.delay = 0.15
        async with repeated(add, times=5):
            await faults.named(first, "slow store")
        proxy.delay = 0.0

        for method in ("wait", "price", "price", "price"):
            await client.cast("order", "o-2", method)
        await faults.named(third, "stuck mailbox")

        numbers = iter(range(10**9))

        async def hit() -> None:
            for _ in range(100):
                await client.cast("page", "p-1", "hit", next(numbers))
            await client.flush()

        async with repeated(hit, times=2):
            await faults.named(first, "hot shard")

        for number in range(200):
            await client.cast("page", f"p-{number}", "hit", 0)
        await client.flush()
        by_home = await homes(first)
        third.signal(signal.SIGSTOP)
        await faults.named(first, "unreachable", by_home[third.address])
        second.signal(signal.SIGSTOP)
        await faults.named(first, "suspended", by_home[first.address])
        for node in (second, third):
            node.signal(signal.SIGCONT)
    assert not faults.left, "the page shows causes that no fault was planted for"
