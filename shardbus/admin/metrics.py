"""A node's metrics in Prometheus's text format.

They are collected at each request: the hot path only adds to plain integers. The metrics are
declared in `metric_catalogue`; here they get their samples.

Source: docs/reference/http.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from shardbus.admin import metric_catalogue as catalogue
from shardbus.admin.brief import drops_of
from shardbus.admin.metric_catalogue import PREFIX, MetricDeclaration
from shardbus.admin.own_replica import own_repairs, spares
from shardbus.admin.queues import queue_sizes
from shardbus.deliveries.producer import DeliveryEnd
from shardbus.entities.merging import MergedStates
from shardbus.entities.slow_handlers import BLOCKED, WAITED
from shardbus.histograms import Histogram
from shardbus.node.node import Node
from shardbus.sharding.coordinator.history import BUCKETS
from shardbus.shells.message_account import account_of
from shardbus.store.protocol import value_counts_of
from shardbus.version import VERSION

REBALANCE = "rebalance"
"""The note of a coordinator that has chosen shards to move for balance."""
ALERTED = dict.fromkeys(("mailbox_full", "unconfirmed", "buffer_full", "hop_limit"), 0)
"""Reasons of drops that are there from the start: Prometheus sees no increase of a series that
begins with its first drop."""


def render(node: Node) -> bytes:
    """Every metric of the node, now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(node))
    return generate_latest(registry)


