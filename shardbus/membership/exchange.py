"""The gossip exchange: periodic rounds, answers, and immediate pushes of changes.

A message names a version. The receiver compares clocks:

    sender's version is older     send the state
    sender's version is newer     on a status, send a status, which requests the state;
                                  on a state, merge it
    neither contains the other    merge, and send the merged state
    equal                         record that the sender has seen it; the side that has more seen
                                  nodes sends them

**Rounds.** Once a second (`gossip_interval`) a node picks one partner. It sends a status if the
partner has seen the version, else the full state. While fewer than half of the members have seen
the version, rounds are three times as frequent.

**Pushes.** Each new version is sent at once to `news_fanout` nodes that have not seen it, at most
once per pause. Nodes that others flag come last: a node that hears no other flags them all. The
pause grows with the cluster. A node without any answer goes on to send its state: it may be deaf
only, and its reports must reach the others. A node that receives a new version reports it to the
leader with the small message GossipSeen. A leader that finds the cluster converged pushes that to a
few nodes.

**One version, one content.** Removing a node erases its counter from the clock, and with it the
trace of changes that only some nodes had received from it. Two copies could then have equal clocks
and different contents, and never detect it. So a node whose merge erases the traces of a node
removed elsewhere makes the merged state a new version, unless it equals one of the two. A node that
finds itself removed cannot make a version, since its own counter is gone. It sends nothing more.

**Dropped**, and counted as MessageDropped: states that waited in this process for longer than
`gossip_time_to_live`, that are addressed to another incarnation, that come from a non-member, or
that do not contain this node. A state that declares this node Down or removed is never too old: a
process that was paused must notice that it is out.

Source: S1.34-S1.46, S3.24-S3.31, B.6, B.13.
"""

from __future__ import annotations

import random
from collections.abc import Container, Mapping

from shardbus.config.settings import ClusterSettings
from shardbus.ids import Address, NodeId
from shardbus.membership.events import Effect, MessageDropped, Publish
from shardbus.membership.gossip import Gossip
from shardbus.membership.gossip_targets import (
    breaker_targets,
    different_view_probability,
    is_speedy,
    news_targets,
    round_target,
)
from shardbus.membership.member import Member, Status
from shardbus.membership.messages import GossipSeen, GossipState, GossipStatus
from shardbus.membership.reachability import Flag
from shardbus.membership.vector_clock import Order, VectorClock

PAUSE_BASE = 0.005
PAUSE_PER_MEMBER = 0.0005
"""Seconds between two pushes: the base, and the addition for each member."""
SPEED_UP = 3
"""Factor of the round's frequency while fewer than half of the members have seen the version."""
ANSWERS = (Flag.REACHABLE, Flag.QUARANTINED)
"""A node gossips with members on which its own flag is one of these."""


