"""The duties of sharding while nodes come, go, die and lose each other, on real nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from examples import office
from shardbus import Entity, ShardBus, StopReason, StoreUnavailable, UnknownEntityType, handler
from shardbus.admin.administration import Administration
from shardbus.admin.pages.shards import answer_rebalance
from shardbus.config.settings import DowningSettings
from shardbus.ids import NodeId
from shardbus.membership import events as cluster
from shardbus.membership.member import Status
from shardbus.node.node import Node
from shardbus.sharding.allocation.strategies import Move
from shardbus.sharding.table import ShardTable
from shardbus.store.memory import MemoryStore
from tests.loopback.nodes import QUICK, Nodes, hosts, http, ready
from tests.ports import free_port
from tests.records import replace
from tests.waiting import PATIENCE_S, until

SHARDS = 12
IDS = [f"page-{i}" for i in range(60)]
FAST = {"rebalance_interval": 0.2, "retry_interval": 0.2}


@dataclass
class Total:
    value: int = 0


class Counter(Entity):
    """Its value is in the store. `log`: starts and ends, over all nodes."""

    state: Total
    log: ClassVar[list[tuple[str, str]]] = []
    gate: ClassVar[asyncio.Event]

    async def on_start(self) -> None:
        self.log.append((self.context.entity_id, "start"))

    async def on_stop(self, reason: StopReason) -> None:
        self.log.append((self.context.entity_id, "stopping"))
        await self.gate.wait()
        self.log.append((self.context.entity_id, "stop"))

    @handler
    async def add(self, amount: int = 1) -> int:
        self.state.value += amount
        await self.save()
        return self.state.value

    @handler
    def get(self) -> int:
        return self.state.value

    @handler
    def where(self) -> str:
        return self.context.node

    @handler
    def passivate(self) -> None:
        self.context.passivate()


def application(**options: Any) -> ShardBus:
    bus = ShardBus("shop")
    bus.entity("counter", **{"shards": SHARDS, **options})(type("Counter", (Counter,), {}))
    return bus


def quiet() -> None:
    """Nothing is logged yet, and no end waits."""
    Counter.log.clear()
    Counter.gate = asyncio.Event()
    Counter.gate.set()


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    quiet()
    async with Nodes() as nodes:
        yield nodes


async def ask_all(node: Node, method: str, ids: Iterable[str] = IDS) -> list[Any]:
    refs = [node.ref("counter", i) for i in ids]
    return await asyncio.gather(*(getattr(ref.within(PATIENCE_S), method)() for ref in refs))


def homes(of: Iterable[Node]) -> dict[str, Node]:
    """Shard to the one node that hosts it."""
    return {shard: node for shard, [node] in hosts(list(of), "counter").items()}


def loads(of: Iterable[Node]) -> list[int]:
    return [len(node.regions["counter"].host.shards) for node in of]


async def crash(nodes: Nodes, node: Node) -> None:
    """The process ends without a word."""
    nodes.all.remove(node)
    node.cluster.stop()
    await node.close()


async def gone(node: Node, others: Iterable[Node]) -> None:
    """Wait until the others know that it is no member."""
    rest = list(others)
    await until(
        lambda: all(n.view and node.me not in [m.node for m in n.view.members] for n in rest),
        f"the removal of {node.me}",
    )


# The life of a cluster


async def test_TS1_from_one_node_to_four_and_back(nodes: Nodes) -> None:
    bus = application()
    first = await nodes.start(bus, **FAST)
    assert await ask_all(first, "add") == [1] * 60
    assert loads([first]) == [SHARDS]

    second = await nodes.start(bus, **FAST)
    await until(lambda: loads([first, second]) == [6, 6], "half of the shards")
    assert await ask_all(second, "add") == [2] * 60

    await ask_all(second, "passivate", IDS[:10])
    running = [node.regions["counter"].host for node in (first, second)]
    await until(lambda: sum(host.entities for host in running) == 50, "passivation of ten")
    assert await ask_all(first, "add", IDS[:10]) == [3] * 10
    assert await ask_all(first, "add", IDS[10:]) == [3] * 50

    third, fourth = await nodes.start(bus, **FAST), await nodes.start(bus, **FAST)
    four = [first, second, third, fourth]
    await until(lambda: loads(four) == [3] * 4, "a quarter each")
    assert await ask_all(fourth, "add") == [4] * 60

    await crash(nodes, third)
    await gone(third, nodes.all)
    assert await ask_all(fourth, "add") == [5] * 60
    before = homes([second, fourth])
    await crash(nodes, first)  # with the coordinator
    await gone(first, nodes.all)
    assert await ask_all(second, "add") == [6] * 60
    after = homes([second, fourth])
    assert {shard: after[shard] for shard in before} == before
    assert len(after) == SHARDS

    fifth = await nodes.start(bus, **FAST)
    await until(lambda: loads([second, fourth, fifth]) == [4] * 3, "the emptier gets some")
    assert await ask_all(fifth, "add") == [7] * 60


async def test_TS9_with_a_minimum_of_members_nothing_moves_at_the_start() -> None:
    quiet()
    bus = application()
    async with Nodes(replace(QUICK, min_members=3)) as nodes:
        trio = [await nodes.start(bus, up=False, **FAST) for _ in range(2)]
        early = [
            asyncio.ensure_future(n.ref("counter", i).within(PATIENCE_S).add())
            for n in trio
            for i in IDS
        ]
        await until(lambda: all(n.view and len(n.view.members) == 2 for n in trio), "two members")
        assert not any(node.members.is_up for node in trio)
        trio.append(await nodes.start(bus, **FAST))
        assert sorted(await asyncio.gather(*early)) == [1] * 60 + [2] * 60
        assert loads(trio) == [4] * 3
        assert [what for _, what in Counter.log] == ["start"] * 60


async def test_S2_35_a_minimum_of_a_role_reaches_the_coordinators_of_its_types() -> None:
    bus = application()
    async with Nodes(replace(QUICK, role_min_members={"db": 2})) as nodes:
        role: dict[str, Any] = {"roles": ("db",), "role": "db"}
        await nodes.start(bus, up=False, **role)
        await nodes.start(bus, **role)
        shells = [node.singletons["counter"].coordinator for node in nodes.all]
        await until(lambda: any(shell.machine for shell in shells), "a coordinator")
        machine = next(shell.machine for shell in shells if shell.machine)
        assert machine._registry._cluster_minimum == 2


# Who leaves


async def test_TS3_a_leaving_coordinator_moves_its_own_shards_only(nodes: Nodes) -> None:
    four = await nodes.cluster(application(), 4)
    assert await ask_all(four[1], "add") == [1] * 60
    before = homes(four)
    assert four[0].singletons["counter"].coordinator.machine is not None
    await nodes.leave(four[0])
    assert await ask_all(four[3], "add") == [2] * 60
    after = homes(four[1:])
    assert loads(four[1:]) == [4] * 3
    assert {shard for shard in before if after[shard] is not before[shard]} == {
        shard for shard, node in before.items() if node is four[0]
    }


@pytest.mark.parametrize("oldest", [False, True])
async def test_TS6_TS7_who_leaves_is_followed_only_when_its_entities_have_stopped(
    nodes: Nodes, oldest: bool
) -> None:
    pair = await nodes.cluster(application(), 2)
    stays, leaver = pair[::-1] if oldest else pair
    assert await ask_all(stays, "add") == [1] * 60
    moving = [
        i
        for shard in leaver.regions["counter"].host.shards
        for i in leaver.regions["counter"].host.ids(shard)
    ]
    assert 0 < len(moving) < 60
    Counter.log.clear()
    Counter.gate.clear()
    leaving = asyncio.ensure_future(nodes.leave(leaver))
    await until(lambda: len(Counter.log) == len(moving), "slow ends")
    asks = asyncio.ensure_future(ask_all(stays, "add", moving))
    assert await ask_all(stays, "get", set(IDS) - set(moving)) == [1] * (60 - len(moving))
    assert not asks.done()
    Counter.gate.set()
    assert await asks == [2] * len(moving)
    await leaving
    for i in moving:
        assert [what for who, what in Counter.log if who == i] == ["stopping", "stop", "start"]


async def test_TS6_a_node_that_hosts_nothing_leaves_too(nodes: Nodes) -> None:
    first, second = await nodes.cluster(application(), 2)
    await nodes.leave(second)
    assert second.membership.stopped.result() == "left"
    assert await ask_all(first, "add") == [1] * 60


async def test_TS8_what_a_leaving_node_still_asks_is_answered(nodes: Nodes) -> None:
    """Also if the answer needs a coordinator, and that is not here any more."""
    bus = application()
    answers: list[int] = []

    class Parting(Entity):
        @handler
        def hello(self) -> None: ...

        async def on_stop(self, reason: StopReason) -> None:
            refs = [self.context.ref("counter", f"new-{n}") for n in range(20)]
            answers.extend(await asyncio.gather(*(ref.add() for ref in refs)))

    bus.entity("parting", shards=1)(Parting)
    first = await nodes.start(bus)
    await first.ref("parting", "x").hello()
    await nodes.start(bus)
    await nodes.start(bus)
    await nodes.agree(3)
    await nodes.leave(first)
    assert answers == [1] * 20


# Who is lost


PATIENT = replace(
    QUICK,
    confirmed_death=False,
    downing=DowningSettings(strategy="none"),
    failure_detector=replace(
        QUICK.failure_detector, heartbeat_interval=0.3, acceptable_heartbeat_pause=0.3
    ),
    allow_weakly_up_members=0.2,
)
"""Nobody is downed unless somebody says so."""


@pytest.mark.parametrize("victim", ["coordinator", "other"])
async def test_TS4_TS5_after_a_downing_new_shards_start_lost_ones_move_and_others_stay(
    victim: str,
) -> None:
    quiet()
    async with Nodes(PATIENT) as nodes:
        four = await nodes.cluster(application(shards=16), 4, **FAST)
        shard_of = four[0].regions["counter"].router.shard_of
        old = [i for i in IDS if int(shard_of(i)) < SHARDS]
        new = [i for i in IDS if int(shard_of(i)) >= SHARDS]
        assert await ask_all(four[1], "add", old) == [1] * len(old)
        lost = four[0 if victim == "coordinator" else 3]
        rest = [node for node in four if node is not lost]
        before = homes(four)
        await crash(nodes, lost)
        await until(
            lambda: all(n.view and lost.me in n.view.unreachable for n in rest), "suspicion"
        )
        here = [i for i in old if before[shard_of(i)] is not lost]
        assert await ask_all(rest[0], "add", here) == [2] * len(here)
        asks = asyncio.ensure_future(ask_all(rest[0], "add", new))
        away = [i for i in old if i not in here]
        if victim == "other":  # the coordinator gives no new shard to who is silent
            assert await asks == [1] * len(new)
        rest[1].cluster.post(cluster.Down(lost.me))
        await gone(lost, rest)
        assert await asks == [1] * len(new)
        assert await ask_all(rest[2], "get", away) == [1] * len(away)
        after = homes(rest)
        assert {s: after[s] for s, n in before.items() if n is not lost} == {
            s: n for s, n in before.items() if n is not lost
        }


async def test_S2_5_a_weakly_up_node_hosts_nothing_before_it_is_up() -> None:
    quiet()
    async with Nodes(PATIENT) as nodes:
        first, second = await nodes.cluster(application(), 2, **FAST)
        await crash(nodes, second)
        await until(lambda: first.view and second.me in first.view.unreachable, "suspicion")
        third = await nodes.start(application(), up=False, **FAST)
        await until(lambda: third.view and third.view.status is Status.WEAKLY_UP, "weakly up")
        assert third.regions["counter"].coordinator is None, "it must not register yet"
        assert await ask_all(first, "add", IDS[:5]) == [1] * 5
        assert loads([third]) == [0]
        assert not third.regions["counter"].router.region.registered
        assert not ready(third)
        early = asyncio.ensure_future(ask_all(third, "add", IDS[:5]))
        first.cluster.post(cluster.Down(second.me))
        await until(lambda: ready(third), "up")
        assert await early == [2] * 5
        await until(lambda: loads([third]) != [0], "shards on the third")


class Passage:
    """A way to a port; bytes through it wait while it is closed."""

    def __init__(self, target: int) -> None:
        self.port, self.open = free_port(), asyncio.Event()
        self.open.set()
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.get_running_loop().create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self.open.wait()
            sink.write(data)
        sink.close()

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_TS2_a_black_hole_delays_and_loses_nothing(nodes: Nodes) -> None:
    """Frames from the second node to the first, with the coordinator, are swallowed for a while;
    gossip and heartbeats have sockets of their own."""
    bus, port = application(), free_port()
    passage = Passage(port)
    await passage.start()
    nodes.node_settings = {"port": port, "advertise": f"127.0.0.1:{passage.port}"}
    first = await nodes.start(bus, **FAST)
    nodes.node_settings = {}
    second = await nodes.start(bus, **FAST)
    await nodes.agree(2)
    old, new = IDS[:20], IDS[20:]
    assert await ask_all(second, "add", old) == [1] * 20
    before = homes([first, second])
    shard_of = first.regions["counter"].router.shard_of
    fresh = [i for i in new if shard_of(i) not in before]
    there = [i for i in old if before[shard_of(i)] is first]
    here = [i for i in old if before[shard_of(i)] is second]
    assert there
    assert here
    passage.open.clear()
    waiting = [second.ref("counter", i).within(PATIENCE_S).add() for i in (*there, *fresh)]
    await ask_all(second, "passivate", here[:3])
    assert await ask_all(second, "add", here) == [2] * len(here)
    assert not any(ask.done() for ask in waiting)
    passage.open.set()
    assert await asyncio.gather(*waiting) == [2] * len(there) + [1] * len(fresh)
    assert await ask_all(first, "get", old) == [2] * 20
    await passage.close()


async def test_TS2_without_a_store_new_shards_wait_and_known_ones_work(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await nodes.cluster(application(), 2, coordinator_failure_backoff=0.1, **FAST)
    assert await ask_all(second, "add", IDS[:5]) == [1] * 5
    before = homes([first, second])
    shard_of = first.regions["counter"].router.shard_of
    fresh = [i for i in IDS if shard_of(i) not in before]
    assert fresh
    write = MemoryStore.write_homes

    failed: list[object] = []

    async def fail(*write: object) -> None:
        failed.append(write)
        raise StoreUnavailable("black hole")

    monkeypatch.setattr(MemoryStore, "write_homes", fail)
    asks = asyncio.ensure_future(ask_all(second, "get", fresh))
    assert await ask_all(first, "add", IDS[:5]) == [2] * 5
    await until(lambda: len(failed) > 1, "failed writes")
    assert not asks.done()
    monkeypatch.setattr(MemoryStore, "write_homes", write)
    assert await asks == [0] * len(fresh)


# Where things live


async def test_TS13_types_live_where_their_role_is_and_messages_find_them(nodes: Nodes) -> None:
    bus = office.bus
    shop = await nodes.start(bus, roles=("shop",))
    billing = await nodes.start(bus, roles=("billing",))
    nodes.node_settings = {"proxies": ("visit",)}
    door = await nodes.start(bus)
    await nodes.agree(3)
    assert [ready(node) for node in (shop, billing, door)] == [True] * 3
    assert await door.ref("order", "1001").add("desk", 2) == {"desk": 2}
    assert await door.ref("order", "1001").close() == 50000
    ids = [str(n) for n in range(40)]

    async def where(kind: str) -> set[str]:
        return set(await asyncio.gather(*(door.ref(kind, i).where() for i in ids)))

    assert await where("order") == {str(shop.me)}
    assert await where("invoice") == {str(billing.me)}
    assert await where("visit") == {str(shop.me), str(billing.me)}
    assert [len(kind.host.shards) for kind in door.regions.values()] == [0, 0, 0]
    client = await nodes.client(door)
    assert await client.ref(office.Order, "1001").close() == 50000


class Chosen:
    """A strategy of the user's own: homes and moves as somebody wrote them down."""

    def __init__(self) -> None:
        self.home: NodeId | None = None
        self.move: dict[str, NodeId] = {}

    def allocate(
        self, table: Any, loads: Any, shards: Sequence[str], candidates: Collection[NodeId]
    ) -> dict[str, NodeId]:
        return {s: self.move.get(s) or self.home or max(candidates) for s in shards}

    def rebalance(self, table: ShardTable, candidates: Any, in_flight: Any) -> list[Move]:
        return [
            Move(shard, table.homes[shard].node, to)
            for shard, to in self.move.items()
            if shard not in in_flight and table.homes[shard].node != to
        ]


