"""Logs of a node on standard error: for people on a terminal, JSON lines otherwise.

The library logs to `shardbus.*` with extra fields and does not configure logging; only this module
does. Control characters are escaped in both forms, so a message can forge neither a line nor a
colour.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

from shardbus_cli.output import escape

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
COLORS = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31", logging.DEBUG: "2"}


def extras(record: logging.LogRecord) -> dict[str, object]:
    """Return the extra fields of the caller."""
    return {name: value for name, value in vars(record).items() if name not in STANDARD}


class PrettyFormatter(logging.Formatter):
    """`12:00:00.123 INFO  shardbus.runtime  text  field=value`, and a traceback if there is one."""

    def __init__(self, *, color: bool) -> None:
        super().__init__()
        self.color = color

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock}.{int(record.msecs):03d} {record.levelname:<7} {record.name}"
        fields = "".join(f"  {name}={value}" for name, value in extras(record).items())
        line = escape(f"{head}  {record.getMessage()}{fields}")
        if self.color and (color := COLORS.get(record.levelno)):
            line = f"\x1b[{color}m{line}\x1b[0m"
        if record.exc_info:
            trace = self.formatException(record.exc_info).splitlines()
            line = "\n".join([line, *map(escape, trace)])
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the extra fields, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, object] = {
            "time": f"{clock}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in extras(record).items():
            entry.setdefault(name, value)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure(level: str, form: str, stream: TextIO | None = None) -> None:
    """Send logs to `stream` (standard error): those of shardbus from `level` on, others' warnings.

    `form` is auto, pretty or json.
    """
    target: TextIO = stream or sys.stderr
    terminal = target.isatty()
    pretty = form == "pretty" or (form == "auto" and terminal)
    handler = logging.StreamHandler(target)
    handler.setFormatter(PrettyFormatter(color=terminal) if pretty else JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("shardbus").setLevel(level.upper())
    logging.captureWarnings(True)
