"""The replicas of a store inside the cluster vote: the table, the steps of the leader, and the
proof by trial that two sides never both stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise, product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbus.config.settings import ClusterSettings, DowningSettings
from shardbus.errors import ConfigError
from shardbus.ids import NodeId
from shardbus.membership.commands import apply_command, check_meta
from shardbus.membership.downing.electorate import (
    MEMBERS,
    Electorate,
    RingVoters,
    VoterSet,
    Votes,
    counts_voters,
    electorate_of,
    next_step,
    votes_of,
    with_voters,
)
from shardbus.membership.downing.split import Decision, DowningOutcome, Split, survey
from shardbus.membership.downing.strategies import keep_majority, static_quorum
from shardbus.membership.events import SetMeta
from shardbus.membership.gossip import META_BYTES_MAX, META_MAX, VOTERS_META, Gossip
from shardbus.membership.leader import Leadership
from shardbus.membership.member import FEATURES, REPLICA, VOTERS, Member, Status
from shardbus.membership.reachability import Flag, ObserverRow, Reachability
from shardbus.membership.view import view_of
from shardbus.replication.ring import majority
from tests.markers import long_only
from tests.records import replace
from tests.unit.membership.downing.test_strategies import AHEAD, check, legal, view
from tests.unit.membership.test_gossip import A

J, W, U, PREPARING, READY, L, X, DOWN, REMOVED = Status
NOTHING, OTHERS, OURSELVES, LEASE = DowningOutcome
RULES = {"keep-majority": keep_majority, "static-quorum": lambda s: static_quorum(s, 3)}
NODES = [NodeId(f"n{i}", 1, 1) for i in range(7)]
PLACES = [f"n{i}:7357" for i in range(7)]


def take(copy: Gossip, ring: RingVoters, steps: int) -> Gossip:
    for _ in range(steps):
        copy = with_voters(copy, A, ring)
    return copy


def cluster(count: int, replicas: Iterable[int] = (), former: Iterable[int] = ()) -> Gossip:
    """Members that are Up. `replicas`: those with one; `former`: those of a build that counts
    members."""
    members = {}
    for i, node in enumerate(NODES[:count]):
        features = tuple(f for f in FEATURES if f != VOTERS or i not in former)
        features += (REPLICA + PLACES[i],) if i in replicas else ()
        members[node] = Member(node, 2, status=U, up_number=i + 1, features=features)
    return Gossip(members)


def ring_of(number: int, *places: int, witnesses: int = 0) -> RingVoters:
    names = [f"w{n}:7357" for n in range(witnesses)]
    return RingVoters(number, (*(PLACES[i] for i in places), *names))


def split_of(copy: Gossip, here: Iterable[int]) -> Split:
    side = [NODES[i] for i in here]
    cut = [n for n in copy.members if n not in side]
    rows = {side[0]: ObserverRow(1, dict.fromkeys(cut, Flag.UNREACHABLE))}
    seen = frozenset(side)
    return survey(replace(copy, reachability=Reachability(rows), seen=seen), side[0])


# -- the table ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_the_side_whose_store_answers_stays_though_it_has_fewer_members(rule: str) -> None:
    copy = take(cluster(5, (0, 1, 2)), ring_of(1, 0, 1, 2), 2)
    few, many = RULES[rule](split_of(copy, (0, 1))), RULES[rule](split_of(copy, (2, 3, 4)))
    assert few.outcome is OTHERS
    assert few.reason == "majority of the store: 2 of 3 replicas here, at most 1 there"
    assert many.outcome is OURSELVES
    assert many.reason == "the store is there: 1 of 3 replicas here, at most 2 there"


@pytest.mark.parametrize(
    ("ours", "theirs", "strangers", "replicas", "outcome"),
    [
        (2, 1, 0, 3, OTHERS),
        (2, 0, 1, 3, OTHERS),
        (1, 2, 0, 3, OURSELVES),
        (0, 2, 1, 3, OURSELVES),
        (1, 1, 1, 3, LEASE),
        (2, 1, 2, 5, LEASE),
        (0, 1, 2, 3, LEASE),
        (0, 1, 1, 3, OURSELVES),
        (0, 1, 0, 1, OURSELVES),
        (1, 0, 0, 1, OTHERS),
        (2, 2, 0, 4, None),
        (2, 1, 0, 4, None),
        (1, 1, 0, 3, None),
        (0, 0, 0, 3, None),
        (0, 0, 1, 3, None),
    ],
)
@pytest.mark.parametrize("more", [(A,), ()])
def test_the_table_of_one_set(
    ours: int,
    theirs: int,
    strangers: int,
    replicas: int,
    outcome: DowningOutcome | None,
    more: tuple[NodeId, ...],
) -> None:
    """Where no store can answer, the members decide: here they stay, or go."""
    votes = Votes(ours, theirs, strangers, replicas)
    split = Split(
        side=NODES[:1], cut=NODES[1:2], ours=more, theirs=NODES[1:2] * (not more), votes=(votes,)
    )  # type: ignore[arg-type]
    members = OTHERS if more else OURSELVES
    assert keep_majority(split).outcome is (outcome or members)


def test_of_two_sets_the_most_cautious_decision_holds() -> None:
    stay, go, ask = Votes(2, 1, 0, 3), Votes(1, 2, 0, 3), Votes(1, 1, 1, 3)
    decisions = {OTHERS: stay, OURSELVES: go, LEASE: ask}
    for (first, a), (second, b) in product(decisions.items(), repeat=2):
        split = Split(side=(A,), cut=NODES[1:2], ours=(A,), votes=(a, b))  # type: ignore[arg-type]
        expected = (
            OURSELVES if OURSELVES in (first, second) else first if first is second else LEASE
        )
        assert keep_majority(split).outcome is expected


def test_nodes_of_one_machine_have_one_vote_and_none_if_they_are_divided() -> None:
    copy = cluster(4, (0,))
    worker = replace(copy.members[NODES[1]], features=copy.members[NODES[0]].features)
    copy = replace(copy, members={**copy.members, NODES[1]: worker})
    copy = take(copy, ring_of(1, 0, witnesses=0), 2)
    assert votes_of(copy, NODES[:2], NODES[2:4]) == (Votes(1, 0, 0, 1),)
    assert votes_of(copy, NODES[:1], NODES[1:4]) == (Votes(0, 1, 0, 1),)
    assert votes_of(copy, NODES[1:4], NODES[:1]) == (Votes(0, 1, 0, 1),)


def test_voters_that_die_one_after_the_other_end_no_cluster() -> None:
    """Each is downed before the next one dies; then the members decide."""
    copy = take(cluster(6, (0, 1, 2)), ring_of(1, 0, 1, 2), 2)
    for dead in (0, 1, 2):
        left = range(dead + 1, 6)
        assert keep_majority(split_of(copy, left)).outcome is OTHERS
        members = {n: m for n, m in copy.members.items() if n != NODES[dead]}
        copy = replace(copy, members=members)
    assert electorate_of(copy) == (VoterSet(1, tuple(PLACES[:3])),)
    assert keep_majority(split_of(copy, (3,))).outcome is OURSELVES


def test_a_proved_death_alone_takes_no_vote() -> None:
    """A firewall that refuses connections proves the same to both sides."""
    copy = take(cluster(5, (0, 1, 2)), ring_of(1, 0, 1, 2), 2)
    gone = {NODES[2]: ObserverRow(1, dict.fromkeys(NODES[:2], Flag.TERMINATED))}
    gone |= {n: ObserverRow(1, dict.fromkeys(NODES[:2], Flag.TERMINATED)) for n in NODES[3:5]}
    seen = frozenset(NODES[2:5])
    split = survey(replace(copy, reachability=Reachability(gone), seen=seen), NODES[2])
    assert split.gone == tuple(NODES[:2])
    assert keep_majority(split).outcome is OURSELVES


def test_a_bad_link_costs_the_member_without_a_replica() -> None:
    copy = take(cluster(4, (3,)), ring_of(1, 3), 2)
    rows = {NODES[2]: ObserverRow(1, {NODES[3]: Flag.UNREACHABLE})}
    broken = replace(copy, reachability=Reachability(rows), seen=frozenset(copy.members))
    assert survey(broken, NODES[0]).broken == (NODES[2],)
    assert survey(replace(broken, meta={}), NODES[0]).broken == (NODES[3],)


@pytest.mark.parametrize(
    ("settings_of", "counts"),
    [
        (DowningSettings(), True),
        (DowningSettings(strategy="static-quorum", static_quorum_size=2), True),
        (DowningSettings(role="core"), False),
        (DowningSettings(unsafe_auto_down_after=5.0), False),
        (DowningSettings(strategy="keep-oldest"), False),
        (DowningSettings(strategy="lease-majority"), False),
    ],
)
def test_the_strategies_that_count_votes(settings_of: DowningSettings, counts: bool) -> None:
    assert counts_voters(settings_of) is counts


# -- the leader's steps ------------------------------------------------------------------------

SETS = st.none() | st.builds(
    VoterSet, st.integers(1, 9), st.lists(st.sampled_from(PLACES[:4]), unique=True).map(tuple)
)


@given(st.lists(SETS, min_size=1, max_size=6))
def test_neighbours_share_a_set_and_two_steps_are_enough(
    targets: Sequence[VoterSet | None],
) -> None:
    now: Electorate = MEMBERS
    for target in targets:
        for _ in range(3):
            after = next_step(now, target)
            assert 1 <= len(after) <= 2
            assert set(after) & set(now)
            now = after
        assert now == (target,)
        assert next_step(now, target) == now


def test_the_leader_writes_the_voters_of_its_ring_in_two_versions() -> None:
    copy = cluster(4, (0, 1, 2))
    voters = VoterSet(7, tuple(PLACES[:3]))
    first = with_voters(copy, A, ring_of(7, 0, 1, 2))
    second = with_voters(first, A, ring_of(7, 0, 1, 2))
    assert (electorate_of(copy), electorate_of(first)) == (MEMBERS, (None, voters))
    assert electorate_of(second) == (voters,)
    assert with_voters(second, A, ring_of(7, 0, 1, 2)) is second
    assert with_voters(second, A, None) is second
    assert with_voters(copy, A, None) is copy


def test_a_ring_of_a_lower_number_changes_nothing() -> None:
    copy = take(cluster(4, (0, 1, 2)), ring_of(7, 0, 1), 2)
    assert with_voters(copy, A, ring_of(6, 0, 1, 2)) is copy


def test_a_place_that_no_member_has_announced_is_a_strangers_until_then() -> None:
    ring = ring_of(1, 0, 1, witnesses=1)
    copy = take(cluster(1, (0, 1)), ring, 2)
    assert electorate_of(copy) == (VoterSet(1, (PLACES[0],), 2),)
    both = take(replace(copy, members=cluster(2, (0, 1)).members), ring, 2)
    assert electorate_of(both) == (VoterSet(1, tuple(PLACES[:2]), 1),)
    left = take(replace(both, members=cluster(1, (0, 1)).members), ring, 2)
    assert electorate_of(left) == electorate_of(both)


def test_members_vote_where_all_replicas_are_witnesses() -> None:
    copy = cluster(3)
    assert with_voters(copy, A, ring_of(1, witnesses=3)) is copy


def test_members_vote_beside_a_build_that_counts_members() -> None:
    copy = cluster(4, (0, 1, 2), former=(3,))
    assert with_voters(copy, A, ring_of(1, 0, 1, 2)) is copy
    now = take(cluster(3, (0, 1, 2)), ring_of(1, 0, 1, 2), 2)
    joined = replace(now, members={**now.members, NODES[3]: copy.members[NODES[3]]})
    assert electorate_of(take(joined, ring_of(1, 0, 1, 2), 1))[-1] is None
    assert electorate_of(take(joined, ring_of(1, 0, 1, 2), 2)) == MEMBERS


def converged(copy: Gossip) -> Gossip:
    return replace(copy, seen=frozenset(copy.members))


def test_a_member_of_such_a_build_comes_up_only_once_members_vote() -> None:
    now = take(cluster(3, (0, 1, 2)), ring_of(1, 0, 1, 2), 2)
    former = replace(cluster(4, former=(3,)).members[NODES[3]], status=J, up_number=0)
    copy = replace(now, members={**now.members, NODES[3]: former})
    leadership = Leadership(NODES[0], ClusterSettings())
    leadership.ring = ring_of(1, 0, 1, 2)
    seen = []
    for _ in range(3):
        copy = leadership.act(converged(copy), 0.0)
        seen.append((len(electorate_of(copy)), copy.members[NODES[3]].status))
    assert electorate_of(copy) == MEMBERS
    assert seen == [(2, J), (1, J), (1, U)]


def test_only_a_leader_that_is_up_and_counts_votes_writes() -> None:
    copy = converged(cluster(3, (0, 1, 2)))
    for me, downing, writes in (
        (NODES[0], DowningSettings(), True),
        (NODES[1], DowningSettings(), False),
        (NODES[0], DowningSettings(strategy="keep-oldest"), False),
    ):
        leadership = Leadership(me, ClusterSettings(downing=downing))
        leadership.ring = ring_of(1, 0, 1, 2)
        assert (leadership.act(copy, 0.0) is not copy) is writes
    apart = Leadership(NODES[0], ClusterSettings())
    apart.ring = ring_of(1, 0, 1, 2)
    unseen = replace(copy, seen=frozenset(NODES[:2]))
    assert apart.act(unseen, 0.0) is unseen


def test_voters_that_do_not_fit_into_the_gossip_leave_the_vote_to_the_members() -> None:
    for count, fits in ((7, True), (20, False)):
        places = tuple(f"{'n' * 250}{i:02}:7357" for i in range(count))
        members = {}
        for i, place in enumerate(places):
            node = NodeId(f"m{i:02}", 1, 1)
            features = (*FEATURES, REPLICA + place)
            members[node] = Member(node, 2, status=U, up_number=1, features=features)
        copy = take(Gossip(members), RingVoters(1, places), 2)
        assert (electorate_of(copy) != MEMBERS) is fits
        assert all(len(written.data) <= META_BYTES_MAX for written in copy.meta.values())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"[null,null,null]", b"\xff", b'[["x"]]'])
def test_bytes_that_are_no_voters_are_the_members_everywhere(data: bytes) -> None:
    assert electorate_of(cluster(2).with_meta(A, VOTERS_META, data)) == MEMBERS


def test_the_application_neither_writes_nor_sees_them() -> None:
    with pytest.raises(ConfigError, match="own"):
        check_meta(VOTERS_META, b"[]")
    copy = take(cluster(3, (0, 1, 2)), ring_of(1, 0, 1, 2), 2)
    full = copy
    for number in range(META_MAX):
        full, refusal = apply_command(full, NODES[0], SetMeta(f"n{number}", b"x"), 0.0)
        assert refusal == ""
    assert apply_command(full, NODES[0], SetMeta("more", b"x"), 0.0)[1] != ""
    shown = view_of(converged(copy), NODES[0])
    assert (dict(shown.meta), shown.electorate) == ({}, electorate_of(copy))


# -- laws --------------------------------------------------------------------------------------

OUTCOMES = (OTHERS, LEASE)


def parts_of(count: int, sides: int) -> Iterable[list[list[int]]]:
    """Each division of this number of members into sides, some of them empty."""
    for where in product(range(sides), repeat=count):
        yield [[i for i in range(count) if where[i] == side] for side in range(sides)]


def all_sets(count: int) -> list[VoterSet | None]:
    """Each set of voters among this number of members, and up to two witnesses."""
    places = PLACES[:count]
    found: list[VoterSet | None] = [None]
    for size in range(1, count + 1):
        for chosen in combinations(places, size):
            found += [VoterSet(size, chosen, strangers) for strangers in range(3)]
    return found


def decisions(sides: Sequence[Sequence[int]], sets: Sequence[Electorate]) -> list[Decision]:
    """How each side decides, by its own voters; all members are Up."""
    found = []
    for side, electorate in zip(sides, sets, strict=True):
        here = tuple(NODES[i] for i in side)
        there = tuple(NODES[i] for other in sides if other is not side for i in other)
        votes = tuple(
            None
            if voters is None
            else Votes(
                sum(PLACES[i] in voters.places for i in side),
                sum(PLACES[NODES.index(n)] in voters.places for n in there),
                voters.strangers,
                voters.replicas,
            )
            for voters in electorate
        )
        split = Split(side=here, cut=there, ours=here, most=here, theirs=there, votes=votes)
        found.append(keep_majority(split))
    return found


@pytest.mark.parametrize("count", [2, 3, *long_only(4)])
def test_in_every_small_split_and_change_of_rings_at_most_one_side_stays(count: int) -> None:
    """Every division, every former ring and every next one, and every two steps between them that
    the sides may have."""
    sets = all_sets(count)
    tried = 0
    for sides in parts_of(count, 2):
        if not all(sides):
            continue
        for before, after in product(sets, repeat=2):
            steps: list[Electorate] = [(before,), (before, after), (after,)]
            for first, second in pairwise(steps):
                for pair in ((first, second), (second, first), (first, first), (second, second)):
                    outcomes = [d.outcome for d in decisions(sides, pair)]
                    stay = [o for o in outcomes if o in OUTCOMES]
                    assert len(stay) < 2 or stay == [LEASE, LEASE], (sides, pair)
                    tried += 1
    assert tried > 100


def test_three_sides_never_both_stay_either() -> None:
    for sides in parts_of(4, 3):
        if not all(sides):
            continue
        for voters in all_sets(4):
            outcomes = [d.outcome for d in decisions(sides, [(voters,)] * 3)]
            stay = [o for o in outcomes if o in OUTCOMES]
            assert len(stay) < 2 or set(stay) == {LEASE}, (sides, voters)


@pytest.mark.parametrize("count", [2, 3, 4, 5, *long_only(6)])
def test_a_side_whose_store_answers_is_the_side_that_stays(count: int) -> None:
    """Witnesses stand with any side. A side whose store answers never goes, and no other stays; it
    needs the lease only if witnesses make the difference."""
    for sides in parts_of(count, 2):
        if not all(sides):
            continue
        for voters in all_sets(count)[1:]:
            assert voters is not None
            outcomes = [d.outcome for d in decisions(sides, [(voters,)] * 2)]
            for witnesses in product((0, 1), repeat=voters.strangers):
                has = [
                    sum(PLACES[i] in voters.places for i in side) + witnesses.count(n)
                    for n, side in enumerate(sides)
                ]
                for here, there in ((0, 1), (1, 0)):
                    if has[here] >= majority(voters.replicas):
                        assert outcomes[here] in OUTCOMES, (sides, voters)
                        assert outcomes[there] in (OURSELVES, LEASE), (sides, voters)
                        if not voters.strangers:
                            assert (outcomes[here], outcomes[there]) == (OTHERS, OURSELVES)


@given(st.data())
@settings(max_examples=3 * settings.default.max_examples)
def test_whatever_step_one_side_is_ahead_at_most_one_stays(data: st.DataObject) -> None:
    """Any members, ages and three sides; one side is a legal step ahead about every member, and
    about the voters."""
    count = data.draw(st.integers(2, 7))
    nodes = NODES[:count]
    pairs = data.draw(st.lists(st.sampled_from(AHEAD), min_size=count, max_size=count))
    ages = data.draw(st.permutations(range(1, count + 1)))
    where = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    shared = data.draw(st.booleans())
    places = [PLACES[0] if shared and i == 1 else PLACES[i] for i in range(count)]
    replicas = {n: p for n, p in zip(nodes, places, strict=True) if data.draw(st.booleans())}
    sets = st.none() | st.builds(
        VoterSet,
        st.integers(1, 3),
        st.lists(st.sampled_from(PLACES[:count]), min_size=1, unique=True).map(tuple),
        st.integers(0, 2),
    )
    before, after = data.draw(sets), data.draw(sets)
    steps: list[Electorate] = [(before,), (before, after), (after,)]
    chosen = data.draw(st.sampled_from([0, 1]))
    electorates = [steps[chosen], steps[chosen + 1]]
    if data.draw(st.booleans()):
        electorates.reverse()
    sides = [[n for n, at in zip(nodes, where, strict=True) if at == part] for part in range(3)]
    pairs = legal(pairs, [at == 0 for at in where])
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    ahead = voting(view(nodes, first, second, ages), replicas, electorates[0])
    behind = voting(view(nodes, second, second, ages), replicas, electorates[1])
    quorum = data.draw(st.integers(1, 5))
    rules = {"keep-majority": keep_majority, "static-quorum": lambda s: static_quorum(s, quorum)}
    check(sides, [ahead, behind, behind], rules)


def voting(copy: Gossip, replicas: dict[NodeId, str], sets: Electorate) -> Gossip:
    """The copy with these replicas at its members, and these voters."""
    members = {
        n: replace(m, features=(*FEATURES, REPLICA + replicas[n])) if n in replicas else m
        for n, m in copy.members.items()
    }
    data = msgspec.json.encode(sets)
    return replace(copy, members=members).with_meta(A, VOTERS_META, data)
