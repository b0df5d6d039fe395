"""`bus.run`: a node in the event loop of an application, which keeps its own loop and signals."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from shardbus import ConfigError, Entity, NodeLost, Refused, ShardBus, StoreUnavailable, handler
from shardbus.app import ShardBus as App
from shardbus.embedding import EmbeddedNode
from shardbus.membership.events import Down
from tests.ports import free_block
from tests.waiting import PATIENCE_S, turns, until


def application(name: str = "shop") -> ShardBus:
    bus = App(name)

    @bus.entity("counter", shards=8)
    class Counter(Entity):
        def __init__(self) -> None:
            self.total = 0

        @handler
        def add(self, amount: int = 1) -> int:
            self.total += amount
            return self.total

        @handler
        def home(self) -> str:
            return str(self.context.node)

    return bus


def settings(*seeds: str, **more: object) -> dict[str, object]:
    port = free_block(3)
    return {
        "node.port": port,
        "node.gossip_port": port + 1,
        "http.port": port + 2,
        "node.seeds": list(seeds),
        "store.url": "memory://",
        "cluster.gossip_interval": 0.1,
        "cluster.leader_actions_interval": 0.1,
        **{key.replace("__", "."): value for key, value in more.items()},
    }


def counter(bus: ShardBus, entity_id: str = "a") -> Any:
    return bus.ref("counter", entity_id)


async def test_the_url_of_a_node_at_an_ipv6_address_can_be_opened() -> None:
    more = {"node__host": "::1", "http__host": "::1"}
    async with asyncio.timeout(PATIENCE_S), application().run(settings(**more)) as node:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            page = await client.get(f"{node.http_url}/readyz")
        assert page.json()["status"] == "ok"


async def test_an_application_runs_a_node_and_keeps_what_is_its_own() -> None:
    bus = application()
    before = (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), gc.get_threshold())
    async with asyncio.timeout(PATIENCE_S), bus.run(settings()) as node:
        assert node.running
        assert bus.runs
        assert await counter(bus).add(2) == 2
        assert (await counter(bus).home()).startswith(node.address)
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            page = await client.get(f"{node.http_url}/readyz")
        assert page.json()["status"] == "ok"
        now = (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
        assert (*now, gc.get_threshold()) == before
    assert node.reason == "left"
    assert not node.running
    assert not bus.runs
    with pytest.raises(ConfigError, match="started once"):
        await node.start()


async def test_it_may_be_started_and_stopped_by_calls_as_in_the_cells_of_a_notebook() -> None:
    bus = application()
    node = bus.run(settings())
    assert await node.start() is node
    assert await counter(bus).add() == 1
    assert await node.stop()
    assert await node.stop()
    again = bus.run(settings())
    await again.start()
    assert await counter(bus).add() == 1, "it was in memory only"
    assert await again.stop()


async def test_nodes_of_two_applications_are_one_cluster_and_one_leaves_in_order() -> None:
    bus, other = application(), application()
    async with bus.run(settings()) as first:
        second = bus_of_second = other.run(settings(first.address))
        await second.start()
        ids = [f"c{number}" for number in range(40)]
        totals = await asyncio.gather(*(counter(bus, i).add(2) for i in ids))
        assert totals == [2] * len(ids)

        async def shared() -> bool:
            homes = await asyncio.gather(*(counter(bus, i).home() for i in ids))
            return len(set(homes)) == 2

        await until(shared, "shards on both")
        assert await bus_of_second.stop()
        homes = set(await asyncio.gather(*(counter(bus, i).home() for i in ids)))
        assert [home.partition("#")[0] for home in homes] == [first.address]


async def test_a_bus_runs_one_node() -> None:
    bus = application()
    async with bus.run(settings()):
        with pytest.raises(ConfigError, match="runs in this process already"):
            await bus.run(settings()).start()
        assert await counter(bus).add() == 1, "the first one is as it was"


async def test_what_keeps_a_node_from_starting_is_raised_and_leaves_nothing_open() -> None:
    bus = application()
    with pytest.raises(ConfigError, match=r"node\.prot"):
        bus.run({"node.prot": 1})
    with pytest.raises(ConfigError, match="insecure"):
        bus.run(settings(node__host="0.0.0.0", node__advertise="127.0.0.1"))
    node_settings = settings()
    async with bus.run(node_settings):
        late = application().run(node_settings)
        with pytest.raises(ConfigError, match="cannot listen"):
            await late.start()
        assert not await late.stop()
    away = {"store.url": "redis://127.0.0.1:1/0", "store.start_timeout": 0.001}
    with pytest.raises(StoreUnavailable):
        await bus.run({**node_settings, **away}).start()
    assert not bus.runs
    async with bus.run(node_settings):
        assert await counter(bus).add() == 1, "its ports are free again"


async def test_a_cluster_that_refuses_it_and_one_that_does_not_answer() -> None:
    async with application().run(settings()) as first:
        differs = settings(first.address, **{"cluster.downing.strategy": "keep-oldest"})
        with pytest.raises(Refused, match="strategy"):
            await application().run(differs).start()
    alone = settings(f"127.0.0.1:{free_block(1)}", **{"cluster.seed_node_timeout": 0.5})
    alone["cluster.shutdown_after_unsuccessful_join"] = 1.0
    with pytest.raises(NodeLost):
        await application().run(alone).start()


async def test_an_operator_lets_it_leave_and_the_application_learns_why() -> None:
    bus, reasons = application(), list[str]()
    token = {"http.write": True, "http.token": "sesame-sesame-16"}
    async with bus.run(settings(**token), on_stopped=reasons.append) as node:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            answer = await client.post(
                f"{node.http_url}/v1/nodes/self/leave",
                headers={"Authorization": "Bearer sesame-sesame-16"},
            )
        assert answer.status_code < 300, answer.text
        await until(lambda: reasons, "the reason")
        assert reasons == ["left"] == [node.reason]
        assert not bus.runs


def down(node: EmbeddedNode) -> None:
    """Let membership declare it dead, as after a split."""
    node_of(node).cluster.post(Down(node_of(node).me))


def node_of(node: EmbeddedNode) -> Any:
    assert node._served is not None
    return node._served.node


async def vanish(node: EmbeddedNode) -> None:
    """End it as a crash does: it leaves nobody, and its ports are closed."""
    assert node._served is not None
    assert node._life is not None
    node._life.cancel()
    await node._served.close()


async def readiness(url: str) -> dict[str, Any]:
    """Its page; empty while nothing listens there."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        try:
            page: dict[str, Any] = (await client.get(f"{url}/readyz")).json()
        except httpx.TransportError:
            return {}
    return page


