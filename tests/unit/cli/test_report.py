"""`report` reads all that it can, in bounded time, and writes it all the same."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from shardbus_cli import report
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp, silent
from shardbus_cli.report import DEADLINE_S, ReportPage, _read

PAGES = [
    ReportPage("cluster", ("v1", "cluster")),
    ReportPage("a/b", ("v1", "a", "b")),
    ReportPage("x", ("livez",)),
]
NODE = NodeHttp("http://10.0.0.1:8558")
LATER = 2.0**60


class Node:
    """In the place of a node's HTTP: its answer to each page."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: str | CommandFailure) -> None:
        self.read_pages: list[str] = []
        self.answers = answers

        def get(node: NodeHttp, *path: str, **query: object) -> str:
            self.read_pages.append(path[-1])
            answer = self.answers.get(path[-1], "{}")
            if isinstance(answer, CommandFailure):
                raise answer
            return answer

        monkeypatch.setattr(NodeHttp, "get", get)
        monkeypatch.setattr(NodeHttp, "probe", lambda node, name: (False, get(node, name)))


def test_pages_become_files(monkeypatch: pytest.MonkeyPatch) -> None:
    Node(monkeypatch, b='{"b": 1}')
    texts = _read("here", NODE, PAGES, LATER)
    assert texts == {"here/cluster.json": "{}", "here/a/b.json": '{"b": 1}', "here/x.json": "{}"}


def test_a_page_that_is_refused_keeps_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = CommandFailure("needs a token", code=ExitCode.REFUSED)
    Node(monkeypatch, cluster=refused)
    texts = _read("here", NODE, PAGES, LATER)
    assert texts["here/cluster.json"] is refused
    assert texts["here/x.json"] == "{}"


def test_a_node_that_is_silent_is_asked_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = silent(NODE.url, "no answer within 5 s")
    node = Node(monkeypatch, cluster=failure)
    assert set(_read("here", NODE, PAGES, LATER).values()) == {failure}
    assert node.read_pages == ["cluster"]


def test_once_the_time_is_over_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    texts = _read("here", NODE, PAGES, 0.0)
    assert {str(text) for text in texts.values()} == {f"not read within {DEADLINE_S:g} s"}
    assert node.read_pages == []


def test_a_name_stays_in_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    Node(monkeypatch)
    odd = ReportPage("shards/../../etc\x00/" + "x" * 500, ("v1", "shards", "odd"))
    [name] = _read("cluster", NODE, [odd], LATER)
    assert ".." not in name.split("/")
    assert "\x00" not in name
    assert len(name) < 200


def test_a_report_of_a_node_with_half_of_the_pages(shell, url, tmp_path: Path) -> None:
    """The node behind the URL knows no gossip, settings and other pages."""
    out = tmp_path / "report.zip"
    assert shell("report", "--out", str(out)) == ExitCode.OK
    assert shell.out.startswith(f"{out}: ")
    with ZipFile(out) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    missing = json.loads(files["missing.json"])
    assert "cluster/slow.json" in missing
    assert "cluster/shards/book.json" in missing
    assert json.loads(files["cluster/shards/counter.json"])["type"] == "counter"
    assert json.loads(files["summary.json"])["missing"] == len(missing)
    assert "doctor.json" in files


def test_where_nothing_can_be_written_nothing_is(shell, url, tmp_path: Path) -> None:
    assert shell("report", "--out", str(tmp_path / "none" / "r.zip")) == ExitCode.USAGE
    assert shell.err.endswith(f"shardbus: there is no directory {tmp_path}/none\n")
    (tmp_path / "there.zip").write_text("mine")
    assert shell("report", "--out", str(tmp_path / "there.zip")) == ExitCode.FAILED
    assert (tmp_path / "there.zip").read_text() == "mine"


def test_the_default_name_has_the_cluster_and_the_time() -> None:
    from shardbus.admin.diagnosis import Picture

    name = report._name(Picture(cluster={"cluster": "my/../shop"}))
    assert name.startswith("shardbus-report-my_.._shop-20")
    assert name.endswith(".zip")
    assert "/" not in name
