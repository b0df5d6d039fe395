"""The log of links, which strangers can fill: whatever they send may be worth a line.

So of one text `LINES` lines come in `EVERY_S` seconds, whatever stands in its gaps, and the next
line says how many were left out. What is counted is counted every time.

Source: docs/guarantees.md.
"""

from __future__ import annotations

import logging

LINES = 10
EVERY_S = 10.0
TEXTS_MAX = 100


class LogRateLimiter(logging.Filter):
    """See the module. A text is a line without what is filled in."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, tuple[float, int]] = {}
        """When its time began, and how many lines there were since."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        since, lines = self._said.get(text, (record.created, 0))
        left_out = 0
        if not 0 <= record.created - since < EVERY_S:
            left_out, since, lines = max(0, lines - LINES), record.created, 0
        if text not in self._said and len(self._said) >= TEXTS_MAX:
            del self._said[next(iter(self._said))]
        self._said[text] = (since, lines + 1)
        if left_out:
            record.msg = f"{text} ({left_out} lines like it were left out)"
        return lines < LINES


log = logging.getLogger("shardbus.link")
log.addFilter(LogRateLimiter())
