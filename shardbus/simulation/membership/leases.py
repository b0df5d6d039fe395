"""The lease part of the state store, and its bad days.

A lease belongs to one owner for its time. The store may be slow, it may fail before or after it did
its work, and it may forget. A forgetful store can grant a lease twice; `twice` says that it did,
and what follows from that is nobody else's fault.
"""

from __future__ import annotations

from random import Random

FASTEST, SLOWEST_USUAL = 0.001, 0.02


class SimLeases:
    """All leases. `up`: it answers at all; `failing`: the part of answers that fail; `slow_s`: the
    longest wait for an answer beside the usual."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.up = True
        self.failing = 0.0
        self.slow_s = 0.0
        self.twice = False
        self._held: dict[str, tuple[str, float]] = {}
        self._forgotten: dict[str, tuple[str, float]] = {}

    def calm(self) -> None:
        """From now on it answers, at once and truly."""
        self.up, self.failing, self.slow_s = True, 0.0, 0.0

    def forget(self) -> None:
        """Lose everything."""
        self._forgotten.update(self._held)
        self._held.clear()

    def delay(self) -> float:
        """How long the next answer takes."""
        slow = self.rng.uniform(0.0, self.slow_s) if self.slow_s else 0.0
        return self.rng.uniform(FASTEST, SLOWEST_USUAL) + slow

    def acquire(self, name: str, owner: str, ttl: float, now: float) -> bool | None:
        """Take the lease. None: no answer came, though it may have been taken."""
        fails = self.failing > 0.0 and self.rng.random() < self.failing
        if not self.up or (fails and self.rng.random() < 0.5):
            return None
        holder, until = self._held.get(name, ("", 0.0))
        granted = holder in ("", owner) or now >= until
        if granted:
            former, held_until = self._forgotten.get(name, (owner, 0.0))
            self.twice = self.twice or (former != owner and now < held_until)
            self._held[name] = (owner, now + ttl)
        return None if fails else granted
