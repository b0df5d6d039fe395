"""The account of messages that a node's page of metrics gives."""

from __future__ import annotations

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

NOT_ACCEPTED = ("unconfirmed", "send_buffer_full")
"""Reasons of drops of messages that the region had not, or had no more."""
OUTCOMES = (
    "shardbus_messages_delivered_total",
    "shardbus_messages_forwarded_total",
    "shardbus_buffered_messages",
    "shardbus_waiting_messages",
    "shardbus_messages_dropped_total",
)


def missing(metrics: str) -> dict[str, int]:
    """Return how many of the accepted messages the outcomes lack, by type; only types for which
    that is not 0."""
    misses = Counter[str]()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            entity_type = sample.labels.get("entity_type", "")
            if not entity_type or sample.labels.get("reason") in NOT_ACCEPTED:
                continue
            if sample.name == "shardbus_messages_accepted_total":
                misses[entity_type] += int(sample.value)
            elif sample.name in OUTCOMES:
                misses[entity_type] -= int(sample.value)
    return {entity_type: count for entity_type, count in misses.items() if count}
