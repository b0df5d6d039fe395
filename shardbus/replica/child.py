"""The replica of a node, a unit of workers or an embedded node, as a process beside it.

    start ──> STARTING ──"listens"──> RUNNING
                 │  ^                    │
             end │  │ after a pause      │ end
                 v  │                    │
                PAUSE <──────────────────┘          stop, in any of them ──> ENDING ──> ENDED

The replica starts before its node and ends after it: when the node has left, the replica stays
while others need it (`shardbus.replica.run`), for `LINGER_S` at most, and the owner waits for it.
A socket connects them. If the owner's process ends, however it does, the socket closes, and the
replica ends within a moment. A process that the owner forks closes its copy of the socket.

A replica that ends by itself is started again after a pause, which doubles, and is short again
after a replica that has listened for `RAN_WELL_S`. If `UNUSABLE_ENDS` processes have ended and none
has listened, its port or its disk cannot be used, and the owner is informed by `on_unusable`: a
node that waits for its store need not wait for this one. The first of these may have met the last
steps of the replica of an owner that was killed.

The process is in a group of its own, so that Ctrl-C on the terminal reaches only its owner. Its log
goes to the owner's standard error.

Source: docs/reference/cli.md; docs/how-to/keep-state.md; S2.31.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from shardbus.backoff import doubling
from shardbus.config.replicas import is_replicated, replica_plan
from shardbus.config.settings import Settings
from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.quantities import how_ended
from shardbus.replica.interpreter import interpreter
from shardbus.transport.fork_guard import silence

log = GuardedLog("shardbus.store")

END_S = 3.0
"""Seconds in which a replica ends; then it is killed."""
LINGER_S = 60.0
"""Seconds, at most, for which a replica stays because others need it."""
PAUSE_S, PAUSE_MAX_S = 0.5, 10.0
"""Seconds before a replica is started again: at first, and at most."""
RAN_WELL_S = 60.0
UNUSABLE_ENDS = 3
REPORT_BYTES = 4096
CODE = "from shardbus_cli.main import main; main()"
SHARED = ("node", "store", "security", "log")
"""Sections of settings that a replica reads."""
LEFT_OUT = ("node.seeds", "node.roles", "node.proxies")
"""Settings that name no address of the replica: the URL of the store has them all."""


def with_replicas(settings: Settings, workers: int = 1) -> tuple[Settings, bool]:
    """Return the settings with the addresses of all replicas of `cluster://`, and True if one of
    them is this process's own. Settings of another store stay. `workers`: the nodes of the unit.

    Raises:
        ConfigError: they name no replicas, or fewer than `store.replicas`.
    """
    if not is_replicated(settings.store.url):
        return settings, False
    plan = replica_plan(settings, workers)
    store = replace(settings.store, url=plan.url, port=plan.port)
    return replace(settings, store=store), plan.me is not None


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
    """The process of a replica, started again when it ends. Started once, stopped once.

    Args:
        words: the command, by `replica_words`.
        on_unusable: called in another thread, once, with the last end in words, if
            `UNUSABLE_ENDS` processes have ended and none has listened.
    """

    def __init__(
        self, words: Sequence[str], on_unusable: Callable[[str], object] = lambda how: None
    ) -> None:
        self._words, self._on_unusable = tuple(words), on_unusable
        self._lock = threading.Lock()
        """Held while a process starts, and while the end begins."""
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._listens_since: float | None = None
        """When the last process began to listen, in seconds of a monotonic clock."""
        self._thread = threading.Thread(target=self._watch, name="shardbus-replica", daemon=True)

    def start(self) -> None:
        """Start the process.

        Raises:
            ConfigError: this process has no interpreter to start one with, or the system refuses.
        """
        if not sys.executable or getattr(sys, "frozen", False):
            raise ConfigError(
                "cluster:// starts a replica beside the node, and this process has no interpreter",
                hint="run `shardbus store serve`, and name the replicas: cluster://host:port,...",
            )
        silence(self)
        try:
            self._spawn()
        except OSError as failed:
            raise ConfigError(f"the replica cannot be started: {failed}") from failed
        self._thread.start()

    def stop(self) -> None:
        """End the process; kill it if it does not end in time. Blocks until it has ended. Nothing
        happens if none was started."""
        with self._lock:
            self._ending.set()
            process, link = self._process, self._link
        if process is None or link is None:
            return
        with suppress(OSError):
            link.sendall(b"close\n")
        with suppress(subprocess.TimeoutExpired):
            process.wait(LINGER_S + END_S)
        _close(link)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.kill()
        self._thread.join(1.0)

    def forked(self) -> None:
        """This process is a child of the owner: let the replica end with the owner alone."""
        if self._link is not None:
            self._link.close()

    def _spawn(self) -> None:
        """Start a process, unless the end has begun.

        Raises:
            OSError: the system cannot start one. Nothing is left open.
        """
        with self._lock:
            if self._ending.is_set():
                return
            self._listens_since = None
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    self._process = subprocess.Popen(  # noqa: S603  (a fixed command)
                        [*interpreter(CODE), *self._words, "--leash-fd", _number(theirs)],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        env={n: v for n, v in os.environ.items() if n != "NOTIFY_SOCKET"},
                        pass_fds=[theirs.fileno()],
                        process_group=0,
                    )
                except BaseException:
                    ours.close()
                    raise
            self._link = ours

    def _watch(self) -> None:
        """Wait for the end of each process, and start it again unless the owner has ended it."""
        ends, has_listened = 0, False
        while True:
            how, listened_s = self._await_end()
            if self._ending.is_set():
                return
            has_listened |= listened_s > 0.0
            ends = 1 if listened_s >= RAN_WELL_S else ends + 1
            if ends == UNUSABLE_ENDS and not has_listened:
                self._on_unusable(how)
            pause = doubling(PAUSE_S, PAUSE_MAX_S, ends)
            log.error("the replica %s; it is started again in %g s", how, pause)
            if self._ending.wait(pause):
                return
            try:
                self._spawn()
            except OSError as failed:
                log.error("the replica cannot be started: %s", failed)

    def _await_end(self) -> tuple[str, float]:
        """Wait until the process has ended. Returns in words how, and for how many seconds it
        listened, 0 if it did not."""
        process, link = self._process, self._link
        assert process is not None
        assert link is not None
        with suppress(OSError):
            while link.recv(REPORT_BYTES):  # its only report is that it listens
                self._listens_since = self._listens_since or time.monotonic()
        code = process.wait()
        since = self._listens_since
        if not self._ending.is_set():
            link.close()
        return how_ended(code), 0.0 if since is None else time.monotonic() - since


def _close(link: socket.socket) -> None:
    """Close a socket that another thread reads."""
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
    link.close()


def _number(link: socket.socket) -> str:
    return str(link.fileno())
