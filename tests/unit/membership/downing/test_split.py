"""The survey of a split, and keep-majority: decision tables, and the proof that two sides never
both win, by trying them all. T.U17."""

from __future__ import annotations

from itertools import product

import pytest

from shardbus.ids import NodeId
from shardbus.membership.downing.split import (
    FIRST_EPOCHS,
    DowningOutcome,
    Split,
    first_epoch,
    survey,
)
from shardbus.membership.downing.strategies import keep_majority
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Status
from shardbus.membership.reachability import Flag, ObserverRow, Reachability
from tests.records import replace
from tests.unit.membership.test_gossip import A, B, C, D, E, state

J, W, U, PREPARING, READY, L, X, DOWN, _ = Status
NOTHING, OTHERS, OURSELVES, LEASE = DowningOutcome


def split(copy: Gossip, *cut: NodeId, seen: tuple[NodeId, ...] = (), me: NodeId = A) -> Split:
    """The survey of a copy in which `me` cannot reach these, and only its side has seen that."""
    rows = {me: ObserverRow(1, dict.fromkeys(cut, Flag.UNREACHABLE))} if cut else {}
    side = [n for n in copy.members if n not in cut]
    copy = replace(copy, reachability=Reachability(rows), seen=frozenset((*side, *seen)))
    return survey(copy, me)


@pytest.mark.parametrize(
    ("copy", "cut", "outcome", "down"),
    [
        (state(a=U, b=U, c=U), (), NOTHING, ()),
        (state(a=U, b=U, c=U), (C,), OTHERS, (C,)),
        (state(a=U, b=U, c=U), (B, C), OURSELVES, (A,)),
        (state(a=U, b=U), (B,), LEASE, (B,)),
        (state(a=U, b=U, c=U, d=U, e=U), (B, D), OTHERS, (B, D)),
        (state(a=U, b=U, c=U, d=U, e=U), (C, D, E), OURSELVES, (A, B)),
        (state(a=U, b=U, c=U, d=U), (C, D), LEASE, (C, D)),
        (state(a=U, b=U, c=J, d=J), (C, D), OTHERS, (C, D)),
        (state(a=U, b=U, c=J, d=L), (C, D), LEASE, (C, D)),
        (state(a=U, b=J, c=J, d=W), (B, C, D), OTHERS, (B, C, D)),
        (state(a=U, b=U, c=J), (C,), OTHERS, (C,)),
        (state(a=U, b=J, c=J, d=U, e=U), (D, E), OURSELVES, (A, B, C)),
        (state(a=U, b=W, c=U), (C,), LEASE, (C,)),
        (state(a=U, b=U, c=W), (C,), OTHERS, (C,)),
        (state(a=U, b=L, c=U), (C,), LEASE, (C,)),
        (state(a=U, b=U, c=L, d=L), (C, D), LEASE, (C, D)),
        (state(a=U, b=X, c=X), (C,), NOTHING, ()),
        (state(a=U, b=DOWN, c=DOWN), (B, C), NOTHING, ()),
        (state(a=U, b=DOWN, c=U), (B, C), OURSELVES, (A,)),  # b may not know it, and stand by c
        (state(a=X, b=U), (B,), OURSELVES, (A,)),
    ],
)
def test_TU17_keep_majority(
    copy: Gossip, cut: tuple[NodeId, ...], outcome: DowningOutcome, down: tuple[NodeId, ...]
) -> None:
    decision = keep_majority(split(copy, *cut))
    assert (decision.outcome, decision.down) == (outcome, down)
    assert decision.reason


def test_a_decision_explains_itself() -> None:
    decision = keep_majority(split(state(a=U, b=U, c=U), C))
    assert decision.reason == "majority: 2 votes here, at most 1 there"


def test_TU17_only_members_with_the_role_vote() -> None:
    copy = state(a=U, b=U, c=U)
    members = {**copy.members, C: replace(copy.members[C], roles=("db",))}
    rows = Reachability({A: ObserverRow(1, {C: Flag.UNREACHABLE})})
    copy = replace(copy, members=members, reachability=rows, seen=frozenset({A, B}))
    assert keep_majority(survey(copy, A, "")).outcome is OTHERS
    assert keep_majority(survey(copy, A, "db")).outcome is OURSELVES


def test_TU17_a_side_without_a_vote_goes() -> None:
    """The only one that votes leaves, and the others know it as Exiting: they see no split."""
    leaving = state(a=L, b=U)
    role = {A: replace(leaving.members[A], roles=("db",)), B: leaving.members[B]}
    rows = Reachability({A: ObserverRow(1, {B: Flag.UNREACHABLE})})
    here = replace(leaving, members=role, reachability=rows, seen=frozenset({A}))
    exiting = {A: replace(role[A], status=X), B: role[B]}
    rows = Reachability({B: ObserverRow(1, {A: Flag.UNREACHABLE})})
    there = replace(here, members=exiting, reachability=rows, seen=frozenset({B}))
    assert keep_majority(survey(here, A, "db")).outcome is OURSELVES
    assert keep_majority(survey(there, B, "db")).outcome is NOTHING


