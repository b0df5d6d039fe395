"""Findings: a healthy cluster has none, each fault has its own, and a state that is normal for a
moment is a finding only if it lasts."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from shardbus.admin import diagnosis, warning_signs
from shardbus.admin.diagnosis import (
    ADVICE,
    COORDINATOR_S,
    EXIT_S,
    JOIN_S,
    LEAVE_S,
    MOVE_S,
    PASSING,
    WAIT_S,
    Finding,
    Picture,
    findings,
    stored,
)
from shardbus.ids import NodeId
from shardbus.store.protocol import StoredTable
from shardbus_cli import doctor

A, B, C = (f"10.0.0.{i}:7355#{i:016x}" for i in (1, 2, 3))
FENCE = 3 << 32


def healthy() -> Picture:
    """Three members, one type, four shards."""
    homes = {"0": A, "1": B, "2": C, "3": A}

    def answer(node: str) -> dict[str, Any]:
        here = {shard: FENCE + int(shard) for shard, home in homes.items() if home == node}
        kind = {"coordinator": A, "epoch": 3, "registered": True, "buffered": 0}
        return {
            "node": node,
            "answered": True,
            "build": "0.1.0",
            "version": "7",
            "time": 1000.5,
            "lag": 0.01,
            "store": "redis://store:6379/0",
            "store_silent_ago": 3600.0,
            "settings": {"cluster.min_members": "3"},
            "types": {"page": {**kind, "layout": "crc32/4", "shards": here}},
        }

    return Picture(
        ready={"membership": {"ok": True, "detail": "up"}},
        cluster={
            "cluster": "shop",
            "self": A,
            "converged": True,
            "unreachable": [],
            "coordinators": {"page": {"node": A, "epoch": 3}},
        },
        nodes={"nodes": [{"node": node, "status": "up"} for node in (A, B, C)]},
        gossip={"unreachable": [], "waiting_for": []},
        checkup={
            "time": {"asked": 1000.0, "answered": 1001.0},
            "members": [answer(node) for node in (A, B, C)],
            "store": {
                "answers": True,
                "error": "",
                "tables": {"page": {"epoch": 3, "shards": 4, "dropped": []}},
            },
        },
        shards={
            "page": {
                "type": "page",
                "epoch": 3,
                "complete": True,
                "shards": [
                    {"shard": s, "node": home, "state": "running", "fence": FENCE + int(s)}
                    for s, home in homes.items()
                ],
            }
        },
    )


def table(**homes: tuple[str, int]) -> StoredTable:
    rows = {"0": (A, FENCE), "1": (B, FENCE + 1), "2": (C, FENCE + 2), "3": (A, FENCE + 3)}
    rows |= {name.removeprefix("s"): home for name, home in homes.items()}
    return StoredTable(3, "crc32/4", {s: (NodeId.parse(n), f) for s, (n, f) in rows.items()})


def test_a_healthy_cluster_has_no_findings() -> None:
    assert findings(healthy()) == []
    assert list(stored("page", table(), healthy())) == []
    assert list(stored("page", table(), None)) == []


def test_nothing_at_all_is_no_reason_to_fail() -> None:
    assert findings(Picture()) == []
    assert list(stored("page", None, Picture())) == []


Fault = Callable[[Picture], object]


def member(p: Picture, index: int) -> dict[str, Any]:
    row: dict[str, Any] = p.checkup["members"][index]
    return row


def of_type(p: Picture, index: int) -> dict[str, Any]:
    kind: dict[str, Any] = member(p, index)["types"]["page"]
    return kind


def shard(p: Picture, index: int) -> dict[str, Any]:
    row: dict[str, Any] = p.shards["page"]["shards"][index]
    return row


def update(thing: Any, **changes: Any) -> None:
    thing.update(changes)


def cut_off(p: Picture) -> None:
    update(p.cluster, unreachable=[C])
    update(p.gossip, unreachable=[{"observer": A, "subject": C, "is": "terminated"}])
    update(member(p, 2), answered=False)


def no_coordinator(p: Picture) -> None:
    update(p.cluster, coordinators={})
    for index in range(3):
        update(of_type(p, index), coordinator=None)


def on_machines(p: Picture) -> None:
    for index in range(3):
        update(member(p, index), store="sqlite:///bus.db")


def zones(p: Picture, nodes: str, replicas: dict[str, str]) -> None:
    for row, zone in zip(p.members, nodes, strict=True):
        row["zone"] = zone  # type: ignore[index]
    update(member(p, 1), replica_zones=replicas)


def stores(p: Picture, urls: Sequence[str], identities: Sequence[str]) -> None:
    for row, url, identity in zip(p.answers.values(), urls, identities, strict=True):
        update(row, store=url, store_identity=identity)


def head(p: Picture) -> Any:
    return p.checkup["store"]["tables"]["page"]


def forgotten_and_silent(p: Picture) -> None:
    """The epoch at this node may be old: it proves nothing about the store."""
    update(p.shards["page"], complete=False, epoch=2)


FAULTS: list[tuple[Fault, list[tuple[str, str, str]]]] = [
    (lambda p: update(p.missing, **{"/v1/checkup": "no"}), [("page", "cluster", "/v1/checkup")]),
    (
        lambda p: update(p.ready, membership={"ok": False, "detail": "joining"}),
        [("not-ready", A, "membership")],
    ),
    (cut_off, [("unreachable", "members", C)]),
    (lambda p: update(member(p, 2), answered=False), [("silent", "members", C)]),
    (lambda p: update(p.nodes["nodes"][1], status="joining"), [("not-up", "members", B)]),
    (lambda p: update(p.cluster, converged=False), [("not-converged", "cluster", "membership")]),
    (no_coordinator, [("no-coordinator", "page", "coordinator")]),
    (
        lambda p: (no_coordinator(p), [update(of_type(p, n), registered=False) for n in range(3)]),
        [("no-coordinator", "page", "coordinator")],
    ),
    (
        lambda p: update(p.shards["page"], complete=False),
        [("coordinator-silent", "page", "coordinator")],
    ),
    (
        lambda p: update(of_type(p, 1), coordinator=B),
        [("coordinator-disputed", "page", "coordinator")],
    ),
    (lambda p: update(of_type(p, 1), registered=False), [("not-registered", "page", B)]),
    (lambda p: update(of_type(p, 1), layout="crc32/8"), [("layout", "page", "layout")]),
    (lambda p: update(of_type(p, 1), buffered=7), [("waiting", "page", B)]),
    (lambda p: update(shard(p, 1), state="unallocated"), [("unallocated", "page", "1")]),
    (lambda p: update(shard(p, 1), state="handing_off"), [("moving", "page", "1")]),
    (lambda p: update(shard(p, 1), state="starting"), [("starting", "page", "1")]),
    (lambda p: update(shard(p, 1), state="starting", node=C), [("starting", "page", "1")]),
    (forgotten_and_silent, [("coordinator-silent", "page", "coordinator")]),
    (lambda p: of_type(p, 1)["shards"].pop("1"), [("not-hosted", "page", "1")]),
    (
        lambda p: update(shard(p, 1), node=B[:-1] + "f"),
        [("home-gone", "page", "1"), ("hosted-elsewhere", "page", "1")],
    ),
    (
        lambda p: update(of_type(p, 0)["shards"], **{"1": FENCE}),
        [("hosted-twice", "page", "1"), ("hosted-elsewhere", "page", "1")],
    ),
    (lambda p: update(of_type(p, 0)["shards"], **{"9": 1}), [("hosted-elsewhere", "page", "9")]),
    (
        lambda p: update(p.cluster, other_clusters=[{"seed": "s:1", "node": "s:1#9"}]),
        [("other-cluster", "cluster", "s:1")],
    ),
    (
        lambda p: update(p.cluster, voters={"count": "members", "why": "of their version"}),
        [("members-vote", "store", "downing")],
    ),
    (lambda p: update(member(p, 1), lag=2.5), [("late", "members", B)]),
    (lambda p: update(member(p, 1), suspended="suspended, because"), [("suspended", "members", B)]),
    (lambda p: update(member(p, 1), time=1030.0), [("clock", "members", B)]),
    (lambda p: update(member(p, 1), time=990.0), [("clock", "members", B)]),
    (lambda p: update(member(p, 1), build="0.2.0"), [("versions", "members", B)]),
    (lambda p: update(member(p, 1), version="8"), [("versions", "members", B)]),
    (
        lambda p: update(member(p, 1)["settings"], **{"cluster.min_members": "2"}),
        [("settings", "cluster", "cluster.min_members")],
    ),
    (
        lambda p: update(member(p, 1)["settings"], **{"sharding.mailbox": "9"}),
        [("settings", "cluster", "sharding.mailbox")],
    ),
    (
        lambda p: update(member(p, 1)["settings"], **{"sharding.types.page.shards": "9"}),
        [("settings", "cluster", "sharding.types.page.shards")],
    ),
    (
        lambda p: update(member(p, 1)["settings"], **{"sharding.types.of.another.shards": "9"}),
        [],
    ),
    (lambda p: update(member(p, 1), store_silent_ago=4.0), [("store-errors", "members", B)]),
    (
        lambda p: update(member(p, 1), store_problems=["redis://store may evict stored data"]),
        [("store-unfit", "store", "settings")],
    ),
    (
        lambda p: update(
            member(p, 1), store_problems=["a replica does not serve: 10.0.0.2:7: out of reach"]
        ),
        [("replica-silent", "store", "10.0.0.2:7")],
    ),
    (
        lambda p: update(member(p, 1), value_conflicts={"rate:usd": 12}),
        [("value-conflicts", "store", "rate:usd")],
    ),
    (
        lambda p: zones(p, "abc", {"10.0.0.1:7": "a", "10.0.0.2:7": "b", "10.0.0.3:7": "a"}),
        [("same-zone", "store", "10.0.0.3:7")],
    ),
    (lambda p: zones(p, "abc", {"x:1": "a", "x:2": "b", "x:3": "c"}), []),
    (lambda p: zones(p, "abc", {"x:1": "a", "x:2": "b"}), []),
    (lambda p: zones(p, "aab", {"x:1": "a", "x:2": "b", "x:3": "a"}), []),
    (lambda p: update(member(p, 1), store="redis://b"), [("store-differs", "store", "url")]),
    (lambda p: stores(p, ["redis://a", "redis://b", "redis://a"], "aaa"), []),
    (
        lambda p: stores(p, ["redis://a", "redis://b", "redis://a"], "aba"),
        [("store-differs", "store", "url")],
    ),
    (
        lambda p: stores(p, ["redis://a", "redis://b", "redis://a"], ["a", "a", ""]),
        [("store-differs", "store", "url")],
    ),
    (on_machines, [("store-not-shared", "store", "sqlite:///bus.db")]),
    (
        lambda p: update(p.checkup["store"], answers=False, error="late", tables={}),
        [("store-silent", "store", "answer")],
    ),
    (lambda p: update(head(p), epoch=2), [("store-behind", "page", "epoch")]),
    (
        lambda p: update(p.checkup["store"]["tables"], page=None),
        [("store-behind", "page", "epoch")],
    ),
    (lambda p: update(head(p), epoch=4), [("store-ahead", "page", "epoch")]),
    (
        lambda p: update(of_type(p, 1), unreadable={"7": "no migration from version 1"}),
        [("state-unreadable", "page", "7")],
    ),
    (
        lambda p: update(of_type(p, 1), deaf=["7"]),
        [("deaf-entity", "page", "7")],
    ),
    (
        lambda p: update(of_type(p, 1), strategy=[["Own.allocate", "has not returned for 2 s"]]),
        [("strategy-failed", "page", "Own.allocate")],
    ),
    (
        lambda p: update(member(p, 1), rival="another cluster writes this store: s:1"),
        [("rival-cluster", "members", B)],
    ),
    (lambda p: update(head(p), damaged="epoch 9"), [("stored-damaged", "page", "table")]),
    (
        lambda p: update(head(p), dropped=["shard '1': not a node"]),
        [("rows-dropped", "page", "shard '1'")],
    ),
]


@pytest.mark.parametrize(("fault", "expected"), FAULTS)
def test_each_fault_has_its_own_finding(fault: Fault, expected: list[tuple[str, str, str]]) -> None:
    picture = copy.deepcopy(healthy())
    fault(picture)
    assert [finding.key for finding in findings(picture)] == expected


def test_an_unreachable_member_is_named_with_its_observers() -> None:
    picture = copy.deepcopy(healthy())
    cut_off(picture)
    [finding] = findings(picture)
    assert finding.what == f"is unreachable ({A} terminated)"


STORED: list[tuple[StoredTable | None, str, str]] = [
    (None, "store-behind", "epoch"),
    (StoredTable(2, "crc32/4", {}), "store-behind", "epoch"),
    (StoredTable(4, "crc32/4", {}), "store-ahead", "epoch"),
    (StoredTable(3, "crc32/4", {}, ("shard '9': bad",)), "rows-dropped", "shard '9'"),
    (StoredTable(2**30, "crc32/4", {}), "stored-epoch-high", "epoch"),
    (StoredTable(3, "crc32/8", {}), "stored-layout", "layout"),
    (table(s4=(A, FENCE + 4)), "stored-outside", "4"),
    (table(sx=(A, FENCE + 4)), "stored-outside", "x"),
    (table(s1=(B, (4 << 32) + 1)), "stored-fence-ahead", "1"),
    (table(s1=(C, FENCE + 1)), "stored-differs", "1"),
    (table(s1=(B, FENCE + 9)), "stored-differs", "1"),
    (table(s1=(A[:-1] + "9", FENCE + 1)), "stored-home-gone", "1"),
]


@pytest.mark.parametrize(("wrong", "check", "subject"), STORED)
def test_each_fault_of_a_stored_table_is_found(
    wrong: StoredTable | None, check: str, subject: str
) -> None:
    keys = [finding.key for finding in stored("page", wrong, healthy())]
    assert (check, "page", subject) in keys
    assert len(keys) <= 2


def test_two_rows_of_one_fence_are_both_named() -> None:
    findings = list(stored("page", table(s2=(C, FENCE)), None))
    assert [f.key for f in findings] == [
        ("stored-fence-twice", "page", "0"),
        ("stored-fence-twice", "page", "2"),
    ]


def test_a_type_with_a_shard_function_of_its_own_may_name_shards_as_it_likes() -> None:
    by_country = StoredTable(3, "app.by_country/0", {"fr": (NodeId.parse(A), FENCE)})
    assert list(stored("page", by_country, None)) == []


def test_every_finding_has_an_advice_and_every_advice_a_finding() -> None:
    source = "".join(Path(m.__file__).read_text() for m in (diagnosis, doctor, warning_signs))
    named = set(re.findall(r'Finding\(\s*"([a-z-]+)"', source))
    assert named | {"unallocated", "moving", "starting"} == set(ADVICE)


# States that are normal for a moment


def young(p: Picture, index: int, status: str, age: float) -> None:
    update(p.nodes["nodes"][index], status=status, status_for=age)


def changing(p: Picture, age: float) -> None:
    """Every region has come to expect the coordinator where it does that long ago."""
    for index in range(3):
        update(of_type(p, index), coordinator_for=age)


def unknown(p: Picture) -> None:
    no_coordinator(p)
    changing(p, COORDINATOR_S)


MOMENTS: list[tuple[Callable[[Picture, float], object], float, str]] = [
    (lambda p, s: young(p, 1, "joining", s), JOIN_S, "not-up"),
    (lambda p, s: young(p, 1, "weakly_up", s), JOIN_S, "not-up"),
    (lambda p, s: young(p, 1, "leaving", s), LEAVE_S, "not-up"),
    (lambda p, s: young(p, 1, "exiting", s), EXIT_S, "not-up"),
    (lambda p, s: (cut_off(p), young(p, 2, "exiting", s)), EXIT_S, "unreachable"),
    (
        lambda p, s: (update(member(p, 2), answered=False), young(p, 2, "leaving", s)),
        LEAVE_S,
        "silent",
    ),
    (
        lambda p, s: update(p.cluster, converged=False, converged_for=s),
        diagnosis.CONVERGE_S,
        "not-converged",
    ),
    (
        lambda p, s: update(p.cluster, voters={"count": "members"}, converged_for=s),
        diagnosis.CONVERGE_S,
        "members-vote",
    ),
    (lambda p, s: (no_coordinator(p), changing(p, s)), COORDINATOR_S, "no-coordinator"),
    (
        lambda p, s: (unknown(p), [young(p, n, "up", s) for n in range(3)]),
        COORDINATOR_S,
        "no-coordinator",
    ),
    (
        lambda p, s: (update(p.shards["page"], complete=False), changing(p, s)),
        COORDINATOR_S,
        "coordinator-silent",
    ),
    (
        lambda p, s: (update(of_type(p, 1), coordinator=B), changing(p, s)),
        COORDINATOR_S,
        "coordinator-disputed",
    ),
    (
        lambda p, s: update(of_type(p, 1), registered=False, coordinator_for=s),
        COORDINATOR_S,
        "not-registered",
    ),
    (
        lambda p, s: (update(of_type(p, 1), registered=False), young(p, 1, "up", s)),
        COORDINATOR_S,
        "not-registered",
    ),
    (
        lambda p, s: update(of_type(p, 1), buffered=7, coordinator_for=s),
        COORDINATOR_S,
        "waiting",
    ),
    (lambda p, s: update(of_type(p, 1), buffered=7, buffered_for=s), WAIT_S, "waiting"),
    (lambda p, s: update(shard(p, 1), state="handing_off", age=s), MOVE_S, "moving"),
    (lambda p, s: update(shard(p, 1), state="starting", age=s), MOVE_S, "starting"),
    (
        lambda p, s: (update(member(p, 1), lag=2.5), young(p, 1, "up", s)),
        diagnosis.START_S,
        "late",
    ),
]


@pytest.mark.parametrize(("begin", "after", "check"), MOMENTS)
def test_what_is_normal_for_a_moment_is_a_finding_once_it_has_lasted(
    begin: Callable[[Picture, float], object], after: float, check: str
) -> None:
    fresh, lasting = copy.deepcopy(healthy()), copy.deepcopy(healthy())
    begin(fresh, after - 0.1)
    assert findings(fresh) == []
    begin(lasting, after)
    assert check in [f.check for f in findings(lasting)]


def starting(p: Picture, age: float, detail: str) -> None:
    """The asked node is no member yet."""
    update(p.cluster, status="joining", status_for=age)
    p.nodes["nodes"].clear()
    p.checkup["members"].clear()
    p.shards.clear()
    p.cluster["coordinators"].clear()
    ready = {"membership": {"ok": False, "detail": detail}}
    update(p.ready, **ready, **{"coordinator:page": {"ok": False, "detail": "not registered yet"}})


def test_a_node_that_begins_is_not_ready_in_silence_unless_it_says_why() -> None:
    for age, detail, expected in (
        (1.0, "joining", []),
        (6.0, "joining: 10.0.0.9:7356 (gossip) does not answer", ["not-ready"]),
        (JOIN_S, "joining", ["not-ready"]),
    ):
        picture = copy.deepcopy(healthy())
        starting(picture, age, detail)
        assert [finding.check for finding in findings(picture)] == expected, detail


def test_a_type_that_a_release_adds_is_not_missed_by_the_members_without_it() -> None:
    picture = copy.deepcopy(healthy())
    no_coordinator(picture)
    for index in range(2):
        del member(picture, index)["types"]["page"]
    young(picture, 2, "up", COORDINATOR_S - 1)
    picture.shards.clear()
    assert [f.check for f in findings(picture) if f.check != "store-behind"] == []
    young(picture, 2, "up", COORDINATOR_S)
    assert "no-coordinator" in [finding.check for finding in findings(picture)]


def test_a_node_that_stops_is_not_ready_in_silence() -> None:
    picture = copy.deepcopy(healthy())
    update(picture.cluster, status="up", stopping="before-service-unbind")
    update(picture.ready, membership={"ok": False, "detail": "before-service-unbind"})
    assert findings(picture) == []


def test_every_check_has_a_level() -> None:
    assert set(ADVICE) > diagnosis.FAULTS
    assert set(ADVICE) > PASSING
    assert Finding("unreachable", "members", A, "").level == "fault"
    assert Finding("moving", "page", "1", "").level == "warning"
