"""A PostgreSQL server of one's own: the programs of the PATH, or of Debian's package.

It listens on a free port of the loopback interface, keeps its data in a folder of its own, and dies
with the process that started it, even if that is killed: `setpriv` asks the kernel for the signal.
PostgreSQL refuses to run as root, so root starts it as another user, who owns the folder.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import asyncpg

from tests.certificates import Certificates
from tests.ports import free_port
from tests.waiting import PATIENCE_S

SUPERUSER = "admin"
DATABASE = "postgres"
CERTIFIED = "certified"
"""A user who is accepted only with a certificate for this name, if the server has TLS."""
SETTINGS = (
    "unix_socket_directories=",
    "shared_buffers=16MB",
    "max_connections=50",
    "autovacuum=off",
    "max_wal_size=256MB",
)


def missing() -> str:
    """Return why no server can be started here; empty if one can."""
    for program in ("postgres", "initdb", "setpriv"):
        if program_of(program) is None:
            return f"needs {program}: install postgresql and util-linux"
    return ""


def program_of(name: str) -> str | None:
    """Return the path of a program of PostgreSQL, the newest of Debian's if PATH has none."""
    if found := shutil.which(name):
        return found
    folders = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = sorted(folders, key=lambda path: int(path.parts[-3]))
    return str(newest[-1]) if newest else None


