"""Troubles: faults that one node has with others, while these reach each other all the time.

A run with unfair links has a few **culprits**, fewer than half of the nodes, and each has one
trouble or two. The healthy nodes are a majority, and every link between two of them works.

    mute            the culprit's messages do not arrive at the others
    deaf            the others' messages do not arrive at the culprit
    cannot-connect  connections that the culprit opens to the others are dead
    cannot-accept   connections that the others open to the culprit are dead
    accuses         the culprit quarantines the others
    accused         the others quarantine the culprit
    slow            the culprit needs longer for everything, by a factor
    no-store        the culprit alone has lost the way to the store
    restarts        the culprit's process is killed, and replaced at its address within milliseconds

The first four concern some channels or all (`network`). **The others** are all other nodes, or more
healthy ones than there are culprits: then the culprits are the smallest set of nodes that explains
all broken links. A trouble with one other node only is a **pair**: either end may go for it. So a
culprit that accuses several is heard until it has: of one accusation, either end may be at fault.

Source: docs/simulation.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from random import Random

from shardbus.simulation.membership.network import (
    ALL_CHANNELS,
    Channel,
    UnfairKind,
    UnfairWall,
)

LINKS = ("fair", "unfair")
"""The kinds of links that a run may have."""
WALLS = ("mute", "deaf", "cannot-connect", "cannot-accept")
ACCUSATIONS = ("accuses", "accused")
KINDS = {
    "mute": 3,
    "deaf": 3,
    "cannot-connect": 3,
    "cannot-accept": 3,
    "accuses": 3,
    "accused": 2,
    "slow": 2,
    "no-store": 2,
    "restarts": 2,
}
"""Each kind with its weight in the draw."""
CHANNELS = {
    ALL_CHANNELS: 4,
    (Channel.GOSSIP,): 3,
    (Channel.MESSAGES,): 3,
    (Channel.MESSAGES, Channel.GOSSIP): 2,
    (Channel.PROBES,): 1,
}
"""Each set of channels with its weight in the draw."""
JOINED_S = 8.0
"""Seconds after which a trouble may begin: the nodes have joined."""
PAIR = 0.15
"""The part of runs with a pair."""
LOST_STORE = 0.08
"""The part of runs in which the first coordinator alone has lost the store, and another node is
restarted: its shards need homes."""
SECOND = 0.3
"""The part of culprits that have a second trouble."""
REJECTING = 0.2
"""The part of walls against connections that refuse them."""
FLAPPING = 0.15
"""The part of walls that fall and rise again."""
LASTS = 0.6
"""The part of troubles that last until the faults are healed."""
FLAPS_S = (1.0, 12.0)
"""Seconds, drawn from this range, for which a flapping wall stands, and is down."""
FACTORS = (10.0, 100.0, 1000.0)
"""The factors of slow processes."""
RESTARTS = 4
"""Restarts of one culprit, at most."""
ACCUSED_WITHIN_S = 3.0
"""Seconds within which the accusations of one trouble follow each other."""
SPREAD_S = 1.0
"""Seconds within which the last of them is known everywhere."""


@dataclass(frozen=True, slots=True)
class NodeTrouble:
    """One trouble. Times in seconds, from the beginning of the run."""

    kind: str
    culprit: str
    others: tuple[str, ...]
    begins: float
    lasts: float
    channels: tuple[str, ...] = ()
    rejecting: bool = False
    """The dead connections are refused."""
    flaps_s: float = 0.0
    """For how long a flapping wall stands, and is down; 0: it stands all the time."""
    factor: float = 1.0
    """By how much a process is slow."""
    restarts: int = 0

    @property
    def pair(self) -> bool:
        """True if it concerns one link, so that either end may go."""
        return len(self.others) == 1

    def wall(self) -> UnfairWall | None:
        """Return the wall of this trouble; None if it has none."""
        if self.kind not in WALLS:
            return None
        here, there = frozenset((self.culprit,)), frozenset(self.others)
        outward = self.kind in ("mute", "cannot-connect")
        kind = UnfairKind.DATA if self.kind in ("mute", "deaf") else UnfairKind.CONNECTIONS
        return UnfairWall(
            kind,
            sources=here if outward else there,
            targets=there if outward else here,
            channels=frozenset(map(Channel, self.channels)),
            rejecting=self.rejecting,
        )

    def accusers(self) -> tuple[tuple[str, str], ...]:
        """Return each (accuser, accused): a node quarantines another one from which it gets no
        acknowledgement, or without a reason."""
        ours = tuple((self.culprit, other) for other in self.others)
        theirs = tuple((other, self.culprit) for other in self.others)
        if self.kind in ACCUSATIONS:
            return ours if self.kind == "accuses" else theirs
        if Channel.MESSAGES.value not in self.channels:
            return ()
        if self.kind in ("mute", "deaf"):
            return ours + theirs
        return ours if self.kind == "cannot-connect" else theirs

    def __str__(self) -> str:
        others = "the others" if len(self.others) > 3 else ", ".join(self.others)
        channels = f" on {', '.join(self.channels)}" if self.channels else ""
        default = {"factor": 1.0, "restarts": 0, "flaps_s": 0.0, "rejecting": False}
        options = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name in default]
        more = "".join(f", {name} {value:g}" for name, value in options if value != default[name])
        return f"{self.culprit} {self.kind} ({others}{channels}{more})"


def names_of(nodes: int) -> tuple[str, ...]:
    """Return the names of the nodes with which a run begins."""
    return tuple(f"n{number}" for number in range(1, nodes + 1))


def draw_troubles(
    dice: Random, nodes: int, seconds: float, spared: Sequence[str] = ()
) -> tuple[NodeTrouble, ...]:
    """Draw the troubles of a run. `spared`: names of nodes that must be healthy."""
    names = names_of(nodes)
    able = [name for name in names if name not in spared]
    most = (nodes - 1) // 2
    if not most:
        return ()
    if most > 1 and dice.random() < PAIR:
        first, other = dice.sample(able, 2)
        return (_draw(dice, first, (other,), seconds, *WALLS, *ACCUSATIONS),)
    if most > 1 and names[0] in able and dice.random() < LOST_STORE:
        first, other = names[0], dice.choice(names[1:])
        return (
            _draw(dice, first, tuple(n for n in names if n != first), seconds, "no-store"),
            _draw(dice, other, tuple(n for n in names if n != other), seconds, "restarts"),
        )
    culprits = dice.sample(able, dice.choice((1, 1, most, dice.randint(1, most))))
    healthy = [name for name in names if name not in culprits]
    troubles = []
    for culprit in culprits:
        its = [
            _draw(dice, culprit, _others(dice, culprit, culprits, healthy), seconds)
            for _ in range(2 if dice.random() < SECOND else 1)
        ]
        troubles += [_heard(trouble, its) for trouble in its]
    return tuple(troubles)


def _heard(trouble: NodeTrouble, its: Sequence[NodeTrouble]) -> NodeTrouble:
    """Let a trouble that stops the gossip of a culprit begin after its accusations."""
    silent = trouble.kind in ("mute", "cannot-accept") and Channel.GOSSIP.value in trouble.channels
    ends = [t.begins + ACCUSED_WITHIN_S + SPREAD_S for t in its if t.kind == "accuses"]
    for end in ends if silent else ():
        if end - ACCUSED_WITHIN_S - SPREAD_S <= trouble.begins < end:
            lasts = max(1.0, trouble.begins + trouble.lasts - end)
            return replace(trouble, begins=round(end, 3), lasts=round(lasts, 3))
    return trouble


def _others(
    dice: Random, culprit: str, culprits: Sequence[str], healthy: Sequence[str]
) -> tuple[str, ...]:
    """Draw with which nodes a culprit has its trouble. There are more healthy ones among them than
    there are culprits, so only the culprits are at fault."""
    companions = [name for name in culprits if name != culprit]
    if dice.random() < 0.6:
        return tuple(sorted((*companions, *healthy)))
    least = min(len(culprits) + 1, len(healthy))
    return tuple(sorted(dice.sample(healthy, dice.randint(least, len(healthy)))))


def _draw(
    dice: Random, culprit: str, others: tuple[str, ...], seconds: float, *kinds: str
) -> NodeTrouble:
    """Draw a trouble of one of these kinds; without any, of any kind."""
    possible = kinds or tuple(KINDS)
    kind = dice.choices(possible, [KINDS[k] for k in possible])[0]
    begins = round(dice.uniform(JOINED_S, max(JOINED_S, 0.5 * seconds)), 3)
    rest = max(1.0, seconds - begins)
    lasts = rest if dice.random() < LASTS else round(dice.uniform(0.5, rest), 3)
    channels = dice.choices(list(CHANNELS), list(CHANNELS.values()))[0]
    walls = kind in WALLS
    refuses = kind in ("cannot-connect", "cannot-accept") and dice.random() < REJECTING
    flaps = walls and dice.random() < FLAPPING
    return NodeTrouble(
        kind=kind,
        culprit=culprit,
        others=others,
        begins=begins,
        lasts=lasts,
        channels=tuple(channel.value for channel in channels) if walls else (),
        rejecting=refuses,
        flaps_s=round(dice.uniform(*FLAPS_S), 3) if flaps else 0.0,
        factor=dice.choice(FACTORS) if kind == "slow" else 1.0,
        restarts=dice.randint(1, RESTARTS) if kind == "restarts" else 0,
    )
