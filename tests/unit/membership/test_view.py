"""A node's picture of the cluster, and the events between two pictures."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Any, get_args

import pytest

from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Status
from shardbus.membership.reachability import Flag, ObserverRow, Reachability
from shardbus.membership.view import (
    ARRIVALS,
    ConvergenceChanged,
    DomainEvent,
    MembershipView,
    MetaChanged,
    RoleLeaderChanged,
    changes,
    view_of,
)
from tests.records import field_names, replace
from tests.unit.membership.test_gossip import A, B, C, D, member, state

J, W, U, PREPARING, READY, L, X, DOWN, REMOVED = Status
UNREACHABLE, GONE = Flag.UNREACHABLE, Flag.TERMINATED


def flagged(copy: Gossip, flag: Flag, *subjects: object, by: object = A) -> Gossip:
    rows = {by: ObserverRow(1, dict.fromkeys(subjects, flag))}
    return replace(copy, reachability=Reachability(rows))  # type: ignore[arg-type]


def story(before: Gossip, after: Gossip, me: object = A) -> list[str]:
    """The events between two pictures, as `MemberUp b`, but for convergence."""
    events = changes(view_of(before, me), view_of(after, me))  # type: ignore[arg-type]
    lines = []
    for event in events:
        if isinstance(event, ConvergenceChanged):
            continue
        node = event.member.node if hasattr(event, "member") else getattr(event, "leader", None)
        gone = " gone" if getattr(event, "terminated", False) else ""
        lines.append(f"{type(event).__name__} {node.host if node else None}{gone}")
    return lines


TWO = state(a=U, b=U)


@pytest.mark.parametrize(
    ("before", "after", "events"),
    [
        (Gossip(), state(a=J), ["MemberJoined a", "LeaderChanged a"]),
        (Gossip(), TWO, ["MemberUp a", "MemberUp b", "LeaderChanged a"]),
        (TWO, TWO, []),
        (TWO, replace(TWO, seen=frozenset({A})), []),
        (TWO, TWO.with_epoch(A, "x", 1), []),
        (TWO, state(a=U, b=U, c=J), ["MemberJoined c"]),
        (state(a=U, b=J), state(a=U, b=W), ["MemberWeaklyUp b"]),
        (state(a=U, b=J), TWO, ["MemberUp b"]),
        (state(a=U, b=W), TWO, ["MemberUp b"]),
        (TWO, state(a=U, b=L), ["MemberLeaving b"]),
        (state(a=U, b=L), state(a=U, b=X), ["MemberExiting b"]),
        (TWO, state(a=U, b=DOWN), ["MemberDowned b"]),
        (state(a=U, b=X), state(a=U), ["MemberRemoved b"]),
        (state(a=U, b=DOWN), state(a=U), ["MemberRemoved b"]),
        (TWO, state(a=L, b=U), ["MemberLeaving a"]),
        (state(a=L, b=U), state(a=X, b=U), ["MemberExiting a", "LeaderChanged b"]),
        (state(b=U), TWO, ["MemberUp a", "LeaderChanged a"]),
        (TWO, flagged(TWO, UNREACHABLE, B), ["UnreachableMember b"]),
        (TWO, flagged(TWO, GONE, B), ["UnreachableMember b gone"]),
        (flagged(TWO, UNREACHABLE, B), flagged(TWO, GONE, B), ["UnreachableMember b gone"]),
        (flagged(TWO, UNREACHABLE, B), TWO, ["ReachableMember b"]),
        (flagged(TWO, GONE, B), state(a=U), ["MemberRemoved b"]),
        (
            TWO,
            flagged(state(a=U, b=U, c=J), UNREACHABLE, C),
            ["MemberJoined c", "UnreachableMember c"],
        ),
        (
            state(a=U, b=U, c=J),
            state(a=U, c=U, d=J),
            ["MemberRemoved b", "MemberUp c", "MemberJoined d"],
        ),
    ],
)
def test_TU9_events_tell_what_is_different(
    before: Gossip, after: Gossip, events: list[str]
) -> None:
    assert story(before, after) == events


def test_TU9_who_leads_depends_on_whom_one_reaches() -> None:
    assert story(TWO, flagged(TWO, UNREACHABLE, A, by=B), B) == [
        "UnreachableMember a",
        "LeaderChanged b",
    ]


def test_TU9_a_node_that_is_down_calls_nobody_reachable() -> None:
    """Its own word does not count any more, which is no news about the others."""
    cut = flagged(TWO, UNREACHABLE, B)
    down = flagged(state(a=DOWN, b=U), UNREACHABLE, B)
    assert story(cut, down) == ["MemberDowned a", "LeaderChanged b"]


@pytest.mark.parametrize("status", list(Status)[:-1])
def test_TU9_replayed_from_nothing_a_picture_tells_every_member(status: Status) -> None:
    """Whoever subscribes late gets the picture, or the same as events."""
    events = story(Gossip(), state(a=status, b=U, c=U))
    assert events[:3] == [f"{ARRIVALS[status].__name__} a", "MemberUp b", "MemberUp c"]


def test_TU9_convergence_comes_and_goes() -> None:
    copy = state("ab", a=U, b=U, c=U)
    pictures = [view_of(copy, A), view_of(copy.with_seen(C), A)]
    assert [picture.converged for picture in pictures] == [False, True]
    assert changes(*pictures) == [ConvergenceChanged(True)]
    assert changes(*reversed(pictures)) == [ConvergenceChanged(False)]
    assert not view_of(copy.with_seen(C), D).converged  # of which D is no member


def test_TU9_a_role_has_a_leader_of_its_own() -> None:
    before = aged({"b": ("x",), "c": ("x",)}, a=1, b=2, c=3)
    cut = replace(before, unreachable=(B,))
    assert before.role_leader("x") == B
    assert RoleLeaderChanged("x", C) in changes(before, cut)
    assert cut.role_leader("y") is None
    alone = replace(before, members=before.members[:1])
    assert RoleLeaderChanged("x", None) in changes(before, alone)


def test_S3_34_what_the_application_writes_is_an_event_once() -> None:
    before = view_of(TWO, A)
    after = view_of(TWO.with_meta(B, "mode", b"day"), A)
    assert [e for e in changes(before, after) if isinstance(e, MetaChanged)] == [
        MetaChanged("mode", b"day")
    ]
    assert changes(after, after) == []


def aged(roles: dict[str, tuple[str, ...]], **numbers: int) -> MembershipView:
    members = {m.node: m for m in state(**dict.fromkeys(numbers, U)).members.values()}
    members = {
        n: replace(m, up_number=numbers[n.host], roles=roles.get(n.host, ()))
        for n, m in members.items()
    }
    return view_of(Gossip(members), A)


@pytest.mark.parametrize(
    ("numbers", "roles", "role", "oldest"),
    [
        ({"a": 3, "b": 1, "c": 2}, {}, "", "b"),
        ({"a": 2, "b": 2, "c": 2}, {}, "", "a"),
        ({"a": 3, "b": 1, "c": 2}, {"a": ("x",), "c": ("x",)}, "x", "c"),
        ({"a": 1}, {}, "x", None),
    ],
)
def test_TU3_the_oldest_is_the_first_that_came_up(
    numbers: dict[str, int], roles: dict[str, tuple[str, ...]], role: str, oldest: str | None
) -> None:
    eldest = aged(roles, **numbers).oldest(role)
    assert (eldest.node.host if eldest else None) == oldest


@pytest.mark.parametrize("status", [J, W, L, X, DOWN])
def test_TU3_only_who_is_up_is_the_oldest(status: Status) -> None:
    members = {A: member(A, status, 1), B: member(B, U, 2)}
    oldest = view_of(Gossip(members), B).oldest()
    assert oldest is not None
    assert oldest.node == B


def test_who_may_have_to_go_is_not_who_a_deaf_node_flags() -> None:
    """D flags all others, and nobody has noticed that it is deaf."""
    four = state("abcd", a=U, b=U, c=U, d=U)
    shown = view_of(flagged(four, UNREACHABLE, A, B, C, by=D), A)
    assert shown.unreachable == (A, B, C)
    assert (shown.doubtful, shown.unreached) == ((D,), ())
    alone = view_of(flagged(four, UNREACHABLE, A, B, C, by=D), D)
    assert alone.unreached == (A, B, C)
    cut_off = view_of(flagged(replace(four, seen=frozenset({A, B, C})), UNREACHABLE, D), A)
    assert (cut_off.doubtful, cut_off.unreached) == ((D,), (D,))


def test_a_removed_node_shows_the_others_and_doubts_none() -> None:
    """All their links to each other have broken, too."""
    others = state("bc", b=U, c=U)
    rows = {B: ObserverRow(1, {C: UNREACHABLE}), C: ObserverRow(1, {B: UNREACHABLE})}
    shown = view_of(replace(others, reachability=Reachability(rows)), A)
    assert (shown.status, shown.unreachable) == (None, (B, C))
    assert (shown.doubtful, shown.unreached) == ((), ())


@pytest.mark.parametrize("name", field_names(MembershipView))
def test_views_show_the_same_members_unless_a_members_state_differs(name: str) -> None:
    """Coordinators are not updated by such a view, whatever fields a view has."""
    before = MembershipView(A)
    other: Any = {"leader": A, "converged": True, "epochs": {"x": 1}, "meta": {"x": b""}}
    other["electorate"] = (None, None)
    after = replace(before, **{name: other.get(name, (B,))})
    assert after.same_members(before) is (name in other)


def test_an_application_may_read_a_view_and_its_events_as_dataclasses() -> None:
    """Frameworks make JSON of dataclasses, and `dataclasses.asdict` a dict."""
    shown = view_of(TWO, A)
    assert asdict(shown)["members"] == tuple(map(asdict, shown.members))
    assert all(is_dataclass(cls) for cls in get_args(DomainEvent))
