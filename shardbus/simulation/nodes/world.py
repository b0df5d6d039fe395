"""Whole nodes and clients in a world: the code of a node, but for sockets, threads and real time.

A process here has the loop of a `VirtualLoop`, the wires of an `SimExchange`, the store of a
`StoreServer`, and for membership a `Cluster` machine that the world keeps, as a node's cluster
thread keeps one. Everything else is what runs in production: node, links, sessions, regions,
coordinators, singletons, hosts, entities, departure, and the client.

    start ──> the node listens and waits ──enter──> it joins ──leave──> it drains and goes
                                                       └──kill, downed──> it is no more

Not here: what is sent (`traffic`), what must hold (`sharding_checks`), which faults happen.

Source: DESIGN section 9; docs/simulation.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any

from shardbus.client.asynchronous import AsyncClient
from shardbus.config.settings import ClusterSettings, NodeSettings, Settings, ShardingSettings
from shardbus.entities.entity_type import EntityType
from shardbus.membership import events as ev
from shardbus.membership.diagnostics import Overview
from shardbus.membership.member import Member
from shardbus.node.node import Node
from shardbus.node.shutdown import LEFT, leave
from shardbus.simulation.membership.network import Wall
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.world import PORT, World, address_of
from shardbus.simulation.nodes.network import SimExchange, SimNetwork
from shardbus.simulation.nodes.stores import SimStore, StoreServer
from shardbus.simulation.virtual_loop import VirtualLoop
from shardbus.transport.environment import Environment

CLUSTER = "test"
POST_S = 0.00005
"""What an event needs from the application's loop to the cluster's."""


class SimMembership:
    """What a node has in place of its cluster thread."""

    def __init__(
        self,
        resident: SimNode,
        me: Member,
        cluster: str,
        settings: ClusterSettings,
        fingerprint: Mapping[str, str],
        notify: Callable[[Any], None],
    ) -> None:
        self._fleet = resident.fleet
        self.process = self._fleet.admit(me, cluster, settings, fingerprint, resident.loop.rate)
        self.process.notify = notify

    @property
    def dropped_frames(self) -> dict[str, int]:
        """There are no sockets to drop any."""
        return {}

    @property
    def lag(self) -> float:
        return 0.0

    @property
    def overview(self) -> Overview:
        return self.process.machine.overview(self.process.clock(self._fleet.now))

    def start(self) -> None:
        """The machine is there."""

    def post(self, event: ev.Event) -> None:
        self._fleet.later(POST_S, lambda: self._fleet.give(self.process, event))

    def app_alive(self) -> None:
        """The loop turns."""

    async def close(self) -> None:
        """It ends with the process."""


class SimProcess:
    """A process: its loop and its tasks. `ended_badly`: not in good order, so that what it had may
    be lost."""

    def __init__(self, fleet: NodeWorld, name: str, rate: float) -> None:
        self.fleet, self.name = fleet, name
        self.loop = VirtualLoop(fleet, self._failed, rate)  # type: ignore[abstract]
        self.environment = Environment(
            fleet.rng.getrandbits(64),
            SimNetwork(fleet.exchange, name, self.loop),
            Random(fleet.rng.getrandbits(32)),
        )
        self.ended_at: float | None = None
        self.ended_badly = False
        self.known = False
        """Everybody knows that it has ended."""
        self.hosts = False
        """It is a node."""

    @property
    def in_touch(self) -> bool:
        """It has not ended in disorder, and is connected with a cluster."""
        return not self.ended_badly

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run it here."""
        self.loop.create_task(work)

    def _failed(self, context: dict[str, Any]) -> None:
        """Told of, not raised: this may be called where nothing may be raised."""
        defect = f"{self.name}: {context.get('message')}: {context.get('exception')!r}"
        self.fleet.defects.append(defect)

    def end(self, *, badly: bool) -> None:
        """It is no more."""
        if self.ended_at is None:
            self.ended_at, self.ended_badly = self.fleet.now, badly
            self.loop.kill()


class SimNode(SimProcess):
    """A process with a node."""

    def __init__(self, fleet: NodeWorld, name: str, rate: float, settings: Settings) -> None:
        super().__init__(fleet, name, rate)
        self.hosts = True
        self.node = Node(
            CLUSTER,
            fleet.types,
            settings,
            SimStore(fleet.store, self.loop),
            environment=self.environment,
            membership=self._membership,
        )
        self._told_to_leave = asyncio.Event()
        self.process: Process
        self.spawn(self._live())
        self.loop.run_now()

    def _membership(
        self,
        me: Member,
        cluster: str,
        settings: ClusterSettings,
        fingerprint: Mapping[str, str],
        *,
        bind_host: str,
        notify: Callable[[Any], None],
        stalled: Callable[[float], None],
    ) -> SimMembership:
        made = SimMembership(self, me, cluster, settings, fingerprint, notify)
        self.process = made.process
        return made

    def leave(self) -> None:
        """SIGTERM."""
        self.loop.call_soon(self._told_to_leave.set)

    async def _live(self) -> None:
        """As `runtime.run` does it."""
        node = self.node
        await node.start()
        node.join(f"{self.name}:0")
        told = asyncio.ensure_future(self._told_to_leave.wait())
        ends: set[asyncio.Future[Any]] = {told, node.stopped, node.cluster_stops}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        in_order = node.stopped.done() and node.stopped.result() == LEFT
        if not node.stopped.done():
            in_order = await leave(node, lambda text: None)
        await node.close()
        self.loop.call_soon(self.fleet.depart, self, in_order)


