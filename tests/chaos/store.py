"""A Redis with a replica and three Sentinels, each a process that can be killed and frozen, and a
small disk of its own for each of the two servers.

The servers sync every write, and the master takes none while it has no replica
(`min-replicas-to-write`). Their configurations are files, so that roles that Sentinel has given
them survive a restart.

The disks are tmpfs. They are named after this process, so that the next run can remove the remains
of a killed run. If they cannot be mounted, `no_disks` has the reason.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from shardbus.ids import Address
from tests.chaos.steps import OF_NODES, Kind, Step
from tests.ports import free_port
from tests.process.stores.saving import stored_totals
from tests.redis_server import DIES_WITH_PARENT, server_binary
from tests.waiting import until

DISK_MIB = 96
DOWN_AFTER_MS, FAILOVER_TIMEOUT_MS = 8000, 20000
NAME = "lab"
SETTINGS = """
protected-mode no
appendonly yes
appendfsync always
save ""
auto-aof-rewrite-min-size 8mb
min-replicas-to-write 1
min-replicas-max-lag 10
repl-diskless-sync-delay 0
"""


Note = Callable[[str], None]
"""Writes a line of the timeline."""


class Site(NamedTuple):
    """The places of a run: its folder, the machine of the store, with the command that enters it,
    and the nodes', by place. `secret` is the file of the cluster's secret."""

    folder: Path
    host: str
    enter: tuple[str, ...]
    nodes: tuple[Address, ...]
    enters: tuple[tuple[str, ...], ...]
    secret: Path


class ChaosStore(Protocol):
    """A store that suffers the steps of a run whose kind is in `kinds`. `may_lose`: a failover
    without a rest of the senders may lose acknowledged saves. `no_disks` is why a kind that it
    could do cannot be done here."""

    url: str
    kinds: ClassVar[frozenset[Kind]]
    may_lose: ClassVar[bool] = False
    no_disks: str = ""
    seeds: tuple[str, ...] = ()
    """The seeds of every node; empty for nodes that run."""
    ends_with_nodes: ClassVar[bool] = False
    """The stored states go with the last nodes."""

    def settings(self, place: int) -> tuple[str, ...]:
        """Return the settings of a node at that place."""
        return ()

    def wipe(self, place: int) -> None:
        """Make the disk at a place blank, while its node does not run."""
        raise NotImplementedError

    async def totals(self, accounts: list[str]) -> dict[str, int]:
        """Return the stored totals, once all nodes have left, or before if these keep them."""
        return await stored_totals(self.url, accounts)

    async def begin(self) -> None:
        """Start everything and wait until it is whole."""

    async def whole(self) -> None:
        """Wait until everything runs and takes writes."""

    async def leader(self) -> str:
        """Return the names of the servers that take writes."""

    async def suffer(self, step: Step, note: Note) -> None:
        """Do a step, and end it."""

    async def fail_over(self) -> None:
        """Have another server take writes. It must have everything: nothing writes meanwhile."""

    def close(self) -> None:
        """End everything."""


class Server:
    """A process of the store."""

    def __init__(
        self, folder: Path, host: str, enter: tuple[str, ...], text: str, *, sentinel: bool = False
    ) -> None:
        self.name, self.host, self.port = folder.name, host, free_port()
        self.folder, self._enter, self._sentinel = folder, enter, sentinel
        self._config = folder.with_suffix(".conf")
        folder.mkdir(parents=True, exist_ok=True)
        self._config.write_text(f"port {self.port}\nbind 0.0.0.0\ndir {folder}\n{text}")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start the process if it does not run; does not wait."""
        if self.running:
            return
        command = [*self._enter, sys.executable, "-c", DIES_WITH_PARENT, str(os.getpid())]
        command += [str(server_binary()), str(self._config)]
        command += ["--sentinel"] if self._sentinel else []
        with self._config.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.running and self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def ask(self, *words: str) -> object:
        """Return the answer to a command.

        Raises:
            redis.RedisError: the server does not answer, or refuses.
        """
        once = Retry(NoBackoff(), 0)
        with redis.Redis(host=self.host, port=self.port, socket_timeout=10.0, retry=once) as client:
            return client.execute_command(*words)

    def role(self) -> list[object]:
        """Return the answer to ROLE; empty if there is none."""
        with suppress(redis.RedisError, OSError):
            answer = self.ask("ROLE")
            if isinstance(answer, list):
                return answer
        return []


