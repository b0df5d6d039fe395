"""The cost of a shard and the room of a node, in each unit of `sharding.load`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.config.settings import LOADS
from shardbus.sharding.shard_load import (
    SPARE_MIN,
    TIMED,
    UNITS,
    NodeWork,
    ShardWork,
    loads_of,
    spare_of,
    total,
)

SHARDS = {
    "a": ShardWork(messages=100.0, time=0.2, entities=30, waiting=8),
    "b": ShardWork(messages=300.0, time=0.1, entities=10, waiting=0),
    "c": ShardWork(),
}
NODE = NodeWork(
    busy=0.6, time=0.4, messages=1000.0, entities=80, resident=600.0, at_start=200.0, limit=1000.0
)
"""A node that another type uses too, with 0.1 s of handlers, 600 messages and 40 entities."""


@pytest.mark.parametrize(
    ("kind", "loads"),
    [
        ("messages", {"a": 100.0, "b": 300.0}),
        ("time", {"a": 0.2, "b": 0.1}),
        ("memory", {"a": 30.0, "b": 10.0}),
        ("mailbox", {"a": 8.0}),
        # handlers + entities at 400 / 80 / 1000 each + waiting at 2 ms each
        ("mixed", {"a": 0.2 + 0.15 + 0.016, "b": 0.1 + 0.05}),
    ],
)
def test_S3_20_each_kind_of_load_has_its_figure(kind: str, loads: dict[str, float]) -> None:
    assert loads_of(kind, SHARDS, NODE) == pytest.approx(loads)


@pytest.mark.parametrize(
    ("kind", "spare"),
    [
        ("messages", 1.0),
        # others: 0.6 - 0.3 of own handlers - own 40 % of the 0.2 s outside handlers, within 40 ms
        ("time", 1.0 - (0.6 - 0.3 - 0.04)),
        ("mailbox", 1.0 - (0.6 - 0.3 - 0.04)),
        # 600 of 1000 bytes are taken, half of the 400 since the start by this type
        ("memory", 1.0 - 0.4),
        ("mixed", 0.6),
    ],
)
def test_S3_20_a_node_has_to_spare_what_others_leave(kind: str, spare: float) -> None:
    assert spare_of(kind, total(SHARDS), NODE) == pytest.approx(spare)


def test_the_kinds_are_those_of_the_setting_and_each_has_a_unit() -> None:
    assert set(UNITS) == set(LOADS)
    assert len(set(UNITS.values())) == len(LOADS)
    assert set(TIMED) <= set(LOADS)


@pytest.mark.parametrize("kind", LOADS)
def test_a_node_that_does_nothing_has_everything_to_spare(kind: str) -> None:
    idle = NodeWork(resident=0.0, limit=1000.0)
    assert spare_of(kind, total({}), idle) == 1.0
    assert loads_of(kind, {"a": ShardWork()}, idle) == {}


@pytest.mark.parametrize("kind", [kind for kind in LOADS if kind != "messages"])
def test_a_busy_node_keeps_a_part_of_each_type(kind: str) -> None:
    full = NodeWork(busy=1.0, resident=990.0, at_start=990.0, limit=1000.0)
    assert spare_of(kind, ShardWork(), full) == SPARE_MIN


def test_a_system_that_does_not_say_its_memory_takes_no_part_in_the_balance() -> None:
    unknown = NODE._replace(limit=0.0)
    assert spare_of("memory", total(SHARDS), unknown) == 1.0
    assert loads_of("mixed", {"a": ShardWork(entities=9)}, unknown) == {}


RATES = st.floats(0.0, 2000.0)


@given(RATES, RATES, st.floats(0.0, 50e-6), st.floats(0.0, 200e-6))
def test_what_a_node_has_to_spare_does_not_depend_on_the_shards_that_move(
    shard_work: float, moving: float, rest_each: float, each: float
) -> None:
    """A balancer that moves by a figure which its moves change goes to and fro."""

    def node(messages: float) -> tuple[ShardWork, NodeWork]:
        time = each * messages
        work = ShardWork(messages=messages, time=time, entities=messages)
        all_messages, all_time = messages + 900.0, time + 0.1  # with another type's
        whole = NodeWork(
            busy=all_time + rest_each * all_messages,
            time=all_time,
            messages=all_messages,
            entities=all_messages,
            resident=300 + all_messages,
            at_start=300,
            limit=10_000,
        )
        return work, whole

    for kind in LOADS:
        before, after = (
            spare_of(kind, *node(count)) for count in (shard_work + moving, shard_work)
        )
        assert before == pytest.approx(after, abs=1e-6)


@given(
    st.sampled_from(LOADS),
    st.builds(ShardWork, *[st.floats(0, 1e9)] * 4),
    st.builds(NodeWork, *[st.floats(0, 1e12)] * 7),
)
def test_no_measurement_leaves_the_range_that_a_report_may_have(
    kind: str, shard_work: ShardWork, node: NodeWork
) -> None:
    assert SPARE_MIN <= spare_of(kind, shard_work, node) <= 1.0
    assert all(load > 0 for load in loads_of(kind, {"a": shard_work}, node).values())
