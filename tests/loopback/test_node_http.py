"""The answers of nodes over HTTP: the shapes of the public JSON, probes and metrics."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shardbus import AskTimeout, ConfigError, Entity, Refused, ShardBus, UnknownEntityType, handler
from shardbus.admin.administration import Administration
from shardbus.admin.metric_catalogue import METRICS, PREFIX, Group
from shardbus.admin.pages import entities as entity_pages
from shardbus.admin.pages import health
from shardbus.ids import NodeId
from shardbus.node.node import Node
from shardbus.task_set import TaskSet
from tests import laws
from tests.loopback.nodes import Nodes, http
from tests.unit.declaring import Anything
from tests.waiting import until

IDS = [f"page-{i}" for i in range(40)]


def application() -> ShardBus:
    bus = ShardBus("shop")

    @bus.entity("counter", shards=6)
    class Counter(Entity):
        @handler
        def add(self, amount: int = 1) -> int:
            return amount

        @handler
        def fail(self) -> None:
            raise ValueError

    return bus


async def get(node: Node, path: str, status: int = 200) -> Any:
    async with http(node) as client:
        answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


async def two(nodes: Nodes) -> list[Node]:
    """Two nodes and entities on both; only the first has ever sent a message."""
    pair = await nodes.cluster(application(), 2)
    for i in IDS:
        await pair[0].ref("counter", i).add(1)
    return pair


async def test_the_cluster(nodes: Nodes) -> None:
    first, second = await two(nodes)
    for node in (first, second):
        await until(lambda node=node: node.view and node.view.converged, "convergence")
        said = await get(node, "/v1/cluster")
        epoch = said["coordinators"]["counter"].pop("epoch")
        assert epoch >= 1
        assert min(said.pop("status_for"), said.pop("converged_for")) >= 0
        assert said == {
            "cluster": "shop",
            "self": str(node.me),
            "status": "up",
            "leader": str(min(first.me, second.me)),
            "oldest": str(first.me),
            "converged": True,
            "members": 2,
            "unreachable": [],
            "coordinators": {"counter": {"node": str(first.me)}},
            "suspended": None,
            "other_clusters": [],
            "rival": None,
            "voters": None,
            "stopping": None,
        }


async def test_the_nodes(nodes: Nodes) -> None:
    pair = await two(nodes)
    said = (await get(pair[1], "/v1/nodes"))["nodes"]
    assert {row["node"] for row in said} == {str(node.me) for node in pair}
    for row in said:
        [node] = [node for node in pair if str(node.me) == row["node"]]
        host = node.regions["counter"].host
        assert row.pop("status_for") >= 0
        assert row == {
            "node": str(node.me),
            "address": str(node.me.address),
            "http": "127.0.0.1:0",
            "status": "up",
            "service": "open",
            "reachable": True,
            "answered": True,
            "suspended": None,
            "roles": [],
            "shards": {"counter": len(host.shards)},
            "entities": {"counter": host.entities},
            "state_bytes": {},
            "version": "0.0.0",
            "zone": "",
            "oldest": node is pair[0],
            "leader": node.me == min(n.me for n in pair),
        }
    assert sum(row["entities"]["counter"] for row in said) == len(IDS)
    assert sum(row["shards"]["counter"] for row in said) == 6


async def test_any_node_knows_which_node_is_suspended_and_why(nodes: Nodes) -> None:
    first, second = await two(nodes)
    there = [i for i in IDS if i in second.regions["counter"].host.active]
    second.gate.suspended("no consent of 10.0.0.9:1#7")
    for asker in (first, second):
        rows = {row["node"]: row for row in (await get(asker, "/v1/nodes"))["nodes"]}
        assert rows[str(first.me)]["suspended"] is None
        assert "suspended, because no consent of" in rows[str(second.me)]["suspended"]

        async def answered(node: Node = asker) -> Any:
            """The home's answer may be too late for the page, which then has no `suspended`."""
            page = await get(node, f"/v1/explain/counter/{there[0]}")
            return page if page["suspended"] else None

        said = await until(answered, "a page with the answer of the home")
        assert "suspended, because no consent of 10.0.0.9:1#7" in said["suspended"]
        place = "this node" if asker is second else str(second.me)
        assert f"its home is {place}, which is suspended, because" in said["why"]
    second.gate.resumed()
    said = await get(first, f"/v1/explain/counter/{there[0]}")
    assert said["suspended"] is None
    assert said["why"] == "the home is known, messages go there directly"