def test_TU17_two_sides_never_both_win() -> None:
    """Four members, two and two, where each side may be one legal step ahead about any member.

    Known on both sides the content of the last common version. Since then each side's leader may
    have acted only as far as convergence before the split allowed: one step from the common status,
    on either side or on both. Where nobody on a side has been Up, it had no leader."""
    steps = {J: (J, U), W: (W, U), U: (U, L), L: (L, X)}
    common = (J, W, U, L)
    nodes = (A, B, C, D)
    for base in product(common, repeat=4):
        for ahead, ours in ((0, base[:2]), (1, base[2:])):
            led = {U, L} & {*ours} or not {U, L} & {*base}
            later = [steps[s][1] if led or s is U else s for s in base]
            here, there = (later, list(base)) if ahead == 0 else (list(base), later)
            outcomes = []
            for view, me, cut in ((here, A, (C, D)), (there, C, (A, B))):
                copy = state(**{n.host: s for n, s in zip(nodes, view, strict=True)})
                decision = keep_majority(split(copy, *cut, me=me))
                outcomes.append(decision.outcome)
            assert outcomes.count(OTHERS) <= 1, base
            if OTHERS in outcomes:
                assert LEASE not in outcomes, base


def test_S150_joiners_have_no_vote_where_everybody_is_who_could_have_made_them_up() -> None:
    """S1.50. A and B are all that have ever been Up, and three have joined, weakly up."""
    copy = state(a=U, b=U, c=W, d=W, e=J)
    decision = keep_majority(split(copy, C, D, E))
    assert decision.reason == "majority: 2 votes here, at most 0 there"
    rows = {A: ObserverRow(1, dict.fromkeys((C, D, E), Flag.UNREACHABLE))}
    down = {**copy.members, B: replace(copy.members[B], status=DOWN)}
    unaware = Gossip(down, seen=frozenset({A}), reachability=Reachability(rows))
    assert survey(unaware, A).theirs == (B, C, D, E), "B may be there, and not know it"


def test_nobody_votes_in_a_cluster_that_is_unborn() -> None:
    """B.35, S4.42: it waits for its first members, and one of four dies."""
    copy = state(a=J, b=J, c=J, d=J)
    rows = Reachability({A: ObserverRow(1, {D: Flag.UNREACHABLE})})
    copy = replace(copy, reachability=rows, seen=frozenset({A, B, C}))
    assert keep_majority(survey(copy, A)).outcome is OURSELVES
    decision = keep_majority(survey(copy, A, unborn=True))
    assert (decision.outcome, decision.down) == (LEASE, (D,))
    assert decision.reason == "no member has been Up yet"


def test_who_is_down_does_not_count_elsewhere_once_a_new_process_has_its_address() -> None:
    """A node rejoins while its former process is not removed yet: that one has ended."""
    copy = state("ab", a=U, b=U, c=DOWN)
    assert survey(copy, A).theirs == (C,)
    again = C._replace(uid=2)
    members = dict(sorted({**copy.members, again: replace(copy.members[A], node=again)}.items()))
    assert survey(replace(copy, members=members), A).theirs == ()


def test_of_several_down_processes_at_one_address_one_counts_elsewhere() -> None:
    """A process that was restarted again and again, and that others have downed each time."""
    copy = state("ab", a=U, b=U, c=DOWN, d=DOWN)
    former = [C._replace(uid=uid) for uid in (2, 3)]
    more = {node: replace(copy.members[C], node=node) for node in former}
    here = replace(copy, members=dict(sorted({**copy.members, **more}.items())))
    assert [node.host for node in survey(here, A).theirs] == ["c", "d"]


def test_a_flagged_node_that_has_seen_the_flag_is_not_cut_off() -> None:
    copy = state(a=U, b=U, c=U)
    split_seen = split(copy, C, seen=(C,))
    assert split_seen.cut == ()
    assert split_seen.broken == (C,)
    assert keep_majority(split_seen).down == (C,)


def test_the_owner_of_bad_cables_goes_not_those_it_accuses() -> None:
    copy = state(a=U, b=U, c=U, d=U, e=U)
    flags = dict.fromkeys((A, C, D, E), Flag.UNREACHABLE)
    copy = replace(
        copy, reachability=Reachability({B: ObserverRow(1, flags)}), seen=frozenset(copy.members)
    )
    for me in copy.members:
        assert keep_majority(survey(copy, me)).down == (B,)


def test_doubtful_members_count_as_cut_off() -> None:
    copy = state(a=U, b=U, c=U)
    rows = Reachability(dict.fromkeys((A, B), ObserverRow(1, {C: Flag.TERMINATED})))
    copy = replace(copy, reachability=rows, seen=frozenset({A, B}))
    assert survey(copy, A).gone == (C,)
    assert keep_majority(survey(copy, A)).outcome is OTHERS
    assert keep_majority(survey(copy, A, doubtful=[B])).outcome is OURSELVES


