"""Nodes as operators run them: real processes, real signals, real stores."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shardbus import RequestError
from tests.ports import free_port
from tests.process.app import Account, Overdrawn, Stubborn
from tests.process.nodes import NodeProcess, Processes
from tests.process.warm import ROOT
from tests.redis_server import RedisServer
from tests.waiting import PATIENCE_S, until

DETECT_QUICKLY = (
    "cluster.failure_detector.heartbeat_interval=200ms",
    "cluster.failure_detector.acceptable_heartbeat_pause=1500ms",
    "cluster.downing.stable_after=2s",
)
IDS = [f"a{i}" for i in range(40)]


# One node


async def test_a_node_says_when_it_is_ready_and_leaves_at_a_signal(lab: Processes) -> None:
    node = await lab.start()
    [line] = node.out.read_text().splitlines()
    http = f"http://127.0.0.1:{node.http_port}"
    assert line == f"ready: {node.address} in cluster 'lab' (1 up), {http}, store {lab.store}"
    assert (await node.page("/readyz"))["status"] == "ok"
    assert await node.terminate() == 0
    said = node.err.read_text()
    assert "left the cluster" in said
    assert "Traceback" not in said
    assert len(node.out.read_text().splitlines()) == 1


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_ctrl_c_and_a_closed_terminal_leave_too(lab: Processes, number: int) -> None:
    node = await lab.start()
    node.signal(number)
    assert await node.ended() == 0
    assert "Traceback" not in node.err.read_text()


@pytest.mark.long
async def test_S2_33_a_node_on_sqlite_runs_where_there_is_no_redis_client(
    lab: Processes, tmp_path: Path
) -> None:
    missing = "raise ModuleNotFoundError(\"No module named 'redis'\", name='redis')\n"
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "redis.py").write_text(missing)
    path = os.pathsep.join(map(str, (tmp_path / "without", ROOT, ROOT / "cli")))
    node = await lab.start(PYTHONPATH=path)
    async with lab.client() as client:
        assert await client.ref(Account, "a").add(1) == 1
    assert await node.terminate() == 0
    other = lab.begin("--store", "redis://127.0.0.1:1/0", PYTHONPATH=path)
    assert await other.ended() == 2
    assert "needs the package 'redis'; pip install redis" in error_of(other)


async def test_a_second_signal_stops_at_once(lab: Processes) -> None:
    node = await lab.start()
    async with lab.client() as client:
        assert await client.ref(Stubborn, "x").hello() == "hello"
    node.signal(signal.SIGTERM)
    await until(lambda: "handing off" in node.err.read_text(), "the handoff")
    assert node.running
    node.signal(signal.SIGTERM)
    assert await node.ended() == 1
    said = node.err.read_text()
    assert "stopped before everything was handed off" in said
    assert "Traceback" not in said


BRIEF = (
    *(f"shutdown.{phase}=300ms" for phase in ("before_service_unbind", "service_unbind")),
    *(f"shutdown.{phase}=300ms" for phase in ("service_requests_done", "service_stop")),
    *(f"shutdown.{phase}=300ms" for phase in ("before_cluster_shutdown", "cluster_shutdown")),
    *(f"shutdown.{phase}=1s" for phase in ("cluster_sharding_shutdown_region", "cluster_leave")),
)


@pytest.mark.long
async def test_B141_tasks_of_the_phases_run_and_neither_late_nor_failing_ones_stop_it(
    lab: Processes,
) -> None:
    await lab.start()
    node = await lab.start(settings=("shutdown.before_cluster_shutdown=5s",), APP_SHUTDOWN="tasks")
    assert await node.terminate() == 0
    assert node.out.read_text().splitlines()[1:] == ["last words: 99", "the end"]
    lines = [line for line in node.err.read_text().splitlines() if line.startswith("shardbus: ")]
    waits = [line for line in lines if line.startswith("shardbus: this node waits for ")]
    assert " s more at most; a second SIGTERM stops it at once" in waits[0]
    lines = [line for line in lines if line not in waits]
    assert [line.removeprefix("shardbus: ").partition(" at_")[0] for line in lines] == [
        "before-cluster-shutdown:",
        "before-cluster-shutdown: not done after 5 s, going on:",
        lines[2].removeprefix("shardbus: "),
        "leaving the cluster",
        "cluster-shutdown:",
        "left the cluster",
    ]
    assert lines[1].endswith(".late")
    assert lines[2].startswith("shardbus: handing off ")


@pytest.mark.long
async def test_C8_a_task_that_blocks_does_not_keep_the_process(lab: Processes) -> None:
    node = await lab.start(settings=BRIEF, APP_SHUTDOWN="block")
    assert await node.terminate() == 7
    text = "shardbus: error: service-stop does not end, at "
    [said] = [line for line in node.err.read_text().splitlines() if line.startswith(text)]
    assert "in blocks" in said


async def test_a_node_that_waits_for_others_can_be_stopped(lab: Processes) -> None:
    node = lab.begin(settings=("cluster.min_members=2",))
    await until(lambda: node.get("/livez"), "HTTP")
    assert node.get("/readyz") is None
    assert await node.terminate() == 0


@pytest.mark.long
async def test_B19_a_node_joins_with_the_version_that_its_application_finds(lab: Processes) -> None:
    first = await lab.start()
    second = lab.begin(APP_VERSION="file")
    third = lab.begin(APP_VERSION="file")
    await until(lambda: "which version?" in third.out.read_text(), "the question")
    assert await third.terminate() == 0
    (lab.folder / "unnamed").write_text("1.2.0")
    (lab.folder / "unnamed").rename(lab.folder / "VERSION")
    await until(second.ready, "the node with a version")
    rows = (await first.page("/v1/nodes"))["nodes"]
    assert {row["address"]: row["version"] for row in rows} == {
        first.address: "0.0.0",
        second.address: "1.2.0",
    }


@pytest.mark.long
async def test_B19_a_node_without_its_version_does_not_start(lab: Processes) -> None:
    node = lab.begin(settings=("node.version_timeout=200ms",), APP_VERSION="file")
    assert await node.ended() == 1
    assert "version has returned no version within 0.2 s" in error_of(node)


def error_of(node: NodeProcess) -> str:
    """The one line that explains a failure."""
    said = node.err.read_text()
    assert "Traceback" not in said, said
    lines = [line for line in said.splitlines() if line.startswith("shardbus: ")]
    assert len(lines) == 1, said
    return lines[0]


@pytest.mark.parametrize(
    ("app", "options", "code", "text"),
    [
        ("tests.process.nowhere:bus", [], 3, "nowhere"),
        ("tests.process.app:bus", ["--host", "0.0.0.0", "--advertise", "127.0.0.1"], 2, "insecure"),
    ],
)
async def test_what_cannot_start_says_why_in_one_line(
    lab: Processes, app: str, options: list[str], code: int, text: str
) -> None:
    """The others are in tests/unit/cli/test_app_loader.py and test_node.py."""
    node = lab.run("node", "start", app, "--store", lab.store, *options)
    assert await node.ended() == code
    assert text in error_of(node)
    assert node.out.read_text() == ""


SHARDED = """
import os
from shardbus import Entity, ShardBus, handler