async def test_the_types(nodes: Nodes) -> None:
    pair = await two(nodes)
    [row] = (await get(pair[1], "/v1/types"))["types"]
    assert (row["type"], row["shards"], row["layout"]) == ("counter", 6, "crc32/6")
    assert row["coordinator"] == str(pair[0].me)
    assert row["active_entity_limit"] == 0
    assert row["entities_here"] == pair[1].regions["counter"].host.entities


async def test_B85_a_limit_is_set_on_one_node_on_all_and_from_inside(nodes: Nodes) -> None:
    pair = await two(nodes)
    hosts = [node.regions["counter"].host for node in pair]
    before = [host.entities for host in hosts]
    assert min(before) > 4
    admin = Administration(pair[0])
    said = await entity_pages.set_limit(admin, "counter", 4, str(pair[1].me.address))
    assert [row["node"] for row in said["nodes"]] == [str(pair[1].me)]  # type: ignore[attr-defined]
    await until(lambda: hosts[1].entities == 4, "few entities on one")
    assert hosts[0].entities == before[0]
    await entity_pages.set_limit(admin, "counter", 3, None)
    await until(lambda: [host.entities for host in hosts] == [3, 3], "few on both")
    answers = [await pair[0].ref("counter", i).add(5) for i in IDS]
    assert answers == [5] * len(IDS)
    await until(lambda: [host.entities for host in hosts] == [3, 3], "few on both, again")
    said = await get(pair[1], "/v1/limit/counter")
    rows = {row["node"]: row for row in said.pop("nodes")}
    assert said == {"type": "counter", "strategy": "lru", "silent": []}
    for node, host in zip(pair, hosts, strict=True):
        row = {"node": str(node.me), "limit": 3, "entities": 3, "evicted": host.passivator.evicted}
        assert rows[str(node.me)] == row
    pair[0].set_active_entity_limit("counter", 0)
    assert [host.passivator.limit for host in hosts] == [0, 3]


async def test_a_limit_that_cannot_be_is_refused_and_who_is_silent_is_named(nodes: Nodes) -> None:
    bus = application()
    bus.entity("meter", remember=True)(type("Meter", (Anything,), {}))
    bus.entity("gpu", role="gpu")(type("Gpu", (Anything,), {}))
    bus.attach(node := await nodes.start(bus))
    admin = Administration(node)
    with pytest.raises(Refused, match="remembered"):
        await entity_pages.set_limit(admin, "meter", 5, None)
    with pytest.raises(Refused, match="remembered"):
        bus.set_active_entity_limit("meter", 5)
    with pytest.raises(Refused, match="hosts no 'gpu'"):
        await entity_pages.set_limit(admin, "gpu", 5, "self")
    assert (await entity_pages.limits(admin, "gpu"))["nodes"] == []
    with pytest.raises(UnknownEntityType):
        await entity_pages.limits(admin, "nothing")
    with pytest.raises(UnknownEntityType):
        bus.set_active_entity_limit("nothing", 5)
    with pytest.raises(ConfigError, match="no member"):
        await entity_pages.set_limit(admin, "counter", 5, "10.0.0.1:1")
    with pytest.raises(ConfigError, match="active_entity_limit"):
        bus.set_active_entity_limit("counter", -1)
    bus.set_active_entity_limit("counter", 7)
    assert node.regions["counter"].host.passivator.limit == 7

    async def nobody(*asked: object, of: str) -> dict[NodeId, object]:
        return {}

    node.rpc.ask_all = nobody  # type: ignore[method-assign]
    said = await entity_pages.set_limit(admin, "counter", 5, None)
    assert (said["nodes"], said["silent"]) == ([], [str(node.me)])


