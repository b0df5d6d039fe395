"""The pods of the oldest nodes have the highest cost. It is written when it changes, repeated after
failures, and given up at last; in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from shardbus.ids import NodeId
from shardbus.membership.member import Member, Status
from shardbus.membership.view import MembershipView
from shardbus.shells.pod_deletion_cost import (
    ANNOTATION,
    ATTEMPTS,
    PodDeletionCost,
    deletion_cost,
)
from shardbus.transport.kubernetes_api import ApiFailure
from tests.virtual_time import virtual

NODES = [NodeId("10.0.0.1", 7000 + n, n) for n in range(6)]
BUSY = ApiFailure("the API server answers 500: busy")
FINAL = ApiFailure("the API server answers 422: no", final=True)
LATE_S = 1000.0


# The decision


def members_of(*members: Member, me: int = 1) -> MembershipView:
    return MembershipView(NODES[me], members)


def member(number: int, age: int, status: Status = Status.UP) -> Member:
    return Member(NODES[number], 7400, status=status, up_number=age)


@pytest.mark.parametrize(
    ("oldest", "costs"),
    [
        (0, [0, 0, 0, 0, 0]),
        (1, [100, 0, 0, 0, 0]),
        (3, [300, 200, 100, 0, 0]),
        (5, [500, 400, 300, 200, 100]),
        (7, [700, 600, 500, 400, 300]),
    ],
)
def test_older_nodes_cost_more(oldest: int, costs: list[int]) -> None:
    members = [member(number, age=number) for number in range(1, 6)]
    by_age = [deletion_cost(members_of(*members, me=number), oldest) for number in range(1, 6)]
    assert by_age == costs


def test_age_decides_and_not_the_address() -> None:
    members = [member(1, age=9), member(2, age=4), member(3, age=7)]
    assert [deletion_cost(members_of(*members, me=n), 2) for n in (1, 2, 3)] == [0, 200, 100]


def test_of_nodes_of_one_age_the_lower_address_is_older() -> None:
    members = [member(1, age=4), member(2, age=4)]
    assert [deletion_cost(members_of(*members, me=n), 3) for n in (1, 2)] == [300, 200]


@pytest.mark.parametrize("status", list(Status))
def test_only_working_members_have_a_cost_or_an_age(status: Status) -> None:
    works = status in (Status.UP, Status.PREPARING_FOR_SHUTDOWN, Status.READY_FOR_SHUTDOWN)
    first = member(1, age=1, status=status)
    second = member(2, age=2)
    assert deletion_cost(members_of(first, second, me=1), 2) == (200 if works else None)
    assert deletion_cost(members_of(first, second, me=2), 2) == (100 if works else 200)


def test_a_node_that_is_no_member_has_no_cost() -> None:
    assert deletion_cost(members_of(member(2, age=1), me=1), 3) is None
    assert deletion_cost(members_of(member(1, age=0, status=Status.JOINING)), 3) is None


# The shell


def view(*ages: int, status: Status = Status.UP) -> MembershipView:
    """This node is the first."""
    members = [
        Member(node, 7400, status=status, up_number=age)
        for node, age in zip(NODES, ages, strict=False)
    ]
    return MembershipView(NODES[0], tuple(members))


class Api:
    """Answers with failures in turn, then with success."""

    def __init__(self, *answers: ApiFailure | None) -> None:
        self.answers, self.calls = list(answers), list[tuple[float, str]]()

    async def annotate(self, name: str, value: str) -> ApiFailure | None:
        assert name == ANNOTATION == "controller.kubernetes.io/pod-deletion-cost"
        self.calls.append((asyncio.get_running_loop().time(), value))
        await asyncio.sleep(0.01)
        return self.answers.pop(0) if self.answers else None

    @property
    def values(self) -> list[str]:
        return [value for _, value in self.calls]


@virtual
async def test_a_cost_is_written_once_and_when_it_changes() -> None:
    api = Api()
    cost = PodDeletionCost(3, api.annotate)
    for seen in (view(5, 4), view(5, 4), view(5, 4, 6), view(5), view(5, 7)):
        cost.on_view(seen)
        await asyncio.sleep(1)
    assert api.values == ["200", "300"]
    assert (cost.written, cost.failures) == (300, 0)


@virtual
async def test_a_young_node_clears_what_its_pod_has_from_an_older_one() -> None:
    api = Api()
    cost = PodDeletionCost(1, api.annotate)
    cost.on_view(view(5, 4))
    await asyncio.sleep(1)
    assert api.values == ["0"]


@virtual
async def test_nothing_is_written_before_the_node_works_and_after_it_leaves() -> None:
    api = Api()
    cost = PodDeletionCost(1, api.annotate)
    cost.on_view(view(0, status=Status.JOINING))
    cost.on_view(view(3))
    await asyncio.sleep(1)
    cost.on_view(view(3, status=Status.LEAVING))
    await asyncio.sleep(1)
    assert api.values == ["100"]


@virtual
async def test_a_failure_is_repeated_after_pauses_that_double(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = Api(BUSY, BUSY, BUSY)
    cost = PodDeletionCost(1, api.annotate)
    with caplog.at_level(logging.INFO, "shardbus.node"):
        cost.on_view(view(3))
        await asyncio.sleep(LATE_S)
    times = [at for at, _ in api.calls]
    pauses = [later - at for at, later in itertools.pairwise(times)]
    assert pauses == pytest.approx([1.01, 2.01, 4.01])
    assert (cost.written, cost.failures) == (100, 3)
    assert [(line.levelname, line.getMessage()) for line in caplog.records] == [
        ("WARNING", f"the deletion cost is not written yet: {BUSY.text}"),
        ("INFO", "the pod of this node has the deletion cost 100"),
    ]


@virtual
async def test_repeating_has_an_end_and_begins_anew_with_another_cost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = Api(*[BUSY] * ATTEMPTS)
    cost = PodDeletionCost(2, api.annotate)
    cost.on_view(view(3))
    await asyncio.sleep(LATE_S)
    assert (len(api.calls), cost.written, cost.failures) == (ATTEMPTS, None, ATTEMPTS)
    assert caplog.records[-1].levelname == "ERROR"
    assert caplog.records[-1].getMessage().endswith(BUSY.text)
    cost.on_view(view(3))
    await asyncio.sleep(LATE_S)
    assert len(api.calls) == ATTEMPTS
    cost.on_view(view(3, 2))
    await asyncio.sleep(1)
    assert (api.values[-1], cost.written) == ("100", 100)


@virtual
async def test_what_fails_again_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    api = Api(FINAL)
    cost = PodDeletionCost(1, api.annotate)
    cost.on_view(view(3))
    await asyncio.sleep(LATE_S)
    assert len(api.calls) == 1
    assert [line.levelname for line in caplog.records] == ["ERROR"]


@virtual
async def test_the_newest_cost_is_written_after_a_failure() -> None:
    api = Api(BUSY, FINAL)
    cost = PodDeletionCost(2, api.annotate)
    cost.on_view(view(3))
    await asyncio.sleep(0.5)
    cost.on_view(view(3, 2))
    await asyncio.sleep(0.515)
    cost.on_view(view(3))
    await asyncio.sleep(LATE_S)
    assert api.values == ["200", "100", "200"]


@virtual
async def test_a_cost_whose_writing_was_unsure_is_written_again() -> None:
    """The request that failed may have been carried out: the pod then has the other cost."""
    api = Api(None, BUSY)
    cost = PodDeletionCost(2, api.annotate)
    cost.on_view(view(3))
    await asyncio.sleep(1)
    cost.on_view(view(3, 2))
    await asyncio.sleep(0.5)
    cost.on_view(view(3))
    await asyncio.sleep(LATE_S)
    assert api.values == ["200", "100", "200"]
    assert cost.written == 200


@virtual
async def test_a_node_that_stops_writes_nothing_more() -> None:
    api = Api(BUSY)
    cost = PodDeletionCost(1, api.annotate)
    cost.on_view(view(3))
    await asyncio.sleep(0.5)
    cost.stop()
    await asyncio.sleep(LATE_S)
    assert len(api.calls) == 1