bus = ShardBus("lab")


@bus.entity(name="page", shards=int(os.environ["SHARDS"]))
class Page(Entity):
    @handler
    def get(self) -> int:
        return 1
"""


@pytest.mark.long
async def test_other_shards_than_a_crash_left_in_the_store_are_one_line(lab: Processes) -> None:
    app = lab.folder / "sharded.py"
    app.write_text(SHARDED)
    first = await lab.start(app=f"{app}:bus", SHARDS="40")
    async with lab.client(first) as client:
        assert await client.call("page", "a", "get") == 1
    first.kill()
    second = lab.begin(app=f"{app}:bus", SHARDS="80")
    assert await second.ended() == 1
    said = error_of(second)
    assert "'page' is declared with the shard layout 'crc32/80', the store has 'crc32/40'" in said
    assert "`shardbus data remove page --store URL`" in said
    again = await lab.start(app=f"{app}:bus", SHARDS="40", seeds=[])
    assert await again.terminate() == 0
    await lab.start(app=f"{app}:bus", SHARDS="80", seeds=[])


async def test_a_store_that_does_not_answer_is_exit_code_4(lab: Processes) -> None:
    lab.store = f"redis://127.0.0.1:{free_port()}/0"
    node = lab.begin(settings=("store.start_timeout=1s",))
    assert await node.ended() == 4
    assert "127.0.0.1" in error_of(node)
    assert "this node starts once its store answers, for " in node.err.read_text()


@pytest.mark.long
async def test_a_node_waits_for_a_store_that_starts_later(lab: Processes, tmp_path: Path) -> None:
    """As in a composition of containers that starts all of them at once."""
    with RedisServer(tmp_path) as server:
        lab.store = server.url()
        server.kill()
        node = lab.begin(settings=("store.start_timeout=off", "store.timeout=1s"))
        await node.says("this node starts once its store answers, without end: ")
        server.restart()
        await until(node.ready, "the ready line")
        assert await node.terminate() == 0


async def test_a_node_that_waits_for_its_store_ends_at_a_signal(lab: Processes) -> None:
    lab.store = f"redis://127.0.0.1:{free_port()}/0"
    node = lab.begin(settings=("store.timeout=1s",))
    await node.says("this node starts once its store answers, for ")
    assert await node.terminate() == 0


async def test_TU13_seeds_that_do_not_answer_are_exit_code_4(lab: Processes) -> None:
    seed = f"127.0.0.1:{free_port()}"
    node = lab.begin(seeds=[seed], settings=("cluster.shutdown_after_unsuccessful_join=1s",))
    assert await node.ended() == 4
    said = node.err.read_text()
    assert re.search(rf"no seed took this node in within \d+ s; tried {seed}", said)
    assert "refuses" not in said


@pytest.mark.long
@pytest.mark.parametrize("option", ["--port", "--gossip-port", "--http-port"])
async def test_a_port_that_is_taken_is_one_line(lab: Processes, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = lab.begin(option, str(port))
        assert await node.ended() == 1
    line = error_of(node)
    assert str(port) in line
    assert option.strip("-").replace("-", "_") in line.replace("-", "_")


@pytest.mark.parametrize(
    ("environment", "texts"),
    [
        ({"APP_CLUSTER": "other"}, ["other", "lab"]),
        ({"APP_SHARDS": "48"}, ["crc32/24", "crc32/48"]),
    ],
)
async def test_a_stranger_is_refused(
    lab: Processes, environment: dict[str, str], texts: list[str]
) -> None:
    first = await lab.start()
    stranger = lab.begin(**environment)
    assert await stranger.ended() == 6
    said = stranger.err.read_text()
    assert all(text in said for text in texts), said
    await lab.agree(first)


# Several


class Bank:
    """Adds 1 to accounts, again and again, and keeps the books."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.answered: Counter[str] = Counter()
        self.unsure: Counter[str] = Counter()
        self.errors: list[RequestError] = []
        self.rounds = 0
        self.closing = False

    async def run(self) -> None:
        await asyncio.gather(*(self._serve(i) for i in IDS))

    async def _serve(self, account: str) -> None:
        ref = self.client.ref(Account, account)
        while not self.closing:
            try:
                total = await ref.add(1)
            except RequestError as e:
                self.errors.append(e)
                self.unsure[account] += not e.definite
            else:
                self.answered[account] += 1
                low, high = self.answered[account], self.answered[account] + self.unsure[account]
                assert low <= total <= high, f"{account}: {total} not in {low}..{high}"
            await asyncio.sleep(0.01)

    async def served(self) -> None:
        """Wait until every account was served once more."""
        before = dict(self.answered)
        await until(lambda: all(self.answered[i] > before.get(i, 0) for i in IDS), "every account")


