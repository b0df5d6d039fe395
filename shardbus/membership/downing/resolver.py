"""The split-brain resolver: when a node decides about a split, and which node carries it out.

    a member is flagged       ──> wait until no change for stable_after (`picture`) ──> decide
    links of our side fail    ──> wait likewise; the member that must go downs itself
    our side found one gone   ──> leader and speaker probe the others (a sweep) ──> decide at once
    flags come and go         ──> no wait ends: after a limit each node downs its own side

The leader carries out «down others». The speaker, the first voter of the side, requests the lease.
Every node of a losing side carries out «down ourselves», so that it does not depend on its leader,
for itself and for the members of its side that have lost others too. One that has lost none may
stand with the others, which this node alone does not hear: it decides for itself.

**How long cut off.** A flagged member counts as cut off until it has seen the version, so each new
version makes it look cut off for a moment, though it may be on our side. If its last link to us has
just broken, no observer has flagged that yet. So the resolver decides about no member that has been
cut off for less than `stable_after`.

**Unaware voters.** A member may reach us without being reached by us, and stand with the other
side. It is not flagged, and is missing from the split. So the leader carries out «down others» once
all voters of its side have seen the picture, and the speaker requests the lease then, or earlier if
the side has more votes than all others without the unaware ones. Voters that have not seen it
within the patience count as cut off. So do voters that this node has lost contact with meanwhile
(`suspension`): their links have broken after they had seen the picture.

**Suspended first.** A live member may be downed only once it is surely suspended: its entities
start elsewhere at that moment. The voters of this side refuse it their consent (`refuses`), so the
side waits until each of its voters has done so for `suspended_within` seconds; a lease that is
granted earlier is carried out then. Members that are proved gone need no such wait.

    the asker, in this voter's picture               the voter refuses
    cut off, and the voter itself does not reach it  at once
    cut off, and only others report that             after CONSENT_GRACE: it may answer in a moment
    on this side, and must go for its bad links      after CONSENT_GRACE if members are cut off too,
                                                     else once the picture has lasted; also while it
                                                     looks cut off, as with each new version
    on this side otherwise, by any flag              never

    was cut off for SERIOUS_PART of stable_after     as long as a member that was on this side, and
                                                     may have decided, flags it, and is not cut off
                                                     itself for longer than its contact lasts

So a node that flags all others, or accuses them, suspends none of them.

**Bad links.** A member that must go because of its links has the same information, and downs
itself. If its side did it, and its last link broke just then, it would not receive the decision,
and decide about the split that it sees. The side downs it only if it is still there after the
patience: it may lack CPU time. If members are cut off as well, the side decides about all of them
together. A member with bad links also goes by itself if no node has decided within the patience:
where only such members are left, the node that should decide may have died unnoticed, because it
was flagged already.

**Outnumbered.** A node that hears no other is more probably at fault than all of them, and may have
noticed first: the others hear its last messages. So do fewer nodes that do not hear more. They ask
for a lease only later than other sides, by `noticed_within` and at least by the patience, so that
the nodes that hear each other have had their turn. In a cluster of two each node is alone, and
either may win.

**Who acts.** The leader of a copy may be a member that must go. The speaker stands in for it.

**The lease** of an epoch is requested once that is due, and acted upon later if it must
(`split_lease`).

**Removal margin.** With `down_removal_margin` the winning side downs the others that much later
than the losing side downs itself: the losers' entities need time to stop before they start on the
winning side. Members that are proved gone have stopped, and need no margin.

**Starved.** A process that was paused wakes up with outdated flags; others may have decided about
it meanwhile. It waits until its own failure detector has had the time to notice which members no
longer answer, and then for `stable_after`. Nor does it go because flags came and went meanwhile.

**Unstable.** On a flapping network each node sees another picture, and two sides could both win. So
a node that must go by its last picture goes if no picture has lasted within `stable_after` plus
three quarters of it (at least 4 s), unless a member has been cut off for a moment only. Every node
downs its side after twice that time (`flapping`).

Not here: which side stays (`split`, `strategies`), probes (`failure.confirmed_death`).

Source: S1.31, B.31-B.34, B.39; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import assert_never

from shardbus.config.settings import DowningSettings
from shardbus.ids import NodeId
from shardbus.membership.downing.auto_down import AutoDown
from shardbus.membership.downing.flapping import Flapping
from shardbus.membership.downing.lasting_faults import MOMENT_S, LastingFaults
from shardbus.membership.downing.links import Flags
from shardbus.membership.downing.picture import Change, SplitPicture, picture_of
from shardbus.membership.downing.split import (
    EPOCHS,
    MONITORED_BY,
    Decision,
    DowningOutcome,
    Preference,
    Split,
    survey,
)
from shardbus.membership.downing.split_lease import DowningPlan, SplitLease
from shardbus.membership.downing.strategies import Strategy, strategy_of, unstable
from shardbus.membership.failure.confirmed_death import ProbeOutcome, Sweep
from shardbus.membership.gossip import VOTING, Gossip
from shardbus.membership.leader import leader_of

INSTABILITY_LEAST_S = 4.0
"""Seconds, at least, that are added to `stable_after` before an unstable side downs itself."""
CONSENT_GRACE_PART, CONSENT_GRACE_MAX = 0.2, 1.0
"""The part of `suspended_within`, and the most seconds, for which a voter still consents to a
member that others report as cut off."""
SERIOUS_PART = 0.5
"""The part of `stable_after` after which a node of this side may decide about a member that is cut
off in another one's picture."""
LAST_RESORT = 2
"""The patience, as many times as this, after which an unstable side downs itself as a whole."""


