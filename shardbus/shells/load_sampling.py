"""How many messages each shard of a node gets, without counting each of them.

The problem: whoever handles a million messages a second cannot look up the shard of each. So one of
many is looked at: when the count of all messages passes a mark, one message of the run that passed
it stands for all since the last mark. A run passes a mark the more often the longer it is, and any
of its messages may be taken, so each shard gets its part on average.

The marks are set so that some hundred messages a second are looked at, however many there are; at
less than that every run is.

Source: N.9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from shardbus.errors import ConfigError
from shardbus.ids import NodeId
from shardbus.sharding.messages import ShardLoads
from shardbus.transport.asks import CoarseClock

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from shardbus.shells.region import RegionShell

REPORTS = 2
"""In one `rebalance_interval`."""

LOOKS = 500
"""Messages that are looked at in a second."""

STRIDE = 7919
"""Which message of a run is taken goes on by so many; a prime, so that it is every one in turn."""

NEVER = 2**62


class LoadServices(Protocol):
    """The node."""

    me: NodeId
    loop: AbstractEventLoop

    def send(self, to: NodeId, entity_type: str, message: object) -> None: ...


class LoadSampling:
    """The loads of one type's shards here; off at first. `mark`: the count of messages from which
    `take` is to be called, and which is never reached while it is off."""

    __slots__ = (
        "_counts", "_last", "_looks", "_shard_of", "_since", "_step", "mark", "on", "reported",
    )  # fmt: skip

    def __init__(self, shard_of: Callable[[str], str]) -> None:
        self.on = False
        self.mark = NEVER
        self.reported = 0
        """The tick of the last report."""
        self._shard_of = shard_of
        self._counts: dict[str, int] = {}
        self._last = self._looks = 0
        self._step = 1
        self._since: float | None = None

    def switch(self, *, on: bool) -> None:
        """Whether anybody wants to know."""
        self.on, self.mark = on, 0 if on else NEVER

    def take(self, count: int, ids: Sequence[str]) -> None:
        """So many messages have come in all; the last of them were for these."""
        since, self._last = count - self._last, count
        self._looks, self.mark = self._looks + 1, count + self._step
        with suppress(ConfigError):  # no id: it was refused
            shard = self._shard_of(ids[self._looks * STRIDE % len(ids)])
            self._counts[shard] = self._counts.get(shard, 0) + since

    def read(self, count: int, now: float) -> dict[str, float] | None:
        """Messages a second of each shard since the last reading; None the first time. `count`:
        messages that have come in all."""
        counts, self._counts = self._counts, {}
        since, self._since = self._since, now
        if since is None or now <= since:
            return None
        seconds = now - since
        self._step = max(1, round(sum(counts.values()) / seconds / LOOKS))
        self.mark = min(self.mark, count + self._step)
        return {shard: sampled / seconds for shard, sampled in counts.items()}


def report_loads(kind: RegionShell, node: LoadServices, tick: int) -> None:
    """Tell the type's coordinator what its shards here get, if it goes by that and it is time.
    Called about once a second."""
    sampling, interval = kind.sampling, kind.settings.rebalance_interval / REPORTS
    due = tick - sampling.reported >= int(1000 * interval) // CoarseClock.TICK_MS
    if not (sampling.on and due and kind.hosts and kind.router.region.registered):
        return
    sampling.reported = tick
    loads = sampling.read(kind.host.counts.accepted, node.loop.time())
    if loads is not None and kind.coordinator is not None:
        node.send(kind.coordinator, kind.name, ShardLoads(node.me, loads))
