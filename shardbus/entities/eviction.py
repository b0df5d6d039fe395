"""Eviction policies: which entity leaves when too many are in memory. Pure.

A policy keeps ids in an order and names the next victim. It gets notices and decides nothing else:
`passivation` decides which entities stop, and when.

    started(id, at)    the entity is in memory now
    used(id, at)       it had a message at that tick, later than known before
    spared(id)         it is the victim and cannot go now: name others first
    stopped(id)        it leaves, as a victim or by itself
    victim()           the entity to leave next; it stays the same until it is `stopped`

Times are ticks of the node's coarse clock, so within 50 ms a policy knows only the order of its
notices. Notices of uses come late, and several uses may come as one: the passivator first reports
whether a victim was used meanwhile, and asks again. Every policy here stays right under that, since
an unknown use only makes an entity look like a victim too early.

    lru     the least recently used
    slru    two levels: an entity that is used again rises to `protected`, which holds at most a
            part of the limit and gives its oldest back; victims come from the lower level, so a
            scan passes through
    mru     the second most recently used: for loops over more ids than the limit, where lru always
            evicts the id that is needed next
    lfu     the least often used, counted up from an age that rises with every victim, so that old
            uses lose weight

**composite** is W-TinyLFU. An entity must start when a message arrives for it, so none can be kept
out, and a scan over many ids, each used once, would push out those that are used all day. So a new
entity first stays in a window:

    start ──> window (a small part of the limit, lru)
                 │ the window is full: its oldest is a candidate
                 ▼
              was the candidate used more often than the main area's victim?
                 │ yes                              │ no
                 ▼                                  ▼
              the victim goes,                  the candidate goes
              the candidate takes its place
              main area (slru)

*The sketch* estimates how often an id was used, whether it is in memory or not: four rows of
counters, an id has one in each, and the least of them is the estimate, never too low. Counters end
at 15. After ten times as many uses as the limit, all counters are halved, so that the recent past
counts.

*The climber* chooses the size of the window. Work that repeats few ids gains by a small window,
work that moves on to ever new ids by a large one. After each ten times as many messages as the
limit it compares the part of them that found their entity in memory: if that grew, the window
changes on in the same direction; if it shrank, in the other. The step shrinks, and is long again
when the rate jumps, since then the work has changed.

Source: B.81-B.84; Karedla et al. 1994 (segmented LRU), Arlitt et al. 1999 (dynamic aging),
Einziger, Friedman, Manes 2017 (TinyLFU), Einziger et al. 2018 (adaptive window).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol
from zlib import crc32

ROWS = 4
WIDTH_PER_PLACE = 4
COUNT_MAX = 15
SAMPLE = 10
"""Uses, per place of the limit, between two halvings of the sketch, and messages between two steps
of the climber."""

_MIX = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_HALVED = bytes(count >> 1 for count in range(256))

WINDOW_MIN = 0.01
WINDOW_MAX = 0.8
STEP_FIRST = 0.0625
STEP_DECAY = 0.98
RESTART = 0.05
"""A rate that changes by as much means other work."""


class EvictionPolicy(Protocol):
    """An order of entities by which they leave memory. `counts_uses`: the policy needs notices of
    uses even while no entity has to leave."""

    counts_uses: bool

    def __len__(self) -> int: ...
    def started(self, entity_id: str, at: int) -> None: ...
    def used(self, entity_id: str, at: int) -> None: ...
    def spared(self, entity_id: str) -> None: ...
    def stopped(self, entity_id: str) -> None: ...
    def victim(self) -> str | None: ...
    def resize(self, limit: int) -> None: ...


class RankedIds:
    """Ids in the order of their numbers; ids of one number in the order in which they got it. The
    cost of a step does not depend on the number of ids; only a new number costs a search among the
    numbers."""

    __slots__ = ("_buckets", "_numbers", "_rank_of")

    def __init__(self) -> None:
        self._rank_of: dict[str, int] = {}
        self._buckets: dict[int, OrderedDict[str, None]] = {}
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._rank_of)

    def __contains__(self, entity_id: object) -> bool:
        return entity_id in self._rank_of

    def put(self, entity_id: str, rank: int) -> None:
        """Give an id this number, and the last place there."""
        self.discard(entity_id)
        bucket = self._buckets.get(rank)
        if bucket is None:
            bucket = self._buckets[rank] = OrderedDict()
            insort(self._numbers, rank)
        bucket[entity_id] = None
        self._rank_of[entity_id] = rank

    def discard(self, entity_id: str) -> None:
        """Forget an id, if it is here."""
        rank = self._rank_of.pop(entity_id, None)
        if rank is None:
            return
        bucket = self._buckets[rank]
        del bucket[entity_id]
        if not bucket:
            del self._buckets[rank]
            del self._numbers[bisect_left(self._numbers, rank)]

    def rank(self, entity_id: str) -> int:
        """Return the number of an id."""
        return self._rank_of[entity_id]

    def first(self) -> str | None:
        """Return the first id of the least number."""
        return next(iter(self._buckets[self._numbers[0]])) if self._numbers else None

    def backwards(self) -> Iterator[str]:
        """Yield all ids, the greatest number first."""
        for number in reversed(self._numbers):
            yield from reversed(self._buckets[number])

    @property
    def least(self) -> int:
        """The least number, 0 without ids."""
        return self._numbers[0] if self._numbers else 0

    @property
    def greatest(self) -> int:
        """The greatest number, 0 without ids."""
        return self._numbers[-1] if self._numbers else 0

    def above(self, rank: int) -> int:
        """Return the next greater number that is in use, or one more if there is none."""
        at = bisect_right(self._numbers, rank)
        return self._numbers[at] if at < len(self._numbers) else rank + 1


class LeastRecent:
    """The policy lru."""

    counts_uses = False

    def __init__(self) -> None:
        self._order = RankedIds()

    def __len__(self) -> int:
        return len(self._order)

    def started(self, entity_id: str, at: int) -> None:
        self._order.put(entity_id, at)

    def used(self, entity_id: str, at: int) -> None:
        self._order.put(entity_id, at)

    def spared(self, entity_id: str) -> None:
        self._order.put(entity_id, self._order.greatest)

    def stopped(self, entity_id: str) -> None:
        self._order.discard(entity_id)

    def victim(self) -> str | None:
        return self._order.first()

    def resize(self, limit: int) -> None:
        """The order does not depend on the limit."""


class MostRecent(LeastRecent):
    """The policy mru. The most recently used entity is the reason for the eviction; it leaves only
    if no other can."""

    def spared(self, entity_id: str) -> None:
        self._order.put(entity_id, -1)

    def victim(self) -> str | None:
        newest = self._order.backwards()
        last = next(newest, None)
        second = next(newest, None)
        return last if second is None or self._order.rank(second) < 0 else second


class Segmented:
    """The policy slru. `part`: the part of the limit that the protected level may hold."""

    counts_uses = False

    def __init__(self, limit: int, part: float) -> None:
        self._part = part
        self._low, self._high = RankedIds(), RankedIds()
        self.resize(limit)

    def __len__(self) -> int:
        return len(self._low) + len(self._high)

    def __contains__(self, entity_id: object) -> bool:
        return entity_id in self._low or entity_id in self._high

    def started(self, entity_id: str, at: int) -> None:
        self._high.discard(entity_id)
        self._low.put(entity_id, at)

    def used(self, entity_id: str, at: int) -> None:
        self._low.discard(entity_id)
        self._high.put(entity_id, at)
        self._demote()

    def spared(self, entity_id: str) -> None:
        self.used(entity_id, self._now)

    def stopped(self, entity_id: str) -> None:
        self._low.discard(entity_id)
        self._high.discard(entity_id)

    def victim(self) -> str | None:
        return self._low.first() or self._high.first()

    def resize(self, limit: int) -> None:
        self._protected = int(limit * self._part)
        self._demote()

    @property
    def _now(self) -> int:
        return max(self._low.greatest, self._high.greatest)

    def _demote(self) -> None:
        """Move the oldest of a protected level that is too full to the lower one, as new there."""
        while len(self._high) > self._protected:
            oldest, now = self._high.first(), self._now
            assert oldest is not None
            self._high.discard(oldest)
            self._low.put(oldest, now)


class LeastFrequent:
    """The policy lfu. A use adds one to the entity's number or to the age, whichever is more; the
    age is the number of the last victim."""

    counts_uses = True

    def __init__(self) -> None:
        self._order = RankedIds()
        self._age = 0

    def __len__(self) -> int:
        return len(self._order)

    def started(self, entity_id: str, at: int) -> None:
        self._order.put(entity_id, self._age + 1)

    def used(self, entity_id: str, at: int) -> None:
        self._order.put(entity_id, max(self._order.rank(entity_id), self._age) + 1)

    def spared(self, entity_id: str) -> None:
        self._order.put(entity_id, self._order.above(self._order.rank(entity_id)))

    def stopped(self, entity_id: str) -> None:
        if entity_id in self._order and self._order.rank(entity_id) == self._order.least:
            self._age = max(self._age, self._order.least)
        self._order.discard(entity_id)

    def victim(self) -> str | None:
        return self._order.first()

    def resize(self, limit: int) -> None:
        """Counting does not depend on the limit."""


class FrequencySketch:
    """Estimates how often ids were used lately. `places`: the limit that it serves."""

    __slots__ = ("_added", "_counters", "_mask", "_sample", "_width")

    def __init__(self, places: int) -> None:
        self._width = 1 << max(4, (WIDTH_PER_PLACE * places - 1).bit_length())
        self._mask = self._width - 1
        self._counters = bytearray(ROWS * self._width)
        self._sample = SAMPLE * places
        self._added = 0

    def add(self, entity_id: str) -> None:
        """Count one use of an id."""
        counters = self._counters
        for place in self._places(entity_id):
            if counters[place] < COUNT_MAX:
                counters[place] += 1
        self._added += 1
        if self._added >= self._sample:
            self._added //= 2
            self._counters = counters.translate(_HALVED)

    def estimate(self, entity_id: str) -> int:
        """Return how often an id was used since the last halvings, at most 15; never too low."""
        return min(self._counters[place] for place in self._places(entity_id))

    def _places(self, entity_id: str) -> list[int]:
        seed = crc32(entity_id.encode()) + 1
        mask, width = self._mask, self._width
        return [
            row * width + ((seed * mix & 0xFFFFFFFFFFFFFFFF) >> 32 & mask)
            for row, mix in enumerate(_MIX)
        ]


class HillClimber:
    """Adapts `window`, the part of the limit that the window has."""

    __slots__ = ("_rate", "_step", "window")

    def __init__(self, window: float) -> None:
        self.window = window
        self._step = STEP_FIRST
        self._rate: float | None = None

    def adapt(self, rate: float) -> None:
        """Take the next step; `rate` of the last messages, 0 to 1, found their entity in
        memory."""
        if self._rate is None:
            self._rate = rate
        change = rate - self._rate
        if change < 0:
            self._step = -self._step
        if abs(change) >= RESTART:
            self._step = STEP_FIRST if self._step > 0 else -STEP_FIRST
        self.window = min(WINDOW_MAX, max(WINDOW_MIN, self.window + self._step))
        self._step *= STEP_DECAY
        self._rate = rate


class CompositePolicy:
    """The policy composite. `window`: the part of the limit for the window at first. `part`: the
    part of the main area for its protected level."""

    counts_uses = True

    def __init__(self, limit: int, window: float, part: float) -> None:
        self._climber = HillClimber(window)
        self._window = RankedIds()
        self._main = Segmented(limit, part)
        self._messages = self._starts = 0
        self.resize(limit)

    def __len__(self) -> int:
        return len(self._window) + len(self._main)

    def resize(self, limit: int) -> None:
        self._limit = limit
        self._sketch = FrequencySketch(limit)
        self._divide()

    def _divide(self) -> None:
        self._window_max = max(1, round(self._limit * self._climber.window))
        self._main_max = self._limit - self._window_max
        self._main.resize(self._main_max)

    def started(self, entity_id: str, at: int) -> None:
        self._sketch.add(entity_id)
        self._main.stopped(entity_id)
        self._window.put(entity_id, at)

    def used(self, entity_id: str, at: int) -> None:
        self._sketch.add(entity_id)
        if entity_id in self._window:
            self._window.put(entity_id, at)
        else:
            self._main.used(entity_id, at)

    def spared(self, entity_id: str) -> None:
        """Move the id to the other side, so that neither side hides the other."""
        if entity_id in self._window:
            self._main.started(entity_id, self._window.rank(entity_id))
            self._window.discard(entity_id)
            self._main.spared(entity_id)
        else:
            self._main.stopped(entity_id)
            self._window.put(entity_id, self._window.greatest)

    def stopped(self, entity_id: str) -> None:
        self._window.discard(entity_id)
        self._main.stopped(entity_id)
        self._admit()

    def _admit(self) -> None:
        """Move the oldest of a full window to the main area while that has room."""
        window, main = self._window, self._main
        while len(window) > self._window_max and len(main) < self._main_max:
            candidate = window.first()
            assert candidate is not None
            main.started(candidate, window.rank(candidate))
            window.discard(candidate)

    def victim(self) -> str | None:
        self._admit()
        window, main = self._window, self._main
        candidate, settled = window.first(), main.victim()
        if candidate is None or settled is None:
            return settled or candidate
        if len(window) <= self._window_max:
            return settled
        estimate = self._sketch.estimate
        return settled if estimate(candidate) > estimate(settled) else candidate

    def measure(self, messages: int, starts: int) -> None:
        """Note that `messages` more have arrived, and that `starts` of them started an entity."""
        self._messages += messages
        self._starts += starts
        if self._messages >= SAMPLE * self._limit:
            self._climber.adapt(1.0 - min(1.0, self._starts / self._messages))
            self._messages = self._starts = 0
            self._divide()
