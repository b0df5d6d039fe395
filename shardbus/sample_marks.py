"""Which of many events are sampled: about the same number a second, however many there are.

An event stream is counted, and one event is sampled when the count passes a *mark*. The sample
stands for all events since the last one (its *weight*), so the weights add up to the count.

The distance to the next mark is drawn, uniformly between one and twice the mean, so that no period
of the stream can fall in step with the marks. Whether an event is sampled does not depend on its
kind.

The mean follows the rate in two ways. `pace`, once a second, sets it to the value that the second
would have needed. Between two calls it only grows: samples take tokens from a bucket, which holds
one second's and is refilled a half faster than they are needed. Each time it is empty the mean
doubles, for a tenth of a second's samples. So the first events after a quiet second are all
sampled, and a rush is some hundred times in excess, not thousands.

Source: N.9, B.150.
"""

from __future__ import annotations

from random import Random

REFILL = 1.5
"""Tokens that come back, for each sample that is due."""
NEVER = 2**62


class SampleMarks:
    """The marks of one stream, `rate` a second; with 0, none. `mark`: the count from which
    `take` must be called. `dice` draws the distances."""

    __slots__ = (
        "_dice", "_last", "_paced_at", "_rate", "_refilled_at", "_step", "_tokens", "mark",
    )  # fmt: skip

    def __init__(self, rate: int, dice: Random | None = None) -> None:
        self._dice = dice or Random(0)
        self._last = self._paced_at = 0
        self._step, self._refilled_at = 1, 0.0
        self._tokens: float
        self.want(rate)

    def take(self, count: int, now: float) -> int:
        """Take a sample and draw the next mark. Returns its weight.

        Args:
            count: all events so far.
            now: seconds of any clock that does not go back.
        """
        weight, self._last = count - self._last, count
        rate = self._rate
        refill, self._refilled_at = (now - self._refilled_at) * REFILL * rate, now
        tokens = min(rate, self._tokens + refill)
        if tokens < 1:
            self._step, tokens = 2 * self._step, tokens + rate / 10
        self._tokens = tokens - 1
        self.mark = count + 1 + int(self._dice.random() * (2 * self._step - 1))
        return weight

    def choose(self, number: int) -> int:
        """Return the index of the event that is the sample, of a number of them that passed the
        mark at once."""
        return int(self._dice.random() * number)

    def pace(self, count: int) -> None:
        """Adapt the mean distance. Called about once a second."""
        if not self._rate:
            return
        passed, self._paced_at = count - self._paced_at, count
        self._step = max(1, round(passed / self._rate))
        self.mark = min(self.mark, count + self._step)

    def want(self, rate: int) -> None:
        """Sample this number of events a second from now on; with 0, none."""
        self._rate, self._tokens = rate, float(rate)
        self.mark = 0 if rate else NEVER
