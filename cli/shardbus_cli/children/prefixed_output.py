"""The output of the workers, with the worker's number in each line.

    [2] shardbus: handing off 12 shards              a line of text
    {"worker": 2, "time": ..., "level": ...}         a line of JSON stays JSON

For standard output and for standard error a thread of its own reads the pipes of all workers and
writes whole lines, so that lines are never mixed, a stopped terminal does not stop the supervisor,
and a reader of one of the two that stands still does not stop the other. Workers whose pipes are
full wait, as a single node waits for its terminal: shardbus's own lines never wait there
(`line_writer`). A line longer than 64 KiB is cut into several.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections import deque
from contextlib import suppress
from typing import IO

import msgspec

from shardbus_cli.line_writer import write_all

LINE_BYTES_MAX = 64 * 2**10
STDOUT, STDERR = 1, 2
CLOSE_S = 2.0


class _Pipe(msgspec.Struct):
    """One pipe. `held` is the start of an incomplete line."""

    worker: int
    file: IO[bytes]
    held: bytes = b""


def marked(worker: int, line: bytes) -> bytes:
    """Return the line with the worker's number in it."""
    if line.startswith(b'{"') and line.endswith(b"}"):
        return b'{"worker": %d, %b' % (worker, line[1:])
    return b"[%d] %b" % (worker, line)


class PrefixedOutput:
    """Writes the lines of all workers to the descriptors `out` and `err`."""

    def __init__(self, out: int = STDOUT, err: int = STDERR) -> None:
        self._out, self._err = _Relay(out), _Relay(err)

    def start(self) -> None:
        """Start the threads that read the pipes."""
        self._out.start()
        self._err.start()

    def add(self, worker: int, *, out: IO[bytes], err: IO[bytes]) -> None:
        """Read these pipes of a worker until they end, then close them."""
        self._out.add(worker, out)
        self._err.add(worker, err)

    def close(self) -> None:
        """Write the remaining output and stop; wait two seconds at most."""
        end = time.monotonic() + CLOSE_S
        self._out.close()
        self._err.close()
        for relay in (self._out, self._err):
            relay.join(max(0.0, end - time.monotonic()))


class _Relay:
    """Writes the lines of some pipes to one descriptor."""

    def __init__(self, target: int) -> None:
        self._target = target
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

    def add(self, worker: int, file: IO[bytes]) -> None:
        """Read this pipe until it ends, then close it."""
        self._new.append(_Pipe(worker, file))
        self._wake()

    def close(self) -> None:
        """Write the remaining output, then stop."""
        self._closing = True
        self._wake()

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(seconds)

    def _wake(self) -> None:
        os.write(self._wake_write, b"\n")

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
            self._selector.register(added.file, selectors.EVENT_READ, added)
        return bool(ready)

    def _read_pipe(self, pipe: _Pipe) -> None:
        data = os.read(pipe.file.fileno(), LINE_BYTES_MAX)
        *lines, rest = (pipe.held + data).split(b"\n")
        if not data or len(rest) > LINE_BYTES_MAX:
            lines, rest = ([*lines, rest] if rest else lines), b""
        pipe.held = rest
        if lines:
            text = b"".join(marked(pipe.worker, line) + b"\n" for line in lines)
            write_all(self._target, text)
        if not data:
            self._selector.unregister(pipe.file)
            pipe.file.close()
