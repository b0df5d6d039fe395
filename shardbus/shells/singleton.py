"""Who coordinates one entity type now: the shell of its singleton, on every node.

    membership ──view──> Singleton ──Prepare, Begin, Retire, Halt──> Coordination
        │                  │  ^  └──Tell──> another node's             │
        │                  │  └───────────────Ruling, Over─────────────┘
        └──who is oldest───┴──> the region, which registers there

The oldest is that of the nodes with the type's role, or with `coordinator_role`, if that is set:
then a node may coordinate that hosts nothing.

The region turns to the next oldest as soon as membership shows it, though the leaving one may still
rule: the next one keeps what it is asked until its turn has come.

With `use_lease`, the coordinator begins once this node holds the lease of the type's singleton, and
is over once it is given back. If the lease is lost, the coordinator stops at once; that counts as
an end by itself, and it begins again when the lease is to be had.

Source: B.60, B.97, B.99, T.G4, S0.18, S0.33, S2.62; docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, assert_never
from urllib.parse import quote

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
    """What a succession needs from its node."""

    me: NodeId
    store: StateStore

    @property
    def states(self) -> StateLoader: ...

    def send(self, to: NodeId, entity_type: str, message: object) -> None: ...
    def epoch_claimed(self, entity_type: str, epoch: int) -> None: ...
    def note(self, entity_type: str, note: events.Note) -> None: ...


class SingletonShell:
    """See the module; also the office of the type's coordination.

    Args:
        kind: the type; its region is told where to register.
        make: builds a fresh coordinator.
        node: what else is here.
        removal_margin: of `cluster.downing`.
    """

    def __init__(
        self,
        kind: RegionShell,
        make: Callable[[], Coordinator],
        node: SingletonServices,
        removal_margin: float,
    ) -> None:
        self.singleton = Singleton(kind.name, node.me, kind.coordinator_role, removal_margin)
        settings = kind.settings
        self._lease = f"singleton/{quote(kind.name, safe='')}"
        self._leasing: LeaseShell | None = None
        if settings.use_lease in LEASED:
            self._leasing = LeaseShell(node.store, str(node.me), settings, self)
        self._epoch: int | None = None
        """Of a coordinator that waits for the lease."""
        self._ended = False
        """It has, and the lease is on its way back."""
        self.coordination = CoordinatorShell(
            kind.name,
            make,
            node.store,
            self,
            OverridesStore(kind.name, node.states),
            patience=settings.updating_state_timeout,
            remember=settings.remember,
            look=self._leasing.look if self._leasing is not None else lambda: None,
        )
        self._kind, self._node = kind, node
        self._machine_timer = MachineTimer(self.singleton.deadline, self._tick)

    def look(self, view: MembershipView) -> None:
        """Membership changed: who coordinates the type now; if it is this node, over whom. While
        the whole cluster stops, nodes that end are not missed: nothing gets a new home."""
        kind, name = self._kind, self._kind.name
        epoch = view.epochs.get(name, 0)
        live = tuple(m.node for m in view.members if m.status in REGISTERING)
        way_out = (Status.LEAVING, Status.EXITING)
        closed = {m.node: m.service for m in view.members if m.service is not Service.OPEN}
        unfit = tuple(m.node for m in view.members if m.status in way_out or m.node in closed)
        silent = tuple(n for n in view.unreachable if n in live and n not in unfit)
        if not set(live) <= {*unfit, *silent}:  # who is silent starts no shard now
            unfit += silent
        emptying = tuple(node for node in closed if closed[node] is Service.DRAINING)
        arriving = any(m.status in (Status.JOINING, Status.WEAKLY_UP) for m in view.members)
        unsettled = bool(view.unreachable) or arriving
        versions = {m.node: m.version for m in view.members if m.has_role(kind.settings.role)}
        members = events.MembersChanged(live, unfit, unsettled, emptying, versions)
        if view.stopping:
            self.coordination.freeze()
        else:
            self.coordination.update(members, epoch)
        self._handle(messages.MembershipSeen(view, view.stopping))
        if epoch:
            kind.router.handle(events.EpochSeen(epoch))
        oldest = view.oldest(kind.coordinator_role)
        node = oldest.node if oldest is not None and view.status in REGISTERING else None
        if node != kind.coordinator:
            kind.coordinator = node
            kind.router.handle(events.CoordinatorAt(node))

    def received(self, sender: NodeId, message: messages.Message) -> None:
        """Another node's singleton speaks."""
        self._handle(messages.HandOverReceived(sender, message))

    def left(self, *, gracefully: bool) -> None:
        """Membership is over."""
        self._handle(messages.MembershipEnded(gracefully))

    @property
    def ending(self) -> bool:
        """A coordinator here is on its way out, and somebody may wait for it."""
        return self.singleton.ending

    def close(self) -> None:
        """Stop at once."""
        self._machine_timer.stop()
        self.coordination.stop()

    # ---- the office of the coordination

    def send(self, to: NodeId, entity_type: str, message: events.Message) -> None:
        """A machine's message."""
        self._node.send(to, entity_type, message)

    def epoch_claimed(self, entity_type: str, epoch: int) -> None:
        """The coordinator here rules."""
        self._handle(messages.InstanceStarted(epoch))
        self._node.epoch_claimed(entity_type, epoch)

    def over(self, entity_type: str) -> None:
        """The coordinator here has ended."""
        if self._leasing is None:
            self._handle(messages.InstanceStopped())
        else:
            self._ended = True
            self._leasing.drop(self._lease)

    def wake(self, entity_type: str, shards: list[str]) -> list[str]:
        """These shards shall have homes, though no message is there for them. Returns those that
        the type's shard function does not give any more."""
        router = self._kind.router
        known = tuple(shard for shard in shards if router.has_shard(shard))
        router.handle(events.MessageReceived(self._node.me, GetShardHome(known)))
        return [shard for shard in shards if shard not in known]

    async def start_entity(self, entity_type: str, entity_id: str) -> None:
        """The entity shall run where its shard is."""
        await start_entity(self._kind.router, entity_id, START_MS)

    def note(self, entity_type: str, note: events.Note) -> None:
        """What a machine noted."""
        self._node.note(entity_type, note)

    # ---- the lease of the singleton

    def on_held(self, name: str) -> None:
        """The coordinator may begin."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            self.coordination.begin(epoch)

    def on_lost(self, name: str, left: float) -> None:
        """It may not go on."""
        self.coordination.stop()
        self.over(self._kind.name)

    def on_free(self, name: str) -> None:
        """Another one may begin."""
        ended, self._ended = self._ended, False
        if ended:
            self._handle(messages.InstanceStopped())

    def on_note(self, note: events.Note) -> None:
        """What became of the lease."""
        self.note(self._kind.name, note)

    async def end(self) -> None:
        """Nothing is coordinated here any more."""
        if self._leasing is not None:
            self._ended, self._epoch = False, None
            await self._leasing.end()

    # ---- the machine

    def _handle(self, event: messages.Event) -> None:
        now = asyncio.get_running_loop().time()
        self._perform(self.singleton.handle(event, now))

    def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        self._perform(self.singleton.tick(now))

    def _perform(self, effects: list[messages.Effect]) -> None:
        name = self._kind.name
        for effect in effects:
            match effect:
                case messages.SendHandOver(to=to, message=message):
                    self._node.send(to, name, message)
                case messages.PrepareInstance():
                    self.coordination.prepare()
                case messages.StartInstance(epoch=epoch):
                    self._begin(epoch)
                case messages.RetireInstance():
                    self._epoch = None
                    self.coordination.retire()
                case messages.HaltInstance():
                    self._halt()
                case messages.SingletonStateChanged(after=after, why=why):
                    self.note(name, events.Note("succession", f"{after}: {why}"))
                case _:
                    assert_never(effect)
        self._machine_timer.arm()

    def _begin(self, epoch: int) -> None:
        if self._leasing is None:
            self.coordination.begin(epoch)
        else:
            self._epoch = epoch
            self._leasing.want(self._lease)

    def _halt(self) -> None:
        self.coordination.stop()
        self._epoch = None
        if self._leasing is not None:
            self._leasing.drop(self._lease)
