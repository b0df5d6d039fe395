"""A cluster singleton: one instance, on the oldest member with a role. When it starts, and when it
is handed over.

Age decides, and every node computes it from gossip alone. But views differ for a moment, and the
oldest node that leaves is still alive. So the next oldest asks it first, and starts when it has
confirmed that its instance has stopped:

       ┌────────────────────────young─────────────────────┐
       v                                                  │
    YOUNGER ──next──> BECOMING_OLDEST ──clear, late──> OLDEST ──leaving──> WAS_OLDEST
       └──────────────────clear──────────────────────────^                     │ asked, last, late
                                                                               v
                                   ENDED <──over, late── HANDING_OVER <────────┘
    and to ENDED at once from every state: a node that leaves without an instance, or is downed.

- *Members without the entity type* take no part. So the oldest that has it rules.
- *Which nodes are awaited* is decided in `predecessors`: older members that leave, not dead ones.
- *While it waits*, the next oldest prepares its instance, up to the claim of an epoch. The leaving
  node keeps working until it is asked. The rest of the gap is one round trip and one claim.
- *Every wait ends.* Requests are repeated, since the other node's view may lag. A node that gets no
  message within `silence_timeout`, or no end within `hand_over_timeout`, goes on without it. A node
  that is next once more, after another one was, asks and waits anew.
- *Safety does not depend on this.* The instance claims an epoch before it works, and the store and
  its peers refuse a lower one. A lost message or a wrong guess costs a moment in which two
  instances work, under different epochs, and one of them is refused.
- A member gets a higher number than every other as it comes up, so no newcomer is older than the
  oldest. The oldest keeps its instance until it leaves, or until its own membership makes it the
  youngest because its application is stalled (`YieldSeniority`). It then halts the instance as soon
  as it can; the next oldest has not waited for it.
- While the whole cluster *prepares* to stop, nothing is handed over and no instance starts.

`TRANSITIONS` is the drawing as data. Not here: the instance's work, and how it claims its epoch.

Source: B.97, B.22, B.34, B.12, S0.18, S0.33, S2.80.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import assert_never

from shardbus.config.settings import SingletonSettings
from shardbus.ids import NodeId
from shardbus.membership.member import Member, Status
from shardbus.membership.singleton import messages as ho
from shardbus.membership.singleton.predecessors import WAY_OUT, Predecessors
from shardbus.membership.view import MembershipView
from shardbus.transitions import following


class SingletonState(Enum):
    """The state of one node's part."""

    YOUNGER = "younger"
    BECOMING_OLDEST = "becoming oldest"
    OLDEST = "oldest"
    WAS_OLDEST = "was oldest"
    HANDING_OVER = "handing over"
    ENDED = "ended"


class SingletonTrigger(Enum):
    """The triggers of a transition."""

    NEXT = "the oldest member that stays; an older one may still have it"
    CLEAR = "the oldest member, and no other node has it"
    LATE = "waited for long enough"
    PASSED = "not to rule after all"
    LEAVING = "leaves, another one is next"
    LAST = "leaves, no node is awaited"
    ASKED = "asked to hand over"
    OVER = "the instance has ended"
    YOUNG = "not the oldest any more"
    DOWNED = "downed"


