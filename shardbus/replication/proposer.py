"""The requests of one store object: loads, saves, reads and changes of keys, each at a majority.

An operation goes through rounds. A round is one request to each disk of the key; the answers of a
majority of them end it. Answers of two rounds, or of two rings, never count together.

             ┌──────── refused ───────┐
             v                        │
    start ─> PREPARING ──promised──> ACCEPTING ──accepted──> DONE
      │       ^  ^  │                 ^
      │       │  │  └─refused─> PAUSING ─> PREPARING, in a higher round
      │       │  └──the answers differ──┐
      ├───────┼────────────────> READING ──a majority agrees──> DONE
      └───────┼──our group──────────> ACCEPTING
              └──the ring changed, in any phase: nothing is accepted before a new promise

`TRANSITIONS` is the drawing as data. The operations differ in how they start, and in their use of
the newest row of a majority of promises (`_promised`):

    LoadState     prepares under its fence, and accepts the newest value: two rounds always
    SaveState     accepts its own value, at once in our group; the newest one if that has its id.
                  A save of a part of the row, at once only if our group has stored the newest
    ReadValue     reads; if no majority agrees on the newest value, prepares and accepts that
    ChangeValue   accepts function(newest), at once if our group has stored the newest

**Why a load takes two rounds.** A former owner's save may be on one disk. A load that does not see
it, and stores nothing, leaves it there as the newest: a later reader finds it, and it takes effect
after the load that excluded it. The second round puts the loaded value above it.

**Agreement.** A read needs no second round if a majority has accepted the newest value. A disk that
merges rows (`moves`, `repair`) may have a value below its promise, which it did not accept: a
prepared load that has not seen the value may still store the former one above it. So only rows
whose promise is their ballot agree.

**Groups.** After a majority's promise the group is ours: each value that was chosen before was in
the answers, and no other is chosen while no other store object prepares. So the next save, or the
next change of the value that we stored ourselves, needs no promise of its own. A refusal ends the
group.

**Repeats.** A request that is sent again keeps its ballot. A save that is called again after no
answer keeps it, too, while its group is ours: a disk that has it changes nothing. Otherwise the
save is prepared anew, in a higher round, and the newest value shows whether it was applied. Under a
new ballot in the same group it could take effect a second time, above a later save.

**Refusals.** A promise under a higher fence refuses a load or a save. The operation then settles:
under the fence that refused, it prepares above that promise and accepts the newest value. If that
value is its own, it is Completed. Otherwise it is Outdated: a value under the higher fence is
chosen, so the operation has *no effect from now on*. Its write under way may be in that value.

**Duels.** Two store objects that prepare one key refuse each other. Each pauses at random, for
longer each time. A `ChangeValue` with `patience` pauses that long if a higher fence has prepared.

**One operation at a time on a key.** The others wait here, in the order of `submit`.

**The driver** calls `submit` for each operation, `handle` for each reply, and `tick` at
`deadline()`; each returns effects:

    SendCall(disk, call)        send it, if there is a link to the disk: it may get lost
    Finished(ticket, outcome)   the operation is over; the ticket is the one of `submit`
    RingFound(ring)             connect to the disks of this ring

A disk's answer may come late, twice or never. `Unanswered` says whether a request was handed out:
if not, or if the driver had no link for all of them, the operation had no effect; otherwise it is
in doubt, and stays so. `session` must be random, and never used by another store object.

Source: docs/architecture.md; Lamport, "Paxos made simple"; Rystsov, "CASPaxos".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from enum import Enum
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from shardbus.backoff import doubling
from shardbus.replication import messages as msg
from shardbus.replication.ring import (
    AdoptRing,
    ReplicaRing,
    RingIs,
    RingWanted,
    StoreCall,
    StoreReply,
    majority,
    places_of,
)
from shardbus.replication.values import (
    STATE,
    AnyChange,
    Function,
    Reading,
    SaveChange,
    SavedReminders,
    StateValue,
    Value,
    Written,
    partition_of,
    saved,
)
from shardbus.transitions import following

RESEND_S, RESEND_MOST_S = 0.05, 1.0
"""Seconds without an answer after which a request is sent again, at first and at most."""
RESEND_ROUNDS = 4.0
"""The first of them, in usual durations of a round, if that is longer: a busy disk has the request,
and another one would only add to its load."""
PACE_WEIGHT = 1 / 16
"""The weight of the last round in the usual duration."""
PAUSE_S, PAUSE_MOST_S = 0.002, 1.0
"""Bounds of the pause after a refusal: drawn from 0 to the first, which doubles up to the last."""
RULER_PAUSE_S = 1.0
"""The `patience` of a ruler: the pause after a higher epoch was prepared."""
GROUPS_MAX = 200_000
"""Keys whose groups are remembered. A forgotten one costs a promise."""
_made = tuple.__new__
"""Makes a named tuple in half the time that its class takes."""


# -- operations ----------------------------------------------------------------------------------


class LoadState(NamedTuple):
    """Load an entity's state, refuse lower fences from now on, and end the time that it is idle.
    Result: StateValue or None."""

    fence: int


class SaveState(NamedTuple):
    """Save an entity's state; `data` None removes it. Result: None. `copies`: disks that must have
    it, if that is more than a majority. `reminders` None: they stay as they are."""

    fence: int
    op: int
    data: bytes | None
    copies: int = 0
    reminders: SavedReminders | None = None

    @property
    def change(self) -> SaveChange:
        """The save as a change of the row."""
        return SaveChange(self.op, self.data, self.reminders)


class ReadValue(NamedTuple):
    """Read a value. Result: a Reading."""


class ChangeValue(NamedTuple):
    """Compute a new value of the old one, and store it. Result: the function's result.

    The function may run several times, and find its own value as the old one: then it answers as
    the first time. `fence` is the lowest one to prepare under."""

    fence: int
    function: Function
    patience: float = 0.0


Operation = LoadState | SaveState | ReadValue | ChangeValue


# -- outcomes and effects ------------------------------------------------------------------------


class Completed(NamedTuple):
    """The operation took effect once, between its start and now."""

    result: object


class Outdated(NamedTuple):
    """A higher fence is stored: the operation has no effect from now on."""

    stored: int


class Unanswered(NamedTuple):
    """Too few disks answered in time. If a request was `sent`, it may have had its effect, or may
    have it later; otherwise it has none."""

    sent: bool


Outcome = Completed | Outdated | Unanswered


class SendCall(NamedTuple):
    """Send this to the disk."""

    disk: int
    call: StoreCall | AdoptRing


class Finished(NamedTuple):
    """The operation of this ticket is over."""

    ticket: Hashable
    outcome: Outcome


class RingFound(NamedTuple):
    """The proposer works under this ring from now on."""

    ring: ReplicaRing


Effect = SendCall | Finished | RingFound


# -- one operation -------------------------------------------------------------------------------


class ProposalPhase(Enum):
    """The step that an operation is in."""

    __hash__ = object.__hash__  # the one of Enum is no C function
    WAITING = "waiting"
    """For the operation before it on its key."""
    READING = "reading"
    PREPARING = "preparing"
    ACCEPTING = "accepting"
    PAUSING = "pausing"
    DONE = "done"


class ProposalTrigger(Enum):
    """The events that move an operation on."""

    __hash__ = object.__hash__
    READ = "read"
    PREPARE = "prepare"
    IN_OUR_GROUP = "in our group"
    AGREED = "a majority agrees"
    DIFFERED = "the answers differ"
    PROMISED = "promised"
    KEPT = "the value stays"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    RING_CHANGED = "the ring changed"
    PAUSED = "the pause is over"
    EXPIRED = "no time is left"


KEY_ANSWERS = (msg.Yes, msg.Promised, msg.No, msg.OtherBase, msg.RowShown)
REFUSALS = (msg.No, msg.OtherBase)

_P, _T = ProposalPhase, ProposalTrigger

TRANSITIONS: dict[tuple[ProposalPhase, ProposalTrigger], ProposalPhase] = {
    (_P.WAITING, _T.READ): _P.READING,
    (_P.WAITING, _T.PREPARE): _P.PREPARING,
    (_P.WAITING, _T.IN_OUR_GROUP): _P.ACCEPTING,
    (_P.WAITING, _T.EXPIRED): _P.DONE,
    (_P.READING, _T.AGREED): _P.DONE,
    (_P.READING, _T.DIFFERED): _P.PREPARING,
    (_P.READING, _T.RING_CHANGED): _P.READING,
    (_P.READING, _T.EXPIRED): _P.DONE,
    (_P.PREPARING, _T.PROMISED): _P.ACCEPTING,
    (_P.PREPARING, _T.KEPT): _P.DONE,
    (_P.PREPARING, _T.REFUSED): _P.PAUSING,
    (_P.PREPARING, _T.RING_CHANGED): _P.PREPARING,
    (_P.PREPARING, _T.EXPIRED): _P.DONE,
    (_P.ACCEPTING, _T.ACCEPTED): _P.DONE,
    (_P.ACCEPTING, _T.REFUSED): _P.PAUSING,
    (_P.ACCEPTING, _T.RING_CHANGED): _P.PREPARING,
    (_P.ACCEPTING, _T.EXPIRED): _P.DONE,
    (_P.PAUSING, _T.PAUSED): _P.PREPARING,
    (_P.PAUSING, _T.RING_CHANGED): _P.PAUSING,
    (_P.PAUSING, _T.EXPIRED): _P.DONE,
}


class KeyGroup:
    """A store object's memory of a key: the last ballot that it used, and the value that it
    stored."""

    __slots__ = ("ballot", "op", "ours", "reminded", "repeats", "ring", "stored", "value")

    def __init__(self, ring: int, ballot: msg.Ballot) -> None:
        self.ring = ring
        self.ballot = ballot
        self.ours = False
        """A majority has promised the group, and no disk has refused it since."""
        self.op = 0
        """The id of the save that the last value sent had, 0 for none."""
        self.repeats = False
        """The save `op` had `ballot`, and was not answered."""
        self.reminded = False
        """The state may have reminders, which a save must leave as they are."""
        self.stored = False
        """A majority has accepted `value` under `ballot`."""
        self.value: Value = None
        """Not kept for states."""


class Proposal:
    """One operation. The proposer has the rules."""

    __slots__ = (
        "adopters", "answers", "asked_at", "ballot", "base", "call", "change", "disks", "fence",
        "key", "needed", "outdated", "own_value", "pauses", "phase", "refusals", "resends",
        "result", "round", "sent", "ticket", "until", "value", "wake", "work",
    )  # fmt: skip

    def __init__(self, ticket: Hashable, key: str, work: Operation, until: float) -> None:
        self.ticket, self.key, self.work, self.until = ticket, key, work, until
        self.phase = ProposalPhase.WAITING
        self.call = StoreCall(0, 0, msg.ReadRow(key))
        """The round's call."""
        self.asked_at = 0.0
        self.disks: tuple[int, ...] = ()
        self.answers: dict[int, msg.KeyAnswer] = {}
        """Of this round, by disk."""
        self.refusals = 0
        """Of these answers."""
        self.needed = 0
        """The answers that end the round."""
        self.adopters: frozenset[int] = frozenset()
        """Disks that were sent the ring in this round."""
        self.ballot = msg.ZERO
        self.fence = self.round = 0
        """Of the next PREPARING."""
        self.value: Value = None
        """ACCEPTING: the value."""
        self.change: AnyChange | None = None
        self.base: msg.Ballot | None = None
        """ACCEPTING: send the change of the value under this ballot, instead of the value."""
        self.own_value = False
        """ACCEPTING: the value is the save's own."""
        self.result: object = None
        self.outdated = False
        """A higher fence has refused: Outdated, unless the newest value is the save's own."""
        self.pauses = self.resends = 0
        self.sent = False
        self.wake = until
        """When to look again: to send again, to end a pause, to give up."""

    def advance(self, trigger: ProposalTrigger) -> None:
        """Go to the phase that follows."""
        self.phase = following(TRANSITIONS, self.phase, trigger, "proposal")

    def begin_round(self, call: StoreCall, disks: tuple[int, ...], now: float) -> None:
        """This call is sent to these disks."""
        self.call, self.disks, self.asked_at = call, disks, now
        self.answers, self.refusals, self.adopters, self.resends = {}, 0, frozenset(), 0
        most = len(disks)
        self.needed = majority(most)
        if self.own_value and isinstance(self.work, SaveState):
            self.needed = max(self.needed, min(self.work.copies, most))
        self.sent = True


