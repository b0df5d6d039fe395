"""The types of a client: how one is resolved, whose word about homes counts, when a node is tried
again."""

from __future__ import annotations

import asyncio

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.client.regions import REFUSED_RETRY_S
from shardbus.client.unknown_types import DESCRIBE_EVERY_S
from shardbus.errors import AskTimeout, BufferFull, ConfigError, UnknownEntityType
from shardbus.sharding.messages import Home, ShardHomes
from shardbus.wire.control import Describe, Members, TypeInfo
from tests.unit.client.client_kit import A, B, FakeSession, World
from tests.virtual_time import virtual


def page_class(shards: int = 12) -> type:
    bus = ShardBus("shop")

    @bus.entity("page", shards=shards)
    class Page(Entity):
        @handler
        def add(self, value: int) -> int:
            return value

    return Page


def described(session: FakeSession) -> int:
    """How often the client has sent a question about a type."""
    return session.controls.count(Describe())


# ---- finding a type


@virtual
async def test_a_type_is_described_by_the_contact_and_then_known() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            assert client._regions.find("page") is None
            router = await client.router_of("page")
            assert client._regions.find("page") is router
            assert client.routers["page"] is router
            question = described(world.session(A))
            assert await client.router_of("page") is router
            assert described(world.session(A)) == question


@virtual
async def test_a_description_is_requested_every_second_until_the_timeout() -> None:
    world = World(A)
    world.answers = False
    with world.playing():
        async with world.client(timeout=3.5) as client:
            began = asyncio.get_running_loop().time()
            with pytest.raises(AskTimeout, match="no node describes the entity type 'page'"):
                await client.router_of("page")
            assert asyncio.get_running_loop().time() - began == pytest.approx(3.5, abs=0.01)
            assert described(world.session(A)) == int(3.5 / DESCRIBE_EVERY_S) + 1


@virtual
async def test_an_unknown_type_fails_everyone_who_waits() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            asks = [asyncio.ensure_future(client.ask("book", "x", 1)) for _ in range(3)]
            errors = await asyncio.gather(*asks, return_exceptions=True)
            assert [type(error) for error in errors] == [UnknownEntityType] * 3
            world.types["pages"] = TypeInfo(False, "", 0, similar="page")
            with pytest.raises(UnknownEntityType) as refused:
                await client.ask("pages", "x", 1)
            assert refused.value.hint == "did you mean 'page'?"


@virtual
async def test_a_type_with_a_shard_function_of_its_own_needs_its_class() -> None:
    world = World(A)
    world.types["page"] = TypeInfo(True, "by_tenant:1/12", 0)
    with world.playing():
        async with world.client() as client:
            with pytest.raises(ConfigError, match="shard function of its own"):
                await client.router_of("page")


@virtual
async def test_a_class_that_is_laid_out_otherwise_than_the_cluster_is_refused() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            cls = page_class(shards=7)
            router = client._regions.of_class(cls).router
            await asyncio.sleep(0.1)
            with pytest.raises(UnknownEntityType, match="crc32/12 in the cluster, as crc32/7 here"):
                client.tell(cls, "x", 1)
            assert router.refused is not None


@virtual
async def test_a_class_that_disagrees_with_a_known_type_is_refused() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            await client.router_of("page")
            with pytest.raises(ConfigError, match="crc32/12 in the cluster, as crc32/7 here"):
                client.ref(page_class(shards=7), "x")


@virtual
async def test_a_class_that_agrees_shares_the_router_of_the_known_type() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            router = await client.router_of("page")
            cls = page_class()
            client.ref(cls, "x")
            assert client.routers[cls] is router
            with pytest.raises(ConfigError, match="no entity class"):
                client.ref(int, "x")


# ---- whose word counts


@virtual
async def test_homes_are_taken_from_the_contact_only() -> None:
    world = World()
    world.home = None
    with world.playing():
        async with world.client(A) as client:
            await client.tell("page", "x", 1)
            shard = client.routers["page"].shard_of("x")
            client._endpoint.session_to(B.address)
            await asyncio.sleep(0.1)
            news = ShardHomes(1, (Home(shard, B, 1),))
            world.session(B).receive(news, "page")
            assert (client.buffered, world.session(B).sent) == (1, [])
            world.session(A).receive(news, "page")
            assert (client.buffered, world.session(B).sent) == (0, [("tell", "x")])


@virtual
async def test_a_new_contact_is_asked_what_every_type_is() -> None:
    world = World()
    with world.playing():
        async with world.client() as client:
            await client.router_of("page")
            await client.tell("page", "x", 1)
            contact = client.contact
            assert contact is not None
            other = B if contact == A else A
            world.up, world.home = {other.address}, other
            world.session(contact).lose(peer_ended=True)
            await asyncio.sleep(5)
            assert Describe() in world.session(other).controls


# ---- nodes that come back


@virtual
async def test_a_member_that_refused_is_tried_again_after_two_seconds() -> None:
    world = World()
    with world.playing():
        async with world.client(A) as client:
            world.home = B
            await client.tell("page", "x", 1)
            await asyncio.sleep(0.1)
            world.up = {A.address}
            world.session(B).lose(peer_ended=True)
            client._contact.members = (A, B)
            await client.tell("page", "x", 2)
            await asyncio.sleep(REFUSED_RETRY_S - 0.2)
            assert client.buffered == 1
            world.up = {A.address, B.address}
            await asyncio.sleep(3.0)
            assert client.buffered == 0
            assert world.session(B).sent == [("tell", "x")]


@virtual
async def test_a_node_that_is_no_member_is_not_tried_again() -> None:
    world = World()
    with world.playing():
        async with world.client(A) as client:
            world.home = B
            await client.tell("page", "x", 1)
            await asyncio.sleep(0.1)
            world.session(A).receive(Members((A,)))
            world.session(B).lose(peer_ended=True)
            await client.tell("page", "x", 2)
            world.tried.clear()
            await asyncio.sleep(3 * REFUSED_RETRY_S)
            assert B.address not in world.tried
            assert client.buffered == 1


@virtual
async def test_a_node_that_its_cluster_reports_alive_is_used_at_once() -> None:
    world = World()
    with world.playing():
        async with world.client(A) as client:
            world.home = B
            await client.tell("page", "x", 1)
            await asyncio.sleep(0.1)
            world.session(B).lose(peer_ended=True)
            await client.tell("page", "x", 2)
            assert client.buffered == 1
            world.session(A).receive(Members((A, B)))
            await asyncio.sleep(0.1)
            shard = client.routers["page"].shard_of("x")
            world.move(B, shard, by=A)
            assert client.buffered == 0


# ---- waiting messages


@virtual
async def test_messages_over_the_buffer_are_refused_and_counted() -> None:
    world = World(A)
    world.home = None
    with world.playing():
        async with world.client() as client:
            await client.tell("page", "x", 1)
            size = client._regions.settings.buffer_size
            for _ in range(size - 1):
                client.tell("page", "x", 1)
            assert client.buffered == size
            with pytest.raises(BufferFull, match="for shards without a home is full"):
                client.tell("page", "x", 1)
            assert client.refused_messages == {"buffer_full": 1}
    assert client.lost_messages == size


@virtual
async def test_closing_ends_the_wait_for_a_description() -> None:
    world = World(A)
    world.answers = False
    with world.playing():
        async with world.client() as client:
            learning = asyncio.ensure_future(client.router_of("page"))
            await asyncio.sleep(0.1)
        await asyncio.sleep(2 * DESCRIBE_EVERY_S)
        assert learning.done()
        with pytest.raises(Exception, match="closed"):
            learning.result()
