"""The process of a replica beside its owner: started again, ended with the owner, never left."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbus.config.loading import load, nested_at
from shardbus.config.settings import Settings
from shardbus.errors import ConfigError
from shardbus.replica import child
from shardbus.replica.child import UNUSABLE_ENDS, ReplicaChild, replica_words, with_replicas
from tests.waiting import PATIENCE_S, STEP_S

NOTE = "open(sys.argv[1], 'a').write(f'{os.getpid()} ')"
LISTENS = f"""
import os, socket, sys
link = socket.socket(fileno=int(sys.argv[-1]))
link.sendall(b"listens")
{NOTE}
while link.recv(100) not in (b"", b"close\\n"): pass
"""
FAILS = f"""
import os, sys
{NOTE}
sys.exit(3)
"""


def wait(condition: object, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(STEP_S)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Bench:
    """A child whose process runs the code of a test, and writes its number down."""

    def __init__(self, folder: Path) -> None:
        self.note = folder / "pids"
        self.note.touch()
        self.unusable: queue.Queue[str] = queue.Queue()
        self.child = ReplicaChild([str(self.note)], self.unusable.put)

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in self.note.read_text().split(" ")[:-1]]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(child, "PAUSE_S", 0.01)
    monkeypatch.setattr(child, "PAUSE_MAX_S", 0.01)
    bench = Bench(tmp_path)
    yield bench
    bench.child.stop()
    assert not any(map(runs, bench.pids))


def test_a_replica_that_ends_is_started_again_until_its_owner_ends_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "CODE", LISTENS)
    bench.child.start()
    for ends in range(UNUSABLE_ENDS + 2):
        wait(lambda ends=ends: len(bench.pids) > ends, "the next process")
        os.kill(bench.pids[-1], signal.SIGKILL)
    wait(lambda: len(bench.pids) == UNUSABLE_ENDS + 3, "the last process")
    assert bench.unusable.empty(), "it has listened"
    assert os.getpgid(bench.pids[-1]) != os.getpgid(0)
    bench.child.stop()
    assert not runs(bench.pids[-1])
    assert len(bench.pids) == UNUSABLE_ENDS + 3


def test_a_replica_that_never_listens_is_reported_once_and_tried_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "CODE", FAILS)
    bench.child.start()
    assert bench.unusable.get(timeout=PATIENCE_S) == "ended with exit code 3"
    assert len(bench.pids) == UNUSABLE_ENDS
    wait(lambda: len(bench.pids) > UNUSABLE_ENDS + 2, "another process")
    assert bench.unusable.empty()


def test_no_process_starts_after_the_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner ends it in the pause before a restart."""
    monkeypatch.setattr(child, "CODE", FAILS)
    monkeypatch.setattr(child, "PAUSE_S", PATIENCE_S)
    monkeypatch.setattr(child, "PAUSE_MAX_S", PATIENCE_S)
    bench.child.start()
    wait(lambda: bench.pids and not runs(bench.pids[0]), "the end of the first process")
    bench.child.stop()
    ended = bench.child._process
    bench.child._spawn()
    assert bench.child._process is ended


OWNER = f"""
import os, sys, time
from shardbus.replica import child
child.CODE = {LISTENS!r}
note = sys.argv[1]
beside = child.ReplicaChild([note])
beside.start()
while not open(note).read(): time.sleep(0.01)
link = beside._link.fileno()
if not os.fork():
    try:
        os.fstat(link)
    except OSError:
        os._exit(0)
    os._exit(1)
os._exit(9 + os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_fork_of_its_owner_does_not_keep_a_replica(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    note.touch()
    assert subprocess.run([sys.executable, "-c", OWNER, str(note)], check=False).returncode == 9
    wait(lambda: not runs(int(note.read_text())), "the end of the replica")


def test_a_program_without_an_interpreter_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen program would start itself, again and again."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ConfigError, match="no interpreter"):
        bench.child.start()
    assert bench.pids == []


def settings(**values: object) -> Settings:
    layers = [("test", nested_at(k.replace("__", "."), v)) for k, v in values.items()]
    return load(layers)


SEEDS = ["10.0.0.1:7355", "10.0.0.2:7355", "127.0.0.1:7355"]
ALL = "cluster://10.0.0.1:7357,10.0.0.2:7357,127.0.0.1:7357"


@pytest.mark.parametrize(
    ("values", "url", "own"),
    [
        ({"store__url": "memory://"}, "memory://", False),
        ({"store__url": "cluster://", "node__seeds": SEEDS}, ALL, True),
        ({"store__url": "cluster://", "node__seeds": SEEDS, "node__port": 7365}, "", False),
        ({"store__url": "cluster://", "store__replicas": 1}, "cluster://127.0.0.1:7357", True),
        ({"store__url": ALL}, ALL, True),
        ({"store__url": ALL, "store__port": 7399}, ALL, False),
        ({"store__url": ALL, "node__port": 7365}, ALL, False),
    ],
)
def test_which_replica_is_the_owners(values: dict[str, object], url: str, own: bool) -> None:
    planned, has_own = with_replicas(settings(**values))
    assert has_own == own
    if url:
        assert planned.store.url == url


def test_the_command_has_the_settings_of_the_owner() -> None:
    planned, _ = with_replicas(
        settings(store__url="cluster://", store__replicas=1, store__memory="2GiB", node__port=8000)
    )
    words = replica_words(planned, ["--cluster", "shop"])
    assert words[:4] == ["store", "serve", "--cluster", "shop"]
    assert {"store.url=cluster://127.0.0.1:8002", "store.port=8002", "store.replicas=1"} < set(
        words
    )
    assert f"store.memory={2 * 2**30}" in words
