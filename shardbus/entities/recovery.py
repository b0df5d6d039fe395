"""How fast remembered entities start again.

    all         everything that was read, at once
    constant    so many per interval: `entity_recovery_constant_rate_*`
    adaptive    for a few milliseconds in each turn of the loop, fewer if the loop is late

However they are chosen, a turn ends after a few milliseconds, and no more than a bound are on their
way at a time, since each may ask the store for its state. An entity for which a message waits does
not wait here: its message starts it.

Source: S2.70-S2.72, S4.37; C.15; N.14.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from shardbus.config.settings import ShardingSettings

if TYPE_CHECKING:
    from shardbus.entities.context import Context
    from shardbus.entities.shard import Shard

TURN_S = 0.004
LATE_S = 0.02
STARTING_MAX = 1000

Start = Callable[["Shard", str], "Context | None"]
"""Starts an entity that was read from the list; None if it runs already, or its shard has gone."""


class EntityRecovery:
    """One type's entities that wait to be started again."""

    def __init__(
        self, settings: ShardingSettings, loop: asyncio.AbstractEventLoop, start: Start
    ) -> None:
        self._settings, self._loop, self._start = settings, loop, start
        self._queue: deque[tuple[Shard, str]] = deque()
        self._starting: list[Context] = []
        self._timer: asyncio.Handle | None = None
        self._due = 0.0

    @property
    def waiting(self) -> int:
        """Entities that are still to be started."""
        return len(self._queue)

    def put(self, hosted: Shard, entity_ids: Iterable[str]) -> None:
        """These shall run."""
        self._queue.extend((hosted, entity_id) for entity_id in entity_ids)
        if self._queue and self._timer is None:
            self._later(0.0)

    def stop(self) -> None:
        """The node ends."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _later(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_later(seconds, self._turn)

    def _turn(self) -> None:
        self._timer = None
        late = self._loop.time() - self._due
        self._starting = [
            activation for activation in self._starting if activation.busy and not activation.gone
        ]
        settings = self._settings
        constant = settings.entity_recovery_strategy == "constant"
        most = settings.entity_recovery_constant_rate_number_of_entities if constant else None
        started = self._some(most)
        if not self._queue:
            return
        if constant:
            self._later(settings.entity_recovery_constant_rate_frequency)
        elif settings.entity_recovery_strategy == "adaptive" and late > LATE_S:
            self._later(late)
        else:
            self._later(0.0 if started else TURN_S)

    def _some(self, most: int | None) -> int:
        """Start entities until the turn's time, its share, or the bound is used up."""
        end = self._loop.time() + TURN_S
        started = 0
        while self._queue and started != most and len(self._starting) < STARTING_MAX:
            hosted, entity_id = self._queue.popleft()
            activation = self._start(hosted, entity_id)
            if activation is not None:
                started += 1
                if activation.busy:
                    self._starting.append(activation)
            if self._loop.time() >= end:
                break
        return started
