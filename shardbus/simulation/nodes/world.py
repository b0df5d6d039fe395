"""The world of whole nodes and clients: production code without sockets, threads and real time.

A process here has a `VirtualLoop`, the connections of a `SimExchange`, the store of a
`StoreServer`, and a `ClusterMembership` machine that the world keeps, as a node's cluster thread
keeps one. All else is the code of production: node, links, sessions, regions, coordinators,
singletons, hosts, entities, shutdown, and the client.

    start ──> the node listens and waits ──enter──> it joins ──leave──> it hands off and leaves
                                                       └──kill, downed──> its process ends

Not here: the messages (`application`), the invariants (`checker`), which faults happen (`faults`).

Source: docs/simulation.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from shardbus.client.asynchronous import AsyncClient
from shardbus.config.settings import ClusterSettings, NodeSettings, Settings, ShardingSettings
from shardbus.entities.entity_type import EntityTypes
from shardbus.membership import events as ev
from shardbus.membership.diagnostics import Overview
from shardbus.membership.events import LEFT
from shardbus.membership.member import Member
from shardbus.node.node import Node
from shardbus.node.shutdown import leave
from shardbus.simulation.membership.network import Wall
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.world import PORT, Hooks, World, address_of
from shardbus.simulation.nodes.network import SimExchange, SimNetwork
from shardbus.simulation.nodes.stores import SimStore, StoreServer
from shardbus.simulation.timeline import ProcessClock
from shardbus.simulation.virtual_loop import VirtualLoop
from shardbus.transport.environment import Environment

CLUSTER = "test"
WAKES_S = 0.0001
"""Seconds from the moment when a machine's clock goes on to the first code that runs there."""
POST_S = 0.00005
"""Seconds that an event needs from the application's loop to the cluster's."""


class SimMembership:
    """The substitute for a node's cluster thread."""

    def __init__(
        self,
        sim_node: SimNode,
        me: Member,
        cluster: str,
        settings: ClusterSettings,
        fingerprint: Mapping[str, str],
        notify: Callable[[Any], None],
    ) -> None:
        self._world = sim_node.world
        self.process = self._world.admit(me, cluster, settings, fingerprint, sim_node.loop.clock)
        self.process.notify = notify

    @property
    def dropped_frames(self) -> dict[str, int]:
        """Empty: there are no sockets that drop frames."""
        return {}

    @property
    def failed_tasks(self) -> int:
        """None: there is no loop of its own."""
        return 0

    @property
    def lag(self) -> float:
        return 0.0

    @property
    def overview(self) -> Overview:
        return self.process.machine.overview(self.process.clock(self._world.now))

    def start(self) -> None:
        """Do nothing: the machine exists already."""

    def post(self, event: ev.Event) -> None:
        self._world.later(POST_S, lambda: self._world.deliver(self.process, event))

    def rekey(self) -> None:
        """Do nothing: nothing is encrypted here."""

    def app_alive(self) -> None:
        """Do nothing: the simulated loop never stalls."""

    async def close(self) -> None:
        """Do nothing: the machine ends with the process."""


