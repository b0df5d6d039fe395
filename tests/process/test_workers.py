"""All cores of a machine as one unit: `node start --workers N`, with real processes and signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any, TextIO

import pytest

from shardbus import RequestError
from tests.ports import free_block
from tests.process.app import RECORD, Account, Page, Stubborn
from tests.process.nodes import QUICK, NodeProcess, Processes
from tests.process.test_cluster import BRIEF, IDS, Bank
from tests.waiting import PATIENCE_S, until

WORKERS = 3
LONG = pytest.mark.long
WRITABLE = ("http.write=true", "http.token=sesame-sesame-16")


def begin(
    lab: Processes,
    *options: str,
    app: str = "tests.process.app:bus",
    settings: tuple[str, ...] = (),
    seeds: tuple[str, ...] = (),
    **environment: str,
) -> NodeProcess:
    """Start a unit; does not wait. Its `port` belongs to worker 0."""
    port, http = free_block(2 * WORKERS), free_block(WORKERS + 1)
    command = ["node", "start", app, "--workers", str(WORKERS)]
    command += ["--port", str(port), "--http-port", str(http), "--store", lab.store]
    command += [word for seed in seeds for word in ("--seed", seed)]
    command += [word for text in (*QUICK, *settings) for word in ("--set", text)]
    unit = lab.run(*command, "--log-format", "pretty", *options, **environment)
    unit.port, unit.http_port = port, http
    return unit


async def start(lab: Processes, *options: str, **more: Any) -> NodeProcess:
    unit = begin(lab, *options, **more)
    await until(unit.ready, "the ready line of the unit")
    return unit


def workers(unit: NodeProcess) -> list[dict[str, Any]]:
    page = unit.get("/v1/workers")
    return page["workers"] if page else []


def starts(unit: NodeProcess, worker: int) -> int:
    """How often this worker was started; 0 if the unit does not answer."""
    rows = workers(unit)
    return int(rows[worker]["starts"]) if rows else 0


def pids(unit: NodeProcess) -> list[int]:
    return [row["pid"] for row in workers(unit)]


def ask(unit: NodeProcess, path: str) -> TextIO:
    """The answer as it comes."""
    with socket.create_connection(("127.0.0.1", unit.http_port), PATIENCE_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        return connection.makefile(newline=None)


def lives(pid: int) -> bool:
    """A process that is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def up(node: NodeProcess) -> list[str]:
    """The addresses that a node sees Up."""
    page = node.get("/v1/nodes")
    rows = page["nodes"] if page else []
    return sorted(row["address"] for row in rows if row["status"] == "up")


def up_nodes(node: NodeProcess) -> list[str]:
    """The same, as host:port#uid."""
    page = node.get("/v1/nodes")
    return [row["node"] for row in page["nodes"] if row["status"] == "up"] if page else []


def addresses(unit: NodeProcess) -> list[str]:
    return [f"127.0.0.1:{unit.port + 2 * n}" for n in range(WORKERS)]


# Start


async def test_a_unit_is_ready_once_and_all_of_it_leaves_at_a_signal(lab: Processes) -> None:
    unit = await start(lab)
    [line] = unit.out.read_text().splitlines()
    http = f"http://127.0.0.1:{unit.http_port}"
    listed = ", ".join(addresses(unit))
    assert line == f"ready: 3 workers {listed} in cluster 'lab' (3 up), {http}, store {lab.store}"
    await until(lambda: up(unit) == sorted(addresses(unit)), "all of them Up")
    ready = await unit.page("/readyz")
    assert ready["status"] == "ok"
    for worker in range(WORKERS):
        assert ready["checks"][f"worker {worker}: membership"]["ok"]
    running = pids(unit)
    assert len(set(running)) == WORKERS
    assert await unit.terminate() == 0
    assert not any(map(lives, running))
    said = unit.err.read_text()
    for worker in range(WORKERS):
        assert f"[{worker}] shardbus: left the cluster" in said
    assert "Traceback" not in said
    assert len(unit.out.read_text().splitlines()) == 1


