"""The leases of a simulated state store, with its failures.

A lease belongs to one owner for its time. The store may be slow, may fail before or after it did
its work, and may forget. A forgetful store can grant a lease twice. It then sets `twice`, which
excuses the consequences.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from shardbus.membership.claim_record import ClaimRecord

FASTEST, SLOWEST_USUAL = 0.001, 0.02


class SimLeases:
    """All leases. `up`: the store answers. `failing`: the part of answers that fail. `slow_s`: the
    longest delay of an answer beyond the usual. `twice`: a lease was granted to two owners at a
    time."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.up = True
        self.reaches: Callable[[str], bool] = lambda name: True
        """True if the node with this name reaches the store, if that is inside the cluster."""
        self.away: set[str] = set()
        """The names of nodes that have lost the way to it."""
        self.failing = 0.0
        self.slow_s = 0.0
        self.twice = False
        self._held: dict[str, tuple[str, float]] = {}
        self._forgotten: dict[str, tuple[str, float]] = {}
        self.record: ClaimRecord | None = None
        """Of the cluster that has the claim."""
        self.claims = False
        """True if the claim decides who founds, without discovery, too."""
        self.beats: dict[str, float] = {}
        """When each name registered itself last."""

    def calm(self) -> None:
        """Answer all requests from now on, quickly and correctly."""
        self.up, self.failing, self.slow_s = True, 0.0, 0.0
        self.away.clear()

    def reached_by(self, name: str) -> bool:
        """True if a request of this node arrives."""
        return self.up and name not in self.away and self.reaches(name)

    def forget(self) -> None:
        """Lose all leases, and the record of the claim."""
        self._forgotten.update(self._held)
        self._held.clear()
        self.record = None

    def delay(self) -> float:
        """Draw the delay of the next answer."""
        slow = self.rng.uniform(0.0, self.slow_s) if self.slow_s else 0.0
        return self.rng.uniform(FASTEST, SLOWEST_USUAL) + slow

    def answers(self, by: str = "") -> bool:
        """Draw whether a request of the node with the name `by` is carried out and answered."""
        return self.reached_by(by) and not (self.failing and self.rng.random() < self.failing)

    def free(self, name: str, owner: str) -> None:
        """Release the lease of this owner."""
        if self._held.get(name, ("", 0.0))[0] == owner:
            del self._held[name]

    def acquire(self, name: str, owner: str, ttl: float, now: float, by: str = "") -> bool | None:
        """Acquire the lease, for the node with the name `by`. None: no answer, though the lease may
        have been acquired."""
        fails = self.failing > 0.0 and self.rng.random() < self.failing
        if not self.reached_by(by) or (fails and self.rng.random() < 0.5):
            return None
        holder, until = self._held.get(name, ("", 0.0))
        granted = holder in ("", owner) or now >= until
        if granted:
            former, held_until = self._forgotten.get(name, (owner, 0.0))
            self.twice = self.twice or (former != owner and now < held_until)
            self._held[name] = (owner, now + ttl)
        return None if fails else granted
