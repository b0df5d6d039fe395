"""Keep-majority: the decision tables, and the proof that two sides never both win, by trying them
all."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from test_membership_gossip import A, B, C, D, E, state

from shardbus.ids import NodeId
from shardbus.membership.downing import Outcome, Split, survey
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Status
from shardbus.membership.reachability import Flag, Reachability, Row
from shardbus.membership.strategies import keep_majority

J, W, U, L, X, DOWN, _ = Status
NOTHING, OTHERS, OURSELVES, LEASE = Outcome


def split(copy: Gossip, *cut: NodeId, seen: tuple[NodeId, ...] = (), me: NodeId = A) -> Split:
    """The survey of a copy in which `me` cannot reach these, and only its side has seen that."""
    rows = {me: Row(1, dict.fromkeys(cut, Flag.UNREACHABLE))} if cut else {}
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
        (state(a=U, b=U, c=J, d=J), (C, D), LEASE, (C, D)),
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
def test_decisions(
    copy: Gossip, cut: tuple[NodeId, ...], outcome: Outcome, down: tuple[NodeId, ...]
) -> None:
    decision = keep_majority(split(copy, *cut))
    assert (decision.outcome, decision.down) == (outcome, down)
    assert bool(decision.lease) is (outcome is LEASE)
    assert decision.reason


def test_a_decision_explains_itself() -> None:
    decision = keep_majority(split(state(a=U, b=U, c=U), C))
    assert decision.reason == "majority: 2 votes here, at most 1 there"


def test_only_members_with_the_role_vote() -> None:
    copy = state(a=U, b=U, c=U)
    members = {**copy.members, C: replace(copy.members[C], roles=("db",))}
    rows = Reachability({A: Row(1, {C: Flag.UNREACHABLE})})
    copy = replace(copy, members=members, reachability=rows, seen=frozenset({A, B}))
    assert keep_majority(survey(copy, A, "")).outcome is OTHERS
    assert keep_majority(survey(copy, A, "db")).outcome is OURSELVES


def test_two_sides_never_both_win() -> None:
    """Four members, two and two, where each side may be one legal step ahead about any member.

    Known on both sides is what the last common version said. Since then each side's leader may have
    acted only as far as convergence before the split allowed: one step from the common status, on
    either side or on both."""
    steps = {J: (J, U), W: (W, U), U: (U, L), L: (L, X)}
    common = (J, W, U, L)
    nodes = (A, B, C, D)
    for base in product(common, repeat=4):
        for ahead in (0, 1):
            here = [steps[s][1] if ahead == 0 else s for s in base]
            there = [steps[s][1] if ahead == 1 else s for s in base]
            outcomes = []
            names = []
            for view, me, cut in ((here, A, (C, D)), (there, C, (A, B))):
                copy = state(**{n.host: s for n, s in zip(nodes, view, strict=True)})
                decision = keep_majority(split(copy, *cut, me=me))
                outcomes.append(decision.outcome)
                names.append(decision.lease)
            assert outcomes.count(OTHERS) <= 1, base
            if OTHERS in outcomes:
                assert LEASE not in outcomes, base
            if outcomes == [LEASE, LEASE]:
                assert names[0] == names[1], base


def test_a_flagged_node_that_has_seen_the_flag_is_not_cut_off() -> None:
    copy = state(a=U, b=U, c=U)
    found = split(copy, C, seen=(C,))
    assert found.cut == ()
    assert found.broken == (C,)
    assert keep_majority(found).down == (C,)


def test_the_owner_of_bad_cables_goes_not_those_it_accuses() -> None:
    copy = state(a=U, b=U, c=U, d=U, e=U)
    flags = dict.fromkeys((A, C, D, E), Flag.UNREACHABLE)
    copy = replace(
        copy, reachability=Reachability({B: Row(1, flags)}), seen=frozenset(copy.members)
    )
    for me in copy.members:
        assert keep_majority(survey(copy, me)).down == (B,)


def test_doubtful_members_count_as_cut_off() -> None:
    copy = state(a=U, b=U, c=U)
    rows = Reachability(dict.fromkeys((A, B), Row(1, {C: Flag.TERMINATED})))
    copy = replace(copy, reachability=rows, seen=frozenset({A, B}))
    assert survey(copy, A).gone == (C,)
    assert keep_majority(survey(copy, A)).outcome is OTHERS
    assert keep_majority(survey(copy, A, doubtful=[B])).outcome is OURSELVES


def test_the_lease_is_named_by_the_votes() -> None:
    one = keep_majority(split(state(a=U, b=U, c=U, d=U), C, D)).lease
    other = keep_majority(split(state(a=U, b=U, c=U, d=U), A, B, me=C)).lease
    later = keep_majority(split(state(a=U, b=U), B)).lease
    assert one == other
    assert one != later
