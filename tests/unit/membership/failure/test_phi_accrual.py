"""The phi accrual detector against its definition and the behaviour that B.7 names. T.U20."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.membership.failure.phi_accrual import PhiAccrual, phi_of


def normal_tail(silence: float, mean: float, deviation: float) -> float:
    return 0.5 * math.erfc((silence - mean) / (deviation * math.sqrt(2)))


def fed(detector: PhiAccrual, *intervals: float, start: float = 0.0) -> float:
    now = start
    detector.heartbeat(now)
    for interval in intervals:
        now += interval
        detector.heartbeat(now)
    return now


@pytest.mark.parametrize("silence", [0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4])
def test_TU20_phi_follows_the_normal_distribution(silence: float) -> None:
    exact = -math.log10(normal_tail(silence, 1.0, 0.1))
    assert phi_of(silence, 1.0, 0.1) == pytest.approx(exact, abs=0.02 + 0.1 * exact)


@pytest.mark.parametrize(
    ("silence", "phi"),
    [(0.5, 0.0), (1.0, 0.3), (1.2, 1.6), (1.4, 4.7), (1.6, 10.8), (1.7, 15.3)],
)
def test_TU20_realistic_values(silence: float, phi: float) -> None:
    """Intervals of one second, give or take a tenth: other detectors of this kind agree."""
    assert phi_of(silence, 1.0, 0.1) == pytest.approx(phi, abs=0.1)


def test_TU20_a_wider_deviation_is_more_patient() -> None:
    assert [round(phi_of(1.5, 1.0, dev), 1) for dev in (0.1, 0.2, 0.5)] == sorted(
        (round(phi_of(1.5, 1.0, dev), 1) for dev in (0.1, 0.2, 0.5)), reverse=True
    )


def test_TU20_available_again_and_lost_again() -> None:
    """Heartbeats, silence, heartbeats, silence: each is judged anew."""
    detector = PhiAccrual()
    now = fed(detector, *[1.0] * 5)
    for _ in range(2):
        assert detector.available(now + 3.0)
        assert not detector.available(now + 10.0)
        detector.heartbeat(now + 10.0)
        now += 10.0
        for _ in range(5):
            now += 1.0
            assert detector.heartbeat(now) == pytest.approx(1.0)


@given(st.floats(0.0, 1e6), st.floats(0.001, 1e3), st.floats(0.001, 1e3))
def test_phi_is_bounded_and_grows_with_silence(silence: float, mean: float, dev: float) -> None:
    phi = phi_of(silence, mean, dev)
    assert 0.0 <= phi <= 300.0
    assert phi_of(silence + dev, mean, dev) >= phi


def test_TU20_no_suspicion_before_the_first_heartbeat() -> None:
    detector = PhiAccrual()
    assert not detector.monitoring
    assert detector.phi(1e9) == 0.0
    assert detector.available(1e9)


def test_TU20_the_first_heartbeat_brings_an_estimate() -> None:
    detector = PhiAccrual(first_estimate=2.0)
    detector.heartbeat(0.0)
    assert detector.mean == pytest.approx(2.0)
    assert detector.deviation == pytest.approx(0.5)


def test_TU20_mean_and_deviation_are_of_the_last_samples() -> None:
    detector = PhiAccrual(max_sample_size=4, acceptable_pause=100.0)
    fed(detector, 5.0, 5.0, 1.0, 2.0, 3.0, 4.0)
    assert detector.mean == pytest.approx(2.5)
    assert detector.deviation == pytest.approx(math.sqrt(1.25))


def test_TU20_the_pause_is_accepted_and_more_is_not() -> None:
    detector = PhiAccrual(threshold=8.0, acceptable_pause=3.0)
    now = fed(detector, *[1.0] * 100)
    assert detector.available(now + 4.0)
    assert not detector.available(now + 6.0)


def test_a_higher_threshold_is_more_patient() -> None:
    def patience(threshold: float) -> float:
        detector = PhiAccrual(threshold=threshold)
        now = fed(detector, *[1.0] * 50)
        return next(t / 100 for t in range(2000) if not detector.available(now + t / 100))

    assert 4.0 < patience(8.0) < patience(12.0) < 6.0


def test_TU20_a_heartbeat_ends_the_suspicion_and_the_outage_is_not_sampled() -> None:
    detector = PhiAccrual()
    now = fed(detector, *[1.0] * 10)
    before = detector.mean
    assert detector.heartbeat(now + 60.0) is None
    assert detector.available(now + 60.0)
    assert detector.mean == before
    assert detector.heartbeat(now + 61.0) == pytest.approx(1.0)


def test_other_signs_of_life_reset_the_silence_without_a_sample() -> None:
    detector = PhiAccrual()
    detector.touch(5.0)
    assert not detector.monitoring
    now = fed(detector, *[1.0] * 10)
    mean = detector.mean
    detector.touch(now + 3.0)
    assert detector.mean == mean
    assert detector.available(now + 6.0)
    detector.touch(now + 30.0)
    assert not detector.available(now + 30.0)


def test_the_time_an_observer_slept_is_credited() -> None:
    detector = PhiAccrual()
    now = fed(detector, *[1.0] * 10)
    detector.credit(60.0)
    assert detector.available(now + 61.0)
    assert detector.heartbeat(now + 61.0) == pytest.approx(1.0)


@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60))
def test_against_a_list(intervals: list[float]) -> None:
    detector = PhiAccrual(max_sample_size=10, acceptable_pause=1000.0)
    fed(detector, *intervals)
    samples = [0.75, 1.25, *intervals][-10:]
    mean = sum(samples) / len(samples)
    assert detector.mean == pytest.approx(mean, abs=1e-6)
    variance = sum((s - mean) ** 2 for s in samples) / len(samples)
    assert detector.deviation == pytest.approx(math.sqrt(variance), abs=1e-3)
