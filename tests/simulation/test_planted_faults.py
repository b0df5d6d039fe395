"""Defects planted into the machines, one at a time: the simulator finds each within some seeds.

A check that nobody has ever seen fail proves little. The runs draw their faults as always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus.config.settings import ClusterSettings, DowningSettings
from shardbus.ids import NodeId
from shardbus.membership import admission, cluster, gossip, leader
from shardbus.membership import events as ev
from shardbus.membership.downing import resolver, split_lease, strategies
from shardbus.membership.downing import split as splits
from shardbus.membership.downing.split import Decision, DowningOutcome, Split
from shardbus.membership.failure.confirmed_death import DeathWatch, ProbeOutcome
from shardbus.membership.failure.heartbeat import Heartbeats
from shardbus.membership.failure.local_health import LocalHealth
from shardbus.membership.gossip import Gossip
from shardbus.membership.joining import Joiner
from shardbus.membership.member import Member, Status
from shardbus.membership.messages import Greeting, Join, Welcome
from shardbus.membership.reachability import Flag, Reachability
from shardbus.simulation.membership.checks import Violation
from shardbus.simulation.membership.options import draw
from shardbus.simulation.membership.run import RunOutcome as Run
from shardbus.simulation.membership.run import simulate
from tests.markers import long_only
from tests.records import replace
from tests.unit.membership.membership_net import cut_off_at_the_decision, half_asleep_behind_a_wall

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


def what_was_written_first_is_kept(patch: Patch) -> None:
    def earlier(self: Gossip, other: Gossip) -> Gossip:
        merged = merge(self, other)
        both = self.meta.keys() & other.meta.keys()
        least = {name: min(self.meta[name], other.meta[name]) for name in both}
        return replace(merged, meta={**merged.meta, **least})

    patch.setattr(Gossip, "merge", earlier)


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


def a_side_stays_that_should_go(
    patch: Patch, strategy: str, when: Callable[..., bool] = lambda decision, split, *_: True
) -> None:
    """Wherever `when(decision, split, *more)`, of the decisions of that strategy to go."""
    decide = getattr(strategies, strategy)

    def wrong(split: Split, *more: object) -> Decision:
        decision: Decision = decide(split, *more)
        if decision.outcome is not DowningOutcome.DOWN_OURSELVES or not when(
            decision, split, *more
        ):
            return decision
        return replace(decision, outcome=DowningOutcome.DOWN_OTHERS, down=split.cut)

    patch.setattr(strategies, strategy, wrong)


def a_minority_stays(patch: Patch) -> None:
    a_side_stays_that_should_go(patch, "keep_majority")


def a_lease_that_was_refused_is_taken_as_granted(patch: Patch) -> None:
    on_lease_result = resolver.Resolver.on_lease_result

    def bold(self: resolver.Resolver, name: str, granted: bool | None) -> split_lease.DowningPlan:
        return on_lease_result(self, name, True)

    patch.setattr(resolver.Resolver, "on_lease_result", bold)


def a_probe_without_an_answer_counts_as_a_death(patch: Patch) -> None:
    proofs = set(ProbeOutcome) - {ProbeOutcome.OPEN, ProbeOutcome.ALIVE}
    patch.setattr(ProbeOutcome, "proves_death", property(lambda self: self in proofs))


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


def who_is_gone_is_listened_to(patch: Patch) -> None:
    collect = cluster.ClusterMembership._collect_effects

    def attached(self: cluster.ClusterMembership) -> list[ev.Effect]:
        return [effect for effect in collect(self) if not isinstance(effect, ev.Unsubscribe)]

    patch.setattr(cluster.ClusterMembership, "_collect_effects", attached)


def who_is_gone_is_probed(patch: Patch) -> None:
    patch.setattr(DeathWatch, "keep", lambda self, nodes: None)


# -- strategies, settings, health ----------------------------------------------------------------


def a_quorum_may_be_too_small(patch: Patch) -> None:
    def blind(decision: Decision, split: Split, size: int) -> bool:
        return "too large" in decision.reason and len(split.ours) >= size

    a_side_stays_that_should_go(patch, "static_quorum", blind)


def one_vote_less_is_a_quorum_too(patch: Patch) -> None:
    def modest(decision: Decision, split: Split, size: int) -> bool:
        return "no quorum" in decision.reason and len(split.ours) >= size - 1

    a_side_stays_that_should_go(patch, "static_quorum", modest)


def the_oldest_stays_though_it_is_alone(patch: Patch) -> None:
    def vain(decision: Decision, *_: object) -> bool:
        return "here, but alone" in decision.reason

    a_side_stays_that_should_go(patch, "keep_oldest", vain)


def each_side_has_a_lease_of_its_own(patch: Patch) -> None:
    update = resolver.Resolver._update_picture

    def own(self: resolver.Resolver, gossip: Gossip, now: float) -> None:
        before = self._checked
        update(self, gossip, now)
        if gossip is not before:
            self._lease.epoch += self.me.uid % 1000

    patch.setattr(resolver.Resolver, "_update_picture", own)


def a_lease_runs_out(patch: Patch) -> None:
    patch.setattr(split_lease, "LEASE_TTL_S", 20.0)


def a_lease_won_for_one_split_decides_about_the_next(patch: Patch) -> None:
    """A pair of faults finds it: the wall falls within the margin, and rises again."""
    update = resolver.Resolver._update_picture

    def keeps(self: resolver.Resolver, gossip: Gossip, now: float) -> None:
        granted = self._lease._granted
        update(self, gossip, now)
        self._lease._granted = granted

    patch.setattr(resolver.Resolver, "_update_picture", keeps)


def down_all_downs_all_others(patch: Patch) -> None:
    a_side_stays_that_should_go(patch, "down_all")


def who_is_down_and_may_not_know_it_is_forgotten(patch: Patch) -> None:
    survey = splits.survey

    def forgetful(*arguments: object, **more: object) -> Split:
        split = survey(*arguments, **more)  # type: ignore[arg-type]
        return replace(split, theirs=tuple(n for n in split.theirs if n in split.cut))

    patch.setattr(resolver, "survey", forgetful)


def set_otherwise(patch: Patch, **settings: float) -> None:
    start = resolver.Resolver.__init__

    def other(self: resolver.Resolver, me: NodeId, given: DowningSettings, **more: object) -> None:
        start(self, me, replace(given, **settings), **more)  # type: ignore[arg-type]

    patch.setattr(resolver.Resolver, "__init__", other)


def the_winner_does_not_wait_for_the_losers(patch: Patch) -> None:
    set_otherwise(patch, down_removal_margin=0.0)


def it_is_decided_at_the_first_look(patch: Patch) -> None:
    set_otherwise(patch, stable_after=0.05)


def the_first_do_not_wait_for_enough(patch: Patch) -> None:
    patch.setattr(leader, "enough_members", lambda gossip, least, roles: True)


def weakly_up_is_never_off(patch: Patch) -> None:
    start = cluster.ClusterMembership.__init__

    def eager(
        self: cluster.ClusterMembership, me: Member, name: str, read: ClusterSettings, *rest: Any
    ):
        start(self, me, name, replace(read, allow_weakly_up_members=2.0), *rest)

    patch.setattr(cluster.ClusterMembership, "__init__", eager)


def patience_has_no_end(patch: Patch) -> None:
    def sulk(self: LocalHealth, seconds: float) -> None:
        self.lag = 1e6 if seconds > 1.0 else self.lag

    patch.setattr(LocalHealth, "patience_max", 1e6)
    patch.setattr(LocalHealth, "unanswered_max", 10**6)
    patch.setattr(LocalHealth, "on_late", sulk)
    patch.setattr(LocalHealth, "on_good_beat", lambda self: None)


@dataclass(frozen=True)
class Found:
    """Which rule may find a defect first, and in which kind of run."""

    rules: tuple[str, ...]
    where: dict[str, Any]


def within(*rules: str, **where: object) -> Found:
    return Found(rules, dict(where))


WALLS = {"partitions": 2, "wall_s": 25.0, "store": "sound"}

TWO_SIDES = ("place", "sides", "ages")
"""Two that go on have removed each other, or count those that come up each for itself."""

CONFIGURED: dict[Plant, Found] = {
    a_minority_stays: within(*TWO_SIDES, strategy="keep-majority", **WALLS),
    a_lease_that_was_refused_is_taken_as_granted: within(
        *TWO_SIDES, nodes=4, strategy="keep-majority", **WALLS
    ),
    a_quorum_may_be_too_small: within(*TWO_SIDES, strategy="static-quorum", quorum=1, **WALLS),
    one_vote_less_is_a_quorum_too: within(*TWO_SIDES, strategy="static-quorum", quorum=3, **WALLS),
    the_oldest_stays_though_it_is_alone: within(
        *TWO_SIDES, strategy="keep-oldest", down_if_alone=True, **WALLS
    ),
    each_side_has_a_lease_of_its_own: within(*TWO_SIDES, strategy="lease-majority", **WALLS),
    a_lease_won_for_one_split_decides_about_the_next: within(
        "calm",
        strategy="lease-majority",
        margin_s=20.0,
        flaps=2,
        partitions=2,
        wall_s=40.0,
        seconds=60.0,
        store="sound",
    ),
    down_all_downs_all_others: within(*TWO_SIDES, strategy="down-all", **WALLS),
    the_winner_does_not_wait_for_the_losers: within("calm", margin_s=5.0, **WALLS),
    it_is_decided_at_the_first_look: within("calm", **WALLS),
    the_first_do_not_wait_for_enough: within("acts", min_members=3, nodes=5),
    weakly_up_is_never_off: within("weak", weakly_up=False, joins=3, **WALLS),
    patience_has_no_end: within("I9", pauses=20, pause_s=4.0, vanishes=2, restarts=False),
}
"""Defects that need a certain strategy or setting: the rest of the run is drawn."""


def who_is_ready_to_stop_is_missed(patch: Patch) -> None:
    patch.setattr(gossip, "ON_THE_WAY_OUT", (Status.DOWN, Status.EXITING))
    patch.setattr(splits, "ON_THE_WAY_OUT", (Status.DOWN, Status.EXITING))


PLANTS: dict[Plant, tuple[str, ...]] = {
    tombstones_are_forgotten: ("I8",),
    seen_is_not_cleared_on_change: ("seen",),
    a_merge_believes_every_seen_node: ("seen",),
    unreachable_is_not_spread: ("I8",),
    the_lower_epoch_is_taken: ("I8", "I6"),
    what_was_written_first_is_kept: ("I8",),
    one_observer_clears_anothers_mark: ("rows",),
    the_leader_acts_without_convergence: ("acts",),
    a_new_incarnation_does_not_down_the_old: ("names",),
    a_probe_without_an_answer_counts_as_a_death: ("dead",),
    silence_is_never_noticed: ("I9",),
    a_removed_node_is_let_in_again: ("audit",),
    who_joins_forgets_the_time: ("I12",),
    a_status_may_go_back: ("I8",),
    ages_are_not_counted_on: ("ages",),
    who_is_ready_to_stop_is_missed: ("stop",),
    who_is_gone_is_listened_to: ("wires",),
    who_is_gone_is_probed: ("audit",),
}
"""Each defect, and the rules that may find it first."""


KNOWN: dict[Plant, int] = {
    a_lease_won_for_one_split_decides_about_the_next: 4,
    the_winner_does_not_wait_for_the_losers: 8,
    it_is_decided_at_the_first_look: 13,
}
"""Seeds that found a defect when this list was last brought up to date. They are tried first."""


def first_broken(seeds: Iterable[int], where: dict[str, Any]) -> Run | None:
    """The first of these runs that breaks a rule."""
    runs = (simulate(replace(draw(seed), **where)) for seed in seeds)
    return next((run for run in runs if run.broken), None)


@pytest.mark.long
@pytest.mark.parametrize("plant", CONFIGURED, ids=lambda plant: plant.__name__)
def test_a_fault_planted_in_a_configured_cluster_is_found(plant: Plant, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    configured = CONFIGURED[plant]
    broken = first_broken((KNOWN.get(plant, 0), *range(SEEDS)), configured.where)
    assert broken is not None, f"{plant.__name__}: nothing broke in {SEEDS} seeds"
    assert broken.broken is not None
    assert broken.broken.rule in configured.rules, broken.report()


def test_a_forgotten_member_that_is_down_and_may_not_know_it_leaves_two_sides(
    monkeypatch: Patch,
) -> None:
    """A seed would have to be lucky: two walls, the second at the very moment of a decision."""
    who_is_down_and_may_not_know_it_is_forgotten(monkeypatch)
    net = cut_off_at_the_decision()
    with pytest.raises(Violation, match=r"^place"):
        net.run(60)


SLOW = (
    who_is_ready_to_stop_is_missed,
    unreachable_is_not_spread,
    who_is_gone_is_probed,
    silence_is_never_noticed,
    a_probe_without_an_answer_counts_as_a_death,
    one_observer_clears_anothers_mark,
    a_removed_node_is_let_in_again,
    tombstones_are_forgotten,
    who_is_gone_is_listened_to,
    a_new_incarnation_does_not_down_the_old,
)
"""Faults that take seconds to find: `make test` leaves them to `make test-long`."""


@pytest.mark.parametrize(
    "plant",
    [*(plant for plant in PLANTS if plant not in SLOW), *long_only(*SLOW)],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    broken = first_broken(range(SEEDS), {})
    assert broken is not None, f"{plant.__name__}: nothing broke in {SEEDS} seeds"
    assert broken.broken is not None
    assert broken.broken.rule in PLANTS[plant], broken.broken.detail
    report = broken.report()
    assert f"replay: shardbus simulate --seed {broken.options.seed} " in report
    assert all(line in report for line in broken.options.lines())


def test_a_lease_that_runs_out_leaves_two_sides(monkeypatch: Patch) -> None:
    """A seed would have to be lucky: half of the nodes sleep for longer than the lease, and wake
    while a wall still stands."""
    a_lease_runs_out(monkeypatch)
    net = half_asleep_behind_a_wall("keep-majority")
    with pytest.raises(Violation, match=r"^place"):
        net.run(120)
