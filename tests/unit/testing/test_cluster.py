"""`TestCluster`: whole nodes in a test. A user's actions on it, and that a seed repeats it."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import subprocess
import sys
import weakref
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shardbus import AskTimeout, ConfigError, Entity, NodeLost, ShardBus, handler
from shardbus.errors import EntityFailed, LocalProtocolError, RequestError, UnknownEntityType
from shardbus.membership.events import SetMeta
from shardbus.node.node import Node
from shardbus.testing import TestCluster, TestNode
from tests import laws
from tests.unit.declaring import Anything
from tests.unit.testing import shop
from tests.unit.testing.shop import Counter, EmptyStock, Order, OutOfStock, Stock, Total, bus

ROOT = Path(__file__).resolve().parents[3]
IDS = [f"c{number}" for number in range(30)]


@pytest.fixture(autouse=True)
def silence() -> None:
    shop.heard.clear()


async def test_nodes_are_up_and_share_the_entities() -> None:
    async with TestCluster(bus, nodes=3) as cluster:
        assert [node.name for node in cluster.nodes] == ["node1", "node2", "node3"]
        assert all(node.up and not node.paused for node in cluster.nodes)
        client = cluster.client()
        totals = await asyncio.gather(*(client.ref(Counter, i).add(2) for i in IDS))
        assert totals == [2] * len(IDS)
        assert sorted(i for node in cluster.nodes for i in node.entities(Counter)) == sorted(IDS)
        assert [len(node.shards(Counter)) for node in cluster.nodes] == [4, 4, 4]
        for entity_id in IDS:
            home = cluster.where(Counter, entity_id)
            assert home is not None
            assert entity_id in home.entities(Counter)
            assert await client.ref(Counter, entity_id).here() == home.name
            entity = home.entity(Counter, entity_id)
            assert entity is not None
            assert entity.state == Total(2) == cluster.store.state(Counter, entity_id)


@pytest.mark.parametrize("given", [math.nan, math.inf, -1, "5", timedelta(seconds=5)])
async def test_a_time_that_is_no_number_of_seconds_is_refused(given: Any) -> None:
    async with TestCluster(bus, nodes=1) as cluster:
        now = cluster.now
        for call in (
            cluster.advance(given),
            cluster.settle(given),
            cluster.until(lambda: True, given),
        ):
            with pytest.raises(ConfigError, match="seconds, as a number, not "):
                await call
        with pytest.raises(ConfigError, match="seconds, as a number, not "):
            cluster.store.slow(given)
        assert cluster.now == now


async def test_a_killed_node_is_replaced() -> None:
    async with TestCluster(bus) as cluster:
        counter = cluster.client().ref(Counter, "a")
        await counter.add(2)
        home = cluster.where(Counter, "a")
        assert home is not None
        await cluster.kill(home)
        assert not home.runs
        assert home not in cluster.nodes
        await cluster.settle()
        assert await counter.add(1) == 3
        assert cluster.where(Counter, "a") in cluster.nodes
        assert not [line for line in shop.heard if "stops" in line]


def test_nothing_of_a_cluster_outlives_it(own_garbage: None) -> None:
    watchers = len(gc.callbacks)

    async def killed() -> weakref.ref[Node]:
        async with TestCluster(bus, nodes=2) as cluster:
            await cluster.kill(cluster.nodes[0])
            assert len(gc.callbacks) == watchers  # a real collection is no event of virtual time
            return weakref.ref(cluster.world.all_nodes()[0].node)

    node = asyncio.run(killed())
    laws.forget()
    gc.collect()
    assert node() is None


async def test_a_machine_that_vanishes_is_noticed_by_its_silence() -> None:
    async with TestCluster(bus) as cluster:
        began = cluster.now
        await cluster.kill(cluster.nodes[0])
        await cluster.settle()
        refused = cluster.now - began
        began = cluster.now
        await cluster.add("node1")
        await cluster.kill(cluster.nodes[1], machine=True)
        await cluster.settle()
        assert refused < 1 < cluster.now - began


async def test_a_leaving_node_hands_its_entities_over() -> None:
    async with TestCluster(bus) as cluster:
        counter = cluster.client().ref(Counter, "a")
        await counter.add(2)
        home = cluster.where(Counter, "a")
        assert home is not None
        await cluster.leave(home)
        assert not home.runs
        stops, leaves = "a stops: shutdown", f"{home.name} leaves"
        assert [line for line in shop.heard if line in (stops, leaves)] == [leaves, stops]
        assert await counter.total() == 2


async def test_callbacks_of_the_application_run_on_their_node() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        assert sorted(shop.heard) == ["node1 is up", "node2 is up"]
        await cluster.leave(cluster.nodes[1])
        assert shop.heard[2:] == ["node2 leaves", "node2 is removed"]
        with pytest.raises(LocalProtocolError, match="code of the test"):
            bus.cluster.view  # noqa: B018
    with pytest.raises(LocalProtocolError, match="no node of"):
        bus.cluster.view  # noqa: B018


async def test_the_application_of_an_entity_is_that_of_its_node() -> None:
    async with TestCluster(bus) as cluster:
        client = cluster.client()
        await client.ref(Counter, "a").add(5)
        assert await client.ref(Counter, "a").copy_to("b") == 5
        node = cluster.nodes[2]
        assert await node.ref(Counter, "b").total() == 5
        await node.ref(Counter, "b").add.tell(1)
        await cluster.until(lambda: cluster.store.state(Counter, "b") == Total(6))


async def test_a_paused_node_does_nothing_and_then_all_of_it() -> None:
    async with TestCluster(bus) as cluster:
        counter = cluster.client().ref(Counter, "a")
        await counter.add(1)
        home = cluster.where(Counter, "a")
        assert home is not None
        await cluster.pause(home)
        assert home.paused
        ask = counter.add(1)
        await cluster.advance(2)
        assert cluster.store.state(Counter, "a") == Total(1)
        await cluster.resume(home)
        assert await ask == 2
        assert not home.paused
        await cluster.settle()
        assert len(cluster.nodes) == 3


async def test_what_waits_for_a_paused_process_arrives() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        first, second = cluster.nodes
        await cluster.pause(second)
        cluster.world.deliver(cluster.world.nodes["node2"], SetMeta("colour", b"red"))
        await cluster.advance(1)
        await cluster.resume(second)

        def red(node: TestNode) -> bool:
            view = cluster.world.sim_nodes[node.name].node.view
            return view is not None and dict(view.meta) == {"colour": b"red"}

        await cluster.until(lambda: red(first) and red(second))


async def test_a_node_that_is_paused_for_long_is_downed_and_ends() -> None:
    async with TestCluster(bus) as cluster:
        counter = cluster.client().ref(Counter, "a")
        await counter.add(1)
        home = cluster.where(Counter, "a")
        assert home is not None
        await cluster.pause(home)
        await cluster.settle()
        await cluster.advance(30)
        paused = next(n for n, line in enumerate(cluster.transcript) if "is paused" in line)
        assert home.name not in [line.split()[1] for line in cluster.transcript[paused + 1 :]]
        assert await counter.add(1) == 2
        await cluster.resume(home)
        await cluster.until(lambda: not home.runs)
        await cluster.settle()
        assert await counter.total() == 2


async def test_a_split_leaves_one_side() -> None:
    async with TestCluster(bus) as cluster:
        client = cluster.client()
        await asyncio.gather(*(client.ref(Counter, i).add(1) for i in IDS))
        alone, *others = cluster.nodes
        await cluster.partition([alone, "client"], others)
        assert others[0].members == ["node1", "node2", "node3"]
        await cluster.until(lambda: others[0].members == ["node2", "node3"])
        await cluster.until(lambda: not alone.runs, within=120)
        await cluster.heal()
        await cluster.settle()
        await cluster.advance(5)  # the client notices that its node is gone
        assert await asyncio.gather(*(client.ref(Counter, i).total() for i in IDS)) == [1] * 30


@pytest.mark.parametrize("kind", ["mute", "deaf", "cannot-connect", "cannot-accept"])
async def test_a_node_whose_gossip_fails_goes_and_the_others_answer(kind: str) -> None:
    async with TestCluster(bus, nodes=4) as cluster:
        client = cluster.client()
        await asyncio.gather(*(client.ref(Counter, i).add(1) for i in IDS))
        impaired, *others = cluster.nodes
        await cluster.impair(impaired, kind, channels=["gossip"])
        await cluster.until(lambda: not impaired.runs)
        await cluster.settle()
        assert cluster.nodes == others
        await cluster.advance(5)  # the client notices that its node is gone
        assert await asyncio.gather(*(client.ref(Counter, i).total() for i in IDS)) == [1] * 30


async def test_a_node_may_be_impaired_towards_one_other_and_heals() -> None:
    async with TestCluster(bus) as cluster:
        first, second, third = cluster.nodes
        await cluster.impair(first, "deaf", second, channels=["gossip"])
        await cluster.advance(2)
        await cluster.heal()
        await cluster.settle()
        assert cluster.nodes == [first, second, third]
        for kind, channels in (("blind", ["gossip"]), ("deaf", ["smoke"])):
            with pytest.raises(ConfigError, match=r"there is no"):
                await cluster.impair(first, kind, channels=channels)


async def test_an_accused_node_goes() -> None:
    async with TestCluster(bus, nodes=4) as cluster:
        *accusers, accused = cluster.nodes
        for accuser in accusers:
            await cluster.accuse(accuser, accused)
        await cluster.until(lambda: not accused.runs)
        assert cluster.nodes == accusers


async def test_a_slow_node_answers_late() -> None:
    async with TestCluster(bus, nodes=1) as cluster:
        counter, took = cluster.client().ref(Counter, "a"), []
        await counter.total()
        for factor in (1.0, 10_000.0, 1.0):
            await cluster.slow_down(cluster.nodes[0], factor)
            await cluster.advance(1)
            began = cluster.now
            for _ in range(3):
                await counter.total()
            took.append(cluster.now - began)
        assert took[1] > 5 * max(took[0], took[2])


async def test_one_node_alone_loses_the_store() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        client, homes = cluster.client(), {}
        await asyncio.gather(*(client.ref(Counter, i).add(1) for i in IDS))
        for entity_id in IDS:
            homes.setdefault(cluster.where(Counter, entity_id), entity_id)
        cut_off, fine = cluster.nodes
        await cluster.lose_store(cut_off)
        assert await client.ref(Counter, homes[fine]).add(1) == 2
        late = cluster.spawn(client.ref(Counter, homes[cut_off]).add(1))
        await cluster.advance(3)
        assert cluster.store.state(Counter, homes[cut_off]) == Total(1)
        await cluster.heal()
        assert await late == 2


async def test_a_client_is_on_a_side_only_if_it_is_named() -> None:
    async with TestCluster(bus) as cluster:
        away = await cluster.connect("away")
        await away.ref(Counter, "a").add(1)
        await cluster.partition(["away"], cluster.nodes)
        assert await cluster.client().ref(Counter, "a").add(1) == 2
        with pytest.raises(RequestError):
            await away.ref(Counter, "a").add(1)
        await cluster.heal()
        await cluster.advance(10)
        assert await away.ref(Counter, "a").total() in (2, 3)


async def test_an_upgrade_to_another_application() -> None:
    newer = ShardBus("shop")

    @newer.entity("counter", shards=12)
    class Newer(Entity):
        state: Total

        @handler
        def doubled(self) -> int:
            return self.state.value * 2

    async with TestCluster(bus, nodes=2) as cluster:
        client = cluster.client()
        await client.ref(Counter, "a").add(4)
        old = cluster.nodes
        await cluster.add(bus=newer, settings={"node.version": "2.0.0"})
        for node in old:
            await cluster.leave(node)
        assert [node.name for node in cluster.nodes] == ["node3"]
        assert await client.call("counter", "a", "doubled") == 8


async def test_a_node_with_other_shards_is_refused() -> None:
    other = ShardBus("shop")
    other.entity("counter", shards=13)(type("Other", (Anything,), {}))
    async with TestCluster(bus, nodes=1) as cluster:
        with pytest.raises(TimeoutError, match="node2 is not up"):
            await cluster.add(bus=other)


async def test_settings_and_their_errors() -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        TestCluster(bus, settings={"cluster.gosip_interval": 1}).__enter__()
    with pytest.raises(ConfigError, match="1 to 100 nodes"):
        TestCluster(bus, nodes=0)
    async with TestCluster(bus, settings={"sharding.types.counter.role": "calc"}) as cluster:
        assert await cluster.client().ref(Stock, "s").take(1) == 99
        node = await cluster.add(settings={"node.roles": ["calc"]})
        await cluster.client().ref(Counter, "a").add(1)
        assert cluster.where(Counter, "a") is node


async def test_what_a_test_may_not_do() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        first, second = cluster.nodes
        await cluster.kill(second)
        with pytest.raises(ConfigError, match="has ended"):
            await cluster.kill(second)
        with pytest.raises(ConfigError, match="still runs"):
            await cluster.add("node1")
        with pytest.raises(UnknownEntityType):
            cluster.where("nothing", "a")
        await cluster.settle()
        again = await cluster.add("node2")
        assert cluster.nodes == [first, again]
        with pytest.raises(ConfigError, match="not its latest"):
            await cluster.leave(second)
        with pytest.raises(RuntimeError, match="entered once"):
            cluster.__enter__()


async def test_fakes_run_on_every_node() -> None:
    async with TestCluster(bus, fakes={Stock: EmptyStock}) as cluster:
        with pytest.raises(OutOfStock):
            await cluster.client().ref(Order, "o").place(1)
        with pytest.raises(ConfigError, match="no entity class"):
            TestCluster(bus, fakes={int: EmptyStock}).__enter__()


# ---- the store


async def test_a_crash_between_save_and_answer() -> None:
    async with TestCluster(bus) as cluster:
        counter = cluster.client().ref(Counter, "a")
        await counter.total()
        saved, ask = cluster.store.next_save(Counter, "a"), counter.add(5)
        await saved
        home = cluster.where(Counter, "a")
        assert home is not None
        await cluster.kill(home)
        with pytest.raises(NodeLost) as lost:
            await ask
        assert not lost.value.definite
        await cluster.settle()
        assert await counter.total() == 5
        assert cluster.store.saves(Counter, "a") == 1


async def test_the_store_is_written_and_broken() -> None:
    async with TestCluster(bus) as cluster:
        counter = cluster.client().ref(Counter, "a")
        cluster.store.put(Counter, "a", Total(7))
        assert await counter.add(1) == 8
        cluster.store.stop()
        with pytest.raises((EntityFailed, AskTimeout)):
            await counter.add(1)
        assert cluster.store.state(Counter, "a") == Total(8)
        cluster.store.start()
        cluster.store.slow(1.0)
        began = cluster.now
        assert await counter.within(60.0).add(1) == 9
        assert cluster.now - began > 0.1
        cluster.store.lose()
        assert cluster.store.state(Counter, "a") is None
        cluster.store.start()
        cluster.store.fail(1.0)
        with pytest.raises(RequestError):
            await counter.add(1)
        with pytest.raises(ConfigError):
            cluster.store.put(Counter, "", Total(1))


# ---- time, and the code of the test


async def test_time_passes_only_while_the_test_waits() -> None:
    async with TestCluster(bus) as cluster:
        began = cluster.now
        await asyncio.sleep(0)
        assert cluster.now == began
        await cluster.advance(60)
        assert cluster.now == pytest.approx(began + 60)


async def test_a_coroutine_of_the_test_runs_in_virtual_time() -> None:
    async with TestCluster(bus) as cluster:
        client, times = cluster.client(), []

        async def customer() -> int:
            for _ in range(5):
                await client.ref(Counter, "a").add(1)
                times.append(cluster.now)
                await asyncio.sleep(10)
            return len(times)

        spawned = cluster.spawn(customer())
        await cluster.advance(25)
        assert len(times) == 3
        assert not spawned.done()
        assert await spawned == 5
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None):
                await cluster.until(lambda: False, within=5)


async def test_an_unawaited_failure_ends_the_test() -> None:
    async def fails() -> None:
        raise ValueError("not seen")

    with pytest.raises(ValueError, match="not seen"):  # noqa: PT012
        async with TestCluster(bus) as cluster:
            cluster.spawn(fails())
            await cluster.advance(1)
    async with TestCluster(bus) as cluster:
        with pytest.raises(ValueError, match="not seen"):
            await cluster.spawn(fails())
        cancelled = cluster.spawn(asyncio.sleep(3600))
        assert cancelled.cancel()


def test_a_cluster_without_a_loop() -> None:
    with TestCluster(bus) as cluster:
        client = cluster.client()
        assert cluster.run(client.ref(Counter, "a").add(2)) == 2

        async def twice() -> int:
            other = await cluster.connect("other")
            with pytest.raises(RuntimeError, match="await it instead"):
                cluster.client("third")
            await asyncio.sleep(5)
            await cluster.kill(cluster.nodes[0])
            await cluster.settle()
            return await other.ref(Counter, "a").total()

        assert cluster.run(twice()) == 2
        assert cluster.client("third") is cluster.client("third")


async def test_the_client_is_whole() -> None:
    async with TestCluster(bus) as cluster:
        client = cluster.client()
        await client.tell("counter", "a", "add", 1)
        await client.tell_many("counter", [("a", "total")])
        await client.flush()
        client.ref(Counter, "a").add.tell_nowait(2)
        assert await client.call("counter", "a", "total") == 3
        assert await client.ask("counter", "a", "total", timeout=2.0) == 3
        assert client.buffered == 0
        assert "counter" in repr(client.ref(Counter, "a"))
        assert client.contact is not None
        async with await cluster.connect("other") as other:
            assert await other.ref(Counter, "a").within(3.0).total() == 3
        with pytest.raises(LocalProtocolError):
            await other.flush()


# ---- failures and seeds


async def test_a_failure_names_its_seed() -> None:
    with pytest.raises(AssertionError) as failed:  # noqa: PT012
        async with TestCluster(bus, nodes=2, seed=4711) as cluster:
            await cluster.kill(cluster.nodes[0])
            raise AssertionError("wrong")
    [note] = failed.value.__notes__
    assert "TestCluster(shop, nodes=2, seed=4711)" in note
    assert "node1    is killed" in note


async def test_a_cluster_that_does_not_settle_says_why() -> None:
    async with TestCluster(bus, nodes=2) as cluster:
        await cluster.kill(cluster.nodes[1], machine=True)
        with pytest.raises(TimeoutError, match=r"node1 sees \[.*\], and node1 run, after 1 s"):
            await cluster.settle(within=1)


async def test_code_that_fails_in_a_node_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Careless(Entity):
        @handler
        def begin(self) -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(1, lambda: 1 / 0)

    app = ShardBus("careless")
    app.entity()(Careless)
    async with TestCluster(app, nodes=1) as cluster:
        await cluster.client().ref(Careless, "a").begin()
        with caplog.at_level(logging.ERROR):
            await cluster.advance(2)
        assert "ZeroDivisionError" in caplog.text


def test_a_coroutine_in_a_killed_process_does_not_go_on() -> None:
    ends: list[str] = []

    class Held(Entity):
        @handler
        async def hold(self) -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                ends.append("finally")
                await asyncio.sleep(1)

    app = ShardBus("held")
    app.entity()(Held)
    with TestCluster(app, nodes=2) as cluster:
        ask = cluster.client().ref(Held, "a").within(7200.0).hold()
        cluster.run(cluster.advance(1))
        home = cluster.where(Held, "a")
        assert home is not None
        cluster.run(cluster.kill(home))
        with pytest.raises(NodeLost):
            cluster.run(ask)
        cluster.run(cluster.advance(30))
        assert ends == []
    assert ends == ["finally"]


SCENARIO = """
import asyncio, sys
from shardbus.testing import TestCluster, TestNode
from tests.unit.testing.shop import Counter, bus

