"""The calls of a strategy that the user wrote, by the states in which it can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardbus.ids import NodeId
from shardbus.sharding.allocation.checked import StrategyFault
from shardbus.sharding.allocation.pinned import PinnedShards
from shardbus.sharding.allocation.strategies import AllocationStrategy
from shardbus.sharding.coordinator.strategy_calls import (
    ANSWER_S,
    REPEAT_S,
    REST_MAX_S,
    REST_S,
    CallState,
    StrategyCalls,
)
from shardbus.sharding.events import AskStrategy, StrategyAnswered
from shardbus.sharding.table import RegionRegistered, ShardTable

A, B = (NodeId(name, 1, 1) for name in "ab")
TABLE = ShardTable(1, "x").updated_all([RegionRegistered(A), RegionRegistered(B)])


class Own:
    """Places every shard at B; the fewest would be A."""

    def __init__(self) -> None:
        self.fails: BaseException | None = None

    def allocate(self, table: Any, loads: Any, shards: Sequence[str], candidates: Any) -> Any:
        if self.fails is not None:
            raise self.fails
        return dict.fromkeys(shards, B)

    def rebalance(self, *_: Any) -> Any:
        return []


class World:
    """The calls of one coordinator, turn by turn."""

    def __init__(self) -> None:
        self.strategy = Own()
        self.calls = StrategyCalls(lambda: self.strategy, PinnedShards(self.strategy).around)
        self.questions: list[AskStrategy] = []

    def turn(self, now: float, *shards: str) -> dict[str, NodeId] | None:
        """Request homes in one turn; return the answer."""
        answer = self.calls.ask("homes", question(shards)) if shards else None
        self.questions += self.calls.end_turn(now)
        return answer

    def answer(self, now: float) -> tuple[str, ...]:
        """The strategy answers the last questions; return its faults."""
        faults = self.calls.on_answer(self.questions[-1].ask(), now)
        return tuple(" ".join(fault) for fault in faults)

    def late(self, now: float) -> str:
        """The strategy does not answer in time; return the fault."""
        assert self.calls.deadline() == now + ANSWER_S
        [fault] = self.calls.tick(now + ANSWER_S)
        return " ".join(fault)


def question(shards: Sequence[str]) -> Callable[[AllocationStrategy], dict[str, NodeId]]:
    return lambda strategy: strategy.allocate(TABLE, {}, shards, (A, B))


def test_an_answer_comes_in_a_later_turn_and_once() -> None:
    world = World()
    assert world.turn(0.0, "1") is None
    assert world.calls.state is CallState.ASKED
    assert world.calls.waits() == "Own.allocate is to answer"
    assert world.turn(0.1, "1") is None
    assert len(world.questions) == 1, "one call at a time"
    assert world.answer(0.2) == ()
    assert world.calls.has_answer("homes")
    assert world.turn(0.2, "1") == {"1": B}
    assert world.calls.waits() == ""
    assert world.turn(0.3) is None
    assert world.calls.deadline() is None


def test_an_answer_that_nobody_fetches_is_forgotten() -> None:
    world = World()
    world.turn(0.0, "1")
    world.answer(0.1)
    world.turn(0.1)
    assert not world.calls.has_answer("homes")
    assert world.turn(0.2, "1") is None
    assert len(world.questions) == 2


def test_all_questions_of_a_turn_are_one_call() -> None:
    world = World()
    for key in ("homes", "leaving"):
        assert world.calls.ask(key, question([key])) is None
    world.turn(0.0)
    assert len(world.questions) == 1
    world.answer(0.1)
    assert world.calls.ask("leaving", question(["leaving"])) == {"leaving": B}
    assert world.calls.ask("homes", question(["homes"])) == {"homes": B}


def test_a_question_that_comes_up_during_a_call_is_asked_after_it() -> None:
    world = World()
    world.turn(0.0, "1")
    assert world.calls.ask("leaving", question(["2"])) is None
    world.turn(0.1)
    assert len(world.questions) == 1
    world.answer(0.2)
    assert world.turn(0.2, "1") == {"1": B}
    assert len(world.questions) == 2


def test_a_strategy_that_does_not_return_is_left_alone_and_shards_go_to_the_fewest() -> None:
    world = World()
    world.turn(0.0, "1")
    fault = world.late(0.0)
    assert fault.startswith("allocate has not returned  for 2 s")
    assert world.turn(2.0, "1") == {"1": A}
    assert world.turn(3.0, "2") == {"2": A}
    assert len(world.questions) == 1, "it is not called a second time"
    assert world.calls.deadline() == 2.0 + REPEAT_S
    [again] = world.calls.tick(2.0 + REPEAT_S)
    assert "for 12 s" in " ".join(again)


def test_a_late_answer_does_not_count_and_the_strategy_rests_longer_each_time() -> None:
    world, now = World(), 0.0
    for times in range(1, 12):
        assert world.turn(now, "1") is None
        world.late(now)
        now += ANSWER_S + 1
        world.answer(now)
        assert world.calls.state is CallState.RESTING
        assert world.turn(now, "1") == {"1": A}, "not the late answer, and not another call"
        rest = min(REST_MAX_S, REST_S * 2 ** (times - 1))
        assert world.calls.deadline() == now + rest
        now += rest
        assert world.calls.tick(now) == []
        assert world.calls.state is CallState.IDLE
    assert world.turn(now, "1") is None
    world.answer(now + 1)
    assert world.turn(now + 1, "1") == {"1": B}
    assert world.turn(now + 1, "1") is None
    world.late(now + 1)
    world.answer(now + 4)
    assert world.calls.deadline() == now + 4 + REST_S, "in time once, so the first rest again"


def test_the_faults_of_a_call_come_with_its_answer() -> None:
    world = World()
    world.strategy.fails = SystemExit(3)
    world.turn(0.0, "1")
    assert world.answer(0.1) == ("allocate raised SystemExit : 3",)
    assert world.turn(0.1, "1") == {"1": A}
    assert world.calls.state is CallState.IDLE


def test_a_strategy_that_cannot_be_called_rests() -> None:
    """No thread can be started. Another attempt at once would fail again, and so on."""
    world = World()
    world.turn(0.0, "1")
    fault = StrategyFault("allocate", "was not called")
    assert world.calls.on_answer(StrategyAnswered(1, {}, (fault,)), 0.1) == (fault,)
    assert world.turn(0.1, "1") == {"1": A}
    assert world.calls.deadline() == 0.1 + REST_S


def test_an_answer_of_an_earlier_coordinator_is_ignored() -> None:
    world = World()
    world.turn(0.0, "1")
    assert world.calls.on_answer(StrategyAnswered(77, {"homes": {"1": B}}), 0.1) == ()
    assert world.turn(0.1, "1") is None
