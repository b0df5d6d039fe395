"""The nodes of a coordinator: live members, registered regions and proxies, candidates.

Three sources are kept apart. Membership reports which nodes live, which of them take no new shards,
which version of the application each runs, and whether a member is unreachable or joining.
Registration shows which nodes run a region of this type. A region itself asks to be shut down. A
*candidate* is live, a registered region, not unfit and not shutting down.

While hosting nodes run several versions, a rollout is under way: the old ones will go soon. Shards
that need a home get it among the candidates of the highest version, and nothing is rebalanced, so
that no shard moves to a node that is about to go. A live node that has not registered yet counts as
one that hosts.

A new coordinator allocates nothing before every live node has registered, or a grace is over. The
grace is `waiting_for_state_timeout`; it is `LOSS_PATIENCE` times longer if the store has lost the
table, for then the reports of regions are all that is left, and a shard given away could be running
elsewhere. Nor does the first coordinator allocate before `sharding.min_members` regions have
registered, so that not all shards land on the first one; nor before as many as the cluster's own
minimum requires (`cluster.min_members`, or the minimum of the type's role), or as many as there are
members that may host the type, if these are fewer: others may not have it.

A registration waits until membership shows its node, and while a write is under way, for it may
change the pending writes. Then it is compared with the table. A shard that both have counts as
started. A shard that only the region hosts is adopted, or renewed: if its fence is below the
shard's last one, it gets a new fence and restarts where it is. A shard that the region should host
gets HostShard once more. Of two homes of one shard, the one with the lower fence gets HandOff. A
region with another layout is refused, and the reason names both.

Source: S0.6, S2.5, S2.23, S2.24, S2.34-S2.36, S2.67, S2.75, B.19, B.64, B.65, N.1;
docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from shardbus.config.settings import ClusterSettings
from shardbus.ids import NodeId
from shardbus.quantities import counted
from shardbus.sharding.coordinator.direct_moves import DirectMoves
from shardbus.sharding.coordinator.ledger import Ledger
from shardbus.sharding.coordinator.moves import Moves
from shardbus.sharding.coordinator.outbox import HomeMessage, Outbox
from shardbus.sharding.coordinator.starts import PendingStarts
from shardbus.sharding.events import CoordinatorEffect, MembersChanged, Note, Send
from shardbus.sharding.messages import NO_REGION, Home, Register, RegisterRefused
from shardbus.sharding.versions import Order, order_of

LOSS_PATIENCE = 15.0
"""How many times longer the grace is when the store has lost the table."""

EARLY_MAX = 1000
"""Registrations kept for nodes that membership does not show yet."""

UNKNOWN = order_of("")
"""The order of a node whose version is not known."""


def cluster_minimum(settings: ClusterSettings, role: str) -> int:
    """Return the minimum of the role that hosts a type, or of the cluster if every member does."""
    return settings.role_min_members.get(role, 1) if role else settings.min_members


@dataclass(slots=True, eq=False, repr=False)
class Registry:
    """The nodes of one coordinator."""

    _min_members: int
    _cluster_minimum: int = 0
    membership_known: bool = False
    """Whether membership has reported."""
    registered: dict[NodeId, bool] = field(default_factory=dict)
    """Node to whether it is a proxy."""
    shutting_down: dict[NodeId, None] = field(default_factory=dict)
    """Regions that asked to be shut down."""
    draining: tuple[NodeId, ...] = ()
    """Nodes that must give their shards away and stay members."""
    grace_until: float = 0.0
    _arriving: bool = False
    _live: dict[NodeId, None] = field(default_factory=dict)
    _unfit: dict[NodeId, None] = field(default_factory=dict)
    _versions: dict[NodeId, str] = field(default_factory=dict)
    _orders: dict[NodeId, Order] = field(default_factory=dict)
    _mixed: bool = False
    _early: dict[NodeId, Register] = field(default_factory=dict)
    _enough: bool = False

    def is_live(self, node: NodeId) -> bool:
        """True if membership shows the node."""
        return node in self._live

    def is_proxy(self, node: NodeId) -> bool:
        """True if the node has registered, and hosts nothing."""
        return self.registered.get(node, False)

    def update(self, members: MembersChanged) -> None:
        """Replace membership's report; the caller ends all that depends on dead nodes."""
        self.membership_known = True
        self._live = dict.fromkeys(members.live)
        self._unfit = dict.fromkeys(members.unfit)
        self._versions = {n: members.versions[n] for n in self._live if n in members.versions}
        self._orders = {node: order_of(version) for node, version in self._versions.items()}
        self._mixed = len(set(self._orders.values())) > 1
        self.draining = members.draining
        self._arriving = members.unsettled
        for gathered in (self.registered, self.shutting_down):
            for node in [node for node in gathered if node not in self._live]:
                del gathered[node]

    def register(self, node: NodeId, *, proxy: bool) -> bool:
        """Record that the node runs a region or a proxy. True if that is new."""
        new = self.registered.get(node) is not proxy
        self.registered[node] = proxy
        if proxy:
            self.shutting_down.pop(node, None)
            self._early.pop(node, None)  # it is from before the shutdown
        return new

    def keep_early(self, register: Register) -> None:
        """Keep a registration that cannot be handled yet; the newest of each node counts."""
        if register.node in self._early or len(self._early) < EARLY_MAX:
            self._early[register.node] = register

    def take_early(self) -> list[Register]:
        """Return those kept of nodes that are live now, once."""
        ready = [register for node, register in self._early.items() if node in self._live]
        for register in ready:
            del self._early[register.node]
        return ready

    def assume_enough(self) -> None:
        """Record that enough regions have registered before: the table has homes."""
        self._enough = True

    def candidates(self) -> list[NodeId]:
        """Return the nodes that may host shards, in address order."""
        return sorted(
            node
            for node, proxy in self.registered.items()
            if not proxy and node not in self._unfit and node not in self.shutting_down
        )

    def hosts(self, avoid: Collection[NodeId] = ()) -> tuple[NodeId, ...]:
        """Return the candidates for a shard that needs a home, in address order: the nodes of the
        highest version. Nodes to `avoid` are among them only if no other candidate is left."""
        able = self.candidates()
        able = [node for node in able if node not in avoid] or able
        if not self._mixed:
            return tuple(able)
        highest = max((self._order(node) for node in able), default=UNKNOWN)
        return tuple(node for node in able if self._order(node) == highest)

    def to_drain(self) -> tuple[NodeId, ...]:
        """Return the nodes whose shards must move away; none while there is no candidate."""
        return self.draining if self.draining and self.candidates() else ()

    def is_incomplete(self, now: float) -> bool:
        """True if a live node has not reported its shards and the coordinator waits for it."""
        missing = any(node not in self.registered for node in self._live)
        return not self.membership_known or (now < self.grace_until and missing)

    def why_not(self, now: float) -> str:
        """Return why no shard can get a home now; empty if one can."""
        if not self.membership_known:
            return "membership is not known yet"
        if self.is_incomplete(now):
            return "regions are registering with a new coordinator"
        if not self._enough and (why := self._too_few()):
            return why
        self._enough = True
        return "" if self.candidates() else NO_REGION

    def _too_few(self) -> str:
        """Return how many regions have registered and must; empty if enough have."""
        regions = sum(not proxy for proxy in self.registered.values())
        able = sum(not self.registered.get(node, False) for node in self._versions)
        least = max(self._min_members, min(self._cluster_minimum, able))
        if regions >= least:
            return ""
        if self.registered and not regions:
            return NO_REGION  # all of them have moved their shards away, or are proxies
        return f"{regions} of {counted(least, 'region')} registered"

    def unsettled(self) -> str:
        """Return why nothing may be rebalanced now, though shards get homes; empty if it may."""
        if self._arriving:
            return "a member is unreachable or joining"
        if not self._mixed:
            return ""
        hosting = {
            order: node for node, order in self._orders.items() if not self.registered.get(node)
        }
        if len(hosting) < 2:
            return ""
        shown = ", ".join(self._versions[hosting[order]] for order in sorted(hosting))
        return f"a rollout is under way: there are versions {shown}"

    def _order(self, node: NodeId) -> Order:
        return self._orders.get(node, UNKNOWN)


