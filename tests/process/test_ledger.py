"""Every message is written down where it is handled and compared with the sent messages, while
nodes join, leave and die.

    graceful   nothing is lost, reordered, repeated; every ask is answered
    kill       an ask is handled at most once, an answered one exactly once, one that was refused
               for certain never; handled messages keep their order; no two activations overlap
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from shardbus import AsyncClient, RequestError
from tests.process.app import RECORD, Page
from tests.process.nodes import Processes
from tests.waiting import PATIENCE_S, until

PAGES = 120
TELL, ASK = 1, 2


class Producer:
    """Sends numbered messages to every page, round after round, and keeps the outcomes of asks."""

    def __init__(self, client: AsyncClient, number: int) -> None:
        self.client, self.number = client, number
        self.rounds = 0
        self.outcomes: dict[tuple[int, int], str] = {}
        self.closing = False
        self._asks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        refs = [self.client.ref(Page, f"page-{i}") for i in range(PAGES)]
        while not self.closing:
            self.rounds += 1
            for page, ref in enumerate(refs):
                if self.number == TELL:
                    await ref.hit.tell(TELL, self.rounds)
                else:
                    task = asyncio.ensure_future(self._ask(page, ref, self.rounds))
                    self._asks.add(task)
                    task.add_done_callback(self._asks.discard)
            await asyncio.sleep(0.05)
        await asyncio.gather(*self._asks)
        await self.client.flush()

    async def _ask(self, page: int, ref: Page, seq: int) -> None:
        try:
            await ref.hit(ASK, seq)
            self.outcomes[page, seq] = "ok"
        except RequestError as e:
            self.outcomes[page, seq] = "refused" if e.definite else "unsure"


class Ledger:
    """The records of entities."""

    def __init__(self, folder: Path) -> None:
        rows: list[tuple[int, ...]] = []
        for path in folder.glob("ledger-*"):
            data = path.read_bytes()
            rows += RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size])
        rows.sort(key=lambda row: row[4])
        self.handled: dict[tuple[int, int], list[int]] = defaultdict(list)
        """(page, producer) to the sequence numbers in the order of time."""
        self.spans: dict[int, dict[int, list[int]]] = defaultdict(dict)
        """Page to activation to its first and last record."""
        self.busy: dict[int, dict[int, list[int]]] = defaultdict(dict)
        """The same without the records of stops: records of a node that ends come late."""
        for page, producer, seq, activation, ns in rows:
            self.spans[page].setdefault(activation, [ns, ns])[1] = ns
            if seq != -1:
                self.busy[page].setdefault(activation, [ns, ns])[1] = ns
            if producer:
                self.handled[page, producer].append(seq)

    @property
    def reordered(self) -> list[tuple[int, int]]:
        return [who for who, seqs in self.handled.items() if seqs != sorted(seqs)]

    @property
    def repeated(self) -> list[tuple[int, int]]:
        return [who for who, seqs in self.handled.items() if len(seqs) != len(set(seqs))]

    @property
    def overlaps(self) -> list[int]:
        """Pages of which two activations were alive at once."""
        pages = []
        for page, activations in self.spans.items():
            spans = sorted(activations.values())
            pages += [page for a, b in pairwise(spans) if b[0] < a[1]]
        return pages

    def total(self, producer: int) -> int:
        return sum(len(set(s)) for (_, who), s in self.handled.items() if who == producer)


class Load:
    """Both producers, each with a client of its own."""

    def __init__(self, *clients: AsyncClient) -> None:
        self.producers = [Producer(c, n) for n, c in enumerate(clients, 1)]
        self.work = [asyncio.ensure_future(p.run()) for p in self.producers]

    async def rounds(self, count: int) -> None:
        """Wait until each producer has sent so many more rounds."""
        goals = [p.rounds + count for p in self.producers]

        def reached() -> bool:
            for task in self.work:
                if task.done():
                    task.result()
            return all(p.rounds >= g for p, g in zip(self.producers, goals, strict=True))

        await until(reached, f"{count} rounds")

    async def end(self) -> None:
        for producer in self.producers:
            producer.closing = True
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self.work)

    def assert_exact(self, ledger: Ledger) -> None:
        """Every message was handled once and in order, one activation of a page at a time."""
        tells, asks = self.producers
        assert Counter(asks.outcomes.values()) == {"ok": asks.rounds * PAGES}
        assert (ledger.reordered, ledger.repeated, ledger.overlaps) == ([], [], [])
        for page in range(PAGES):
            assert ledger.handled[page, TELL] == list(range(1, tells.rounds + 1)), page
            assert ledger.handled[page, ASK] == list(range(1, asks.rounds + 1)), page


async def test_B85_a_limit_set_by_command_under_load_loses_and_reorders_nothing(
    lab: Processes,
) -> None:
    """Two nodes keep few of the pages that everybody uses all the time, and one of them leaves."""
    nodes = await lab.cluster(2, settings=("http.write=true", "http.token=sesame-sesame-16"))
    async with lab.client() as a, lab.client() as b:
        load = Load(a, b)
        await load.rounds(5)
        url = f"http://127.0.0.1:{nodes[0].http_port}"
        words = ("limit", "page", "10", "--json", "--node", url)
        command = lab.run(*words, SHARDBUS_NODE_TOKEN="sesame-sesame-16")
        assert await command.ended() == 0
        answer = json.loads(command.out.read_text())
        limits = {row["node"].split("#")[0]: row["limit"] for row in answer["nodes"]}
        assert limits == {node.address: 10 for node in nodes}
        await load.rounds(20)
        assert await nodes[1].terminate() == 0
        await load.rounds(10)
        await load.end()
        tells, asks = load.producers
        assert a.lost_messages == 0

    async def settled() -> bool:
        page = await nodes[0].page("/v1/limit/page")
        rows = [(row["entities"], row["evicted"] > PAGES) for row in page["nodes"]] if page else []
        return rows == [(10, True)]

    await until(settled, "ten pages in memory")
    ledger = Ledger(lab.folder)
    assert (ledger.reordered, ledger.repeated, ledger.overlaps) == ([], [], [])
    assert ledger.total(TELL) == tells.rounds * PAGES
    assert ledger.total(ASK) == asks.rounds * PAGES
    assert set(asks.outcomes.values()) == {"ok"}


@pytest.mark.long
@pytest.mark.parametrize("homes", ["ask", "gossip"])
async def test_joining_and_leaving_lose_and_reorder_nothing(
    lab: Processes, redis_url: str, homes: str
) -> None:
    lab.store, learns = redis_url, (f"sharding.homes={homes}",)
    await lab.cluster(3, settings=learns)
    async with lab.client() as a, lab.client() as b:
        load = Load(a, b)
        await load.rounds(10)
        for _ in range(3):
            await lab.start(settings=learns)
            await load.rounds(10)
            assert await lab.live[0].terminate() == 0
            await load.rounds(10)
        await load.end()
        assert a.lost_messages == 0
    for node in lab.live:
        await until(node.accounts, f"the account of {node.name}")
        assert await node.terminate() == 0
    load.assert_exact(Ledger(lab.folder))


@pytest.mark.long
@pytest.mark.parametrize(("store_kind", "homes"), [("redis", "ask"), ("sqlite", "gossip")])
async def test_kills_cost_what_the_dead_had_and_nothing_else(
    lab: Processes, store_kind: str, homes: str, request: pytest.FixtureRequest
) -> None:
    if store_kind == "redis":
        lab.store = request.getfixturevalue("redis_url")
    learns = (f"sharding.homes={homes}",)
    await lab.cluster(3, settings=learns)
    async with lab.client() as a, lab.client() as b:
        load = Load(a, b)
        await load.rounds(10)
        for victim in (0, 1):
            lab.live[victim].kill()
            await load.rounds(10)
            await lab.start(settings=learns)
            await load.rounds(20)
        await load.end()
    for node in lab.live:
        await until(node.accounts, f"the account of {node.name}")
    tells, asks = load.producers
    ledger = Ledger(lab.folder)
    assert (ledger.reordered, ledger.repeated, ledger.overlaps) == ([], [], [])
    for (page, seq), outcome in asks.outcomes.items():
        count = ledger.handled[page, ASK].count(seq)
        counts = {"ok": (1,), "refused": (0,), "unsure": (0, 1)}[outcome]
        assert count in counts, f"page {page} ask {seq} was {outcome}, handled {count} times"
    assert len(asks.outcomes) == asks.rounds * PAGES
    last = asks.rounds
    assert all(asks.outcomes[page, last] == "ok" for page in range(PAGES))
    assert 0 < ledger.total(TELL) <= tells.rounds * PAGES
