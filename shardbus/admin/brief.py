"""A node in a few numbers, for a page that shows all nodes at once and asks again and again.

A node adds up its usual counters and answers in some 20 microseconds, so a page that asks every
node each two seconds costs none of them anything that could be measured. Counters only grow: rates
are the differences between two answers.

Source: docs/reference/http.md; B.149.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardbus.admin.load_history import LoadReading
from shardbus.histograms import Histogram
from shardbus.node.node import Node
from shardbus.node.recent_drops import Drop
from shardbus.transport.send_buffer import SEND_BUFFER_FULL


def brief_of(node: Node) -> dict[str, Any]:
    """Return a node's shards and entities, how busy it is, and its counters since its start."""
    return {
        "types": {
            name: {
                "shards": len(region.host.shards),
                "entities": region.host.entities,
                "received": region.host.counts.accepted,
                "failures": region.host.counts.failures,
                "buffered": region.router.region.buffered[0] if region.table is region else 0,
                "handled": list(region.times.handled.counts),
                "waited": list(region.times.waited.counts),
            }
            for name, region in node.regions.items()
        },
        "suspended": node.gate.describe(),
        "vitals": node.reports.vitals.vitals._asdict(),
        "dropped": list(drops_of(node)),
        "slow": [
            [name, how, n] for (name, how), n in sorted(dict(node.records.slow.counts).items())
        ],
        "late": node.endpoint.asks_timed_out,
        "store": [*_calls_of(node), node.states.errors],
    }


def load_of(node: Node) -> LoadReading:
    """Read the load of a node, for its history."""
    regions, vitals = node.regions.values(), node.reports.vitals.vitals
    handled, waited = Histogram(), Histogram()
    for region in regions:
        handled.add(region.times.handled)
        waited.add(region.times.waited)
    buffered = sum(shell.router.region.buffered[0] for shell in regions if shell.table is shell)
    totals = (
        sum(shell.host.counts.accepted for shell in regions),
        sum(shell.host.counts.failures for shell in regions),
        sum(count for _, _, count in drops_of(node)),
        node.endpoint.asks_timed_out,
        *_calls_of(node),
    )
    entities = sum(shell.host.entities for shell in regions)
    now = (vitals.mailbox + buffered, entities, vitals.busy, vitals.lag)
    return LoadReading(totals, handled, waited, now)


def _calls_of(node: Node) -> tuple[int, float]:
    """Return the calls of the store and their seconds."""
    durations = dict(node.states.durations).values()
    return sum(calls.count for calls in durations), sum(calls.sum for calls in durations)


def drops_of(node: Node) -> Iterator[Drop]:
    """Yield the node's drops: messages by type, then frames."""
    for name, region in node.regions.items():
        for reason, count in sorted(region.host.counts.dropped.items()):
            yield name, reason, count
    for name, count in sorted(node.endpoint.send_buffer_limit.refused.items()):
        yield name, SEND_BUFFER_FULL, count
    for reason, count in sorted(node.endpoint.dropped_frames.items()):
        yield "", reason, count
    gossip = node.membership.runner
    for reason, count in sorted(gossip.dropped_frames.items() if gossip else ()):
        yield "", f"gossip_{reason}", count
