"""A server that a test starts: on a free port of the loopback interface, and gone with the test.

`StartedServer` starts the program, waits until it answers, and ends it. A subclass has the command
line of its program and the question that shows that it answers.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from tests.ports import free_port
from tests.waiting import PATIENCE_S

PORTS = 5
"""So many ports are tried: another program may take one before the server has it."""
AGAIN_S = 0.1
"""Until a server that ended at once is started again."""
LOG_BYTES = 5000
"""So much of the end of its log stands in an error."""


class StartedServer(ABC):
    """A server while the context lasts. Without a `folder` it has one of its own, which is removed
    at the end. `environment` is added to the program's environment."""

    title: ClassVar[str]

    def __init__(
        self, folder: Path | None = None, environment: dict[str, str] | None = None
    ) -> None:
        self._chosen_folder, self._environment = folder, environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path()
        self.port = 0

    @property
    def pid(self) -> int:
        """The process of the server, while it runs."""
        assert self._process is not None
        return self._process.pid

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command that starts the server on `port`, with its data in `folder`."""

    @abstractmethod
    def _answers(self) -> bool:
        """True if the server serves clients now."""

    def _prepare(self) -> None:  # noqa: B027 -- most have nothing to prepare
        """Fill the folder before the first start."""

    def __enter__(self) -> Self:
        if self._chosen_folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix=f"shardbus-{self.title.lower()}-"))
        else:
            self.folder = self._chosen_folder.absolute()
            self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._prepare()
            for _ in range(PORTS):
                self.port = free_port()
                if self._start():
                    return self
            raise RuntimeError(f"{self.title} does not start:\n{self.log()}")
        except BaseException:
            self._remove()
            raise

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._remove()

    def restart(self) -> None:
        """Start anew on the same port and with the same data. Ends the server first if it runs.
        Processes of the former one may end a moment later, and hold ports or files that the new one
        needs."""
        self.kill()
        ends = time.monotonic() + PATIENCE_S
        while not self._start():
            if time.monotonic() > ends:
                raise RuntimeError(f"{self.title} does not start again:\n{self.log()}")
            time.sleep(AGAIN_S)

    def kill(self) -> None:
        """SIGKILL. Does nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            self._signal(process, signal.SIGKILL)
            process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        assert self._process is not None
        self._signal(self._process, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._signal(self._process, signal.SIGCONT)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace")[-LOG_BYTES:] if path.exists() else ""

    def _signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        process.send_signal(number)

    def _start(self) -> bool:
        """Start the program and wait until it answers; False if it ends instead."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self._environment},
            )
        deadline = time.monotonic() + PATIENCE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._answers():
                return True
            time.sleep(0.01)
        self.kill()
        return False

    def _remove(self) -> None:
        if self._chosen_folder is None:
            shutil.rmtree(self.folder, ignore_errors=True)