@pytest.mark.long
async def test_one_address_shows_the_cluster_and_the_metrics_of_all(lab: Processes) -> None:
    unit = await start(lab, settings=WRITABLE)
    url = f"http://127.0.0.1:{unit.http_port}"
    for command, code, text in [
        (["ask", "account", "x", "add", "5"], 0, "5"),
        (["where", "account", "x"], 0, "account"),
        (["health"], 0, "worker 2"),
        (["node", "leave"], 6, "several nodes"),
    ]:
        done = lab.run(*command, "--node", url, SHARDBUS_NODE_TOKEN="sesame-sesame-16")
        assert await done.ended() == code, done.err.read_text()
        assert text in done.out.read_text() + done.err.read_text()
    with await asyncio.to_thread(ask, unit, "/v1/events") as events:
        assert events.readline() == "HTTP/1.1 200 OK\n"
        assert next(line for line in events if line.startswith("data: "))
    with await asyncio.to_thread(ask, unit, "/metrics") as metrics:
        page = metrics.read()
    for worker in range(WORKERS):
        assert f'shardbus_shards{{worker="{worker}",entity_type="account"}}' in page
    assert page.count("# TYPE shardbus_shards gauge") == 1


@pytest.mark.long
async def test_systemd_sees_one_service(lab: Processes, tmp_path: Path) -> None:
    """It gets one notification of each kind, and its signals to the supervisor and to each worker
    are one request. Logs are lines of JSON that say the worker."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        unit = await start(lab, "--log-format", "json", NOTIFY_SOCKET=str(tmp_path / "notify"))
        for pid in pids(unit):
            os.kill(pid, signal.SIGTERM)
        assert await unit.terminate() == 0
        notified.setblocking(False)
        assert [notified.recv(100), notified.recv(100)] == [b"READY=1", b"STOPPING=1"]
        with pytest.raises(BlockingIOError):
            notified.recv(100)
    assert "stopped before" not in unit.err.read_text()
    lines = [line for line in unit.err.read_text().splitlines() if line.startswith("{")]
    assert {json.loads(line).get("worker") for line in lines} >= set(range(WORKERS))


def error_of(unit: NodeProcess) -> str:
    said = unit.err.read_text()
    assert "Traceback" not in said, said
    lines = [line for line in said.splitlines() if "shardbus: " in line and "leave" not in line]
    assert len(lines) == 1, said
    return lines[0]


@pytest.mark.parametrize(
    ("app", "options", "code", "text"),
    [
        pytest.param("tests.process.nowhere:bus", [], 3, "nowhere", marks=LONG),
        ("tests.process.app:bus", ["--set", "node.prot=1"], 2, "node.port"),
        ("tests.process.app:bus", ["--store", "memory://"], 2, "memory"),
        pytest.param("tests.process.app:bus", ["--port", "65533"], 2, "65536", marks=LONG),
        pytest.param(
            "tests.process.app:bus",
            ["--http-port", "7355", "--port", "7355"],
            2,
            "7355",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "tests.process.app:bus",
            ["--store", "redis://127.0.0.1:1/0", "--set", "store.start_timeout=1ms"],
            4,
            "127.0.0.1",
            marks=pytest.mark.long,
        ),
    ],
)
async def test_what_cannot_start_says_why_once_and_ends_at_once(
    lab: Processes, app: str, options: list[str], code: int, text: str
) -> None:
    unit = begin(lab, *options, app=app)
    assert await unit.ended() == code
    assert text in error_of(unit)
    assert unit.out.read_text() == ""


@pytest.mark.long
@pytest.mark.parametrize("behind", [0, 3])
async def test_a_port_that_is_taken_ends_the_unit(lab: Processes, behind: int) -> None:
    """The port of worker 0, and the port of worker 1's gossip."""
    with socket.socket() as taken:
        port = free_block(2 * WORKERS)
        taken.bind(("127.0.0.1", port + behind))
        taken.listen()
        unit = begin(lab, "--port", str(port))
        assert await unit.ended() == 1
    assert str(port + behind) in unit.err.read_text()
    assert "ready" not in unit.out.read_text()


