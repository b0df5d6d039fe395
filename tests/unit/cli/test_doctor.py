"""The doctor: a healthy cluster has no findings, and each fault has its own."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardbus.ids import NodeId
from shardbus.store.protocol import StoredTable
from shardbus_cli import diagnosis, doctor, warning_signs
from shardbus_cli.diagnosis import ADVICE, Finding, Picture, findings, stored
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.main import run

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


def head(p: Picture) -> Any:
    return p.checkup["store"]["tables"]["page"]


def forgotten_and_silent(p: Picture) -> None:
    """What this node knows of the epoch may be old: it proves nothing about the store."""
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
    (lambda p: update(member(p, 1), lag=2.5), [("late", "members", B)]),
    (lambda p: update(member(p, 1), suspended="suspended, because"), [("suspended", "members", B)]),
    (
        lambda p: update(member(p, 1), rival="another cluster writes this store: s:1"),
        [("rival-cluster", "members", B)],
    ),
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
    (lambda p: update(member(p, 1), store_silent_ago=4.0), [("store-errors", "members", B)]),
    (
        lambda p: update(member(p, 1), store_problems=["redis://store may evict stored data"]),
        [("store-unfit", "store", "settings")],
    ),
    (lambda p: update(member(p, 1), store="redis://b"), [("store-differs", "store", "url")]),
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
    found = [finding.key for finding in stored("page", wrong, healthy())]
    assert (check, "page", subject) in found
    assert len(found) <= 2


def test_two_rows_of_one_fence_are_both_named() -> None:
    found = list(stored("page", table(s2=(C, FENCE)), None))
    assert [f.key for f in found] == [
        ("stored-fence-twice", "page", "0"),
        ("stored-fence-twice", "page", "2"),
    ]


def test_a_type_with_a_shard_function_of_its_own_may_name_shards_as_it_likes() -> None:
    own = StoredTable(3, "app.by_country/0", {"fr": (NodeId.parse(A), FENCE)})
    assert list(stored("page", own, None)) == []


def test_every_finding_has_an_advice_and_every_advice_a_finding() -> None:
    source = "".join(Path(m.__file__).read_text() for m in (diagnosis, doctor, warning_signs))
    named = set(re.findall(r'Finding\(\s*"([a-z-]+)"', source))
    assert named | {"unallocated", "moving", "starting"} == set(ADVICE)


# The command


class Nodes:
    """In the place of a node: each look finds the next picture."""

    def __init__(self, *pictures: Picture | CommandFailure) -> None:
        self.pictures = list(pictures)
        self.slept: list[float] = []

    def look(self, node: object, types: object) -> Picture:
        picture = self.pictures.pop(0) if len(self.pictures) > 1 else self.pictures[0]
        if isinstance(picture, CommandFailure):
            raise picture
        return picture


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Nodes]:
    def begin(*pictures: Picture | CommandFailure) -> Nodes:
        nodes = Nodes(*pictures)
        monkeypatch.setattr(doctor, "look", nodes.look)
        monkeypatch.setattr(doctor.time, "sleep", nodes.slept.append)
        return nodes

    return begin


def faulty(*faults: int) -> Picture:
    picture = copy.deepcopy(healthy())
    for index in faults:
        FAULTS[index][0](picture)
    return picture


MOVING = next(i for i, (_, keys) in enumerate(FAULTS) if keys[0][0] == "moving")
LATE = next(i for i, (_, keys) in enumerate(FAULTS) if keys[0][0] == "late")


def test_health_is_one_look_and_exit_code_0(
    seen: Callable[..., Nodes], capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = seen(healthy())
    assert run(["doctor"]) == ExitCode.OK
    assert capsys.readouterr().out == "healthy: 3 members, 1 type, 4 shards\n"
    assert nodes.slept == []


def test_a_passing_state_is_no_finding_and_a_lasting_one_is_exit_code_5(
    seen: Callable[..., Nodes], capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = seen(faulty(MOVING), faulty(LATE))
    assert run(["doctor"]) == ExitCode.OK
    assert nodes.slept == [5.0]
    nodes = seen(faulty(MOVING, LATE), faulty(LATE))
    capsys.readouterr()
    assert run(["doctor", "--wait", "1"]) == ExitCode.UNHEALTHY
    assert nodes.slept == [1.0]
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"late: members {B} has a loop that is 2.5 s late"
    assert second == f"    {ADVICE['late']}"
    nodes = seen(faulty(MOVING))
    assert run(["doctor", "--wait", "0"]) == ExitCode.UNHEALTHY
    assert nodes.slept == []


def test_json_has_every_subject_and_nothing_else_is_printed(
    seen: Callable[..., Nodes], capsys: pytest.CaptureFixture[str]
) -> None:
    picture = copy.deepcopy(healthy())
    for index in range(4):
        update(shard(picture, index), state="unallocated")
    seen(picture)
    assert run(["doctor", "--json", "--wait", "0"]) == ExitCode.UNHEALTHY
    printed = capsys.readouterr()
    assert printed.err == ""
    answer = json.loads(printed.out)
    assert (answer["healthy"], answer["cluster"]) == (False, "shop")
    assert answer["findings"] == [
        {
            "check": "unallocated",
            "of": "page",
            "subjects": ["0", "1", "2", "3"],
            "what": "is unallocated",
            "advice": ADVICE["unallocated"],
        }
    ]
    seen(healthy())
    assert run(["doctor", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_many_subjects_are_counted() -> None:
    found = [Finding("moving", "page", str(i), "is handing off") for i in range(40)]
    [group] = doctor._grouped(found)
    assert len(group["subjects"]) == 40


def test_a_node_that_does_not_answer_is_exit_code_4(
    seen: Callable[..., Nodes], capsys: pytest.CaptureFixture[str]
) -> None:
    seen(CommandFailure("nobody", code=ExitCode.UNREACHABLE))
    assert run(["doctor"]) == ExitCode.UNREACHABLE
    assert capsys.readouterr().err == "shardbus: nobody\n"


def test_the_store_is_looked_at_without_a_node_if_it_is_named(
    seen: Callable[..., Nodes], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Store:
        async def load_table(self, kind: str) -> StoredTable:
            return table(s4=(A, FENCE + 4))

        async def close(self) -> None: ...

    async def opened(url: str, cluster: str) -> Any:
        assert (url, cluster) == ("redis://x", "shop")
        return Store()

    monkeypatch.setattr(doctor, "opened", opened)
    seen(CommandFailure("nobody", code=ExitCode.UNREACHABLE))
    words = ["doctor", "page", "--store", "redis://x", "--cluster", "shop"]
    assert run(words) == ExitCode.UNREACHABLE
    assert capsys.readouterr().out.startswith("stored-outside: page 4 is none of crc32/4\n")
    seen(healthy())
    assert run(["doctor", "--store", "redis://x"]) == ExitCode.UNHEALTHY


def test_a_store_that_does_not_answer_here_is_a_finding(
    seen: Callable[..., Nodes], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    seen(healthy())
    (tmp_path / "folder").mkdir()
    assert run(["doctor", "--store", f"sqlite:///{tmp_path}/folder"]) == ExitCode.UNHEALTHY
    assert capsys.readouterr().out.startswith("store-silent: store sqlite:///")
    assert run(["doctor", "--store", "nonsense://x"]) == ExitCode.UNHEALTHY
    assert "store-unfit: " in capsys.readouterr().out


def test_the_doctor_knows_no_type_of_that_name(shell, url):
    assert shell("doctor", "counted", "--wait", "0") == ExitCode.FAILED
    assert shell.err == "shardbus: there is no entity type 'counted'; did you mean counter?\n"
    assert shell.out == ""
    assert shell("doctor", "counter", "--wait", "0") == ExitCode.UNHEALTHY, (
        "this node has no coordinator"
    )
