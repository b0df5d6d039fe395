"""Messages for types that a client does not know yet: their order, their bound, their ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.client.asynchronous import AsyncClient
from shardbus.client.unknown_types import DESCRIBE_EVERY_S
from shardbus.errors import (
    AskTimeout,
    BufferFull,
    ConfigError,
    LocalProtocolError,
    MessageTooLarge,
    SchemaError,
    UnknownEntityType,
)
from shardbus.sharding.messages import Home, ShardHomes
from shardbus.wire.batch import PAYLOAD_BYTES_MAX
from shardbus.wire.control import TypeInfo
from tests.unit.client.client_kit import A, B, World
from tests.virtual_time import virtual

Verb = Callable[[AsyncClient, int], Any]

VERBS: dict[str, Verb] = {
    "tell": lambda client, i: client.tell("page", "x", i),
    "tell a handler": lambda client, i: client.tell("page", "x", "mark", i),
    "ask": lambda client, i: client.ask("page", "x", i),
    "ask a handler": lambda client, i: client.ask("page", "x", "mark", i),
    "ask a text": lambda client, i: client.ask("page", "x", str(i)),
    "call": lambda client, i: client.call("page", "x", "mark", i),
    "cast": lambda client, i: client.cast("page", "x", "mark", i),
    "tell_many": lambda client, i: client.tell_many("page", [("x", i)]),
    "ask_many": lambda client, i: client.ask_many("page", [("x", i)]),
}


def number(value: Any) -> int:
    """The number of a message, whatever its verb."""
    return int(value[-1] if isinstance(value, list) else value)


def page_class() -> type:
    bus = ShardBus("shop")

    @bus.entity("page", shards=12)
    class Page(Entity):
        @handler
        def mark(self, i: int) -> None: ...

    return Page


def describe(world: World, name: str = "page", info: TypeInfo | None = None) -> None:
    world.session(A).receive(info or world.types[name], name)


# ---- order


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@virtual
async def test_messages_are_sent_in_the_order_of_the_calls(verb: Verb) -> None:
    """Tasks that are started one after the other, while the description comes between."""
    world = World(A)
    world.answers = False
    with world.playing():
        async with world.client() as client:
            tasks = []

            async def send(sent: Awaitable[object]) -> None:
                await sent

            for i in range(20):
                if i == 10:
                    world.answers = True
                    describe(world)
                tasks.append(asyncio.create_task(send(verb(client, i))))
                await asyncio.sleep(0)
            await asyncio.sleep(1)
            assert [number(value) for value in world.session(A).values] == list(range(20))
            for task in tasks:
                task.cancel()


@virtual
async def test_all_verbs_share_one_order() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            for i, verb in enumerate(VERBS.values()):
                verb(client, i)
            client.ref(page_class(), "x").mark.tell(len(VERBS))
            await asyncio.sleep(1)
            numbers = [number(value) for value in world.session(A).values]
            assert numbers == list(range(len(VERBS) + 1))


@virtual
async def test_what_waits_leaves_before_what_the_first_use_of_the_class_sends() -> None:
    world = World(A)
    world.answers = False
    with world.playing():
        async with world.client() as client:
            client.cast("page", "x", "mark", 1)
            client.ref(page_class(), "x").mark.tell(2)
            client.cast("page", "x", "mark", 3)
            world.answers = True
            await asyncio.sleep(2)
            homes = (Home(client.routers["page"].shard_of("x"), A, 1),)
            world.session(A).receive(ShardHomes(1, homes), "page")
            assert [number(value) for value in world.session(A).values] == [1, 2, 3]


@pytest.mark.parametrize("end", ["timeout", "cancel"])
@virtual
async def test_others_keep_their_order_when_one_caller_gives_up(end: str) -> None:
    world = World(A)
    world.answers = False
    with world.playing():
        async with world.client(timeout=30) as client:
            sent = [client.call("page", "x", "mark", i, timeout=0.2 + (i != 1)) for i in range(3)]
            waits = [asyncio.ensure_future(task) for task in sent]
            await asyncio.sleep(0)
            if end == "cancel":
                waits[1].cancel()
            await asyncio.sleep(0.5)
            if end == "timeout":
                with pytest.raises(AskTimeout, match="describes the entity type 'page'"):
                    await waits[1]
            world.answers = True
            describe(world)
            await asyncio.sleep(0.1)
            assert [number(value) for value in world.session(A).values] == [0, 2]
            assert client.buffered == 0
            assert client.refused_messages == {}


@virtual
async def test_a_tell_whose_caller_waits_no_more_is_sent() -> None:
    world = World(A)
    world.answers = False
    with world.playing():
        async with world.client() as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.tell("page", "x", 1)
            world.answers = True
            describe(world)
            await asyncio.sleep(0.1)
            assert world.session(A).values == [1]


# ---- no caller awaits


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@virtual
async def test_a_verb_that_is_not_awaited_sends(verb: Verb) -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            for i in range(3):
                verb(client, i)
            await client.flush()
            await asyncio.sleep(1)
            verb(client, 3)  # the type is known
            assert [number(value) for value in world.session(A).values] == [0, 1, 2, 3]
            gc.collect()


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@virtual
async def test_errors_that_no_caller_awaits_are_not_logged(
    verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(A)
    world.types.clear()
    reports: list[object] = []
    with world.playing():
        async with world.client() as client:
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(loop, "call_exception_handler", reports.append)
            verb(client, 1)
            await asyncio.sleep(1)
            world.types["page"] = TypeInfo(True, "crc32/12", 12)
            await client.router_of("page")
            world.home = None
            verb(client, 2)
        gc.collect()
        await asyncio.sleep(0)
        assert reports == []


# ---- refusals


@virtual
async def test_tells_to_an_unknown_type_are_counted_and_told() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            for i in range(3):
                client.tell("book", "x", i)
            awaited = client.cast("book", "x", "mark", 3)
            ask = client.call("book", "x", "mark", 4)
            with pytest.raises(UnknownEntityType):
                await awaited
            with pytest.raises(UnknownEntityType):
                await ask
            assert client.refused_messages == {"unknown_type": 4}
            assert client.buffered == 0
            await client.flush()


@virtual
async def test_tells_to_a_class_that_the_cluster_does_not_have_are_counted() -> None:
    world = World(A)
    world.types.clear()
    with world.playing():
        async with world.client() as client:
            ref: Any = client.ref(page_class(), "x")
            for i in range(3):
                ref.mark.tell(i)
            ask = ref.mark(3)
            await client.flush()
            with pytest.raises(UnknownEntityType):
                await ask
            assert client.refused_messages == {"unknown_type": 3}
            with pytest.raises(UnknownEntityType):
                ref.mark.tell(4)
            world.types["page"] = TypeInfo(True, "crc32/12", 12)
            await asyncio.sleep(3)
            await ref.mark.tell(5)
            await client.flush()
            assert [number(value) for value in world.session(A).values] == [5]


@virtual
async def test_tells_whose_type_is_not_described_in_time_are_counted() -> None:
    world = World(A)
    world.answers = False
    with world.playing():
        async with world.client(timeout=0.5) as client:
            client.tell("page", "x", 1)
            with pytest.raises(AskTimeout):
                await client.tell("page", "x", 2)
            assert client.refused_messages == {"expired": 2}
            assert client.buffered == 0


@virtual
async def test_what_waits_for_a_type_is_bounded_in_messages_and_bytes() -> None:
    world = World(A)
    world.answers = False
    with world.playing():
        async with world.client() as client:
            unknown = client._regions.unknown
            unknown._messages_max = 3
            for i in range(3):
                client.tell("page", "x", i)
            with pytest.raises(BufferFull, match="not known yet"):
                client.tell("page", "x", 3)
            with pytest.raises(BufferFull):
                await client.call("book", "x", "mark")
            [error] = await client.ask_many("page", [("x", 1)])
            assert isinstance(error, BufferFull)
            unknown._messages_max, unknown._bytes_max = 100, unknown.bytes + 1000
            client.tell("page", "x", b"x" * 500)
            with pytest.raises(BufferFull):
                client.tell("page", "x", b"x" * 500)
            assert client.refused_messages == {"buffer_full": 4}
            world.answers = True
            describe(world)
            await client.flush()
            assert client.buffered == unknown.messages == unknown.bytes == 0
            assert len(world.session(A).values) == 4


@virtual
async def test_a_batch_over_the_bound_waits_and_keeps_its_order() -> None:
    world = World(A)
    world.answers = False
    with world.playing():
        async with world.client() as client:
            client._regions.unknown._messages_max = 3
            client.tell_many("page", [("x", i) for i in range(10)])
            flush = asyncio.ensure_future(client.flush())
            await asyncio.sleep(0.5)
            assert client.buffered == 3
            assert not flush.done()
            world.answers = True
            describe(world)
            await flush
            assert world.session(A).values == list(range(10))
            assert client.refused_messages == {}


@virtual
async def test_the_rest_of_a_batch_that_fails_is_counted() -> None:
    world = World(A)
    world.types.clear()
    with world.playing():
        async with world.client() as client:
            client._regions.unknown._messages_max = 3
            sent = client.tell_many("page", [("x", i) for i in range(10)])
            await client.flush()
            assert client.refused_messages == {"unknown_type": 10}
            with pytest.raises(UnknownEntityType):
                await sent


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("bad", [0, 1, 2])
@virtual
async def test_a_batch_is_definite_only_if_none_of_it_was_sent(bad: int, is_known: bool) -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            if is_known:
                await client.router_of("page")
            messages: list[Any] = [0, 1, 2]
            messages[bad] = object()
            with pytest.raises(SchemaError) as refused:
                await client.tell_many("page", [("x", message) for message in messages])
            await client.flush()
            assert world.session(A).values == list(range(bad))
            assert refused.value.definite is (bad == 0)


@virtual
async def test_the_rest_of_a_batch_is_lost_when_the_client_closes() -> None:
    world = World(A)
    world.answers = False
    with world.playing():
        async with world.client() as client:
            client._regions.unknown._messages_max = 3
            client.tell_many("page", [("x", i) for i in range(10)])
            client.call("page", "x", "mark", 1)
    assert client.lost_messages == 10


@virtual
async def test_closing_fails_what_waits_for_a_type() -> None:
    world = World(A)
    world.answers = False
    with world.playing():
        async with world.client() as client:
            tell = client.tell("page", "x", 1)
            ask = client.call("page", "x", "mark", 1)
        for sent in (tell, ask):
            with pytest.raises(LocalProtocolError, match="closed"):
                await sent
        assert client.lost_messages == 1
        assert client.refused_messages == {}
        for verb in VERBS.values():
            try:
                [outcome] = await verb(client, 1)
            except LocalProtocolError as error:
                outcome = error
            assert isinstance(outcome, LocalProtocolError)


@virtual
async def test_mistakes_are_raised_by_the_call() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            for is_known in (False, True):
                with pytest.raises(ConfigError):
                    client.tell("page", "", 1)
                with pytest.raises(SchemaError):
                    client.cast("page", "x", "mark", object())
                if not is_known:
                    with pytest.raises(MessageTooLarge):
                        client.cast("page", "x", "mark", b"x" * (PAYLOAD_BYTES_MAX + 1))
                assert client.buffered == 0
                if not is_known:
                    await client.router_of("page")
                    client.tell("page", "x", 1)
                    await client.flush()


@virtual
async def test_a_type_without_instances_refuses_a_choice_also_of_what_waits() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            client.to("all").tell("page", "x", 1)
            with pytest.raises(ConfigError, match="no instances"):
                await client.to("all").call("page", "x", "mark")
            assert client.refused_messages == {"refused": 1}
            with pytest.raises(ConfigError, match="no instances"):
                client.to("all").tell("page", "x", 1)


# ---- the contact


@virtual
async def test_a_new_contact_is_asked_at_once_what_is_not_known() -> None:
    world = World()
    world.answers = False
    with world.playing():
        async with world.client() as client:
            client.tell("page", "x", 1)
            await asyncio.sleep(0.1)
            assert client.contact is not None
            world.answers, world.home = True, A if client.contact == B else B
            began = asyncio.get_running_loop().time()
            world.session(client.contact).lose(peer_ended=True)
            await client.flush()
            assert world.session(world.home).values == [1]
            assert asyncio.get_running_loop().time() - began < DESCRIBE_EVERY_S


@virtual
async def test_a_call_in_another_thread_is_sent_by_the_loop() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            for is_known in (False, True):
                sent = await asyncio.to_thread(lambda: client.cast("page", "x", "mark", 1))
                assert client.buffered == 0
                assert len(world.session(A).values) == is_known
                await sent
                await client.flush()
                assert len(world.session(A).values) == is_known + 1
