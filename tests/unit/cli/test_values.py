"""`values`: what a node answers is shown; changes need the token."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardbus.errors import ValueRefused
from shardbus_cli.exit_codes import ExitCode

SHOWN: dict[str, Any] = {
    "key": "rate:é",
    "replicas": ["10.0.0.1:7357", "10.0.0.2:7357"],
    "kind": "register",
    "hash": "01",
    "version": [{"disk": "0a", "counter": 3}],
    "value": {"bid": 1.5},
    "conflicts": [],
}


@pytest.fixture
def values(node, monkeypatch, request):
    """The node's values: `shown` is each of them."""
    shown = dict(SHOWN)

    async def listed(prefix, limit, operator):
        node.acts.append(("values", prefix, limit))
        return {"values": [{"key": "a"}, {"key": "b"}][:limit], "more": limit == 1}

    async def shown_value(key, operator, r):
        node.acts.append(("value", key, r))
        return shown

    async def put(key, value, operator, w):
        node.acts.append(("put", key, value, w))
        if key == "hits":
            raise ValueRefused(key, "kind", "counter")
        return shown

    async def delete(key, operator, w):
        node.acts.append(("delete", key, w))
        return {"key": key, "deleted": True}

    node.values, node.value, node.put_value, node.delete_value = listed, shown_value, put, delete
    request.getfixturevalue("url")  # its application is made of the pages that the node has now
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    return shown


def test_keys_are_listed(shell, node, values):
    assert shell("values", "list") == ExitCode.OK
    assert shell.out == "a\nb\n"
    assert shell("values", "list", "rate:", "--limit", "1") == ExitCode.OK
    assert (shell.out, shell.err) == ("a\n", "there are more: --limit 10\n")
    assert shell("values", "list", "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"values": [{"key": "a"}, {"key": "b"}], "more": False}
    assert node.acts == [("values", "", 100), ("values", "rate:", 1), ("values", "", 100)]


def test_a_value_is_shown_with_its_conflicts(shell, node, values):
    assert shell("values", "get", "rate:é", "--r", "all") == ExitCode.OK
    assert json.loads(shell.out) == {"bid": 1.5}
    assert shell.err == ""
    values["conflicts"] = ["é"]
    assert shell("values", "get", "rate:é") == ExitCode.OK
    assert shell.err == 'put at the same time: ["é"]\n'
    assert shell("values", "get", "rate:é", "--json") == ExitCode.OK
    assert json.loads(shell.out) == values
    values["kind"] = None
    assert shell("values", "get", "rate:é") == ExitCode.FAILED
    assert "has no value" in shell.err
    assert node.acts[0] == ("value", "rate:é", "all")


def test_a_value_is_put_and_removed(shell, node, values, monkeypatch):
    assert shell("values", "put", "rate:é", '{"bid": 2}', "--w", "majority") == ExitCode.OK
    assert shell("values", "remove", "rate:é") == ExitCode.OK
    assert node.acts == [("put", "rate:é", {"bid": 2}, "majority"), ("delete", "rate:é", "")]
    assert shell("values", "put", "rate:é", "{") == ExitCode.USAGE
    assert shell("values", "put", "hits", "1") == ExitCode.REFUSED
    assert "it is a counter" in shell.err
    monkeypatch.delenv("SHARDBUS_NODE_TOKEN")
    assert shell("values", "put", "rate:é", "1") == ExitCode.REFUSED
    assert shell("values", "get", "rate:é") == ExitCode.REFUSED


def test_the_replicas_of_a_key_are_listed(shell, values):
    assert shell("values", "ring", "k") == ExitCode.OK
    assert shell.out == "10.0.0.1:7357\n10.0.0.2:7357\n"
    assert shell("values", "ring", "k", "--json") == ExitCode.OK
    assert json.loads(shell.out) == values["replicas"]
