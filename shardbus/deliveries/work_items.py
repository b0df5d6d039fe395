"""The items of a work queue: who works on which, until when, and who waits.

    put ────> READY ──pull──> LEASED ──confirm──> gone
                ^               │ │
                │ lease ended   │ └─returned─> DELAYED ──time passes──> READY
                └───────────────┘
                                └─after `attempts` leases─> ASIDE ──retry──> READY

An item stays in the queue until a worker confirms it. A lease gives it to one worker for a time; a
worker that dies confirms nothing, so the lease ends and the item is ready for another. So each item
is worked at least once. An item whose last permitted lease ends without a confirmation is *set
aside*: no worker gets it until an operator lets it be retried or drops it.

**Confirmations count from anyone.** The work is done, even if another worker holds the lease now. A
return and an extension count only from the holder of the present lease.

**Repeats.** A producer numbers its items, and the queue keeps the last number of each producer. So
a put that is repeated because its answer was lost adds nothing. A pull has a token; a pull that is
repeated gets the items that the first one has leased. Confirming twice changes nothing.

**Waiting.** A pull without ready items and a put without room wait, in the order of their arrival,
until their time is over. A pull then gets nothing, and a put the number of items that had room.

**Time** is the wall clock's when the home starts, and goes on monotonically from there. At a start
no lease is longer than a new one would be, so a clock that jumps back delays no item for longer.

The machine changes its state by the events that it returns, before they are stored. Its shell
stores them before it gives any answer of the same step, and lets the entity start again from the
store if it cannot. The same function `QueueState.apply` replays them.

Bounds: items, their bytes, items set aside, waiting requests, and producers that are remembered. A
put that is repeated by a producer which 1,000 others have followed adds its items again. While no
further item can be set aside, items that fail stay in the queue.

Source: docs/how-to/queue-work.md; B.104.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import add
from typing import Any, NamedTuple, assert_never

import msgspec

PRODUCERS_MAX = 1000
"""Producers whose last number is remembered."""
WAITING_MAX = 10_000
"""Requests that wait, of pulls and of puts."""
ERROR_MAX = 500
"""Characters of an error that are kept with an item."""


class ItemPlace(Enum):
    """Where an item is."""

    READY = "ready"
    LEASED = "leased"
    DELAYED = "delayed"
    ASIDE = "aside"


class WorkItem(msgspec.Struct):
    """One item. `taken` and `until` are seconds since 1970: the put, and the end of a lease or of a
    delay. `holder` is the token of the pull that leased it last; `error` the last one of a
    worker."""

    body: bytes
    taken: float
    place: ItemPlace = ItemPlace.READY
    attempts: int = 0
    until: float = 0.0
    holder: str = ""
    error: str = ""


# ---- events


class Queued(msgspec.Struct, frozen=True):
    """A producer's items are in the queue, up to its number `seq`."""

    producer: str
    seq: int
    bodies: list[bytes]
    at: float


class Leased(msgspec.Struct, frozen=True):
    """A pull has these items until this time."""

    numbers: list[int]
    holder: str
    until: float


class Extended(msgspec.Struct, frozen=True):
    """The lease of these items ends at this time."""

    numbers: list[int]
    until: float


class Returned(msgspec.Struct, frozen=True):
    """A worker has given items back, which are ready again at this time. Without an error it has
    not begun them, and the lease does not count as an attempt."""

    numbers: list[int]
    until: float
    error: str


class PutAside(msgspec.Struct, frozen=True):
    """No worker gets this item any more."""

    number: int
    error: str


class Requeued(msgspec.Struct, frozen=True):
    """An operator lets these items be tried again."""

    numbers: list[int]


class Removed(msgspec.Struct, frozen=True):
    """These items are no more in the queue: confirmed, or dropped by an operator."""

    numbers: list[int]
    confirmed: bool


QueueEvent = Queued | Leased | Extended | Returned | PutAside | Requeued | Removed


