"""The shell of a singleton: decides, on every node, which node coordinates one entity type.

    membership ──view──> Singleton ──Prepare, Start, Retire, Halt──> CoordinatorShell
        │                  │  ^  └──SendHandOver──> another node's        │
        │                  │  └────────────started, ended─────────────────┘
        └──the oldest──────┴──> the region, which registers there

The coordinator belongs to the oldest of the nodes with the type's role, or with `coordinator_role`
if that is set; then a node may coordinate a type that it does not host.

A region turns to the next oldest node as soon as membership shows it, though the leaving
coordinator may still rule. The next coordinator keeps what regions send until it rules.

With `use_lease`, the coordinator begins once this node holds the lease of the type's singleton, and
has ended once the lease is released. When the lease is lost, the coordinator stops at once. That
counts as an end of its own, and it begins again when this node holds the lease again.

Source: docs/architecture.md; S0.18, S0.33, S2.62.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, assert_never
from urllib.parse import quote

from shardbus.config.settings import SingletonSettings
from shardbus.entities.supervision import StateLoader
from shardbus.ids import NodeId
from shardbus.membership.member import WORKING, Service, Status
from shardbus.membership.singleton import messages
from shardbus.membership.singleton.singleton import Singleton
from shardbus.membership.view import MembershipView
from shardbus.routing.refs import start_entity
from shardbus.sharding import events
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.messages import GetShardHome
from shardbus.shells.coordinator import CoordinatorShell
from shardbus.shells.leases import LeaseShell
from shardbus.shells.overrides import OverridesStore
from shardbus.shells.region import RegionShell
from shardbus.store.protocol import StateStore
from shardbus.transport.machine_timer import MachineTimer

HOSTING = (*WORKING, Status.LEAVING)
"""Members in these statuses host shards."""

REGISTERING = (*HOSTING, Status.EXITING)
"""Members in these statuses have regions that register; a new coordinator waits for each."""

LEASED = ("singleton", "both")

START_MS = 30_000


class SingletonServices(Protocol):
    """What a singleton needs from its node."""

    me: NodeId
    store: StateStore

    @property
    def states(self) -> StateLoader: ...

    def send(self, to: NodeId, entity_type: str, message: object) -> None: ...
    def epoch_claimed(self, entity_type: str, epoch: int) -> None: ...
    def note(self, entity_type: str, note: events.Note) -> None: ...


class SingletonShell:
    """Runs the singleton of one entity type, and owns the type's coordinator.

    Args:
        region: the type's region, which registers with the coordinator.
        make: builds a fresh coordinator.
        node: the services of the node.
        removal_margin: `cluster.downing.down_removal_margin`, in seconds.
        waits: the waits of a hand-over, section `cluster.singleton`.
    """

    def __init__(
        self,
        region: RegionShell,
        make: Callable[[], Coordinator],
        node: SingletonServices,
        removal_margin: float,
        waits: SingletonSettings,
    ) -> None:
        role = region.coordinator_role
        self.singleton = Singleton(region.name, node.me, role, removal_margin, waits)
        settings = region.settings
        self._lease = f"singleton/{quote(region.name, safe='')}"
        self._leases: LeaseShell | None = None
        if settings.use_lease in LEASED:
            self._leases = LeaseShell(node.store, str(node.me), settings, self)
        self._epoch: int | None = None
        """Of a coordinator that waits for the lease."""
        self._ended = False
        """The coordinator has ended, and the lease is being released."""
        self.coordinator = CoordinatorShell(
            region.name,
            make,
            node.store,
            self,
            OverridesStore(region.name, node.states),
            store_timeout=settings.updating_state_timeout,
            remember=settings.remember,
            check_lease=self._leases.check if self._leases is not None else lambda: None,
        )
        self._region, self._node = region, node
        self._machine_timer = MachineTimer(self.singleton.deadline, self._tick)

    def update(self, view: MembershipView) -> None:
        """Apply a new view of membership. While the whole cluster stops, the coordinator keeps its
        members: no shard gets a new home."""
        region, name = self._region, self._region.name
        epoch = view.epochs.get(name, 0)
        live = tuple(m.node for m in view.members if m.status in REGISTERING)
        way_out = (Status.LEAVING, Status.EXITING)
        closed = {m.node: m.service for m in view.members if m.service is not Service.OPEN}
        unfit = tuple(m.node for m in view.members if m.status in way_out or m.node in closed)
        silent = tuple(n for n in view.doubtful if n in live and n not in unfit)
        if not set(live) <= {*unfit, *silent}:  # a silent node would not start a shard now
            unfit += silent
        draining = tuple(node for node in closed if closed[node] is Service.DRAINING)
        arriving = any(m.status in (Status.JOINING, Status.WEAKLY_UP) for m in view.members)
        unsettled = bool(view.unreachable) or arriving
        versions = {m.node: m.version for m in view.members if m.has_role(region.settings.role)}
        zones = {m.node: m.zone for m in view.members if m.zone}
        members = events.MembersChanged(live, unfit, unsettled, draining, versions, zones)
        if view.stopping:
            self.coordinator.freeze()
        else:
            self.coordinator.update(members, epoch)
        self._handle(messages.MembershipSeen(view, view.stopping))
        if epoch:
            region.router.handle(events.EpochSeen(epoch))
        oldest = view.oldest(region.coordinator_role)
        node = oldest.node if oldest is not None and view.status in REGISTERING else None
        if node != region.coordinator:
            region.coordinator = node
            region.router.handle(events.CoordinatorAt(node))

    def received(self, sender: NodeId, message: messages.Message) -> None:
        """Handle a message of another node's singleton."""
        self._handle(messages.HandOverReceived(sender, message))

    def left(self, *, gracefully: bool) -> None:
        """Handle the end of this node's membership."""
        self._handle(messages.MembershipEnded(gracefully))

    @property
    def ending(self) -> bool:
        """True if a coordinator here is about to end, and its successor may wait for it."""
        return self.singleton.ending

    def close(self) -> None:
        """Stop at once."""
        self._machine_timer.stop()
        self.coordinator.stop()

    # ---- services of the coordinator

    def send(self, to: NodeId, entity_type: str, message: events.Message) -> None:
        """Send a machine's message."""
        self._node.send(to, entity_type, message)

    def epoch_claimed(self, entity_type: str, epoch: int) -> None:
        """Report that the coordinator here rules."""
        self._handle(messages.InstanceStarted(epoch))
        self._node.epoch_claimed(entity_type, epoch)

    def ended(self, entity_type: str) -> None:
        """Report that the coordinator here has ended, once its lease is released."""
        if self._leases is None:
            self._handle(messages.InstanceStopped())
        else:
            self._ended = True
            self._leases.drop(self._lease)

    def ask_homes(self, entity_type: str, shards: list[str]) -> list[str]:
        """Ask for the homes of these shards, as messages for them would. Returns the shards that
        the type's shard function does not give any more."""
        router = self._region.router
        known = tuple(shard for shard in shards if router.has_shard(shard))
        router.handle(events.MessageReceived(self._node.me, GetShardHome(known)))
        return [shard for shard in shards if shard not in known]

    async def start_entity(self, entity_type: str, entity_id: str) -> None:
        """Start the entity on the node of its shard."""
        await start_entity(self._region.router, entity_id, START_MS)

    def note(self, entity_type: str, note: events.Note) -> None:
        """Count and log a machine's note."""
        self._node.note(entity_type, note)

    # ---- the lease of the singleton

    def on_held(self, name: str) -> None:
        """Begin: this node holds the lease."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            self.coordinator.begin(epoch)

    def on_lost(self, name: str, left: float) -> None:
        """Stop at once: the lease is lost."""
        self.coordinator.stop()
        self.ended(self._region.name)

    def on_free(self, name: str) -> None:
        """Report the end: the lease is released, and another node may get it."""
        ended, self._ended = self._ended, False
        if ended:
            self._handle(messages.InstanceStopped())

    def on_note(self, note: events.Note) -> None:
        """Count and log a note about the lease."""
        self.note(self._region.name, note)

    async def end(self) -> None:
        """Release the lease; no coordinator runs here any more."""
        if self._leases is not None:
            self._ended, self._epoch = False, None
            await self._leases.end()

    # ---- the machine

    def _handle(self, event: messages.Event) -> None:
        now = asyncio.get_running_loop().time()
        self._perform(self.singleton.handle(event, now))

    def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        self._perform(self.singleton.tick(now))

    def _perform(self, effects: list[messages.Effect]) -> None:
        name = self._region.name
        for effect in effects:
            match effect:
                case messages.SendHandOver(to=to, message=message):
                    self._node.send(to, name, message)
                case messages.PrepareInstance():
                    self.coordinator.prepare()
                case messages.StartInstance(epoch=epoch):
                    self._begin(epoch)
                case messages.RetireInstance():
                    self._epoch = None
                    self.coordinator.retire()
                case messages.HaltInstance():
                    self._halt()
                case messages.SingletonStateChanged(after=after, why=why):
                    self.note(name, events.Note("succession", f"{after}: {why}"))
                case _:
                    assert_never(effect)
        self._machine_timer.arm()

    def _begin(self, epoch: int) -> None:
        if self._leases is None:
            self.coordinator.begin(epoch)
        else:
            self._epoch = epoch
            self._leases.want(self._lease)

    def _halt(self) -> None:
        self.coordinator.stop()
        self._epoch = None
        if self._leases is not None:
            self._leases.drop(self._lease)
