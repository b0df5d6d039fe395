"""Estimates how many messages each shard of a node gets, without counting every message.

A node that handles a million messages a second cannot look up the shard of each. So it samples:
when the count of all messages passes a mark, one message of the run that passed it stands for all
messages since the last mark. A long run passes more marks than a short one, and any message of a
run may be the sample, so each shard gets its proportion on average.

The distance of the marks adapts so that some `SAMPLES_S` messages a second are sampled, however
many arrive; below that rate every run is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from shardbus.errors import ConfigError

SAMPLES_S = 500
"""Samples a second, about."""

STRIDE = 7919
"""Advances the index of the sampled message within a run; a prime, so that every index occurs."""

NEVER = 2**62


class LoadSampling:
    """The loads of one type's shards on this node; off at first. `mark`: the count of messages from
    which `sample` must be called; while sampling is off no count reaches it."""

    __slots__ = (
        "_counts", "_last", "_samples", "_shard_of", "_since", "_step", "mark", "on", "reported",
    )  # fmt: skip

    def __init__(self, shard_of: Callable[[str], str]) -> None:
        self.on = False
        self.mark = NEVER
        self.reported = 0
        """The tick of the last report."""
        self._shard_of = shard_of
        self._counts: dict[str, int] = {}
        self._last = self._samples = 0
        self._step = 1
        self._since: float | None = None

    def switch(self, *, on: bool) -> None:
        """Switch sampling on or off."""
        self.on, self.mark = on, 0 if on else NEVER

    def sample(self, count: int, ids: Sequence[str]) -> None:
        """Sample one of `ids`, the entities of the last run. `count`: all messages so far."""
        since, self._last = count - self._last, count
        self._samples, self.mark = self._samples + 1, count + self._step
        with suppress(ConfigError):  # an invalid id: the message was refused
            shard = self._shard_of(ids[self._samples * STRIDE % len(ids)])
            self._counts[shard] = self._counts.get(shard, 0) + since

    def read(self, count: int, now: float) -> dict[str, float] | None:
        """Messages a second of each shard since the last reading; None the first time. `count`:
        all messages so far."""
        counts, self._counts = self._counts, {}
        since, self._since = self._since, now
        if since is None or now <= since:
            return None
        seconds = now - since
        self._step = max(1, round(sum(counts.values()) / seconds / SAMPLES_S))
        self.mark = min(self.mark, count + self._step)
        return {shard: sampled / seconds for shard, sampled in counts.items()}
