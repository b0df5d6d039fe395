"""Who may stay when an entity has just started: a window, a filter, and a main area. Pure.

The problem: an entity must start when a message comes for it, so nobody can be kept out. A scan
over many ids, each used once, would then push out those that are used all day. So a newcomer does
not take a place among them yet. This is W-TinyLFU.

    start ──> window (a small part of the limit, lru)
                 │ the window is full: its oldest is a candidate
                 ▼
              was the candidate used more often than the main area's victim?
                 │ yes                              │ no
                 ▼                                  ▼
              the victim goes,                  the candidate goes
              the candidate takes its place
              main area (slru)

**The sketch** estimates how often an id was used, whether it is in memory or not: four rows of
counters, an id has one in each, and the least of them is the estimate, never too low. Counters end
at 15. After ten times as many uses as the limit all counters are halved, so what counts is the
recent past.

**The climber** chooses the size of the window. Work that goes round among few ids wants a small
window, work that moves on to ever new ids a large one. After each ten times as many messages as the
limit it looks at how many of them found their entity in memory: better than the last time, and it
goes on in the same direction; worse, and it turns. Its step shrinks, and is long again when the
rate jumps, for then the work has changed.

Not here: when to look, and who is busy (`residents`).

Source: B.84; Einziger, Friedman, Manes 2017 (TinyLFU); Einziger et al. 2018 (adaptive window).
"""

from __future__ import annotations

from zlib import crc32

from shardbus.entities.eviction import RankedIds, Segmented

ROWS = 4
WIDTH_PER_PLACE = 4
COUNT_MAX = 15
SAMPLE = 10
"""Uses, per place of the limit, between two halvings, and messages between two looks of the
climber."""

_MIX = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_HALVED = bytes(count >> 1 for count in range(256))

WINDOW_MIN = 0.01
WINDOW_MAX = 0.8
STEP_FIRST = 0.0625
STEP_DECAY = 0.98
RESTART = 0.05
"""A rate that changes by so much means other work."""


class FrequencySketch:
    """See the module. `places`: the limit it is made for."""

    __slots__ = ("_added", "_counters", "_mask", "_sample", "_width")

    def __init__(self, places: int) -> None:
        self._width = 1 << max(4, (WIDTH_PER_PLACE * places - 1).bit_length())
        self._mask = self._width - 1
        self._counters = bytearray(ROWS * self._width)
        self._sample = SAMPLE * places
        self._added = 0

    def add(self, entity_id: str) -> None:
        """It was used once."""
        counters = self._counters
        for place in self._places(entity_id):
            if counters[place] < COUNT_MAX:
                counters[place] += 1
        self._added += 1
        if self._added >= self._sample:
            self._added //= 2
            self._counters = counters.translate(_HALVED)

    def estimate(self, entity_id: str) -> int:
        """How often it was used lately; at least so often, up to 15, but for the halvings."""
        return min(self._counters[place] for place in self._places(entity_id))

    def _places(self, entity_id: str) -> list[int]:
        seed = crc32(entity_id.encode()) + 1
        mask, width = self._mask, self._width
        return [
            row * width + ((seed * mix & 0xFFFFFFFFFFFFFFFF) >> 32 & mask)
            for row, mix in enumerate(_MIX)
        ]


class HillClimber:
    """See the module. `window` is the part of the limit that the window shall have."""

    __slots__ = ("_rate", "_step", "window")

    def __init__(self, window: float) -> None:
        self.window = window
        self._step = STEP_FIRST
        self._rate: float | None = None

    def look(self, rate: float) -> None:
        """So many of the last messages, 0 to 1, found their entity in memory."""
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
    """See the module. `window` and `part`: of the limit for the window, and of the main area for
    its protected level."""

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
        """It changes sides, so that neither side hides the other."""
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
        """Where the main area has room, the oldest of a full window get it."""
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
        """So many more messages came, and so many of them started an entity."""
        self._messages += messages
        self._starts += starts
        if self._messages >= SAMPLE * self._limit:
            self._climber.look(1.0 - min(1.0, self._starts / self._messages))
            self._messages = self._starts = 0
            self._divide()
