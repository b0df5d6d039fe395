"""Gets and writes of replicated values by one store object: at R and W disks of N.

N disks hold a key: those of its partition. Each request goes to all N.

                                        all R have it
    get    READING ──R answers──> ┬──────────────────────────────> DONE
                                  └─> REPAIRING ──R have it──────> DONE
    write  TAKING ──one disk has stamped it──> STORING ──W have it─> DONE
              └──it refuses the write────────────────────────────> DONE

`TRANSITIONS` is the drawing as data.

**A get** merges the values of the first R disks that answer. Disks with an older value get the
merged one, and the get ends once R disks have all of it. So R + W > N makes each get see every
write that was acknowledged before it began. A value that a get has returned is on R disks: with R a
majority, each later get sees all that an earlier one has returned.

**A write** is stamped by the disk that takes it (`versions`). Then all disks merge the value of
that disk. The write ends once W disks have it, the first one included. A merge may come again, and
in any order.

**In doubt.** A write is sent to one disk, once: a second disk would stamp it a second time, and an
addition would count twice, or outlive a removal that saw only the first. So if the disk that is to
take it goes out of reach, or does not answer in time, the write is in doubt: it has its effect once
or never. If no disk was in reach, or the network took no frame for it (`on_unsent`), it has none. A
write that was taken, and that fewer than W disks have stored in time, is in doubt, too: it is
there, and repair carries it to the others. Only a disk that refuses a former ring has surely not
taken it (`on_refused`): the write is sent anew.

A write goes to a disk in reach that has answered lately, and of those to the one with the fewest
writes under way.

**The driver** calls `submit` for each request, `handle` for each reply, `tick` at `deadline()`,
`serve` when disks begin or cease to serve, and `take_ring` for each newer ring. Each returns
effects: SendCall and RingFound as those of `proposer`, and RequestSettled at the end of a request.
The driver hands a TakeChange to the network once. Answers of two rings never count together.

Source: docs/how-to/replicated-values.md; DeCandia et al., "Dynamo: Amazon's highly available
key-value store"; S3.82-S3.89.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from enum import Enum
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from shardbus.backoff import doubling
from shardbus.errors import ConfigError
from shardbus.replication import messages as msg
from shardbus.replication.proposer import (
    RESEND_MOST_S,
    RESEND_S,
    Completed,
    RingFound,
    SendCall,
    Unanswered,
)
from shardbus.replication.ring import (
    AdoptRing,
    NotVoting,
    ReplicaRing,
    RingIs,
    RingWanted,
    StoreCall,
    StoreReply,
    majority,
)
from shardbus.replication.versions import (
    NOTHING,
    DataChange,
    DataValue,
    NotTaken,
    covers,
    joined_all,
)
from shardbus.transitions import following

Level = int | str
"""A number of disks, or one of `LEVELS`."""
MAJORITY, MAJORITY_PLUS, ALL = "majority", "majority+1", "all"
LEVELS = (MAJORITY, MAJORITY_PLUS, ALL)


def check_level(name: str, level: object) -> Level:
    """Return a level. Digits in a text are a number.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(level, str) and level.isascii() and level.isdigit():
        level = int(level)
    if isinstance(level, str) and level in LEVELS:
        return level
    if isinstance(level, int) and type(level) is int and 1 <= level < 10:
        return level
    raise ConfigError(
        f"{name}: {level!r:.40} is no number of replicas",
        hint=f"use 1 to 9, or one of {', '.join(LEVELS)}",
    )


def disks_needed(level: Level, disks: int) -> int:
    """Return how many of `disks` disks a level is. A number may be above `disks`."""
    match level:
        case int():
            return level
        case "majority":
            return majority(disks)
        case "majority+1":
            return min(majority(disks) + 1, disks)
        case _:
            return disks


class GetValue(NamedTuple):
    """Read a value. Result: a DataValue."""

    level: Level


class WriteValue(NamedTuple):
    """Write a value. Result: the DataValue of the disk that has taken the write."""

    change: DataChange
    level: Level


