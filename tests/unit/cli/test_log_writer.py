"""The writer of logs: nothing waits for a reader that stands still, and dropped lines are
reported."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from shardbus_cli import line_writer
from shardbus_cli.log_writer import LogWriter
from shardbus_cli.logs import JsonFormatter


class Pipe:
    """A pipe to a reader that reads when the test says so."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.writer = LogWriter(self.write_end)
        self.writer.setFormatter(JsonFormatter())

    def log(self, text: str) -> None:
        self.writer.handle(logging.makeLogRecord({"msg": text, "name": "shardbus.test"}))

    def read_until(self, text: str) -> list[dict[str, object]]:
        """Read lines until one has the text; blocks while there is none."""
        rows: list[dict[str, object]] = []
        with os.fdopen(os.dup(self.read_end)) as lines:
            for line in lines:
                rows.append(json.loads(line))
                if text in str(rows[-1]["message"]):
                    return rows
        raise AssertionError("the pipe was closed")


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    monkeypatch.setattr(line_writer, "FLUSH_S", 0.1)
    pipe = Pipe()
    yield pipe
    os.close(pipe.read_end)
    pipe.writer.close()
    os.close(pipe.write_end)


def test_lines_are_written_in_order_by_another_thread(pipe: Pipe) -> None:
    for n in range(100):
        pipe.log(f"line {n}")
    assert [row["message"] for row in pipe.read_until("line 99")] == [
        f"line {n}" for n in range(100)
    ]
    pipe.writer.flush()


def test_a_reader_that_stands_still_costs_lines_and_no_time_and_is_told_of_them(pipe: Pipe) -> None:
    big = "x" * 1000
    for _ in range(line_writer.BYTES_MAX // 1000 + 500):
        pipe.log(big)  # would wait for ever at the 65th if it were written here
    assert pipe.writer.dropped > 100
    dropped = pipe.writer.dropped
    rows = pipe.read_until("lines of the log were dropped")
    assert rows[-1]["event"] == "log_lines_dropped"
    assert rows[-1]["count"] == dropped
    assert len(rows) - 1 + dropped == line_writer.BYTES_MAX // 1000 + 500
    pipe.log("and on")
    pipe.read_until("and on")


def test_the_end_waits_for_a_reader_no_longer_than_it_may(pipe: Pipe) -> None:
    for _ in range(200):
        pipe.log("x" * 1000)
    ended = threading.Thread(target=pipe.writer.close)
    ended.start()
    ended.join(60.0)
    assert not ended.is_alive()


def test_a_reader_that_has_ended_ends_nothing() -> None:
    pipe = Pipe()
    os.close(pipe.read_end)
    for n in range(10):
        pipe.log(str(n))
    pipe.writer.flush()
    pipe.writer.close()
    os.close(pipe.write_end)
