"""`cordon`, `uncordon`, `drain` and `shutdown-region`: their waits, and how they end."""

from __future__ import annotations

import json

from shardbus_cli.exit_codes import ExitCode
from tests.unit.cli.cli_kit import ME


def test_a_member_is_cordoned_and_drained(shell, url, node, monkeypatch):
    monkeypatch.setattr("shardbus_cli.maintenance.POLL_S", 0.0)
    assert shell("cordon", ME) == ExitCode.REFUSED
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("cordon", ME) == ExitCode.OK
    assert shell("uncordon", ME, "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"node": ME, "service": "open"}
    assert shell("drain", ME, "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"node": ME, "service": "draining", "shards": 0}
    assert "1 shard left: 1 of counter" in shell.err
    node.stuck = True
    assert shell("drain", ME, "--timeout", "0.5") == ExitCode.DRAIN_DEADLINE
    assert shell.err.count(" left: ") == 1, "what does not change is said once"
    assert "explain counter --shard S" in shell.err
    assert [act[0] for act in node.acts] == ["cordoned", "open", "draining", "draining"]


def test_a_region_is_shut_down(shell, url, node, monkeypatch):
    monkeypatch.setattr("shardbus_cli.maintenance.POLL_S", 0.0)
    assert shell("shutdown-region", "counter") == ExitCode.REFUSED
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("shutdown-region", "counter", ME, "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"node": ME, "type": "counter", "shards": 0}
    assert " left: " in shell.err
    node.stuck = True
    assert shell("shutdown-region", "counter", "--timeout", "0.01") == ExitCode.DRAIN_DEADLINE
    assert shell("shutdown-region", "counter", "--timeout", "0") == ExitCode.OK
    assert node.acts[0] == ("shutdown-region", ME, "counter")
    assert node.acts[-1] == ("shutdown-region", "self", "counter")


def test_drain_with_timeout_0_does_not_wait_and_succeeds(shell, url, node, monkeypatch):
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    node.stuck = True
    assert shell("drain", ME, "--timeout", "0", "--json") == ExitCode.OK
    assert json.loads(shell.out)["shards"] > 0
    assert shell.err == ""
