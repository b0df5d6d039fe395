"""Who is there for a coordinator: live members, registered regions and proxies, who may take
shards.

Three sources are kept apart. Membership says who lives, whom nothing new should be given, which
version of the application each runs, and whether the picture is unsettled. Registration says which
of them run a region of this type. The region itself says that it wants to be drained. A *candidate*
is live, a registered region, not unfit and not draining.

While nodes of several versions host, a rollout is under way: the old ones will go soon. Shards that
need a home get it among the candidates of the highest version, and nothing is rebalanced, so that
no shard is moved to where it cannot stay. A node of which nobody knows yet whether it hosts counts
as one that does.

A coordinator that takes over decides nothing before everybody alive has registered, or a grace is
over: short if the store remembers, long if it lost the table, for then what regions report is all
that is left, and a shard given away could be running elsewhere. Nor does the first
coordinator before `min_members` regions are there, so that not all shards land on the first one.

Source: S2.5, S2.34-S2.36; B.19, B.64, B.65; C.3, C.9; T.S20.
"""

from __future__ import annotations

from collections.abc import Collection

from shardbus.ids import NodeId
from shardbus.sharding.events import MembersChanged
from shardbus.sharding.messages import Register
from shardbus.sharding.versions import Order, order_of

LOSS_PATIENCE = 15.0
"""How many times longer the grace is when the store has lost the table."""

EARLY_MAX = 1000
"""Registrations kept for nodes that membership does not show yet."""

UNKNOWN = order_of("")
"""The place of a node whose version nobody says."""


class Registry:
    """The people of one coordinator."""

    __slots__ = (
        "_arriving", "_early", "_enough", "_live", "_min_members", "_mixed", "_orders", "_unfit",
        "_versions", "draining", "emptying", "grace_until", "known", "registered",
    )  # fmt: skip

    def __init__(self, min_members: int) -> None:
        self.known = False
        """Whether membership has spoken."""
        self.registered: dict[NodeId, bool] = {}
        """Node to whether it is a proxy."""
        self.draining: dict[NodeId, None] = {}
        self.emptying: tuple[NodeId, ...] = ()
        """Who shall host nothing, and stays."""
        self.grace_until = 0.0
        self._arriving = False
        self._live: dict[NodeId, None] = {}
        self._unfit: dict[NodeId, None] = {}
        self._versions: dict[NodeId, str] = {}
        self._orders: dict[NodeId, Order] = {}
        self._mixed = False
        self._early: dict[NodeId, Register] = {}
        self._min_members = min_members
        self._enough = False

    def is_live(self, node: NodeId) -> bool:
        """Whether membership shows the node."""
        return node in self._live

    def update(self, members: MembersChanged) -> None:
        """Take over what membership says; the caller buries the dead."""
        self.known = True
        self._live = dict.fromkeys(members.live)
        self._unfit = dict.fromkeys(members.unfit)
        self._versions = {n: members.versions[n] for n in self._live if n in members.versions}
        self._orders = {node: order_of(version) for node, version in self._versions.items()}
        self._mixed = len(set(self._orders.values())) > 1
        self.emptying = members.emptying
        self._arriving = members.unsettled
        for gathered in (self.registered, self.draining):
            for node in [node for node in gathered if node not in self._live]:
                del gathered[node]

    def register(self, node: NodeId, *, proxy: bool) -> bool:
        """The node runs a region or proxy. True if that is news."""
        news = self.registered.get(node) is not proxy
        self.registered[node] = proxy
        if proxy:
            self.draining.pop(node, None)
            self._early.pop(node, None)  # what it said before it drained
        return news

    def keep_early(self, register: Register) -> None:
        """Remember a registration that cannot be taken yet; the newest of each node counts."""
        if register.node in self._early or len(self._early) < EARLY_MAX:
            self._early[register.node] = register

    def take_early(self) -> list[Register]:
        """Those kept of nodes that are live now."""
        ready = [register for node, register in self._early.items() if node in self._live]
        for register in ready:
            del self._early[register.node]
        return ready

    def assume_enough(self) -> None:
        """The table has homes: enough regions were there once."""
        self._enough = True

    def candidates(self) -> list[NodeId]:
        """Who may have shards, in address order."""
        return sorted(
            node
            for node, proxy in self.registered.items()
            if not proxy and node not in self._unfit and node not in self.draining
        )

    def hosts(self, avoid: Collection[NodeId] = ()) -> tuple[NodeId, ...]:
        """Who may be given a shard that needs a home: of the candidates, in address order, those of
        the highest version. Who is to be avoided is given it only if nobody else can be."""
        able = self.candidates()
        able = [node for node in able if node not in avoid] or able
        if not self._mixed:
            return tuple(able)
        highest = max((self._order(node) for node in able), default=UNKNOWN)
        return tuple(node for node in able if self._order(node) == highest)

    def to_empty(self) -> tuple[NodeId, ...]:
        """Whose shards shall move away; nobody's while there is nowhere to go."""
        return self.emptying if self.emptying and self.candidates() else ()

    def expects(self, now: float) -> bool:
        """Whether somebody alive has still to say what it hosts, and is waited for."""
        missing = any(node not in self.registered for node in self._live)
        return not self.known or (now < self.grace_until and missing)

    def why_not(self, now: float) -> str:
        """Why no shard can get a home now; empty if one can."""
        if not self.known:
            return "membership is not known yet"
        if self.expects(now):
            return "regions are registering with a new coordinator"
        regions = sum(not proxy for proxy in self.registered.values())
        self._enough = self._enough or regions >= self._min_members
        if not self._enough:
            return f"{regions} of {self._min_members} regions have registered"
        return "" if self.candidates() else "no region may take shards"

    def unsettled(self) -> str:
        """Why this is no time to rebalance, though shards get homes; empty if it is one."""
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
