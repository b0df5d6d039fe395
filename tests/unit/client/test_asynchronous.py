"""The asynchronous client: its counts, its refusals, its repetitions."""

from __future__ import annotations

import asyncio
import logging
import math
from datetime import timedelta
from typing import Any

import pytest

from shardbus import Client
from shardbus.app import ShardBus
from shardbus.client.asynchronous import (
    CLOSE_S,
    CONNECT_TIMEOUT_S,
    SEND_BUFFER_MIN,
    AsyncClient,
)
from shardbus.delivery import WorkQueue
from shardbus.errors import (
    AskTimeout,
    BufferFull,
    ConfigError,
    LocalProtocolError,
    NodeLost,
    Refused,
    RequestError,
)
from shardbus.ids import NodeId
from shardbus.transport.asks import Unsent
from shardbus.wire.batch import AskRun, Flush, TellRun
from shardbus.wire.control import Members, Refusals
from tests.unit.client.client_kit import A, B, C, World
from tests.virtual_time import virtual

KEY = ("page", "add")


@ShardBus("queues").entity(name="jobs")
class Jobs(WorkQueue[str]):
    """A queue that no node has."""


def unsent(entity_id: str) -> Unsent:
    return Unsent(KEY, "", entity_id, b"\x01", 0, None, ())


async def known(client: AsyncClient, world: World, entity_id: str = "x") -> None:
    """Give the client the type and the home of an entity."""
    await client.tell("page", entity_id, 1)
    await asyncio.sleep(0.1)
    if world.home is not None:
        world.session(world.home).sent.clear()


def contact_and_other(client: AsyncClient, world: World) -> tuple[NodeId, NodeId]:
    assert client.contact is not None
    [other] = [node for node in world.members if node != client.contact]
    return client.contact, other


# ---- counts


@virtual
async def test_messages_that_wait_for_a_home_at_close_are_counted_as_lost() -> None:
    world = World()
    world.home = None
    with world.playing():
        async with world.client() as client:
            for entity_id in ("a", "b", "c"):
                await client.tell("page", entity_id, 1)
            assert client.buffered == 3
    assert client.lost_messages == 3


@virtual
async def test_close_waits_two_seconds_for_acknowledgements_and_counts_the_rest() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            await known(client, world)
            world.session(A).deaf = True
            for _ in range(5):
                await client.tell("page", "x", 1)
            began = asyncio.get_running_loop().time()
    assert client.lost_messages == 5
    assert asyncio.get_running_loop().time() - began == pytest.approx(CLOSE_S, abs=0.1)


