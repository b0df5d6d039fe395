"""How a node judges itself, and the effect on its judgement of others."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardbus.config.settings import FailureDetectorSettings
from shardbus.ids import NodeId
from shardbus.membership.failure.heartbeat import Heartbeats
from shardbus.membership.failure.local_health import FORGIVEN, STRETCH_MAX, LocalHealth
from shardbus.membership.messages import Heartbeat, HeartbeatReply
from shardbus.membership.view import NodeStarved

NODES = [NodeId(f"n{i}", 7355, i) for i in range(10)]
ME, B, C = NODES[:3]
DEFAULTS = FailureDetectorSettings()
BEATS = 16
"""So many unanswered heartbeats prove silence, at default settings."""
STEPS = ("late", "together", "false alarm", "good beat")


def step(health: LocalHealth, what: str, seconds: float = 1.0) -> None:
    match what:
        case "late":
            health.on_late(seconds)
        case "together":
            health.on_silent_together()
        case "false alarm":
            health.on_false_alarm()
        case _:
            health.on_good_beat()


# -- the two numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "lag", "blame"),
    [
        ([], 0.0, 0.0),
        ([("late", 0.2)], 0.0, 0.0),
        ([("late", 0.25)], 0.25, 0.0),
        ([("late", 1.5), ("late", 0.5)], 1.5, 0.0),
        ([("late", 60.0)], 9.0, 0.0),
        ([("together", 0)], 0.0, 1.5),
        ([("together", 0)] * 5, 0.0, 3.0),
        ([("false alarm", 0)], 0.0, 3.0),
        ([("false alarm", 0)] * 9, 0.0, 9.0),
        ([("false alarm", 0), ("together", 0)], 0.0, 3.0),
        ([("late", 0.5), ("good beat", 0)], 0.4, 0.0),
        ([("together", 0), ("good beat", 0)], 0.0, 1.4),
        ([("late", 0.3)] + [("good beat", 0)] * 9, 0.0, 0.0),
    ],
)
def test_B25_what_counts(steps: list[tuple[str, float]], lag: float, blame: float) -> None:
    health = LocalHealth(DEFAULTS)
    for what, seconds in steps:
        step(health, what, seconds)
    assert (health.lag, health.blame) == (pytest.approx(lag), pytest.approx(blame))
    assert health.patience == pytest.approx(min(lag + blame, 9.0))


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.floats(0, 1e6)), max_size=50))
def test_patience_is_bounded_and_forgotten(steps: list[tuple[str, float]]) -> None:
    health = LocalHealth(DEFAULTS)
    for what, seconds in steps:
        step(health, what, seconds)
        pause = DEFAULTS.acceptable_heartbeat_pause
        assert 0.0 <= health.patience <= health.patience_with(1e9) <= (STRETCH_MAX - 1) * pause
    before = health.patience
    health.on_good_beat()
    assert before - 2 * FORGIVEN - 1e-9 <= health.patience <= before
    for _ in range(round(health.patience_max / FORGIVEN)):
        health.on_good_beat()
    assert health.patience == pytest.approx(0.0, abs=1e-6)


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.floats(0, 100)), max_size=30))
def test_it_can_be_switched_off(steps: list[tuple[str, float]]) -> None:
    health = LocalHealth(FailureDetectorSettings(self_health=False))
    for what, seconds in steps:
        step(health, what, seconds)
    assert (health.patience, health.patience_with(5.0), health.lag) == (0.0, 0.0, 0.0)


# -- an observer ---------------------------------------------------------------------------------


class Watcher:
    """An observer of some nodes on a clock that is turned by hand. `answering` nodes reply at once,
    telling of `lag`."""

    def __init__(self, *nodes: NodeId, self_health: bool = True) -> None:
        self.hb = Heartbeats(ME, FailureDetectorSettings(self_health=self_health))
        self.hb.on_members(nodes, [])
        self.hb.start(0.0)
        self.now = 0.0
        self.answering = list(nodes)
        self.lag = 0.0
        self.notices: list[object] = []
        self.marked: dict[NodeId, float] = {}

    def look(self) -> None:
        """One tick, now."""
        beats, verdicts, _ = self.hb.tick(self.now)
        for verdict in verdicts:
            if verdict.available:
                self.marked.pop(verdict.node, None)
            else:
                self.marked[verdict.node] = self.now
        for node, beat in beats:
            if node in self.answering:
                reply = HeartbeatReply(beat.sequence, beat.sent_at, self.lag)
                self.notices += self.hb.on_reply(node, reply, self.now)

    def run(self, seconds: float, late: float = 0.0) -> None:
        """Let time pass; every timer rings so much too late."""
        end = self.now + seconds
        while (due := self.hb.deadline()) is not None and due + late <= end:
            self.now = due + late
            self.look()
        self.now = end

    def detection_time(self, node: NodeId, late: float = 0.0) -> float:
        """The node falls silent: how long until it is marked?"""
        self.answering.remove(node)
        began = self.now
        while node not in self.marked:
            assert self.now < began + 1000.0, "it is never found"
            self.run(0.25 + late, late)
        return self.marked[node] - began


def test_B25_in_good_health_a_death_is_found_as_fast_as_without() -> None:
    for others in (1, 2, 5, 9):
        plain, careful = (Watcher(*NODES[1 : 1 + others], self_health=on) for on in (False, True))
        plain.run(30)
        careful.run(30)
        assert careful.detection_time(B) == plain.detection_time(B) < 5.0


@pytest.mark.parametrize(
    ("late", "patience"), [(0.1, 0.0), (0.3, 0.3), (1.0, 1.0), (1.9, 1.9), (3.0, 3.0), (60.0, 9.0)]
)
def test_B25_who_was_late_is_patient(late: float, patience: float) -> None:
    watcher = Watcher(B, C)
    watcher.run(30.0)
    watcher.now = (watcher.hb.deadline() or 0.0) + late
    watcher.look()
    assert watcher.hb.health.patience == pytest.approx(patience)
    assert watcher.hb.notices_within == pytest.approx(6.0 + patience)


def test_B25_who_is_patient_suspects_later() -> None:
    fresh, starved = Watcher(B), Watcher(B)
    fresh.run(30.0)
    starved.run(27.0)
    starved.run(3.0, late=2.5)
    assert starved.detection_time(B) > fresh.detection_time(B) + 1.5


@pytest.mark.parametrize("late", [0.3, 1.5, 1.99, 30.0])
def test_B25_every_lateness_is_credited_not_only_a_long_one(late: float) -> None:
    """The silence that this node slept through does not count, be it short."""
    watcher = Watcher(B)
    watcher.run(30.0)
    detector = watcher.hb.watches[B].detector
    watcher.answering = []
    watcher.run(3.9)
    due = watcher.hb.deadline() or 0.0
    before = detector.phi(due)
    watcher.now = due + late
    watcher.look()
    detector.patience = 0.0
    assert detector.phi(watcher.now) == pytest.approx(before)


def test_B25_several_that_fall_silent_at_once_are_suspected_later_than_one() -> None:
    alone, together = Watcher(*NODES[1:6]), Watcher(*NODES[1:6])
    for watcher in (alone, together):
        watcher.run(30.0)
    together.answering = [B]
    assert alone.detection_time(B) + 2.0 < together.detection_time(B) < 10.0


def test_B25_a_false_alarm_makes_careful_unless_the_other_was_starved() -> None:
    for lag, blamed in ((0.0, True), (8.0, False)):
        watcher = Watcher(B)
        watcher.run(30.0)
        watcher.detection_time(B)
        watcher.answering, watcher.lag = [B], lag
        watcher.run(1.0)
        assert watcher.marked == {}
        assert (watcher.hb.health.blame > 0.0) is blamed


def test_N12_who_says_that_it_is_starved_is_suspected_later_and_not_for_ever() -> None:
    honest, silent = Watcher(B), Watcher(B)
    honest.lag = 4.0
    for watcher in (honest, silent):
        watcher.run(30.0)
    assert honest.detection_time(B) == pytest.approx(silent.detection_time(B) + 4.0, abs=0.5)
    greedy = Watcher(B)
    greedy.lag = 1e6
    greedy.run(30.0)
    assert silent.marked[B] + 8.0 < 30.0 + greedy.detection_time(B) < 30.0 + 16.0


def test_N12_a_starved_node_is_news_once_until_it_has_recovered() -> None:
    watcher = Watcher(B)
    for lag in (0.0, 2.5, 2.4, 1.9, 1.2, 2.1, 0.4, 3.0):
        watcher.lag = lag
        watcher.run(1.0)
    assert watcher.notices == [NodeStarved(B, 2.5), NodeStarved(B, 3.0)]
    assert watcher.hb.on_beat(C, Heartbeat(1, 1.0, 9.0)) == []


def test_N12_a_late_node_says_so_in_the_first_reply_already() -> None:
    watcher = Watcher(B)
    watcher.run(10.0)
    beat = Heartbeat(7, 1.0)
    assert watcher.hb.answer(beat, watcher.now) == HeartbeatReply(7, 1.0)
    late = watcher.hb.answer(beat, watcher.now + 6.25)
    assert late.lag == pytest.approx(6.0, abs=0.26)
    assert watcher.hb.answer(beat, watcher.now + 1e6).lag == watcher.hb.health.patience_max


def test_whom_unanswered_beats_have_found_only_a_reply_brings_back() -> None:
    """The detector of a starved observer finds nobody: all its time is credited."""
    watcher = Watcher(B)
    watcher.detection_time(B, late=5.0)
    watcher.hb.on_sign_of_life(B, watcher.now)
    watcher.run(12.0, late=5.0)
    assert B in watcher.marked
    watcher.answering = [B]
    watcher.run(12.0, late=5.0)
    assert B not in watcher.marked


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=8))
@example([0.8])
@example([5.0, 0.8])
def test_a_real_death_is_found_by_a_bounded_number_of_beats(lates: list[float]) -> None:
    """However late the observer's timers are, and whatever the dead node had said of itself."""
    watcher = Watcher(B)
    watcher.lag = 1e6
    watcher.run(5.0)
    watcher.answering = []
    before = watcher.hb._sequence
    for turn in range(1000):
        if watcher.marked:
            break
        watcher.now = (watcher.hb.deadline() or 0.0) + lates[turn % len(lates)]
        watcher.look()
    assert 0 < watcher.hb._sequence - before <= BEATS + 1


def test_patience_grows_with_starvation() -> None:
    """More lateness never makes an observer quicker."""

    def patience(late: float) -> float:
        watcher = Watcher(B)
        watcher.run(20.0, late=late)
        return watcher.hb.health.patience

    assert all(a <= b for a, b in pairwise(patience(n / 4) for n in range(12)))
