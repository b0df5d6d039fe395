"""The process of one worker (`child_process`): its commands and its reports.

The end of the process is reported once, after all of its reports.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from shardbus.task_set import watch
from shardbus_cli.workers.child_process import start_child
from shardbus_cli.workers.prefixed_output import PrefixedOutput

START = "from shardbus_cli.main import main; main()"
LINE_BYTES_MAX = 64 * 2**10

OnReport = Callable[[dict[str, Any]], None]


class WorkerProcess:
    """Starts and follows the process of worker `number`. `on_report` is called with each report,
    `on_exited` with the exit code, which is negative for a signal."""

    def __init__(self, number: int, on_report: OnReport, on_exited: Callable[[int], None]) -> None:
        self.number = number
        self._on_report, self._on_exited = on_report, on_exited
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def start(self, command: Callable[[int], Sequence[str]], output: PrefixedOutput) -> None:
        """Start the process. `command` returns its arguments for the descriptor of its socket.

        Raises:
            OSError: the system cannot start a process. Nothing is left open.
        """
        self._process, self._socket = start_child(self.number, START, command, output)
        self._watch = watch(asyncio.create_task(self._follow(self._process)))

    def send(self, word: str) -> None:
        """Send one word to the worker, if its socket is open."""
        with suppress(OSError):
            self._socket.send(f"{word}\n".encode())

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()

    async def _follow(self, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()
        _in_thread(process, lambda code: loop.call_soon_threadsafe(ended.set_result, code))
        reader, writer = await asyncio.open_connection(sock=self._socket, limit=LINE_BYTES_MAX)
        reading = watch(asyncio.create_task(self._read_reports(reader)))
        code = await ended
        # Its last reports are in the socket. A child that it left behind may keep the socket open.
        await asyncio.wait((reading,), timeout=1.0)
        reading.cancel()
        writer.close()
        self._on_exited(code)

    async def _read_reports(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, ValueError):
            while line := await reader.readline():
                self._on_report(json.loads(line))


def _in_thread(process: subprocess.Popen[bytes], done: Callable[[int], object]) -> None:
    """Wait for a process in a thread, so that the loop is not blocked."""
    from threading import Thread

    def wait() -> None:
        code = process.wait()
        with suppress(RuntimeError):  # the loop has ended
            done(code)

    Thread(target=wait, name=f"shardbus-worker-{process.pid}", daemon=True).start()