class SimProcess:
    """A process: its loop and its tasks. `ended_badly`: it ended without order, so its messages may
    be lost."""

    def __init__(self, world: NodeWorld, name: str, rate: float) -> None:
        self.world, self.name = world, name
        self.loop = VirtualLoop(world, self._failed, ProcessClock(rate))  # type: ignore[abstract]
        self.environment = Environment(
            world.rng.getrandbits(64).to_bytes(8, "big"),
            SimNetwork(world.exchange, name, self.loop),
            Random(world.rng.getrandbits(32)),
            lambda: self.loop.clock.boot_time(world.now),
            cpu_time=lambda: 0.0,
            resident_bytes=lambda: 0,
            collector_callbacks=[],
            memory_limit=lambda: 0,
            wall_clock=lambda: world.now + self.loop.clock.wall_offset,
        )
        self.ended_at: float | None = None
        self.ended_badly = False
        self.end_noticed = False
        """True once all members have noticed its end."""
        self.hosts = False
        """True for a node."""

    @property
    def in_touch(self) -> bool:
        """True if it has not ended uncleanly, and is connected with a cluster."""
        return not self.ended_badly

    @property
    def refused_tells(self) -> int:
        """The number of tells of this process that were reported to it as dropped, or as possibly
        lost. For a node: at most that number."""
        raise NotImplementedError

    @property
    def executes(self) -> bool:
        """True if its code runs now: it has not ended, and is not paused."""
        return self.ended_at is None and self.world.now >= self.loop.paused_until

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run the coroutine in this process."""
        self.loop.create_task(work)

    def _failed(self, context: dict[str, Any]) -> None:
        """Record an exception that no code caught. It is not raised: this may be called where none
        may be."""
        defect = f"{self.name}: {context.get('message')}: {context.get('exception')!r}"
        self.world.defects.append(defect)

    def end(self, *, badly: bool) -> None:
        """End the process."""
        if self.ended_at is None:
            self.ended_at, self.ended_badly = self.world.now, badly
            self.loop.kill()


class SimNode(SimProcess):
    """A process with a node. `types`: its entity types, by default the world's."""

    def __init__(
        self,
        world: NodeWorld,
        name: str,
        rate: float,
        settings: Settings,
        types: EntityTypes | None = None,
    ) -> None:
        super().__init__(world, name, rate)
        # As if no process shared the store: it is this world that decides who founds.
        settings = replace(settings, store=replace(settings.store, url="memory://"))
        self.hosts = True
        self.node: Node
        """Made by `_live`, which begins at once."""
        self._leave_requested = asyncio.Event()
        self.process: Process
        self.life = self.loop.create_task(
            self._live(world.types if types is None else types, settings)
        )
        self.loop.run_now()

    def _membership(
        self,
        me: Member,
        cluster: str,
        settings: ClusterSettings,
        fingerprint: Mapping[str, str],
        *,
        bind_host: str,
        bind_port: int,
        notify: Callable[[Any], None],
        stalled: Callable[[float], None],
        confirmed: Callable[[float], None],
        keyring: None = None,
    ) -> SimMembership:
        made = SimMembership(self, me, cluster, settings, fingerprint, notify)
        made.process.on_confirmed = confirmed
        self.process = made.process
        return made

    @property
    def handles(self) -> bool:
        """True if its entities may execute code now."""
        return self.executes and not self.node.gate.is_shut()

    @property
    def refused_tells(self) -> int:
        dropped = sum(sum(kind.host.counts.dropped.values()) for kind in self.node.regions.values())
        return dropped + sum(self.node.records.refused.counts.values())

    def leave(self) -> None:
        """Let the node leave, as SIGTERM does."""
        self.loop.call_soon(self._leave_requested.set)

    def on_listening(self) -> None:
        """Prepare the application, in the node's loop: the node listens, and has not joined."""

    async def on_end(self) -> None:
        """End the application, in the node's loop: the node closes next."""

    async def _live(self, types: EntityTypes, settings: Settings) -> None:
        """Run the node as `node.run` does."""
        node = self.node = Node(
            self.world.cluster,
            types,
            settings,
            SimStore(self.world.store, self.loop, lambda: self.process.id),
            environment=self.environment,
            membership=self._membership,
        )
        await node.start()
        self.on_listening()
        node.join(f"{self.name}:0")
        leaves = asyncio.ensure_future(self._leave_requested.wait())
        stopped = node.membership.stopped
        ends: set[asyncio.Future[Any]] = {leaves, stopped, node.membership.cluster_stops}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        leaves.cancel()
        in_order = stopped.done() and stopped.result() == LEFT
        if not stopped.done():
            in_order = await leave(node, lambda text: None)
        await self.on_end()
        await node.close()
        self.loop.call_soon(self.world.on_exit, self, in_order)


