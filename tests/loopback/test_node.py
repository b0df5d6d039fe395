"""Nodes end to end: three of them, real sockets, one store, and clients."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from shardbus import (
    AskTimeout,
    BufferFull,
    Client,
    ConfigError,
    Entity,
    EntityFailed,
    MessageTooLarge,
    Refused,
    SchemaError,
    ShardBus,
    StopReason,
    Unhandled,
    UnknownEntityType,
    handler,
)
from shardbus.admin.administration import Administration
from shardbus.admin.pages import cluster as cluster_pages
from shardbus.admin.pages import entities as entity_pages
from shardbus.admin.pages import explanation as explanations
from shardbus.admin.pages import shards as shard_pages
from shardbus.config.settings import StoreSettings
from shardbus.errors import NodeLost
from shardbus.ids import NodeId
from shardbus.node.node import Node
from shardbus.sharding.allocation.strategies import ConsistentHashing, Move
from shardbus.sharding.table import ShardTable
from shardbus.wire.batch import PAYLOAD_BYTES_MAX
from shardbus.wire.schema import decode_value, encode_value
from tests.loopback.nodes import Nodes, blocking_client, hosts, ready
from tests.ports import free_port
from tests.unit.declaring import Anything
from tests.waiting import PATIENCE_S, until

IDS = [f"page-{i}" for i in range(60)]


def application(name: str = "shop", shards: int = 12) -> tuple[ShardBus, Any]:
    """An application of its own for each test."""
    bus = ShardBus(name)

    @bus.entity("counter", shards=shards)
    class Counter(Entity):
        log: ClassVar[list[tuple[str, int]]]
        stops: ClassVar[list[StopReason]]

        def __init__(self) -> None:
            self.value = 0

        async def on_stop(self, reason: StopReason) -> None:
            self.stops.append(reason)

        @handler
        def add(self, amount: int = 1) -> int:
            self.value += amount
            return self.value

        @handler
        async def where(self) -> str:
            return self.context.node

        @handler
        def note(self, seq: int) -> None:
            self.log.append((self.context.entity_id, seq))

        @handler
        async def ask_other(self, other: str, amount: int) -> int:
            return await self.context.ref("counter", other).add(amount)

        @handler
        async def never(self) -> None:
            await asyncio.Event().wait()

        @handler
        def fail(self, text: str) -> None:
            raise ValueError(text)

        @handler
        def length(self, data: bytes) -> int:
            return len(data)

        @handler
        def huge(self) -> bytes:
            return bytes(PAYLOAD_BYTES_MAX + 1)

        async def receive(self, message: object) -> object:
            match message:
                case "get":
                    return self.value
                case int():
                    self.value += message
                    return self.value
                case _:
                    return self.unhandled(message)

    Counter.log, Counter.stops = [], []
    return bus, Counter


# Messages


async def test_messages_find_their_entities_across_nodes(nodes: Nodes) -> None:
    bus, counter = application()
    three = await nodes.cluster(bus, 3)
    client = await nodes.client()
    assert await asyncio.gather(*(client.ref(counter, i).add(2) for i in IDS)) == [2] * len(IDS)
    for i in IDS:
        await client.ref(counter, i).add.tell(1)
    await client.tell("counter", IDS[0], 5)
    totals = await asyncio.gather(*(client.ask("counter", i, "get") for i in IDS))
    assert totals == [8, *[3] * 59], "behind this client's tells"
    for node in three:
        assert (
            await asyncio.gather(*(node.ref("counter", i).ask("get") for i in IDS[1:])) == [3] * 59
        )
    assert {len(homes) for homes in hosts(three, "counter").values()} == {1}
    assert [len(node.regions["counter"].host.shards) for node in three] == [4, 4, 4]


async def test_a_client_learns_homes_and_sends_there_itself(nodes: Nodes) -> None:
    bus, counter = application()
    three = await nodes.cluster(bus, 3)
    client = await nodes.client(three[1])
    homes = await asyncio.gather(*(client.ref(counter, i).where() for i in IDS))
    assert set(homes) == {str(node.me) for node in three}
    forwarded = sum(node.regions["counter"].relayed_messages for node in three)
    accepted = [node.regions["counter"].host.counts.accepted for node in three]
    assert await asyncio.gather(*(client.ref(counter, i).where() for i in IDS)) == homes
    assert sum(node.regions["counter"].relayed_messages for node in three) == forwarded
    for node, before in zip(three, accepted, strict=True):
        assert node.regions["counter"].host.counts.accepted - before == homes.count(str(node.me))


async def test_entities_ask_each_other(nodes: Nodes) -> None:
    bus, counter = application()
    await nodes.cluster(bus, 2)
    client = await nodes.client()
    asks = [client.ref(counter, a).ask_other(b, 1) for a, b in pairwise(IDS)]
    assert await asyncio.gather(*asks) == [1] * (len(IDS) - 1)


async def test_batches_keep_their_order_and_their_errors(nodes: Nodes) -> None:
    bus, _ = application()
    await nodes.cluster(bus, 2)
    client = await nodes.client()
    await client.tell_many("counter", [(i, n) for n in (1, 2) for i in IDS])
    await client.flush()
    answers = await client.ask_many(
        "counter", [(i, "get" if n % 2 else 1.5) for n, i in enumerate(IDS)]
    )
    assert answers[1::2] == [3] * 30
    assert {type(answer) for answer in answers[::2]} == {Unhandled}


async def test_the_blocking_client_does_the_same(nodes: Nodes) -> None:
    bus, counter = application()
    [node] = await nodes.cluster(bus, 1)

    def use() -> list[Any]:
        with blocking_client(node) as client:
            ref: Any = client.ref(counter, "x")
            seen = [ref.add(2)]
            ref.add.tell(1)
            ref.add.tell_nowait(1)
            client.tell("counter", "x", 10)
            client.tell_many("counter", [("x", 100)])
            client.cast("counter", "x", "add")
            client.flush()
            seen += [client.ask("counter", "x", "get"), client.call("counter", "x", "add")]
            seen += client.ask_many("counter", [("x", "get"), ("x", None)])
            with pytest.raises(EntityFailed):
                ref.fail("bad")
        return seen

    seen = await asyncio.to_thread(use)
    assert seen[:4] == [2, 115, 116, 116]
    assert isinstance(seen[4], Unhandled)


# Errors


async def test_TSU21_each_error_says_whether_the_handler_ran(nodes: Nodes) -> None:
    bus, counter = application()
    await nodes.cluster(bus, 2)
    client = await nodes.client()
    ref = client.ref(counter, "x")
    with pytest.raises(UnknownEntityType, match="no entity type 'nothing'"):
        await client.ask("nothing", "x", "get")
    with pytest.raises(Unhandled, match="no handler 'missing'"):
        await client.call("counter", "x", "missing")
    with pytest.raises(Unhandled, match="counter takes no such dict"):
        await client.ask("counter", "x", {})
    with pytest.raises(SchemaError, match=r"add: Expected `int`, got `str` - at `\$\[0\]`"):
        await client.ask("counter", "x", "add", "two")
    with pytest.raises(SchemaError, match="takes 0 to 1 arguments"):
        await client.call("counter", "x", "add", 1, 2)
    with pytest.raises(SchemaError, match="cannot send this"):
        await ref.add(object())
    with pytest.raises(TypeError):
        await ref.add(1, 2, 3)
    with pytest.raises(EntityFailed) as failed:
        await ref.fail("broken")
    assert (failed.value.type, failed.value.message) == ("ValueError", "broken")
    with pytest.raises(AskTimeout):
        await ref.within(0.1).never()
    with pytest.raises(ConfigError, match="1 to 256 bytes"):
        client.ref(counter, "")
    with pytest.raises(ConfigError, match="control character"):
        await client.tell("counter", "a\nb", 1)
    with pytest.raises(AttributeError, match="has no handler 'missing'"):
        client.ref(counter, "x").missing  # noqa: B018


async def test_what_is_too_large_is_refused_and_disturbs_nothing(nodes: Nodes) -> None:
    bus, counter = application()
    await nodes.cluster(bus, 1)
    client = await nodes.client()
    assert (
        await client.ref(counter, "x").length(bytes(PAYLOAD_BYTES_MAX - 64))
        == PAYLOAD_BYTES_MAX - 64
    )
    with pytest.raises(MessageTooLarge):
        await client.ref(counter, "x").length(bytes(PAYLOAD_BYTES_MAX))
    with pytest.raises(MessageTooLarge):
        await client.ref(counter, "x").length.tell(bytes(PAYLOAD_BYTES_MAX))
    with pytest.raises(EntityFailed, match="at most"):
        await client.ref(counter, "x").huge()
    assert await client.ref(counter, "x").add(1) == 1


async def test_what_is_too_large_is_refused_before_the_home_is_known(nodes: Nodes) -> None:
    bus, counter = application(shards=1)
    await nodes.cluster(bus, 1)
    client = await nodes.client()
    small = [client.ref(counter, "x").add(1)]
    with pytest.raises(MessageTooLarge):
        await client.ref(counter, "x").length.tell(bytes(PAYLOAD_BYTES_MAX))
    with pytest.raises(MessageTooLarge):
        await client.ref(counter, "x").length(bytes(PAYLOAD_BYTES_MAX))
    small += [client.ref(counter, "x").add(1) for _ in range(3)]
    assert await asyncio.gather(*small) == [1, 2, 3, 4]


async def test_a_buffer_without_a_home_is_bounded(nodes: Nodes) -> None:
    bus, _ = application()
    node = await nodes.start(bus, buffer_size=3, min_members=2)
    ref = node.ref("counter", "x")
    for _ in range(3):
        await ref.add.tell(1)
    with pytest.raises(BufferFull, match="without a home is full"):
        await ref.add.tell(1)
    with pytest.raises(BufferFull):
        await ref.add(1)
    assert node.regions["counter"].host.counts.dropped == {"buffer_full": 2}
    await nodes.start(bus, buffer_size=3, min_members=2)
    await until(lambda: node.regions["counter"].router.region.buffered[0] == 0, "a home")
    assert await ref.add(1) == 4


async def test_an_ask_that_waits_for_a_home_times_out(nodes: Nodes) -> None:
    bus, counter = application()
    node = await nodes.start(bus, min_members=2)
    with pytest.raises(AskTimeout, match="no home for shard"):
        await node.ref("counter", "x").within(0.1).add(1)
    client = await nodes.client()
    with pytest.raises(AskTimeout):
        await client.ref(counter, "x").within(0.1).add(1)


async def test_S2_65_asks_that_expired_give_their_room_to_what_is_alive(nodes: Nodes) -> None:
    bus, _ = application()
    node = await nodes.start(bus, buffer_size=3, min_members=2)
    kind, ref, late = node.regions["counter"], node.ref("counter", "x"), 3

    async def expire(count: int) -> None:
        asks = [node.ref("counter", f"x{n}").within(0.1).add(1) for n in range(count)]
        for outcome in await asyncio.gather(*asks, return_exceptions=True):
            assert isinstance(outcome, AskTimeout)

    await expire(late)
    assert (kind.router.region.buffered[0], kind.host.counts.dropped) == (late, {})
    await ref.add.tell(1)
    assert (kind.router.region.buffered[0], kind.host.counts.dropped) == (1, {"expired": late})
    await expire(2)
    await nodes.start(bus, buffer_size=3, min_members=2)
    await until(lambda: kind.router.region.buffered[0] == 0, "a home")
    assert kind.host.counts.dropped == {"expired": late + 2}, "those that were found then"
    assert await ref.add(1) == 2


# Joining and leaving


async def test_a_client_of_another_cluster_is_refused(nodes: Nodes) -> None:
    bus, _ = application()
    [node] = await nodes.cluster(bus, 1)
    client_bus, _ = application("shed")
    assert client_bus.name == "shed"
    with pytest.raises(Refused, match="this is cluster 'shop', not 'shed'"):
        await asyncio.to_thread(_connect, node, "shed")


def _connect(node: Node, cluster: str) -> None:
    with Client(f"tcp://{node.me.address}", cluster=cluster, connect_timeout=PATIENCE_S):
        pass


async def test_a_client_without_a_node_says_whom_it_tried() -> None:
    from tests.ports import free_port

    port = free_port()

    def connect() -> None:
        with Client(f"tcp://127.0.0.1:{port}", cluster="shop", connect_timeout=0.5):
            pass

    with pytest.raises(NodeLost, match=f"no node of cluster 'shop' answers at 127.0.0.1:{port}"):
        await asyncio.to_thread(connect)


async def test_a_node_of_another_cluster_is_refused(nodes: Nodes) -> None:
    await nodes.cluster(application()[0], 1)
    stranger = await nodes.start(application("shed")[0], up=False)
    await until(
        lambda: stranger.membership.refusals or stranger.membership.stopped.done(), "the refusal"
    )
    assert len(nodes.all[0].view.members) == 1  # type: ignore[union-attr]


async def test_TSU18_a_node_with_another_layout_is_refused_with_both_values(nodes: Nodes) -> None:
    await nodes.cluster(application(shards=12)[0], 1)
    other = await nodes.start(application(shards=24)[0], up=False)
    await until(lambda: other.membership.refusals, "the refusal")
    [reason] = other.membership.refusals
    assert "crc32/12" in reason
    assert "crc32/24" in reason
    assert len(nodes.all[0].view.members) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("setting", ["use_lease", "role", "coordinator_role"])
async def test_B3_nodes_that_disagree_about_a_type_are_refused_with_both_values(
    nodes: Nodes, setting: str
) -> None:
    bus = application()[0]
    await nodes.start(bus, up=False, **{setting: "off" if setting == "use_lease" else "a"})
    other = await nodes.start(bus, up=False, **{setting: "both"})
    await until(lambda: other.membership.refusals, "the refusal")
    [reason] = other.membership.refusals
    assert f"setting types.counter.{setting} is" in reason
    assert "'both'" in reason
    assert len(nodes.all[0].view.members) == 1  # type: ignore[union-attr]


async def test_B3_nodes_with_stores_of_two_kinds_are_refused(nodes: Nodes) -> None:
    bus = application()[0]
    nodes.store = StoreSettings(url="redis://one")
    await nodes.start(bus)
    nodes.store = StoreSettings(url="rediss+sentinel://one")
    await nodes.start(bus)
    await nodes.agree(2)
    nodes.store = StoreSettings(url="memory://")
    other = await nodes.start(bus, up=False)
    await until(lambda: other.membership.refusals, "the refusal")
    assert (
        "store.url is 'memory' on one side and 'redis' on the other" in other.membership.refusals[0]
    )


async def test_TSU6_a_type_with_a_role_lives_on_nodes_with_that_role(nodes: Nodes) -> None:
    bus = ShardBus("shop")

    @bus.entity("worker", role="backend", shards=8)
    class Worker(Entity):
        @handler
        def where(self) -> str:
            return self.context.node

    back = await nodes.start(bus, roles=("backend",))
    front = await nodes.start(bus, roles=("frontend",))
    await nodes.agree(2)
    homes = {await front.ref("worker", i).where() for i in IDS}
    assert homes == {str(back.me)}
    client = await nodes.client(front)
    assert await client.ref(Worker, "x").where() == str(back.me)


async def test_an_ask_for_a_type_whose_role_no_node_has_names_the_role(nodes: Nodes) -> None:
    bus = ShardBus("shop")

    @bus.entity("worker", role="backend", shards=8)
    class Worker(Entity):
        @handler
        def where(self) -> str:
            return self.context.node

    front = await nodes.start(bus, roles=("frontend",))
    client = await nodes.client(front)
    for ref in (front.ref("worker", "x"), client.ref(Worker, "x")):
        with pytest.raises(AskTimeout, match="no member hosts it: none is up with role 'backend'"):
            await ref.within(0.5).where()
    back = await nodes.start(bus, roles=("backend",))
    assert await client.ref(Worker, "x").where() == str(back.me)


async def test_TSU17_leaving_under_load_loses_and_reorders_nothing(nodes: Nodes) -> None:
    bus, counter = application()
    three = await nodes.cluster(bus, 3)
    client = await nodes.client(*three)
    sent = dict.fromkeys(IDS, 0)
    stop = asyncio.Event()
    outcomes: list[Any] = []

    async def tell() -> None:
        while not stop.is_set():
            for i in IDS:
                sent[i] += 1
                await client.ref(counter, i).note.tell(sent[i])
            await asyncio.sleep(0.005)

    async def ask() -> None:
        while not stop.is_set():
            asks = [client.ref(counter, i).where() for i in IDS]
            outcomes.extend(await asyncio.gather(*asks, return_exceptions=True))

    work = [asyncio.ensure_future(tell()), asyncio.ensure_future(ask())]
    await until(lambda: outcomes, "the load")
    await nodes.leave(three[0])  # coordinator and contact
    new = await nodes.start(bus)
    await until(lambda: new.regions["counter"].host.shards, "shards on the new node")
    await nodes.leave(three[1])
    stop.set()
    await asyncio.gather(*work)
    await client.flush()
    await until(lambda: len(counter.log) >= sum(sent.values()), "every message")
    for i in IDS:
        assert [seq for entity_id, seq in counter.log if entity_id == i] == list(
            range(1, sent[i] + 1)
        )
    assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
    assert StopReason.SHUTDOWN in counter.stops
    assert client.lost_messages == 0


async def test_a_client_may_not_send_a_node_away(nodes: Nodes) -> None:
    bus, _ = application()
    [node] = await nodes.cluster(bus, 1)
    left: list[bool] = []
    node.phases.begin = lambda: left.append(True)
    client = await nodes.client()
    waits: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    [session] = client._endpoint.sessions()
    session.outbox.ask(("$node", "leave"), "", encode_value(()), 5000, waits, decode_value)
    with pytest.raises(UnknownEntityType):
        await waits
    assert left == []
    assert ready(node)


class LastInOrder:
    """A strategy of the user's own: everything goes to the last node in address order."""

    def allocate(
        self, table: Any, loads: Any, shards: Sequence[str], candidates: Collection[NodeId]
    ) -> dict[str, NodeId]:
        return dict.fromkeys(shards, max(candidates))

    def rebalance(self, table: Any, candidates: Any, in_flight: Any) -> list[Move]:
        return []