def test_a_death_that_one_node_of_the_side_has_not_found_is_not_proved() -> None:
    """B still hides C's death, or a wall hides a live C from A: the strategy waits."""
    copy = state(a=U, b=U, c=U)
    for other in (Flag.UNREACHABLE, Flag.REACHABLE):
        rows = {A: ObserverRow(1, {C: Flag.TERMINATED}), B: ObserverRow(1, {C: other})}
        picture = replace(copy, reachability=Reachability(rows), seen=frozenset({A, B}))
        survey_ = survey(picture, A)
        assert (survey_.cut, survey_.gone) == ((C,), ())


def links(words: str, side: str, **statuses: Status) -> Gossip:
    """Five Up members `abcde`. Words: `b>c`, b cannot reach c; `b-c`, neither reaches the other.
    The side has seen this version."""
    copy = state(side, **({"a": U, "b": U, "c": U, "d": U, "e": U} | statuses))
    flags: dict[str, dict[NodeId, Flag]] = {}
    for word in words.split():
        first, way, other = word
        for by, of in ((first, other), (other, first)) if way == "-" else ((first, other),):
            flags.setdefault(by, {})[NodeId(of, 1, 1)] = Flag.UNREACHABLE
    rows = {NodeId(by, 1, 1): ObserverRow(1, flags_by) for by, flags_by in sorted(flags.items())}
    return replace(copy, reachability=Reachability(rows))


@pytest.mark.parametrize(
    ("words", "side", "statuses", "broken", "outcome", "down"),
    [
        ("b-c", "abcde", {}, "c", OTHERS, "c"),
        ("b>c", "abcde", {}, "c", OTHERS, "c"),
        ("c>b", "abcde", {}, "c", OTHERS, "c"),
        ("b-c d-e", "abcde", {}, "ce", OTHERS, "ce"),
        ("a-b b-c", "abcde", {}, "b", OTHERS, "b"),
        ("a-b b-c c-d", "abcde", {}, "bc", OTHERS, "bc"),
        ("a-b b-c c-a", "abcde", {}, "bc", OTHERS, "bc"),
        ("b-a b-c b-d b-e", "abcde", {}, "b", OTHERS, "b"),
        ("a>b c>b d>b", "abcde", {}, "b", OTHERS, "b"),
        ("b>a b>c b>d", "abcde", {}, "b", OTHERS, "b"),
        ("a-b a-c a-d b-c b-d c-d", "abcde", {}, "bcd", OTHERS, "bcd"),
        ("a>e b>e c>e d>e", "abcd", {}, "", OTHERS, "e"),
        ("a>e b>e c>e d>e b-c", "abcd", {}, "c", OTHERS, "ce"),
        ("a>d a>e b>d b>e c>d c>e b-c", "abc", {}, "c", OTHERS, "cde"),
        ("a>c a>d a>e b>c b>d b>e a-b", "ab", {}, "b", OURSELVES, "ab"),
        ("a>c a>d b>c b>d a-b", "ab", {"e": DOWN}, "b", OURSELVES, "ab"),
        ("a>c a>d b>c b>d a-b", "abe", {"e": X}, "b", LEASE, "bcd"),
        ("b-c", "abcde", {"c": J}, "c", OTHERS, "c"),
        ("b-c", "abcde", {"c": L}, "c", OTHERS, "c"),
        ("b-c", "abcde", {"c": X}, "", NOTHING, ""),
        ("c>b", "abcde", {"c": DOWN}, "", NOTHING, ""),
        ("b-c", "abde", {"c": DOWN}, "", NOTHING, ""),
    ],
)
def test_TU17_indirectly_connected(
    words: str,
    side: str,
    statuses: dict[str, Status],
    broken: str,
    outcome: DowningOutcome,
    down: str,
) -> None:
    """Whoever is flagged and has seen the flag is alive. The fewest go that cure every link, and
    every member of the side finds the same ones."""
    copy = links(words, side, **statuses)
    decided = [n for n in copy.members if n.host in side and copy.members[n].status in (U, J, L)]
    for me in decided:
        links_of = survey(copy, me)
        assert "".join(n.host for n in links_of.broken) == broken
        decision = keep_majority(links_of)
        assert decision.outcome is outcome
        assert "".join(n.host for n in decision.down) == down


def test_two_clusters_do_not_count_their_decisions_by_lease_from_the_same_number() -> None:
    """Else the lease of one cluster's decision could be the lease that another at the same store
    requests."""
    founders = [A._replace(uid=uid) for uid in (7, 2**40 + 7, 2**63 + 8)]
    firsts = {first_epoch(founder) for founder in founders}
    assert len(firsts) == len(founders)
    assert all(0 <= first < FIRST_EPOCHS for first in firsts)
    assert first_epoch(A._replace(uid=2**64 - 1)) < FIRST_EPOCHS
