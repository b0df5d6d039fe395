"""Defects planted into the machines, one at a time: the simulator finds each within some seeds.

A check that nobody has ever seen fail proves little. The runs draw their faults as always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardbus.ids import NodeId
from shardbus.membership import admission, downing, leader, resolver, strategies
from shardbus.membership.confirm import ProbeOutcome
from shardbus.membership.downing import Outcome
from shardbus.membership.gossip import Gossip
from shardbus.membership.heartbeat import Heartbeats
from shardbus.membership.join import Joiner
from shardbus.membership.member import Member
from shardbus.membership.messages import Greeting, Join, Welcome
from shardbus.membership.reachability import Flag, Reachability
from shardbus.simulation.options import draw
from shardbus.simulation.run import Outcome as Run
from shardbus.simulation.run import simulate

SEEDS = 40
Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
merge, changed = Gossip.merge, Gossip._changed


def tombstones_are_forgotten(patch: Patch) -> None:
    def forgetful(self: Gossip, other: Gossip) -> Gossip:
        return replace(merge(self, other), tombstones={})

    patch.setattr(Gossip, "merge", forgetful)


def seen_is_not_cleared_on_change(patch: Patch) -> None:
    def kept(self: Gossip, by: NodeId, **parts: object) -> Gossip:
        return changed(self, by, **parts).with_seen(*self.seen)  # type: ignore[arg-type]

    patch.setattr(Gossip, "_changed", kept)


def a_merge_believes_every_seen_node(patch: Patch) -> None:
    def gullible(self: Gossip, other: Gossip) -> Gossip:
        merged = merge(self, other)
        seen = (n for n in self.seen | other.seen if n in merged.members)
        return replace(merged, seen=frozenset(seen))

    patch.setattr(Gossip, "merge", gullible)


def unreachable_is_not_spread(patch: Patch) -> None:
    def deaf(self: Reachability, other: Reachability) -> Reachability:
        return self

    patch.setattr(Reachability, "merge", deaf)


def the_lower_epoch_is_taken(patch: Patch) -> None:
    def lower(self: Gossip, other: Gossip) -> Gossip:
        merged = merge(self, other)
        both = self.epochs.keys() & other.epochs.keys()
        least = {kind: min(self.epochs[kind], other.epochs[kind]) for kind in both}
        return replace(merged, epochs={**merged.epochs, **least})

    patch.setattr(Gossip, "merge", lower)


def one_observer_clears_anothers_mark(patch: Patch) -> None:
    marked = Reachability.marked

    def generous(self: Reachability, observer: NodeId, subject: NodeId, flag: Flag) -> Reachability:
        after = marked(self, observer, subject, flag)
        if flag is not Flag.REACHABLE or after is self:
            return after
        for other in self.rows:
            after = marked(after, other, subject, flag)
        return after

    patch.setattr(Reachability, "marked", generous)


def the_leader_acts_without_convergence(patch: Patch) -> None:
    patch.setattr(Gossip, "converged", lambda self: True)


def a_new_incarnation_does_not_down_the_old(patch: Patch) -> None:
    admit = admission.admit

    def careless(
        gossip: Gossip, me: NodeId, greeting: Greeting, sender: NodeId, join: Join
    ) -> tuple[Gossip, object]:
        taken, answer = admit(gossip, me, greeting, sender, join)
        if not isinstance(answer, Welcome) or sender in gossip.members:
            return taken, answer
        taken = gossip.with_members(me, join.member)
        return taken, Welcome(taken)

    patch.setattr(admission, "admit", careless)


def a_minority_stays(patch: Patch) -> None:
    decide = strategies.keep_majority

    def stubborn(split: downing.Split) -> downing.Decision:
        decision = decide(split)
        if decision.outcome is not Outcome.DOWN_OURSELVES:
            return decision
        return replace(decision, outcome=Outcome.DOWN_OTHERS, down=split.cut)

    patch.setattr(strategies, "keep_majority", stubborn)


def a_lease_that_was_refused_is_taken_as_granted(patch: Patch) -> None:
    on_lease = resolver.Resolver.on_lease

    def bold(self: resolver.Resolver, name: str, granted: bool | None) -> resolver.Plan:
        return on_lease(self, name, True)

    patch.setattr(resolver.Resolver, "on_lease", bold)


def a_probe_without_an_answer_counts_as_a_death(patch: Patch) -> None:
    patch.setattr(
        ProbeOutcome, "proves_death", property(lambda self: self is not ProbeOutcome.OPEN)
    )


def silence_is_never_noticed(patch: Patch) -> None:
    patch.setattr(Heartbeats, "_reap", lambda self, now: [])


def a_removed_node_is_let_in_again(patch: Patch) -> None:
    merged_buried = merge

    def undead(self: Gossip, other: Gossip) -> Gossip:
        merged = merged_buried(self, other)
        back = {n: m for n, m in other.members.items() if n not in merged.members}
        members = dict(sorted({**merged.members, **back}.items()))
        return replace(merged, members=members)

    patch.setattr(Gossip, "merge", undead)


def who_joins_forgets_the_time(patch: Patch) -> None:
    patch.setattr(Joiner, "deadline", lambda self: float("inf"))


def a_status_may_go_back(patch: Patch) -> None:
    patch.setattr(Member, "merge", lambda self, other: other)


def ages_are_not_counted_on(patch: Patch) -> None:
    act = leader.act_on_convergence

    def timeless(gossip: Gossip, me: NodeId, enough: bool, now: float) -> Gossip:
        after = act(gossip, me, enough, now)
        if after is gossip:
            return after
        members = {n: replace(m, up_number=min(m.up_number, 1)) for n, m in after.members.items()}
        return replace(after, members=members)

    patch.setattr(leader, "act_on_convergence", timeless)


PLANTS: dict[Plant, tuple[str, ...]] = {
    tombstones_are_forgotten: ("I8",),
    seen_is_not_cleared_on_change: ("seen",),
    a_merge_believes_every_seen_node: ("seen",),
    unreachable_is_not_spread: ("I8",),
    the_lower_epoch_is_taken: ("I8", "I6"),
    one_observer_clears_anothers_mark: ("rows",),
    the_leader_acts_without_convergence: ("acts",),
    a_new_incarnation_does_not_down_the_old: ("names",),
    a_minority_stays: ("sides",),
    a_lease_that_was_refused_is_taken_as_granted: ("sides",),
    a_probe_without_an_answer_counts_as_a_death: ("dead",),
    silence_is_never_noticed: ("I9",),
    a_removed_node_is_let_in_again: ("audit",),
    who_joins_forgets_the_time: ("I12",),
    a_status_may_go_back: ("I8",),
    ages_are_not_counted_on: ("ages",),
}
"""Each defect, and the rules that may find it first."""


def first_broken(seeds: int) -> Run | None:
    """The first run of so many that breaks a rule."""
    runs = (simulate(draw(seed)) for seed in range(seeds))
    return next((run for run in runs if run.broken), None)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = first_broken(SEEDS)
    assert found is not None, f"{plant.__name__}: nothing broke in {SEEDS} seeds"
    assert found.broken is not None
    assert found.broken.rule in PLANTS[plant], found.broken.detail
    report = found.report()
    assert f"replay: shardbus simulate --seed {found.options.seed} " in report
    assert all(line in report for line in found.options.lines())
