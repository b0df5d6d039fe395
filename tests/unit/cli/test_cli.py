"""The command line: exit codes, one line per failure, and data alone on standard output."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from io import StringIO
from pathlib import Path

import pytest
import typer

import shardbus
from shardbus.config.loading import load, options, variable_of
from shardbus.config.settings import HttpSettings
from shardbus.errors import (
    AskTimeout,
    ConfigError,
    Refused,
    StaleFence,
    StoreUnavailable,
    Unhandled,
)
from shardbus.http.api import Check, Checks, Json
from shardbus.http.app import create_app
from shardbus.http.server import Server, serve
from shardbus.ids import Address, NodeId
from shardbus.store import node_registry
from shardbus.store.opening import open_store
from shardbus.store.protocol import StateStore, StoredTable
from shardbus_cli import logs, node_flags, output, send
from shardbus_cli.app_loader import load_app
from shardbus_cli.commands import app as command
from shardbus_cli.config import read_file
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.main import run

ME = "127.0.0.1:7355#00000000000000aa"
ROOT = Path(__file__).resolve().parents[3]


class FakeNode:
    """A node with one of everything; ids may be hostile."""

    cluster_name = "shop"

    def __init__(self) -> None:
        self.ready = True
        self.acts: list[tuple[object, ...]] = []
        self.left, self.stuck = 100, False
        self.status = "up"

    async def cluster(self) -> Json:
        return {
            "cluster": "shop",
            "self": ME,
            "status": "up",
            "unreachable": [],
            "coordinators": {"counter": {"node": ME, "epoch": 3}},
        }

    async def nodes(self) -> Json:
        member = {
            "node": ME,
            "address": "127.0.0.1:7355",
            "status": self.status,
            "reachable": True,
            "roles": ["web", "backend"],
            "shards": {"counter": self.left - self.left // 3, "page": self.left // 3},
            "entities": {"counter": 7},
            "version": "1.2",
            "oldest": True,
            "leader": True,
        }
        if self.left < 100 and not self.stuck:
            self.left = max(0, self.left - 1)
        other = {"node": "10.0.0.9:1#1", "address": "10.0.0.9:1", "reachable": False}
        return {"nodes": [member, member | other]}

    async def types(self) -> Json:
        return {
            "types": [
                {"type": "counter", "shards": 100},
                {"type": "book", "shards": 100, "layout": "library.by_title/100"},
            ]
        }

    async def shards(self, type: str) -> Json:
        if type != "counter":
            raise shardbus.errors.UnknownEntityType(f"no entity type {type!r}", hint="see types")
        row = {"shard": "1", "node": None, "state": "unallocated", "fence": 0, "entities": 0}
        return {"type": type, "shards": [row]}

    async def where(self, type: str, id: str) -> Json:
        return {"type": type, "id": id, "shard": "7", "node": ME, "running": True}

    async def entities(
        self, type: str, shard: str | None, prefix: str, limit: int, cursor: str | None
    ) -> Json:
        rows = [{"id": f"{prefix}\x1b[31mé", "shard": shard or "7", "node": ME}]
        silent = ["10.0.0.9:1#1"] if self.stuck else []
        return {"entities": rows * min(limit, 2), "next": "abc", "silent": silent}

    async def explain(self, type: str, id: str) -> Json:
        return {"type": type, "id": id, "because": "least shards", "history": None}

    async def explain_shard(self, type: str, shard: str) -> Json:
        move = {"at": "12:00", "from": "n1", "to": ME, "why": "drain", "epoch": 2, "fence": 9}
        moves = [move | {"seconds": 0.02}] if shard == "7" else []
        return {"type": type, "shard": shard, "node": ME, "history": moves}

    async def downing(self) -> Json:
        decision = {"outcome": "down others", "reason": "majority", "down": [ME], "gone": []}
        return {"node": ME, "strategy": "keep-majority", "decisions": [decision]}

    def liveness(self) -> Checks:
        return {"loop": Check(True)}

    def readiness(self) -> Checks:
        return {"member": Check(self.ready, "joining")}

    def metrics(self) -> bytes:
        return b""

    async def leave(self, node: str | None) -> Json:
        self.acts.append(("leave", node))
        return {"leaving": node or ME}

    async def checkup(self) -> Json:
        return {"node": ME, "members": [], "store": {}}

    async def gossip(self) -> Json:
        return {"node": ME, "version": "0", "seen": [ME], "waiting_for": []}

    async def events(self) -> AsyncIterator[Json]:
        yield {"event": "snapshot"}

    async def plan(self, type: str, add: int, remove: tuple[str, ...]) -> Json:
        self.acts.append(("plan", type, add, *remove))
        rows = [
            {"node": ME, "before": 4, "after": 2},
            {"node": "new-1:1#0", "before": 0, "after": 2},
        ]
        moves = [{"shard": s, "from": ME, "to": "new-1:1#0"} for s in "13"]
        found = {"type": type, "moves": moves, "nodes": rows, "rounds": 1, "settled": add < 5}
        return found | {"held": "an operator has paused it" if add else ""}

    async def places(self, type: str) -> Json:
        return {"type": type, "places": [{"shard": "7", "place": "10.0.0.3:1", "node": None}]}

    async def place(self, type: str, places: Mapping[str, str]) -> Json:
        self.acts.append(("place", type, dict(places)))
        return await self.places(type)

    async def rebalance(self, type: str, pause: bool | None, moves: int | None) -> Json:
        self.acts.append(("rebalance", type, pause, moves))
        return {"rebalancing": not pause, "paused": pause, "moves_at_a_time": moves}

    async def stop(self, type: str, shards: tuple[str, ...]) -> Json:
        self.acts.append(("stop", type, *shards))
        left = shards if self.stuck else shards[1:]
        return {"type": type, "stopped": shards[: len(shards) - len(left)], "stopping": left}

    async def limits(self, type: str) -> Json:
        rows = [{"node": ME, "limit": 500, "entities": 7, "evicted": 3}]
        silent = ["10.0.0.9:1#1"] if self.stuck else []
        return {"type": type, "strategy": "lru", "nodes": rows, "silent": silent}

    async def set_limit(self, type: str, limit: int, node: str | None) -> Json:
        self.acts.append(("limit", type, limit, node))
        return await self.limits(type)

    async def shutdown_region(self, node: str, type: str) -> Json:
        self.acts.append(("shutdown-region", node, type))
        self.left = 2
        return {"node": ME, "type": type, "shards": 2}

    async def serve(self, node: str, service: str) -> Json:
        self.acts.append((service, node))
        self.left = 2 if service == "draining" else self.left
        return {"node": ME, "service": service}

    async def join(self, seeds: tuple[str, ...]) -> Json:
        self.acts.append(("join", *seeds))
        return {"joining": True}

    async def shut_down(self) -> Json:
        self.acts.append(("shut_down",))
        return {"stopping": True}

    async def down(self, node: str, *, force: bool) -> Json:
        if node != ME:
            raise ConfigError(f"no member {node!r}", hint="see `shardbus nodes`")
        self.acts.append(("down", node, force))
        return {"down": node}


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def url(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The node's HTTP, run by a loop of its own as a node would."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    settings = HttpSettings(write=True, token="sesame")
    server: Server = serve(create_app(node, settings), "127.0.0.1", 0)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    address = f"http://127.0.0.1:{server.port}"
    monkeypatch.setenv("SHARDBUS_NODE_URL", address)
    monkeypatch.delenv("SHARDBUS_NODE_TOKEN", raising=False)
    yield address
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


class Shell:
    """Runs commands in this process and keeps what they wrote."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *words: str, debug: bool = False) -> int:
        code = run(list(words), debug=debug)
        self.out, self.err = self._capsys.readouterr()
        return int(code)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


