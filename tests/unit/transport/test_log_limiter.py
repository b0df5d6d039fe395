"""The limit on log lines: ten of one text in an interval, and a count of the rest."""

from __future__ import annotations

import logging

from shardbus.transport.log_limiter import EVERY_S, LINES, TEXTS_MAX, LogRateLimiter


class Log:
    """Lines that pass a limiter, at times of the test's choice."""

    def __init__(self) -> None:
        self.limiter = LogRateLimiter()
        self.passed: list[str] = []

    def write(self, text: str, at: float, *arguments: object) -> None:
        record = logging.LogRecord("x", logging.WARNING, "", 0, text, arguments, None)
        record.created = at
        if self.limiter.filter(record):
            self.passed.append(record.getMessage())


def test_one_text_appears_a_few_times_whatever_its_arguments_are() -> None:
    log = Log()
    for n in range(5 * LINES):
        log.write("from %d", 100.0, n)
    assert log.passed == [f"from {n}" for n in range(LINES)]
    log.write("another", 100.0)
    assert log.passed[-1] == "another"


def test_the_first_line_of_the_next_interval_says_how_many_were_left_out() -> None:
    log = Log()
    for _ in range(LINES + 7):
        log.write("full", 100.0)
    log.write("full", 100.0 + EVERY_S)
    log.write("full", 100.0 + EVERY_S)
    assert log.passed[LINES:] == ["full (7 lines like it were left out)", "full"]


def test_a_few_lines_lose_none_and_mention_none() -> None:
    log = Log()
    for n in range(3 * LINES):
        log.write("rare", 100.0 + n * EVERY_S)
    assert log.passed == ["rare"] * 3 * LINES


def test_a_clock_that_was_set_back_silences_nothing() -> None:
    log = Log()
    for _ in range(LINES + 1):
        log.write("full", 1000.0)
    log.write("full", 1.0)
    assert log.passed[-1].startswith("full")
    assert len(log.passed) == LINES + 1


def test_texts_are_remembered_up_to_a_bound() -> None:
    log = Log()
    for n in range(3 * TEXTS_MAX):
        log.write(f"text {n}", 100.0)
    assert len(log.limiter._lines) == TEXTS_MAX
    assert len(log.passed) == 3 * TEXTS_MAX