class Disks:
    """Small disks, each a tmpfs. `missing` is why there are none."""

    def __init__(self, *places: Path) -> None:
        self._mounted: list[Path] = []
        self.missing = ""
        for place in places:
            self._mount(place)

    def _mount(self, place: Path) -> None:
        place.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", disk_name(), str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self.missing = f"a disk cannot be mounted: {done.stderr.strip()}"
        else:
            self._mounted.append(place)

    def close(self) -> None:
        """Remove them."""
        for place in self._mounted:
            subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


class StoreServers(ChaosStore):
    """Two servers and three Sentinels."""

    kinds = OF_NODES | {
        Kind.KILL_MASTER, Kind.KILL_REPLICA, Kind.KILL_SENTINEL, Kind.FREEZE_MASTER,
        Kind.FREEZE_REPLICA, Kind.FREEZE_SENTINEL, Kind.FAILOVER, Kind.MEMORY, Kind.DISK,
    }  # fmt: skip
    may_lose = True

    def __init__(self, site: Site) -> None:
        folder, host, enter = site.folder, site.host, site.enter
        self._disks = Disks(folder / "redis-1", folder / "redis-2")
        self.no_disks = self._disks.missing
        first = Server(folder / "redis-1", host, enter, SETTINGS)
        follows = f"{SETTINGS}replicaof {host} {first.port}\n"
        self.servers = (first, Server(folder / "redis-2", host, enter, follows))
        watch = (
            f"sentinel monitor {NAME} {host} {first.port} 2\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {NAME} {FAILOVER_TIMEOUT_MS}\n"
        )
        self.sentinels = tuple(
            Server(folder / f"sentinel-{n}", host, enter, watch, sentinel=True) for n in (1, 2, 3)
        )
        places = ",".join(f"{host}:{sentinel.port}" for sentinel in self.sentinels)
        self.url = f"redis+sentinel://{places}/0?master={NAME}"

    @property
    def all(self) -> tuple[Server, ...]:
        return (*self.servers, *self.sentinels)

    async def begin(self) -> None:
        """Start everything and wait until it is whole."""
        for server in self.all:
            server.start()
        await self.whole()

    async def master(self) -> Server:
        """Return the server that the Sentinels name, once a majority names the same."""
        named = await until(self._named, "a master that two Sentinels name")
        return next(s for s in self.servers if s.port == named)

    async def _named(self) -> int:
        answers = await asyncio.gather(*(asyncio.to_thread(named_by, s) for s in self.sentinels))
        return next((port for port in answers if port and answers.count(port) >= 2), 0)

    async def replica(self) -> Server:
        """Return the other one."""
        master = await self.master()
        return next(server for server in self.servers if server is not master)

    async def whole(self) -> None:
        """Wait until all run, all Sentinels name one master, and the other server follows it."""

        async def seen() -> bool:
            for server in self.all:
                server.start()
            answers = await asyncio.gather(
                *(asyncio.to_thread(named_by, s) for s in self.sentinels)
            )
            if len(set(answers)) > 1 or not answers[0]:
                return False
            master = next(s for s in self.servers if s.port == answers[0])
            other = next(s for s in self.servers if s is not master)
            role, follows = await asyncio.gather(
                asyncio.to_thread(master.role), asyncio.to_thread(other.role)
            )
            return role[:1] == [b"master"] and (
                follows[:1] + follows[2:4] == [b"slave", master.port, b"connected"]
            )

        await until(seen, "a whole store")

    async def leader(self) -> str:
        """Return the name of the master."""
        return (await self.master()).name

    async def suffer(self, step: Step, note: Note) -> None:
        """Do a step, and end it."""
        server = await self._target(step)
        if step.kind is Kind.MEMORY:
            note(f"memory of {server.name} for {step.seconds:g} s")
            await self._set_maxmemory(server, "1")
            await asyncio.sleep(step.seconds)
            await self._set_maxmemory(server, "0")
        elif step.kind is Kind.DISK:
            note(f"disk of {server.name} for {step.seconds:g} s")
            await asyncio.to_thread(fill, server.folder)
            await asyncio.sleep(step.seconds)
            empty(server.folder)
        else:
            await kill_or_freeze(server, step, note)

    async def _target(self, step: Step) -> Server:
        match step.kind:
            case Kind.KILL_SENTINEL | Kind.FREEZE_SENTINEL:
                return self.sentinels[step.sentinel]
            case Kind.KILL_REPLICA | Kind.FREEZE_REPLICA:
                return await self.replica()
            case Kind.DISK if not step.on_master:
                return await self.replica()
            case _:
                return await self.master()

    async def fail_over(self) -> None:
        """Make the replica the master, once it has everything: nothing writes meanwhile."""
        before, sentinel = await self.master(), self.sentinels[0]
        await asyncio.to_thread(before.ask, "WAIT", "1", "0")

        async def names_the_other() -> bool:
            """Ask, unless the Sentinel names the other one by now. It may consent and then give up:
            shortly after a fault the replica is not fit for it. Then it is asked again; while a
            failover is under way it refuses."""
            if await asyncio.to_thread(named_by, sentinel) == before.port:
                with suppress(redis.RedisError, OSError):
                    await asyncio.to_thread(sentinel.ask, "SENTINEL", "FAILOVER", NAME)
                await asyncio.sleep(1.0)
                return False
            return True

        async def done() -> bool:
            return await names_the_other() and await self.master() is not before

        await until(done, "the failover")

    async def _set_maxmemory(self, server: Server, value: str) -> None:
        """Set `maxmemory`; waits until the server has taken it."""

        async def taken() -> bool:
            with suppress(redis.RedisError, OSError):
                await asyncio.to_thread(server.ask, "CONFIG", "SET", "maxmemory", value)
                return True
            return False

        await until(taken, f"maxmemory of {server.name}")

    def close(self) -> None:
        """End everything and remove the disks."""
        for server in self.all:
            server.kill()
        self._disks.close()


