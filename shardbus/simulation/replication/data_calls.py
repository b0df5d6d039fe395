"""Replicated values under faults: sets, counters and registers that several store objects change.

    python -m shardbus.simulation.replication.data_calls 0 1000

Every element and every value that is put is unique, so a get shows which writes it has seen:

    seen       a get has each addition that was acknowledged before it began, if no removal of it
               had begun before it ended; and, with R a majority at least, each that an earlier get
               has shown
    gone       a get has nothing that a removal, acknowledged before it began, has removed
    counted    a counter is at least the sum of what was acknowledged before, and at most the sum
               of what had begun
    kept       a put is in the value or in its conflicts until a put after it has begun
    quiet      once faults have ended and disks have repaired: all have the same rows, and, unless a
               disk of the ring is lost, no tombstone is left

R and W are drawn with R + W > N. W is a majority at least while disks may be lost.

Source: docs/simulation.md; docs/how-to/replicated-values.md.
"""

from __future__ import annotations

import sys
from collections import Counter as Counts
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from shardbus.replication.kinds import AnyKind, Counter, Register, Set, versioned
from shardbus.replication.proposer import Completed, RingFound, SendCall
from shardbus.replication.quorum import (
    DataEffect,
    DataOutcome,
    GetValue,
    Level,
    Quorums,
    RequestSettled,
    WriteValue,
)
from shardbus.replication.ring import StoreReply
from shardbus.replication.values import BUCKETS_EACH, bucket_of, data_key
from shardbus.replication.versions import Clock, DataChange, DataValue
from shardbus.simulation.replication.histories import PARTITIONS_USED
from shardbus.simulation.replication.world import ReplicationWorld, drawn_faults

CALLS, OBJECTS = 40, 3
GAP_S, TIMEOUT_S, LOOK_S, REPAIR_S, SETTLE_S = 0.03, 1.0, 0.05, 0.4, 30.0
LATEST_S = 4.0
"""After which no message of a call arrives any more."""


def _keys() -> list[str]:
    """Keys of one bucket, in a partition that the simulation has: a bucket's tombstones leave one
    clock behind."""
    names = (data_key(f"k{n}") for n in range(100_000))
    return [key for key in names if bucket_of(key) == PARTITIONS_USED[-1] * BUCKETS_EACH]


SET_KEY, COUNTER_KEY, REGISTER_KEY, *_ = _keys()


class SimDataObject:
    """A store object: its requests of values, and its timer."""

    def __init__(self, world: ReplicationWorld) -> None:
        self.world = world
        self.quorums = Quorums(world.ring, world.dice)
        self._ends: dict[Hashable, Callable[[DataOutcome], None]] = {}
        self._look()

    def submit(
        self, key: str, work: GetValue | WriteValue, end: Callable[[DataOutcome], None]
    ) -> None:
        """Run a request; `end` gets its outcome."""
        ticket = self.world.ticket()
        self._ends[ticket] = end
        self._carry(self.quorums.submit(ticket, key, work, self.world.now, TIMEOUT_S))

    def reply(self, reply: StoreReply) -> None:
        """Take a disk's reply."""
        self._carry(self.quorums.handle(reply, self.world.now))

    def _look(self) -> None:
        """Notice the disks in reach, and let time pass."""
        replicas = self.world.replicas.values()
        up = frozenset(replica.disk for replica in replicas if replica.up)
        self._carry(self.quorums.serve(up, self.world.now))
        self._carry(self.quorums.tick(self.world.now))
        self.quorums.check()
        self.world.later(LOOK_S, self._look)

    def _carry(self, effects: list[DataEffect]) -> None:
        for effect in effects:
            match effect:
                case SendCall(disk, call):
                    self.world.send(self, disk, call)
                case RequestSettled(ticket, outcome):
                    self._ends.pop(ticket)(outcome)
                case RingFound():
                    pass


@dataclass
class UniqueAddition:
    """A unique addition: when it was acknowledged, and when its removal began and was
    acknowledged."""

    acked: float = float("inf")
    removing: float = float("inf")
    removed: float = float("inf")
    shown: float = float("inf")
    """When a get that has shown it ended first."""