async def test_a_killed_node_costs_no_money(any_store: str, lab: Processes) -> None:
    """The coordinator's node, or another one."""
    lab.store = any_store
    nodes = await lab.cluster(3)
    victim = 2 if any_store.startswith("redis") else 0
    killed, survivors = nodes[victim], [*nodes[:victim], *nodes[victim + 1 :]]
    async with lab.client() as client:
        bank = Bank(client)
        work = asyncio.ensure_future(bank.run())
        await bank.served()
        killed.kill()
        await bank.served()
        await lab.agree(*survivors)
        await bank.served()
        errors = len(bank.errors)
        for _ in range(5):
            await bank.served()
        assert bank.errors[errors:] == []
        bank.closing = True
        await work
        homes = set(await asyncio.gather(*(client.ref(Account, i).where() for i in IDS)))
        totals = await asyncio.gather(*(client.ref(Account, i).get() for i in IDS))
    for account, total in zip(IDS, totals, strict=True):
        assert bank.answered[account] <= total
        assert total <= bank.answered[account] + bank.unsure[account]
    assert {home.partition("#")[0] for home in homes} == {node.address for node in survivors}


@pytest.mark.long
async def test_a_restart_on_the_same_port_is_a_new_node(lab: Processes) -> None:
    first, second = await lab.cluster(2)
    old = (await second.page("/v1/cluster"))["self"]
    second.kill()
    again = await lab.start(port=second.port)
    await lab.agree(first, again)
    new = (await again.page("/v1/cluster"))["self"]
    assert old.partition("#")[0] == new.partition("#")[0]
    assert old != new
    async with lab.client() as client:
        homes = await asyncio.gather(*(client.ref(Account, i).where() for i in IDS))
    assert old not in homes


