"""The members through which a downed node joins again, and the command by which."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any, NoReturn

import pytest

from shardbus.config.settings import ClusterSettings, NodeSettings, Settings, StoreSettings
from shardbus.errors import StoreUnavailable
from shardbus.ids import Address, NodeId
from shardbus.membership.member import Member, Status
from shardbus.membership.view import MembershipView
from shardbus.node import rejoining, store_wait
from shardbus.node.rejoining import (
    CALM_S,
    CONTACTS_MAX,
    Rejoining,
    contacts,
    founder,
    named,
    next_turn,
    pause_before,
    store_answers,
)
from shardbus_cli import starting_anew
from tests.records import replace

ME = NodeId("n", 1, 1)


def member(port: int, status: Status = Status.UP, up_number: int = 1) -> Member:
    return Member(NodeId("n", port, port), port + 1, status=status, up_number=up_number)


def view(*members: Member) -> MembershipView:
    return MembershipView(ME, members)


def test_it_asks_the_members_that_were_not_downed_the_oldest_first_then_its_seeds() -> None:
    seen = view(
        member(1, Status.DOWN),
        member(2, up_number=3),
        member(3, up_number=2),
        member(4, Status.DOWN),
        member(5, Status.EXITING),
    )
    assert contacts(seen, ("s:1", "n:2")) == ("n:3", "n:2", "s:1")


@pytest.mark.parametrize(
    "seen",
    [
        None,
        view(),
        view(member(1, Status.DOWN)),
        view(member(1, Status.UP)),
        view(member(1, Status.DOWN), member(2, Status.DOWN), member(3, Status.EXITING)),
    ],
)
def test_with_no_member_left_it_asks_nobody(seen: MembershipView | None) -> None:
    """Every member was downed: its seeds alone could let it join a cluster that it founds."""
    assert contacts(seen, ("s:1",)) == ()


def test_it_asks_a_bounded_number() -> None:
    many = view(*(member(port, up_number=port) for port in range(2, 300)))
    assert contacts(many, ()) == tuple(f"n:{port}" for port in range(2, 2 + CONTACTS_MAX))


@pytest.mark.parametrize(
    ("seeds", "join", "contacted", "at"),
    [
        (("n:1", "n:2"), "auto", 2, "n:1"),
        (("n:2", "n:1"), "auto", 2, "n:2"),
        ((), "auto", 2, "me:1"),
        (("store",), "auto", 2, None),
        (("n:1", "store"), "auto", 2, None),
        (("n:1",), "manual", 2, None),
        (("n:1",), "auto", CONTACTS_MAX - 1, "n:1"),
        (("n:1",), "auto", CONTACTS_MAX, None),
    ],
    ids=[
        "this first seed", "another first seed", "no seeds", "by the store", "also by the store",
        "an operator decides", "all members are contacted", "there may be members beyond",
    ],
)  # fmt: skip
def test_the_first_seed_may_found_anew(
    seeds: tuple[str, ...], join: str, contacted: int, at: str | None
) -> None:
    by = [f"m:{n}" for n in range(contacted)]
    found = founder(Address("me", 1), NodeSettings(seeds=seeds, join=join), by)
    assert found == (Address.parse(at) if at else None)


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("node start app:bus --ready-fd 5 --port 1", "node start app:bus --port 1"),
        ("node start --ready-fd=5 --rejoin=a:1 app:bus", "node start app:bus"),
        ("node start --rejoin a:1,b:2 --seed --rejoiner", "node start --seed --rejoiner"),
        ("node start app:bus --ready-fd", "node start app:bus"),
        ("node start app:bus --rejoin a:1 --rejoin-turn 2", "node start app:bus"),
    ],
)
def test_the_new_command_has_no_option_of_the_former_life(words: str, kept: str) -> None:
    assert starting_anew.without(words.split(), starting_anew.REPLACED) == kept.split()


class Said:
    """The output of a process, as a list."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def data(self, text: str) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)

    def flush(self) -> None: ...