@virtual
async def test_a_cancelled_close_closes_at_once() -> None:
    world = World(A)
    with world.playing():
        client = await world.client().__aenter__()
        await known(client, world)
        world.session(A).deaf = True
        await client.tell("page", "x", 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await client.close()
        assert client._endpoint.closed
        assert client.lost_messages == 1
        await client.close()
        assert client.lost_messages == 1


@virtual
async def test_a_close_that_waits_for_queues_closes_when_it_is_cancelled() -> None:
    world = World(A)
    with world.playing():
        client = await world.client().__aenter__()
        queue = client.queue(Jobs, "main")
        queue._returns.spawn(asyncio.sleep(60))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await client.close()
        assert client._endpoint.closed


@virtual
async def test_a_second_close_waits_for_the_first() -> None:
    world = World(A)
    with world.playing():
        client = await world.client().__aenter__()
        await known(client, world)
        world.session(A).deaf = True
        await client.tell("page", "x", 1)
        first = asyncio.ensure_future(client.close())
        await asyncio.sleep(0.5)
        second = asyncio.ensure_future(client.close())
        await asyncio.sleep(0.5)
        assert not second.done()
        first.cancel()
        await second
        assert client._endpoint.closed


@virtual
async def test_close_ends_at_once_when_everything_is_acknowledged() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            await known(client, world)
            began = asyncio.get_running_loop().time()
    assert client.lost_messages == 0
    assert asyncio.get_running_loop().time() - began < 0.1


@virtual
async def test_tells_that_a_lost_node_had_not_acknowledged_are_counted() -> None:
    world = World()
    with world.playing():
        async with world.client() as client:
            await known(client, world)
            world.session(A).deaf = True
            await client.tell("page", "x", 1)
            world.session(A).lose(peer_ended=True)
            assert client.lost_messages == 1


@virtual
async def test_reported_drops_are_counted_by_reason_and_logged() -> None:
    world = World(A)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("shardbus.client")
    log.addHandler(handler)
    try:
        with world.playing():
            async with world.client() as client:
                world.session(A).receive(Refusals((("page", "mailbox_full", 3),)))
                world.session(A).receive(Refusals((("book", "mailbox_full", 2),)))
                await asyncio.sleep(0.1)
                assert client.refused_messages == {"mailbox_full": 5}
    finally:
        log.removeHandler(handler)
    assert len(lines) == 1
    assert "3 of 'page': mailbox_full" in lines[0]


@virtual
async def test_messages_over_the_send_buffer_are_counted_as_refused() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            world.endpoint.send_buffer_limit.refusal("page", "A")
            assert client.refused_messages == {"send_buffer_full": 1}


@virtual
async def test_an_ask_that_waits_for_a_home_fails_at_its_deadline_and_is_counted() -> None:
    world = World(A)
    world.home = None
    with world.playing():
        async with world.client() as client:
            with pytest.raises(AskTimeout, match="no home for shard"):
                await client.ask("page", "x", 1, timeout=0.5)
            assert world.endpoint.asks_timed_out == 1


@virtual
async def test_an_ask_while_no_node_answers_names_the_addresses_and_a_command() -> None:
    """Also of a type that no node has described, and a question about the cluster."""
    world = World(A)
    with world.playing():
        async with world.client() as client:
            await known(client, world)
            world.home = None
            world.up = set()
            world.session(A).lose(peer_ended=True)
            said = r"no node of cluster 'shop' answers at 10\.0\.0\.1:7355; start one with `sh"
            for kind in ("page", "unknown"):
                with pytest.raises(AskTimeout, match=f"{kind}.*: {said}"):
                    await client.ask(kind, "y", 1, timeout=0.5)
            with pytest.raises(RequestError, match=f"the client seeks another node: {said}"):
                [_ async for _ in client.stored("page")]


@virtual
async def test_busy_is_true_until_everything_is_acknowledged_and_answered() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            await known(client, world)
            session = world.session(A)
            assert not client.busy
            session.deaf = True
            await client.tell("page", "x", 1)
            assert client.busy
            session.acknowledge()
            session.waiting_asks = 1
            assert client.busy
            session.waiting_asks = 0
            assert not client.busy


@virtual
async def test_flush_returns_once_every_tell_is_acknowledged() -> None:
    world = World(A)
    with world.playing():
        client = await world.client().__aenter__()
        await known(client, world)
        world.session(A).deaf = True
        await client.tell("page", "x", 1)
        flush = asyncio.ensure_future(client.flush())
        await asyncio.sleep(60)
        assert not flush.done()
        world.session(A).acknowledge()
        await flush
        await client.close()
        with pytest.raises(LocalProtocolError, match="closed"):
            await client.flush()


@virtual
async def test_flush_waits_for_messages_without_a_home() -> None:
    world = World(A)
    world.home = None
    with world.playing():
        async with world.client() as client:
            await client.tell("page", "x", 1)
            flush = asyncio.ensure_future(client.flush())
            await asyncio.sleep(1)
            assert not flush.done()
            shard = client.routers["page"].shard_of("x")
            world.move(A, shard, by=A)
            await flush
            assert world.session(A).sent == [("tell", "x")]


# ---- refusals


@virtual
async def test_tell_nowait_raises_where_tell_would_wait() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            await known(client, world)
            session = world.session(A)
            session.writable = False
            with pytest.raises(BufferFull, match=r"send buffer to .* is full"):
                client.tell_nowait("page", "x", 1)
            assert session.sent == []
            session.writable = True
            client.tell_nowait("page", "x", 1)
            assert session.sent == [("tell", "x")]


@virtual
async def test_tell_nowait_refuses_a_type_that_is_not_known_yet() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            with pytest.raises(BufferFull, match="not known yet"):
                client.tell_nowait("page", "x", 1)


@virtual
async def test_a_closed_client_refuses_tells_and_asks() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            await known(client, world)
        world.session(A).sent.clear()
        with pytest.raises(LocalProtocolError, match="closed"):
            client.tell("page", "x", 1)
        with pytest.raises(LocalProtocolError, match="closed"):
            await client.ask("page", "x", 1)
        with pytest.raises(LocalProtocolError, match="closed"):
            await client.router_of("unknown")
        assert world.session(A).sent == []


@virtual
async def test_without_a_node_entering_fails_at_the_connect_timeout() -> None:
    world = World(A)
    world.up = set()
    with world.playing():
        client = world.client(connect_timeout=4.0)
        said = "no node of cluster 'shop' answers at .*; start one with `shardbus node start APP`"
        with pytest.raises(NodeLost, match=said):
            await client.__aenter__()
        assert world.endpoint.closed


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, CONNECT_TIMEOUT_S),
        ({"timeout": 2.0}, 2.0),
        ({"timeout": 60.0}, CONNECT_TIMEOUT_S),
        ({"timeout": 2.0, "connect_timeout": 4.0}, 4.0),
    ],
    ids=["default", "short", "long", "both"],
)
@virtual
async def test_the_timeout_bounds_entering_the_client(
    options: dict[str, float], seconds: float
) -> None:
    world = World(A)
    world.up = set()
    loop = asyncio.get_running_loop()
    with world.playing():
        began = loop.time()
        with pytest.raises(NodeLost):
            await world.client(**options).__aenter__()
        assert loop.time() - began == pytest.approx(seconds)