@pytest.mark.long
async def test_a_node_that_was_paused_cannot_write_over_its_successor(lab: Processes) -> None:
    nodes = await lab.cluster(3, settings=DETECT_QUICKLY)
    async with lab.client(*nodes[:2]) as client:
        wheres = await asyncio.gather(*(client.ref(Account, i).where() for i in IDS))
        paused = nodes[2]
        account = next(i for i, w in zip(IDS, wheres, strict=True) if w.startswith(paused.address))
        assert await client.ref(Account, account).add(1) == 1
        add_late = client.ref(Account, account).within(PATIENCE_S).add_late
        late = asyncio.ensure_future(add_late(100, "gate"))
        await until(lambda: _is_waiting(paused, account), "the handler that waits")
        paused.signal(signal.SIGSTOP)
        await lab.agree(*nodes[:2])
        assert await client.ref(Account, account).add(1) == 2
        (lab.folder / "gate").touch()
        paused.signal(signal.SIGCONT)
        outcome = (await asyncio.gather(late, return_exceptions=True))[0]
        assert isinstance(outcome, RequestError)
        assert not outcome.definite
        code = await paused.ended()
        assert code in (1, 6)
        assert not (lab.folder / "gate.saved").exists()
        assert await client.ref(Account, account).add(1) == 3


def _is_waiting(node: NodeProcess, account: str) -> bool:
    page = node.get(f"/v1/where/account/{account}")
    return bool(page and page["running"])


