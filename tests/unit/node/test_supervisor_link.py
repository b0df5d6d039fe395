"""The link to a supervisor: reports, commands in their order, and the end of the supervisor."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from queue import Queue

import pytest

from shardbus.node import supervisor_link
from shardbus.node.supervisor_link import LoopCaller, SupervisorLink
from tests.waiting import PATIENCE_S


class Node:
    """A node that writes down its commands."""

    def __init__(self) -> None:
        self.commands: Queue[str] = Queue()

    def close(self) -> None:
        self.commands.put("close")

    def leave(self) -> None:
        self.commands.put("leave")

    def stop(self) -> None:
        self.commands.put("stop")

    def next(self) -> str:
        return self.commands.get(timeout=PATIENCE_S)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, int]]:
    """The supervisor's end, and the descriptor of the node's end."""
    monkeypatch.setattr(supervisor_link, "_discard_output", lambda: None)
    supervisor, node = socket.socketpair()
    before = set(threading.enumerate())
    with supervisor:
        yield supervisor, node.detach()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)


def test_commands_reach_the_node_and_the_end_of_the_supervisor_is_one(
    sockets: tuple[socket.socket, int],
) -> None:
    supervisor, fd = sockets
    link, node = SupervisorLink(fd), Node()
    link.attach(node)
    link.hold()
    supervisor.sendall(b"close\nle")
    assert node.next() == "close"
    supervisor.sendall(b"ave\nstop\n")
    assert [node.next(), node.next()] == ["leave", "stop"]
    supervisor.close()
    assert node.next() == "leave"


def test_a_command_that_is_none_lets_the_node_leave(sockets: tuple[socket.socket, int]) -> None:
    supervisor, fd = sockets
    link, node = SupervisorLink(fd), Node()
    link.attach(node)
    link.hold()
    supervisor.sendall(b"\xff\xfe\n")
    assert node.next() == "leave"


STARTING = """
import sys, threading
from shardbus.node.supervisor_link import SupervisorLink
SupervisorLink(int(sys.argv[1])).hold()
threading.Event().wait()
"""


def test_a_command_before_the_node_has_started_ends_the_process(
    sockets: tuple[socket.socket, int],
) -> None:
    supervisor, fd = sockets
    starting = subprocess.Popen([sys.executable, "-c", STARTING, str(fd)], pass_fds=[fd])
    os.close(fd)
    supervisor.sendall(b"leave\n")
    assert starting.wait(PATIENCE_S) == supervisor_link.OK


def test_a_report_is_one_line_and_no_error_without_a_supervisor(
    sockets: tuple[socket.socket, int],
) -> None:
    supervisor, fd = sockets
    link = SupervisorLink(fd)
    link.report("serves", address="a:1", text="two\nlines")
    with supervisor.makefile("rb") as lines:
        line = lines.readline()
    assert json.loads(line) == {"is": "serves", "address": "a:1", "text": "two\nlines"}
    supervisor.close()
    for _ in range(2):
        link.report("ready")


async def test_a_call_into_the_loop_runs_there_and_a_deadline_begins_at_once() -> None:
    log: list[str] = []
    loop = asyncio.get_running_loop()
    caller = LoopCaller(
        loop,
        lambda: log.append("close"),
        lambda: log.append("leave"),
        lambda: log.append("stop"),
        lambda: log.append("late"),
    )
    caller.close()
    caller.leave()
    caller.stop()
    assert log == ["late", "late"], "the loop may be blocked"
    await asyncio.sleep(0)
    assert log[2:] == ["close", "leave", "stop"]


def test_a_call_into_a_loop_that_has_ended_is_no_error() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    log: list[str] = []
    nothing = log.clear
    LoopCaller(loop, nothing, nothing, nothing, lambda: log.append("late")).leave()
    assert log == ["late"]