@dataclass(slots=True)
class QueueState:
    """The stored state of a queue."""

    last: int = 0
    """The number of the last item that was put."""
    items: dict[int, WorkItem] = field(default_factory=dict)
    """By number, which ascend."""
    producers: dict[str, int] = field(default_factory=dict)
    """The last number of each producer, the one that put least lately first."""
    confirmed: int = 0
    dropped: int = 0

    def apply(self, event: QueueEvent) -> None:
        """Change the state as the event says."""
        items = self.items
        match event:
            case Queued():
                for body in event.bodies:
                    self.last += 1
                    items[self.last] = WorkItem(body, event.at)
                if event.producer:
                    self.producers.pop(event.producer, None)
                    self.producers[event.producer] = event.seq
                    if len(self.producers) > PRODUCERS_MAX:
                        del self.producers[next(iter(self.producers))]
            case Leased():
                for number in event.numbers:
                    item = items[number]
                    item.place, item.attempts = ItemPlace.LEASED, item.attempts + 1
                    item.until, item.holder = event.until, event.holder
            case Extended():
                for number in event.numbers:
                    items[number].until = event.until
            case Returned():
                for number in event.numbers:
                    item = items[number]
                    item.place, item.until, item.holder = ItemPlace.DELAYED, event.until, ""
                    item.error = event.error or item.error
                    item.attempts -= not event.error
            case PutAside():
                item = items[event.number]
                item.place, item.error = ItemPlace.ASIDE, event.error
            case Requeued():
                for number in event.numbers:
                    items[number].place, items[number].attempts = ItemPlace.READY, 0
            case Removed():
                for number in event.numbers:
                    del items[number]
                if event.confirmed:
                    self.confirmed += len(event.numbers)
                else:
                    self.dropped += len(event.numbers)
            case _:
                assert_never(event)


# ---- requests


class PutWork(msgspec.Struct, frozen=True):
    """Put items. `first` is the producer's number of the first one, from 1; without a producer no
    repeat is recognised. A producer has one put under way. The answer is how many of these items,
    from the first one on, are in the queue."""

    bodies: Sequence[bytes]
    producer: str
    first: int
    wait: float


class PullWork(msgspec.Struct, frozen=True):
    """Lease up to `most` items. `again`: the same token was sent before. The answer is a list of
    `LeasedItem`."""

    token: str
    most: int
    wait: float
    again: bool = False


class ConfirmWork(msgspec.Struct, frozen=True):
    """These items are done. The answer is how many of them were in the queue."""

    numbers: Sequence[int]


class ReturnWork(msgspec.Struct, frozen=True):
    """The holder gives items back: with the error that it met, or, empty, because it has not begun
    them. The answer has the numbers that it held."""

    token: str
    numbers: Sequence[int]
    error: str = ""


class CancelPull(msgspec.Struct, frozen=True):
    """The worker does not wait for this pull any more, and has begun none of its items. The answer
    has the numbers that it held."""

    token: str


class ExtendWork(msgspec.Struct, frozen=True):
    """The holder works on. The answer has the numbers that it still holds, and the seconds for
    which it has them."""

    token: str
    numbers: Sequence[int]


class RetryWork(msgspec.Struct, frozen=True):
    """Let items that were set aside be tried again. The answer is their count."""

    numbers: Sequence[int]


class DropWork(msgspec.Struct, frozen=True):
    """Remove items that were set aside. The answer is their count."""

    numbers: Sequence[int]


Request = (
    PutWork | PullWork | CancelPull | ConfirmWork | ReturnWork | ExtendWork | RetryWork | DropWork
)

LeasedItem = tuple[int, int, float, bytes]
"""Number, attempt from 1, seconds from the pull until the lease ends, body. The worker measures
from its request, and the lease of a pull that has waited begins later."""


class QueueRules(msgspec.Struct, frozen=True):
    """The bounds and times of a queue; see `WorkQueue`."""

    lease: float = 30.0
    attempts: int = 5
    limit: int = 1000
    bytes_limit: int = 4 * 2**20
    aside_limit: int = 1000
    backoff: float = 1.0
    backoff_limit: float = 60.0

    def delay(self, attempts: int) -> float:
        """Return the seconds after which an item is ready again that was given back."""
        return min(self.backoff * 2.0 ** min(attempts - 1, 30), self.backoff_limit)


