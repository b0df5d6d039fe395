"""Shards under leases: none starts before its lease is held, and one whose lease is lost stops here
and gets another home."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.entities.entity_type import StopReason
from shardbus.ids import NodeId
from shardbus.sharding.events import Note
from shardbus.shells.shard_leases import ShardLeases
from tests.virtual_time import virtual

ME = NodeId("a", 1, 1)
PREFIX = "shard/my%20pages%2F1/"


class Around:
    """The shards of one type with a region, a host and leases that write down their events."""

    def __init__(self, use_lease: str) -> None:
        self.log: list[str] = []
        region: Any = SimpleNamespace(
            name="my pages/1",
            ready=lambda shard: self.log.append(f"ready {shard}"),
            down=lambda shard: self.log.append(f"down {shard}"),
            rehouse=lambda shard: self.log.append(f"rehouse {shard}"),
            note=lambda note: self.log.append(f"note {note.kind}"),
        )
        host: Any = SimpleNamespace(
            start_shard=lambda shard, fence: self.log.append(f"start {shard} at {fence}"),
            stop_shards=self._stop_shards,
        )
        store: Any = None
        settings = ShardingSettings(use_lease=use_lease)
        self.shards = ShardLeases(region, host, store, ME, settings)
        self.leased = self.shards.leases is not None
        if self.leased:
            leases: Any = SimpleNamespace(
                want=lambda name: self.log.append(f"want {name}"),
                drop=lambda name: self.log.append(f"drop {name}"),
                check=lambda: self.log.append("check"),
                end=self._end,
            )
            self.shards.leases = leases

    def _stop_shards(self, shards: list[str], reason: StopReason, left: float) -> None:
        self.log.append(f"stop {' '.join(shards)}: {reason.value}, {left:g} s")

    async def _end(self) -> None:
        self.log.append("end")
        self.shards.on_free(PREFIX + "1")

    def logged(self) -> list[str]:
        """The events written since the last call."""
        log, self.log = self.log, []
        return log


@pytest.mark.parametrize(
    ("use_lease", "leased"),
    [("none", False), ("singleton", False), ("shards", True), ("both", True)],
)
@virtual
async def test_a_setting_says_whether_shards_have_leases(use_lease: str, leased: bool) -> None:
    around = Around(use_lease)
    assert around.leased == leased
    assert (around.shards.check is not None) == leased


@virtual
async def test_without_leases_a_shard_starts_and_stops_at_once() -> None:
    around = Around("none")
    around.shards.start("1", 7)
    around.shards.stopped("1")
    await around.shards.end()
    assert around.log == ["start 1 at 7", "ready 1", "down 1"]


@virtual
async def test_a_shard_starts_when_its_lease_is_held_and_is_down_when_it_is_released() -> None:
    around = Around("shards")
    around.shards.start("1", 7)
    assert around.logged() == [f"want {PREFIX}1"]
    around.shards.on_held(PREFIX + "1")
    assert around.logged() == ["start 1 at 7", "ready 1"]
    around.shards.stopped("1")
    assert around.logged() == [f"drop {PREFIX}1"]
    around.shards.on_free(PREFIX + "1")
    assert around.logged() == ["down 1"]


@virtual
async def test_a_shard_that_is_stopped_before_its_lease_is_held_never_starts() -> None:
    around = Around("shards")
    around.shards.start("1", 7)
    around.shards.stopped("1")
    around.logged()
    around.shards.on_held(PREFIX + "1")
    assert around.logged() == []
    around.shards.on_free(PREFIX + "1")
    assert around.logged() == ["down 1"]


@virtual
async def test_a_shard_that_is_wanted_again_starts_under_the_newer_fence() -> None:
    around = Around("shards")
    around.shards.start("1", 7)
    around.shards.start("1", 9)
    around.logged()
    around.shards.on_held(PREFIX + "1")
    assert around.logged() == ["start 1 at 9", "ready 1"]


@virtual
async def test_a_shard_whose_lease_is_lost_stops_in_time_and_gets_another_home_once() -> None:
    around = Around("shards")
    around.shards.start("1", 7)
    around.shards.on_held(PREFIX + "1")
    around.logged()
    around.shards.on_lost(PREFIX + "1", 2.0)
    assert around.logged() == [f"stop 1: {StopReason.FAILURE.value}, 2 s"]
    around.shards.stopped("1")
    around.shards.on_free(PREFIX + "1")
    assert around.logged() == [f"drop {PREFIX}1", "down 1", "rehouse 1"]
    around.shards.on_free(PREFIX + "1")
    assert around.logged() == ["down 1"], "the loss is settled"


@virtual
async def test_at_the_end_leases_are_released_without_reports_to_the_region() -> None:
    around = Around("shards")
    around.shards.start("1", 7)
    around.shards.start("2", 8)
    around.shards.on_held(PREFIX + "1")
    around.logged()
    await around.shards.end()
    around.shards.on_held(PREFIX + "2")
    assert around.logged() == ["end"]


@virtual
async def test_notes_of_leases_are_those_of_the_region() -> None:
    around = Around("shards")
    around.shards.on_note(Note("lease_lost"))
    assert around.log == ["note lease_lost"]
