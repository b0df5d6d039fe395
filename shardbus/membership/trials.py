"""Trials: a joining node shows that it can take part, before it is a member.

A member that is not reached by every channel harms the others: it becomes Up, gets shards, is found
unreachable and downed, and joins again. Two ports have to be open in both directions; a firewall, a
mapping of ports or a wrong setting may concern one of them, or one direction. So a node joins only
after messages and gossip have gone both ways between it and a member, the *examiner*: the seed by
which it joins, and one member beyond that seed, if the seed has any.

    joining node                           examiner
    InitJoin ─────────────────────────────>
             <───────────────────────────── InitAck, with the place of its gossip
    (subscribes there)
    Trial ────────────────────────────────> probes the address of the joining node; once its process
                                            answers there, subscribes to its gossip
             <───────────────────────────── TrialResult, at each new finding
    Heartbeat, published ─────────────────>
             <───────────────────────────── HeartbeatReply, published

    proved by                              way
    TrialResult arrives                    messages from the joining node to the examiner
    TrialResult.messages is empty          messages from the examiner to the joining node
    TrialResult.gossip is empty            gossip from the joining node to the examiner
    HeartbeatReply arrives                 gossip both ways

The joining node repeats all of it until it has passed, and reports meanwhile the ways that do not
work (`BrokenLink`). Nothing of a trial is in the gossip state. An examiner forgets a node that asks
no more for `KEEP_S`. A build without trials names no place of its gossip; by it a node joins at
once, as before.

Not here: when a node joins (`joining`), the proof that a Join needs (`admission`).

Source: docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import msgspec

from shardbus.ids import Address, NodeId
from shardbus.membership.events import Effect, Probe, Publish, SendControl, Subscribe, Unsubscribe
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import WORKING, Member
from shardbus.membership.messages import Heartbeat, Trial, TrialResult

EXAMINERS_MAX = 4
"""Members by which a node is tried."""
BEYOND_MAX = 3
"""Members beyond itself that an examiner names."""
EXAMINED_MAX = 100
"""Nodes that a member examines at a time; others get no answer, and ask again."""
KEEP_S = 10.0
"""Seconds without a Trial after which an examiner forgets a node."""
HEARD_S = 6.0
"""Seconds for which an answer is evidence."""
NOT_TRIED = "not tried yet"
NOT_HEARD = "nothing has come yet"
WHY: dict[ProbeOutcome, str] = {
    ProbeOutcome.ALIVE: "",
    ProbeOutcome.REFUSED: "connection refused",
    ProbeOutcome.UNKNOWN: "no answer",
    ProbeOutcome.OPEN: "a process accepts connections there and does not answer as this node",
    ProbeOutcome.OTHER: "another process answers there",
}


class BrokenLink(msgspec.Struct, frozen=True):
    """A way between this node and another one that does not work. `address`: where a connection is
    not answered; `by`: the node that connects there, None if this node does."""

    address: Address
    channel: str
    """`messages` or `gossip`."""
    why: str
    by: Address | None = None
    since: float = 0.0

    def describe(self) -> str:
        """Return it as text."""
        if self.by is None:
            return f"{self.address} ({self.channel}): {self.why}"
        return f"{self.by} does not reach this node at {self.address} ({self.channel}): {self.why}"


# -- the joining node ------------------------------------------------------------------------------


class _Examiner(msgspec.Struct):
    """A member by which this node is tried, and the evidence of it."""

    node: NodeId
    at: Address
    gossip: Address
    cookie: int
    since: float
    result: TrialResult | None = None
    result_at: float = -inf
    reply_at: float = -inf

    def passed(self, now: float) -> bool:
        """True if messages and gossip have gone both ways lately."""
        result, recent = self.result, now - HEARD_S
        works = result is not None and not result.messages and not result.gossip
        return works and min(self.result_at, self.reply_at) > recent

    def is_silent(self, now: float) -> bool:
        """True if it has not answered lately: another process may be at its address."""
        return max(self.since, self.result_at) <= now - HEARD_S

    def broken(self, me: Member, now: float) -> list[BrokenLink]:
        """Return the ways that do not work."""
        result, since = self.result, self.since
        if result is None or self.result_at <= now - HEARD_S:
            return [BrokenLink(self.at, "messages", "no answer to a trial", None, since)]
        if result.messages:
            why = result.messages
            return [BrokenLink(me.node.address, "messages", why, self.node.address, since)]
        if result.gossip:
            why = result.gossip
            return [BrokenLink(me.gossip_address, "gossip", why, self.node.address, since)]
        if self.reply_at <= now - HEARD_S:
            return [BrokenLink(self.gossip, "gossip", NOT_HEARD, None, since)]
        return []


class Trials:
    """The trials of a joining node. `tried` is the set of nodes to whose gossip this process
    listens although they are no members; membership has it, too."""

    def __init__(self, me: Member, tried: set[NodeId]) -> None:
        self.me = me
        self._tried = tried
        self._examiners: dict[NodeId, _Examiner] = {}
        self._old: dict[Address, None] = {}
        """Addresses of members whose builds try nothing."""
        self.target: NodeId | None = None
        """The member by which this node joins."""

    def add(
        self, node: NodeId, at: Address, gossip: Address, cookie: int, now: float
    ) -> list[Effect]:
        """Be tried by this member, too, unless there are enough."""
        earlier = self._examiners.get(node)
        if earlier is not None:
            earlier.cookie = cookie
            return []
        there = [e.node for e in self._examiners.values() if e.at == at]
        former = [ended for ended in there if ended != self.target]
        if len(self._examiners) - len(former) >= EXAMINERS_MAX:
            return []
        for ended in former:  # this process has taken its address over
            del self._examiners[ended]
            self._tried.discard(ended)
        examiner = self._examiners[node] = _Examiner(node, at, gossip, cookie, now)
        self.target = self.target or node
        self._tried.add(node)
        member = Member(node, gossip.port, gossip_host=gossip.host)
        return [*map(Unsubscribe, former), Subscribe(member), self._ask(examiner)]

    def add_old(self, at: Address) -> None:
        """A member of a build without trials is at this address."""
        self._old[at] = None

    def ask(self, now: float) -> list[Effect]:
        """Ask all examiners again."""
        effects: list[Effect] = []
        for examiner in self._examiners.values():
            effects += [self._ask(examiner), self._beat(examiner.node, now)]
        return effects

    def beyond(self, now: float) -> list[Address]:
        """Return the places of other members that the target reports and this node does not have,
        or that have not answered lately."""
        heard = [e for e in self._examiners.values() if not e.is_silent(now)]
        places = {e.at for e in heard} | {e.node.address for e in heard}
        if len(heard) >= EXAMINERS_MAX:
            return []
        return [at for at in self._others() if at not in places and at not in self._old]

    def on_result(self, sender: NodeId, result: TrialResult, now: float) -> list[Effect]:
        """Take an examiner's findings."""
        examiner = self._examiners.get(sender)
        if examiner is None:
            return []
        examiner.result, examiner.result_at = result, now
        hears = not result.gossip and examiner.reply_at == -inf
        return [self._beat(sender, now)] if hears else []

    def on_listening(self, uid: int, now: float) -> list[Effect]:
        """An examiner hears this node from now on."""
        return [self._beat(node, now) for node in self._examiners if node.uid == uid]

    def on_reply(self, sender: NodeId, now: float) -> None:
        """An examiner has answered a heartbeat over gossip."""
        if (examiner := self._examiners.get(sender)) is not None:
            examiner.reply_at = now

    def passed(self, now: float) -> bool:
        """True if messages and gossip go both ways with the target, and with another member, if the
        target has one that can be asked."""
        if self.target is None or not self._examiners[self.target].passed(now):
            return False
        others = [e for e in self._examiners.values() if e.node != self.target]
        askable = [address for address in self._others() if address not in self._old]
        return not askable or any(e.passed(now) for e in others)

    def broken(self, now: float) -> list[BrokenLink]:
        """Return the ways that do not work."""
        links = [link for e in self._examiners.values() for link in e.broken(self.me, now)]
        since = self._examiners[self.target].since if self.target is not None else now
        links += [
            BrokenLink(
                address, "messages", "a member of the cluster there does not answer", None, since
            )
            for address in self.beyond(now)
            if all(address != e.at for e in self._examiners.values())
        ]
        return links

    def end(self, members: Iterable[NodeId] = ()) -> list[Effect]:
        """Forget the trials: the node has joined, or tries anew. Listens on to `members`."""
        ended: list[Effect] = [Unsubscribe(n) for n in self._examiners if n not in members]
        self._tried -= {n for n in self._examiners if n not in members}
        self._examiners, self.target = {}, None
        return ended

    def _others(self) -> tuple[Address, ...]:
        target = self._examiners.get(self.target) if self.target is not None else None
        return target.result.others if target is not None and target.result is not None else ()

    def _ask(self, examiner: _Examiner) -> SendControl:
        return SendControl(examiner.node, Trial(self.me, examiner.cookie))

    def _beat(self, node: NodeId, now: float) -> Publish:
        return Publish(node, Heartbeat(0, now))