@pytest.mark.parametrize("given", [math.nan, math.inf, "5", timedelta(seconds=5)])
@pytest.mark.parametrize("name", ["timeout", "connect_timeout"])
@pytest.mark.parametrize("kind", [AsyncClient, Client])
def test_a_timeout_that_is_no_number_is_refused(kind: Any, name: str, given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^a timeout is a number of seconds up to "):
        kind("127.0.0.1:7355", cluster="shop", **{name: given})


@pytest.mark.parametrize(
    ("how", "described_after"),
    [
        *((how, 0.4) for how in ("ask", "call", "start_entity", "ask_many")),
        *((how, None) for how in ("ask", "call", "start_entity", "ask_many", "to")),
    ],
)
@virtual
async def test_the_timeout_of_a_call_includes_learning_the_type(
    how: str, described_after: float | None
) -> None:
    """No shard has a home, so that nothing answers either."""
    world = World(A)
    world.home, world.answers = None, False
    loop = asyncio.get_running_loop()

    async def make(client: AsyncClient) -> None:
        match how:
            case "ask":
                await client.ask("page", "x", 1, timeout=1.0)
            case "call":
                await client.call("page", "x", "total", timeout=1.0)
            case "start_entity":
                await client.start_entity("page", "x", timeout=1.0)
            case "ask_many":
                [outcome] = await client.ask_many("page", [("x", 1)], timeout=1.0)
                raise outcome
            case _:
                await client.to("nearest").ask("page", "x", 1, timeout=1.0)

    def describe() -> None:
        world.session(A).receive(world.types["page"], "page")

    with world.playing():
        async with world.client() as client:
            began = loop.time()
            if described_after is not None:
                loop.call_later(described_after, describe)
            with pytest.raises(AskTimeout):
                await make(client)
            assert 1.0 <= loop.time() - began <= 1.3  # in ticks of 50 ms


@virtual
async def test_a_refused_client_raises_the_reason() -> None:
    world = World(A)
    world.up = set()
    with world.playing():
        client = world.client()
        entering = asyncio.ensure_future(client.__aenter__())
        await asyncio.sleep(0.1)
        world.endpoint.events.refused("protocol 9 is not spoken here", A.address)
        with pytest.raises(Refused, match="protocol 9"):
            await entering
        assert world.endpoint.closed


@virtual
async def test_a_client_is_entered_once_and_used_after_that() -> None:
    world = World(A)
    with world.playing():
        client = world.client()
        with pytest.raises(LocalProtocolError, match="was not entered"):
            client.tell("page", "x", 1)
        async with client:
            with pytest.raises(LocalProtocolError, match="entered once"):
                await client.__aenter__()
        with pytest.raises(AttributeError):
            client.no_such_name  # noqa: B018


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs the address"):
        AsyncClient(cluster="shop")
    addresses: Any = [["10.0.0.1:7355"], ("10.0.0.1:7355",), 7355, None]
    for address in addresses:
        with pytest.raises(ConfigError, match=r"^addresses are texts, not .*\*addresses"):
            AsyncClient(address, cluster="shop")
    with pytest.raises(ConfigError, match="send_buffer_bytes is at least"):
        AsyncClient("tcp://h:1", cluster="shop", send_buffer_bytes=SEND_BUFFER_MIN - 1)
    with pytest.raises(ConfigError, match="timeout"):
        AsyncClient("tcp://h:1", cluster="shop", timeout=float("inf"))


@virtual
async def test_asks_to_a_client_fail_and_flushes_are_answered() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            session: Any = world.session(A)
            client.on_tells(session, TellRun("page", "add", ["x"], [b""]))
            client.on_asks(session, AskRun("page", "add", 100, ["x", "y"], [b"", b""], [4, 5]))
            client.on_flush(session, Flush("page", "1", 6, 100, 1))
            assert session.answers == [
                (4, "a client hosts nothing"),
                (5, "a client hosts nothing"),
                (6, b""),
            ]


# ---- repetitions


@virtual
async def test_a_silent_member_is_not_taken_for_dead() -> None:
    world = World()
    with world.playing():
        async with world.client() as client:
            await known(client, world)
            lost = world.session(A)
            lost.lose(peer_ended=False, unsent=[unsent("x")])
            assert not lost.peer_ended
            assert world.endpoint.given_up == []
            await asyncio.sleep(0.1)
            fresh = world.session(A)
            assert fresh is not lost
            assert fresh.sent == [("tell", "x")]


@virtual
async def test_a_silent_node_that_is_no_member_any_more_is_dead() -> None:
    world = World()
    with world.playing():
        async with world.client() as client:
            await known(client, world)
            lost = world.session(A)
            other = client._endpoint.session_to(B.address)
            await asyncio.sleep(0.1)
            other.receive(Members((B,)))  # type: ignore[attr-defined]
            world.members, world.home, world.up = (B,), B, {B.address}
            lost.lose(peer_ended=False, unsent=[unsent("x")])
            assert lost.peer_ended
            assert world.endpoint.given_up == [A]
            await asyncio.sleep(5)
            assert ("tell", "x") in world.session(B).sent


@virtual
async def test_a_node_that_parted_is_not_announced_as_given_up() -> None:
    world = World()
    with world.playing():
        async with world.client() as client:
            await known(client, world)
            session = world.session(A)
            session.closed_idle = True
            session.lose(peer_ended=True)
            assert world.endpoint.given_up == []


@virtual
async def test_a_lost_contact_is_replaced_and_asked_for_homes() -> None:
    world = World()
    with world.playing():
        async with world.client() as client:
            await known(client, world)
            contact, other = contact_and_other(client, world)
            world.up, world.members, world.home = {other.address}, (other,), other
            world.session(contact).lose(peer_ended=True)
            assert client.contact is None
            await asyncio.sleep(5)
            assert client.contact == other
            await client.tell("page", "x", 1)
            await asyncio.sleep(1)
            assert world.session(other).sent == [("tell", "x")]


@virtual
async def test_a_leaving_node_gets_nothing_new_and_is_parted_from() -> None:
    world = World()
    with world.playing():
        async with world.client(A) as client:
            await known(client, world)
            world.home = B
            session = world.session(A)
            world.endpoint.events.leaving(session)
            await client.tell("page", "x", 1)
            await asyncio.sleep(5)
            assert client.contact == B
            assert session.sent == []
            assert world.session(B).sent == [("tell", "x")]
            assert world.endpoint.parting[-1] == (A, [False])


@virtual
async def test_a_leaving_node_is_in_use_until_its_shards_have_new_homes() -> None:
    world = World()
    with world.playing():
        async with world.client() as client:
            await known(client, world)
            assert client._regions.uses(world.session(A))  # type: ignore[arg-type]
            client._endpoint.session_to(B.address)
            await asyncio.sleep(0.1)
            assert not client._regions.uses(world.session(B))  # type: ignore[arg-type]


@virtual
async def test_a_member_reported_dead_is_dropped_at_once() -> None:
    world = World(A, B, C)
    with world.playing():
        async with world.client(A) as client:
            await known(client, world)
            other = client._endpoint.session_to(C.address)
            await asyncio.sleep(0.1)
            world.session(A).receive(Members((A, B), died=(C,)))
            assert other not in world.endpoint.sessions()
            assert world.endpoint.given_up == [C]


@virtual
async def test_the_name_of_a_batch_is_the_order_of_its_answers() -> None:
    world = World(A)
    with world.playing():
        async with world.client() as client:
            await known(client, world)
            answers = asyncio.ensure_future(client.ask_many("page", [("x", 1), ("y", object())]))
            await asyncio.sleep(0.1)
            world.session(A).asks[0].set_result("one")
            first, second = await answers
            assert first == "one"
            assert isinstance(second, Exception)
