"""Which changes of a picture begin the wait for a decision anew: the table of the module's text."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from shardbus.config.settings import DowningSettings
from shardbus.ids import NodeId
from shardbus.membership.downing.lasting_faults import MOMENT_S
from shardbus.membership.downing.picture import Change, SplitPicture, picture_of
from shardbus.membership.downing.resolver import Resolver
from shardbus.membership.downing.split import EPOCHS, MONITORED_BY, DowningOutcome
from shardbus.membership.downing.split_lease import DowningPlan
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Status
from shardbus.membership.reachability import Flag, ObserverRow, Reachability
from tests.records import replace
from tests.unit.membership.test_gossip import A, B, C, D, state

UP, JOINING, WEAKLY_UP = Status.UP, Status.JOINING, Status.WEAKLY_UP
FOUR = state(a=UP, b=UP, c=UP, d=UP)
STABLE = DowningSettings().stable_after
GONE, NEW, NONE = Change.DEPARTURE, Change.NEW, Change.NONE


def flagged(
    copy: Gossip, *links: tuple[NodeId, NodeId], flag: Flag = Flag.UNREACHABLE, seen: str = "abc"
) -> Gossip:
    """The same with these flags of an observer on a subject, seen by the hosts named."""
    rows: dict[NodeId, dict[NodeId, Flag]] = {}
    for observer, subject in links:
        rows.setdefault(observer, {})[subject] = flag
    reachability = Reachability({o: ObserverRow(1, flags) for o, flags in rows.items()})
    witnesses = frozenset(n for n in copy.members if n.host in seen)
    return replace(copy, reachability=reachability, seen=witnesses)


def with_status(copy: Gossip, node: NodeId, status: Status) -> Gossip:
    member = replace(copy.members[node], status=status)
    return replace(copy, members={**copy.members, node: member})


CUT = [(A, D), (B, D)]
"""D is cut off: nobody reports that C does not reach it."""
ALONE = [*CUT, (C, D)]


def shown(copy: Gossip) -> SplitPicture:
    return picture_of(copy, A, MONITORED_BY, copy.epochs.get(EPOCHS, 0))


@pytest.mark.parametrize(
    ("before", "after", "away", "expected"),
    [
        (flagged(FOUR, *CUT), flagged(FOUR, *CUT), [D], NONE),
        # by or on a member that was cut off
        (flagged(FOUR, *CUT), flagged(FOUR, *ALONE), [D], NONE),
        (flagged(FOUR, *CUT), flagged(FOUR, *CUT, (D, A), (D, B)), [D], NONE),
        (flagged(FOUR, *CUT), flagged(FOUR, *CUT, flag=Flag.TERMINATED), [D], NONE),
        # outside the group, though not cut off
        (flagged(FOUR, *ALONE), flagged(FOUR, *ALONE, (D, B)), [], NONE),
        # between members of the group
        (flagged(FOUR, *CUT), flagged(FOUR, *CUT, (A, C)), [D], NEW),
        (flagged(FOUR, (A, D)), flagged(FOUR, *CUT), [], NEW),
        # the group loses a member that was not cut off
        (flagged(FOUR, *CUT), flagged(FOUR, *ALONE), [], NEW),
        # a link works again
        (flagged(FOUR, *ALONE), flagged(FOUR, *CUT), [D], NEW),
        (flagged(FOUR, *ALONE, (D, A)), flagged(FOUR, *ALONE), [D], NEW),
        # members
        (flagged(state(a=UP, b=UP, d=UP), *CUT), flagged(FOUR, *CUT), [D], NEW),
        (flagged(FOUR, *CUT), flagged(with_status(FOUR, C, Status.LEAVING), *CUT), [D], NEW),
        (
            flagged(with_status(FOUR, C, JOINING), *CUT),
            flagged(with_status(FOUR, C, WEAKLY_UP), *CUT),
            [D],
            NONE,
        ),
        (
            flagged(with_status(FOUR, C, WEAKLY_UP), *CUT),
            flagged(FOUR, *CUT),
            [D],
            NEW,
        ),
        (flagged(FOUR, *CUT), flagged(with_status(FOUR, C, Status.DOWN), *CUT), [D], GONE),
        (flagged(FOUR, *CUT), flagged(with_status(FOUR, C, Status.EXITING), *CUT), [D], GONE),
        (flagged(FOUR, *CUT), flagged(state(a=UP, b=UP, d=UP), *CUT), [D], GONE),
        (flagged(FOUR, *CUT, (C, A)), flagged(state(a=UP, b=UP, d=UP), *CUT), [D], GONE),
        # a member goes, and a link fails
        (
            flagged(FOUR, *CUT),
            flagged(with_status(FOUR, C, Status.DOWN), *CUT, (A, B)),
            [D],
            NEW,
        ),
        # a decision by lease
        (flagged(FOUR, *CUT), replace(flagged(FOUR, *CUT), epochs={EPOCHS: 1}), [D], NEW),
    ],
)
def test_what_a_change_means(
    before: Gossip, after: Gossip, away: list[NodeId], expected: Change
) -> None:
    assert shown(after).change_from(shown(before), away) is expected


def decides_at(pictures: Iterable[tuple[float, Gossip]], me: NodeId = A) -> float:
    """Return when a node decides that meets these copies of the state."""
    resolver, last = Resolver(me, DowningSettings()), FOUR
    for at, copy in pictures:
        assert resolver.consider(copy, True, at) == DowningPlan()
        last = copy
    due = resolver.deadline()
    while due is not None:
        plan = resolver.consider(last, True, due)
        if plan.decision is not None:
            outcome = plan.decision.outcome
            assert outcome in (DowningOutcome.DOWN_OTHERS, DowningOutcome.DOWN_OURSELVES)
            return due
        due = resolver.deadline()
    raise AssertionError("no decision")


def test_reports_by_and_on_a_node_that_is_cut_off_do_not_hold_back_the_decision() -> None:
    first = flagged(FOUR, *CUT)
    reports = [flagged(FOUR, *CUT, *((D, n) for n in (A, B, C)[:k])) for k in (1, 2, 3)]
    reports.append(flagged(FOUR, *ALONE, (D, A), (D, B), (D, C)))
    assert decides_at((10.0 + k, copy) for k, copy in enumerate([first, *reports])) == 10.0 + STABLE


def test_a_member_that_goes_does_not_hold_back_another_one_that_must_go() -> None:
    """B and D have bad links to all others of their side; D goes first."""
    five = state(a=UP, b=UP, c=UP, d=UP, e=UP)
    others = [n for n in five.members if n not in (B, D)]
    links = [(B, n) for n in others] + [(D, n) for n in others]
    both = flagged(five, *links, seen="abcde")
    without = flagged(with_status(five, D, Status.DOWN), *links, seen="abce")
    assert decides_at([(10.0, both), (9.9 + STABLE, without)], B) == 10.0 + STABLE


def test_a_member_that_must_go_by_a_new_report_has_the_whole_wait() -> None:
    """A and B have a bad link only, of which the last by address goes. Then B accuses A, and the
    direction breaks the tie."""
    three = state(a=UP, b=UP, d=UP)
    first = flagged(three, *CUT, (A, B))
    rows = first.reachability.rows
    accused = ObserverRow(2, {D: Flag.UNREACHABLE, A: Flag.QUARANTINED})
    second = replace(first, reachability=Reachability({**rows, B: accused}))
    assert shown(second).change_from(shown(first), [D]) is NONE
    assert decides_at([(10.0, first), (12.0, first)]) == 10.0 + STABLE
    assert decides_at([(10.0, first), (12.0, second)]) == 12.0 + MOMENT_S + STABLE
