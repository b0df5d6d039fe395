"""`bus.run`: a node in the event loop of an application, which keeps what is its own."""

from __future__ import annotations

import asyncio
import gc
import signal
from typing import Any

import httpx
import pytest

from shardbus import ConfigError, Entity, NodeLost, Refused, ShardBus, StoreUnavailable, handler
from shardbus.app import ShardBus as App
from tests.ports import free_block
from tests.waiting import PATIENCE_S, until


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


async def test_an_application_runs_a_node_and_keeps_what_is_its_own() -> None:
    bus = application()
    own = (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), gc.get_threshold())
    async with asyncio.timeout(PATIENCE_S), bus.run(settings()) as node:
        assert node.running
        assert bus.runs
        assert await counter(bus).add(2) == 2
        assert (await counter(bus).home()).startswith(node.address)
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            page = await client.get(f"{node.http_url}/readyz")
        assert page.json()["status"] == "ok"
        now = (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
        assert (*now, gc.get_threshold()) == own
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
    own = settings()
    async with bus.run(own):
        late = application().run(own)
        with pytest.raises(ConfigError, match="cannot listen"):
            await late.start()
        assert not await late.stop()
    with pytest.raises(StoreUnavailable):
        await bus.run({**own, "store.url": "redis://127.0.0.1:1/0"}).start()
    assert not bus.runs
    async with bus.run(own):
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


async def test_a_node_that_is_downed_closes_and_the_application_goes_on() -> None:
    bus, reasons = application(), list[str]()
    async with application().run(settings()) as first:
        second = await bus.run(settings(first.address), on_stopped=reasons.append).start()
        from shardbus.membership.events import Down

        served = second._served
        assert served is not None
        served.node.cluster.post(Down(served.node.me))
        await until(lambda: reasons, "the reason")
        assert reasons[0] not in ("", "left")
        assert not bus.runs
        assert not await second.stop()


async def test_a_start_that_is_cancelled_closes_what_it_has_opened() -> None:
    bus = application()
    own = settings(**{"cluster.min_members": 2})
    starting = asyncio.ensure_future(bus.run(own).start())
    await until(lambda: bus.runs, "the node that waits for another one")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not bus.runs
    del own["cluster.min_members"]
    async with bus.run(own):
        assert await counter(bus).add() == 1