# Reading


@pytest.mark.parametrize(
    "words",
    [
        ("cluster", "status"),
        ("nodes",),
        ("types",),
        ("shards", "counter"),
        ("entities", "counter", "--prefix", "p"),
        ("where", "counter", "a/b c"),
        ("limit", "counter"),
        ("explain", "counter", "x"),
        ("explain", "counter", "--shard", "7"),
        ("explain", "downing"),
        ("health",),
    ],
)
def test_json_is_what_http_sent_and_nothing_else(shell, url, words):
    assert shell(*words, "--json") == ExitCode.OK
    assert json.loads(shell.out)
    assert (shell.out.count("\n"), shell.err) == (1, "")
    assert shell(*words) == ExitCode.OK
    assert shell.out
    with pytest.raises(ValueError, match=r"Expecting value|Extra data"):
        json.loads(shell.out)


def test_plain_tables_are_aligned_and_never_cut(shell, url):
    shell("nodes")
    heading, first, *_ = shell.out.splitlines()
    assert heading.split() == [
        "NODE",
        "STATUS",
        "REACHABLE",
        "ROLES",
        "SHARDS",
        "ENTITIES",
        "VERSION",
        "IS",
    ]
    assert first[heading.index("ROLES") :].startswith("web, backend")
    assert first[heading.index("SHARDS") :].split()[0] == "100"
    assert first.endswith("leader, oldest")


def test_N13_explain_shows_what_became_of_a_shard(shell, url):
    assert shell("explain", "counter", "--shard", "7") == ExitCode.OK
    *_, heading, row = shell.out.splitlines()
    assert heading.split() == ["AT", "FROM", "TO", "WHY", "EPOCH", "FENCE", "SECONDS"]
    assert row.split() == ["12:00", "n1", ME, "drain", "2", "9", "0.02"]
    assert shell("explain", "counter", "--shard", "8") == ExitCode.OK
    assert shell.err == "its coordinator has no change of it on record\n"
    assert shell("explain", "counter", "x") == ExitCode.OK
    assert shell.err == "its coordinator does not answer, so its history is unknown\n"
    assert shell("explain", "counter") == ExitCode.USAGE
    assert shell("explain", "counter", "x", "--shard", "7") == ExitCode.USAGE


def test_ids_cannot_move_the_cursor(shell, url):
    shell("entities", "counter")
    assert "\x1b" not in shell.out
    assert "\\x1b[31mé" in shell.out
    assert "--cursor abc" in shell.err


@pytest.mark.parametrize("shape", [(), ("--json",)])
def test_S2_82_a_node_whose_entities_are_missing_is_named(shell, url, node, shape):
    assert shell("entities", "counter", *shape) == ExitCode.OK
    node.stuck = True
    assert shell("entities", "counter", *shape) == ExitCode.UNREACHABLE
    assert "mé" in shell.out, "those of the others are shown"
    said = "shardbus: no answer from 10.0.0.9:1#1, whose entities are missing"
    assert shell.err.splitlines()[-1] == said


def test_an_id_is_one_value_whatever_it_holds(shell, url):
    for entity_id in ("a/b", "..", "ä?x=1#y", "%2F"):
        shell("where", "counter", entity_id, "--json")
        assert json.loads(shell.out)["id"] == entity_id