async def test_the_shards(nodes: Nodes) -> None:
    pair = await two(nodes)
    for node in pair:
        said = await get(node, "/v1/shards/counter")
        pace = {
            "paused": False,
            "held": "",
            "moving": 0,
            "moves_at_a_time": 16,
            "load_unit": "messages/s",
        }
        assert set(said) == {"type", "coordinator", "epoch", "complete", "shards", *pace}
        assert {name: said[name] for name in pace} == pace
        assert (said["type"], said["coordinator"]) == ("counter", str(pair[0].me))
        assert [row["shard"] for row in said["shards"]] == [str(i) for i in range(6)]
        for row in said["shards"]:
            assert set(row) == {"shard", "node", "state", "fence", "entities", "load", "age"}
            assert row["state"] == "running"
            [host] = [n for n in pair if str(n.me) == row["node"]]
            hosted = host.regions["counter"].host.shards[row["shard"]]
            assert (row["fence"], row["entities"]) == (hosted.fence, hosted.live)
    await get(pair[0], "/v1/shards/nothing", 404)


async def test_every_node_knows_where_an_entity_is(nodes: Nodes) -> None:
    pair = await two(nodes)
    for i in IDS:
        [host] = [node for node in pair if node.regions["counter"].host.active.get(i)]
        shard = host.regions["counter"].router.shard_of(i)
        for node in pair:
            assert await get(node, f"/v1/where/counter/{i}") == {
                "type": "counter",
                "id": i,
                "shard": shard,
                "node": str(host.me),
                "state": "running",
                "running": True,
            }
    entity_id = IDS[0]
    said = await get(pair[1], f"/v1/explain/counter/{entity_id}")
    assert said["node"] == (await get(pair[0], f"/v1/where/counter/{entity_id}"))["node"]
    await get(pair[0], "/v1/where/nothing/x", 404)


async def test_an_entity_that_sleeps_has_a_home_and_does_not_run(nodes: Nodes) -> None:
    pair = await two(nodes)
    said = await get(pair[1], "/v1/where/counter/never-used")
    assert (said["running"], said["state"]) == (False, "running")
    assert said["node"] in {str(node.me) for node in pair}


async def test_a_shard_without_a_home_is_unallocated(nodes: Nodes) -> None:
    [node] = await nodes.cluster(application(), 1)
    said = await get(node, "/v1/where/counter/x")
    assert (said["node"], said["state"], said["running"]) == (None, "unallocated", False)


async def test_entities_come_in_pages(nodes: Nodes) -> None:
    pair = await two(nodes)
    entities: list[dict[str, str]] = []
    cursor = ""
    for _ in range(10):
        page = await get(pair[1], f"/v1/entities/counter?limit=7{cursor}")
        entities += page["entities"]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert [row["id"] for row in entities] == sorted(IDS)
    assert set(entities[0]) == {"id", "shard", "node"}
    page_39 = await get(pair[0], "/v1/entities/counter?prefix=page-39")
    assert [row["id"] for row in page_39["entities"]] == ["page-39"]
    shard = entities[0]["shard"]
    same = await get(pair[0], f"/v1/entities/counter?shard={shard}")
    assert {row["shard"] for row in same["entities"]} == {shard}


async def test_a_node_is_not_ready_before_it_is_up(nodes: Nodes) -> None:
    bus = application()
    first = await nodes.start(bus)
    assert (await get(first, "/readyz"))["status"] == "ok"
    lonely = Nodes()
    async with lonely:
        lonely.all = []
        alone = await lonely.start(bus, up=False)
        alone_view = alone.view
        if alone_view is None:
            said = await get(alone, "/readyz", 503)
            assert said["checks"]["membership"] == {"ok": False, "detail": "joining"}
        assert (await get(alone, "/livez"))["status"] == "ok"
        await until(lambda: alone.members.is_up, "up")


async def test_a_node_that_leaves_is_not_ready(nodes: Nodes) -> None:
    pair = await two(nodes)
    await nodes.leave(pair[1])
    said = await get(pair[1], "/readyz", 503)
    assert said["checks"]["membership"]["ok"] is False
    await get(pair[1], "/livez", 503)
    assert (await get(pair[0], "/readyz"))["status"] == "ok"


SERIES = {
    "counter": [
        "messages_received",
        "messages_forwarded",
        "messages_accepted",
        "messages_delivered",
        "messages_dropped",
        "asks_timed_out",
        "entities_started",
        "entities_stopped",
        "entity_failures",
        "entities_evicted",
        "entities_cut_off",
        "handoffs",
        "store_errors",
    ],
    "gauge": [
        "loop_lag_seconds",
        "entities",
        "active_entity_limit",
        "shards",
        "buffered_messages",
        "waiting_messages",
        "members",
        "coordinator_epoch",
        "build_info",
    ],
}


