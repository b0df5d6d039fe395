"""`shardbus bench`: a program can read its output, and nothing stays behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.process.nodes import Processes
from tests.waiting import until

NAMES = ["start", "tell", *("ask", "ask_p50", "ask_p99"), *("ask256", "ask256_p50", "ask256_p99")]


def nodes(folder: Path) -> list[str]:
    """Processes that run the application of the command for this test."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
            environment = path.with_name("environ").read_bytes()
        except OSError:
            continue
        if b"shardbus_cli.bench_app:bus" in words and bytes(folder) in environment:
            lines.append(path.parent.name)
    return lines


async def test_it_prints_a_line_for_each_figure_and_leaves_nothing_behind(lab: Processes) -> None:
    done = lab.run("bench", "--seconds", "0.1", "--entities", "50", "--payload", "9", "--json")
    assert await done.ended() == 0, done.err.read_text()
    rows = [json.loads(line) for line in done.out.read_text().splitlines()]
    assert [row["name"] for row in rows] == NAMES
    assert all(row["value"] > 0 for row in rows)
    assert {json.dumps(row["parameters"]) for row in rows} == {'{"entities": 50, "payload": 9}'}
    assert nodes(lab.folder) == []


async def test_its_node_ends_with_it(lab: Processes) -> None:
    command = lab.run("bench", "--seconds", "60")
    await until(lambda: nodes(lab.folder), "its node")
    command.signal(signal.SIGKILL)
    await until(lambda: not nodes(lab.folder), "the end of its node")