def test_a_refusal_of_the_node_is_one_line(shell, url):
    assert shell("shards", "counted") == ExitCode.FAILED
    assert shell.err == "shardbus: no entity type 'counted'; see types\n"
    assert shell.out == ""


def test_the_doctor_knows_no_type_of_that_name(shell, url):
    assert shell("doctor", "counted", "--wait", "0") == ExitCode.FAILED
    assert shell.err == "shardbus: there is no entity type 'counted'; did you mean counter?\n"
    assert shell.out == ""
    assert shell("doctor", "counter", "--wait", "0") == ExitCode.UNHEALTHY, (
        "this node has no coordinator"
    )


def test_health_has_its_own_exit_code(shell, url, node):
    node.ready = False
    assert shell("health") == ExitCode.UNHEALTHY
    assert shell.out.splitlines()[1].split() == ["member", "FAILED", "joining"]
    assert shell("health", "--json") == ExitCode.UNHEALTHY
    assert json.loads(shell.out)["status"] == "unavailable"


def test_a_url_without_a_node_is_unreachable(shell):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    assert shell("nodes", "--node", f"http://127.0.0.1:{free}") == ExitCode.UNREACHABLE
    assert shell.err.startswith(
        f"shardbus: no node at http://127.0.0.1:{free}: nothing listens there; "
    )


@pytest.mark.parametrize("url", ["ftp://x", "", "http://", "http://a b", "http://h:99999", "h\n:1"])
def test_a_bad_url_is_a_usage_error(shell, url):
    assert shell("nodes", "--node", url) == ExitCode.USAGE
    assert shell.err.count("\n") == 1


