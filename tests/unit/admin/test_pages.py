"""The pages of a node: its own state, answers that come, and missing answers; and the commands that
are refused."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.admin.administration import Administration
from shardbus.admin.entity_watch import to_plain
from shardbus.admin.pages import cluster as cluster_pages
from shardbus.admin.pages import dead_letters as letter_pages
from shardbus.admin.pages import entities as entity_pages
from shardbus.admin.pages import explanation as explanations
from shardbus.admin.pages import findings as finding_pages
from shardbus.admin.pages import health
from shardbus.admin.pages import members as member_pages
from shardbus.admin.pages import shards as shard_pages
from shardbus.admin.pages.checkup import answer_checkup, checkup
from shardbus.admin.pages.health import STALLED_S, STORE_FAILED_S, readiness
from shardbus.admin.pages.members import cordon, drain, uncordon
from shardbus.admin.pages.shards import HOTTEST, answer_table
from shardbus.admin.slowness import CallTimes, EntityFigures
from shardbus.errors import (
    ConfigError,
    Refused,
    StoreUnavailable,
    Unhandled,
    UnknownEntityType,
)
from shardbus.membership import events as cluster
from shardbus.membership.member import Service, Status
from shardbus.membership.view import MembershipView, OtherCluster
from shardbus.store.memory import MemoryStore
from tests.records import replace
from tests.unit.admin.admin_kit import LOST, ME, PAGE, PEER, FakeNode, member
from tests.virtual_time import virtual

TABLE = {
    "epoch": 3,
    "shards": [
        ["10", str(ME), 9, "running", 1.234],
        ["2", str(PEER), 4, "begin", None],
        ["3", None, 0, "unallocated", None],
        ["4", str(LOST), 1, "starting", 0.5],
    ],
    "paused": True,
    "held": "an operator has paused it",
    "moving": 1,
    "moves_at_a_time": 3,
}


@pytest.fixture
async def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
async def pages(node: FakeNode) -> Administration:
    fake: Any = node
    return Administration(fake)


# The cluster


async def test_the_cluster_is_shown_as_this_node_sees_it(node: FakeNode, pages: Any) -> None:
    shown: Any = await cluster_pages.cluster(pages)
    assert shown.pop("status_for") >= 0
    assert shown.pop("converged_for") >= 0
    assert shown == {
        "cluster": "shop",
        "self": str(ME),
        "status": "up",
        "leader": str(PEER),
        "oldest": str(ME),
        "converged": True,
        "suspended": None,
        "stopping": None,
        "members": 3,
        "unreachable": [str(LOST)],
        "coordinators": {PAGE: {"node": str(ME), "epoch": 3}},
        "other_clusters": [],
        "rival": None,
        "voters": None,
    }
    node.membership.requests.other_clusters = (OtherCluster(PEER.address, PEER),)
    page = await cluster_pages.cluster(pages)
    assert page["other_clusters"] == [{"seed": str(PEER.address), "node": str(PEER), "reason": ""}]
    node.view, node.suspended, node.region.coordinator = None, "suspended: no contact to b", None
    page = await cluster_pages.cluster(pages)
    assert (page["status"], page["members"], page["oldest"]) == ("joining", 0, None)
    assert (page["suspended"], page["coordinators"]) == ("suspended: no contact to b", {})


async def test_members_that_do_not_answer_have_empty_counts(node: FakeNode, pages: Any) -> None:
    rows: Any = (await cluster_pages.nodes(pages))["nodes"]
    assert [(r["node"], r["shards"], r["entities"]) for r in rows] == [
        (str(ME), {PAGE: 1}, {PAGE: 2}),
        (str(PEER), {PAGE: 1}, {PAGE: 5}),
        (str(LOST), {}, {}),
    ]
    assert [(r["status"], r["reachable"], r["oldest"], r["leader"]) for r in rows] == [
        ("up", True, True, False),
        ("up", True, False, True),
        ("leaving", False, False, False),
    ]
    assert (rows[0]["http"], rows[0]["roles"], rows[0]["version"]) == ("a:8558", ["web"], "1.2")
    node.view = None
    assert await cluster_pages.nodes(pages) == {"nodes": []}


async def test_types_show_their_layout_and_what_runs_here(pages: Any) -> None:
    [row] = (await cluster_pages.types(pages))["types"]  # type: ignore[misc]
    expected = {
        "type": PAGE,
        "shards": 3,
        "layout": "crc32/3",
        "entities_here": 2,
        "state_bytes_here": 250,
    }
    assert expected.items() <= row.items()
    assert row["state_bytes_here"] == 250
    assert (row["coordinator"], row["active_entity_limit"]) == (str(ME), 500)


# Shards and entities


async def test_shards_are_sorted_as_numbers_with_states_and_live_entities(
    node: FakeNode, pages: Any
) -> None:
    node.rpc.answers[ME, "table"] = TABLE
    node.rpc.answers[ME, "stats"] = {PAGE: {"10": 2}}
    node.rpc.answers[PEER, "stats"] = {}
    page = await shard_pages.shards(pages, PAGE)
    rows: Any = page["shards"]
    assert [(r["shard"], r["state"], r["entities"], r["load"]) for r in rows] == [
        ("2", "handing_off", 0, None),
        ("3", "unallocated", None, None),
        ("4", "starting", None, 0.5),
        ("10", "running", 2, 1.23),
    ]
    assert (page["complete"], page["held"]) == (True, "an operator has paused it")


async def test_S3_9_partitions_are_the_instances_of_each_shard(node: FakeNode, pages: Any) -> None:
    rows = [
        ["10~2", str(PEER), 8, "running", None],
        ["10~1", str(ME), 9, "begin", None],
        ["9~1", str(PEER), 4, "starting", None],
        ["7", str(ME), 3, "running", None],
    ]
    node.rpc.answers[ME, "table"] = {**TABLE, "shards": rows}
    page = await shard_pages.partitions(pages, PAGE)
    assert page["nodes"] == [str(n) for n in sorted((ME, PEER, LOST))]
    assert (page["type"], page["instances"], page["complete"]) == (PAGE, None, True)
    columns = ("instance", "node", "state", "fence")
    partitions: Any = page["partitions"]
    assert [
        (p["shard"], [[r[c] for c in columns] for r in p["instances"]]) for p in partitions
    ] == [
        ("7", [[1, str(ME), "running", 3]]),
        ("9", [[1, str(PEER), "starting", 4]]),
        ("10", [[1, str(ME), "handing_off", 9], [2, str(PEER), "running", 8]]),
    ]


@pytest.mark.parametrize("known", [True, False])
async def test_without_the_coordinators_table_a_page_shows_what_this_node_knows(
    node: FakeNode, pages: Any, known: bool
) -> None:
    if known:
        node.rpc.answers[ME, "table"] = None  # it does not rule there
    else:
        node.region.coordinator = None
    page = await shard_pages.shards(pages, PAGE)
    rows: Any = page["shards"]
    assert [(r["shard"], r["node"], r["fence"]) for r in rows] == [
        ("1", str(ME), 9),
        ("2", str(PEER), 4),
    ]
    assert (page["complete"], page["paused"]) == (False, None)


@pytest.mark.parametrize(
    ("entity_id", "answer", "state", "running"),
    [
        ("x", True, "running", True),
        ("z", False, "running", False),
        ("z", None, "unknown", False),
        ("elsewhere", None, "unallocated", False),
    ],
)
async def test_an_entity_is_where_its_shard_is(
    node: FakeNode, pages: Any, entity_id: str, answer: Any, state: str, running: bool
) -> None:
    if answer is not None:
        node.rpc.answers[ME, "running"] = node.rpc.answers[PEER, "running"] = answer
    page = await entity_pages.where(pages, PAGE, entity_id)
    assert (page["state"], page["running"]) == (state, running)
    with pytest.raises(UnknownEntityType):
        await entity_pages.where(pages, "none", "x")


async def test_pages_of_entities_are_merged_and_name_who_is_silent(
    node: FakeNode, pages: Any
) -> None:
    node.rpc.answers[ME, "entities"] = [["a", "1"], ["c", "1"]]
    node.rpc.answers[PEER, "entities"] = [["b", "2"]]
    first = await entity_pages.entities(pages, PAGE, None, "", 2, None)
    assert [row["id"] for row in first["entities"]] == ["a", "b"]  # type: ignore[attr-defined]
    assert (first["next"], first["silent"]) == ("b", [str(LOST)])
    assert node.rpc.questions[-1] == ("all", "entities", PAGE, "", "", "", 3)
    node.rpc.answers[ME, "entities"] = [["c", "1"]]
    node.rpc.answers[PEER, "entities"] = None  # the type is unknown there
    last = await entity_pages.entities(pages, PAGE, "1", "p", 2, "b")
    assert (len(last["entities"]), last["next"]) == (1, None)  # type: ignore[arg-type]
    assert node.rpc.questions[-1] == ("all", "entities", PAGE, "1", "p", "b", 3)
    with pytest.raises(ConfigError, match="has no shard '9'"):
        await entity_pages.entities(pages, PAGE, "9", "", 2, None)


# Explanations


OLDER = Unhandled("a node of an older release does not know the question")


@pytest.mark.parametrize(
    ("entity_id", "suspended", "moving", "why"),
    [
        ("x", "", False, "messages go there directly"),
        ("x", "suspended: no quorum", False, "this node, which is suspended: no quorum"),
        ("z", "suspended: no quorum", False, f"{PEER}, which is suspended: no quorum"),
        ("z", "", True, "the shard is on the move"),
        ("z", OLDER, False, "messages go there directly"),
        ("z", None, False, f"its home {PEER} does not answer"),
        ("elsewhere", "", False, "no home is known here"),
    ],
)
async def test_an_explanation_says_what_messages_wait_for(
    node: FakeNode, pages: Any, entity_id: str, suspended: Any, moving: bool, why: str
) -> None:
    if suspended is not None:
        home = ME if entity_id == "x" else PEER
        node.rpc.answers[home, "suspension"] = suspended
    node.region.router.region.buffered = (2, 64)
    if moving:
        node.region.router.routes["2"].out = None
    page = await explanations.explain(pages, PAGE, entity_id)
    assert why in str(page["why"])
    assert page["buffered"] == {"messages": 2, "bytes": 64}
    assert page["history"] is None, "the coordinator does not answer"


FIGURES = EntityFigures(
    busy=8, looks=8, moved=True, sampled=9, mailbox=3, handlers=[CallTimes("add", 9, 0.2, 0.24)]
)


async def test_N21_an_explanation_has_the_causes_by_the_figures_of_the_home(
    node: FakeNode, pages: Any
) -> None:
    node.rpc.answers[PEER, "suspension"] = ""
    node.rpc.answers[PEER, "figures"] = to_plain(FIGURES) | {"of_a_newer_release": 1}
    page = await explanations.explain(pages, PAGE, "z")
    [cause] = page["causes"]  # type: ignore[misc]
    assert cause["cause"] == "slow_handler"
    assert "`add` takes 240 ms (p99), 3 messages wait" in cause["text"]
    assert page["figures"] == to_plain(FIGURES)
    assert (PEER, "figures", PAGE, "2", "z") in node.rpc.questions


@pytest.mark.parametrize("answer", [OLDER, None, {"busy": "many"}])
async def test_without_figures_of_the_home_there_are_no_causes_there(
    node: FakeNode, pages: Any, answer: Any
) -> None:
    node.rpc.answers[PEER, "suspension"] = ""
    if answer is not None:
        node.rpc.answers[PEER, "figures"] = answer
    page = await explanations.explain(pages, PAGE, "z")
    assert (page["causes"], page["figures"]) == ([], None)


async def test_N21_a_home_that_does_not_answer_is_told_by_what_membership_knows(
    node: FakeNode, pages: Any
) -> None:
    page = await explanations.explain(pages, PAGE, "z")
    assert page["causes"][0]["cause"] == "silent"  # type: ignore[index]
    node.membership.runner = SimpleNamespace(overview=SimpleNamespace(phis={PEER: 0.3}))
    page = await explanations.explain(pages, PAGE, "z")
    assert page["causes"][0]["cause"] == "blocked_loop"  # type: ignore[index]
    node.members.ages.unreachable = {PEER: node.loop.time() - 4.0}
    page = await explanations.explain(pages, PAGE, "z")
    [cause] = page["causes"]  # type: ignore[misc]
    assert (cause["cause"], cause["seconds"]) == ("unreachable", None)
    assert "since 4.0 s, phi 0.3" in cause["text"]
    assert "`keep-majority` decides once membership has been stable for 5 s" in cause["remedy"]


async def test_the_instance_that_is_shown_is_the_one_that_is_watched(
    node: FakeNode, pages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def where(admin: Administration, type: str, id: str) -> dict[str, object]:
        return {"type": type, "id": id, "shard": "2", "node": str(PEER), "instance": 3}

    monkeypatch.setattr(explanations, "where", where)
    await explanations.explain(pages, PAGE, "z")
    assert (PEER, "figures", PAGE, "2", "z~3") in node.rpc.questions


async def test_an_explained_shard_has_its_history_or_what_this_node_knows(
    node: FakeNode, pages: Any
) -> None:
    page = await explanations.explain_shard(pages, PAGE, "2")
    assert (page["node"], page["state"], page["fence"]) == (str(PEER), "unknown", 4)
    assert page["history"] is None
    change = [60.0, None, str(PEER), "allocated", 2, 0, 0.12345]
    node.rpc.answers[ME, "shard"] = {
        "epoch": 5, "node": str(ME), "fence": 8, "state": "running", "changes": [change],
    }  # fmt: skip
    page = await explanations.explain_shard(pages, PAGE, "2")
    assert (page["node"], page["state"], page["epoch"]) == (str(ME), "running", 5)
    [row] = page["history"]  # type: ignore[misc]
    assert (row["why"], row["fence"], row["seconds"]) == ("allocated", None, 0.123)
    with pytest.raises(ConfigError, match="has no shard"):
        await explanations.explain_shard(pages, PAGE, "9")


# Health


async def test_liveness_depends_on_the_loop_and_on_membership_alone(
    node: FakeNode, pages: Any
) -> None:
    assert all(check.ok for check in (await health.livez(pages)).values())
    node.view, node.region.coordinator = None, None
    assert all(check.ok for check in (await health.livez(pages)).values())
    node.membership.lag = STALLED_S
    assert not (await health.livez(pages))["loop"].ok
    node.membership.stopped.set_result("downed")
    ended = (await health.livez(pages))["membership"]
    assert (ended.ok, ended.detail) == (False, "downed")


def ready(pages: Any) -> bool:
    return all(check.ok for check in readiness(pages).values())


async def test_readiness_needs_a_member_that_is_up_and_neither_leaves_nor_is_suspended(
    node: FakeNode, pages: Any
) -> None:
    assert ready(pages)
    node.phases.current = "service-stop"
    assert readiness(pages)["membership"].detail == "service-stop"
    assert not ready(pages)
    node.phases.current, node.suspended = "", "suspended: no quorum"
    assert not ready(pages)
    node.suspended, node.failed_tasks = "", 1
    assert not ready(pages), "a task of the node has failed"
    node.failed_tasks = 0
    for status in Status:
        node.view = MembershipView(ME, (member(ME, status),))
        assert ready(pages) == (status is Status.UP), status
    node.view = None
    assert not ready(pages)


async def test_a_node_that_rejoins_is_not_ready_and_says_for_what_it_waits(
    node: FakeNode, pages: Any
) -> None:
    node.view, node.rejoining = None, "was downed, and asks a:1 to take it in without end"
    check = readiness(pages)["membership"]
    assert (check.ok, check.detail) == (False, node.rejoining)


async def test_readiness_shows_a_store_that_fails_and_stays_ready(
    node: FakeNode, pages: Any
) -> None:
    """All nodes would go out of service at once, with their memory."""
    assert "store" not in readiness(pages)
    node.states.silent_ago, node.states.silent_because = 3.2, "no answer"
    store = readiness(pages)["store"]
    assert (store.ok, store.detail) == (True, "a load or a save failed 3 s ago: no answer")
    node.states.silent_ago = STORE_FAILED_S
    assert "store" not in readiness(pages)


async def test_readiness_needs_every_region_to_be_registered(node: FakeNode, pages: Any) -> None:
    node.region.router.region.registered = False
    check = readiness(pages)[f"coordinator:{PAGE}"]
    assert (check.ok, check.detail) == (False, "not registered yet")
    node.region.coordinator = None
    assert not ready(pages)


@pytest.mark.parametrize("types", [(), (PAGE,), ("other",)])
@pytest.mark.parametrize("once", [False, True])
async def test_B142_the_settings_say_which_types_count_and_for_how_long(
    node: FakeNode, types: tuple[str, ...], once: bool
) -> None:
    http = replace(node.settings.http, ready_types=types, ready_types_once=once)
    node.settings = replace(node.settings, http=http)
    pages, region = Administration(node), node.region.router.region
    region.registered = False
    counts = types != ("other",)
    assert ready(pages) is not counts
    assert readiness(pages)[f"coordinator:{PAGE}"].detail == "not registered yet"
    region.registered = True
    assert ready(pages)
    region.registered = False
    assert ready(pages) is (once or not counts)
    node.failed_tasks = 1
    assert not ready(pages), "only the types may be left out"


async def test_a_type_without_hosts_keeps_no_node_from_being_ready(
    node: FakeNode, pages: Any
) -> None:
    node.region.coordinator = None
    node.region.settings = replace(node.region.settings, role="gpu")
    check = readiness(pages)[f"coordinator:{PAGE}"]
    assert check.ok
    assert "none is up with role 'gpu'" in check.detail
    node.region.settings = replace(node.region.settings, role="web")
    node.region.coordinator_role = "gpu"
    check = readiness(pages)[f"coordinator:{PAGE}"]
    assert not check.ok
    assert "no member coordinates it" in check.detail


@pytest.mark.parametrize("what", ["hosts", "coordinates"])
async def test_a_type_that_older_members_do_not_have_keeps_no_node_from_being_ready(
    node: FakeNode, pages: Any, what: str
) -> None:
    """A rollout that waited for this node would never reach them."""
    node.region.coordinator, node.region.router.region.registered = None, False
    assert node.view is not None
    node.view = replace(
        node.view, members=tuple(replace(m, roles=("web",)) for m in node.view.members)
    )
    node.without_type = ("web",)
    if what == "hosts":
        node.region.settings = replace(node.region.settings, role="web")
    else:
        node.region.coordinator_role = "web"
    check = readiness(pages)[f"coordinator:{PAGE}"]
    assert (check.ok, check.detail) == (True, f"no member {what} it: they do not have this type")


async def test_a_start_is_over_once_the_node_was_ready(node: FakeNode, pages: Any) -> None:
    node.suspended = "suspended: no quorum"
    assert not (await health.startupz(pages))["suspension"].ok
    node.suspended = ""
    assert list(await health.startupz(pages)) == ["loop", "membership"]
    node.suspended = "suspended: no quorum"
    assert list(await health.startupz(pages)) == ["loop", "membership"]
    assert not ready(pages)


# Checkup


async def test_a_checkup_has_every_member_and_names_who_did_not_answer(
    node: FakeNode, pages: Any
) -> None:
    node.store = MemoryStore()
    await node.store.start()
    await node.store.claim_epoch(PAGE, 3, "crc32/3")
    await node.store.write_homes(PAGE, 3, {"1": (ME, 9)}, 1)
    node.rpc.answers[ME, "checkup"] = {"lag": 0.5}
    page: Any = await checkup(pages)
    assert page["members"] == [
        {"node": str(ME), "answered": True, "lag": 0.5},
        {"node": str(PEER), "answered": False},
        {"node": str(LOST), "answered": False},
    ]
    assert page["store"] == {
        "answers": True,
        "error": "",
        "tables": {PAGE: {"epoch": 3, "shards": 1, "dropped": []}},
    }


async def test_findings_are_made_from_what_all_members_say(node: FakeNode, pages: Any) -> None:
    node.store = MemoryStore()
    await node.store.start()
    fake: Any = node
    admin = Administration(fake)
    node.rpc.answers[ME, "checkup"] = answer_checkup(admin)
    node.rpc.answers[PEER, "checkup"] = answer_checkup(admin) | {"suspended": "suspended, because"}
    node.rpc.answers[ME, "table"] = answer_table(admin, PAGE)
    node.rpc.answers[PEER, "losses"] = [["n:1#01", 5.0, "keep-majority: 2 of 3", {PAGE: [4, 4]}]]
    page: Any = await finding_pages.findings(pages)
    by_check = {group["check"]: group["subjects"] for group in page["findings"]}
    assert by_check["suspended"] == [str(PEER)]
    assert by_check["unreachable"] == [str(LOST)]
    assert by_check["state-unreadable"] == ["7"]
    assert not {"not-up", "no-coordinator", "not-registered", "page"} & set(by_check)
    [lost] = page["lost"]
    assert (lost["node"], lost["by"], lost["shards"][PAGE]["homed"]) == ("n:1#01", str(PEER), 4)
    assert (page["members"], page["types"], page["shards"]) == (3, 1, 2)


async def test_a_node_that_is_no_member_yet_knows_itself_alone(node: FakeNode, pages: Any) -> None:
    node.store = MemoryStore()
    await node.store.start()
    fake: Any = node
    node.view, node.rpc.nodes, node.region.coordinator = None, [], None
    node.rpc.answers = {(ME, "checkup"): answer_checkup(Administration(fake))}
    page: Any = await finding_pages.findings(pages)
    checks = [group["check"] for group in page["findings"]]
    assert set(checks) <= {"state-unreadable", "store-unfit", "backlog"}, checks


async def test_a_store_that_fails_is_a_finding(node: FakeNode, pages: Any) -> None:
    async def fail(name: str) -> Any:
        raise StoreUnavailable("redis is away")

    node.store = SimpleNamespace(load_table=fail)
    store: Any = (await checkup(pages))["store"]
    assert (store["answers"], store["error"]) == (False, "redis is away")


@virtual
async def test_a_store_that_is_silent_is_a_finding_in_time() -> None:
    node: Any = FakeNode()

    async def hang(name: str) -> Any:
        await asyncio.Event().wait()

    node.store = SimpleNamespace(load_table=hang)
    store: Any = (await checkup(Administration(node)))["store"]
    assert (store["answers"], store["error"]) == (False, "no answer within 3.5 s")


# Commands


async def test_a_member_is_asked_to_leave(node: FakeNode, pages: Any) -> None:
    node.rpc.answers[ME, "leave"] = node.rpc.answers[PEER, "leave"] = True
    assert await member_pages.leave(pages, "self") == {"node": str(ME), "leaving": True}
    assert await member_pages.leave(pages, str(PEER.address)) == {
        "node": str(PEER),
        "leaving": True,
    }
    node.rpc.answers[PEER, "leave"] = False
    with pytest.raises(ConfigError, match="is not able to leave now"):
        await member_pages.leave(pages, str(PEER))


@pytest.mark.parametrize("name", ["b", "b:1", str(PEER.address) + "#0", "", "self"])
async def test_a_name_of_no_member_is_refused(pages: Any, name: str) -> None:
    with pytest.raises(ConfigError, match="no member is called"):
        await member_pages.down(pages, name, force=False)


async def test_a_member_is_downed_or_removed_but_none_removes_itself(
    node: FakeNode, pages: Any
) -> None:
    down = partial(cluster.Down, for_good=True)
    await member_pages.down(pages, str(PEER), force=False)
    await member_pages.down(pages, str(ME), force=False)
    await member_pages.down(pages, str(PEER), force=True)
    with pytest.raises(Refused, match="a node cannot remove itself"):
        await member_pages.down(pages, str(ME), force=True)
    assert node.posted == [down(PEER), down(ME), cluster.Remove(PEER)]


@pytest.mark.parametrize(
    ("target", "command", "service", "others", "refused"),
    [
        ("self", cordon, Service.CORDONED, Service.OPEN, False),
        ("self", cordon, Service.CORDONED, Service.DRAINING, True),
        ("self", uncordon, Service.OPEN, Service.DRAINING, False),
        (str(PEER), drain, Service.DRAINING, Service.OPEN, False),
    ],
)
async def test_the_last_open_member_stays_open(
    node: FakeNode,
    pages: Any,
    target: str,
    command: Any,
    service: Service,
    others: Service,
    refused: bool,
) -> None:
    node.view = MembershipView(ME, (member(ME), member(PEER, service=others)))
    node.subscriptions.view = node.view
    if refused:
        with pytest.raises(Refused, match="no member but"):
            await command(pages, target)
        assert node.posted == []
    else:
        await command(pages, target)
        target_node = ME if target == "self" else PEER
        assert node.posted == [cluster.SetService(target_node, service)]


async def test_a_member_that_leaves_takes_no_shards(node: FakeNode, pages: Any) -> None:
    node.view = MembershipView(ME, (member(ME), member(PEER, Status.LEAVING)))
    node.subscriptions.view = node.view
    with pytest.raises(Refused):
        await drain(pages, "self")


async def test_a_region_is_shut_down_on_the_named_node(node: FakeNode, pages: Any) -> None:
    node.rpc.answers[PEER, "shutdown_region"] = 4
    page = await member_pages.shutdown_region(pages, str(PEER), PAGE)
    assert page == {"node": str(PEER), "type": PAGE, "shards": 4}
    with pytest.raises(UnknownEntityType):
        await member_pages.shutdown_region(pages, str(PEER), "none")


async def test_a_node_joins_once_and_only_if_it_waits_for_it(node: FakeNode, pages: Any) -> None:
    with pytest.raises(Refused, match="has joined already"):
        await cluster_pages.join(pages, ("c:1",))
    node.membership.joins.began = False
    await cluster_pages.join(pages, ("c:1",))
    assert node.joined == [("c:1",)]


async def test_only_a_member_that_is_up_stops_the_cluster(node: FakeNode, pages: Any) -> None:
    await cluster_pages.shut_down(pages)
    assert node.posted == [cluster.PrepareForShutdown()]
    node.view = MembershipView(ME)
    with pytest.raises(Refused, match="ask one that is up"):
        await cluster_pages.shut_down(pages)


async def test_a_limit_is_shown_by_node_and_silent_nodes_are_named(
    node: FakeNode, pages: Any
) -> None:
    node.rpc.answers |= {(ME, "limit"): [500, 7, 3], (PEER, "limit"): None}
    page = await entity_pages.limits(pages, PAGE)
    assert page["nodes"] == [{"node": str(ME), "limit": 500, "entities": 7, "evicted": 3}]
    assert page["silent"] == [str(LOST)]


async def test_a_limit_is_set_on_one_node_or_on_all(node: FakeNode, pages: Any) -> None:
    node.rpc.answers |= {(ME, "limit"): [9, 7, 3], (PEER, "limit"): None}
    await entity_pages.set_limit(pages, PAGE, 9, None)
    assert node.rpc.questions[-1] == ("all", "limit", PAGE, 9)
    page = await entity_pages.set_limit(pages, PAGE, 9, "self")
    assert (len(page["nodes"]), page["silent"]) == (1, [])  # type: ignore[arg-type]
    with pytest.raises(Refused, match="hosts no 'page'"):
        await entity_pages.set_limit(pages, PAGE, 9, str(PEER))
    assert (await entity_pages.set_limit(pages, PAGE, 9, str(LOST)))["silent"] == [str(LOST)]
    node.region.settings = replace(node.region.settings, remember=True)
    with pytest.raises(Refused, match="remembered"):
        await entity_pages.set_limit(pages, PAGE, 9, None)


async def test_keys_are_read_again_on_one_node_or_on_all(node: FakeNode, pages: Any) -> None:
    node.rpc.answers |= {(ME, "reload_keys"): [True, ["k"], ""]}
    expected = [{"node": str(ME), "changed": True, "keys": ["k"], "error": ""}]
    assert await member_pages.reload_keys(pages, None) == {
        "nodes": expected,
        "silent": [str(PEER), str(LOST)],
    }
    assert await member_pages.reload_keys(pages, "self") == {"nodes": expected, "silent": []}
    assert await member_pages.reload_keys(pages, str(PEER)) == {"nodes": [], "silent": [str(PEER)]}


async def test_a_plan_names_members_and_lists_moves(node: FakeNode, pages: Any) -> None:
    pace = {"paused": False, "held": "", "moving": 0, "moves_at_a_time": 3}
    node.rpc.answers[ME, "plan"] = {
        "moves": [["2", str(PEER), str(ME)]],
        "nodes": [[str(ME), 1, 2]],
        "rounds": 1,
        "settled": True,
        **pace,
    }
    page = await shard_pages.plan(pages, PAGE, 1, (str(PEER.address),))
    assert node.rpc.questions[-1] == (ME, "plan", PAGE, 1, [str(PEER)])
    assert page["moves"] == [{"shard": "2", "from": str(PEER), "to": str(ME)}]
    assert page["nodes"] == [{"node": str(ME), "before": 1, "after": 2}]
    with pytest.raises(ConfigError, match="no member is called"):
        await shard_pages.plan(pages, PAGE, 0, ("x:1",))


@pytest.mark.parametrize(("held", "balancing"), [("", True), ("paused", False)])
async def test_a_rebalance_says_whether_it_happens(
    node: FakeNode, pages: Any, held: str, balancing: bool
) -> None:
    node.rpc.answers[ME, "rebalance"] = {"held": held}
    assert (await shard_pages.rebalance(pages, PAGE, None, None))["rebalancing"] == balancing


async def test_places_are_shown_beside_homes(node: FakeNode, pages: Any) -> None:
    node.rpc.answers[ME, "table"] = TABLE
    node.rpc.answers[ME, "place"] = {"places": {"10": "c:7355", "2": "c:7355"}}
    node.region.router.has_shard = lambda shard: True
    page: Any = await shard_pages.place(pages, PAGE, ("10=c:7355", "2=c:7355", "3="))
    assert node.rpc.questions[0] == (
        ME, "place", PAGE, {"10": "c:7355", "2": "c:7355", "3": ""}
    )  # fmt: skip
    assert [(row["shard"], row["node"]) for row in page["places"]] == [
        ("2", str(PEER)),
        ("10", str(ME)),
    ]
    with pytest.raises(ConfigError):
        await shard_pages.place(pages, PAGE, ("2=no place",))


@pytest.mark.parametrize("text", ["7", "=a:1", "\0=a:1"])
async def test_a_place_names_a_shard_and_an_address(pages: Any, text: str) -> None:
    with pytest.raises(ConfigError):
        await shard_pages.place(pages, PAGE, (text,))


async def test_commands_about_nothing_are_refused(pages: Any) -> None:
    with pytest.raises(ConfigError, match="no shard is given"):
        await shard_pages.stop(pages, PAGE, ())
    with pytest.raises(ConfigError, match="no dead letter is chosen"):
        await letter_pages.replay(pages, "operator")


async def test_the_page_of_loads_asks_a_few_nodes_and_names_those_that_no_answer_is_about() -> None:
    node = FakeNode()
    first, other = [0.5, 0.01, 1e6, 0.0, 3.0, 7.0], [0.1, 0.0, 2e6, 0.0, 0.0, 1.0]
    node.rpc.answers[ME, "vitals"] = [[str(ME), first, 0.0], [str(PEER), other, 0.25]]
    page = await shard_pages.load(Administration(node))
    assert page["unseen"] == [str(LOST)]
    assert page["looks"] == 1
    rows = {row["node"]: row for row in page["nodes"]}
    assert rows[str(ME)]["rate"] == 7.0
    assert rows[str(PEER)] == {
        "node": str(PEER), "busy": 0.1, "lag": 0.0, "rss": 2e6, "gc": 0.0, "mailbox": 0.0,
        "rate": 1.0, "age": 0.25,
    }  # fmt: skip


async def test_the_hottest_shards_are_those_with_the_most_load() -> None:
    node = FakeNode()
    shards = [[str(k), str(ME), 1, "running", load] for k, load in enumerate((1.0, None, 9.0, 0.0))]
    node.rpc.answers[node.region.coordinator, "table"] = {"epoch": 1, "shards": shards}
    hottest = (await shard_pages.load(Administration(node)))["hottest"]
    assert [(row["shard"], row["load"]) for row in hottest] == [("2", 9.0), ("0", 1.0)]
    assert {row["unit"] for row in hottest} == {"messages/s"}, "an older coordinator names no unit"


async def test_each_load_has_its_unit_and_units_do_not_push_each_other_out() -> None:
    node = FakeNode()
    pages = Administration(node)
    units = {"page": ("messages/s", 5000.0), "user": ("handler s/s", 0.5)}
    tables = {
        name: {
            "epoch": 1,
            "complete": True,
            "load_unit": unit,
            "shards": [[str(k), "n", 1, "running", load] for k in range(2 * HOTTEST)],
        }
        for name, (unit, load) in units.items()
    }
    node.regions = dict.fromkeys(tables, node.region)

    async def table(name: str) -> dict[str, Any]:
        return tables[name]

    pages.table = table  # type: ignore[method-assign]
    hottest = (await shard_pages.load(pages))["hottest"]
    assert [(row["type"], row["unit"]) for row in hottest] == [
        *[("page", "messages/s")] * HOTTEST,
        *[("user", "handler s/s")] * HOTTEST,
    ]
    assert (await shard_pages.shards(pages, "user"))["load_unit"] == "handler s/s"
