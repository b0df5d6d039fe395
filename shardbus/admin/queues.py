"""Figures of the queues of work that this node hosts.

Only queues in memory count. A queue that gets no requests leaves it.

Source: docs/how-to/queue-work.md; B.104.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardbus.deliveries.work_items import HasQueue, QueueSizes
from shardbus.node.node import Node


def queue_sizes(node: Node) -> Iterator[tuple[str, QueueSizes]]:
    """Yield each type of queues, with the sums over the queues of it here."""
    for name, region in node.regions.items():
        host = region.host
        if issubclass(host.kind.cls, HasQueue):
            total = QueueSizes()
            for activation in host.active.values():
                if isinstance(activation.entity, HasQueue):
                    total = total.plus(activation.entity.sizes)
            yield name, total
