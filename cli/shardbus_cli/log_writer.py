"""The lines of `logging`, written without waiting for their reader (`line_writer`).

Source: docs/reference/logs.md.
"""

from __future__ import annotations

import logging

from shardbus_cli.line_writer import DROPPED, LineWriter


class LogWriter(logging.Handler):
    """Writes lines to a file descriptor, in a thread of its own."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._writer = LineWriter(fd, self._of_dropped)
        self._writer.start()

    @property
    def dropped(self) -> int:
        """Lines dropped since the last report of them."""
        return self._writer.dropped

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line. Never waits."""
        try:
            line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
        except Exception:
            self.handleError(record)
            return
        self._writer.write(line)

    def _of_dropped(self, count: int) -> bytes:
        """Return the line that says how many lines were dropped, after the last that was not."""
        record = logging.LogRecord(
            "shardbus.log", logging.WARNING, __file__, 0, DROPPED, (count,), None
        )
        return f"{self.format(record)}\n".encode()

    def flush(self) -> None:
        """Wait until everything is written, for a second at most."""
        self._writer.flush()

    def close(self) -> None:
        """Write queued lines, if their reader takes them, and end the thread."""
        self._writer.close()
        super().close()
