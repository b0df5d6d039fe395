"""A node's answers to the questions of others: its own state, its coordinators', and commands,
whose refusals are answers."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.admin.administration import LISTS_MAX, Administration
from shardbus.admin.page_table import answer_questions
from shardbus.admin.pages.checkup import answer_checkup, answer_losses
from shardbus.admin.pages.cluster import answer_stats, answer_suspension
from shardbus.admin.pages.entities import answer_entities, answer_limit, answer_running
from shardbus.admin.pages.explanation import answer_shard
from shardbus.admin.pages.members import answer_leave, answer_reload_keys, answer_shutdown_region
from shardbus.admin.pages.shards import (
    ADD_MAX,
    STOP_PART,
    answer_place,
    answer_places,
    answer_plan,
    answer_rebalance,
    answer_slow,
    answer_stop,
    answer_table,
)
from shardbus.errors import (
    BufferFull,
    ConfigError,
    Refused,
    StoreUnavailable,
    UnknownEntityType,
)
from shardbus.http.page import PAGE_MAX
from shardbus.ids import Address
from shardbus.membership.messages import OLDEST_PROTOCOL, PROTOCOL
from shardbus.node.rpc import Question
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.sharding.events import Rebalance
from shardbus.transport.permissions import LIST_STORED
from tests.unit.admin.admin_kit import LOST, ME, PAGE, PEER, FakeNode
from tests.waiting import turns

PACE = {"paused": False, "held": "", "moving": 1, "moves_at_a_time": 3}


@pytest.fixture
async def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
async def answers(node: FakeNode) -> Administration:
    fake: Any = node
    return Administration(fake)


# Work on this node


QUESTIONS = """
    stats state_bytes suspension figures vitals table shard plan rebalance running entities leave
    places place slow stop limit change_state change_state_if shutdown_region checkup reload_keys
    remove_state_keeping_messages
    cancel_reminders outbox outbox_openers values
    mailboxes mailbox mailbox_retry mailbox_skip
    projections projection projection_part projection_retry projection_skip projection_rewind
    brief shard_map slow_reports recent_events losses dead_letters named_letters replay_letters
    load_history cluster_hour handlers shard_rates
