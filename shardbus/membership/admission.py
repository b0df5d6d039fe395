"""The door of the cluster, from both sides.

`Door` takes the messages of joining. While this node is none, it hands them to its own attempt
(`join`); as a member it answers those who ask. A node that is asked before it is a member remembers
who asked, and calls them when it founds the cluster, so that a cold start does not wait for
anybody's timer.

A node whose address is already a member's is a restarted process: the old incarnation is marked
terminated and Down on the spot, and the new one is welcome without anybody's help. Uids have no
order, and nobody is probed first: a Join that lay unread until a later process at that address was
a member does the same to the living one, which must start anew.

A removed incarnation is refused for ever; so is one that disagrees about the cluster's name, the
protocol or a setting. While the whole cluster stops, it takes nobody in.

Source: S1.6-S1.8, S1.58, B.3, B.12; docs/architecture.md; T.U10, T.U12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from shardbus.ids import Address, NodeId
from shardbus.membership.events import SendControl
from shardbus.membership.gossip import Gossip
from shardbus.membership.join import Joiner, Progress, Step, disagreement
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
from shardbus.settings import ClusterSettings

CLOSED = (Status.EXITING, Status.DOWN)
"""A member in one of these takes nobody in, and does not say that it is in no cluster: whoever
heard that could found another one."""


class Door:
    """Takes and answers the messages of joining."""

    def __init__(self, me: Member, greeting: Greeting, settings: ClusterSettings) -> None:
        self.me = me
        self.greeting = greeting
        self.settings = settings
        self._joiner: Joiner | None = None
        self._asked: dict[NodeId, None] = {}

    @property
    def joining(self) -> bool:
        """True while this node tries to become a member."""
        return self._joiner is not None

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        return self._joiner.deadline() if self._joiner else None

    def knock(self, seeds: Sequence[Address], now: float) -> Progress:
        """Begin to join by these seeds; without any, found a cluster."""
        if not seeds:
            return Progress(step=Step.FOUND_CLUSTER)
        self._joiner = Joiner(self.me, self.greeting, seeds, self.settings)
        return self._joiner.start(now)

    def tick(self, now: float) -> Progress:
        """Do what is due."""
        return self._joiner.tick(now) if self._joiner else Progress()

    def entered(self) -> tuple[SendControl, ...]:
        """This node is a member now: call those that had asked in vain."""
        self._joiner = None
        asked, self._asked = self._asked, {}
        return tuple(SendControl(node, InitAck(self.greeting)) for node in asked)

    def on_message(
        self, gossip: Gossip, sender: NodeId, message: ControlMessage, now: float
    ) -> Progress:
        """A message of joining came; `gossip` is the state here, empty while this node is no
        member."""
        joiner = self._joiner
        match message:
            case InitJoin(greeting):
                answer = self._invite(gossip, sender, greeting)
                if answer is None:
                    return Progress(step=Step.DROP, reason="on the way out")
                return Progress((SendControl(sender, answer),))
            case Join():
                taken, reply = admit(gossip, self.me.node, self.greeting, sender, message)
                if isinstance(reply, Welcome):
                    reply = Welcome(taken.flipped(now))
                return Progress((SendControl(sender, reply),), Step.TAKE_IN, gossip=taken)
            case InitAck(greeting) if joiner:
                return joiner.on_ack(sender, greeting, now)
            case InitNack() if joiner:
                return joiner.on_nack(sender, now)
            case JoinRefused(reason) if joiner:
                return Progress(step=Step.GIVE_UP, reason=f"{sender.address}: {reason}")
            case Welcome(state) if joiner and {self.me.node, sender} <= state.members.keys():
                state = state.flipped(now).with_seen(self.me.node)
                return Progress(step=Step.ENTER, gossip=state)
            case InitAck() | InitNack() | JoinRefused() | Welcome():
                return Progress(step=Step.DROP, reason="not joining")
            case _:
                assert_never(message)

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
