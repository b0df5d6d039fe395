"""`limit`: it is shown, set, and refused if it is no limit."""

from __future__ import annotations

import json

from shardbus_cli.exit_codes import ExitCode
from tests.unit.cli.cli_kit import ME


def test_B85_a_limit_is_shown_and_set(shell, url, node, monkeypatch):
    assert shell("limit", "counter") == ExitCode.OK
    rows = [line.split() for line in shell.out.splitlines()]
    assert rows == [["NODE", "LIMIT", "ENTITIES", "EVICTED"], [ME, "500", "7", "3"]]
    assert shell("limit", "counter", "500") == ExitCode.REFUSED
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("limit", "counter", "500", "--json") == ExitCode.OK
    assert json.loads(shell.out)["nodes"][0]["limit"] == 500
    assert shell("limit", "counter", "off", "--on", ME) == ExitCode.OK
    for bad in ("-1", "many", "1.5", "99999999999"):
        assert shell("limit", "counter", "--", bad) == ExitCode.USAGE
        assert shell.err.startswith(f"shardbus: {bad!r} is no limit; ")
    assert node.acts == [("limit", "counter", 500, None), ("limit", "counter", 0, ME)]
    node.stuck = True
    assert shell("limit", "counter", "9", "--json") == ExitCode.UNREACHABLE
    assert json.loads(shell.out)["silent"] == ["10.0.0.9:1#1"]
    assert "no answer from 10.0.0.9:1#1" in shell.err
