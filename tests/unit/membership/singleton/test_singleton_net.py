"""Singletons in `singleton_net`, over many seeds: the laws hold, and each planted fault is found.

A failing seed is replayed with `run_seed(SEED, NATURE)`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardbus.config.settings import SingletonSettings
from shardbus.membership.member import Member, Status
from shardbus.membership.singleton import messages as ho
from shardbus.membership.singleton import singleton
from shardbus.membership.singleton.predecessors import Predecessors
from shardbus.membership.singleton.singleton import Singleton, SingletonState
from shardbus.membership.view import MembershipView
from tests import laws
from tests.records import replace
from tests.unit.membership.singleton.singleton_net import GENTLE, HASTY, ROUGH, Nature, Net, Node

SEEDS, BLOCK = 600, 100
PLANT_SEEDS = 150
FAULTS = ("leave", "leave", "leave", "join", "join", "crash", "restart")
HASTY_FAULTS = ("leave", "leave", "leave", "crash")
"""Who joins after a node was removed cannot know that its instance is still finishing."""
ROUGH_FAULTS = (*FAULTS, "down", "split", "linger")


def run_seed(seed: int, nature: Nature) -> Net:
    """Nodes come, leave, crash and are cut off for fifteen seconds; then there is quiet."""
    try:
        return _run_seed(seed, nature)
    except AssertionError as error:
        raise AssertionError(f"seed {seed} of {nature}: {error}") from error


def _run_seed(seed: int, nature: Nature) -> Net:
    net = Net(seed, nature)
    dice = net.dice
    for _ in range(dice.randint(4, 8) if nature is HASTY else dice.randint(1, 6)):
        net.join()
    faults = ROUGH_FAULTS if nature.loss else HASTY_FAULTS if nature is HASTY else FAULTS
    for _ in range(dice.randint(1, 8)):
        net.at(dice.uniform(1, 15), lambda: fault(net, dice.choice(faults)))
    net.run_to(60)
    net.check_quiet()
    return net


def fault(net: Net, what: str) -> None:
    """Something happens, mostly to the oldest; one node stays, so that there is an end to see."""
    up = [node for node in net.nodes.values() if node.alive and net.status(node) is Status.UP]
    up = [node for node in up if node.me not in net.walls]
    if what == "join" or len(up) < 2:
        if net.nature is not HASTY:
            net.join()
        return
    node = up[0] if net.dice.random() < 0.7 else net.dice.choice(up)
    match what:
        case "leave":
            net.leave(node)
            if len(up) > 2 and net.dice.random() < 0.4:
                net.at(net.now + net.dice.uniform(0, 0.5), lambda: net.leave(up[1]))
        case "crash":
            net.crash(node)
        case "restart":
            net.leave(node)
            net.at(net.now + net.dice.uniform(0.01, 1), lambda: net.join(at=node.me))
        case "down":
            net.down(node)
        case "linger":
            net.change(node, Status.LEAVING)
        case "split":
            cut = up[: net.dice.randint(1, len(up) - 1)]
            net.split(cut, net.dice.uniform(0.1, 3))


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_TG1_never_two_at_a_time_where_nothing_is_lost_and_one_in_the_end(first: int) -> None:
    for seed in range(first, first + BLOCK):
        run_seed(seed, GENTLE)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_TG1_never_two_at_a_time_if_membership_is_faster_than_the_hand_over(first: int) -> None:
    for seed in range(first, first + BLOCK):
        run_seed(seed, HASTY)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_TG1_one_in_the_end_however_rough_it_was(first: int) -> None:
    for seed in range(first, first + BLOCK):
        run_seed(seed, ROUGH)


def test_a_margin_delays_and_does_not_block() -> None:
    for seed in range(100):
        run_seed(seed, replace(ROUGH, margin=4.0))


def six(seed: int, nature: Nature = GENTLE) -> tuple[Net, list[Node]]:
    """Six nodes, and the first rules."""
    net = Net(seed, nature)
    nodes = [net.join() for _ in range(6)]
    net.run_to(3)
    net.check_quiet()
    return net, nodes


def test_TG9_a_leave_costs_one_message_and_one_claim() -> None:
    most = GENTLE.delay[1] + GENTLE.claim[1]
    for seed in range(300):
        net, nodes = six(seed)
        net.gaps.clear()
        net.leave(nodes[0])
        net.run_to(20)
        net.check_quiet()
        assert len(net.gaps) == 1
        assert net.gaps[0] <= most, f"seed {seed}: {net.gaps[0]:.3f} s"


def test_TG2_three_oldest_crash_at_once() -> None:
    for seed in range(100):
        for nature in (GENTLE, ROUGH):
            net, nodes = six(seed, nature)
            for node in nodes[:3]:
                net.crash(node)
            net.run_to(30)
            net.check_quiet()
            assert [node.name for node in net.active()] == ["n4"]


def test_TG1_one_after_the_other_crashes_in_five_two_in_three_one_in_two() -> None:
    for seed in range(50):
        net, nodes = six(seed, ROUGH)
        net.leave(nodes[0])
        net.run_to(30)
        net.crash(nodes[1])
        net.run_to(60)
        net.crash(nodes[2])
        net.crash(nodes[3])
        net.run_to(90)
        net.crash(nodes[4])
        net.run_to(120)
        net.check_quiet()
        assert [node.name for node in net.active()] == ["n6"]


def test_TG5_first_second_and_third_leave_in_turn_and_then_all() -> None:
    for seed in range(50):
        net, nodes = six(seed)
        for count, node in enumerate(nodes):
            net.leave(node)
            net.run_to(net.now + 15)
            net.check_quiet()
            assert [n.name for n in net.active()] == [n.name for n in nodes[count + 1 : count + 2]]


def test_TG7_the_whole_cluster_stops_without_a_hand_over() -> None:
    for seed in range(50):
        net, nodes = six(seed)
        net.prepare_shutdown()
        net.run_to(5)
        for node in nodes:
            net.leave(node)
        net.run_to(30)
        net.check_quiet()
        assert list(net.claims.values()) == ["n1"]


# -- planted faults: a check that nobody has seen fail proves little -----------------------------

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
settle, successor = Singleton._settle, Predecessors.successor


def the_done_of_the_older_one_is_not_waited_for(patch: Patch) -> None:
    patch.setattr(Predecessors, "awaited", lambda self: [])


def a_lost_done_is_waited_for_for_ever(patch: Patch) -> None:
    patch.setattr(singleton, "SingletonSettings", lambda: SingletonSettings(*[1000.0] * 5))


def done_is_said_before_the_instance_has_stopped(patch: Patch) -> None:
    def hasty(self: Singleton, now: float) -> list[ho.Effect]:
        effects = settle(self, now)
        if self.state is not SingletonState.HANDING_OVER:
            return effects
        return [
            ho.SendHandOver(e.to, ho.HandOverDone(e.message.epoch))
            if isinstance(e, ho.SendHandOver) and isinstance(e.message, ho.HandOverInProgress)
            else e
            for e in effects
        ]

    patch.setattr(Singleton, "_settle", hasty)


def the_second_oldest_rules_as_well(patch: Patch) -> None:
    def generous(self: Predecessors) -> object:
        first = successor(self)
        up = [m for m in self.view.members if m.status is Status.UP]
        second = sorted(up, key=lambda m: m.up_number)[1:2]
        return self._me if second and second[0].node == self._me else first

    patch.setattr(Predecessors, "successor", generous)


def a_downed_node_goes_on(patch: Patch) -> None:
    deaf = property(lambda self: False, lambda self, value: None)
    patch.setattr(Singleton, "_downed", deaf, raising=False)


def one_that_has_left_is_forgotten_at_once(patch: Patch) -> None:
    on_gone = Predecessors._on_gone

    def careless(self: Predecessors, member: Member, before: MembershipView, now: float) -> None:
        on_gone(self, member, before, now)
        self._departures.pop(member.node, None)

    patch.setattr(Predecessors, "_on_gone", careless)


def nobody_is_asked_twice_nor_given_up(patch: Patch) -> None:
    patch.setattr(Singleton, "deadline", lambda self: None)


PLANTS: dict[Plant, tuple[Nature, str]] = {
    the_done_of_the_older_one_is_not_waited_for: (GENTLE, "two act"),
    a_lost_done_is_waited_for_for_ever: (ROUGH, "in the end"),
    done_is_said_before_the_instance_has_stopped: (GENTLE, "two act"),
    the_second_oldest_rules_as_well: (GENTLE, "two act"),
    a_downed_node_goes_on: (ROUGH, "after it was downed"),
    one_that_has_left_is_forgotten_at_once: (HASTY, "two act"),
    nobody_is_asked_twice_nor_given_up: (ROUGH, "without a deadline"),
}
"""Each defect, a world that shows it, and the text of the report."""


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    nature, expected = PLANTS[plant]

    def first_found() -> str:
        for seed in range(PLANT_SEEDS):
            try:
                run_seed(seed, nature)
            except AssertionError as error:
                return str(error)
        return f"nothing in {PLANT_SEEDS} seeds"

    assert expected in first_found()
    laws.forget()
