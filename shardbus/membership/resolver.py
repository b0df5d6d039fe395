"""When to decide about a split, and by whom.

    a member is flagged      ──> wait until nothing has changed for stable_after ──> decide
    all found a member gone  ──> the leader sweeps everybody else ──> decide at once about the gone
    flags come and go        ──> no wait ends: after a while everybody downs itself

The leader carries out «down the others» and asks for the lease; every node carries out «down
ourselves», so that a losing side does not depend on its leader. A lease that is not granted, or not
answered for in time, is a lost split. The lease of an equal split belongs to the side, not to the
node: while news travels, two of one side may both believe that they lead it.

**Later for the winner.** With `down_removal_margin` the others are downed so much later than the
losers go, since the losers' entities need time to stop before they are started here. Members that
are proved gone have stopped.

**Starved.** A process that was stopped as a whole wakes with old news: flags of a past in which
others may have decided about it. It waits until its own failure detector has had the time to notice
who does not talk to it any more, and then for stable_after.

**Unstable.** A network that flaps shows each node other pictures, by which two sides could both
win. So everybody goes if no picture has lasted within stable_after and three quarters of it (at
least 4 s), and the set of unreachable members has changed more than twice since the split began,
once at least back. Members that only fall away, one after the other, are no flapping, nor are more
observers who say the same.

The lease of lease-majority has one name for all splits, so it must outlast the moment at which the
last side of this split asks for it: its ttl is longer by the waits that a side may go through.

Not here: what is decided (`downing`, `strategies`), probes (`confirm`).

Source: S1.31, B.31-B.34, B.39; docs/architecture.md; T.U17.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from shardbus.ids import NodeId
from shardbus.membership.auto_down import AutoDown
from shardbus.membership.confirm import ProbeOutcome, Sweep
from shardbus.membership.downing import Decision, Outcome, Split, survey
from shardbus.membership.events import AcquireLease
from shardbus.membership.gossip import Gossip
from shardbus.membership.strategies import LEASE, Strategy, lease_owner, strategy_of, unstable
from shardbus.settings import DowningSettings

LEASE_WITHIN = 5.0
"""Seconds for the answer of the store."""
LEAST_UNREST = 4.0
TOLERATED_CHANGES = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. A decision is final: whoever is in its `down` is to be marked Down."""

    probe: tuple[NodeId, ...] = ()
    ask: AcquireLease | None = None
    decision: Decision | None = None


@dataclass(slots=True)
class Asked:
    """A lease that was asked for. If it is granted, the decision is carried out at `act_at`."""

    decision: Decision
    ends_at: float
    act_at: float


@dataclass(slots=True)
class Unrest:
    """Since when no picture has lasted, how often the set of unreachable members has changed, and
    whether a member has become reachable again in that time."""

    since: float
    changes: int = 1
    back: bool = False

    @property
    def flaps(self) -> bool:
        return self.back and self.changes > TOLERATED_CHANGES


