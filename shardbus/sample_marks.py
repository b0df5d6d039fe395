"""Which of many events are sampled: about the same number a second, however many there are.

An event stream is counted, and one event is sampled when the count passes a *mark*. The sample
stands for all events since the last one (its *weight*), so the weights add up to the count.

The distance to the next mark is drawn, uniformly between one and twice the mean, so that no period
of the stream can fall in step with the marks. Whether an event is sampled does not depend on what
it is.

The mean follows the rate in two ways. `pace`, once a second, sets it to what the second would have
needed. Between two calls it only grows: a window of `WINDOW_S` that has more than twice its part of
the samples doubles it, again and again, so a rush after a quiet second is sampled some dozens of
times in excess, not thousands.

Source: N.9, B.150.
"""

from __future__ import annotations

from random import Random

WINDOW_S = 0.1
NEVER = 2**62


class SampleMarks:
    """The marks of one stream, `wanted` a second; with 0, none. `mark`: the count from which
    `take` must be called. `dice` draws the distances."""

    __slots__ = (
        "_dice", "_last", "_paced_at", "_step", "_wanted", "_window", "_window_ends", "mark",
    )  # fmt: skip

    def __init__(self, wanted: int, dice: Random | None = None) -> None:
        self._dice = dice or Random(0)
        self._wanted = wanted
        self.mark = 0 if wanted else NEVER
        self._last = self._paced_at = 0
        self._step = 1
        self._window, self._window_ends = 0, 0.0
        """The samples in the current window."""

    def take(self, count: int, now: float) -> int:
        """Take a sample and draw the next mark. Returns its weight.

        Args:
            count: all events so far.
            now: seconds of any clock that does not go back.
        """
        weight, self._last = count - self._last, count
        if now >= self._window_ends:
            self._window, self._window_ends = 0, now + WINDOW_S
        self._window += 1
        most = 2 * self._wanted * WINDOW_S
        if self._window > most:
            self._step, self._window = 2 * self._step, int(most) // 2
        self.mark = count + 1 + int(self._dice.random() * (2 * self._step - 1))
        return weight

    def choose(self, number: int) -> int:
        """Return the index of the event that is the sample, of a number of them that passed the
        mark at once."""
        return int(self._dice.random() * number)

    def pace(self, count: int) -> None:
        """Adapt the mean distance. Called about once a second."""
        if not self._wanted:
            return
        passed, self._paced_at = count - self._paced_at, count
        self._step = max(1, round(passed / self._wanted))
        self.mark = min(self.mark, count + self._step)

    def want(self, wanted: int) -> None:
        """Sample this number of events a second from now on; with 0, none."""
        self._wanted, self.mark = wanted, 0 if wanted else NEVER
