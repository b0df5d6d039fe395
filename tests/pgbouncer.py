"""A PgBouncer of one's own, in front of a `PostgresServer`.

It listens on a free port of the loopback interface and dies with the process that started it. It
refuses to run as root, so root starts it as the user of the server.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from tests.ports import free_port
from tests.postgres_server import DATABASE, PostgresServer, as_owner, unprivileged
from tests.waiting import PATIENCE_S

CONFIG = """
[databases]
* = host=127.0.0.1 port={behind}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = md5
auth_file = {folder}/users
pool_mode = {mode}
default_pool_size = {size}
server_round_robin = 1
server_login_retry = 1
"""


def missing() -> str:
    """Return why none can be started here; empty if one can."""
    return "" if _program() else "needs pgbouncer: install pgbouncer"


def _program() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


class PgBouncer:
    """A pooler while the context lasts: in this mode, with so many connections of the server, whom
    `user` opens with `password`. It leads each transaction to another connection in turn."""

    def __init__(
        self, server: PostgresServer, mode: str, *, user: str, password: str, size: int = 3
    ) -> None:
        self._server, self._mode, self._size = server, mode, size
        self._user, self._password = user, password
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path()
        self.port = 0

    def __enter__(self) -> PgBouncer:
        self.folder = Path(tempfile.mkdtemp(prefix="shardbus-pgbouncer-"))
        try:
            for _ in range(5):
                self.port = free_port()
                if self._start():
                    return self
            raise RuntimeError(f"PgBouncer does not start:\n{self.log()}")
        except BaseException:
            self._remove()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._remove()

    @property
    def url(self) -> str:
        return f"postgresql://{self._user}:{self._password}@127.0.0.1:{self.port}/{DATABASE}"

    def kill(self) -> None:
        """SIGKILL. Does nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def restart(self) -> None:
        """Start anew on the same port. Ends it first if it runs."""
        self.kill()
        if not self._start():
            raise RuntimeError(f"PgBouncer does not start again:\n{self.log()}")

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace")[-5000:] if path.exists() else ""

    def _start(self) -> bool:
        config, users = self.folder / "pgbouncer.ini", self.folder / "users"
        users.write_text(f'"{self._user}" "{self._password}"\n')
        config.write_text(
            CONFIG.format(
                behind=self._server.port,
                port=self.port,
                folder=self.folder,
                mode=self._mode,
                size=self._size,
            )
        )
        if (owner := unprivileged()) is not None:
            for path in (self.folder, config, users):
                os.chown(path, *owner)
        command = [*as_owner(), _program() or "pgbouncer", str(config)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )
        deadline = time.monotonic() + PATIENCE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return True
            except OSError:
                time.sleep(0.02)
        self.kill()
        return False

    def _remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
