"""The hour of a node, and the sums of the members' hours, on clocks that the tests move."""

from __future__ import annotations

from shardbus.admin.load_history import (
    COLUMNS,
    FRESH_STEPS,
    SAMPLES_MAX,
    STEP_S,
    ClusterHour,
    LoadHistory,
    LoadReading,
    NodeSums,
    SavedHour,
)
from shardbus.histograms import Histogram
from shardbus.ids import NodeId

ONE, TWO = NodeId("a", 7355, 1), NodeId("b", 7355, 2)


class Watched:
    """A node whose counters grow as a test says."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now, self.received, self.reads = now, 0, 0
        self.entities, self.busy = 0.0, 0.0
        self.handled, self.waited = Histogram(), Histogram()
        self.history = LoadHistory(lambda: self.now, self.read)

    def read(self) -> LoadReading:
        self.reads += 1
        copies = Histogram(), Histogram()
        for copy, sums in zip(copies, (self.handled, self.waited), strict=True):
            copy.add(sums)
        totals = (self.received, 0, 0, 0, 0, 0.0)
        return LoadReading(totals, *copies, (0.0, self.entities, self.busy, 0.0))

    def seconds(self, count: int) -> None:
        """Let time pass, in which a sample is due every second."""
        for _ in range(count):
            self.now += 1
            self.history.sample()

    def rows(self, after: int = -1) -> list[dict[str, float]]:
        return [
            dict(zip(("number", *COLUMNS), row, strict=True))
            for row in self.history.after(after)[2]
        ]


def test_B149_a_sample_has_the_rates_of_its_step_and_the_load_at_its_end() -> None:
    node = Watched()
    node.history.sample()
    node.received, node.entities, node.busy = 50, 7, 0.25
    node.handled.observe(0.004, 100)
    node.seconds(STEP_S)
    node.seconds(STEP_S)
    first, second = node.rows()
    assert (first["number"], second["number"]) == (100, 101)
    assert (first["received"], first["entities"], first["busy"]) == (5.0, 7.0, 0.25)
    assert 0.0025 < first["handled"] <= 0.005
    assert (second["received"], second["handled"], second["waited"]) == (0.0, 0.0, 0.0)
    assert node.rows(after=100) == [second]


def test_B149_messages_before_the_first_reading_count_in_the_first_step() -> None:
    node = Watched()
    node.received = 50
    node.handled.observe(0.004, 100)
    node.history.sample()
    node.received = 70
    node.seconds(2 * STEP_S)
    first, second = node.rows()
    assert (first["received"], second["received"]) == (7.0, 0.0)
    assert 0.0025 < first["handled"] <= 0.005


def test_nothing_is_read_within_a_step() -> None:
    node = Watched()
    node.seconds(STEP_S * 10)
    assert node.reads == 11


def test_a_loop_that_was_blocked_leaves_a_gap_and_counts_nothing_twice() -> None:
    node = Watched()
    node.history.sample()
    node.now += 35
    node.received = 70
    node.history.sample()
    node.seconds(STEP_S)
    assert [(row["number"], row["received"]) for row in node.rows()] == [(102, 2.0), (103, 0.0)]


def test_a_counter_that_begins_anew_gives_no_negative_rate() -> None:
    node = Watched()
    node.received = 100
    node.history.sample()
    node.received = 0
    node.seconds(STEP_S)
    assert [row["received"] for row in node.rows()] == [0.0]


def test_an_hour_is_kept_and_no_more() -> None:
    node = Watched()
    node.seconds(STEP_S * (SAMPLES_MAX + 20))
    rows = node.rows()
    assert len(rows) == SAMPLES_MAX == 3600 / STEP_S
    assert rows[-1]["number"] - rows[0]["number"] == SAMPLES_MAX - 1


def row(number: int, **values: float) -> list[float]:
    """A sample of a node."""
    return [number, *(values.get(column, 0.0) for column in COLUMNS)]


def shown(hour: ClusterHour, now: float) -> list[dict[str, float]]:
    names = ("ago", "nodes", *COLUMNS)
    return [dict(zip(names, row, strict=True)) for row in hour.rows(now)]


def test_rates_are_added_and_of_loads_the_highest_counts() -> None:
    hour = ClusterHour()
    hour.add(ONE, 10.0, 10.0, COLUMNS, [row(7, received=3, entities=4, busy=0.2, handled=0.5)])
    hour.add(TWO, 10.0, 510.2, COLUMNS, [row(507, received=2, entities=1, busy=0.9, handled=0.1)])
    [only] = shown(hour, 10.0)
    assert (only["nodes"], only["received"], only["entities"]) == (2, 5, 5)
    assert (only["busy"], only["handled"]) == (0.9, 0.5)
    assert only["ago"] == 2.0


def test_a_sample_that_is_sent_again_counts_once_and_stays_in_its_step() -> None:
    hour = ClusterHour()
    assert hour.asks([ONE, TWO]) == {ONE: -1, TWO: -1}
    hour.add(ONE, 10.0, 110.4, COLUMNS, [row(105, received=1), row(106, received=1)])
    assert hour.asks([ONE, TWO]) == {ONE: 106, TWO: -1}
    # The difference of the clocks is fixed, although this answer came a little later.
    hour.add(ONE, 11.2, 111.75, COLUMNS, [row(106, received=1), row(107, received=1)])
    assert [step["received"] for step in shown(hour, 12.0)] == [1, 1, 1]
    assert [step["nodes"] for step in shown(hour, 12.0)] == [1, 1, 1]


def test_a_step_is_shown_once_every_member_has_sampled_it() -> None:
    hour = ClusterHour()
    hour.add(ONE, 10.0, 10.0, COLUMNS, [row(8), row(9)])
    assert [step["ago"] for step in shown(hour, 10.5)] == [1.5]
    assert len(shown(hour, 10.7)) == 2


def test_the_part_of_a_node_that_has_gone_stays_and_the_node_is_named() -> None:
    hour = ClusterHour()
    for node in (ONE, TWO):
        hour.add(node, 10.0, 10.0, COLUMNS, [row(7, received=3)])
    assert hour.ended(10.0, [ONE, TWO]) == []
    assert hour.asks([ONE]) == {ONE: 7}
    hour.add(ONE, 11.0, 11.0, COLUMNS, [row(8, received=3)])
    assert [step["received"] for step in shown(hour, 11.0)] == [6, 3]
    assert hour.ended(11.0, [ONE]) == [(str(TWO), 3.0)]


def test_a_node_is_forgotten_with_its_last_step() -> None:
    hour = ClusterHour()
    for node, number in ((ONE, 9), (TWO, 7)):
        hour.add(node, 10.0, 10.0, COLUMNS, [row(number)])
    assert [name for name, _ in hour.ended(7.0 + SAMPLES_MAX, [])] == [str(TWO), str(ONE)]
    assert [name for name, _ in hour.ended(7.5 + SAMPLES_MAX, [])] == [str(ONE)]
    assert hour.ended(9.5 + SAMPLES_MAX, []) == []


def test_another_node_takes_the_sums_and_adds_each_sample_once() -> None:
    keeper, taker = ClusterHour(), ClusterHour()
    keeper.add(ONE, 10.0, 110.4, COLUMNS, [row(106, received=1, busy=0.5)])
    keeper.add(TWO, 10.0, 10.0, COLUMNS, [row(6, received=2), row(7, received=2)])
    # The keeper's clock is 500 steps ahead of the taker's, but for a part of a step.
    taker.take(509.8, keeper.saved(10.1))
    assert taker.asks([ONE, TWO]) == {ONE: 106, TWO: 7}
    taker.add(ONE, 510.8, 111.4, COLUMNS, [row(106, received=1), row(107, received=1)])
    assert [step["received"] for step in shown(taker, 511.0)] == [3, 3]
    assert [step["nodes"] for step in shown(taker, 511.0)] == [2, 2]
    assert taker.rows(511.0)[0][0] == 4.0
    assert taker.ended(511.0, [ONE]) == [(str(TWO), 3.0)]
    assert len(keeper.rows(11.0)) == 2, "the keeper's are its own"


def test_the_sums_of_another_release_may_have_other_values() -> None:
    taker = ClusterHour()
    nodes = [NodeSums(str(ONE), 0, 7)]
    taker.take(10.0, SavedHour(10.0, ["new", "busy", "received"], [[7, 1, 9.0, 0.5, 3.0]], nodes))
    [only] = shown(taker, 10.0)
    assert (only["nodes"], only["busy"], only["received"], only["entities"]) == (1, 0.5, 3, 0)


def test_sums_are_fresh_until_a_node_may_have_ended_unseen() -> None:
    hour = ClusterHour()
    assert not hour.is_fresh(0.0)
    hour.add(ONE, 10.0, 10.0, COLUMNS, [])
    assert hour.is_fresh(10.0 + FRESH_STEPS)
    assert not hour.is_fresh(10.1 + FRESH_STEPS)


def test_a_member_of_another_release_may_have_other_values() -> None:
    hour = ClusterHour()
    hour.add(ONE, 10.0, 10.0, ["new", "busy", "received"], [[7, 99.0, 0.5, 3.0]])
    [only] = shown(hour, 10.0)
    assert (only["received"], only["busy"], only["entities"]) == (3.0, 0.5, 0.0)


def test_steps_of_more_than_an_hour_ago_are_forgotten() -> None:
    hour = ClusterHour()
    hour.add(ONE, 10.0, 10.0, COLUMNS, [row(7), row(8)])
    assert len(hour.rows(8.0 + SAMPLES_MAX)) == 1
    assert hour.rows(9.5 + SAMPLES_MAX) == []
    assert hour.rows(10.0) == []