QUIET = {
    "messages_refused", "asks_hedged", "messages_rerouted", "deliveries_not_handled", "phi",
    "pod_deletion_cost",
}  # fmt: skip
"""Metrics whose samples begin with the first occurrence, or later than the node."""


async def test_metrics_have_the_names_and_kinds_of_the_api(nodes: Nodes) -> None:
    pair = await two(nodes)
    async with http(pair[0]) as client:
        answer = await client.get("/metrics")
    assert answer.status_code == 200
    families = {f.name: f for f in text_string_to_metric_families(answer.text)}
    missing = {
        name
        for kind, names in SERIES.items()
        for name in names
        if f"shardbus_{name}" not in families or families[f"shardbus_{name}"].type != kind
    }
    assert missing == set()
    samples = [sample for family in families.values() for sample in family.samples]
    assert not any("entity_id" in sample.labels for sample in samples)
    assert {name: family.type for name, family in families.items()} == {
        f"{PREFIX}{declared.name}": declared.kind.value for declared in METRICS
    }
    for declared in METRICS:
        for sample in families[f"{PREFIX}{declared.name}"].samples:
            assert sample.labels.keys() - {"le"} == set(declared.labels), declared.name
    groups = (Group.MESSAGES, Group.CLUSTER, Group.NODE)
    expected = {m.name for m in METRICS if m.group in groups} - QUIET
    assert {name for name in expected if not families[f"{PREFIX}{name}"].samples} == set()
    assert {(s.labels["status"], s.value) for s in families["shardbus_members"].samples} == {
        ("up", 2)
    }


async def test_B150_latencies_of_handlers_mailboxes_homes_and_asks_count_every_message(
    nodes: Nodes,
) -> None:
    """With few messages every run is sampled, so the estimates are the counts."""
    bus = application()
    pair = await nodes.cluster(bus, 2)
    for n in range(40):
        assert await pair[0].ref("counter", f"c{n}").add(1) == 1
    totals = await exposed(pair)
    for name in ("handler_duration", "mailbox_wait", "ask_duration"):
        assert totals[f"shardbus_{name}_seconds_count"] == 40, name
    assert totals["shardbus_messages_sent_total"] == 40
    assert totals["shardbus_shard_home_latency_seconds_count"] >= 6
    assert totals["shardbus_ask_duration_seconds_sum"] > 0


async def test_B150_an_ask_that_finds_no_home_in_time_has_a_duration(nodes: Nodes) -> None:
    bus = application()
    [node] = await nodes.cluster(bus, 1, role="nowhere")
    with pytest.raises(AskTimeout):
        await node.ref("counter", "a").within(0.2).add(1)
    totals = await exposed([node])
    assert totals["shardbus_ask_duration_seconds_count"] == 1
    assert totals["shardbus_ask_duration_seconds_sum"] >= 0.2


async def exposed(among: list[Node], entity_type: str = "counter") -> dict[str, float]:
    """The samples of one type, summed over the nodes and over other labels."""
    totals: dict[str, float] = {}
    for node in among:
        async with http(node) as client:
            text = (await client.get("/metrics")).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.labels.get("entity_type") == entity_type:
                    totals[sample.name] = totals.get(sample.name, 0) + sample.value
    return totals


async def test_metrics_count_what_happened(nodes: Nodes) -> None:
    pair = await two(nodes)
    with pytest.raises(Exception, match="ValueError"):
        await pair[0].ref("counter", IDS[0]).fail()
    totals = await exposed(pair)
    host = [node.regions["counter"].host for node in pair]
    assert totals["shardbus_messages_received_total"] == len(IDS) + 1
    assert totals["shardbus_entity_failures_total"] == 1
    assert totals["shardbus_entities"] == len(IDS)
    assert totals["shardbus_entities_started_total"] == len(IDS) + 1  # one started again
    assert totals["shardbus_shards"] == sum(len(h.shards) for h in host)


