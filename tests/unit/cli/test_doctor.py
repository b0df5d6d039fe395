"""The doctor's command: it prints a node's findings, twice."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shardbus.admin.diagnosis import ADVICE, Finding, Picture, findings
from shardbus.admin.examination import grouped
from shardbus.admin.warning_signs import warning_signs
from shardbus.store.protocol import StoredTable
from shardbus_cli import doctor
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.main import run
from shardbus_cli.node_http import NodeHttp
from tests.unit.admin.test_diagnosis import FAULTS, FENCE, A, B, C, healthy, shard, table, update


class Nodes:
    """In the place of a node: each examination finds the next picture."""

    def __init__(self, *pictures: Picture | CommandFailure) -> None:
        self.pictures = list(pictures)
        self.slept: list[float] = []
        self.lost: list[dict[str, Any]] = []

    def examine(self, node: object, types: object) -> dict[str, Any]:
        picture = self.pictures.pop(0) if len(self.pictures) > 1 else self.pictures[0]
        if isinstance(picture, CommandFailure):
            raise picture
        self.seen = picture
        return {
            "cluster": "shop",
            "members": 3,
            "types": 1,
            "shards": 4,
            "findings": grouped([*findings(picture), *warning_signs(picture)]),
            "lost": self.lost,
        }

    def look(self, node: object, types: object) -> Picture:
        return self.seen


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Nodes]:
    def begin(*pictures: Picture | CommandFailure) -> Nodes:
        nodes = Nodes(*pictures)
        monkeypatch.setattr(doctor, "examine", nodes.examine)
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
            "level": "warning",
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
    findings = [Finding("moving", "page", str(i), "is handing off") for i in range(40)]
    [group] = grouped(findings)
    assert len(group["subjects"]) == 40


def test_a_lost_node_is_printed_and_is_no_finding(
    seen: Callable[..., Nodes], capsys: pytest.CaptureFixture[str]
) -> None:
    at, why = "2026-01-02T03:04:05+00:00", "keep-majority: 2 of 3"
    shards = {"page": {"freed": 4, "homed": 3}}
    nodes = seen(healthy())
    nodes.lost = [{"node": C, "at": at, "by": A, "why": why, "shards": shards}]
    assert run(["doctor"]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[1] == (
        f"lost: {C} at {at}, declared dead by {A}: {why}; 3 of its 4 shards of page have a home"
        " again"
    )
    assert run(["doctor", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["lost"] == nodes.lost


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

    @asynccontextmanager
    async def opened(url: str, cluster: str) -> AsyncIterator[Any]:
        assert (url, cluster) == ("redis://x", "shop")
        yield Store()

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


def test_a_type_within_another_has_no_table_of_its_own_that_could_be_behind(
    seen: Callable[..., Nodes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = healthy()
    picture.inner = {*picture.shards}
    seen(picture)
    url = f"sqlite:///{tmp_path}/shop.db"
    (tmp_path / "shop.db").touch()
    assert run(["doctor", "--store", url]) == ExitCode.OK
    seen(healthy())
    assert run(["doctor", "--store", url, "--wait", "0"]) == ExitCode.UNHEALTHY
    assert "store-behind" in capsys.readouterr().out


def test_a_node_of_an_earlier_release_is_examined_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(self: NodeHttp, *path: str, **query: object) -> dict[str, Any]:
        if path == ("v1", "findings"):
            raise CommandFailure("there is no such page")
        raise AssertionError(path)

    monkeypatch.setattr(NodeHttp, "read", read)
    monkeypatch.setattr(doctor, "look", lambda node, types: faulty(LATE))
    assert run(["doctor", "--wait", "0"]) == ExitCode.UNHEALTHY
    assert capsys.readouterr().out.startswith(f"late: members {B} has a loop")


def test_findings_about_other_types_are_left_out(
    seen: Callable[..., Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(faulty(MOVING, LATE))
    answer = {"findings": grouped(findings(faulty(MOVING, LATE)))}
    node = NodeHttp("http://127.0.0.1:1")
    of_other = doctor._all(answer, node, ["cart"], None, None)
    assert [finding.check for finding in of_other] == ["late"]
    every = doctor._all(answer, node, [], None, None)
    assert sorted(finding.check for finding in every) == ["late", "moving"]


def test_the_doctor_knows_no_type_of_that_name(shell, url):
    assert shell("doctor", "counted", "--wait", "0") == ExitCode.FAILED
    assert shell.err == "shardbus: there is no entity type 'counted'; did you mean counter?\n"
    assert shell.out == ""
    assert shell("doctor", "counter", "--wait", "0") == ExitCode.UNHEALTHY, (
        "this node has no coordinator"
    )
