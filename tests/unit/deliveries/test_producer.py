"""The producer: each row of its table, its bounds, and a model with a receiver."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import pytest

from shardbus.deliveries.numbers import DeliveryNumber
from shardbus.deliveries.producer import (
    SWEEP_S,
    Delivery,
    DeliveryEnd,
    DeliveryEnded,
    Effect,
    Producer,
    ProducerLimits,
    RoundBegun,
    SendDelivery,
    SendOutcome,
)
from shardbus.deliveries.record import DeliveryRecord, ReceiverDecision

FOREVER = float("inf")
A, B = ("account", "a"), ("account", "b")
SMALL = ProducerLimits(window=3, window_all=4, waiting_max=5, attempts=3)


class Bench:
    """A producer, its clock and its effects. `short`: by the short ways, where they are open."""

    def __init__(self, limits: ProducerLimits = SMALL, *, short: bool = False) -> None:
        self.producer, self.now, self.short = Producer(limits), 100.0, short
        self.shortened = 0
        """Steps that went a short way."""

    def offer(self, target: tuple[str, str] = A, until: float = FOREVER) -> tuple[Delivery, Any]:
        delivery, before = Delivery(until), None
        if self.short:
            before = self.producer.send_at_once(delivery, target)
        if before is None:
            effects = self.producer.offer(delivery, target, self.now)
        else:
            self.shortened += 1
            seconds = self.producer.limits.resend
            effects = [SendDelivery(delivery, before, delivery.line.round, seconds, False)]
        self.producer.check()
        return delivery, effects

    def outcome(
        self, send: SendDelivery, outcome: SendOutcome, error: Exception | None = None
    ) -> list[Effect]:
        confirmed = outcome is SendOutcome.CONFIRMED
        if self.short and confirmed and self.producer.confirm(send.delivery):
            self.shortened += 1
            effects: list[Effect] = [DeliveryEnded(send.delivery, DeliveryEnd.CONFIRMED)]
        else:
            effects = self.producer.on_outcome(send.delivery, send.round, outcome, self.now, error)
        self.producer.check()
        return effects

    def wait(self, seconds: float) -> list[Effect]:
        self.now += seconds
        effects = self.producer.tick(self.now)
        self.producer.check()
        return effects


def sends(effects: list[Effect]) -> list[SendDelivery]:
    return [effect for effect in effects if isinstance(effect, SendDelivery)]


def shown(effects: list[Effect]) -> list[Any]:
    """Sendings as (number, before), ends as the end, rounds as the reason."""
    rows: list[Any] = []
    for effect in effects:
        match effect:
            case SendDelivery(delivery=delivery, before=before, skips=skips):
                rows.append((delivery.seq, before, "skip") if skips else (delivery.seq, before))
            case DeliveryEnded(delivery=delivery, end=end):
                rows.append((delivery.seq, end))
            case RoundBegun(reason=reason, count=count):
                rows.append((reason, count))
    return rows


def test_deliveries_of_a_line_name_the_one_before() -> None:
    bench = Bench()
    assert shown(bench.offer()[1]) == [(1, 0)]
    assert shown(bench.offer()[1]) == [(2, 1)]
    assert shown(bench.offer(B)[1]) == [(3, 0)]
    assert shown(bench.offer()[1]) == [(4, 2)]


def test_a_confirmed_delivery_is_forgotten_and_no_longer_named() -> None:
    bench = Bench()
    first = sends(bench.offer()[1])[0]
    assert shown(bench.outcome(first, SendOutcome.CONFIRMED)) == [(1, DeliveryEnd.CONFIRMED)]
    bench.wait(SWEEP_S)
    assert bench.producer.lines == {}
    assert shown(bench.offer()[1]) == [(2, 0)]
    assert bench.outcome(first, SendOutcome.FAILED) == []


def test_windows_hold_deliveries_back_in_order() -> None:
    bench = Bench()
    sent = [sends(bench.offer()[1]) for _ in range(4)]
    assert [len(part) for part in sent] == [1, 1, 1, 0]
    assert not bench.producer.has_room(A)
    assert bench.producer.has_room(B)
    assert shown(bench.offer(B)[1]) == [(5, 0)]
    assert bench.offer(B)[1] == []
    assert not bench.producer.has_room(B)
    effects = bench.outcome(sent[0][0], SendOutcome.CONFIRMED)
    assert shown(effects) == [(1, DeliveryEnd.CONFIRMED), (4, 3)]
    effects = bench.outcome(sent[1][0], SendOutcome.CONFIRMED)
    assert shown(effects) == [(2, DeliveryEnd.CONFIRMED), (6, 5)]


def test_what_waits_is_bounded() -> None:
    bench = Bench()
    for _ in range(3 + SMALL.waiting_max):
        assert not bench.producer.is_full
        bench.offer()
    assert bench.producer.is_full


@pytest.mark.parametrize(
    ("outcome", "pause"),
    [
        (SendOutcome.GAP, 0.0),
        (SendOutcome.NO_ANSWER, 0.0),
        (SendOutcome.NOT_NOW, 0.2),
        (SendOutcome.FAILED, 0.2),
    ],
)
def test_a_failure_begins_a_new_round_of_the_whole_window(
    outcome: SendOutcome, pause: float
) -> None:
    bench = Bench()
    first, second = (sends(bench.offer()[1])[0] for _ in range(2))
    effects = bench.outcome(first, outcome)
    if pause:
        assert effects == []
        assert bench.producer.deadline() == pytest.approx(bench.now + pause)
        assert bench.offer()[1] == [], "nothing is sent in a pause"
        bench.wait(pause - 0.01)
        effects = bench.wait(0.02)
        assert shown(effects) == [("pause", 3), (1, 0), (2, 1), (3, 2)]
    else:
        assert shown(effects) == [(outcome.value, 2), (1, 0), (2, 1)]
    assert bench.outcome(second, SendOutcome.GAP) == [], "of an earlier round"
    assert shown(bench.outcome(second, SendOutcome.CONFIRMED)) == [(2, DeliveryEnd.CONFIRMED)]


def test_pauses_double_up_to_their_bound_and_a_confirmation_ends_that() -> None:
    bench = Bench(ProducerLimits(retry=1.0, retry_max=4.0))
    send = sends(bench.offer()[1])[0]
    pauses = []
    for _ in range(4):
        bench.outcome(send, SendOutcome.NOT_NOW)
        line = bench.producer.lines[A]
        assert line.resumes_at is not None
        pauses.append(line.resumes_at - bench.now)
        send = sends(bench.wait(pauses[-1]))[0]
    assert pauses == [1.0, 2.0, 4.0, 4.0]
    other = sends(bench.offer()[1])[0]
    bench.outcome(send, SendOutcome.CONFIRMED)
    bench.outcome(other, SendOutcome.NOT_NOW)
    line = bench.producer.lines[A]
    assert line.resumes_at == bench.now + 1.0


def test_repeated_gaps_pause() -> None:
    bench = Bench()
    send = sends(bench.offer()[1])[0]
    send = sends(bench.outcome(send, SendOutcome.GAP))[0]
    assert bench.outcome(send, SendOutcome.GAP) == []
    assert shown(bench.wait(0.21)) == [("pause", 1), (1, 0)]


def test_the_time_for_an_answer_doubles() -> None:
    bench = Bench(ProducerLimits(resend=10, resend_max=30))
    send, times = sends(bench.offer()[1])[0], []
    for _ in range(4):
        times.append(send.timeout)
        send = sends(bench.outcome(send, SendOutcome.NO_ANSWER))[0]
    assert times == [10, 20, 30, 30]
    bench.outcome(send, SendOutcome.NOT_NOW)
    assert sends(bench.wait(1.0))[0].timeout == 10


def poisoned(bench: Bench) -> SendDelivery:
    """Let the handler of a delivery fail until it is skipped. Returns the sending of the skip."""
    send = sends(bench.offer()[1])[0]
    for _ in range(SMALL.attempts - 1):
        bench.outcome(send, SendOutcome.FAILED, ValueError("no"))
        send = sends(bench.wait(10))[0]
    effects = bench.outcome(send, SendOutcome.FAILED, ValueError("no"))
    assert shown(effects) == [("failed", 1), (1, 0, "skip")]
    return sends(effects)[0]


def test_poison_is_skipped_and_then_given_up() -> None:
    bench = Bench()
    skip = poisoned(bench)
    effects = bench.outcome(skip, SendOutcome.CONFIRMED)
    assert shown(effects) == [(1, DeliveryEnd.POISON)]
    assert str(effects[0].error) == "no"  # type: ignore[union-attr]


def test_poison_that_was_applied_after_all_is_confirmed() -> None:
    bench = Bench()
    assert shown(bench.outcome(poisoned(bench), SendOutcome.REPEATED)) == [
        (1, DeliveryEnd.CONFIRMED)
    ]
    bench = Bench()
    send = sends(bench.offer()[1])[0]
    late = send
    for _ in range(SMALL.attempts - 1):
        bench.outcome(send, SendOutcome.FAILED)
        send = sends(bench.wait(10))[0]
    bench.outcome(send, SendOutcome.FAILED)
    assert shown(bench.outcome(late, SendOutcome.CONFIRMED)) == [(1, DeliveryEnd.CONFIRMED)]


def test_a_skip_is_sent_again_as_a_skip() -> None:
    bench = Bench()
    skip = poisoned(bench)
    bench.offer()
    bench.outcome(skip, SendOutcome.NOT_NOW)
    effects = bench.wait(10)
    assert shown(effects) == [("pause", 2), (1, 0, "skip"), (2, 1)]
    again = sends(effects)[0]
    assert shown(bench.outcome(again, SendOutcome.CONFIRMED)) == [(1, DeliveryEnd.POISON)]


def test_poison_that_is_not_skipped_is_tried_for_ever_and_holds_the_others() -> None:
    bench = Bench(ProducerLimits(attempts=2, skips_poison=False, retry_max=7))
    send = sends(bench.offer()[1])[0]
    bench.offer()
    for _ in range(6):
        bench.outcome(send, SendOutcome.FAILED)
        effects = bench.wait(7)
        assert shown(effects) == [("pause", 2), (1, 0), (2, 1)]
        send = sends(effects)[0]


@pytest.mark.parametrize(
    ("outcome", "ends"),
    [
        (SendOutcome.DEFINITE, [(1, DeliveryEnd.REFUSED)]),
        (SendOutcome.STALE, [(2, DeliveryEnd.STALE), (1, DeliveryEnd.STALE)]),
    ],
)
def test_definite_ends(outcome: SendOutcome, ends: list[Any]) -> None:
    bench = Bench()
    send = sends(bench.offer()[1])[0]
    bench.offer()
    assert shown(bench.outcome(send, outcome)) == ends


def test_a_delivery_whose_time_is_over_ends_also_behind_the_window() -> None:
    bench = Bench()
    for _ in range(3):
        bench.offer()
    bench.offer(until=bench.now + 5)
    assert bench.wait(SWEEP_S) == []
    for _ in range(3):
        bench.wait(SWEEP_S)
    assert shown(bench.wait(SWEEP_S)) == [(4, DeliveryEnd.EXPIRED)]
    assert bench.producer.unconfirmed == 3


def test_a_producer_at_rest_has_no_deadline() -> None:
    bench = Bench()
    assert bench.producer.deadline() is None
    send = sends(bench.offer()[1])[0]
    assert bench.producer.deadline() is not None
    bench.outcome(send, SendOutcome.CONFIRMED)
    bench.wait(SWEEP_S)
    assert bench.producer.deadline() is None


def test_old_numbers_are_kept_and_new_ones_are_above() -> None:
    bench = Bench()
    effects = bench.producer.offer(Delivery(FOREVER), A, bench.now, seq=7)
    assert shown(effects) == [(7, 0)]
    assert shown(bench.offer()[1]) == [(8, 7)]


# ---- a model: a line, a receiver that loses, fails and forgets unstored records


class Model:
    """One producer, two entities, and links that keep the order while they last."""

    def __init__(self, seed: int, *, short: bool = False, fails: float = 0.3) -> None:
        self.dice, self.fails = Random(seed), fails
        limits = ProducerLimits(window=3, window_all=5, attempts=4, retry=0.5)
        self.bench = Bench(limits, short=short)
        self.log: list[Any] = []
        self.links: dict[tuple[str, str], deque[SendDelivery]] = {A: deque(), B: deque()}
        self.stored = {A: DeliveryRecord().stored(), B: DeliveryRecord().stored()}
        self.applied: dict[tuple[str, str], list[int]] = {A: [], B: []}
        self.ends: dict[int, DeliveryEnd] = {}
        self.offered = 0

    def step(self, calm: bool) -> None:
        dice = self.dice
        roll = dice.random()
        if roll < 0.3 and not calm:
            self.offered += 1
            self.take(self.bench.offer(dice.choice((A, B)))[1])
        elif roll < 0.8:
            self.arrive(dice.choice((A, B)), calm)
        elif roll < 0.85 and not calm:
            self.lose(dice.choice((A, B)))
        else:
            self.take(self.bench.wait(dice.choice((0.1, 1.0))))

    def take(self, effects: list[Effect]) -> None:
        self.log += shown(effects)
        for effect in effects:
            match effect:
                case SendDelivery(delivery=delivery):
                    self.links[delivery.line.target].append(effect)
                case DeliveryEnded(delivery=delivery, end=end):
                    assert delivery.seq not in self.ends
                    self.ends[delivery.seq] = end

    def lose(self, target: tuple[str, str]) -> None:
        """The node dies with messages under way; some of it had arrived."""
        under_way = list(self.links[target])
        self.links[target].clear()
        for send in under_way:
            self.take(self.bench.outcome(send, SendOutcome.NOT_NOW))

    def arrive(self, target: tuple[str, str], calm: bool) -> None:
        if not self.links[target]:
            return
        send = self.links[target].popleft()
        delivery, dice = send.delivery, self.dice
        record = DeliveryRecord.of(self.stored[target])
        number = DeliveryNumber(int(send.skips), "p", 0, delivery.seq, send.before, b"")
        decision = record.decide(number)
        outcome = SendOutcome.CONFIRMED
        if decision is ReceiverDecision.REPEATED:
            outcome = SendOutcome.REPEATED
        elif decision is ReceiverDecision.GAP:
            outcome = SendOutcome.GAP
        elif not send.skips and not calm and dice.random() < self.fails:
            outcome = SendOutcome.FAILED
        else:
            self.stored[target] = record.stored(number, now=1)
            if not send.skips:
                self.applied[target].append(delivery.seq)
        if not calm and dice.random() < self.fails / 2:
            outcome = SendOutcome.NO_ANSWER
        self.take(self.bench.outcome(send, outcome, ValueError() if calm else None))


def test_the_short_way_is_closed_to_a_skip() -> None:
    bench = Bench(short=True)
    send = sends(bench.offer()[1])[0]
    while not send.skips:
        send = sends(bench.outcome(send, SendOutcome.FAILED) or bench.wait(30))[0]
    assert shown(bench.outcome(send, SendOutcome.CONFIRMED)) == [(1, DeliveryEnd.POISON)]


@pytest.mark.parametrize("seed", range(20))
def test_the_short_ways_do_as_the_long_ones(seed: int) -> None:
    long, short = (Model(seed, short=which, fails=0.03) for which in (False, True))
    for _ in range(400):
        long.step(calm=False)
        short.step(calm=False)
    assert short.log == long.log
    assert short.bench.producer.deadline() == long.bench.producer.deadline()
    assert short.bench.shortened > 10


@pytest.mark.parametrize("seed", range(60))
def test_each_delivery_is_applied_once_in_order_or_has_failed(seed: int) -> None:
    model = Model(seed)
    for _ in range(400):
        model.step(calm=False)
    for _ in range(3000):
        if not model.bench.producer.unconfirmed:
            break
        model.step(calm=True)
    assert model.bench.producer.unconfirmed == 0
    assert sorted(model.ends) == list(range(1, model.offered + 1))
    applied = model.applied[A] + model.applied[B]
    assert all(line == sorted(set(line)) for line in model.applied.values())
    assert set(applied) == {n for n, end in model.ends.items() if end is DeliveryEnd.CONFIRMED}
