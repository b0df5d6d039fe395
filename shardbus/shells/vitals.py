"""Measures this node's vitals once a second (`membership.vitals`).

    busy      processor time of the loop's thread, by the system's counter
    lag       the longest delay of a tick in the last second
    rss       /proc/self/statm; where there is none, the peak that `getrusage` knows
    gc        processor time between the start and the end of collections, by `gc.callbacks`
    mailbox   messages in the mailboxes that the limits of mailboxes know
    rate      messages handed to entities

Nothing here runs per message: counters that exist are read once a second.

Source: S3.20.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from shardbus.membership.vitals import Averages, Vitals
from shardbus.shells.region import RegionShell
from shardbus.transport.asks import CoarseClock
from shardbus.transport.environment import Environment

TICK_S = CoarseClock.TICK_MS / 1000
PERIOD_S = 1.0
"""Between two measurements."""


class VitalsSampler:
    """Measures, and passes on the averages.

    Args:
        regions: the types of this node.
        environment: has the counters of the process.
        now: the clock of the loop, which counts the time that passes.
        publish: called with the averages after each measurement.
    """

    def __init__(
        self,
        regions: Mapping[str, RegionShell],
        environment: Environment,
        now: Callable[[], float],
        publish: Callable[[Vitals], None],
    ) -> None:
        self.averages = Averages()
        self.latest = Vitals()
        """The last measurement."""
        self._cpu_time, self._resident = environment.cpu_time, environment.resident_bytes
        self._collector = environment.collector_callbacks
        self._regions, self._now, self._publish = regions, now, publish
        self._at: float | None = None
        self._ticked_at = 0.0
        self._cpu = self._collecting = self._collected = self._lag = 0.0
        self._accepted = 0

    @property
    def vitals(self) -> Vitals:
        """The averages; zeros before the first measurement."""
        return self.averages.vitals or Vitals()

    def start(self) -> None:
        """Begin to watch the garbage collector."""
        self._collector.append(self._on_collection)

    def stop(self) -> None:
        """Watch the garbage collector no more."""
        with contextlib.suppress(ValueError):
            self._collector.remove(self._on_collection)

    def on_tick(self, tick: int) -> None:
        """Note how late this tick is, and measure if a second has passed. Called at each tick."""
        now = self._now()
        if self._at is None:
            self._begin(now)
            return
        self._lag = max(self._lag, now - self._ticked_at - TICK_S)
        self._ticked_at = now
        if now - self._at >= PERIOD_S - TICK_S / 2:
            self._measure(now)

    def _begin(self, now: float) -> None:
        self._at = self._ticked_at = now
        self._cpu, self._accepted = self._cpu_time(), self._count()
        self._lag = self._collected = 0.0

    def _measure(self, now: float) -> None:
        assert self._at is not None
        passed, accepted, cpu = now - self._at, self._count(), self._cpu_time()
        measured = Vitals(
            busy=min(1.0, (cpu - self._cpu) / passed),
            lag=self._lag,
            rss=float(self._resident()),
            gc=min(1.0, self._collected / passed),
            mailbox=float(self._waiting()),
            rate=max(0, accepted - self._accepted) / passed,
        )
        self.latest = measured
        self._begin(now)
        self._publish(self.averages.add(measured, now))

    def _count(self) -> int:
        return sum(region.host.counts.accepted for region in self._regions.values())

    def _waiting(self) -> int:
        limits = (region.host.runner.mailbox_limits for region in self._regions.values())
        return sum(limit.waiting for limit in limits)

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting = self._cpu_time()
        else:
            self._collected += self._cpu_time() - self._collecting
