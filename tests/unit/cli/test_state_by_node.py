"""`state list`, `state set` and `state remove` through a node."""

from __future__ import annotations

import json

from shardbus_cli.exit_codes import ExitCode


def test_ids_are_listed_up_to_the_limit(shell, url):
    assert shell("state", "list", "cart", "--prefix", "a", "--limit", "1") == ExitCode.OK
    lines = shell.out.splitlines()
    assert lines[0].split() == ["ID", "SHARD"]
    assert lines[1].split() == ["a\\x1b[31mé", "7"]
    assert "--cursor 'abc'" in shell.err
    assert (
        shell("state", "list", "cart", "--cursor", "abc", "--shard", "3", "--json") == ExitCode.OK
    )
    assert json.loads(shell.out)["next"] is None


def test_a_list_goes_on_behind_pages_that_are_short_or_empty(shell, url):
    assert shell("state", "list", "cart", "--prefix", "late") == ExitCode.OK
    assert "late" in shell.out
    assert "there are more" not in shell.err
    assert shell("state", "list", "cart", "--limit", "2", "--json") == ExitCode.OK
    answer = json.loads(shell.out)
    assert (len(answer["stored"]), answer["next"]) == (2, None)


def test_a_state_is_changed_by_the_operators_token(shell, url, monkeypatch):
    assert shell("state", "set", "cart", "a/b", '{"n": 1}') != ExitCode.OK
    assert shell.err.count("\n") == 1
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("state", "set", "cart", "a/b", '{"n": 1}') == ExitCode.OK
    assert json.loads(shell.out) == {
        "type": "cart",
        "id": "a/b",
        "state": {"n": 1},
        "removed": False,
    }
    assert shell("state", "remove", "cart", "a/b") == ExitCode.OK
    assert json.loads(shell.out)["removed"] is True
    assert shell("state", "remove", "cart", "gone") == ExitCode.OK
    assert shell.err == "cart 'gone' had no stored state\n"
    assert shell("state", "remove", "cart", "awaited") == ExitCode.REFUSED
    assert "with --keep-messages" in shell.err
    assert shell("state", "remove", "cart", "awaited", "--keep-messages") == ExitCode.OK


def test_a_state_is_shown_and_changed_only_if_it_is_still_the_one_that_was_read(
    shell, url, monkeypatch
):
    assert shell("state", "show", "cart", "a/b") == ExitCode.REFUSED
    assert shell.err.count("\n") == 1
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("state", "show", "cart", "a/b") == ExitCode.OK
    assert json.loads(shell.out)["state"] == {"n": 1}
    assert shell("state", "show", "cart", "gone") == ExitCode.REFUSED
    assert "cart 'gone' has no stored state" in shell.err
    change = ("state", "set", "cart", "a/b", "{}", "--revision")
    assert shell(*change, "abc") == ExitCode.OK
    assert shell(*change, "older") == ExitCode.REFUSED
    assert "has changed meanwhile" in shell.err
    assert shell("state", "remove", "cart", "a/b", "--revision", "abc") == ExitCode.OK
    assert json.loads(shell.out)["revision"] == "abc"
    assert shell(*change, "abc", "--store", "sqlite:///x.db") == ExitCode.USAGE
    assert "--revision is not for --store" in shell.err
