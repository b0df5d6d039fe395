"""The cluster as the node in this process sees it, for applications: `bus.cluster`.

    async for event in bus.cluster.events():
        match event:
            case MembershipView():        # the first, and again if this loop was too slow
                ...
            case MemberUp(member):
                ...

Source: docs/how-to/operate.md; S3.34.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from shardbus.config.options import checked_seconds
from shardbus.config.settings import Settings
from shardbus.errors import NodeLost
from shardbus.ids import NodeId
from shardbus.membership.commands import check_meta
from shardbus.membership.member import Member, Service, Status
from shardbus.membership.view import (
    ConvergenceChanged,
    DomainEvent,
    DowningDecided,
    FoundingWaits,
    LeaderChanged,
    MemberDowned,
    MemberExiting,
    MemberJoined,
    MemberLeaving,
    MemberPreparingForShutdown,
    MemberReadyForShutdown,
    MemberRemoved,
    MembershipView,
    MemberUp,
    MemberWeaklyUp,
    MetaChanged,
    OtherCluster,
    OtherClustersChanged,
    QuarantinedMember,
    ReachableMember,
    RivalCluster,
    RoleLeaderChanged,
    SelfStarved,
    ServiceChanged,
    SlowHeartbeat,
    UnreachableMember,
)
from shardbus.node.rpc import NodeRpc
from shardbus.node.shutdown_phases import Phases
from shardbus.node.subscriptions import Subscription, Subscriptions
from shardbus.sharding import events as sharding_events
from shardbus.sharding.messages import PartitionChange, TableState
from shardbus.sharding.region.table_gossip import TableGossip, TableVersion
from shardbus.sharding.table_state import unpack_homes
from shardbus.shells.region import RegionShell, region_of
from shardbus.store.protocol import StateStore

__all__ = [
    "Cluster", "ConvergenceChanged", "DomainEvent", "DowningDecided", "FoundingWaits",
    "LeaderChanged", "Member", "MemberDowned", "MemberExiting", "MemberJoined", "MemberLeaving",
    "MemberPreparingForShutdown", "MemberReadyForShutdown", "MemberRemoved", "MemberUp",
    "MemberWeaklyUp", "MembershipView", "MetaChanged", "OtherCluster", "OtherClustersChanged",
    "PartitionChange", "PartitionTable", "QuarantinedMember", "ReachableMember", "RivalCluster",
    "RoleLeaderChanged", "SelfStarved", "Service", "ServiceChanged", "SlowHeartbeat", "Status",
    "Subscription", "UnreachableMember",
]  # fmt: skip


POLL_S = 0.02
"""Seconds between two looks at the reports of other nodes."""
ASK_AGAIN_S = 0.2
"""Seconds after which nodes that have not answered are asked again."""


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """The shard table of a type as it travels by gossip. `version`: the coordinator's epoch, and a
    number; later ones are greater. `nodes`: those that are registered, in order. `homes`: where
    each settled shard, or row of an instance, lives. `changes`: the shards on the move."""

    version: TableVersion
    nodes: tuple[NodeId, ...]
    homes: Mapping[str, NodeId]
    changes: tuple[PartitionChange, ...]


class RunningNode(Protocol):
    """The services of a node for the application that runs in it."""

    me: NodeId
    subscriptions: Subscriptions
    phases: Phases
    rpc: NodeRpc
    store: StateStore
    settings: Settings

    @property
    def regions(self) -> Mapping[str, RegionShell]: ...
    def ref(self, entity_type: object, entity_id: str) -> object: ...
    def set_active_entity_limit(self, entity_type: object, limit: int) -> None: ...
    async def shutdown_region(self, entity_type: object) -> None: ...
    def region_state(self, entity_type: object) -> dict[str, list[str]]: ...
    def write_meta(self, name: str, data: bytes) -> None: ...


class Cluster:
    """The membership, its events, and bytes that the application spreads."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node

    @property
    def node(self) -> NodeId:
        """This node."""
        return self._node.me

    @property
    def view(self) -> MembershipView:
        """The current view: members, leader, unreachable members. Immutable."""
        return self._node.subscriptions.view

    def events(self) -> Subscription:
        """The events from now on, after the current MembershipView as the first item. A reader that
        is more than 1000 events behind gets a new view instead of them. Ends with this node's
        membership."""
        return self._node.subscriptions.subscribe()

    async def until(
        self, condition: Callable[[MembershipView], object], timeout: float = 30.0
    ) -> MembershipView:
        """Wait until the view fulfils a condition, for example `lambda view: view.converged`.

        Raises:
            TimeoutError: it did not within `timeout` seconds.
            NodeLost: this node's membership ended first.
            ConfigError: `timeout` is no number of seconds.
        """
        events = self.events()
        try:
            async with asyncio.timeout(checked_seconds("timeout", timeout)):
                async for _ in events:
                    if condition(self.view):
                        return self.view
        finally:
            events.close()
        raise NodeLost(f"{self.node} is no member any more")

    def table(self, entity_type: str | type) -> PartitionTable | None:
        """The shard table of a type as this node has it; None if it has none yet, or if
        `sharding.homes` is not "gossip" on the coordinator's node.

        Raises:
            UnknownEntityType: this application has no such type.
        """
        state = self._gossip(entity_type).state
        return _partition_table(state) if state is not None else None

    async def seen(
        self,
        entity_type: str | type,
        version: TableVersion | None = None,
        timeout: float = 30.0,
    ) -> PartitionTable:
        """Wait until every registered node has this version of a type's shard table, or a later
        one. `version` None: this node's. Returns this node's table.

        Raises:
            TimeoutError: they had not within `timeout` seconds, or no table travels by gossip.
            UnknownEntityType: this application has no such type.
            ConfigError: `timeout` is no number of seconds.
        """
        region, loop = region_of(self._node.regions, entity_type), asyncio.get_running_loop()
        ask_at = loop.time()
        async with asyncio.timeout(checked_seconds("timeout", timeout)):
            while True:
                gossip = self._gossip(entity_type)
                if version is None and gossip.state is not None:
                    version = gossip.version
                if gossip.state is not None and version is not None and gossip.version >= version:
                    if not gossip.behind(version):
                        return _partition_table(gossip.state)
                    if loop.time() >= ask_at:
                        region.router.handle(sharding_events.AskTableVersions())
                        ask_at = loop.time() + ASK_AGAIN_S
                await asyncio.sleep(POLL_S)

    def _gossip(self, entity_type: str | type) -> TableGossip:
        return region_of(self._node.regions, entity_type).router.table.region.table_gossip

    @property
    def meta(self) -> dict[str, bytes]:
        """The bytes that the application has spread, by name."""
        return dict(self.view.meta)

    def set_meta(self, name: str, data: bytes) -> None:
        """Spread a few bytes to every node with the gossip; the last write wins. For small values
        that seldom change, under at most 64 names.

        Raises:
            ConfigError: the name is no text of 1 to 128 characters that UTF-8 can encode, or the
                data no `bytes`, or over 4096 of them.
        """
        self._node.write_meta(*check_meta(name, data))


def _partition_table(state: TableState) -> PartitionTable:
    homes = unpack_homes(state.homes, state.nodes)
    return PartitionTable(
        (state.epoch, state.version),
        state.nodes,
        {home.shard: home.node for home in homes},
        state.changes,
    )