class SimClient(SimProcess):
    """A process with a client."""

    def __init__(self, world: NodeWorld, name: str) -> None:
        super().__init__(world, name, 1.0)
        self.client: AsyncClient | None = None

    def waiting(self) -> str:
        """Return the client's unfinished work. Empty if it is at rest."""
        if self.client is None:
            return ""
        if buffered := self.client.buffered:
            return f"{self.name} buffers {buffered} messages"
        return self.name + " waits for answers" if self.client.busy else ""

    @property
    def lost_messages(self) -> int:
        """Tells that the client reports as possibly lost."""
        return self.client.lost_messages if self.client is not None else 0

    @property
    def refused_tells(self) -> int:
        refused = self.client.refused_messages.values() if self.client is not None else ()
        return sum(refused) + self.lost_messages

    @property
    def in_touch(self) -> bool:
        contact = self.client.contact if self.client is not None else None
        process = self.world.by_id.get(contact) if contact is not None else None
        return not self.ended_badly and process is not None and process.member

    def connect(self, names: list[str]) -> None:
        """Connect to any of these nodes."""
        self.spawn(self._connect(names))

    async def _connect(self, names: list[str]) -> None:
        addresses = [f"tcp://{name}:{PORT}" for name in names]
        client = AsyncClient(
            *addresses,
            cluster=self.world.cluster,
            connect_timeout=3600.0,
            environment=lambda: self.environment,
        )
        self.client = await client.__aenter__()


@dataclass(slots=True)
class NodeHooks(Hooks):
    """The functions of a run of whole nodes."""

    on_start: Callable[[SimNode], object] = lambda _: None
    """Called with each new node."""
    on_exited: Callable[[SimNode], object] = lambda _: None
    """Called with each node that has come to its own end."""