async def main(seed):
    async with TestCluster(bus, nodes=3, seed=seed) as cluster:
        client = cluster.client()
        asks = [client.ref(Counter, f"c{n}").add(n) for n in range(20)]
        await asyncio.gather(*asks)
        await cluster.kill(cluster.nodes[0])
        await cluster.settle()
        await asyncio.gather(*(client.ref(Counter, f"c{n}").add(n) for n in range(20)))
        await cluster.leave(cluster.nodes[0])
        await cluster.advance(20)
        print(cluster.now, cluster.digest, *cluster.transcript, sep="\\n")

asyncio.run(main(int(sys.argv[1])))
"""


def transcript(seed: int, hash_seed: int) -> str:
    run = subprocess.run(
        [sys.executable, "-c", SCENARIO, str(seed)],
        cwd=ROOT,
        env={"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.long
def test_a_seed_has_one_transcript() -> None:
    first = transcript(7, hash_seed=1)
    assert first.count("\n") > 50
    assert transcript(7, hash_seed=2) == first
    assert transcript(8, hash_seed=1) != first


async def test_a_minute_of_three_nodes_is_little_work() -> None:
    """The time that it takes is not judged here; the cause is."""
    async with TestCluster(bus, nodes=3) as cluster:
        actions = 0
        step = cluster.world.step

        def counted() -> None:
            nonlocal actions
            actions += 1
            step()

        cluster.world.step = counted  # type: ignore[method-assign]
        await cluster.advance(60)
        assert 1_000 < actions < 60_000


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("which", ["oldest", "newest"])
async def test_a_node_that_hosts_nothing_leaves_within_a_second(nodes: int, which: str) -> None:
    async with TestCluster(bus, nodes=nodes) as cluster:
        cluster.client()  # it stays connected, and requests nothing
        await cluster.advance(1)
        node = cluster.nodes[0 if which == "oldest" else -1]
        began = cluster.now
        await cluster.leave(node)
        assert cluster.now - began < 1.0


async def test_a_client_lists_what_is_stored_and_calls_each() -> None:
    async with TestCluster(bus, nodes=2, seed=7) as cluster:
        client = cluster.client()
        for entity_id in IDS[:5]:
            await client.ref(Counter, entity_id).add(1)
        assert sorted([key async for key in client.stored(Counter)]) == IDS[:5]
        assert (await client.for_each(Counter, "add", 10, rate=100)).done == 5
        assert await client.ref(Counter, IDS[3]).total() == 11


async def test_a_fake_lives_where_the_type_lives_that_it_stands_for() -> None:
    """Types that live within that one are there, too."""
    nested = ShardBus("nested")

    @nested.entity("order", shards=3)
    class Order(Entity):
        @handler
        async def add(self) -> int:
            added: int = await self.context.child(Item, "x").add()
            return added

    @nested.entity("item", within=Order)
    class Item(Entity):
        @handler
        def add(self) -> int:
            return 1

    @nested.entity("part", within=Item)
    class Part(Entity):
        @handler
        def get(self) -> int:
            return 7

    class FakeItem(Entity):
        @handler
        def add(self) -> int:
            return 99

    async with TestCluster(nested, nodes=1, fakes={Item: FakeItem}) as cluster:
        client = cluster.client()
        assert await client.ref(Order, "7").add() == 99
        assert await client.ref(Part, "7/x/p").get() == 7


@dataclass
class Hits:
    n: int = 0


async def test_the_states_of_a_type_within_another_expire_too() -> None:
    nested = ShardBus("expiring")

    @nested.entity("order", shards=3, state_ttl=5.0, passivate_after=1)
    class Order(Entity):
        state: Hits

        @handler
        async def add(self) -> None:
            self.state.n += 1
            await self.save()

    @nested.entity("item", within=Order, state_ttl=5.0, passivate_after=1)
    class Item(Entity):
        state: Hits

        @handler
        async def add(self) -> None:
            self.state.n += 1
            await self.save()

    async with TestCluster(nested, nodes=2) as cluster:
        client = cluster.client()
        await client.ref(Order, "7").add()
        await client.ref(Item, "7/a").add()
        assert cluster.store.state(Item, "7/a") is not None
        await cluster.advance(60)
        assert cluster.store.state(Order, "7") is None
        assert cluster.store.state(Item, "7/a") is None


async def test_a_flush_does_not_wait_for_an_ask_that_has_ended_without_a_home() -> None:
    nested = ShardBus("homeless")

    @nested.entity("page", role="nobody")
    class Page(Entity):
        @handler
        def hit(self, n: int) -> int:
            return n

    async with TestCluster(nested, nodes=1) as cluster:
        client = cluster.client()
        with pytest.raises(AskTimeout):
            await client.ref(Page, "a").within(3).hit(1)
        await client.flush()
        await client.ref(Page, "a").hit.tell(2)
        flushing = cluster.spawn(client.flush())
        await cluster.advance(10)
        assert not flushing.done(), "the tell waits"
        flushing.cancel()
