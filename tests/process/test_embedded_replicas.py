"""A store inside the cluster whose nodes are in web applications: each application runs a replica
beside it, and no other process has to be started."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import httpx
import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.embedding import EmbeddedNode
from tests.ports import free_block, free_port
from tests.process import warm
from tests.process.app import Balance
from tests.process.nodes import QUICK, NodeProcess, Processes
from tests.process.served_replicas import replica_processes
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.long

UVICORN = f"""{warm.WITH_THE_TEST}
from uvicorn.main import main
main()
"""
NAMES = [f"account-{n}" for n in range(10)]


@pytest.fixture
def store() -> str:
    return "cluster://"


class WebTrio:
    """Three web applications under uvicorn, each with a node and a replica, at places that stay the
    same."""

    def __init__(self, lab: Processes) -> None:
        self.lab = lab
        self.ports = [free_block(4) for _ in range(3)]
        self.apps: dict[int, NodeProcess] = {}

    def folder(self, number: int) -> Path:
        return self.lab.folder / f"replica-{number}"

    def begin(self, *numbers: int, extra: tuple[str, ...] = (), **more: str) -> None:
        """Start these applications, all by default; does not wait."""
        for number in numbers or range(3):
            port, web_port = self.ports[number], free_port()
            settings = {
                "node.port": port,
                "node.gossip_port": port + 1,
                "http.port": port + 3,
                "node.seeds": ",".join(f"127.0.0.1:{each}" for each in self.ports),
                "store.url": self.lab.store,
                "store.path": self.folder(number),
                "store.timeout": "5s",
                **dict(assignment.split("=", 1) for assignment in QUICK),
                **{key.replace("__", "."): value for key, value in more.items()},
            }
            names = {k: f"SHARDBUS_{k.upper().replace('.', '__')}" for k in settings}
            app = NodeProcess(
                self.lab.folder,
                f"web{len(self.lab.all)}",
                ["tests.process.web_app:app", "--port", str(web_port), *extra],
                program=UVICORN,
                **{names[key]: str(value) for key, value in settings.items()},
            )
            app.port, app.gossip_port, app.http_port = port, port + 1, port + 3
            app.web = f"http://127.0.0.1:{web_port}"  # type: ignore[attr-defined]
            self.lab.all.append(app)
            self.apps[number] = app

    def web(self, number: int) -> httpx.AsyncClient:
        app = self.apps[number]
        return httpx.AsyncClient(base_url=app.web, timeout=PATIENCE_S)  # type: ignore[attr-defined]

    async def serve(self, *numbers: int) -> None:
        """Wait until the nodes of these applications agree, and the applications answer."""
        await self.lab.agree(*(self.apps[number] for number in numbers))

        async def answers(browser: httpx.AsyncClient) -> bool:
            try:
                return (await browser.get("/docs")).status_code == 200
            except httpx.HTTPError:
                return False

        for number in numbers:
            async with self.web(number) as browser:
                await until(lambda: answers(browser), f"an answer of application {number}")

    async def totals(self, number: int) -> dict[str, int]:
        async with self.web(number) as browser:
            return {name: (await browser.get(f"/accounts/{name}")).json() for name in NAMES}


@pytest.fixture
def webs(lab: Processes) -> WebTrio:
    return WebTrio(lab)


async def deposit(
    browser: httpx.AsyncClient, name: str, acked: Counter[str], sent: Counter[str]
) -> None:
    sent[name] += 1
    answer = await browser.post(f"/accounts/{name}?amount=1")
    acked[name] += answer.status_code == 200


async def test_three_web_applications_keep_their_state_without_a_server(webs: WebTrio) -> None:
    webs.begin()
    await webs.serve(0, 1, 2)
    acked, sent = Counter[str](), Counter[str]()

    async def rounds(number: int, times: int) -> None:
        async with webs.web(number) as browser:
            for _ in range(times):
                for name in NAMES:
                    await deposit(browser, name, acked, sent)
                assert (await browser.post("/hits")).status_code == 200

    adding = asyncio.gather(rounds(0, 15), rounds(1, 15))
    await until(lambda: acked.total() > 60, "the first answers")
    webs.apps[2].kill()
    await until(
        lambda: replica_processes(webs.folder(2)) == [], "the end of the killed one's replica"
    )
    await adding
    before = await webs.totals(0)
    assert acked.total() > 200
    for name in NAMES:
        assert acked[name] <= before[name] <= sent[name], name
    await asyncio.gather(webs.apps[0].terminate(), webs.apps[1].terminate())
    assert all("Finished server process" in webs.apps[n].err.read_text() for n in (0, 1))
    assert [replica_processes(webs.folder(n)) for n in range(3)] == [[], [], []]
    webs.begin()
    await webs.serve(0, 1, 2)
    assert await webs.totals(2) == before
    async with webs.web(1) as browser:
        assert (await browser.get("/hits")).json() == 30


async def test_ctrl_c_reaches_the_replica_through_its_application(webs: WebTrio) -> None:
    """A terminal sends SIGINT to its process group, in which no replica is."""
    webs.ports = webs.ports[:1]
    webs.begin(0, store__replicas="1")
    await webs.serve(0)
    [replica] = replica_processes(webs.folder(0))
    assert os.getpgid(replica) != os.getpgid(webs.apps[0].process.pid)
    webs.apps[0].signal(signal.SIGINT)
    await webs.apps[0].ended()
    assert replica_processes(webs.folder(0)) == []
    assert "this node" not in webs.apps[0].err.read_text()


async def test_a_killed_replica_comes_back_beside_its_application(webs: WebTrio) -> None:
    webs.ports = webs.ports[:1]
    webs.begin(0, store__replicas="1")
    await webs.serve(0)
    async with webs.web(0) as browser:
        assert (await browser.post("/accounts/a?amount=3")).json() == 3
        [replica] = replica_processes(webs.folder(0))
        os.kill(replica, signal.SIGKILL)
        await until(
            lambda: replica_processes(webs.folder(0)) not in ([], [replica]), "another process"
        )

        async def saved() -> bool:
            return (await browser.post("/accounts/a?amount=1")).status_code == 200

        await until(saved, "a save")
        assert (await browser.get("/accounts/a")).json() >= 4


async def test_an_application_whose_replica_cannot_run_says_why_and_ends(webs: WebTrio) -> None:
    """Its directory is a file."""
    webs.folder(0).write_text("")
    webs.ports = webs.ports[:1]
    webs.begin(0, store__replicas="1")
    assert await webs.apps[0].ended() != 0
    log = webs.apps[0].err.read_text()
    assert "ConfigError: the replica of this node ended with exit code 1 before it listened" in log


async def test_a_reload_begins_with_the_state_of_before(webs: WebTrio) -> None:
    webs.ports = webs.ports[:1]
    watched = webs.lab.folder / "watched"
    watched.mkdir()
    (watched / "some.py").write_text("")
    webs.begin(0, extra=("--reload", "--reload-dir", str(watched)), store__replicas="1")
    await webs.serve(0)
    [replica] = replica_processes(webs.folder(0))
    async with webs.web(0) as browser:
        assert (await browser.post("/accounts/a?amount=3")).json() == 3
        (watched / "some.py").write_text("changed = True")

        def another() -> bool:
            return replica_processes(webs.folder(0)) not in ([], [replica])

        await until(another, "a replica of the new process")
        await webs.serve(0)
        assert (await browser.get("/accounts/a")).json() == 3
    webs.apps[0].signal(signal.SIGTERM)
    await webs.apps[0].ended()
    assert replica_processes(webs.folder(0)) == []


def keeper() -> ShardBus:
    """An application of its own; several may be in one process."""
    bus = ShardBus("shop")

    @bus.entity("till", shards=8)
    class Till(Entity):
        state: Balance

        @handler
        async def add(self, amount: int) -> int:
            self.state.total += amount
            await self.save()
            return self.state.total

    return bus


async def test_several_nodes_of_one_process_have_a_replica_each(tmp_path: Path) -> None:
    """As in the tests of an application, in one event loop."""
    ports = [free_block(4) for _ in range(3)]

    def run(bus: ShardBus, port: int) -> EmbeddedNode:
        return bus.run({
            "node.port": port,
            "http.port": port + 3,
            "node.seeds": [f"127.0.0.1:{each}" for each in ports],
            "store.url": "cluster://",
            "store.path": str(tmp_path / f"replica-{port}"),
            "store.timeout": 30,
            "cluster.gossip_interval": 0.1,
            "cluster.leader_actions_interval": 0.1,
        })  # fmt: skip

    for round_ in (1, 2):
        buses = [keeper() for _ in ports]
        nodes = [run(bus, port) for bus, port in zip(buses, ports, strict=True)]
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(node.start() for node in nodes))
            assert len(replica_processes(tmp_path)) == 3
            for n, bus in enumerate(buses):
                assert await bus.ref("till", "a").add(1) == 3 * (round_ - 1) + n + 1
            await asyncio.gather(*(node.stop() for node in nodes))
        assert [node.reason for node in nodes] == ["left"] * 3
        assert replica_processes(tmp_path) == []


async def test_a_node_that_is_not_started_after_all_leaves_no_replica(tmp_path: Path) -> None:
    """The application gives up while the node waits for the other replicas."""
    ports = [free_block(4) for _ in range(3)]
    node = keeper().run({
        "node.port": ports[0],
        "http.port": ports[0] + 3,
        "node.seeds": [f"127.0.0.1:{each}" for each in ports],
        "store.url": "cluster://",
        "store.path": str(tmp_path),
    })  # fmt: skip
    starting = asyncio.ensure_future(node.start())
    await until(lambda: replica_processes(tmp_path), "the replica")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert replica_processes(tmp_path) == []
