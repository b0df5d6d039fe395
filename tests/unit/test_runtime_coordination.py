"""The shell of a coordinator, against stores that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest

from shardbus.ids import NodeId
from shardbus.runtime.coordination import Coordination
from shardbus.settings import ShardingSettings
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.allocation import LeastShard
from shardbus.sharding.coordinator import Coordinator
from shardbus.sharding.tenure import Reign
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import StoredTable
from tests.waiting import until

A = NodeId("a", 1, 1)
LAYOUT = "crc32/8"
SETTINGS = replace(ShardingSettings(), coordinator_failure_backoff=0.01)


class Stuck(MemoryStore):
    """Hangs for ever in the steps that `hangs` names; what it was asked there is in `asked`. With
    `late`, it does first what it never confirms."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs: set[str] = set()
        self.asked: list[tuple[str, int]] = []
        self.late = False

    async def _hang(self, step: str, number: int) -> None:
        self.asked.append((step, number))
        if step in self.hangs:
            await asyncio.get_running_loop().create_future()

    async def load_table(self, entity_type: str) -> StoredTable | None:
        await self._hang("load", 0)
        return await super().load_table(entity_type)

    async def claim_epoch(self, entity_type: str, epoch: int, layout: str) -> StoredTable:
        await self._hang("claim", epoch)
        return await super().claim_epoch(entity_type, epoch, layout)

    async def write_homes(
        self,
        entity_type: str,
        epoch: int,
        homes: Mapping[str, tuple[NodeId, int] | None],
        op_id: int,
    ) -> None:
        if self.late:
            await super().write_homes(entity_type, epoch, homes, op_id)
        await self._hang("write", op_id)
        await super().write_homes(entity_type, epoch, homes, op_id)


class Office:
    """What a coordination needs from its node."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.sent: list[ev.Message] = []

    def send(self, to: NodeId, entity_type: str, message: ev.Message) -> None:
        self.sent.append(message)

    def epoch_claimed(self, entity_type: str, epoch: int) -> None: ...

    def over(self, entity_type: str) -> None: ...

    def note(self, entity_type: str, note: ev.Note) -> None:
        self.notes.append(note.kind)

    def wake(self, entity_type: str, shards: list[str]) -> list[str]:
        return []

    async def start_entity(self, entity_type: str, entity_id: str) -> None: ...


class World:
    """One coordination over a store that gets stuck."""

    def __init__(self, store: Stuck) -> None:
        self.store, self.office = store, Office()

        def make() -> Coordinator:
            return Coordinator("t", A, LAYOUT, SETTINGS, LeastShard())

        self.it = Coordination("t", make, store, self.office, patience=0.02)

    def begin(self) -> None:
        self.it.begin(0)
        self.it.update(ev.Members((A,)), 0)
        self.it.received(A, msg.Register(A, False, LAYOUT, ()))

    @property
    def rules(self) -> bool:
        return self.it.coordinator is not None and self.it.coordinator.reign is Reign.RULING

    def asked(self, step: str) -> list[int]:
        return [number for name, number in self.store.asked if name == step]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    store = Stuck()
    await store.start()
    world = World(store)
    yield world
    world.it.stop()


@pytest.mark.parametrize("late", [True, False])
async def test_S276_a_write_without_an_answer_is_tried_again_as_the_same_operation(
    world: World, late: bool
) -> None:
    world.begin()
    await until(lambda: world.rules, "a coordinator that rules")
    world.store.hangs, world.store.late = {"write"}, late
    world.it.received(A, msg.GetShardHome(("1",)))
    await until(lambda: len(world.asked("write")) >= 3, "three attempts")
    assert len(set(world.asked("write"))) == 1
    assert world.office.notes.count("persist_failed") >= 2
    assert not any(isinstance(message, msg.HostShard) for message in world.office.sent)
    world.store.hangs = set()
    await until(
        lambda: any(isinstance(message, msg.HostShard) for message in world.office.sent),
        "the home, told once it is durable",
    )
    assert world.rules, "no answer is no word of another coordinator"


@pytest.mark.parametrize("step", ["load", "claim"])
async def test_S276_a_table_that_is_not_given_is_asked_for_again(world: World, step: str) -> None:
    world.store.hangs = {step}
    world.begin()
    await until(lambda: len(world.asked(step)) >= 3, "three attempts")
    assert not world.rules
    assert world.office.notes.count("store_failed") >= 2
    world.store.hangs = set()
    await until(lambda: world.rules, "a coordinator that rules")
    assert set(world.asked("claim")) == {1}, "the claim may have worked: it is the same"