async def test_S3_42_a_node_that_was_downed_rejoins_and_answers_as_before() -> None:
    bus, reasons, changes = application(), list[str](), list[str]()
    bus.on_member_up(lambda: changes.append("up"))
    bus.on_member_removed(lambda: changes.append("removed"))
    async with application().run(settings()) as first:
        async with bus.run(settings(first.address), on_stopped=reasons.append) as second:
            ids = [f"c{number}" for number in range(40)]
            assert await asyncio.gather(*(counter(bus, i).add(2) for i in ids)) == [2] * len(ids)
            before, former = node_of(second).me, counter(bus)
            down(second)
            await until(lambda: second.rejoining, "the begin of rejoining")
            assert not second.running
            assert bus.runs
            assert "rejoins through" in repr(second)
            await until(lambda: second.running, "the new incarnation")
            assert node_of(second).me.address == before.address
            assert node_of(second).me != before
            await asyncio.gather(*(counter(bus, i).add(2) for i in ids))
            with pytest.raises(NodeLost):
                await former.add()
            with pytest.raises(NodeLost):
                await former.add.tell(1)
            assert (await readiness(second.http_url))["status"] == "ok"
            await until(lambda: len(changes) >= 3, "the callback")
            assert changes == ["up", "removed", "up"]
            assert not reasons
        assert second.reason == "left"
        assert changes == ["up", "removed", "up", "removed"]
    assert not reasons
    assert not bus.runs


@pytest.mark.long
async def test_it_rejoins_each_time_it_is_downed() -> None:
    bus = application()
    async with application().run(settings()) as first, bus.run(settings(first.address)) as second:
        lives = {node_of(second).me}
        for _ in range(2):
            down(second)
            await until(lambda: second.running and node_of(second).me not in lives, "a new life")
            lives.add(node_of(second).me)
            assert await counter(bus).add() > 0
    assert len(lives) == 3


async def test_while_it_rejoins_its_pages_and_its_references_tell_why() -> None:
    bus = application()
    first = await application().run(settings()).start()
    second = await bus.run(settings(first.address)).start()
    await vanish(first)
    down(second)
    await until(lambda: second.rejoining and bus._node is None, "the begin of rejoining")
    with pytest.raises(NodeLost, match="was downed, and rejoins through"):
        counter(bus)
    with pytest.raises(ConfigError, match="runs in this process already"):
        await bus.run(settings()).start()

    async def told() -> bool:
        page = await readiness(second.http_url)
        return f"asks {first.address} to take it in for" in str(page.get("checks"))

    await until(told, "the reason on the page of readiness")
    assert await second.stop()
    assert second.reason == "left"
    assert not bus.runs