async def test_TS14_a_strategy_of_the_users_own_chooses_homes_and_moves(nodes: Nodes) -> None:
    chosen = Chosen()
    bus = application(allocation=chosen)
    trio = await nodes.cluster(bus, 3, **FAST)
    chosen.home = trio[1].me
    assert await ask_all(trio[0], "add") == [1] * 60
    assert loads(trio) == [0, SHARDS, 0]
    chosen.move = {"3": trio[2].me, "4": trio[0].me}
    await until(lambda: loads(trio) == [1, SHARDS - 2, 1], "the moves")
    assert {s: n for s, n in homes(trio).items() if s in "34"} == {"3": trio[2], "4": trio[0]}
    assert await ask_all(trio[0], "add") == [2] * 60


async def test_TS23_while_the_whole_cluster_stops_messages_flow_and_nothing_moves(
    nodes: Nodes,
) -> None:
    chosen = Chosen()
    trio = await nodes.cluster(application(allocation=chosen), 3, **FAST)
    chosen.home = trio[1].me
    assert await ask_all(trio[0], "add", IDS[:30]) == [1] * 30
    before = homes(trio)
    trio[2].cluster.post(cluster.PrepareForShutdown())
    await asyncio.gather(
        *(asyncio.wait_for(node.membership.cluster_stops, PATIENCE_S) for node in trio)
    )
    chosen.move = dict.fromkeys(before, trio[2].me)
    coordinator = trio[0].singletons["counter"].coordinator.machine
    assert coordinator is not None
    answer_rebalance(Administration(trio[0]), "counter")
    for added in (2, 3):
        due = coordinator.deadline()
        await until(lambda due=due: coordinator.deadline() != due, "a look at the balance")
        assert await ask_all(trio[2], "add", IDS[:30]) == [added] * 30
    assert homes(trio) == before
    assert [what for _, what in Counter.log] == ["start"] * 30


