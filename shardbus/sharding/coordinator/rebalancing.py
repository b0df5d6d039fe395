"""When the balance of shards is looked at, and whether anything may be moved for it.

It is looked at each `rebalance_interval`, soon after somebody came or went, and when somebody asks.
A look makes a plan, unless something holds it: the picture is unsettled, a rollout is under way, a
new coordinator does not know its regions yet, or somebody has paused it. What of an earlier plan
has not begun is dropped then. While shards wait for homes, it is looked at again a moment later.

What drains, and what needs a home, is none of this: it goes on.

Where a bound is set on the moves of a minute (`pace`), what is above it waits for its turn, or for
the next plan.

Where the strategy goes by load (`least_load`), it is told before what regions have reported.

At each look it is also seen whether there are enough shards, and not too many (`advice`).

Source: S2.18, S2.19; B.65, B.66, B.69, B.77; C.9, C.11, C.31; N.9, N.10; T.S20.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding.allocation.checked import CheckedStrategy
from shardbus.sharding.allocation.least_load import LeastLoad
from shardbus.sharding.allocation.strategies import AllocationStrategy, External, Move
from shardbus.sharding.coordinator.ledger import Ledger
from shardbus.sharding.coordinator.load_estimates import LoadEstimates
from shardbus.sharding.coordinator.move_rate import MoveRateLimit
from shardbus.sharding.coordinator.moves import Moves
from shardbus.sharding.coordinator.registry import Registry
from shardbus.sharding.coordinator.shard_count import ShardCountCheck
from shardbus.sharding.overrides import Overrides

PLAIN = "crc32/"
"""How the layout of a type begins that brings no shard function of its own."""

COALESCE = 0.2
"""Seconds in which changes of membership gather before the balance is looked at."""


class Rebalancing:
    """The strategy of one coordinator, and when it is asked for a plan."""

    __slots__ = (
        "_due",
        "_interval",
        "_ledger",
        "_load_estimates",
        "_move_rate",
        "_moves",
        "_moves_max",
        "_registry",
        "_shard_count_check",
        "paused",
        "strategy",
    )  # fmt: skip

    def __init__(
        self,
        settings: ShardingSettings,
        layout: str,
        strategy: AllocationStrategy,
        registry: Registry,
        ledger: Ledger,
        moves: Moves,
    ) -> None:
        self.strategy = CheckedStrategy(strategy, lambda note: moves.notes.append(note))
        self.paused = False
        self._interval = settings.rebalance_interval
        self._moves_max = settings.max_moves_in_flight
        self._registry, self._ledger, self._moves = registry, ledger, moves
        self._due: float | None = None
        self._move_rate = MoveRateLimit(settings.max_moves_per_minute)
        self._load_estimates = LoadEstimates()
        self._shard_count_check = ShardCountCheck(
            settings.shards if layout.startswith(PLAIN) else 0
        )

    @property
    def takes_places(self) -> bool:
        """Whether somebody outside says where shards shall live."""
        return isinstance(self.strategy.strategy, External)

    @property
    def moves_in_flight(self) -> tuple[int, int]:
        """How many shards are on the move, and how many may be, per source and target."""
        return len(self._moves.handoffs), self._moves.bound

    def deadline(self) -> float | None:
        """When it is looked at next, or a move that waits for its turn may begin."""
        turn = self._move_rate.deadline() if self._moves.waiting else None
        return min((due for due in (self._due, turn) if due is not None), default=None)

    def direct(self, told: Overrides) -> None:
        """From now on it shall be so."""
        self.paused = told.paused
        self._moves.bound = told.moves or self._moves_max
        asked = self.strategy.strategy
        if isinstance(asked, External):
            self.strategy.strategy = replace(asked, places=told.places)

    def hear(self, node: NodeId, loads: Mapping[str, float], now: float) -> None:
        """A region says what its shards get."""
        if isinstance(self.strategy.strategy, LeastLoad):
            self._load_estimates.hear(node, loads, self._ledger.table, now)
            self._weigh(now)

    def load_of(self, shard: str) -> float | None:
        """Messages a second, if anybody measures."""
        return self._load_estimates.loads.get(shard)

    def look(self, at: float) -> None:
        """Look then, whenever it would have been otherwise."""
        self._due = at

    def first_look(self, now: float) -> None:
        """Begin."""
        self._due = now + self._interval

    def tick(self, now: float) -> None:
        """Look, if it is time."""
        if self._due is None or now < self._due:
            return
        self._due = now + self._interval
        if self._registry.unsettled() or self._registry.why_not(now):
            return
        table = self._ledger.table
        self._moves.notes += self._shard_count_check.look(len(table.regions), len(table.homes), now)
        if self.paused:
            return
        if self._ledger.writing is not None or self._ledger.wanted:
            self._due = now + COALESCE
            return
        self._weigh(now)
        self._moves.plan(self.strategy, table, self._registry.candidates(), now)

    def _weigh(self, now: float) -> None:
        """Let the strategy know the loads of now."""
        asked, table = self.strategy.strategy, self._ledger.table
        if isinstance(asked, LeastLoad):
            asked = replace(asked, loads=self._load_estimates.known(table))
            self.strategy.strategy = asked
            self._moves.notes += self._load_estimates.tell(asked.hot(len(table.regions)), now)

    def ready(self, now: float) -> list[Move]:
        """The moves of the plan that may begin now."""
        if self.held():
            self._moves.drop_plan()
        candidates, room = self._registry.candidates(), self._move_rate.room(now)
        ready = self._moves.ready(candidates, self._ledger.arriving(), room)
        self._move_rate.took(len(ready), now)
        return ready

    def held(self) -> str:
        """Why nothing is moved for balance; empty if something may be."""
        return "somebody has paused it" if self.paused else self._registry.unsettled()
