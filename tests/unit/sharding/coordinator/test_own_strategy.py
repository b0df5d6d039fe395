"""A coordinator whose type has a strategy of the user's: it is called in a thread, and may never
return. The driver calls it when a test says so."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.allocation.least_load import LeastLoad
from shardbus.sharding.allocation.strategies import Move
from shardbus.sharding.coordinator.coordinator import COALESCE_S
from shardbus.sharding.coordinator.strategy_calls import ANSWER_S
from shardbus.sharding.instances import Instances
from shardbus.sharding.table import ShardTable
from tests.unit.sharding.coordinator.test_coordinator import A, B, C, CoordinatorDriver, names


class Own:
    """Places every shard at B. `moves` has its plan, `seen` the loads of its input."""

    def __init__(self) -> None:
        self.node = B
        self.moves: list[Move] = []
        self.seen: dict[str, float] = {}

    def allocate(
        self, table: Any, loads: Mapping[str, float], shards: Sequence[str], candidates: Any
    ) -> dict[str, NodeId]:
        self.seen = dict(loads)
        return dict.fromkeys(shards, self.node)

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        return self.moves


class World(CoordinatorDriver):
    def __init__(self, strategy: Any = None, **options: Any) -> None:
        self.strategy = strategy if strategy is not None else Own()
        super().__init__(strategy=self.strategy, threaded=True, **options)

    def answer(self) -> list[tuple[NodeId, ev.Message]]:
        """The strategy answers the last question."""
        return self.handle(self.questions[-1].ask())

    def home_by_answer(self, shard: str) -> None:
        """Give the shard a home by the strategy's answer."""
        self.ask(A, shard)
        self.answer()
        self.persisted()
        home = self.coordinator.table.homes[shard]
        self.handle(ev.MessageReceived(home.node, msg.ShardStarted((home,))))

    def written(self) -> dict[str, NodeId | None]:
        homes = self.writes[-1].homes
        return {shard: home and home[0] for shard, home in homes.items()}


def ready(**options: Any) -> World:
    world = World(**options)
    world.register(*options.get("live", (A, B)))
    return world


def test_a_shard_waits_for_the_strategy_and_the_reason_names_it() -> None:
    world = ready()
    assert world.ask(A, "1") == [(A, msg.Wait(1, ("1",), "Own.allocate is to answer"))]
    assert world.writes == []
    assert len(world.questions) == 1
    world.answer()
    assert world.written() == {"1": B}
    assert (A, "ShardHomes") in names(world.persisted())
    assert len(world.questions) == 1, "nothing is left to ask"


def test_a_strategy_that_does_not_return_costs_its_type_a_while_once() -> None:
    world = ready()
    world.ask(A, "1")
    world.wait(ANSWER_S)
    assert world.written() == {"1": A}
    assert world.notes.count("strategy_failed") == 1
    world.persisted()
    world.ask(A, "2")
    assert world.written() == {"2": B}, "at once, to the region with the fewest"
    assert len(world.questions) == 1
    [(method, what)] = world.coordinator.rebalancing.faults.shown(world.now)
    assert method == "Own.allocate"
    assert what.startswith("has not returned for 2 s")


def test_shards_that_do_not_need_the_strategy_do_not_wait_for_it() -> None:
    """Homes that regions report, and shards that no entity needs any more."""
    world = ready()
    world.home_by_answer("1")
    world.ask(A, "2")
    assert len(world.questions) == 2
    adopted = msg.Home("7", A, 1 << 33)
    world.handle(ev.MessageReceived(A, msg.Register(A, False, "crc32/8", (adopted,))))
    assert world.written() == {"7": A}
    world.persisted()
    world.answer()
    assert world.written() == {"2": B}


