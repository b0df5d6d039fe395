"""Disks of a store inside the cluster, as an operator handles them: real replicas by the CLI."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbus.errors import StoreError
from shardbus.ids import Address
from shardbus.store.protocol import Save
from shardbus.store.replica_status import ask_replicas
from shardbus.store.replicated import ReplicatedStore
from shardbus.transport.zmq.network import ZmqNetwork
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.long

CODE = "from shardbus_cli.main import main; main()"
KEYS, STATUS_S = 50, 5.0


class Served:
    """Replicas of `shardbus store serve`, each with a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = sorted(free_port() for _ in range(3))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return "cluster://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def command(self, *words: str) -> list[str]:
        head = [sys.executable, "-c", CODE, "store", *words, "--cluster", "shop"]
        return [*head, "--store", self.url, "--set", f"store.replicas={len(self.ports)}"]

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

    async def ask(self, *words: str) -> tuple[int, str]:
        """Run a command beside the replicas. Returns its exit code and its output."""
        process = await asyncio.create_subprocess_exec(
            *self.command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await process.communicate()
        return process.returncode or 0, (out + err).decode()

    async def status(self) -> dict[int, dict[str, Any]]:
        """The facts of each replica, by port."""
        addresses = [Address("127.0.0.1", port) for port in self.ports]
        found = await ask_replicas(ZmqNetwork(), "shop", addresses, STATUS_S)
        return {address.port: facts for address, facts in found.items()}

    async def serving(self) -> None:
        """Wait until all that run serve."""

        async def all_serve() -> bool:
            status = await self.status()
            return all(status[port]["state"] == "founded" for port in self.processes)

        await until(all_serve, "every replica")

    def store(self) -> ReplicatedStore:
        addresses = [Address("127.0.0.1", port) for port in self.ports]
        return ReplicatedStore(self.url, "shop", addresses, ZmqNetwork, timeout=20.0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    for port in list(served.processes):
        served.kill(port)


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


async def test_disks_are_wiped_added_and_removed_under_load_and_nothing_is_lost(
    served: Served,
) -> None:
    for port in served.ports:
        served.start(port)
    await served.serving()
    store = served.store()
    await store.start()
    load = Load(store)
    loading = asyncio.create_task(load.run())
    await until(lambda: len(load.acked) == KEYS, "the first saves")
    first, second, third = served.ports

    served.kill(third)
    shutil.rmtree(served.folder / str(third))
    served.start(third)
    await served.serving()
    code, text = await served.ask("status", "--json")
    rows = json.loads(text.splitlines()[0])["replicas"]
    assert (code, [row["ring"] for row in rows]) == (0, [2, 2, 2])

    fourth = free_port()
    served.ports.append(fourth)
    served.start(fourth)

    async def waits() -> bool:
        return (
            f"shardbus store add 127.0.0.1:{fourth}" in (await served.status())[fourth]["waits_for"]
        )

    await until(waits, "the blank replica's wait")
    adding = asyncio.create_task(served.ask("add", f"127.0.0.1:{fourth}"))
    served.kill(second)
    served.start(second)
    code, text = await adding
    assert (code, text.splitlines()[-1].split(":")[0]) == (0, "ring 3"), text
    code, text = await served.ask("remove", f"127.0.0.1:{first}")
    assert code == 0, text
    served.kill(first)
    await until(lambda: load.acked.get("e-1", 0) == load.sent["e-1"], "a save in the last ring")
    load.ended = True
    await loading
    await load.check(store)
    await store.close()

    served.ports.remove(first)
    for port in served.ports:
        served.kill(port)
    for port in served.ports:
        served.start(port)
    await served.serving()
    again = served.store()
    await again.start()
    await load.check(again)
    await again.close()
