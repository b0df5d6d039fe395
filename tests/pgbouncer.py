"""A PgBouncer of one's own, in front of a `PostgresServer`.

It dies with the process that started it. It refuses to run as root, so root starts it as the user
of the server.
"""

from __future__ import annotations

import os
import shutil
import socket

from tests.postgres_server import DATABASE, PostgresServer, as_owner, unprivileged
from tests.started_server import StartedServer

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


class PgBouncer(StartedServer):
    """A pooler while the context lasts: in this mode, with so many connections of the server, whom
    `user` opens with `password`. It leads each transaction to another connection in turn."""

    title = "PgBouncer"

    def __init__(
        self, server: PostgresServer, mode: str, *, user: str, password: str, size: int = 3
    ) -> None:
        super().__init__()
        self._server, self._mode, self._size = server, mode, size
        self._user, self._password = user, password

    @property
    def url(self) -> str:
        return f"postgresql://{self._user}:{self._password}@127.0.0.1:{self.port}/{DATABASE}"

    def _command(self) -> list[str]:
        """Write the configuration, which has the port, and return the command that reads it."""
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
        return [*as_owner(), _program() or "pgbouncer", str(config)]

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        except OSError:
            return False
        return True
