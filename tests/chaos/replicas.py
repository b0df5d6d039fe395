"""A store inside the cluster: a replica beside each of five nodes, on a small disk of its own.

Three replicas are the ring, the others are spares: one that is away for `REPAIR_AFTER_S` gives way
to a spare, so that the longest faults change the ring, and the shortest do not. A replica is
killed, frozen and slowed beside its node, and dies with it. The largest fault takes one of three
disks, so no acknowledged save may be lost.

At the end all nodes leave, and the disks alone must have every save: replicas without nodes serve
them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardbus.config.settings import SecuritySettings
from shardbus.ids import Address
from shardbus.store.opening import open_store
from shardbus.store.replica_status import ask_replicas
from shardbus.transport.zmq.curve import Keyring
from shardbus.transport.zmq.network import ZmqNetwork
from tests.chaos.steps import OF_NODES, Kind, Step
from tests.chaos.store import ChaosStore, Disks, Note, Site, empty, fill
from tests.process.served_replicas import CODE, replica_processes
from tests.process.stores.saving import totals_in
from tests.process.warm import PATHS
from tests.redis_server import DIES_WITH_PARENT
from tests.waiting import until

RING, REPAIR_AFTER_S = 3, 12
FOUNDED = "founded"
APART = 2
"""From the port of a node to the port of its replica."""
STATUS_S = 5.0
SLOW_S = (0.2, 0.1)
"""A slow replica stands still and runs in turn."""


class ReplicaStore(ChaosStore):
    """Five replicas, of which three are the ring."""

    kinds = OF_NODES | {Kind.KILL_REPLICA, Kind.FREEZE_REPLICA, Kind.SLOW, Kind.DISK, Kind.WIPE}
    url = "cluster://"

    def __init__(self, site: Site) -> None:
        self._site = site
        self._disks = Disks(*(self._disk(place) for place in range(len(site.nodes))))
        self.no_disks = self._disks.missing
        self.seeds = tuple(map(str, site.nodes))
        self._addresses = [Address(node.host, node.port + APART) for node in site.nodes]
        self._alone: list[subprocess.Popen[bytes]] = []

    def _disk(self, place: int) -> Path:
        return self._site.folder / f"replica-{place}"

    def settings(self, place: int) -> tuple[str, ...]:
        path = self._disk(place)
        return (f"store.path={path}", f"store.repair_after={REPAIR_AFTER_S}s", "store.timeout=10s")

    async def begin(self) -> None:
        """The nodes start the replicas."""

    async def whole(self) -> None:
        """Wait until all replicas are in reach, and three of them serve in the same ring."""
        await until(self._is_whole, "a whole ring")

    async def _is_whole(self) -> bool:
        status = await ask_replicas(self._network(), "lab", self._addresses, STATUS_S)
        return is_whole(list(status.values()))

    def _network(self) -> ZmqNetwork:
        return ZmqNetwork(Keyring.at(str(self._site.secret), "", ""))

    async def leader(self) -> str:
        return "the replicas"

    async def suffer(self, step: Step, note: Note) -> None:
        """Do a step, and end it."""
        disk = self._disk(step.place)
        note(f"{step.kind} at place {step.place} for {step.seconds:g} s")
        match step.kind:
            case Kind.DISK:
                await asyncio.to_thread(fill, disk)
                await asyncio.sleep(step.seconds)
                empty(disk)
            case Kind.KILL_REPLICA:
                self._signal(disk, signal.SIGKILL)
            case Kind.FREEZE_REPLICA:
                self._signal(disk, signal.SIGSTOP)
                await asyncio.sleep(step.seconds)
                self._signal(disk, signal.SIGCONT)
            case _:
                end = time.monotonic() + step.seconds
                while time.monotonic() < end:
                    self._signal(disk, signal.SIGSTOP)
                    await asyncio.sleep(SLOW_S[0])
                    self._signal(disk, signal.SIGCONT)
                    await asyncio.sleep(SLOW_S[1])

    def _signal(self, disk: Path, number: signal.Signals) -> None:
        for pid in replica_processes(disk):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wipe(self, place: int) -> None:
        """Remove all files of a disk, once the replica has ended with its node."""
        disk = self._disk(place)
        self._signal(disk, signal.SIGKILL)
        for path in disk.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    async def fail_over(self) -> None:
        """No replica leads."""
        raise NotImplementedError

    async def totals(self, accounts: list[str]) -> dict[str, int]:
        """Start the replicas without nodes, and read their rows."""
        for place, address in enumerate(self._addresses):
            self._serve(place, address, self._outside)
        await self.whole()
        return await self._read(accounts)

    @property
    def _outside(self) -> str:
        """The URL of the replicas for who has none of them."""
        scheme, _, query = self.url.partition("?")
        addresses = ",".join(map(str, self._addresses))
        return f"{scheme}{addresses}" + (f"?{query}" if query else "")

    async def _read(self, accounts: list[str]) -> dict[str, int]:
        keys = SecuritySettings(secret=str(self._site.secret))
        store = open_store(self._outside, cluster="lab", timeout=10.0, security=keys)
        return await totals_in(store, accounts)

    def _serve(self, place: int, address: Address, url: str) -> None:
        words = ["store", "serve", "--cluster", "lab", "--host", address.host]
        words += ["--port", str(address.port), "--path", str(self._disk(place)), "--store", url]
        words += ["--set", f"security.secret={self._site.secret}"]
        guard = [sys.executable, "-c", DIES_WITH_PARENT, str(os.getpid()), sys.executable]
        with (self._site.folder / f"alone-{place}.log").open("wb") as log:
            process = subprocess.Popen(
                [*self._site.enters[place], *guard, "-c", CODE, *words],
                env=os.environ | {"PYTHONPATH": PATHS},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._alone.append(process)

    def close(self) -> None:
        for process in self._alone:
            process.kill()
            process.wait()
        self._disks.close()


class MemoryStore(ReplicaStore):
    """The same without disks: a replica that ends forgets all, and gets it from the two others. So
    the saves are read before the nodes leave."""

    kinds = ReplicaStore.kinds - {Kind.DISK, Kind.WIPE}
    url = "cluster://?durability=memory"
    ends_with_nodes = True

    async def totals(self, accounts: list[str]) -> dict[str, int]:
        """Read the rows of the nodes' replicas."""
        return await self._read(accounts)


def is_whole(replicas: Sequence[dict[str, Any]]) -> bool:
    """True if these are all in reach, and one ring of three of them serves."""
    states = Counter(facts["state"] for facts in replicas)
    rings = {(facts["ring"], *facts["members"]) for facts in replicas if facts["state"] == FOUNDED}
    return (
        states == {FOUNDED: RING, "spare": len(replicas) - RING}
        and len(rings) == 1
        and not any(facts["unmerged"] for facts in replicas)
    )
