"""Who goes when too many entities are in memory: replacement policies, pure.

A policy keeps ids in an order and names the next victim. It is told what happens and decides
nothing else: who is told to stop, and when, is the matter of `residents`.

    started(id, at)    it is in memory now
    used(id, at)       it had a message at that time, later than what was known
    spared(id)         it is the victim, and cannot go now: name others first
    stopped(id)        it goes, as victim or by itself
    victim()           who shall go next; it stays until it is `stopped`

Times are ticks of the node's coarse clock, so a policy knows no order within 50 ms but that of what
it is told. News of uses come late, and several uses may come as one: whoever asks for a victim says
first whether it was used since, and asks again. Every policy here stays right under that, for a use
that is not known yet only makes an entity look like a victim too early.

    lru     the one whose last use is longest ago
    slru    two levels: who is used again rises to `protected`, which holds at most a part of the
            limit and gives its oldest back; victims come from below, so a scan passes through
    mru     the last but one that was used: for loops over more than fits, where lru always evicts
            what comes next
    lfu     the one that was used least often, counted up from an age which rises with every victim:
            old fame is not for ever

`composite` stands in `admission`, for it knows more than who is in memory.

Source: B.81, B.82, B.83; Karedla et al. 1994 (segmented LRU), Arlitt et al. 1999 (dynamic aging).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol


class EvictionPolicy(Protocol):
    """See the module. `counts_uses`: it wants to hear of uses though nobody has to go."""

    counts_uses: bool

    def __len__(self) -> int: ...
    def started(self, entity_id: str, at: int) -> None: ...
    def used(self, entity_id: str, at: int) -> None: ...
    def spared(self, entity_id: str) -> None: ...
    def stopped(self, entity_id: str) -> None: ...
    def victim(self) -> str | None: ...
    def resize(self, limit: int) -> None: ...


class RankedIds:
    """Ids in the order of a number that each has; within one number, in the order in which they got
    it. Every step costs the same however many there are; only numbers that nobody had before cost a
    search among the numbers."""

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
        """Give it this number, and the last place there."""
        self.discard(entity_id)
        bucket = self._buckets.get(rank)
        if bucket is None:
            bucket = self._buckets[rank] = OrderedDict()
            insort(self._numbers, rank)
        bucket[entity_id] = None
        self._rank_of[entity_id] = rank

    def discard(self, entity_id: str) -> None:
        """Forget it, if it is here."""
        rank = self._rank_of.pop(entity_id, None)
        if rank is None:
            return
        bucket = self._buckets[rank]
        del bucket[entity_id]
        if not bucket:
            del self._buckets[rank]
            del self._numbers[bisect_left(self._numbers, rank)]

    def rank(self, entity_id: str) -> int:
        """Its number."""
        return self._rank_of[entity_id]

    def first(self) -> str | None:
        """The one with the least number."""
        return next(iter(self._buckets[self._numbers[0]])) if self._numbers else None

    def backwards(self) -> Iterator[str]:
        """All of them, the greatest number first."""
        for number in reversed(self._numbers):
            yield from reversed(self._buckets[number])

    @property
    def least(self) -> int:
        """The least number, 0 if nobody is here."""
        return self._numbers[0] if self._numbers else 0

    @property
    def greatest(self) -> int:
        """The greatest number, 0 if nobody is here."""
        return self._numbers[-1] if self._numbers else 0

    def above(self, rank: int) -> int:
        """The next number that somebody has, or one more if nobody has any."""
        at = bisect_right(self._numbers, rank)
        return self._numbers[at] if at < len(self._numbers) else rank + 1


class LeastRecent:
    """See the module: lru."""

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
        """Any number is ordered alike."""


class MostRecent(LeastRecent):
    """See the module: mru. The very last one is why somebody must go; it goes if nobody else
    can."""

    def spared(self, entity_id: str) -> None:
        self._order.put(entity_id, -1)

    def victim(self) -> str | None:
        newest = self._order.backwards()
        last = next(newest, None)
        second = next(newest, None)
        return last if second is None or self._order.rank(second) < 0 else second


class Segmented:
    """See the module: slru. `part`: how much of the limit the protected level may hold."""

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
        """Who is too many above comes back below as if it were new there."""
        while len(self._high) > self._protected:
            oldest, now = self._high.first(), self._now
            assert oldest is not None
            self._high.discard(oldest)
            self._low.put(oldest, now)


class LeastFrequent:
    """See the module: lfu. A use counts one, upon what the entity had or upon the age, whichever is
    more; the age is what the last victim had."""

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
        """Any number is counted alike."""