def test_something_else_there_is_no_node(shell, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")

        thread = threading.Thread(target=answer)
        thread.start()
        assert shell("nodes", "--node", f"127.0.0.1:{port}") == ExitCode.UNREACHABLE
        thread.join(10)
    assert "is no shardbus node" in shell.err


# Writing


def test_leave_and_down_need_the_token(shell, url, node, monkeypatch):
    assert shell("node", "leave") == ExitCode.REFUSED
    assert "token" in shell.err
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("node", "leave") == ExitCode.OK
    assert shell("node", "leave", ME) == ExitCode.OK
    assert shell("node", "down", ME, "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"down": ME}
    assert shell("node", "down", ME, "--force") == ExitCode.OK
    downs = [("down", ME, False), ("down", ME, True)]
    assert node.acts == [("leave", None), ("leave", ME), *downs]
    assert shell("node", "down", "127.0.0.1:1") == ExitCode.FAILED


def test_planned_moves_are_shown_and_carried_out(shell, url, node, monkeypatch):
    assert shell("plan", "counter", "--add", "1", "--remove", "a:1") == ExitCode.OK
    rows = [line.split() for line in shell.out.splitlines()]
    assert rows == [["NODE", "BEFORE", "AFTER"], [ME, "4", "2"], ["new-1", "0", "2"]]
    assert "2 shards would move, in one plan" in shell.err
    assert "nothing moves for balance: an operator has paused it" in shell.err
    assert shell("plan", "counter", "--add", "9") == ExitCode.OK
    assert "does not settle" in shell.err
    assert shell("rebalance", "counter", "--dry-run", "--json") == ExitCode.OK
    assert len(json.loads(shell.out)["moves"]) == 2
    assert shell("rebalance", "counter") == ExitCode.REFUSED
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("rebalance", "counter") == ExitCode.OK
    assert [act[0] for act in node.acts] == ["plan", "plan", "plan", "rebalance"]
    assert node.acts[0] == ("plan", "counter", 1, "a:1")


def test_B77_rebalancing_is_paused_resumed_and_slowed(shell, url, node, monkeypatch):
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("rebalance", "counter", "--pause", "--json") == ExitCode.OK
    assert json.loads(shell.out)["paused"] is True
    assert shell("rebalance", "counter", "--resume", "--moves", "5") == ExitCode.OK
    assert ["moves_at_a_time", "5"] in [line.split() for line in shell.out.splitlines()]
    assert shell("rebalance", "counter", "--moves", "-1") == ExitCode.USAGE
    assert shell("rebalance", "counter", "--pause", "--dry-run") == ExitCode.USAGE
    told = [(True, None), (False, 5)]
    assert node.acts == [("rebalance", "counter", *one) for one in told]


def test_B63_shards_are_stopped_and_waited_for(shell, url, node, monkeypatch):
    assert shell("stop", "counter", "3") == ExitCode.REFUSED
    assert shell("stop", "counter") == ExitCode.USAGE
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("stop", "counter", "3", "4", "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"type": "counter", "stopped": ["3", "4"], "stopping": []}
    assert "1 shard is still stopping" in shell.err
    assert node.acts == [("stop", "counter", "3", "4"), ("stop", "counter", "4")]
    node.stuck = True
    assert shell("stop", "counter", "3", "4", "--timeout", "0") == ExitCode.DRAIN_DEADLINE
    assert ["stopping", "3,", "4"] in [line.split() for line in shell.out.splitlines()]


def test_B69_places_are_listed_and_set(shell, url, node, monkeypatch):
    assert shell("place", "counter") == ExitCode.OK
    rows = [line.split() for line in shell.out.splitlines()]
    assert rows == [["SHARD", "PLACE", "NODE"], ["7", "10.0.0.3:1", "-"]]
    assert node.acts == []
    assert shell("place", "counter", "7=10.0.0.3:1") == ExitCode.REFUSED
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("place", "counter", "7=10.0.0.3:1", "a=b=c:1", "8=", "--json") == ExitCode.OK
    assert json.loads(shell.out)["places"][0]["shard"] == "7"
    assert node.acts == [("place", "counter", {"7": "10.0.0.3:1", "a=b": "c:1", "8": ""})]
    for bad in ("7", "7=garbage", "=10.0.0.3:1"):
        assert shell("place", "counter", bad) == ExitCode.USAGE
        assert shell.err.startswith(f"shardbus: {bad!r}")
        assert shell.err.endswith("; write SHARD=HOST:PORT, or SHARD= to remove its place\n")
    assert len(node.acts) == 1


def test_B85_a_limit_is_shown_and_set(shell, url, node, monkeypatch):
    assert shell("limit", "counter") == ExitCode.OK
    rows = [line.split() for line in shell.out.splitlines()]
    assert rows == [["NODE", "LIMIT", "ENTITIES", "EVICTED"], [ME, "500", "7", "3"]]
    assert shell("limit", "counter", "500") == ExitCode.REFUSED
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("limit", "counter", "500", "--json") == ExitCode.OK
    assert json.loads(shell.out)["nodes"][0]["limit"] == 500
    assert shell("limit", "counter", "off", "--on", ME) == ExitCode.OK
    for bad in ("-1", "many", "1.5", "99999999999"):
        assert shell("limit", "counter", "--", bad) == ExitCode.USAGE
        assert shell.err.startswith(f"shardbus: {bad!r} is no limit; ")
    assert node.acts == [("limit", "counter", 500, None), ("limit", "counter", 0, ME)]
    node.stuck = True
    assert shell("limit", "counter", "9", "--json") == ExitCode.UNREACHABLE
    assert json.loads(shell.out)["silent"] == ["10.0.0.9:1#1"]
    assert "no answer from 10.0.0.9:1#1" in shell.err


def test_a_member_is_cordoned_and_drained(shell, url, node, monkeypatch):
    monkeypatch.setattr("shardbus_cli.maintenance.POLL_S", 0.0)
    assert shell("cordon", ME) == ExitCode.REFUSED
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("cordon", ME) == ExitCode.OK
    assert shell("uncordon", ME, "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"node": ME, "service": "open"}
    assert shell("drain", ME, "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"node": ME, "service": "draining", "shards": 0}
    assert "shards left" in shell.err
    node.stuck = True
    assert shell("drain", ME, "--timeout", "0.01") == ExitCode.DRAIN_DEADLINE
    assert [act[0] for act in node.acts] == ["cordoned", "open", "draining", "draining"]


def test_a_region_is_shut_down(shell, url, node, monkeypatch):
    monkeypatch.setattr("shardbus_cli.maintenance.POLL_S", 0.0)
    assert shell("shutdown-region", "counter") == ExitCode.REFUSED
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("shutdown-region", "counter", ME, "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"node": ME, "type": "counter", "shards": 0}
    assert "shards left" in shell.err
    node.stuck = True
    assert shell("shutdown-region", "counter", "--timeout", "0.01") == ExitCode.DRAIN_DEADLINE
    assert shell("shutdown-region", "counter", "--timeout", "0") == ExitCode.OK
    assert node.acts[0] == ("shutdown-region", ME, "counter")
    assert node.acts[-1] == ("shutdown-region", "self", "counter")


def test_drain_with_timeout_0_does_not_wait_and_succeeds(shell, url, node, monkeypatch):
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    node.stuck = True
    assert shell("drain", ME, "--timeout", "0", "--json") == ExitCode.OK
    assert json.loads(shell.out)["shards"] > 0
    assert shell.err == ""


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, typer.Abort])
def test_an_interrupted_command_ends_with_130(shell, url, monkeypatch, interrupt):
    def interrupted(*args: object, **more: object) -> None:
        raise interrupt

    with monkeypatch.context() as patched:
        patched.setattr("shardbus_cli.node_http.NodeHttp._ask", interrupted)
        assert shell("nodes") == 130
    assert shell.out == ""
    # Some versions of Typer turn the interrupt into an exit, others let it through.
    monkeypatch.setattr("shardbus_cli.commands.app", interrupted)
    assert shell("nodes") == 130


def test_the_cluster_is_joined_and_stopped(shell, url, node, monkeypatch):
    assert shell("cluster", "shutdown") == ExitCode.REFUSED
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("cluster", "join", "a:1", "b:2") == ExitCode.OK
    assert shell("cluster", "join", "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"joining": True}
    assert shell("cluster", "shutdown") == ExitCode.OK
    assert shell.out.split() == ["stopping", "yes"]
    assert node.acts == [("join", "a:1", "b:2"), ("join",), ("shut_down",)]


# Sending


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["add", "2"], ("add", [2])),
        (["add", "2", '{"a": [1]}', "text", "null"], ("add", [2, {"a": [1]}, "text", None])),
        (["add", "-5"], ("add", [-5])),
        (["total"], ("total", [])),
        (['"get"'], (None, ["get"])),
        (['{"n": 1}'], (None, [{"n": 1}])),
        (["true"], (None, [True])),
        (["12"], (None, [12])),
        (["two words"], (None, ["two words"])),
    ],
)
def test_words_are_a_handler_with_arguments_or_a_message(words, meant):
    assert send.parse_words(words) == meant


@pytest.mark.parametrize(
    "words", [[], ["1", "2"], ["a-b", "1"], ["add", "--timeot"], ["class", "1"]]
)
def test_words_that_mean_nothing(words):
    with pytest.raises(CommandFailure) as failed:
        send.parse_words(words)
    assert failed.value.code is ExitCode.USAGE


class FakeClient:
    """Remembers what was sent, and answers 42."""

    last: FakeClient
    buffered = 0

    def __init__(self, *addresses: str, cluster: str, timeout: float, secret: str) -> None:
        assert not secret
        self.sent: list[tuple[object, ...]] = [("connect", addresses, cluster, timeout)]
        FakeClient.last = self

    async def __aenter__(self) -> FakeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.sent.append(("close",))

    async def tell(self, *args: object) -> None:
        self.sent.append(("tell", *args))

    async def ask(self, *args: object) -> object:
        self.sent.append(("ask", *args))
        return {"answer": 42, "raw": b"\x00"}

    async def flush(self) -> None:
        self.sent.append(("flush",))
        if self.buffered:
            await asyncio.Event().wait()

    async def call(self, *args: object) -> object:
        self.sent.append(("call", *args))
        return {"answer": 42, "raw": b"\x00"}

    async def cast(self, *args: object) -> None:
        self.sent.append(("cast", *args))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    monkeypatch.setattr(shardbus, "AsyncClient", FakeClient)
    return FakeClient


def test_ask_finds_the_cluster_by_http_and_prints_the_answer(shell, url, client):
    words = ("ask", "counter", "p", "add", "-5", "--timeout", "300ms")
    assert shell(*words, "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"answer": 42, "raw": "AA=="}
    assert client.last.sent == [
        ("connect", ("tcp://127.0.0.1:7355",), "shop", 0.3),
        ("call", "counter", "p", "add", -5),
        ("close",),
    ]


def test_a_handler_without_arguments_is_no_message(shell, url, client):
    assert shell("ask", "counter", "p", "total") == ExitCode.OK
    assert json.loads(shell.out)["answer"] == 42
    assert client.last.sent[1] == ("call", "counter", "p", "total")
    assert shell("tell", "counter", "p", "reset") == ExitCode.OK
    assert client.last.sent[1] == ("cast", "counter", "p", "reset")


def test_a_word_that_is_no_handler_gets_a_hint_how_to_send_a_message(
    shell, url, client, monkeypatch
):
    async def refuse(*_: object) -> object:
        raise Unhandled("counter has no handler 'get'")

    monkeypatch.setattr(FakeClient, "call", refuse)
    assert shell("ask", "counter", "p", "get") == ExitCode.FAILED
    assert shell.err.endswith("""no handler 'get'; a message for `receive` is quoted: '"get"'\n""")


def test_a_message_for_receive(shell, url, client):
    assert shell("ask", "counter", "p", '{"n": 1}') == ExitCode.OK
    assert client.last.sent[1] == ("ask", "counter", "p", {"n": 1})


def test_tell_returns_when_a_node_has_it(shell, url, client):
    assert shell("tell", "counter", "p", "add", "2") == ExitCode.OK
    assert client.last.sent[1:] == [("cast", "counter", "p", "add", 2), ("flush",), ("close",)]
    assert shell("tell", "counter", "p", '"get"') == ExitCode.OK
    assert client.last.sent[1] == ("tell", "counter", "p", "get")
    assert shell.out == ""


def test_a_tell_that_finds_no_home_ends_in_time(shell, url, client, monkeypatch):
    monkeypatch.setattr(FakeClient, "buffered", 1)
    assert shell("tell", "counter", "p", "add", "2", "--timeout", "20ms") == ExitCode.FAILED
    said = "no node has the message for 'counter' 'p' within 0.02 s: its shard has no home"
    assert shell.err.startswith(f"shardbus: {said}; ")
    assert client.last.sent[0][3] == 0.02
    assert client.last.sent[-1] == ("close",)


@pytest.mark.parametrize("command", ["tell", "ask"])
@pytest.mark.parametrize("timeout", ["-1", "abc", "0"])
def test_a_timeout_that_is_none_is_named(shell, command, timeout):
    assert shell(command, "counter", "p", "add", "--timeout", timeout) == ExitCode.USAGE
    assert shell.err.startswith(f"shardbus {command}: --timeout: ")
    assert shell.err.endswith(f": {timeout!r}; write 2s, 100ms or seconds\n")
    assert shell.err.count("\n") == 1


def test_S0_4_the_shard_of_a_type_with_its_own_function_is_asked_of_the_node(shell, url, client):
    assert shell("ask", "book", "p", "read") == ExitCode.OK
    _, kind, *rest = client.last.sent[1]
    assert rest == ["p", "read"]
    interface = kind.__shardbus_interface__
    assert (interface.name, interface.layout) == ("book", "library.by_title/100")
    assert interface.shard_of("p") == "7"


def test_a_cluster_without_members_is_unreachable(shell, url, node, client):
    node.status = "down"
    assert shell("ask", "counter", "p", "1") == ExitCode.UNREACHABLE


# Failures


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), ExitCode.USAGE),
        (Refused("x"), ExitCode.REFUSED),
        (StoreUnavailable("x"), ExitCode.UNREACHABLE),
        (StaleFence("t", "i", 1, 2), ExitCode.FAILED),
        (AskTimeout("x"), ExitCode.FAILED),
    ],
)
def test_every_error_of_the_library_has_an_exit_code(shell, monkeypatch, error, code):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("shardbus_cli.show.NodeHttp", fail)
    assert shell("nodes") == code
    assert shell.err == f"shardbus: {error}\n"


