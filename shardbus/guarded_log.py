"""The log of shardbus, which costs its caller nothing, whatever the application has configured.

A handler, formatter, filter or record factory of the application's logging may raise. The next
steps of shardbus must not depend on that: a node would lose the rest of a run of messages, or its
membership. So every module logs by a `GuardedLog`. A line that cannot be logged is written to
standard error instead, as Python's own handlers do.

A traceback is written here, as text (`error_text`), before any formatter needs it: the exceptions
are of classes that others wrote. The record has the exception itself, too.

    log = GuardedLog("shardbus.entity")

The module stands on floor 0, because everything logs.

Source: docs/reference/logs.md.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from shardbus.error_text import described, is_error, text_of, traceback_in, traceback_of
from shardbus.tasks.interrupts import raise_interrupt

LOST = "shardbus: a line of the log was lost: %s"
_CALLER = 3
"""Frames from `findCaller` to the code that logs."""


class GuardedLog:
    """Logs to the logger of that name, through these filters."""

    __slots__ = ("_logger",)

    def __init__(self, name: str, *filters: logging.Filter) -> None:
        self._logger = logging.getLogger(name)
        for log_filter in filters:
            self._logger.addFilter(log_filter)

    def debug(self, text: str, *args: object) -> None:
        self._log(logging.DEBUG, text, args)

    def info(self, text: str, *args: object, extra: Mapping[str, object] | None = None) -> None:
        self._log(logging.INFO, text, args, None, extra)

    def warning(
        self,
        text: str,
        *args: object,
        exc_info: BaseException | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        self._log(logging.WARNING, text, args, exc_info, extra)

    def error(
        self,
        text: str,
        *args: object,
        exc_info: BaseException | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        self._log(logging.ERROR, text, args, exc_info, extra)

    def exception(self, text: str, *args: object) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, text, args, sys.exc_info()[1])

    def log(
        self, level: int, text: str, *args: object, extra: Mapping[str, object] | None = None
    ) -> None:
        self._log(level, text, args, None, extra)

    def _log(
        self,
        level: int,
        text: str,
        args: tuple[object, ...],
        error: BaseException | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        logger = self._logger
        try:
            if not logger.isEnabledFor(level):
                return
            safe = tuple(text_of(arg) if is_error(arg) else arg for arg in args)
            file, line, function, _ = logger.findCaller(stacklevel=_CALLER)
            about = None if error is None else (type(error), error, traceback_in(error))
            record = logger.makeRecord(
                logger.name, level, file, line, text, safe, about, function, extra
            )
            if error is not None:
                record.exc_text = traceback_of(error)
            logger.handle(record)
        except BaseException as e:
            raise_interrupt(e)
            _lost(text, e)


def _lost(text: str, error: BaseException) -> None:
    """Write to standard error that a line was lost, if there is one."""
    try:
        sys.stderr.write(f"{LOST % text}: {described(error, 200)}\n")
    except BaseException:
        return
