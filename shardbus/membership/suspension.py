"""Suspension: whether this node's entities may handle messages, and until when.

The problem: after a split, one side goes on and starts the entities of the other. The other side
hears nothing of that, and its entities would live twice until it downs itself. A process that wakes
up from a pause (SIGSTOP, a suspended machine) may have been replaced long ago. So a node needs
permission: its entities handle messages only while enough members consent.

    heartbeat, sent at t ──> member ──> reply, with consent ──> contact with the member since t
                                    └─> reply, without consent, or none ──> contact grows old

**Consent.** A member consents unless the asker may have to go by its own copy of the state
(`downing.resolver`: cut off from this member's side, or chosen to go for its bad links), or is not
a member that works. Flags alone are no reason: a node that hears no other flags all of them, and
they have lost nothing. When the reason is gone the member refuses for a quarter of `suspend_after`
more, because the copies of others may still have it.

**Contact** is the time at which this node *sent* the last request that the member answered with
consent, by this node's own clock. A delay only makes it older, and a reply to a request from before
a pause renews nothing. Contact is valid for `suspend_after`.

**Suspended** or not: the downing strategy decides. Each member without valid contact counts as cut
off, as in the split that another side may see. If the answer is not clearly that this side stays
(it goes, or requests the lease), the node is suspended. Flags count for consent only, so that a
false alarm of one observer suspends no node at once.

    members without contact   none, or only starting ones   others, and the strategy says «stay»
    this node                 confirmed                     confirmed
                              others, and it says anything else: suspended

`valid_until` is the time until which that answer holds if no contact is renewed: contacts expire in
the order of their age, and the first expiry after which the answer is another one ends it. It only
needs a comparison with a clock, so the application checks it without a message to this machine.

**Why no two sides are active.** Let side S down a live node d. Before it does, all voters of S have
refused d their consent for `suspend_after`, plus a margin: they have the same flags as the node
that decides, and so find that d goes (`downing.resolver`). So d has no valid contact with any
member of S, and sees at least S as cut off. The strategies choose at most one of two disjoint
sides, so d is suspended. The margin covers clocks that are 2 % apart, and the longest time between
two checks of `valid_until`. A node that downs itself for its bad links ends its confirmation with
that.

**New members.** A member that joins has had no time to answer. It counts as in contact until this
node's confirmation from before would have ended.

**Not covered**: a member that an operator downs by hand; a confirmed death that a firewall
pretends by refusing connections (`failure.confirmed_death`); `none` and downing by timeout, which
never suspend. A node that is not Up hosts nothing, and is never suspended.

**Cost.** The heartbeats to the watched members are requests. If they are too rare, or there are
more members than a node watches, the node sends a heartbeat to the others three times in
`suspend_after`: with n members n / (suspend_after / 3) requests a second, and as many replies. In a
cluster of up to `PROMPT_MAX` members, one whose contact is half over is asked three times as often.

Not here: the wait of the survivors (`downing.resolver`), the gate in front of the entities
(`entities.gate`).

Source: docs/downing.md; S2.4, S4.13.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from math import inf

from msgspec.structs import replace

from shardbus.config.settings import ClusterSettings
from shardbus.ids import NodeId
from shardbus.membership.downing.split import Decision, DowningOutcome, survey
from shardbus.membership.downing.strategies import strategy_of
from shardbus.membership.gossip import ON_THE_WAY_OUT, STARTING, VOTING, Gossip
from shardbus.membership.member import Status
from shardbus.membership.reachability import Reachability
from shardbus.membership.view import HandlingResumed, HandlingSuspended

REQUESTS = 3
"""Requests to each member within `suspend_after`."""
STEPS = 16
"""Expiries are rounded down to this part of `suspend_after`, so that few splits are judged."""
DECISIONS_MAX = 64
"""Decisions that are kept."""
HOLD = 0.25
"""The part of `suspend_after` for which consent is refused after a flag was cleared."""
PROMPT_MAX = 64
"""In a cluster of at most this many members each change of the members is judged at once, and
members are asked again before their contact is over."""
NAMED_MAX = 5
"""Members named in the reason of a suspension."""


class Suspension:
    """Keeps the contacts of one node, and judges them."""

    def __init__(self, me: NodeId, settings: ClusterSettings) -> None:
        self.me = me
        self.lifetime = settings.contact_lifetime
        """Seconds for which a contact is valid."""
        self.valid_until = inf
        """The node's entities may handle messages before this time; -inf while it is suspended."""
        self.reason = ""
        """Why the node is suspended; empty while it is not."""
        self._downing = settings.downing
        self._decide = strategy_of(settings.downing) if settings.suspends else None
        self._beats = settings.failure_detector.heartbeat_interval
        self._contacts: dict[NodeId, float] = {}
        self._nodes: frozenset[NodeId] = frozenset()
        self._members: object = None
        self._refuses_until: dict[NodeId, float] = {}
        self._judged: Gossip | None = None
        self._decisions: dict[frozenset[NodeId], Decision] = {}
        """On `_judged`, by the members without contact: most judgements meet the same copy."""
        self._judge_at = -inf
        self._renewed = False
        self._suspended_at = 0.0
        self._ask_at: float | None = None
        self._again_at = -inf

    # -- requests ------------------------------------------------------------------------------

    @property
    def _interval(self) -> float:
        return self.lifetime / REQUESTS

    def deadline(self) -> float | None:
        """Return when `requests` is due; None while the heartbeats ask every member."""
        return self._ask_at

    def requests(
        self, members: Collection[NodeId], watched: Container[NodeId], now: float
    ) -> list[NodeId]:
        """Return the members to ask now, besides the heartbeats to the `watched` ones."""
        by_heartbeat = watched if self._beats <= self._interval else ()
        others = [node for node in members if node != self.me and node not in by_heartbeat]
        if self._decide is None or not others:
            self._ask_at = None
            return self._ask_again(members, now)
        if self._ask_at is not None and now < self._ask_at:
            return self._ask_again(members, now)
        self._ask_at = now + self._interval
        return others

    def _ask_again(self, members: Collection[NodeId], now: float) -> list[NodeId]:
        """Return the members whose contact is half over: their answers may have got lost."""
        if self._decide is None or len(members) > PROMPT_MAX or now < self._again_at:
            return []
        old = now - self.lifetime / 2
        aging = [n for n in members if n != self.me and self._contacts.get(n, now) <= old]
        if aging:
            self._again_at = now + self._interval / REQUESTS
        return aging

    def consents(self, gossip: Gossip, asker: NodeId, refused: bool, now: float) -> bool:
        """True if this node consents that the asker goes on. `refused`: the asker may have to
        go."""
        member = gossip.members.get(asker)
        if member is None or member.status in (Status.DOWN, Status.EXITING):
            return False
        if refused:
            self._refuses_until[asker] = now + HOLD * self.lifetime
            return False
        return now >= self._refuses_until.get(asker, -inf)

    def on_consent(self, node: NodeId, sent_at: float, now: float) -> None:
        """Record that the member consents, in its reply to a request that was sent then."""
        if sent_at <= now and sent_at > self._contacts.get(node, -inf) and node in self._nodes:
            self._contacts[node] = sent_at
            self._renewed = True

    def without_contact(self, now: float) -> frozenset[NodeId]:
        """Return the other members that have not consented for so long that they count as cut off;
        none where no node is ever suspended."""
        if self._decide is None:
            return frozenset()
        ended = now - self.lifetime
        return frozenset(n for n, at in self._contacts.items() if at <= ended and n != self.me)

    # -- judgement -----------------------------------------------------------------------------

    def update(self, gossip: Gossip, now: float) -> list[HandlingSuspended | HandlingResumed]:
        """Judge the contacts by this copy of the state. Return the changes."""
        changed = gossip.members is not self._members
        if self._decide is None or not self._due(gossip, changed, now):
            return []
        if changed:
            self._follow(gossip, now)
        self._renewed, self._judge_at = False, now + self.lifetime / STEPS
        mine = gossip.members.get(self.me)
        if mine is None or mine.status not in (*VOTING, Status.READY_FOR_SHUTDOWN):
            return self._confirm(inf, now)
        others = [
            node
            for node, member in gossip.members.items()
            if node != self.me and member.status not in ON_THE_WAY_OUT
        ]
        if gossip is not self._judged or len(self._decisions) > DECISIONS_MAX:
            self._judged, self._decisions = gossip, {}
        silent = {n for n in others if self._contacts.get(n, -inf) <= now - self.lifetime}
        if decision := self._objection(gossip, silent):
            return self._suspend(decision, sorted(silent), now)
        return self._confirm(self._end(gossip, others, silent, now), now)

    def close(self) -> None:
        """End the confirmation: this node is out."""
        self.valid_until = -inf

    def _due(self, gossip: Gossip, changed: bool, now: float) -> bool:
        return (
            now >= self._judge_at
            or (changed and len(gossip.members) <= PROMPT_MAX)
            or (bool(self.reason) and self._renewed and len(gossip.members) <= PROMPT_MAX)
        )

    def _follow(self, gossip: Gossip, now: float) -> None:
        """Forget members that have gone. Take new ones as in contact, as described above."""
        self._members = gossip.members
        before, self._nodes = self._nodes, frozenset(gossip.members)
        trusted = now if self.valid_until == inf else self.valid_until - self.lifetime
        kept = {n: at for n, at in self._contacts.items() if n in self._nodes}
        new = dict.fromkeys((n for n in gossip.members if n not in before), trusted)
        self._contacts = {**new, **kept}
        self._refuses_until = {n: t for n, t in self._refuses_until.items() if n in self._nodes}

    def _end(
        self, gossip: Gossip, others: Collection[NodeId], silent: Collection[NodeId], now: float
    ) -> float:
        """Return the first expiry of contacts after which the answer is not «stay»."""
        step, gone = self.lifetime / STEPS, set(silent)
        expiries: dict[int, list[NodeId]] = {}
        for node in others:
            if node not in gone:
                left = self._contacts[node] + self.lifetime - now
                expiries.setdefault(int(left / step), []).append(node)
        for steps in sorted(expiries):
            gone.update(expiries[steps])
            if self._objection(gossip, gone):
                return now + steps * step
        return inf

    def _objection(self, gossip: Gossip, silent: Collection[NodeId]) -> Decision | None:
        """Return the decision if these members were cut off, unless it is that this side stays."""
        if self._decide is None or all(gossip.members[n].status in STARTING for n in silent):
            return None
        cut_off = frozenset(silent)
        decision = self._decisions.get(cut_off)
        if decision is None:
            calm = replace(gossip, reachability=Reachability())
            decision = self._decide(survey(calm, self.me, self._downing.role, cut_off))
            self._decisions[cut_off] = decision
        stays = decision.outcome is DowningOutcome.DOWN_OTHERS and self.me not in decision.down
        return None if stays else decision

    def _confirm(self, until: float, now: float) -> list[HandlingSuspended | HandlingResumed]:
        self.valid_until = until
        if not self.reason:
            return []
        self.reason = ""
        return [HandlingResumed(now - self._suspended_at)]

    def _suspend(
        self, decision: Decision, silent: list[NodeId], now: float
    ) -> list[HandlingSuspended | HandlingResumed]:
        self.valid_until = -inf
        first = not self.reason
        self.reason = f"{self._describe(silent, now)}; {decision.rule}: {decision.reason}"
        if not first:
            return []
        self._suspended_at = now
        return [HandlingSuspended(self.reason, tuple(silent))]

    def _describe(self, silent: list[NodeId], now: float) -> str:
        """Name the members without contact, each with the age of its last consent."""
        ages = []
        for node in silent[:NAMED_MAX]:
            at = self._contacts.get(node, -inf)
            ages.append(f"{node} (never)" if at == -inf else f"{node} ({now - at:.1f} s)")
        more = f" and {len(silent) - NAMED_MAX} more" if len(silent) > NAMED_MAX else ""
        return f"no consent of {', '.join(ages)}{more}"