async def test_the_checkup_collects_what_each_member_and_the_store_say(nodes: Nodes) -> None:
    first, second = await two(nodes)
    page = await get(first, "/v1/checkup")
    rows = {row["node"]: row for row in page["members"]}
    assert set(rows) == {str(first.me), str(second.me)}
    shards = [row["types"]["counter"]["shards"] for row in rows.values()]
    assert sorted(shard for parts in shards for shard in parts) == list("012345")
    for row in rows.values():
        assert row["answered"]
        assert row["types"]["counter"]["registered"]
        assert row["types"]["counter"]["coordinator"] == str(first.me)
        assert row["store_silent_ago"] is None
        assert row["settings"]["cluster.gossip_interval"] == "0.1"
        assert page["time"]["asked"] <= row["time"] <= page["time"]["answered"]
    assert page["store"]["answers"]
    assert page["store"]["tables"]["counter"] == {"epoch": 1, "shards": 6, "dropped": []}


async def test_the_checkup_says_that_the_store_does_not_answer(nodes: Nodes) -> None:
    first, _ = await two(nodes)
    await first.store.close()
    page = await get(first, "/v1/checkup")
    assert not page["store"]["answers"]
    assert "not open" in page["store"]["error"]


async def test_N13_explain_tells_what_became_of_a_shard_and_of_its_entities(nodes: Nodes) -> None:
    bus = application()
    [first] = await nodes.cluster(bus, 1)
    entity_id = IDS[0]
    shard = first.regions["counter"].router.shard_of(entity_id)
    await first.ref("counter", entity_id).add(1)
    second = await nodes.start(bus)
    await nodes.agree(2)
    [born] = (await get(second, f"/v1/explain/counter?shard={shard}"))["history"][:1]
    assert (born["from"], born["to"], born["why"]) == (None, str(first.me), "asked")
    for i in IDS:
        await second.ref("counter", i).add(1)
    await nodes.leave(first)
    said = await get(second, f"/v1/explain/counter?shard={shard}")
    assert (said["node"], said["state"]) == (str(second.me), "running")
    entity = await get(second, f"/v1/explain/counter/{entity_id}")
    assert entity["history"] == said["history"] == [], "it is a new coordinator's"
    third = await nodes.start(bus)
    await nodes.agree(2)
    there = third.regions["counter"].host.shards
    await until(lambda: len(there) == 3, "the balance")
    ways = [str(second.me), str(third.me), "rebalance"]
    for moved in there:
        page = await get(third, f"/v1/explain/counter?shard={moved}")
        [move] = page["history"]
        assert [move["from"], move["to"], move["why"]] == ways
        assert (move["epoch"], move["fence"]) == (page["epoch"], page["fence"])
    name = "shardbus_handoff_duration_seconds"
    text = (await health.metrics(Administration(second))).body.decode()
    assert f'{name}_bucket{{entity_type="counter",le="+Inf"}} 3.0' in text
    assert f'{name}_count{{entity_type="counter"}} 3.0' in text
    assert 'shardbus_rebalances_total{entity_type="counter"} 3.0' in text
    for page in ("explain", "entities"):
        await get(second, f"/v1/{page}/counter?shard=nothing", 400)
    await get(second, f"/v1/entities/counter?shard={shard}")


async def test_a_node_with_a_failed_task_lives_and_is_not_ready(nodes: Nodes) -> None:
    """A restart would move every entity for one lost task, and a defect that all nodes have would
    end the cluster: so the node goes on, and a roll-out stops."""
    [node] = await nodes.cluster(application(), 1)
    assert "tasks" not in (await get(node, "/readyz"))["checks"]

    async def defective() -> None:
        raise OverflowError("planted")

    TaskSet().spawn(defective(), node.loop)
    await until(lambda: node.failed_tasks == 1, "the failed task")
    said = await get(node, "/readyz", 503)
    assert said["checks"]["tasks"] == {
        "ok": False,
        "detail": "1 task of this node failed: see its log",
    }
    await get(node, "/livez")
    assert await node.ref("counter", "a").add(3) == 3
    async with http(node) as client:
        assert "shardbus_tasks_failed_total 1.0" in (await client.get("/metrics")).text
    laws.forget()


async def test_every_node_knows_how_busy_the_others_are(nodes: Nodes) -> None:
    first, second = await two(nodes)
    names = {str(first.me), str(second.me)}

    async def known() -> bool:
        watching = first.membership.runner
        if watching is None or watching.overview.vitals.keys() != {first.me, second.me}:
            return False
        page = await get(first, "/v1/load")
        return {row["node"] for row in page["nodes"] if row["rss"] > 0} == names

    await until(known, "figures of both nodes")
