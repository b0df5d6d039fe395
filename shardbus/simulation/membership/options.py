"""The options of a run: the faults that a seed brings and the cluster's settings, in one value.

`draw` includes each kind of fault with its own probability, so that some runs have one kind only:
such a run reaches states that a run with all kinds never does. The cluster's settings are drawn
too: the downing strategy, which the caller may also choose, and the settings for joining.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from random import Random

from shardbus.config.settings import ClusterSettings, DowningSettings
from shardbus.membership.downing.electorate import COUNTING
from shardbus.simulation.membership.troubles import NodeTrouble, draw_troubles

NODES = (3, 7)
"""The least and the greatest number of nodes, if the caller gives none."""
SECONDS = 30.0
UNFAIR_SECONDS = 60.0
"""Seconds with unfair links, if the caller gives none."""
GENTLE_PAUSE_S = 2.0
GENTLE_LOSS = 0.05
STORES = ("sound", "slow", "failing", "forgetful")
STRATEGIES = {
    "keep-majority": 10,
    "static-quorum": 3,
    "keep-oldest": 3,
    "lease-majority": 3,
    "down-all": 1,
}
"""Each strategy with its weight in the draw."""
ROLE = "core"


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
    """The most by which a process's clock is too fast or too slow, as a part of one."""
    pauses: int = 0
    pause_s: float = 1.0
    kills: int = 0
    vanishes: int = 0
    """Deaths of whole machines, which refuse no connection."""
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
    """The number of new coordinator epochs that some node records."""
    bounces: int = 0
    """Processes that are killed and replaced at their address within milliseconds."""
    swizzles: int = 0
    """Series of links that break one by one, and come back one by one in another order."""
    pairs: int = 0
    """Faults that are moved close to another one, so that the two coincide."""
    rejoins: bool = False
    """A process that was downed starts anew, and joins by the members of its last view."""
    flaps: int = 0
    """Walls that fall soon after a side has requested its lease, and rise again."""
    strategy: str = "keep-majority"
    quorum: int = 0
    down_if_alone: bool = True
    margin_s: float = 0.0
    role: str = ""
    """Only members with this role vote; every other node has it."""
    min_members: int = 1
    weakly_up: bool = True
    discovery: bool = False
    """Nodes find each other by the store, and start at once; the store's claim decides who
    founds."""
    claims: bool = False
    """All nodes have the same two seeds, and start at once; the store's claim decides whether the
    first of them founds."""
    replicas: int = 0
    """The store is inside the cluster: this number of the first nodes, and `spares` more, have a
    replica, and the ring begins with the first ones."""
    spares: int = 0
    witnesses: int = 0
    """Replicas of the ring that have no node."""
    ring_changes: int = 0
    repair_after: float = 0.0
    """Seconds after which a spare takes the place of a replica; 0 for never."""
    links: str = "fair"
    """With `unfair` links, some nodes have troubles with others, and nothing else happens."""
    troubles: tuple[NodeTrouble, ...] = ()

    @property
    def excused(self) -> frozenset[str]:
        """The names of the nodes that have a trouble; both ends of a pair."""
        names = [name for t in self.troubles for name in (t.culprit, *t.others) if t.pair]
        return frozenset((*names, *(t.culprit for t in self.troubles)))

    @property
    def gentle(self) -> bool:
        """True if no fault here can make a healthy node look dead, and no death can leave a
        minority: all live nodes must stay."""
        walls = self.partitions + self.one_ways + self.cut_links + self.swizzles
        walls += len(self.troubles)
        ends = self.kills + self.vanishes + self.leaves + self.bounces
        mild = self.loss <= GENTLE_LOSS and (not self.pauses or self.pause_s <= GENTLE_PAUSE_S)
        counted = self.strategy == "keep-majority" and not self.role and not self.replicas
        return not walls and mild and ends <= ((self.nodes - 1) // 2 if counted else 0)

    def settings(self) -> ClusterSettings:
        """Return the settings of every node."""
        downing = DowningSettings(
            strategy=self.strategy,
            static_quorum_size=self.quorum,
            down_if_alone=self.down_if_alone,
            down_removal_margin=self.margin_s,
            role=self.role,
        )
        weakly = ClusterSettings().allow_weakly_up_members if self.weakly_up else 0.0
        return ClusterSettings(
            min_members=self.min_members,
            allow_weakly_up_members=weakly,
            downing=downing,
            quarantine_after=0.0 if self.links == "unfair" else ClusterSettings().quarantine_after,
        )

    def lines(self) -> list[str]:
        """Return name and value of each option."""
        return [f"{field.name} = {getattr(self, field.name)!r}" for field in fields(self)]

    def command(self) -> str:
        """Return the command that replays this run."""
        return (
            f"shardbus simulate --seed {self.seed} --nodes {self.nodes}"
            f" --seconds {self.seconds:g}"
            f"{' --replicas' if self.replicas else f' --strategy {self.strategy}'}"
            f"{' --discovery' if self.discovery else ''}{' --claims' if self.claims else ''}"
            f"{' --links unfair' if self.links == 'unfair' else ''}"
        )


def draw_times(dice: Random, probability: float, most: int) -> int:
    """Draw how many times a fault happens: not at all, or once to `most` times."""
    value = dice.randint(1, most)
    return value if dice.random() < probability else 0


def draw(
    seed: int,
    nodes: int | None = None,
    seconds: float | None = None,
    strategy: str | None = None,
    links: str = "fair",
) -> Options:
    """Draw the options of this seed. The number of nodes and the strategy are drawn too if not
    given. Links change no other draw."""
    unfair = links == "unfair"
    seconds = seconds or (UNFAIR_SECONDS if unfair else SECONDS)
    dice = Random(f"options {seed}")
    drawn, times = dice.randint(*NODES), partial(draw_times, dice)

    def part(probability: float, most: float) -> float:
        value = round(dice.uniform(0.0, most), 3)
        return value if dice.random() < probability else 0.0

    walls = dice.random() < 0.6
    faults = Options(
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
    options = _configured(faults, Random(f"cluster {seed}"), strategy)
    return _with_unfair_links(options) if unfair else options


def with_replicas(drawn: Options) -> Options:
    """Return the options with a store inside the cluster, whose replicas vote, and a ring that
    changes, and perhaps repairs itself."""
    dice = Random(f"replicas {drawn.seed}")
    return replace(
        drawn,
        replicas=min(dice.choice((1, 2, 3, 3, 3, 5)), drawn.nodes),
        spares=dice.choice((0, 1, 2)),
        witnesses=dice.choice((0, 0, 0, 1, 2)),
        ring_changes=draw_times(dice, 0.6, 6),
        strategy=dice.choice((*COUNTING, COUNTING[0])),
        quorum=drawn.nodes // 2 + 1,
        role="",
        store="slow" if drawn.store == "forgetful" else drawn.store,
        repair_after=Random(f"repair {drawn.seed}").choice((0.0, 4.0, 10.0)),
    )


def _configured(faults: Options, dice: Random, strategy: str | None) -> Options:
    """Add the drawn settings of the cluster that meets these faults."""
    names, weights = list(STRATEGIES), list(STRATEGIES.values())
    drawn = dice.choices(names, weights)[0]
    majority = faults.nodes // 2 + 1
    quorum = dice.choice((majority, majority, majority + 1, max(1, majority - 1), 1))
    walls = bool(faults.partitions + faults.one_ways + faults.cut_links)
    pairs = Random(f"pairs {faults.seed}")
    return replace(
        faults,
        pairs=pairs.randint(1, 4) if pairs.random() < 0.4 else 0,
        flaps=pairs.randint(1, 2) if pairs.random() < 0.4 and walls else 0,
        rejoins=Random(f"rejoins {faults.seed}").random() < 0.5,
        bounces=dice.randint(1, 3) if dice.random() < 0.2 else 0,
        swizzles=dice.randint(1, 2) if dice.random() < 0.3 and walls else 0,
        strategy=strategy or drawn,
        quorum=quorum if (strategy or drawn) == "static-quorum" else 0,
        down_if_alone=dice.random() < 0.6,
        margin_s=dice.choice((1.0, 5.0)) if dice.random() < 0.2 else 0.0,
        role=ROLE if dice.random() < 0.15 else "",
        weakly_up=dice.random() < 0.8,
        min_members=dice.randint(1, faults.nodes) if dice.random() < 0.2 else 1,
    )


def _with_unfair_links(drawn: Options) -> Options:
    """Return the options with troubles in place of the faults that can strike any node: the healthy
    nodes are a majority, and stay so.

    The quorum is half of the nodes and one; the store is sound for those that reach it.
    """
    dice = Random(f"unfair {drawn.seed}")
    oldest = ("n1",) if drawn.strategy == "keep-oldest" else ()
    return replace(
        drawn,
        links="unfair",
        troubles=draw_troubles(dice, drawn.nodes, drawn.seconds, spared=oldest),
        loss=min(drawn.loss, GENTLE_LOSS),
        delay_s=min(drawn.delay_s, 0.05),
        pauses=0, kills=0, vanishes=0, leaves=0, joins=0, bounces=0, partitions=0, one_ways=0,
        cut_links=0, swizzles=0, pairs=0, flaps=0, rejecting=False, store="sound", role="",
        min_members=1, quorum=drawn.nodes // 2 + 1 if drawn.quorum else 0,
    )  # fmt: skip