class _Collector:
    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        yield from self._messages()
        yield from self._deliveries()
        yield from self._drops()
        yield from self._latencies()
        yield from self._entities()
        yield from self._reminders()
        yield from self._queues()
        yield from self._projections()
        yield from self._durable_mailboxes()
        yield from self._moves()
        yield from self._cluster()
        yield from self._process()

    def _messages(self) -> Iterable[Metric]:
        sent, received = _counter(catalogue.MESSAGES_SENT), _counter(catalogue.MESSAGES_RECEIVED)
        accepted = _counter(catalogue.MESSAGES_ACCEPTED)
        delivered = _counter(catalogue.MESSAGES_DELIVERED)
        forwarded = _counter(catalogue.MESSAGES_FORWARDED)
        buffered = _gauge(catalogue.BUFFERED_MESSAGES)
        waiting = _gauge(catalogue.WAITING_MESSAGES)
        hedged = _counter(catalogue.ASKS_HEDGED)
        rerouted = _counter(catalogue.MESSAGES_REROUTED)
        pauses = _counter(catalogue.SENDER_PAUSES)
        for name, region in self._node.regions.items():
            sent.add_metric([name], self._node.endpoint.sent.counts.get(name, 0))
            received.add_metric([name], region.host.counts.accepted)
            account = account_of(region)
            accepted.add_metric([name], account.accepted)
            delivered.add_metric([name], account.delivered)
            forwarded.add_metric([name], account.forwarded)
            buffered.add_metric([name], account.buffered)
            waiting.add_metric([name], account.waiting)
            pauses.add_metric([name], region.host.runner.mailbox_limits.pauses)
            if (rows := region.router.rows) is not None:
                hedged.add_metric([name], rows.hedged)
                rerouted.add_metric([name], rows.rerouted)
        account_rows = [accepted, delivered, forwarded, buffered, waiting]
        return [sent, received, *account_rows, hedged, rerouted, pauses]

    def _deliveries(self) -> Iterable[Metric]:
        deliverer = self._node.deliverer
        ended, again = _counter(catalogue.DELIVERIES), _counter(catalogue.REDELIVERIES)
        for end in DeliveryEnd:
            if end is not DeliveryEnd.CLOSED:
                ended.add_metric([end.value], deliverer.counts.ended[end.value])
        for reason in ("no_answer", "gap", "failed", "pause"):
            again.add_metric([reason], deliverer.counts.resent[reason])
        unhandled, unconfirmed = _counter(catalogue.DELIVERIES_NOT_HANDLED), deliverer.unconfirmed
        for name, region in self._node.regions.items():
            deliveries = region.host.deliveries
            unconfirmed += 0 if deliveries.sends is None else deliveries.sends.unconfirmed
            for decision, count in sorted(deliveries.decisions.items()):
                unhandled.add_metric([name, decision], count)
        gauge = _gauge(catalogue.UNCONFIRMED)
        gauge.add_metric([], unconfirmed)
        return [ended, again, gauge, unhandled]

    def _drops(self) -> Iterable[Metric]:
        endpoint = self._node.endpoint
        dropped = _counter(catalogue.MESSAGES_DROPPED)
        refused = _counter(catalogue.MESSAGES_REFUSED)
        for (name, reason), count in sorted(self._node.records.refused.counts.items()):
            refused.add_metric([name, reason], count)
        rows = {(name, reason): 0 for name in self._node.regions for reason in ALERTED}
        rows |= {(name, reason): count for name, reason, count in drops_of(self._node)}
        for (name, reason), count in sorted(rows.items()):
            dropped.add_metric([name, reason], count)
        late = _plain_counter(catalogue.ASKS_TIMED_OUT, endpoint.asks_timed_out)
        edges = _plain_counter(catalogue.MISSED_EDGES, endpoint.network.missed_edges)
        return [dropped, refused, late, edges]

    def _latencies(self) -> Iterable[Metric]:
        node = self._node
        regions, asks, calls = node.regions, node.endpoint.sent.durations, node.states.durations
        tables = [name for name, region in regions.items() if region.table is region]
        yield _histogram(
            catalogue.HANDLER_DURATION,
            {(name,): region.times.handled for name, region in regions.items()},
        )
        yield _histogram(
            catalogue.MAILBOX_WAIT,
            {(name,): region.times.waited for name, region in regions.items()},
        )
        yield _histogram(
            catalogue.ASK_DURATION, {(name,): asks[name] for name in regions if name in asks}
        )
        yield _histogram(
            catalogue.SHARD_HOME_LATENCY,
            {(name,): regions[name].router.home_latencies for name in tables},
        )
        yield _histogram(
            catalogue.STORE_LATENCY, {key: calls[key] for key in sorted(calls) if key[0] in regions}
        )

    def _entities(self) -> Iterable[Metric]:
        started = _counter(catalogue.ENTITIES_STARTED)
        stopped = _counter(catalogue.ENTITIES_STOPPED)
        failures = _counter(catalogue.ENTITY_FAILURES)
        evicted = _counter(catalogue.ENTITIES_EVICTED)
        cut_off = _counter(catalogue.ENTITIES_CUT_OFF)
        carried = _counter(catalogue.ENTITIES_CARRIED)
        slow = _counter(catalogue.SLOW_HANDLERS)
        counts_of = dict(self._node.records.slow.counts)
        for name in self._node.regions:
            for how in (BLOCKED, WAITED):
                slow.add_metric([name, how], counts_of.get((name, how), 0))
        entities, shards = _gauge(catalogue.ENTITIES), _gauge(catalogue.SHARDS)
        limit = _gauge(catalogue.ACTIVE_ENTITY_LIMIT)
        waiting = _gauge(catalogue.ENTITIES_WAITING)
        deaf = _gauge(catalogue.DEAF_ENTITIES)
        merged = _counter(catalogue.STATE_MERGES)
        states, expired = _gauge(catalogue.STATE_BYTES), _counter(catalogue.STATES_EXPIRED)
        for name, region in self._node.regions.items():
            counts = region.host.counts
            failures.add_metric([name], counts.failures)
            evicted.add_metric([name], region.host.passivator.evicted)
            cut_off.add_metric([name], counts.cut_off)
            deaf.add_metric([name], region.host.deaf.count)
            entities.add_metric([name], region.host.entities)
            limit.add_metric([name], region.host.passivator.limit)
            if region.host.saver.sizes is not None:
                states.add_metric([name], region.host.saver.sizes.total)
                expired.add_metric([name], region.host.counts.expired)
            shards.add_metric([name], len(region.host.shards))
            waiting.add_metric([name], region.host.waiting_starts)
            if isinstance(region.host.saver, MergedStates):
                for event, count in sorted(region.host.saver.counts.items()):
                    merged.add_metric([name, event], count)
            for outcome, count in sorted(counts.carried.items()):
                carried.add_metric([name, outcome], count)
            for cause, count in sorted(counts.started.items()):
                started.add_metric([name, cause], count)
            for reason, count in sorted(counts.stopped.items()):
                stopped.add_metric([name, reason], count)
        ends = [started, stopped, failures, evicted, cut_off, carried, slow, merged]
        return [*ends, deaf, entities, states, expired, limit, shards, waiting]

    def _reminders(self) -> Iterable[Metric]:
        fired, late = _counter(catalogue.REMINDERS_FIRED), _counter(catalogue.REMINDERS_LATE)
        left_out = _counter(catalogue.REMINDERS_LEFT_OUT)
        failed, due = _counter(catalogue.REMINDERS_FAILED), _gauge(catalogue.REMINDERS_DUE)
        for name, region in self._node.regions.items():
            reminding = region.host.runner.reminding
            if reminding is not None:
                counts = reminding.counts
                fired.add_metric([name], counts.fired)
                late.add_metric([name], counts.late)
                left_out.add_metric([name], counts.left_out)
                failed.add_metric([name], counts.failed)
                due.add_metric([name], reminding.overdue()[0])
        return [fired, late, left_out, failed, due]

    def _queues(self) -> Iterable[Metric]:
        items, aside = _gauge(catalogue.QUEUE_ITEMS), _gauge(catalogue.QUEUE_ITEMS_ASIDE)
        pulls, puts = _gauge(catalogue.QUEUE_PULLS), _gauge(catalogue.QUEUE_PUTS)
        for name, sizes in queue_sizes(self._node):
            items.add_metric([name], sizes.items - sizes.aside)
            aside.add_metric([name], sizes.aside)
            pulls.add_metric([name], sizes.waiting_pulls)
            puts.add_metric([name], sizes.waiting_puts)
        return [items, aside, pulls, puts]

    def _projections(self) -> Iterable[Metric]:
        handled = _counter(catalogue.PROJECTION_EVENTS)
        failed = _counter(catalogue.PROJECTION_FAILURES)
        missing = _counter(catalogue.PROJECTION_MISSING)
        behind, lag = _gauge(catalogue.PROJECTION_BEHIND), _gauge(catalogue.PROJECTION_LAG)
        stopped = _gauge(catalogue.PROJECTION_STOPPED)
        scanning = _gauge(catalogue.PROJECTION_SCANNING)
        for name, region in self._node.regions.items():
            projecting = region.host.runner.projecting
            if projecting is not None:
                handled.add_metric([name], projecting.counts.handled)
                failed.add_metric([name], projecting.counts.failed)
                missing.add_metric([name], projecting.counts.missing)
                behind.add_metric([name], projecting.parts.behind)
                lag.add_metric([name], projecting.lag)
                stopped.add_metric([name], projecting.parts.stopped)
                scanning.add_metric([name], projecting.scan.shards)
        return [handled, failed, missing, behind, lag, stopped, scanning]

    def _durable_mailboxes(self) -> Iterable[Metric]:
        messages, waiting = _counter(catalogue.MAILS), _gauge(catalogue.MAILS_WAITING)
        stuck = _gauge(catalogue.MAILBOXES_STUCK)
        for name, region in self._node.regions.items():
            mailboxes = region.host.deliveries.mailboxes
            if mailboxes is None:
                continue
            row = mailboxes.figures()
            waiting.add_metric([name], row.pop("waiting"))
            stuck.add_metric([name], row.pop("stuck"))
            for outcome, count in row.items():
                messages.add_metric([name, outcome], count)
        return [messages, waiting, stuck]

    def _moves(self) -> Iterable[Metric]:
        notes, handoffs = _counter(catalogue.SHARDING_NOTES), _counter(catalogue.HANDOFFS)
        rebalances = _counter(catalogue.REBALANCES)
        for name in self._node.singletons:
            rebalances.add_metric([name], self._node.records.notes.get((name, REBALANCE), 0))
        for (name, what), count in sorted(self._node.records.notes.items()):
            if what.startswith("handoff_"):
                handoffs.add_metric([name, what.removeprefix("handoff_")], count)
            elif what != REBALANCE:
                notes.add_metric([name, what], count)
        declared = catalogue.HANDOFF_DURATION
        moves = HistogramMetricFamily(
            PREFIX + declared.name, _help(declared), labels=declared.labels
        )
        for name, region in self._node.regions.items():
            if region.table is not region:
                continue
            coordinator = self._node.singletons[name].coordinator.machine
            if coordinator is not None:
                history = coordinator.history
                moves.add_metric([name], _buckets(history.moved), history.moved_seconds)
        return [notes, rebalances, handoffs, moves]

    def _cluster(self) -> Iterable[Metric]:
        node = self._node
        members, phi = _gauge(catalogue.MEMBERS), _gauge(catalogue.PHI)
        if node.view is not None:
            statuses = Counter(m.status.value for m in node.view.members)
            for status, count in sorted(statuses.items()):
                members.add_metric([status], count)
        if node.membership.runner is not None:
            for watched, value in node.membership.runner.overview.phis.items():
                phi.add_metric([str(watched)], value)
        epoch = _gauge(catalogue.COORDINATOR_EPOCH)
        for name, region in node.regions.items():
            if region.table is region:
                epoch.add_metric([name], region.router.region.epoch)
        suspended = _gauge(catalogue.SUSPENDED)
        suspended.add_metric([], bool(node.gate.describe()))
        suspensions = _plain_counter(catalogue.SUSPENSIONS, node.gate.suspensions)
        return [members, phi, epoch, suspended, suspensions]

    def _process(self) -> Iterable[Metric]:
        node = self._node
        lag, vitals = _gauge(catalogue.LOOP_LAG), _gauge(catalogue.VITALS)
        lag.add_metric([], node.membership.lag)
        for what, amount in node.reports.vitals.vitals._asdict().items():
            vitals.add_metric([what], amount)
        failed = _plain_counter(catalogue.TASKS_FAILED, node.failed_tasks)
        errors = _plain_counter(catalogue.STORE_ERRORS, node.states.errors)
        build = _gauge(catalogue.BUILD_INFO)
        build.add_metric([VERSION], 1)
        values = _counter(catalogue.VALUE_REQUESTS)
        for (request, outcome), count in sorted(value_counts_of(node.store).items()):
            values.add_metric([request, outcome], count)
        rows, volume = _counter(catalogue.REPLICA_ROWS), _counter(catalogue.REPLICA_BYTES)
        age = _gauge(catalogue.REPLICA_REPAIR_AGE)
        if repairs := own_repairs(node):
            rows.add_metric([], repairs.get("rows", 0))
            volume.add_metric([], repairs.get("bytes", 0))
            age.add_metric([], repairs["age"])
        waiting = _gauge(catalogue.REPLICA_SPARES)
        if (spare := spares(node)) is not None:
            waiting.add_metric([], spare)
        cost, pod = _gauge(catalogue.POD_DELETION_COST), node.reports.pod_cost
        if pod is not None and pod.written is not None:
            cost.add_metric([], pod.written)
        refused = _plain_counter(catalogue.KUBERNETES_ERRORS, pod.failures if pod else 0)
        replicas = [rows, volume, age, waiting]
        return [lag, vitals, failed, errors, values, *replicas, cost, refused, build]


def _buckets(counts: Iterable[int]) -> list[tuple[str, float]]:
    """Cumulative counts of moves per upper bound, in seconds."""
    bounds = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
    return list(zip(bounds, accumulate(counts), strict=True))


def _help(declared: MetricDeclaration) -> str:
    return declared.meaning.replace("`", "")


def _counter(declared: MetricDeclaration) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + declared.name, _help(declared), labels=declared.labels)


def _plain_counter(declared: MetricDeclaration, value: float) -> CounterMetricFamily:
    family = _counter(declared)
    family.add_metric([], value)
    return family


def _gauge(declared: MetricDeclaration) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + declared.name, _help(declared), labels=declared.labels)


def _histogram(
    declared: MetricDeclaration, histograms: Mapping[tuple[str, ...], Histogram]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(PREFIX + declared.name, _help(declared), labels=declared.labels)
    for labels, histogram in histograms.items():
        family.add_metric(list(labels), histogram.cumulative(), histogram.sum)
    return family
