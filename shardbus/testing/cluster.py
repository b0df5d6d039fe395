"""`TestCluster`: a cluster of whole nodes inside a test, in virtual time. The package names its
real and its replaced parts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from types import TracebackType
from typing import Any, TypeVar, cast

from shardbus.admin.pages.health import readiness
from shardbus.app import ShardBus
from shardbus.client.asynchronous import AsyncClient
from shardbus.config.loading import for_types, load, nested_at
from shardbus.config.options import checked_seconds
from shardbus.config.settings import Settings
from shardbus.entities.entity_type import EntityType, EntityTypes
from shardbus.errors import ConfigError
from shardbus.membership.events import Quarantine
from shardbus.membership.member import Status
from shardbus.node.app_version import with_version
from shardbus.simulation.membership.network import ALL_CHANNELS, CutLink
from shardbus.simulation.membership.troubles import WALLS, NodeTrouble
from shardbus.simulation.membership.world import BEGINNING, address_of
from shardbus.simulation.nodes.network import SimNetwork
from shardbus.simulation.nodes.splits import links_between
from shardbus.testing.bridge import Bridge, call
from shardbus.testing.store import ClusterStore, type_of
from shardbus.testing.virtual_time import WAIT_MAX_S, Pending, VirtualTime
from shardbus.testing.world import AppNode, ClusterWorld
from shardbus.transport.environment import Environment

T = TypeVar("T")
E = TypeVar("E")

NODES_MAX = 100
POLL_S = 0.01
"""Virtual seconds between two looks at a condition."""
WITHIN_S = 60.0
"""Virtual seconds for a cluster to come to rest."""
LEAVES_WITHIN_S = 600.0
"""Virtual seconds, at most, for a node to leave."""
NOTE_LINES = 12
"""Lines of the transcript in the note of a failure."""
CHANNEL_NAMES = tuple(channel.value for channel in ALL_CHANNELS)
SETTINGS_ORIGIN = "settings of the test cluster"


class TestNode:
    """One process of a test cluster."""

    __test__ = False

    def __init__(self, process: AppNode, time: VirtualTime) -> None:
        self._process, self._time = process, time
        self.name: str = process.name

    def __repr__(self) -> str:
        return f"<node {self.name}>"

    @property
    def runs(self) -> bool:
        """True until its process has ended."""
        return self._process.ended_at is None

    @property
    def up(self) -> bool:
        """True while it is ready, as `/readyz` says: a full member whose regions are registered."""
        checks = readiness(self._process.admin).values()
        return self.runs and all(check.ok for check in checks)

    @property
    def paused(self) -> bool:
        """True while its process is paused."""
        return self._process.process.held is not None

    @property
    def members(self) -> list[str]:
        """The names of the members that it sees, in the order of their ids."""
        view = self._process.node.view
        return [member.node.host for member in view.members] if view is not None else []

    def shards(self, kind: type | str) -> list[str]:
        """Return the shards of a type that it hosts."""
        return sorted(self._host(kind).shards) if self.runs else []

    def entities(self, kind: type | str) -> list[str]:
        """Return the ids of a type's entities in its memory."""
        ids = self._host(kind).activations.ids_by_shard().values() if self.runs else []
        return sorted(entity_id for part in ids for entity_id in part)

    def entity(self, kind: type[E], entity_id: str) -> E | None:
        """Return the object of an entity, None if it is not in the memory of this node."""
        name = self._type(kind).name
        activation = self._process.activation(name, entity_id) if self.runs else None
        return activation.entity if activation is not None else None

    def ref(self, kind: type[E], entity_id: str) -> E:
        """Return a reference that sends from inside this node, as `bus.ref` does there."""
        process = self._process
        return cast("E", call(self._time, process.loop, process.node.ref, kind, entity_id))

    def hosts(self, kind: type | str, entity_id: str) -> bool:
        """True if the entity is in its memory, or it hosts the entity's shard."""
        return self.runs and self._process.is_home(self._type(kind).name, entity_id)

    def _type(self, kind: type | str) -> EntityType:
        regions = self._process.node.regions
        return type_of({name: region.entity_type for name, region in regions.items()}, kind)

    def _host(self, kind: type | str) -> Any:
        return self._process.node.regions[self._type(kind).name].host


