"""What machines note, for people."""

from __future__ import annotations

import logging

import pytest

from shardbus.node.event_log import level_of, remark
from shardbus.sharding.events import Note


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("too_few_shards", logging.WARNING),
        ("too_many_shards", logging.WARNING),
        ("lease_lost", logging.WARNING),
        ("strategy_failed", logging.WARNING),
        ("rows_dropped", logging.WARNING),
        ("rebalance", logging.INFO),
        ("lease_refused", logging.INFO),
        ("shard_freed", logging.DEBUG),
    ],
)
def test_what_needs_somebody_is_a_warning(kind: str, level: int) -> None:
    assert level_of(Note(kind)) == level


def test_a_note_is_told_in_words() -> None:
    assert remark(Note("too_few_shards", "2 shards")) == "too few shards 2 shards"
    assert remark(Note("rows_dropped", "shard 7", 5)) == "rows dropped 5: shard 7"
