"""States that instances share, on whole nodes under seeded faults: nodes die, leave and join, links
are cut, the store fails, is slow or stops. Each acknowledged save counts, once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from shardbus import Entity, ShardBus, ShardBusError, handler
from shardbus.data import Counter
from shardbus.testing import TestCluster, TestNode
from tests.markers import long_only, soak_only

IDS = [f"page-{n}" for n in range(5)]
ROUTERS = ["round-robin", "random", "nearest", "hash"]
INSTANCES = 3
STEPS, CALLS, NODES = 10, 10, 4
QUIET_S = 60.0


@dataclass
class Marks:
    highest: dict[str, int] = field(default_factory=dict)


class Hits(Entity):
    state: Counter

    @handler
    async def hit(self) -> None:
        self.state.add(1)
        await self.save()

    @handler
    def total(self) -> int:
        return self.state.value


class Board(Entity):
    state: Marks

    @staticmethod
    def merge(first: Marks, other: Marks) -> Marks:
        names = first.highest.keys() | other.highest.keys()
        both = {name: [m.highest.get(name, 0) for m in (first, other)] for name in names}
        return Marks({name: max(marks) for name, marks in both.items()})

    @handler
    async def mark(self, name: str, number: int) -> None:
        self.state.highest[name] = max(number, self.state.highest.get(name, 0))
        await self.save()

    @handler
    def marks(self) -> dict[str, int]:
        return self.state.highest


class History:
    """One run: calls and faults that a seed draws."""

    def __init__(self, cluster: TestCluster, dice: Random) -> None:
        self.cluster, self.dice, self.client = cluster, dice, cluster.client()
        self.acked = dict.fromkeys(IDS, 0)
        self.sent = dict.fromkeys(IDS, 0)
        self.marked: dict[tuple[str, str], int] = {}
        self.marks = 0

    async def hit(self) -> None:
        entity_id = self.dice.choice(IDS)
        ref: Any = self.client.ref(Hits, entity_id).to(self.dice.choice(ROUTERS))  # type: ignore[call-overload]
        self.sent[entity_id] += 1
        try:
            await ref.hit()
        except ShardBusError as error:
            if getattr(error, "definite", False):
                self.sent[entity_id] -= 1
        else:
            self.acked[entity_id] += 1

    async def mark(self) -> None:
        entity_id, name = self.dice.choice(IDS), f"name-{self.dice.randrange(3)}"
        self.marks += 1
        number = self.marks
        ref: Any = self.client.ref(Board, entity_id).to(self.dice.choice(ROUTERS))  # type: ignore[call-overload]
        try:
            await ref.mark(name, number)
        except ShardBusError:
            return
        self.marked[entity_id, name] = max(number, self.marked.get((entity_id, name), 0))

    async def trouble(self) -> None:
        """Begin or end a fault."""
        store, nodes = self.cluster.store, [n for n in self.cluster.nodes if n.runs]
        match self.dice.randrange(9):
            case 0 if len(nodes) > 2:
                await self.cluster.kill(self.pick(nodes))
            case 1 if len(nodes) > 3:
                await self.calm()
                with suppress(TimeoutError):
                    await self.cluster.leave(self.pick(nodes))
            case 2 if len(nodes) < NODES + 1:
                await self.calm()
                with suppress(TimeoutError):  # both sides of a split may be down
                    await self.cluster.add()
            case 3 if len(nodes) > 2:
                alone = self.pick(nodes)
                await self.cluster.partition([alone], [n for n in nodes if n is not alone])
            case 4:
                await self.cluster.heal()
            case 5:
                store.fail(self.dice.choice([0.1, 0.4]))
            case 6:
                store.slow(0.2)
            case 7:
                store.stop()
            case _:
                store.start()

    async def calm(self) -> None:
        """End the faults: a node joins and leaves only without them."""
        self.cluster.store.start()
        await self.cluster.heal()

    def pick(self, nodes: list[TestNode]) -> TestNode:
        return self.dice.choice(nodes)

    async def run(self) -> None:
        for _ in range(STEPS):
            calls = [self.dice.choice([self.hit, self.mark])() for _ in range(CALLS)]
            await asyncio.gather(self.trouble(), *calls)
            await self.cluster.advance(self.dice.choice([0.0, 0.5, 10.0]))
        await self.calm()
        await self.cluster.advance(QUIET_S)
        while sum(node.runs for node in self.cluster.nodes) < INSTANCES:
            await self.cluster.add()
        await self.cluster.advance(QUIET_S)

    async def check(self) -> None:
        for entity_id in IDS:
            totals = await self.client.ref(Hits, entity_id).to("all").total()
            [total] = {each for each in totals.values() if isinstance(each, int)}
            assert self.acked[entity_id] <= total <= self.sent[entity_id], entity_id
            boards = await self.client.ref(Board, entity_id).to("all").marks()
            shown = [each for each in boards.values() if isinstance(each, dict)]
            assert all(board == shown[0] for board in shown), entity_id
            for (of_entity, name), number in self.marked.items():
                if of_entity == entity_id:
                    assert shown[0][name] >= number, (entity_id, name)
        assert sum(self.acked.values()) > 0


@pytest.mark.parametrize("seed", [2, *long_only(0, 1, 3), *soak_only(*range(4, 204))])
def test_each_acknowledged_save_of_a_shared_state_counts_once(seed: int) -> None:
    bus = ShardBus("market")
    bus.entity("hits", instances=INSTANCES, shards=4)(Hits)
    bus.entity("board", instances=INSTANCES, shards=4)(Board)
    with TestCluster(bus, NODES, seed=seed) as cluster:
        history = History(cluster, Random(f"shared states {seed}"))
        cluster.run(history.run())
        cluster.run(history.check())