async def test_the_port_of_http_that_is_taken_is_one_line(lab: Processes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        unit = begin(lab, "--http-port", str(port))
        assert await unit.ended() == 1
    assert str(port) in error_of(unit)


# Run


@pytest.mark.long
@pytest.mark.parametrize(("kind", "victim"), [("sqlite", 0), ("redis", 1)])
async def test_a_killed_worker_comes_back_and_its_entities_answer(
    lab: Processes, kind: str, victim: int, request: pytest.FixtureRequest
) -> None:
    """Worker 0 founded the cluster. It joins again, and founds no other."""
    if kind == "redis":
        lab.store = request.getfixturevalue("redis_url")
    unit = await start(lab)
    async with lab.client(unit) as client:
        bank = Bank(client)
        work = asyncio.ensure_future(bank.run())
        await bank.served()
        before = pids(unit)
        os.kill(before[victim], signal.SIGKILL)
        await bank.served()
        await until(lambda: starts(unit, victim) == 2, "another start")
        await until(lambda: unit.get("/readyz"), "readiness")
        await until(lambda: up(unit) == sorted(addresses(unit)), "all of them Up")
        after = pids(unit)
        assert [a == b for a, b in zip(before, after, strict=True)].count(True) == WORKERS - 1
        await bank.served()
        bank.closing = True
        await work
        totals = await asyncio.gather(*(client.ref(Account, i).get() for i in IDS))
    for account, total in zip(IDS, totals, strict=True):
        assert bank.answered[account] <= total <= bank.answered[account] + bank.unsure[account]
    await unit.says(f"worker {victim} was ended by SIGKILL; it is restarted in 0.5 s")
    assert await unit.terminate() == 0


@pytest.mark.long
async def test_a_worker_that_is_stuck_is_replaced(lab: Processes) -> None:
    """It answers heartbeats and handles nothing. Its node is downed, and its process does not end
    by itself."""
    unit = await start(lab, settings=("cluster.app_stall_timeout=3s",))
    async with lab.client(unit) as client:
        home = await client.ref(Page, "page-1").where()
        worker = addresses(unit).index(home.partition("#")[0])
        blocked = asyncio.ensure_future(client.ref(Page, "page-1").block(3600.0))
        await until(lambda: starts(unit, worker) == 2, "another start")
        await until(lambda: up(unit) == sorted(addresses(unit)), "all of them Up")
        again = await client.ref(Page, "page-1").where()
        await until(lambda: again in up_nodes(unit), "its home as a member that is Up")
        assert again != home
        with pytest.raises(RequestError):
            await blocked
    await unit.says(f"[{worker}] shardbus: error: a blocked loop does not end, at")
    await unit.says("in block")
    assert await unit.terminate() == 0


@pytest.mark.long
async def test_a_worker_that_was_told_to_leave_stays_away_and_a_shutdown_ends_the_others(
    lab: Processes,
) -> None:
    unit = await start(lab, settings=WRITABLE)
    url, token = f"http://127.0.0.1:{unit.http_port}", "sesame-sesame-16"
    gone = addresses(unit)[2]
    done = lab.run("node", "leave", gone, "--node", url, SHARDBUS_NODE_TOKEN=token)
    assert await done.ended() == 0, done.err.read_text()
    await until(lambda: [row["stage"] for row in workers(unit)][2:] == ["gone"], "its end")
    assert await unit.page("/readyz")
    await until(lambda: up(unit) == sorted(addresses(unit)[:2]), "two members")
    done = lab.run("cluster", "shutdown", "--node", url, SHARDBUS_NODE_TOKEN=token)
    assert await done.ended() == 0, done.err.read_text()
    assert await unit.ended() == 0
    assert "started again" not in unit.err.read_text()


# Leave


@pytest.mark.long
async def test_a_unit_that_leaves_loses_nothing_and_no_shard_hops_within_it(
    lab: Processes,
) -> None:
    """One worker begins to hand off a second before the others: they get none of its shards."""
    other = await lab.start()
    more = ("shutdown.before_service_unbind=1s",)
    unit = await start(lab, seeds=(other.address,), settings=more, APP_SHUTDOWN="uneven")
    await until(lambda: len(up(other)) == 1 + WORKERS, "all Up")
    async with lab.client(other) as client:
        pages = [client.ref(Page, f"page-{n}") for n in range(240)]
        homes = await asyncio.gather(*(page.where() for page in pages))
        assert len({home.partition("#")[0] for home in homes}) == 1 + WORKERS
        bank = Bank(client)
        work = asyncio.ensure_future(bank.run())
        await bank.served()
        running = pids(unit)
        signalled = time.monotonic_ns()
        unit.signal(signal.SIGTERM)
        for n in range(10**9):
            if not unit.running:
                break
            await asyncio.gather(*(page.hit(1, n) for page in pages))
        assert await unit.ended() == 0
        await bank.served()
        bank.closing = True
        await work
        assert bank.errors == []
        totals = await asyncio.gather(*(client.ref(Account, i).get() for i in IDS))
        assert totals == [bank.answered[i] for i in IDS]
    assert not any(map(lives, running))
    assert [row for pid in running for row in started(lab.folder, pid) if row > signalled] == []
    assert " is down" not in other.err.read_text()


def started(folder: Path, pid: int) -> list[int]:
    """When a process started pages."""
    book = folder / f"ledger-{pid}"
    rows = RECORD.iter_unpack(book.read_bytes()) if book.exists() else ()
    return [at for _, producer, seq, _, at in rows if producer == 0 == seq]


@pytest.mark.long
async def test_a_second_signal_stops_all_workers_at_once(lab: Processes) -> None:
    unit = await start(lab)
    async with lab.client(unit) as client:
        for name in "abcdef":
            assert await client.ref(Stubborn, name).hello() == "hello"
    running = pids(unit)
    unit.signal(signal.SIGTERM)
    await until(lambda: "handing off" in unit.err.read_text(), "the handoff")
    unit.signal(signal.SIGTERM)
    assert await unit.ended() == 1
    assert not any(map(lives, running))
    assert "Traceback" not in unit.err.read_text()


# The supervisor dies


@pytest.mark.long
async def test_no_worker_outlives_a_killed_supervisor(lab: Processes) -> None:
    other = await lab.start()
    unit = await start(lab, seeds=(other.address,))
    async with lab.client(other) as client:
        bank = Bank(client)
        work = asyncio.ensure_future(bank.run())
        await bank.served()
        running = pids(unit)
        unit.kill()
        await until(lambda: not any(map(lives, running)), "the end of the workers")
        await bank.served()
        bank.closing = True
        await work
        assert bank.errors == []
    await until(lambda: up(other) == [other.address], "one member")
    assert " is down" not in other.err.read_text()


@pytest.mark.long
async def test_a_worker_that_is_stuck_does_not_outlive_it_either(lab: Processes) -> None:
    unit = await start(lab, settings=BRIEF)
    running = pids(unit)
    async with lab.client(unit) as client:
        assert await client.ref(Page, "page-1").hit(1, 1) == 1
        stuck = asyncio.ensure_future(client.ref(Page, "page-1").block(3600.0))
        page = "/v1/where/page/page-1"
        await until(lambda: not (unit.get(page) or {"running": False})["running"], "the stuck one")
        unit.kill()
        await until(lambda: not any(map(lives, running)), "the end of the workers")
        stuck.cancel()


@pytest.mark.long
async def test_a_worker_is_gone_even_if_the_supervisor_dies_while_it_loads(
    lab: Processes, tmp_path: Path
) -> None:
    """The application keeps the import waiting, and writes down who waits."""
    (tmp_path / "slow.py").write_text(
        "import os, pathlib, threading\n"
        "pathlib.Path('loading').write_text(str(os.getpid()))\n"
        "threading.Event().wait()\n"
    )
    unit = begin(lab, app="slow:bus")
    note = tmp_path / "loading"
    await until(lambda: note.exists() and note.read_text(), "the import")
    pid = int(note.read_text())
    unit.kill()
    await until(lambda: not lives(pid), "the end of the worker")
