"""The keeper of the cluster's last hour, and the page of nodes that have ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus.admin.administration import Administration
from shardbus.admin.load_history import COLUMNS, STEP_S, ClusterHour
from shardbus.admin.pages import history as history_page
from shardbus.ids import NodeId
from shardbus.membership.member import Status
from shardbus.membership.view import MembershipView
from shardbus.wire.schema import decode_value, encode_value
from tests.records import replace
from tests.unit.admin.admin_kit import LOST, ME, PEER, FakeNode, member
from tests.virtual_time import virtual

OTHER = NodeId("d", 7355, 4)
QUESTION = "load_history"


def sample(number: int, received: float) -> list[float]:
    return [number, *(received if column == "received" else 0.0 for column in COLUMNS)]


def received(answer: Any) -> list[float]:
    at = answer["columns"].index("received")
    return [row[at] for row in answer["rows"]]


def seen(node: FakeNode, *members: Any) -> None:
    """Let the node see these members."""
    node.view = MembershipView(me=ME, members=members)
    node.rpc.nodes = [member.node for member in members]


def hour_of(now: float) -> Any:
    """The hour of a keeper, as it arrives: LOST has had 5 messages a second, PEER 2."""
    hour = ClusterHour()
    hour.add(LOST, now, now, COLUMNS, [sample(int(now) - 4, 5)])
    hour.add(PEER, now, now, COLUMNS, [sample(int(now) - 4, 2), sample(int(now) - 3, 2)])
    return decode_value(encode_value(hour.saved(now)))


@pytest.fixture
async def node() -> FakeNode:
    node = FakeNode()
    seen(node, member(PEER), member(ME))
    return node


@pytest.fixture
async def admin(node: FakeNode) -> Any:
    return Administration(node)  # type: ignore[arg-type]


@virtual
async def test_a_node_that_was_never_asked_takes_the_hour_of_the_oldest() -> None:
    node = FakeNode()
    seen(node, member(ME), replace(member(PEER), up_number=0))
    admin = Administration(node)  # type: ignore[arg-type]
    await asyncio.sleep(20 * STEP_S)
    now = node.loop.time() / STEP_S
    node.rpc.answers[PEER, "cluster_hour"] = hour_of(now)
    node.rpc.answers[PEER, QUESTION] = [
        now,
        COLUMNS,
        [sample(int(now) - 3, 2), sample(int(now) - 2, 9)],
    ]
    node.rpc.answers[ME, QUESTION] = [now, COLUMNS, [sample(int(now) - 2, 1)]]
    answer = await history_page.history(admin)
    assert received(answer) == [7, 2, 10]
    assert answer["ended"] == [{"node": str(LOST), "ago": 30.0}]
    assert node.rpc.questions[0] == (PEER, "cluster_hour")
    assert (PEER, QUESTION, int(now) - 3) in node.rpc.questions, "only what the keeper lacks"
    await asyncio.sleep(STEP_S)
    node.rpc.questions.clear()
    await history_page.history(admin)
    assert "cluster_hour" not in {question for _, question, *_ in node.rpc.questions}


async def test_without_an_answer_of_a_keeper_a_node_adds_what_the_members_have(
    node: FakeNode, admin: Any
) -> None:
    now = node.loop.time() / STEP_S
    node.rpc.answers[ME, QUESTION] = [now, COLUMNS, [sample(int(now) - 3, 4)]]
    answer = await history_page.history(admin)
    assert (received(answer), answer["silent"], answer["ended"]) == ([4], [str(PEER)], [])


async def test_an_empty_hour_of_a_keeper_replaces_nothing(node: FakeNode, admin: Any) -> None:
    now = node.loop.time() / STEP_S
    admin.hour.add(LOST, now - 9, now - 9, COLUMNS, [sample(int(now) - 12, 4)])
    node.rpc.answers[PEER, "cluster_hour"] = decode_value(encode_value(ClusterHour().saved(now)))
    answer = await history_page.history(admin)
    assert received(answer) == [4]
    assert [row["node"] for row in answer["ended"]] == [str(LOST)]


@pytest.mark.parametrize(
    ("members", "keeps"),
    [
        ([member(PEER), member(LOST), replace(member(ME), up_number=9)], True),
        ([member(PEER), member(LOST), member(OTHER), replace(member(ME), up_number=9)], False),
        (
            [
                member(PEER, Status.LEAVING),
                member(LOST),
                member(OTHER),
                replace(member(ME), up_number=9),
            ],
            True,
        ),
        ([member(ME, Status.JOINING), member(PEER)], False),
    ],
)
async def test_the_three_oldest_members_keep_the_hour(
    node: FakeNode, admin: Any, members: list[Any], keeps: bool
) -> None:
    seen(node, *members)
    history_page.keep(admin)
    await asyncio.gather(*admin.tasks._tasks)
    assert bool(node.rpc.questions) is keeps


async def test_a_node_that_leaves_or_is_no_member_keeps_nothing(node: FakeNode, admin: Any) -> None:
    node.phases.current = "leave"
    history_page.keep(admin)
    node.phases.current, node.view = "", None
    history_page.keep(admin)
    assert len(admin.tasks) == 0
