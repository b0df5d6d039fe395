"""Writes lines to a descriptor without ever waiting for its reader.

A process whose output goes to a pipe stands still with the reader of that pipe: a write to a full
pipe blocks, and with it the event loop and every entity. So lines go into a queue, and a thread
writes them. The queue is bounded, in lines and in bytes. A line that finds no room is dropped and
counted; once there is room again, a line says how many were.

At the end of the process queued lines are written for `FLUSH_S` at most. Then they are left: a
process must not wait for its reader to end.

    LogWriter    the lines of `logging`
    LineStream   the same for handlers that the application has made
    Console      the lines of a command that runs for long: that it is ready, and how it ends

Only lines of shardbus go this way. A `print` of the application waits for its reader.

Source: docs/reference/logs.md.
"""

from __future__ import annotations

import atexit
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from shardbus_cli.output import escape

LINES_MAX = 10_000
BYTES_MAX = 4 * 1024 * 1024
"""The bounds of the queue."""
FLUSH_S = 1.0
"""Seconds in which the end of the process waits for the reader."""
DROPPED = "%d lines of the log were dropped: what reads it stood still"


class LineWriter:
    """Writes lines to a file descriptor, in a thread that begins with the first line. `of_dropped`
    makes the line that says how many were dropped."""

    def __init__(self, fd: int, of_dropped: Callable[[int], bytes]) -> None:
        self.dropped = 0
        """Lines dropped since the last report of them."""
        self._fd, self._of_dropped = fd, of_dropped
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._room = threading.Condition()
        self._writing = self._closed = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def write(self, line: bytes) -> None:
        """Queue a line. Never waits."""
        if os.getpid() != self._pid:  # the thread does not run in a child process
            os.write(self._fd, line)
            return
        with self._room:
            full = len(self._lines) >= LINES_MAX or self._bytes + len(line) > BYTES_MAX
            if full or self._closed:
                self.dropped += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            self._room.notify_all()
        self.start()

    def start(self) -> None:
        """Start the thread, unless it runs or the system cannot start one now."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="shardbus-output", daemon=True)
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def flush(self, within_s: float | None = None) -> None:
        """Wait until everything is written, for `within_s` (`FLUSH_S`) at most."""
        end = time.monotonic() + (FLUSH_S if within_s is None else within_s)
        with self._room:
            while self._lines or self._writing:
                left = end - time.monotonic()
                if left <= 0 or self._thread is None or not self._thread.is_alive():
                    return
                self._room.wait(left)

    def close(self) -> None:
        """Write queued lines, if their reader takes them, and end the thread."""
        self.flush()
        with self._room:
            self._closed = True
            self._room.notify_all()

    def _run(self) -> None:
        while True:
            with self._room:
                self._writing = False
                self._room.notify_all()
                while not self._lines and not self.dropped:
                    if self._closed:
                        return
                    self._room.wait()
                line = self._lines.popleft() if self._lines else self._take_dropped()
                self._bytes = max(0, self._bytes - len(line))
                self._writing = True
            write_all(self._fd, line)

    def _take_dropped(self) -> bytes:
        count, self.dropped = self.dropped, 0
        return self._of_dropped(count)


def write_all(fd: int, text: bytes) -> None:
    """Write all of the text; give up if the descriptor has no reader any more."""
    while text:
        try:
            text = text[os.write(fd, text) :]
        except BlockingIOError:  # another process has made the descriptor so
            select.select((), (fd,), ())
        except OSError:
            return


class LineStream:
    """A stream for a handler of `logging`, which writes a line at a time."""

    def __init__(self, fd: int) -> None:
        self._writer = LineWriter(fd, _of_dropped)
        atexit.register(self._writer.flush)

    def write(self, text: str) -> None:
        """Queue a line. Never waits."""
        self._writer.write(text.encode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        """Do nothing: a handler calls this after each line, and must not wait."""


class Console:
    """Standard output and standard error of a command that runs for long."""

    def __init__(self) -> None:
        self._out, self._err = _writer_of(sys.stdout), _writer_of(sys.stderr)

    def data(self, text: str) -> None:
        """Print lines on standard output."""
        _queue(self._out, text if text.endswith("\n") else f"{text}\n")

    def note(self, text: str) -> None:
        """Print a line on standard error."""
        _queue(self._err, f"{escape(text)}\n")

    def flush(self) -> None:
        """Wait until everything is written, for `FLUSH_S` at most."""
        end = time.monotonic() + FLUSH_S
        for writer in (self._out, self._err):
            if isinstance(writer, LineWriter):
                writer.flush(max(0.0, end - time.monotonic()))


def _writer_of(stream: TextIO | None) -> LineWriter | TextIO | None:
    """Return a writer to the descriptor of a stream, or the stream if it has none, as in tests;
    None if the process was started without it."""
    if stream is None:
        return None
    try:
        return LineWriter(stream.fileno(), _of_dropped)
    except OSError:
        return stream


def _of_dropped(count: int) -> bytes:
    return f"shardbus: {DROPPED % count}\n".encode()


def _queue(writer: LineWriter | TextIO | None, text: str) -> None:
    if isinstance(writer, LineWriter):
        writer.write(text.encode("utf-8", "backslashreplace"))
    elif writer is not None:
        writer.write(text)
