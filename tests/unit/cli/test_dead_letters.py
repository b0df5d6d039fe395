"""`dead-letters`: dropped messages are listed, chosen, and sent again only with --yes."""

from __future__ import annotations

import json

import pytest

from shardbus_cli.exit_codes import ExitCode
from tests.unit.cli.cli_kit import LETTER


def test_B166_letters_are_listed_and_hostile_ids_are_text(shell, url, node):
    assert shell("dead-letters", "list") == ExitCode.OK
    head, row, _ = shell.out.splitlines()
    assert head.split() == ["ID", "AT", "TYPE", "ENTITY", "METHOD", "REASON", "SENDER", "BYTES"]
    assert "a\\x1b[31mé" in row
    assert "\x1b" not in shell.out
    options = ("--type", "page", "--reason", "failed", "--since", "10m", "--limit", "1")
    assert shell("dead-letters", "list", *options, "--json") == ExitCode.OK
    assert json.loads(shell.out)["letters"] == [LETTER]
    assert shell("dead-letters", "list", "--limit", "1") == ExitCode.OK
    assert "there are more: --limit 10" in shell.err
    assert node.acts == [
        ("dead-letters", "", "", 0.0, 100),
        ("dead-letters", "page", "failed", 600.0, 1),
        ("dead-letters", "", "", 0.0, 1),
    ]
    node.stuck = True
    assert shell("dead-letters", "list") == ExitCode.UNREACHABLE
    assert "no answer from 10.0.0.9:1#1" in shell.err


def test_B166_nothing_is_sent_without_yes_and_the_token(shell, url, node, monkeypatch):
    assert shell("dead-letters", "replay", "--type", "page", "--yes") == ExitCode.REFUSED
    assert node.acts == []
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("dead-letters", "replay", "--type", "page", "--limit", "2") == ExitCode.OK
    assert LETTER["id"] in shell.out
    assert "2 would be sent: repeat with --yes" in shell.err
    assert "1 left out: their bodies were not kept" in shell.err
    assert "there are more" in shell.err
    assert shell("dead-letters", "replay", "a-1", "b-2", "--answered", "--yes") == ExitCode.OK
    assert shell.out == ""
    assert "2 sent" in shell.err
    assert node.acts == [
        ("replay", "page", "", 0.0, (), 2, False, True),
        ("replay", "", "", 0.0, ("a-1", "b-2"), 100, True, False),
    ]
    node.stuck = True
    assert shell("dead-letters", "replay", "a-1", "--yes", "--json") == ExitCode.FAILED
    assert json.loads(shell.out)["sent"] == 1
    assert shell("dead-letters", "replay", "a-1", "--yes") == ExitCode.FAILED
    assert f"{LETTER['id']}: no\\x1b[31m room" in shell.err
    assert "1 letter was not sent" in shell.err
    assert shell("dead-letters", "replay", "--reason", "schema") == ExitCode.REFUSED
    assert "its body was not kept; set a size" in shell.err


@pytest.mark.parametrize("words", [[], ["a-1", "--type", "page"], ["--yes"], ["--limit", "5"]])
def test_a_replay_needs_ids_or_a_choice(shell, url, node, words):
    assert shell("dead-letters", "replay", *words) == ExitCode.USAGE
    assert shell.err.startswith("shardbus: name letters by their ids, or choose by --type")
    assert node.acts == []
