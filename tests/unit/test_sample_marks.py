"""Marks of samples: about the same number a second, each event with the same probability."""

from __future__ import annotations

from random import Random

import pytest

from shardbus.sample_marks import NEVER, SampleMarks

WANTED = 100


class Stream:
    """Events that come at a rate in runs, and the weights of their samples."""

    def __init__(self, count: int = WANTED, seed: int = 1) -> None:
        self.marks = SampleMarks(count, Random(seed))
        self.now, self.count = 0.0, 0
        self.weights: list[int] = []

    def flow(self, rate: float, seconds: float, run: int = 1) -> int:
        """Let events come. Returns how many were sampled."""
        before = len(self.weights)
        paced = self.now + 1.0
        for _ in range(round(rate * seconds / run)):
            self.now += run / rate
            self.count += run
            if self.count >= self.marks.mark:
                self.weights.append(self.marks.take(self.count, self.now))
            if self.now >= paced:
                paced += 1.0
                self.marks.pace(self.count)
        return len(self.weights) - before


def test_the_weights_add_up_to_the_events() -> None:
    stream = Stream()
    stream.flow(20_000, 3.0, run=7)
    assert sum(stream.weights) <= stream.count <= sum(stream.weights) + 2 * max(stream.weights)


def test_below_the_wanted_rate_every_event_is_sampled() -> None:
    stream = Stream()
    assert stream.flow(WANTED / 2, 3.0) == 150


@pytest.mark.parametrize("run", [1, 50, 500])
def test_the_wanted_number_a_second_is_sampled_whatever_the_rate(run: int) -> None:
    stream = Stream()
    stream.flow(200_000, 1.5, run)
    assert stream.flow(200_000, 3.0, run) == pytest.approx(3 * WANTED, rel=0.3)


@pytest.mark.parametrize("run", [1, 500])
def test_a_rush_after_a_quiet_second_is_thinned_out_at_once(run: int) -> None:
    stream = Stream()
    stream.flow(1, 3.0)
    assert stream.flow(1_000_000, 0.3, run) <= 3 * WANTED


def test_the_first_events_after_a_quiet_second_are_all_sampled() -> None:
    stream = Stream()
    stream.flow(1, 3.0)
    assert stream.flow(1_000_000, 90 / 1_000_000) == 90


def test_a_rush_for_a_part_of_each_second_is_not_sampled_as_if_it_filled_the_second() -> None:
    stream, taken = Stream(), 0
    for _ in range(5):
        taken = stream.flow(1_000_000, 0.25, 500)
        stream.now += 0.75
        stream.marks.pace(stream.count)
    assert taken <= WANTED


def test_when_the_rush_is_over_events_are_sampled_again() -> None:
    stream = Stream()
    stream.flow(1_000_000, 1.2, 500)
    stream.marks.pace(stream.count)
    stream.marks.pace(stream.count)
    stream.now += 1.0
    assert stream.flow(10, 1.0) >= 9


def test_a_period_of_the_stream_is_not_in_step_with_the_marks() -> None:
    """Every tenth event is of another kind, which gets its tenth of the weight."""
    marks, weights = SampleMarks(WANTED, Random(3)), [0, 0]
    for count in range(1, 400_001):
        if count >= marks.mark:
            weights[count % 10 == 0] += marks.take(count, count / 10_000)
        if count % 10_000 == 0:
            marks.pace(count)
    assert weights[1] / sum(weights) == pytest.approx(0.1, abs=0.02)


def test_any_event_of_a_run_may_be_the_sample() -> None:
    marks = SampleMarks(WANTED, Random(5))
    assert {marks.choose(4) for _ in range(100)} == {0, 1, 2, 3}


def test_what_wants_no_samples_takes_none_until_it_wants_some() -> None:
    marks = SampleMarks(0)
    marks.pace(1_000)
    assert marks.mark == NEVER
    marks.want(WANTED)
    assert marks.mark == 0
    marks.want(0)
    marks.pace(2_000)
    assert marks.mark == NEVER
