"""The phi accrual failure detector: how improbable is this silence?

The detector keeps the last intervals between heartbeats. It returns a level of suspicion, not yes
or no:

    phi = -log10( probability that a heartbeat comes later than now, given the intervals so far )

Intervals are taken as normally distributed; a logistic curve approximates the normal distribution.
A threshold of 1 gives one false alarm in 10 silences, a threshold of 8 one in 10^8.
`acceptable_pause` is added to the mean, and the deviation has a lower bound, so that a quiet
network does not make the detector oversensitive.

- The first heartbeat ends no interval. Two intervals are assumed instead, a quarter below and above
  an estimate.
- An interval that ended a suspicion is not sampled: an outage is not normal behaviour.
- Other signs of life end the silence, but are not sampled and do not end a suspicion.
- An observer that was itself paused credits that time to the others.
- `patience` is added to the acceptable pause while a node is starved (`local_health`). An interval
  that would have been a suspicion without it is not sampled either.

Source: S1.16-S1.18, B.7, B.25; Hayashibara et al., «The phi accrual failure detector», 2004.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

TINY = 1e-300
"""Lower bound of the probability, so that phi stays finite."""
EVEN = 0.302
"""A little more than the phi of a silence as long as mean and pause: half of the silences are
longer."""


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class PhiAccrual:
    """The suspicion of one node. Times are seconds of one monotonic clock."""

    threshold: float = 8.0
    max_sample_size: int = 1000
    min_std_deviation: float = 0.1
    acceptable_pause: float = 3.0
    patience: float = 0.0
    first_estimate: float = 1.0
    _intervals: deque[float] = field(default_factory=deque)
    _sum: float = 0.0
    _squares: float = 0.0
    _sampled_at: float | None = None
    _alive_at: float | None = None

    @property
    def monitoring(self) -> bool:
        """True once a first heartbeat has arrived, or was assumed."""
        return self._alive_at is not None

    @property
    def mean(self) -> float:
        """The mean interval; 0 before the first heartbeat."""
        return self._sum / len(self._intervals) if self._intervals else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation of the intervals, without the lower bound."""
        if not self._intervals:
            return 0.0
        return math.sqrt(max(0.0, self._squares / len(self._intervals) - self.mean**2))

    def heartbeat(self, now: float) -> float | None:
        """Record a heartbeat. Return the interval it ended, or None if that was a suspicion."""
        interval: float | None = None
        if self._alive_at is None:
            self._sample(self.first_estimate * 0.75)
            self._sample(self.first_estimate * 1.25)
        elif self._sampled_at is not None and self.available(now):
            interval = now - self._sampled_at
            if self._calm(now, 0.0):
                self._sample(interval)
        self._sampled_at = self._alive_at = now
        return interval

    def touch(self, now: float) -> None:
        """Record another sign of life. No effect before the first heartbeat, or under suspicion."""
        if self._alive_at is not None and self.available(now):
            self._alive_at = max(now, self._alive_at)

    def credit(self, seconds: float) -> None:
        """Exclude that many seconds from silence and interval: the observer itself was paused."""
        if self._alive_at is not None:
            self._alive_at += seconds
            self._sampled_at = None if self._sampled_at is None else self._sampled_at + seconds

    def phi(self, now: float) -> float:
        """Return the suspicion; 0 before the first heartbeat."""
        return self._surprise(now, self.patience)

    def available(self, now: float) -> bool:
        """True while the suspicion is below the threshold."""
        return self._calm(now, self.patience)

    def _calm(self, now: float, patience: float) -> bool:
        """True while the suspicion is below the threshold. Most silences are so short that phi is
        not needed."""
        if self._alive_at is None:
            return True
        short = now - self._alive_at <= self.acceptable_pause + patience
        return (short and self.threshold > EVEN) or self._surprise(now, patience) < self.threshold

    def _surprise(self, now: float, patience: float) -> float:
        if self._alive_at is None:
            return 0.0
        deviation = max(self.deviation, self.min_std_deviation)
        pause = self.acceptable_pause + patience
        return phi_of(now - self._alive_at, self.mean + pause, deviation)

    def _sample(self, interval: float) -> None:
        if len(self._intervals) >= self.max_sample_size:
            oldest = self._intervals.popleft()
            self._sum -= oldest
            self._squares -= oldest * oldest
        self._intervals.append(interval)
        self._sum += interval
        self._squares += interval * interval


def phi_of(silence: float, mean: float, deviation: float) -> float:
    """Return -log10 of the probability that an interval is longer than `silence`. Bounded, never
    infinite."""
    y = (silence - mean) / deviation
    exponent = -y * (1.5976 + 0.070566 * y * y)
    if exponent > 700.0:
        return 0.0
    e = math.exp(exponent)
    later = e / (1.0 + e) if silence > mean else 1.0 - 1.0 / (1.0 + e)
    return -math.log10(max(later, TINY))
