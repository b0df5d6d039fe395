"""`health`: cheap where it is plain, and the same as the full command everywhere."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from shardbus_cli import health
from shardbus_cli.exit_codes import ExitCode
from shardbus_cli.main import run

BODY = json.dumps({"checks": {"store": {"ok": True, "detail": "answers"}}})
PROGRAM = """
import sys
before = set(sys.modules)
from shardbus_cli.main import run
code = run(sys.argv[1:])
print(code, *sorted(set(sys.modules) - before), file=sys.stderr)
"""
IMPORTED_MAX = 60
"""Modules besides a bare interpreter's: json, re, socket and their imports."""
HEAVY = {"typer", "rich", "asyncio", "ssl", "email", "http", "urllib", "shardbus", "logging"}
HEAVY_FOR_HELP = {"rich", "asyncio", "ssl", "http", "shardbus", "zmq", "multiprocessing", "tomllib"}


class Node:
    """Answers every connection with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests: list[bytes] = []
        self._answer = answer
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                self.requests.append(connection.recv(4096))
                connection.sendall(self._answer)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


def page(status: str, body: str = BODY) -> bytes:
    head = f"HTTP/1.0 {status}\r\nContent-Length: {len(body)}\r\nContent-Type: application/json"
    return f"{head}\r\n\r\n{body}".encode()


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    made = Node(getattr(request, "param", page("200 OK")))
    yield made
    made.close()


def full(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command with the full parser."""
    with monkeypatch.context() as patched:
        patched.setattr(health, "plain", lambda arguments: None)
        return run(["health", *arguments])


def imported(*arguments: str) -> tuple[int, set[str]]:
    """Run a command in a process of its own. Returns its exit code and its imports."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    code, *modules = done.stderr.splitlines()[-1].split()
    return int(code), set(modules)


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_health_check_imports_few_modules(node: Node, more: list[str]) -> None:
    """Containers run it every few seconds on every node."""
    code, modules = imported("health", "--node", node.url, *more)
    assert code == ExitCode.OK
    assert not {name.partition(".")[0] for name in modules} & HEAVY
    assert len(modules) <= IMPORTED_MAX, sorted(modules)
    assert "encodings.idna" not in modules
    assert len(node.requests) == 1


def test_help_imports_no_library_of_a_node() -> None:
    code, modules = imported("--help")
    assert code == ExitCode.OK
    assert not {name.partition(".")[0] for name in modules} & HEAVY_FOR_HELP


@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize(
    "node",
    [
        page("200 OK"),
        page("503 Service Unavailable", BODY.replace("true", "false")),
        page("200 OK", "[1]"),
        page("200 OK", "no json"),
        page("404 Not Found", "{}"),
        page("500 Internal Server Error"),
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\n\r\n",
    ],
    indirect=True,
)
def test_the_plain_check_prints_and_returns_what_the_full_command_does(
    node: Node,
    more: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--node", node.url, *more]
    plain = run(["health", *arguments]), capsys.readouterr()
    assert (full(arguments, monkeypatch), capsys.readouterr()) == plain


def test_a_node_that_does_not_listen_is_unreachable_either_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = Node(b"")
    gone.close()
    plain = run(["health", f"--node={gone.url}"]), capsys.readouterr()
    assert plain[0] == ExitCode.UNREACHABLE
    assert "nothing listens there" in plain[1].err
    assert (full(["--node", gone.url], monkeypatch), capsys.readouterr()) == plain


def test_a_silent_node_is_unreachable_after_one_timeout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health, "TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert run(["health", "--node", url]) == ExitCode.UNREACHABLE
    assert "no answer within 0.05 s" in capsys.readouterr().err


def test_the_url_comes_from_the_environment(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDBUS_NODE_URL", f"127.0.0.1:{node.port}")
    assert health.plain([]) == ExitCode.OK
    assert node.requests[0].startswith(b"GET /readyz HTTP/1.0\r\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["-h"],
        ["--help"],
        ["--nod", "x"],
        ["--node"],
        ["extra"],
        ["--node", "https://127.0.0.1:1"],
        ["--node", "http://127.0.0.1:1/path"],
        ["--node", "http://user@127.0.0.1:1"],
        ["--node", "http://127.0.0.1:99999"],
        ["--node", "http://127.0.0.1"],
        ["--node", ""],
    ],
    ids=" ".join,
)
def test_all_else_is_left_to_the_full_command(arguments: list[str]) -> None:
    assert health.plain(arguments) is None


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://[::1]:8558", ("::1", 8558)),
        ("http://node-1.example:80/", ("node-1.example", 80)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
    ],
)
def test_plain_urls(url: str, place: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[str, int]] = []

    def ask(host: str, port: int, path: str, timeout_s: float) -> tuple[int, str]:
        requests.append((host, port))
        return 503, BODY

    monkeypatch.setattr(health, "_ask", ask)
    assert health.plain(["--node", url]) == ExitCode.UNHEALTHY
    assert requests == [place]