async def test_roles_and_commands_see_the_same_cluster(lab: Processes) -> None:
    nodes = await lab.cluster(2)
    url = f"http://127.0.0.1:{nodes[0].http_port}"
    for command, texts in [
        (["ask", "account", "x", "add", "5"], ["5"]),
        (["nodes"], [node.address for node in nodes]),
        (["where", "account", "x"], ["account"]),
        (["shards", "account"], ["running"]),
        (["types"], ["account", "page", "stubborn"]),
    ]:
        done = lab.run(*command, "--node", url)
        assert await done.ended() == 0, done.err.read_text()
        said = done.out.read_text()
        assert all(text in said for text in texts), said
    refused = lab.run("ask", "account", "x", "spend", "6", "--node", url)
    assert await refused.ended() == 6
    assert refused.err.read_text() == "shardbus: Overdrawn: balance=5\n"
    async with lab.client() as client:
        with pytest.raises(Overdrawn) as overdrawn:
            await client.ref(Account, "x").spend(6)
        assert overdrawn.value == Overdrawn(5)
        assert await client.ref(Account, "x").spend(5) == 0


@pytest.mark.long
async def test_S2_54_a_table_is_not_removed_beside_a_node_that_hosts_nothing(
    lab: Processes,
) -> None:
    node = await lab.start(settings=("node.proxies=*",))
    words = ("data", "remove", "account", "--store", lab.store, "--cluster", "lab")
    nobody = ("--node", "http://127.0.0.1:1")
    refused = lab.run(*words, *nobody)
    assert await refused.ended() == 6
    assert node.address in refused.err.read_text()
    assert await node.terminate() == 0
    with socket.create_server(("127.0.0.1", node.port)):
        removed = lab.run(*words, *nobody)
        assert await removed.ended() == 0, "a node that has ended is not looked for"


# The whole cluster


WRITABLE = ("http.write=true", "http.token=sesame-sesame-16")


@pytest.mark.long
async def test_B12_one_command_stops_the_whole_cluster(lab: Processes) -> None:
    nodes = await lab.cluster(3, settings=WRITABLE)
    async with lab.client() as client:
        for account in IDS:
            assert await client.ref(Account, account).add(7) == 7
    url = f"http://127.0.0.1:{nodes[1].http_port}"
    done = lab.run("cluster", "shutdown", "--node", url, SHARDBUS_NODE_TOKEN="sesame-sesame-16")
    assert await done.ended() == 0, done.err.read_text()
    assert [await node.ended() for node in nodes] == [0, 0, 0]
    for node in nodes:
        said = node.err.read_text()
        assert "the whole cluster stops" in said
        assert "is down" not in said
        assert "Traceback" not in said
    again = await lab.cluster(2)
    async with lab.client(*again) as client:
        totals = await asyncio.gather(*(client.ref(Account, i).get() for i in IDS))
    assert totals == [7] * len(IDS)


@pytest.mark.long
async def test_S1_60_a_node_that_waits_is_told_whom_to_join(lab: Processes) -> None:
    first = await lab.start()
    waiting = lab.begin(settings=("node.join=manual", *WRITABLE))
    await until(lambda: waiting.get("/livez"), "HTTP")
    assert waiting.get("/readyz") is None
    url = f"http://127.0.0.1:{waiting.http_port}"
    join = ["cluster", "join", first.address, "--node", url]
    done = lab.run(*join, SHARDBUS_NODE_TOKEN="sesame-sesame-16")
    assert await done.ended() == 0, done.err.read_text()
    await lab.agree(first, waiting)
    again = lab.run(*join, SHARDBUS_NODE_TOKEN="sesame-sesame-16")
    assert await again.ended() == 6
    assert "joined already" in again.err.read_text()


@pytest.mark.long
async def test_S3_41_a_member_is_removed_by_force(lab: Processes) -> None:
    """Two of three are stopped and nobody decides: the operator removes one on the spot."""
    nodes = await lab.cluster(
        3, settings=(*DETECT_QUICKLY, *WRITABLE, "cluster.downing.strategy=none")
    )
    for node in nodes[1:]:
        node.signal(signal.SIGSTOP)
    gone = nodes[2].address

    async def unreachable() -> bool:
        page = await nodes[0].page("/v1/cluster")
        return bool(page and len(page["unreachable"]) == 2)

    await until(unreachable, "both unreachable")
    url = f"http://127.0.0.1:{nodes[0].http_port}"
    down = ["node", "down", gone, "--force", "--node", url]
    done = lab.run(*down, SHARDBUS_NODE_TOKEN="sesame-sesame-16")
    assert await done.ended() == 0, done.err.read_text()

    async def removed() -> bool:
        page = await nodes[0].page("/v1/cluster")
        return bool(page and page["members"] == 2)

    await until(removed, "the removal")
    for node in nodes[1:]:
        node.signal(signal.SIGCONT)
    assert await nodes[2].ended() == 1
    await lab.agree(*nodes[:2])