def itself(entity_id: str) -> str:
    return entity_id


async def test_TS15_a_shard_for_each_entity(nodes: Nodes) -> None:
    bus = application(extract_shard_id=itself)
    trio = await nodes.cluster(bus, 3)
    assert await ask_all(trio[0], "add") == [1] * 60
    assert loads(trio) == [20] * 3
    await nodes.leave(trio[0])
    assert await ask_all(trio[1], "add") == [2] * 60
    assert loads(trio[1:]) == [30] * 2


# Pages


async def page(node: Node, path: str) -> Any:
    async with http(node) as client:
        return (await client.get(path)).json()


async def test_TS16_what_runs_where_is_shown_empty_full_and_after_a_leave(nodes: Nodes) -> None:
    trio = await nodes.cluster(application(), 3)

    async def shown() -> dict[str, tuple[str, int]]:
        rows = (await page(trio[1], "/v1/shards/counter"))["shards"]
        return {row["shard"]: (row["node"], row["entities"]) for row in rows}

    async def entities() -> list[tuple[str, str]]:
        rows = (await page(trio[2], "/v1/entities/counter"))["entities"]
        return [(row["id"], row["node"]) for row in rows]

    def true() -> dict[str, tuple[str, int]]:
        now = homes(nodes.all)
        return {s: (str(n.me), n.regions["counter"].host.shards[s].live) for s, n in now.items()}

    assert await shown() == {}
    assert await entities() == []
    await ask_all(trio[0], "add")
    assert await shown() == true()
    assert sum(count for _, count in true().values()) == 60
    assert [i for i, _ in await entities()] == sorted(IDS)
    await nodes.leave(trio[0])
    await ask_all(trio[1], "get")
    assert await shown() == true()
    assert {node for _, node in await entities()} == {str(node.me) for node in trio[1:]}


