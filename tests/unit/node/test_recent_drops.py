"""The messages dropped in the last minute, by samples of counters that only grow."""

from __future__ import annotations

from collections import Counter

from shardbus.node.recent_drops import SAMPLES, RecentDrops


def test_drops_are_recent_for_a_minute() -> None:
    counters: Counter[tuple[str, str]] = Counter()
    drops = RecentDrops(lambda: dict(counters))
    assert drops.lately() == []
    counters["cart", "expired"] += 3
    assert drops.lately() == [("cart", "expired", 3)], "of a node that is not a minute old"
    for tick in range(SAMPLES):
        drops.sample(tick)
    assert drops.lately() == [("cart", "expired", 3)]
    counters["cart", "failed"] += 1
    drops.sample(SAMPLES)
    assert drops.lately() == [("cart", "failed", 1)]
