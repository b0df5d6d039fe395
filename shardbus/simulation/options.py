"""What a seed brings: every fault that may happen in a run, as one frozen value.

`draw` lets each kind of fault take part with its own probability instead of a little of everything
every time: a run with one kind of trouble reaches states that a run with all of them never sees.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random

NODES = (3, 7)
"""So many nodes, if nobody says how many."""
SECONDS = 30.0
GENTLE_PAUSE_S = 2.0
GENTLE_LOSS = 0.05
STORES = ("sound", "slow", "failing", "forgetful")


@dataclass(frozen=True, slots=True)
class Options:
    """One run. Times in seconds; `loss`, `duplication` and `reordering` are parts of all published
    messages."""

    seed: int
    nodes: int
    seconds: float = SECONDS
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    delay_s: float = 0.005
    late_s: float = 1.0
    drift: float = 0.0
    """By how much a process's clock is at most too fast or too slow, as a part of one."""
    pauses: int = 0
    pause_s: float = 1.0
    kills: int = 0
    vanishes: int = 0
    """Deaths of whole machines: nothing refuses a connection."""
    restarts: bool = False
    """A process that ended comes back at its address."""
    leaves: int = 0
    joins: int = 0
    partitions: int = 0
    one_ways: int = 0
    cut_links: int = 0
    wall_s: float = 10.0
    rejecting: bool = False
    store: str = "sound"
    epochs: int = 3
    """How often somebody sees a coordinator with a new epoch."""

    @property
    def gentle(self) -> bool:
        """True if no fault here can make a healthy node look dead, and no death can leave a
        minority: everybody alive must stay."""
        walls = self.partitions + self.one_ways + self.cut_links
        ends = self.kills + self.vanishes + self.leaves
        mild = self.loss <= GENTLE_LOSS and (not self.pauses or self.pause_s <= GENTLE_PAUSE_S)
        return not walls and mild and ends <= (self.nodes - 1) // 2

    def lines(self) -> list[str]:
        """Name and value of each."""
        return [f"{field.name} = {getattr(self, field.name)!r}" for field in fields(self)]

    def command(self) -> str:
        """What replays this run."""
        return (
            f"shardbus simulate --seed {self.seed} --nodes {self.nodes} --seconds {self.seconds:g}"
        )


def draw(seed: int, nodes: int | None = None, seconds: float = SECONDS) -> Options:
    """The options of this seed; the number of nodes is drawn too if none is given."""
    dice = Random(f"options {seed}")
    drawn = dice.randint(*NODES)

    def part(probability: float, most: float) -> float:
        value = round(dice.uniform(0.0, most), 3)
        return value if dice.random() < probability else 0.0

    def times(probability: float, most: int) -> int:
        value = dice.randint(1, most)
        return value if dice.random() < probability else 0

    walls = dice.random() < 0.6
    return Options(
        seed=seed,
        nodes=drawn if nodes is None else nodes,
        seconds=seconds,
        loss=part(0.4, dice.choice((GENTLE_LOSS, 0.3))),
        duplication=part(0.4, 0.3),
        reordering=part(0.4, 0.3),
        delay_s=dice.choice((0.002, 0.005, 0.05, 0.2)),
        late_s=round(dice.uniform(0.05, 3.0), 3),
        drift=part(0.4, 0.01),
        pauses=times(0.4, 3),
        pause_s=round(dice.uniform(0.1, dice.choice((GENTLE_PAUSE_S, 12.0))), 3),
        kills=times(0.4, 2),
        vanishes=times(0.3, 2),
        restarts=dice.random() < 0.5,
        leaves=times(0.3, 2),
        joins=times(0.4, 3),
        partitions=times(0.5, 2) if walls else 0,
        one_ways=times(0.3, 2) if walls else 0,
        cut_links=times(0.3, 2) if walls else 0,
        wall_s=round(dice.uniform(0.2, dice.choice((6.0, 25.0, 25.0))), 3),
        rejecting=dice.random() < 0.3,
        store=dice.choice(STORES) if dice.random() < 0.6 else "sound",
        epochs=dice.randint(1, 6),
    )
