"""The door of the cluster, from both sides.

`Admission` takes the messages of joining. While this node is none, it hands them to its own attempt
(`join`); as a member it answers those who ask. A node that is asked before it is a member remembers
who asked, and calls them when it founds the cluster, so that a cold start does not wait for
anybody's timer.

A node whose address is already a member's is a restarted process: the old incarnation is marked
terminated and Down, and the new one is welcome without anybody's help. But uids have no order, and
a Join may lie unread until its sender is dead and a later process at that address is a member. So
an old incarnation is probed first, unless its death is proved already. The Join is obeyed if
another process answers there, or none listens, or there is no way to it and somebody flags it.
Otherwise it is dropped; if its sender lives, it will come again. Whoever obeys a late Join since it
does not know of the later process yet makes two members of one address (`twins`), as two sides of a
split can: both are probed by everybody.

A removed incarnation is refused for ever; so is one that disagrees about the cluster's name, the
protocol or a setting. While the whole cluster stops, it takes nobody in.

Source: S1.6-S1.8, S1.58, B.3, B.12; docs/architecture.md; T.U10, T.U12.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from shardbus.config.settings import ClusterSettings
from shardbus.ids import Address, NodeId
from shardbus.membership.events import SendControl
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.membership.gossip import Gossip
from shardbus.membership.joining import Joiner, JoinProgress, JoinStep, disagreement
from shardbus.membership.member import Member, Status
from shardbus.membership.messages import (
    ControlMessage,
    Greeting,
    InitAck,
    InitJoin,
    InitNack,
    Join,
    JoinRefused,
    Welcome,
)
from shardbus.membership.reachability import Flag

CLOSED = (Status.EXITING, Status.DOWN)
"""A member in one of these takes nobody in, and does not say that it is in no cluster: whoever
heard that could found another one."""


@dataclass(frozen=True, slots=True)
class JoinClaim:
    """A Join to an address that has a member. `gone`: the members there that were looked for in
    vain."""

    sender: NodeId
    join: Join
    gone: tuple[NodeId, ...] = ()


class Admission:
    """Takes and answers the messages of joining."""

    def __init__(self, me: Member, greeting: Greeting, settings: ClusterSettings) -> None:
        self.me = me
        self.greeting = greeting
        self.settings = settings
        self._joiner: Joiner | None = None
        self._asked: dict[NodeId, None] = {}
        self._claims: dict[NodeId, JoinClaim] = {}
        """The last one to the address of each member that is being probed."""

    @property
    def joining(self) -> bool:
        """True while this node tries to become a member."""
        return self._joiner is not None

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        return self._joiner.deadline() if self._joiner else None

    def knock(self, seeds: Sequence[Address], now: float) -> JoinProgress:
        """Begin to join by these seeds; without any, found a cluster."""
        if not seeds:
            return JoinProgress(step=JoinStep.FOUND_CLUSTER)
        self._joiner = Joiner(self.me, self.greeting, seeds, self.settings)
        return self._joiner.start(now)

    def tick(self, now: float) -> JoinProgress:
        """Do what is due."""
        return self._joiner.tick(now) if self._joiner else JoinProgress()

    def entered(self) -> tuple[SendControl, ...]:
        """This node is a member now: call those that had asked in vain."""
        self._joiner = None
        asked, self._asked = self._asked, {}
        return tuple(SendControl(node, InitAck(self.greeting)) for node in asked)

    def on_message(
        self, gossip: Gossip, sender: NodeId, message: ControlMessage, now: float
    ) -> JoinProgress:
        """A message of joining came; `gossip` is the state here, empty while this node is no
        member."""
        joiner = self._joiner
        match message:
            case InitJoin(greeting):
                answer = self._invite(gossip, sender, greeting)
                if answer is None:
                    return JoinProgress(step=JoinStep.DROP, reason="on the way out")
                return JoinProgress((SendControl(sender, answer),))
            case Join():
                return self._take_in(gossip, JoinClaim(sender, message), now)
            case InitAck(greeting) if joiner:
                return joiner.on_ack(sender, greeting, now)
            case InitNack() if joiner:
                return joiner.on_nack(sender, now)
            case JoinRefused(reason) if joiner:
                return JoinProgress(step=JoinStep.GIVE_UP, reason=f"{sender.address}: {reason}")
            case Welcome(state) if joiner and {self.me.node, sender} <= state.members.keys():
                state = state.flipped(now).with_seen(self.me.node)
                return JoinProgress(step=JoinStep.ENTER, gossip=state)
            case InitAck() | InitNack() | JoinRefused() | Welcome():
                return JoinProgress(step=JoinStep.DROP, reason="not joining")
            case _:
                assert_never(message)

    def on_probe(
        self, gossip: Gossip, node: NodeId, outcome: ProbeOutcome, now: float
    ) -> JoinProgress:
        """A probe of a member ended, and it is flagged if that proved its death: obey or drop the
        Join that made it doubtful."""
        claim = self._claims.pop(node, None)
        if claim is None:
            return JoinProgress()
        out_of_reach = outcome is ProbeOutcome.UNKNOWN and node in gossip.verdicts()
        if outcome.proves_death or out_of_reach:
            return self._take_in(gossip, replace(claim, gone=(*claim.gone, node)), now)
        return JoinProgress(step=JoinStep.DROP, reason="a member at its address may be alive")

    def _take_in(self, gossip: Gossip, claim: JoinClaim, now: float) -> JoinProgress:
        sender, join = claim.sender, claim.join
        taken, reply = admit(gossip, self.me.node, self.greeting, sender, join)
        if isinstance(reply, Welcome):
            doubted = sitting(gossip, sender, claim.gone)
            if doubted:
                self._claims[doubted] = claim
                return JoinProgress(doubted=doubted)
            reply = Welcome(taken.flipped(now))
        return JoinProgress((SendControl(sender, reply),), JoinStep.TAKE_IN, gossip=taken)

    def _invite(
        self, gossip: Gossip, sender: NodeId, greeting: Greeting
    ) -> InitAck | InitNack | JoinRefused | None:
        if why := disagreement(self.greeting, greeting) or _closing(gossip):
            return JoinRefused(why)
        mine = gossip.members.get(self.me.node)
        if mine is None:
            self._asked[sender] = None
            return InitNack()
        return None if mine.status in CLOSED else InitAck(self.greeting)


def admit(
    gossip: Gossip, me: NodeId, greeting: Greeting, sender: NodeId, join: Join
) -> tuple[Gossip, Welcome | InitNack | JoinRefused]:
    """The state with the sender in it, and the answer. A Welcome carries the state as it is kept
    here."""
    if why := _objection(gossip, me, greeting, sender, join):
        return gossip, JoinRefused(why)
    mine = gossip.members.get(me)
    if mine is None or mine.status in CLOSED:
        return gossip, InitNack()
    if sender not in gossip.members:
        for node in [n for n in gossip.members if n.address == sender.address]:
            gossip = gossip.with_flag(me, node, Flag.TERMINATED)
            if gossip.members[node].status is not Status.DOWN:
                gossip = gossip.with_members(me, gossip.members[node].moved(Status.DOWN))
        newcomer = replace(join.member, status=Status.JOINING, up_number=0)
        gossip = gossip.with_members(me, newcomer)
    return gossip, Welcome(gossip)


def sitting(gossip: Gossip, newcomer: NodeId, gone: Collection[NodeId]) -> NodeId | None:
    """Another incarnation at the newcomer's address that is a member, and neither Down nor known to
    be gone."""
    if newcomer in gossip.members:
        return None
    flags = gossip.verdicts()
    for node, member in gossip.members.items():
        here = node.address == newcomer.address and member.status is not Status.DOWN
        if here and node not in gone and flags.get(node) is not Flag.TERMINATED:
            return node
    return None


def twins(members: Iterable[Member], *, other_than: NodeId) -> list[NodeId]:
    """Who shares an address with another member, Down ones aside: at most one of them lives."""
    at: dict[Address, list[NodeId]] = {}
    for member in members:
        if member.status is not Status.DOWN:
            at.setdefault(member.node.address, []).append(member.node)
    together = [node for nodes in at.values() if len(nodes) > 1 for node in nodes]
    return [node for node in together if node != other_than]


def _objection(gossip: Gossip, me: NodeId, greeting: Greeting, sender: NodeId, join: Join) -> str:
    if why := disagreement(greeting, join.greeting):
        return why
    if join.member.node != sender:
        return f"{sender} cannot join as {join.member.node}"
    if sender in gossip.tombstones:
        return f"{sender} was removed from the cluster; a new process may join"
    if sender.address == me.address:
        return f"the address {me.address} is this node's own"
    member = gossip.members.get(sender)
    if member is not None and member.status in CLOSED:
        return f"{sender} is {member.status.value}; a new process may join"
    return "" if member is not None else _closing(gossip)


def _closing(gossip: Gossip) -> str:
    return "the whole cluster is shutting down" if gossip.stopping else ""
