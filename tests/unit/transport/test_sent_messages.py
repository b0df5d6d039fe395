"""Counts of sent messages, and the sample of asks: the drawn ones, and the start of their time."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from shardbus.transport.sent_messages import SAMPLES_S, BatchDeparture, SentMessages
from shardbus.wire.batch import AskRun, ReplyRun, Run, TellRun


class Loop:
    """Stands for the loop: a clock."""

    now = 0.0

    def time(self) -> float:
        return self.now


class Noted(SentMessages):
    """Keeps each sample's type and weight."""

    def __init__(self) -> None:
        super().__init__(Random(7))
        self.taken: list[tuple[str, int]] = []

    def ended(self, entity_type: str, seconds: float, weight: int = 1) -> None:
        self.taken.append((entity_type, weight))


class Desk:
    """Batches of asks that leave, and their futures."""

    def __init__(self, sent: SentMessages | None = None) -> None:
        self.sent, self.loop = sent or SentMessages(), Loop()
        loop: Any = self.loop
        self.departure = BatchDeparture(self.sent, loop)
        self.corr = 0
        self.entries: dict[int, tuple[Any, Any, int]] = {}

    def asks(self, n: int, kind: str = "page") -> AskRun:
        corrs = list(range(self.corr + 1, self.corr + n + 1))
        self.corr += n
        for corr in corrs:
            future = asyncio.get_running_loop().create_future()
            self.entries[corr] = (future, str, 0)
        return AskRun(kind, "get", 5000, ["e"] * n, [b""] * n, corrs)

    def leave(
        self, *runs: Run, since: float = 0.0, delayed: dict[int, float] | None = None
    ) -> None:
        self.departure.since, self.departure.delayed = since, delayed or {}
        self.departure.leave(runs, self.entries)

    async def answer_all(self, after: float) -> None:
        self.loop.now += after
        for future, _, _ in self.entries.values():
            future.set_result(None)
        self.entries.clear()
        await asyncio.sleep(0)


async def test_B150_tells_and_asks_are_counted_by_type_and_answers_are_not() -> None:
    desk = Desk()
    desk.leave(TellRun("page", "hit", ["a", "b"], [b"", b""]), desk.asks(3), ReplyRun([1], [b""]))
    desk.leave(TellRun("cart", "add", ["a"], [b""]))
    assert desk.sent.counts == {"page": 5, "cart": 1}


async def test_an_ask_stands_for_all_asks_since_the_last_sample() -> None:
    desk = Desk()
    desk.loop.now = 1.0
    desk.leave(desk.asks(1), since=1.0)
    await desk.answer_all(after=0.25)
    desk.leave(desk.asks(9), since=1.25)
    await desk.answer_all(after=0.5)
    durations = desk.sent.durations["page"]
    assert (durations.count, durations.sum) == (10, pytest.approx(0.25 + 9 * 0.5))


async def test_the_place_in_the_batch_says_when_an_ask_was_made() -> None:
    desk = Desk()
    desk.loop.now = 10.0
    desk.leave(desk.asks(1), since=9.0)
    await desk.answer_all(after=0.0)
    assert desk.sent.durations["page"].sum == pytest.approx(0.5), "in the middle, on average"


async def test_an_ask_that_waited_for_a_home_counts_from_then() -> None:
    desk = Desk()
    desk.loop.now = 10.0
    desk.leave(desk.asks(1), since=10.0, delayed={1: 4.0})
    await desk.answer_all(after=1.0)
    assert desk.sent.durations["page"].sum == pytest.approx(7.0)


async def test_an_ask_that_is_cancelled_or_fails_has_a_duration_too() -> None:
    desk = Desk()
    desk.leave(desk.asks(1))
    desk.entries[1][0].cancel()
    await asyncio.sleep(0)
    desk.leave(desk.asks(1))
    desk.entries[2][0].set_exception(ValueError("no"))
    await asyncio.sleep(0)
    desk.entries[2][0].exception()
    assert desk.sent.durations["page"].count == 2


async def test_samples_are_unbiased_also_if_slow_asks_come_in_a_period() -> None:
    """Every tenth batch asks another type; it gets its tenth of the weight, whatever the period of
    the samples."""
    sent, weights = Noted(), Counter[str]()
    desk = Desk(sent)
    for _ in range(30):
        for n in range(1000):
            desk.leave(desk.asks(4, "slow" if n % 10 == 0 else "fast"))
            await desk.answer_all(after=0.001)
        desk.sent.pace()
    for kind, weight in sent.taken:
        weights[kind] += weight
    assert sum(weights.values()) == pytest.approx(120_000, rel=0.02)
    assert weights["slow"] / sum(weights.values()) == pytest.approx(0.1, abs=0.02)
    assert len(sent.taken) <= 30 * 2 * SAMPLES_S


async def test_a_rush_is_thinned_out_before_the_next_second() -> None:
    desk = Desk(sent := Noted())
    for _ in range(20_000):
        desk.leave(desk.asks(1))
        await desk.answer_all(after=0.0)
    assert 0 < len(sent.taken) <= 3 * SAMPLES_S
