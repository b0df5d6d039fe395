"""The supervisor's loop, with small programs as children: `shardbus_cli.children.supervisor`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from shardbus_cli.children.group import (
    FAILED,
    ChildClosed,
    ChildEffect,
    ChildEvent,
    ChildExited,
    ChildServes,
    CommandChild,
    EndAll,
    KillChild,
    NotStarted,
    SpawnChild,
    StartAll,
    Word,
)
from shardbus_cli.children.process import ChildKind
from shardbus_cli.children.supervisor import ChildSupervisor
from shardbus_cli.line_writer import Console
from tests.waiting import until

CHILD = """
import json, os, socket, sys
link = socket.socket(fileno=int(sys.argv[1]))
lines = link.makefile("rb")
def report(**facts): link.sendall(json.dumps(facts).encode() + b"\\n")
"""
SERVES = 'report(**{"is": "serves", "leave_within": 3, "pid": os.getpid()})\n'
WAITS = "sys.exit(int(lines.readline() == b'leave\\n') * 5)\n"

Answer = Callable[[ChildEvent], list[ChildEffect]]


class Script:
    """A machine that answers each event by a function, and keeps them."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.events: list[ChildEvent] = []
        self.reported: list[ChildEffect] = []

    ending: list[int] = []  # noqa: RUF012
    ends_by = 0.0

    def handle(self, event: ChildEvent, now: float) -> list[ChildEffect]:
        self.events.append(event)
        return self._answer(event)

    def deadline(self) -> float | None:
        return None

    def tick(self, now: float) -> list[ChildEffect]:
        return []


async def supervise(script: Script, code: str) -> tuple[int, ChildSupervisor]:
    supervisor = made(script, code)
    return await supervisor.run(), supervisor


def made(script: Script, code: str) -> ChildSupervisor:
    kind = ChildKind("child", CHILD + code)
    return ChildSupervisor(
        script, kind, lambda spawn, fd: [str(fd)], script.reported.append, Console(), ""
    )


def until_exit(event: ChildEvent) -> list[ChildEffect]:
    match event:
        case StartAll():
            return [SpawnChild(7, 2)]
        case ChildExited(code=code):
            return [EndAll(code)]
        case _:
            return []


async def test_the_exit_is_the_last_event_of_a_child_that_reports_much() -> None:
    script = Script(until_exit)
    many = 5_000
    lines = f"link.sendall({many} * (json.dumps({{'is': 'closed'}}) + '\\n').encode())"
    await supervise(script, f"{lines}; os._exit(0)")
    assert script.events == [StartAll(), *[ChildClosed(7)] * many, ChildExited(7, 0)]


async def test_words_reach_the_child() -> None:
    def answer(event: ChildEvent) -> list[ChildEffect]:
        serves = isinstance(event, ChildServes)
        return [CommandChild(7, Word.LEAVE)] if serves else until_exit(event)

    script = Script(answer)
    code, supervisor = await supervise(script, SERVES + WAITS)
    assert code == 5
    assert script.events == [StartAll(), ChildServes(7, 3.0), ChildExited(7, 5)]
    assert not supervisor.processes
    assert not supervisor.facts


async def test_a_child_is_killed() -> None:
    def answer(event: ChildEvent) -> list[ChildEffect]:
        return [KillChild(7)] if isinstance(event, ChildServes) else until_exit(event)

    code, _ = await supervise(Script(answer), SERVES + WAITS)
    assert code == -signal.SIGKILL


async def test_a_process_that_cannot_be_started_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    script = Script(until_exit)
    code, supervisor = await supervise(script, "")
    assert code == FAILED
    assert isinstance(script.reported[-2], NotStarted)
    assert not supervisor.processes


async def test_an_error_of_the_machine_ends_the_supervisor_and_its_children() -> None:
    def answer(event: ChildEvent) -> list[ChildEffect]:
        if isinstance(event, ChildServes):
            raise ValueError("a defect")
        return until_exit(event)

    script = Script(answer)
    supervisor = made(script, SERVES + WAITS)
    with pytest.raises(ValueError, match="a defect"):
        await supervisor.run()
    [process] = supervisor.processes.values()
    await until(lambda: not lives(process.pid), "the end of the child")


def lives(pid: int) -> bool:
    """True if there is a process with this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
