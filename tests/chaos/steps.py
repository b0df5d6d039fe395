"""The faults of a chaos run, drawn from a seed alone.

A *deck* has every kind at least once. It is shuffled and dealt, then the next one is, so that a run
of some decks has done all kinds. The action of a step is drawn with it, down to the seconds, and
does not depend on earlier steps: a seed repeats its steps. It does not repeat the instants
at which they meet the load.

    kill, pause, leave     a node, by its place
    join                   one node more, which leaves at the end of the step
    split                  the network, between one or two nodes and the others
    links                  the connections of one node, on one port or both: those that it dials,
                           those that it takes, or all
    rotate                 the cluster's secret, by command or by signals
    kill, freeze           the master, a replica or a Sentinel of the store
    failover               Sentinel makes the replica the master
    restart                a server of the store ends in order, and starts again
    slots                  slots of a Redis Cluster move from one master to another
    slow                   a replica of `cluster://` runs for a third of the time
    wipe                   a node is killed, and the disk of its replica is blank at its next start
    memory                 the master has reached its `maxmemory`
    disk                   the disk of the master or of a replica is full

**One place is spared** for `SPARED_STEPS` steps, then the next one is: its node is neither killed
nor stopped for long, and is on the larger side of a split. So each run has a process that grows old
enough to show a leak, and no node is too old to be killed once.

The larger side of each split is a majority: no step ends a whole cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

PLACES = 5
SPARED_STEPS = 40
QUIET_S = (1.0, 6.0)
"""Seconds between the end of a step and the next one."""
BLINKS_S, LONG_S = (0.5, 2.0), (8.0, 25.0)
"""Pauses that a cluster waits out, and pauses that it does not."""
STORE_S = (1.0, 3.0, 25.0)
"""The last one is longer than Sentinel waits."""


class Kind(StrEnum):
    """The action of a step."""

    KILL = "kill"
    PAUSE = "pause"
    LEAVE = "leave"
    JOIN = "join"
    SPLIT = "split"
    LINKS = "links"
    ROTATE = "rotate"
    KILL_MASTER = "kill-master"
    KILL_REPLICA = "kill-replica"
    KILL_SENTINEL = "kill-sentinel"
    FREEZE_MASTER = "freeze-master"
    FREEZE_REPLICA = "freeze-replica"
    FREEZE_SENTINEL = "freeze-sentinel"
    FAILOVER = "failover"
    RESTART = "restart"
    SLOTS = "slots"
    SLOW = "slow"
    WIPE = "wipe"
    MEMORY = "memory"
    DISK = "disk"


TWICE = (Kind.KILL, Kind.PAUSE, Kind.SPLIT, Kind.LINKS)
"""These are in each deck twice."""


OF_NODES = frozenset(
    {Kind.KILL, Kind.PAUSE, Kind.LEAVE, Kind.JOIN, Kind.SPLIT, Kind.LINKS, Kind.ROTATE},
)
"""Which do not depend on the kind of the store."""


class Passing(StrEnum):
    """The traffic that a split lets pass."""

    NOTHING = "nothing"
    FROM_FEW = "from the few"
    FROM_MANY = "from the many"


PORTS = (("messages",), ("gossip",), ("messages", "gossip"))
WAYS = (("dials",), ("takes",), ("dials", "takes"))


@dataclass(frozen=True, slots=True)
class Step:
    """One fault. `place` is the place of its node. `few` are the places of the smaller side of a
    split, `reached_by` the side that reaches the store. `seconds` is how long the fault lasts;
    `quiet_s` follows it. `on_master`, `by_signal` and `sentinel` choose between two or three
    ways."""

    number: int
    kind: Kind
    place: int
    seconds: float
    few: tuple[int, ...]
    passing: Passing
    reached_by: str
    on_master: bool
    by_signal: bool
    sentinel: int
    quiet_s: float
    ports: tuple[str, ...]
    """The ports on which links are lost."""
    ways: tuple[str, ...]
    """Which connections are lost: those that the node dials, and those that it takes."""


def spared(number: int) -> int:
    """Return the place whose node a step spares."""
    return number // SPARED_STEPS % PLACES


def steps(seed: int, *, without: frozenset[Kind] = frozenset()) -> Iterator[Step]:
    """Draw steps without end. Kinds in `without` are not drawn: this machine cannot do them."""
    dice, number = Random(seed), 0
    while True:
        deck = [*Kind, *TWICE]
        dice.shuffle(deck)
        for kind in deck:
            step = _draw(dice, number, kind)
            if kind not in without:
                yield step
            number += 1


def _draw(dice: Random, number: int, kind: Kind) -> Step:
    """Draw all of a step, also values that its kind does not use, so that kinds do not shift the
    dice."""
    safe = spared(number)
    place, few = dice.choice([p for p in range(PLACES) if p != safe]), dice.choice((1, 2, 2))
    blink, long, store = dice.choice(BLINKS_S), dice.choice(LONG_S), dice.choice(STORE_S)
    seconds = store
    if kind in (Kind.PAUSE, Kind.SPLIT, Kind.LINKS):
        seconds = dice.choice((blink, long))
    others = [p for p in range(PLACES) if p not in (safe, place)]
    return Step(
        number,
        kind,
        place,
        seconds,
        (place, *dice.sample(others, few - 1)),
        dice.choice((Passing.NOTHING, Passing.NOTHING, Passing.FROM_FEW, Passing.FROM_MANY)),
        dice.choice(("both", "both", "few", "many")),
        dice.random() < 0.5,
        dice.random() < 0.5,
        dice.randrange(3),
        dice.uniform(*QUIET_S),
        dice.choice(PORTS),
        dice.choice(WAYS),
    )


def not_done(counts: Counter[Kind], kinds: frozenset[Kind] = frozenset(Kind)) -> list[Kind]:
    """Return the kinds, of those that the run's store can do, of which it had no step."""
    return [kind for kind in Kind if kind in kinds and not counts[kind]]