# -- the examiner ----------------------------------------------------------------------------------


class _Examined(msgspec.Struct):
    """A joining node. `probes`: a probe is under way."""

    member: Member
    asked_at: float
    probes: bool = False
    outcome: ProbeOutcome | None = None
    heard_at: float = -inf


class Examinations:
    """The nodes that a member examines. `tried` is as in `Trials`."""

    def __init__(self, me: NodeId, tried: set[NodeId]) -> None:
        self.me = me
        self._tried = tried
        self._examined: dict[NodeId, _Examined] = {}

    def on_trial(self, gossip: Gossip, trial: Trial, now: float) -> list[Effect]:
        """Examine this node, or go on; answer with the findings so far."""
        node = trial.member.node
        examined = self._examined.get(node)
        if examined is None:
            if len(self._examined) >= EXAMINED_MAX:
                return []
            examined = self._examined[node] = _Examined(trial.member, now)
        examined.asked_at = now
        effects: list[Effect] = []
        if not examined.probes and examined.outcome is not ProbeOutcome.ALIVE:
            examined.probes = True
            effects.append(Probe(node))
        if examined.outcome is not None:
            effects.append(self._result(gossip, examined, now))
        return effects

    def on_probe(
        self, gossip: Gossip, node: NodeId, outcome: ProbeOutcome, now: float
    ) -> list[Effect]:
        """Take the outcome of a probe. If the node's process answers, listen to its gossip."""
        examined = self._examined.get(node)
        if examined is None:
            return []
        examined.probes, examined.outcome = False, outcome
        effects: list[Effect] = []
        if outcome is ProbeOutcome.ALIVE and node not in self._tried and node not in gossip.members:
            self._tried.add(node)
            effects.append(Subscribe(examined.member))
        return [*effects, *self._news(gossip, examined, now)]

    def on_heard(self, gossip: Gossip, node: NodeId, now: float) -> list[Effect]:
        """Gossip has come from this node."""
        examined = self._examined.get(node)
        if examined is None:
            return []
        first, examined.heard_at = examined.heard_at <= now - HEARD_S, now
        return self._news(gossip, examined, now) if first else []

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        return min((e.asked_at + KEEP_S for e in self._examined.values()), default=None)

    def tick(self, gossip: Gossip, now: float) -> list[Effect]:
        """Forget nodes that ask no more, and do not listen to them unless they are members now."""
        over = [n for n, e in self._examined.items() if now >= e.asked_at + KEEP_S]
        ended: list[Effect] = []
        for node in over:
            del self._examined[node]
            if node in self._tried and node not in gossip.members:
                self._tried.discard(node)
                ended.append(Unsubscribe(node))
        return ended

    def _news(self, gossip: Gossip, examined: _Examined, now: float) -> list[Effect]:
        """Answer without being asked. A member has joined already, or asks again."""
        is_member = examined.member.node in gossip.members
        return [] if is_member else [self._result(gossip, examined, now)]

    def _result(self, gossip: Gossip, examined: _Examined, now: float) -> SendControl:
        node = examined.member.node
        messages = NOT_TRIED if examined.outcome is None else WHY[examined.outcome]
        heard = examined.heard_at > now - HEARD_S
        gossip_works = "" if heard else NOT_TRIED if messages else NOT_HEARD
        return SendControl(node, TrialResult(messages, gossip_works, beyond(gossip, self.me, node)))


def beyond(gossip: Gossip, me: NodeId, newcomer: NodeId) -> tuple[Address, ...]:
    """Return where other members are that a newcomer can be tried by: some that work and answer,
    not always the same."""
    flagged = gossip.unreachable()
    able = [
        n.address
        for n, m in gossip.members.items()
        if m.status in WORKING
        and n not in flagged
        and n.address not in (me.address, newcomer.address)
    ]
    first = newcomer.uid % len(able) if able else 0
    return tuple((able[first:] + able[:first])[:BEYOND_MAX])
