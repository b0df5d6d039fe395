"""A PostgreSQL server of one's own: the programs of the PATH, or of Debian's package.

It keeps its data in a folder of its own and dies with the process that started it, even if that is
killed: `setpriv` asks the kernel for the signal.
PostgreSQL refuses to run as root, so root starts it as another user, who owns the folder.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg

from tests.certificates import Certificates
from tests.started_server import StartedServer
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
    if program := shutil.which(name):
        return program
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


class PostgresServer(StartedServer):
    """A server while the context lasts. `settings` are added to its command line, as in
    `synchronous_commit=off`, `environment` to its environment. With `copy_of`, it is a standby of
    that server. With `certificates` it has TLS, and knows their authority. `enter` is the command
    that enters its machine, whose address is `host`."""

    title = "PostgreSQL"

    def __init__(
        self,
        *settings: str,
        copy_of: PostgresServer | None = None,
        certificates: Certificates | None = None,
        host: str = "127.0.0.1",
        enter: tuple[str, ...] = (),
        **environment: str,
    ) -> None:
        super().__init__(environment=environment)
        self._settings, self._certificates = settings, certificates
        self.host, self._enter = host, enter
        self._copy_of = copy_of
        self._in_main_thread = False

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

    def stop(self) -> None:
        """End the server in order: it ends its connections, and writes its data to disk."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait()

    def kill(self) -> None:
        """SIGKILL to the server and each of its processes. Does nothing if it does not run."""
        if self._process is not None:
            super().kill()
            (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        for child in (process.pid, *_descendants(process.pid)):
            try:
                os.kill(child, number)
            except ProcessLookupError:
                continue

    def _prepare(self) -> None:
        self._fill()
        self._copy_certificates()

    def _fill(self) -> None:
        """Create the data, or copy the primary's."""
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
        if (certificates := self._certificates) is None:
            return
        names = {"ssl_ca_file": certificates.authority, "ssl_cert_file": certificates.certificate}
        for setting, source in {**names, "ssl_key_file": certificates.key}.items():
            copied = self.data / setting
            shutil.copyfile(source, copied)
            copied.chmod(0o600)
            if (owner := unprivileged()) is not None:
                os.chown(copied, *owner)
            self._settings += (f"{setting}={copied}",)
        self._settings += ("ssl=on",)

    def _finish(self, program: str, *options: str) -> None:
        path = program_of(program) or program
        done = subprocess.run(
            [*as_owner(), path, *options], capture_output=True, text=True, cwd=self.folder
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr}")

    def _command(self) -> list[str]:
        program = program_of("postgres") or "postgres"
        command = [*self._enter, *as_owner(), program, "-D", str(self.data)]
        place = (f"listen_addresses={self.host}", f"port={self.port}")
        for setting in (*SETTINGS, *place, *self._settings):
            command += ["-c", setting]
        return command

    def _start(self) -> bool:
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        return super()._start()

    def _answers(self) -> bool:
        try:
            self.run("SELECT 1")
        except (OSError, asyncpg.PostgresError):
            return False
        return True


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
    return [descendant for child in children for descendant in (child, *_descendants(child))]