def _chosen(rows: Sequence[msg.Promised | msg.RowShown], proposal: Proposal) -> bool:
    """True if these rows, all with the newest value, prove that it is chosen: a majority has
    accepted it. A disk whose promise is above its ballot may have merged the value below its
    promise, and has not accepted it."""
    accepted = sum(row.promise == row.ballot for row in rows)
    return accepted >= majority(len(proposal.disks))


class Proposer:
    """The operations of one store object. See the module for its use."""

    __slots__ = (
        "_by_call", "_calls", "_dice", "_groups", "_groups_max", "_k", "_out", "_pace",
        "_places", "_queues", "_serial", "_wakes", "ring", "session",
    )  # fmt: skip

    def __init__(
        self, session: int, ring: ReplicaRing, dice: Random, *, groups_max: int = GROUPS_MAX
    ) -> None:
        self.session = session
        self.ring, self._places = ring, places_of(ring)
        self._dice = dice
        self._groups_max = groups_max
        self._groups: dict[str, KeyGroup] = {}
        self._queues: dict[str, deque[Proposal]] = {}
        """The operations of each key; the first one is under way."""
        self._by_call: dict[int, Proposal] = {}
        self._wakes: list[tuple[float, int, Proposal]] = []
        """A heap; the number keeps its order the same in each run."""
        self._k = self._calls = self._serial = 0
        self._pace = 0.0
        """The usual duration of a round, in seconds."""
        self._out: list[Effect] = []

    # -- for the driver

    def submit(
        self, ticket: Hashable, key: str, work: Operation, now: float, timeout: float
    ) -> list[Effect]:
        """Begin an operation, or let it wait for those before it on its key. It ends within
        `timeout` seconds."""
        queue = self._queues.setdefault(key, deque())
        proposal = Proposal(ticket, key, work, now + timeout)
        queue.append(proposal)
        if len(queue) == 1:
            self._begin(proposal, now)
        else:
            self._wake_at(proposal, proposal.until)
        return self._effects()

    def handle(self, reply: StoreReply, now: float) -> list[Effect]:
        """Take a disk's reply. A reply to a former round, or to no call, changes nothing."""
        number, disk, ring, answer = reply
        if isinstance(answer, RingIs):
            return self.take_ring(answer.ring, now)
        proposal = self._by_call.get(number)
        if proposal is None or disk not in proposal.disks:
            return []
        if isinstance(answer, RingWanted):
            if answer.number < self.ring.number and disk not in proposal.adopters:
                proposal.adopters |= {disk}
                self._out.append(SendCall(disk, AdoptRing(self.ring)))
                self._out.append(SendCall(disk, proposal.call))
        elif (
            ring == self.ring.number
            and disk not in proposal.answers
            and isinstance(answer, KEY_ANSWERS)
        ):
            proposal.answers[disk] = answer
            proposal.refusals += isinstance(answer, REFUSALS)
            self._count(proposal, now)
        return self._effects()

    def take_ring(self, ring: ReplicaRing, now: float) -> list[Effect]:
        """Work under this ring from now on, if it is newer: each round begins anew."""
        if ring.number <= self.ring.number:
            return []
        self.ring, self._places = ring, places_of(ring)
        self._out.append(RingFound(ring))
        for proposal in list(self._by_call.values()):
            reads = proposal.phase is ProposalPhase.READING
            proposal.advance(ProposalTrigger.RING_CHANGED)
            self._read(proposal, now) if reads else self._prepare(proposal, now)
        return self._effects()

    def deadline(self) -> float | None:
        """Return when to call `tick`, None for never."""
        wakes = self._wakes
        while wakes and wakes[0][2].wake != wakes[0][0]:
            heappop(wakes)
        return wakes[0][0] if wakes else None

    def tick(self, now: float) -> list[Effect]:
        """Send again, end pauses and give up, where it is time."""
        while (due := self.deadline()) is not None and due <= now:
            proposal = heappop(self._wakes)[2]
            if now >= proposal.until:
                self._give_up(proposal, now)
            elif proposal.phase is ProposalPhase.PAUSING:
                proposal.advance(ProposalTrigger.PAUSED)
                self._prepare(proposal, now)
            else:
                self._again(proposal, now)
        return self._effects()

    @property
    def busy(self) -> int:
        """The operations under way and waiting."""
        return sum(map(len, self._queues.values()))

    def check(self) -> None:
        """Audit the whole state. For tests."""
        for key, queue in self._queues.items():
            assert queue, key
            assert all(proposal.key == key for proposal in queue)
            assert queue[0].phase not in (_P.WAITING, _P.DONE), key
            assert all(proposal.phase is _P.WAITING for proposal in list(queue)[1:]), key
        for number, proposal in self._by_call.items():
            assert proposal.call.number == number
            refusals = sum(isinstance(answer, REFUSALS) for answer in proposal.answers.values())
            assert proposal.refusals == refusals
            assert proposal.phase in (_P.READING, _P.PREPARING, _P.ACCEPTING)
            assert proposal.disks == self.ring.disks_of(proposal.key)
        for group in self._groups.values():
            assert group.ballot.session == self.session
            assert group.ballot.k <= self._k

    # -- starts

    def _begin(self, proposal: Proposal, now: float) -> None:
        """Start the first operation of a key's queue."""
        if isinstance(proposal.work, ReadValue):
            proposal.advance(ProposalTrigger.READ)
            self._read(proposal, now)
            return
        fence = proposal.work.fence
        group = self._groups.get(proposal.key)
        if group is not None:
            if isinstance(proposal.work, ChangeValue):
                fence = max(fence, group.ballot.fence)
            if group.ballot.fence == fence:
                proposal.round = group.ballot.round
                ballot = self._ballot_at_once(proposal, group)
                if ballot is not None:
                    proposal.advance(ProposalTrigger.IN_OUR_GROUP)
                    self._accept(proposal, ballot, now)
                    return
        proposal.fence = fence
        proposal.advance(ProposalTrigger.PREPARE)
        self._prepare(proposal, now)

    def _ballot_at_once(self, proposal: Proposal, group: KeyGroup) -> msg.Ballot | None:
        """Choose a value that needs no promise, and return its ballot; None if there is none."""
        if not group.ours or group.ring != self.ring.number:
            return None
        match proposal.work:
            case SaveState(_, op, _) as save if group.op != op or group.repeats:
                return self._save_at_once(proposal, save, group)
            case ChangeValue(_, function) if group.stored and proposal.key[0] != STATE:
                step = function(group.value)
                if isinstance(step, Written):
                    proposal.value, proposal.result = step.value, step.result
                    proposal.change, proposal.base = step.change, group.ballot
                    return self._next(group.ballot)
        return None

    def _save_at_once(
        self, proposal: Proposal, save: SaveState, group: KeyGroup
    ) -> msg.Ballot | None:
        """As `_ballot_at_once`. A save of a part of the row is a change of the row that is
        stored."""
        again, reminders = group.op == save.op, save.reminders
        if reminders is None and not group.reminded:
            proposal.value = StateValue(save.op, save.data)
        elif reminders is not None and not reminders.alone:
            proposal.value = saved(None, save.change)
        elif again or not group.stored:
            return None
        else:
            proposal.value, proposal.change, proposal.base = None, save.change, group.ballot
        proposal.own_value = True
        return group.ballot if again else self._next(group.ballot)

    # -- rounds

    def _next(self, ballot: msg.Ballot) -> msg.Ballot:
        """Return the next ballot of our group."""
        self._k += 1
        return msg.Ballot(ballot.fence, ballot.round, self.session, self._k)

    def _read(self, proposal: Proposal, now: float) -> None:
        self._ask(proposal, msg.ReadRow(proposal.key), now)

    def _prepare(self, proposal: Proposal, now: float) -> None:
        self._k += 1
        ballot = msg.Ballot(proposal.fence, proposal.round, self.session, self._k)
        proposal.ballot, proposal.own_value = ballot, False
        proposal.change = proposal.base = None
        self._ask(proposal, msg.PrepareBallot(proposal.key, ballot), now)

    def _accept(self, proposal: Proposal, ballot: msg.Ballot, now: float, age: float = 0.0) -> None:
        proposal.ballot, proposal.fence, proposal.round = ballot, ballot.fence, ballot.round
        key, change, base = proposal.key, proposal.change, proposal.base
        if change is not None and base is not None:
            self._ask(proposal, msg.AcceptChange(key, ballot, base, change), now)
        else:
            self._ask(proposal, msg.AcceptValue(key, ballot, proposal.value, age), now)

    def _ask(self, proposal: Proposal, request: msg.KeyRequest, now: float) -> None:
        """Begin a round."""
        self._by_call.pop(proposal.call.number, None)
        self._calls += 1
        self._by_call[self._calls] = proposal
        call = _made(StoreCall, (self._calls, self.ring.number, request))
        disks = self._places[partition_of(proposal.key)]
        proposal.begin_round(call, disks, now)
        self._out += [_made(SendCall, (disk, call)) for disk in disks]
        pause = min(max(RESEND_S, RESEND_ROUNDS * self._pace), RESEND_MOST_S)
        self._wake_at(proposal, min(proposal.until, now + pause))

    def _again(self, proposal: Proposal, now: float) -> None:
        """No majority has answered in time: take a refusal that there is, or send again."""
        if proposal.refusals:
            self._refused(proposal, now)
            return
        proposal.resends += 1
        proposal.adopters = frozenset()
        self._out += [
            SendCall(disk, proposal.call) for disk in proposal.disks if disk not in proposal.answers
        ]
        pause = doubling(RESEND_S, RESEND_MOST_S, proposal.resends + 1)
        self._wake_at(proposal, min(proposal.until, now + pause))

    # -- answers

    def _count(self, proposal: Proposal, now: float) -> None:
        """End the round if the answers suffice."""
        refusals = proposal.refusals
        if len(proposal.answers) - refusals >= proposal.needed:
            took = min(now - proposal.asked_at, RESEND_MOST_S)
            self._pace += (took - self._pace) * PACE_WEIGHT
            match proposal.phase:
                case ProposalPhase.ACCEPTING:
                    self._accepted(proposal, now)
                case ProposalPhase.PREPARING:
                    self._promised(proposal, now)
                case _:
                    self._shown(proposal, now)
        elif refusals > len(proposal.disks) - proposal.needed:
            self._refused(proposal, now)

    def _shown(self, proposal: Proposal, now: float) -> None:
        """A majority has shown its rows: they agree, or the newest value is settled."""
        rows = [answer for answer in proposal.answers.values() if isinstance(answer, msg.RowShown)]
        newest = max(row.ballot for row in rows)
        same = [row for row in rows if row.ballot == newest]
        if _chosen(same, proposal):
            proposal.advance(ProposalTrigger.AGREED)
            reading = Reading(same[0].value, max(row.age for row in same))
            self._finish(proposal, Completed(reading), now)
            return
        promise = max(row.promise for row in rows)
        proposal.fence, proposal.round = max(promise.fence, 0), promise.round + 1
        proposal.advance(ProposalTrigger.DIFFERED)
        self._prepare(proposal, now)

    def _promised(self, proposal: Proposal, now: float) -> None:
        """A majority has promised: choose the value to store."""
        rows = [answer for answer in proposal.answers.values() if isinstance(answer, msg.Promised)]
        newest = max(row.ballot for row in rows)
        same = [row for row in rows if row.ballot == newest]
        value, age = same[0].value, max(row.age for row in same)
        group = self._remember(proposal)
        group.ours = True
        if isinstance(value, StateValue):
            group.op, group.reminded = value.op, value.reminders is not None
        else:
            group.op, group.reminded = 0, False
        proposal.value = value
        match proposal.work:
            case ReadValue():
                proposal.result = Reading(value, age)
            case LoadState() if not proposal.outdated:
                if isinstance(value, StateValue):
                    proposal.value = value._replace(idle_since=None)
                proposal.result = value
            case SaveState(_, op, _) as save if not proposal.outdated:
                state = value if isinstance(value, StateValue) else None
                if state is None or state.op != op:
                    proposal.own_value, proposal.value = True, saved(state, save.change)
            case ChangeValue(_, function):
                step = function(value)
                proposal.result = step.result
                if isinstance(step, Written):
                    proposal.value, age = step.value, 0.0
                elif _chosen(same, proposal):
                    proposal.advance(ProposalTrigger.KEPT)
                    self._finish(proposal, Completed(step.result), now)
                    return
            case _:
                pass
        proposal.advance(ProposalTrigger.PROMISED)
        self._accept(proposal, proposal.ballot, now, age)

    def _accepted(self, proposal: Proposal, now: float) -> None:
        """A majority has stored the value."""
        group = self._remember(proposal)
        if proposal.key[0] == STATE:
            group.stored = True
            self._note_state(group, proposal)
        elif isinstance(proposal.work, ChangeValue):
            group.stored, group.value = True, proposal.value
        proposal.advance(ProposalTrigger.ACCEPTED)
        self._finish(proposal, self._outcome(proposal), now)

    def _note_state(self, group: KeyGroup, proposal: Proposal) -> None:
        """Remember the save in a state that was accepted or may be, and if it has reminders."""
        match proposal.value, proposal.change:
            case StateValue() as state, _:
                group.op, group.reminded = state.op, state.reminders is not None
            case _, SaveChange(op, _, reminders):
                group.op = op
                group.reminded |= reminders is not None and reminders.record is not None
            case _:
                pass

    def _outcome(self, proposal: Proposal) -> Outcome:
        if not proposal.outdated:
            return Completed(proposal.result)
        match proposal.work, proposal.value:
            case SaveState(_, op), StateValue() as state if state.op == op:
                return Completed(None)
            case _:
                return Outdated(proposal.ballot.fence)

    def _highest_refusal(self, proposal: Proposal) -> msg.Ballot | None:
        """Return the highest promise that refused this round, ZERO if only a base did."""
        refusals = [
            answer.promise if isinstance(answer, msg.No) else msg.ZERO
            for answer in proposal.answers.values()
            if isinstance(answer, REFUSALS)
        ]
        return max(refusals, default=None)

    def _refused(self, proposal: Proposal, now: float) -> None:
        """No majority can follow: pause, then prepare above the promise that refused."""
        promise = self._highest_refusal(proposal) or msg.ZERO
        pause = self._dice.uniform(0.0, doubling(PAUSE_S, PAUSE_MOST_S, proposal.pauses + 1))
        proposal.fence, proposal.round = proposal.ballot.fence, proposal.ballot.round
        if promise > proposal.ballot:
            proposal.fence, proposal.round = promise.fence, promise.round + 1
            match proposal.work:
                case LoadState(fence) | SaveState(fence):
                    proposal.outdated = promise.fence > fence
                case ChangeValue(fence, _, patience) if promise.fence > fence:
                    pause = max(pause, patience)
                case _:
                    pass
        group = self._remember(proposal)
        group.ours = False
        group.ballot = group.ballot._replace(fence=proposal.fence, round=proposal.round)
        self._by_call.pop(proposal.call.number, None)
        proposal.pauses += 1
        proposal.advance(ProposalTrigger.REFUSED)
        self._wake_at(proposal, min(proposal.until, now + pause))

    # -- ends

    def _give_up(self, proposal: Proposal, now: float) -> None:
        """Too few disks have answered in time."""
        phase = proposal.phase
        if phase in (ProposalPhase.PREPARING, ProposalPhase.ACCEPTING):
            group = self._remember(proposal)
            if phase is ProposalPhase.ACCEPTING and proposal.own_value:
                reminded = group.reminded
                self._note_state(group, proposal)
                group.repeats, group.reminded = True, group.reminded or reminded
            else:
                group.ours = False
        proposal.advance(ProposalTrigger.EXPIRED)
        if phase is ProposalPhase.WAITING:
            self._queues[proposal.key].remove(proposal)
            proposal.wake = float("inf")
            self._out.append(Finished(proposal.ticket, Unanswered(sent=False)))
        else:
            self._finish(proposal, Unanswered(proposal.sent), now)

    def _finish(self, proposal: Proposal, outcome: Outcome, now: float) -> None:
        self._by_call.pop(proposal.call.number, None)
        proposal.wake = float("inf")
        self._out.append(Finished(proposal.ticket, outcome))
        queue = self._queues[proposal.key]
        queue.popleft()
        if queue:
            self._begin(queue[0], now)
        else:
            del self._queues[proposal.key]

    # -- memory of keys

    def _remember(self, proposal: Proposal) -> KeyGroup:
        """Return the memory of the key, which is now of the operation's ballot."""
        group, ballot = self._groups.pop(proposal.key, None), proposal.ballot
        if group is None or not group.ballot.same_group(ballot):
            group = KeyGroup(self.ring.number, ballot)
        else:
            group.ours = group.ours and group.ring == self.ring.number
            group.ring, group.ballot = self.ring.number, ballot
            group.repeats, group.stored, group.value = False, False, None
        self._groups[proposal.key] = group
        if len(self._groups) > self._groups_max:
            del self._groups[next(iter(self._groups))]
        return group

    def _wake_at(self, proposal: Proposal, wake: float) -> None:
        proposal.wake = wake
        self._serial += 1
        heappush(self._wakes, (wake, self._serial, proposal))

    def _effects(self) -> list[Effect]:
        effects, self._out = self._out, []
        return effects