class QueueSizes(NamedTuple):
    """Figures of queues, which add up. `items` has those that were set aside, too."""

    queues: int = 0
    items: int = 0
    aside: int = 0
    waiting_pulls: int = 0
    waiting_puts: int = 0

    def plus(self, other: QueueSizes) -> QueueSizes:
        """Return the sum of both."""
        return QueueSizes(*map(add, self, other))


class HasQueue:
    """An entity that is a queue of work."""

    @property
    def sizes(self) -> QueueSizes:
        """Its figures."""
        raise NotImplementedError


class WorkItems:
    """The machine of one queue. `now` is in seconds since 1970 everywhere."""

    def __init__(self, state: QueueState, rules: QueueRules, now: float) -> None:
        self.state, self.rules = state, rules
        self._ready: list[int] = []
        """A heap of numbers. One that is no more ready is skipped when its turn comes."""
        self._dues: list[tuple[float, int]] = []
        """A heap of the ends of leases and delays. One that has changed since is skipped."""
        self._puts: dict[int, PutWork] = {}
        """By ticket, in the order of arrival; so are the pulls."""
        self._pulls: dict[int, tuple[PullWork, float]] = {}
        """Pulls that wait, by ticket, each with its time."""
        self._waits: list[tuple[float, int]] = []
        """A heap of the times at which tickets wait no longer. Those with an answer are skipped."""
        self._events: list[QueueEvent] = []
        self._answers: list[tuple[int, Any]] = []
        self._leaving = False
        self.bytes = sum(len(item.body) for item in state.items.values())
        self.aside = 0
        for number, item in state.items.items():
            if item.place is ItemPlace.READY:
                self._ready.append(number)
            elif item.place is ItemPlace.ASIDE:
                self.aside += 1
            else:
                longest = rules.lease if item.place is ItemPlace.LEASED else rules.backoff_limit
                item.until = min(item.until, now + longest)
                self._dues.append((item.until, number))
        heapq.heapify(self._dues)

    # ---- the outside

    def handle(self, ticket: int, request: Request, now: float) -> None:
        """Take a request, whose answer comes under this ticket."""
        match request:
            case PutWork():
                self._on_put(ticket, request, now)
            case PullWork():
                self._on_pull(ticket, request, now)
            case ConfirmWork():
                kept = self._kept(request.numbers)
                self._remove(kept, confirmed=True)
                self._answers.append((ticket, len(kept)))
            case ReturnWork():
                self._answers.append((ticket, self._on_return(request, now)))
            case CancelPull(token):
                for waiting in [t for t, (pull, _) in self._pulls.items() if pull.token == token]:
                    del self._pulls[waiting]
                    self._answers.append((waiting, []))
                back = ReturnWork(token, list(self.state.items))
                self._answers.append((ticket, self._on_return(back, now)))
            case ExtendWork():
                held = self._on_extend(request, now)
                self._answers.append((ticket, (held, self.rules.lease)))
            case RetryWork():
                numbers = self._aside_of(request.numbers)
                if numbers:
                    self._note(Requeued(numbers))
                    self.aside -= len(numbers)
                    for number in numbers:
                        heapq.heappush(self._ready, number)
                self._answers.append((ticket, len(numbers)))
            case DropWork():
                numbers = self._aside_of(request.numbers)
                self._remove(numbers, confirmed=False)
                self._answers.append((ticket, len(numbers)))
            case _:
                assert_never(request)

    def step(self, now: float) -> tuple[list[QueueEvent], list[tuple[int, Any]]]:
        """Do everything that is due and possible. Return the events to store, and the answers to
        give once they are stored."""
        self._end_leases(now)
        self._admit(now)
        self._lease(now)
        while self._waits and (self._waits[0][0] <= now or self._leaving):
            _, ticket = heapq.heappop(self._waits)
            if self._pulls.pop(ticket, None) is not None:
                self._answers.append((ticket, []))
            elif self._puts.pop(ticket, None) is not None:
                self._answers.append((ticket, 0))
        events, self._events = self._events, []
        answers, self._answers = self._answers, []
        return events, answers

    def leave(self) -> None:
        """Let nothing wait from now on: the queue moves, or leaves memory."""
        self._leaving = True

    def deadline(self) -> float | None:
        """Return the time at which `step` has something to do without a request."""
        waits = self._waits
        while waits and waits[0][1] not in self._pulls and waits[0][1] not in self._puts:
            heapq.heappop(waits)
        return min((heap[0][0] for heap in (waits, self._dues) if heap), default=None)

    @property
    def sizes(self) -> QueueSizes:
        """Return the figures of this queue for operators, without a look at its items."""
        return QueueSizes(1, len(self.state.items), self.aside, len(self._pulls), len(self._puts))

    @property
    def waiting(self) -> tuple[int, int]:
        """Return how many pulls and how many puts wait."""
        return len(self._pulls), len(self._puts)

    @property
    def is_crowded(self) -> bool:
        """True if no further request may wait."""
        return len(self._pulls) + len(self._puts) >= WAITING_MAX

    def place_of(self, item: WorkItem, now: float) -> ItemPlace:
        """Return where an item is. A lease or a delay that has ended needs no event."""
        if item.place in (ItemPlace.LEASED, ItemPlace.DELAYED) and item.until <= now:
            return ItemPlace.READY
        return item.place

    # ---- puts and pulls

    def _on_put(self, ticket: int, put: PutWork, now: float) -> None:
        if (repeats := self._repeated(put)) == len(put.bodies):
            self._answers.append((ticket, repeats))
        else:
            self._puts[ticket] = put
            heapq.heappush(self._waits, (now + put.wait, ticket))

    def _repeated(self, put: PutWork) -> int:
        """Return how many items of a put the queue has got before."""
        if not put.producer:
            return 0
        last = self.state.producers.get(put.producer, 0)
        return min(max(last - put.first + 1, 0), len(put.bodies))

    def _admit(self, now: float) -> None:
        """Put the items that have room, in the order of arrival. No put passes an earlier one."""
        while self._puts:
            ticket, put = next(iter(self._puts.items()))
            repeats = self._repeated(put)  # an earlier copy may have waited, too
            bodies = put.bodies[repeats:]
            room = self._room(bodies)
            if room:
                first, added = self.state.last + 1, list(bodies[:room])
                self._note(Queued(put.producer, put.first + repeats + room - 1, added, now))
                self.bytes += sum(map(len, added))
                for number in range(first, first + room):
                    heapq.heappush(self._ready, number)
            if repeats + room:
                del self._puts[ticket]
                self._answers.append((ticket, repeats + room))
            if room < len(bodies):
                break

    def _room(self, bodies: Sequence[bytes]) -> int:
        """Return how many of these bodies have room. One alone always has."""
        count, size = len(self.state.items), self.bytes
        for n, body in enumerate(bodies):
            size += len(body)
            full = count + n >= self.rules.limit or size > self.rules.bytes_limit
            if full and count + n:
                return n
        return len(bodies)

    def _on_pull(self, ticket: int, pull: PullWork, now: float) -> None:
        if pull.again and (held := self._held(list(self.state.items), pull.token, now)):
            self._answers.append((ticket, self._leased(held, now)))
            return
        self._pulls[ticket] = pull, now
        heapq.heappush(self._waits, (now + pull.wait, ticket))

    def _lease(self, now: float) -> None:
        """Lease ready items, to the pulls that wait longest."""
        while self._ready and self._pulls:
            ticket, (pull, since) = next(iter(self._pulls.items()))
            numbers: list[int] = []
            while self._ready and len(numbers) < pull.most:
                number = heapq.heappop(self._ready)
                item = self.state.items.get(number)
                if item is not None and self.place_of(item, now) is ItemPlace.READY:
                    numbers.append(number)
            if not numbers:
                break
            numbers = list(dict.fromkeys(numbers))
            until = now + self.rules.lease
            self._note(Leased(numbers, pull.token, until))
            for number in numbers:
                heapq.heappush(self._dues, (until, number))
            del self._pulls[ticket]
            waited = min(max(now - since, 0.0), pull.wait)  # the clock may jump
            self._answers.append((ticket, self._leased(numbers, now - waited)))

    def _leased(self, numbers: Sequence[int], since: float) -> list[LeasedItem]:
        items = [(number, self.state.items[number]) for number in numbers]
        return [(number, item.attempts, item.until - since, item.body) for number, item in items]

    # ---- the end of leases

    def _end_leases(self, now: float) -> None:
        """Make items ready whose lease or delay has ended, or set them aside."""
        while self._dues and self._dues[0][0] <= now:
            until, number = heapq.heappop(self._dues)
            item = self.state.items.get(number)
            if item is None or item.until != until:
                continue
            if item.place is ItemPlace.LEASED and self._is_poison(item):
                self._set_aside(number, item.error or "the lease ended without a confirmation")
            elif item.place in (ItemPlace.LEASED, ItemPlace.DELAYED):
                heapq.heappush(self._ready, number)

    def _on_return(self, request: ReturnWork, now: float) -> list[int]:
        held, error = self._held(request.numbers, request.token, now), request.error[:ERROR_MAX]
        back: dict[float, list[int]] = {}
        for number in held:
            item = self.state.items[number]
            if error and self._is_poison(item):
                self._set_aside(number, error)
            else:
                delay = self.rules.delay(item.attempts) if error else 0.0
                back.setdefault(now + delay, []).append(number)
        for until, numbers in back.items():
            self._note(Returned(numbers, until, error))
            for number in numbers:
                heapq.heappush(self._dues, (until, number))
        return held

    def _on_extend(self, request: ExtendWork, now: float) -> list[int]:
        numbers = self._held(request.numbers, request.token, now)
        if numbers:
            until = now + self.rules.lease
            self._note(Extended(numbers, until))
            for number in numbers:
                heapq.heappush(self._dues, (until, number))
        return numbers

    def _is_poison(self, item: WorkItem) -> bool:
        return item.attempts >= self.rules.attempts and self.aside < self.rules.aside_limit

    def _set_aside(self, number: int, error: str) -> None:
        self._note(PutAside(number, error))
        self.aside += 1

    # ---- small things

    def _note(self, event: QueueEvent) -> None:
        self.state.apply(event)
        self._events.append(event)

    def _held(self, numbers: Sequence[int], token: str, now: float) -> list[int]:
        """Return the numbers of the items that a pull holds."""
        items = self.state.items
        return [
            number
            for number in self._kept(numbers)
            if items[number].holder == token
            and self.place_of(items[number], now) is ItemPlace.LEASED
        ]

    def _kept(self, numbers: Sequence[int]) -> list[int]:
        return [number for number in dict.fromkeys(numbers) if number in self.state.items]

    def _aside_of(self, numbers: Sequence[int]) -> list[int]:
        items = self.state.items
        return [number for number in self._kept(numbers) if items[number].place is ItemPlace.ASIDE]

    def _remove(self, numbers: list[int], *, confirmed: bool) -> None:
        if not numbers:
            return
        for number in numbers:
            item = self.state.items[number]
            self.bytes -= len(item.body)
            self.aside -= item.place is ItemPlace.ASIDE
        self._note(Removed(numbers, confirmed))

    def check(self) -> None:
        """Audit the whole state. For tests."""
        state = self.state
        assert list(state.items) == sorted(state.items), "the items are out of order"
        assert all(0 < number <= state.last for number in state.items), "a number was not given"
        assert self.bytes == sum(len(item.body) for item in state.items.values())
        assert self.aside == sum(i.place is ItemPlace.ASIDE for i in state.items.values())
        assert state.last == len(state.items) + state.confirmed + state.dropped, "an item is lost"
        ready, dues = set(self._ready), set(self._dues)
        for number, item in state.items.items():
            match item.place:
                case ItemPlace.READY:
                    assert number in ready, f"{number} is ready, and no pull gets it"
                case ItemPlace.LEASED | ItemPlace.DELAYED:
                    due = (item.until, number) in dues
                    assert due or number in ready, f"{number} never comes back"
                case ItemPlace.ASIDE:
                    pass
