"""Statuses, their table, their merge, and the orders of members. T.U4."""

from __future__ import annotations

import random
from itertools import product
from typing import TypeVar

import pytest

from shardbus.errors import LocalProtocolError
from shardbus.ids import NodeId
from shardbus.membership.member import (
    TRANSITIONS,
    Member,
    Service,
    Status,
    age_order,
    leader_order,
)
from tests.records import replace

J, W, U, P, S, L, E, D, R = Status

T = TypeVar("T")


def shuffled(things: list[T]) -> list[T]:
    return random.Random(1).sample(things, len(things))


LEGAL = {
    (J, W), (J, U), (J, P), (J, L), (J, D),
    (W, U), (W, P), (W, L), (W, D),
    (U, P), (U, L), (U, D),
    (P, S), (P, L), (P, D),
    (S, L), (S, D),
    (L, E), (L, D),
    (E, D), (E, R),
    (D, R),
}  # fmt: skip


def member(host: str, status: Status = U, up_number: int = 0, uid: int = 1) -> Member:
    return Member(NodeId(host, 7355, uid), 7356, status=status, up_number=up_number)


@pytest.mark.parametrize("before", Status)
def test_transitions(before: Status) -> None:
    for after in Status:
        check_transition(before, after)


def check_transition(before: Status, after: Status) -> None:
    before_ = member("a", before)
    if (before, after) in LEGAL:
        assert before_.moved(after).status is after
        assert after.rank > before.rank
    else:
        with pytest.raises(LocalProtocolError, match=f"from {before.value} to {after.value}"):
            before_.moved(after)
        assert before_.status is before


def test_every_status_is_in_the_table_and_leads_to_removed() -> None:
    assert list(TRANSITIONS) == list(Status)
    for start in Status:
        reached = {start}
        for _ in Status:
            reached |= {after for status in reached for after in TRANSITIONS[status]}
        assert R in reached


def test_the_later_status_wins() -> None:
    order = [J, W, U, P, S, L, E, D, R]
    for first, other in product(Status, Status):
        latest = max(first, other, key=order.index)
        assert member("a", first).merge(member("a", other)).status is latest
        assert member("a", other).merge(member("a", first)).status is latest


@pytest.mark.parametrize(
    ("first", "other", "merged"), [(0, 0, 0), (0, 3, 3), (3, 0, 3), (2, 3, 2), (3, 2, 2)]
)
def test_the_lower_up_number_wins(first: int, other: int, merged: int) -> None:
    assert member("a", U, first).merge(member("a", U, other)).up_number == merged


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [((3, 0), (7, 1), (7, 1)), ((9, 2), (7, 1), (9, 2)), ((7, 1), (8, 1), (7, 1))],
)
def test_the_up_number_of_the_view_with_more_yields_wins(
    one: tuple[int, int], other: tuple[int, int], merged: tuple[int, int]
) -> None:
    views = [replace(member("a", U, number), yields=yields) for number, yields in (one, other)]
    for first, second in (views, views[::-1]):
        after = first.merge(second)
        assert (after.up_number, after.yields) == merged


def test_TU4_address_order_is_host_port_uid() -> None:
    places = [("a", 1, 9), ("a", 2, 1), ("a", 10, 1), ("a", 10, 2), ("b", 1, 1)]
    nodes = [NodeId(*place) for place in places]
    assert sorted(shuffled(nodes)) == nodes


def test_TU4_age_order_is_by_up_number_then_address() -> None:
    members = [member("c", up_number=1), member("a", up_number=2), member("b", up_number=2)]
    assert sorted(shuffled(members), key=age_order) == members


def test_TU4_leader_order_prefers_up_and_leaving() -> None:
    order = [("b", L), ("c", U), ("f", W), ("e", J), ("a", E), ("0", D)]
    members = [member(host, status) for host, status in order]
    assert sorted(shuffled(members), key=leader_order) == members


def test_TU4_two_incarnations_are_two_members() -> None:
    assert member("a", uid=1) != member("a", uid=2)
    assert replace(member("a"), status=E).node == member("a").node


@pytest.mark.parametrize("services", list(product(Service, Service)))
def test_B152_the_service_that_was_changed_oftener_wins(services: tuple[Service, Service]) -> None:
    served = member("a").serving(services[0]).serving(services[1])
    other = member("a").serving(services[0])
    assert served.merge(other) == other.merge(served) == served
    assert served.serving(services[1]) is served


def test_B152_two_words_at_once_merge_to_the_same_on_both_sides() -> None:
    first, other = member("a").serving(Service.CORDONED), member("a").serving(Service.DRAINING)
    assert first.merge(other) == other.merge(first)
