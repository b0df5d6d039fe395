"""The replica of a node or a unit, as a process beside it.

It starts before the node and ends after it: when the node has left, the replica stays while others
need it (`shardbus.replica.run`), and this process waits for it; a signal ends both. A socket
connects them: if this process ends, however it does, the socket closes, and the replica ends within
a moment. A replica that ends by itself is started again after a pause, which doubles.

Source: docs/reference/cli.md; S2.31.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from shardbus.guarded_log import GuardedLog
from shardbus_cli.children.group import RestartPause
from shardbus_cli.children.process import how_ended

if TYPE_CHECKING:
    from shardbus.config.settings import Settings

log = GuardedLog("shardbus.store")

END_S = 3.0
"""Seconds in which a replica ends; then it is killed."""
LINGER_S = 60.0
"""Seconds, at most, for which a replica stays because others need it."""
PAUSE_MAX_S = 10.0
CODE = "from shardbus_cli.main import main; main()"
SHARED = ("node", "store", "security", "log")
"""Sections of settings that a replica reads."""
LEFT_OUT = ("node.seeds", "node.roles", "node.proxies")
"""Settings that name no address of the replica: the URL of the store has them all."""


def replica_words(settings: Settings, cluster_words: Sequence[str]) -> list[str]:
    """Return the command of the replica of a node with these settings. `cluster_words`: the options
    that name the cluster."""
    words = ["store", "serve", *cluster_words]
    for section in SHARED:
        values = getattr(settings, section)
        for name in type(values).__dataclass_fields__:
            value = getattr(values, name)
            key = f"{section}.{name}"
            if isinstance(value, str | int | float) and key not in LEFT_OUT:
                shown = str(value).lower() if isinstance(value, bool) else str(value)
                words += ["--set", f"{key}={shown}"]
    words += ["--set", f"cluster.new_cluster={str(settings.cluster.new_cluster).lower()}"]
    return words


@contextmanager
def replica_beside(words: Sequence[str]) -> Iterator[None]:
    """Run a replica with this command for as long as the context lasts."""
    child = ReplicaChild(words)
    child.start()
    try:
        yield
    finally:
        child.stop()


class ReplicaChild:
    """The process of a replica, started again when it ends."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="shardbus-replica", daemon=True)

    def start(self) -> None:
        """Start the process."""
        self._spawn()
        self._thread.start()

    def stop(self) -> None:
        """End the process; kill it if it does not end in time."""
        self._ended.set()
        process, link = self._process, self._link
        assert process is not None
        assert link is not None
        with suppress(OSError):
            link.sendall(b"close\n")
        with suppress(subprocess.TimeoutExpired):
            process.wait(LINGER_S + END_S)
        link.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        with suppress(ProcessLookupError):
            process.kill()
        self._thread.join(1.0)

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  (a fixed command)
                [sys.executable, "-c", CODE, *self._words, "--leash-fd", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={name: v for name, v in os.environ.items() if name != "NOTIFY_SOCKET"},
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        self._link = ours

    def _run(self) -> None:
        """Wait for the end of the process, and start it again unless this process has ended it."""
        pause = RestartPause(PAUSE_MAX_S)
        while True:
            process = self._process
            assert process is not None
            code = process.wait()
            if self._ended.is_set():
                return
            rest = pause.next(0.0)
            log.error("the replica %s; it is started again in %g s", how_ended(code), rest)
            if self._link is not None:
                self._link.close()
            if self._ended.wait(rest):
                return
            try:
                self._spawn()
            except OSError as failed:
                log.error("the replica cannot be started: %s", failed)
