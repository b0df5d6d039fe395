"""Requests to a node: a URL without a node, a bad URL, and another server are distinguished."""

from __future__ import annotations

import socket
import threading

import pytest

from shardbus_cli.exit_codes import ExitCode


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
