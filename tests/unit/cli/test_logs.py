"""Logs: JSON lines for machines, colours for people, and no forged line in either."""

from __future__ import annotations

import json
import logging
from io import StringIO

from shardbus_cli import logs


def logged(form: str, message: str, *, terminal: bool = False) -> str:
    stream = StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    kept = logging.getLogger().handlers[:]
    try:
        logs.configure("info", form, stream)
        logger = logging.getLogger("shardbus.test")
        logger.debug("unseen")
        try:
            raise ValueError("inner\x1b")
        except ValueError:
            logger.warning(message, exc_info=True, extra={"entity_type": "counter\n"})
    finally:
        logging.getLogger().handlers[:] = kept
        logging.captureWarnings(False)
    return stream.getvalue()


def test_logs_are_json_lines_off_a_terminal():
    (line,) = logged("auto", "hello\n\x1b[31m").splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"]) == ("warning", "shardbus.test")
    assert (entry["message"], entry["entity_type"]) == ("hello\n\x1b[31m", "counter\n")
    assert "ValueError" in entry["exception"]
    assert "\x1b" not in line


def test_logs_are_pretty_on_a_terminal_and_forge_nothing():
    text = logged("auto", "hello\n\x1b[31m", terminal=True)
    head, *trace = text.splitlines()
    assert "hello\\n\\x1b[31m  entity_type=counter\\n" in head
    assert head.startswith("\x1b[33m")
    assert all("\x1b" not in line for line in trace)


def test_the_last_lines_of_shardbus_are_kept_for_the_page(monkeypatch):
    monkeypatch.setattr(logs, "RECENT", 20)
    kept = logging.getLogger().handlers[:]
    try:
        logs.configure("info", "json", StringIO(), node="n:1")
        log = logging.getLogger("shardbus.test")
        for n in range(25):
            log.info("line %d", n)
        log.debug("too fine")
        logging.getLogger("shop.secret").warning("of the application")
        log.info("%s", "x" * 10_000)
        lines = logs.recent_lines()
    finally:
        logging.getLogger().handlers[:] = kept
        logging.captureWarnings(False)
    assert len(lines) == 20
    assert json.loads(lines[-2])["message"] == "line 24"
    assert json.loads(lines[-2])["node"] == "n:1"
    assert len(lines[-1]) == logs.RECENT_CHARACTERS
    assert not any("too fine" in line or "of the application" in line for line in lines)
    assert logs.recent_lines() == []
