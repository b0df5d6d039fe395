"""The gossip state: one value that every node holds a copy of, and that any two nodes can merge.

Theory of operation. Every node must reach the same picture of the cluster without a central
server, over a network that loses, repeats and reorders messages. Each node therefore keeps a copy
of one immutable value, `Gossip`, and sends it to others. The receiver merges. The merge is
commutative, associative, idempotent and monotone, so the same changes give the same value in
whatever order the copies travel.

    part           content                                   merge of two copies
    members        each incarnation and its status           the later status, the lower up number
    reachability   which observer cannot reach which node    per observer the newer row
    tombstones     removed incarnations, and when            union, the earlier time of each; a
                                                             tombstone erases all other traces
                                                             but the next
    kept_down      incarnations that an operator has         union
                   downed: their processes do not rejoin
    epochs         highest coordinator epoch per type, and   the higher number
                   the epoch of decisions by lease
    meta           bytes of the application, by name         the later version of each
    clock          number of changes each node has made      the higher counter per node
    seen           the nodes that have this very version     see below

**Versions.** Each change increments its author's counter in `clock` and resets `seen` to the
author. The clock therefore names a version: equal clocks mean equal content (`received` keeps it
so when counters are erased). `seen` belongs to one version. A merge keeps the seen nodes of those
copies whose version is the merged one. If both copies have changed concurrently, the merged
version is new and no node has seen it yet.

**Convergence.** A node can prove from its own copy that every voter has this version. Only then
may the leader act. The voters are the members that are Up, Leaving, or stopping with the whole
cluster; while none of them has been Up, the Joining and WeaklyUp members vote too: a member that
leaves before it is Up must not decide for the others. No member may be unreachable, except those
already Down, Exiting or ready for shutdown: otherwise a crash during a graceful leave would block
convergence for ever.

**Tombstones** stop late gossip from resurrecting a removed node. The clocks of two machines
differ, so a tombstone travels as an age in seconds and is stored as a time of the local clock.
`flip_tombstones` converts between the two.

Not here: the choice of gossip partners (`gossip_targets`), the exchange itself (`exchange`), the
leader's actions (`leader`), the messages (`messages`).

Source: S1.9-S1.14, S1.40-S1.44, B.10-B.13, S3.12, S3.34.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from shardbus.errors import LocalProtocolError
from shardbus.ids import NodeId
from shardbus.membership.member import STOPPING, WORKING, Member, Status
from shardbus.membership.reachability import Flag, Reachability
from shardbus.membership.vector_clock import Order, VectorClock

VOTING = (*WORKING, Status.LEAVING)
"""A member in one of these statuses must have seen a version before the leader may act on it."""
STARTING = (Status.JOINING, Status.WEAKLY_UP)
"""Members in these statuses vote while no member in `VOTING` has been Up."""
ON_THE_WAY_OUT = (Status.DOWN, Status.EXITING, Status.READY_FOR_SHUTDOWN)
"""An unreachable member in one of these statuses does not block convergence, and has no vote."""


EPOCHS_MAX = 4000
"""Names in `epochs`, former entity types included: none is ever forgotten. The writing node checks
it. A state with some more is valid, because concurrent writers may exceed it."""
META_MAX = 64
META_NAME_MAX = 128
META_BYTES_MAX = 4096
"""Bounds of `meta`: the number of names, the characters of a name, the bytes of a value. Every node
carries all of it in every state. The writing node checks the number of names (`commands`). A merge
keeps every name, as it must, so concurrent writers may exceed the number together."""


VOTERS_META = "$voters"
"""The name in `meta` under which the leader writes who votes about a split (`downing.electorate`).
The application cannot write it."""


class Meta(msgspec.Struct, frozen=True, order=True):
    """Bytes of the application under one name. The higher version wins a merge; of equal versions,
    the greater bytes win."""

    version: int
    data: bytes


class Gossip(msgspec.Struct, frozen=True):
    """One copy of the cluster's state. Immutable. `members` is in address order."""

    members: Mapping[NodeId, Member] = msgspec.field(default_factory=dict)
    seen: frozenset[NodeId] = frozenset()
    reachability: Reachability = msgspec.field(default_factory=Reachability)
    clock: VectorClock = msgspec.field(default_factory=VectorClock)
    tombstones: Mapping[NodeId, float] = msgspec.field(default_factory=dict)
    epochs: Mapping[str, int] = msgspec.field(default_factory=dict)
    meta: Mapping[str, Meta] = msgspec.field(default_factory=dict)
    kept_down: frozenset[NodeId] = frozenset()

    # -- changes: each bumps the author's counter ------------------------------------------------

    def with_members(self, by: NodeId, *members: Member) -> Gossip:
        """Add these members, or give them a later status, as a change by node `by`."""
        return self._changed(by, members={**self.members, **{m.node: m for m in members}})

    def with_kept_down(self, by: NodeId, node: NodeId) -> Gossip:
        """Record that an operator has downed this member. Return the same object if that is already
        recorded."""
        if node in self.kept_down:
            return self
        return self._changed(by, kept_down=self.kept_down | {node})

    def with_flag(self, observer: NodeId, subject: NodeId, flag: Flag) -> Gossip:
        """Record the observer's flag for the subject. Return the same object if that is already
        recorded."""
        reachability = self.reachability.marked(observer, subject, flag)
        if reachability is self.reachability:
            return self
        return self._changed(observer, reachability=reachability)

    def renewed(self, by: NodeId) -> Gossip:
        """Return the same content as a new version by `by`: which nodes get it shows which nodes
        still communicate."""
        return self._changed(by)

    def with_epoch(self, by: NodeId, entity_type: str, epoch: int) -> Gossip:
        """Record one epoch; as `with_epochs`."""
        return self.with_epochs(by, {entity_type: epoch})

    def with_epochs(self, by: NodeId, epochs: Mapping[str, int]) -> Gossip:
        """Record coordinator epochs that `by` has seen, by entity type. Return the same object if
        none is higher."""
        before = self.epochs
        higher = {name: epoch for name, epoch in epochs.items() if epoch > before.get(name, 0)}
        return self._changed(by, epochs={**before, **higher}) if higher else self

    def with_meta(self, by: NodeId, name: str, data: bytes) -> Gossip:
        """Write these bytes under that name. Return the same object if the bytes are already
        there."""
        before = self.meta.get(name, Meta(0, b""))
        if before.data == data:
            return self
        return self._changed(by, meta={**self.meta, name: Meta(before.version + 1, data)})

    def without_members(self, by: NodeId, nodes: tuple[NodeId, ...], now: float) -> Gossip:
        """Remove these members for good, and leave a tombstone for each.

        Raises:
            LocalProtocolError: one of them is neither Down nor Exiting, or is `by` itself.
        """
        for node in nodes:
            if node == by:
                raise LocalProtocolError(f"{node} cannot remove itself")
            self.members[node].moved(Status.REMOVED)
        return _without_removed(
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
        kept_down: frozenset[NodeId] | None = None,
    ) -> Gossip:
        """Return the next version: these parts replaced, the counter of `by` incremented, seen by
        `by` alone."""
        return Gossip(
            self.members if members is None else dict(sorted(members.items())),
            frozenset((by,)),
            self.reachability if reachability is None else reachability,
            self.clock.bumped(by),
            self.tombstones if tombstones is None else tombstones,
            self.epochs if epochs is None else epochs,
            self.meta if meta is None else meta,
            self.kept_down if kept_down is None else kept_down,
        )

    # -- not a new version -----------------------------------------------------------------------

    def with_seen(self, *nodes: NodeId) -> Gossip:
        """Record that these nodes have this version too. This is no change of the version."""
        if self.seen.issuperset(nodes):
            return self
        return replace(self, seen=self.seen.union(nodes))

    def pruned(self, before: float) -> Gossip:
        """Drop the tombstones set before that local time. Gossip older than that no longer
        arrives."""
        if all(at >= before for at in self.tombstones.values()):
            return self
        kept = {node: at for node, at in self.tombstones.items() if at >= before}
        kept_down = self.kept_down & (self.members.keys() | kept.keys())
        return replace(self, tombstones=kept, kept_down=kept_down)

    def flip_tombstones(self, now: float) -> Gossip:
        """Convert times of tombstones into ages, or ages into times. Call it before encoding and
        after decoding."""
        if not self.tombstones:
            return self
        return replace(self, tombstones={n: now - at for n, at in self.tombstones.items()})

    # -- merging ---------------------------------------------------------------------------------

    def merge(self, other: Gossip) -> Gossip:
        """Return the least copy that contains both."""
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
        merged = _without_removed(
            Gossip(
                dict(sorted(members.items())),
                frozenset(),
                self.reachability.merge(other.reachability),
                self.clock.merge(other.clock),
                tombstones,
                epochs,
                meta,
                self.kept_down | other.kept_down,
            )
        )
        seen = [copy.seen for copy in (self, other) if copy.same_version(merged)]
        return replace(merged, seen=frozenset().union(*seen))

    def received(self, other: Gossip, by: NodeId) -> Gossip:
        """Merge a received copy, as node `by`, and mark the result as seen by it.

        Removing a node erases its counter. A change in only one of the two copies could then leave
        no trace in the clock, and one clock would name two contents. In that case the merged copy
        becomes a new version by `by`.
        """
        merged = self.merge(other)
        if by not in merged.members:
            return merged
        removed_there = any(node in self.clock.counters for node in other.tombstones)
        removed_here = any(node in other.clock.counters for node in self.tombstones)
        if (removed_there or removed_here) and not any(
            merged.same_version(copy) and merged.same_content(copy) for copy in (other, self)
        ):
            merged = merged.with_members(by)
        return merged.with_seen(by)

    def same_content(self, other: Gossip) -> bool:
        """True if members, reachability, epochs, meta and `kept_down` are equal. Versions may
        differ."""
        return (
            self.members == other.members
            and self.reachability == other.reachability
            and self.epochs == other.epochs
            and self.meta == other.meta
            and self.kept_down == other.kept_down
        )

    def same_version(self, other: Gossip) -> bool:
        """True if the two copies name the same version, and so have the same content. `seen` may
        differ."""
        return (
            self.clock.compare(other.clock) is Order.SAME
            and self.tombstones.keys() == other.tombstones.keys()
        )

    # -- queries ---------------------------------------------------------------------------------

    def unreachable(self) -> dict[NodeId, Flag]:
        """Return each member that is not reachable, with the worst flag on it. Flags of
        `ignored_observers` do not count."""
        if self.reachability.all_reachable():
            return {}
        return self.reachability.unreachable(ignore=self.ignored_observers())

    def records(self) -> list[tuple[NodeId, NodeId, Flag]]:
        """Return each (observer, subject, flag) that is not reachable. Flags of `ignored_observers`
        do not count."""
        if self.reachability.all_reachable():
            return []
        return self.reachability.records(ignore=self.ignored_observers())

    def ignored_observers(self) -> dict[NodeId, Member]:
        """Return the observers whose flags do not count: Down members, and Exiting members that
        another node cannot reach. An Exiting process that has ended before its removal takes none
        of its flags back, and these would block its own removal."""
        down = self.down()
        exiting = {n: m for n, m in self.members.items() if m.status is Status.EXITING}
        if not exiting:
            return down
        others = self.reachability.unreachable(ignore=down | exiting)
        return down | {n: m for n, m in exiting.items() if n in others}

    def down(self) -> dict[NodeId, Member]:
        """Return the members that are Down."""
        return {n: m for n, m in self.members.items() if m.status is Status.DOWN}

    def waiting_for(self) -> list[NodeId]:
        """Return the nodes that prevent convergence, in address order. Empty means converged."""
        verdicts = self.unreachable()
        excused = {n for n in verdicts if self.members[n].status in ON_THE_WAY_OUT}
        voters = [n for n, m in self.members.items() if m.status in VOTING and n not in excused]
        if not any(self.members[n].up_number for n in voters):
            voters += [n for n, m in self.members.items() if m.status in STARTING]
        unseen = {n for n in voters if n not in self.seen}
        return sorted(unseen | (verdicts.keys() - excused))

    @property
    def stopping(self) -> bool:
        """True while the whole cluster stops."""
        return any(m.status in STOPPING for m in self.members.values())

    def converged(self) -> bool:
        """True if every voter has this version, and no other member is unreachable."""
        return not self.waiting_for()


def _without_removed(gossip: Gossip) -> Gossip:
    """Erase every trace of nodes that have a tombstone."""
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


def broken_rules(gossip: Gossip, me: NodeId, watched: Iterable[NodeId]) -> list[str]:
    """Return the invariants that this copy breaks, in words. For tests and simulations only: they
    audit each machine after each step."""
    members = gossip.members
    traces = [*gossip.clock.counters, *gossip.seen, *gossip.reachability.rows]
    records = gossip.reachability.records()
    traces += [subject for _, subject, _ in records]
    rules = {
        "members are in address order": list(members) == sorted(members),
        "no member has a tombstone": not any(node in gossip.tombstones for node in members),
        "only members leave traces": all(node in members for node in traces),
        "no node flags itself": all(observer != subject for observer, subject, _ in records),
        "a member that was up has a number": all(
            m.up_number for m in members.values() if m.status in WORKING
        ),
        "a member has seen its own state": me not in members or me in gossip.seen,
        "only what is known is kept down": all(
            node in members or node in gossip.tombstones for node in gossip.kept_down
        ),
        "only members are watched": all(node in members for node in watched),
    }
    return [rule for rule, holds in rules.items() if not holds]
