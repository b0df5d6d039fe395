"""Watches one entity on its home for a moment, for the question why it is slow (`admin.slowness`).

Nothing of this runs unless an operator asks. The node's usual counters and samples are read, and
the entity is looked at `LOOKS` times, `LOOK_S` apart: is it at work, on which message, and what
does its handler wait for? That distinguishes a handler that mostly waits for the store from one
that mostly waits for something else, without a measurement per message.

    a frame of `EntityStates.load` or `StateSaver.save`,
    or of `load` or `save` of `MergedStates`          it waits for the store
    a frame of `run_in_thread`                        for a worker thread
    an ask without an answer                          for that entity
    none of these                                     for something of its own

Plain handlers are never seen at work, since they end before the loop looks; the samples have their
times.

Source: docs/how-to/slow.md; B.137, B.150.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from shardbus.admin.slowness import STORE, THREAD, CallTimes, EntityFigures, StoreFigures
from shardbus.entities.activation import Activation, LifeState
from shardbus.entities.entity_type import run_in_thread
from shardbus.entities.merging import MergedStates
from shardbus.entities.message_times import SampledMessage
from shardbus.entities.slow_handlers import BLOCKED, places, suspended_frames
from shardbus.entities.state_saver import StateSaver
from shardbus.histograms import Histogram
from shardbus.node.node import Node
from shardbus.shells.region import RegionShell
from shardbus.store.entity_state import LOAD, SAVE, EntityStates
from shardbus.tasks.eager import EagerTask
from shardbus.transport.asks import CoarseClock

LOOKS = 8
LOOK_S = 0.025
"""Seconds between two looks."""
LOOKED_MAX_S = 1.0
"""Of a node whose loop is late, so few looks that the answer is in time."""
RECENT_S = 60.0
"""Seconds for which samples and reports are recent."""
_STORE_CODES = frozenset(
    function.__code__
    for function in (EntityStates.load, StateSaver.save, MergedStates.load, MergedStates.save)
)


class EntityWatch:
    """The findings of some looks at one entity."""

    def __init__(self, region: RegionShell, shard: str, entity_id: str) -> None:
        self._host, self._shard, self._id = region.host, shard, entity_id
        self.looks = self.busy = 0
        self.waits: Counter[str] = Counter()
        self._at_work: set[object] = set()
        """The messages, starts and stops that it was found at."""
        self.method = ""
        self.running_for = 0.0
        self.stack: list[str] = []

    @property
    def activation(self) -> Activation | None:
        return self._host.find(self._id, self._shard)

    @property
    def moved(self) -> bool:
        """True if it was found at work on more than one message."""
        return len(self._at_work) > 1

    def look(self) -> None:
        """Note the entity's present work."""
        self.looks += 1
        activation = self.activation
        if activation is None or not activation.busy:
            return
        self.busy += 1
        task = activation.task
        if task is None or task.coroutine is None:
            if activation.state is LifeState.LISTING:
                self.waits[STORE] += 1
            self._at_work.add(None)
            return
        self._at_work.add(task)
        self._look_at(task)

    def _look_at(self, task: EagerTask) -> None:
        frames = suspended_frames(task)
        codes = {frame.f_code for frame, _ in frames}
        calls = task.call_chain.unanswered() if task.call_chain is not None else []
        if codes & _STORE_CODES:
            self.waits[STORE] += 1
        elif run_in_thread.__code__ in codes:
            self.waits[THREAD] += 1
        elif calls:
            name, entity_id = calls[0]
            self.waits[f"{name} {entity_id!r:.100}"] += 1
        running = self._host.runner.running_handlers.running(task)
        tick = self._host.runner.tick
        self.method = running.method if running is not None else task.doing
        ticks = tick - task.seen_at if task.seen_at else 0
        self.running_for = ticks * CoarseClock.TICK_MS / 1000
        self.stack = places(reversed(frames))


