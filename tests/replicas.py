"""Replicas of a store, in the loop of a test: real sockets and disks, no processes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from shardbus.ids import Address
from shardbus.replica.disk import Disk
from shardbus.replica.memory_disk import MemoryDisk
from shardbus.replica.server import ReplicaServer, RingPart
from shardbus.store.replicated import ReplicatedStore
from shardbus.transport.zmq.network import ZmqNetwork
from tests.ports import free_port

CLUSTER = "shop"
WITHIN_S = 60.0


class Replicas:
    """Some replicas of one store, each with a directory below `path`."""

    def __init__(self, path: Path, count: int) -> None:
        self._path = path
        self.addresses = tuple(sorted(Address("127.0.0.1", free_port()) for _ in range(count)))
        self.peers: tuple[Address, ...] = ()
        """The addresses by the settings, if they are others."""
        self.repair = 60.0
        self.members, self.repair_after = 0, 0.0
        self.zones = ""
        """A letter for each replica."""
        self.in_memory = False
        self.failures: list[str] = []
        self.servers: dict[int, tuple[ReplicaServer, ZmqNetwork]] = {}

    def start(self, *numbers: int) -> None:
        """Start these replicas, all by default."""
        for number in numbers or range(len(self.addresses)):
            me, network = self.addresses[number], ZmqNetwork()
            disk = MemoryDisk() if self.in_memory else Disk(self._path / str(number), 2**28)
            server = ReplicaServer(
                CLUSTER, me, self.peers or self.addresses, disk, network,
                joining=ZmqNetwork, repair=self.repair, on_failed=self.failures.append,
                part=RingPart(
                    zone=self.zones[number : number + 1],
                    members=self.members,
                    repair_after=self.repair_after,
                ),
            )  # fmt: skip
            server.open()
            network.open(asyncio.get_running_loop())
            server.start(me.host, me.port)
            self.servers[number] = server, network

    def add(self) -> Address:
        """Start one more replica, whose settings name it and the others. Returns its address."""
        address = Address("127.0.0.1", free_port())
        self.addresses = (*self.addresses, address)
        self.start(len(self.addresses) - 1)
        return address

    def wipe(self, *numbers: int) -> None:
        """Stop these replicas, and remove their disks."""
        self.stop(*numbers)
        for number in numbers:
            shutil.rmtree(self._path / str(number))

    async def serving(self) -> None:
        """Wait until all that run serve."""
        async with asyncio.timeout(WITHIN_S):
            while not all(server.serves for server, _ in self.servers.values()):
                await asyncio.sleep(0.01)

    def stop(self, *numbers: int) -> None:
        """Stop these replicas, all by default."""
        for number in numbers or tuple(self.servers):
            server, network = self.servers.pop(number)
            server.close()
            network.close()

    def store(self, timeout: float = 120.0) -> ReplicatedStore:
        """Return a store on these replicas, not started yet."""
        return ReplicatedStore("cluster://", CLUSTER, self.addresses, ZmqNetwork, timeout=timeout)

    @asynccontextmanager
    async def opened(self, timeout: float) -> AsyncIterator[ReplicatedStore]:
        """A store on these replicas that has started."""
        store = self.store(timeout)
        await store.start()
        yield store
        await store.close()
