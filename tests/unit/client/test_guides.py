"""Types that the contact of a client lacks and other members have, as during a rollout."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus import AsyncClient, UnknownEntityType
from shardbus.ids import NodeId
from shardbus.sharding.messages import Home, ShardHomes
from tests.unit.client.client_kit import A, B, World
from tests.unit.client.test_unknown_types import number, page_class
from tests.virtual_time import virtual


def world_of(*elsewhere: NodeId) -> World:
    """A has no type, and says that these nodes have it."""
    world = World(A, B)
    world.lacking, world.elsewhere, world.home = {A}, elsewhere, B
    return world


def taken(world: World, node: NodeId) -> list[int]:
    """The messages that the client has sent to this node."""
    return [number(value) for value in world.session(node).values]


async def send(client: AsyncClient, by: str, n: int) -> None:
    if by == "name":
        client.cast("page", "x", "mark", n)
    else:
        client.ref(page_class(), "x").mark.tell(n)


@pytest.mark.parametrize("by", ["name", "class"])
@virtual
async def test_another_member_describes_the_type_and_locates_its_shards(by: str) -> None:
    world = world_of(B)
    with world.playing():
        async with world.client(A) as client:
            for n in range(3):
                await send(client, by, n)
            await client.flush()
            assert taken(world, B) == [0, 1, 2]
            assert client.refused_messages == {}


@virtual
async def test_only_the_guide_of_a_type_locates_its_shards() -> None:
    world = world_of(B)
    with world.playing():
        async with world.client(A) as client:
            await send(client, "name", 0)
            await client.flush()
            shard = client.routers["page"].shard_of("x")
            world.session(A).receive(ShardHomes(1, (Home(shard, A, 9),)), "page")
            await send(client, "name", 1)
            await client.flush()
            assert taken(world, B) == [0, 1]


@pytest.mark.parametrize("by", ["name", "class"])
@virtual
async def test_a_type_without_a_guide_that_answers_is_refused_for_a_while(by: str) -> None:
    """The contact is asked again every two seconds, and not at once."""
    world = world_of(B)
    world.up = {A.address}
    with world.playing():
        async with world.client(A, timeout=60) as client:
            answer: Any = client.call("page", "x", "mark", 0)
            if by == "class":
                answer = client.ref(page_class(), "x").mark(0)
            await turned_to(world, B)
            world.session(B).lose(peer_ended=True)
            with pytest.raises(UnknownEntityType, match="that seems to have 'page' describes it: "):
                await answer
            assert len(world.session(A).controls) < 6


@virtual
async def test_a_guide_that_is_lost_is_replaced() -> None:
    world = world_of(B)
    with world.playing():
        async with world.client(A) as client:
            await send(client, "class", 0)
            await client.flush()
            world.lacking, world.up, world.home = set(), {A.address}, A
            world.session(B).lose(peer_ended=True)
            await send(client, "class", 1)
            async with asyncio.timeout(30):
                await client.flush()
            assert taken(world, A) == [1]


@virtual
async def test_a_member_that_only_seems_to_have_the_type_ends_the_search() -> None:
    world = world_of(B)
    world.lacking = {A, B}
    with world.playing():
        async with world.client(A) as client:
            with pytest.raises(UnknownEntityType):
                await client.call("page", "x", "mark", 0)


async def turned_to(world: World, node: NodeId) -> None:
    """Until the client has turned to this node."""
    while node.address not in world.tried:
        await asyncio.sleep(0.01)
