"""Replicas of `shardbus store serve`, and a load on their store, for tests of operators' steps."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardbus.errors import StoreError
from shardbus.ids import Address
from shardbus.store.protocol import Save
from shardbus.store.replica_status import ask_replicas
from shardbus.store.replicated import ReplicatedStore
from shardbus.transport.zmq.network import ZmqNetwork
from tests.ports import free_port
from tests.waiting import until

CODE = "from shardbus_cli.main import main; main()"
KEYS, STATUS_S = 50, 5.0


class Served:
    """Replicas of `shardbus store serve`, each with a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = sorted(free_port() for _ in range(3))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.secret = ""
        """The file of the keys of replicas and commands; empty without keys."""

    @property
    def url(self) -> str:
        return "cluster://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def command(self, *words: str, cluster: str = "shop") -> list[str]:
        head = [sys.executable, "-c", CODE, "store", *words, "--cluster", cluster]
        keys = ["--set", f"security.secret={self.secret}"] if self.secret else []
        return [*head, "--store", self.url, "--set", f"store.replicas={len(self.ports)}", *keys]

    def start(self, port: int) -> None:
        path = str(self.folder / str(port))
        with (self.folder / f"{port}.log").open("ab") as out:
            self.processes[port] = subprocess.Popen(
                self.command("serve", "--port", str(port), "--path", path), stderr=out, stdout=out
            )

    def kill(self, port: int) -> None:
        process = self.processes.pop(port)
        process.kill()
        process.wait()

    async def ask(self, *words: str, cluster: str = "shop") -> tuple[int, str]:
        """Run a command about replicas. Returns its exit code and its output."""
        return await self._output(*self.command(*words, cluster=cluster))

    async def run(self, *words: str) -> tuple[int, str]:
        """Run any command beside the replicas. Returns its exit code and its output."""
        return await self._output(sys.executable, "-c", CODE, *words)

    @staticmethod
    async def _output(*command: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await process.communicate()
        return process.returncode or 0, (out + err).decode()

    async def status(self) -> dict[int, dict[str, Any]]:
        """The facts of each replica, by port."""
        addresses = [Address("127.0.0.1", port) for port in self.ports]
        statuses = await ask_replicas(ZmqNetwork(), "shop", addresses, STATUS_S)
        return {address.port: facts for address, facts in statuses.items()}

    async def serving(self) -> None:
        """Wait until all that run serve."""

        async def all_serve() -> bool:
            status = await self.status()
            return all(status[port]["state"] == "founded" for port in self.processes)

        await until(all_serve, "every replica")

    def store(self) -> ReplicatedStore:
        addresses = [Address("127.0.0.1", port) for port in self.ports]
        return ReplicatedStore(self.url, "shop", addresses, ZmqNetwork, timeout=20.0)


class Load:
    """Saves of some entities, one after the other, until it is ended. `acked` has the last
    acknowledged number of each, and `sent` the last one that was sent."""

    def __init__(self, store: ReplicatedStore) -> None:
        self.store, self.ended = store, False
        self.acked: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.failed = 0

    async def run(self) -> None:
        number = 0
        while not self.ended:
            number += 1
            entity = f"e-{number % KEYS}"
            self.sent[entity] = number
            save = Save("cart", "0", entity, 1, b"%d" % number, number)
            try:
                [error] = await self.store.save_states([save])
            except StoreError as failed:
                error = failed
            if error is None:
                self.acked[entity] = number
            else:
                self.failed += 1

    async def check(self, store: ReplicatedStore) -> None:
        """No acknowledged save is lost."""
        states = await store.read_states("cart", list(self.acked))
        for entity, state in zip(self.acked, states, strict=True):
            assert state is not None, entity
            assert self.acked[entity] <= int(state) <= self.sent[entity]


def replica_processes(path: Path) -> list[int]:
    """The processes of replicas whose disks are below this path."""
    pids = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"serve" in words and any(bytes(path) in word for word in words):
                pids.append(int(entry.name))
    return pids
