"""The order in which the hosts of one table stop a shard."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from shardbus.entities.entity_type import StopReason
from shardbus.entities.host import Host
from shardbus.shells.shard_hosts import ShardHosts

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
    """A host of which each shard has an entity, until the test says so."""

    patience = 12.0

    def __init__(self, name: str, log: list[Any]) -> None:
        self.name, self.log = name, log
        self.shards: dict[str, SimpleNamespace] = {}
        self.draining = SimpleNamespace()
        self.on_down: Any = None

    def has(self, shard: str, *entities: str) -> None:
        """Have these entities in memory."""
        self.shards[shard].activations = set(entities)
        if not entities:
            self.maybe_down(self.shards[shard])

    def maybe_down(self, hosted: SimpleNamespace) -> None:
        if hosted.activations or not self.draining.may_end(hosted.shard):
            return
        if self.shards.pop(hosted.shard, None) is not None:
            self.log.append((self.name, "ended", hosted.shard))
            self.on_down(self, hosted.shard)

    def start_shard(self, shard: str, fence: int) -> None:
        self.log.append((self.name, "start", shard, fence))

    def set_arrivals(self, shard: str, local: bool, via: object) -> None:
        self.log.append((self.name, "arrivals", shard, local))

    def stop_shards(self, shards: list[str], reason: StopReason, patience: Any = None) -> None:
        self.log += [(self.name, "stop", shard, patience) for shard in shards]


class Table:
    """An order, two types within it, and one within the first of these; three shards of each."""

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
        for host in self.hosts.values():
            host.on_down = self.all.stopped
            host.shards = {s: SimpleNamespace(shard=s, activations={"e"}) for s in SHARDS}

    def stopping_hosts(self, shard: str) -> list[str]:
        """The hosts that were asked to stop the shard, each once, in order."""
        rows = [row[0] for row in self.log if row[1:3] == ("stop", shard)]
        return list(dict.fromkeys(rows))

    def ended(self, shard: str) -> list[str]:
        """The hosts that have ended the shard."""
        return [row[0] for row in self.log if row[1:] == ("ended", shard)]


def test_all_types_start_and_open_a_shard_together() -> None:
    table = Table()
    table.all.start_shard("1", 7)
    table.all.set_arrivals("1", True, None)
    assert [row[:2] for row in table.log] == [
        (name, what) for what in ("start", "arrivals") for name in ("order", "item", "bill", "note")
    ]


@given(st.integers(0, 2**32))
def test_a_level_stops_when_no_entity_runs_in_it_or_within_it(seed: int) -> None:
    """Entities of a level call those within it, which run again then."""
    random = Random(seed)
    table = Table()
    table.all.stop_shards(SHARDS, StopReason.HANDOFF)
    levels = [["note"], ["item", "bill"], ["order"]]
    at = dict.fromkeys(SHARDS, 0)
    while going := [shard for shard in SHARDS if shard not in table.down]:
        shard = random.choice(going)
        stopping = [name for level in levels[: at[shard] + 1] for name in level]
        assert sorted(table.stopping_hosts(shard)) == sorted(stopping)
        assert table.ended(shard) == []
        again = at[shard] > 0 and random.random() < 0.3
        table.hosts[random.choice(stopping)].has(shard, *["again"] * again)
        if shard in table.down:
            assert sorted(stopping) == sorted(table.hosts)
            assert sorted(table.ended(shard)) == sorted(table.hosts)
        elif not any(table.hosts[name].shards[shard].activations for name in stopping):
            at[shard] += 1
        table.loop.turn()


def test_shards_that_are_ready_in_one_turn_go_to_the_next_level_together() -> None:
    table = Table()
    table.all.stop_shards(SHARDS, StopReason.HANDOFF)
    for shard in SHARDS:
        table.hosts["note"].has(shard)
        table.hosts["note"].has(shard)  # once more: a second write of it has ended
    assert len(table.loop.due) == 1
    table.loop.turn()
    assert [table.stopping_hosts(shard) for shard in SHARDS] == [["note", "item", "bill"]] * 3


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


def test_shards_that_must_stop_do_so_in_the_next_turn_together() -> None:
    log: list[Any] = []
    loop, host = Turns(), Recorder("order", log)
    hosts = ShardHosts(
        cast("Host", host), cast("asyncio.AbstractEventLoop", loop), lambda shard: None
    )
    for shard, reason in zip("1234", [StopReason.HANDOFF] * 3 + [StopReason.SHUTDOWN], strict=True):
        hosts.stop_soon(shard, reason)
    assert (log, len(loop.due)) == ([], 1)
    loop.turn()
    assert "".join(row[2] for row in log) == "1234"
    hosts.stop_soon("5", StopReason.HANDOFF)
    loop.turn()
    assert "".join(row[2] for row in log) == "12345"
