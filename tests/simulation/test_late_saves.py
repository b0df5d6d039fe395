"""Entities that save behind their handlers and give saves up, on whole nodes with a store that is
slow and fails: the state that an object has loaded stays, and nothing that was acknowledged is
lost."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from random import Random

import pytest

from shardbus import (
    Entity,
    RequestError,
    ShardBus,
    StaleActivation,
    StopReason,
    StoreError,
    handler,
)
from shardbus.testing import TestCluster

bus = ShardBus("late")
IDS = ("a", "b", "c")
STEPS = 60
SEEDS = 8


@dataclass
class Stock:
    n: int = 0


@dataclass
class Seen:
    """The state that an object has loaded, and the saves that it has begun since."""

    loaded: int
    begun: int


@bus.entity("keeper", shards=6, passivate_after=5.0)
class Keeper(Entity):
    """Saves now, behind its handlers, and within a time."""

    state: Stock
    late: int = 0
    """Saves that were refused, of all objects."""

    async def on_start(self) -> None:
        self.seen = Seen(self.state.n, 0)

    async def on_stop(self, reason: StopReason) -> None:
        if self.state.n % 2:
            self.seen.begun += 1
            await self.save()

    @handler
    async def put(self, n: int) -> int:
        self.state.n = n
        self.seen.begun += 1
        await self.save()
        return n

    @handler
    async def put_within(self, n: int, seconds: float) -> int:
        async with asyncio.timeout(seconds):
            return await self.put(n)

    @handler
    def put_behind(self, n: int, seconds: float) -> None:
        self.state.n = n
        self.seen.begun += 1
        self.task = asyncio.create_task(self.save_later(seconds))

    async def save_later(self, seconds: float) -> None:
        for _ in range(3):
            await asyncio.sleep(seconds)
            try:
                await self.save()
            except StaleActivation:
                Keeper.late += 1
                self.refs_nothing()
            except StoreError:
                pass  # it was written or not

    def refs_nothing(self) -> None:
        """The entity of a task that is over asks no other."""
        with pytest.raises(StaleActivation):
            self.context.ref(Keeper, "a")

    @handler
    def look(self) -> Seen:
        return self.seen

    @handler
    def leave(self) -> None:
        self.context.passivate()

    @handler
    def fail(self) -> None:
        raise ValueError("a failure")


class Writer:
    """Writes numbers that grow, and checks the numbers that it reads."""

    def __init__(self, cluster: TestCluster, rng: Random) -> None:
        self.cluster, self.rng = cluster, rng
        self.client = cluster.client()
        self.n = 0
        self.acknowledged = dict.fromkeys(IDS, 0)

    async def write(self) -> None:
        rng, entity_id = self.rng, self.rng.choice(IDS)
        ref = self.client.ref(Keeper, entity_id)
        self.n += 1
        try:
            match rng.choice(
                ("put", "within", "behind", "behind", "leave", "fail", "look", "look")
            ):
                case "put":
                    self.acknowledged[entity_id] = await ref.put(self.n)
                case "within":
                    seconds = rng.uniform(0.0, 0.1)
                    self.acknowledged[entity_id] = await ref.put_within(self.n, seconds)
                case "behind":
                    await ref.put_behind(self.n, rng.uniform(0.0, 0.2))
                case "leave":
                    await ref.leave()
                case "fail":
                    await ref.fail()
                case _:
                    await self.look(entity_id)
        except RequestError:  # the entity has failed, or the store
            await self.cluster.advance(rng.uniform(0.0, 0.3))
            with contextlib.suppress(RequestError):
                await self.look(entity_id)

    async def look(self, entity_id: str) -> int:
        """Compare the state that the object has loaded with the stored state."""
        seen = await self.client.ref(Keeper, entity_id).look()
        if not seen.begun:
            state = self.cluster.store.state(Keeper, entity_id)
            assert seen.loaded == (0 if state is None else state.n), "a late save"
            assert seen.loaded >= self.acknowledged[entity_id], "an acknowledged save is lost"
        return seen.begun


async def play(seed: int) -> None:
    rng = Random(seed)
    async with TestCluster(bus, nodes=2, seed=seed) as cluster:
        writer = Writer(cluster, rng)
        cluster.store.slow(rng.choice((0.0, 0.05, 0.5)))
        cluster.store.fail(rng.choice((0.0, 0.1)))
        for step in range(STEPS):
            await writer.write()
            if step == STEPS // 2:
                await cluster.leave(rng.choice(cluster.nodes))
        cluster.store.start()
        await cluster.advance(30.0)
        for entity_id in IDS:
            assert await writer.look(entity_id) == 0, "the entity has started anew"


async def test_what_an_object_has_loaded_stays() -> None:
    Keeper.late = 0
    for seed in range(SEEDS):
        await play(seed)
    assert Keeper.late > SEEDS, "saves were refused"
