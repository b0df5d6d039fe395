"""Commands that start without the second of imports: each is forked from a process that has them.

    test ── asks ──> template          has imported the command, runs nothing, has one thread
                       └─ fork ─> a process in between, which ends at once
                                    └─ fork ─> the node: its words, environment, folder, streams

The test adopts the node when the process in between has ended. So the node is a child of the test
like any other: the test waits for it, its exit code is its own, and it dies with the test. From
there on it is `shardbus WORDS`: `main` reads `sys.argv`, and a node that starts anew runs its
command (`sys.orig_argv`) in a fresh interpreter.

These nodes share the imports and the seed of hashes. A test of the imports starts its node in a
fresh interpreter (`fresh=True`); the nodes of `dev`, of units of workers and of the pages of docs/
have one each. `tests/simulation/test_seeds.py` shows that no history depends on the seed of hashes.

Needs Linux.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

from tests.process.namespaces import enter

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "cli")))
WITH_THE_TEST = """
import ctypes, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
"""
"""A process dies with the test run, even if that is killed."""
COMMAND = f"""{WITH_THE_TEST}
from shardbus_cli.main import main
main()
"""
_TEMPLATE = f"""{WITH_THE_TEST}
import os, socket
from tests.process.warm import serve
serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
from shardbus_cli.main import main
main()
"""
_IMPORTED = (
    "asyncpg",
    "pydantic.type_adapter",
    "redis.asyncio.cluster",
    "shardbus.admin.page_table",
    "shardbus.node.run",
    "shardbus.replica.child",
    "shardbus.store.replicated_journals",
    "shardbus.store.sqlite_journals",
    "shardbus_cli.commands",
    "shardbus_cli.doctor",
    "shardbus_cli.log_writer",
    "shardbus_cli.node",
    "shardbus_cli.send",
    "shardbus_cli.starting_anew",
    "uvicorn.lifespan.off",
)
"""All that a node imports until it is ready, except the application; all that a command does."""
_READS_AT_ITS_START = ("PYTHON", "LD_", "MALLOC_", "OPENSSL_")
"""Beginnings of the variables that only a fresh process takes over."""
_SIZE = 1 << 20
_SUBREAPER, _DEATH_SIGNAL = 36, 1
_libc = ctypes.CDLL(None, use_errno=True)


def can(environment: dict[str, str]) -> bool:
    """True if a node with these variables can be forked."""
    return sys.platform == "linux" and not any(
        name.startswith(_READS_AT_ITS_START) for name in environment
    )


class Forked:
    """A node, with what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(
    words: list[str],
    folder: Path,
    environment: dict[str, str],
    out: int,
    err: int,
    namespace: str = "",
) -> Forked:
    """Start `shardbus WORDS`."""
    request = json.dumps([words, str(folder), environment, namespace]).encode()
    _libc.prctl(_SUBREAPER, 1)
    try:
        channel = _template()
        socket.send_fds(channel, [request], [out, err])
        pid, adopted = channel.recv(100), channel.recv(100)
    finally:
        _libc.prctl(_SUBREAPER, 0)
    assert adopted, "the template has ended"
    return Forked(int(pid))


@cache
def _template() -> socket.socket:
    """The channel to the template of this test run. It ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [sys.executable, "-c", _TEMPLATE, str(theirs.fileno()), str(os.getpid())]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SHARDBUS_")}
    process = subprocess.Popen(
        words,
        env=environment | {"PYTHONPATH": PATHS},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def serve(channel: socket.socket, tester: int) -> None:
    """Fork a process for each request. Returns in such a process; ends with the test."""
    for module in _IMPORTED:
        import_module(module)
    gc.collect()
    gc.freeze()
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, _SIZE, 2)
        if not request:
            sys.exit()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            node = os.fork()
            if node == 0:
                channel.close()
                _adopted(between, tester)
                _become(*json.loads(request), *descriptors)
                return
            channel.send(str(node).encode())
            os._exit(0)
        os.waitpid(between, 0)
        channel.send(b"adopted")
        for descriptor in descriptors:
            os.close(descriptor)


def _adopted(between: int, tester: int) -> None:
    """Wait until this process is a child of the test, and die with it."""
    while os.getppid() == between:
        os.sched_yield()
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != tester:
        os._exit(1)


def _become(
    words: list[str], folder: str, environment: dict[str, str], namespace: str, out: int, err: int
) -> None:
    """Take over everything in which this process differs from a fresh one."""
    if namespace:
        enter(namespace)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for given, stream in ((out, 1), (err, 2)):
        os.dup2(given, stream)
        os.close(given)
    sys.argv = ["-c", *words]
    sys.orig_argv = [sys.executable, "-c", COMMAND, *words]
