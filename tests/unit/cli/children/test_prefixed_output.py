"""The output of children, as the supervisor prints it: `shardbus_cli.children.prefixed_output`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from shardbus_cli.children.prefixed_output import LINE_BYTES_MAX, PrefixedOutput


class Stage:
    """A prefixed_output, and its output."""

    def __init__(self) -> None:
        (self.reading, out), (self.complaints, err) = os.pipe(), os.pipe()
        self.ends = [out, err]
        self.prefixed_output = PrefixedOutput(out, err)
        self.prefixed_output.start()

    def worker(self, number: int) -> tuple[int, int]:
        """The pipes of a worker, to write to."""
        (out, into_out), (err, into_err) = os.pipe(), os.pipe()
        files = [os.fdopen(fd, "rb", buffering=0) for fd in (out, err)]
        self.prefixed_output.add(number, out=files[0], err=files[1])
        return into_out, into_err

    def line(self) -> bytes:
        """The next line that was written."""
        text = b""
        while not text.endswith(b"\n"):
            text += os.read(self.reading, 1)
        return text

    def end(self) -> bytes:
        """All that is left."""
        self.prefixed_output.close()
        for fd in self.ends:
            os.close(fd)
        self.ends = []
        return b"".join(iter(lambda: os.read(self.reading, 65_536), b""))


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    if stage.ends:
        stage.end()
    os.close(stage.reading)
    os.close(stage.complaints)


def test_lines_of_two_are_not_mixed_however_they_come(stage: Stage) -> None:
    (first, _), (two, _) = stage.worker(1), stage.worker(2)
    os.write(first, b"half a ")
    os.write(two, b"whole\n")
    assert stage.line() == b"[2] whole\n"
    os.write(first, b"line\nand more\n")
    assert stage.line() == b"[1] half a line\n"
    assert stage.line() == b"[1] and more\n"


def test_an_unfinished_last_line_is_written(stage: Stage) -> None:
    out, err = stage.worker(0)
    os.write(out, b"killed in mid-sen")
    os.close(out)
    assert stage.line() == b"[0] killed in mid-sen\n"
    os.close(err)


def test_output_before_the_end_of_a_process_is_written_before_it(stage: Stage) -> None:
    out, _ = stage.worker(0)
    os.write(out, b"one\ntwo\n")
    assert stage.end() == b"[0] one\n[0] two\n"


def test_errors_go_where_errors_go(stage: Stage) -> None:
    _, err = stage.worker(3)
    os.write(err, b'{"level": "error"}\n')
    assert os.read(stage.complaints, 100) == b'{"worker": 3, "level": "error"}\n'


def test_a_line_without_end_is_cut(stage: Stage) -> None:
    out, _ = stage.worker(0)
    left = LINE_BYTES_MAX + 4_096
    while left:
        left -= os.write(out, b"x" * min(left, 4_096))
    line = stage.line()
    assert line.startswith(b"[0] xxx")
    assert LINE_BYTES_MAX < len(line) <= LINE_BYTES_MAX + 4_096 + 5


def test_output_without_a_reader_does_not_end_the_thread(stage: Stage) -> None:
    _, err = stage.worker(0)
    out, _ = stage.worker(1)
    os.close(stage.complaints)
    os.write(err, b"nobody hears this\n")
    os.write(out, b"but this\n")
    assert stage.line() == b"[1] but this\n"
    stage.complaints = os.open(os.devnull, os.O_RDONLY)
