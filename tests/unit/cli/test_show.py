"""Commands that show a node's view: only data on standard output, and tables that hold."""

from __future__ import annotations

import json

import pytest

from shardbus_cli.exit_codes import ExitCode
from tests.unit.cli.cli_kit import ME


@pytest.mark.parametrize(
    "words",
    [
        ("cluster", "status"),
        ("nodes",),
        ("types",),
        ("shards", "counter"),
        ("partitions", "counter"),
        ("entities", "counter", "--prefix", "p"),
        ("load",),
        ("where", "counter", "a/b c"),
        ("limit", "counter"),
        ("explain", "counter", "x"),
        ("explain", "counter", "--shard", "7"),
        ("explain", "downing"),
        ("health",),
    ],
)
def test_json_is_what_http_sent_and_nothing_else(shell, url, words):
    assert shell(*words, "--json") == ExitCode.OK
    assert json.loads(shell.out)
    assert (shell.out.count("\n"), shell.err) == (1, "")
    assert shell(*words) == ExitCode.OK
    assert shell.out
    with pytest.raises(ValueError, match=r"Expecting value|Extra data"):
        json.loads(shell.out)


def test_load_shows_each_node_in_units_and_the_hottest_shards(shell, url):
    assert shell("load") == ExitCode.OK
    heading, node, *rest = shell.out.splitlines()
    assert heading.split("  ")[0] == "NODE"
    assert node.split() == [ME, "50%", "4", "50", "1.0%", "7", "1234", "0"]
    assert [line.split() for line in rest if line] == [
        ["TYPE", "SHARD", "NODE", "LOAD", "UNIT"],
        ["page", "3", ME, "42", "entities"],
    ]
    assert "no answer about: 127.0.0.1:9#9" in shell.err


def test_a_suspended_node_is_marked(shell, url):
    shell("nodes")
    rows = {line.split()[0]: line for line in shell.out.splitlines()[1:]}
    assert "suspended" in rows["10.0.0.9:1#1"]
    assert "suspended" not in rows[ME]


def test_plain_tables_are_aligned_and_never_cut(shell, url):
    shell("nodes")
    heading, first, *_ = shell.out.splitlines()
    assert heading.split() == [
        "NODE",
        "STATUS",
        "REACHABLE",
        "ROLES",
        "SHARDS",
        "ENTITIES",
        "VERSION",
        "IS",
    ]
    assert first[heading.index("ROLES") :].startswith("web, backend")
    assert first[heading.index("SHARDS") :].split()[0] == "100"
    assert first.endswith("leader, oldest")


def test_S3_9_partitions_are_sets_of_nodes_or_of_their_ordinals(shell, url):
    assert shell("partitions", "counter") == ExitCode.OK
    heading, first, _ = shell.out.splitlines()
    assert heading.split() == ["SHARD", "NODES"]
    assert first == f"17     n1:7355#01, {ME}"
    assert shell("partitions", "counter", "--ordinals") == ExitCode.OK
    assert [line.split(maxsplit=1) for line in shell.out.splitlines()] == [
        ["ORDINAL", "NODE"],
        ["1", ME],
        ["2", "n1:7355#01"],
        ["SHARD", "NODES"],
        ["17", "2, 1"],
        ["18", "1, n9:1#09"],
    ]


def test_N13_explain_shows_what_became_of_a_shard(shell, url):
    assert shell("explain", "counter", "--shard", "7") == ExitCode.OK
    *_, heading, row = shell.out.splitlines()
    assert heading.split() == ["AT", "FROM", "TO", "WHY", "EPOCH", "FENCE", "SECONDS"]
    assert row.split() == ["12:00", "n1", ME, "drain", "2", "9", "0.02"]
    assert shell("explain", "counter", "--shard", "8") == ExitCode.OK
    assert shell.err == "its coordinator has no change of it on record\n"
    assert shell("explain", "counter", "x") == ExitCode.OK
    assert shell.err == "its coordinator does not answer, so its history is unknown\n"
    assert shell("explain", "counter") == ExitCode.USAGE
    assert shell("explain", "counter", "x", "--shard", "7") == ExitCode.USAGE


def test_ids_cannot_move_the_cursor(shell, url):
    shell("entities", "counter")
    assert "\x1b" not in shell.out
    assert "\\x1b[31mé" in shell.out
    assert "--cursor abc" in shell.err


@pytest.mark.parametrize("shape", [(), ("--json",)])
def test_S2_82_a_node_whose_entities_are_missing_is_named(shell, url, node, shape):
    assert shell("entities", "counter", *shape) == ExitCode.OK
    node.stuck = True
    assert shell("entities", "counter", *shape) == ExitCode.UNREACHABLE
    assert "mé" in shell.out, "those of the others are shown"
    said = "shardbus: no answer from 10.0.0.9:1#1, whose entities are missing"
    assert shell.err.splitlines()[-1] == said


def test_an_id_is_one_value_whatever_it_holds(shell, url):
    for entity_id in ("a/b", "..", "ä?x=1#y", "%2F"):
        shell("where", "counter", entity_id, "--json")
        assert json.loads(shell.out)["id"] == entity_id


def test_a_refusal_of_the_node_is_one_line(shell, url):
    assert shell("shards", "counted") == ExitCode.FAILED
    assert shell.err == "shardbus: no entity type 'counted'; see types\n"
    assert shell.out == ""


def test_health_has_its_own_exit_code(shell, url, node):
    node.ready = False
    assert shell("health") == ExitCode.UNHEALTHY
    assert shell.out.splitlines()[1].split() == ["member", "FAILED", "joining"]
    assert shell("health", "--json") == ExitCode.UNHEALTHY
    assert json.loads(shell.out)["status"] == "unavailable"


def test_the_cluster_is_joined_and_stopped(shell, url, node, monkeypatch):
    assert shell("cluster", "shutdown") == ExitCode.REFUSED
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("cluster", "join", "a:1", "b:2") == ExitCode.OK
    assert shell("cluster", "join", "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"join": True}
    assert shell("cluster", "shutdown") == ExitCode.OK
    assert shell.out.split() == ["shut_down", "yes"]
    assert node.acts == [("join", ("a:1", "b:2")), ("join", ()), ("shut_down",)]


def test_N21_causes_come_first_each_with_its_remedy(shell, url):
    assert shell("explain", "counter", "slow") == ExitCode.OK
    lines = shell.out.splitlines()
    assert lines[:5] == [
        "1. slow handler: `add` takes 240 ms\\x1b[1m",
        "   to do: do less",
        "2. stuck mailbox: `wait` has run since",
        "   to do: end it",
        "",
    ]
    assert lines[5].split() == ["type", "counter"]
    assert "figures" not in shell.out


@pytest.mark.parametrize(
    ("entity_id", "first"),
    [
        ("x", "Nothing that this node and the home know is slow."),
        ("silent", "Nothing that this node knows is slow; the home has given no figures."),
        ("older", "type"),
    ],
)
def test_without_a_cause_explain_says_whether_the_home_was_asked(shell, url, entity_id, first):
    assert shell("explain", "counter", entity_id) == ExitCode.OK
    assert shell.out.startswith(first)
