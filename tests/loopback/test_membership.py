"""Membership as an application and an operator meet it: events, callbacks, meta, quarantine, the
stop of a whole cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shardbus import ConfigError, Entity, LocalProtocolError, ShardBus, StopReason, handler
from shardbus.admin.administration import Administration
from shardbus.admin.pages import members as member_pages
from shardbus.admin.pages import shards as shard_pages
from shardbus.cluster import (
    Cluster,
    MemberJoined,
    MemberRemoved,
    MembershipView,
    MemberUp,
    MetaChanged,
    QuarantinedMember,
    Service,
    Subscription,
    UnreachableMember,
)
from shardbus.config.settings import DowningSettings, NodeSettings, Settings, StoreSettings
from shardbus.errors import NodeLost, Refused
from shardbus.membership import events as ev
from shardbus.membership import other_clusters
from shardbus.membership.admission import cookie_of
from shardbus.membership.member import Member, Status
from shardbus.membership.messages import (
    PROTOCOL,
    Greeting,
    Heartbeat,
    InitJoin,
    InitNack,
    Join,
    JoinRefused,
)
from shardbus.node import shutdown
from shardbus.node.node import Node
from shardbus.node.subscriptions import QUEUE_MAX, Subscriptions
from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.wire.batch import FrameType, MembershipFrame, encode_body, read_header
from shardbus.wire.gossip import encode
from tests.loopback.nodes import QUICK, Nodes, http
from tests.ports import free_port
from tests.records import replace
from tests.waiting import PATIENCE_S, until

STOPS: list[StopReason] = []


def application() -> ShardBus:
    bus = ShardBus("shop")

    @bus.entity("counter", shards=6)
    class Counter(Entity):
        async def on_stop(self, reason: StopReason) -> None:
            STOPS.append(reason)

        @handler
        def add(self, amount: int) -> int:
            return amount

        @handler
        def size(self, text: str) -> int:
            return len(text)

    return bus


async def test_a_node_that_listens_and_does_not_join_yet_takes_no_question() -> None:
    """Others that have it among their seeds may ask so early. They ask again."""
    node_settings = NodeSettings(port=free_port(), gossip_port=free_port())
    node = Node("shop", {}, Settings(node=node_settings), MemoryStore(MemoryData()))
    await node.start()
    ask = encode(InitJoin(Greeting("shop", 1, {})))
    node.endpoint.on_membership(node.me, encode_body(MembershipFrame(node.me, ask)))
    assert node.endpoint.dropped_frames == {"early": 1}
    await node.close()


async def test_a_node_takes_requests_of_others_and_answers_only_where_it_asked(
    nodes: Nodes,
) -> None:
    [node] = await nodes.cluster(application(), 1)
    peer = node.me._replace(uid=7)
    greeting = Greeting("shop", PROTOCOL, {})
    at, before = peer.address, dict(node.endpoint.dropped_frames)
    for message, question in (
        (JoinRefused("forged"), None),
        (InitNack(), None),
        (InitJoin(greeting), at),
        (Heartbeat(1, 1.0), None),
    ):
        node._on_membership(peer, encode(message), question)
    node._on_membership(peer, encode(InitNack()), at)
    after = {r: n - before.get(r, 0) for r, n in node.endpoint.dropped_frames.items()}
    assert (after["not_allowed"], after["early"]) == (4, 1)


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    STOPS.clear()
    async with Nodes() as nodes:
        yield nodes


async def collect(events: Subscription, last: type) -> list[object]:
    """The events until an event of that kind has come."""
    seen: list[object] = []
    async with asyncio.timeout(PATIENCE_S):
        async for event in events:
            seen.append(event)
            if isinstance(event, last):
                break
    return seen


# -- events and callbacks --------------------------------------------------------------------------


async def test_B20_TC24_events_begin_with_a_picture_and_leave_nothing_out(nodes: Nodes) -> None:
    bus = application()
    first = await nodes.start(bus)
    events = first.subscriptions.subscribe()
    second = await nodes.start(bus)
    story = await collect(events, MemberUp)
    assert isinstance(story[0], MembershipView)
    assert [m.node for m in story[0].members] == [first.me]
    about = [e for e in story[1:] if isinstance(e, MemberJoined | MemberUp)]
    assert {e.member.node for e in about} == {second.me}
    assert [type(e) for e in about] in ([MemberUp], [MemberJoined, MemberUp])
    await nodes.leave(second)
    last = (await collect(events, MemberRemoved))[-1]
    assert isinstance(last, MemberRemoved)
    assert last.member.node == second.me
    events.close()
    assert [e async for e in events if isinstance(e, MembershipView)] == []


async def test_B20_whoever_listens_later_gets_the_picture_of_then(nodes: Nodes) -> None:
    bus = application()
    pair = await nodes.cluster(bus, 2)
    events = pair[0].subscriptions.subscribe()
    picture = await anext(events)
    assert isinstance(picture, MembershipView)
    assert {m.node for m in picture.members} == {node.me for node in pair}


async def test_B20_a_slow_listener_finds_a_new_picture_and_costs_a_bounded_queue(
    nodes: Nodes,
) -> None:
    node = await nodes.start(application())
    events = node.subscriptions.subscribe()
    await anext(events)
    for i in range(3 * QUEUE_MAX):
        events.put(MetaChanged("x", b"%d" % i))
    node.subscriptions.forget(events)
    events.end()
    rest = [event async for event in events]
    assert len(rest) <= QUEUE_MAX
    assert isinstance(rest[0], MembershipView)
    assert rest[-1] == MetaChanged("x", b"%d" % (3 * QUEUE_MAX - 1))


async def test_B21_callbacks_come_once_at_their_moment_and_late_ones_at_once(nodes: Nodes) -> None:
    bus, said = application(), []

    @bus.on_member_up
    async def up() -> None:
        said.append(("up", bus.cluster.view.status))

    bus.on_member_removed(lambda: said.append(("removed", None)))
    bus.on_member_removed(lambda: 1 / 0)  # a callback that fails hurts nobody
    node = await nodes.start(bus, up=False)
    bus.attach(node)
    await until(lambda: said, "the callback")
    bus.on_member_up(lambda: said.append(("late", None)))
    await until(lambda: len(said) == 2, "the late callback")
    assert said == [("up", Status.UP), ("late", None)]
    await shutdown.leave(node, lambda text: None)
    await node.subscriptions.end(PATIENCE_S)
    assert said[2:] == [("removed", None)]


async def test_B21_a_callback_that_does_not_end_is_not_waited_for() -> None:
    from shardbus.ids import NodeId

    subscriptions = Subscriptions(NodeId("n", 1, 1))
    subscriptions.when_removed(asyncio.Event().wait)
    async with asyncio.timeout(PATIENCE_S):
        await subscriptions.end(0.01)


async def test_the_cluster_needs_a_node_in_this_process() -> None:
    with pytest.raises(LocalProtocolError, match="no node of 'shop' runs"):
        _ = application().cluster


async def test_B30_until_waits_for_a_picture(nodes: Nodes) -> None:
    bus = application()
    node = await nodes.start(bus)
    cluster = Cluster(node)
    view = await cluster.until(lambda view: view.converged)
    assert view.converged
    with pytest.raises(TimeoutError):
        await cluster.until(lambda view: len(view.members) > 1, timeout=0.01)
    waiting = asyncio.ensure_future(cluster.until(lambda view: len(view.members) > 1))
    await asyncio.sleep(0)
    await node.subscriptions.end(1.0)
    with pytest.raises(NodeLost):
        await waiting


async def test_S3_34_what_one_node_writes_every_node_sees(nodes: Nodes) -> None:
    pair = await nodes.cluster(application(), 2)
    clusters = [Cluster(node) for node in pair]
    clusters[0].set_meta("mode", b"night")
    await until(lambda: clusters[1].meta == {"mode": b"night"}, "the other node's meta")
    clusters[1].set_meta("mode", b"day")
    await until(lambda: clusters[0].meta == {"mode": b"day"}, "the last write")
    async with http(pair[0]) as client:

        async def shown() -> Any:
            return (await client.get("/v1/gossip")).json()["meta"] == {"mode": "day"}

        await until(shown, "meta over HTTP")
    for name, data in (("", b""), ("n" * 129, b""), ("n", b"x" * 4097)):
        with pytest.raises(ConfigError):
            clusters[0].set_meta(name, data)


async def test_S3_13_the_overview_says_who_has_which_version(nodes: Nodes) -> None:
    pair = await nodes.cluster(application(), 2)

    async def agreed() -> bool:
        pages = []
        for node in pair:
            async with http(node) as client:
                pages.append((await client.get("/v1/gossip")).json())
        same = pages[0]["version"] == pages[1]["version"]
        others = [list(page["versions"].values()) for page in pages]
        return same and others == [["same"], ["same"]] and not pages[0]["waiting_for"]

    await until(agreed, "equal versions")


# -- joining by hand, the stop of a whole cluster ------------------------------------------------


async def test_S1_60_a_node_may_wait_to_be_told_whom_to_join(nodes: Nodes) -> None:
    bus = application()
    first = await nodes.start(bus)
    nodes.node_settings = {"join": "manual"}
    second = await nodes.start(bus, up=False)
    assert not second.membership.joins.began
    second.membership.joins.by([str(first.me.address)])
    await nodes.agree(2)


async def test_S1_58_a_late_join_does_not_down_the_living_successor(nodes: Nodes) -> None:
    first, second = await nodes.cluster(application(), 2)
    late = Member(second.me._replace(uid=second.me.uid + 1), 1)
    cookie = cookie_of(first.cluster._machine._admission._secret, late.node)  # type: ignore[attr-defined]
    join = encode(Join(Greeting("shop", PROTOCOL, {}), late, cookie))
    first.endpoint.on_membership(late.node, encode_body(MembershipFrame(late.node, join)))
    dropped = first.cluster.dropped
    await until(lambda: dropped["a member at its address may be alive"], "a verdict on the Join")
    await nodes.agree(2)
    assert not second.membership.stopped.done()


async def test_B12_TC7_a_cluster_stops_where_it_is(nodes: Nodes) -> None:
    trio = await nodes.cluster(application(), 3)
    client = await nodes.client()
    for i in range(30):
        assert await client.ask("counter", f"e{i}", "add", i) == i
    moves = [node.records.notes.copy() for node in trio]
    trio[1].cluster.post(ev.PrepareForShutdown())
    await asyncio.gather(*(asyncio.wait_for(n.membership.cluster_stops, PATIENCE_S) for n in trio))
    assert len(STOPS) == 0
    said: list[str] = []
    await asyncio.gather(*(shutdown.leave(n, said.append) for n in trio))
    assert [node.membership.stopped.result() for node in trio] == ["left"] * 3
    assert set(STOPS) == {StopReason.SHUTDOWN}
    assert len(STOPS) == 30
    for node, before in zip(trio, moves, strict=True):
        assert {k: v for k, v in node.records.notes.items() if "handoff" in k[1]} == {
            k: v for k, v in before.items() if "handoff" in k[1]
        }
    assert all("the whole cluster stops" in text for text in said)


async def test_B12_a_node_that_was_handing_off_stops_where_it_is_too(nodes: Nodes) -> None:
    pair = await nodes.cluster(application(), 2)
    for kind in pair[0].regions.values():
        kind.shutdown = lambda: asyncio.get_running_loop().create_future()  # type: ignore[method-assign]
    leaving = asyncio.ensure_future(shutdown.leave(pair[0], lambda text: None))
    pair[1].cluster.post(ev.PrepareForShutdown())
    await asyncio.wait_for(pair[1].membership.cluster_stops, PATIENCE_S)
    await asyncio.gather(leaving, shutdown.leave(pair[1], lambda text: None))
    assert [node.membership.stopped.result() for node in pair] == ["left"] * 2


async def test_a_client_is_entered_once(nodes: Nodes) -> None:
    await nodes.start(application())
    client = await nodes.client()
    with pytest.raises(LocalProtocolError, match="entered once"):
        await client.__aenter__()


@pytest.mark.long
async def test_S1_14_messages_flow_while_the_cluster_cannot_converge() -> None:
    patient = replace(QUICK, confirmed_death=False, downing=DowningSettings(strategy="none"))
    detector = replace(QUICK.failure_detector, acceptable_heartbeat_pause=0.1)
    async with Nodes(replace(patient, failure_detector=detector)) as nodes:
        trio = await nodes.cluster(application(), 3)
        client = await nodes.client()
        for i in range(30):
            await client.ask("counter", f"e{i}", "add", i)
        silent = trio[2].cluster
        await asyncio.to_thread(silent.stop)
        await until(
            lambda: all(
                trio[2].me in n.view.unreachable and not n.view.converged
                for n in trio[:2]
                if n.view
            ),
            "no convergence",
        )
        answers = [await client.ask("counter", f"e{i}", "add", i) for i in range(30)]
        assert answers == list(range(30))
        assert {s for n in trio for s in n.regions["counter"].host.shards} == set("012345")


async def test_TC17_large_messages_leave_heartbeats_alone(nodes: Nodes) -> None:
    """Links that are full of large messages carry no heartbeats."""
    trio = await nodes.cluster(application(), 3)
    events = [node.subscriptions.subscribe() for node in trio]
    client = await nodes.client(*trio)
    large = "x" * (4 << 20)
    for _ in range(3):
        sizes = [client.ask("counter", f"e{i}", "size", large) for i in range(12)]
        assert await asyncio.gather(*sizes) == [len(large)] * 12
    for subscription in events:
        subscription.close()
        assert not [e async for e in subscription if isinstance(e, UnreachableMember)]


async def test_B152_a_drained_node_hosts_nothing_until_it_is_open_again(nodes: Nodes) -> None:
    trio = await nodes.cluster(application(), 3)
    client = await nodes.client()
    for i in range(60):
        await client.ask("counter", f"e{i}", "add", i)
    host = trio[2].regions["counter"].host
    assert host.shards
    trio[0].cluster.post(ev.SetService(trio[2].me, Service.DRAINING))
    await until(lambda: not host.shards, "an empty node")
    assert not trio[2].membership.stopped.done()
    answers = [await client.ask("counter", f"e{i}", "add", i) for i in range(60)]
    assert answers == list(range(60))
    assert not host.shards
    await nodes.leave(trio[1])
    await until(lambda: len(trio[0].regions["counter"].host.shards) == 6, "all on the open one")
    trio[0].cluster.post(ev.SetService(trio[2].me, Service.OPEN))
    await until(lambda: host.shards, "shards on a node that is open again")


async def test_C22_a_plan_comes_true_and_changes_nothing_before(nodes: Nodes) -> None:
    bus = application()
    first = await nodes.start(bus)
    client = await nodes.client()
    for i in range(60):
        await client.ask("counter", f"e{i}", "add", i)
    admin = Administration(first)
    plan = await shard_pages.plan(admin, "counter", 1, ())
    assert [row["after"] for row in plan["nodes"]] == [3, 3]  # type: ignore[attr-defined]
    assert len(plan["moves"]) == 3  # type: ignore[arg-type]
    assert len(first.regions["counter"].host.shards) == 6
    second = await nodes.start(bus)
    host = second.regions["counter"].host
    await shard_pages.rebalance(admin, "counter", None, None)
    await until(lambda: len(host.shards) == 3, "half of the shards")
    away = await shard_pages.plan(Administration(second), "counter", 0, (str(first.me.address),))
    assert [row["after"] for row in away["nodes"] if row["node"] == str(second.me)] == [6]  # type: ignore[attr-defined]


async def test_B152_a_cordoned_node_keeps_its_shards_and_gets_no_other(nodes: Nodes) -> None:
    trio = await nodes.cluster(application(), 3)
    client = await nodes.client()
    for i in range(60):
        await client.ask("counter", f"e{i}", "add", i)
    kept = set(trio[2].regions["counter"].host.shards)
    assert kept
    trio[0].cluster.post(ev.SetService(trio[2].me, Service.CORDONED))
    await until(
        lambda: all(n.view and n.view.member(trio[2].me).service is Service.CORDONED for n in trio),
        "the word to spread",
    )
    await nodes.leave(trio[1])
    assert set(trio[2].regions["counter"].host.shards) == kept
    async with http(trio[0]) as http_client:
        rows = (await http_client.get("/v1/nodes")).json()["nodes"]
    assert [r["service"] for r in rows if r["node"] == str(trio[2].me)] == ["cordoned"]


async def test_B152_the_last_open_member_is_not_closed(nodes: Nodes) -> None:
    pair = await nodes.cluster(application(), 2)
    admin = Administration(pair[0])
    assert (await member_pages.drain(admin, str(pair[1].me)))["service"] == "draining"
    await until(
        lambda: (
            (m := pair[0].subscriptions.view.member(pair[1].me)) and m.service.value == "draining"
        ),
        "the word",
    )
    for command in (member_pages.cordon, member_pages.drain):
        with pytest.raises(Refused, match="no member but"):
            await command(admin, "self")
    await member_pages.cordon(admin, str(pair[1].me.address))
    await member_pages.uncordon(admin, "self")


# -- quarantine ----------------------------------------------------------------------------------


async def test_S1_25_who_takes_nothing_from_its_links_is_quarantined_and_ends() -> None:
    hasty = replace(QUICK, quarantine_after=1.0, downing=DowningSettings(stable_after=0.5))
    async with Nodes(hasty) as nodes:
        trio = await nodes.cluster(application(), 3)
        deaf = trio[2]
        assert {node.membership._stalled_peers._after for node in trio} == {1.0}
        events = trio[1].subscriptions.subscribe()
        heard = deaf.endpoint.incoming._on_frame

        def only_membership(identity: bytes, head: bytes, body: bytes) -> None:
            if read_header(head).kind == FrameType.MEMBERSHIP:
                heard(identity, head, body)

        deaf.endpoint.incoming._on_frame = only_membership  # type: ignore[method-assign]
        for node in trio[:2]:
            session = node.endpoint.session_to(deaf.me.address, deaf.me)
            session.outbox.ask(("$node", "stats"), "", b"\x90", 600_000, asyncio.Future(), bytes)
        assert await asyncio.wait_for(deaf.membership.stopped, PATIENCE_S) == "downed"
        await collect(events, QuarantinedMember)
        await nodes.agree(2)
        assert not trio[0].membership.stopped.done()
        assert not trio[1].membership.stopped.done()


async def test_B16_a_removed_incarnation_gets_no_session(nodes: Nodes) -> None:
    pair = await nodes.cluster(application(), 2)
    pair[0].endpoint.remove(pair[1].me, NodeLost("removed"))
    drops = pair[0].endpoint.dropped_frames
    pair[1].endpoint.session_to(pair[0].me.address, pair[0].me)
    link = pair[1].endpoint._find(pair[0].me.address, pair[0].me)
    assert link is not None
    link._break()
    await until(lambda: drops.get("removed"), "HELLO without an answer")
    assert str(pair[1].me) not in pair[0].endpoint.incoming.by_name


async def test_S3_29_a_cluster_that_was_founded_beside_this_one_is_told_loudly(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A first seed that starts while its other seed is away founds a cluster of its own, if no
    store decides who may."""
    nodes.store = StoreSettings(url="memory://")
    monkeypatch.setattr(other_clusters, "EVERY_S", 0.2)
    ports = [free_port(), free_port()]
    seeds = tuple(f"127.0.0.1:{port}" for port in ports)
    pair = []
    for port, seeds_of in zip(ports, (seeds, ()), strict=True):
        nodes.node_settings = {"port": port, "seeds": seeds_of}
        pair.append(await nodes.start(application()))
    first, second = pair

    async def shown() -> Any:
        async with http(first) as client:
            return (await client.get("/v1/cluster")).json()["other_clusters"]

    await until(shown, "the other cluster")
    assert await shown() == [{"seed": seeds[1], "node": str(second.me), "reason": ""}]
    assert f"ANOTHER CLUSTER of this name exists: these seeds are in it: {seeds[1]}" in caplog.text
    async with http(second) as client:
        page = (await client.get("/v1/cluster")).json()
    assert page["other_clusters"] == [], "it has no seed there"
    await nodes.leave(second)

    async def ended() -> bool:
        return not await shown()

    await until(ended, "the end of the finding")
