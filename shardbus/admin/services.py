"""What administration uses of a node: the Protocol that a `Node` satisfies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from shardbus.config.settings import Settings
from shardbus.entities.dead_letters import DeadLetters
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.slow_handlers import SlowHandlers
from shardbus.ids import NodeId
from shardbus.membership.view import MembershipView
from shardbus.node.downing_log import DowningLog
from shardbus.node.lost_nodes import LostNodes
from shardbus.node.membership_store import MembershipStore
from shardbus.node.recent_drops import RecentDrops
from shardbus.node.recent_events import RecentEvents
from shardbus.node.rpc import NodeRpc
from shardbus.node.shutdown_phases import Phases
from shardbus.node.subscriptions import Subscriptions
from shardbus.node.view_ages import ViewAges
from shardbus.sharding.events import Note
from shardbus.shells.cluster_thread import MembershipRunner
from shardbus.shells.pod_deletion_cost import PodDeletionCost
from shardbus.shells.region import RegionShell
from shardbus.shells.singleton import SingletonShell
from shardbus.shells.vitals import VitalsSampler
from shardbus.store.entity_state import EntityStates
from shardbus.store.protocol import StateStore
from shardbus.transport.drop_reports import RefusedTells
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.environment import Environment
from shardbus.transport.zmq.curve import Keyring


class AdminServices(Protocol):
    """A node as pages, answers and metrics see it. The attributes are described at `Node`."""

    ages: ViewAges
    cluster_name: str
    decisions: DowningLog
    endpoint: Endpoint
    environment: Environment
    gate: SuspensionGate
    letters: DeadLetters
    keyring: Keyring | None
    loop: asyncio.AbstractEventLoop
    lost_nodes: LostNodes
    me: NodeId
    membership_store: MembershipStore
    on_leave: Callable[[], None] | None
    phases: Phases
    pod_cost: PodDeletionCost | None
    recent_drops: RecentDrops
    recent_events: RecentEvents
    refused: RefusedTells
    rpc: NodeRpc
    settings: Settings
    slow: SlowHandlers
    states: EntityStates
    stopped: asyncio.Future[str]
    store: StateStore
    subscriptions: Subscriptions
    view: MembershipView | None
    vitals: VitalsSampler

    @property
    def cluster(self) -> MembershipRunner: ...
    @property
    def joining(self) -> bool: ...
    @property
    def regions(self) -> Mapping[str, RegionShell]: ...
    @property
    def singletons(self) -> Mapping[str, SingletonShell]: ...
    def note(self, entity_type: str, note: Note) -> None: ...
    @property
    def notes(self) -> Mapping[tuple[str, str], int]: ...
    @property
    def lag(self) -> float: ...
    @property
    def failed_tasks(self) -> int: ...
    @property
    def watching(self) -> MembershipRunner | None: ...
    @property
    def is_up(self) -> bool: ...
    def describe_joining(self) -> str: ...
    def rekey(self) -> bool: ...
    def join_by(self, seeds: Iterable[str]) -> None: ...
