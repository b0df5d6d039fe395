"""The tree of settings: its defaults, and the settings of one entity type."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pytest

from shardbus.config.loading import (
    from_assignments,
    load,
    options,
)
from shardbus.config.options import ValueType, parse
from shardbus.config.settings import (
    Settings,
)
from shardbus.errors import ConfigError
from tests.unit.config.refusal import refusal

DECLARED = dict(options())


def value_at(settings: Settings, key: str) -> object:
    value: object = settings
    for part in key.split("."):
        value = getattr(value, part)
    return value


def test_defaults_are_those_of_the_seeds():
    settings = Settings()
    sharding = settings.sharding
    assert (sharding.retry_interval, sharding.buffer_size) == (2.0, 100_000)
    assert (sharding.handoff_timeout, sharding.shard_start_timeout) == (60.0, 10.0)
    assert (sharding.shard_failure_backoff, sharding.entity_restart_backoff) == (10.0, 10.0)
    assert (sharding.rebalance_interval, sharding.coordinator_failure_backoff) == (10.0, 5.0)
    assert (sharding.rebalance_threshold, sharding.max_simultaneous_rebalance) == (10, 3)
    assert (sharding.updating_state_timeout, sharding.waiting_for_state_timeout) == (5.0, 2.0)
    assert (sharding.min_members, sharding.role, sharding.remember) == (1, "", False)
    detector = settings.cluster.failure_detector
    cluster = settings.cluster
    assert (cluster.gossip_interval, cluster.leader_actions_interval) == (1.0, 1.0)
    assert (cluster.gossip_time_to_live, cluster.gossip_partition_breaker) == (2.0, 0.0)
    assert (detector.heartbeat_interval, detector.expected_response_after) == (1.0, 1.0)
    assert (detector.threshold, detector.max_sample_size, detector.monitored_by) == (8.0, 1000, 9)
    assert (cluster.seed_node_timeout, cluster.allow_weakly_up_members) == (5.0, 7.0)
    assert cluster.gossip_different_view_probability == 0.8
    assert cluster.reduce_gossip_different_view_probability == 400
    assert (sharding.passivate_after, sharding.allocation) == (120.0, "least-shards")
    assert sharding.entity_recovery_constant_rate_frequency == 0.1
    assert sharding.entity_recovery_constant_rate_number_of_entities == 5
    assert load() == settings


def test_every_default_is_a_value_that_its_own_declaration_accepts():
    settings = Settings()
    for key, option in DECLARED.items():
        default = value_at(settings, key)
        assert parse(option, default) == default, key


def test_every_setting_has_a_meaning_and_every_number_a_range():
    for key, option in DECLARED.items():
        assert option.meaning, key
        if option.kind in (ValueType.SECONDS, ValueType.SIZE, ValueType.COUNT, ValueType.NUMBER):
            assert option.low < option.high, key


def test_every_field_of_the_tree_is_declared():
    def leaves(section: type, prefix: str) -> list[str]:
        missing = []
        for declared in fields(section):
            nested = declared.default_factory
            if is_dataclass(nested):
                missing += leaves(nested, f"{prefix}{declared.name}.")
            elif declared.name != "types":
                missing.append(f"{prefix}{declared.name}")
        return missing

    assert leaves(Settings, "") == list(DECLARED)


def test_a_type_takes_defaults_then_section_then_class_then_its_own_section():
    layers = from_assignments(
        [
            "sharding.mailbox=50",
            "sharding.retry_interval=3s",
            "sharding.shards=10",
            "sharding.types.counter.shards=30",
        ]
    )
    sharding = load(layers).sharding
    counter = sharding.for_type("counter", {"shards": 20, "retry_interval": "4s"})
    assert (counter.shards, counter.retry_interval, counter.mailbox) == (30, 4.0, 50)
    other = sharding.for_type("other", {"shards": 20})
    assert (other.shards, other.retry_interval) == (20, 3.0)
    assert counter.types == {}


def test_a_types_name_may_hold_dots():
    sharding = load(from_assignments(["sharding.types.shop.Cart.shards=7"])).sharding
    assert sharding.for_type("shop.Cart", {}).shards == 7


def test_a_declaration_is_checked_and_named():
    with pytest.raises(
        ConfigError, match=r"shards = 0 .the declaration of 'counter'.: must be 1 to"
    ):
        Settings().sharding.for_type("counter", {"shards": 0})
    with pytest.raises(ConfigError, match=r"unknown setting 'shard'.*did you mean shards"):
        Settings().sharding.for_type("counter", {"shard": 1})
    with pytest.raises(ConfigError, match="unknown setting 'types'"):
        Settings().sharding.for_type("counter", {"types": {}})


def test_a_phase_of_a_handoff_does_not_outlast_the_handoff():
    quick = Settings().sharding.for_type("c", {"handoff_timeout": 2, "entity_restart_backoff": 0.1})
    assert (quick.begin_handoff_timeout, quick.entity_restart_backoff_min) == (2.0, 0.1)


def test_secrets_are_in_no_representation_and_no_error():
    layers = from_assignments(
        ["http.token=hunter2-hunter2-hunter2", "store.url=redis://:hunter2@h/0"]
    )
    assert "hunter2" not in repr(load(layers))
    assert "hunter2" not in refusal(("f", {"http": {"token": ["hunter2"]}}))
    assert "hunter2" not in refusal(("f", {"http": {"token": "hunter2\n"}}))