def test_an_answer_that_names_a_node_which_is_gone_is_asked_for_again() -> None:
    world = ready(live=(A, B, C))
    world.strategy.node = C
    world.ask(A, "1")
    late = world.questions[-1].ask()
    world.handle(ev.MembersChanged((A, B)))
    world.handle(late)
    assert world.writes == []
    assert len(world.questions) == 2
    world.answer()  # C again, which is no candidate
    assert world.written() == {"1": A}
    assert "strategy_failed" in world.notes


def test_a_plan_moves_what_is_still_where_the_plan_saw_it() -> None:
    settings = ShardingSettings(rebalance_interval=5.0)
    world = ready(settings=settings, live=(A, B, C))
    for shard in "123":
        world.home_by_answer(shard)
    world.strategy.moves = [Move("1", B, A), Move("2", C, A), Move("3", B, C)]
    world.wait(COALESCE_S)
    moving = world.answer()
    begun = {home.shard for _, m in moving if isinstance(m, msg.BeginHandOff) for home in m.homes}
    assert begun == {"1", "3"}


def test_a_strategy_that_is_late_moves_nothing_for_balance() -> None:
    settings = ShardingSettings(rebalance_interval=5.0)
    world = ready(settings=settings)
    for shard in "1234":
        world.home_by_answer(shard)
    world.strategy.moves = [Move("1", B, A)]
    world.wait(COALESCE_S + ANSWER_S)
    assert "strategy_failed" in world.notes
    world.wait(30.0)
    assert not world.coordinator.unsettled()


def test_allocate_gets_the_loads_that_regions_have_reported() -> None:
    world = ready()
    for shard in "12":
        world.home_by_answer(shard)
    report = msg.ShardLoads(B, {"1": 40.0, "2": 3.0}, "messages", 1.0)
    world.handle(ev.MessageReceived(B, report))
    world.handle(ev.MembersChanged((A,)))
    world.strategy.node = A
    world.answer()
    assert world.strategy.seen == {"1": 40.0, "2": 3.0}
    assert world.written() == {"1": A, "2": A}


@pytest.mark.parametrize("late", [False, True])
def test_rows_of_a_shard_stay_on_distinct_nodes_whatever_the_strategy_says(late: bool) -> None:
    world = ready(live=(A, B, C), instances=Instances(exact=2))
    world.ask(A, "1~1")
    if late:
        world.wait(ANSWER_S)
    else:
        world.answer()
    homes = world.written()
    assert len(homes) == 2
    assert len(set(homes.values())) == 2


def test_the_shards_of_a_node_that_leaves_get_the_strategys_targets_in_a_direct_mode() -> None:
    world = ready(settings=ShardingSettings(handoff="ordered"), live=(A, B, C))
    for shard in "12":
        world.home_by_answer(shard)
    world.strategy.node = C
    world.handle(ev.MessageReceived(B, msg.GracefulShutdownRequest(B)))
    world.answer()
    targets = {shard: home and home[0] for shard, home in world.writes[-1].homes.items()}
    assert set(targets.values()) == {C}


class ByLoad(LeastLoad):
    """Inherits from a strategy of shardbus, which gets its loads as attributes."""

    __slots__ = ()


def test_a_strategy_that_inherits_from_least_load_gets_the_loads_too() -> None:
    world = ready(strategy=ByLoad(), live=(A, B))
    world.ask(A, "1", "2")
    world.answer()
    world.persisted()
    for node in (A, B):
        loads = {"1": 4.0, "2": 1.0}
        world.handle(ev.MessageReceived(node, msg.ShardLoads(node, loads, "messages", 1.0)))
    strategy = world.coordinator.rebalancing.strategy.strategy
    assert isinstance(strategy, ByLoad)
    assert strategy.loads == {"1": 4.0, "2": 1.0}


def test_a_forecast_asks_the_strategy_and_reports_no_faults() -> None:
    world = ready()
    world.home_by_answer("1")
    world.strategy.node = A
    seen = world.coordinator.forecasting(0, (B,))()
    assert seen.moved == {"1": (B, A)}
