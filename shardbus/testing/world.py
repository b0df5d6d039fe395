"""The world of a test cluster: the simulator's world of whole nodes, each node with an application.

Beyond the simulator's world: nodes may run different applications, a process may be paused until it
is resumed, and the main events are written to a transcript. All nodes share one `ShardBus`; in the
code of a node it is attached to that node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any, cast
from weakref import WeakSet

from shardbus.admin.administration import Administration
from shardbus.admin.page_table import answer_questions
from shardbus.app import ShardBus
from shardbus.cluster import RunningNode
from shardbus.config.settings import Settings
from shardbus.entities.activation import Activation
from shardbus.entities.entity_type import EntityTypes
from shardbus.errors import LocalProtocolError
from shardbus.membership import events as ev
from shardbus.node.node import Node
from shardbus.node.served_node import CALLBACKS_S
from shardbus.sharding.instances import split_row
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.world import BEGINNING, PORT
from shardbus.simulation.nodes.world import NodeWorld, SimNode
from shardbus.simulation.trace import Trace
from shardbus.tasks.internals import running_loop
from shardbus.testing.store import WatchedStore
from shardbus.testing.virtual_time import log_failure

LINES_MAX = 10_000
"""Lines that a transcript keeps."""
WALL_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""The time of the wall clock when a test cluster begins, as seconds since 1970."""
FOREVER_S = 1e9
"""Seconds for which a process is paused until it is resumed."""


class Transcript(Trace):
    """The events, a line each. Messages of membership are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=LINES_MAX)

    def arrow(self, at: float, source: str, target: str, what: str, fate: str = "") -> None:
        """Leave it out."""

    def mark(self, at: float, name: str, what: str) -> None:
        self.lines.append(f"{at - BEGINNING:9.3f}  {name:8} {what}".rstrip())


class NodeHere:
    """The node on whose loop the caller runs: a `ShardBus` is attached to it."""

    def __init__(self) -> None:
        self.nodes: dict[asyncio.AbstractEventLoop | None, Node] = {}

    def __getattr__(self, name: str) -> Any:
        node = self.nodes.get(running_loop())
        if node is None:
            raise LocalProtocolError(
                "no node runs here: this is the code of the test", hint="use cluster.client()"
            )
        return getattr(node, name)


class AppNode(SimNode):
    """A node of a test cluster, with the application that it runs."""

    world: ClusterWorld

    def __init__(
        self, world: ClusterWorld, settings: Settings, bus: ShardBus, types: EntityTypes
    ) -> None:
        self.bus = bus
        super().__init__(world, settings.node.host, 1.0, settings, types)

    def on_listening(self) -> None:
        self.admin = Administration(self.node)
        answer_questions(self.admin)
        for region in self.node.regions.values():
            region.host.wall_clock = self.world.wall_clock
        self.world.here.nodes[self.loop] = self.node
        self.bus.attach(cast("RunningNode", self.world.here))

    async def on_end(self) -> None:
        await self.node.subscriptions.end(CALLBACKS_S)

    def _failed(self, context: dict[str, Any]) -> None:
        log_failure(context)

    def activation(self, name: str, entity_id: str) -> Activation | None:
        """Return the activation of an entity, None if it is not in memory. Of a type with
        instances, return the first that runs here."""
        region = self.node.regions[name]
        if region.entity_type.interface.instances is None:
            return region.host.find(entity_id, region.router.shard_of(entity_id))
        for shard, keys in region.host.activations.ids_by_shard().items():
            for key in keys:
                if split_row(key)[0] == entity_id:
                    return region.host.find(key, shard)
        return None

    def is_home(self, name: str, entity_id: str) -> bool:
        """True if the entity is in memory, or its shard is here and does not stop."""
        region = self.node.regions[name]
        if self.activation(name, entity_id) is not None:
            return True
        shard = region.host.shards.get(region.router.shard_of(entity_id))
        return shard is not None and not shard.stopping

    def end(self, *, badly: bool) -> None:
        if self.ended_at is None:
            self.world.trace.mark(self.world.now, self.name, "is killed" if badly else "has left")
        super().end(badly=badly)


class ClusterWorld(NodeWorld):
    """The world of a test cluster."""

    def __init__(self, seed: int, settings: Settings, cluster: str) -> None:
        super().__init__(f"test {seed}", settings.cluster, settings.sharding, {}, cluster)
        self.trace: Transcript = Transcript()
        self.store: WatchedStore = WatchedStore(self, Random(f"store {seed}"))
        self.answers = WeakSet()
        self.here = NodeHere()

    def wall_clock(self) -> float:
        """Return the time of day of the cluster, as seconds since 1970."""
        return WALL_BEGINNING + self.now - BEGINNING

    def start_node(
        self, name: str, settings: Settings, bus: ShardBus, types: EntityTypes
    ) -> AppNode:
        """Start a node that joins by the nodes that run; the first one founds the cluster.

        Raises:
            ConfigError: the settings do not fit the application.
        """
        running = [p.name for p in self.running() if p.held is None]
        if name in self.sim_nodes:
            self.former.append(self.sim_nodes[name])
        node_settings = replace(settings.node, host=name, port=PORT, join="manual")
        self.trace.mark(self.now, name, "starts")
        node = AppNode(self, replace(settings, node=node_settings), bus, types)
        if node.life.done():
            node.life.result()  # raises the error that kept it from starting
        self.sim_nodes[name] = node
        self.enter(node.process, *(running or [name]))
        return node

    # ---- pauses without an end

    def hold(self, name: str) -> None:
        """Pause the process until it is released."""
        process = self.nodes[name]
        process.held = process.held or []
        self.pause(name, FOREVER_S)

    def release(self, name: str) -> None:
        """Let a paused process continue. Delayed events happen now."""
        process, node = self.nodes[name], self.sim_nodes[name]
        held, process.held = process.held or [], None
        process.paused_until = self.now
        node.loop.resume()
        self._arm(process, process.due_at)
        for event in held:
            self.deliver(process, event)

    def deliver(self, process: Process, event: ev.Event) -> None:
        if process.held is None:
            super().deliver(process, event)
        elif process.running:
            process.held.append(event)

    # ---- the end

    def end(self) -> None:
        """Kill all processes, and detach the applications."""
        self.close()
        for node in self.all_nodes():
            node.loop.discard()
        for node in self.all_nodes():
            cast("AppNode", node).bus.attach(None)
        for answer in list(self.answers or ()):
            answer.warn_at_end()
