"""Balance by load: which moves even out the load of nodes, and which only cost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.allocation.circular import Ring
from shardbus.sharding.allocation.least_load import MOVES_MAX, LeastLoad
from shardbus.sharding.allocation.selection import strategy_of
from shardbus.sharding.allocation.strategies import Move
from shardbus.sharding.coordinator.load_estimates import HALF_LIFE_S, LASTING_S, LoadEstimates
from shardbus.sharding.messages import Home, ShardLoads
from shardbus.sharding.table import RegionRegistered, ShardHomeAllocated, ShardTable
from tests.records import replace
from tests.unit.sharding.allocation.test_strategies import moved, nodes
from tests.unit.sharding.coordinator.test_coordinator import A, B, C, CoordinatorDriver, ack

FEW = 0.02
"""Of rounding, in tests that compare sums."""


def table(loads: list[list[float]]) -> tuple[ShardTable, dict[str, float]]:
    """One list of loads for each region; shards are named 0, 1, 2, ..."""
    regions = nodes(len(loads))
    rows = [(node, load) for node, part in zip(regions, loads, strict=True) for load in part]
    homes = (ShardHomeAllocated(Home(str(i), n, i + 1)) for i, (n, _) in enumerate(rows))
    made = ShardTable(1, "x").updated_all([*map(RegionRegistered, regions), *homes])
    return made, {str(i): load for i, (_, load) in enumerate(rows)}


def at(seen: ShardTable, loads: dict[str, float]) -> list[float]:
    """The load of each region."""
    return [sum(loads[s] for s in seen.shards_at(node)) for node in sorted(seen.regions)]


def plan(loads: list[list[float]], **options: float) -> tuple[list[Move], list[float]]:
    """The moves, and the load of each region after them."""
    seen, shard_loads = table(loads)
    moves = LeastLoad(loads=shard_loads, **options).rebalance(seen, seen.regions, {})  # type: ignore[arg-type]
    return moves, at(moved(seen, moves), shard_loads)


# The strategy


def test_N9_the_shard_that_evens_out_best_moves_first() -> None:
    moves, after = plan([[60, 30, 10], [10, 10]])
    assert [move.shard for move in moves] == ["1", "2"]
    assert after == [60, 60]


def test_N9_equal_numbers_of_shards_are_not_balanced_load() -> None:
    moves, after = plan([[50, 50, 0, 0], [0, 0, 0, 0]])
    assert [move.shard for move in moves if int(move.shard) < 2] == ["0"]
    assert after == [50, 50]


def test_N9_nearly_even_regions_stay() -> None:
    assert plan([[55, 1], [45, 1]])[0] == []
    assert plan([[55, 1], [45, 1]], tolerance=0.02)[0] != []


def test_N9_one_hot_shard_is_not_moved_in_circles_and_the_others_make_room() -> None:
    moves, after = plan([[100, 10, 10, 10], [10, 10]])
    assert {move.shard for move in moves} == {"1", "2", "3"}
    assert after == [100, 50]
    assert plan([[100], [50]])[0] == []


def test_N9_a_region_that_cannot_be_balanced_does_not_hold_up_the_others() -> None:
    moves, after = plan([[200], [40, 40], [0]])
    assert [(move.shard, after) for move in moves] == [("1", [200, 40, 40])]


def test_N9_a_move_that_gains_little_is_not_made() -> None:
    assert plan([[52, 50], [50]])[0] == []
    assert plan([[52, 50], [50]], tolerance=0.01)[0] != []


def test_without_messages_the_numbers_of_shards_are_evened_out() -> None:
    seen, loads = table([[0] * 9, [0]])
    moves = LeastLoad(loads=loads).rebalance(seen, seen.regions, {})
    after = moved(seen, moves)
    assert [len(after.shards_at(node)) for node in sorted(after.regions)] == [5, 5]


def test_without_loads_nothing_moves() -> None:
    seen, _ = table([[9] * 9, []])
    assert LeastLoad().rebalance(seen, seen.regions, {}) == []


def test_a_plan_has_a_limit_and_goes_on_from_the_moves_under_way() -> None:
    seen, loads = table([[10] * 8, []])
    strategy = LeastLoad(max_moves=3, loads=loads)
    first = strategy.rebalance(seen, seen.regions, {})
    assert len(first) == 3
    under_way = {move.shard: move for move in first[:2]}
    assert len(strategy.rebalance(seen, seen.regions, under_way)) == 1


def test_S3_20_a_node_with_less_to_spare_gets_less() -> None:
    seen, loads = table([[10] * 8, [10] * 8])
    first, second = sorted(seen.regions)
    strategy = LeastLoad(loads=loads, spare={first: 0.5})
    after = moved(seen, strategy.rebalance(seen, seen.regions, {}))
    assert [len(after.shards_at(node)) for node in (first, second)] == [6, 10]
    new = [f"new-{i}" for i in range(9)]
    chosen = strategy.allocate(ShardTable(1, "x"), {}, new, seen.regions)
    assert [list(chosen.values()).count(node) for node in (first, second)] == [3, 6]


def test_S3_20_a_shard_that_rests_does_not_move() -> None:
    seen, loads = table([[60, 30, 10], [10, 10]])
    moves = LeastLoad(loads=loads, resting=("1",)).rebalance(seen, seen.regions, {})
    assert [move.shard for move in moves] == ["2"]


def test_S3_20_a_move_must_gain_what_it_costs() -> None:
    loads = [[40, 40, 40, 2], [40, 40]]
    assert [move.shard for move in plan(loads, move_cost=0.01)[0]] == ["3"]
    assert plan(loads, move_cost=1.0)[0] == []


def test_new_shards_go_to_the_least_load_the_heaviest_first() -> None:
    seen, loads = table([[90], [10, 10, 10]])
    loads |= {"new": 60.0, "newer": 1.0}
    chosen = LeastLoad(loads=loads).allocate(seen, {}, ["newer", "new"], seen.regions)
    first, second = sorted(seen.regions)
    assert chosen == {"new": second, "newer": first}


LOADS = st.lists(st.lists(st.integers(0, 1000), max_size=8), min_size=1, max_size=6)


@settings(max_examples=60)
@given(LOADS)
def test_plans_make_no_region_heavier_than_the_heaviest_and_come_to_rest(
    loads: list[list[int]],
) -> None:
    seen, by_shard = table([[float(load) for load in part] for part in loads])
    strategy = LeastLoad(loads=by_shard)
    presence = 0.1 * sum(by_shard.values()) / max(1, len(by_shard)) or 1.0
    heaviest = [
        max(part + presence * len(seen.shards_at(n)) for part, n in weighed(seen, by_shard))
    ]
    for _ in range(4):
        moves = strategy.rebalance(seen, seen.regions, {})
        assert len({move.shard for move in moves}) == len(moves)
        seen = moved(seen, moves)
        most = max(part + presence * len(seen.shards_at(n)) for part, n in weighed(seen, by_shard))
        assert most <= heaviest[-1] * (1 + FEW)
        heaviest.append(most)
    assert moves == []


def weighed(seen: ShardTable, loads: dict[str, float]) -> list[tuple[float, NodeId]]:
    return list(zip(at(seen, loads), sorted(seen.regions), strict=True))


def test_settings_select_least_load() -> None:
    chosen = replace(ShardingSettings(), allocation="least-load", rebalance_absolute_limit=7)
    assert strategy_of(chosen, "t", Ring()) == LeastLoad(0.2, 7)


# Known loads


def test_N9_loads_are_smoothed_and_stay_with_their_shards() -> None:
    load_estimates = LoadEstimates()
    seen, _ = table([[0, 0], [0]])
    first, second = sorted(seen.regions)
    load_estimates.record(ShardLoads(first, {"0": 100.0, "2": 7.0}), seen, 0.0)
    assert load_estimates.shard_loads(seen) is None, "the second has not reported"
    load_estimates.record(ShardLoads(second, {}), seen, 0.0)
    assert load_estimates.shard_loads(seen) == {"0": 100.0, "1": 0.0, "2": 0.0}, (
        "of others it cannot say anything"
    )
    load_estimates.record(ShardLoads(first, {}), seen, HALF_LIFE_S)
    assert load_estimates.loads["0"] == pytest.approx(50.0)
    there = moved(seen, [Move("0", first, second)])
    load_estimates.record(ShardLoads(first, {"0": 1e9}), there, 2 * HALF_LIFE_S)
    assert load_estimates.loads["0"] == pytest.approx(50.0)


def test_S3_20_what_nodes_have_to_spare_is_smoothed_and_forgotten_with_them() -> None:
    load_estimates = LoadEstimates("time")
    seen, _ = table([[0], [0]])
    first, second = sorted(seen.regions)
    load_estimates.record(ShardLoads(first, {}, "time", 0.9), seen, 0.0)
    load_estimates.record(ShardLoads(second, {}, "time", 0.3), seen, 0.0)
    load_estimates.record(ShardLoads(first, {}, "time", 0.5), seen, HALF_LIFE_S)
    assert load_estimates.spare == {first: pytest.approx(0.7), second: 0.3}
    alone, _ = table([[0]])
    load_estimates.shard_loads(alone)
    assert list(load_estimates.spare) == [first]


def test_S3_20_a_report_in_another_unit_is_noted_once_and_does_not_count() -> None:
    load_estimates = LoadEstimates("time")
    seen, _ = table([[0]])
    [node] = seen.regions
    [note] = load_estimates.record(ShardLoads(node, {"0": 900.0}), seen, 0.0)
    assert (note.kind, note.detail) == (
        "load_kind",
        f"{node} reports messages, sharding.load is time here",
    )
    assert load_estimates.record(ShardLoads(node, {"0": 900.0}), seen, 1.0) == []
    assert (load_estimates.loads, load_estimates.shard_loads(seen)) == ({}, None)
    assert load_estimates.record(ShardLoads(node, {"0": 0.5}, "time"), seen, 2.0) == []
    assert load_estimates.shard_loads(seen) == {"0": 0.5}
    assert load_estimates.record(ShardLoads(node, {"0": 900.0}), seen, 3.0) != []
    assert load_estimates.shard_loads(seen) is None, (
        "nothing moves until it reports as the others do"
    )


def test_S3_20_a_shard_that_moved_for_balance_rests_for_the_cool_down() -> None:
    load_estimates = LoadEstimates(cool_down=60.0)
    load_estimates.moved(["1"], 0.0)
    load_estimates.moved(["2"], 30.0)
    assert load_estimates.resting(59.9) == ("1", "2")
    assert load_estimates.resting(60.0) == ("2",)
    assert load_estimates.resting(90.0) == ()
    off = LoadEstimates(cool_down=0.0)
    off.moved(["1"], 0.0)
    assert off.resting(0.0) == ()


def test_a_region_of_a_new_incarnation_must_report_first() -> None:
    load_estimates = LoadEstimates()
    seen, _ = table([[0], [0]])
    for node in seen.regions:
        load_estimates.record(ShardLoads(node, {"0": 1.0}), seen, 0.0)
    alone, _ = table([[0]])
    assert load_estimates.shard_loads(alone) is not None
    assert load_estimates.shard_loads(seen) is None


def test_N9_a_shard_too_hot_to_be_balanced_is_noted_once() -> None:
    load_estimates, hot = LoadEstimates(), {"7": 0.8}
    assert load_estimates.hot_notes(hot, 0.0) == []
    [note] = load_estimates.hot_notes(hot, LASTING_S)
    assert (note.kind, note.detail) == ("hot_shard", "shard 7 gets 80% of all")
    assert note.shard == "7"
    assert load_estimates.hot_notes(hot, 2 * LASTING_S) == []
    assert load_estimates.hot_notes({}, 3 * LASTING_S) == []
    load_estimates.hot_notes(hot, 4 * LASTING_S)
    assert len(load_estimates.hot_notes(hot, 5 * LASTING_S)) == 1


def test_a_shard_above_a_regions_share_is_too_hot() -> None:
    loads = {"1": 70.0, "2": 20.0, "3": 10.0}
    assert LeastLoad(loads=loads).hot(2) == {"1": 0.7}
    assert LeastLoad(loads=loads).hot(1) == {}
    assert LeastLoad(loads={"1": 0.0}).hot(3) == {}
    assert LeastLoad().hot(3) == {}


# The coordinator


def loaded(
    driver: CoordinatorDriver, node: NodeId, **loads: float
) -> list[tuple[NodeId, ev.Message]]:
    by_shard = {shard.removeprefix("s"): load for shard, load in loads.items()}
    return driver.handle(ev.MessageReceived(node, msg.ShardLoads(node, by_shard)))


def test_N9_a_coordinator_moves_hot_shards_once_every_region_has_reported() -> None:
    chosen = ShardingSettings()
    driver = CoordinatorDriver(chosen, strategy=LeastLoad())
    driver.register(A, B)
    homes = {shard: driver.home(shard) for shard in "1234"}
    at_a = [shard for shard, home in homes.items() if home.node == A]
    assert len(at_a) == 2
    loaded(driver, A, **{f"s{shard}": 50.0 for shard in at_a})
    assert driver.wait(chosen.rebalance_interval) == []
    loaded(driver, B)
    sent = driver.wait(chosen.rebalance_interval)
    [begun] = {message for _, message in sent if isinstance(message, msg.BeginHandOff)}
    [home] = begun.homes
    assert home.shard in at_a
    assert driver.coordinator.rebalancing.load_of(home.shard) == 50.0
    for node in (A, B):
        ack(driver, node, home)
    driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, (home,))))
    driver.persisted()
    assert driver.coordinator.table.homes[home.shard].node == B
    loaded(driver, B, **{f"s{home.shard}": 900.0})
    loaded(driver, A)
    again = driver.wait(chosen.rebalance_interval)
    begun_again = [m for _, m in again if isinstance(m, msg.BeginHandOff)]
    assert all(h.shard != home.shard for m in begun_again for h in m.homes), "it rests"


def test_loads_in_the_name_of_another_and_for_other_strategies_are_ignored() -> None:
    driver = CoordinatorDriver(strategy=LeastLoad())
    driver.register(A, B)
    driver.home("1")
    driver.handle(ev.MessageReceived(C, msg.ShardLoads(A, {"1": 5.0})))
    assert driver.coordinator.rebalancing.load_of("1") is None
    other = CoordinatorDriver()
    other.register(A, B)
    other.home("1")
    loaded(other, A, s1=5.0)
    assert other.coordinator.rebalancing.load_of("1") is None


def test_a_plan_for_very_many_shards_is_bounded() -> None:
    seen, loads = table([[1.0] * 20_000, []])
    moves = LeastLoad(loads=loads).rebalance(seen, seen.regions, {})
    assert len(moves) == MOVES_MAX
    new = [f"new-{i}" for i in range(20_000)]
    chosen = LeastLoad(loads=loads).allocate(seen, {}, new, seen.regions)
    assert set(chosen.values()) == {max(seen.regions)}
