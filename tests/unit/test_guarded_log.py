"""A log line of shardbus costs its caller nothing, even if the application's logging fails."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbus.guarded_log import GuardedLog
from tests.odd_exceptions import ODD

ROOT = Path(__file__).resolve().parents[2]
NAME = "shardbus.test_guarded_log"


class Captured(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def captured() -> Iterator[Captured]:
    logger, handler = logging.getLogger(NAME), Captured()
    logger.addHandler(handler)
    logger.propagate = False
    yield handler
    logger.removeHandler(handler)
    logger.propagate = True


class Raises(logging.Handler):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def handle(self, record: logging.LogRecord) -> bool:
        raise self.error


def test_a_line_names_the_place_that_logs(captured: Captured) -> None:
    GuardedLog(NAME).warning("%s of %d", "one", 2, extra={"shard": "7"})
    [record] = captured.records
    assert (record.module, record.funcName) == (
        "test_guarded_log",
        "test_a_line_names_the_place_that_logs",
    )
    assert (record.getMessage(), record.__dict__["shard"]) == ("one of 2", "7")


@pytest.mark.parametrize("how", ODD)
def test_any_exception_can_be_logged(captured: Captured, how: str) -> None:
    log = GuardedLog(NAME)
    try:
        raise ODD[how]()
    except BaseException as error:
        log.exception("failed: %s", error)
        log.error("failed", exc_info=error)
    texts = [logging.Formatter().format(record) for record in captured.records]
    assert len(texts) == 2
    assert all("in test_any_exception_can_be_logged" in text for text in texts)
    for record in captured.records:
        assert record.exc_info is not None


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), ODD["no_text"]()])
def test_a_handler_that_raises_costs_a_line(
    capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    logger, handler = logging.getLogger(NAME), Raises(error)
    logger.addHandler(handler)
    try:
        GuardedLog(NAME).error("text %s", 1)
    finally:
        logger.removeHandler(handler)
    said = capsys.readouterr().err
    assert said.startswith("shardbus: a line of the log was lost: text %s: ")
    assert type(error).__name__ in said


def test_arguments_that_do_not_fit_cost_a_line(
    captured: Captured, capsys: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger(NAME).addHandler(handler := logging.StreamHandler())
    try:
        GuardedLog(NAME).error("text %d", "no number")
    finally:
        logging.getLogger(NAME).removeHandler(handler)
    assert "text %d" in capsys.readouterr().err or captured.records


def test_every_module_logs_by_a_guarded_log() -> None:
    pattern = re.compile(r"getLogger\([\"']shardbus[.\w]*[\"']\)\.?(?!setLevel)")
    modules = [
        str(path.relative_to(ROOT))
        for folder in ("shardbus", "cli")
        for path in (ROOT / folder).rglob("*.py")
        if pattern.search(path.read_text(encoding="utf-8"))
    ]
    assert [path for path in modules if "simulation" not in path and "testing" not in path] == [
        "shardbus/http/connections.py",  # the logger that uvicorn is given
        "cli/shardbus_cli/logs.py",
    ]
