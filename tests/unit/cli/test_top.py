"""`top`: one picture from a node's pages, and the next node when one is silent."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys

import pytest

from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.top import ENTER, LEAVE, Watched, frame
from tests.waiting import PATIENCE_S

ME, OTHER = "127.0.0.1:7355#00000000000000aa", "10.0.0.9:1#1"


def test_one_picture_is_printed_where_there_is_no_terminal(shell, url):
    assert shell("top") == ExitCode.OK
    lines = shell.out.splitlines()
    assert lines[0].startswith("cluster shop   1 of 2 nodes up")
    [mine] = [line for line in lines if line.startswith(ME)]
    assert mine.split() == [
        ME, "up", "50%", "4", "50", "1234", "7", "100", "7", "0.5", "leader,", "oldest",
    ]  # fmt: skip
    [other] = [line for line in lines if line.startswith(OTHER)]
    assert other.split()[1:4] == ["unreachable", "-", "-"]
    assert f"counter  {67 * 2}" in shell.out
    [counter] = [line for line in lines if line.startswith("counter  134")]
    assert counter.split()[3:13] == [
        "-", "250", "ms", "250", "ms", "1", "ms", "3", "4", "1.0",
    ]  # fmt: skip
    assert lines[1].startswith(f"warning: not-registered: counter {ME} is not")
    assert lines[2] == "lost: 10.0.0.8:1#1 at 2026-01-02, declared dead"
    assert "may be gone" not in shell.out, "it is not confirmed"
    assert "page  3" in lines[-1]


def test_as_many_pictures_as_asked_for_each_a_line_of_json(shell, url):
    assert shell("top", "--json", "--count", "2", "--every", "200ms") == ExitCode.OK
    pages = [json.loads(line) for line in shell.out.splitlines()]
    parts = ["cluster", "findings", "load", "nodes", "overview", "types"]
    assert [sorted(page) for page in pages] == [parts] * 2


def test_a_hostile_name_cannot_move_the_cursor():
    row = {"node": "\x1b[31mx", "status": "up", "reachable": True}
    pages = {
        "cluster": {"cluster": "a\nb", "coordinators": {}},
        "nodes": {"nodes": [row]},
        "types": {"types": [{"type": "\x1b[2J"}]},
        "load": {"nodes": []},
    }
    assert all(line.isprintable() for line in frame(pages, "http://x", "12:00:00"))


def test_another_node_is_asked_when_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    silent: set[str] = set()

    def read(self: NodeHttp, *path: str, **query: object) -> dict[str, object]:
        if self.url in silent:
            raise CommandFailure("no node", code=ExitCode.UNREACHABLE)
        return {"nodes": [{"http": "127.0.0.1:1"}, {"http": "127.0.0.1:2"}]}

    monkeypatch.setattr(NodeHttp, "read", read)
    watched = Watched("http://127.0.0.1:1")
    watched.pages()
    silent.add("http://127.0.0.1:1")
    watched.pages()
    assert watched.url == "http://127.0.0.1:2"
    silent.add("http://127.0.0.1:2")
    with pytest.raises(CommandFailure, match="no node"):
        watched.pages()


def test_no_node_is_an_error(shell, monkeypatch):
    monkeypatch.setenv("SHARDBUS_NODE_URL", "http://127.0.0.1:1")
    assert shell("top") == ExitCode.UNREACHABLE
    assert shell.err.count("\n") == 1


def test_on_a_terminal_it_draws_until_ctrl_c_and_gives_the_screen_back(url):
    """With a terminal of its own."""
    leader, follower = pty.openpty()
    command = "import sys; from shardbus_cli.main import run; sys.exit(run(sys.argv[1:]))"
    shown = [sys.executable, "-c", command, "top", "--every", "200ms", "--node", url]
    with subprocess.Popen(
        shown, stdin=follower, stdout=follower, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        os.close(follower)
        screen = _read_until(leader, "cluster shop", 2)
        assert screen.startswith(ENTER)
        process.send_signal(signal.SIGINT)
        assert _read_until(leader, LEAVE, 1).endswith(LEAVE)
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(leader)


def _read_until(terminal: int, text: str, times: int) -> str:
    """The terminal's content until this text has come so often."""
    output = ""
    while output.count(text) < times:
        assert select.select([terminal], [], [], PATIENCE_S)[0], output
        output += os.read(terminal, 65536).decode()
    return output
