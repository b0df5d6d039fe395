"""A Redis Cluster of three masters, each with a replica. Its servers are killed, frozen and end in
order, masters fail over, and slots move under load.

A master whose replica takes over meanwhile comes back as the replica. Nodes use `?replicas=1`: a
save is acknowledged once the replica has it, so no failover may lose one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import redis

from shardbus.store.redis_keys import slot_of
from tests.chaos.steps import OF_NODES, Kind, Step
from tests.chaos.store import ChaosStore, Note, Server, Site, kill_or_freeze
from tests.ports import free_port
from tests.waiting import until

SLOTS, MASTERS = 16384, 3
SHARDS = 100
MOVED_SLOTS = 10
NODE_TIMEOUT_MS = 5000
SETTINGS = f"""
protected-mode no
appendonly yes
appendfsync always
save ""
repl-diskless-sync-delay 0
cluster-enabled yes
cluster-node-timeout {NODE_TIMEOUT_MS}
cluster-replica-validity-factor 0
"""


class ClusterStore(ChaosStore):
    """Six servers: three masters, each with a replica."""

    kinds = OF_NODES | {
        Kind.KILL_MASTER, Kind.FREEZE_MASTER, Kind.KILL_REPLICA, Kind.FREEZE_REPLICA,
        Kind.FAILOVER, Kind.RESTART, Kind.SLOTS,
    }  # fmt: skip

    def __init__(self, site: Site) -> None:
        folder, host, enter = site.folder, site.host, site.enter
        self._host = host
        self._ports: dict[str, int] = {}
        """The ports of the servers' bus, by name."""
        self.servers = [self._server(folder / f"redis-{n}", enter) for n in range(2 * MASTERS)]
        hosts = ",".join(f"{host}:{server.port}" for server in self.servers)
        self.url = f"redis+cluster://{hosts}?replicas=1"
        self._slots = sorted(
            {slot_of(f"shardbus:lab:{{account/{shard}}}:") for shard in range(SHARDS)}
        )

    def _server(self, folder: Path, enter: tuple[str, ...]) -> Server:
        port = self._ports[folder.name] = free_port()
        text = f"{SETTINGS}cluster-port {port}\ncluster-announce-ip {self._host}\n"
        return Server(folder, self._host, enter, text)

    async def begin(self) -> None:
        """Start the servers, share the slots among the first three, and wait until all is whole."""
        for server in self.servers:
            server.start()
        await until(lambda: all(server.role() for server in self.servers), "six servers")
        masters, share = self.servers[:MASTERS], SLOTS // MASTERS
        for n, master in enumerate(masters):
            last = SLOTS - 1 if n == MASTERS - 1 else (n + 1) * share - 1
            master.ask("CLUSTER", "SET-CONFIG-EPOCH", str(n + 1))
            master.ask("CLUSTER", "ADDSLOTSRANGE", str(n * share), str(last))
        first = self.servers[0]
        for server in self.servers[1:]:
            bus = str(self._ports[first.name])
            server.ask("CLUSTER", "MEET", self._host, str(first.port), bus)
        await until(lambda: all(map(self._knows_all, self.servers)), "servers that know each other")
        for master, replica in zip(masters, self.servers[MASTERS:], strict=True):
            replica.ask("CLUSTER", "REPLICATE", node_id(master))
        await self.whole()

    def _knows_all(self, server: Server) -> bool:
        with suppress(redis.RedisError, OSError):
            return len(rows_of(server)) == len(self.servers)
        return False

    async def whole(self) -> None:
        """Wait until all servers run, each of three masters has its replica, and all slots work."""

        async def seen() -> bool:
            for server in self.servers:
                server.start()
            works = await asyncio.gather(*(asyncio.to_thread(self._works, s) for s in self.servers))
            roles = [server.role() for server in self.servers]
            masters = [role for role in roles if role[:1] == [b"master"]]
            return (
                all(works)
                and len(masters) == MASTERS
                and all(len(role[2]) == 1 for role in masters)  # type: ignore[arg-type]
                and all(role[3] == b"connected" for role in roles if role[:1] == [b"slave"])
            )

        await until(seen, "a whole cluster")

    def _works(self, server: Server) -> bool:
        with suppress(redis.RedisError, OSError):
            info = server.ask("CLUSTER", "INFO")
            text = info.decode() if isinstance(info, bytes) else str(info)
            flags = [row[2] for row in rows_of(server)]
            return ("cluster_state:ok" in text or "'cluster_state': 'ok'" in text) and not any(
                "fail" in flag for flag in flags
            )
        return False

    async def masters(self) -> list[Server]:
        """Return the three masters, in the order of their names, once there are three."""

        def three() -> list[Server]:
            masters = [server for server in self.servers if server.role()[:1] == [b"master"]]
            return masters if len(masters) == MASTERS else []

        return await until(three, "three masters")

    async def leader(self) -> str:
        return ", ".join(server.name for server in await self.masters())

    async def suffer(self, step: Step, note: Note) -> None:
        """Do a step, and end it."""
        master = (await self.masters())[step.number % MASTERS]
        if step.kind is Kind.SLOTS:
            await self._move_slots(step, note)
        elif step.kind in (Kind.KILL_REPLICA, Kind.FREEZE_REPLICA) or (
            step.kind is Kind.RESTART and not step.on_master
        ):
            await kill_or_freeze(self._replica_of(master), step, note)
        else:
            await kill_or_freeze(master, step, note)

    def _replica_of(self, master: Server) -> Server:
        return next(
            server
            for server in self.servers
            if (role := server.role())[:1] == [b"slave"] and role[2] == master.port
        )

    async def _move_slots(self, step: Step, note: Note) -> None:
        """Move some slots that have accounts from one master to the next one."""
        masters = await self.masters()
        source, target = (masters[(step.number + n) % MASTERS] for n in (0, 1))
        mine = [slot for slot in self._slots if self._has(source, slot)][:MOVED_SLOTS]
        note(f"move {len(mine)} slots from {source.name} to {target.name}")
        for slot in mine:
            await asyncio.to_thread(self._move_slot, slot, source, target)

    def _has(self, server: Server, slot: int) -> bool:
        rows = server.ask("CLUSTER", "SLOTS")
        assert isinstance(rows, list)
        return any(int(a) <= slot <= int(b) and int(m[1]) == server.port for a, b, m, *_ in rows)

    def _move_slot(self, slot: int, source: Server, target: Server) -> None:
        """Move a slot key by key, as `redis-cli --cluster reshard` does."""
        number, here, there = str(slot), node_id(source), node_id(target)
        target.ask("CLUSTER", "SETSLOT", number, "IMPORTING", here)
        source.ask("CLUSTER", "SETSLOT", number, "MIGRATING", there)
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", number, "10"):
            assert isinstance(keys, list)
            for key in keys:
                source.ask("MIGRATE", self._host, str(target.port), key.decode(), "0", "30000")
        target.ask("CLUSTER", "SETSLOT", number, "NODE", there)
        source.ask("CLUSTER", "SETSLOT", number, "NODE", there)

    async def fail_over(self) -> None:
        """Have a replica take over from its master, which waits until it has everything."""
        master = (await self.masters())[0]
        replica = self._replica_of(master)

        async def done() -> bool:
            if replica.role()[:1] == [b"master"]:
                return True
            with suppress(redis.RedisError, OSError):
                await asyncio.to_thread(replica.ask, "CLUSTER", "FAILOVER")
            await asyncio.sleep(1.0)
            return False

        await until(done, "the failover")

    def close(self) -> None:
        for server in self.servers:
            server.kill()


def node_id(server: Server) -> str:
    """Return the id of a server in its cluster."""
    answer = server.ask("CLUSTER", "MYID")
    return answer.decode() if isinstance(answer, bytes) else str(answer)


def rows_of(server: Server) -> list[list[str]]:
    """Return the fields of the rows of CLUSTER NODES."""
    with redis.Redis(host=server.host, port=server.port, socket_timeout=10.0) as client:
        client.set_response_callback("CLUSTER NODES", lambda answer, **_: answer)
        answer = client.execute_command("CLUSTER NODES")
    text = answer.decode() if isinstance(answer, bytes) else str(answer)
    return [line.split() for line in text.splitlines() if line]
