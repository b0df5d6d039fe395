"""Exchanging gossip: rounds, answers, news.

A message names a version; the receiver compares clocks:

    theirs is older          -> send the state
    theirs is newer          -> a status: send ours, which asks for their state; a state: take it
    neither contains both    -> merge, and send the merged state
    the same                 -> the sender has seen it; who knows of more that have, says so

Every second a round: one partner, a status if it is not news to it, else the state; three rounds a
second while fewer than half have this version. Whatever changes the version is news, and goes at
once to `news_fanout` nodes that have not seen it, though at most once per `pause`, which grows with
the cluster. Whoever has got a version tells the leader, by the small GossipSeen; and a leader that
finds the cluster converged lets a few know.

**One version, one content.** Removing a node erases its counter from the clock, and with it the
trace of what only some had learned from it: two copies could then have one clock and different
contents, and never notice. So whoever erases, by a merge, the traces of a node that was removed
elsewhere makes the merged state a version of its own, unless it is plainly one of the two. A node
that finds itself removed can make none, as its own counter is gone: it says nothing any more.

Dropped, and counted: states that waited too long in this process, that are meant for another
incarnation, that come from a node which is no member, or that do not know this node. A state that
says that this node is out is never too old: one that slept would otherwise not hear of it.

Source: S1.34-S1.46, S3.24-S3.31, B.6, B.13, D.1, D.2.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

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
SPEED_UP = 3
ANSWERS = (Flag.REACHABLE, Flag.QUARANTINED)


class GossipExchange:
    """One node's copy of the state and its conversations about it."""

    def __init__(self, me: NodeId, settings: ClusterSettings, rng: random.Random) -> None:
        self.me = me
        self.settings = settings
        self.rng = rng
        self.gossip = Gossip()
        self._round_at: float | None = None
        self._news_from = 0.0
        self._announced: Gossip = self.gossip
        self._convergence_told = False
        self._got_from: NodeId | None = None
        self._indexed: Mapping[NodeId, Member] = {}
        self._by_uid: dict[int, NodeId] = {}
        self.seeds: tuple[Address, ...] = ()
        """By whom this node joined."""
        self.heard: dict[NodeId, VectorClock] = {}
        """The last version heard of each member, for those who ask."""

    def start(self, gossip: Gossip, now: float) -> None:
        """Begin with this state."""
        self.gossip = gossip
        self._round_at = now + self.settings.gossip_interval * self.rng.random()

    def deadline(self) -> float | None:
        """When `tick` or `announce` has something to do."""
        if self._round_at is None or not self._has_news():
            return self._round_at
        return min(self._round_at, self._news_from)

    def state_to(self, node: NodeId, now: float) -> Publish:
        """The state, addressed."""
        return Publish(node, GossipState(node, self.gossip.flipped(now)))

    # -- rounds and news -------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """A round, if it is due."""
        if self._round_at is None or now < self._round_at:
            return []
        self.gossip = self.gossip.pruned(now - self.settings.prune_tombstones_after)
        self.heard = {n: c for n, c in self.heard.items() if n in self.gossip.members}
        gossip, settings = self.gossip, self.settings
        speedy = is_speedy(len(gossip.seen), len(gossip.members))
        self._round_at = now + settings.gossip_interval / (SPEED_UP if speedy else 1)
        probability = different_view_probability(
            settings.gossip_different_view_probability,
            settings.reduce_gossip_different_view_probability,
            len(gossip.members),
        )
        live = self._partners()
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
        """Push what is news, if it is time."""
        if not self._has_news() or now < self._news_from:
            return []
        gossip = self.gossip
        self._convergence_told = gossip.converged()
        self._announced = gossip
        pause = PAUSE_BASE + PAUSE_PER_MEMBER * len(gossip.members)
        self._news_from = now + pause
        flagged = gossip.verdicts()
        live = [n for n in self._partners() if n not in flagged]
        seen = frozenset() if self._convergence_told and leader == self.me else gossip.seen
        targets = news_targets(live, seen, self.settings.news_fanout, self.rng)
        effects: list[Effect] = [self.state_to(node, now) for node in targets]
        if leader is not None and leader not in (self.me, self._got_from, *targets):
            effects.append(Publish(leader, GossipSeen(gossip.clock)))
        self._got_from = None
        return effects

    def farewell(self, fanout: int, now: float) -> list[Effect]:
        """Tell a few that this node is out; nobody, if it is removed already."""
        if self.me not in self.gossip.members:
            return []
        flagged = self.gossip.verdicts()
        live = [n for n in self._partners() if n not in flagged]
        chosen = news_targets(live, (), fanout, self.rng)
        return [self.state_to(node, now) for node in chosen]

    def _has_news(self) -> bool:
        """True if the version, or that everybody has it, is not announced yet."""
        gossip, announced = self.gossip, self._announced
        if gossip is announced or len(gossip.members) < 2:
            return False
        if not gossip.same_version(announced):
            return True
        return not self._convergence_told and gossip.converged()

    def _partners(self) -> list[NodeId]:
        """Whom it makes sense to gossip with: whoever answers this node."""
        row = self.gossip.reachability.rows.get(self.me)
        flags = row.flags if row else {}
        return [
            node
            for node, member in self.gossip.members.items()
            if node != self.me
            and flags.get(node, Flag.REACHABLE) in ANSWERS
            and member.status is not Status.DOWN
        ]

    # -- answers ---------------------------------------------------------------------------------

    def on_listening(self, uid: int, now: float) -> list[Effect]:
        """A node with this uid can hear us from now on: it is told our version, and asks for the
        state if that is news. One that was removed while it could not hear us learns that."""
        members = self.gossip.members
        if members is not self._indexed:
            self._indexed, self._by_uid = members, {node.uid: node for node in members}
        node = self._by_uid.get(uid)
        if node is not None:
            return [] if node == self.me else [self._status_to(node)]
        return [self.state_to(node, now) for node in self.gossip.tombstones if node.uid == uid]

    def on_status(self, sender: NodeId, status: GossipStatus, now: float) -> list[Effect]:
        """A round of the sender's, or its wish for our state."""
        order = self._compare(sender, status.clock)
        if order is not Order.SAME:
            return self._on_version(sender, order, now)
        if status.seen < len(self.gossip.seen):
            return [self.state_to(sender, now)]
        if status.seen > len(self.gossip.seen):
            return [self._status_to(sender)]
        return []

    def on_seen(self, sender: NodeId, clock: VectorClock, now: float) -> list[Effect]:
        """The sender has got this version."""
        order = self._compare(sender, clock)
        return [] if order is Order.SAME else self._on_version(sender, order, now)

    def on_state(
        self, sender: NodeId, message: GossipState, waited: float, now: float
    ) -> list[Effect]:
        """The sender's state: merge it, and answer if the merged state is news to the sender."""
        self.heard[sender] = message.gossip.clock
        remote = message.gossip.flipped(now).pruned(now - self.settings.prune_tombstones_after)
        if waited > self.settings.gossip_time_to_live and not self._says_out(remote):
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
            self._got_from = sender
        if not merged.same_version(remote) or merged.seen - remote.seen - {self.me}:
            return [self.state_to(sender, now)]
        if self.me not in remote.seen:
            return [Publish(sender, GossipSeen(merged.clock))]
        return []

    def _says_out(self, gossip: Gossip) -> bool:
        """True if that copy knows this node as Down or removed, which is never undone."""
        mine = gossip.members.get(self.me)
        return self.me in gossip.tombstones or (mine is not None and mine.status is Status.DOWN)

    def _compare(self, sender: NodeId, clock: VectorClock) -> Order:
        """How our version stands to that of a member; if they are the same, it has seen ours."""
        self.heard[sender] = clock
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
        """True for a sender that is Down or removed: whatever it says is answered with the
        state."""
        member = self.gossip.members.get(sender)
        return sender in self.gossip.tombstones or (
            member is not None and member.status is Status.DOWN
        )