class SimClient(SimProcess):
    """A process with a client."""

    def __init__(self, fleet: NodeWorld, name: str) -> None:
        super().__init__(fleet, name, 1.0)
        self.client: AsyncClient | None = None

    def waiting(self) -> str:
        """What it still has in its hands; empty if it is at rest."""
        if self.client is None:
            return ""
        if buffered := self.client.buffered:
            return f"{self.name} buffers {buffered} messages"
        return self.name + " waits for answers" if self.client.busy else ""

    @property
    def lost_messages(self) -> int:
        """Tells of which the client says that they may be lost."""
        return self.client.lost_messages if self.client is not None else 0

    @property
    def in_touch(self) -> bool:
        contact = self.client.contact if self.client is not None else None
        process = self.fleet.by_id.get(contact) if contact is not None else None
        return process is not None and process.member

    def connect(self, names: list[str]) -> None:
        """Begin; any of these nodes will do."""
        self.spawn(self._connect(names))

    async def _connect(self, names: list[str]) -> None:
        addresses = [f"tcp://{name}:{PORT}" for name in names]
        client = AsyncClient(
            *addresses,
            cluster=CLUSTER,
            connect_timeout=3600.0,
            environment=lambda: self.environment,
        )
        self.client = await client.__aenter__()


class NodeWorld(World):
    """The world of whole nodes. `types`: what every node runs."""

    def __init__(
        self,
        seed: int | str,
        settings: ClusterSettings,
        sharding: ShardingSettings,
        types: Mapping[str, EntityType],
    ) -> None:
        super().__init__(seed, settings)
        self.sharding, self.types = sharding, types
        self.store = StoreServer(self, Random(f"store {seed}"))
        wires = Random(f"wires {seed}")
        self.exchange = SimExchange(self, self.network, wires, self._is_gone)
        self.residents: dict[str, SimNode] = {}
        self.former: list[SimNode] = []
        self.clients: dict[str, SimClient] = {}
        self.defects: list[str] = []
        """What was raised in a process and caught by nobody."""
        self.on_start: Callable[[SimNode], None] = lambda _: None
        """Called with each node that there is."""
        self.on_depart: Callable[[SimNode], None] = lambda _: None
        """Called with each that has come to its own end."""

    def add(
        self, name: str, *, roles: tuple[str, ...] = (), rate: float = 1.0, **_: Any
    ) -> Process:
        """A node that listens, and joins when it is told to."""
        if name in self.residents:
            self.former.append(self.residents[name])
        own = NodeSettings(host=name, port=PORT, join="manual", roles=roles)
        settings = Settings(node=own, cluster=self.settings, sharding=self.sharding)
        resident = self.residents[name] = SimNode(self, name, rate, settings)
        self.on_start(resident)
        return resident.process

    def close(self) -> None:
        """Nothing runs any more."""
        for resident in (*self.everybody(), *self.clients.values()):
            resident.loop.kill()

    def add_client(self, name: str) -> SimClient:
        """A client that looks for the nodes there are."""
        client = self.clients[name] = SimClient(self, name)
        client.connect(list(self.residents))
        return client

    def enter(self, process: Process, *seeds: str) -> None:
        """Its application is told; the machine will hear of it."""
        resident = self.residents[process.name]
        joins = [str(address_of(seed)) for seed in seeds]
        resident.loop.call_soon(resident.node.join_by, joins)

    def leave(self, process: Process) -> None:
        process.leaving = True
        self.residents[process.name].leave()

    def everybody(self) -> list[SimNode]:
        """Every node that ever was."""
        return [*self.former, *self.residents.values()]

    def names(self) -> list[str]:
        return [*self.nodes, *self.clients]

    # ---- faults

    def kill(self, name: str, *, silent: bool = False) -> None:
        super().kill(name, silent=silent)
        self.residents[name].end(badly=True)
        self.exchange.ended(name, silent=silent)

    def pause(self, name: str, seconds: float) -> None:
        super().pause(name, seconds)
        loop, until = self.residents[name].loop, self.nodes[name].paused_until
        loop.paused_until = until
        self.exchange.paused(name, lambda: loop.paused_until > self.now)

    def resume_all(self) -> None:
        """Nobody is paused any more."""
        for process in self.nodes.values():
            process.paused_until = min(process.paused_until, self.now)
        for resident in self.residents.values():
            resident.loop.resume()

    def wall_up(self, wall: Wall, breaking: float = 0.0) -> None:
        super().wall_up(wall, breaking)
        self.exchange.changed(breaking)

    def wall_down(self, wall: Wall) -> None:
        super().wall_down(wall)
        self.exchange.changed()

    def depart(self, resident: SimNode, in_order: bool) -> None:
        """The process has come to its own end."""
        if resident.ended_at is None:
            resident.end(badly=not in_order)
            self._exit(resident.process)
            self.exchange.ended(resident.name, silent=False)
            self.on_depart(resident)

    def _is_gone(self, name: str) -> bool:
        process = self.nodes.get(name)
        return process is not None and not process.alive and process.listening