async def watch(node: Node, region: RegionShell, shard: str, id: str) -> EntityFigures:
    """Return the figures of an entity whose home is this node."""
    loop, seen = node.loop, EntityWatch(region, shard, id)
    until = loop.time() + LOOKED_MAX_S
    for _ in range(LOOKS):
        seen.look()
        await asyncio.sleep(LOOK_S)
        if loop.time() > until:
            break
    activation, now = seen.activation, loop.time()
    handlers, sampled = _handlers(region, id, now)
    shard_part, entity_part = _parts(node, region, shard, id, now)
    vitals, states = node.reports.vitals.latest, node.states
    failed = region.host.counts.failed.starts.get(id)
    return EntityFigures(
        life=activation.state.name.lower() if activation is not None else "",
        mailbox=len(activation.mailbox or ()) if activation is not None else 0,
        mailbox_max=region.settings.mailbox,
        failures=activation.failures if activation is not None else 0,
        start_failed_ago=now - failed.at if failed is not None else None,
        start_error=failed.error if failed is not None else "",
        looks=seen.looks,
        busy=seen.busy,
        moved=seen.moved,
        waits=dict(seen.waits.most_common()),
        method=seen.method,
        running_for=seen.running_for,
        stack=seen.stack,
        handlers=handlers,
        sampled=sampled,
        waited_p99=_p99([(s.waited, s.weight) for s in _recent(region, now) if s.waited]),
        shard_part=shard_part,
        entity_part=entity_part,
        rate=vitals.rate,
        node_busy=vitals.busy,
        lag=vitals.lag,
        store=StoreFigures(
            saves=_calls("save", states.recent(region.name, SAVE)),
            loads=_calls("load", states.recent(region.name, LOAD)),
            all=_calls("all", states.recent_of_all()),
            save_under_way=states.longest_save,
            failed_ago=states.silent_ago,
            error=states.silent_because,
        ),
        blocked=[
            report.text
            for report in node.records.slow.reports()
            if report.how == BLOCKED and now - report.at <= RECENT_S
        ],
    )


def _recent(region: RegionShell, now: float) -> list[SampledMessage]:
    return [sample for sample in region.times.recent if now - sample.arrived <= RECENT_S]


def _handlers(region: RegionShell, entity_id: str, now: float) -> tuple[list[CallTimes], int]:
    """Return the times of the handlers of an entity, or of its type if the entity has no sample,
    and its number of samples."""
    ended = [sample for sample in _recent(region, now) if sample.took is not None]
    of_entity = [sample for sample in ended if sample.entity_id == entity_id]
    times: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for sample in of_entity or ended:
        times[sample.method or "receive"].append((sample.took or 0.0, sample.weight))
    return [_times(method, rows) for method, rows in times.items()], len(of_entity)


def _times(about: str, rows: Sequence[tuple[float, int]]) -> CallTimes:
    count = sum(weight for _, weight in rows)
    return CallTimes(about, count, sum(s * weight for s, weight in rows) / count, _p99(rows))


def _p99(rows: Iterable[tuple[float, int]]) -> float:
    """Return the value that 99 of 100 messages do not exceed; 0 without any."""
    ordered = sorted(rows)
    rank, seen = 0.99 * sum(weight for _, weight in ordered), 0
    for value, weight in ordered:
        seen += weight
        if seen >= rank:
            return value
    return 0.0


def _calls(about: str, histogram: Histogram) -> CallTimes:
    return CallTimes(about, histogram.count, histogram.mean, histogram.quantile(0.99))


def _parts(
    node: Node, region: RegionShell, shard: str, entity_id: str, now: float
) -> tuple[float, float]:
    """Return which part of the node's messages is for this shard, and which part of the shard's is
    for this entity, by the samples of a span that every type's samples reach back to."""
    regions = node.regions.values()
    since = max(now - RECENT_S, *(shell.times.reach_back_to for shell in regions))
    total = of_shard = of_entity = 0
    for shell in regions:
        for sample in shell.times.recent:
            if sample.arrived < since or not sample.shard:
                continue
            total += sample.weight
            if shell.table is region.table and sample.shard == shard:
                of_shard += sample.weight
                if shell is region and sample.entity_id == entity_id:
                    of_entity += sample.weight
    return (of_shard / total if total else 0.0), (of_entity / of_shard if of_shard else 0.0)


def to_plain(figures: EntityFigures) -> dict[str, Any]:
    """Return figures as plain data, for another node."""
    return dict(msgspec.to_builtins(figures))


def of_plain(answer: object) -> EntityFigures | None:
    """Return the figures that another node has sent; None if they cannot be read."""
    try:
        return msgspec.convert(answer, EntityFigures)
    except msgspec.ValidationError:
        return None
