"""A cluster split in two, as one node sees it, and the decision about it.

Theory of operation. A node that cannot reach a member cannot tell whether the member died or the
network broke. In the second case the other side sees the same, mirrored. Both sides must come to
opposite answers without communicating.

**Which side a member is on.** A flag is a link that fails, not a verdict about its subject
(`links`). A side is the set of members that share this copy of the flags.

    member, connected by working links            and it is
    yes, no flag                                  on this side
    yes, flagged, has seen the version            on this side: alive, only a link is broken
    yes, flagged, has not seen the version        cut off
    yes, flagged by members of other groups only  on this side: these flags do not concern it
    no,  has seen the version                     on this side, with bad links to all of it
    no,  has not seen the version                 cut off, though no observer flags it

Bad links within a side are cured by the smallest set of members whose removal leaves none: one node
with a bad cable goes, not every node that flagged it, nor every node that it flagged.

**Which members are gone.** A refused connection proves a death only if no wall stands between. A
wall seldom hides a member from all nodes of a side at once. So a member counts as gone when every
node of this side has found it so.

**The other side's view.** Each side decides by its own copy. The copies may differ by the last
events. Becoming Up and becoming Exiting need convergence, so the difference is bounded:

    here              on the other side it is one of
    Up                Up, Leaving, and Joining or WeaklyUp if it has become Up only here
    preparing         the same, or preparing; ready if the leader there was one step ahead
    Joining, WeaklyUp the same, or Up
    Leaving           Up, Leaving, Exiting
    Exiting           Leaving, Exiting, removed

Where members are ready for shutdown no side decides: they end by themselves. Preparing counts as
Up. Only a leader makes Joining members Up, and a leader has been Up itself. So if all members that
have been Up and may still act are on this side, Joining members elsewhere are still Joining.

`ours`, the Up members of this side, are therefore at most as many as the votes that the other side
counts for it. `theirs`, the members cut off that may be Up there, are at least as many as the other
side's Up members. Every strategy compares these two kinds of count, never two of one kind.

A cluster that waits for its first members is *unborn*: it has too few for any member to be Up
anywhere. There are no votes then, and each side has the same right to stay.

`elders` are the Up and Leaving members by age, down to the first that is Up. The elders of two
sides always share a member: the older of both sides' first Up members is at least Leaving on the
other side.

**Decisions by lease are numbered.** A side that downs others by a lease does so under the next
epoch after the highest in its copy. Each epoch has a lease of its own in the store, granted once
and for good. The epoch spreads in the same version as the decision. So a node that decides late,
after a pause or because its links broke last, requests an epoch whose lease is taken, and loses.
The winner of an epoch has all earlier decisions, and would have stopped if one had downed it. A
cluster starts to count at a number derived from its founder, so that it never requests leases of a
former cluster in the same store.

Where the store is inside the cluster, its replicas vote instead of the members (`electorate`).

Not here: the graph of links (`links`), which side stays (`strategies`), when it is decided
(`resolver`).

Source: S1.25, S1.50, B.31, B.35, B.40; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from shardbus.ids import NodeId
from shardbus.membership.downing.electorate import Votes, first_to_stay, votes_of
from shardbus.membership.downing.links import BadLinks, group_of
from shardbus.membership.gossip import ON_THE_WAY_OUT, STARTING, Gossip
from shardbus.membership.member import Member, Status, age_order
from shardbus.membership.reachability import Flag, ObserverRow

EMPTY_ROW = ObserverRow(0, {})
ASKERS_MAX = 3
"""Members of a side, at most, that request a lease: one alone may have lost the store."""
EPOCHS = "$downing"
"""The name of the lease decisions' epoch among the coordinators' epochs. No entity type can have
it."""
FIRST_EPOCHS = 2**30
"""The first epoch of a cluster is below this number."""
MONITORED_BY = 9
"""The default of the setting `monitored_by`: nodes that watch each node."""
UP = (Status.UP, Status.PREPARING_FOR_SHUTDOWN)
MAY_LEAD_THERE = (*UP, Status.READY_FOR_SHUTDOWN, Status.LEAVING, Status.EXITING)
"""Members in these statuses may be Up or lead on the other side."""
MAY_VOTE_THERE = (Status.JOINING, Status.WEAKLY_UP, *UP, Status.LEAVING)
"""Members in these statuses may be Up on the other side."""


class DowningOutcome(Enum):
    """The possible outcomes of a decision about a split."""

    NOTHING = "nothing"
    DOWN_OTHERS = "down others"
    DOWN_OURSELVES = "down ourselves"
    ASK_LEASE = "ask for the lease"


@dataclass(frozen=True, slots=True)
class Split:
    """The cluster as one node sees it while some members are unreachable. Tuples are in address
    order; `elders` is in order of age. A strategy of the user's receives it: its fields keep their
    names."""

    side: tuple[NodeId, ...] = ()
    """This node, and the members of its side that are not on their way out."""
    cut: tuple[NodeId, ...] = ()
    """The members cut off from this side."""
    gone: tuple[NodeId, ...] = ()
    """The members of `cut` that every node of this side has found gone."""
    broken: tuple[NodeId, ...] = ()
    """The smallest set of members of this side that must go for every link within it to work
    (`links`)."""
    ours: tuple[NodeId, ...] = ()
    """The Up members of this side."""
    most: tuple[NodeId, ...] = ()
    """The members of this side that may be Up elsewhere."""
    theirs: tuple[NodeId, ...] = ()
    """The members that may be Up elsewhere: those cut off, and Down members that may not have
    noticed it yet. A Down member at whose address a new process has joined has ended; of several
    Down ones at one address one may live."""
    elders: tuple[NodeId, ...] = ()
    """The oldest members, as the module's text defines them; empty if no member is Up."""
    unborn: bool = False
    """No member has been Up, and none can be yet."""
    votes: tuple[Votes | None, ...] = (None,)
    """The replicas of the store by side, for each set of them that counts; None: `ours` and
    `theirs` count (`electorate`)."""

    @property
    def askers(self) -> tuple[NodeId, ...]:
        """The nodes that request a lease on behalf of our side, one after the other while the store
        does not answer: every node that sees this split names the same ones."""
        able = dict.fromkeys(n for n in (*self.ours, *self.side) if n not in self.broken)
        return tuple(able)[:ASKERS_MAX]

    @property
    def speaker(self) -> NodeId | None:
        """The first who asks, though bad links may let several believe that they lead."""
        return next(iter(self.askers), None)


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome and its reason. `down`: the members to be downed if it is carried out. `delay`:
    seconds to wait before asking for the lease, if one decides."""

    outcome: DowningOutcome
    down: tuple[NodeId, ...]
    reason: str
    rule: str = ""
    """The strategy that decided."""
    split: Split = Split()
    """The split that it decided about."""
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Preference:
    """The settings' additions to the graph. `oldest_stays`: the oldest member does not go for a bad
    link (keep-oldest); `unless_alone`: except if no other voter would be left on its side."""

    oldest_stays: bool = False
    unless_alone: bool = True
    monitored_by: int = MONITORED_BY


def survey(
    gossip: Gossip,
    me: NodeId,
    role: str = "",
    doubtful: Iterable[NodeId] = (),
    *,
    unborn: bool = False,
    preference: Preference = Preference(),
) -> Split:
    """Build the split as `me` sees it. `doubtful` members count as cut off, though not flagged yet.
    Only members with the role vote, and only they are elders. A node that finds itself removed is
    on no side: its split is empty."""
    if me not in gossip.members:
        return Split(unborn=unborn)
    doubtful_nodes = frozenset(doubtful)
    cut = _cut_off(gossip, me, preference.monitored_by, doubtful_nodes)
    side = tuple(
        n
        for n, m in gossip.members.items()
        if n == me or (n not in cut and m.status not in ON_THE_WAY_OUT)
    )
    rows = {n: gossip.reachability.rows.get(n, EMPTY_ROW).flags for n in side}
    voters = {n: m for n, m in gossip.members.items() if m.has_role(role)}
    possible = [n for n, m in voters.items() if m.status in MAY_VOTE_THERE]
    held = {n.address for n, m in gossip.members.items() if m.status is not Status.DOWN}
    down = [n for n, m in voters.items() if m.status is Status.DOWN and n not in gossip.seen]
    living = [n for n in down if n.address not in held]
    unaware = {n.address: n for n in living}.values()
    silent = {n for n in gossip.unreachable() if n not in gossip.seen and n != me}
    silent |= {*cut, *doubtful_nodes}
    starting = () if _may_be_led_elsewhere(gossip, silent) else STARTING
    ours = tuple(n for n in possible if n in side and voters[n].status in UP)
    elders = _elders(voters.values())
    theirs = tuple(
        n
        for n, m in voters.items()
        if (n in possible and n in cut and m.status not in starting) or n in unaware
    )
    return Split(
        side=side,
        cut=cut,
        gone=tuple(n for n in cut if all(row.get(n) is Flag.TERMINATED for row in rows.values())),
        broken=_bad_within(gossip, side, ours, elders, preference),
        ours=ours,
        most=tuple(n for n in possible if n in side),
        theirs=theirs,
        elders=elders,
        unborn=unborn,
        votes=votes_of(gossip, ours, {*theirs, *living}),
    )


def first_epoch(founder: NodeId) -> int:
    """Return the number from which a new cluster counts its decisions by lease."""
    uid = founder.uid
    return (uid ^ uid >> 30 ^ uid >> 60) % FIRST_EPOCHS


def lease_of(epoch: int) -> str:
    """Return the name of the lease for this decision."""
    return f"downing/{epoch}"


def describe_decision(decision: Decision) -> str:
    """Describe the decision in one line: the rule, its inputs, and the outcome."""
    split = decision.split
    inputs = {"this side": split.side, "cut off": split.cut, "proved gone": split.gone}
    inputs |= {"bad links": split.broken, "oldest": split.elders}
    shown = "; ".join(f"{name}: {_join_names(nodes)}" for name, nodes in inputs.items() if nodes)
    result = f"{decision.outcome.value}: {_join_names(decision.down)}"
    return f"{decision.rule}: {decision.reason} ({shown}): {result}"


def _may_be_led_elsewhere(gossip: Gossip, silent: Collection[NodeId]) -> bool:
    """True if a member that is cut off from this side may have made members Up. While no member has
    been Up, the Joining members lead."""
    members = gossip.members.items()
    if all(m.status in (*STARTING, Status.DOWN) for _, m in members):
        return True
    return any(
        (n in silent and m.status in MAY_LEAD_THERE)
        or (m.status is Status.DOWN and n not in gossip.seen)
        for n, m in members
    )


def _join_names(nodes: tuple[NodeId, ...]) -> str:
    return ", ".join(map(str, nodes)) or "none"


def _elders(voters: Iterable[Member]) -> tuple[NodeId, ...]:
    elders = []
    aged = (m for m in voters if m.status in (*UP, Status.LEAVING))
    for member in sorted(aged, key=age_order):
        elders.append(member.node)
        if member.status in UP:
            return tuple(elders)
    return ()


def _cut_off(
    gossip: Gossip, me: NodeId, monitored_by: int, doubtful: frozenset[NodeId]
) -> tuple[NodeId, ...]:
    """Return the members that do not share this copy with `me`, as the module's table says."""
    members = [n for n, m in gossip.members.items() if m.status not in ON_THE_WAY_OUT or n == me]
    here = frozenset(members)
    flags = gossip.records()
    among = [record for record in flags if record[0] in here and record[1] in here]
    group = group_of(me, members, among, monitored_by)
    flagged = {
        subject for observer, subject, _ in flags if observer in group or observer not in here
    }
    away = [n for n in members if n not in gossip.seen and (n not in group or n in flagged)]
    return tuple(n for n in gossip.members if n != me and (n in doubtful or n in away))


def _bad_within(
    gossip: Gossip,
    side: tuple[NodeId, ...],
    ours: tuple[NodeId, ...],
    elders: tuple[NodeId, ...],
    preference: Preference,
) -> tuple[NodeId, ...]:
    """Return the members of the side that go for its bad links."""
    inside = frozenset(side)
    among = [r for r in gossip.records() if r[0] in inside and r[1] in inside]
    links = BadLinks(among, first_to_stay(gossip, ours))
    if not links.ends:
        return ()
    oldest = elders[-1] if elders and elders[-1] in inside and preference.oldest_stays else None
    broken = links.fewest_to_go(oldest)
    if oldest is not None and preference.unless_alone and set(ours) - set(broken) == {oldest}:
        return links.fewest_to_go()
    return broken