def test_a_defect_is_one_line_and_a_traceback_only_on_demand(shell, monkeypatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("shardbus_cli.show.NodeHttp", fail)
    assert shell("nodes") == ExitCode.FAILED
    assert shell.err.count("\n") == 1
    assert "ZeroDivisionError" in shell.err
    assert shell("nodes", debug=True) == ExitCode.FAILED
    assert "Traceback" in shell.err


@pytest.mark.parametrize(
    "words", [["frobnicate"], ["nodes", "--frob"], ["where", "counter"], [], ["node"]]
)
def test_wrong_usage(shell, words):
    assert shell(*words) == ExitCode.USAGE


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("frobnicate", "shardbus: no such command 'frobnicate'; see `shardbus -h`"),
        ("node strat", "shardbus node: no such command 'strat'; did you mean start\\?"),
        ("nodes --jsn", "shardbus nodes: no such option: --jsn; did you mean --json\\?"),
        ("where counter", "shardbus where: missing argument 'ID'; see `shardbus where -h`"),
        ("nodes --json=1", "shardbus.*: .*'--json' does not take a value; see `shardbus.* -h`"),
        ("plan t --add -1", "shardbus plan: --add: .*; see `shardbus plan -h`"),
        ("drain n --timeout -1", "shardbus drain: --timeout: must be 0 to 86400 s: '-1'; write .*"),
        ("stop t 1 --timeout 2x", "shardbus stop: --timeout: not a duration: '2x'; write .*"),
        ("doctor --wait x", "shardbus doctor: --wait: not a duration: 'x'; write .*"),
        ("doctor --wait 100ms extra --nod", "shardbus doctor: .*--nod.*"),
        ("nodes extra", r"shardbus nodes: .*extra.*; see `shardbus nodes -h`"),
    ],
)
def test_wrong_usage_is_one_line_that_names_command_and_option(shell, words, line):
    assert shell(*words.split()) == ExitCode.USAGE
    assert re.fullmatch(line + "\n", shell.err)
    assert shell.out == ""


