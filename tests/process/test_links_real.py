"""Real nodes of which one is reached through a proxy that breaks its connections: from a client,
and from the other node. It listens on one port and advertises the proxy's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.markers import long_only
from tests.ports import free_port
from tests.process.app import Page
from tests.process.nodes import NodeProcess, Processes
from tests.process.test_ledger import Ledger
from tests.proxy import Proxy
from tests.waiting import until

PAGES = 60
ROUNDS = 60
DIRECT, ASKED, PASSED = 1, 2, 1000


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    proxy = Proxy(free_port(), seed=5)
    await proxy.start()
    yield proxy
    await proxy.close()


async def behind(lab: Processes, proxy: Proxy) -> NodeProcess:
    """Two nodes, the second behind the proxy."""
    await lab.start()
    node = lab.begin("--advertise", f"127.0.0.1:{proxy.port}", port=proxy.target)
    node.port = proxy.port
    await until(node.ready, "the ready line")
    await lab.agree()
    return node


def reset(proxy: Proxy) -> None:
    proxy.cut()


def truncated(proxy: Proxy) -> None:
    proxy.truncate(proxy.dice.randrange(1, 200))


def half_open(proxy: Proxy) -> None:
    proxy.half(far=False)


@pytest.mark.parametrize(
    "fault",
    [reset, *long_only(truncated, half_open)],
    ids=lambda f: f.__name__,
)
async def test_broken_connections_between_live_processes_lose_repeat_and_reorder_nothing(
    lab: Processes, proxy: Proxy, fault: Callable[[Proxy], None]
) -> None:
    node = await behind(lab, proxy)
    seen = 0
    async with lab.client(lab.all[0]) as client:
        refs = [client.ref(Page, f"page-{n}") for n in range(PAGES)]
        homes = await asyncio.gather(*(ref.where() for ref in refs))
        assert {home.split("#")[0] for home in homes} == {n.address for n in lab.all}
        asks = []
        for seq in range(1, ROUNDS + 1):
            for page, ref in enumerate(refs):
                await ref.hit.tell(DIRECT, seq)
                await ref.pass_on.tell((page + 1) % PAGES, PASSED + page, seq)
                asks.append(asyncio.ensure_future(ref.hit(ASKED, seq)))
            if seq % 3 == 0:
                await until(lambda: proxy.connections > seen, "a new connection")  # noqa: B023
                seen = proxy.connections
                fault(proxy)
        answers = await asyncio.gather(*asks)
        await client.flush()
        assert client.lost_messages == 0
    assert answers == [seq for seq in range(1, ROUNDS + 1) for _ in refs]
    expected = {(page, who): ROUNDS for page in range(PAGES) for who in (DIRECT, ASKED)}
    expected |= {((page + 1) % PAGES, PASSED + page): ROUNDS for page in range(PAGES)}
    await until(lambda: counts(lab.folder) == expected, "every message")
    ledger = Ledger(lab.folder)
    assert all(seqs == list(range(1, ROUNDS + 1)) for seqs in ledger.handled.values())
    await until(lambda: proxy.connections > 20, "a connection after the last fault")
    assert node.running


def counts(folder: Path) -> dict[tuple[int, int], int]:
    return {who: len(seqs) for who, seqs in Ledger(folder).handled.items()}