class GossipExchange:
    """One node's copy of the state, and its exchange of it with others."""

    def __init__(self, me: NodeId, settings: ClusterSettings, rng: random.Random) -> None:
        self.me = me
        self.settings = settings
        self.rng = rng
        self.gossip = Gossip()
        self._round_at: float | None = None
        self._next_news_at = 0.0
        self._announced: Gossip = self.gossip
        self._convergence_announced = False
        self._updated_by: NodeId | None = None
        self._indexed: Mapping[NodeId, Member] = {}
        self._by_uid: dict[int, NodeId] = {}
        self.seeds: tuple[Address, ...] = ()
        """The seed addresses by which this node joined."""
        self.last_versions: dict[NodeId, VectorClock] = {}
        """The last version received from each member. For diagnostics."""

    def start(self, gossip: Gossip, now: float) -> None:
        """Start rounds with this state. The first is due at a random time within one interval."""
        self.gossip = gossip
        self._round_at = now + self.settings.gossip_interval * self.rng.random()

    def deadline(self) -> float | None:
        """Return when `tick` or `announce` is due."""
        if self._round_at is None or not self._has_news():
            return self._round_at
        return min(self._round_at, self._next_news_at)

    def state_to(self, node: NodeId, now: float) -> Publish:
        """Return the state as a message to that node."""
        return Publish(node, GossipState(node, self.gossip.flip_tombstones(now)))

    # -- rounds and news -------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Run a round if it is due."""
        if self._round_at is None or now < self._round_at:
            return []
        self.gossip = self.gossip.pruned(now - self.settings.prune_tombstones_after)
        self.last_versions = {
            n: c for n, c in self.last_versions.items() if n in self.gossip.members
        }
        gossip, settings = self.gossip, self.settings
        speedy = is_speedy(len(gossip.seen), len(gossip.members))
        self._round_at = now + settings.gossip_interval / (SPEED_UP if speedy else 1)
        probability = different_view_probability(
            settings.gossip_different_view_probability,
            settings.reduce_gossip_different_view_probability,
            len(gossip.members),
        )
        live = self._partners() or self._silent(())
        partner = round_target(live, gossip.seen, probability, self.rng)
        targets = [] if partner is None else [partner]
        if settings.gossip_partition_breaker:
            targets += self._breaker_targets(live, partner)
        return [self._round_with(node, now) for node in targets]

    def _breaker_targets(self, live: list[NodeId], partner: NodeId | None) -> list[NodeId]:
        others = [n for n, m in self.gossip.members.items() if m.status is not Status.DOWN]
        away = [n for n in others if n != self.me and n not in live]
        seeds = [n for n in others if n != self.me and n.address in self.seeds]
        factor = self.settings.gossip_partition_breaker
        return breaker_targets(live, away, seeds, partner, factor, self.rng)

    def _round_with(self, node: NodeId, now: float) -> Publish:
        return self._status_to(node) if node in self.gossip.seen else self.state_to(node, now)

    def announce(self, leader: NodeId | None, now: float) -> list[Effect]:
        """Push the version if it is new and the pause is over."""
        if not self._has_news() or now < self._next_news_at:
            return []
        gossip = self.gossip
        self._convergence_announced = gossip.converged()
        self._announced = gossip
        pause = PAUSE_BASE + PAUSE_PER_MEMBER * len(gossip.members)
        self._next_news_at = now + pause
        seen = frozenset() if self._convergence_announced and leader == self.me else gossip.seen
        targets = self._news_targets(seen, self.settings.news_fanout)
        effects: list[Effect] = [self.state_to(node, now) for node in targets]
        if leader is not None and leader not in (self.me, self._updated_by, *targets):
            effects.append(Publish(leader, GossipSeen(gossip.clock)))
        self._updated_by = None
        return effects

    def announce_departure(self, fanout: int, now: float) -> list[Effect]:
        """Send the state in which this node is Down or Exiting to a few nodes. Send nothing if this
        node is removed already."""
        if self.me not in self.gossip.members:
            return []
        return [self.state_to(node, now) for node in self._news_targets((), fanout)]

    def _news_targets(self, seen: Container[NodeId], fanout: int) -> list[NodeId]:
        """Choose first among the members that answer this node and that no other node flags, then
        those that may be flagged by a node that hears no other, then those that do not answer: all
        bad links of a node that hears no other must reach the others."""
        live, flagged = self._partners(), self.gossip.unreachable()
        chosen = news_targets([n for n in live if n not in flagged], seen, fanout, self.rng)
        if len(chosen) == fanout or not flagged:
            return chosen
        doubted = [n for n in live if flagged.get(n) in (Flag.UNREACHABLE, Flag.QUARANTINED)]
        chosen += news_targets(doubted, seen, fanout - len(chosen), self.rng)
        return chosen + news_targets(self._silent(live), seen, fanout - len(chosen), self.rng)

    def _has_news(self) -> bool:
        """True if the version, or its convergence, is not announced yet."""
        gossip, announced = self.gossip, self._announced
        if gossip is announced or len(gossip.members) < 2:
            return False
        if not gossip.same_version(announced):
            return True
        return not self._convergence_announced and gossip.converged()

    def _partners(self) -> list[NodeId]:
        """Return the members to gossip with: those that answer this node."""
        row = self.gossip.reachability.rows.get(self.me)
        flags = row.flags if row else {}
        return [
            node
            for node, member in self.gossip.members.items()
            if node != self.me
            and flags.get(node, Flag.REACHABLE) in ANSWERS
            and member.status is not Status.DOWN
        ]

    def _silent(self, live: Container[NodeId]) -> list[NodeId]:
        """Return the other members that are not `live`, except those that are Down."""
        members = self.gossip.members.items()
        return [
            node
            for node, member in members
            if node != self.me and node not in live and member.status is not Status.DOWN
        ]

    # -- answers ---------------------------------------------------------------------------------

    def on_listening(self, uid: int, now: float) -> list[Effect]:
        """Send the version to a node that has just subscribed to this one; it requests the state if
        that is new to it. A node that was removed while it could not receive gets the state that
        removes it."""
        members = self.gossip.members
        if members is not self._indexed:
            self._indexed, self._by_uid = members, {node.uid: node for node in members}
        node = self._by_uid.get(uid)
        if node is not None:
            return [] if node == self.me else [self._status_to(node)]
        return [self.state_to(node, now) for node in self.gossip.tombstones if node.uid == uid]

    def on_status(self, sender: NodeId, status: GossipStatus, now: float) -> list[Effect]:
        """Answer the sender's round, or its request for the state."""
        order = self._compare(sender, status.clock)
        if order is not Order.SAME:
            return self._on_version(sender, order, now)
        if status.seen < len(self.gossip.seen):
            return [self.state_to(sender, now)]
        if status.seen > len(self.gossip.seen):
            return [self._status_to(sender)]
        return []

    def on_seen(self, sender: NodeId, clock: VectorClock, now: float) -> list[Effect]:
        """Record that the sender has this version, or send it the changes that it lacks."""
        order = self._compare(sender, clock)
        return [] if order is Order.SAME else self._on_version(sender, order, now)

    def on_state(
        self, sender: NodeId, message: GossipState, waited: float, now: float
    ) -> list[Effect]:
        """Merge the sender's state. Answer if the merged state is new to the sender."""
        self.last_versions[sender] = message.gossip.clock
        remote = message.gossip.flip_tombstones(now).pruned(
            now - self.settings.prune_tombstones_after
        )
        if waited > self.settings.gossip_time_to_live and not self._declares_this_node_out(remote):
            return [MessageDropped(sender, "gossip waited too long")]
        if message.to != self.me:
            return [MessageDropped(sender, "gossip for another node")]
        if self.me not in remote.members and self.me not in remote.tombstones:
            return [MessageDropped(sender, "gossip without this node")]
        before = self.gossip
        self.gossip = merged = before.received(remote, self.me)
        if self.me not in merged.members:
            return []
        if not merged.same_version(before):
            self._updated_by = sender
        if not merged.same_version(remote) or merged.seen - remote.seen - {self.me}:
            return [self.state_to(sender, now)]
        if self.me not in remote.seen:
            return [Publish(sender, GossipSeen(merged.clock))]
        return []

    def _declares_this_node_out(self, gossip: Gossip) -> bool:
        """True if that copy has this node as Down or removed. Neither is ever undone."""
        mine = gossip.members.get(self.me)
        return self.me in gossip.tombstones or (mine is not None and mine.status is Status.DOWN)

    def _compare(self, sender: NodeId, clock: VectorClock) -> Order:
        """Compare the version here with the member's. If they are equal, the member has seen it."""
        self.last_versions[sender] = clock
        order = self.gossip.clock.compare(clock.without(self.gossip.tombstones))
        if order is Order.SAME:
            self.gossip = self.gossip.with_seen(sender)
        return order

    def _on_version(self, sender: NodeId, order: Order, now: float) -> list[Effect]:
        if order is Order.BEFORE:
            return [self._status_to(sender)]
        return [self.state_to(sender, now)]

    def _status_to(self, node: NodeId) -> Publish:
        return Publish(node, GossipStatus(self.gossip.clock, len(self.gossip.seen)))

    def is_out(self, sender: NodeId) -> bool:
        """True if the sender is Down or removed. Each of its messages is answered with the
        state."""
        member = self.gossip.members.get(sender)
        return sender in self.gossip.tombstones or (
            member is not None and member.status is Status.DOWN
        )
