"""The cost of one more ask to a node, by open asks and the times of answers."""

from __future__ import annotations

from random import Random

import pytest

from shardbus.ids import NodeId
from shardbus.routing.instance_policies import least_busy
from shardbus.routing.open_asks import HALF_LIFE_S, LEAST_S, NODES_MAX, SAMPLES, OpenAsks

A, B = NodeId("a", 1, 1), NodeId("b", 1, 1)


def answered(
    asks: OpenAsks, node: NodeId, took: float, now: float, *, failed: bool = False
) -> None:
    asks.opened("x~1", node)
    asks.closed("x~1", node, took, now, failed=failed)


def test_without_answers_open_asks_decide() -> None:
    asks = OpenAsks()
    asks.opened("x~1", A)
    asks.opened("y~2", B)
    assert asks.cost("x~1", A, 0.0) == pytest.approx(3 * LEAST_S)  # to the entity itself: twice
    assert asks.cost("x~2", B, 0.0) == pytest.approx(2 * LEAST_S)
    assert asks.cost("x~3", None, 0.0) == LEAST_S


def test_an_outcome_closes_an_ask_and_nothing_is_kept() -> None:
    asks = OpenAsks()
    answered(asks, A, 0.01, 1.0)
    asks.opened("x~1", None)
    asks.closed("x~1", None, 0.01, 1.0, failed=True)
    assert (asks.by_wire_id, asks.by_node) == ({}, {})


def test_the_cost_is_the_time_of_answers_times_the_asks() -> None:
    asks = OpenAsks()
    answered(asks, A, 0.05, 1.0)
    answered(asks, B, 0.001, 1.0)
    assert asks.cost("x~1", A, 1.0) == pytest.approx(0.05)
    for n in range(40):
        asks.opened(f"y{n}~2", B)
    assert asks.cost("x~2", B, 1.0) == pytest.approx(0.041)


def test_a_slow_start_is_soon_forgotten() -> None:
    asks = OpenAsks()
    answered(asks, A, 2.0, 1.0)
    for _ in range(5 * SAMPLES):
        answered(asks, A, 0.001, 1.0)
    assert asks.cost("x~1", A, 1.0) < 0.05


def test_a_node_that_becomes_slow_costs_more_within_a_half_life() -> None:
    asks = OpenAsks()
    for n in range(1000):
        answered(asks, A, 0.001, 1.0 + n / 1000)
    answered(asks, A, 0.101, 2.0 + HALF_LIFE_S)
    assert asks.cost("x~1", A, 2.0 + HALF_LIFE_S) == pytest.approx(0.051, rel=0.01)


def test_the_estimate_fades_without_answers() -> None:
    asks = OpenAsks()
    answered(asks, A, 0.08, 1.0)
    assert asks.cost("x~1", A, 1.0 + HALF_LIFE_S) == pytest.approx(0.04)
    assert asks.cost("x~1", A, 1.0 + 20 * HALF_LIFE_S) == LEAST_S


def test_a_refusal_at_once_makes_no_node_look_quick_and_a_timeout_makes_it_slow() -> None:
    asks = OpenAsks()
    answered(asks, A, 0.05, 1.0)
    answered(asks, A, 0.0001, 1.0, failed=True)
    assert asks.cost("x~1", A, 1.0) == pytest.approx(0.05)
    answered(asks, A, 5.0, 1.0, failed=True)
    assert asks.cost("x~1", A, 1.0) > 1.0


def test_estimates_are_bounded() -> None:
    asks = OpenAsks()
    for n in range(NODES_MAX + 1):
        answered(asks, NodeId("a", 1, n + 1), 0.05, 1.0)
    assert asks.cost("x~1", NodeId("a", 1, 1), 1.0) == LEAST_S
    assert asks.cost("x~1", NodeId("a", 1, NODES_MAX + 1), 1.0) == pytest.approx(0.05)


@pytest.mark.parametrize("lanes", [1, 32])
def test_fewer_than_one_in_a_hundred_asks_goes_to_a_node_that_is_fifty_times_slower(
    lanes: int,
) -> None:
    """The rule of the router, in virtual time: `lanes` asks are open at a time."""
    times = {1: 0.001, 2: 0.001, 3: 0.05}
    nodes = {k: NodeId("n", k, k) for k in times}
    asks, dice, now, sent = OpenAsks(), Random(7), 0.0, dict.fromkeys(times, 0)
    running: list[tuple[float, int, float]] = []
    while sum(sent.values()) < 20_000:
        while len(running) < lanes:
            k = least_busy(
                (1, 2, 3),
                dice,
                3,
                lambda k: asks.cost(f"x~{k}", nodes[k], now),  # noqa: B023
            )
            asks.opened(f"x~{k}", nodes[k])
            sent[k] += 1
            running.append((now + times[k], k, now))
        running.sort()
        now, k, begun = running.pop(0)
        asks.closed(f"x~{k}", nodes[k], now - begun, now, failed=False)
    assert 0 < sent[3] < 0.01 * sum(sent.values())
    assert min(sent[1], sent[2]) > 8_000
