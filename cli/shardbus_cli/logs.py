"""Logs of a node on standard error: for people on a terminal, JSON lines otherwise.

The library logs to `shardbus.*` and does not configure logging; only this module does. Each line of
shardbus gets the name of its event and fields (`shardbus.log_events`). Control characters are
escaped in both forms, so a message can forge neither a line nor a colour.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Any, TextIO

from shardbus.error_text import traceback_of
from shardbus.log_events import event_of, fields_of
from shardbus.transport.log_limiter import LogRateLimiter
from shardbus_cli.line_writer import LineStream
from shardbus_cli.log_writer import LogWriter
from shardbus_cli.output import escape

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
COLORS = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31", logging.DEBUG: "2"}
RECENT, RECENT_CHARACTERS = 500, 4000
"""Lines that are kept for operators to read, and the characters of each."""
UNSHOWN = ("event", "node", "epoch")
"""Fields for machines, which a terminal lacks: the text and the terminal say as much."""
LINES, EVERY_S = 100, 10.0
"""At most `LINES` lines of one text in `EVERY_S` seconds; the next one counts those left out."""


def extras(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that a caller of `logging` has added to a line."""
    return {name: value for name, value in vars(record).items() if name not in STANDARD}


def fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of a line: its event, the event's arguments, and the caller's."""
    event = event_of(record)
    named = {} if event is None else {"event": event.name, **fields_of(record, event)}
    return {**named, **extras(record)}


class OwnLines(LogRateLimiter):
    """Limits the lines of shardbus, and leaves the application's alone."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.name.startswith("shardbus.") or super().filter(record)


class Place(logging.Filter):
    """Adds the node's name, and the trace of the handler that logs, to each line; to a line of the
    application also the entity whose handler logs. Lines of shardbus name their entities."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def filter(self, record: logging.LogRecord) -> bool:
        if self._node:
            record.node = self._node
        traces: Any = sys.modules.get("opentelemetry.trace")
        if traces is not None:
            context = traces.get_current_span().get_span_context()
            if context.is_valid:
                record.trace_id = f"{context.trace_id:032x}"
                record.span_id = f"{context.span_id:016x}"
        if not record.name.startswith("shardbus."):
            self._add_entity(record)
        return True

    @staticmethod
    def _add_entity(record: logging.LogRecord) -> None:
        handlers: Any = sys.modules.get("shardbus.entities.running_handlers")
        running = handlers.entity_now() if handlers is not None else None
        if running is not None:
            entity_type, activation = running
            shard = activation.shard
            about = {"entity_type": entity_type, "entity_id": activation.key}
            for name, value in {**about, "shard": shard.shard, "fence": shard.fence}.items():
                vars(record).setdefault(name, value)


class RecentLines(logging.Filter):
    """Keeps the last lines of shardbus as JSON, for `/v1/log`. Lines of the application are its
    own business. Lets every line pass."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=RECENT)
        self._formatter = JsonFormatter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("shardbus."):
            self.lines.append(self._formatter.format(record)[:RECENT_CHARACTERS])
        return True


def recent_lines() -> list[str]:
    """Return the last lines that `configure` has kept, oldest first."""
    filters = (f for handler in logging.getLogger().handlers for f in handler.filters)
    kept = (f for f in filters if isinstance(f, RecentLines))
    return [line for recent in kept for line in recent.lines.copy()]


def traceback_text(record: logging.LogRecord) -> str:
    """Return the traceback of a line; empty if it has none."""
    error = record.exc_info[1] if record.exc_info else None
    return record.exc_text or ("" if error is None else traceback_of(error))


class PrettyFormatter(logging.Formatter):
    """`12:00:00.123 INFO  shardbus.runtime  text  field=value`, and a traceback if there is one.
    Only with fields that people need and the text does not have."""

    def __init__(self, *, color: bool) -> None:
        super().__init__()
        self.color = color

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock}.{int(record.msecs):03d} {record.levelname:<7} {record.name}"
        text = record.getMessage()
        fields = ((name, value) for name, value in extras(record).items() if name not in UNSHOWN)
        more = "".join(f"  {name}={value}" for name, value in fields if str(value) not in text)
        line = escape(f"{head}  {text}{more}")
        if self.color and (color := COLORS.get(record.levelno)):
            line = f"\x1b[{color}m{line}\x1b[0m"
        if trace := traceback_text(record).splitlines():
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
        for name, value in fields(record).items():
            entry.setdefault(name, value)
        if trace := traceback_text(record):
            entry["exception"] = trace
        return json.dumps(entry, default=str)


def unblock_handlers() -> None:
    """Let no handler of `logging` that the application has made wait for the reader of standard
    output or standard error. Called once the application is loaded."""
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            stream = getattr(handler, "stream", None)
            if type(handler) is not logging.StreamHandler or stream is None:
                continue
            if stream in (sys.stdout, sys.stderr):
                with suppress(OSError):  # it is no file, as in tests
                    handler.setStream(LineStream(stream.fileno()))


def enable_loggers() -> None:
    """Switch the loggers of shardbus on again: `logging.config.dictConfig` of the application
    switches off all loggers that exist, unless it says `"disable_existing_loggers": False`. Called
    once the application is loaded."""
    for name, logger in logging.Logger.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and f"{name}.".startswith("shardbus."):
            logger.disabled = False


def configure(level: str, form: str, stream: TextIO | None = None, node: str = "") -> None:
    """Send logs to `stream` (standard error): lines of shardbus from `level` on, others' warnings.
    Nothing waits for the reader of the stream (`log_writer`).

    `form` is auto, pretty or json. `node` is the name of this node, a field of each line.
    """
    target: TextIO = stream or sys.stderr
    terminal = target.isatty()
    pretty = form == "pretty" or (form == "auto" and terminal)
    handler: logging.Handler
    try:
        handler = LogWriter(target.fileno())
    except OSError:  # it is no file, as in tests
        handler = logging.StreamHandler(target)
    handler.setFormatter(PrettyFormatter(color=terminal) if pretty else JsonFormatter())
    handler.addFilter(OwnLines(LINES, EVERY_S))
    handler.addFilter(Place(node))
    handler.addFilter(RecentLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("shardbus").setLevel(level.upper())
    logging.captureWarnings(True)