class TooFewDisks(NamedTuple):
    """Nothing was done: the level needs more disks than the key has."""

    needed: int
    disks: int


DataOutcome = Completed | Unanswered | NotTaken | TooFewDisks


class RequestSettled(NamedTuple):
    """The request of this ticket is over."""

    ticket: Hashable
    outcome: DataOutcome


DataEffect = SendCall | RequestSettled | RingFound


class QuorumPhase(Enum):
    """The step that a request is in."""

    BEGUN = "begun"
    READING = "reading"
    REPAIRING = "repairing"
    TAKING = "taking"
    STORING = "storing"
    DONE = "done"


class QuorumTrigger(Enum):
    """The events that move a request on."""

    GETS = "it is a get"
    WRITES = "it is a write"
    IMPOSSIBLE = "the key has too few disks"
    DIFFERED = "a disk is behind"
    AGREED = "R disks have the value"
    TAKEN = "a disk has stamped it"
    STORED = "W disks have it"
    REFUSED = "refused"
    RING_CHANGED = "the ring changed"
    EXPIRED = "no time is left"


_P, _T = QuorumPhase, QuorumTrigger

TRANSITIONS: dict[tuple[QuorumPhase, QuorumTrigger], QuorumPhase] = {
    (_P.BEGUN, _T.GETS): _P.READING,
    (_P.BEGUN, _T.WRITES): _P.TAKING,
    (_P.BEGUN, _T.IMPOSSIBLE): _P.DONE,
    (_P.READING, _T.AGREED): _P.DONE,
    (_P.READING, _T.DIFFERED): _P.REPAIRING,
    (_P.READING, _T.RING_CHANGED): _P.READING,
    (_P.READING, _T.EXPIRED): _P.DONE,
    (_P.REPAIRING, _T.AGREED): _P.DONE,
    (_P.REPAIRING, _T.RING_CHANGED): _P.READING,
    (_P.REPAIRING, _T.EXPIRED): _P.DONE,
    (_P.TAKING, _T.TAKEN): _P.STORING,
    (_P.TAKING, _T.REFUSED): _P.DONE,
    (_P.TAKING, _T.RING_CHANGED): _P.TAKING,
    (_P.TAKING, _T.EXPIRED): _P.DONE,
    (_P.STORING, _T.STORED): _P.DONE,
    (_P.STORING, _T.RING_CHANGED): _P.STORING,
    (_P.STORING, _T.EXPIRED): _P.DONE,
}


class QuorumRequest:
    """One request. `Quorums` has the rules."""

    __slots__ = (
        "call", "disks", "have", "key", "needed", "phase", "resends", "ring", "shown", "taker",
        "ticket", "until", "value", "wake", "work",
    )  # fmt: skip

    def __init__(
        self, ticket: Hashable, key: str, work: GetValue | WriteValue, until: float
    ) -> None:
        self.ticket, self.key, self.work, self.until = ticket, key, work, until
        self.phase = QuorumPhase.BEGUN
        self.call = 0
        self.disks: tuple[int, ...] = ()
        self.needed = 0
        self.shown: dict[int, DataValue] = {}
        """READING: the values of the disks that have answered."""
        self.value = NOTHING
        """Afterwards: the value that `needed` disks must have."""
        self.have: set[int] = set()
        """The disks that have it."""
        self.taker: int | None = None
        """TAKING: the disk that was sent the write."""
        self.ring = 0
        """The ring under which it was sent."""
        self.resends = 0
        self.wake = until

    def advance(self, trigger: QuorumTrigger) -> None:
        """Go to the phase that follows."""
        self.phase = following(TRANSITIONS, self.phase, trigger, "request of a value")