async def test_a_stop_while_it_closes_the_downed_incarnation_ends_it() -> None:
    bus, reasons = application(), list[str]()
    async with application().run(settings()) as first:
        second = await bus.run(settings(first.address), on_stopped=reasons.append).start()
        down(second)
        await until(lambda: second.rejoining, "the begin of rejoining")
        async with asyncio.timeout(PATIENCE_S):
            await second.stop()
        assert second.reason == "left"
        assert not bus.runs
        assert not reasons


async def test_if_those_that_stayed_are_lost_for_good_it_ends_with_that_reason() -> None:
    bus, reasons = application(), list[str]()
    first = await application().run(settings()).start()
    short = settings(first.address, cluster__rejoin_within=1.0)
    second = await bus.run(short, on_stopped=reasons.append).start()
    await vanish(first)
    down(second)
    await until(lambda: reasons, "the reason")
    lost = f"no member that it knew has taken this node in within 1 s; tried {first.address}"
    assert reasons == [f"join failed: {lost}"] == [second.reason]
    assert not second.rejoining
    assert not bus.runs


async def test_one_that_may_not_rejoin_closes_and_the_application_goes_on() -> None:
    bus, reasons = application(), list[str]()
    async with application().run(settings()) as first:
        stays = settings(first.address, cluster__rejoin_after_down=False)
        second = await bus.run(stays, on_stopped=reasons.append).start()
        down(second)
        await until(lambda: reasons, "the reason")
        assert reasons == ["downed"]
        assert not bus.runs
        assert not await second.stop()


async def test_an_ask_that_waits_for_a_home_ends_with_its_node() -> None:
    """No ticker runs any more that could let it expire."""
    bus = application()
    async with bus.run(settings(**{"sharding.types.counter.min_members": 2})) as node:
        waits = asyncio.ensure_future(counter(bus).within(PATIENCE_S).add())
        await asyncio.sleep(0)
        assert not waits.done()
        down(node)
        with pytest.raises(NodeLost):
            await waits


async def test_a_start_that_is_cancelled_closes_what_it_has_opened() -> None:
    bus = application()
    node_settings = settings(**{"cluster.min_members": 2})
    starting = asyncio.ensure_future(bus.run(node_settings).start())
    await until(lambda: bus.runs, "the node that waits for another one")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not bus.runs
    del node_settings["cluster.min_members"]
    async with bus.run(node_settings):
        assert await counter(bus).add() == 1


class ReplicaDouble:
    """A replica that starts no process."""

    made: list[ReplicaDouble]

    def __init__(self, words: list[str], on_unusable: Callable[[str], object]) -> None:
        self.words, self.on_unusable, self.steps = words, on_unusable, list[str]()
        self.made.append(self)

    def start(self) -> None:
        self.steps.append("start")

    def stop(self) -> None:
        self.steps.append("stop")


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> list[ReplicaDouble]:
    ReplicaDouble.made = []
    monkeypatch.setattr("shardbus.embedding.ReplicaChild", ReplicaDouble)
    return ReplicaDouble.made


async def test_a_replica_starts_before_the_node_and_ends_though_the_start_is_given_up(
    replicas: list[ReplicaDouble],
) -> None:
    own = settings(store__url="cluster://", store__replicas=1, store__port=free_block(1))
    starting = asyncio.ensure_future(application().run(own).start())
    await turns(50)
    [replica] = replicas
    assert replica.steps == ["start"]
    assert replica.words[:4] == ["store", "serve", "--cluster", "shop"]
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert replica.steps == ["start", "stop"]


async def test_a_start_waits_for_no_replica_that_cannot_run(replicas: list[ReplicaDouble]) -> None:
    own = settings(store__url="cluster://", store__replicas=1, store__port=free_block(1))
    node = application().run(own)
    starting = asyncio.ensure_future(node.start())
    await turns(50)
    replicas[0].on_unusable("ended with exit code 1")
    with pytest.raises(ConfigError, match="this node ended with exit code 1 before it listened"):
        await starting
    assert replicas[0].steps == ["start", "stop"]
    assert node.reason == "not started"


async def test_a_node_with_another_store_has_no_replica(replicas: list[ReplicaDouble]) -> None:
    async with application().run(settings()):
        assert replicas == []