RING: dict[str, Any] = {"allocation": "consistent-hashing"}


@pytest.mark.parametrize(
    ("said", "ring"), [({}, False), (RING, False), ({"types": {"page": RING}}, True)]
)
async def test_a_type_may_bring_its_own_allocation_and_settings_of_that_type_win(
    nodes: Nodes, said: dict[str, Any], ring: bool
) -> None:
    bus = ShardBus("own")

    class Page(Entity):
        @handler
        def where(self) -> str:
            return self.context.node

    bus.entity(name="page", shards=8, allocation=LastInOrder())(Page)
    pair = await nodes.cluster(bus, 2, **said)
    client = await nodes.client()
    for n in range(40):
        await client.call("page", f"p{n}", "where")
    homes = {shard: node.me for node in pair for shard in node.regions["page"].host.shards}
    empty, both = ShardTable(1, ""), [node.me for node in pair]
    strategy = ConsistentHashing() if ring else LastInOrder()
    assert homes == strategy.allocate(empty, {}, sorted(homes), both)


async def test_the_settings_name_the_allocation_of_types_without_one(nodes: Nodes) -> None:
    bus, counter = application()
    pair = await nodes.cluster(bus, 2, allocation="consistent-hashing")
    client = await nodes.client()
    await asyncio.gather(*(client.ref(counter, i).add(1) for i in IDS))
    homes = {shard: n.me for n in pair for shard in n.regions["counter"].host.shards}
    empty, both = ShardTable(1, ""), [node.me for node in pair]
    assert homes == ConsistentHashing().allocate(empty, {}, sorted(homes), both)


