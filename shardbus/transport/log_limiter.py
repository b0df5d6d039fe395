"""The log of sessions and connections, with a limit on its rate.

Any process that can connect could fill this log. So of one text at most `LINES` lines appear in
`EVERY_S` seconds, whatever its arguments are, and the next line says how many were left out. Counts
are not limited.

Source: docs/guarantees.md.
"""

from __future__ import annotations

import logging

from shardbus.guarded_log import GuardedLog
from shardbus.quantities import counted

LINES = 10
EVERY_S = 10.0
TEXTS_MAX = 100


class LogRateLimiter(logging.Filter):
    """Limits the lines of each text. A text is a line without its arguments."""

    def __init__(self, lines: int = LINES, every_s: float = EVERY_S) -> None:
        super().__init__()
        self._lines_max, self._every_s = lines, every_s
        self._lines: dict[str, tuple[float, int]] = {}
        """Start of the interval of each text, and its lines since then."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        since, lines = self._lines.get(text, (record.created, 0))
        left_out = 0
        if not 0 <= record.created - since < self._every_s:
            left_out, since, lines = max(0, lines - self._lines_max), record.created, 0
        if text not in self._lines and len(self._lines) >= TEXTS_MAX:
            del self._lines[next(iter(self._lines))]
        self._lines[text] = (since, lines + 1)
        if left_out:
            lines_like_it = counted(left_out, "line like it was", "lines like it were")
            record.msg = f"{text} ({lines_like_it} left out)"
        return lines < self._lines_max


log = GuardedLog("shardbus.link", LogRateLimiter())
