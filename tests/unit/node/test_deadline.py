"""The end of a node's process: in time, whatever its loop, its output and its application do."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardbus.node import deadline as module
from shardbus.node.deadline import Deadline, flush_output, output_stands_still
from tests.waiting import PATIENCE_S

LONG = 3600.0


class Said:
    """The output of a process, as a queue of its notes. `stuck`: its reader stands still."""

    def __init__(self) -> None:
        self.notes: Queue[str] = Queue()
        self.stuck: threading.Event | None = None

    def data(self, text: str) -> None: ...

    def note(self, text: str) -> None:
        self.notes.put(text)

    def flush(self) -> None:
        if self.stuck is not None:
            self.stuck.wait()


class Process:
    """A deadline of a process that reports its end instead of ending."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said = Said()
        self.codes: Queue[int] = Queue()
        self.still = False
        monkeypatch.setattr(module, "output_stands_still", lambda: self.still)
        monkeypatch.setattr(os, "_exit", self.codes.put)
        self.deadline = Deadline(self.said)

    def node(self, **values: Any) -> None:
        phases, membership = SimpleNamespace(current=""), SimpleNamespace(lag=0.0)
        node = SimpleNamespace(phases=phases, membership=membership, **values)
        self.deadline.node = cast("Any", node)

    def code(self) -> int:
        return self.codes.get(timeout=PATIENCE_S)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.setattr(module, "FLUSH_S", 0.05)
    made = Process(monkeypatch)
    yield made
    made.deadline.cancel()


@pytest.mark.parametrize(("status", "code"), [(None, 7), (1, 1), (6, 6)])
def test_a_process_that_does_not_end_exits_with_the_code_of_its_node(
    status: int | None, code: int, process: Process
) -> None:
    if status is not None:
        process.deadline.code = status
    process.node()
    process.deadline.start()
    process.deadline.within(0.01)
    assert process.code() == code
    assert "a blocked loop does not end, at " in process.said.notes.get(timeout=PATIENCE_S)


@pytest.mark.parametrize("orders", [(LONG, 0.01), (0.01, LONG)])
def test_the_earliest_deadline_counts(orders: tuple[float, float], process: Process) -> None:
    for seconds in orders:
        process.deadline.within(seconds)
    process.deadline.start()
    assert process.code() == module.NOT_DRAINED


def test_a_process_that_may_run_on_is_not_ended(process: Process) -> None:
    process.deadline.within(0.0)
    process.deadline.cancel()
    process.deadline.within(LONG)
    process.deadline.cancel()
    process.deadline.start()
    process.deadline.within(0.01)
    process.code()
    assert process.codes.empty()


def test_it_waits_neither_for_a_reader_nor_for_a_lock_of_the_application(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.said.stuck = threading.Event()
    held = logging.StreamHandler()
    stuck, release = threading.Event(), threading.Event()

    def hold() -> None:
        with held.lock or threading.RLock():
            stuck.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    stuck.wait()
    logging.getLogger().addHandler(held)
    try:
        process.deadline.start()
        process.deadline.within(0.01)
        assert process.code() == module.NOT_DRAINED
    finally:
        logging.getLogger().removeHandler(held)
        release.set()
        process.said.stuck.set()
        holder.join()


@pytest.mark.parametrize("still", [False, True])
def test_a_process_whose_output_stands_still_does_not_start_anew(
    still: bool, process: Process
) -> None:
    process.still, started = still, Queue[str]()
    process.deadline.instead = lambda: started.put("anew")
    process.deadline.start()
    process.deadline.within(0.01)
    process.code()
    assert started.empty() is still


def test_it_reports_what_the_node_waits_for_and_for_how_long(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_NOTE_S", 0.01)
    monkeypatch.setattr(module, "NOTE_S", 0.01)
    monkeypatch.setattr(module, "waits_for", lambda node: "2 shards of 'cart'")
    process.node()
    process.deadline.again = "a second Ctrl-C"
    process.deadline.start()
    process.deadline.within(LONG)
    for _ in range(2):
        note = process.said.notes.get(timeout=PATIENCE_S)
        assert note.startswith("shardbus: this node waits for 2 shards of 'cart', ")
        assert note.endswith(" s more at most; a second Ctrl-C stops it at once")
    cast("Any", process.deadline.node).membership.lag = 2.0
    while "which is blocked at " not in note:
        note = process.said.notes.get(timeout=PATIENCE_S)


def test_a_node_that_changes_while_it_is_read_is_no_error(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(node: object) -> str:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(module, "FIRST_NOTE_S", 0.01)
    monkeypatch.setattr(module, "waits_for", changed)
    process.node()
    process.deadline.start()
    process.deadline.within(LONG)
    assert "waits for the end of " in process.said.notes.get(timeout=PATIENCE_S)


def pipe_to_stderr(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    reading, writing = os.pipe()
    monkeypatch.setattr(module, "STDERR", writing)
    monkeypatch.setattr(module, "STDOUT", writing)
    return reading, writing


def fill(fd: int) -> None:
    os.set_blocking(fd, False)
    try:
        while True:
            os.write(fd, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(fd, True)


def test_an_output_stands_still_if_it_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = pipe_to_stderr(monkeypatch)
    monkeypatch.setattr(module, "STILL_MS", 1)
    assert not output_stands_still()
    fill(writing)
    assert output_stands_still()
    os.close(reading)
    assert not output_stands_still()  # a reader that has ended holds up nothing
    os.close(writing)
    assert not output_stands_still()


def test_what_is_buffered_is_written_at_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        out.write("last words")
        flush_output(Said())
        assert (tmp_path / "out").read_text() == "last words"