@pytest.mark.long
async def test_N11_a_node_is_drained_and_opened_again_by_commands(lab: Processes) -> None:
    nodes = await lab.cluster(2, settings=WRITABLE)
    async with lab.client() as client:
        await asyncio.gather(*(client.ref(Account, i).add(1) for i in IDS))
        url = f"http://127.0.0.1:{nodes[0].http_port}"
        drain = ["drain", nodes[1].address, "--node", url]
        done = lab.run(*drain, SHARDBUS_NODE_TOKEN="sesame-sesame-16")
        assert await done.ended() == 0, done.err.read_text()
        assert done.out.read_text().splitlines()[-1].split() == ["shards", "0"]
        wheres = await asyncio.gather(*(client.ref(Account, i).where() for i in IDS))
        assert {where.partition("#")[0] for where in wheres} == {nodes[0].address}
        open_again = ["uncordon", nodes[1].address, "--node", url]
        done = lab.run(*open_again, SHARDBUS_NODE_TOKEN="sesame-sesame-16")
        assert await done.ended() == 0, done.err.read_text()

        async def shared() -> bool:
            homes = await asyncio.gather(*(client.ref(Account, i).where() for i in IDS))
            return len(set(homes)) == 2

        await until(shared, "shards on both")


STARVED = {"late", "lagging"}
"""Findings that depend on how busy the machine is."""


async def doctor(lab: Processes, node: NodeProcess, *words: str) -> tuple[int, dict[str, Any]]:
    """The doctor's result: its exit code, and its findings by check, as on a machine that is not
    busy."""
    url = f"http://127.0.0.1:{node.http_port}"
    run = lab.run("doctor", "--node", url, "--json", *words)
    code = await run.ended()
    lab.all.remove(run)
    text = run.out.read_text()
    every = json.loads(text)["findings"] if text else []
    by_check = {finding["check"]: finding for finding in every if finding["check"] not in STARVED}
    return (0 if every and not by_check else code), by_check


@pytest.mark.long
async def test_C12_the_doctor_finds_what_is_wrong_and_nothing_else(lab: Processes) -> None:
    patient = ("cluster.downing.stable_after=300s",)
    first = await lab.start(settings=patient)

    async def nothing() -> bool:
        return await doctor(lab, first, "--store", lab.store) == (0, {})

    await until(nothing, "a doctor without a finding")
    second = await lab.start(settings=(*patient, "sharding.hop_limit=7"))
    async with lab.client() as client:
        await asyncio.gather(*(client.ref(Account, i).add(1) for i in IDS))

    async def settings_only() -> bool:
        code, findings = await doctor(lab, first, "--store", lab.store, "--wait", "1")
        return (code, [*findings]) == (5, ["settings"]) and bool(
            "sharding.hop_limit" in findings["settings"]["subjects"]
        )

    await until(settings_only, "the setting that differs, and nothing else")
    second.signal(signal.SIGSTOP)
    await until(lambda: (first.get("/v1/cluster") or {}).get("unreachable"), "its silence")
    code, findings = await doctor(lab, first, "--wait", "1")
    assert code == 5
    assert "unreachable" in findings
    assert second.address in findings["unreachable"]["subjects"][0]
    second.kill()
    assert await first.terminate() == 0
    assert (await doctor(lab, first))[0] == 4