class Quorums:
    """The requests of one store object. See the module for its use.

    Args:
        first_call: the numbers of calls begin here.
    """

    __slots__ = (
        "_by_call", "_calls", "_dice", "_late", "_out", "_serial", "_serving", "_takes", "_wakes",
        "ring",
    )  # fmt: skip

    def __init__(self, ring: ReplicaRing, dice: Random, first_call: int = 0) -> None:
        self.ring = ring
        self._dice = dice
        self._calls, self._serial = first_call, 0
        self._by_call: dict[int, QuorumRequest] = {}
        self._serving: frozenset[int] = frozenset()
        self._late: set[int] = set()
        """Disks that have not answered a write, and nothing since."""
        self._takes: Counter[int] = Counter()
        """The writes under way of each disk."""
        self._wakes: list[tuple[float, int, QuorumRequest]] = []
        self._out: list[DataEffect] = []

    # -- for the driver

    def submit(
        self,
        ticket: Hashable,
        key: str,
        work: GetValue | WriteValue,
        now: float,
        timeout: float,
    ) -> list[DataEffect]:
        """Begin a request. It ends within `timeout` seconds."""
        request = QuorumRequest(ticket, key, work, now + timeout)
        self._number(request)
        self._place(request)
        if request.needed > len(request.disks):
            request.advance(QuorumTrigger.IMPOSSIBLE)
            self._end(request, TooFewDisks(request.needed, len(request.disks)))
        elif isinstance(work, GetValue):
            request.advance(QuorumTrigger.GETS)
            self._read(request, now)
        else:
            request.advance(QuorumTrigger.WRITES)
            self._take(request, now)
        return self._effects()

    def handle(self, reply: StoreReply, now: float) -> list[DataEffect]:
        """Take a disk's reply. One to a former round, or to no call, changes nothing."""
        self._late.discard(reply.disk)
        request = self._by_call.get(reply.number)
        disk, answer = reply.disk, reply.answer
        if request is None:
            return []
        if isinstance(answer, RingIs | RingWanted | NotVoting):
            self._on_other_place(request, disk, answer, now)
        elif request.phase is QuorumPhase.TAKING:
            if disk == request.taker:
                self._on_taken(request, reply, now)
        elif reply.ring == self.ring.number and disk in request.disks:
            match answer:
                case msg.RowShown():
                    self._on_shown(request, disk, answer, now)
                case msg.Yes():
                    self._on_stored(request, disk)
                case msg.Gone() if request.phase is QuorumPhase.REPAIRING:
                    self._on_stored(request, disk)
                case _:
                    pass
        return self._effects()

    def _on_other_place(
        self, request: QuorumRequest, disk: int, answer: RingIs | RingWanted | NotVoting, now: float
    ) -> None:
        """A disk has another ring, or does not hold the key: it has done nothing."""
        if disk == request.taker and request.phase is QuorumPhase.TAKING:
            self.on_unsent(request.call, now)
        match answer:
            case RingIs(ring):
                self._out += self.take_ring(ring, now)
            case RingWanted(number) if number < self.ring.number:
                self._out.append(SendCall(disk, AdoptRing(self.ring)))
            case _:
                pass

    def on_unsent(self, call: int, now: float) -> None:
        """The write of this call was not handed to the network, or its disk has not taken it."""
        request = self._by_call.get(call)
        if request is not None and request.taker is not None:
            self._late.add(request.taker)
            self._untake(request)
            self._wake_soon(request, now)

    def on_refused(self, disk: int, ring: ReplicaRing, now: float) -> list[DataEffect]:
        """A disk has a newer ring, this one: it has not done the calls of former rings that it has
        not answered."""
        effects = self.take_ring(ring, now)
        for request in self._in_phase(QuorumPhase.TAKING):
            if request.taker == disk and request.ring < ring.number:
                self._untake(request)
                self._take(request, now)
        return effects + self._effects()

    def take_ring(self, ring: ReplicaRing, now: float) -> list[DataEffect]:
        """Work under this ring from now on, if it is newer. A write that was sent stays sent."""
        if ring.number <= self.ring.number:
            return []
        self.ring = ring
        self._out.append(RingFound(ring))
        for request in list(self._by_call.values()):
            repairs = request.phase in (QuorumPhase.READING, QuorumPhase.REPAIRING)
            request.advance(QuorumTrigger.RING_CHANGED)
            self._place(request)
            if repairs:
                self._number(request)
                self._read(request, now)
            elif request.phase is QuorumPhase.STORING:
                self._number(request)
                self._store(request, now)
        return self._effects()

    def serve(self, disks: frozenset[int], now: float) -> list[DataEffect]:
        """These disks serve from now on, and no others."""
        self._serving = disks
        for request in self._in_phase(QuorumPhase.TAKING):
            if request.taker is None:
                self._take(request, now)
            elif request.taker not in disks:
                self._give_up(request)
        return self._effects()

    def deadline(self) -> float | None:
        """Return when to call `tick`, None for never."""
        wakes = self._wakes
        while wakes and wakes[0][2].wake != wakes[0][0]:
            heappop(wakes)
        return wakes[0][0] if wakes else None

    def tick(self, now: float) -> list[DataEffect]:
        """Send again, and give up, where it is time."""
        while (due := self.deadline()) is not None and due <= now:
            request = heappop(self._wakes)[2]
            if now >= request.until:
                self._give_up(request)
            else:
                self._again(request, now)
        return self._effects()

    @property
    def busy(self) -> int:
        """The requests under way."""
        return len(self._by_call)

    def check(self) -> None:
        """Audit the whole state. For tests."""
        for number, request in self._by_call.items():
            assert request.call == number
            assert request.phase is not QuorumPhase.DONE
            assert request.disks == self.ring.disks_of(request.key)
            assert request.have <= set(request.disks)
            assert len(request.have) < max(request.needed, 1)
            assert request.taker is None or request.phase is QuorumPhase.TAKING
        takers = Counter(r.taker for r in self._by_call.values() if r.taker is not None)
        assert takers == +self._takes

    # -- rounds

    def _number(self, request: QuorumRequest) -> None:
        self._by_call.pop(request.call, None)
        self._calls += 1
        request.call = self._calls
        self._by_call[self._calls] = request

    def _place(self, request: QuorumRequest) -> None:
        request.disks = self.ring.disks_of(request.key)
        request.needed = disks_needed(request.work.level, len(request.disks))
        request.have = set()

    def _read(self, request: QuorumRequest, now: float) -> None:
        request.shown, request.value = {}, NOTHING
        self._send(request, request.disks, msg.ReadRow(request.key))
        self._wake_soon(request, now)

    def _take(self, request: QuorumRequest, now: float) -> None:
        """Send a write to one disk, if one is in reach."""
        assert isinstance(request.work, WriteValue)
        reached = [disk for disk in request.disks if disk in self._serving]
        reached = [disk for disk in reached if disk not in self._late] or reached
        if reached:
            least = min(self._takes[disk] for disk in reached)
            taker = self._dice.choice([disk for disk in reached if self._takes[disk] == least])
            request.taker, request.ring = taker, self.ring.number
            self._takes[taker] += 1
            self._number(request)
            self._send(request, [taker], msg.TakeChange(request.key, request.work.change))
            self._wake_at(request, request.until)
        else:
            self._wake_soon(request, now)

    def _untake(self, request: QuorumRequest) -> None:
        """The disk that was sent the write has answered, or is given up."""
        if request.taker is not None:
            self._takes[request.taker] -= 1
            request.taker = None

    def _store(self, request: QuorumRequest, now: float) -> None:
        """Send the value to all disks that may not have it."""
        behind = [disk for disk in request.disks if disk not in request.have]
        self._send(request, behind, msg.MergeValue(request.key, request.value))
        self._wake_soon(request, now)

    def _send(
        self,
        request: QuorumRequest,
        disks: Iterable[int],
        content: msg.ReadRow | msg.TakeChange | msg.MergeValue,
    ) -> None:
        """Send one call to some disks: they share its bytes."""
        call = StoreCall(request.call, self.ring.number, content)
        self._out += [SendCall(disk, call) for disk in disks]

    def _again(self, request: QuorumRequest, now: float) -> None:
        """Send to the disks that have not answered."""
        request.resends += 1
        match request.phase:
            case QuorumPhase.READING:
                silent = [disk for disk in request.disks if disk not in request.shown]
                self._send(request, silent, msg.ReadRow(request.key))
                self._wake_soon(request, now)
            case QuorumPhase.TAKING:
                self._take(request, now)
            case _:
                self._store(request, now)

    # -- answers

    def _on_shown(
        self, request: QuorumRequest, disk: int, answer: msg.RowShown, now: float
    ) -> None:
        value = answer.value if isinstance(answer.value, DataValue) else NOTHING
        if request.phase is QuorumPhase.READING:
            request.shown[disk] = value
            if len(request.shown) >= request.needed:
                self._compare(request, now)
        elif request.phase is QuorumPhase.REPAIRING and covers(value.clock, request.value.clock):
            self._on_stored(request, disk)

    def _compare(self, request: QuorumRequest, now: float) -> None:
        """R disks have answered: merge their values, and repair those that are behind."""
        value = request.value = joined_all(request.shown.values())
        request.have = {disk for disk, shown in request.shown.items() if shown.clock == value.clock}
        if len(request.have) >= request.needed:
            request.advance(QuorumTrigger.AGREED)
            self._end(request, Completed(value))
        else:
            request.advance(QuorumTrigger.DIFFERED)
            self._number(request)
            self._store(request, now)

    def _on_taken(self, request: QuorumRequest, reply: StoreReply, now: float) -> None:
        match reply.answer:
            case msg.Taken(value):
                self._untake(request)
                request.advance(QuorumTrigger.TAKEN)
                request.value = value
                if reply.ring == self.ring.number:
                    request.have = {reply.disk}
                self._number(request)
                self._store(request, now)
                self._count(request)
            case NotTaken() as refusal:
                self._untake(request)
                request.advance(QuorumTrigger.REFUSED)
                self._end(request, refusal)
            case _:
                pass

    def _on_stored(self, request: QuorumRequest, disk: int) -> None:
        if request.phase in (QuorumPhase.REPAIRING, QuorumPhase.STORING):
            request.have.add(disk)
            self._count(request)

    def _count(self, request: QuorumRequest) -> None:
        """End the request if enough disks have the value."""
        if len(request.have) >= request.needed:
            stores = request.phase is QuorumPhase.STORING
            request.advance(QuorumTrigger.STORED if stores else QuorumTrigger.AGREED)
            self._end(request, Completed(request.value))

    # -- ends

    def _give_up(self, request: QuorumRequest) -> None:
        """Too few disks have answered in time. A get has no effect in any case."""
        writes = isinstance(request.work, WriteValue)
        sent = writes and (request.phase is QuorumPhase.STORING or request.taker is not None)
        if request.taker is not None:
            self._late.add(request.taker)
            self._untake(request)
        request.advance(QuorumTrigger.EXPIRED)
        self._end(request, Unanswered(sent))

    def _end(self, request: QuorumRequest, outcome: DataOutcome) -> None:
        del self._by_call[request.call]
        request.wake = float("inf")
        self._out.append(RequestSettled(request.ticket, outcome))

    def _in_phase(self, phase: QuorumPhase) -> list[QuorumRequest]:
        return [request for request in self._by_call.values() if request.phase is phase]

    def _wake_soon(self, request: QuorumRequest, now: float) -> None:
        pause = doubling(RESEND_S, RESEND_MOST_S, request.resends + 1)
        self._wake_at(request, min(request.until, now + pause))

    def _wake_at(self, request: QuorumRequest, wake: float) -> None:
        request.wake = wake
        self._serial += 1
        heappush(self._wakes, (wake, self._serial, request))

    def _effects(self) -> list[DataEffect]:
        effects, self._out = self._out, []
        return effects
