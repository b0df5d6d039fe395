"""A day of reminders in virtual time: each fires in time, with bounded memory and reads."""

from __future__ import annotations

import pytest

from benchmarks.reminders import LIMIT_MS, Lateness, day
from shardbus.reminders.schedule import HELD_MAX, WINDOW


def test_the_lateness_of_a_part_of_the_firings() -> None:
    lateness = Lateness()
    for late in (0, 5, 5, 900, -1):
        lateness.add(late)
    assert [lateness.percentile(part) for part in (0.2, 0.4, 0.5, 0.8, 1.0)] == [-1, 0, 5, 5, 900]
    assert lateness.early == 1


@pytest.mark.parametrize(
    ("reminders", "hours", "shards"),
    [
        (20_000, 0.1, 4),
        pytest.param(100_000, 1.0, 4, marks=pytest.mark.soak),
        pytest.param(1_000_000, 24.0, 64, marks=pytest.mark.soak),
    ],
)
async def test_reminders_fire_in_time_with_bounded_memory_and_reads(
    reminders: int, hours: float, shards: int
) -> None:
    figures = await day(reminders, hours, 1, shards)
    assert figures["fired"] >= figures["due"] > 0
    assert figures["early"] == 0
    assert figures["p99_ms"] <= LIMIT_MS
    assert figures["held_at_most"] <= shards * HELD_MAX
    assert figures["active_at_most"] < 1000
    assert figures["index_reads"] <= 2 * shards + 2 * figures["fired"] / (WINDOW // 2)
    assert figures["loads_per_firing"] < 1.2
    assert figures["fences_per_firing"] < 1.2