async def test_TS16_TSU16_who_does_not_answer_is_not_shown_as_empty(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await nodes.cluster(application(), 2, shard_region_query_timeout=0.25)
    await ask_all(first, "add")

    async def answered() -> bool:
        return bool((await page(first, "/v1/entities/counter"))["silent"] == [])

    await until(answered, "the answer of the other in time")
    monkeypatch.setattr(second.rpc, "answer_questions", lambda session, run: None)
    rows = (await page(first, "/v1/shards/counter"))["shards"]
    unknown = [row["entities"] for row in rows if row["node"] == str(second.me)]
    counts = [row["entities"] for row in rows if row["node"] == str(first.me)]
    assert unknown == [None] * 6
    assert min(counts) > 0
    shown = await page(first, "/v1/entities/counter")
    assert {row["node"] for row in shown["entities"]} == {str(first.me)}
    assert shown["silent"] == [str(second.me)]


# Missing names


async def test_TS17_a_type_that_the_oldest_node_does_not_have_is_unknown_there_only(
    nodes: Nodes,
) -> None:
    first = await nodes.start(application())
    larger = application()
    larger.entity("page", shards=SHARDS)(type("Page", (Counter,), {}))
    second = await nodes.start(larger)
    with pytest.raises(UnknownEntityType, match="there is no entity type 'page'; there is counter"):
        first.ref("page", "x")
    with pytest.raises(UnknownEntityType, match=r"'conter'; did you mean counter\?"):
        first.ref("conter", "x")
    client = await nodes.client(first)
    with pytest.raises(UnknownEntityType, match="the cluster has no entity type 'conter'"):
        await client.ask("conter", "x", "get")
    assert await client.call("page", "x", "add") == 1
    assert await second.ref("page", "x").within(PATIENCE_S).add() == 2
    page_ = await page(second, "/v1/entities/page")
    assert page_["silent"] == [], "a node without the type has none, and says so"
    assert page_["entities"][0]["node"] == str(second.me)
    assert first.endpoint.dropped_frames.get("unknown_type", 0) == 0, "it is asked nothing"


async def test_TSU17_many_types_start_at_once(nodes: Nodes) -> None:
    bus = ShardBus("shop")
    names = [f"type-{n}" for n in range(30)]
    for name in names:
        bus.entity(name, shards=5)(type(name, (Counter,), {}))
    pair = await nodes.cluster(bus, 2)
    for node in pair:
        asks = [node.ref(name, i).add() for name in names for i in IDS[:10]]
        assert set(await asyncio.gather(*asks)) == {1 + pair.index(node)}
    assert [len(kind.host.shards) for kind in pair[0].regions.values()] != [0] * 30
