"""The cluster split in two, as one node sees it, and what was decided about it.

The problem: «I cannot reach it» does not say whether it died or the network broke, and in the
second case the other side thinks the same of us. Both sides must come, without talking, to opposite
answers.

**Which side is whose.** A node flagged unreachable that nevertheless has seen the version with that
flag is alive and talks to us: only a link is broken. All other flagged nodes are *cut off*. Broken
links within our side are cured by the fewest nodes whose removal leaves none: a single node with
bad cables goes, not everybody it complained about.

**Who is gone.** A refused connection proves a death only to who knows that no wall stands between.
One that hides a member from some of us, or begins to, hides it seldom from all at once: so a member
counts as gone when everybody on our side has found it so.

**What the other side may see.** Each side goes by its own copy, and the copies may differ by what
happened last. Becoming Up and becoming Exiting need convergence, so the difference is bounded:

    here              there it is one of
    Up                Up, Leaving, and Joining or WeaklyUp if it has become Up only here
    preparing         the same, or preparing; ready if the leader there was one step ahead
    Joining, WeaklyUp the same, or Up
    Leaving           Up, Leaving, Exiting
    Exiting           Leaving, Exiting, removed

Where members are ready for shutdown nobody decides anything: they end by themselves. Preparing
counts as Up. A leader makes Joining members Up, and it has been Up itself. So where everybody who
has been Up and may still act is on our side, Joining members elsewhere are no more than that.

So `ours`, the Up members of our side, are at most as many as the votes the other side thinks we
have; and `theirs`, everybody cut off who may be Up there, are at least as many as the other side's
Up members. Every strategy compares these two kinds of number, never two of one kind.

A cluster that waits for its first members is *unborn*: it has too few for anybody to be Up
anywhere. Nobody votes then, and each side is as good as the other.

`elders` are the Up and Leaving members by age down to the first that is Up. Those of two sides
always share one: the older of both sides' first Up members is at least Leaving on the other side.

**Decisions by lease are numbered.** Whoever downs others by a lease does it under the next epoch
after the highest it knows, and each epoch has a lease of its own in the store, granted once and for
good. The epoch spreads with the marks, in the same version. So who decides late, after a sleep or
because its links broke last, asks for an epoch that has been taken, and loses, however late it is.
Who wins an epoch knows what was decided in all before, and would have stopped if it had been downed
in one. A cluster begins to count at a number of its founder's, so that leases of a former cluster
in the same store are never asked for.

Not here: who wins (`strategies`), when it is decided (`resolver`).

Source: S1.25, S1.50, B.31, B.35, B.40, C.26; docs/architecture.md; T.U17.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from shardbus.ids import NodeId
from shardbus.membership.gossip import ON_THE_WAY_OUT, STARTING, Gossip
from shardbus.membership.member import Member, Status, age_order
from shardbus.membership.reachability import Flag, ObserverRow

NOTHING_SAID = ObserverRow(0, {})
EPOCHS = "$downing"
"""Under this name the epoch of the decisions by lease stands among the others. No entity type can
have it."""
FIRST_EPOCHS = 2**61
UP = (Status.UP, Status.PREPARING_FOR_SHUTDOWN)
MAY_LEAD_THERE = (*UP, Status.READY_FOR_SHUTDOWN, Status.LEAVING, Status.EXITING)
MAY_VOTE_THERE = (Status.JOINING, Status.WEAKLY_UP, *UP, Status.LEAVING)


class DowningOutcome(Enum):
    """What to do about a split."""

    NOTHING = "nothing"
    DOWN_OTHERS = "down others"
    DOWN_OURSELVES = "down ourselves"
    ASK_LEASE = "ask for the lease"


@dataclass(frozen=True, slots=True)
class Split:
    """The cluster as one node sees it when some members are unreachable. Tuples are in address
    order, `elders` is in order of age."""

    side: tuple[NodeId, ...] = ()
    """This node, and the members of our side that are not already on their way out."""
    cut: tuple[NodeId, ...] = ()
    """Members cut off from us."""
    gone: tuple[NodeId, ...] = ()
    """Those of `cut` whom everybody on our side has found gone."""
    broken: tuple[NodeId, ...] = ()
    """The fewest members of our side that must go for every link within it to work, those that are
    quarantined first."""
    ours: tuple[NodeId, ...] = ()
    """Up members of our side."""
    most: tuple[NodeId, ...] = ()
    """Members of our side that may be Up elsewhere."""
    theirs: tuple[NodeId, ...] = ()
    """Members that may be Up elsewhere: those cut off, and those that are Down but may not know it
    yet, with others who do not know it either."""
    elders: tuple[NodeId, ...] = ()
    """The oldest, as the module's text defines them; empty if nobody is Up."""
    unborn: bool = False
    """Nobody has been Up, and nobody can be yet."""

    @property
    def speaker(self) -> NodeId | None:
        """Who asks for a lease on behalf of our side: everybody who sees this split names the same
        one, though bad links may let several believe that they lead."""
        return next((n for n in (*self.ours, *self.side) if n not in self.broken), None)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do and why. `down` is who is to be downed if it is done; `delay` the seconds to wait
    before asking for the lease, if one decides."""

    outcome: DowningOutcome
    down: tuple[NodeId, ...]
    reason: str
    rule: str = ""
    """The strategy that decided."""
    split: Split = Split()
    """What it was given."""
    delay: float = 0.0


def survey(
    gossip: Gossip,
    me: NodeId,
    role: str = "",
    doubtful: Iterable[NodeId] = (),
    *,
    unborn: bool = False,
) -> Split:
    """The split as `me` sees it. `doubtful` members count as cut off, though nobody has flagged
    them yet. Only members with the role vote, and only they are elders."""
    flags = {
        node: flag
        for node, flag in gossip.verdicts().items()
        if gossip.members[node].status not in ON_THE_WAY_OUT
    }
    doubt = frozenset(doubtful)
    cut = tuple(
        n
        for n in gossip.members
        if n != me and ((n in flags and n not in gossip.seen) or n in doubt)
    )
    side = tuple(
        n
        for n, m in gossip.members.items()
        if n == me or (n not in cut and m.status not in ON_THE_WAY_OUT)
    )
    witnesses = {n: gossip.reachability.rows.get(n, NOTHING_SAID).flags for n in side}
    links = {
        (observer, subject): flag
        for observer, subject, flag in gossip.records()
        if observer in side and subject in side
    }
    voters = {n: m for n, m in gossip.members.items() if m.has_role(role)}
    possible = [n for n, m in voters.items() if m.status in MAY_VOTE_THERE]
    unaware = [n for n, m in voters.items() if m.status is Status.DOWN and n not in gossip.seen]
    silent = {n for n in gossip.verdicts() if n not in gossip.seen and n != me} | doubt
    starting = () if _may_be_led_elsewhere(gossip, silent) else STARTING
    return Split(
        side=side,
        cut=cut,
        gone=tuple(
            n
            for n in cut
            if n in flags and all(w.get(n) is Flag.TERMINATED for w in witnesses.values())
        ),
        broken=_cover(links),
        ours=tuple(n for n in possible if n in side and voters[n].status in UP),
        most=tuple(n for n in possible if n in side),
        theirs=tuple(
            n
            for n, m in voters.items()
            if (n in possible and n in cut and m.status not in starting) or n in unaware
        ),
        elders=_elders(voters.values()),
        unborn=unborn,
    )


def first_epoch(founder: NodeId) -> int:
    """From which a new cluster counts its decisions by lease."""
    return founder.uid % FIRST_EPOCHS


def lease_of(epoch: int) -> str:
    """The name of the lease for this decision."""
    return f"downing/{epoch}"


def told(decision: Decision) -> str:
    """The decision in one line: the rule, what it went by, and what follows."""
    split = decision.split
    inputs = {"this side": split.side, "cut off": split.cut, "proved gone": split.gone}
    inputs |= {"bad links": split.broken, "oldest": split.elders}
    shown = "; ".join(f"{name}: {_listed(nodes)}" for name, nodes in inputs.items() if nodes)
    result = f"{decision.outcome.value}: {_listed(decision.down)}"
    return f"{decision.rule}: {decision.reason} ({shown}): {result}"


def _may_be_led_elsewhere(gossip: Gossip, silent: Collection[NodeId]) -> bool:
    """Whether somebody who is cut off from this side may have made members Up. Before anybody is,
    the Joining ones lead."""
    members = gossip.members.items()
    if all(m.status in (*STARTING, Status.DOWN) for _, m in members):
        return True
    return any(
        (n in silent and m.status in MAY_LEAD_THERE)
        or (m.status is Status.DOWN and n not in gossip.seen)
        for n, m in members
    )


def _listed(nodes: tuple[NodeId, ...]) -> str:
    return ", ".join(map(str, nodes)) or "nobody"


def _elders(voters: Iterable[Member]) -> tuple[NodeId, ...]:
    found = []
    aged = (m for m in voters if m.status in (*UP, Status.LEAVING))
    for member in sorted(aged, key=age_order):
        found.append(member.node)
        if member.status in UP:
            return tuple(found)
    return ()


def _cover(flags: Mapping[tuple[NodeId, NodeId], Flag]) -> tuple[NodeId, ...]:
    """A small set of nodes that touches every link: whoever is quarantined by one that it has not
    quarantined itself, then the one with most links first, of equals the last in order."""
    quarantined = {link for link, flag in flags.items() if flag is Flag.QUARANTINED}
    chosen = sorted({s for observer, s in quarantined if (s, observer) not in quarantined})
    links = [link for link in flags if not set(chosen) & set(link)]
    while links:
        ends: dict[NodeId, int] = {}
        for observer, subject in links:
            for node in (observer, subject):
                ends[node] = ends.get(node, 0) + 1
        worst = max(ends, key=lambda node: (ends[node], node))
        chosen.append(worst)
        links = [link for link in links if worst not in link]
    return tuple(sorted(chosen))
