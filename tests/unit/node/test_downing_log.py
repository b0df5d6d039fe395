"""Downing on one node: kept decisions, settings that all nodes share, and unsafe settings."""

from __future__ import annotations

import logging
from dataclasses import fields as fields_of
from dataclasses import replace

import pytest

from shardbus.config.settings import ClusterSettings, DowningSettings
from shardbus.errors import ConfigError
from shardbus.ids import NodeId
from shardbus.membership.downing.split import Decision, DowningOutcome, Split
from shardbus.membership.view import (
    ConvergenceChanged,
    DowningDecided,
    FoundingWaits,
    LeaderChanged,
    RivalCluster,
)
from shardbus.node.downing_log import KEPT, SHARED, DowningLog, check_downing, fingerprint
from shardbus_cli.logs import fields

A, B = NodeId("a", 1, 1), NodeId("b", 1, 2)
SPLIT = Split(side=(A,), cut=(B,), ours=(A,), theirs=(B,), elders=(A, B))


def decided(reason: str) -> DowningDecided:
    return DowningDecided(Decision(DowningOutcome.DOWN_OTHERS, (B,), reason, "keep-oldest", SPLIT))


def test_a_decision_is_kept_with_its_inputs() -> None:
    log = DowningLog()
    log.record(decided("the oldest is here"))
    [page] = log.page()
    assert str(page.pop("at")).startswith("20")
    assert page == {
        "strategy": "keep-oldest",
        "outcome": "down others",
        "reason": "the oldest is here",
        "side": [str(A)],
        "cut_off": [str(B)],
        "gone": [],
        "bad_links": [],
        "votes_here": [str(A)],
        "votes_there": [str(B)],
        "oldest": [str(A), str(B)],
        "down": [str(B)],
    }


def test_the_last_decisions_are_kept_and_other_events_only_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "shardbus.node")
    log = DowningLog()
    for n in range(KEPT + 5):
        log.record(decided(f"number {n}"))
    log.record(LeaderChanged(A))
    log.record(ConvergenceChanged(True))
    kept = [page["reason"] for page in log.page()]
    assert kept == [f"number {n}" for n in range(5, KEPT + 5)]
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING"] * (KEPT + 5) + ["INFO", "DEBUG"]
    lines = [fields(record) for record in caplog.records[-3:]]
    assert lines == [
        {"event": "downing_decided"},
        {"event": "leader_changed", "member": str(A)},
        {"event": "convergence_changed"},
    ]


@pytest.mark.parametrize("name", SHARED)
def test_each_shared_setting_is_compared(name: str) -> None:
    usual = ClusterSettings()
    assert name in {field.name for field in fields_of(DowningSettings)}
    changed = replace(usual.downing, **{name: not getattr(usual.downing, name)})  # type: ignore[arg-type]
    assert fingerprint(replace(usual, downing=changed)) != fingerprint(usual)


def test_the_time_of_suspension_is_compared_and_times_of_one_side_are_not() -> None:
    usual = ClusterSettings(suspend_after=4.0)
    assert fingerprint(replace(usual, suspend_after=99.0)) != fingerprint(usual)
    later = replace(usual.downing, stable_after=99.0)
    assert fingerprint(replace(usual, downing=later)) == fingerprint(usual)


@pytest.mark.parametrize(
    ("after", "with_sharding", "types", "refused", "warned"),
    [
        (0.0, False, ["page"], False, False),
        (5.0, False, [], False, True),
        (5.0, False, ["page"], True, False),
        (5.0, True, ["page"], False, True),
    ],
)
def test_downing_by_timeout_is_refused_beside_entities_unless_it_is_permitted(
    after: float,
    with_sharding: bool,
    types: list[str],
    refused: bool,
    warned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = DowningSettings(
        unsafe_auto_down_after=after, unsafe_auto_down_with_sharding=with_sharding
    )
    if refused:
        with pytest.raises(ConfigError, match="both sides would run the same entities"):
            check_downing(settings, types)
    else:
        check_downing(settings, types)
    assert any("UNSAFE" in text for text in caplog.messages) == warned


def test_a_strategy_that_there_is_not_is_refused_before_the_node_starts() -> None:
    with pytest.raises(ConfigError):
        check_downing(DowningSettings(strategy="none:Such"), [])


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (RivalCluster(), "ERROR"),
        (RivalCluster(gone=True), "INFO"),
        (FoundingWaits("waits"), "WARNING"),
    ],
)
def test_another_cluster_on_the_store_is_logged_as_what_it_is(
    event: RivalCluster | FoundingWaits, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "shardbus.node")
    DowningLog().record(event)
    assert [record.levelname for record in caplog.records] == [level]