def test_help_names_every_command(shell):
    assert shell("--help") == ExitCode.OK
    listed = re.findall(r"^  (\w+)  +\S", shell.out, re.MULTILINE)
    assert {"node", "nodes", "ask", "tell", "check", "health", "data", "config"} <= set(listed)


def test_flags_say_the_settings_they_stand_for(shell):
    assert shell("node", "start", "--help") == ExitCode.OK
    text = " ".join(shell.out.split())
    declared = dict(options())
    stated = {}
    for flag, key in node_flags.FLAGS.items():
        assert key in declared
        variable = variable_of(key)
        stands = rf"{flag} [A-Z:]+(?:\[:PORT\])? [^\[]*\[default: ([^;]*); env: {variable}\]"
        found = re.search(stands, text)
        assert found, flag
        stated[flag] = found[1]
    defaults = load()
    assert stated["--host"] == defaults.node.host
    assert stated["--port"] == str(defaults.node.port)
    assert stated["--http-port"] == str(defaults.http.port)
    assert stated["--log-level"] == defaults.log.level
    assert stated["--log-format"] == defaults.log.format


def test_starting_the_command_imports_nothing_heavy():
    program = "import sys, shardbus_cli.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert command
    assert not loaded & {"zmq", "redis", "starlette", "uvicorn", "prometheus_client", "msgspec"}


# Applications


@pytest.fixture
def apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    (tmp_path / "good_app.py").write_text(
        "from shardbus import ShardBus\nbus = ShardBus('shop')\nport = 3\n"
    )
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("app", ["good_app:bus", "good_app", "good_app.py", "./good_app.py:bus"])
def test_an_app_is_a_module_an_attribute_or_a_file(apps, app):
    assert load_app(app).name == "shop"


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("god_app:bus", r"no module 'god_app'; .*did you mean good_app\?"),
        ("good_app:bos", r"'good_app' has no attribute 'bos'; did you mean good_app:bus\?"),
        ("good_app:port", r"good_app:port is of type int, not a ShardBus; .*good_app:bus"),
        ("good_app:", r"cannot load 'good_app:'; write module:attribute"),
        (":bus", r"cannot load ':bus'"),
        ("", r"cannot load ''"),
        ("good-app", r"'good-app': it is no module name"),
        ("missing/app.py", r"there is no such file"),
    ],
)
def test_each_wrong_app_has_its_own_error(shell, apps, app, said):
    assert shell("node", "start", app) == ExitCode.APP
    assert re.search(said, shell.err)
    assert shell.err.count("\n") == 1


def test_a_module_without_or_with_several_buses(shell, apps):
    (apps / "empty_app.py").write_text("x = 1\n")
    (apps / "two_apps.py").write_text(
        "from shardbus import ShardBus\na, b = ShardBus('a'), ShardBus('b')\n"
    )
    assert shell("check", "empty_app") == ExitCode.APP
    assert "has no ShardBus" in shell.err
    assert shell("check", "two_apps") == ExitCode.APP
    assert "two_apps:a" in shell.err


def test_the_users_own_traceback_is_shown_from_his_first_line(shell, apps):
    (apps / "broken_app.py").write_text("def f():\n    return 1 / 0\n\nf()\n")
    assert shell("node", "start", "broken_app:bus") == ExitCode.APP
    assert "ZeroDivisionError" in shell.err
    assert "importlib" not in shell.err
    assert "shardbus_cli" not in shell.err
    assert "line 2 of broken_app.py" in shell.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("@bus.entity(name='a', shardz=3)\nclass A(Entity): ...", 4),
        ("def late():\n    bus.on_shutdown('nope')\n\nlate()", 5),
        ("import json\njson.loads('{')", 5),
        ("x = (", 4),
    ],
)
def test_a_declaration_that_is_refused_is_named_by_the_users_line(shell, apps, text, line):
    head = "from shardbus import Entity, ShardBus\n\nbus = ShardBus('shop')\n"
    (apps / "wrong_app.py").write_text(f"{head}{text}\n")
    assert shell("check", "wrong_app") == ExitCode.APP
    assert f"(line {line} of wrong_app.py)" in shell.err.splitlines()[-1]


