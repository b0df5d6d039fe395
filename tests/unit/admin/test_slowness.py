"""The truth table of causes: facts about an entity, and the cause of its slowness."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus.admin.slowness import (
    LONG_S,
    SLOW_S,
    STUCK_S,
    CallTimes,
    EntityFigures,
    EntityPlace,
    StoreFigures,
    causes,
    span,
)
from tests.records import replace

HOME = EntityPlace("n1", "7", "running", phi=0.1, decision="`keep-majority` decides")
WELL = EntityFigures(
    life="running", mailbox_max=1000, looks=8, sampled=50,
    handlers=[CallTimes("add", 50, 0.001, 0.002)], waited_p99=0.001, shard_part=0.04,
    entity_part=0.5, rate=1000.0, node_busy=0.3, lag=0.01,
    store=StoreFigures(
        CallTimes("save", 50, 0.001, 0.002),
        CallTimes("load", 5, 0.001, 0.002),
        CallTimes("all", 500, 0.001, 0.002),
    ),
)  # fmt: skip
"""An entity and a node of which nothing is slow."""
SLOW_ADD = replace(
    WELL, busy=8, moved=True, mailbox=31, method="add", handlers=[CallTimes("add", 50, 0.2, 0.24)]
)
SLOW_SAVES = replace(
    SLOW_ADD,
    waits={"store": 7},
    store=replace(
        WELL.store,
        saves=CallTimes("save", 50, 0.19, 0.31),
        all=CallTimes("all", 500, 0.2, 0.29),
    ),
)
STUCK = replace(
    WELL, busy=8, mailbox=3, method="wait", running_for=12.0, stack=["app.py:7 in wait"]
)
HOT = replace(WELL, node_busy=0.98, lag=0.4, shard_part=0.71, entity_part=0.95)


def with_store(figures: EntityFigures, **changes: Any) -> EntityFigures:
    return replace(figures, store=replace(figures.store, **changes))


def names(place: EntityPlace, figures: EntityFigures | None) -> list[str]:
    return [finding.cause for finding in causes(place, figures)]


def test_N21_nothing_is_slow_where_every_figure_is_low() -> None:
    assert causes(HOME, WELL) == []
    assert causes(HOME, EntityFigures()) == []
    assert causes(HOME, None) == []
    assert causes(EntityPlace(""), None) == [], "no message waits for a home"


@pytest.mark.parametrize(
    ("place", "cause", "words"),
    [
        (EntityPlace("", missing="none is known here"), "no_coordinator", "none is known here"),
        (EntityPlace("", "7", waiting=3), "no_home", "shard 7 has no home yet: 3 messages"),
        (replace(HOME, suspended="suspended, because no consent"), "suspended", "no consent"),
        (replace(HOME, suspended=None, unreachable_for=4.0), "unreachable", "since 4.0 s, phi 0.1"),
        (replace(HOME, suspended=None, phi=0.2), "blocked_loop", "answers heartbeats (phi 0.2)"),
        (replace(HOME, suspended=None, phi=3.0), "silent", "n1 does not answer"),
        (replace(HOME, suspended=None, phi=None), "silent", "n1 does not answer"),
        (replace(HOME, moving=True, waiting=5), "moving", "on the move (running): 5 messages"),
    ],
)
def test_N21_what_keeps_messages_from_the_entity_stops_all(
    place: EntityPlace, cause: str, words: str
) -> None:
    [finding] = causes(place, None)
    assert (finding.cause, finding.seconds) == (cause, None)
    assert words in finding.text
    assert finding.remedy


@pytest.mark.parametrize(
    ("figures", "cause", "words"),
    [
        (SLOW_ADD, "slow_handler", "`add` takes 240 ms (p99), 31 messages wait"),
        (replace(SLOW_ADD, busy=0, mailbox=0), "slow_handler", "`add` takes 240 ms (p99)"),
        (SLOW_SAVES, "slow_store", "a save takes 310 ms (p99): the store is slow (node-wide p99 290 ms)"),  # noqa: E501
        (with_store(SLOW_SAVES, loads=CallTimes("load", 9, 2.0, 2.5)), "slow_store", "a load takes 2.5 s"),  # noqa: E501
        (replace(STUCK, waits={"store": 8}), "slow_store", "the store has not answered for 12.0 s"),
        (with_store(WELL, save_under_way=3.0), "slow_store", "the store has not answered for 3.0 s"),  # noqa: E501
        (with_store(WELL, failed_ago=4.0, error="refused"), "slow_store", "4.0 s ago: refused"),
        (replace(SLOW_ADD, waits={"page 'c'": 6}), "slow_answer", "the answer of page 'c', at 6 of 8 looks"),  # noqa: E501
        (STUCK, "stuck_mailbox", "has not moved for 12.0 s: `wait` has run since, at app.py:7 in wait; 3 messages"),  # noqa: E501
        (replace(STUCK, waits={"thread": 8}), "stuck_mailbox", "in a worker thread"),
        (replace(STUCK, waits={"page 'c'": 8}), "stuck_mailbox", "no answer yet from page 'c'"),
        (replace(STUCK, mailbox=1000), "stuck_mailbox", "1000 messages wait, its mailbox is full"),
        (replace(WELL, life="pausing", failures=5, mailbox=2), "failing_start", "5 times in a row; 2 messages"),  # noqa: E501
        (replace(WELL, life="pausing", failures=5, mailbox=2, start_failed_ago=3.0, start_error="ValueError: no"), "failing_start", "in a row, the last time 3.0 s ago: ValueError: no; 2"),  # noqa: E501
        (replace(WELL, life="", start_failed_ago=3.0, start_error="ValueError: no"), "failing_start", "its last start failed 3.0 s ago: ValueError: no"),  # noqa: E501
        (HOT, "hot_shard", "gets 71 % of the messages of n1, which is 98 % busy, its loop 400 ms late; 95 % of them are for this entity: moving the shard does not help"),  # noqa: E501
        (replace(HOT, shard_part=0.2), "busy_node", "gets 20 % of the node's messages"),
        (replace(WELL, blocked=["block of page 'x' blocks"]), "blocked_loop", "block of page 'x'"),
    ],
)  # fmt: skip
def test_N21_each_figure_has_its_cause(figures: EntityFigures, cause: str, words: str) -> None:
    all_causes = causes(HOME, figures)
    assert all_causes[0].cause == cause
    assert words in all_causes[0].text
    assert all_causes[0].remedy


def test_what_stops_every_message_comes_before_what_delays_them() -> None:
    moving = replace(HOME, moving=True, waiting=5)
    assert names(moving, SLOW_ADD) == ["moving", "slow_handler"]
    assert names(replace(HOME, suspended="suspended, because"), STUCK) == ["suspended"]


def test_causes_are_ordered_by_what_they_cost_a_message() -> None:
    both = replace(SLOW_ADD, node_busy=0.9, lag=0.2)
    assert names(HOME, both) == ["slow_handler", "busy_node"]
    assert names(HOME, replace(both, lag=20.0)) == ["busy_node", "slow_handler"]
    [first, *_] = causes(HOME, SLOW_ADD)
    assert first.seconds == pytest.approx(32 * 0.2), "those ahead of it, and itself"


def test_the_time_of_a_message_belongs_to_what_its_handler_waits_for() -> None:
    assert names(HOME, SLOW_SAVES) == ["slow_store"]
    assert names(HOME, replace(SLOW_SAVES, waits={})) == ["slow_handler", "slow_store"]
    rests = replace(SLOW_SAVES, busy=0, waits={}, mailbox=0)
    assert names(HOME, rests) == ["slow_store"], "at rest, the store's figures tell"
    assert names(HOME, replace(SLOW_ADD, waits={"page 'c'": 6})) == ["slow_answer"]
    assert names(HOME, replace(SLOW_ADD, waits={"thread": 8})) == ["slow_handler"]


def test_a_mailbox_is_stuck_only_if_nothing_moves_for_a_while() -> None:
    for moves in (
        replace(STUCK, moved=True),
        replace(STUCK, busy=7),
        replace(STUCK, running_for=STUCK_S - 0.1),
        replace(STUCK, looks=0, busy=0),
    ):
        assert "stuck_mailbox" not in names(HOME, moves)


def test_only_an_entity_is_explained_next() -> None:
    asks, works = (replace(STUCK, waits={what: 8}) for what in ("page 'c'", "thread"))
    assert causes(HOME, asks)[0].remedy == "explain page 'c', for which it waits"
    assert "explain" not in causes(HOME, works)[0].remedy


def test_few_long_messages_are_no_hot_shard() -> None:
    long = replace(HOT, handlers=[CallTimes("add", 9, LONG_S, 0.3)])
    assert "hot_shard" not in names(HOME, long)
    assert names(HOME, replace(HOT, node_busy=0.5, lag=SLOW_S / 2)) == [], "the node has time"
    shared = causes(HOME, replace(HOT, entity_part=0.3))[0]
    assert "does not help" not in shared.text
    assert "shardbus place" in shared.remedy


def test_without_samples_of_the_entity_those_of_its_type_are_named_so() -> None:
    others = replace(SLOW_ADD, sampled=0, busy=0, mailbox=0)
    assert "in other entities of its type the handler `add`" in causes(HOME, others)[0].text


def test_one_message_waits_and_two_wait() -> None:
    assert "1 message waits" in causes(HOME, replace(STUCK, mailbox=1))[0].text


def test_spans_are_short() -> None:
    assert [span(s) for s in (0.00002, 0.24, 0.9996, 12.34)] == ["20 us", "240 ms", "1000 ms", "12.3 s"]  # noqa: E501  # fmt: skip
