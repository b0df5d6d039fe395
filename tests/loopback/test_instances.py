"""Instances of entities: routers, `all`, `first`, references, clients, and the pages of a node."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from typing import Any, ClassVar

import pytest

from examples import prices
from shardbus import (
    ConfigError,
    Entity,
    EntityFailed,
    Envelope,
    NodeLost,
    ReentrancyError,
    ShardBus,
    handler,
)
from shardbus.admin.administration import Administration
from shardbus.admin.pages import cluster as cluster_pages
from shardbus.ids import shard_of
from shardbus.node.node import Node
from shardbus.routing.pending_message import PendingMessage
from shardbus.sharding.events import MessageReceived
from shardbus.sharding.messages import InstanceCount
from shardbus.wire.schema import decode_value, encode_value
from tests.loopback.nodes import Nodes, blocking_client, http
from tests.waiting import PATIENCE_S, until


def application(**declared: Any) -> tuple[ShardBus, Any]:
    bus = ShardBus("market")

    @bus.entity("quote", shards=4, **{"instances": 3, **declared})
    class Quote(Entity):
        def __init__(self) -> None:
            self.seen: list[object] = []
            self.held = 0

        @handler
        def who(self) -> list[Any]:
            return [self.context.entity_id, self.context.instance, self.context.node]

        @handler
        def note(self, n: int) -> None:
            self.seen.append(n)

        @handler
        def noted(self) -> list[object]:
            return self.seen

        gate: ClassVar[asyncio.Event] = asyncio.Event()

        @handler
        async def who_is_free(self) -> list[Any]:
            if self.held == self.context.instance:
                await self.gate.wait()
            return self.who()

        @handler
        def hold(self, instance: int) -> None:
            self.held = instance

        @handler
        def fails_at(self, instance: int) -> list[Any]:
            if instance in (0, self.context.instance):  # 0: at each of them
                raise ValueError("everywhere")
            return self.who()

        @handler
        async def ask_all(self, other: str) -> dict[str, Any]:
            hosts: dict[str, Any] = await self.context.ref(Quote, other).to("all").who()
            return hosts

        @handler
        async def ask_near(self, other: str) -> Any:
            return await self.context.ref(Quote, other).who()

        def receive(self, message: object) -> object:
            self.seen.append(message)
            return message

    return bus, Quote


async def three(nodes: Nodes, bus: ShardBus) -> list[Node]:
    started = await nodes.cluster(bus, 3)
    counts = [node.regions["quote"].router for node in started]
    await until(lambda: [r.region.instances for r in counts] == [3, 3, 3], "three instances")
    return started


async def test_all_answers_once_for_each_node(nodes: Nodes) -> None:
    bus, quote = application()
    await three(nodes, bus)
    client = await nodes.client()
    answers = await client.ref(quote, "x").to("all").who()
    assert {answer[2] for answer in answers.values()} == set(answers)
    assert sorted(a[1] for a in answers.values()) == [1, 2, 3]
    assert {a[0] for a in answers.values()} == {"x"}


async def get(node: Node, path: str) -> Any:
    async with http(node) as client:
        answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_nearest_is_the_own_instance(nodes: Nodes) -> None:
    bus, quote = application()
    for node in await three(nodes, bus):
        assert (await node.ref(quote, "x").to("all").who()).keys() == {str(n.me) for n in nodes.all}
        assert (await node.ref(quote, "x").who())[2] == str(node.me)
        assert (await node.ref("quote", "x").within(PATIENCE_S).who())[2] == str(node.me)


async def test_a_client_stays_with_one_instance_by_nearest_and_takes_turns_by_round_robin(
    nodes: Nodes,
) -> None:
    bus, quote = application()
    await three(nodes, bus)
    client = await nodes.client()
    ref = client.ref(quote, "x")
    await ref.to("all").who()
    assert len({(await ref.who())[1] for _ in range(9)}) == 1
    turns = [(await ref.to("round-robin").who())[1] for _ in range(9)]
    assert Tally(turns) == {1: 3, 2: 3, 3: 3}
    assert {(await ref.to("random").who())[1] for _ in range(60)} == {1, 2, 3}
    assert {(await ref.to("least-busy").who())[1] for _ in range(60)} == {1, 2, 3}
    for key in range(20):
        stays = {(await ref.to("hash", key=key).who())[1] for _ in range(3)}
        assert len(stays) == 1
    by_key = {(await ref.to("hash", key=key).who())[1] for key in range(40)}
    assert by_key == {1, 2, 3}


async def test_a_client_that_names_the_type_by_a_string(nodes: Nodes) -> None:
    bus, _ = application(router="all")
    await three(nodes, bus)
    client = await nodes.client()
    answers = await client.call("quote", "x", "who")
    assert sorted(a[1] for a in answers.values()) == [1, 2, 3]
    assert (await client.to("nearest").call("quote", "x", "who"))[0] == "x"
    await client.to("all").tell_many("quote", [("x", n) for n in range(5)])
    noted = await client.call("quote", "x", "noted")
    assert list(noted.values()) == [[0, 1, 2, 3, 4]] * 3
    replies = await client.to("round-robin").ask_many("quote", [("x", "a"), ("x", "b")])
    assert replies == ["a", "b"]


async def test_tells_of_one_sender_to_one_instance_keep_their_order(nodes: Nodes) -> None:
    bus, quote = application()
    await three(nodes, bus)
    client = await nodes.client()
    for policy in ("nearest", "round-robin", "random", "least-busy", "hash", "first", "all"):
        ref = client.ref(quote, f"e-{policy}").to(policy)
        for n in range(200):
            await ref.note.tell(n)
        await client.flush()
        noted = await client.ref(quote, f"e-{policy}").to("all").noted()
        assert all(list(seen) == sorted(seen) for seen in noted.values())
        assert sum(map(len, noted.values())) == 200 * (3 if policy == "all" else 1)


async def test_an_instance_that_died_is_named(nodes: Nodes) -> None:
    bus, quote = application()
    started = await three(nodes, bus)
    client = await nodes.client()
    ref = client.ref(quote, "x").to("all")
    assert len(await ref.who()) == 3
    router = client._regions.of_class(quote).router
    rows = router.rows
    assert rows is not None
    gone = started[2]
    client._endpoint.remove(gone.me, NodeLost("gone"))
    answers = await ref.who()
    assert set(answers) == {str(node.me) for node in started}
    assert isinstance(answers[str(gone.me)], NodeLost)


async def test_pages(nodes: Nodes) -> None:
    bus, quote = application()
    node, *_ = await three(nodes, bus)
    await node.ref(quote, "x").to("all").who()
    where = await get(node, "/v1/where/quote/x")
    assert where["node"] == str(node.me)
    assert where["running"]
    assert where["shard"].endswith(f"~{where['instance']}")
    assert [row["instance"] for row in where["instances"]] == [1, 2, 3]
    assert all(row["running"] for row in where["instances"])
    page = await get(node, "/v1/where/quote/x~2")
    assert page["shard"] == where["instances"][1]["shard"]
    explained = await get(node, "/v1/explain/quote/x")
    assert explained["shard"] == where["shard"]
    entities = await get(node, "/v1/entities/quote")
    assert [(row["id"], row["instance"]) for row in entities["entities"]] == [
        ("x", 1), ("x", 2), ("x", 3)
    ]  # fmt: skip
    types = await get(node, "/v1/types")
    assert [(row["instances"], row["router"]) for row in types["types"]] == [(3, "nearest")]


async def test_an_id_with_the_mark_is_refused_and_other_types_have_no_routers(
    nodes: Nodes,
) -> None:
    bus, quote = application()

    @bus.entity("plain")
    class Plain(Entity):
        @handler
        def who(self) -> list[Any]:
            return [self.context.entity_id, self.context.instance]

    await three(nodes, bus)
    client = await nodes.client()
    with pytest.raises(ConfigError, match="has a ~"):
        client.ref(quote, "x~2")
    with pytest.raises(ConfigError, match="has a ~"):
        await client.call("quote", "x~2", "who")
    with pytest.raises(ConfigError, match="'plain' has no instances"):
        client.ref(Plain, "x").to("all")
    with pytest.raises(ConfigError, match="'plain' has no instances"):
        await client.to("all").call("plain", "x", "who")
    assert await client.ref(Plain, "x~2").who() == ["x~2", 0]


async def test_fewer_instances_send_what_waits_to_the_others(nodes: Nodes) -> None:
    """A message for an instance that is no more goes to another one; the part of an `all` does
    not, for the others have theirs."""
    bus, quote = application()
    await three(nodes, bus)
    client = await nodes.client()
    router = client._regions.of_class(quote).router
    rows = router.rows
    assert rows is not None
    await until(lambda: rows.counted, "the number of instances")
    await client.ref(quote, "0").to("all").who()  # its contact has sent the number by now
    other = next(str(n) for n in range(1, 9) if shard_of(str(n), 4) != shard_of("0", 4))
    ref, wire = client.ref(quote, other), f"{other}~3"
    all_ = ref.to("all").who()
    call = router.ask(router.key("who"), wire, encode_value(()), 60_000, decode_value)
    key, payload = router.key("note"), encode_value((7,))
    await router.deliver(PendingMessage(key, router.shard_of(wire), wire, payload))
    contact = client.contact
    assert contact is not None
    router.handle(MessageReceived(contact, InstanceCount(router.region.epoch, 2)))
    assert (await call)[1] in (1, 2)
    answers = await all_
    lost = [isinstance(answer, NodeLost) for answer in answers.values()]
    assert sorted(lost) == [False, False, True]
    assert rows.rerouted == 2
    noted = await ref.to("all").noted()
    assert sorted(map(len, noted.values())) == [0, 1]
    assert wire not in {i for node in nodes.all for i in node.regions["quote"].host.active}


async def test_first_asks_a_second_instance_when_the_first_is_late(nodes: Nodes) -> None:
    bus, quote = application()
    await three(nodes, bus)
    client = await nodes.client()
    ref = client.ref(quote, "x")
    await ref.to("all").who()
    nearest = (await ref.who())[1]
    router = client._regions.of_class(quote).router
    rows = router.rows
    assert rows is not None
    assert (await ref.to("first", after=60).who())[1] == nearest
    assert rows.hedged == 0
    try:
        await ref.hold.tell(nearest)
        assert (await ref.to("first", after=0).who_is_free())[1] != nearest
        assert rows.hedged == 1
    finally:
        quote.gate.set()
    other = client.ref(quote, "z")
    nearest = (await other.who())[1]
    assert (await other.to("first", after=60).fails_at(nearest))[1] != nearest
    assert rows.hedged == 2
    with pytest.raises(EntityFailed, match="everywhere"):
        await other.to("first", after=60).fails_at(0)


async def test_references_of_threads_choose_a_router_too(nodes: Nodes) -> None:
    bus, quote = application()
    await three(nodes, bus)

    def blocking() -> None:
        with blocking_client(nodes.all[0]) as client:
            ref: Any = client.ref(quote, "x")
            assert len(ref.to("all").who()) == 3
            turns = [ref.to("round-robin").who()[1] for _ in range(6)]
            assert Tally(turns) == {1: 2, 2: 2, 3: 2}
            assert {ref.to("least-busy").within(PATIENCE_S).who()[1] for _ in range(40)} == {
                1,
                2,
                3,
            }
            ref.to("all").note.tell(5)
            ref.to("all").tell("six")
            assert list(ref.to("all").noted().values()) == [[5, "six"]] * 3
            assert list(ref.to("all").ask("seven").values()) == ["seven"] * 3

    await asyncio.to_thread(blocking)


async def test_entities_send_to_instances(nodes: Nodes) -> None:
    """`context.ref`, `bus.ref` and `bus.region`, and a cycle of asks that is found."""
    bus, quote = application()
    node, *_ = await three(nodes, bus)
    answers = await node.ref(quote, "a").ask_all("b")
    assert sorted(instance for _, instance, _ in answers.values()) == [1, 2, 3]
    with pytest.raises((ReentrancyError, EntityFailed), match="cycle"):
        await node.ref(quote, "a").ask_near("a")
    bus.attach(node)
    try:
        assert (await bus.ref(quote, "a").who())[2] == str(node.me)
        answer = await bus.region("quote").ask(Envelope("a", "hello"))
        assert answer == "hello"
    finally:
        bus.attach(None)


async def test_the_example_of_a_price_cache(
    nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    started = await nodes.cluster(prices.bus, 3)
    routers = [node.regions["price"].router for node in started]
    await until(lambda: [r.region.instances for r in routers] == [3, 3, 3], "three instances")
    await prices.main(f"tcp://{started[0].me.address}")
    *shown, computed = capsys.readouterr().out.split("\n")[:3]
    assert shown == ["300 300", "300"]
    assert computed in ("2 computed", "1 computed")


async def test_S3_47_every_node_knows_the_zones_and_instances_spread_over_them(
    nodes: Nodes,
) -> None:
    bus, quote = application(instances=2)
    started = []
    for zone in ("west", "west", "east"):
        nodes.node_settings["zone"] = zone
        started.append(await nodes.start(bus))
    await nodes.agree(3)
    client = await nodes.client()
    for n in range(8):
        await client.ref(quote, f"q{n}").who()
    east = started[2]

    def spread() -> bool:
        rows = [set(node.regions["quote"].host.shards) for node in started]
        here = {row.partition("~")[0] for row in rows[2]}
        return len(rows[2]) == len(here) == 4 and len(rows[0]) + len(rows[1]) == 4

    await until(spread, "one instance of each shard in each zone")
    for node in started:
        page = await cluster_pages.nodes(Administration(node))
        assert sorted(row["zone"] for row in page["nodes"]) == ["east", "west", "west"]
    router: Any = east.regions["quote"].router
    assert router.rows.zone == "east"
    assert router.rows._zones == {node.me: node.settings.node.zone for node in started}
