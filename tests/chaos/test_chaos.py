"""Some minutes of chaos; and that a signal, and a machine without namespaces, leave no trace and a
true verdict."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.steps import Kind
from tests.chaos.store import disk_name
from tests.process.namespaces import FOLDER
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]


def chaos(log: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a run that writes into this file."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "cli")))
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.chaos", *words],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def traces(pid: int) -> list[str]:
    """Return the namespaces and disks of a run that are there."""
    names = os.listdir(FOLDER) if FOLDER.exists() else []
    mounts = Path("/proc/mounts").read_text().splitlines()
    return [name for name in names if name.startswith(f"sb-{pid}-")] + [
        line for line in mounts if line.split()[0] == disk_name(pid)
    ]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["sentinel", "replicas", "memory"])
async def test_a_minute_of_faults_breaks_no_rule(tmp_path: Path, store: str) -> None:
    """The verdict depends on no time: on a slow machine the run does fewer steps."""
    run = chaos(tmp_path / "log", "--minutes", "1", "--seed", "1", "--store", store)
    await until(lambda: run.poll() is not None, "the end of the run")
    log = (tmp_path / "log").read_text()
    assert run.returncode == 0, log
    assert "seed 1: nothing wrong" in log
    assert traces(run.pid) == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_a_run_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "log"
    run = chaos(log, "--minutes", "30", "--seed", "1")
    try:
        await until(lambda: "joins at place 0" in log.read_text(), "the first node")
        run.send_signal(number)
        await until(lambda: run.poll() is not None, "the end of the run")
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 130, log.read_text()
    assert traces(run.pid) == []


@pytest.mark.long
async def test_without_namespaces_the_verdict_does_not_call_the_run_complete(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    run = chaos(log, "--minutes", "0.1", "--seed", "1", "--no-namespaces")
    await until(lambda: run.poll() is not None, "the end of the run")
    assert run.returncode == 0, log.read_text()
    last = log.read_text().splitlines()[-1]
    assert "NOT all kinds done: without " in last
    assert Kind.SPLIT in last
    assert "--no-namespaces" in last
