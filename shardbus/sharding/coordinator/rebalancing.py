"""When shards are rebalanced, how fast, and by which loads.

The balance is checked each `rebalance_interval` seconds, soon after a node came or went, and when
an operator asks. A check makes a plan, unless something holds it back: a member is unreachable or
joining, a rollout is under way, a new coordinator does not have its regions yet, or an operator has
paused rebalancing. Moves of an earlier plan that have not begun are dropped then. While shards wait
for homes, the next check follows a moment later.

Moves away from nodes that leave or drain, and homes for shards that need one, are not rebalancing:
they go on.

**Rate.** Where `max_moves_per_minute` is set, moves above it wait for their turn, or for the next
plan. The bound on moves in flight keeps one move short; this bound keeps the whole rebalance from
being felt where each move has a cost that outlasts it, such as a cold cache. The window slides: a
move counts for the 60 seconds after it began. A new coordinator starts to count at 0.

**Places.** A shard that an operator has placed stays out of the strategy's sight (`pinned`), until
its place is taken away. Strategy `external` has no other rule, so it keeps the places itself.

**Loads.** Where the strategy may go by load (`least_load`, or one of the user's), regions report
the cost of their shards (`load_estimates`). A check gives `least_load` the averages, and the shards
that rest because they have just moved; each call of `allocate` gets the averages.

**Strategies of the user's** are called in a thread (`strategy_calls`): plans come in later turns.

**Number of shards.** Each check also compares the number of shards with the number of nodes. With
fewer shards than nodes some nodes host nothing; with very many shards per node, moves, first
messages and takeovers cost more than they must. Neither is an error, and neither can be changed
while the cluster runs, so each is noted once, when it has been so for `LASTING_S`: a cluster that
is starting has few nodes at first. A shard function of the application may give any number of
shards; then those that have a home count.

Source: S2.18, S2.19, B.65, B.66, B.69, B.77, N.9, N.10; docs/how-to/define-entities.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import replace
from typing import TypeVar

from shardbus.config.settings import ShardingSettings
from shardbus.error_text import type_name
from shardbus.errors import Refused
from shardbus.ids import Address
from shardbus.quantities import counted
from shardbus.sharding.allocation.checked import CheckedStrategy, StrategyFault, fault_of
from shardbus.sharding.allocation.distinct import DistinctRows
from shardbus.sharding.allocation.least_load import LeastLoad
from shardbus.sharding.allocation.pinned import PinnedShards
from shardbus.sharding.allocation.strategies import AllocationStrategy, External, Move
from shardbus.sharding.coordinator.ledger import Ledger
from shardbus.sharding.coordinator.load_estimates import LASTING_S, LoadEstimates
from shardbus.sharding.coordinator.moves import Moves
from shardbus.sharding.coordinator.registry import Registry
from shardbus.sharding.coordinator.strategy_calls import StrategyCalls
from shardbus.sharding.coordinator.strategy_faults import StrategyFaults
from shardbus.sharding.events import Note
from shardbus.sharding.messages import ShardLoads
from shardbus.sharding.overrides import Overrides
from shardbus.sharding.shard_load import UNITS
from shardbus.tasks.interrupts import raise_interrupt

PLAIN = "crc32/"
"""The start of the layout of a type without a shard function of its own."""

COALESCE_S = 0.2
"""Seconds in which changes of membership gather before the balance is checked."""

MINUTE_S = 60.0

PER_NODE_MAX = 1000
"""Shards per node above which there are very many."""

TOO_FEW, TOO_MANY = "too_few_shards", "too_many_shards"
PLAN = "plan"
"""The question for a plan."""

T = TypeVar("T")


class Rebalancing:
    """The strategy of one coordinator, and when it makes a plan."""

    __slots__ = (
        "_due", "_faults", "_interval", "_ledger", "_loads", "_moves", "_moves_max", "_rate_limit",
        "_registry", "_shard_count", "calls", "faults", "paused", "planner", "strategy",
    )  # fmt: skip

    def __init__(
        self,
        settings: ShardingSettings,
        layout: str,
        strategy: AllocationStrategy,
        registry: Registry,
        ledger: Ledger,
        moves: Moves,
        *,
        rows: bool = False,
        threaded: bool = False,
    ) -> None:
        self.faults = StrategyFaults(type_name(strategy))
        self._faults: list[StrategyFault] = []
        """Of this turn."""
        self.strategy = CheckedStrategy(strategy, self._faults.append)
        self.planner: PinnedShards | DistinctRows
        self.planner = DistinctRows(self.strategy) if rows else PinnedShards(self.strategy)
        """The planner: a guard around the strategy."""
        self.calls: StrategyCalls | None = None
        """The calls of a strategy that runs in a thread."""
        if threaded:
            self.calls = StrategyCalls(lambda: self.strategy.strategy, self.planner.around)
        self.paused = False
        self._interval = settings.rebalance_interval
        self._moves_max = settings.max_moves_in_flight
        self._registry, self._ledger, self._moves = registry, ledger, moves
        self._due: float | None = None
        self._rate_limit = MoveRateLimit(settings.max_moves_per_minute)
        self._loads = LoadEstimates(settings.load, settings.rebalance_cool_down)
        self._shard_count = ShardCountCheck(settings.shards if layout.startswith(PLAIN) else 0)

    def check_places(self, places: Collection[Address]) -> None:
        """Check that shards may be placed at these addresses. A node need not be there yet.

        Raises:
            Refused: the type has instances, or a node there takes no shard.
        """
        if not isinstance(self.planner, PinnedShards):
            raise Refused(
                "a type with instances takes no places: the instances of a shard lie on distinct"
                " nodes, which its coordinator chooses",
                hint="cordon or drain a node instead",
            )
        able = self._registry.candidates()
        for node in self._registry.registered:
            if node.address in places and node not in able:
                raise Refused(
                    f"{node.address} takes no shard: it is cordoned, drains, leaves or hosts none",
                    hint="uncordon it first, or name another node",
                )

    @property
    def moves_in_flight(self) -> tuple[int, int]:
        """How many shards move, and how many may per source and target."""
        return len(self._moves.handoffs), self._moves.bound

    def deadline(self) -> float | None:
        """Return when the next check is due, or a move that waits for its turn may begin."""
        turn = self._rate_limit.deadline() if self._moves.planned else None
        calls = self.calls.deadline() if self.calls is not None else None
        return min((due for due in (self._due, turn, calls) if due is not None), default=None)

    def ask(self, key: Hashable, question: Callable[[AllocationStrategy], T]) -> T | None:
        """Ask the strategy, under its guard; None if it has not answered yet."""
        if self.calls is not None:
            return self.calls.ask(key, question)
        return question(self.planner)

    def unreported(self) -> AllocationStrategy:
        """Return the strategy under its guard, for another thread: its faults are not noted."""
        return self.planner.around(CheckedStrategy(self.strategy.strategy, lambda fault: None))

    def take_faults(self, now: float, more: Collection[StrategyFault] = ()) -> None:
        """Note the strategy's faults in this turn."""
        for fault in (*self._faults, *more):
            self._moves.notes += self.faults.add(fault, now)
        self._faults.clear()

    def apply_overrides(self, overrides: Overrides) -> None:
        """Apply the operator's overrides."""
        self.paused = overrides.paused
        self._moves.bound = overrides.moves or self._moves_max
        strategy = self.strategy.strategy
        if isinstance(strategy, External):
            self._change(strategy, places=overrides.places)
        elif isinstance(self.planner, PinnedShards):
            self.planner.places = overrides.places

    def on_loads(self, report: ShardLoads, now: float) -> None:
        """Record the loads of a region's shards."""
        if self.calls is not None or isinstance(self.strategy.strategy, LeastLoad):
            self._moves.notes += self._loads.record(report, self._ledger.table, now)
            self._update_loads(now)

    def loads(self) -> Mapping[str, float]:
        """Return the loads that are known, as they are now. Strategies of shardbus that go by load
        have them already."""
        return dict(self._loads.loads) if self.calls is not None else {}

    @property
    def load_unit(self) -> str:
        """The unit of `load_of`."""
        return UNITS[self._loads.kind]

    def load_of(self, shard: str) -> float | None:
        """Return the load of the shard, in the unit of `sharding.load`, if it is measured."""
        return self._loads.loads.get(shard)

    def check_at(self, at: float) -> None:
        """Check the balance at that time instead of the time set before."""
        self._due = at

    def start(self, now: float) -> None:
        """Set the first check."""
        self._due = now + self._interval

    def tick(self, now: float) -> None:
        """Check the balance and make a plan, if that is due or the strategy has answered."""
        if self.calls is not None:
            self.take_faults(now, self.calls.tick(now))
        if self.calls is None or not self.calls.has_answer(PLAN):
            if self._due is None or now < self._due:
                return
            self._due = now + self._interval
        if self._registry.unsettled() or self._registry.why_not(now):
            return
        table = self._ledger.table
        self._moves.notes += self._shard_count.notes(len(table.regions), len(table.homes), now)
        if self.paused:
            return
        if self._ledger.writing is not None or self._ledger.wanted_homes:
            self._due = now + COALESCE_S
            return
        self._update_loads(now)
        question = self._moves.question(table, self._registry.candidates(), now)
        moves = self.ask(PLAN, question)
        if moves is not None:
            homes = table.homes  # a plan may be older than the table
            self._moves.plan(
                move
                for move in moves
                if (home := homes.get(move.shard)) is not None and home.node == move.source
            )

    def _update_loads(self, now: float) -> None:
        """Give the strategy the present loads, and note shards that are too hot."""
        strategy, table = self.strategy.strategy, self._ledger.table
        if self.calls is not None:
            self._loads.shard_loads(table)  # forgets the nodes that are gone
        if isinstance(strategy, LeastLoad):
            loads, resting = self._loads.shard_loads(table), self._loads.resting(now)
            self._change(strategy, loads=loads, spare=self._loads.spare, resting=resting)
            self._moves.notes += self._loads.hot_notes(self._hot(len(table.regions)), now)

    def _change(self, strategy: External | LeastLoad, **changes: object) -> None:
        """Give the strategy other values. It may be of a class that inherits from one of ours."""
        try:
            self.strategy.strategy = replace(strategy, **changes)  # type: ignore[arg-type]
        except BaseException as error:
            raise_interrupt(error)
            self._faults.append(fault_of("replace", error))

    def _hot(self, regions: int) -> Mapping[str, float]:
        strategy = self.strategy.strategy
        return LeastLoad.hot(strategy, regions) if isinstance(strategy, LeastLoad) else {}

    def take_ready(self, now: float) -> list[Move]:
        """Return the moves of the plan that begin now."""
        if self.why_not():
            self._moves.drop_plan()
        candidates, room = self._registry.candidates(), self._rate_limit.room(now)
        ready = self._moves.take_ready(candidates, self._ledger.arriving(), room)
        self._rate_limit.add(len(ready), now)
        self._loads.moved((move.shard for move in ready), now)
        return ready

    def why_not(self) -> str:
        """Return why nothing is moved for balance; empty if something may be."""
        return "an operator has paused it" if self.paused else self._registry.unsettled()


