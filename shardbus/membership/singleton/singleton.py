"""One instance in the whole cluster, on the oldest member with a role: when to start it, and when
to let it go.

Age decides, and every node computes it alike from what gossip says. But views differ for a moment,
and the oldest that leaves still lives. So the next one asks it first, and starts when it has heard
that the other's instance has stopped:

       ┌────────────────────────young─────────────────────┐
       v                                                  │
    YOUNGER ──next──> BECOMING_OLDEST ──clear, late──> OLDEST ──leaving──> WAS_OLDEST
       └──────────────────clear──────────────────────────^                     │ asked, last, late
                                                                               v
                                   ENDED <──over, late── HANDING_OVER <────────┘
    and to ENDED from everywhere: who leaves without an instance, and who is downed, at once.

- *Who is waited for* is a question of its own (`elders`): older members that leave, not dead ones.
- *While it waits*, the next oldest has its instance ready, short of the claim; and the leaving one
  goes on ruling until it is asked. What is left of the gap is one round trip and one claim.
- *Every wait ends.* Questions are repeated, since the other one's view may lag behind. Whoever gets
  no word in `SILENCE_S`, or no end in `PATIENCE_S`, goes on without.
- *Nothing here is needed for safety.* The instance claims an epoch before it does anything, and the
  store and its peers refuse a lower one. A lost message, or a wrong guess, costs a moment in which
  two believe that they rule, under different epochs.
- A member gets a higher number than every other as it comes up, so no newcomer is older than the
  oldest. The oldest keeps its instance until it leaves, or until its own membership makes it the
  youngest because its application is stalled (`YieldSeniority`). It then stops the instance at
  once, as soon as it can; the next oldest has not waited for it.
- While the cluster *prepares* to stop as a whole, nothing is handed over and nobody starts.

`TRANSITIONS` is the drawing as data. Not here: what the instance does, and how it claims its epoch.

Source: B.97, B.22, B.34, B.12, S0.18, S0.33, S2.80; T.G1-T.G7, T.G9, T.G10.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import assert_never

from shardbus.errors import LocalProtocolError
from shardbus.ids import NodeId
from shardbus.membership.member import Status
from shardbus.membership.singleton import messages as ho
from shardbus.membership.singleton.predecessors import SILENCE_S, WAY_OUT, Predecessors
from shardbus.membership.view import MembershipView

RETRY_S = 0.5
"""Between two questions without an answer."""

PATIENCE_S = 5.0
"""How long one is waited for that is finishing, and how long the leaving one waits to be asked."""

RETIRE_S = 3.0
"""How long an instance may take to finish; then it is stopped. Less than PATIENCE_S."""

RESTART_S = 1.0
"""Before an instance that ended by itself is started again."""


class SingletonState(Enum):
    """Where one node stands."""

    YOUNGER = "younger"
    BECOMING_OLDEST = "becoming oldest"
    OLDEST = "oldest"
    WAS_OLDEST = "was oldest"
    HANDING_OVER = "handing over"
    ENDED = "ended"


class SingletonTrigger(Enum):
    """What moves it on."""

    NEXT = "the oldest that stays; an older one may still rule"
    CLEAR = "the oldest, and no older one rules"
    LATE = "waited for long enough"
    PASSED = "not to rule after all"
    LEAVING = "leaves, another one is next"
    LAST = "leaves, nobody is waited for"
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
"""The states in which an instance runs here."""


class Singleton:
    """One node's part in one singleton. `handle`, `deadline`, `tick`, `check`.

    Args:
        name: whose epochs count, in the picture's `epochs`.
        me: this node.
        role: only members with it take part; empty is all.
        removal_margin: seconds, see `elders`; 0 is off.
    """

    def __init__(self, name: str, me: NodeId, role: str = "", removal_margin: float = 0.0) -> None:
        self.state = SingletonState.YOUNGER
        self._name, self._me = name, me
        self._predecessors = Predecessors(name, me, role, removal_margin)
        self._preparing = self._left = self._downed = False
        self._askers: dict[NodeId, None] = {}
        self._told: NodeId | None = None
        self._asked_at: float | None = None
        self._retry_at: float | None = None
        self._until: float | None = None
        self._restart_at: float | None = None
        self._out: list[ho.Effect] = []

    @property
    def epoch(self) -> int:
        """The highest known, of this node's instance or another's."""
        return self._predecessors.epoch

    @property
    def ending(self) -> bool:
        """An instance here is on its way out, and has not stopped yet."""
        return self.state in (SingletonState.WAS_OLDEST, SingletonState.HANDING_OVER)

    def handle(self, event: ho.Event, now: float) -> list[ho.Effect]:
        """Take in one event."""
        match event:
            case ho.MembershipSeen(view, preparing):
                self._preparing = preparing
                self._look(view, now)
            case ho.HandOverReceived(sender, message):
                self._on_message(sender, message)
            case ho.InstanceStarted(epoch):
                self._predecessors.epoch = max(self.epoch, epoch)
            case ho.InstanceStopped():
                self._on_over(now)
            case ho.MembershipEnded(gracefully):
                self._left, self._downed = gracefully, not gracefully
            case _:
                assert_never(event)
        return self._settle(now)

    def deadline(self) -> float | None:
        """When `tick` is due."""
        times = [self._retry_at, self._until, self._restart_at]
        if self.state is SingletonState.BECOMING_OLDEST and not self._predecessors.awaited():
            times.append(self._predecessors.held_until())
        return min((t for t in times if t is not None), default=None)

    def tick(self, now: float) -> list[ho.Effect]:
        """Ask again, or wait no more."""
        if self._restart_at is not None and now >= self._restart_at:
            self._restart_at = None
            self._out.append(ho.StartInstance(self.epoch))
        if self._until is not None and now >= self._until:
            self._out_of_patience(now)
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = now + RETRY_S
            self._ask()
        return self._settle(now)

    def check(self) -> None:
        """Audit; for tests."""
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

    # What happens.

    def _look(self, view: MembershipView, now: float) -> None:
        before, after = self._predecessors.view.status, view.status
        self._predecessors.look(view, now)
        if before is not None and after is None:
            self._left = before in WAY_OUT
            self._downed = not self._left
        self._downed = self._downed or after is Status.DOWN
        for node in [node for node in self._askers if view.member(node) is None]:
            del self._askers[node]

    def _on_message(self, sender: NodeId, message: ho.Message) -> None:
        if not self._predecessors.hear(sender, message):
            return
        match message:
            case ho.HandOverToMe():
                self._askers[sender] = None
                if self.state is SingletonState.HANDING_OVER:
                    self._tell(sender, ho.HandOverInProgress(self.epoch))
                elif self.state is SingletonState.ENDED:
                    self._tell(sender, ho.HandOverDone(self.epoch))
            case ho.HandOverInProgress():
                if self.state is SingletonState.BECOMING_OLDEST and self._asked_at is not None:
                    self._until = self._asked_at + PATIENCE_S
            case ho.TakeOverFromMe():
                if self.state in (SingletonState.BECOMING_OLDEST, SingletonState.OLDEST):
                    self._tell(sender, ho.HandOverToMe(self.epoch))
            case ho.HandOverDone():
                pass
            case _:
                assert_never(message)

    def _on_over(self, now: float) -> None:
        if self.state is SingletonState.OLDEST:
            self._restart_at = now + RESTART_S
        elif self.ending:
            self._turn(SingletonTrigger.OVER, now)

    def _out_of_patience(self, now: float) -> None:
        self._until = None
        if self.state is SingletonState.BECOMING_OLDEST:
            self._predecessors.give_up()
        else:
            self._turn(SingletonTrigger.LATE, now)

    # What follows.

    def _settle(self, now: float) -> list[ho.Effect]:
        if self.state is SingletonState.YOUNGER:
            self._predecessors.forget(now)
        elif self.state is SingletonState.BECOMING_OLDEST and self._until is None:
            self._predecessors.give_up()  # patience is over; nobody is waited for anew
        while (cue := self._cue(now)) is not None:
            self._turn(cue, now)
        if self.state is SingletonState.WAS_OLDEST and self._told != self._predecessors.successor():
            self._ask()
        effects, self._out = self._out, []
        return effects

    def _cue(self, now: float) -> SingletonTrigger | None:
        """What moves this node on, as things stand."""
        state, successor = self.state, self._predecessors.successor()
        leaves = self._left or self._predecessors.view.status in WAY_OUT
        if state is SingletonState.ENDED or state is SingletonState.HANDING_OVER:
            return (
                SingletonTrigger.DOWNED
                if self._downed and state is SingletonState.HANDING_OVER
                else None
            )
        if self._downed:
            return SingletonTrigger.DOWNED
        if leaves:
            if state is SingletonState.WAS_OLDEST and self._askers:
                return SingletonTrigger.ASKED
            if self._left or self._preparing or successor is None:
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
        return SingletonTrigger.LATE if self._predecessors.gave_up else SingletonTrigger.CLEAR

    def _turn(self, cue: SingletonTrigger, now: float) -> None:
        """Into the next state, with what it begins with.

        Raises:
            LocalProtocolError: the drawing has no such arrow. Nothing changed.
        """
        before, after = self.state, TRANSITIONS.get((self.state, cue))
        if after is None:
            raise LocalProtocolError(f"singleton {self._name!r}: {cue.value!r} in {before.value!r}")
        self.state = after
        self._retry_at = self._until = self._restart_at = None
        self._out.append(ho.SingletonStateChanged(before.value, after.value, cue.value))
        match after:
            case SingletonState.YOUNGER:
                self._out.append(ho.HaltInstance())
            case SingletonState.BECOMING_OLDEST:
                self._asked_at, self._until, self._retry_at = now, now + SILENCE_S, now + RETRY_S
                self._ask()
                self._out.append(ho.PrepareInstance())
            case SingletonState.OLDEST:
                self._out.append(ho.StartInstance(self.epoch))
            case SingletonState.WAS_OLDEST:
                self._until, self._retry_at = now + PATIENCE_S, now + RETRY_S
            case SingletonState.HANDING_OVER:
                self._until = now + RETIRE_S
                for asker in self._askers:
                    self._tell(asker, ho.HandOverInProgress(self.epoch))
                self._out.append(ho.RetireInstance())
            case SingletonState.ENDED:
                self._end(before, cue)
            case _:
                assert_never(after)

    def _end(self, before: SingletonState, cue: SingletonTrigger) -> None:
        if before is not SingletonState.YOUNGER and cue is not SingletonTrigger.OVER:
            self._out.append(ho.HaltInstance())
        if cue is SingletonTrigger.DOWNED:
            return
        told = dict(self._askers)
        successor = self._predecessors.successor()
        if before in RULING and successor is not None and not self._preparing:
            told[successor] = None
        for node in told:
            self._tell(node, ho.HandOverDone(self.epoch))

    def _ask(self) -> None:
        predecessors = self._predecessors
        if self.state is SingletonState.BECOMING_OLDEST:
            for node in predecessors.awaited():
                if predecessors.view.member(node) is not None:
                    self._tell(node, ho.HandOverToMe(self.epoch))
        elif self.state is SingletonState.WAS_OLDEST:
            self._told = predecessors.successor()
            if self._told is not None:
                self._tell(self._told, ho.TakeOverFromMe(self.epoch))

    def _tell(self, node: NodeId, message: ho.Message) -> None:
        self._out.append(ho.SendHandOver(node, message))