class NodeWorld(World):
    """The world of whole nodes. `types`: the entity types of every node."""

    def __init__(
        self,
        seed: int | str,
        settings: ClusterSettings,
        sharding: ShardingSettings,
        types: EntityTypes,
        cluster: str = CLUSTER,
    ) -> None:
        super().__init__(seed, settings)
        self.sharding, self.types, self.cluster = sharding, types, cluster
        self.store = StoreServer(self, Random(f"store {seed}"))
        wires = Random(f"wires {seed}")
        self.exchange = SimExchange(self, self.network, wires, self._is_gone)
        self.sim_nodes: dict[str, SimNode] = {}
        self.former: list[SimNode] = []
        self.clients: dict[str, SimClient] = {}
        self.defects: list[str] = []
        """Exceptions that no code in a process caught."""
        self.downed_by_operators: dict[str, None] = {}
        """The ids of the nodes that an operator has downed while they ran."""
        self.hooks: NodeHooks = NodeHooks()

    def add(
        self, name: str, *, roles: tuple[str, ...] = (), rate: float = 1.0, **_: Any
    ) -> Process:
        """Start a node that listens, and joins later by `enter`."""
        if name in self.sim_nodes:
            self.former.append(self.sim_nodes[name])
        node = NodeSettings(host=name, port=PORT, join="manual", roles=roles)
        settings = Settings(node=node, cluster=self.settings, sharding=self.sharding)
        sim_node = self.sim_nodes[name] = SimNode(self, name, rate, settings)
        self.hooks.on_start(sim_node)
        return sim_node.process

    def close(self) -> None:
        """Kill all processes."""
        for sim_node in (*self.all_nodes(), *self.clients.values()):
            sim_node.loop.kill()

    def add_client(self, name: str) -> SimClient:
        """Start a client that connects to the present nodes."""
        client = self.clients[name] = SimClient(self, name)
        client.connect(list(self.sim_nodes))
        return client

    def enter(self, process: Process, *seeds: str, founds: bool = True, founder: str = "") -> None:
        """Let the node's application join by these seeds."""
        sim_node = self.sim_nodes[process.name]
        joins = [str(address_of(seed)) for seed in seeds]
        first = address_of(founder) if founder else None
        by = partial(sim_node.node.membership.joins.by, joins, founds=founds, first=first)
        sim_node.loop.call_soon(by)

    def leave(self, process: Process) -> None:
        process.leaving = True
        self.sim_nodes[process.name].leave()

    def all_nodes(self) -> list[SimNode]:
        """Return every node that ever was."""
        return [*self.former, *self.sim_nodes.values()]

    def names(self) -> list[str]:
        return [*self.nodes, *self.clients]

    # ---- faults

    def kill(self, name: str, *, silent: bool = False) -> None:
        super().kill(name, silent=silent)
        self.sim_nodes[name].end(badly=True)
        self.exchange.ended(name, silent=silent)

    def kill_client(self, name: str) -> None:
        """Kill a client's process."""
        self.clients[name].end(badly=True)
        self.exchange.ended(name, silent=False)

    def pause(self, name: str, seconds: float, thread_late: float = 0.0) -> None:
        """Pause the process, as SIGSTOP does. `thread_late`: seconds by which its cluster thread
        continues later than its application."""
        super().pause(name, seconds + thread_late)
        loop, until = self.sim_nodes[name].loop, self.now + seconds
        loop.paused_until = max(loop.paused_until, until)
        self.exchange.paused(name, lambda: loop.paused_until > self.now)

    def slow_down(self, name: str, factor: float) -> None:
        super().slow_down(name, factor)
        self.sim_nodes[name].loop.slow = factor

    def lose_store(self, name: str, *, lost: bool = True) -> None:
        super().lose_store(name, lost=lost)
        (self.store.away.add if lost else self.store.away.discard)(name)

    def suspend_machine(self, name: str, seconds: float) -> None:
        """Pause the node as the pause of its virtual machine does: its monotonic clock stands
        still."""
        clock = self.sim_nodes[name].loop.clock
        clock.stand_still(self.now)
        self.later(seconds, lambda: clock.go_on(self.now))
        self.pause(name, seconds + WAKES_S)

    def block(self, name: str, seconds: float) -> None:
        """Block the node's application loop, as a handler does that does not return. The cluster
        thread works on, and its watchdog gives up coordinators, then the node."""
        sim_node, settings = self.sim_nodes[name], self.settings
        until = sim_node.loop.paused_until = max(sim_node.loop.paused_until, self.now + seconds)

        def watch(event: ev.Event) -> None:
            if sim_node.ended_at is None and sim_node.loop.paused_until >= until > self.now:
                self.deliver(sim_node.process, event)

        if settings.coordinator_stall:
            self.later(settings.coordinator_stall, lambda: watch(ev.YieldSeniority()))
        self.later(settings.app_stall_timeout, lambda: watch(ev.Down(sim_node.process.id)))

    def resume_all(self) -> None:
        """Continue all paused processes."""
        for process in self.nodes.values():
            process.paused_until = min(process.paused_until, self.now)
        for sim_node in self.sim_nodes.values():
            sim_node.loop.clock.go_on(self.now)
            sim_node.loop.resume()

    def wall_up(self, wall: Wall, breaking: float = 0.0) -> None:
        super().wall_up(wall, breaking)
        self.exchange.changed(breaking)

    def wall_down(self, wall: Wall) -> None:
        super().wall_down(wall)
        self.exchange.changed()

    def on_exit(self, sim_node: SimNode, in_order: bool) -> None:
        """Record that the process has come to its own end."""
        if sim_node.ended_at is None:
            sim_node.end(badly=not in_order)
            self._exit(sim_node.process)
            self.exchange.ended(sim_node.name, silent=False)
            self.hooks.on_exited(sim_node)

    def _is_gone(self, name: str) -> bool:
        process = self.nodes.get(name)
        return process is not None and not process.alive and process.listening
