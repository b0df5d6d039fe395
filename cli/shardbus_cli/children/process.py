"""One child process: a socket for words and reports, and two pipes for its output.

The child is in a process group of its own, so that Ctrl-C on the terminal reaches only its parent.
It inherits no descriptors of other children, because a socket must close with the process at its
other end. Threads read the reports and wait for the end of the process. The end is reported once,
after all reports.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from shardbus.replica.interpreter import interpreter
from shardbus_cli.children.group import Report, Word
from shardbus_cli.children.prefixed_output import PrefixedOutput

LAST_REPORTS_S = 1.0
"""For the last reports after the end; a program that the child left behind may keep the socket
open."""


class ChildKind(msgspec.Struct, frozen=True):
    """How the children of a supervisor are started and named.

    Args:
        noun: "node" or "worker".
        code: the Python code that a child runs.
        whole_group: kill the programs that the application started, too.
        held: descriptors that each child inherits besides its socket.
    """

    noun: str
    code: str
    whole_group: bool = False
    held: tuple[int, ...] = ()


class ChildProcess:
    """A process that runs. `link` is the parent's end of its socket."""

    def __init__(
        self, kind: ChildKind, number: int, process: subprocess.Popen[bytes], link: socket.socket
    ) -> None:
        self.number, self.pid = number, process.pid
        self._process, self._link = process, link
        self._end = os.killpg if kind.whole_group else os.kill

    def follow(
        self, on_report: Callable[[Report], object], on_exited: Callable[[int], object]
    ) -> None:
        """Call `on_report` with each report, and `on_exited` with the exit code, which is negative
        for a signal. Both are called in other threads."""
        _in_thread(self._follow, on_report, on_exited)

    def send(self, word: Word) -> None:
        """Send one word to the process, if its socket is open."""
        with suppress(OSError):
            self._link.send(f"{word.value}\n".encode("ascii"))

    def kill(self) -> None:
        """Kill the process, and its group if the kind of child requires it."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                self._end(self.pid, signal.SIGKILL)

    def _follow(
        self, on_report: Callable[[Report], object], on_exited: Callable[[int], object]
    ) -> None:
        reading = _in_thread(self._read_reports, on_report)
        # The process has its number, which is also its group's, until it is waited for.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.kill()
        code = self._process.wait()
        reading.join(LAST_REPORTS_S)
        self._link.close()
        on_exited(code)

    def _read_reports(self, on_report: Callable[[Report], object]) -> None:
        with suppress(OSError, ValueError), self._link.makefile("rb") as lines:
            for line in lines:
                on_report(json.loads(line))


def start_child(
    kind: ChildKind,
    number: int,
    arguments: Callable[[int], Sequence[str]],
    output: PrefixedOutput,
) -> ChildProcess:
    """Start the process of a child. `arguments` returns its arguments for the descriptor of its end
    of the socket; `output` prints its output.

    Raises:
        OSError: the system cannot start a process. Nothing is left open.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(  # noqa: S603  (a fixed command)
                [*interpreter(kind.code), *arguments(theirs.fileno())],
                bufsize=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={name: v for name, v in os.environ.items() if name != "NOTIFY_SOCKET"},
                pass_fds=[theirs.fileno(), *kind.held],
                process_group=0,
            )
        except OSError:
            ours.close()
            raise
    assert process.stdout is not None
    assert process.stderr is not None
    output.add(number, out=process.stdout, err=process.stderr)
    return ChildProcess(kind, number, process, ours)


def _in_thread(function: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, name="shardbus-child", daemon=True)
    thread.start()
    return thread
