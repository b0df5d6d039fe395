"""`outbox`: outboxes are listed by a node or from the store, and given up only with --yes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from shardbus.store.journal_protocol import journals_of
from shardbus.store.opening import open_store
from shardbus.store.outboxes import OutboxMessage, StoredOutboxes, encode_message
from shardbus_cli.exit_codes import ExitCode
from tests.waiting import PATIENCE_S


def test_outboxes_are_listed_and_hostile_names_are_text(shell, url, node):
    assert shell("outbox", "list") == ExitCode.OK
    head, row = shell.out.splitlines()
    assert head.split() == ["NAME", "PENDING", "AGE", "TYPE", "ID", "METHOD", "OPEN", "PRODUCER"]
    assert row.split()[1:] == ["3", "65.5", "page", "a", "hit", "yes", "client#1/ab"]
    assert "\x1b" not in shell.out
    assert shell("outbox", "list", "--limit", "1", "--json") == ExitCode.OK
    assert json.loads(shell.out)["outboxes"][0]["pending"] == 3
    assert shell("outbox", "list", "--limit", "1") == ExitCode.OK
    assert "there are more: --limit 10" in shell.err
    assert node.acts == [("outboxes", 100), ("outboxes", 1), ("outboxes", 1)]
    node.stuck = True
    assert shell("outbox", "list") == ExitCode.UNREACHABLE
    assert "no answer from 10.0.0.9:1#1" in shell.err


def test_one_outbox_is_shown_with_its_messages(shell, url, node):
    assert shell("outbox", "show", "a/b", "--limit", "2") == ExitCode.OK
    head, *rows = shell.out.splitlines()
    assert head.split() == ["NUMBER", "TAKEN", "TYPE", "ID", "METHOD", "BYTES"]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    assert "\x1b" not in shell.out
    assert "3 messages; open in client#1/ab since 2026" in shell.err
    assert "there may be more: --after 2" in shell.err
    node.stuck = True
    assert shell("outbox", "show", "a/b", "--after", "1", "--json") == ExitCode.OK
    assert [message["number"] for message in json.loads(shell.out)["messages"]] == [2, 3]
    assert shell("outbox", "show", "a/b", "--after", "2") == ExitCode.OK
    assert "not open; opened last by client#1/ab" in shell.err
    assert node.acts == [
        ("outbox", "a/b", 2, 0),
        ("outbox", "a/b", 100, 1),
        ("outbox", "a/b", 100, 2),
    ]


def test_nothing_is_given_up_without_yes_and_the_token(shell, url, node, monkeypatch):
    assert shell("outbox", "drop", "orders") == ExitCode.OK
    assert "3 would be given up: repeat with --yes" in shell.err
    assert shell("outbox", "drop", "orders", "2") == ExitCode.OK
    assert [row.split()[0] for row in shell.out.splitlines()] == ["NUMBER", "2"]
    assert "1 would be given up: repeat with --yes" in shell.err
    assert shell("outbox", "drop", "orders", "4") == ExitCode.REFUSED
    assert "'orders' has no message 4" in shell.err
    assert shell("outbox", "drop", "orders", "--yes") == ExitCode.REFUSED
    assert {act[0] for act in node.acts} == {"outbox"}
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    node.acts.clear()
    assert shell("outbox", "drop", "a/b", "--yes") == ExitCode.OK
    assert "3 messages given up, 0 left" in shell.err
    assert shell("outbox", "drop", "a/b", "2", "--yes", "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"name": "a/b", "dropped": 1, "left": 2}
    assert node.acts == [("drop", "a/b", 0), ("drop", "a/b", 2)]
    node.stuck = True
    assert shell("outbox", "drop", "a/b", "--yes") == ExitCode.REFUSED
    assert "is open in a process" in shell.err


def test_a_node_delivers_what_is_left_with_the_token(shell, url, node, monkeypatch):
    assert shell("outbox", "retry", "a/b") == ExitCode.REFUSED
    assert node.acts == []
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("outbox", "retry", "a/b") == ExitCode.OK
    assert "2 messages confirmed" in shell.err
    node.stuck = True
    assert shell("outbox", "retry", "a/b") == ExitCode.FAILED
    assert "1 given up, poison: `shardbus dead-letters list` has them" in shell.err
    assert "1 message is left" in shell.err
    assert shell("outbox", "retry", "a/b", "--json") == ExitCode.FAILED
    assert json.loads(shell.out)["left"] == 1
    assert node.acts == [("retry", "a/b")] * 3


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with an outbox that two processes have left, and an operator has given one up."""
    where = f"sqlite:///{tmp_path}/store.db"

    async def fill() -> None:
        store = open_store(where, cluster="shop", timeout=PATIENCE_S)
        await store.start()
        journals = journals_of(store)
        assert journals is not None
        outboxes = StoredOutboxes(store, journals, lambda: 1.7e9)
        fence = await outboxes.open("orders", "client#1/ab", 60.0)
        assert fence is not None
        messages = [OutboxMessage("page", entity_id, "hit", b"\x90") for entity_id in "abc"]
        await outboxes.append(
            "orders", fence, 0, [encode_message(entity_id) for entity_id in messages], 1
        )
        await outboxes.close("orders", "client#1/ab", fence, 60.0)
        await outboxes.drop("orders", 2)
        await store.close()

    asyncio.run(fill())
    return where


def test_the_store_is_read_without_a_node(shell, store):
    options = ("--store", store, "--cluster", "shop")
    assert shell("outbox", "list", *options) == ExitCode.OK
    _, row = shell.out.splitlines()
    name, pending, age, *rest = row.split()
    assert (name, pending, rest) == ("orders", "2", ["page", "a", "hit", "-", "client#1/ab"])
    assert float(age) > 0
    assert shell("outbox", "show", "orders", *options) == ExitCode.OK
    assert [line.split()[::3] for line in shell.out.splitlines()[1:]] == [["1", "a"], ["3", "c"]]
    assert "2 messages; opened last by client#1/ab, 2023" in shell.err
    assert shell("outbox", "show", "none", *options) == ExitCode.REFUSED
    assert "no outbox is called 'none'" in shell.err
