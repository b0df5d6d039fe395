"""The demo as users run it: real nodes, a real kill, and figures that are equal to the last row."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.markers import long_only
from tests.redis_server import RedisServer
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


class Demo:
    """One run, in a process of its own."""

    def __init__(self, tmp: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "examples.flights.demo", *arguments],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(tmp), "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def lines_until(self, text: str) -> list[str]:
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return lines
        raise AssertionError(f"the demo ended before it said {text!r}:\n{''.join(lines)}")

    def end(self) -> tuple[int, str]:
        text, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, text


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts demos; none of them survives the test."""
    demos: list[Demo] = []

    def make(*arguments: str) -> Demo:
        demos.append(Demo(tmp_path, *arguments))
        return demos[-1]

    yield make
    for demo in demos:
        demo.process.kill()
        demo.process.communicate()


def nodes_of(tmp: Path) -> list[int]:
    """The processes that were started with a file in `tmp` on their command line."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(tmp).encode() in command:
                pids.append(int(entry.name))
    return pids


def assert_shown(code: int, text: str) -> None:
    assert code == 0, text
    assert "EQUAL: 3,148 aircraft, 26,849 flights, to the last row" in text, text
    assert "recorded 26,849 rows" in text, text
    assert "refused 155 rows without a tail number: ConfigError: an entity id" in text, text
    assert "kill -9" in text, text
    assert "shards answer again" in text, text


@pytest.mark.long
def test_the_demo_with_the_embedded_store(start, tmp_path):
    assert_shown(*start("--rate", "5000").end())
    assert nodes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == [], "the demo left files behind"


@pytest.mark.long
def test_the_demo_with_redis(start, own_redis: RedisServer):
    assert_shown(*start("--rate", "5000", "--store", own_redis.url()).end())


@pytest.mark.soak
def test_the_demo_with_redis_twice(start, own_redis: RedisServer):
    for _ in range(2):
        assert_shown(*start("--rate", "5000", "--store", own_redis.url()).end())


@pytest.mark.parametrize(
    "number",
    [
        *long_only(signal.SIGKILL, signal.SIGTERM, signal.SIGINT),
    ],
)
def test_no_node_outlives_the_demo(start, tmp_path, number):
    demo = start()
    demo.lines_until("node 3 is up")
    nodes = nodes_of(tmp_path)
    assert len(nodes) == 3
    demo.process.send_signal(number)
    code, _ = demo.end()
    assert code != 0
    for pid in nodes:
        wait_for_end(pid)


def wait_for_end(pid: int) -> None:
    """Return when that process is gone. A child of nobody's: its descriptor becomes readable."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        readable, _, _ = select.select([descriptor], [], [], PATIENCE_S)
        assert readable, f"node {pid} runs on"
    finally:
        os.close(descriptor)


@pytest.mark.long
def test_a_store_that_does_not_answer_is_one_sentence(start):
    code, text = start("--store", "redis://127.0.0.1:1/0").end()
    assert code == 1
    assert "demo: DemoFailed: node 1 ended with exit code 4" in text
    assert "the nodes' logs are in" in text