TRANSITIONS: Mapping[tuple[SingletonState, SingletonTrigger], SingletonState] = {
    (SingletonState.YOUNGER, SingletonTrigger.NEXT): SingletonState.BECOMING_OLDEST,
    (SingletonState.YOUNGER, SingletonTrigger.CLEAR): SingletonState.OLDEST,
    (SingletonState.YOUNGER, SingletonTrigger.LEAVING): SingletonState.ENDED,
    (SingletonState.YOUNGER, SingletonTrigger.LAST): SingletonState.ENDED,
    (SingletonState.YOUNGER, SingletonTrigger.DOWNED): SingletonState.ENDED,
    (SingletonState.BECOMING_OLDEST, SingletonTrigger.CLEAR): SingletonState.OLDEST,
    (SingletonState.BECOMING_OLDEST, SingletonTrigger.LATE): SingletonState.OLDEST,
    (SingletonState.BECOMING_OLDEST, SingletonTrigger.PASSED): SingletonState.YOUNGER,
    (SingletonState.BECOMING_OLDEST, SingletonTrigger.LEAVING): SingletonState.ENDED,
    (SingletonState.BECOMING_OLDEST, SingletonTrigger.LAST): SingletonState.ENDED,
    (SingletonState.BECOMING_OLDEST, SingletonTrigger.DOWNED): SingletonState.ENDED,
    (SingletonState.OLDEST, SingletonTrigger.YOUNG): SingletonState.YOUNGER,
    (SingletonState.OLDEST, SingletonTrigger.LEAVING): SingletonState.WAS_OLDEST,
    (SingletonState.OLDEST, SingletonTrigger.LAST): SingletonState.HANDING_OVER,
    (SingletonState.OLDEST, SingletonTrigger.DOWNED): SingletonState.ENDED,
    (SingletonState.WAS_OLDEST, SingletonTrigger.ASKED): SingletonState.HANDING_OVER,
    (SingletonState.WAS_OLDEST, SingletonTrigger.LAST): SingletonState.HANDING_OVER,
    (SingletonState.WAS_OLDEST, SingletonTrigger.LATE): SingletonState.HANDING_OVER,
    (SingletonState.WAS_OLDEST, SingletonTrigger.OVER): SingletonState.ENDED,
    (SingletonState.WAS_OLDEST, SingletonTrigger.DOWNED): SingletonState.ENDED,
    (SingletonState.HANDING_OVER, SingletonTrigger.OVER): SingletonState.ENDED,
    (SingletonState.HANDING_OVER, SingletonTrigger.LATE): SingletonState.ENDED,
    (SingletonState.HANDING_OVER, SingletonTrigger.DOWNED): SingletonState.ENDED,
}


RULING = (SingletonState.OLDEST, SingletonState.WAS_OLDEST, SingletonState.HANDING_OVER)
"""The states in which an instance works here."""
SUCCESSORS = 3
"""How many of the next oldest get HandOverDone: those before the last may leave as well, unseen."""


