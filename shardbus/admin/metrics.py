"""A node's metrics in Prometheus's text format.

They are collected at each request: the hot path only adds to plain integers.

Source: docs/reference/http.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from shardbus.admin.services import AdminServices
from shardbus.routing.instance_router import InstanceRouter
from shardbus.sharding.coordinator.history import BUCKETS
from shardbus.transport.send_buffer import SEND_BUFFER_FULL

VERSION = "0.1.0"


def render(node: AdminServices) -> bytes:
    """Every metric of the node, now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(node))
    return generate_latest(registry)


class _Collector:
    def __init__(self, node: AdminServices) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        yield from self._messages()
        yield from self._entities()
        yield from self._cluster()

    def _messages(self) -> Iterable[Metric]:
        regions, endpoint = self._node.regions, self._node.endpoint
        received = _counter("messages_received", "Messages handed to entities")
        forwarded = _counter("messages_forwarded", "Messages that arrived here and were sent on")
        dropped = _counter("messages_dropped", "Messages that no handler saw", "reason")
        refused = _counter("messages_refused", "Tells of this node that others dropped", "reason")
        for (name, reason), count in sorted(self._node.refused.counts.items()):
            refused.add_metric([name, reason], count)
        buffered = _gauge("buffered_messages", "Messages that wait for a shard's home")
        hedged = _counter("asks_hedged", "Asks of router first that went to a second instance")
        rerouted = _counter("messages_rerouted", "Messages whose instance was no more")
        pauses = _counter("sender_pauses", "Times that a sender had to wait for a mailbox")
        for name, region in regions.items():
            received.add_metric([name], region.host.counts.accepted)
            forwarded.add_metric([name], region.relayed_messages)
            if region.table is region:
                buffered.add_metric([name], region.router.region.buffered[0])
            pauses.add_metric([name], region.host.runner.mailbox_limits.pauses)
            for reason, count in sorted(region.host.counts.dropped.items()):
                dropped.add_metric([name, reason], count)
        for name, count in sorted(endpoint.send_buffer_limit.refused.items()):
            dropped.add_metric([name, SEND_BUFFER_FULL], count)
        for reason, count in sorted(endpoint.dropped_frames.items()):
            dropped.add_metric(["", reason], count)
        gossip = self._node.watching
        for reason, count in sorted(gossip.dropped_frames.items() if gossip else ()):
            dropped.add_metric(["", f"gossip_{reason}"], count)
        late = CounterMetricFamily("shardbus_asks_timed_out", "Asks without an answer in time")
        late.add_metric([], endpoint.asks_timed_out)
        edges = CounterMetricFamily("shardbus_missed_edges", "Messages only a watchdog found")
        edges.add_metric([], endpoint.network.missed_edges)
        for name, region in self._node.regions.items():
            if isinstance(region.router, InstanceRouter):
                hedged.add_metric([name], region.router.hedged)
                rerouted.add_metric([name], region.router.rerouted)
        moved = [hedged, rerouted]
        return [received, forwarded, dropped, refused, *moved, buffered, pauses, late, edges]

    def _entities(self) -> Iterable[Metric]:
        started = _counter("entities_started", "Entities started", "cause")
        stopped = _counter("entities_stopped", "Entities stopped", "reason")
        failures = _counter("entity_failures", "Handlers, starts and stops that raised")
        evicted = _counter("entities_evicted", "Entities passivated because there were too many")
        cut_off = _counter("entities_cut_off", "Entities that did not stop in time")
        carried = _counter("entities_carried", "Entities that carry what they have", "outcome")
        slow = _counter("slow_handlers", "Handlers that waited or blocked for too long", "how")
        for (name, how), count in sorted(dict(self._node.slow.counts).items()):
            slow.add_metric([name, how], count)
        entities = _gauge("entities", "Entities in memory")
        states = _gauge("state_bytes", "States of the entities in memory, as they are stored")
        expired = _counter("states_expired", "States that were idle for state_ttl and are removed")
        limit = _gauge("active_entity_limit", "Entities that may be in memory, 0 for any number")
        shards = _gauge("shards", "Shards hosted here")
        for name, region in self._node.regions.items():
            counts = region.host.counts
            failures.add_metric([name], counts.failures)
            evicted.add_metric([name], region.host.passivator.evicted)
            cut_off.add_metric([name], counts.cut_off)
            entities.add_metric([name], region.host.entities)
            limit.add_metric([name], region.host.passivator.limit)
            if region.host.state_sizes is not None:
                states.add_metric([name], region.host.state_sizes.total)
                expired.add_metric([name], region.host.counts.expired)
            shards.add_metric([name], len(region.host.shards))
            for outcome, count in sorted(counts.carried.items()):
                carried.add_metric([name, outcome], count)
            for cause, count in sorted(counts.started.items()):
                started.add_metric([name, cause], count)
            for reason, count in sorted(counts.stopped.items()):
                stopped.add_metric([name, reason], count)
        notes = _counter("sharding_notes", "What regions and coordinators noted", "kind")
        handoffs = _counter("handoffs", "Phases of moves that ended on this coordinator", "result")
        for (name, what), count in sorted(self._node.notes.items()):
            if what.startswith("handoff_"):
                handoffs.add_metric([name, what.removeprefix("handoff_")], count)
            else:
                notes.add_metric([name, what], count)
        waiting = _gauge("entities_waiting_to_start", "Remembered entities that are still to start")
        moves = HistogramMetricFamily(
            "shardbus_handoff_duration_seconds",
            "From the beginning of a move, or a node's end, until the store has the next home",
            labels=["entity_type"],
        )
        for name, region in self._node.regions.items():
            waiting.add_metric([name], region.host.recovery.waiting)
            if region.table is not region:
                continue
            coordinator = self._node.singletons[name].coordinator.machine
            if coordinator is not None:
                history = coordinator.history
                moves.add_metric([name], _buckets(history.moved), history.moved_seconds)
        ends = [started, stopped, failures, evicted, cut_off, carried, slow]
        sizes = [states, expired]
        return [*ends, entities, *sizes, limit, shards, handoffs, notes, waiting, moves]

    def _cluster(self) -> Iterable[Metric]:
        node = self._node
        members = GaugeMetricFamily("shardbus_members", "Members by status", labels=["status"])
        if node.view is not None:
            statuses = Counter(m.status.value for m in node.view.members)
            for status, count in sorted(statuses.items()):
                members.add_metric([status], count)
        phi = GaugeMetricFamily("shardbus_phi", "Suspicion of a watched node", labels=["node"])
        if node.watching is not None:
            for watched, value in node.watching.overview.phis.items():
                phi.add_metric([str(watched)], value)
        epoch = _gauge("coordinator_epoch", "Highest coordinator epoch seen")
        for name, region in node.regions.items():
            if region.table is region:
                epoch.add_metric([name], region.router.region.epoch)
        lag = GaugeMetricFamily("shardbus_loop_lag_seconds", "How late the application loop is")
        lag.add_metric([], node.lag)
        failed = CounterMetricFamily("shardbus_tasks_failed", "Tasks that ended by an error")
        failed.add_metric([], node.failed_tasks)
        suspended = GaugeMetricFamily("shardbus_suspended", "1 while no entity handles a message")
        suspended.add_metric([], bool(node.gate.describe()))
        suspensions = CounterMetricFamily("shardbus_suspensions", "Suspensions of this node")
        suspensions.add_metric([], node.gate.suspensions)
        errors = CounterMetricFamily("shardbus_store_errors", "Store calls that failed")
        errors.add_metric([], node.states.errors)
        latency = SummaryMetricFamily(
            "shardbus_store_latency_seconds", "Loads and saves of entities' state"
        )
        latency.add_metric([], node.states.calls, node.states.seconds)
        vitals = GaugeMetricFamily("shardbus_vitals", "How busy this node is", labels=["what"])
        for what, amount in node.vitals.vitals._asdict().items():
            vitals.add_metric([what], amount)
        build = GaugeMetricFamily("shardbus_build_info", "This build", labels=["version"])
        build.add_metric([VERSION], 1)
        loop = [lag, failed, suspended, suspensions, vitals]
        return [members, phi, epoch, *loop, errors, latency, build]


def _buckets(counts: Iterable[int]) -> list[tuple[str, float]]:
    """Cumulative counts per upper bound, in seconds."""
    bounds = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
    return list(zip(bounds, accumulate(counts), strict=True))


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"shardbus_{name}", text, labels=["entity_type", *labels])


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"shardbus_{name}", text, labels=["entity_type", *labels])
