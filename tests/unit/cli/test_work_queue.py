"""`queue`: items are shown, and those that were set aside end only with --yes."""

from __future__ import annotations

import json

import pytest

from shardbus_cli import work_queue
from shardbus_cli.exit_codes import ExitCode


def item(number: int, place: str = "aside") -> dict[str, object]:
    return {
        "number": number,
        "place": place,
        "attempts": 5,
        "age_s": 1.5,
        "left_s": 0.0,
        "worker": "",
        "error": "ValueError: \x1b[31m",
        "bytes": 3,
        "value": {"to": "ada"},
    }


class FakeQueue:
    """Answers as a queue with three items, two of them set aside."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.answer: object = None

    def answer_of(self, node, entity_type, entity_id, method, values, timeout, secret):
        self.calls.append((entity_type, entity_id, method, *values))
        if self.answer is not None:
            return self.answer
        if method != "show":
            return len(values[0])
        items = [item(1), item(2, "ready"), item(7)]
        return {
            **dict.fromkeys(("ready", "leased", "delayed", "aside"), 1),
            "bytes": 9,
            "confirmed": 12,
            "dropped": 0,
            "waiting_pulls": 1,
            "waiting_puts": 0,
            "items": [one for one in items if values[1] in ("", one["place"])],
        }


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    queue = FakeQueue()
    monkeypatch.setattr(work_queue, "answer_of", queue.answer_of)
    monkeypatch.setattr(work_queue, "NodeHttp", FakeTypes)
    return queue


class FakeTypes:
    """The node, which has one type of queues and another type, or is of an earlier release."""

    def __init__(self, node: str) -> None: ...

    def read(self, *path: str) -> dict[str, object]:
        assert path == ("v1", "types")
        rows = [("emails", {"queue": True}), ("counter", {"queue": False}), ("older", {})]
        return {"types": [{"type": name, **row} for name, row in rows]}


def test_a_queue_is_shown_with_its_figures_and_hostile_errors_are_text(shell, url, queue):
    assert shell("queue", "show", "emails", "main", "--limit", "5") == ExitCode.OK
    head, *rows = shell.out.splitlines()
    assert head.split() == [name.upper() for name in work_queue.COLUMNS]
    assert [row.split()[:2] for row in rows] == [["1", "aside"], ["2", "ready"], ["7", "aside"]]
    assert "\x1b" not in shell.out
    assert "12 confirmed, 0 dropped; 1 worker waits, 0 puts wait" in shell.err
    assert shell("queue", "show", "emails", "main", "--place", "aside", "--json") == ExitCode.OK
    assert [one["number"] for one in json.loads(shell.out)["items"]] == [1, 7]
    assert queue.calls == [
        ("emails", "main", "show", 5, ""),
        ("emails", "main", "show", 100, "aside"),
    ]


def test_an_entity_of_another_type_is_no_queue(shell, url, queue):
    """It gets no message: it may have handlers of these names."""
    for command in ("show", "retry", "drop"):
        assert shell("queue", command, "counter", "main") == ExitCode.REFUSED
        assert "'counter' is no type of queues" in shell.err
    assert queue.calls == []
    assert shell("queue", "show", "older", "main") == ExitCode.OK


def test_items_are_ready_again_all_or_some(shell, url, queue):
    assert shell("queue", "retry", "emails", "main") == ExitCode.OK
    assert "2 items ready again" in shell.err
    assert shell("queue", "retry", "emails", "main", "7") == ExitCode.OK
    assert [one for one in queue.calls if one[2] == "retry"] == [
        ("emails", "main", "retry", [1, 7]),
        ("emails", "main", "retry", [7]),
    ]
    assert shell("queue", "retry", "emails", "main", "2") == ExitCode.REFUSED
    assert "item 2 is not set aside" in shell.err


def test_nothing_is_removed_without_yes(shell, url, queue):
    assert shell("queue", "drop", "emails", "main", "7") == ExitCode.OK
    assert "1 item would be removed: repeat with --yes" in shell.err
    assert not any(one[2] == "drop" for one in queue.calls)
    assert shell("queue", "drop", "emails", "main", "7", "--yes") == ExitCode.OK
    assert "1 item removed" in shell.err
    assert queue.calls[-1] == ("emails", "main", "drop", [7])
