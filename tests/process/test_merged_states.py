"""States that instances share, on three real nodes with `cluster://`: saves on all of them at the
same time, one node killed, and a full stop and start."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from shardbus import NodeLost, ShardBusError
from tests.ports import free_block
from tests.process.nodes import NodeProcess, Processes
from tests.process.served_replicas import Served
from tests.waiting import until

pytestmark = pytest.mark.long

APP = "tests.process.merged_app:bus"
TOKEN = "sesame-sesame-16"
PAGES = [f"page-{n}" for n in range(6)]
VOTERS = [f"voter-{n}" for n in range(9)]


class Nodes:
    """Three nodes with replicas, which may be stopped and started again."""

    def __init__(self, lab: Processes) -> None:
        self.lab = lab
        self.ports = [free_block(4) for _ in range(3)]
        self.nodes: list[NodeProcess] = []

    async def start(self) -> None:
        self.nodes = [
            self.lab.begin(
                app=APP,
                port=port,
                seeds=[f"127.0.0.1:{each}" for each in self.ports],
                settings=(
                    f"node.gossip_port={port + 1}",
                    f"store.path={self.lab.folder}/replica-{port}",
                    "store.timeout=5s",
                    "http.write=true",
                    f"http.token={TOKEN}",
                ),
            )
            for port in self.ports
        ]
        await self.lab.agree(*self.nodes)

    @property
    def running(self) -> list[NodeProcess]:
        return [node for node in self.nodes if node.running]

    async def of_store(self, *words: str) -> str:
        """Run a command about states that reads the replicas. Returns all that it prints."""
        url = "cluster://" + ",".join(f"127.0.0.1:{port + 2}" for port in self.ports)
        run = self.lab.run("state", *words, "--store", url, "--cluster", "lab")
        code = await run.ended()
        return f"{run.out.read_text()}{run.err.read_text()}exit {code}"

    async def state(self, *words: str, code: int = 0) -> str:
        """Run a command about states that the first node carries out. Returns its output."""
        url = f"http://127.0.0.1:{self.running[0].http_port}"
        run = self.lab.run("state", *words, "--node", url, SHARDBUS_NODE_TOKEN=TOKEN)
        assert await run.ended() == code, run.err.read_text()
        return run.out.read_text().strip()


@pytest.fixture
def store() -> str:
    return "cluster://"


@pytest.fixture
def nodes(lab: Processes) -> Nodes:
    return Nodes(lab)


async def write(nodes: Nodes, acked: Counter[str], sent: Counter[str], times: int) -> None:
    """Let all pages be hit, and all voters vote, at all instances, many times."""
    async with nodes.lab.client(*nodes.running, timeout=30.0) as client:

        async def call(key: str, kind: str, entity_id: str, router: Any, *words: str) -> None:
            for _ in range(times):
                sent[key] += 1
                with suppress(ShardBusError, TimeoutError):
                    await client.to(*router).call(kind, entity_id, *words)
                    acked[key] += 1

        hits = [
            call(page, "hits", page, ("round-robin",), "hit") for page in PAGES for _ in range(3)
        ]
        votes = [call(voter, "poll", "p", ("random",), "vote", voter) for voter in VOTERS]
        await asyncio.gather(*hits, *votes)


async def totals(nodes: Nodes) -> dict[str, set[int]]:
    """The totals of each page, of all instances that are there. A node that has died is named as
    lost until its instance has another."""
    async with nodes.lab.client(*nodes.running, timeout=30.0) as client:
        answers = [await client.to("all").call("hits", page, "fresh_total") for page in PAGES]
    lost = [answer for each in answers for answer in each.values() if not isinstance(answer, int)]
    assert all(isinstance(error, NodeLost) for error in lost), lost
    shown = ({total for total in each.values() if isinstance(total, int)} for each in answers)
    return dict(zip(PAGES, shown, strict=True))


async def check_import(served: Served, lines: list[str]) -> None:
    """The lines of an export come out of another store as they went in."""
    for port in served.ports:
        served.start(port)
    await served.serving()
    file = served.folder / "states.jsonl"
    file.write_text("\n".join(lines))
    words = ("--store", served.url, "--cluster", "shop", "--app", APP)
    code, text = await served.run("state", "import", str(file), *words)
    assert code == 0, text
    assert f"{len(lines)} shared" in text
    code, text = await served.run("state", "export", "--all", *words)
    assert [line for line in text.splitlines() if line.startswith("{")] == lines


@pytest.mark.parametrize("store", ["cluster://", "cluster://?durability=memory"])
async def test_totals_are_exact_through_a_kill_and_a_full_stop(
    nodes: Nodes, served: Served, store: str
) -> None:
    await nodes.start()
    acked, sent = Counter[str](), Counter[str]()
    await write(nodes, acked, sent, 5)
    assert acked == sent
    assert await totals(nodes) == {page: {15} for page in PAGES}
    writing = asyncio.ensure_future(write(nodes, acked, sent, 20))
    await until(lambda: acked.total() > sum(sent.values()) // 2, "some answers")
    nodes.nodes[2].kill()
    await writing
    await until(lambda: len(nodes.lab.live) >= 2, "two nodes")
    after = await totals(nodes)
    for page in PAGES:
        [total] = after[page]
        assert acked[page] <= total <= sent[page], page
    shown = json.loads(await nodes.state("show", "hits", PAGES[0]))
    assert {shown["state"]} == after[PAGES[0]]
    votes = json.loads(await nodes.state("show", "poll", "p"))["state"]["by"]
    for voter in VOTERS:
        assert votes[voter] <= sent[voter]
    assert len((await nodes.state("list", "hits")).splitlines()) == len(PAGES) + 1
    if store != "cluster://":
        return
    checked = await nodes.of_store("check", APP)
    assert f"hits: {len(PAGES)} states read, {len(PAGES)} of version 1" in checked
    assert "poll: 1 state read, 1 of version 1" in checked
    assert checked.endswith("exit 0")
    exported = await nodes.of_store("export", "--all", "--app", APP)
    lines = [line for line in exported.splitlines() if line.startswith("{")]
    assert [json.loads(line)["id"] for line in lines] == [*PAGES, "p"]
    await check_import(served, lines)
    shown_by_store = await nodes.of_store("show", "poll", "p")
    assert "the instances of poll 'p' share their state: a node shows it" in shown_by_store
    assert set(await asyncio.gather(*(node.terminate() for node in nodes.running))) == {0}
    await nodes.start()
    assert await totals(nodes) == after
    assert json.loads(await nodes.state("show", "poll", "p"))["state"]["by"] == votes
    await nodes.state("remove", "hits", PAGES[0])
    assert (await totals(nodes))[PAGES[0]] == {0}


async def test_another_store_is_refused_at_the_start(lab: Processes) -> None:
    lab.store = f"sqlite:///{lab.folder}/one.db"
    node = lab.begin(app=APP)
    assert await node.ended() == 1
    text = node.err.read_text()
    assert "'hits' has instances that share a state" in text
    assert 'set store.url to "cluster://"' in text