class Singleton:
    """One node's part in one singleton. `handle`, `deadline`, `tick`, `check`.

    Args:
        name: the entity type; only members that may have it take part.
        me: this node.
        role: only members with it take part; empty is all.
        removal_margin: seconds, see `predecessors`; 0 is off.
        settings: the waits of a hand-over; section `cluster.singleton`.
    """

    def __init__(
        self,
        name: str,
        me: NodeId,
        role: str = "",
        removal_margin: float = 0.0,
        settings: SingletonSettings | None = None,
    ) -> None:
        self.state = SingletonState.YOUNGER
        self._name, self._me = name, me
        self._waits = settings = settings or SingletonSettings()
        self._predecessors = Predecessors(name, me, role, removal_margin, settings.silence_timeout)
        self._preparing = self._has_left = self._downed = False
        self._requesters: dict[NodeId, None] = {}
        self._requested: NodeId | None = None
        self._asked_at: float | None = None
        self._retry_at: float | None = None
        self._until: float | None = None
        self._restart_at: float | None = None
        self._out: list[ho.Effect] = []

    @property
    def epoch(self) -> int:
        """The highest epoch known, of this node's instance or another's."""
        return self._predecessors.epoch

    @property
    def ending(self) -> bool:
        """True if an instance here is being handed over and has not stopped yet."""
        return self.state in (SingletonState.WAS_OLDEST, SingletonState.HANDING_OVER)

    def may_have_type(self, member: Member) -> bool:
        """True unless the member is known not to have the entity type."""
        return self._predecessors.may_have_type(member)

    def handle(self, event: ho.Event, now: float) -> list[ho.Effect]:
        """Handle one event."""
        match event:
            case ho.MembershipSeen(view, preparing):
                self._preparing = preparing
                self._on_view(view, now)
            case ho.HandOverReceived(sender, message):
                self._on_message(sender, message)
            case ho.TypeMissing(node):
                self._predecessors.on_type_missing(node)
            case ho.InstanceStarted(epoch):
                self._predecessors.epoch = max(self.epoch, epoch)
            case ho.InstanceStopped():
                self._on_instance_stopped(now)
            case ho.MembershipEnded(gracefully):
                self._has_left, self._downed = gracefully, not gracefully
            case _:
                assert_never(event)
        return self._settle(now)

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        times = [self._retry_at, self._until, self._restart_at]
        if self.state is SingletonState.BECOMING_OLDEST and not self._predecessors.awaited():
            times.append(self._predecessors.held_until())
        return min((t for t in times if t is not None), default=None)

    def tick(self, now: float) -> list[ho.Effect]:
        """Repeat requests, and end waits that have lasted for too long."""
        if self._restart_at is not None and now >= self._restart_at:
            self._restart_at = None
            self._out.append(ho.StartInstance(self.epoch))
        if self._until is not None and now >= self._until:
            self._on_timeout(now)
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = now + self._waits.hand_over_retry_interval
            self._send_request()
        return self._settle(now)

    def check(self) -> None:
        """Audit the state. For tests."""
        waits = (
            SingletonState.BECOMING_OLDEST,
            SingletonState.WAS_OLDEST,
            SingletonState.HANDING_OVER,
        )
        if self.state in waits:
            assert self.deadline() is not None, f"{self.state.value} without a deadline"
        else:
            assert self._until is None
            assert self._retry_at is None
        assert self._restart_at is None or self.state is SingletonState.OLDEST

    # Events.

    def _on_view(self, view: MembershipView, now: float) -> None:
        before, after = self._predecessors.view.status, view.status
        self._predecessors.on_view(view, now)
        if before is not None and after is None:
            self._has_left = before in WAY_OUT
            self._downed = not self._has_left
        self._downed = self._downed or after is Status.DOWN
        for node in [node for node in self._requesters if view.member(node) is None]:
            del self._requesters[node]

    def _on_message(self, sender: NodeId, message: ho.Message) -> None:
        if not self._predecessors.on_message(sender, message):
            return
        match message:
            case ho.HandOverToMe():
                self._requesters[sender] = None
                if self.state is SingletonState.HANDING_OVER:
                    self._send(sender, ho.HandOverInProgress(self.epoch))
                elif self.state is SingletonState.ENDED:
                    self._send(sender, ho.HandOverDone(self.epoch))
            case ho.HandOverInProgress():
                if self.state is SingletonState.BECOMING_OLDEST and self._asked_at is not None:
                    self._until = self._asked_at + self._waits.hand_over_timeout
            case ho.TakeOverFromMe():
                if self.state in (SingletonState.BECOMING_OLDEST, SingletonState.OLDEST):
                    self._send(sender, ho.HandOverToMe(self.epoch))
            case ho.HandOverDone():
                pass
            case _:
                assert_never(message)

    def _on_instance_stopped(self, now: float) -> None:
        if self.state is SingletonState.OLDEST:
            self._restart_at = now + self._waits.restart_backoff
        elif self.ending:
            self._transition(SingletonTrigger.OVER, now)

    def _on_timeout(self, now: float) -> None:
        self._until = None
        if self.state is SingletonState.BECOMING_OLDEST:
            self._predecessors.time_out()
        else:
            self._transition(SingletonTrigger.LATE, now)

    # Consequences.

    def _settle(self, now: float) -> list[ho.Effect]:
        if self.state is SingletonState.YOUNGER:
            self._predecessors.expire(now)
        elif self.state is SingletonState.BECOMING_OLDEST and self._until is None:
            self._predecessors.time_out()  # the patience is over: await no further node
        while (trigger := self._next_trigger(now)) is not None:
            self._transition(trigger, now)
        if (
            self.state is SingletonState.WAS_OLDEST
            and self._requested != self._predecessors.successor()
        ):
            self._send_request()
        effects, self._out = self._out, []
        return effects

    def _next_trigger(self, now: float) -> SingletonTrigger | None:
        """Return the trigger of the next transition, or None."""
        state, successor = self.state, self._predecessors.successor()
        leaves = self._has_left or self._predecessors.view.status in WAY_OUT
        if state is SingletonState.ENDED or state is SingletonState.HANDING_OVER:
            return (
                SingletonTrigger.DOWNED
                if self._downed and state is SingletonState.HANDING_OVER
                else None
            )
        if self._downed:
            return SingletonTrigger.DOWNED
        if leaves:
            if state is SingletonState.WAS_OLDEST and self._requesters:
                return SingletonTrigger.ASKED
            if self._has_left or self._preparing or successor is None:
                return SingletonTrigger.LAST
            return None if state is SingletonState.WAS_OLDEST else SingletonTrigger.LEAVING
        if state is SingletonState.WAS_OLDEST:
            return None
        if state is SingletonState.OLDEST:
            outranked = successor not in (self._me, None) and not self._preparing
            return SingletonTrigger.YOUNG if outranked else None
        if successor != self._me or self._preparing:
            return SingletonTrigger.PASSED if state is SingletonState.BECOMING_OLDEST else None
        if self._predecessors.awaited() or now < (self._predecessors.held_until() or now):
            return SingletonTrigger.NEXT if state is SingletonState.YOUNGER else None
        return SingletonTrigger.LATE if self._predecessors.timed_out else SingletonTrigger.CLEAR

    def _transition(self, trigger: SingletonTrigger, now: float) -> None:
        """Enter the next state, with the effects of entering it.

        Raises:
            LocalProtocolError: the table has no such transition. Nothing changed.
        """
        before = self.state
        after = following(TRANSITIONS, before, trigger, f"singleton {self._name!r}")
        self.state = after
        self._retry_at = self._until = self._restart_at = None
        self._out.append(ho.SingletonStateChanged(before.value, after.value, trigger.value))
        match after:
            case SingletonState.YOUNGER:
                self._predecessors.begin_anew()
                self._out.append(ho.HaltInstance())
            case SingletonState.BECOMING_OLDEST:
                self._asked_at, self._until, self._retry_at = (
                    now,
                    now + self._waits.silence_timeout,
                    now + self._waits.hand_over_retry_interval,
                )
                self._send_request()
                self._out.append(ho.PrepareInstance())
            case SingletonState.OLDEST:
                self._out.append(ho.StartInstance(self.epoch))
            case SingletonState.WAS_OLDEST:
                self._until, self._retry_at = (
                    now + self._waits.hand_over_timeout,
                    now + self._waits.hand_over_retry_interval,
                )
            case SingletonState.HANDING_OVER:
                self._until = now + self._waits.retire_timeout
                for requester in self._requesters:
                    self._send(requester, ho.HandOverInProgress(self.epoch))
                self._out.append(ho.RetireInstance())
            case SingletonState.ENDED:
                self._end(before, trigger)
            case _:
                assert_never(after)

    def _end(self, before: SingletonState, trigger: SingletonTrigger) -> None:
        if before is not SingletonState.YOUNGER and trigger is not SingletonTrigger.OVER:
            self._out.append(ho.HaltInstance())
        if trigger is SingletonTrigger.DOWNED:
            return
        receivers = dict(self._requesters)
        if before in RULING and not self._preparing:
            receivers |= dict.fromkeys(self._predecessors.successors(SUCCESSORS))
        for node in receivers:
            self._send(node, ho.HandOverDone(self.epoch))

    def _send_request(self) -> None:
        predecessors = self._predecessors
        if self.state is SingletonState.BECOMING_OLDEST:
            for node in predecessors.awaited():
                if predecessors.view.member(node) is not None:
                    self._send(node, ho.HandOverToMe(self.epoch))
        elif self.state is SingletonState.WAS_OLDEST:
            self._requested = predecessors.successor()
            if self._requested is not None:
                self._send(self._requested, ho.TakeOverFromMe(self.epoch))

    def _send(self, node: NodeId, message: ho.Message) -> None:
        self._out.append(ho.SendHandOver(node, message))
