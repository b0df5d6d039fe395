"""How long messages wait on a node before their handlers run, and how long the handlers take.

Two histograms of one entity type. To time every message would cost more than many handlers, so the
sampler of the type (`shells.load_sampling`) picks one message of some runs, and hands it over with
an invoker whose function notes both times. It does so wherever the message runs at last: at once,
from the mailbox, or in a worker thread. The times count for all messages that the sample stands
for.

    arrives ──────── waits ────────> handler begins ──── takes ────> it returns or raises
             in its batch, in the                    with all that it
             mailbox, for a start                    awaits

A message that no handler gets, because its mailbox is full or its deadline passes, is in neither
histogram: `messages_dropped` counts it.

Source: docs/reference/metrics.md; B.150.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from shardbus.histograms import Histogram


class MessageTimes:
    """The histograms of one type. `clock` is the loop's."""

    __slots__ = ("_clock", "handled", "waited")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.waited, self.handled = Histogram(), Histogram()
        self._clock = clock

    def timed(
        self, function: Callable[..., Any], weight: int, *, is_async: bool
    ) -> Callable[..., Any]:
        """Return a handler's function for a message that arrives now and stands for `weight`."""
        clock, waited, handled = self._clock, self.waited, self.handled
        arrived = clock()

        if is_async:

            @wraps(function)
            async def call_async(entity: Any, *args: Any) -> Any:
                began = clock()
                waited.observe(began - arrived, weight)
                try:
                    return await function(entity, *args)
                finally:
                    handled.observe(clock() - began, weight)

            return call_async

        @wraps(function)
        def call(entity: Any, *args: Any) -> Any:
            began = clock()
            waited.observe(began - arrived, weight)
            try:
                return function(entity, *args)
            finally:
                handled.observe(clock() - began, weight)

        return call