class Resolver:
    """Watches the pictures that gossip gives and says when to act on a split."""

    def __init__(self, me: NodeId, settings: DowningSettings) -> None:
        self.me = me
        self.settings = settings
        self.changed_at = 0.0
        after = settings.unsafe_auto_down_after
        self._auto = AutoDown(me, after) if after else None
        self._decide = None if after else strategy_of(settings)
        self._patience = settings.stable_after + max(LEAST_UNREST, 0.75 * settings.stable_after)
        self._doubt_until = 0.0
        self._considered_at = 0.0
        self._looked_at: Gossip | None = None
        self._picture: object = None
        self._unreachable: frozenset[NodeId] = frozenset()
        self._split = Split()
        self._unrest: Unrest | None = None
        self._sweep: Sweep | None = None
        self._asked: Asked | None = None
        self._won: Asked | None = None

    def deadline(self) -> float | None:
        """When `consider` may have something new to say."""
        if self._auto:
            return self._auto.deadline()
        if not (self._split.cut or self._split.broken):
            return None
        settings = self.settings
        times = [self._settled_at, self._settled_at + settings.down_removal_margin]
        if settings.strategy == "lease-majority":
            times.append(self._settled_at + settings.acquire_lease_delay_for_minority)
        if self._asked:
            times.append(self._asked.ends_at)
        if self._won:
            times.append(self._won.act_at)
        if self._unrest and self._unrest.flaps:
            times.append(self._unrest.since + self._patience)
        return min((t for t in times if t > self._considered_at), default=None)

    def on_probe(self, node: NodeId, outcome: ProbeOutcome) -> None:
        """A probe ended, perhaps one of the sweep."""
        if self._sweep:
            self._sweep.on_result(node, outcome)

    def on_starved(self, doubt_until: float) -> None:
        """This node's own timer was late; what it knows may be old until that time."""
        self._doubt_until = doubt_until

    def on_lease(self, name: str, granted: bool | None) -> Plan:
        """The store answered."""
        asked = self._asked
        if asked is None or asked.decision.lease != name:
            return Plan()
        self._asked = None
        before = asked.decision
        if granted:
            won = f"{before.reason}; this side has the lease"
            decision = replace(before, outcome=Outcome.DOWN_OTHERS, reason=won)
            if asked.act_at > self._considered_at:
                self._won = replace(asked, decision=decision)
                return Plan()
            return Plan(decision=decision)
        why = "the store cannot be reached" if granted is None else "the other side has the lease"
        lost = f"{before.reason}; {why}"
        side = before.split.side
        outcome = Outcome.DOWN_OURSELVES
        return Plan(decision=replace(before, outcome=outcome, down=side, reason=lost))

    def consider(self, gossip: Gossip, leading: bool, now: float) -> Plan:
        """What to do about this copy of the state."""
        if self._auto:
            return Plan(decision=self._auto.consider(gossip, leading, now))
        decide = self._decide
        if decide is None:
            return Plan()
        self._considered_at = now
        self._look(gossip, now)
        split = self._split
        if not split.cut and not split.broken:
            return Plan()
        if self._asked:
            late = now >= self._asked.ends_at
            return self.on_lease(self._asked.decision.lease, None) if late else Plan()
        if self._won:
            return Plan(decision=self._won.decision) if now >= self._won.act_at else Plan()
        if leading and split.gone:
            plan = self._hurry(decide, gossip, now)
            if plan != Plan():
                return plan
        if now < self._settled_at:
            return self._give_up(now)
        decision = decide(split)
        if decision.outcome is not Outcome.DOWN_OURSELVES and not leading:
            return Plan()
        margin = self.settings.down_removal_margin if split.cut else 0.0
        settled = self._settled_at
        return self._act(decision, settled + decision.delay, settled + margin, now)

    @property
    def _settled_at(self) -> float:
        return max(self.changed_at, self._doubt_until) + self.settings.stable_after

    def _look(self, gossip: Gossip, now: float) -> None:
        if gossip is self._looked_at:
            return
        self._looked_at = gossip
        statuses = tuple((node, member.status) for node, member in gossip.members.items())
        picture = (statuses, tuple(gossip.records()))
        whole = not gossip.verdicts()
        self._split = Split() if whole else survey(gossip, self.me, self.settings.role)
        if picture == self._picture:
            return
        self._count(frozenset(gossip.verdicts()), now)
        self._picture, self.changed_at = picture, now
        self._sweep = self._asked = self._won = None

    def _count(self, unreachable: frozenset[NodeId], now: float) -> None:
        before, self._unreachable = self._unreachable, unreachable
        if not self._split.cut and not self._split.broken:
            self._unrest = None
        elif self._unrest is None or now >= self._settled_at:
            self._unrest = Unrest(now)
        elif unreachable != before:
            self._unrest.changes += 1
            self._unrest.back = self._unrest.back or not before <= unreachable

    def _give_up(self, now: float) -> Plan:
        """No picture has lasted yet: is it time to stop waiting for one?"""
        unrest = self._unrest
        if (
            unrest is None
            or not unrest.flaps
            or now < unrest.since + self._patience
            or not self.settings.down_all_when_unstable
        ):
            return Plan()
        rule = self.settings.strategy
        return Plan(decision=unstable(self._split, rule, now - unrest.since))

    def _hurry(self, decide: Strategy, gossip: Gossip, now: float) -> Plan:
        """Some are proved gone: sweep, and decide as soon as the doubtful cannot matter."""
        if self._sweep is None:
            others = [n for n in self._split.side if n != self.me and n not in gossip.verdicts()]
            self._sweep = Sweep(dict.fromkeys(others))
            if others:
                return Plan(probe=tuple(others))
        doubtful = self._sweep.doubtful()
        split = survey(gossip, self.me, self.settings.role, doubtful)
        decision = decide(split)
        gone = self._split.gone
        clear = gone == split.cut
        if decision.delay or (not clear and decision.outcome is not Outcome.DOWN_OTHERS):
            return Plan()
        if decision.outcome is not Outcome.DOWN_OURSELVES:
            decision = replace(decision, down=gone)
        return self._act(decision, now, now, now)

    def _act(self, decision: Decision, ask_at: float, act_at: float, now: float) -> Plan:
        """Carry it out, or ask whether to. A lease is asked for from `ask_at` on, others are downed
        from `act_at` on."""
        match decision.outcome:
            case Outcome.ASK_LEASE if now >= ask_at:
                self._asked = Asked(decision, now + LEASE_WITHIN, act_at)
                shared = decision.lease != LEASE
                owner = lease_owner(decision.split) if shared else str(self.me)
                return Plan(ask=AcquireLease(decision.lease, owner, self._ttl(decision)))
            case Outcome.DOWN_OTHERS if now < act_at:
                return Plan()
            case Outcome.DOWN_OTHERS | Outcome.DOWN_OURSELVES:
                return Plan(decision=decision)
            case Outcome.ASK_LEASE | Outcome.NOTHING:
                return Plan()
            case _:
                assert_never(decision.outcome)

    def _ttl(self, decision: Decision) -> float:
        settings = self.settings
        if decision.lease != LEASE:
            return settings.lease_ttl
        waits = 2 * settings.stable_after + LEAST_UNREST
        return settings.lease_ttl + waits + settings.acquire_lease_delay_for_minority
