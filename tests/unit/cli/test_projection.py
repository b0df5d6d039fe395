"""`projection`: lag and failures are shown, and orders reach the node with the operator's token."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardbus.http.page import Json
from shardbus_cli.exit_codes import ExitCode
from tests.unit.cli.cli_kit import ME, FakeNode

FIGURES: dict[str, Any] = {
    "of": "account",
    "shards": 10,
    "behind": 2,
    "lag": 7.5,
    "stopped": 1,
    "scanning": 0,
    "handled": 40,
    "passed": 1,
    "failed": 11,
    "missing": 3,
}


class ProjectingNode(FakeNode):
    """A node with one projection, of whose parts one has stopped."""

    def _silent(self) -> list[str]:
        return ["10.0.0.9:1#1"] if self.stuck else []

    async def projections(self) -> Json:
        return {"projections": [{"name": "statement", **FIGURES}], "silent": self._silent()}

    async def projection(self, type: str, limit: int) -> Json:
        self.acts.append(("projection", type, limit))
        failing = {"id": "a\x1b[31mé", "node": ME, "state": "stopped", "number": 3}
        failing |= {"attempts": 10, "error": "ValueError: no\nsuch"}
        return {
            "name": type,
            "of": "account",
            "nodes": [{"node": ME, **FIGURES}],
            "failing": [] if self.stuck else [failing],
            "silent": self._silent(),
        }

    async def projection_of(self, type: str, id: str) -> Json:
        self.acts.append(("part", type, id))
        row = {"name": type, "id": id, "node": ME, "handled": 2, "last": 5, "first": 1}
        return row | {"behind": 3, "state": "stopped", "number": 3, "attempts": 10, "error": "no"}

    async def retry_projection(self, type: str, operator: str, id: str) -> Json:
        self.acts.append(("retry", type, id))
        return {"name": type, "retried": 1 if id else 4, "silent": self._silent()}

    async def skip_event(self, type: str, operator: str, id: str, number: int) -> Json:
        self.acts.append(("skip", type, id, number))
        return {"name": type, "id": id, "node": ME, "skipped": number}

    async def rewind_projection(
        self, type: str, operator: str, id: str, missing: bool, after: str
    ) -> Json:
        self.acts.append(("rewind", type, id, missing, after))
        refused = [{"id": "bob", "error": "the first 4 events are removed"}]
        return {
            "name": type,
            "rewound": [id or f"part{after}"],
            "refused": refused if after and not missing else [],
            "next": None if id or after else "next page",
        }


@pytest.fixture
def node() -> FakeNode:
    return ProjectingNode()


def test_the_list_and_one_projection_are_shown_and_hostile_texts_are_plain(shell, url, node):
    assert shell("projection", "list") == ExitCode.OK
    head, row = shell.out.splitlines()
    assert head.split()[:5] == ["NAME", "OF", "SHARDS", "BEHIND", "LAG"]
    assert row.split() == ["statement", "account", "10", "2", "7.5", "1", "0", "40", "11", "3"]
    assert shell("projection", "show", "statement", "--limit", "5") == ExitCode.OK
    assert "stopped" in shell.out
    assert "\x1b" not in shell.out
    assert shell("projection", "show", "statement", "a/b") == ExitCode.OK
    assert shell.out.splitlines()[1].split()[:6] == ["a/b", ME, "stopped", "2", "5", "3"]
    assert shell("projection", "show", "statement", "a/b", "--json") == ExitCode.OK
    assert json.loads(shell.out)["behind"] == 3
    node.stuck = True
    assert shell("projection", "list") == ExitCode.OK
    assert "no answer from 10.0.0.9:1#1" in shell.err
    assert shell("projection", "show", "statement") == ExitCode.OK
    assert "no answer from 10.0.0.9:1#1" in shell.err
    assert node.acts == [
        ("projection", "statement", 5),
        ("part", "statement", "a/b"),
        ("part", "statement", "a/b"),
        ("projection", "statement", 100),
    ]


def test_orders_need_the_token_and_name_their_entities(shell, url, node, monkeypatch):
    assert shell("projection", "retry", "statement") == ExitCode.REFUSED
    assert node.acts == []
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("projection", "retry", "statement") == ExitCode.OK
    assert "4 retried" in shell.err
    assert shell("projection", "retry", "statement", "ada", "--json") == ExitCode.OK
    assert json.loads(shell.out)["retried"] == 1
    assert shell("projection", "skip", "statement", "ada", "17") == ExitCode.OK
    assert "event 17 of 'ada' is passed over" in shell.err
    assert shell("projection", "rewind", "statement") == ExitCode.USAGE
    assert shell("projection", "rewind", "statement", "ada", "--all") == ExitCode.USAGE
    assert shell("projection", "rewind", "statement", "ada") == ExitCode.OK
    assert "1 rewound" in shell.err
    assert shell("projection", "rewind", "statement", "--all", "--missing") == ExitCode.OK
    assert shell("projection", "rewind", "statement", "--all", "--json") == ExitCode.REFUSED
    assert json.loads(shell.out)["rewound"] == ["part", "partnext page"]
    assert node.acts == [
        ("retry", "statement", ""),
        ("retry", "statement", "ada"),
        ("skip", "statement", "ada", 17),
        ("rewind", "statement", "ada", False, ""),
        ("rewind", "statement", "", True, ""),
        ("rewind", "statement", "", True, "next page"),
        ("rewind", "statement", "", False, ""),
        ("rewind", "statement", "", False, "next page"),
    ]