@dataclass
class DataCalls:
    """The calls of a run, and the rules that they broke."""

    world: ReplicationWorld
    objects: list[SimDataObject]
    r: Level
    w: Level
    broken: list[str] = field(default_factory=list)
    outcomes: Counts[str] = field(default_factory=Counts)
    elements: dict[int, UniqueAddition] = field(default_factory=dict)
    puts: dict[int, UniqueAddition] = field(default_factory=dict)
    added: list[tuple[float, float]] = field(default_factory=list)
    """Additions to the counter: begun, acknowledged."""
    read: dict[str, DataValue] = field(default_factory=dict)
    """The last value of each key that a get has shown."""

    def step(self) -> None:
        """Begin one call."""
        dice = self.world.dice
        caller = dice.choice(self.objects)
        match dice.choice(("get", "get", "add", "add", "remove", "delete", "count", "put")):
            case "get":
                key = dice.choice((SET_KEY, COUNTER_KEY, REGISTER_KEY))
                self.get(caller, key, lambda value: None)
            case "add":
                self.get(caller, SET_KEY, partial(self._add, caller))
            case "remove":
                self.get(caller, SET_KEY, partial(self._remove, caller))
            case "delete":
                self.get(caller, SET_KEY, partial(self._delete, caller))
            case "count":
                place = len(self.added)
                self.added.append((self.world.now, float("inf")))
                self._write(caller, COUNTER_KEY, Counter().add(), partial(self._counted, place))
            case _:
                self._put(caller)

    # -- writes

    def _write(
        self, caller: SimDataObject, key: str, kind: AnyKind, acked: Callable[[], None]
    ) -> None:
        if (change := kind.changes.change()) is not None:
            self._change(caller, key, change, acked)

    def _change(
        self, caller: SimDataObject, key: str, change: DataChange, acked: Callable[[], None]
    ) -> None:
        def end(outcome: DataOutcome) -> None:
            self.outcomes[f"write {type(outcome).__name__}"] += 1
            if isinstance(outcome, Completed):
                acked()

        timed = change._replace(time=int(self.world.now * 1e6))
        caller.submit(key, WriteValue(timed, self.w), end)

    def _add(self, caller: SimDataObject, value: DataValue) -> None:
        element = len(self.elements)
        written = self.elements[element] = UniqueAddition()

        def acked() -> None:
            written.acked = self.world.now

        self._write(caller, SET_KEY, Set(value).add(element), acked)

    def _remove(self, caller: SimDataObject, value: DataValue) -> None:
        there = sorted(Set(value).value)
        if there:
            element = self.world.dice.choice(there)
            changes = Set(value).remove(element)
            self._write(caller, SET_KEY, changes, self._removal([element]))

    def _delete(self, caller: SimDataObject, value: DataValue) -> None:
        if there := Set(value).value:
            change = DataChange("", seen=value.clock)
            self._change(caller, SET_KEY, change, self._removal(there))

    def _removal(self, elements: list[int] | frozenset[int]) -> Callable[[], None]:
        gone = [self.elements[element] for element in elements]
        for written in gone:
            written.removing = min(written.removing, self.world.now)

        def acked() -> None:
            for written in gone:
                written.removed = min(written.removed, self.world.now)

        return acked

    def _put(self, caller: SimDataObject) -> None:
        after: Clock = ()
        number = len(self.puts)
        if REGISTER_KEY in self.read and self.world.dice.random() < 0.8:
            read = self.read[REGISTER_KEY]
            after = read.clock
            for former in _contents(read):
                self.puts[former].removing = min(self.puts[former].removing, self.world.now)
        written = self.puts[number] = UniqueAddition()

        def acked() -> None:
            written.acked = self.world.now

        [addition] = (Register().set(number).changes.change() or DataChange("")).adds
        self._change(caller, REGISTER_KEY, DataChange("r", (addition,), seen=after), acked)

    def _counted(self, place: int) -> None:
        self.added[place] = self.added[place][0], self.world.now

    # -- gets

    def get(self, caller: SimDataObject, key: str, then: Callable[[DataValue], None]) -> None:
        """Read a key, and judge the value."""
        begun = self.world.now

        def end(outcome: DataOutcome) -> None:
            self.outcomes[f"get {type(outcome).__name__}"] += 1
            if isinstance(outcome, Completed):
                assert isinstance(outcome.result, DataValue)
                self.read[key] = outcome.result
                self._judge(key, begun, outcome.result)
                then(outcome.result)

        caller.submit(key, GetValue(self.r), end)

    def _judge(self, key: str, begun: float, value: DataValue) -> None:
        now = self.world.now
        if key == COUNTER_KEY:
            fewest = sum(acked < begun for _, acked in self.added)
            most = sum(start <= now for start, _ in self.added)
            if not fewest <= Counter(value).value <= most:
                self.broken.append(f"counted {Counter(value).value} of {fewest} to {most}")
            return
        history = self.elements if key == SET_KEY else self.puts
        there = Set(value).value if key == SET_KEY else frozenset(_contents(value))
        for number, written in history.items():
            shown = written.shown if self.r in ("majority", "all") else float("inf")
            is_settled = min(written.acked, shown) < begun
            if is_settled and written.removing > now and number not in there:
                self.broken.append(f"{key[2:]}: {number} is not seen at {now:.3f}")
            if written.removed < begun and number in there:
                self.broken.append(f"{key[2:]}: {number} is back at {now:.3f}")
            if number in there:
                written.shown = min(written.shown, now)


