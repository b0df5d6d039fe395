"""The lease of an epoch, by which one side of a split is chosen, as one node requests it.

    no request ──its turn──> requested ──granted──> granted ──act_at──> the decision is carried out
        ^                      │  └──refused, or no node reaches the store──> this side goes
        └──picture is another──┴──no answer to this node: the next node asks

The lease of an epoch is acquired for good: no node renews or releases it. A lease that is refused
is a lost split. If the store does not answer within `LEASE_ANSWER_S`, the next node of the side
asks: one alone may have lost the store. Its turn comes when a decision by the one before would have
been carried out and seen, for `LEASE_ANSWER_S`; after the last turn the side goes. A lease that is
granted too late, because the picture has changed since the request, is not acted upon: its epoch is
spread without any decision, so that a later request uses the next epoch.

Source: B.33; docs/architecture.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardbus.bounds import EPOCH_MAX
from shardbus.ids import NodeId
from shardbus.membership.downing.split import Decision, DowningOutcome, lease_of
from shardbus.membership.events import AcquireLease

LEASE_ANSWER_S = 5.0
"""Seconds within which the store must answer."""
LEASE_TTL_S = 1e9
"""Seconds for which the lease of an epoch is acquired: thirty years."""


@dataclass(frozen=True, slots=True)
class DowningPlan:
    """The actions to take now. A decision is final: mark the members in its `down` as Down. `epoch`
    ends with the decision, and is spread in the same version; 0 is none."""

    probe: tuple[NodeId, ...] = ()
    ask: AcquireLease | None = None
    decision: Decision | None = None
    epoch: int = 0


@dataclass(slots=True)
class LeaseRequest:
    """A request for the lease of this epoch. If it is granted, the decision is carried out at
    `act_at`."""

    decision: Decision
    epoch: int
    ends_at: float
    act_at: float


@dataclass(slots=True)
class LeaseTurn:
    """This node's turn to request a lease. `since`: since when its side asks; `at`: when the turn
    comes, or without one more turn the side gives up; `in_vain`: this node has asked, and the store
    has not answered."""

    since: float | None = None
    at: float = 0.0
    in_vain: bool = False


class SplitLease:
    """One node's requests. `epoch`: the last one by which a split was decided."""

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self.epoch = 0
        self.unused = 0
        """The epoch of a lease that was granted, and not acted upon."""
        self._requested: LeaseRequest | None = None
        self._granted: LeaseRequest | None = None
        self._turn = LeaseTurn()

    def deadlines(self) -> list[float]:
        """Return the times at which something is due."""
        times = [self._turn.at]
        if self._requested:
            times.append(self._requested.ends_at)
        if self._granted:
            times.append(self._granted.act_at)
        return times

    def end(self) -> None:
        """End the request: the picture is another one."""
        self.unused = self._granted.epoch if self._granted else 0
        self._requested = self._granted = None
        self._turn = LeaseTurn()

    def under_way(self, now: float) -> DowningPlan | None:
        """Return the actions for the request under way, None without one."""
        if self._requested:
            late = now >= self._requested.ends_at
            return self._on_no_answer(self._requested.decision) if late else DowningPlan()
        if self._granted and now >= self._granted.act_at:
            return DowningPlan(decision=self._granted.decision, epoch=self._granted.epoch)
        return DowningPlan() if self._granted else None

    def on_result(self, name: str, granted: bool | None, now: float) -> DowningPlan:
        """Handle the store's answer. None: the store could not be reached."""
        request = self._requested
        if request is None or lease_of(request.epoch) != name:
            unused = granted and not self._granted and lease_of(self.epoch + 1) == name
            return DowningPlan(epoch=self.epoch + 1) if unused else DowningPlan()
        if granted is None:
            return self._on_no_answer(request.decision)
        self._requested = None
        if not granted:
            return give_up(request.decision, "the other side has the lease")
        reason = f"{request.decision.reason}; this side has the lease"
        outcome = DowningOutcome.DOWN_OTHERS
        decision = replace(request.decision, outcome=outcome, reason=reason)
        if request.act_at > now:
            self._granted = replace(request, decision=decision)
            return DowningPlan()
        return DowningPlan(decision=decision, epoch=request.epoch)

    def _on_no_answer(self, decision: Decision) -> DowningPlan:
        self._requested = None
        if len(decision.split.askers) > 1:
            self._turn.in_vain = True
            return DowningPlan()  # the turn of the next one follows
        return give_up(decision, "the store cannot be reached")

    def ask(self, decision: Decision, ask_at: float, act_at: float, now: float) -> DowningPlan:
        """Ask for the lease when it is this node's turn. The next one's begins when the decision of
        the one before would have been carried out, and seen."""
        if now < ask_at:
            return DowningPlan()
        askers, turn = decision.split.askers, self._turn
        turn.since = now if turn.since is None else turn.since
        mine = self._me in askers and not turn.in_vain
        place = askers.index(self._me) if mine else len(askers)
        turn.at = max(turn.since, act_at) + place * LEASE_ANSWER_S if place else ask_at
        if now < turn.at:
            return DowningPlan()
        if not mine:
            return give_up(decision, "the store has answered no node of this side")
        epoch = self.epoch + 1
        if epoch > EPOCH_MAX:
            return give_up(decision, "the last epoch is used up")
        self._requested = LeaseRequest(decision, epoch, now + LEASE_ANSWER_S, act_at)
        return DowningPlan(ask=AcquireLease(lease_of(epoch), str(self._me), LEASE_TTL_S))


def give_up(decision: Decision, why: str) -> DowningPlan:
    """Down this side, for that reason."""
    outcome, side = DowningOutcome.DOWN_OURSELVES, decision.split.side
    reason = f"{decision.reason}; {why}"
    return DowningPlan(decision=replace(decision, outcome=outcome, down=side, reason=reason))
