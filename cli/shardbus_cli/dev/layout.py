"""Where the nodes of `shardbus dev` are: addresses, the folder of their state, and settings.

    node n    ROUTER port + 10 (n - 1), gossip one above, HTTP http_port + 10 (n - 1)

Everything stays on the loopback. `.shardbus` in the current directory has the SQLite file with the
state, the token for writes over HTTP, and a lock. Each node holds the lock too, so it is free only
when no process of an earlier `dev` is left.

The settings here are weaker than the user's file, the environment and `--set`; only addresses,
ports and the store are not, because nodes of one machine must not share the former and must share
the latter.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import socket
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from shardbus.config.ports import PORT_MAX, clash
from shardbus_cli.exit_codes import CommandFailure, ExitCode

HOST = "127.0.0.1"
STEP = 10
NODES_MAX = 16
FOLDER = ".shardbus"
STATE, TOKEN, LOCK = "state.db", "token", "lock"
LOCK_WAIT_S, LOCK_POLL_S = 6.0, 0.1
"""For the nodes of a `dev` that was killed to end."""
WEAK = {
    "cluster.gossip_interval": "200ms",
    "cluster.leader_actions_interval": "200ms",
    # A breakpoint in a handler must not make a node leave.
    "cluster.app_stall_timeout": "10m",
    "cluster.quarantine_after": "off",
    "http.write": "true",
    "log.level": "warning",
    "log.format": "pretty",
}
"""Settings that the user may overrule."""


class NodePlace(msgspec.Struct, frozen=True):
    """The ports of one node."""

    number: int
    port: int
    http_port: int

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    def ports(self) -> dict[str, int]:
        """Return each port, by its purpose."""
        by_name = {"messages": self.port, "gossip": self.port + 1, "HTTP": self.http_port}
        return {f"{what} of node {self.number}": port for what, port in by_name.items()}


def places(nodes: int, port: int, http_port: int) -> tuple[NodePlace, ...]:
    """Assign the ports.

    Raises:
        CommandFailure: a port is above 65535, or assigned twice.
    """
    layout = tuple(NodePlace(n + 1, port + STEP * n, http_port + STEP * n) for n in range(nodes))
    named = [(what, number) for place in layout for what, number in place.ports().items()]
    if both := clash(named):
        raise CommandFailure(
            f"port {dict(named)[both[0]]} would be that of {both[0]} and of {both[1]}",
            "choose --http-port further from --port; gossip has the port of messages + 1",
            code=ExitCode.USAGE,
        )
    for what, number in named:
        if number > PORT_MAX:
            raise CommandFailure(
                f"the port of {what} would be {number}",
                "choose --port and --http-port lower",
                code=ExitCode.USAGE,
            )
    return layout


def check_free(nodes: Iterable[NodePlace]) -> None:
    """Check that nothing listens on the ports.

    Raises:
        CommandFailure: a port is taken.
    """
    for place in nodes:
        for what, port in place.ports().items():
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except OSError as taken:
                    raise CommandFailure(
                        f"port {port}, for {what}, cannot be used: {taken.strerror}",
                        "end what listens there, or choose --port and --http-port",
                    ) from None


class DevFolder:
    """The folder `.shardbus` of a directory."""

    def __init__(self, at: Path) -> None:
        self.path = at / FOLDER
        self.lock = -1
        """The descriptor of the lock, which the nodes inherit."""

    @property
    def store(self) -> str:
        return f"sqlite:///{self.path / STATE}"

    @property
    def token(self) -> Path:
        return self.path / TOKEN

    def open(self, *, fresh: bool) -> None:
        """Make the folder, lock it, and make a token. `fresh`: remove the state first.

        Raises:
            CommandFailure: another `dev` runs here, or the folder cannot be written.
        """
        try:
            self.path.mkdir(exist_ok=True)
            self._lock()
            (self.path / ".gitignore").write_text("*\n", encoding="ascii")
            if fresh:
                for name in (STATE, f"{STATE}-wal", f"{STATE}-shm"):
                    (self.path / name).unlink(missing_ok=True)
            if not self.token.exists():
                made = os.open(self.token, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
                with os.fdopen(made, "w", encoding="ascii") as file:
                    file.write(f"{secrets.token_hex(16)}\n")
        except OSError as failed:
            raise CommandFailure(
                f"{str(self.path)!r} cannot be used: {failed.strerror}",
                "run in a directory that you may write to",
            ) from None

    def _lock(self) -> None:
        """Take the lock. Nodes of a `dev` that was killed hold it until they have ended."""
        self.lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as held:
                if held.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            holder = os.pread(self.lock, 32, 0).decode("ascii", "replace").strip()
            if time.monotonic() >= deadline or _runs(holder):
                raise CommandFailure(
                    f"another `shardbus dev` (process {holder or '?'}) runs in this directory",
                    "end it first, or run in another directory",
                )
            time.sleep(LOCK_POLL_S)
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, f"{os.getpid()}\n".encode("ascii"), 0)


def _runs(process: str) -> bool:
    """True if there is a process with this number."""
    try:
        os.kill(int(process), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