def _contents(value: DataValue) -> list[int]:
    shown = versioned(value)
    return [] if shown is None else [shown.data, *shown.conflicts]


@dataclass(frozen=True, slots=True)
class DataRun:
    """The outcome of a run."""

    seed: int
    broken: tuple[str, ...]
    outcomes: Counts[str]
    removed: int
    """Buckets whose tombstones have gone."""


def simulate_data(seed: int) -> DataRun:
    """Run one seed. Two runs of one seed are the same, in any process."""
    dice = Random(f"data {seed}")
    faults = drawn_faults(dice)
    disks = dice.choice((1, 2, 3, 3, 3, 5))
    world = ReplicationWorld(dice, faults, disks, PARTITIONS_USED)
    levels: list[tuple[Level, Level]] = [("majority", "majority"), ("majority", "majority+1")]
    if not (faults.lost or faults.operators or faults.set_back):
        levels += [("all", 1), (1, "all")]
    r, w = dice.choice(levels)
    calls = DataCalls(world, [SimDataObject(world) for _ in range(OBJECTS)], r, w)
    world.begin()
    _repair_now_and_then(world)
    for _ in range(CALLS):
        world.run(dice.expovariate(1 / GAP_S))
        calls.step()
    world.run(dice.uniform(0.0, 0.5))
    world.heal()
    world.run(SETTLE_S)
    before = calls.outcomes["get Completed"]
    for caller in calls.objects:
        for key in (SET_KEY, COUNTER_KEY, REGISTER_KEY):
            calls.get(caller, key, lambda value: None)
    world.run(LATEST_S)
    if calls.outcomes["get Completed"] != before + 3 * OBJECTS:
        calls.broken.append("a get has no answer, though no fault is left")
    calls.broken += _unquiet(world)
    removed = sum(key[0] == "r" for key in _rows(world))
    return DataRun(seed, tuple(calls.broken), calls.outcomes, removed)


def _repair_now_and_then(world: ReplicationWorld) -> None:
    for replica in world.replicas.values():
        replica.repair()
    world.later(REPAIR_S, lambda: _repair_now_and_then(world))


def _members(world: ReplicationWorld) -> list[int]:
    return [disk for disk in world.highest.disks if not world.replicas[disk].lost]


def _rows(world: ReplicationWorld) -> dict[str, object]:
    return {
        key: row
        for disk in _members(world)
        for key, row in world.replicas[disk].place.registers.rows.items()
    }


def _unquiet(world: ReplicationWorld) -> list[str]:
    broken, digests = list[str](), set[tuple[int, ...]]()
    for disk in _members(world):
        place = world.replicas[disk].place
        place.check()
        digests.add(tuple(place.registers.digests))
        if place.registers.data.tombstones and len(_members(world)) == len(world.highest.disks):
            broken.append(f"disk {disk} has tombstones")
    return broken + (["disks differ"] if len(digests) > 1 else [])


def main(first: str, last: str) -> int:
    """Run seeds, print the first broken one, and the sums."""
    sums: Counts[str] = Counts()
    for seed in range(int(first), int(last)):
        run = simulate_data(seed)
        sums += run.outcomes
        sums["removed"] += run.removed
        if run.broken:
            sys.stdout.write(f"{seed}: {'; '.join(run.broken[:5])}\n")
            return 1
    sys.stdout.write(f"{first} to {last}: nothing is broken {dict(sorted(sums.items()))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
