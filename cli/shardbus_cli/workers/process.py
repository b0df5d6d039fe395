"""One worker's process: started with a socket to talk over and two pipes for what it prints.

Its end is told once, after everything that it had said before. It is in a process group of its own,
so that a Ctrl-C on the terminal reaches the supervisor alone. Descriptors of other workers are not
inherited: a socket must end with the process that holds its other side.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from shardbus_cli.workers.prefixed_output import PrefixedOutput

START = "from shardbus_cli.main import main; main()"
LINE_BYTES_MAX = 64 * 2**10

Said = Callable[[dict[str, Any]], None]


class WorkerProcess:
    """See the module. `on_said` is called with each thing the worker reports, `on_ended` with its
    exit code, below 0 by that signal."""

    def __init__(self, number: int, on_said: Said, on_ended: Callable[[int], None]) -> None:
        self.number = number
        self._on_said, self._on_ended = on_said, on_ended
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def start(self, command: Callable[[int], Sequence[str]], speech: PrefixedOutput) -> None:
        """Start it. `command` gives its arguments for the number of its descriptor.

        Raises:
            OSError: the system starts no process. Nothing is left open.
        """
        self._socket, theirs = socket.socketpair()
        pipes = os.pipe(), os.pipe()
        ends = [theirs.fileno(), pipes[0][1], pipes[1][1]]
        try:
            self._process = subprocess.Popen(  # noqa: S603  (our own words)
                [sys.executable, "-c", START, *command(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=pipes[0][1],
                stderr=pipes[1][1],
                env={name: v for name, v in os.environ.items() if name != "NOTIFY_SOCKET"},
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        except OSError:
            self._socket.close()
            ends += [pipes[0][0], pipes[1][0]]
            raise
        finally:
            theirs.detach()
            for fd in ends:
                os.close(fd)
        speech.listen(self.number, out=pipes[0][0], err=pipes[1][0])
        self._watch = asyncio.ensure_future(self._follow(self._process))

    def tell(self, word: str) -> None:
        """Say one word to the worker, if it still listens."""
        with suppress(OSError):
            self._socket.send(f"{word}\n".encode())

    def kill(self) -> None:
        """End it by force."""
        if self._process is not None:
            self._process.kill()

    async def _follow(self, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()
        _in_thread(process, lambda code: loop.call_soon_threadsafe(ended.set_result, code))
        reader, writer = await asyncio.open_connection(sock=self._socket, limit=LINE_BYTES_MAX)
        heard = asyncio.ensure_future(self._hear(reader))
        code = await ended
        # What it had said is in the socket; a process that it left behind may still hold the end.
        await asyncio.wait((heard,), timeout=1.0)
        heard.cancel()
        writer.close()
        self._on_ended(code)

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, ValueError):
            while line := await reader.readline():
                self._on_said(json.loads(line))


def _in_thread(process: subprocess.Popen[bytes], done: Callable[[int], object]) -> None:
    """Wait for a process where it keeps nobody waiting."""
    from threading import Thread

    def wait() -> None:
        code = process.wait()
        with suppress(RuntimeError):  # the loop has ended
            done(code)

    Thread(target=wait, name=f"shardbus-worker-{process.pid}", daemon=True).start()
