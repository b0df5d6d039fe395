"""The graph of working links: which members a node works with, and which must go for a bad link.

Theory of operation. A flag is an accusation: one observer reports that its link to a member fails.
It says nothing about which of the two ends is at fault, and as many accusations as a node can make
prove nothing about the members that it accuses. So a flag is not a verdict about its subject. It
takes one link out of a graph, whichever end reported it, for whatever reason (silence, a refused
connection, messages without acknowledgement), and the downing strategy decides over that graph.

    member    a point
    link      a pair of neighbours of the ring of observers (`failure.ring`): one watches the other
    bad       one end flags the other
    group     members that are connected by working links

**Groups.** Each member of another group has only bad links into this one. A node that hears no
member, that no member hears, or that accuses all others, is a group of its own, and its reports
about the others do not divide them:

    flags                                 group of the others     group of x
    x flags all others                    all others              x
    all others flag x                     all others              x
    x flags all others and the reverse    all others              x
    x flags some, others flag x           all others, and x by the links that are left
    x flags y, and y flags x              everybody, if there is a third member
    a wall between two sides              one side                the other side

In a large cluster a node does not receive the flags of a side that it does not hear, so a link
across a wall may look as if it worked. Then too few members are in other groups, never too many:
`split` finds the rest by the members that have not seen the flags.

**Bad links within one side.** The members of one side share one copy of the flags, so all of them
compute the same answer. The smallest set of members that leaves no bad link goes (`fewest_to_go`).
Among sets of one size the strategy's count decides, then the weight of evidence, and only then the
direction of the accusation:

    1  the fewest members
    2  the fewest votes; under keep-oldest the oldest member stays, unless it would be alone
    3  the most bad links
    4  those that are accused of acknowledging nothing, before those that accuse, and those that
       have found a member gone, before that member: it is on this side, so it lives
    5  the last in address order

    bad links (one side)                       goes
    x-a x-b x-c, by any flags                  x
    x-a                                        the one without a vote, else the last by address
    x accuses a                                a: direction breaks the tie
    x has found a gone                         x
    x accuses a, b, c                          x
    x and a accuse each other                  the last by address
    a-b b-c c-d                                b c
    a-b c-d                                    one of each pair

Not here: who is cut off (`split`), the action of a side (`strategies`), and its time (`resolver`).

Source: S1.25, B.40; docs/downing.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardbus.ids import NodeId
from shardbus.membership.failure.ring import neighbours
from shardbus.membership.reachability import Flag

EXACT_MAX = 16
"""Above this many ends of connected bad links the set of members that goes is small, but perhaps
not the smallest."""

Flags = Sequence[tuple[NodeId, NodeId, Flag]]
"""Observer, subject, flag; only flags that are not reachable."""


def lasting(me: NodeId, members: Collection[NodeId], flags: Flags) -> frozenset[NodeId]:
    """Return the members that would be left beside `me` if the fewest went that leave no bad link.
    Flags that come and go at one member at fault do not change that."""
    return frozenset(members).difference(BadLinks(flags, ()).fewest_to_go(me))


def group_of(
    me: NodeId, members: Collection[NodeId], flags: Flags, monitored_by: int
) -> frozenset[NodeId]:
    """Return the members that `me` is connected with by working links, itself included; none if it
    is no member."""
    if me not in members:
        return frozenset()
    bad = {(observer, subject) for observer, subject, _ in flags}
    bad |= {(subject, observer) for observer, subject in bad}
    if len(bad) < 2 * min(len(members) - 1, monitored_by):
        return frozenset(members)  # each group has more links to the others than that
    near = neighbours(members, monitored_by)
    group, open_ends = {me}, [me]
    while open_ends:
        node = open_ends.pop()
        reached = [n for n in near[node] if n not in group and (node, n) not in bad]
        group.update(reached)
        open_ends += reached
    return frozenset(group)


@dataclass(frozen=True, slots=True)
class LastFirst:
    """A node in descending order."""

    node: NodeId

    def __lt__(self, other: LastFirst) -> bool:
        return other.node < self.node


Cost = tuple[int, int, int, int, list[LastFirst]]


@dataclass(frozen=True, slots=True)
class Removal:
    """A set of members that leaves no bad link, and its place among such sets: lower is better."""

    nodes: tuple[NodeId, ...]
    cost: Cost


class BadLinks:
    """The bad links among the members of one side. `votes`: the members that count first."""

    def __init__(self, flags: Flags, votes: Collection[NodeId]) -> None:
        self._votes = frozenset(votes)
        self.ends: dict[NodeId, set[NodeId]] = {}
        """The other ends of each member's bad links."""
        self._doubts: dict[NodeId, int] = {}
        """How many final flags speak against each member, less those that speak for it."""
        for observer, subject, flag in flags:
            self.ends.setdefault(observer, set()).add(subject)
            self.ends.setdefault(subject, set()).add(observer)
            if flag is Flag.UNREACHABLE:
                continue
            lives = flag is Flag.TERMINATED
            doubted, other = (observer, subject) if lives else (subject, observer)
            self._doubts[doubted] = self._doubts.get(doubted, 0) + 1
            self._doubts[other] = self._doubts.get(other, 0) - 1

    def fewest_to_go(self, stays: NodeId | None = None) -> tuple[NodeId, ...]:
        """Return the members that go, by the order in the module's text, in address order. `stays`
        does not go."""
        forced = self.ends.get(stays, set()) if stays is not None else set()
        left = {n: e - forced for n, e in self.ends.items() if n not in forced and n != stays}
        chosen = list(forced)
        for part in _parts({n: e - {stays} for n, e in left.items() if e}):
            if len(part) <= EXACT_MAX:
                chosen += self._best(part, ()).nodes
            else:
                chosen += self._greedy(part)
        return tuple(sorted(chosen))

    def _best(self, part: Mapping[NodeId, set[NodeId]], gone: tuple[NodeId, ...]) -> Removal:
        """Return the best removal that contains `gone`: the member with the most bad links goes,
        or all members at the other ends of its links do."""
        worst = max(part, key=lambda n: (len(part[n]), n), default=None)
        if worst is None or not part[worst]:
            return Removal(gone, self._cost(gone))
        best = self._best(_without(part, {worst}), (*gone, worst))
        others = sorted(part[worst])
        if len(gone) + len(others) > len(best.nodes):
            return best
        rest = self._best(_without(part, {worst, *others}), (*gone, *others))
        return min(best, rest, key=lambda removal: removal.cost)

    def _greedy(self, part: Mapping[NodeId, set[NodeId]]) -> list[NodeId]:
        chosen: list[NodeId] = []
        left = {n: set(ends) for n, ends in part.items()}
        while left:
            worst = max(left, key=lambda n: (len(left[n]), n not in self._votes, n))
            for other in left.pop(worst):
                left[other].discard(worst)
            chosen.append(worst)
            left = {n: ends for n, ends in left.items() if ends}
        return chosen

    def _cost(self, nodes: tuple[NodeId, ...]) -> Cost:
        last_first = sorted(nodes, reverse=True)
        return (
            len(nodes),
            len(self._votes.intersection(nodes)),
            -sum(len(self.ends[n]) for n in nodes),
            -sum(self._doubts.get(n, 0) for n in nodes),
            [LastFirst(n) for n in last_first],
        )


def _without(
    part: Mapping[NodeId, set[NodeId]], gone: Collection[NodeId]
) -> dict[NodeId, set[NodeId]]:
    return {n: ends - set(gone) for n, ends in part.items() if n not in gone}


def _parts(ends: Mapping[NodeId, set[NodeId]]) -> Iterable[dict[NodeId, set[NodeId]]]:
    """Return the connected parts of the graph of bad links, in address order."""
    left = set(ends)
    for first in sorted(ends):
        if first not in left:
            continue
        part, open_ends = {first}, [first]
        while open_ends:
            reached = ends[open_ends.pop()] - part
            part |= reached
            open_ends += sorted(reached)
        left -= part
        yield {n: ends[n] for n in sorted(part)}
