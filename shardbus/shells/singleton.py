"""The shell of a singleton: decides, on every node, which node coordinates one entity type.

    membership ──view──> Singleton ──Prepare, Start, Retire, Halt──> CoordinatorShell
        │                  │  ^  └──SendHandOver──> another node's        │
        │                  │  └────────────started, ended─────────────────┘
        └──the oldest──────┴──> the region, which registers there

The coordinator belongs to the oldest of the nodes that have the type and its role, or
`coordinator_role` if that is set; then a node may coordinate a type that it does not host. Which
nodes have it they announce (`membership.known_types`); one that does not announces it by its answer
to the first registration.

A region turns to the next oldest node as soon as membership shows it, though the leaving
coordinator may still rule. The next coordinator keeps the messages of regions until it rules.

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
from shardbus.membership.member import Member
from shardbus.membership.singleton import messages
from shardbus.membership.singleton.singleton import Singleton, SingletonState
from shardbus.routing.refs import start_entity
from shardbus.sharding import events
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.messages import GetShardHome
from shardbus.shells.coordinator import CoordinatorShell
from shardbus.shells.leases import LeaseShell
from shardbus.shells.overrides import OverridesStore
from shardbus.shells.region import RegionShell
from shardbus.shells.reminded_shards import SelfActing
from shardbus.shells.type_members import TypeMembers
from shardbus.store.protocol import StateStore
from shardbus.transport.machine_timer import MachineTimer

LEASED = ("singleton", "both")

START_MS = 30_000


STATES = {
    SingletonState.YOUNGER.value: "another node has the coordinator",
    SingletonState.BECOMING_OLDEST.value: "this node is next to have the coordinator",
    SingletonState.OLDEST.value: "this node has the coordinator",
    SingletonState.WAS_OLDEST.value: "this node is to hand the coordinator over",
    SingletonState.HANDING_OVER.value: "this node hands the coordinator over",
    SingletonState.ENDED.value: "this node's part in the coordinator has ended",
}
"""The states of a singleton in the words of the log."""


class SingletonServices(Protocol):
    """The services that a singleton needs from its node."""

    me: NodeId
    store: StateStore

    @property
    def states(self) -> StateLoader: ...

    def send(self, to: NodeId, entity_type: str, message: object) -> None: ...
    def epoch_claimed(self, entity_type: str, epoch: int) -> None: ...
    def epoch_met(self, entity_type: str, epoch: int) -> None: ...
    def note(self, entity_type: str, note: events.Note) -> None: ...


class SingletonShell:
    """Runs the singleton of one entity type, and owns the type's coordinator.

    Args:
        region: the type's region, which registers with the coordinator.
        make: builds a fresh coordinator.
        node: the services of the node.
        removal_margin: `cluster.downing.down_removal_margin`, in seconds.
        waits: the waits of a hand-over, section `cluster.singleton`.
        self_acting: returns the types with these shards whose entities work without messages.
    """

    def __init__(
        self,
        region: RegionShell,
        make: Callable[[], Coordinator],
        node: SingletonServices,
        removal_margin: float,
        waits: SingletonSettings,
        self_acting: Callable[[], SelfActing] = SelfActing,
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
        self._members: TypeMembers | None = None
        """The members of the last view."""
        self._why_reported = ""
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
            self_acting=self_acting,
            check_lease=self._leases.check if self._leases is not None else lambda: None,
        )
        self._region, self._node = region, node
        self._machine_timer = MachineTimer(self.singleton.deadline, self._tick)
        self._closed = False

    def update(self, members: TypeMembers) -> None:
        """Apply a new view of membership. While the whole cluster stops, the coordinator keeps its
        members: no shard gets a new home."""
        region, view, may_have = self._region, members.view, self.singleton.may_have_type
        self._members = members
        epoch = view.epochs.get(region.name, 0)
        if members.stopping:
            self.coordinator.freeze()
        else:
            having = [m for m in view.members if may_have(m)]
            self.coordinator.update(members.of(region.settings.role, having), epoch)
        self._handle(messages.MembershipSeen(view, members.stopping))
        if epoch:
            region.router.handle(events.EpochSeen(epoch))
        oldest = self.oldest(region.coordinator_role) if members.registers else None
        node, why = oldest.node if oldest is not None else None, self._why_no_home()
        if node != region.coordinator or why != self._why_reported:
            region.coordinator, self._why_reported = node, why
            region.router.handle(events.CoordinatorAt(node, why))

    def oldest(self, role: str) -> Member | None:
        """Return the oldest working member with that role that may have the type."""
        if self._members is None:
            return None
        return self._members.view.oldest(role, self.singleton.may_have_type)

    def why_no_member(self, role: str) -> str:
        """Return why no working member with this role may have the type; empty if one may, or if
        every member has the role."""
        if not role or self._members is None or self.oldest(role) is not None:
            return ""
        if self._members.view.oldest(role) is None:
            return f"none is up with role {role!r}"
        return f"those with role {role!r} do not have this type: are they of an older version?"

    def _why_no_home(self) -> str:
        """Return why no shard of the type can have a home, empty if one can."""
        if why := self.why_no_member(self._region.settings.role):
            return f"no member hosts it: {why}"
        if why := self.why_no_member(self._region.coordinator_role):
            return f"no member coordinates it: {why}"
        return ""

    def type_missing(self, node: NodeId) -> None:
        """Leave out a node that does not have the type."""
        self._handle(messages.TypeMissing(node))
        if self._members is not None:
            self.update(self._members)

    def received(self, sender: NodeId, message: messages.Message) -> None:
        """Handle a message of another node's singleton."""
        self._handle(messages.HandOverReceived(sender, message))

    def on_membership_ended(self, *, gracefully: bool) -> None:
        """Handle the end of this node's membership."""
        self._handle(messages.MembershipEnded(gracefully))

    @property
    def ending(self) -> bool:
        """True if a coordinator here is about to end, and its successor may wait for it."""
        return self.singleton.ending

    @property
    def rules(self) -> bool:
        """True if this node has the seat of the coordinator, whether or not it has an epoch yet."""
        return self.singleton.state is SingletonState.OLDEST

    def may_rule_at(self, member: Member) -> bool:
        """True if the coordinator may rule at this member."""
        has_role = member.has_role(self._region.coordinator_role)
        return has_role and self.singleton.may_have_type(member)

    def close(self) -> None:
        """Stop at once. Views that come while the node ends begin no coordinator."""
        self._closed, self._epoch = True, None
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

    def epoch_met(self, entity_type: str, epoch: int) -> None:
        """Report the epoch in the store that has refused the coordinator here."""
        self._node.epoch_met(entity_type, epoch)

    def ended(self, entity_type: str) -> None:
        """Report that the coordinator here has ended, once its lease is released."""
        if self._leases is None:
            self._handle(messages.InstanceStopped())
        else:
            self._ended = True
            self._leases.drop(self._lease)

    def ask_homes(self, entity_type: str, shards: list[str]) -> list[str]:
        """Request the homes of these shards, as messages for them would. Returns the shards that
        the type's shard function does not give any more."""
        router = self._region.router
        existing = tuple(shard for shard in shards if router.has_shard(shard))
        router.handle(events.MessageReceived(self._node.me, GetShardHome(existing)))
        return [shard for shard in shards if shard not in existing]

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
        if not self._closed:
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
                    self.note(name, events.Note("succession", f"{STATES[after]}: {why}"))
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
