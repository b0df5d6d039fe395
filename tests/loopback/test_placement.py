"""Where shards go, on real nodes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.admin.administration import Administration
from shardbus.admin.pages import shards as shard_pages
from shardbus.admin.pages.checkup import answer_checkup
from shardbus.entities.entity_type import StopReason
from shardbus.errors import ConfigError, Refused
from shardbus.ids import NodeId, shard_of
from shardbus.membership.events import SetService
from shardbus.membership.member import Service
from shardbus.node.node import Node
from shardbus.sharding.allocation.strategies import Move
from shardbus.sharding.coordinator import strategy_calls
from shardbus.sharding.table import ShardTable
from shardbus.shells import coordinator as coordinator_shell
from tests.loopback.nodes import SHORT_CLAIM, Nodes, hosts
from tests.ports import free_port
from tests.waiting import PATIENCE_S, until

SHARDS = 12


def application(**declared: object) -> ShardBus:
    bus = ShardBus("shop")

    @bus.entity("counter", shards=SHARDS, **declared)
    class Counter(Entity):
        def __init__(self) -> None:
            self.value = 0

        @handler
        def add(self, amount: int) -> int:
            self.value += amount
            return self.value

    return bus


def entity(shard: int) -> str:
    """An entity of that shard."""
    return next(i for i in map(str, range(10_000)) if shard_of(i, SHARDS) == str(shard))


async def touch(nodes: Nodes, shards: range) -> None:
    """Ask an entity of each of these."""
    client = await nodes.client()
    for shard in shards:
        await client.ask("counter", entity(shard), "add", 1)


async def test_TS20_new_shards_go_to_the_node_with_the_highest_version(nodes: Nodes) -> None:
    bus = application()
    nodes.node_settings["version"] = "1.9.0"
    still = {"rebalance_interval": 3600.0}
    old = [await nodes.start(bus, **still) for _ in range(2)]
    await touch(nodes, range(4))
    nodes.node_settings["version"] = "1.10.0"
    new = await nodes.start(bus, **still)
    await nodes.agree(3)
    await touch(nodes, range(4, SHARDS))
    assert hosts([new], "counter").keys() == {str(shard) for shard in range(4, SHARDS)}
    await nodes.leave(old[1])
    await touch(nodes, range(SHARDS))
    homes = hosts([old[0], new], "counter")
    assert len(homes) == SHARDS
    assert sum(where == [old[0]] for where in homes.values()) == 2, "nothing came back to it"


def home(nodes: Nodes, shard: int) -> Node | None:
    """Where the shard runs, if it runs in one place."""
    homes = hosts(nodes.all, "counter").get(str(shard), [])
    return homes[0] if len(homes) == 1 else None


async def at(nodes: Nodes, shard: int, node: Node) -> None:
    await until(lambda: home(nodes, shard) is node, f"shard {shard} at {node.me}")


async def test_TS18_a_shard_lives_where_somebody_said(nodes: Nodes) -> None:
    bus = application(allocation="external")
    first, second = await nodes.cluster(bus, 2)
    later = f"127.0.0.1:{free_port()}"
    bus.attach(first)
    places = bus.external_allocation("counter")
    await places.set_all({"1": second.me, "2": second.me.address, "3": later})
    await touch(nodes, range(4))
    assert home(nodes, 1) is home(nodes, 2) is second
    assert home(nodes, 3) in (first, second), "nobody is there yet, and nobody waits"
    await places.set("1", str(first.me))
    await at(nodes, 1, first)
    nodes.node_settings["port"] = int(later.rpartition(":")[2])
    third = await nodes.start(bus)
    await at(nodes, 3, third)
    await places.unset("3")
    assert await places.places() == {"1": first.me.address, "2": second.me.address}


async def test_B69_places_outlive_the_coordinator_and_a_full_stop(nodes: Nodes) -> None:
    nodes.cluster_settings = SHORT_CLAIM
    bus = application(allocation="external")
    trio = await nodes.cluster(bus, 3)
    places = f"5={trio[2].me}", "6=127.0.0.1:1"
    await shard_pages.place(Administration(trio[1]), "counter", places)
    await nodes.leave(trio[0])
    shown = await until(lambda: listed(trio[1]), "the next coordinator")
    assert shown == {"5": str(trio[2].me.address), "6": "127.0.0.1:1"}
    await touch(nodes, range(SHARDS))
    assert home(nodes, 5) is trio[2]
    ports = [node.me.port for node in trio[1:]]
    for node in trio[1:]:
        await node.close()
    nodes.all.clear()
    for port in ports:
        nodes.node_settings["port"] = port
        await nodes.start(bus)
    await touch(nodes, range(SHARDS))
    await at(nodes, 5, nodes.all[1])


async def listed(node: Node) -> dict[str, str] | None:
    """The places that a node tells of; None while there is no coordinator."""
    try:
        rows = (await shard_pages.places(Administration(node), "counter"))["places"]
    except Refused:
        return None
    return {row["shard"]: row["place"] for row in rows}  # type: ignore[attr-defined]


async def test_S319_a_shard_is_pinned_under_any_strategy_until_it_is_released(
    nodes: Nodes,
) -> None:
    """Also over a change of the coordinator, and while its node is cordoned."""
    fast = {"rebalance_interval": 0.2, "retry_interval": 0.2}
    trio = await nodes.cluster(application(), 3, **fast)
    first, second, third = trio
    await touch(nodes, range(SHARDS))
    page = Administration(second)
    with pytest.raises(ConfigError, match="no shard '12'"):
        await shard_pages.place(page, "counter", (f"12={second.me}",))
    pins = [shard for shard in range(SHARDS) if home(nodes, shard) is not third][:5]
    await shard_pages.place(page, "counter", tuple(f"{shard}={third.me}" for shard in pins))
    for shard in pins:
        await at(nodes, shard, third)

    def others() -> bool:
        """The strategy spreads the others as if the pinned ones were not there."""
        counts = [len(node.regions["counter"].host.shards) for node in nodes.all]
        counts[nodes.all.index(third)] -= len(pins)
        return max(counts) - min(counts) <= 1 and sum(counts) == SHARDS - len(pins)

    await until(others, "balance beside the pinned ones")
    await nodes.leave(first)
    await until(others, "balance under the next coordinator")
    assert all(home(nodes, shard) is third for shard in pins)
    second.cluster.post(SetService(third.me, Service.DRAINING))
    for shard in pins:
        await at(nodes, shard, second)

    async def refused() -> bool:
        try:
            await shard_pages.place(page, "counter", (f"{pins[0]}={third.me}",))
        except Refused as error:
            return "takes no shard" in error.message
        return False

    await until(refused, "the refusal of a place that drains")
    second.cluster.post(SetService(third.me, Service.OPEN))
    for shard in pins:
        await at(nodes, shard, third)
    await shard_pages.place(page, "counter", tuple(f"{shard}=" for shard in pins))
    half = SHARDS // 2
    await until(
        lambda: [len(n.regions["counter"].host.shards) for n in nodes.all] == [half, half],
        "balance of all, when they are released",
    )
    assert await listed(second) == {}


async def test_S319_a_type_with_instances_takes_no_places(nodes: Nodes) -> None:
    first, second = await nodes.cluster(application(instances=2), 2)
    for node in (first, second):
        with pytest.raises(Refused, match="lie on distinct nodes"):
            await shard_pages.place(Administration(node), "counter", (f"1~1={second.me}",))


async def test_TSU16_shards_stop_on_command_and_start_again_at_the_next_message(
    nodes: Nodes,
) -> None:
    first, second = await nodes.cluster(application(), 2, shard_region_query_timeout=600.0)
    await touch(nodes, range(SHARDS))
    assert len(hosts(nodes.all, "counter")) == SHARDS
    answer = await shard_pages.stop(Administration(second), "counter", ("3", "4", "4", "5"))
    assert (answer["stopped"], answer["stopping"]) == (["3", "4", "5"], [])
    assert hosts(nodes.all, "counter").keys().isdisjoint({"3", "4", "5"})
    client = await nodes.client()
    assert await client.ask("counter", entity(3), "add", 1) == 1, "a new incarnation"
    assert await client.ask("counter", entity(2), "add", 1) == 2
    stopped = await shard_pages.stop(Administration(first), "counter", ("4",))
    assert stopped["stopped"] == ["4"], "it had not started"
    with pytest.raises(ConfigError, match="no shard 'x'"):
        await shard_pages.stop(Administration(first), "counter", ("x",))


async def test_TSU16_a_shard_that_takes_its_time_is_said_to_be_stopping(nodes: Nodes) -> None:
    bus, gate = ShardBus("shop"), asyncio.Event()

    @bus.entity("counter", shards=SHARDS, shard_region_query_timeout=0.1)
    class Slow(Entity):
        async def on_stop(self, reason: StopReason) -> None:
            await gate.wait()

        @handler
        def add(self, amount: int) -> int:
            return amount

    node = await nodes.start(bus, shard_region_query_timeout=600.0)
    await touch(nodes, range(2))
    answer = await shard_pages.stop(Administration(node), "counter", ("1", "7"))
    assert (answer["stopped"], answer["stopping"]) == (["7"], ["1"])
    gate.set()
    await until(lambda: stopped(node, "1"), "its end")


async def stopped(node: Node, shard: str) -> bool:
    answer = await shard_pages.stop(Administration(node), "counter", (shard,))
    return answer["stopped"] == [shard]


async def test_B77_a_pause_holds_the_balance_and_outlives_the_coordinator(nodes: Nodes) -> None:
    bus = application()
    first = await nodes.start(bus)
    await touch(nodes, range(SHARDS))
    paused = await shard_pages.rebalance(Administration(first), "counter", True, 5)
    assert (paused["paused"], paused["rebalancing"], paused["moves_at_a_time"]) == (True, False, 5)
    second, third = [await nodes.start(bus) for _ in range(2)]
    await nodes.agree(3)
    pages = Administration(third)
    for page in (
        await shard_pages.shards(pages, "counter"),
        await shard_pages.plan(pages, "counter", 0, ()),
    ):
        assert (page["paused"], page["held"]) == (True, "an operator has paused it")
    await shard_pages.rebalance(Administration(third), "counter", None, None)
    assert len(first.regions["counter"].host.shards) == SHARDS
    await nodes.leave(first)
    kinds = [node.regions["counter"] for node in (second, third)]
    await until(lambda: pace(third), "the next coordinator")
    assert await pace(third) == {"paused": True, "moves_at_a_time": 5}
    client = await nodes.client()
    assert await client.ask("counter", entity(3), "add", 1) == 1, "it was drained, and has a home"
    await shard_pages.rebalance(Administration(third), "counter", False, 0)
    assert await pace(third) == {"paused": False, "moves_at_a_time": 16}
    await touch(nodes, range(SHARDS))
    await until(lambda: [len(kind.host.shards) for kind in kinds] == [6, 6], "the balance")


async def pace(node: Node) -> dict[str, object]:
    """How fast the coordinator moves shards; nothing while there is none."""
    page = await shard_pages.shards(Administration(node), "counter")
    pace_fields = {name: page[name] for name in ("paused", "moves_at_a_time")}
    return pace_fields if page["paused"] is not None else {}


class Chosen:
    """A strategy of the user's own: shards live at the node that is chosen at the moment, and named
    shards that live elsewhere move there."""

    def __init__(self) -> None:
        self.node: NodeId | None = None
        self.movable: tuple[str, ...] = ()

    def allocate(
        self, table: Any, loads: Any, shards: Sequence[str], candidates: Collection[NodeId]
    ) -> dict[str, NodeId]:
        if self.node not in candidates:
            raise LookupError("the chosen one may not host")
        return dict.fromkeys(shards, self.node)

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        homes = table.homes
        return [
            Move(shard, homes[shard].node, self.node)
            for shard in self.movable
            if self.node in candidates and shard in homes and homes[shard].node != self.node
        ]


async def test_TS14_a_strategy_of_the_users_own_places_and_moves_shards(nodes: Nodes) -> None:
    strategy = Chosen()
    bus = application(allocation=strategy)
    first, second = await nodes.cluster(bus, 2)
    strategy.node = second.me
    await touch(nodes, range(6))
    assert all(home(nodes, shard) is second for shard in range(6))
    strategy.node = first.me
    await touch(nodes, range(6, SHARDS))
    assert all(home(nodes, shard) is first for shard in range(6, SHARDS))
    strategy.movable = ("1", "3", "7")
    await shard_pages.rebalance(Administration(second), "counter", None, None)
    await at(nodes, 1, first)
    await at(nodes, 3, first)
    assert [home(nodes, shard) for shard in (0, 2, 4, 5, 7)] == [second] * 4 + [first]
    plan = await shard_pages.plan(Administration(second), "counter", 0, ())
    assert plan["moves"] == []


async def test_TS14_a_strategy_that_fails_leaves_nobody_without_a_home(nodes: Nodes) -> None:
    bus = application(allocation=Chosen())
    first, second = await nodes.cluster(bus, 2)
    await touch(nodes, range(SHARDS))
    homes = hosts(nodes.all, "counter")
    assert sorted(homes) == sorted(str(shard) for shard in range(SHARDS))
    assert {str(n.me) for where in homes.values() for n in where} == {str(first.me), str(second.me)}
    assert first.records.notes[("counter", "strategy_failed")] == 1


class Hangs(Chosen):
    """Asks a service that does not answer until the test is over."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.threads: list[int] = []

    def allocate(self, *args: Any) -> dict[str, NodeId]:
        self.threads.append(threading.get_ident())
        self.go_on.wait(PATIENCE_S)
        return super().allocate(*args)