"""


async def test_the_questions_have_the_names_of_earlier_releases(
    node: FakeNode, answers: Any
) -> None:
    answer_questions(answers)
    assert set(node.rpc.registered) == {*QUESTIONS.split(), LIST_STORED}


def test_the_types_of_the_arguments_of_each_question_can_be_read(
    node: FakeNode, answers: Any
) -> None:
    answer_questions(answers)
    for name, answer in node.rpc.registered.items():
        assert Question(name, answer, to_clients=False).arguments is not None


async def test_shards_and_entities_here_are_counted(answers: Any) -> None:
    assert answer_stats(answers) == {PAGE: {"1": 2}}
    assert answer_running(answers, PAGE, "1", "x")
    assert not answer_running(answers, PAGE, "2", "x")
    assert not answer_running(answers, PAGE, "1", "z")
    with pytest.raises(UnknownEntityType):
        answer_running(answers, "none", "1", "x")


async def test_a_page_of_entities_is_sorted_filtered_and_bounded(
    node: FakeNode, answers: Any
) -> None:
    node.region.host.parts = [[("c", "1"), ("a", "2"), ("pa", "1")], [("b", "1"), ("pb", "2")], []]

    async def page(shard: str = "", prefix: str = "", after: str = "", limit: int = 9) -> list[str]:
        return [row[0] for row in await answer_entities(answers, PAGE, shard, prefix, after, limit)]

    assert await page() == ["a", "b", "c", "pa", "pb"]
    assert await page(shard="1") == ["b", "c", "pa"]
    assert await page(prefix="p") == ["pa", "pb"]
    assert await page(after="b") == ["c", "pa", "pb"]
    assert await page(limit=2) == ["a", "b"]
    assert await page(limit=-1) == []
    assert await answer_entities(answers, PAGE, "2", "", "", 1) == [["a", "2"]]
    node.region.host.parts = [[(f"{n:05}", "1") for n in range(2 * PAGE_MAX)]]
    assert len(await page(limit=10**9)) == PAGE_MAX + 1


async def test_lists_of_entities_are_made_a_few_at_a_time(node: FakeNode, answers: Any) -> None:
    node.region.host.parts = [[("a", "1")]] * 100
    walks = [
        asyncio.ensure_future(answer_entities(answers, PAGE, "", "", "", 1))
        for _ in range(LISTS_MAX)
    ]
    await turns(2)
    with pytest.raises(BufferFull):
        await answer_entities(answers, PAGE, "", "", "", 1)
    walks[0].cancel()
    await asyncio.gather(*walks, return_exceptions=True)
    assert await answer_entities(answers, PAGE, "", "", "", 1) == [["a", "1"]]


async def test_a_limit_is_read_and_set_where_there_can_be_one(node: FakeNode, answers: Any) -> None:
    host = node.region.host
    host.set_active_entity_limit = lambda most: setattr(host.passivator, "limit", most)
    assert answer_limit(answers, PAGE, None) == [500, 2, 3]
    assert answer_limit(answers, PAGE, 7) == [7, 2, 3]

    def refuse(most: int) -> None:
        raise Refused("remembered")

    host.set_active_entity_limit = refuse
    assert answer_limit(answers, PAGE, 9) is None
    assert answer_limit(answers, PAGE, None) == [7, 2, 3]
    node.region.hosts = False
    assert answer_limit(answers, PAGE, None) is None


async def test_keys_are_read_again_and_a_file_that_cannot_be_is_an_answer(
    node: FakeNode, answers: Any
) -> None:
    assert answer_reload_keys(answers) == [False, [], ""]
    node.keyring = SimpleNamespace(
        keys=[SimpleNamespace(fingerprint="new"), SimpleNamespace(fingerprint="old")]
    )
    node.rekey = lambda: True
    assert answer_reload_keys(answers) == [True, ["new", "old"], ""]

    def fail() -> bool:
        raise ConfigError("no secret in the file")

    node.rekey = fail
    assert answer_reload_keys(answers) == [False, ["new", "old"], "no secret in the file"]


async def test_failures_and_losses_leave_the_node_as_ages(node: FakeNode, answers: Any) -> None:
    now, failed = node.loop.time(), node.region.host.counts.failed
    failed.add(now - 700.0, "old", "x", ValueError("long ago"))
    failed.add(now - 3.0, "pay", "x", ValueError("no"))
    failed.add(now - 2.0, "", "y", LookupError())
    failed.not_started(now - 1.0, "x", ValueError("broken"), unreadable=False)
    failed.not_started(now - 1.0, "z", ValueError("elsewhere"), unreadable=False)
    node.region.host.deliveries.poison = [
        (1000.0 - age, "x", "pay", "client#1") for age in (601.0, 600.0, 7.0)
    ]
    by_page = answer_checkup(answers)["types"][PAGE]
    assert by_page["poison"] == [[600.0, "x", "pay", "client#1"], [7.0, "x", "pay", "client#1"]]
    assert [(row["method"], row["count"]) for row in by_page["failing"]] == [
        ("receive", 1),
        ("pay", 1),
    ]
    [[age, *rest]] = by_page["failing"][1]["last"]
    assert age >= 3.0
    assert rest == ["x", "ValueError", "no", "ValueError: no"]
    [(entity_id, [age, times, error])] = by_page["failed_starts"].items()
    assert (entity_id, times, error) == ("x", 1, "ValueError: broken")
    node.records.lost_nodes.decided([LOST], "keep-majority: 2 of 3")
    node.records.lost_nodes.gone(LOST, now - 5.0)
    node.coordinator.history = SimpleNamespace(freed=lambda n: (4, 3) if n == LOST else (0, 0))
    [[name, age, why, shards]] = answer_losses(answers)
    assert (name, why, shards) == (str(LOST), "keep-majority: 2 of 3", {PAGE: [4, 3]})
    assert age >= 5.0


async def test_leaving_and_shutting_a_region_down_begin_at_once(
    node: FakeNode, answers: Any
) -> None:
    assert answer_leave(answers)
    assert answer_shutdown_region(answers, PAGE) == 1
    assert node.posted == ["leave", "shutdown"]
    node.phases.begin = None
    assert not answer_leave(answers)
    assert node.posted == ["leave", "shutdown"]


async def test_a_checkup_has_what_differs_and_no_password(answers: Any) -> None:
    checkup = answer_checkup(answers)
    assert "hunter2" not in json.dumps(checkup)
    assert checkup["settings"] == {
        "cluster.suspend_after": "7.0",
        f"sharding.types.{PAGE}.retry_interval": "9.0",
    }
    assert checkup["types"][PAGE].pop("coordinator_for") >= 0
    assert checkup["types"][PAGE] == {
        "buffered_for": 0.0,
        "failing": [],
        "poison": [],
        "failed_starts": {},
        "deaf": [],
        "strategy": [],
        "coordinator": str(ME),
        "epoch": 3,
        "registered": True,
        "buffered": 0,
        "layout": "crc32/3",
        "shards": {"1": 9},
        "unreadable": {"7": "no migration"},
        "mailboxes": {
            "waiting": 40,
            "fullest": [["x", "1", 30], ["y", "1", 10]],
            "limit": 10_000,
            "paused": 1,
        },
        "hot": {"messages": 3.0},
    }
    assert (checkup["saves"], checkup["store_clock"]) == ([7, 0.5], -0.5)
    used, limit = checkup["descriptors"]
    assert 0 < used < limit
    assert checkup["protocol"] == [OLDEST_PROTOCOL, PROTOCOL]
    assert checkup["vitals"]["busy"] == 0.25
    assert {"python", "shardbus", "pyzmq", "libzmq"} <= set(checkup["versions"])
    assert (checkup["version"], checkup["lag"]) == ("1.2", 0.001)
    assert checkup["store_problems"] == ["maxmemory-policy evicts"]


async def test_a_node_says_why_it_is_suspended(node: FakeNode, answers: Any) -> None:
    assert answer_suspension(answers) == ""
    node.suspended = "suspended: no quorum"
    assert answer_suspension(answers) == "suspended: no quorum"


# The coordinator's knowledge


async def test_the_table_has_each_shard_with_home_fence_state_and_load(
    answers: Any,
) -> None:
    rows = [["1", str(ME), 9, "running", 1.5, None], ["2", str(PEER), 4, "begin", None]]
    table = answer_table(answers, PAGE)
    assert table is not None
    assert table["shards"][1].pop() >= 4.0, "for so long it has moved"
    assert table == {"epoch": 3, "shards": rows, "load_unit": "handler s/s", **PACE}


async def test_a_shard_has_its_history_with_ages(node: FakeNode, answers: Any) -> None:
    change = SimpleNamespace(
        at=node.loop.time() - 60,
        source=None,
        target=PEER,
        why="allocated",
        epoch=2,
        fence=4,
        seconds=0.5,
    )
    node.coordinator.history = SimpleNamespace(of=lambda shard: [change])
    page = answer_shard(answers, PAGE, "2")
    assert page is not None
    [[age, *rest]] = page.pop("changes")
    assert age >= 60
    assert rest == [None, str(PEER), "allocated", 2, 4, 0.5]
    assert page == {"epoch": 3, "node": str(PEER), "fence": 4, "state": "begin"}
    without = answer_shard(answers, PAGE, "3")
    assert without is not None
    assert (without["node"], without["fence"]) == (None, None)


async def test_a_plan_names_moves_and_the_count_of_every_node(node: FakeNode, answers: Any) -> None:
    assert await answer_plan(answers, PAGE, 1, [str(PEER)]) == {
        "moves": [["2", str(PEER), str(ME)]],
        "nodes": [[str(ME), 1, 2], [str(PEER), 1, 0]],
        "rounds": 1,
        "settled": True,
        **PACE,
    }
    assert node.posted == [("plan", 1, (PEER,))]
    for add in (-1, ADD_MAX + 1):
        error, text, _ = (await answer_plan(answers, PAGE, add, []))["refused"]
        assert (error, text) == ("ConfigError", f"a plan may add 0 to {ADD_MAX} nodes, not {add}")
    assert (await answer_plan(answers, PAGE, 0, ["no node"]))["refused"][0] == "ConfigError"


@pytest.mark.parametrize(
    ("state", "rules"),
    [(s, s in (CoordinatorState.RULING, CoordinatorState.RETIRING)) for s in CoordinatorState],
)
async def test_only_a_coordinator_that_rules_answers(
    node: FakeNode, answers: Any, state: CoordinatorState, rules: bool
) -> None:
    node.coordinator.state = state
    answers_of = [
        answer_table(answers, PAGE),
        answer_shard(answers, PAGE, "1"),
        await answer_plan(answers, PAGE, 0, []),
        answer_places(answers, PAGE),
        answer_rebalance(answers, PAGE),
        await answer_slow(answers, PAGE, True, None),
        await answer_stop(answers, PAGE, ["1"]),
        await answer_place(answers, PAGE, {}),
    ]
    assert [answer is not None for answer in answers_of] == [rules] * len(answers_of)
    node.shell.machine = None
    assert answer_table(answers, PAGE) is None
    with pytest.raises(UnknownEntityType):
        answer_table(answers, "none")


# Commands


async def test_a_rebalance_checks_the_balance_now(node: FakeNode, answers: Any) -> None:
    assert answer_rebalance(answers, PAGE) == PACE
    assert node.posted == [Rebalance()]


async def test_rebalancing_is_slowed_once_it_is_stored(node: FakeNode, answers: Any) -> None:
    assert await answer_slow(answers, PAGE, True, 5) == PACE
    [stored] = node.posted
    assert (stored.paused, stored.moves) == (True, 5)  # type: ignore[attr-defined]


async def test_stopping_names_what_is_left_after_a_part_of_the_timeout(
    node: FakeNode, answers: Any
) -> None:
    node.still_stopping = ["2"]
    assert await answer_stop(answers, PAGE, ["1", "2"]) == {"stopped": ["1"], "stopping": ["2"]}
    assert node.patience == STOP_PART * node.region.settings.shard_region_query_timeout


async def test_places_are_set_and_taken_away(node: FakeNode, answers: Any) -> None:
    assert await answer_place(answers, PAGE, {"1": "c:7355"}) == {
        "places": {"1": str(LOST.address)}
    }
    assert node.shell.overrides.places == {"1": Address("c", 7355)}
    assert await answer_place(answers, PAGE, {"1": ""}) == {"places": {}}


async def test_a_place_that_breaks_a_rule_is_refused_and_its_end_is_not(
    node: FakeNode, answers: Any
) -> None:
    node.cordoned = True
    refusal = {"refused": ["Refused", "it takes no shard", "uncordon it"]}
    assert await answer_place(answers, PAGE, {"1": "c:7355"}) == refusal
    assert node.posted == []
    assert await answer_place(answers, PAGE, {"1": ""}) == {"places": {}}


async def test_refusals_are_answers(node: FakeNode, answers: Any) -> None:
    node.failure = StoreUnavailable("no answer", hint="start it")
    refusal = {"refused": ["StoreUnavailable", "no answer", "start it"]}
    assert await answer_slow(answers, PAGE, True, None) == refusal
    assert await answer_stop(answers, PAGE, ["1"]) == refusal
    assert await answer_place(answers, PAGE, {"1": "c:7355"}) == refusal
    outcome = await answer_place(answers, PAGE, {"1": "no place"})
    assert outcome is not None
    assert outcome["refused"][0] == "ConfigError"
