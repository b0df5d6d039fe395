"""A checker of linearizability: is there one order of the operations of a history that explains it?

An operation has an effect at one moment between its start and its end. `step` is that effect, on a
state that is an immutable value: the state after it, or None if the operation cannot have answered
as it did in this state. An operation that may have had no effect (`must` is False) may be left out;
one without an answer ends never.

The search is by Wing and Gong, with the memory of Lowe: a set of operations that were ordered, with
the state that they left, is tried once.

Source: Wing and Gong, "Testing and verifying concurrent objects"; Lowe, "Testing for
linearizability".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

NEVER = float("inf")
SEARCH_MAX = 300_000
"""Orders that are tried, at most."""

Step = Callable[[Any], Hashable | None]


@dataclass(slots=True)
class HistoryEntry:
    """One operation of a history."""

    name: str
    begun: float
    step: Step
    ended: float = NEVER
    must: bool = False


class TooManyOrders(Exception):
    """The history is too long to be judged."""


def linearizable(history: Sequence[HistoryEntry], first: Hashable) -> bool:
    """True if some order explains the history. `first`: the state before it.

    Raises:
        TooManyOrders: `SEARCH_MAX` orders were tried.
    """
    entries = sorted(history, key=lambda entry: entry.begun)
    required = sum(1 << at for at, entry in enumerate(entries) if entry.must)
    seen: set[tuple[int, Hashable, float]] = set()
    stack: list[tuple[int, Hashable, float]] = [(0, first, -1.0)]
    while stack:
        ordered, state, last = stack.pop()
        missing = required & ~ordered
        if not missing:
            return True
        bound = min(entries[at].ended for at in _bits(missing))
        for at, entry in enumerate(entries):
            if entry.begun > bound:
                break
            if ordered >> at & 1 or entry.ended < last:
                continue
            after = entry.step(state)
            if after is None:
                continue
            reached = (ordered | 1 << at, after, max(last, entry.begun))
            if reached not in seen:
                seen.add(reached)
                stack.append(reached)
                if len(seen) > SEARCH_MAX:
                    raise TooManyOrders(f"{len(entries)} operations")
    return False


def _bits(number: int) -> list[int]:
    return [at for at in range(number.bit_length()) if number >> at & 1]