async def test_TS14_a_strategy_that_hangs_stops_no_loop_and_is_named(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy_calls, "ANSWER_S", 0.05)
    monkeypatch.setattr(coordinator_shell, "ANSWER_S", 0.05)
    strategy = Hangs()
    first, second = await nodes.cluster(application(allocation=strategy), 2)
    try:
        await touch(nodes, range(SHARDS))
        homes = hosts(nodes.all, "counter")
        assert {str(n.me) for at in homes.values() for n in at} == {str(first.me), str(second.me)}
        await until(lambda: strategy.threads, "its thread, which a busy host starts late")
        assert len(strategy.threads) == 1
        assert strategy.threads != [threading.get_ident()]
        [[method, what]] = answer_checkup(Administration(first))["types"]["counter"]["strategy"]
        assert method == "Hangs.allocate"
        assert what.startswith("has not returned for")
        with pytest.raises(Refused, match="the strategy of 'counter' has not answered"):
            await shard_pages.plan(Administration(second), "counter", 1, ())
    finally:
        strategy.go_on.set()


async def test_N9_shards_with_many_messages_are_spread_by_load(nodes: Nodes) -> None:
    bus = application(allocation="least-load", rebalance_interval=0.5, rebalance_cool_down=0)
    first, second = await nodes.cluster(bus, 2)
    await touch(nodes, range(SHARDS))
    assert len(first.regions["counter"].host.shards) == SHARDS // 2
    hot = [int(shard) for shard in first.regions["counter"].host.shards][:4]
    client = await nodes.client()

    async def busy() -> None:
        while True:
            asks = (client.ask("counter", entity(shard), "add", 1) for shard in hot * 5)
            await asyncio.gather(*asks)

    sending = asyncio.ensure_future(busy())
    await until(lambda: sum(home(nodes, s) is second for s in hot) == 2, "half of the heat")

    async def shown() -> bool:
        page: Any = await shard_pages.shards(Administration(second), "counter")
        rows = {row["shard"]: row["load"] or 0 for row in page["shards"]}
        cold = max(load for shard, load in rows.items() if int(shard) not in hot)
        return bool(min(rows[str(shard)] for shard in hot) > cold)

    await until(shown, "the load of the hot ones")
    sending.cancel()
    await asyncio.wait([sending])
    assert (first.records.notes.get(("counter", "hot_shard")), sending.cancelled()) == (None, True)


async def test_where_nobody_goes_by_load_nobody_measures_it(nodes: Nodes) -> None:
    first, _ = await nodes.cluster(application(), 2)
    await touch(nodes, range(SHARDS))
    assert not first.regions["counter"].sampling.on
    rows = (await shard_pages.shards(Administration(first), "counter"))["shards"]
    assert {row["load"] for row in rows} == {None}
