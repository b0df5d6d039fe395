"""A Redis Cluster of one's own: masters with replicas, each a server of `tests.redis_server`.

Its servers notice a dead one after `NODE_TIMEOUT_MS`, and a replica then takes over. Slots move as
by `redis-cli --cluster reshard`: key by key, by MIGRATE.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tests.certificates import Certificates, tls_front
from tests.ports import free_port
from tests.redis_server import RedisServer
from tests.waiting import until

SLOTS = 16384
NODE_TIMEOUT_MS = 3000


class RedisClusterServers:
    """The servers of a cluster while the context lasts. `options` are added to the command line of
    each; `password` belongs to each server's default user."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        masters: int = 3,
        replicas: int = 0,
        password: str = "",
    ) -> None:
        self._folder, self._options = folder, options
        self._count, self._per_master = masters, replicas
        self._password = password
        self._stack = contextlib.ExitStack()
        self.masters: list[RedisServer] = []
        self.replicas: list[RedisServer] = []

    def __enter__(self) -> RedisClusterServers:
        with self._stack:
            for n in range(self._count):
                self.masters.append(self._start(f"master{n}"))
            for n in range(self._count * self._per_master):
                self.replicas.append(self._start(f"replica{n}"))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self, name: str) -> RedisServer:
        auth = ("--requirepass", self._password, "--masterauth", self._password)
        server = RedisServer(
            self._folder / name,
            "--cluster-enabled", "yes",
            "--cluster-port", str(free_port()),
            "--cluster-node-timeout", str(NODE_TIMEOUT_MS),
            "--cluster-replica-validity-factor", "0",
            "--repl-diskless-sync-delay", "0",
            *(auth if self._password else ()),
            *self._options,
        )  # fmt: skip
        return self._stack.enter_context(server)

    @property
    def servers(self) -> list[RedisServer]:
        return [*self.masters, *self.replicas]

    @property
    def url(self) -> str:
        user = f":{self._password}@" if self._password else ""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.masters)
        return f"redis+cluster://{user}{hosts}"

    @contextlib.contextmanager
    def client(self, server: RedisServer) -> Iterator[redis.Redis]:
        once = Retry(NoBackoff(), 0)
        password = self._password or None
        with redis.Redis(
            port=server.port, password=password, socket_timeout=60.0, retry=once
        ) as client:
            yield client

    async def form(self) -> None:
        """Meet, share the slots equally, and wait until every server knows all of it."""
        share = SLOTS // len(self.masters)
        for n, master in enumerate(self.masters):
            last = SLOTS - 1 if n == len(self.masters) - 1 else (n + 1) * share - 1
            with self.client(master) as client:
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", n * share, last)
        first = self.masters[0]
        with self.client(first) as client:
            port = client.config_get("cluster-port")["cluster-port"]
        for server in self.servers[1:]:
            with self.client(server) as client:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port, port)
        await until(lambda: all(map(self._knows_all, self.servers)), "servers that know each other")
        for n, replica in enumerate(self.replicas):
            master = self.masters[n % len(self.masters)]
            with self.client(replica) as client:
                client.execute_command("CLUSTER", "REPLICATE", self.node_id(master))
        await until(lambda: all(map(self._works, self.servers)), "a cluster that works")

    def node_id(self, server: RedisServer) -> str:
        with self.client(server) as client:
            return str(client.execute_command("CLUSTER", "MYID").decode())

    def keys(self, server: RedisServer, pattern: str) -> int:
        """Return how many keys of this pattern a server has."""
        with self.client(server) as client:
            return sum(1 for _ in client.scan_iter(match=pattern, count=1000))

    def is_master(self, server: RedisServer) -> bool:
        try:
            with self.client(server) as client:
                return bool(client.info("replication")["role"] == "master")
        except RedisError:  # It closes its connections when it is promoted.
            return False

    @contextlib.asynccontextmanager
    async def behind_tls(self, certificates: Certificates) -> AsyncIterator[str]:
        """Put TLS in front of each master, which names itself by that port to clients; return the
        URL. A replica would use it, too, so there must be none: not every build has TLS."""
        assert not self.replicas
        async with contextlib.AsyncExitStack() as stack:
            fronts = [
                await stack.enter_async_context(tls_front(master.port, certificates))
                for master in self.masters
            ]
            try:
                await self._announce([front.port for front in fronts])
                hosts = ",".join(map(str, fronts))
                yield f"rediss+cluster://{hosts}?ssl_ca_certs={certificates.authority}"
            finally:
                await self._announce([master.port for master in self.masters])

    async def _announce(self, ports: list[int]) -> None:
        """Give the masters these ports, and wait until each gives clients the ports of all."""
        for master, port in zip(self.masters, ports, strict=True):
            with self.client(master) as client:
                client.config_set("cluster-announce-port", port)
        await until(
            lambda: all(self._announced_ports(master) == set(ports) for master in self.masters),
            "masters that know each other's ports",
        )

    def _announced_ports(self, server: RedisServer) -> set[int]:
        """Return the ports of the masters, as a server gives them to clients."""
        with self.client(server) as client:
            rows = client.execute_command("CLUSTER SLOTS")
        return {int(master[1]) for _, _, master, *_ in rows}

    def move_slot(self, slot: int, source: RedisServer, target: RedisServer) -> int:
        """Move a slot key by key. Returns how many keys it had."""
        moved, places = 0, (source, target)
        ids = [self.node_id(server) for server in places]
        auth = ("AUTH", self._password) if self._password else ()
        with self.client(source) as from_, self.client(target) as to:
            to.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
            from_.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
            while keys := from_.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10):
                for key in keys:
                    from_.execute_command(
                        "MIGRATE", "127.0.0.1", target.port, key, 0, 30_000, *auth
                    )
                    moved += 1
            to.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
            from_.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        return moved

    def _knows_all(self, server: RedisServer) -> bool:
        with self.client(server) as client:
            text = client.execute_command("CLUSTER", "NODES")
            count = len(text) if isinstance(text, dict) else text.count(b"\n")
            return bool(count == len(self.servers))

    def _works(self, server: RedisServer) -> bool:
        with self.client(server) as client:
            info = client.execute_command("CLUSTER", "INFO")
            text = info if isinstance(info, bytes) else str(info).encode()
            link = client.info("replication").get("master_link_status", "up")
            role = client.info("replication")["role"]
        follows = role == "slave" if server in self.replicas else role == "master"
        return follows and link == "up" and (b"cluster_state:ok" in text or b"'ok'" in text)
