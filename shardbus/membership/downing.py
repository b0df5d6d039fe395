"""Who stays after a split: the keep-majority strategy, as a pure decision that explains itself.

The problem: «I cannot reach it» does not say whether it died or the network broke, and in the
second case the other side thinks the same of us. Both sides must come, without talking, to opposite
answers.

**Which side is whose.** A node flagged unreachable that nevertheless has seen the version with that
flag is alive and talks to us: only a link is broken. All other flagged nodes are *cut off*. Broken
links within our side are cured by the fewest nodes whose removal leaves none: a single node with
bad cables goes, not everybody it complained about.

**Who wins.** Each side compares the fewest votes it can have in the other side's eyes with the most
votes the other may have in its own:

    ours     Up members of our side                  a Leaving one may be Exiting over there
    theirs   Joining, WeaklyUp, Up, Leaving members  a Joining one may be Up over there
             that are cut off

    ours > theirs    down the others        the other side finds itself below
    ours = theirs    ask for the lease      so does the other side, or it finds itself below
    ours < theirs    down ourselves

A member is at least Joining everywhere before it can be Up anywhere, because becoming Up needs
convergence; hence ours <= what they think we may have, and the other way round, and so never two
winners. When both ask, both compute the same set of votes, which names the lease. A side that gets
no lease, or no answer from the store, downs itself.

**When.** After `stable_after` seconds without a change; sooner only for members whose processes are
proved gone (see `confirm`).

Source: S1.50, B.31, B.32, B.35, B.40, C.26; DESIGN section 5; T.U17.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from hashlib import sha1

from shardbus.ids import NodeId
from shardbus.membership.gossip import ON_THE_WAY_OUT, Gossip
from shardbus.membership.member import Status
from shardbus.membership.reachability import Flag

MAY_VOTE_THERE = (Status.JOINING, Status.WEAKLY_UP, Status.UP, Status.LEAVING)


class Outcome(Enum):
    """What to do about a split."""

    NOTHING = "nothing"
    DOWN_OTHERS = "down others"
    DOWN_OURSELVES = "down ourselves"
    ASK_LEASE = "ask for the lease"


@dataclass(frozen=True, slots=True)
class Split:
    """The cluster as one node sees it when some members are unreachable. Tuples are in address
    order."""

    side: tuple[NodeId, ...] = ()
    """This node, and the members of our side that are not already on their way out."""
    cut: tuple[NodeId, ...] = ()
    """Members cut off from us."""
    gone: tuple[NodeId, ...] = ()
    """Those of `cut` whose processes are proved gone."""
    broken: tuple[NodeId, ...] = ()
    """The fewest members of our side that must go for every link within it to work."""
    ours: tuple[NodeId, ...] = ()
    theirs: tuple[NodeId, ...] = ()
    """The votes, as the module's text defines them."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do and why. `down` is who is to be downed if it is done; `lease` the name of the
    lease, or empty."""

    outcome: Outcome
    down: tuple[NodeId, ...]
    lease: str
    reason: str


def survey(gossip: Gossip, me: NodeId, role: str = "", doubtful: Iterable[NodeId] = ()) -> Split:
    """The split as `me` sees it. `doubtful` members count as cut off, though nobody has flagged
    them yet."""
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
    links = [
        (observer, subject)
        for observer, subject, _ in gossip.records()
        if observer in side and subject in side
    ]
    voters = [(n, m.status) for n, m in gossip.members.items() if m.has_role(role)]
    return Split(
        side=side,
        cut=cut,
        gone=tuple(n for n in cut if flags.get(n) is Flag.TERMINATED),
        broken=_cover(links),
        ours=tuple(n for n, status in voters if n in side and status is Status.UP),
        theirs=tuple(n for n, status in voters if n in cut and status in MAY_VOTE_THERE),
    )


def keep_majority(split: Split) -> Decision:
    """Who goes."""
    counted = f"{len(split.ours)} votes here, at most {len(split.theirs)} there"
    if not split.cut and not split.broken:
        return Decision(Outcome.NOTHING, (), "", "no member is unreachable")
    if not split.cut:
        names = ", ".join(map(str, split.broken))
        return Decision(
            Outcome.DOWN_OTHERS, split.broken, "", f"links within this side fail: {names}"
        )
    others = tuple(sorted({*split.cut, *split.broken}))
    if len(split.ours) > len(split.theirs):
        return Decision(Outcome.DOWN_OTHERS, others, "", f"majority: {counted}")
    if len(split.ours) < len(split.theirs):
        return Decision(Outcome.DOWN_OURSELVES, split.side, "", f"minority: {counted}")
    return Decision(Outcome.ASK_LEASE, others, lease_name(split), f"equal split: {counted}")


def lease_name(split: Split) -> str:
    """The name of the lease that decides this equal split: the same on both sides of it, another
    for any other."""
    votes = " ".join(map(str, sorted({*split.ours, *split.theirs})))
    return "downing/" + sha1(votes.encode(), usedforsecurity=False).hexdigest()[:20]


def _cover(links: list[tuple[NodeId, NodeId]]) -> tuple[NodeId, ...]:
    """A small set of nodes that touches every link: the one with most links first, of equals the
    last in order."""
    chosen = []
    while links:
        ends: dict[NodeId, int] = {}
        for observer, subject in links:
            for node in (observer, subject):
                ends[node] = ends.get(node, 0) + 1
        worst = max(ends, key=lambda node: (ends[node], node))
        chosen.append(worst)
        links = [link for link in links if worst not in link]
    return tuple(sorted(chosen))
