"""Sampling: each shard gets its part, however messages come, and few of them are looked at."""

from __future__ import annotations

from random import Random

import pytest

from shardbus.errors import ConfigError
from shardbus.shells.load_sampling import NEVER, SAMPLES_S, LoadSampling


class Feed:
    """Runs of messages, as a node's type counts them; an entity is named by its shard."""

    def __init__(self) -> None:
        self.looks = self.count = 0
        self.sampling = LoadSampling(self._shard_of)
        self.sampling.switch(on=True)

    def _shard_of(self, entity_id: str) -> str:
        self.looks += 1
        return entity_id[0]

    def run(self, ids: str) -> None:
        self.count += len(ids)
        if self.count >= self.sampling.mark:
            self.sampling.sample(self.count, ids)

    def read(self, now: float) -> dict[str, float] | None:
        return self.sampling.read(self.count, now)


def test_N9_with_few_messages_every_run_counts() -> None:
    feed = Feed()
    assert feed.read(10.0) is None
    for shard in "aabbbc":
        feed.run(shard)
    assert feed.read(12.0) == {"a": 1.0, "b": 1.5, "c": 0.5}
    assert feed.read(13.0) == {}
    assert feed.read(13.0) is None


@pytest.mark.parametrize("length", [1, 7, 200])
def test_N9_with_many_messages_few_are_looked_at_and_each_shard_gets_its_part(length: int) -> None:
    feed, dice = Feed(), Random(length)
    feed.read(0.0)
    for second in range(1, 6):
        feed.looks = 0
        for _ in range(200_000 // length):
            feed.run("".join(dice.choices("abc", (70, 20, 10), k=length)))
        loads = feed.read(float(second))
    assert feed.looks <= 2 * SAMPLES_S
    assert loads is not None
    assert sum(loads.values()) == pytest.approx(200_000, rel=0.05)
    assert loads["a"] == pytest.approx(140_000, rel=0.15)
    assert loads["b"] > loads["c"] > 0


def test_when_the_rush_is_over_every_run_counts_again() -> None:
    feed = Feed()
    feed.read(0.0)
    for _ in range(100):
        feed.run("a" * 10_000)
    feed.read(1.0)
    feed.read(2.0)
    feed.run("b")
    feed.run("c")
    assert feed.read(3.0) == {"b": 1.0, "c": 1.0}


def test_what_is_no_id_is_nobodys() -> None:
    def refuses(entity_id: str) -> str:
        raise ConfigError("no id")

    sampling = LoadSampling(refuses)
    sampling.switch(on=True)
    sampling.read(0, 0.0)
    sampling.sample(1, ("",))
    assert sampling.read(1, 1.0) == {}


def test_it_is_off_until_somebody_wants_to_know() -> None:
    assert LoadSampling(str).mark == NEVER
