"""The ring of watchers, and heartbeats over it. T.U7, T.U8."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.config.settings import FailureDetectorSettings
from shardbus.ids import NodeId
from shardbus.membership.failure.heartbeat import Heartbeats, Verdict
from shardbus.membership.failure.ring import ring_hash, watched
from shardbus.membership.messages import Heartbeat, HeartbeatReply
from shardbus.membership.view import SlowHeartbeat

NODES = [NodeId(f"n{i}", 7355, i) for i in range(20)]
ME, B, C, D = NODES[:4]


def heartbeats(**settings: float) -> Heartbeats:
    made = Heartbeats(ME, FailureDetectorSettings(**settings))  # type: ignore[arg-type]
    made.on_members([B], [])
    made.start(0.0)
    return made


@pytest.mark.parametrize(
    ("nodes", "unreachable", "monitored_by", "expected"),
    [(1, 0, 9, 0), (2, 0, 9, 1), (5, 0, 9, 4), (20, 0, 9, 9), (20, 0, 3, 3), (20, 19, 3, 19)],
)
def test_TU7_how_many_are_watched(
    nodes: int, unreachable: int, monitored_by: int, expected: int
) -> None:
    chosen = watched(ME, NODES[:nodes], NODES[1 : 1 + unreachable], monitored_by)
    assert len(chosen) == expected
    assert ME not in chosen


def test_TU7_unreachable_ones_are_watched_in_addition() -> None:
    first = watched(ME, NODES, [], 3)
    more = watched(ME, NODES, first[:2], 3)
    assert more[:3] == first
    assert len(more) == 5


def test_TU7_everybody_is_watched_by_exactly_so_many() -> None:
    watchers = Counter(w for node in NODES for w in watched(node, NODES, [], 5))
    assert watchers == dict.fromkeys(NODES, 5)


def test_TU7_the_ring_is_the_same_everywhere_and_for_ever() -> None:
    assert ring_hash(NodeId("10.0.0.1", 7355, 1)) == 5331152351636328347
    assert watched(ME, NODES, [], 4) == watched(ME, NODES[::-1], [], 4)


def test_S1_21_the_ring_spreads_neighbours_by_address() -> None:
    """Nodes of one rack have neighbouring addresses. Most are watched from elsewhere."""
    place = {node: n for n, node in enumerate(sorted(NODES))}
    close = total = 0
    for node in NODES:
        for other in watched(node, NODES, [], 3):
            distance = abs(place[node] - place[other])
            close += min(distance, len(NODES) - distance) <= 3
            total += 1
    assert close < total / 2


def test_TU8_a_beat_a_second_and_silence_becomes_a_verdict() -> None:
    hb = heartbeats()
    verdicts: list[tuple[float, Verdict]] = []
    sent = []
    now = 0.0
    while now < 20.0:
        beats, judged, starved = hb.tick(now)
        assert not starved
        sent += [now for _ in beats]
        verdicts += [(now, v) for v in judged]
        for node, beat in beats:
            if now < 10.0:
                hb.on_reply(node, HeartbeatReply(beat.sequence, beat.sent_at), now)
        now = hb.deadline() or 99.0
    assert sent == [float(t) for t in range(20)]
    assert [(v.node, v.available) for _, v in verdicts] == [(B, False)]
    assert 13.0 < verdicts[0][0] < 15.0
    hb.on_reply(B, HeartbeatReply(99, 19.0), 20.0)
    assert [v.available for v in hb.tick(20.0)[1]] == [True]


def test_TC13_a_node_that_never_answers_is_found() -> None:
    hb = heartbeats()
    now, found_at = 0.0, None
    while found_at is None and now < 20.0:
        _, judged, _ = hb.tick(now)
        found_at = now if judged else None
        now = hb.deadline() or 99.0
    assert found_at is not None
    assert 5.0 < found_at < 8.0


def run_until(hb: Heartbeats, end: float, delays: dict[NodeId, list[tuple[float, float]]]) -> Any:
    """Return (time, node, available) of each verdict. `delays`: (until when, how late) each node
    answers; after that it does not."""
    verdicts: list[tuple[float, NodeId, bool]] = []
    replies: list[tuple[float, NodeId, Heartbeat]] = []
    now = 0.0
    while now < end:
        for at, node, beat in sorted(replies, key=lambda reply: reply[0]):
            if at <= now:
                hb.on_reply(node, HeartbeatReply(beat.sequence, beat.sent_at), at)
        replies = [reply for reply in replies if reply[0] > now]
        beats, judged, _ = hb.tick(now)
        verdicts += [(now, v.node, v.available) for v in judged]
        for node, beat in beats:
            late = [delay for until, delay in delays.get(node, []) if now < until]
            replies += [(now + delay, node, beat) for delay in late[:1]]
        now = hb.deadline() or 99.0
    return verdicts


def three_watched(prompt_within: float = inf) -> Heartbeats:
    hb = Heartbeats(ME, FailureDetectorSettings(monitored_by=3), prompt_within)
    hb.on_members([ME, B, C, D], [])
    hb.start(0.0)
    return hb


def test_who_hears_no_other_reports_all_of_them_at_once() -> None:
    """C was late before, so its silence alone would be noticed later."""
    hb = three_watched()
    jittery = [(t + 1.0, 0.1 if t % 4 else 1.9) for t in range(20)]
    verdicts = run_until(hb, 40.0, {B: [(20.0, 0.0)], C: jittery, D: [(20.0, 0.0)]})
    assert {(node, available) for _, node, available in verdicts} == {(n, False) for n in (B, C, D)}
    assert len({at for at, _, _ in verdicts}) == 1


def test_who_hears_some_reports_the_silent_ones_only() -> None:
    hb = three_watched()
    verdicts = run_until(hb, 40.0, {B: [(20.0, 0.0)], C: [(99.0, 0.0)], D: [(99.0, 0.0)]})
    assert [(node, available) for _, node, available in verdicts] == [(B, False)]


def test_a_node_reported_with_another_one_is_reachable_again_by_its_next_answer() -> None:
    hb = three_watched()
    hb.watches[C].suspected = hb.watches[C].silent = True
    verdicts = run_until(hb, 3.0, {n: [(99.0, 0.1)] for n in (B, C, D)})
    assert [(node, available) for _, node, available in verdicts] == [(C, True)]


LATE = ((B, 4.5), (C, 3.9))


@pytest.mark.parametrize(("prompt_within", "suspected"), [(inf, False), (4.0, True)])
def test_a_node_that_answers_late_for_long_is_unreachable_where_the_others_cannot_go_on_without_it(
    prompt_within: float, suspected: bool
) -> None:
    hb = three_watched(prompt_within)
    slower = [(t + 1.0, 0.3 * t) for t in range(60)]
    late = {node: [(until, min(delay, most)) for until, delay in slower] for node, most in LATE}
    verdicts = run_until(hb, 60.0, {**late, D: [(99.0, 0.0)]})
    assert [(n, a) for _, n, a in verdicts] == ([(B, False)] if suspected else [])


def test_whoever_slept_judges_nobody() -> None:
    hb = heartbeats()
    hb.tick(0.0)
    hb.on_reply(B, HeartbeatReply(1, 0.0), 0.1)
    beats, judged, starved = hb.tick(60.0)
    assert starved == pytest.approx(59.75, abs=0.3)
    assert beats == [(B, Heartbeat(2, 60.0, hb.health.patience_max))]
    assert judged == []


def test_replies_that_nobody_asked_for_are_ignored() -> None:
    hb = heartbeats()
    hb.tick(0.0)
    hb.on_reply(C, HeartbeatReply(1, 0.0), 0.1)
    hb.on_reply(B, HeartbeatReply(1, 1e9), 0.1)
    assert not hb.watches[B].detector.monitoring
    assert C not in hb.watches


def test_a_slow_reply_is_reported() -> None:
    hb = heartbeats()
    hb.on_reply(B, HeartbeatReply(1, 0.0), 0.0)
    assert hb.on_reply(B, HeartbeatReply(2, 1.0), 1.0) == []
    assert hb.on_reply(B, HeartbeatReply(3, 2.0), 3.5) == [SlowHeartbeat(B, 2.5)]


def test_TU8_a_suspect_stays_watched_when_the_ring_changes() -> None:
    """A newcomer stands between the observer and the suspect, and takes its place in the ring. Only
    the observer can clear its flag, so it must still see the suspect answer."""
    ring = watched(ME, NODES, [], len(NODES))
    newcomer, suspect = ring[2], ring[5]
    hb = Heartbeats(ME, FailureDetectorSettings(monitored_by=1))
    hb.on_members([suspect], [])
    hb.start(0.0)
    hb.watches[suspect].suspected = True
    hb.on_members([newcomer, suspect], [suspect])
    assert list(hb.watches) == [newcomer, suspect]
    hb.on_members([newcomer], [])
    assert list(hb.watches) == [newcomer], "the suspect is no member any more"


def test_TU8_a_suspect_that_answers_again_is_left_to_its_watchers() -> None:
    ring = watched(ME, NODES, [], len(NODES))
    newcomer, suspect = ring[2], ring[5]
    hb = Heartbeats(ME, FailureDetectorSettings(monitored_by=1))
    hb.on_members([suspect], [])
    hb.watches[suspect].suspected = True
    hb.on_members([newcomer, suspect], [suspect])
    hb.watches[suspect].suspected = False
    hb.on_members([newcomer, suspect], [])
    assert list(hb.watches) == [newcomer]


@pytest.mark.parametrize(("threshold", "available"), [(1.0, False), (40.0, True)])
def test_S1_17_the_threshold_is_the_settings(threshold: float, available: bool) -> None:
    """The same silence, a little longer than mean and pause, is judged by the threshold."""
    hb = heartbeats(threshold=threshold, self_health=False)
    now = 0.0
    for sequence in range(1, 20):
        hb.on_reply(B, HeartbeatReply(sequence, now), now)
        now += 1.0
    silence = now - 1.0 + 1.0 + FailureDetectorSettings().acceptable_heartbeat_pause + 0.2
    assert hb.watches[B].detector.available(silence) is available


def test_B17_silence_is_checked_four_times_in_each_heartbeat_interval() -> None:
    hb = heartbeats()
    ticks = []
    while (due := hb.deadline()) is not None and due < 2.0:
        hb.tick(due)
        ticks.append(due)
    assert ticks == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75]


def test_TU8_an_unreachable_one_is_watched_until_it_is_back() -> None:
    hb = Heartbeats(ME, FailureDetectorSettings(monitored_by=3))
    hb.start(0.0)
    hb.on_members(NODES, [])
    first = list(hb.watches)
    lost = first[0]
    hb.on_members(NODES, [lost])
    assert list(hb.watches) == watched(ME, NODES, [lost], 3)
    assert len(hb.watches) == 4
    hb.on_members(NODES, [])
    assert list(hb.watches) == first


def test_TU21_another_incarnation_is_watched_by_a_detector_of_its_own() -> None:
    hb = heartbeats()
    hb.tick(0.0)
    hb.on_reply(B, HeartbeatReply(1, 0.0), 0.1)
    again = B._replace(uid=99)
    hb.on_members([again], [])
    assert list(hb.watches) == [again]
    assert not hb.watches[again].detector.monitoring
    assert hb.phis(100.0) == {again: 0.0}


@given(st.lists(st.tuples(st.sampled_from("jlurs"), st.integers(1, 9)), max_size=60))
def test_TU8_any_operations_against_a_dumb_reference(steps: list[tuple[str, int]]) -> None:
    """Joins, leaves, unreachable, reachable, replies. The reference keeps plain sets."""
    hb = Heartbeats(ME, FailureDetectorSettings(monitored_by=3))
    hb.start(0.0)
    members: set[NodeId] = set()
    lost: set[NodeId] = set()
    suspects: set[NodeId] = set()
    heard: set[NodeId] = set()
    for now, (step, number) in enumerate(steps, 1):
        node = NODES[number]
        match step:
            case "j":
                members.add(node)
            case "l":
                members.discard(node)
                lost.discard(node)
            case "u" if node in members:
                lost.add(node)
                if node in hb.watches:
                    hb.watches[node].suspected = True
                    suspects.add(node)
            case "r":
                lost.discard(node)
                if node in hb.watches:
                    hb.watches[node].suspected = False
                    suspects.discard(node)
            case _:
                hb.on_reply(node, HeartbeatReply(1, 0.0), float(now))
                heard |= {node} & hb.watches.keys()
        hb.on_members(sorted(members), sorted(lost))
        expected = {*watched(ME, members, lost, 3), *(suspects & members)}
        suspects &= expected
        heard &= expected
        assert set(hb.watches) == expected
        assert {n for n, w in hb.watches.items() if w.detector.monitoring} == heard
