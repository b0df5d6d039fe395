"""The voters of a split, where the store is inside the cluster.

The problem: with `cluster://` a side of a split is of use only if its store answers, and it answers
on the side with a majority of the replicas that hold partition 0, leases and tables. A majority of
the members may stand elsewhere. Then the side that stays has no store, and the side with the store
goes. So these replicas' nodes are the voters: a side that has a majority of the replicas stays.

**A vote is a place**, the address of a replica. Each member announces the place of its node's own
replica in its `features`, which never change and come with the member itself. A node that restarts
is another incarnation with the same place, so its vote stays; a blank disk at a place votes there;
several nodes of one machine (`--workers`) have one place, and one vote. A place is here if an Up
member of it is here, and none may be Up elsewhere.

**All members of one picture count alike**: the voters are a value of the gossip state, and not the
ring as each node knows it, because two nodes may know two rings. The value is bytes under a
reserved name of `meta`, which builds that do not know it keep and pass on. Only the leader changes
it, upon convergence, from the ring of its own store object.

    (None,)      the members vote; so it is without the value, too
    (A,)         the places of A vote
    (A, B)       from A to B: a side stays only if it would stay by each of the two

**Rings change.** Two sides may differ by one step of a leader, as they may in the status of a
member (`split`). The steps are (A,), (A, B), (B,), or back to (A,): whatever two neighbours are,
they share a set, and by one set at most one side stays. The next step needs convergence, so two
sides are never two steps apart. The two sets need not overlap: `store recover` makes any new ring.
The value may be behind the ring by these two steps. That costs at most the store of the side that
stays, never two sides. One step from (A,) to (B,) would not do, even if one replica is added: with
A = a, b and B = a, b, d, a side with a counts A, is in row 5 below, and stays by its members, while
the side with b and d is in row 1 by B.

**By one set** of n replicas, of which `ours` and `theirs` are places here and there, and
`strangers` have no node (a witness, `shardbus store serve`): no member sees on which side they are.

    1  ours > n / 2                 this side stays: its store answers
    2  theirs > n / 2               it goes
    3  ours + strangers > n / 2     the lease decides, which is in the store: one side gets it, if
                                    its store answers
    4  theirs + strangers > n / 2   it goes
    5  otherwise                    no side's store can answer: the members decide, as without
                                    voters

`ours` is at most the number that the other side counts as `theirs`, and the reverse. So if a side
is in row 1, the other one is in row 2; if it is in row 3, the other one is in rows 2 to 4; if it is
in row 5, the other one is in rows 2, 4 or 5.

**Proved deaths.** A place without a member is neither here nor there: members that were downed or
have left count no more, so the last voters' deaths, one after the other, end no cluster (row 5). A
member that is proved gone counts until it is downed, as under the members' votes: a firewall that
refuses connections proves the same deaths to both sides at the same time. So nodes that lose a
majority of the replicas at once go.

**Other builds.** A member that does not announce `VOTERS` counts members. While there is one, the
members vote. It becomes Up only once that is so everywhere, and until then it decides nothing: it
has no vote by its own copy.

**Who is a stranger?** A ring has places that no member has announced: a witness's, or one whose
node has not joined yet. Once a member has announced a place, it stays a node's place while it is in
the ring. If all are strangers, the members vote: the store is beside the cluster then.

Not here: who has joined (`leader`), the sides (`split`), the strategies that count (`strategies`).

Source: docs/downing.md; docs/how-to/keep-state.md; Ongaro and Ousterhout, "In search of an
understandable consensus algorithm" (joint consensus).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

import msgspec

from shardbus.config.settings import DowningSettings
from shardbus.ids import NodeId
from shardbus.membership.gossip import META_BYTES_MAX, VOTERS_META, Gossip
from shardbus.membership.member import VOTERS, Member, Status

COUNTING = ("keep-majority", "static-quorum")
"""The strategies that count votes."""


class RingVoters(msgspec.Struct, frozen=True):
    """The voters of a node's store: the number of its ring, and the address of each replica of
    partition 0."""

    ring: int
    places: tuple[str, ...]


class VoterSet(msgspec.Struct, frozen=True, array_like=True):
    """The voters of one ring. `places`: the addresses of replicas that members have announced, in
    order. `strangers`: the number of the others."""

    ring: int
    places: tuple[str, ...]
    strangers: int = 0

    @property
    def replicas(self) -> int:
        """The number of all."""
        return len(self.places) + self.strangers


Electorate = tuple[VoterSet | None, ...]
"""See the module. None: the members."""
MEMBERS: Electorate = (None,)


class Votes(msgspec.Struct, frozen=True):
    """The replicas of a set: here, perhaps there, of unknown place, and all."""

    ours: int
    theirs: int
    strangers: int
    replicas: int


_decoder = msgspec.json.Decoder(Electorate)
_encode = msgspec.json.Encoder().encode


def electorate_of(gossip: Gossip) -> Electorate:
    """Return who votes by this copy of the state."""
    written = gossip.meta.get(VOTERS_META)
    return MEMBERS if written is None else _decoded(written.data)


@lru_cache(maxsize=64)
def _decoded(data: bytes) -> Electorate:
    """Return the value. Bytes that are none are the members, at every node alike."""
    try:
        sets = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return MEMBERS
    return sets if 1 <= len(sets) <= 2 else MEMBERS


def counts_voters(settings: DowningSettings) -> bool:
    """True if replicas may vote under these settings. A role names the voters by itself."""
    timeout = settings.unsafe_auto_down_after
    return settings.strategy in COUNTING and not settings.role and not timeout


def next_step(now: Electorate, target: VoterSet | None) -> Electorate:
    """Return the step towards a set; the same value if it is reached."""
    if target in now:
        return (target,)
    return (now[-1],) if len(now) > 1 else (*now, target)


def with_voters(gossip: Gossip, me: NodeId, ring: RingVoters | None) -> Gossip:
    """Return the state after the leader's step towards the voters of its ring; the same object if
    there is none. The state has converged."""
    now = electorate_of(gossip)
    after = next_step(now, _target(gossip, now, ring))
    data = _encode(after)
    if len(data) > META_BYTES_MAX:
        after = next_step(now, None)
        data = _encode(after)
    return gossip if after == now else gossip.with_meta(me, VOTERS_META, data)


def may_come_up(gossip: Gossip, member: Member) -> bool:
    """True if the member counts as all others do once it is Up."""
    return VOTERS in member.features or electorate_of(gossip) == MEMBERS


def _target(gossip: Gossip, now: Electorate, ring: RingVoters | None) -> VoterSet | None:
    members = [m for m in gossip.members.values() if m.status is not Status.DOWN]
    if not all(VOTERS in member.features for member in members):
        return None
    sets = [voters for voters in now if voters is not None]
    if ring is None or any(ring.ring < voters.ring for voters in sets):
        return now[-1]
    announced = {member.replica for member in members}.union(*(s.places for s in sets))
    places = tuple(sorted({place for place in ring.places if place and place in announced}))
    return VoterSet(ring.ring, places, len(ring.places) - len(places)) if places else None


def votes_of(
    gossip: Gossip, ours: Collection[NodeId], theirs: Collection[NodeId]
) -> tuple[Votes | None, ...]:
    """Count each set; None where the members vote. `ours`: the Up members of this side; `theirs`:
    all that may be Up elsewhere."""
    electorate = electorate_of(gossip)
    if electorate == MEMBERS:
        return (None,)
    there = _places(gossip.members, theirs)
    here = _places(gossip.members, ours) - there
    return tuple(
        None
        if voters is None
        else Votes(
            len(here.intersection(voters.places)),
            len(there.intersection(voters.places)),
            voters.strangers,
            voters.replicas,
        )
        for voters in electorate
    )


def first_to_stay(gossip: Gossip, ours: Iterable[NodeId]) -> tuple[NodeId, ...]:
    """Return the members of these whose votes count: all, if members vote."""
    sets = [voters for voters in electorate_of(gossip) if voters is not None]
    if not sets:
        return tuple(ours)
    places = frozenset().union(*(voters.places for voters in sets))
    return tuple(node for node in ours if gossip.members[node].replica in places)


def _places(members: Mapping[NodeId, Member], nodes: Iterable[NodeId]) -> frozenset[str]:
    return frozenset(members[node].replica for node in nodes if members[node].replica)
