"""Messages through a proxy that cuts the connection again and again, with real processes: the
benchmark, in small."""

from __future__ import annotations

import pytest

from benchmarks import cuts, slow


def clean(counts: dict[str, int]) -> bool:
    """Everything has come once, in order."""
    return counts["handled"] == counts["sent"] and counts["missed"] == counts["again"] == 0


async def test_cuts_lose_repeat_and_reorder_nothing() -> None:
    counts = await cuts.run(100_000, 20)
    assert clean(counts), counts
    assert counts["cuts"] == 20


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_thousand_cuts_lose_repeat_and_reorder_nothing() -> None:
    counts = await cuts.run(10_000_000, 1000)
    assert clean(counts), counts
    assert counts["cuts"] == 1000


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", slow.KINDS)
async def test_a_slow_receiver_takes_bounded_memory_and_loses_nothing(kind: str) -> None:
    """Mailboxes hold 64 MiB, a link 8 MiB and ZeroMQ's copy of that; twice that is allowed."""
    report = await slow.run(kind, 20.0)
    assert clean(report), report
    assert report["host_rss_mb"] < 160
    assert report["producer_rss_mb"] < 40
