"""The order in which the hosts of one table stop a shard."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from shardbus.entities.entity_type import StopReason
from shardbus.entities.host import Host
from shardbus.shells.shard_hosts import STOPS_AT_ONCE, ShardHosts

SHARDS = ["1", "2", "3"]


class Turns:
    """A loop that runs its callbacks when the test says so."""

    def __init__(self) -> None:
        self.due: list[Any] = []

    def call_soon(self, call: Any, *args: Any) -> None:
        self.due.append((call, args))

    def turn(self) -> None:
        due, self.due = self.due, []
        for call, args in due:
            call(*args)


class Recorder:
    """A host that stops its shards when the test says so."""

    patience = 12.0

    def __init__(self, name: str, log: list[Any]) -> None:
        self.name, self.log = name, log
        self.shards: dict[str, SimpleNamespace] = {}

    def start_shard(self, shard: str, fence: int) -> None:
        self.log.append((self.name, "start", shard, fence))

    def set_arrivals(self, shard: str, local: bool, via: object) -> None:
        self.log.append((self.name, "arrivals", shard, local))

    def stop_shards(self, shards: list[str], reason: StopReason, patience: Any = None) -> None:
        self.log += [(self.name, "stop", shard, patience) for shard in shards]


class Table:
    """An order, two types within it, and one within the first of these."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.down: list[str] = []
        self.loop = Turns()
        names = {"order": 0, "item": 1, "bill": 1, "note": 2}
        self.hosts = {name: Recorder(name, self.log) for name in names}
        self.all = ShardHosts(
            cast("Host", self.hosts["order"]),
            cast("asyncio.AbstractEventLoop", self.loop),
            self.down.append,
        )
        for name, depth in list(names.items())[1:]:
            self.all.add(cast("Host", self.hosts[name]), depth)

    def stopped(self, name: str, shard: str) -> None:
        self.all.stopped(cast("Host", self.hosts[name]), shard)

    def asked(self, shard: str) -> list[str]:
        """The hosts that were asked to stop the shard, in order."""
        return [row[0] for row in self.log if row[1:3] == ("stop", shard)]


def test_all_types_start_and_open_a_shard_together() -> None:
    table = Table()
    table.all.start_shard("1", 7)
    table.all.set_arrivals("1", True, None)
    assert [row[:2] for row in table.log] == [
        (name, what) for what in ("start", "arrivals") for name in ("order", "item", "bill", "note")
    ]


@given(st.randoms(use_true_random=False))
def test_a_level_stops_when_all_hosts_within_it_have_stopped(random: Any) -> None:
    table = Table()
    table.all.stop_shards(SHARDS, StopReason.HANDOFF)
    levels = [["note"], ["item", "bill"], ["order"]]
    left = {shard: [list(level) for level in levels] for shard in SHARDS}
    while any(left.values()):
        shard = random.choice([s for s in SHARDS if left[s]])
        level = left[shard][0]
        assert sorted(table.asked(shard)) == sorted(
            name for done in levels[: len(levels) - len(left[shard]) + 1] for name in done
        )
        assert shard not in table.down
        name = level.pop(random.randrange(len(level)))
        table.stopped(name, shard)
        if not level:
            left[shard].pop(0)
            table.loop.turn()
    assert sorted(table.down) == SHARDS


def test_shards_that_are_ready_in_one_turn_go_to_the_next_level_together() -> None:
    table = Table()
    table.all.stop_shards(SHARDS, StopReason.HANDOFF)
    for shard in SHARDS:
        table.stopped("note", shard)
    assert len(table.loop.due) == 1


def test_each_level_has_its_part_of_the_time() -> None:
    table = Table()
    table.all.stop_shards(["1"], StopReason.HANDOFF)
    assert table.log == [("note", "stop", "1", 4.0)]
    table.all.stop_shards(["1"], StopReason.FAILURE, 1.5)
    assert table.log[1:] == [("note", "stop", "1", 0.5)], "less time than it had"
    table.all.stop_shards(["1"], StopReason.FAILURE, 30.0)
    assert len(table.log) == 2, "no more than it had"


def test_a_single_type_stops_its_shards_itself() -> None:
    log: list[Any] = []
    down: list[str] = []
    host = Recorder("order", log)
    hosts = ShardHosts(cast("Host", host), cast("asyncio.AbstractEventLoop", Turns()), down.append)
    hosts.stop_shards(["1"], StopReason.HANDOFF, 3.0)
    hosts.stopped(cast("Host", host), "1")
    assert (log, down) == ([("order", "stop", "1", 3.0)], ["1"])


def test_shards_with_many_entities_stop_in_turns_of_the_loop() -> None:
    half = STOPS_AT_ONCE // 2
    entities = {"1": half, "2": half, "3": 3 * half, "4": 1, "5": 0, "6": 1}
    log: list[Any] = []
    loop, host = Turns(), Recorder("order", log)
    host.shards = {shard: SimpleNamespace(live=live) for shard, live in entities.items()}
    hosts = ShardHosts(
        cast("Host", host), cast("asyncio.AbstractEventLoop", loop), lambda shard: None
    )
    for shard in "12345":
        hosts.stop_soon(shard, StopReason.HANDOFF)
    assert log == []
    turns: list[str] = []
    while loop.due:
        loop.turn()
        turns.append("".join(row[2] for row in log))
        log.clear()
        if len(turns) == 2:
            hosts.stop_soon("6", StopReason.SHUTDOWN)
    assert turns == ["12", "3", "45", "6"]
