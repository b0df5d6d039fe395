"""The process of one node of `shardbus dev` (`workers.child_process`): its words and its reports.

Nothing here imports asyncio or the library, whose import would take processor time from the nodes.
Threads read the reports and wait for the end of the process. The end is reported once, after all
reports.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from shardbus_cli.workers.child_process import start_child
from shardbus_cli.workers.prefixed_output import PrefixedOutput

START = "from shardbus_cli.dev.node_main import main; main()"
LAST_REPORTS_S = 1.0
"""For the last reports after the end; a child that the process left behind may keep the socket
open."""

Report = dict[str, Any]


class NodeProcess:
    """Starts and follows one process. `on_report` and `on_exited` are called in other threads;
    `on_exited` with the exit code, which is negative for a signal."""

    def __init__(
        self,
        number: int,
        on_report: Callable[[Report], None],
        on_exited: Callable[[int], None],
    ) -> None:
        self.number = number
        self._on_report, self._on_exited = on_report, on_exited
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def start(self, task: dict[str, Any], lock: int, output: PrefixedOutput) -> None:
        """Start the process. `task` is its description; `lock` a descriptor that it holds.

        Raises:
            OSError: the system cannot start a process. Nothing is left open.
        """
        self._process, self._socket = start_child(
            self.number, START, lambda fd: [json.dumps({**task, "fd": fd})], output, lock
        )
        threading.Thread(
            target=self._follow, args=(self._process,), name="shardbus-node", daemon=True
        ).start()

    def send(self, word: str) -> None:
        """Send one word to the process, if its socket is open."""
        with suppress(OSError):
            self._socket.send(f"{word}\n".encode("ascii"))

    def kill(self) -> None:
        """Kill the process and its group."""
        if self._process is not None and self._process.poll() is None:
            _kill_group(self._process.pid)

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        reading = threading.Thread(target=self._read_reports, name="shardbus-node", daemon=True)
        reading.start()
        # The group has the number of the process, which is not given away before it is waited for.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _kill_group(process.pid)
        code = process.wait()
        reading.join(LAST_REPORTS_S)
        self._socket.close()
        self._on_exited(code)

    def _read_reports(self) -> None:
        with suppress(OSError, ValueError), self._socket.makefile("rb") as lines:
            for line in lines:
                self._on_report(json.loads(line))


def _kill_group(group: int) -> None:
    """Kill what is left of a process group, such as programs that the application started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
