"""The faults of a strategy: notes at growing intervals, and texts for `doctor`.

A strategy that fails does so with each call, and a call comes with each new shard. So a kind of
fault is noted when it occurs first, and again after `AGAIN_S`, then after twice as long each time,
up to `AGAIN_MAX_S`. A note counts the faults since the last one. A kind that has not occurred for
`KEPT_S` is forgotten.

Source: S0.19, S2.63; docs/how-to/tune.md.
"""

from __future__ import annotations

import msgspec

from shardbus.backoff import doubling
from shardbus.quantities import counted
from shardbus.sharding.allocation.checked import StrategyFault
from shardbus.sharding.events import Note

AGAIN_S, AGAIN_MAX_S = 10.0, 3600.0
"""Seconds between two notes of one kind: at first, and at most."""
KEPT_S = 600.0
"""Seconds for which a fault is shown after it occurred last."""
KINDS_MAX = 20


class _Kind(msgspec.Struct):
    """The faults of one kind. `unnoted`: since the last note. `text`: the last fault of
    `method`."""

    method: str
    text: str
    last: float
    count: int = 0
    unnoted: int = 0
    notes: int = 0
    next_note: float = 0.0

    def shown(self, now: float) -> str:
        """Return the last fault, how often it occurred, and when."""
        return f"{self.text} ({counted(self.count, 'time')}, the last {now - self.last:.0f} s ago)"


class StrategyFaults:
    """The faults of the strategy of this name, its class name."""

    __slots__ = ("_kinds", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def add(self, fault: StrategyFault, now: float) -> list[Note]:
        """Record a fault; return its note if one is due."""
        self._forget(now)
        method, what = f"{self._name}.{fault.method}", fault.kind + fault.detail
        key = (fault.method, fault.kind)
        kind = self._kinds.setdefault(key, _Kind(method, what, now, next_note=now))
        if len(self._kinds) > KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]
        kind.text, kind.last = what, now
        kind.count += 1
        kind.unnoted += 1
        if now < kind.next_note:
            return []
        times, kind.unnoted = kind.unnoted, 0
        kind.notes += 1
        kind.next_note = now + doubling(AGAIN_S, AGAIN_MAX_S, kind.notes)
        text = f"{method} {what}" + (f" ({counted(times, 'time')})" if times > 1 else "")
        return [Note("strategy_failed", text, times)]

    def shown(self, now: float) -> list[tuple[str, str]]:
        """Return the faults of the last `KEPT_S` seconds: each method, and its fault."""
        self._forget(now)
        return [(kind.method, kind.shown(now)) for kind in self._kinds.values()]

    def _forget(self, now: float) -> None:
        for key in [key for key, kind in self._kinds.items() if now - kind.last > KEPT_S]:
            del self._kinds[key]
