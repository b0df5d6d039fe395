"""Addresses and folder of the nodes of `shardbus dev`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shardbus.config.loading import from_assignments, load
from shardbus_cli.dev import layout
from shardbus_cli.dev.layout import DevFolder, check_free, places
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from tests.ports import free_block


def test_the_ports_of_nodes_are_ten_apart() -> None:
    ports = places(3, 7355, 8558)
    assert [node.address for node in ports] == [f"127.0.0.1:{port}" for port in (7355, 7365, 7375)]
    assert [node.url for node in ports] == [f"http://127.0.0.1:{p}" for p in (8558, 8568, 8578)]


@pytest.mark.parametrize(
    ("nodes", "port", "http_port", "text"),
    [
        (2, 7000, 7010, "port 7010 would be that of HTTP of node 1 and of messages of node 2"),
        (1, 7000, 7001, "port 7001 would be that of gossip of node 1 and of HTTP of node 1"),
        (1, 65535, 80, "the port of gossip of node 1 would be 65536"),
        (2, 80, 90, "port 90 would be"),
    ],
)
def test_ports_that_meet_or_do_not_exist_are_refused(
    nodes: int, port: int, http_port: int, text: str
) -> None:
    with pytest.raises(CommandFailure, match=f"{text}.*; choose --") as refused:
        places(nodes, port, http_port)
    assert refused.value.code is ExitCode.USAGE


def test_a_port_that_is_taken_is_named() -> None:
    port = free_block(3)
    taken = places(1, port, port + 2)
    check_free(taken)
    with (
        socket.create_server(("127.0.0.1", port + 1)),
        pytest.raises(
            CommandFailure, match=f"port {port + 1}, for gossip of node 1, cannot be used"
        ),
    ):
        check_free(taken)


def test_the_settings_of_dev_are_settings() -> None:
    weak = layout.WEAK | {"http.token_file": "token"}
    settings = load(from_assignments([f"{key}={value}" for key, value in weak.items()]))
    assert settings.cluster.gossip_interval == 0.2
    assert settings.http.write


def test_the_folder_has_a_token_and_is_no_part_of_a_repository(tmp_path: Path) -> None:
    folder = DevFolder(tmp_path)
    folder.open(fresh=False)
    assert folder.token.stat().st_mode & 0o777 == 0o600
    token = folder.token.read_text()
    assert len(token.strip()) == 32
    assert (tmp_path / ".shardbus/.gitignore").read_text() == "*\n"
    (tmp_path / ".shardbus/state.db").write_text("state")
    os.close(folder.lock)
    again = DevFolder(tmp_path)
    again.open(fresh=False)
    assert (tmp_path / ".shardbus/state.db").exists()
    assert again.token.read_text() == token
    os.close(again.lock)
    fresh = DevFolder(tmp_path)
    fresh.open(fresh=True)
    assert not (tmp_path / ".shardbus/state.db").exists()
    os.close(fresh.lock)


def test_a_second_dev_in_a_directory_is_refused_at_once(tmp_path: Path) -> None:
    folder = DevFolder(tmp_path)
    folder.open(fresh=False)
    with pytest.raises(CommandFailure, match=rf"another `shardbus dev` \(process {os.getpid()}\)"):
        DevFolder(tmp_path).open(fresh=False)
    os.close(folder.lock)


HOLDS = """
import sys
from pathlib import Path
from shardbus_cli.dev.layout import DevFolder
import os, subprocess
folder = DevFolder(Path(sys.argv[1]))
folder.open(fresh=False)
node = subprocess.Popen(["cat"], stdin=0, pass_fds=[folder.lock])
os.kill(os.getpid(), 9)
"""


def test_nodes_of_a_dev_that_was_killed_are_waited_for(tmp_path: Path) -> None:
    """`cat` has the lock, as a node does, until its input ends."""
    dead = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, cwd=Path.cwd()
    )
    assert dead.wait(60) == -9
    assert dead.stdin is not None
    dead.stdin.close()
    folder = DevFolder(tmp_path)
    folder.open(fresh=False)
    os.close(folder.lock)


def test_a_folder_that_cannot_be_made_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / ".shardbus").write_text("a file")
    with pytest.raises(CommandFailure, match="cannot be used"):
        DevFolder(tmp_path).open(fresh=False)
