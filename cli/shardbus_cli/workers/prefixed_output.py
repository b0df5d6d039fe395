"""The output of the workers, with the worker's number in each line.

    [2] shardbus: handing off 12 shards              a line of text
    {"worker": 2, "time": ..., "level": ...}         a line of JSON stays JSON

A thread reads the pipes of all workers and writes whole lines, so that lines are never mixed, and a
stopped terminal does not stop the supervisor. Workers whose pipes are full wait, as a single node
waits for its terminal. A line longer than 64 KiB is cut into several.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

LINE_BYTES_MAX = 64 * 2**10
STDOUT, STDERR = 1, 2
CLOSE_S = 2.0


@dataclass(slots=True)
class _Pipe:
    """One pipe, whose lines go to `target`. `held` is the start of an incomplete line."""

    worker: int
    fd: int
    target: int
    held: bytes = b""


def marked(worker: int, line: bytes) -> bytes:
    """Return the line with the worker's number in it."""
    if line.startswith(b'{"') and line.endswith(b"}"):
        return b'{"worker": %d, %b' % (worker, line[1:])
    return b"[%d] %b" % (worker, line)


class PrefixedOutput:
    """Writes the lines of all workers to the descriptors `out` and `err`."""

    def __init__(self, out: int = STDOUT, err: int = STDERR) -> None:
        self._out, self._err = out, err
        self._selector = selectors.DefaultSelector()
        self._new: deque[_Pipe] = deque()
        self._wake_read, self._wake_write = os.pipe()
        self._closing = False
        self._thread = threading.Thread(
            target=self._run, name="shardbus-worker-output", daemon=True
        )

    def start(self) -> None:
        """Start the thread that reads the pipes."""
        os.set_blocking(self._wake_read, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread.start()

    def add(self, worker: int, *, out: int, err: int) -> None:
        """Read these pipes of a worker until they end, then close them."""
        self._new.extend((_Pipe(worker, out, self._out), _Pipe(worker, err, self._err)))
        os.write(self._wake_write, b"\n")

    def close(self) -> None:
        """Write the remaining output and stop; wait two seconds at most."""
        self._closing = True
        os.write(self._wake_write, b"\n")
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closing:
            self._read(None)
        while self._read(0):
            pass

    def _read(self, timeout: float | None) -> bool:
        """Read the pipes that are ready. Returns True if there was one."""
        ready = [key.data for key, _ in self._selector.select(timeout)]
        for pipe in ready:
            if pipe is None:
                with suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            else:
                self._read_pipe(pipe)
        while self._new:
            added = self._new.popleft()
            self._selector.register(added.fd, selectors.EVENT_READ, added)
        return bool(ready)

    def _read_pipe(self, pipe: _Pipe) -> None:
        data = os.read(pipe.fd, LINE_BYTES_MAX)
        *lines, rest = (pipe.held + data).split(b"\n")
        if not data or len(rest) > LINE_BYTES_MAX:
            lines, rest = ([*lines, rest] if rest else lines), b""
        pipe.held = rest
        if lines:
            text = b"".join(marked(pipe.worker, line) + b"\n" for line in lines)
            _write(pipe.target, text)
        if not data:
            self._selector.unregister(pipe.fd)
            os.close(pipe.fd)


def _write(target: int, text: bytes) -> None:
    """Write all of the text; give up if the descriptor has no reader any more."""
    with suppress(OSError):
        while text:
            text = text[os.write(target, text) :]