def test_a_module_that_misses_another_is_not_taken_for_a_missing_one(shell, apps):
    (apps / "needy_app.py").write_text("import no_such_module_anywhere\n")
    assert shell("node", "start", "needy_app:bus") == ExitCode.APP
    assert "it raised ModuleNotFoundError (line 1 of needy_app.py)" in shell.err


def test_check_examines_everything_and_starts_nothing(shell, apps):
    good = ("check", "good_app", "--set", f"store.url=sqlite:///{apps}/s.db")
    assert shell(*good, "--json") == ExitCode.OK
    checks = json.loads(shell.out)["checks"]
    assert list(checks) == ["app", "types", "downing", "exposure", "keys", "store"]
    bad = (*good, "--set", "http.host=10.0.0.1", "--set", "store.url=nope://x")
    assert shell(*bad) == ExitCode.UNHEALTHY
    failed = [line.split()[0] for line in shell.out.splitlines() if " FAILED " in line]
    assert failed == ["exposure", "store"]


TYPED = """
from shardbus import Entity, ShardBus
bus = ShardBus("shop")
@bus.entity(name="Cart")
class Cart(Entity): ...
@bus.entity(name="page", use_lease="shards")
class Page(Entity): ...
@bus.entity(name="kept", remember=True)
class Kept(Entity): ...
"""


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("sharding.types.page.shards=20", "sharding.shards is 20 for 'page'"),
        ("sharding.types.kept.active_entity_limit=9", "both remember and active_entity_limit"),
        ("sharding.types.page.lease_ttl=8s", "more than four times store.timeout"),
        ("node.proxies=pag", "no entity type 'pag'; did you mean page?"),
    ],
)
def test_node_start_refuses_settings_that_check_reports(shell, apps, assignment, said):
    (apps / "typed_app.py").write_text(TYPED)
    assert shell("check", "typed_app", "--set", "store.url=memory://") == ExitCode.OK
    words = ("typed_app", "--set", "store.url=memory://", "--set", assignment)
    assert shell("check", *words) == ExitCode.UNHEALTHY
    assert [said in line for line in shell.out.splitlines() if "FAILED" in line] == [True]
    assert shell("node", "start", *words) == ExitCode.USAGE
    assert said in shell.err
    assert shell.err.count("\n") == 1


def test_a_store_that_there_cannot_be_is_wrong_usage(shell, apps):
    assert shell("node", "start", "good_app", "--store", "nope://x") == ExitCode.USAGE
    assert "no store is known by the scheme of 'nope://x'" in shell.err


@pytest.mark.parametrize("command", [("check",), ("node", "start")])
def test_settings_of_a_type_that_the_app_does_not_have_are_refused(shell, apps, command):
    (apps / "typed_app.py").write_text(TYPED)
    assert shell(*command, "typed_app", "--set", "sharding.types.pgae.mailbox=5") == ExitCode.USAGE
    said = "no entity type 'pgae' (--set sharding.types.pgae.mailbox); did you mean page?"
    assert said in shell.err


# Settings


def test_files_are_read_or_refused_in_one_line(shell, tmp_path):
    assert shell("config", "show", "-c", str(tmp_path / "none.toml")) == ExitCode.USAGE
    assert "there is no file" in shell.err
    broken = tmp_path / "broken.toml"
    broken.write_text("[node\n")
    assert shell("config", "show", "-c", str(broken)) == ExitCode.USAGE
    assert "is not TOML" in shell.err
    assert shell.err.count("\n") == 1


def test_config_show_names_the_origin_of_each_value_and_no_secret(shell, monkeypatch, tmp_path):
    file = tmp_path / "shop.toml"
    file.write_text('[node]\nport = 1\n[store]\nurl = "redis://u:hunter2@h/0"\n')
    monkeypatch.setenv("SHARDBUS_HTTP__TOKEN", "hunter2hunter2hunter2")
    words = ("config", "show", "-c", str(file), "--set", "sharding.types.counter.shards=7")
    assert shell(*words, "--origin") == ExitCode.OK
    assert re.search(rf"node\.port +1 +{file}", shell.out)
    assert re.search(r"http\.token +\"\*\*\*\" +environment SHARDBUS_HTTP__TOKEN", shell.out)
    assert re.search(r"sharding\.types\.counter\.shards +7 +--set", shell.out)
    assert re.search(r"http\.port +8558 +default", shell.out)
    assert "hunter2" not in shell.out
    assert shell(*words, "--json") == ExitCode.OK
    assert json.loads(shell.out)["settings"]["node.port"] == 1


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.toml")), ids=lambda f: f.stem)
def test_the_shipped_files_are_valid_and_differ_from_the_defaults(file):
    text = file.read_text()
    settings = load([(file.name, read_file(file)), ("test", {"node": {"advertise": "10.0.0.1"}})])
    assert settings != load()
    assert len(text.splitlines()) < 40


def test_a_bad_setting_stops_node_start_before_the_app_is_loaded(shell, apps):
    assert shell("node", "start", "good_app", "--port", "x") == ExitCode.USAGE
    assert "node.port = 'x' (--port): not a whole number" in shell.err
    assert shell("node", "start", "good_app", "--host", "10.0.0.1") == ExitCode.USAGE
    assert "security.insecure" in shell.err


