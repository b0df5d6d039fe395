"""Replicas of a store, in the loop of a test: real sockets and disks, no processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shardbus.ids import Address
from shardbus.replica.disk import Disk
from shardbus.replica.server import ReplicaServer
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
        self.servers: dict[int, tuple[ReplicaServer, ZmqNetwork]] = {}

    def start(self, *numbers: int) -> None:
        """Start these replicas, all by default."""
        for number in numbers or range(len(self.addresses)):
            me, network = self.addresses[number], ZmqNetwork()
            disk = Disk(self._path / str(number), 2**28)
            server = ReplicaServer(CLUSTER, me, self.addresses, disk, network)
            server.open()
            network.open(asyncio.get_running_loop())
            server.start(me.host, me.port)
            self.servers[number] = server, network

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
