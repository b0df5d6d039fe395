"""The state that nodes gossip: one value that any two nodes can merge.

The problem: every node must come to the same picture of the cluster without anybody in charge, over
a network that loses, repeats and reorders. The answer is a value with a merge that is commutative,
associative, idempotent and monotone. Whatever order copies travel in, the same changes give the
same value.

    part           what it says                              how two copies merge
    members        each incarnation and its status           the later status, the lower up number
    reachability   who cannot reach whom                     per observer the newer row
    tombstones     incarnations that were removed, and when  union, the earlier time of each; they
                                                             erase all other traces
    epochs         highest coordinator epoch per type, and   the higher
                   that of the decisions by lease
    meta           bytes of the application, by name         the later version of each
    clock          how many changes each node has made       the higher counter per node
    seen           who has this very version                 see below

Each change bumps its author's counter in the clock and leaves only the author in `seen`. So the
clock names a version: equal clocks mean equal content (`received` sees to that). `seen` belongs to
one version: a merge keeps the seen nodes of those copies whose version is the merged one. Copies
that changed concurrently merge to a version that nobody has seen yet.

**Convergence**: a node can prove from its copy that everybody who matters has this version. Only
then may the leader act. Those who matter are the members that are Up, Leaving or stopping with the
whole cluster (while there is none, the Joining and WeaklyUp ones). Nobody may be unreachable,
except members already Down, Exiting or ready for shutdown: otherwise a crash while leaving would
block the cluster for ever.

**Tombstones** keep late gossip from resurrecting a removed node. Clocks of different machines say
different things, so a tombstone travels as an age in seconds and is kept as a time of the local
clock; `flipped` turns one into the other.

Not here: who talks to whom (`targets`), what the leader does (`leader`), messages (`messages`).

Source: S1.9-S1.14, S1.40-S1.44, B.10-B.13, S3.12, S3.34; T.U1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardbus.errors import LocalProtocolError
from shardbus.ids import NodeId
from shardbus.membership.member import STOPPING, WORKING, Member, Status
from shardbus.membership.reachability import Flag, Reachability
from shardbus.membership.vector_clock import Order, VectorClock

VOTING = (*WORKING, Status.LEAVING)
"""These must have seen a version before the leader may act on it."""
STARTING = (Status.JOINING, Status.WEAKLY_UP)
"""These take their place while nobody votes."""
ON_THE_WAY_OUT = (Status.DOWN, Status.EXITING, Status.READY_FOR_SHUTDOWN)
"""Unreachable members in these do not block convergence, and have no vote."""


META_MAX = 64
META_NAME_MAX = 128
META_BYTES_MAX = 4096
"""So many names are taken, of so many bytes each: every node carries all of it in every state. The
node that writes looks at the number of names (`orders`); a merge keeps every name, as it must, so
nodes that write at once may go beyond it together."""


@dataclass(frozen=True, slots=True, order=True)
class Meta:
    """Bytes of the application under some name. Of two, the greater is the later; if two nodes
    wrote the same version, the greater bytes win."""

    version: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Gossip:
    """One copy of the cluster's state. Immutable; `members` is in address order."""

    members: Mapping[NodeId, Member] = field(default_factory=dict)
    seen: frozenset[NodeId] = frozenset()
    reachability: Reachability = field(default_factory=Reachability)
    clock: VectorClock = field(default_factory=VectorClock)
    tombstones: Mapping[NodeId, float] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)
    meta: Mapping[str, Meta] = field(default_factory=dict)

    # -- changes: each bumps the author's counter ------------------------------------------------

    def with_members(self, by: NodeId, *members: Member) -> Gossip:
        """`by` adds these members or gives them a later status."""
        return self._changed(by, members={**self.members, **{m.node: m for m in members}})

    def with_flag(self, observer: NodeId, subject: NodeId, flag: Flag) -> Gossip:
        """The observer says so of the subject. The same object if it had said so before."""
        reachability = self.reachability.marked(observer, subject, flag)
        if reachability is self.reachability:
            return self
        return self._changed(observer, reachability=reachability)

    def with_epoch(self, by: NodeId, entity_type: str, epoch: int) -> Gossip:
        """`by` has seen a coordinator of this epoch. The same object if a higher one is known."""
        if epoch <= self.epochs.get(entity_type, 0):
            return self
        return self._changed(by, epochs={**self.epochs, entity_type: epoch})

    def with_meta(self, by: NodeId, name: str, data: bytes) -> Gossip:
        """`by` writes these bytes under that name. The same object if they stand there already."""
        before = self.meta.get(name, Meta(0, b""))
        if before.data == data:
            return self
        return self._changed(by, meta={**self.meta, name: Meta(before.version + 1, data)})

    def without_members(self, by: NodeId, nodes: tuple[NodeId, ...], now: float) -> Gossip:
        """`by` removes these members for good.

        Raises:
            LocalProtocolError: one of them is neither Down nor Exiting, or is `by` itself.
        """
        for node in nodes:
            if node == by:
                raise LocalProtocolError(f"{node} cannot remove itself")
            self.members[node].moved(Status.REMOVED)
        return _buried(
            self._changed(by, tombstones={**self.tombstones, **dict.fromkeys(nodes, now)})
        )

    def _changed(
        self,
        by: NodeId,
        *,
        members: Mapping[NodeId, Member] | None = None,
        reachability: Reachability | None = None,
        tombstones: Mapping[NodeId, float] | None = None,
        epochs: Mapping[str, int] | None = None,
        meta: Mapping[str, Meta] | None = None,
    ) -> Gossip:
        return Gossip(
            self.members if members is None else dict(sorted(members.items())),
            frozenset((by,)),
            self.reachability if reachability is None else reachability,
            self.clock.bumped(by),
            self.tombstones if tombstones is None else tombstones,
            self.epochs if epochs is None else epochs,
            self.meta if meta is None else meta,
        )

    # -- what is no change -----------------------------------------------------------------------

    def with_seen(self, *nodes: NodeId) -> Gossip:
        """These nodes have this version too."""
        if self.seen.issuperset(nodes):
            return self
        return replace(self, seen=self.seen.union(nodes))

    def pruned(self, before: float) -> Gossip:
        """Without the tombstones set before that local time: no late gossip can be that late."""
        if all(at >= before for at in self.tombstones.values()):
            return self
        kept = {node: at for node, at in self.tombstones.items() if at >= before}
        return replace(self, tombstones=kept)

    def flipped(self, now: float) -> Gossip:
        """Times of tombstones turned into ages, or ages into times: the way to the wire, and the
        way back."""
        if not self.tombstones:
            return self
        return replace(self, tombstones={n: now - at for n, at in self.tombstones.items()})

    # -- merging ---------------------------------------------------------------------------------

    def merge(self, other: Gossip) -> Gossip:
        """The least copy that contains both."""
        tombstones = dict(self.tombstones)
        for node, at in other.tombstones.items():
            tombstones[node] = min(at, tombstones.get(node, at))
        members = dict(self.members)
        for node, member in other.members.items():
            members[node] = members[node].merge(member) if node in members else member
        epochs = dict(self.epochs)
        for entity_type, epoch in other.epochs.items():
            epochs[entity_type] = max(epoch, epochs.get(entity_type, 0))
        meta = dict(self.meta)
        for name, written in other.meta.items():
            meta[name] = max(written, meta.get(name, written))
        merged = _buried(
            Gossip(
                dict(sorted(members.items())),
                frozenset(),
                self.reachability.merge(other.reachability),
                self.clock.merge(other.clock),
                tombstones,
                epochs,
                meta,
            )
        )
        seen = [copy.seen for copy in (self, other) if copy.same_version(merged)]
        return replace(merged, seen=frozenset().union(*seen))

    def received(self, other: Gossip, by: NodeId) -> Gossip:
        """The merge as node `by` makes it, and has seen. Burying a node takes its counter away, so
        that a change which only one of the two knew would leave no trace in the clock: then the
        merged copy becomes a version of `by`'s own, which names no other content elsewhere."""
        merged = self.merge(other)
        if by not in merged.members:
            return merged
        buried = any(node in self.clock.counters for node in other.tombstones)
        buried_there = any(node in other.clock.counters for node in self.tombstones)
        if (buried or buried_there) and not any(
            merged.same_version(copy) and merged.same_content(copy) for copy in (other, self)
        ):
            merged = merged.with_members(by)
        return merged.with_seen(by)

    def same_content(self, other: Gossip) -> bool:
        """Whether the two say the same, apart from their versions."""
        return (
            self.members == other.members
            and self.reachability == other.reachability
            and self.epochs == other.epochs
            and self.meta == other.meta
        )

    def same_version(self, other: Gossip) -> bool:
        """True if the two have the same content (`seen` may differ)."""
        return (
            self.clock.compare(other.clock) is Order.SAME
            and self.tombstones.keys() == other.tombstones.keys()
        )

    # -- questions -------------------------------------------------------------------------------

    def verdicts(self) -> dict[NodeId, Flag]:
        """Every member that is not reachable, with the worst word on it. The word of the unheeded
        does not count."""
        if self.reachability.all_reachable():
            return {}
        return self.reachability.verdicts(ignore=self.unheeded())

    def records(self) -> list[tuple[NodeId, NodeId, Flag]]:
        """Every (observer, subject, flag) that is not reachable. The word of the unheeded does not
        count."""
        if self.reachability.all_reachable():
            return []
        return self.reachability.records(ignore=self.unheeded())

    def unheeded(self) -> dict[NodeId, Member]:
        """Observers that are Down, or that are Exiting and somebody else cannot reach: one that has
        ended before it was removed takes nothing back, and would stand in the way of its own
        removal."""
        down = self.down()
        exiting = {n: m for n, m in self.members.items() if m.status is Status.EXITING}
        if not exiting:
            return down
        others = self.reachability.verdicts(ignore=down | exiting)
        return down | {n: m for n, m in exiting.items() if n in others}

    def down(self) -> dict[NodeId, Member]:
        """The members that are Down."""
        return {n: m for n, m in self.members.items() if m.status is Status.DOWN}

    def waiting_for(self) -> list[NodeId]:
        """Who stands between this version and convergence, in address order: empty means
        converged."""
        verdicts = self.verdicts()
        excused = {n for n in verdicts if self.members[n].status in ON_THE_WAY_OUT}
        voters = [
            n for n, m in self.members.items() if m.status in VOTING and n not in excused
        ] or [n for n, m in self.members.items() if m.status in STARTING]
        unseen = {n for n in voters if n not in self.seen}
        return sorted(unseen | (verdicts.keys() - excused))

    @property
    def stopping(self) -> bool:
        """True while the whole cluster stops."""
        return any(m.status in STOPPING for m in self.members.values())

    def converged(self) -> bool:
        """True if everybody who matters has this version."""
        return not self.waiting_for()


def _buried(gossip: Gossip) -> Gossip:
    """The copy with every trace of nodes that have a tombstone erased."""
    dead = gossip.tombstones
    if not dead:
        return gossip
    return replace(
        gossip,
        members={n: m for n, m in gossip.members.items() if n not in dead},
        seen=frozenset(n for n in gossip.seen if n not in dead),
        reachability=gossip.reachability.without(dead),
        clock=gossip.clock.without(dead),
    )
