"""When to decide about a split, and by whom.

    a member is flagged      ──> wait until nothing has changed for stable_after ──> decide
    a member is proved gone  ──> the leader sweeps everybody else ──> decide at once about the gone

The leader carries out «down the others» and asks for the lease; every node carries out «down
ourselves», so that a losing side does not depend on its leader. A lease that is not granted, or not
answered for in time, is a lost split.

Not here: what is decided (`downing`), probes (`confirm`).

Source: S1.31, B.31, B.32, B.35; DESIGN section 5; T.U17.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardbus.ids import NodeId
from shardbus.membership.confirm import ProbeOutcome, Sweep
from shardbus.membership.downing import Decision, Outcome, Split, keep_majority, survey
from shardbus.membership.events import AcquireLease
from shardbus.membership.gossip import Gossip
from shardbus.settings import DowningSettings

LEASE_WITHIN = 5.0
"""Seconds for the answer of the store."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. A decision is final: whoever is in its `down` is to be marked Down."""

    probe: tuple[NodeId, ...] = ()
    ask: AcquireLease | None = None
    decision: Decision | None = None


@dataclass(slots=True)
class Asked:
    """A lease that was asked for."""

    decision: Decision
    split: Split
    ends_at: float


class Resolver:
    """Watches the pictures that gossip gives and says when to act on a split."""

    def __init__(self, me: NodeId, settings: DowningSettings) -> None:
        self.me = me
        self.settings = settings
        self.enabled = settings.strategy != "none"
        self.changed_at = 0.0
        self._considered_at = 0.0
        self._picture: object = None
        self._split = Split()
        self._sweep: Sweep | None = None
        self._asked: Asked | None = None

    def deadline(self) -> float | None:
        """When `consider` may have something new to say."""
        if not (self._split.cut or self._split.broken):
            return None
        times = [self.changed_at + self.settings.stable_after]
        if self._asked:
            times.append(self._asked.ends_at)
        return min((t for t in times if t > self._considered_at), default=None)

    def on_probe(self, node: NodeId, outcome: ProbeOutcome) -> None:
        """A probe ended, perhaps one of the sweep."""
        if self._sweep:
            self._sweep.on_result(node, outcome)

    def on_lease(self, name: str, granted: bool | None) -> Plan:
        """The store answered."""
        asked = self._asked
        if asked is None or asked.decision.lease != name:
            return Plan()
        self._asked = None
        if granted:
            won = f"{asked.decision.reason}; this side has the lease"
            decision = replace(asked.decision, outcome=Outcome.DOWN_OTHERS, reason=won)
            return Plan(decision=decision)
        why = "the store cannot be reached" if granted is None else "the other side has the lease"
        lost = f"{asked.decision.reason}; {why}"
        return Plan(decision=Decision(Outcome.DOWN_OURSELVES, asked.split.side, name, lost))

    def consider(self, gossip: Gossip, leading: bool, now: float) -> Plan:
        """What to do about this copy of the state."""
        if not self.enabled:
            return Plan()
        self._considered_at = now
        self._look(gossip, now)
        split = self._split
        if not split.cut and not split.broken:
            return Plan()
        if self._asked is not None:
            return self.on_lease(self._asked.decision.lease, None) if self._late(now) else Plan()
        if leading and split.gone:
            plan = self._hurry(gossip, now)
            if plan != Plan():
                return plan
        if now < self.changed_at + self.settings.stable_after:
            return Plan()
        decision = keep_majority(split)
        if decision.outcome is not Outcome.DOWN_OURSELVES and not leading:
            return Plan()
        return self._act(decision, split, now)

    def _look(self, gossip: Gossip, now: float) -> None:
        picture = (
            tuple((node, member.status) for node, member in gossip.members.items()),
            tuple(gossip.records()),
        )
        if picture != self._picture:
            self._picture, self.changed_at = picture, now
            self._sweep = self._asked = None
        self._split = survey(gossip, self.me, self.settings.role)

    def _late(self, now: float) -> bool:
        return self._asked is not None and now >= self._asked.ends_at

    def _hurry(self, gossip: Gossip, now: float) -> Plan:
        """Some are proved gone: sweep, and decide as soon as the doubtful cannot matter."""
        if self._sweep is None:
            others = [n for n in self._split.side if n != self.me and n not in gossip.verdicts()]
            self._sweep = Sweep(dict.fromkeys(others))
            if others:
                return Plan(probe=tuple(others))
        doubtful = self._sweep.doubtful()
        split = survey(gossip, self.me, self.settings.role, doubtful)
        decision = keep_majority(split)
        clear = split.gone == split.cut
        if not clear and decision.outcome is not Outcome.DOWN_OTHERS:
            return Plan()
        if decision.outcome is not Outcome.DOWN_OURSELVES:
            decision = replace(decision, down=split.gone)
        return self._act(decision, split, now)

    def _act(self, decision: Decision, split: Split, now: float) -> Plan:
        if decision.outcome is not Outcome.ASK_LEASE:
            return Plan(decision=decision)
        self._asked = Asked(decision, split, now + LEASE_WITHIN)
        return Plan(ask=AcquireLease(decision.lease, str(self.me), self.settings.lease_ttl))