async def test_B54_TSU16_who_does_not_answer_in_time_is_left_out(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await nodes.cluster(application()[0], 2, shard_region_query_timeout=0.25)
    questions: list[int] = []
    monkeypatch.setattr(
        second.rpc, "answer_questions", lambda _, run: questions.append(run.timeout_ms)
    )
    assert [*await first.rpc.ask_all("stats")] == [first.me]
    await until(lambda: questions, "the question")
    assert questions == [250]


async def test_S2_57_a_question_about_a_type_waits_for_as_long_as_its_settings_say(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = application()[0]
    bus.entity("page", shards=4, shard_region_query_timeout="150ms")(type("Page", (Anything,), {}))
    types = {"counter": {"shard_region_query_timeout": 0.2}}
    first, second = await nodes.cluster(bus, 2, shard_region_query_timeout=0.05, types=types)
    questions: list[tuple[str, int]] = []
    monkeypatch.setattr(
        second.rpc,
        "answer_questions",
        lambda _, run: questions.append((run.method, run.timeout_ms)),
    )
    for kind in first.regions.values():
        kind.coordinator = second.me
    for name, patience in (("counter", 200), ("page", 150)):
        admin = Administration(first)
        await shard_pages.shards(admin, name)
        await entity_pages.entities(admin, name, None, "", 10, None)
        await explanations.explain_shard(admin, name, "1")
        await entity_pages.limits(admin, name)
        for steered in (
            shard_pages.rebalance(admin, name, None, None),
            shard_pages.places(admin, name),
        ):
            with pytest.raises(AskTimeout):
                await steered
        pages = ["table", "stats", "entities", "shard", "limit", "rebalance", "places"]
        await until(lambda: len(questions) >= len(pages), "every question")  # noqa: B023
        assert questions == [(question, patience) for question in pages]
        questions.clear()
    await cluster_pages.nodes(Administration(first))
    await until(lambda: len(questions) >= 3, "the other questions")
    assert questions == [("stats", 50), ("suspension", 50), ("state_bytes", 50)]


async def test_B54_a_page_of_shards_waits_once_for_a_coordinator_that_is_silent(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await nodes.cluster(application()[0], 2, shard_region_query_timeout=600.0)
    questions: list[str] = []
    monkeypatch.setattr(second.rpc, "answer_questions", lambda _, run: questions.append(run.method))
    first.regions["counter"].coordinator = second.me
    page = asyncio.ensure_future(shard_pages.shards(Administration(first), "counter"))
    await until(lambda: sorted(questions) == ["stats", "table"], "both questions at once")
    page.cancel()


async def test_B54_a_question_that_was_never_sent_fails_when_its_node_is_gone(
    nodes: Nodes,
) -> None:
    [node] = await nodes.cluster(application()[0], 1, shard_region_query_timeout=600.0)
    dead = NodeId("127.0.0.1", free_port(), 1)
    asking = asyncio.ensure_future(node.rpc.ask(dead, "stats"))
    await until(lambda: node.endpoint.session_to(dead.address).link.outstanding, "the question")
    node.endpoint.remove(dead, NodeLost("it died"))
    with pytest.raises(NodeLost, match="it died"):
        await asyncio.wait_for(asking, PATIENCE_S)