def unprivileged() -> tuple[int, int] | None:
    """Return user and group for the server, None if this process is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise RuntimeError("no user is called postgres or nobody")


class PostgresServer:
    """A server while the context lasts. `settings` are added to its command line, as in
    `synchronous_commit=off`, `environment` to its environment. With `copy_of`, it is a standby of
    that server. With `certificates` it has TLS, and knows their authority. `enter` is the command
    that enters its machine, whose address is `host`."""

    def __init__(
        self,
        *settings: str,
        copy_of: PostgresServer | None = None,
        certificates: Certificates | None = None,
        host: str = "127.0.0.1",
        enter: tuple[str, ...] = (),
        **environment: str,
    ) -> None:
        self._settings, self._environment = settings, environment
        self._certificates = certificates
        self.host, self._enter = host, enter
        self._copy_of = copy_of
        self._process: subprocess.Popen[bytes] | None = None
        self._in_main_thread = False
        self.folder = Path()
        self.port = 0

    def __enter__(self) -> PostgresServer:
        self.folder = Path(tempfile.mkdtemp(prefix="shardbus-postgres-"))
        try:
            self._fill()
            self._copy_certificates()
            for _ in range(5):
                self.port = free_port()
                if self._start():
                    return self
            raise RuntimeError(f"PostgreSQL does not start:\n{self.log()}")
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
    def running(self) -> bool:
        """True if it runs and will go on. One that was started in another thread does not: the
        kernel ends it with that thread."""
        lives = self._process is not None and self._process.poll() is None
        return lives and self._in_main_thread

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, user: str = SUPERUSER, **options: str) -> str:
        """Return the store's URL."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return (
            f"postgresql://{user}@{self.host}:{self.port}/{DATABASE}{'?' if query else ''}{query}"
        )

    async def ask(self, *statements: str) -> list[Any]:
        """Run statements as the superuser, and return the rows of the last one."""
        connection = await self.connect()
        try:
            rows: list[Any] = []
            for statement in statements:
                rows = await connection.fetch(statement)
            return rows
        finally:
            connection.terminate()

    def run(self, *statements: str) -> list[Any]:
        """Do the same and wait for it, in a thread, because a loop may run in this one."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(self.ask(*statements))).result()

    async def connect(self) -> Any:
        """Return a connection of the superuser, to look at the server from outside."""
        return await asyncpg.connect(
            host=self.host,
            port=self.port,
            user=SUPERUSER,
            database=DATABASE,
            ssl=False,
            timeout=PATIENCE_S,
        )

    async def set(self, **settings: str) -> None:
        """Change settings of the running server; an empty value restores the default."""
        changes = [
            f"ALTER SYSTEM SET {name} = '{value}'" if value else f"ALTER SYSTEM RESET {name}"
            for name, value in settings.items()
        ]
        await self.ask(*changes, "SELECT pg_reload_conf()")

    async def promote(self) -> None:
        """Make a primary of a standby."""
        await self.ask("SELECT pg_promote(true, 60)")

    def restart(self) -> None:
        """Start anew on the same port and with the same data. Ends the server first if it runs."""
        self.kill()
        if not self._start():
            raise RuntimeError(f"PostgreSQL does not start again:\n{self.log()}")

    def stop(self) -> None:
        """End the server in order: it ends its connections, and writes down what it has."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait()

    def kill(self) -> None:
        """SIGKILL to the server and each of its processes. Does nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            self._signal(process, signal.SIGKILL)
            process.wait()
            (self.data / "postmaster.pid").unlink(missing_ok=True)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        assert self._process is not None
        self._signal(self._process, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._signal(self._process, signal.SIGCONT)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace")[-5000:] if path.exists() else ""

    def _signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        for child in (process.pid, *_descendants(process.pid)):
            try:
                os.kill(child, number)
            except ProcessLookupError:
                continue

    def _fill(self) -> None:
        """Create the data, or copy those of the primary."""
        owner = unprivileged()
        if owner is not None:
            os.chown(self.folder, *owner)
        if self._copy_of is None:
            self._finish(
                "initdb", "--auth=trust", f"--username={SUPERUSER}", "--encoding=UTF8",
                "--locale=C", "--no-sync", "--no-instructions", f"--pgdata={self.data}",
            )  # fmt: skip
            allowed = "local all all trust\nhost replication all 127.0.0.1/32 trust\n"
            if self._certificates is not None:
                allowed += f"hostssl all {CERTIFIED} 127.0.0.1/32 cert\n"
            network = f"{self.host}/{32 if self.host == '127.0.0.1' else 8}"
            people = f"host all {SUPERUSER} {network} trust\nhost all all {network} md5\n"
            (self.data / "pg_hba.conf").write_text(allowed + people)
        else:
            primary = f"host=127.0.0.1 port={self._copy_of.port} user={SUPERUSER}"
            self._finish(
                "pg_basebackup", f"--dbname={primary}", f"--pgdata={self.data}",
                "--checkpoint=fast", "--no-sync", "--write-recovery-conf", "--wal-method=stream",
            )  # fmt: skip

    def _copy_certificates(self) -> None:
        """The server reads only a key that belongs to its user, and that no other may read."""
        if (found := self._certificates) is None:
            return
        names = {"ssl_ca_file": found.authority, "ssl_cert_file": found.certificate}
        for setting, source in {**names, "ssl_key_file": found.key}.items():
            copied = self.data / setting
            shutil.copyfile(source, copied)
            copied.chmod(0o600)
            if (owner := unprivileged()) is not None:
                os.chown(copied, *owner)
            self._settings += (f"{setting}={copied}",)
        self._settings += ("ssl=on",)

    def _finish(self, program: str, *options: str) -> None:
        found = program_of(program) or program
        done = subprocess.run(
            [*as_owner(), found, *options], capture_output=True, text=True, cwd=self.folder
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr}")

    def _start(self) -> bool:
        program = program_of("postgres") or "postgres"
        command = [*self._enter, *as_owner(), program, "-D", str(self.data)]
        place = (f"listen_addresses={self.host}", f"port={self.port}")
        for setting in (*SETTINGS, *place, *self._settings):
            command += ["-c", setting]
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self._environment},
            )
        deadline = time.monotonic() + PATIENCE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                self.run("SELECT 1")
                return True
            except (OSError, asyncpg.PostgresError):
                time.sleep(0.02)
        self.kill()
        return False

    def _remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def as_owner() -> list[str]:
    """Return the command that starts another as the owner of the data, tied to this process."""
    owner = unprivileged()
    switch = [f"--reuid={owner[0]}", f"--regid={owner[1]}", "--clear-groups"] if owner else []
    return ["setpriv", *switch, "--pdeathsig=KILL"]


def _descendants(pid: int) -> list[int]:
    """Return the processes that `pid` has started, and those that these have."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    children = [int(child) for child in text.split()]
    return [one for child in children for one in (child, *_descendants(child))]
