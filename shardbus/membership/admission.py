"""Admission of nodes, from both sides.

`Admission` handles the messages of joining. While this node is not a member, it passes them to its
own attempt (`joining`). As a member it answers nodes that ask to join. A node that receives an
InitJoin before it is a member remembers the sender, and acknowledges when it has founded the
cluster, so that a cold start waits for no timer.

**Restarted processes.** A node that joins with the address of a member is a restarted process. The
old incarnation is marked terminated and Down, and the new one is admitted. But uids have no order,
and a Join may lie unread until its sender is dead and a later process at that address is a member.
So an old incarnation is probed first, unless its death is proved already:

    probe of the old incarnation                      the Join
    another process answers, or none listens          is accepted
    no answer, and some observer flags the member     is accepted
    the old incarnation answers                       is dropped; a live sender repeats it

A node that accepts a late Join because the later process is not in its state yet makes two members
of one address (`sharing_address`). Two sides of a split can do the same. All nodes then probe both.

**Refused**: a removed incarnation, for ever, and at its Trial already: no member listens to its
gossip, so the trial would have no end (it may have joined without a word of it); a node that
disagrees about the cluster name, the protocol or a setting; every node while the whole cluster
stops; a node outside the loopback by one on the loopback, and the reverse: one of the two could not
reach the other.

**Trials.** A node joins only by a member that it reaches, and that reaches it, by messages and by
gossip (`trials`). The node itself insists on that; a member examines it, and admits the sender of
each valid Join.

**Cookies.** InitAck carries a number that only its receiver gets, and Join must bring it. So a
process that sends and does not receive is not admitted. The number is a keyed hash of the sender's
id, and this node remembers nothing for it. A Join without it is dropped: a live sender contacts the
seeds again.

Source: S1.6-S1.8, S1.58, B.3, B.12; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import assert_never

import msgspec

from shardbus.config.settings import ClusterSettings
from shardbus.config.validation import is_loopback
from shardbus.ids import Address, NodeId
from shardbus.membership import messages as m
from shardbus.membership.events import Effect, SendControl
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.membership.gossip import Gossip
from shardbus.membership.joining import Joiner, JoinProgress, JoinStep, disagreement
from shardbus.membership.member import Member, Status
from shardbus.membership.reachability import Flag
from shardbus.membership.trials import BrokenLink, Examinations

CLOSED = (Status.EXITING, Status.DOWN)
"""A member in one of these statuses admits no node. It does not answer InitNack either: a seed that
received that could found a second cluster."""

WAITING_MAX = 1000
"""Nodes that are acknowledged when this one has founded the cluster. The oldest are forgotten
first."""


class JoinClaim(msgspec.Struct, frozen=True):
    """A Join to an address that has a member. `gone`: the members there that did not answer a
    probe."""

    sender: NodeId
    join: m.Join
    gone: tuple[NodeId, ...] = ()


class Admission:
    """Handles and answers the messages of joining. `secret`: the key of the cookies."""

    def __init__(
        self,
        me: Member,
        greeting: m.Greeting,
        settings: ClusterSettings,
        secret: bytes = b"",
        tried: set[NodeId] | None = None,
    ) -> None:
        self.me = me
        self.greeting = greeting
        self.settings = settings
        self._secret = secret
        self._tried: set[NodeId] = set() if tried is None else tried
        self.examinations = Examinations(me.node, self._tried)
        self._joiner: Joiner | None = None
        self._waiting: dict[NodeId, None] = {}
        self._claims: dict[NodeId, JoinClaim] = {}
        """By the member that is being probed: the last Join to its address."""

    @property
    def joining(self) -> bool:
        """True while this node tries to become a member."""
        return self._joiner is not None

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        return self._joiner.deadline() if self._joiner else None

    def start(
        self,
        seeds: Sequence[Address],
        now: float,
        *,
        founds: bool = True,
        within: float = 0.0,
        founder: Address | None = None,
        discovers: bool = False,
        claims: bool = False,
    ) -> JoinProgress:
        """Start to join by these seeds. Without seeds, found a cluster. `founds`, `within`,
        `founder`, `discovers` and `claims` are as in `Joiner`."""
        if not seeds and founds and not discovers and not claims:
            return JoinProgress(step=JoinStep.FOUND_CLUSTER)
        self._joiner = Joiner(
            self.me,
            self.greeting,
            seeds,
            self.settings,
            founds=founds,
            within=within,
            founder=founder,
            discovers=discovers,
            claims=claims,
            tried=self._tried,
        )
        return self._joiner.start(now)

    def on_contacts(self, contacts: Sequence[Address], now: float) -> JoinProgress:
        """Take over the contacts that a look-up has found."""
        return self._joiner.on_contacts(contacts, now) if self._joiner else JoinProgress()

    def on_members_named(self, members: Sequence[Address], now: float) -> JoinProgress:
        """Contact these members, too, which the store names."""
        return self._joiner.on_members_named(members, now) if self._joiner else JoinProgress()

    def in_no_cluster(self, now: float) -> Collection[Address]:
        """Return the addresses at which processes have answered just now that they are in no
        cluster."""
        return self._joiner.contacts.in_no_cluster(now) if self._joiner else ()

    def is_lost(self, now: float) -> bool:
        """True if this node's seeds are of no use, so that it looks for members in the store."""
        return self._joiner is not None and self._joiner.is_lost(now)

    def may_found(self, now: float) -> bool:
        """True if this node joins, and founds a cluster if the store's claim is its own."""
        return self._joiner is not None and self._joiner.may_found(now)

    def tick(self, now: float) -> JoinProgress:
        """Perform due actions."""
        return self._joiner.tick(now) if self._joiner else JoinProgress()

    def on_entered(self, gossip: Gossip) -> tuple[Effect, ...]:
        """End the trials, and acknowledge the nodes that had sent InitJoin before this node was a
        member."""
        ended = self._joiner.end(gossip.members) if self._joiner else []
        self._joiner = None
        nodes, self._waiting = self._waiting, {}
        return (*ended, *(SendControl(node, self._ack(node)) for node in nodes))

    def on_published(self, sender: NodeId, message: m.PublishedMessage, now: float) -> JoinProgress:
        """Take gossip that comes before this node is a member."""
        progress = self._joiner.on_published(sender, message, now) if self._joiner else None
        return progress or JoinProgress(step=JoinStep.DROP, reason="not a member yet")

    def on_listening(self, uid: int, now: float) -> JoinProgress:
        """A process receives this node's publications from now on."""
        return self._joiner.on_listening(uid, now) if self._joiner else JoinProgress()

    def broken(self, now: float) -> tuple[BrokenLink, ...]:
        """Return the ways that this node waits for while it joins."""
        return self._joiner.broken(now) if self._joiner else ()

    def _ack(self, node: NodeId) -> m.InitAck:
        return m.InitAck(self.greeting, cookie_of(self._secret, node))

    def on_message(
        self,
        gossip: Gossip,
        sender: NodeId,
        message: m.ControlMessage,
        now: float,
        dialled: Address | None = None,
    ) -> JoinProgress:
        """Handle a message of joining. `gossip` is the state of this node; it is empty before it is
        a member. `dialled`: the address at which this node asked, by default the sender's."""
        joiner, at = self._joiner, dialled or sender.address
        if isinstance(message, m.InitAck | m.InitNack | m.TrialResult | m.JoinRefused | m.Welcome):
            if joiner is None:
                return JoinProgress(step=JoinStep.DROP, reason="not joining")
            if not joiner.has_asked(at):
                return JoinProgress(step=JoinStep.DROP, reason="not asked")
            return self._on_answer(joiner, sender, message, now, at)
        match message:
            case m.InitJoin(greeting):
                answer = self._answer_init_join(gossip, sender, greeting)
                if answer is None:
                    return JoinProgress(step=JoinStep.DROP, reason="on the way out")
                return JoinProgress((SendControl(sender, answer),))
            case m.Trial(member, cookie):
                mine = gossip.members.get(self.me.node)
                if mine is None or mine.status in CLOSED:
                    return JoinProgress((SendControl(sender, m.InitNack()),))
                if cookie != cookie_of(self._secret, sender) or member.node != sender:
                    return JoinProgress(step=JoinStep.DROP, reason="no cookie")
                if why := _over(gossip, sender):
                    return JoinProgress((SendControl(sender, m.JoinRefused(why)),))
                return JoinProgress(tuple(self.examinations.on_trial(gossip, message, now)))
            case m.Join():
                if message.cookie != cookie_of(self._secret, sender):
                    return JoinProgress(step=JoinStep.DROP, reason="no cookie")
                return self._admit(gossip, JoinClaim(sender, message), now)
            case _:
                assert_never(message)

    def _on_answer(
        self,
        joiner: Joiner,
        sender: NodeId,
        message: m.InitAck | m.InitNack | m.TrialResult | m.JoinRefused | m.Welcome,
        now: float,
        at: Address,
    ) -> JoinProgress:
        match message:
            case m.InitAck():
                return joiner.on_ack(sender, message, now, at)
            case m.InitNack():
                return joiner.on_nack(sender, now, at)
            case m.TrialResult():
                return joiner.on_result(sender, message, now)
            case m.JoinRefused(reason):
                return JoinProgress(step=JoinStep.REFUSED, reason=f"{at}: {reason}")
            case m.Welcome(state):
                if not (
                    joiner.may_welcome(sender) and {self.me.node, sender} <= state.members.keys()
                ):
                    return JoinProgress(step=JoinStep.DROP, reason="not asked")
                state = state.flip_tombstones(now).with_seen(self.me.node)
                return JoinProgress(step=JoinStep.ENTER, gossip=state)
            case _:
                assert_never(message)

    def on_probe(
        self, gossip: Gossip, node: NodeId, outcome: ProbeOutcome, now: float
    ) -> JoinProgress:
        """Accept or drop the Join that caused the probe of this member. The member is flagged
        already if the probe proved its death."""
        claim = self._claims.pop(node, None)
        if claim is None:
            return JoinProgress()
        out_of_reach = outcome is ProbeOutcome.UNKNOWN and node in gossip.unreachable()
        if outcome.proves_death or out_of_reach:
            return self._admit(
                gossip, msgspec.structs.replace(claim, gone=(*claim.gone, node)), now
            )
        return JoinProgress(step=JoinStep.DROP, reason="a member at its address may be alive")

    def _admit(self, gossip: Gossip, claim: JoinClaim, now: float) -> JoinProgress:
        sender, join = claim.sender, claim.join
        taken, reply = admit(gossip, self.me.node, self.greeting, sender, join)
        if isinstance(reply, m.Welcome):
            suspect = conflicting_member(gossip, sender, claim.gone)
            if suspect:
                self._claims[suspect] = claim
                return JoinProgress(suspect=suspect)
            reply = m.Welcome(taken.flip_tombstones(now))
        return JoinProgress((SendControl(sender, reply),), JoinStep.ADMIT, gossip=taken)

    def _answer_init_join(
        self, gossip: Gossip, sender: NodeId, greeting: m.Greeting
    ) -> m.InitAck | m.InitNack | m.JoinRefused | None:
        apart = _apart(self.me.node, sender)
        if why := disagreement(self.greeting, greeting) or apart or _closing(gossip):
            return m.JoinRefused(why)
        mine = gossip.members.get(self.me.node)
        if mine is None:
            self._waiting[sender] = None
            if len(self._waiting) > WAITING_MAX:
                del self._waiting[next(iter(self._waiting))]
            return m.InitNack()
        return None if mine.status in CLOSED else self._ack(sender)


