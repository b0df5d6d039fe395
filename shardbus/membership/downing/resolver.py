"""When to decide about a split, and by whom.

    a member is flagged      ──> wait until nothing has changed for stable_after ──> decide
    links of our side fail   ──> the same, but who must go goes by itself
    all found a member gone  ──> leader, speaker sweep the others ──> decide about the gone at once
    flags come and go        ──> no wait ends: after a while everybody downs itself

The leader carries out «down the others», the speaker of the side asks for the lease. Every node of
a side that goes carries out «down ourselves», so that it does not depend on its leader.

**Cut off for as long.** One that is flagged counts as cut off until it has seen the version, so
each new version makes it look so for a moment, though it may be with us; and if its last link to us
broke a moment ago, nobody has flagged that yet. So nobody is decided about who has not been cut off
for stable_after.

**Whose votes.** Some member may be heard by us, but not hear us, and stand with the others. It is
not flagged, and has no part in our picture. So the leader carries out «down the others» once all
that vote here have seen the picture; those who have not after some patience count as cut off.

**Bad links.** Whoever must go for the links of our side to work knows what we know, and downs
itself. If we did it, and the last of its links broke just then, it would not hear of it, and decide
about the split that it sees. Only one that has not gone after some patience is downed by the
others: it is starved, perhaps. If members are cut off as well, the side decides about all of them
together, and whoever must go for its links goes by itself if nobody has after that patience. For
where all that are left are such, the one who was to decide may have died, and nobody noticed: it
was flagged before.

**The lease** of an epoch is taken for good: nobody renews it or gives it back. One that is not
granted, or not answered for in time, is a lost split. One that is granted too late, because the
picture has changed since it was asked for, is not acted upon: its epoch is spread without any
marks, so that others may ask for the next one.

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

Not here: what is decided (`downing`, `strategies`), probes (`confirm`).

Source: S1.31, B.31-B.34, B.39; docs/architecture.md; T.U17.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import assert_never

from shardbus.config.settings import DowningSettings
from shardbus.ids import NodeId
from shardbus.membership.downing.auto_down import AutoDown
from shardbus.membership.downing.split import (
    EPOCHS,
    Decision,
    DowningOutcome,
    Split,
    lease_of,
    survey,
)
from shardbus.membership.downing.strategies import Strategy, strategy_of, unstable
from shardbus.membership.events import AcquireLease
from shardbus.membership.failure.confirmed_death import ProbeOutcome, Sweep
from shardbus.membership.gossip import VOTING, Gossip

LEASE_WITHIN = 5.0
"""Seconds for the answer of the store."""
FOR_GOOD = 1e9
"""For so many seconds the lease of an epoch is taken: thirty years."""
LEAST_UNREST = 4.0
TOLERATED_CHANGES = 2


@dataclass(frozen=True, slots=True)
class DowningPlan:
    """What to do now. A decision is final: whoever is in its `down` is to be marked Down. `epoch`
    is over with that, and is to be spread in the same version; 0: none is."""

    probe: tuple[NodeId, ...] = ()
    ask: AcquireLease | None = None
    decision: Decision | None = None
    epoch: int = 0


@dataclass(slots=True)
class LeaseRequest:
    """The lease of this epoch was asked for. If it is granted, the decision is carried out at
    `act_at`."""

    decision: Decision
    epoch: int
    ends_at: float
    act_at: float


@dataclass(slots=True)
class Instability:
    """Since when no picture has lasted, how often the set of unreachable members has changed, and
    whether a member has become reachable again in that time."""

    since: float
    changes: int = 1
    back: bool = False

    @property
    def flaps(self) -> bool:
        return self.back and self.changes > TOLERATED_CHANGES


class Resolver:
    """Watches the pictures that gossip gives and says when to act on a split. `born`: whether
    a copy of the state allows members to be Up, or to become so; all do if it is not given."""

    def __init__(
        self, me: NodeId, settings: DowningSettings, *, born: Callable[[Gossip], bool] | None = None
    ) -> None:
        self.me = me
        self.settings = settings
        self._born = born
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
        self._cut_since: dict[NodeId, float] = {}
        self._aware: frozenset[NodeId] = frozenset()
        self._unrest: Instability | None = None
        self._sweep: Sweep | None = None
        self._asked: LeaseRequest | None = None
        self._won: LeaseRequest | None = None
        self._epoch = 0
        self._unused = 0

    def deadline(self) -> float | None:
        """When `consider` may have something new to say."""
        if self._auto:
            return self._auto.deadline()
        if not (self._split.cut or self._split.broken):
            return None
        settings = self.settings
        times = [self._settled_at, self._settled_at + settings.down_removal_margin]
        times.append(self._settled_at + self._patience)
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

    def on_lease(self, name: str, granted: bool | None) -> DowningPlan:
        """The store answered."""
        asked = self._asked
        if asked is None or lease_of(asked.epoch) != name:
            unused = granted and not self._won and lease_of(self._epoch + 1) == name
            return DowningPlan(epoch=self._epoch + 1) if unused else DowningPlan()
        self._asked = None
        before = asked.decision
        if granted:
            won = f"{before.reason}; this side has the lease"
            decision = replace(before, outcome=DowningOutcome.DOWN_OTHERS, reason=won)
            if asked.act_at > self._considered_at:
                self._won = replace(asked, decision=decision)
                return DowningPlan()
            return DowningPlan(decision=decision, epoch=asked.epoch)
        why = "the store cannot be reached" if granted is None else "the other side has the lease"
        lost = f"{before.reason}; {why}"
        side = before.split.side
        outcome = DowningOutcome.DOWN_OURSELVES
        return DowningPlan(decision=replace(before, outcome=outcome, down=side, reason=lost))

    def consider(self, gossip: Gossip, leading: bool, now: float) -> DowningPlan:
        """What to do about this copy of the state."""
        if self._auto:
            return DowningPlan(decision=self._auto.consider(gossip, leading, now))
        decide = self._decide
        if decide is None:
            return DowningPlan()
        self._considered_at = now
        self._look(gossip, now)
        split = self._split
        if self._unused > self._epoch:
            return DowningPlan(epoch=self._unused)
        if not split.cut and not split.broken:
            return DowningPlan()
        if self._asked:
            late = now >= self._asked.ends_at
            return self.on_lease(lease_of(self._asked.epoch), None) if late else DowningPlan()
        if self._won:
            won = DowningPlan(decision=self._won.decision, epoch=self._won.epoch)
            return won if now >= self._won.act_at else DowningPlan()
        if split.gone and (leading or split.speaker == self.me):
            plan = self._hurry(decide, gossip, leading, now)
            if plan != DowningPlan():
                return plan
        if now < self._settled_at:
            return self._give_up(now)
        decision, since = decide(split), self._settled_at
        if split.cut:
            plan = self._resolve(decide, decision, gossip, leading, now)
            late = now >= since + self._patience
            if plan == DowningPlan() and late and self.me in decision.down:
                return DowningPlan(decision=self._alone(decision))
            return plan
        if self.me in split.broken:
            return DowningPlan(
                decision=replace(decision, outcome=DowningOutcome.DOWN_OURSELVES, down=(self.me,))
            )
        since += self._patience
        return self._act(decision, leading, since, since, now)

    def _resolve(
        self, decide: Strategy, decision: Decision, gossip: Gossip, leading: bool, now: float
    ) -> DowningPlan:
        """A picture with members cut off has settled."""
        since = self._settled_at
        if decision.outcome is DowningOutcome.DOWN_OTHERS and (unaware := self._unaware(gossip)):
            if not leading or now < since + self._patience:
                return DowningPlan()
            decision = decide(self._survey(gossip, unaware))
        margin = self.settings.down_removal_margin
        return self._act(decision, leading, since + decision.delay, since + margin, now)

    def _survey(self, gossip: Gossip, doubtful: Iterable[NodeId] = ()) -> Split:
        unborn = self._born is not None and not self._born(gossip)
        return survey(gossip, self.me, self.settings.role, doubtful, unborn=unborn)

    def _alone(self, decision: Decision) -> Decision:
        """Nobody has carried it out. Whatever comes of it, this node goes: its links are bad. Where
        everybody who is left is such a node, those who should act have died unnoticed, for they
        were flagged already."""
        reason = f"{decision.reason}; this node's links are bad, and nobody has decided"
        me = (self.me,)
        return replace(decision, outcome=DowningOutcome.DOWN_OURSELVES, down=me, reason=reason)

    @property
    def _settled_at(self) -> float:
        quiet = max(self.changed_at, self._doubt_until, *self._cut_since.values())
        return quiet + self.settings.stable_after

    def _unaware(self, gossip: Gossip) -> list[NodeId]:
        return [
            node
            for node in self._split.side
            if gossip.members[node].status in VOTING and node not in self._aware
        ]

    def _look(self, gossip: Gossip, now: float) -> None:
        if gossip is self._looked_at:
            return
        self._looked_at = gossip
        statuses = tuple((node, member.status) for node, member in gossip.members.items())
        self._epoch = gossip.epochs.get(EPOCHS, 0)
        picture = (statuses, tuple(gossip.records()), self._epoch)
        whole = not gossip.verdicts()
        self._split = Split() if whole else self._survey(gossip)
        lasted = now >= self._settled_at
        self._cut_since = {node: self._cut_since.get(node, now) for node in self._split.cut}
        if picture == self._picture:
            self._aware |= gossip.seen
            return
        self._count(frozenset(gossip.verdicts()), lasted, now)
        self._picture, self.changed_at, self._aware = picture, now, gossip.seen
        self._unused = self._won.epoch if self._won else 0
        self._sweep = self._asked = self._won = None

    def _count(self, unreachable: frozenset[NodeId], lasted: bool, now: float) -> None:
        before, self._unreachable = self._unreachable, unreachable
        if not self._split.cut and not self._split.broken:
            self._unrest = None
        elif self._unrest is None or lasted:
            self._unrest = Instability(now)
        elif unreachable != before:
            self._unrest.changes += 1
            self._unrest.back = self._unrest.back or not before <= unreachable

    def _give_up(self, now: float) -> DowningPlan:
        """No picture has lasted yet: is it time to stop waiting for one?"""
        unrest = self._unrest
        if (
            unrest is None
            or not unrest.flaps
            or now < unrest.since + self._patience
            or not self.settings.down_all_when_unstable
        ):
            return DowningPlan()
        rule = self.settings.strategy
        return DowningPlan(decision=unstable(self._split, rule, now - unrest.since))

    def _hurry(self, decide: Strategy, gossip: Gossip, leading: bool, now: float) -> DowningPlan:
        """Some are proved gone: sweep, and decide as soon as the doubtful cannot matter."""
        if self._sweep is None:
            others = [n for n in self._split.side if n != self.me and n not in gossip.verdicts()]
            self._sweep = Sweep(dict.fromkeys(others))
            if others:
                return DowningPlan(probe=tuple(others))
        doubtful = self._sweep.doubtful()
        split = self._survey(gossip, doubtful)
        decision = decide(split)
        gone = self._split.gone
        clear = gone == split.cut
        if decision.delay or (not clear and decision.outcome is not DowningOutcome.DOWN_OTHERS):
            return DowningPlan()
        if decision.outcome is not DowningOutcome.DOWN_OURSELVES:
            decision = replace(decision, down=gone)
        return self._act(decision, leading, now, now, now)

    def _act(
        self, decision: Decision, leading: bool, ask_at: float, act_at: float, now: float
    ) -> DowningPlan:
        """This node's part in it: carry it out, or ask whether to. A lease is asked for from
        `ask_at` on, others are downed from `act_at` on."""
        match decision.outcome:
            case DowningOutcome.ASK_LEASE:
                if decision.split.speaker != self.me or now < ask_at:
                    return DowningPlan()
                epoch = self._epoch + 1
                self._asked = LeaseRequest(decision, epoch, now + LEASE_WITHIN, act_at)
                return DowningPlan(ask=AcquireLease(lease_of(epoch), str(self.me), FOR_GOOD))
            case DowningOutcome.DOWN_OTHERS:
                return (
                    DowningPlan(decision=decision) if leading and now >= act_at else DowningPlan()
                )
            case DowningOutcome.DOWN_OURSELVES:
                return DowningPlan(decision=decision)
            case DowningOutcome.NOTHING:
                return DowningPlan()
            case _:
                assert_never(decision.outcome)