def test_a_command_that_cannot_be_run_again_is_an_error_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[list[str]] = []
    masks: list[set[int]] = []

    def refuse(program: str, words: Any) -> NoReturn:
        commands.append([program, *words])
        masks.append({int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())})
        raise OSError(2, "No such file or directory")

    monkeypatch.setattr(starting_anew.os, "execv", refuse)
    monkeypatch.setattr(sys, "orig_argv", ["python3", "/bin/shardbus", "node", "start"])
    output = Said()
    starting_anew.start_anew(output, ("a:1", "b:2"), 3)
    me, again = sys.executable, ["--rejoin", "a:1,b:2", "--rejoin-turn", "3"]
    assert commands == [[me, me, "/bin/shardbus", "node", "start", *again]]
    assert "cannot start anew: [Errno 2]" in output.notes[0]
    assert {signal.SIGTERM, signal.SIGINT} <= masks[0]  # a signal waits for the new program
    assert not {signal.SIGTERM, signal.SIGINT} & signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_node_that_is_downed_again_and_again_waits_longer_each_time() -> None:
    turn, pauses = 0, list[float]()
    for _ in range(9):
        turn = next_turn(turn, 10.0)
        pauses.append(pause_before(turn))
    assert pauses == [0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    assert next_turn(turn, CALM_S - 1.0) == turn + 1
    assert next_turn(turn, CALM_S) == 1


def test_the_wait_before_it_asks_is_named() -> None:
    waits = Rejoining(("a:1", "b:2"), 600.0, 100.0, turn=3)
    assert waits.describe(103.0) == (
        "was downed 3 times in a row, and asks a:1, b:2 in 7 s to take it in"
    )
    assert waits.line(119.0) == ""
    assert waits.describe(111.0) == "was downed, and asks a:1, b:2 to take it in for 599 s more"


def test_a_line_names_a_few_members() -> None:
    many = [f"n:{port}" for port in range(9)]
    assert named(many) == "n:0, n:1, n:2, n:3, n:4 and 4 more"
    assert named(many[:5]) == "n:0, n:1, n:2, n:3, n:4"


def test_what_it_waits_for_and_the_lines_of_the_log() -> None:
    waits = Rejoining(("a:1", "b:2"), 600.0, 100.0)
    assert waits.describe(220.0) == "was downed, and asks a:1, b:2 to take it in for 480 s more"
    assert waits.describe(900.0).endswith("for 0 s more")
    assert Rejoining(("a:1",), 0.0, 1.0).describe(9.0).endswith("to take it in without end")
    lines = [now for now in range(100, 700) if waits.line(float(now))]
    assert lines == [110, 130, 170, 250, 370, 490, 610]


async def test_it_waits_for_its_store_as_long_as_for_the_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    questions, pauses, clock = [], list[float](), [0.0]

    async def ask(url: str, name: str, settings: Settings) -> None:
        questions.append((url, name, settings.store.timeout))
        if len(questions) < answers_at:
            raise StoreUnavailable("no answer")

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(rejoining, "_ask_store", ask)
    monkeypatch.setattr(store_wait.asyncio, "sleep", sleep)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock[0])
    store = StoreSettings(url="redis://a:1/0", timeout=3.0)
    chosen = Settings(cluster=ClusterSettings(rejoin_within=30.0), store=store)
    answers_at = 4
    assert await store_answers("shop", chosen)
    assert questions == [("redis://a:1/0", "shop", 3.0)] * 4
    assert pauses == [0.5, 1.0, 2.0]
    questions.clear()
    answers_at = 999
    with pytest.raises(StoreUnavailable):
        await store_answers("shop", chosen)
    assert clock[0] == 3.5 + 30.0
    questions.clear()
    answers_at = 300
    endless = replace(chosen, cluster=ClusterSettings(rejoin_within=0.0))
    assert await store_answers("shop", endless)
    assert max(pauses) == store_wait.AGAIN_MAX_S