async def kill_or_freeze(server: Server, step: Step, note: Note) -> None:
    """Kill, freeze or restart a server, for the seconds of the step."""
    word = step.kind.partition("-")[0]
    note(f"{word} {server.name} for {step.seconds:g} s ({step.kind})")
    match word:
        case "kill":
            server.kill()
        case "freeze":
            server.signal(signal.SIGSTOP)
        case _:
            server.signal(signal.SIGTERM)
            await until(lambda: not server.running, f"the end of {server.name}")
    await asyncio.sleep(step.seconds)
    if word == "freeze":
        server.signal(signal.SIGCONT)
    else:
        server.start()


def named_by(sentinel: Server) -> int:
    """Return the port of the master that a Sentinel names, 0 if it does not answer."""
    with suppress(redis.RedisError, OSError):
        answer = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        if isinstance(answer, (list, tuple)):
            return int(answer[1])
    return 0


def fill(folder: Path) -> None:
    """Fill the disk of this folder."""
    with (folder / "ballast").open("wb") as file, suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, (DISK_MIB - 1) << 20)  # too much: takes all
    with (folder / "ballast").open("ab", buffering=0) as file:
        block = b"\0" * 4096
        try:
            while file.write(block) == len(block):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def empty(folder: Path) -> None:
    """Remove the file of `fill`."""
    (folder / "ballast").unlink(missing_ok=True)


def disk_name(pid: int | None = None) -> str:
    """Return the name under which a run's disks are mounted."""
    return f"chaos-{os.getpid() if pid is None else pid}"


def sweep_disks() -> None:
    """Remove the disks of runs whose process is no more."""
    for line in Path("/proc/mounts").read_text().splitlines():
        name, place, *_ = line.split()
        pid = name.removeprefix("chaos-")
        if name != pid and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            subprocess.run(["umount", "-l", place], check=False, capture_output=True)