def cookie_of(secret: bytes, node: NodeId) -> int:
    """Return the cookie for a node that asks to join: 62 bits of a hash under this key."""
    digest = blake2b(str(node).encode(), key=secret, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def admit(
    gossip: Gossip, me: NodeId, greeting: m.Greeting, sender: NodeId, join: m.Join
) -> tuple[Gossip, m.Welcome | m.InitNack | m.JoinRefused]:
    """Return the state with the sender in it, and the answer. A Welcome carries the state as stored
    here: its tombstones are times, not ages."""
    if why := _objection(gossip, me, greeting, sender, join):
        return gossip, m.JoinRefused(why)
    mine = gossip.members.get(me)
    if mine is None or mine.status in CLOSED:
        return gossip, m.InitNack()
    if sender not in gossip.members:
        for node in [n for n in gossip.members if n.address == sender.address]:
            gossip = gossip.with_flag(me, node, Flag.TERMINATED)
            if gossip.members[node].status is not Status.DOWN:
                gossip = gossip.with_members(me, gossip.members[node].moved(Status.DOWN))
        newcomer = replace(join.member, status=Status.JOINING, up_number=0)
        gossip = gossip.with_members(me, newcomer)
    return gossip, m.Welcome(gossip)


def conflicting_member(gossip: Gossip, newcomer: NodeId, gone: Collection[NodeId]) -> NodeId | None:
    """Return another incarnation at the newcomer's address that is a member, and is neither Down,
    nor terminated, nor in `gone`."""
    if newcomer in gossip.members:
        return None
    flags = gossip.unreachable()
    for node, member in gossip.members.items():
        here = node.address == newcomer.address and member.status is not Status.DOWN
        if here and node not in gone and flags.get(node) is not Flag.TERMINATED:
            return node
    return None


def sharing_address(members: Iterable[Member], *, other_than: NodeId) -> list[NodeId]:
    """Return the members that share an address with another member, Down members aside. At most one
    of them is alive."""
    at: dict[Address, list[NodeId]] = {}
    for member in members:
        if member.status is not Status.DOWN:
            at.setdefault(member.node.address, []).append(member.node)
    together = [node for nodes in at.values() if len(nodes) > 1 for node in nodes]
    return [node for node in together if node != other_than]


def _objection(
    gossip: Gossip, me: NodeId, greeting: m.Greeting, sender: NodeId, join: m.Join
) -> str:
    if why := disagreement(greeting, join.greeting) or _apart(me, sender):
        return why
    if join.member.node != sender:
        return f"{sender} cannot join as {join.member.node}"
    if why := _over(gossip, sender):
        return why
    if sender.address == me.address:
        return f"the address {me.address} is this node's own"
    return "" if sender in gossip.members else _closing(gossip)


def _over(gossip: Gossip, sender: NodeId) -> str:
    """Return why this incarnation is no member any more and never will be; empty if it may be."""
    if sender in gossip.tombstones:
        return f"{sender} was removed from the cluster; a new process may join"
    member = gossip.members.get(sender)
    if member is not None and member.status in CLOSED:
        return f"{sender} is {member.status.value}; a new process may join"
    return ""


def _apart(me: NodeId, sender: NodeId) -> str:
    if is_loopback(me.host) is is_loopback(sender.host):
        return ""
    here, there = (
        f"{node.address} is {'' if is_loopback(node.host) else 'not '}on the loopback"
        for node in (me, sender)
    )
    return f"{here}, and {there}: set node.advertise to an address that both can reach"


def _closing(gossip: Gossip) -> str:
    return "the whole cluster is shutting down" if gossip.stopping else ""