class MoveRateLimit:
    """The moves for balance that began in the last minute. `most` 0 allows any number."""

    __slots__ = ("_begun", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun: deque[float] = deque()

    def room(self, now: float) -> int | None:
        """Return how many moves may begin now; None for any number."""
        while self._begun and self._begun[0] + MINUTE_S <= now:
            self._begun.popleft()
        return self._most - len(self._begun) if self._most else None

    def add(self, moves: int, now: float) -> None:
        """Record `moves` as begun."""
        if self._most:
            self._begun.extend([now] * moves)

    def deadline(self) -> float | None:
        """Return when there is room again; None if there is room."""
        full = self._most and len(self._begun) >= self._most
        return self._begun[0] + MINUTE_S if full else None


class ShardCountCheck:
    """Compares the numbers of shards and nodes. `declared` is the number of shards of the type, 0
    if its shard function gives any number."""

    __slots__ = ("_declared", "_fault", "_noted", "_since")

    def __init__(self, declared: int) -> None:
        self._declared = declared
        self._noted = self._fault = ""
        self._since = 0.0

    def notes(self, nodes: int, homes: int, now: float) -> list[Note]:
        """Return a note if there have been too few or too many shards for `LASTING_S`, once per
        change. `nodes` host, and `homes` shards have a home."""
        shards = max(self._declared, homes)
        fault = ""
        if nodes and shards > PER_NODE_MAX * nodes:
            fault = TOO_MANY
        elif 0 < self._declared < nodes:
            fault = TOO_FEW
        if fault != self._fault:
            self._fault, self._since = fault, now
        if fault == self._noted or now - self._since < LASTING_S:
            return []
        self._noted = fault
        if not fault:
            return []
        ratio = f"{counted(shards, 'shard')} for {counted(nodes, 'node')}"
        return [Note(fault, f"{ratio}: about ten per node are good")]