class TestCluster:
    """A cluster of whole nodes in virtual time; use it by `async with`, or by `with`.

    Args:
        bus: the application that every node runs.
        nodes: how many nodes there are at first: `node1`, `node2` and so on.
        seed: draws every delay and every dice. The same seed repeats a run.
        settings: settings by their dotted names, as in `{"cluster.downing.strategy":
        "keep-majority"}`.
        fakes: other classes in place of entity types of the application, as `{Stock: FakeStock}`.
    """

    __test__ = False

    def __init__(
        self,
        bus: ShardBus,
        nodes: int = 3,
        seed: int = 0,
        *,
        settings: Mapping[str, object] | None = None,
        fakes: Mapping[type, type] | None = None,
    ) -> None:
        if not 1 <= nodes <= NODES_MAX:
            raise ConfigError(f"a test cluster has 1 to {NODES_MAX} nodes, not {nodes}")
        self.bus, self.seed = bus, seed
        self._count, self._node_settings = nodes, dict(settings or {})
        self._names = 0
        self._nodes: dict[str, TestNode] = {}
        self._clients: dict[str, Any] = {}
        self._bare_clients: dict[str, AsyncClient] = {}
        self._spawned: list[Pending[Any]] = []
        self._types: dict[str, EntityType] = {}
        self._fakes = dict(fakes or {})
        self._entered = False
        self.world: ClusterWorld
        self._time: VirtualTime
        self.store: ClusterStore

    # ---- begin and end

    def __enter__(self) -> TestCluster:
        if self._entered:
            raise RuntimeError("a test cluster is entered once; make another one")
        self._entered = True
        self._types |= self.bus.types | _declared(self._fakes)
        self.world = ClusterWorld(self.seed, self._settings(self.bus, {}), self.bus.name)
        self._time = VirtualTime(self.world)
        self.store = ClusterStore(self.world.store, self._time, self._types)
        try:
            self._time.run(self._start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            unseen = (spawned.error for spawned in self._spawned if not spawned.awaited)
            error = next(filter(None, unseen), None)
        if isinstance(error, Exception):
            error.add_note(self.note())
        self._end()
        if kind is None and error is not None:
            raise error

    async def __aenter__(self) -> TestCluster:
        return self.__enter__()

    async def __aexit__(self, *error: Any) -> None:
        self.__exit__(*error)

    def note(self) -> str:
        """Return how to repeat this run, and its last events."""
        last = list(self.world.trace.lines)[-NOTE_LINES:]
        return "\n".join(
            [
                f"seed {self.seed} repeats this run: TestCluster({self.bus.name}, "
                f"nodes={self._count}, seed={self.seed}); it ended at {self.now:.3f} s",
                *last,
            ]
        )

    async def _start(self) -> None:
        for _ in range(self._count):
            await self._start_node(None, self.bus, {}, self._types)
        await self._settled(WITHIN_S)
        await self._connect("client")

    def _end(self) -> None:
        self._time.close()
        self.world.end()

    # ---- nodes

    @property
    def nodes(self) -> list[TestNode]:
        """The nodes whose processes run, in the order of their start."""
        return [node for node in self._nodes.values() if node.runs]

    def node(self, name: str) -> TestNode:
        """Return the latest node of this name, whether it runs or not."""
        return self._nodes[name]

    def where(self, kind: type | str, entity_id: str) -> TestNode | None:
        """Return the node on which the entity runs, or would start now; None if there is none, or
        if the entity's shard has no home."""
        type_of(self._types, kind)
        return next((node for node in self.nodes if node.hosts(kind, entity_id)), None)

    async def add(
        self,
        name: str | None = None,
        *,
        bus: ShardBus | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> TestNode:
        """Start another node, and wait until it is up.

        Args:
            name: the name of a node whose process has ended, to start one at its address.
            bus: another application, as in a rolling upgrade: the types may differ.
            settings: settings beyond the cluster's, as `{"node.roles": ["gpu"]}`.

        Raises:
            ConfigError: the settings do not fit the application.
            TimeoutError: it is not up within 60 virtual seconds.
        """
        app = self.bus if bus is None else bus
        types = self._types if app is self.bus else dict(app.types)
        return await self._virtually(self._add(name, app, settings or {}, types))

    async def _add(
        self, name: str | None, bus: ShardBus, settings: Mapping[str, object], types: EntityTypes
    ) -> TestNode:
        node = await self._start_node(name, bus, settings, types)
        await self._until(lambda: node.up, WITHIN_S, f"{node.name} is not up")
        return node

    async def _start_node(
        self, name: str | None, bus: ShardBus, overrides: Mapping[str, object], types: EntityTypes
    ) -> TestNode:
        if name is None:
            self._names += 1
            name = f"node{self._names}"
        elif name in self._nodes and self._nodes[name].runs:
            raise ConfigError(f"{name} still runs: there is one process at an address")
        settings = self._settings(bus, overrides)
        settings = replace(settings, node=await with_version(settings.node, bus.version_source))
        process = self.world.start_node(name, settings, bus, types)
        node = self._nodes[name] = TestNode(process, self._time)
        return node

    def _settings(self, bus: ShardBus, overrides: Mapping[str, object]) -> Settings:
        named = {**self._node_settings, **overrides}
        layers = [(SETTINGS_ORIGIN, nested_at(key, value)) for key, value in named.items()]
        return load(for_types(layers, bus.types))

    async def leave(self, node: TestNode) -> None:
        """Let a node leave, as SIGTERM does: it hands its shards off. Returns when its process has
        ended.

        Raises:
            TimeoutError: it has not within 600 virtual seconds.
        """
        self._mark(node, "is asked to leave")
        self.world.leave(self._process(node).process)
        await self._virtually(self._until(lambda: not node.runs, LEAVES_WITHIN_S, f"{node} stays"))

    async def kill(self, node: TestNode, *, machine: bool = False) -> None:
        """End a node's process at once, as SIGKILL does. The others notice it by their connections.
        With `machine` the whole machine is gone: nothing refuses a connection there, and the
        others notice it by the silence."""
        self._process(node)
        self.world.kill(node.name, silent=machine)

    async def pause(self, node: TestNode) -> None:
        """Stop a node's process until `resume`, as SIGSTOP does: nothing runs in it, and its
        connections stand."""
        self._process(node)
        self._mark(node, "is paused")
        self.world.hold(node.name)

    async def resume(self, node: TestNode) -> None:
        """Let a paused process continue. Overdue actions happen now."""
        self._process(node)
        self._mark(node, "continues")
        self.world.release(node.name)

    async def partition(self, *sides: Sequence[TestNode | str]) -> None:
        """Split the network: nothing passes between the sides. A node on no side reaches all, and
        so does a client, unless its name is on a side. The store is reached by all."""
        names = [[node if isinstance(node, str) else node.name for node in side] for side in sides]
        self._mark(None, "split: " + " | ".join(",".join(side) for side in names))
        for link in links_between(names):
            assert isinstance(link, CutLink)
            self.world.wall_up(link)

    async def impair(
        self,
        node: TestNode,
        kind: str,
        *others: TestNode,
        channels: Iterable[str] = CHANNEL_NAMES,
        refuse: bool = False,
    ) -> None:
        """Let the network fail between one node and others, in one direction and on some channels,
        until `heal`. Clients and the store are reached as before.

        Args:
            node: the node in trouble.
            kind: `mute`: its messages are lost; `deaf`: the others' messages to it are lost;
            `cannot-connect`: connections that it opens to them are dead; `cannot-accept`:
            connections that they open to it are dead.
            others: the nodes concerned; all others if none is given.
            channels: `messages`, `gossip`, `probes`: connections for messages, connections for
            gossip, and the fresh connections that prove a death.
            refuse: the dead connections are refused, as by a firewall that rejects.

        Raises:
            ConfigError: no such kind or channel.
        """
        self._process(node)
        named = tuple(channels)
        if kind not in WALLS:
            raise ConfigError(f"there is no trouble {kind!r}", hint=f"one of {', '.join(WALLS)}")
        if wrong := [name for name in named if name not in CHANNEL_NAMES]:
            raise ConfigError(
                f"there is no channel {wrong[0]!r}", hint=f"one of {', '.join(CHANNEL_NAMES)}"
            )
        names = [other.name for other in others or self.nodes if other is not node]
        trouble = NodeTrouble(kind, node.name, tuple(names), 0.0, 0.0, named, refuse)
        self._mark(node, str(trouble).removeprefix(f"{node.name} "))
        wall = trouble.wall()
        assert wall is not None
        self.world.wall_up(wall)

    async def accuse(self, accuser: TestNode, accused: TestNode) -> None:
        """Let a node report that another one acknowledges no message, for which that one, or the
        accuser, must restart. A node does so by itself after `cluster.quarantine_after`."""
        process, other = self._process(accuser).process, self._process(accused).process
        self._mark(accuser, f"quarantines {accused.name}")
        self.world.deliver(process, Quarantine(other.id))

    async def slow_down(self, node: TestNode, factor: float) -> None:
        """Let a node's process need that many times as long for everything, until `heal`. A turn
        of its event loop usually takes 20 µs, an event of membership 100 µs."""
        self._process(node)
        self._mark(node, f"is slow by {factor:g}")
        self.world.slow_down(node.name, factor)

    async def lose_store(self, node: TestNode) -> None:
        """Let one node alone lose the way to the store, until `heal`."""
        self._process(node)
        self._mark(node, "has lost the store")
        self.world.lose_store(node.name)

    async def heal(self) -> None:
        """End every split, and every other fault of the network."""
        self._mark(None, "the network heals")
        for wall in list(self.world.network.walls):
            self.world.wall_down(wall)
        for node in self.nodes:
            self.world.slow_down(node.name, 1.0)
            self.world.lose_store(node.name, lost=False)

    # ---- time

    @property
    def now(self) -> float:
        """Virtual seconds since the cluster began."""
        return self.world.now - BEGINNING

    @property
    def wall_clock(self) -> datetime:
        """The result of `self.context.now()` in every entity. A cluster begins on 1 January 2026,
        0:00 UTC."""
        return datetime.fromtimestamp(self.world.wall_clock(), UTC)

    async def advance(self, seconds: float) -> None:
        """Let that much virtual time pass.

        Raises:
            ConfigError: `seconds` is no number of at least 0.
        """
        await self._time.advance(checked_seconds("advance", seconds))

    async def until(
        self,
        condition: Callable[[], object],
        within: float = WITHIN_S,
        what: str = "the condition is not fulfilled",
    ) -> None:
        """Let time pass until the condition is true. It may be async.

        Raises:
            TimeoutError: it is not within that many virtual seconds.
        """
        limit = checked_seconds("within", within)
        await self._virtually(self._until(condition, limit, what))

    async def settle(self, within: float = WITHIN_S) -> None:
        """Let time pass until the nodes agree on who is a member, every one is up, no shard moves,
        and the clients have noticed which nodes have ended.

        Raises:
            TimeoutError: they do not within that many virtual seconds.
        """
        await self._virtually(self._settled(checked_seconds("within", within)))

    async def _settled(self, within: float) -> None:
        why = ""

        def settled() -> bool:
            nonlocal why
            why = self._unsettled()
            return not why

        try:
            await self._until(settled, within, "")
        except TimeoutError:
            raise TimeoutError(f"{why}, after {within:g} s of virtual time") from None

    def _unsettled(self) -> str:
        nodes = [node for node in self.nodes if not node.paused]
        names = sorted(node.name for node in nodes)
        for node in nodes:
            view = self._process(node).node.view
            statuses = {} if view is None else {m.node.host: m.status for m in view.members}
            if statuses != dict.fromkeys(names, Status.UP):
                seen = ", ".join(f"{name} {status.value}" for name, status in statuses.items())
                return f"{node.name} sees [{seen}], and {', '.join(names)} run"
            if not node.up:
                return f"{node.name} is not up"
            for kind, region in self._process(node).node.regions.items():
                if moving := region.router.region.moving:
                    return f"{node.name} moves {moving} shards of {kind}"
        alive = {str(self._process(node).node.me) for node in self.nodes}
        for name, client in self._bare_clients.items():
            links = {str(session.tag) for session in client._endpoint.outgoing_sessions}
            if gone := sorted(links - alive):
                return f"{name} has not noticed that {', '.join(gone)} has ended"
        return ""

    async def _until(self, condition: Callable[[], object], within: float, what: str) -> None:
        end = self.world.now + within
        while True:
            holds = condition()
            if inspect.isawaitable(holds):
                holds = await holds
            if holds:
                return
            if self.world.now > end:
                raise TimeoutError(f"{what}, after {within:g} s of virtual time")
            await asyncio.sleep(POLL_S)

    # ---- the code of the test

    def run(self, work: Awaitable[T]) -> T:
        """Run a coroutine in virtual time until it ends, and return its result: for a test that is
        not async. Raises RuntimeError if this is called from such a coroutine."""
        return self._time.run(work)

    def spawn(self, work: Coroutine[Any, Any, T]) -> Pending[T]:
        """Run a coroutine in virtual time beside the test: in it, `asyncio.sleep` is virtual.
        Await the returned object for its result. An error of one that was never awaited is raised
        when the cluster ends."""
        pending = Pending(self._time, self._time.begin(work))
        self._spawned.append(pending)
        return pending

    def client(self, name: str = "client") -> AsyncClient:
        """Return the client of this name, connected to the cluster; `client` is there from the
        start. It is an `AsyncClient`, closed with the cluster.

        Raises:
            RuntimeError: there is none yet, and this runs in virtual time: `await connect(name)`.
        """
        if name not in self._clients:
            self._time.run(self._connect(name))
        return cast("AsyncClient", self._clients[name])

    async def connect(self, name: str) -> AsyncClient:
        """Return the client of this name, and connect it if there is none.

        Raises:
            Refused, NodeLost: no node answers.
        """
        if name not in self._clients:
            await self._virtually(self._connect(name))
        return cast("AsyncClient", self._clients[name])

    async def _connect(self, name: str) -> None:
        if name in self.world.nodes:
            raise ConfigError(f"{name} is the name of a node")
        world = self.world
        environment = Environment(
            world.rng.getrandbits(64).to_bytes(8, "big"),
            SimNetwork(world.exchange, name, self._time.loop),
            Random(world.rng.getrandbits(32)),
            lambda: world.now,
            cpu_time=lambda: 0.0,
            resident_bytes=lambda: 0,
            collector_callbacks=[],
            memory_limit=lambda: 0,
            wall_clock=lambda: world.now,
        )
        addresses = [f"tcp://{address_of(node.name)}" for node in self.nodes]
        client = AsyncClient(
            *addresses,
            cluster=self.bus.name,
            connect_timeout=WITHIN_S,
            environment=lambda: environment,
        )
        self._clients[name] = Bridge(self._time, self._time.loop, await client.__aenter__())
        self._bare_clients[name] = client

    # ---- the record

    @property
    def transcript(self) -> list[str]:
        """The last 10,000 events: starts, ends, membership, splits, loads and saves."""
        return list(self.world.trace.lines)

    @property
    def digest(self) -> str:
        """A hash of all that the membership of every node did. Two equal runs have the same."""
        return self.world.trace.digest

    def _mark(self, node: TestNode | None, what: str) -> None:
        self.world.trace.mark(self.world.now, "" if node is None else node.name, what)

    def _process(self, node: TestNode) -> AppNode:
        if self._nodes.get(node.name) is not node:
            raise ConfigError(f"{node!r} is no node of this cluster, or not its latest")
        if not node.runs:
            raise ConfigError(f"{node!r} has ended")
        process = self.world.sim_nodes[node.name]
        assert isinstance(process, AppNode)
        return process

    async def _virtually(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in virtual time, and wait for it in the loop of the caller."""
        return await self._time.wait(self._time.begin(work), WAIT_MAX_S)


def _declared(fakes: Mapping[type, type]) -> dict[str, EntityType]:
    """Return the types by which these classes stand for others, with all that those declare but
    their options."""
    bus = ShardBus("fakes")
    for replaced, fake in fakes.items():
        interface = getattr(replaced, "__shardbus_interface__", None)
        if interface is None:
            raise ConfigError(f"{replaced!r} is no entity class, so nothing can stand for it")
        bus.entity(interface.name, shards=interface.shards)(fake)
        made = bus.types[interface.name].interface  # it lives where the other one does
        made.within, made.shard_of, made.layout = (
            interface.within, interface.shard_of, interface.layout
        )  # fmt: skip
    return dict(bus.types)
