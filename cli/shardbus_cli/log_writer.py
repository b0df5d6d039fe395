"""Writes the log without ever waiting for what reads it.

A node that logs to a pipe whose reader stands still would stand still with it: a write to a full
pipe blocks, and with it the event loop and every entity. So lines go into a queue, and a thread
writes them. The queue is bounded, in lines and in bytes. A line that finds no room is dropped and
counted; once there is room again, a line says how many were.

At the end of the process what is queued is written for `FLUSH_S` at most. Then it is left: a
process must not wait for its reader to end.

Source: docs/reference/logs.md.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque

LINES_MAX = 10_000
BYTES_MAX = 4 * 1024 * 1024
"""What waits, at most."""
FLUSH_S = 1.0
"""Seconds in which the end of the process waits for the reader."""
DROPPED = "%d lines of the log were dropped: what reads it stood still"


class LogWriter(logging.Handler):
    """Writes lines to a file descriptor, in a thread of its own."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.dropped = 0
        """Lines dropped since the last that says so."""
        self._fd = fd
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._room = threading.Condition()
        self._writing = self._closed = False
        self._thread = threading.Thread(target=self._write, name="shardbus-log", daemon=True)
        self._thread.start()
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line. Never waits."""
        try:
            line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
        except Exception:
            self.handleError(record)
            return
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

    def _write(self) -> None:
        while True:
            with self._room:
                self._writing = False
                self._room.notify_all()
                while not self._lines and not self.dropped:
                    if self._closed:
                        return
                    self._room.wait()
                line = self._lines.popleft() if self._lines else self._of_dropped()
                self._bytes = max(0, self._bytes - len(line))
                self._writing = True
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:  # nothing reads it any more
                continue

    def _of_dropped(self) -> bytes:
        """Return the line that says how many lines were dropped, after the last that was not."""
        count, self.dropped = self.dropped, 0
        record = logging.LogRecord(
            "shardbus.log", logging.WARNING, __file__, 0, DROPPED, (count,), None
        )
        return f"{self.format(record)}\n".encode()

    def flush(self) -> None:
        """Wait until everything is written, for `FLUSH_S` at most."""
        end = time.monotonic() + FLUSH_S
        with self._room:
            while self._lines or self._writing:
                left = end - time.monotonic()
                if left <= 0 or not self._thread.is_alive():
                    return
                self._room.wait(left)

    def close(self) -> None:
        """Write what is queued, if its reader takes it, and end the thread."""
        self.flush()
        with self._room:
            self._closed = True
            self._room.notify_all()
        super().close()
