"""Seeds with unfair links that hold, and defects planted into membership that unfair links find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardbus.ids import NodeId
from shardbus.membership.downing.links import BadLinks
from shardbus.membership.downing.resolver import Resolver
from shardbus.membership.downing.split_lease import DowningPlan
from shardbus.membership.downing.strategies import unstable
from shardbus.membership.gossip import Gossip
from shardbus.membership.suspension import Suspension
from shardbus.simulation.membership.options import Options, draw
from shardbus.simulation.membership.run import simulate
from shardbus.simulation.membership.troubles import WALLS, NodeTrouble
from tests.markers import long_only, soak_only
from tests.records import replace

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]

BLOCKS, BLOCK = 6, 3


def check(options: Options) -> None:
    outcome = simulate(options)
    assert outcome.broken is None, outcome.report()


@pytest.mark.parametrize("block", [0, *long_only(1), *soak_only(*range(2, BLOCKS))])
def test_nothing_breaks(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        check(draw(seed, links="unfair"))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_nothing_breaks_for_thousands_of_seeds() -> None:
    for seed in range(2000):
        check(draw(seed, links="unfair"))


def run_of(
    kind: str, *others: str, strategy: str = "keep-majority", nodes: int = 4, **more: Any
) -> Options:
    """A run in which n2 has this trouble, with its gossip if it is a wall."""
    names = [f"n{number}" for number in range(1, nodes + 1) if number != 2]
    channels = ("gossip",) if kind in WALLS else ()
    channels = ("messages", "gossip", "probes") if more.get("rejecting") else channels
    trouble = NodeTrouble(kind, "n2", others or tuple(names), 10.0, 40.0, channels, **more)
    return Options(5, nodes, 50.0, strategy=strategy, links="unfair", troubles=(trouble,))


def every_flag_refuses_consent(patch: Patch) -> None:
    consents = Suspension.consents

    def strict(self: Suspension, gossip: Gossip, asker: NodeId, refused: bool, now: float) -> bool:
        return consents(self, gossip, asker, refused or asker in gossip.unreachable(), now)

    patch.setattr(Suspension, "consents", strict)


def an_accusation_is_a_verdict(patch: Patch) -> None:
    fewest = BadLinks.fewest_to_go

    def hasty(self: BadLinks, stays: NodeId | None = None) -> tuple[NodeId, ...]:
        accused = [node for node, count in self._doubts.items() if count > 0]
        return tuple(sorted(accused)) or fewest(self, stays)

    patch.setattr(BadLinks, "fewest_to_go", hasty)


def both_ends_of_a_bad_link_go(patch: Patch) -> None:
    patch.setattr(BadLinks, "fewest_to_go", lambda self, stays=None: tuple(sorted(self.ends)))


def the_deaf_ask_for_the_lease_at_once(patch: Patch) -> None:
    patch.setattr(Resolver, "_outnumbered", property(lambda self: False))


def bad_links_are_left_as_they_are(patch: Patch) -> None:
    patch.setattr(BadLinks, "fewest_to_go", lambda self, stays=None: ())


def all_go_where_flags_come_and_go(patch: Patch) -> None:
    def rash(self: Resolver, decide: object, now: float) -> DowningPlan:
        if self._flapping.since is None or now < self._flapping.since + 1.0:
            return DowningPlan()
        return DowningPlan(decision=unstable(self._split, "any", 1.0))

    patch.setattr(Resolver, "_check_instability", rash)


REJECTED = {"strategy": "lease-majority", "nodes": 3, "rejecting": True}
"""n2 finds all others gone at once, and hears of them nothing more."""

FOUND: dict[Plant, tuple[str, Options]] = {
    every_flag_refuses_consent: ("suspended", run_of("accuses")),
    an_accusation_is_a_verdict: ("stays", run_of("accuses")),
    both_ends_of_a_bad_link_go: ("only", run_of("mute", "n1")),
    the_deaf_ask_for_the_lease_at_once: ("stays", run_of("cannot-connect", **REJECTED)),
    bad_links_are_left_as_they_are: ("goes", run_of("accuses")),
    all_go_where_flags_come_and_go: ("stays", run_of("mute", flaps_s=8.0)),
}
"""By defect: the rule that finds it, and the run."""


@pytest.mark.long
@pytest.mark.parametrize("plant", FOUND, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: Patch) -> None:
    rule, options = FOUND[plant]
    check(options)
    plant(monkeypatch)
    broken = simulate(options).broken
    assert broken is not None
    assert broken.rule == rule, broken.detail


@pytest.mark.parametrize("kind", WALLS)
@pytest.mark.parametrize("strategy", ["keep-majority", *soak_only("keep-oldest", "lease-majority")])
def test_one_impaired_node_goes_and_suspends_no_other(kind: str, strategy: str) -> None:
    check(replace(run_of(kind, strategy=strategy), drift=0.01))