@dataclass(slots=True, eq=False, repr=False)
class Registrar:
    """Handles the registrations that a registry keeps. `settled` returns the home of a shard that
    neither moves nor is being written."""

    _layout: str
    _registry: Registry
    _ledger: Ledger
    _moves: Moves
    _direct: DirectMoves
    _starts: PendingStarts
    _outbox: Outbox
    _settled: Callable[[str], Home | None]
    notes: list[CoordinatorEffect] = field(default_factory=list)
    """Effects that the outbox does not carry."""

    def register_early(self, epoch: int, now: float) -> bool:
        """Handle every registration that can be handled now. True if one of them is new, or from a
        region that was a proxy or the other way round."""
        if self._ledger.writing is not None or not self._registry.membership_known:
            return False
        new = False
        for register in self._registry.take_early():
            new = self._register(register, epoch, now) or new
        return new

    def _forget(self, shard: str) -> None:
        """Wait no longer for the shard to start or to move."""
        self._starts.forget(shard)
        self._moves.forget(shard)
        self._direct.forget(shard)

    def _register(self, register: Register, epoch: int, now: float) -> bool:
        node = register.node
        if register.layout != self._layout:
            reason = f"the table has layout {self._layout}, {node} has {register.layout}"
            self.notes += [
                Send(node, RegisterRefused(epoch, reason)),
                Note("register_refused", reason),
            ]
            return False
        new = self._registry.register(node, proxy=register.proxy)
        if register.proxy:
            for shard in self._ledger.table.shards_at(node):
                self._forget(shard)
        self._ledger.register(node, now, proxy=register.proxy)
        if not register.proxy:
            self._reconcile(node, register.hosted, now)
        moving, direct = self._moves.handoffs, self._direct
        homes = [
            home
            for home in self._ledger.homes()
            if home.shard not in moving
            and (home.shard not in direct or direct.home_of(home.shard) == home)
        ]
        self._outbox.add(node, HomeMessage.REGISTER_ACK, homes)
        direct.on_registered(node, self._registry.registered)
        return new

    def _reconcile(self, node: NodeId, hosted: tuple[Home, ...], now: float) -> None:
        """Compare the region's shards with the table, and settle each difference."""
        findings = self._ledger.reconcile(node, hosted)
        for home in findings.adopted:
            self.notes.append(Note("adopted", f"shard {home.shard} at {node}"))
            if not self._direct.on_reported(home):
                self._forget(home.shard)
        for home in findings.renewed:  # HostShard restarts it, once this is stored
            self.notes.append(Note("renewed", f"shard {home.shard} at {node}"))
            self._forget(home.shard)
        for home in findings.confirmed:
            self._starts.forget(home.shard)
        for home in findings.losers:
            self._outbox.add(home.node, HomeMessage.HANDOFF, (home,))
        for home in findings.missing:
            if self._settled(home.shard) == home:
                self._starts.host(home, now)
