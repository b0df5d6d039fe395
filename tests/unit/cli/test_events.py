"""`events`: the last events in order of time, then new ones; it ends cleanly."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shardbus_cli import events
from shardbus_cli.any_node import AnyNode
from shardbus_cli.events import HOLD_S, REPEAT_S, RETRIES, EventFilter, NewEvents, line_of
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.main import run
from shardbus_cli.node_http import NodeHttp
from tests.waiting import PATIENCE_S

A, B = "10.0.0.1:7355#0a", "10.0.0.2:7355#0b"
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def event(at: float, seen_by: str, number: int, name: str = "MemberUp", **more: Any) -> Any:
    moment = (START + timedelta(seconds=at)).isoformat(timespec="milliseconds")
    row = {"at": moment, "seen_by": seen_by, "number": number, "event": name, "type": ""}
    return {**row, "node": B, "text": f"{name} {number}", **more}


def answer(now: float, *rows: Any, silent: tuple[str, ...] = ()) -> dict[str, Any]:
    moment = (START + timedelta(seconds=now)).isoformat()
    return {"time": moment, "events": list(rows), "silent": list(silent)}


def texts(rows: list[Any]) -> list[str]:
    return [row["text"] for row in rows]


# New events


def test_an_event_is_taken_once_however_often_it_is_answered() -> None:
    new = NewEvents(EventFilter(), every=True)
    first, second, other = event(0, A, 1), event(1, A, 2), event(1, B, 1)
    assert new.take(answer(5, first, second), hold=True) == [first, second]
    assert new.take(answer(6, first, second, other), hold=True) == [other]
    restarted = event(7, "10.0.0.1:7355#0c", 1)
    assert new.take(answer(9, second, other, restarted), hold=True) == [restarted]


def test_what_is_too_young_comes_with_a_later_answer_in_its_place() -> None:
    new = NewEvents(EventFilter(), every=True)
    young, late = event(4.9, A, 2), event(4.8, B, 1)
    assert new.take(answer(5, event(0, A, 1), young), hold=True) == [event(0, A, 1)]
    after = answer(4.9 + HOLD_S, event(0, A, 1), late, young)
    assert new.take(after, hold=True) == [late, young]
    assert new.take(answer(5, event(4.99, A, 3)), hold=False) == [event(4.99, A, 3)]


@pytest.mark.parametrize(
    ("matched", "taken"),
    [
        (EventFilter(), [1, 2, 3]),
        (EventFilter(names=frozenset({"memberup"})), [1]),
        (EventFilter(names=frozenset({"memberup", "rebalance"})), [1, 2]),
        (EventFilter(entity_type="page"), [2]),
        (EventFilter(entity_type="cart"), []),
        (EventFilter(seen_by=B), [3]),
        (EventFilter(seen_by="10.0.0.2:7355"), [3]),
        (EventFilter(names=frozenset({"memberup"}), seen_by=B), []),
    ],
)
def test_events_are_chosen_by_name_by_type_and_by_node(
    matched: EventFilter, taken: list[int]
) -> None:
    rows = [
        event(0, A, 1),
        event(1, A, 2, "rebalance", type="page"),
        event(2, B, 3, "LeaderChanged"),
    ]
    new = NewEvents(matched, every=True)
    assert [row["number"] for row in new.take(answer(9, *rows), hold=True)] == taken


def test_what_several_nodes_saw_is_told_once_to_people_and_each_time_to_programs() -> None:
    rows = [event(0, A, 1, text="b is up"), event(0.1, B, 1, text="b is up")]
    rows += [event(0.2, n, 2, "rebalance", type="page", text="3 shards") for n in (A, B)]
    assert len(NewEvents(EventFilter(), every=True).take(answer(9, *rows), hold=True)) == 4
    people = NewEvents(EventFilter(), every=False)
    assert texts(people.take(answer(9, *rows), hold=True)) == ["b is up", "3 shards", "3 shards"]
    again = event(REPEAT_S + 1, A, 3, text="b is up")
    assert people.take(answer(REPEAT_S + 9, again), hold=True) == [again]
    events = NewEvents(EventFilter(seen_by=B), every=False)
    assert len(events.take(answer(9, *rows), hold=True)) == 2


def test_a_hostile_text_stays_on_its_line() -> None:
    assert line_of(event(0, A, 1, text="x\x1b[31m\ny", type="page")) == (
        f"2026-01-02T03:04:05.000Z  {A}  MemberUp  page: x\\x1b[31m\\ny"
    )


# The command


class Answers:
    """In the place of a cluster: each look finds the next answer; the last ends by Ctrl-C."""

    def __init__(self, *answers: dict[str, Any] | CommandFailure | type[BaseException]) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, dict[str, object]]] = []
        self.slept: list[float] = []

    def read(self, node: NodeHttp, *path: str, **query: object) -> dict[str, Any]:
        if path[-1] == "nodes":
            return {"nodes": [{"node": A, "http": "a:1"}]}
        self.requests.append((node.url, query))
        answer = self.answers.pop(0)
        if isinstance(answer, dict):
            return answer
        raise answer


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    def begin(*answers: Any) -> Answers:
        made = Answers(*answers)
        monkeypatch.setattr(
            NodeHttp, "read", lambda node, *path, **query: made.read(node, *path, **query)
        )
        monkeypatch.setattr(events.time, "sleep", made.slept.append)
        monkeypatch.setattr(AnyNode, "learn", lambda *_: None)
        return made

    return begin


def gone() -> CommandFailure:
    return CommandFailure("no node at a", "start one", code=ExitCode.UNREACHABLE)


def test_the_last_events_are_printed_and_silent_nodes_are_named(cluster, capsys) -> None:
    cluster(answer(9, *(event(n, A, n, text=f"e{n}") for n in range(1, 9)), silent=(B,)))
    assert run(["events", "--last", "2"]) == ExitCode.OK
    printed = capsys.readouterr()
    assert [line.split()[-1] for line in printed.out.splitlines()] == ["e7", "e8"]
    assert printed.err == f"no answer from {B}, whose events are missing\n"


def test_json_is_one_object_per_line(cluster, capsys) -> None:
    cluster(answer(9, event(1, A, 1), event(2, B, 1)))
    assert run(["events", "--json"]) == ExitCode.OK
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [event(1, A, 1), event(2, B, 1)]


def test_it_follows_until_ctrl_c(cluster, capsys) -> None:
    old, new = event(1, A, 1), event(8, A, 2)
    made = cluster(answer(9, old), answer(10, old, new), KeyboardInterrupt)
    assert run(["events", "--follow", "--every", "2s"]) == ExitCode.OK
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["1", "2"]
    assert made.slept == [2.0, 2.0]
    assert made.requests[0][1]["within"] is None
    assert made.requests[1][1]["within"] >= events.OVERLAP_S


def test_a_closed_pipe_ends_it(url: str) -> None:
    command = "import sys; from shardbus_cli.main import run; sys.exit(run(sys.argv[1:]))"
    words = [sys.executable, "-c", command, "events", "-f", "--json", "--every", "200ms"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["event"] == "MemberUp"
        process.stdout.close()
        assert process.wait(PATIENCE_S) == ExitCode.OK
        assert process.stderr.read() == b""


def test_it_asks_again_and_goes_on(cluster, capsys) -> None:
    made = cluster(answer(9), gone(), gone(), answer(20, event(8, A, 1)), KeyboardInterrupt)
    assert run(["events", "-f"]) == ExitCode.OK
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 1
    assert printed.err.splitlines()[0] == "no node at a; asking again, 10 times at most"
    assert made.slept == [1.0, 0.5, 1.0, 1.0]


def test_it_gives_up_after_some_attempts(cluster, capsys) -> None:
    made = cluster(answer(9), *(gone() for _ in range(RETRIES + 1)))
    assert run(["events", "-f"]) == ExitCode.UNREACHABLE
    assert len(made.slept) == RETRIES + 1
    assert max(made.slept) == events.PAUSE_MOST_S
    assert capsys.readouterr().err.splitlines()[-1] == "shardbus: no node at a; start one"


def test_without_a_node_it_fails_at_once(cluster) -> None:
    made = cluster(gone())
    assert run(["events", "-f"]) == ExitCode.UNREACHABLE
    assert made.slept == []


def test_a_refusal_is_not_repeated(cluster) -> None:
    made = cluster(answer(9), CommandFailure("needs a token", code=ExitCode.REFUSED))
    assert run(["events", "-f"]) == ExitCode.REFUSED
    assert len(made.slept) == 1