# Stored tables


NO_NODE = ("--node", "http://127.0.0.1:1")


class Stored:
    """A real store in a file, filled and read beside the command."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/store.db"
        self.words = ("counter", "--store", self.url)

    async def _open(self) -> StateStore:
        store = open_store(self.url, cluster="shop")
        await store.start()
        return store

    def fill(self, home: NodeId) -> None:
        async def fill() -> None:
            store = await self._open()
            await store.claim_epoch("counter", 3, "crc32/10")
            await store.write_homes("counter", 3, {"1": (home, 9)}, 1)
            await store.close()

        asyncio.run(fill())

    def register(self, port: int) -> None:
        async def register_it() -> None:
            store = await self._open()
            await node_registry.register(store, Address("127.0.0.1", port))
            await store.close()

        asyncio.run(register_it())

    def table(self) -> StoredTable | None:
        async def load() -> StoredTable | None:
            store = await self._open()
            table = await store.load_table("counter")
            await store.close()
            return table

        return asyncio.run(load())

    def homes(self) -> dict[str, tuple[NodeId, int]]:
        table = self.table()
        return {} if table is None else dict(table.homes)


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def test_data_is_shown(shell, stored):
    stored.fill(NodeId("192.0.2.1", 1, 5))
    words = ("data", "show", "none", *stored.words, "--cluster", "shop", *NO_NODE)
    assert shell(*words, "--json") == ExitCode.OK
    none, counter = json.loads(shell.out)["types"]
    assert (counter["epoch"], counter["layout"], counter["shards"]) == (3, "crc32/10", 1)
    assert counter["nodes"] == ["192.0.2.1:1#0000000000000005"]
    assert none["epoch"] is None
    assert shell(*words) == ExitCode.OK
    assert shell.out.splitlines()[2].split()[:4] == ["counter", "3", "crc32/10", "1"]


def test_data_is_not_removed_while_a_node_runs(shell, stored, url):
    stored.fill(NodeId("192.0.2.1", 1, 5))
    assert shell("data", "remove", *stored.words) == ExitCode.REFUSED
    assert "cluster 'shop' runs" in shell.err
    assert stored.table() is not None


def test_TSU19_data_is_not_removed_while_something_listens_at_a_home(shell, stored):
    words = ("data", "remove", *stored.words, "--cluster", "shop", *NO_NODE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stored.fill(NodeId("127.0.0.1", listener.getsockname()[1], 5))
        assert shell(*words) == ExitCode.REFUSED
        assert stored.homes()
    assert shell(*words) == ExitCode.OK
    assert not stored.homes()


def test_S2_54_data_is_not_removed_while_a_node_runs_that_hosts_nothing(shell, stored):
    words = ("data", "remove", *stored.words, "--cluster", "shop", *NO_NODE)
    stored.fill(NodeId("127.0.0.1", 1, 5))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        stored.register(port)
        assert shell(*words) == ExitCode.REFUSED
        assert f"cluster 'shop' runs: a node answers at 127.0.0.1:{port}" in shell.err
        assert stored.homes()
    assert shell(*words) == ExitCode.OK, "it was killed"
    assert not stored.homes()
    with socket.create_server(("127.0.0.1", port)):
        assert shell(*words) == ExitCode.OK, "another process listens there now"


def test_data_needs_a_clusters_name(shell, stored):
    assert shell("data", "show", *stored.words, *NO_NODE) == ExitCode.USAGE
    assert "--cluster" in shell.err


# Output and logs


def test_values_are_shown_on_one_line():
    assert output.safe({"a": 1, "b": [True, None]}) == "a=1, b=yes, -"
    assert output.safe("a\nb\u202ec\x7f") == "a\\nb\\u202ec\\x7f"
    assert output.safe("é 漢") == "é 漢"
    assert output.safe("") == output.safe(None) == output.safe([]) == "-"


def test_tables_are_drawn_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    output.table(("id", "node"), [{"id": "[red]a\x1b[0m", "node": "x" * 80}])
    drawn = capsys.readouterr().out
    assert "[red]a\\x1b[0m" in drawn
    assert drawn.count("x") >= 80


def logged(form: str, message: str, *, terminal: bool = False) -> str:
    stream = StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    kept = logging.getLogger().handlers[:]
    try:
        logs.configure("info", form, stream)
        logger = logging.getLogger("shardbus.test")
        logger.debug("unseen")
        try:
            raise ValueError("inner\x1b")
        except ValueError:
            logger.warning(message, exc_info=True, extra={"entity_type": "counter\n"})
    finally:
        logging.getLogger().handlers[:] = kept
        logging.captureWarnings(False)
    return stream.getvalue()


def test_logs_are_json_lines_off_a_terminal():
    (line,) = logged("auto", "hello\n\x1b[31m").splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"]) == ("warning", "shardbus.test")
    assert (entry["message"], entry["entity_type"]) == ("hello\n\x1b[31m", "counter\n")
    assert "ValueError" in entry["exception"]
    assert "\x1b" not in line


def test_logs_are_pretty_on_a_terminal_and_forge_nothing():
    text = logged("auto", "hello\n\x1b[31m", terminal=True)
    head, *trace = text.splitlines()
    assert "hello\\n\\x1b[31m  entity_type=counter\\n" in head
    assert head.startswith("\x1b[33m")
    assert all("\x1b" not in line for line in trace)