class Resolver:
    """Follows the copies of the state, and plans when to act on a split. `has_started`: True if a
    copy allows members to be Up, or to become so; without it, every copy does. `suspended_within`:
    seconds after which a member that gets no consent is surely suspended. `noticed_within`: seconds
    by which others may notice later than this node that they do not reach each other.
    `without_contact`: the members that have not consented for too long (`suspension`)."""

    def __init__(
        self,
        me: NodeId,
        settings: DowningSettings,
        *,
        has_started: Callable[[Gossip], bool] | None = None,
        suspended_within: float = 0.0,
        noticed_within: float = 0.0,
        without_contact: Callable[[float], Collection[NodeId]] = lambda now: (),
        monitored_by: int = MONITORED_BY,
    ) -> None:
        self.me = me
        self.settings = settings
        self.suspended_within = suspended_within
        self.noticed_within = noticed_within
        self._without_contact = without_contact
        self._grace = min(CONSENT_GRACE_PART * suspended_within, CONSENT_GRACE_MAX)
        oldest = settings.strategy == "keep-oldest"
        self._preference = Preference(oldest, settings.down_if_alone, monitored_by)
        self._has_started = has_started
        self.changed_at = 0.0
        after = settings.unsafe_auto_down_after
        self._auto = AutoDown(me, after) if after else None
        self._decide = None if after else strategy_of(settings)
        self._patience = settings.stable_after + max(
            INSTABILITY_LEAST_S, 0.75 * settings.stable_after
        )
        self._doubt_until = 0.0
        self._considered_at = 0.0
        self._checked: Gossip | None = None
        self._picture: SplitPicture | None = None
        self._flags: frozenset[tuple[NodeId, NodeId]] = frozenset()
        """Observer and subject of each flag of the picture."""
        self._split = Split()
        self._faults = LastingFaults()
        self._hearsay = False
        """True if a node of this side has not found by itself that a member is cut off."""
        self._deciders: dict[NodeId, frozenset[NodeId]] = {}
        """The observers on this side that may have decided about a member that was cut off."""
        self._aware: dict[NodeId, float] = {}
        """The nodes that have seen the picture, each with the time of this node's first notice of
        it."""
        self._flapping = Flapping(me)
        self._sweep: Sweep | None = None
        self._lease = SplitLease(me)

    def deadline(self) -> float | None:
        """Return when `consider` may return something new."""
        if self._auto:
            return self._auto.deadline()
        if not (self._split.cut or self._split.broken):
            return None
        settings = self.settings
        times = [self._settled_at, self._settled_at + settings.down_removal_margin]
        times.append(self._settled_at + self._patience)
        times.append(self._harmless_at)
        times += [since + MOMENT_S for since in self._faults.blamed_since.values()]
        delay = settings.acquire_lease_delay_for_minority
        later = (delay,) if settings.strategy == "lease-majority" else ()
        times += [self._settled_at + at for at in later]
        if self._outnumbered:
            times += [self._settled_at + self._others_first + at for at in (0.0, *later)]
        times += self._lease.deadlines()
        if (since := self._flapping.flaps_since()) is not None:
            times += [since + self._patience, since + LAST_RESORT * self._patience]
        return min((t for t in times if t > self._considered_at), default=None)

    def on_probe(self, node: NodeId, outcome: ProbeOutcome) -> None:
        """Record a probe's outcome, if it belongs to the sweep."""
        if self._sweep:
            self._sweep.on_result(node, outcome)

    def on_starved(self, doubt_until: float) -> None:
        """Distrust flags until that time: this node's own timer was late. It has no count of how
        they came and went."""
        self._doubt_until = doubt_until
        self._flapping.end()

    def on_lease_result(self, name: str, granted: bool | None) -> DowningPlan:
        """Handle the store's answer. None: the store could not be reached."""
        return self._lease.on_result(name, granted, self._considered_at)

    def consider(self, gossip: Gossip, leading: bool, now: float) -> DowningPlan:
        """Return the actions for this copy of the state."""
        if self._auto:
            return DowningPlan(decision=self._auto.consider(gossip, leading, now))
        decide = self._decide
        if decide is None:
            return DowningPlan()
        self._considered_at = now
        self._update_picture(gossip, now)
        if self._faults.renewed(self.changed_at, now):
            self._begin(gossip, now)
            self._end_requests()
        split, lease = self._split, self._lease
        leading = leading or self._stands_in(gossip)
        if lease.unused > lease.epoch:
            return DowningPlan(epoch=lease.unused)
        if not split.cut and not split.broken:
            return DowningPlan()
        if (plan := lease.under_way(now)) is not None:
            return plan
        if split.gone and (leading or split.speaker == self.me):
            plan = self._decide_deaths(decide, gossip, leading, now)
            if plan != DowningPlan():
                return plan
        if now < self._settled_at:
            return self._check_instability(decide, now)
        self._flapping.end()
        decision, since = decide(split), self._settled_at
        if split.cut:
            plan = self._resolve(decide, decision, gossip, leading, now)
            late = now >= since + self._patience
            if plan == DowningPlan() and late and self.me in decision.down:
                return DowningPlan(decision=self._down_self(decision))
            return plan
        if self.me in split.broken:
            return DowningPlan(
                decision=replace(decision, outcome=DowningOutcome.DOWN_OURSELVES, down=(self.me,))
            )
        since = max(since + self._patience, self._harmless_at)
        return self._act(decision, leading, since, since, now)

    def refuses(self, node: NodeId, now: float) -> bool:
        """True if this voter does not consent that the node goes on."""
        if node in self._split.cut:
            grace = 0.0 if (self.me, node) in self._flags else self._grace
            if now >= self._faults.cut_since.get(node, now) + grace:
                return True
        for observer in self._deciders.get(node, ()):
            if (observer, node) in self._flags and not self._has_left_us(observer, now):
                return True
        lasts = self._grace if self._split.cut else self.settings.stable_after
        return node in self._faults.lately(self._split, now) and now >= self.changed_at + lasts

    def _has_left_us(self, observer: NodeId, now: float) -> bool:
        """True if this voter has refused an observer for so long that it decides nothing any more
        that counts this voter on its side."""
        since = self._faults.cut_since.get(observer, now)
        return now >= since + self._grace + self.suspended_within

    def _stands_in(self, gossip: Gossip) -> bool:
        """True if the leader must go, and this node speaks for the side."""
        split = self._split
        if split.speaker != self.me or not (split.cut or split.broken):
            return False
        return leader_of(gossip, self.me) in (*split.cut, *split.broken)

    def _resolve(
        self, decide: Strategy, decision: Decision, gossip: Gossip, leading: bool, now: float
    ) -> DowningPlan:
        """Decide about a settled picture with members cut off."""
        since = self._settled_at
        stays = decision.outcome in (DowningOutcome.DOWN_OTHERS, DowningOutcome.ASK_LEASE)
        if stays and (doubtful := self._doubtful(gossip, now)):
            acts = leading or decision.outcome is DowningOutcome.ASK_LEASE
            without = decide(self._survey(gossip, doubtful))
            if acts and now >= since + self._patience:
                decision = without
            elif self._outvotes(without):
                decision = replace(without, down=decision.down)
            else:
                return DowningPlan()
        elif decision.outcome is DowningOutcome.DOWN_OURSELVES:
            decision = replace(decision, down=self._losers(decision.down))
        act_at = max(since + self.settings.down_removal_margin, self._harmless_at)
        turn = self._others_first if self._outnumbered else 0.0
        return self._act(decision, leading, since + decision.delay + turn, act_at, now)

    def _outvotes(self, without: Decision) -> bool:
        """True if this side requests a lease, and has more votes than all others although the
        doubtful ones count as cut off."""
        asks = without.outcome is DowningOutcome.ASK_LEASE
        return asks and len(without.split.ours) > len(without.split.theirs)

    def _losers(self, side: Iterable[NodeId]) -> tuple[NodeId, ...]:
        """Return the members of a losing side that have lost others by their own account."""
        cut = frozenset(self._split.cut)
        lost = {observer for observer, subject in self._flags if subject in cut}
        return tuple(node for node in side if node == self.me or node in lost)

    def _survey(self, gossip: Gossip, doubtful: Iterable[NodeId] = ()) -> Split:
        unborn = self._has_started is not None and not self._has_started(gossip)
        role, preference = self.settings.role, self._preference
        return survey(gossip, self.me, role, doubtful, unborn=unborn, preference=preference)

    def _down_self(self, decision: Decision) -> Decision:
        """Decide that this node goes: its links are bad, and no other node has decided in time."""
        reason = f"{decision.reason}; this node's links are bad, and no node has decided"
        me = (self.me,)
        return replace(decision, outcome=DowningOutcome.DOWN_OURSELVES, down=me, reason=reason)

    @property
    def _settled_at(self) -> float:
        quiet = max(self.changed_at, self._doubt_until, self._faults.newest(self._split))
        return quiet + self.settings.stable_after

    @property
    def _harmless_at(self) -> float:
        """Return from when the members to be downed are surely suspended, as far as the voters of
        this side have seen the picture (`refuses`)."""
        split = self._split
        times = [self._aware.get(node, self.changed_at) for node in split.side]
        if not split.cut or not self._faults.were_broken.isdisjoint(split.cut):
            times = [at + self.settings.stable_after for at in times]
        elif self._hearsay or split.broken:
            times = [at + self._grace for at in times]
        return max(times, default=self.changed_at) + self.suspended_within

    @property
    def _others_first(self) -> float:
        """Seconds after which more nodes have had their turn: they may have noticed later, and may
        have waited for one of them that has not seen their picture."""
        return max(self.noticed_within, self._patience)

    @property
    def _outnumbered(self) -> bool:
        """True if this side has fewer members than those that are cut off. That they refuse all
        connections of so few proves no death: a firewall may stand before the few."""
        return len(self._split.side) < len(self._split.cut)

    def _doubtful(self, gossip: Gossip, now: float) -> list[NodeId]:
        """Return the voters of this side that have not seen the picture, or do not consent that
        this node goes on: it may have lost them, and they may stand with the others."""
        silent = self._without_contact(now)
        return [
            node
            for node in self._split.side
            if gossip.members[node].status in VOTING
            and node != self.me
            and (node not in self._aware or node in silent)
        ]

    def _update_picture(self, gossip: Gossip, now: float) -> None:
        if gossip is self._checked:
            return
        self._checked = gossip
        epoch = self._lease.epoch = gossip.epochs.get(EPOCHS, 0)
        picture = picture_of(gossip, self.me, self._preference.monitored_by, epoch)
        whole, split = not gossip.unreachable(), self._split
        self._split = Split() if whole else self._survey(gossip)
        lasted = now >= self._settled_at
        self._follow_cut(split, gossip.records(), now)
        before, self._picture = self._picture, picture
        self._faults.follow(split, self._split, picture.group, now)
        change = self._change(before)
        if before is None or picture.flags != before.flags or change is not Change.NONE:
            self._flags = frozenset((o, subject) for o, subject, _ in gossip.records())
            is_split = bool(self._split.cut or self._split.broken)
            self._flapping.follow(gossip, split=is_split, lasted=lasted, now=now)
        if change is not Change.NEW:
            self._aware = {**dict.fromkeys(gossip.seen, now), **self._aware}
        if change is Change.NONE:
            return
        if change is Change.NEW:
            self._begin(gossip, now)
        self._end_requests()

    def _begin(self, gossip: Gossip, now: float) -> None:
        """Begin the wait: the picture is another one."""
        self.changed_at, self._aware = now, dict.fromkeys(gossip.seen, now)
        group = self._picture.group if self._picture is not None else ()
        self._faults.begin(self._split, group, now)

    def _end_requests(self) -> None:
        self._sweep = None
        self._lease.end()

    def _change(self, before: SplitPicture | None) -> Change:
        """Return how the picture differs from the one before."""
        picture = self._picture
        if before is None or picture is None:
            return Change.NEW
        return picture.change_from(before, self._faults.in_both(self._split))

    def _follow_cut(self, before: Split, flags: Flags, now: float) -> None:
        """Note since when which members are cut off, and which nodes may have decided about
        others."""
        side, cut = frozenset(self._split.side), frozenset(self._split.cut)
        serious = now - SERIOUS_PART * self.settings.stable_after
        for node, since in self._faults.cut_since.items():
            if node not in cut and since <= serious:
                observers = (o for o in before.side if o != self.me and (o, node) in self._flags)
                self._deciders[node] = frozenset(observers)
        flagged = {(observer, subject) for observer, subject, _ in flags}
        self._deciders = {
            node: kept
            for node, observers in self._deciders.items()
            if (kept := frozenset(o for o in observers if (o, node) in flagged))
        }
        bad_links = sum(o in side and s in cut for o, s in flagged)
        self._hearsay = bad_links < len(side) * len(cut)

    def _check_instability(self, decide: Strategy, now: float) -> DowningPlan:
        """Return the decision to go if no picture has lasted for too long."""
        since, settings = self._flapping.flaps_since(), self.settings
        if since is None or now < since + self._patience or not settings.down_all_when_unstable:
            return DowningPlan()
        goes = unstable(self._split, settings.strategy, now - since)
        if now < since + LAST_RESORT * self._patience:
            decision = decide(self._split)
            serious = now - SERIOUS_PART * self.settings.stable_after
            passing = any(at > serious for at in self._faults.cut_since.values())
            asks = decision.outcome is DowningOutcome.ASK_LEASE
            if passing or asks or self.me not in decision.down:
                return DowningPlan()
            goes = replace(goes, down=(self.me,))
        return DowningPlan(decision=goes)

    def _decide_deaths(
        self, decide: Strategy, gossip: Gossip, leading: bool, now: float
    ) -> DowningPlan:
        """Sweep after members are proved gone, and decide as soon as the doubtful ones cannot
        matter."""
        if self._sweep is None:
            others = [n for n in self._split.side if n != self.me and n not in gossip.unreachable()]
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
        """Return this node's part: carry the decision out, or request the lease. A lease is
        requested from `ask_at` on; others are downed from `act_at` on."""
        match decision.outcome:
            case DowningOutcome.ASK_LEASE:
                return self._lease.ask(decision, ask_at, act_at, now)
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
