"""Ids that would like to be something else: a line of a log, a path, a command of a terminal, a tag
of a page. Through clients, logs, HTTP and the command line they stay unchanged, or are refused
before anything is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from shardbus import AsyncClient, ConfigError, Unhandled
from shardbus.transport.session import Session
from shardbus_cli.main import run
from tests.process.app import Account, Page
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import PATIENCE_S, until

Command = Callable[..., tuple[int, str, str]]
PATIENCE_MS = int(PATIENCE_S * 1000)

STRANGE = [
    "{}",
    "{0.__class__}",
    "%s%n",
    "../../etc/passwd",
    "/",
    "//a/",
    ".",
    "a?b=c#d&e",
    "%2e%2e%2f%00",
    "<script>alert(1)</script>",
    "\"'`$(id);|&",
    "\u202egnp.exe",
    "\u2028{line: separator}\u2029",
    "a\u0301\ufeff\u200b",
    "[bold red]x[/]",
    "*?[a-z]",
    "Ω" * 128,
    "x" * 256,
]
FORBIDDEN = [
    "",
    "a\r\nb",
    "\n",
    "\x1b[2J",
    "a\0b",
    "\x7f",
    "\x9b31m",
    "y" * 257,
    "y" * 10_000,
    "Ω" * 129,
]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line against a node: the exit code, and its output."""

    def run_it(node: NodeProcess, *words: str) -> tuple[int, str, str]:
        code = run([*words, "--node", f"http://127.0.0.1:{node.http_port}"])
        written = capsys.readouterr()
        return int(code), written.out, written.err

    return run_it


async def listed(http: httpx.AsyncClient, kind: str) -> list[str]:
    """The ids in memory, page by page."""
    ids: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        query = {"limit": "5"} | ({"cursor": cursor} if cursor else {})
        page = (await http.get(f"/v1/entities/{kind}", params=query)).json()
        ids += [row["id"] for row in page["entities"]]
        cursor = page["next"]
    return ids


def where(name: str) -> str:
    return f"/v1/where/account/{quote(name, safe='')}"


async def test_strange_ids_are_ids_everywhere(lab: Processes, command: Command) -> None:
    node = lab.begin("--log-format", "json")
    await until(node.ready, "the ready line")
    url = f"http://127.0.0.1:{node.http_port}"
    async with lab.client() as client, httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
        added = [client.ref(Account, name).add(n) for n, name in enumerate(STRANGE)]
        assert await asyncio.gather(*added) == list(range(len(STRANGE)))
        for name in STRANGE:
            page = await node.page(where(name))
            assert (page["id"], page["running"]) == (name, True)
        assert sorted(await listed(http, "account")) == sorted(STRANGE)
        tags = await http.get(where("<script>alert(1)</script>"))
        assert tags.headers["content-type"] == "application/json"
        assert tags.headers["x-content-type-options"] == "nosniff"
        metrics = (await http.get("/metrics")).text
        assert not any(name in metrics for name in STRANGE if len(name) > 5)
        for name in STRANGE:  # for a page it is no number: it fails to start, and that is logged
            await client.ref(Page, name).hit.tell(1, 1)
        await until(lambda: all(named(node, name) for name in STRANGE), "every name in the log")
        shown = command(node, "entities", "account")[1]
        assert len(shown.splitlines()) == 1 + len(STRANGE)
        assert "\\u202egnp.exe" in shown
        assert "[bold red]x[/]" in shown
        assert not any(c in shown for c in "\u202e\u2028\ufeff\x1b")
        as_data = command(node, "entities", "account", "--json")[1]
        assert {row["id"] for row in json.loads(as_data)["entities"]} == set(STRANGE)
        for name in (".", "../../etc/passwd", "\u202egnp.exe"):
            answer = json.loads(command(node, "where", "account", name, "--json")[1])
            assert (answer["id"], answer["running"]) == (name, True)


def named(node: NodeProcess, name: str) -> bool:
    """Whether the log names it; every line of it is one entry."""
    entries = [json.loads(line) for line in node.err.read_text().split("\n")[:-1]]
    return any(repr(name) in entry["message"] for entry in entries)


async def test_forbidden_ids_are_refused_here_and_by_a_node_that_gets_them_all_the_same(
    lab: Processes, command: Command
) -> None:
    node = await lab.start()
    url = f"http://127.0.0.1:{node.http_port}"
    async with lab.client() as client, httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
        assert await client.ref(Account, "good").add(1) == 1
        claimed = "epoch claimed 1"
        await until(lambda: node.err.read_text().count(claimed) == 3, "the last line of the start")
        before = lines(node)
        for name in FORBIDDEN:
            with pytest.raises(ConfigError):
                await client.tell(Account, name, "add", 1)
            with pytest.raises(ConfigError):
                await client.ask(Account, name, "add", 1)
            with pytest.raises(ConfigError):
                await client.ref(Account, name).add(1)
            with pytest.raises(Unhandled, match="an entity id"):
                await smuggled(client, name)
            assert (await http.get(where(name))).status_code in (400, 404)
            code, out, err = command(node, "where", "account", name)
            assert (bool(code), out, len(err.splitlines())) == (True, "", 1)
            assert not any(c in err for c in "\x1b\0\x9b")
        assert (await http.get("/v1/entities/account")).json()["entities"][0]["id"] == "good"
        assert await listed(http, "account") == ["good"]
        assert await client.ref(Account, "good").add(1) == 2
    assert await node.terminate() == 0
    *after, next_line = lines(node)[: len(before) + 1]
    assert after == before
    ending = ("shardbus: handing off ", "region drained")  # two threads write, one line each
    assert any(text in next_line for text in ending)


def lines(node: NodeProcess) -> list[str]:
    """Its log, but for lines that depend on how busy the machine is."""
    return [line for line in node.err.read_text().splitlines() if "was starved" not in line]


async def smuggled(client: AsyncClient, name: str) -> Any:
    """Ask as a client would that checks nothing."""
    [session, *_] = client._endpoint.sessions()
    assert isinstance(session, Session)
    waits: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    session.outbox.ask(("account", "add"), name, b"\x91\x01", PATIENCE_MS, waits, bytes)
    return await waits


class Waiter:
    """Waits for the echo of a flush."""

    def __init__(self) -> None:
        self.outcome: object = None

    def resolve(self, payload: bytes) -> None:
        self.outcome = payload

    def fail(self, error: Exception) -> None:
        self.outcome = error


async def test_a_shard_that_cannot_be_is_refused_and_not_remembered(lab: Processes) -> None:
    node = await lab.start()
    async with lab.client() as client:
        assert await client.ref(Account, "good").add(1) == 1
        [session, *_] = client._endpoint.sessions()
        for shard in ("", "-1", "24", "007a", "x" * 10_000, "a\nb"):
            waiter = Waiter()
            session.outbox.flush_shard("account", shard, 0, PATIENCE_MS, waiter)  # type: ignore[arg-type]
            await until(lambda: waiter.outcome is not None, "the refusal")  # noqa: B023
            assert isinstance(waiter.outcome, Unhandled)
        page = await node.page("/v1/shards/account")
        assert all(row["shard"].isdigit() and int(row["shard"]) < 24 for row in page["shards"])
