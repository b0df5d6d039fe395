"""`plan`, `rebalance`, `place` and `stop`."""

from __future__ import annotations

import json

from shardbus_cli.exit_codes import ExitCode
from tests.unit.cli.cli_kit import ME


def test_planned_moves_are_shown_and_carried_out(shell, url, node, monkeypatch):
    assert shell("plan", "counter", "--add", "1", "--remove", "a:1") == ExitCode.OK
    rows = [line.split() for line in shell.out.splitlines()]
    assert rows == [["NODE", "BEFORE", "AFTER"], [ME, "4", "2"], ["new-1", "0", "2"]]
    assert "2 shards would move, in one plan" in shell.err
    assert "nothing moves for balance: an operator has paused it" in shell.err
    assert shell("plan", "counter", "--add", "9") == ExitCode.OK
    assert "does not settle" in shell.err
    assert shell("rebalance", "counter", "--dry-run", "--json") == ExitCode.OK
    assert len(json.loads(shell.out)["moves"]) == 2
    assert shell("rebalance", "counter") == ExitCode.REFUSED
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("rebalance", "counter") == ExitCode.OK
    assert [act[0] for act in node.acts] == ["plan", "plan", "plan", "rebalance"]
    assert node.acts[0] == ("plan", "counter", 1, "a:1")
    assert shell("plan", "counter", "--remove", "a:1") == ExitCode.OK
    assert "2 shards would move\n" in shell.err, "a node that goes needs no plan"


def test_B77_rebalancing_is_paused_resumed_and_slowed(shell, url, node, monkeypatch):
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("rebalance", "counter", "--pause", "--json") == ExitCode.OK
    assert json.loads(shell.out)["paused"] is True
    assert shell("rebalance", "counter", "--resume", "--moves", "5") == ExitCode.OK
    assert ["moves_at_a_time", "5"] in [line.split() for line in shell.out.splitlines()]
    assert shell("rebalance", "counter", "--moves", "-1") == ExitCode.USAGE
    assert shell("rebalance", "counter", "--pause", "--dry-run") == ExitCode.USAGE
    calls = [(True, None), (False, 5)]
    assert node.acts == [("rebalance", "counter", *arguments) for arguments in calls]


def test_B63_shards_are_stopped_and_waited_for(shell, url, node, monkeypatch):
    assert shell("stop", "counter", "3") == ExitCode.REFUSED
    assert shell("stop", "counter") == ExitCode.USAGE
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("stop", "counter", "3", "4", "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"type": "counter", "stopped": ["3", "4"], "stopping": []}
    assert "1 shard is still stopping" in shell.err
    assert node.acts == [("stop", "counter", "3", "4"), ("stop", "counter", "4")]
    node.stuck = True
    assert shell("stop", "counter", "3", "4", "--timeout", "0") == ExitCode.DRAIN_DEADLINE
    assert ["stopping", "3,", "4"] in [line.split() for line in shell.out.splitlines()]


def test_B69_places_are_listed_and_set(shell, url, node, monkeypatch):
    assert shell("place", "counter") == ExitCode.OK
    rows = [line.split() for line in shell.out.splitlines()]
    assert rows == [["SHARD", "PLACE", "NODE"], ["7", "10.0.0.3:1", "-"]]
    assert node.acts == []
    assert shell("place", "counter", "7=10.0.0.3:1") == ExitCode.REFUSED
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("place", "counter", "7=10.0.0.3:1", "a=b=c:1", "8=", "--json") == ExitCode.OK
    assert json.loads(shell.out)["places"][0]["shard"] == "7"
    assert node.acts == [("place", "counter", "7=10.0.0.3:1", "a=b=c:1", "8=")]
    for bad in ("7", "7=garbage", "=10.0.0.3:1"):
        assert shell("place", "counter", bad) == ExitCode.USAGE
        assert shell.err.startswith(f"shardbus: {bad!r}")
        assert shell.err.endswith("; write SHARD=HOST:PORT, or SHARD= to remove its place\n")
    assert len(node.acts) == 1
