"""What a seed brings to whole nodes: the faults of membership, and those of sharding beside them.

`draw_load` draws both from the seed. The store of the tables has moods of its own; settings are
drawn too, so that deadlines that never pass in a calm cluster do.

Source: DESIGN section 9.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from random import Random

from shardbus.settings import ShardingSettings
from shardbus.simulation.options import SECONDS, Options, draw

STORES = {"sound": 4, "slow": 2, "failing": 3, "away": 2, "forgetful": 2, "rolled back": 2}
"""Each mood of the store with its weight in the draw."""
ALLOCATIONS = {"least-shards": 6, "threshold": 2, "consistent-hashing": 2}
HURRIED = {
    "begin_handoff_timeout": 0.05,
    "handoff_timeout": 6.5,
    "shard_start_timeout": 0.2,
    "retry_interval": 0.3,
}
"""Deadlines so short that they pass."""


@dataclass(frozen=True, slots=True)
class Load:
    """One run of whole nodes. Times in seconds."""

    faults: Options
    shards: int = 8
    clients: int = 1
    every_s: float = 0.3
    """Between two bursts of one sender."""
    store: str = "sound"
    cuts: int = 0
    """Connections that break for no reason."""
    stops: int = 0
    """How often an operator stops some shards."""
    services: int = 0
    """How often somebody is cordoned or drained, and opened again."""
    rebalances: int = 0
    hurried: bool = False
    buffer_size: int = 100_000
    mailbox: int = 10_000
    allocation: str = "least-shards"
    interval_s: float = 2.0
    """Between two looks at the balance."""

    @property
    def seed(self) -> int:
        """Of everything."""
        return self.faults.seed

    def sharding(self) -> ShardingSettings:
        """What every type of the run is set to."""
        hurry = HURRIED if self.hurried else {}
        return replace(
            ShardingSettings(),
            buffer_size=self.buffer_size,
            mailbox=self.mailbox,
            allocation=self.allocation,
            rebalance_interval=self.interval_s,
            rebalance_threshold=1,
            **hurry,  # type: ignore[arg-type]
        )

    def lines(self) -> list[str]:
        """Name and value of each."""
        own = [f"{f.name} = {getattr(self, f.name)!r}" for f in fields(self) if f.name != "faults"]
        return own + self.faults.lines()

    def command(self) -> str:
        """What replays this run."""
        return f"{self.faults.command()} --sharding"


def draw_load(
    seed: int, nodes: int | None = None, seconds: float = SECONDS, strategy: str | None = None
) -> Load:
    """The load of this seed; the number of nodes and the strategy are drawn too if none is
    given."""
    dice = Random(f"load {seed}")

    def times(probability: float, most: int) -> int:
        value = dice.randint(1, most)
        return value if dice.random() < probability else 0

    moods, allocations = list(STORES), list(ALLOCATIONS)
    return Load(
        faults=draw(seed, nodes, seconds, strategy),
        shards=dice.choice((1, 4, 8, 8, 24)),
        clients=dice.randint(0, 2),
        every_s=round(dice.uniform(0.1, 1.0), 3),
        store=dice.choices(moods, list(STORES.values()))[0],
        cuts=times(0.4, 12),
        stops=times(0.3, 3),
        services=times(0.3, 2),
        rebalances=times(0.3, 3),
        hurried=dice.random() < 0.3,
        buffer_size=dice.choice((20, 100_000, 100_000)),
        allocation=dice.choices(allocations, list(ALLOCATIONS.values()))[0],
        interval_s=dice.choice((0.5, 2.0, 10.0)),
    )
