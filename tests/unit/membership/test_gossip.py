"""The state: merge laws over generated histories, convergence, tombstones. T.U1."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

import pytest
from hypothesis import find, given
from hypothesis import strategies as st

from shardbus.errors import LocalProtocolError
from shardbus.ids import NodeId
from shardbus.membership.gossip import Gossip, Meta, broken_rules
from shardbus.membership.member import TRANSITIONS, Member, Service, Status
from shardbus.membership.reachability import Flag, ObserverRow, Reachability
from shardbus.membership.vector_clock import VectorClock
from tests.markers import soak_only
from tests.records import replace

NODES = tuple(NodeId(host, 1, 1) for host in "abcde")
A, B, C, D, E = NODES
J, W, U, PREPARING, READY, LEAVING, X, DOWN, _ = Status


def member(node: NodeId, status: Status = U, up_number: int = 1) -> Member:
    return Member(node, 2, status=status, up_number=up_number)


def state(seen: str = "abc", **statuses: Status) -> Gossip:
    """The state in which the hosts have these statuses, seen by these hosts."""
    members = {NodeId(h, 1, 1): member(NodeId(h, 1, 1), s) for h, s in sorted(statuses.items())}
    return Gossip(members, frozenset(NodeId(h, 1, 1) for h in seen), clock=VectorClock({A: 1}))


# -- laws --------------------------------------------------------------------------------------

sets_of_nodes = st.lists(st.sampled_from(NODES), unique=True, max_size=5)
counters = st.dictionaries(st.sampled_from(NODES), st.integers(1, 2), max_size=5)
written = st.builds(Meta, st.integers(1, 3), st.sampled_from([b"", b"one", b"two"]))


@st.composite
def arbitrary(draw: st.DrawFn) -> Gossip:
    """Any well-formed copy, also such as no history could bring about."""
    dead = draw(st.dictionaries(st.sampled_from(NODES), st.floats(0, 9), max_size=2))
    alive = [n for n in draw(sets_of_nodes) if n not in dead]
    subset = st.lists(st.sampled_from(alive), unique=True) if alive else st.just([])
    clock = {n: c for n, c in draw(counters).items() if n in alive}
    rows = {
        observer: ObserverRow(
            draw(st.integers(1, 3)),
            {s: draw(st.sampled_from(list(Flag)[1:])) for s in draw(subset) if s != observer},
        )
        for observer in draw(subset)
    }
    return Gossip(
        members={
            n: replace(
                member(n, draw(st.sampled_from(list(Status)[:-1])), draw(st.integers(0, 3))),
                service=draw(st.sampled_from(list(Service))),
                service_version=draw(st.integers(0, 2)),
            )
            for n in sorted(alive)
        },
        seen=frozenset(draw(subset)),
        reachability=Reachability(rows),
        clock=VectorClock(clock),
        tombstones=dead,
        epochs=draw(st.dictionaries(st.sampled_from(["x", "y"]), st.integers(1, 3))),
        meta=draw(st.dictionaries(st.sampled_from(["k", "l"]), written)),
        kept_down=frozenset(draw(sets_of_nodes)) & {*alive, *dead},
    )


@given(arbitrary(), arbitrary(), arbitrary())
def test_merge_laws(a: Gossip, b: Gossip, c: Gossip) -> None:
    assert a.merge(b) == b.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(a) == a
    assert a.merge(b).merge(a) == a.merge(b)
    assert a.merge(b).merge(b) == a.merge(b)
    for part in (a, b):
        assert losses(part, a.merge(b)) == []


def losses(part: Gossip, whole: Gossip) -> list[str]:
    """The content of the part that the whole lacks, though it was not buried."""
    dead = whole.tombstones
    lost = [f"tombstone {n}" for n in part.tombstones if n not in dead]
    lost += [f"counter {n}" for n, c in part.clock.counters.items()
              if n not in dead and whole.clock.counters.get(n, 0) < c]  # fmt: skip
    lost += [f"epoch {t}" for t, e in part.epochs.items() if whole.epochs.get(t, 0) < e]
    lost += [f"{n} kept down" for n in part.kept_down if n not in whole.kept_down]
    lost += [f"meta {n}" for n, w in part.meta.items() if whole.meta.get(n, Meta(0, b"")) < w]
    for node, member in part.members.items():
        now = whole.members.get(node)
        if node not in dead and (now is None or now.status.rank < member.status.rank):
            lost.append(f"status of {node}")
    for observer, row in part.reachability.rows.items():
        if observer not in dead and whole.reachability.rows[observer].version < row.version:
            lost.append(f"row of {observer}")
    return lost


RICH: dict[str, Callable[[Gossip], bool]] = {
    **{s.value: lambda g, s=s: any(m.status is s for m in g.members.values())
       for s in Status if s is not Status.REMOVED},
    "removed": lambda g: bool(g.tombstones),
    "unreachable": lambda g: Flag.UNREACHABLE in g.unreachable().values(),
    "terminated": lambda g: Flag.TERMINATED in g.unreachable().values(),
    "two observers of one": lambda g: len(g.records()) > len(g.unreachable()) > 0,
    "a downed observer": lambda g: len(g.reachability.records()) > len(g.records()),
    "epochs": lambda g: bool(g.epochs),
    "meta": lambda g: bool(g.meta),
    "meta written twice": lambda g: any(w.version > 1 for w in g.meta.values()),
    "seen by some": lambda g: 0 < len(g.seen) < len(g.members),
    "several authors": lambda g: len(g.clock.counters) > 2,
}  # fmt: skip


EASY = ("joining", "epochs", "meta")
"""Traits that are found at once."""


@pytest.mark.parametrize("trait", [*EASY, *soak_only(*sorted(RICH.keys() - EASY))])
def test_the_laws_are_tried_on_rich_states(trait: str) -> None:
    """Both ways of making states reach every status, every flag, and all else that can be
    merged."""
    dice = Random(1)
    assert RICH[trait](find(arbitrary(), RICH[trait], random=dice))
    assert find(histories(), lambda copies: any(map(RICH[trait], copies)), random=dice)


@st.composite
def histories(draw: st.DrawFn) -> list[Gossip]:
    """Five copies after a random history of changes and merges, as nodes would make them."""
    first = (member(A), *(member(n, draw(st.sampled_from([J, U])), 0) for n in NODES[1:]))
    first = tuple(m if m.status is J else replace(m, up_number=1) for m in first)
    founded = Gossip().with_members(A, *first)
    copies = {n: founded.with_seen(n) for n in NODES}
    for _ in range(draw(st.integers(0, 12))):
        me = draw(st.sampled_from(NODES))
        other = draw(st.sampled_from(NODES))
        copy = copies[me]
        if me not in copy.members or other not in copies[other].members:
            continue  # who was removed, and knows it, is silent
        match draw(st.integers(0, 5)):
            case 0 if other != me:
                copy = copy.with_flag(me, other, draw(st.sampled_from(list(Flag))))
            case 1 if other in copy.members and (now := copy.members[other]):
                steps = [s for s in TRANSITIONS[now.status] if s is not Status.REMOVED]
                if steps:
                    step = draw(st.sampled_from(steps))
                    numbered = step is U or (step is PREPARING and now.status is not U)
                    number = draw(st.integers(2, 4)) if numbered else None
                    copy = copy.with_members(me, now.moved(step, number))
            case 2 if other != me and other in copy.members:
                if Status.REMOVED in TRANSITIONS[copy.members[other].status]:
                    copy = copy.without_members(me, (other,), 1.0)
            case 3:
                copy = copy.with_epoch(me, "x", draw(st.integers(1, 5)))
            case 4:
                copy = copy.with_meta(me, "k", draw(st.sampled_from([b"one", b"two"])))
            case _:
                copy = copy.received(copies[other], me)
        copies[me] = copy.with_seen(me) if me in copy.members else copy
    return list(copies.values())


@given(histories())
def test_equal_versions_have_equal_content(copies: list[Gossip]) -> None:
    living = [copy for node, copy in zip(NODES, copies, strict=True) if node in copy.members]
    for member in living:
        for other in living:
            if member.same_version(other):
                assert replace(member, seen=frozenset()) == replace(other, seen=frozenset())


@given(histories(), st.randoms(use_true_random=False))
def test_any_order_of_merging_ends_alike(copies: list[Gossip], random: object) -> None:
    shuffled = list(copies)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    merged, other = Gossip(), Gossip()
    for left, right in zip(copies, shuffled, strict=True):
        merged, other = merged.merge(left), other.merge(right)
    assert merged == other
    for copy in copies:
        assert merged.merge(copy) == merged
        assert losses(copy, merged) == []
        for node, seen in copy.members.items():
            assert node in merged.tombstones or merged.members[node].status.rank >= seen.status.rank
    assert [r for r in broken_rules(merged, NODES[0], ()) if "has seen" not in r] == []


def test_a_change_that_only_one_knew_of_a_node_that_the_other_buried_has_a_version() -> None:
    """The clock of the one loses the author's counter: without a count of its own it would read
    like the clock of the other, which has never heard of the change."""
    base = state("abc", a=U, b=U, c=DOWN)
    knows = base.with_epoch(C, "x", 7)
    buried = base.without_members(A, (C,), 5.0)
    assert knows.merge(buried).same_version(buried)
    for merged in (knows.received(buried, B), buried.received(knows, A)):
        assert merged.epochs == {"x": 7}
        assert not merged.same_version(buried)
        assert merged.received(buried, B).same_version(merged)
    assert base.received(buried, B).same_version(buried)


# -- seen and convergence ----------------------------------------------------------------------


def test_a_change_is_seen_by_its_author_only() -> None:
    before = state(a=U, b=U).with_seen(A, B)
    for after in (
        before.with_flag(A, B, Flag.UNREACHABLE),
        before.with_epoch(A, "x", 1),
        before.with_members(A, member(C, J)),
    ):
        assert after.seen == {A}
        assert after.clock.counters[A] == 2


def test_no_change_is_no_new_version() -> None:
    copy = state(a=U, b=U).with_epoch(A, "x", 3)
    assert copy.with_epoch(B, "x", 3) is copy
    assert copy.with_flag(A, B, Flag.REACHABLE) is copy
    assert copy.with_seen(A) is copy


def test_TU1_seen_of_merged_versions() -> None:
    base = state("abc", a=U, b=U, c=U)
    newer = base.with_epoch(A, "x", 1)
    rival = base.with_epoch(B, "x", 2)
    assert base.merge(newer).seen == {A}
    assert newer.with_seen(C).merge(newer.with_seen(B)).seen == {A, B, C}
    assert newer.merge(rival).seen == frozenset()


@pytest.mark.parametrize(
    ("copy", "flags", "waiting"),
    [
        (Gossip(), {}, []),
        (state("", a=U), {}, [A]),
        (state("a", a=U), {}, []),
        (state("a", a=U, b=U), {}, [B]),
        (state("ab", a=U, b=U), {}, []),
        (state("abc", a=U, b=U), {}, []),
        (state("a", a=U, b=J), {}, []),
        (state("a", a=U, b=W), {}, []),
        (state("a", a=U, b=X), {}, []),
        (state("a", a=U, b=DOWN), {}, []),
        (state("a", a=U, b=LEAVING), {}, [B]),
        (state("a", a=LEAVING, b=LEAVING), {}, [B]),
        (state("b", a=J, b=W), {}, [A]),
        (state("ab", a=J, b=W), {}, []),
        (state("ab", a=U, b=LEAVING), {B: Flag.UNREACHABLE}, [B]),
        (state("ab", a=U, b=U, c=X), {C: Flag.UNREACHABLE}, []),
        (state("ab", a=U, b=U, c=W), {C: Flag.UNREACHABLE}, [C]),
        (state("ab", a=U, b=U, c=U), {}, [C]),
        (state("abc", a=U, b=LEAVING, c=U), {}, []),
        (state("ac", a=U, b=LEAVING, c=U), {}, [B]),
        (state("a", a=U, b=J, c=W), {}, []),
        (state("a", a=U, b=X, c=DOWN), {}, []),
        (state("a", a=J, b=W), {}, [B]),
        (state("", a=X, b=DOWN), {}, []),
        (state("abc", a=U, b=U, c=U), {C: Flag.UNREACHABLE}, [C]),
        (state("abc", a=U, b=U, c=U), {C: Flag.TERMINATED}, [C]),
        (state("a", a=U, b=DOWN, c=X), {B: Flag.UNREACHABLE, C: Flag.TERMINATED}, []),
        (state("a", a=U, b=J), {B: Flag.UNREACHABLE}, [B]),
    ],
)
def test_TU1_convergence(copy: Gossip, flags: dict[NodeId, Flag], waiting: list[NodeId]) -> None:
    reachability = Reachability({A: ObserverRow(1, flags)})
    copy = replace(copy, reachability=reachability)
    assert copy.waiting_for() == waiting
    assert copy.converged() is not bool(waiting)


def test_who_leaves_before_anybody_is_up_does_not_decide_alone() -> None:
    """Two that leave at once would otherwise both make the others Up, under the same numbers."""
    copy = state("a", a=LEAVING, b=J, c=W)
    never_up = replace(copy.members[A], up_number=0)
    copy = replace(copy, members={**copy.members, A: never_up})
    assert copy.waiting_for() == [B, C]
    assert copy.with_seen(B, C).converged()


@pytest.mark.parametrize("observer", [A, D], ids=["one that stays", "another that goes"])
def test_who_ended_while_it_was_exiting_does_not_stand_in_its_own_way(observer: NodeId) -> None:
    """C found that it does not reach B, and ended before it was removed."""
    copy = state("abd", a=U, b=U, c=X, d=X)
    rows = {C: ObserverRow(1, {B: Flag.UNREACHABLE})}
    assert replace(copy, reachability=Reachability(rows)).waiting_for() == [B]
    rows[observer] = ObserverRow(1, {C: Flag.TERMINATED})
    waiting = replace(copy, reachability=Reachability(rows)).waiting_for()
    assert waiting == ([] if observer == A else [B])


def test_TU1_the_word_of_a_downed_observer_does_not_count() -> None:
    copy = replace(
        state("a", a=U, b=DOWN),
        reachability=Reachability({B: ObserverRow(1, {A: Flag.UNREACHABLE})}),
    )
    assert copy.converged()


def test_TU1_members_merge_to_the_later_status() -> None:
    for first, other in product([J, W, U, LEAVING, X, DOWN], repeat=2):
        merged = state(a=first, b=U).merge(state(a=other, c=U))
        assert merged.members[A].status is max(first, other, key=lambda s: s.rank)
        assert list(merged.members) == [A, B, C]


@pytest.mark.parametrize(
    ("first", "other", "merged"),
    [
        ({}, {}, {}),
        ({B: (1, [C])}, {}, {C: Flag.UNREACHABLE}),
        ({B: (1, [C])}, {C: (1, [B])}, {B: Flag.UNREACHABLE, C: Flag.UNREACHABLE}),
        ({B: (1, [C])}, {B: (2, [])}, {}),
        ({B: (3, [C])}, {B: (2, [A])}, {C: Flag.UNREACHABLE}),
        ({B: (1, [C]), A: (1, [C])}, {B: (2, [])}, {C: Flag.UNREACHABLE}),
    ],
)
def test_TU1_what_is_unreachable_merges_by_observer(
    first: dict[NodeId, tuple[int, list[NodeId]]],
    other: dict[NodeId, tuple[int, list[NodeId]]],
    merged: dict[NodeId, Flag],
) -> None:
    def copy(rows: dict[NodeId, tuple[int, list[NodeId]]]) -> Gossip:
        made = {o: ObserverRow(v, dict.fromkeys(s, Flag.UNREACHABLE)) for o, (v, s) in rows.items()}
        return replace(state(a=U, b=U, c=U), reachability=Reachability(made))

    assert copy(first).merge(copy(other)).unreachable() == merged
    assert copy(other).merge(copy(first)).unreachable() == merged


def test_TU1_who_was_removed_on_one_side_is_gone_after_merging() -> None:
    """Also where the other side has changed it, flagged it, or heard from it meanwhile."""
    before = state("abc", a=U, b=U, c=DOWN)
    removed = before.without_members(A, (C,), 5.0)
    for other in (
        before.with_flag(B, C, Flag.UNREACHABLE),
        before.with_flag(C, B, Flag.UNREACHABLE),
        before.with_epoch(B, "x", 1).with_seen(C),
    ):
        merged = removed.merge(other)
        assert list(merged.members) == [A, B]
        assert merged == other.merge(removed)
        assert (merged.unreachable(), C in merged.seen, C in merged.clock.counters) == (
            {},
            False,
            False,
        )


def test_of_what_was_written_under_one_name_the_later_stays() -> None:
    """Of two that were written at once, the greater bytes."""
    first = state(a=U, b=U).with_meta(A, "k", b"z")
    later = first.with_meta(B, "k", b"a")
    rival = state(a=U, b=U).with_meta(B, "k", b"y")
    for left, right, data in ((first, later, b"a"), (first, rival, b"z"), (later, rival, b"a")):
        assert left.merge(right).meta["k"].data == data
        assert right.merge(left).meta["k"].data == data


def test_TU1_a_new_incarnation_is_another_member() -> None:
    again = C._replace(uid=2)
    removed = state(a=U, c=DOWN).without_members(A, (C,), 5.0)
    joined = removed.with_members(A, member(again, J, 0))
    assert list(state(a=U, c=DOWN).merge(joined).members) == [A, again]


# -- removal -----------------------------------------------------------------------------------


def test_TU1_a_removed_node_leaves_only_its_tombstone() -> None:
    copy = state("ab", a=U, b=X, c=U).with_flag(B, C, Flag.UNREACHABLE)
    copy = copy.with_flag(A, B, Flag.TERMINATED).without_members(A, (B,), 5.0)
    assert list(copy.members) == [A, C]
    assert copy.tombstones == {B: 5.0}
    assert copy.unreachable() == {}
    assert B not in copy.clock.counters


def test_TU1_late_gossip_cannot_resurrect() -> None:
    late = state("ab", a=U, b=X)
    removed = late.without_members(A, (B,), 5.0)
    assert late.merge(removed) == removed
    assert B not in late.with_flag(B, A, Flag.UNREACHABLE).merge(removed).members


@pytest.mark.parametrize("status", [J, W, U, LEAVING])
def test_TU1_only_exiting_and_down_members_can_be_removed(status: Status) -> None:
    with pytest.raises(LocalProtocolError):
        state(a=U, b=status).without_members(A, (B,), 0.0)


def test_nobody_removes_itself() -> None:
    with pytest.raises(LocalProtocolError):
        state(a=X).without_members(A, (A,), 0.0)


def test_TU1_of_two_times_of_one_tombstone_the_earlier_stays() -> None:
    """So it is pruned by its age since the removal, however often it travels."""
    first, other = Gossip(tombstones={B: 50.0}), Gossip(tombstones={B: 70.0, C: 60.0})
    for merged in (first.merge(other), other.merge(first)):
        assert merged.tombstones == {B: 50.0, C: 60.0}


def test_TU1_tombstones_travel_as_ages_and_are_pruned_by_time() -> None:
    copy = replace(state(a=U), tombstones={B: 100.0, C: 160.0})
    assert copy.flip_tombstones(170.0).tombstones == {B: 70.0, C: 10.0}
    assert copy.flip_tombstones(170.0).flip_tombstones(1000.0).tombstones == {B: 930.0, C: 990.0}
    assert copy.pruned(150.0).tombstones == {C: 160.0}
    assert copy.pruned(50.0) is copy
    older = replace(copy, tombstones={C: 120.0})
    assert copy.merge(older).tombstones == {B: 100.0, C: 120.0}
